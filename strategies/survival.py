"""Training of a survival model over sites: set-up by sums, rounds of DPFedAvg, baseline hazard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from strategies.averaging import MALFORMED
from strategies.dp_fedavg import DPFedAvg
from strategies.exchange import Disclosure, Exchange
from strategies.snapshot import Snapshot, taken_apart
from strategies.survival_checks import (
    check_train_metrics,
    read_curves,
    read_evaluation,
    refuse_far_steps,
)
from strategies.survival_curves import curves_request
from strategies.survival_evaluation import (
    NO_EVALUATION_ROWS,
    c_index_entries,
    evaluation_metrics,
    metrics_entries,
    pooled_concordance,
    pooled_metrics,
    signs_of_collapse,
    train_metrics,
)
from strategies.survival_model import initial_model, pooled_cuts
from strategies.survival_records import RoundRecords
from strategies.survival_resume import SetUp, Told
from strategies.survival_statistics import (
    PooledStatistics,
    pool_statistics,
    read_introductions,
    statistics_request,
)
from tasks.site.faults import SiteFault
from tasks.site.messages import TaskPart
from tasks.site.reply_fields import MalformedReply
from tasks.survival.baseline import BaselineHazard, breslow
from tasks.survival.concordance import Concordance
from tasks.survival.config import SurvivalConfig
from tasks.survival.curves import PooledCurves, pool_curves
from tasks.survival.curves_messages import CURVES, CurvesReply, CurvesRequest
from tasks.survival.evaluation_plan import FOLLOW_UP_TOO_SHORT, EvaluationPlan
from tasks.survival.messages import (
    EVALUATE,
    TRAIN,
    Arrays,
    EvaluateReply,
    EvaluationSums,
    TrainConfig,
    TrainReply,
    to_array_record,
)
from tasks.survival.models import Kind, SurvivalModel, arrays_of
from tasks.survival.pooled_metrics import SurvivalMetrics
from tasks.survival.risk_sets import time_grid
from tasks.survival.set_up_messages import STATISTICS, StatisticsReply, StatisticsRequest
from tasks.survival.standardization import FeatureMoments
from tasks.survival.survival_metrics import SurvivalMetricsSums

SURVIVAL_DISCLOSURES = {
    STATISTICS: Disclosure("statistics", StatisticsRequest.reveals, StatisticsReply.reveals),
    TRAIN: Disclosure("train", TrainConfig.reveals, TrainReply.reveals),
    EVALUATE: Disclosure("evaluate", TrainConfig.reveals, EvaluateReply.reveals),
    CURVES: Disclosure("curves", CurvesRequest.reveals, CurvesReply.reveals),
}


MODEL_UNCHANGED = (
    "model_unchanged: the final model is the initial one; every update was lost to rounding, "
    "clipped to nothing (survival.dp-clip-norm) or too short (survival.learning-rate)"
)

NO_EVENTS = (
    "no_events_before_horizon: nothing is known of survival (by a baseline hazard, every predicted "
    "one is 1), since no site has an event before the horizon,"
)


class SurvivalFedAvg(DPFedAvg):
    """Federated averaging of a survival model, from set-up to survival curves.

    Steps, each one exchange but the rounds, which are one each:

    1. ``statistics``: moments of the features, histograms of those with missing values, number of
       events, counts by time; on grids and with categories that follow from what the introductions
       of the sites told.
    2. ``train``, once a round: each site evaluates the global model that it receives on its
       evaluation rows, trains it on its training rows, and returns the privatized update.
    3. ``evaluate``: the final model's evaluation, and risk-set sums on a public time grid, from
       which the server makes the baseline hazard.
    4. ``curves``: predicted and observed survival by risk group, and all metrics that need the
       baseline hazard or the distribution of censoring.

    With the introduction of sites (:mod:`strategies.membership`) that is rounds + 4.

    **What is revealed.** The server gets sums with at least ``survival.privacy-level`` rows of a
    site behind each, names of categories that as many rows have, and model updates. A sum is no
    noise: nothing here but the update is privatized, and no formal guarantee is claimed for that
    either. Sites get the global model and pooled sums. With two sites each can subtract what is its
    own from what is pooled (the average of the updates, weighted by numbers of rows, and the
    moments of the features) and has the other's; with K sites K - 1 of them can do so together. The
    sentences are in ``SURVIVAL_DISCLOSURES``, the messages of a run in its ledger.

    Parameters
    ----------
    config : SurvivalConfig
        Settings of the task.
    sites : mapping of str to TaskPart, optional
        What each site's introduction told (:func:`strategies.membership.meet_sites`); `start`
        needs it.
    seed : int
        Seed of the initial model.
    min_sites : int
        Fewest sites.
    on_round : callable, optional
        Called with the record of a round once its model is evaluated, which happens in the next
        exchange: ``round``, ``c-index`` with bounds, ``train-loss``, ``noise-to-signal`` by site.
    **dp_fedavg
        What :class:`~strategies.dp_fedavg.DPFedAvg` takes beside what is set here by `config` and
        `min_sites`: ``weigh``, ``after_round``, ``rng``, ``fraction_train`` and others.
    """

    kind_of_snapshot: ClassVar[str] = "survival"

    def __init__(
        self,
        *,
        config: SurvivalConfig,
        sites: Mapping[str, TaskPart] | None = None,
        seed: int = 0,
        min_sites: int = 2,
        on_round: Callable[[dict[str, Any]], None] | None = None,
        **dp_fedavg: Any,
    ) -> None:
        super().__init__(
            weighting=config.weighting,
            mechanism=config.dp_mechanism,
            clip_norm=config.dp_clip_norm,
            noise_multiplier=config.dp_noise_multiplier,
            sensitivity=config.dp_sensitivity,
            epsilon=config.dp_epsilon,
            min_train_nodes=min_sites,
            min_evaluate_nodes=min_sites,
            min_available_nodes=min_sites,
            train_metrics_aggr_fn=lambda parts, _: train_metrics(parts, config.confidence_level),
            evaluate_metrics_aggr_fn=lambda parts, _: evaluation_metrics(
                parts, config.confidence_level
            ),
            **dp_fedavg,
        )
        self.config = config
        self.sites = dict(sites or {})
        self.seed = seed
        self.on_round = on_round or (lambda record: None)
        self._begin()

    def _begin(self) -> None:
        """Forget the run before: nothing of its model, cuts and results is of another one."""
        for cached in ("label_cuts", "_initial_model"):
            self.__dict__.pop(cached, None)
        self.statistics: PooledStatistics | None = None
        self.baseline: BaselineHazard | None = None
        self.curves: PooledCurves | None = None
        self.diagnostics: tuple[str, ...] = ()
        self.final: dict[str, Any] = {}
        self._records = RoundRecords(lambda record: self.on_round(record))
        self._told = Told()
        self._grid: Exchange | None = None
        self.metrics: SurvivalMetrics | None = None
        self._risk_moments: FeatureMoments | None = None
        self._evaluations: list[EvaluationSums] = []
        self._c_index = pooled_concordance([], self.config.confidence_level)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        resume_from: Snapshot | None = None,
    ) -> Result:
        """Run all steps; arguments as of Flower's ``start``, those left out are made here.

        With `resume_from` see :meth:`resume_set_up` and `DPFedAvg.start`.
        """
        self._begin()
        exchange = Exchange.around(grid, timeout=timeout, disclosures=SURVIVAL_DISCLOSURES)
        if resume_from is None:
            statistics = self.gather_statistics(exchange)
        else:
            statistics = self.resume_set_up(exchange, resume_from)
        config = TrainConfig(
            standardizer=statistics.standardizer,
            grid_horizon=statistics.horizon,
            label_cuts=self.label_cuts,
        ).to_config()
        config.update(train_config or {})
        if initial_arrays is None:
            initial_arrays = self.initial_arrays()
        result = super().start(
            grid=exchange,
            initial_arrays=initial_arrays,
            num_rounds=self.config.rounds if num_rounds is None else num_rounds,
            timeout=timeout,
            train_config=config,
            evaluate_config=config if evaluate_config is None else evaluate_config,
            evaluate_fn=evaluate_fn,
            resume_from=resume_from,
        )
        if _are_equal(initial_arrays, result.arrays):
            self.diagnostics += (MODEL_UNCHANGED,)
        self.draw_curves(exchange, result.arrays)
        if self.kind == "time-dependent" and self.final:
            self._records.complete(self.final)
        return result

    # The steps ------------------------------------------------------------------------------

    def gather_statistics(self, exchange: Exchange) -> PooledStatistics:
        """Step 1, ``statistics``: pool what the sites' rows are like, and leave out who does not
        tell it, or has other times; see :mod:`strategies.survival_statistics`.

        Raises
        ------
        Refused
            If sites have different feature columns, or one has nothing to learn from.
        TooFewSites
            If fewer than the fewest sites can go on.
        NotEstimable
            If no site has an event.
        """
        min_sites = self.min_train_nodes
        facts = read_introductions(exchange, self.sites, min_sites=min_sites)
        request = statistics_request(facts, self.config)
        replies = self._ask(exchange, request)
        self._told = Told.of(exchange, {name: self.sites[name] for name in facts}, replies)
        self.statistics = pool_statistics(
            exchange,
            replies,
            facts=facts,
            request=request,
            time_bins=self.config.time_bins,
            min_sites=min_sites,
        )
        self._grid = exchange
        return self.statistics

    def resume_set_up(self, exchange: Exchange, snapshot: Snapshot) -> PooledStatistics:
        """Step 1 of a run that goes on: what was agreed on holds, and sites must tell the same.

        Raises
        ------
        Refused
            With the name of each site that took part and is missing, or tells something else.
        UnusableSnapshot
            If the snapshot is of another strategy.
        """
        with taken_apart():
            set_up = SetUp.from_snapshot(snapshot.of_kind(self.kind_of_snapshot))
        set_up.meet_again(exchange, self.sites)
        request = statistics_request(set_up.facts, self.config)
        set_up.compare(exchange, self._ask(exchange, request))
        self._told, self.statistics, self._grid = set_up.told, set_up.statistics, exchange
        return self.statistics

    def _ask(self, exchange: Exchange, request: StatisticsRequest) -> list[Message]:
        messages = self._to_all(exchange, request.to_record(), STATISTICS)
        return exchange.send_and_receive(messages)

    def snapshot(self, server_round: int) -> Snapshot:
        """Return the state after a round: that of `DPFedAvg`, set-up, and records of rounds."""
        assert self.statistics is not None, "gather_statistics comes first"
        assert self._grid is not None, "gather_statistics comes first"
        members = tuple(self._grid.name_of(node) for node in self._grid.get_node_ids())
        set_up = SetUp(self.statistics, self._told, members, tuple(self._grid.faults))
        bare = super().snapshot(server_round)
        facts = {**bare.facts, "record": self._records.open, "records": self._records.done}
        return set_up.to_snapshot(Snapshot(bare.kind, server_round, facts, bare.arrays))

    def restore(self, snapshot: Snapshot) -> None:
        """Be as after the round; `on_round` gets the records of all rounds that are over."""
        super().restore(snapshot)
        self._records.restore(snapshot.facts["record"], snapshot.facts["records"])

    def initial_arrays(self) -> ArrayRecord:
        """Return the initial model, which depends on the seed, the inputs and the cuts."""
        return to_array_record(arrays_of(self._initial_model.network))

    @cached_property
    def _initial_model(self) -> SurvivalModel:
        assert self.statistics is not None, "gather_statistics comes first"
        return initial_model(self.statistics, self.config, cuts=self.label_cuts, seed=self.seed)

    @property
    def kind(self) -> Kind:
        """What the model predicts survival from; see `tasks.survival.models.base.Kind`."""
        return self._initial_model.kind

    @cached_property
    def label_cuts(self) -> NDArray[np.float64]:
        """Borders of the intervals of discrete models, from the pooled counts by time."""
        assert self.statistics is not None, "gather_statistics comes first"
        return pooled_cuts(self.statistics, self.config)

    def after_round(
        self, server_round: int, arrays: ArrayRecord, metrics: MetricRecord | None
    ) -> None:
        """Complete the record of the round before, whose model was evaluated in this one."""
        super().after_round(server_round, arrays, metrics)
        found = dict(metrics or {})
        loss = {"train-loss": found.pop("train-loss")} if "train-loss" in found else {}
        self._records.complete(found)
        noise_to_signal = self.noise_to_signal.get(server_round, {})
        self._records.begin(server_round, {**loss, "noise-to-signal": noise_to_signal})

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Step 2, ``train``: the new global model, and the loss of this round.

        What the replies say of the model before is in the round's record, and not among the
        metrics that Flower shows and keeps under this round's number.
        """
        arrays, metrics = super().aggregate_train(server_round, replies)
        loss = {key: value for key, value in dict(metrics or {}).items() if key == "train-loss"}
        return arrays, MetricRecord(loss) if loss else None

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Step 3, ``evaluate``: the final model's evaluation, and the baseline hazard."""
        messages = list(replies)
        if not messages:
            return None
        exchange, config = self._exchange, self.config
        assert self.statistics is not None, "gather_statistics comes first"

        def parse(reply: Message) -> EvaluateReply:
            return read_evaluation(
                reply.content,
                kind=self.kind,
                time_bins=config.time_bins,
                stated=self._stated_rows(reply),
            )

        named = dict(exchange.read_messages(messages, parse))
        usable = [m for m in messages if exchange.name_of(m.metadata.src_node_id) in named]
        metrics = super().aggregate_evaluate(server_round, usable)
        read = list(named.values())
        grid = time_grid(self.statistics.horizon, config.time_bins)
        self.baseline = breslow([reply.risk_sets for reply in read], grid)
        self._risk_moments = FeatureMoments.merge(reply.risk_moments for reply in read)
        self.final = dict(metrics or {})
        self._evaluations = [reply.evaluation for reply in read]
        if not self.baseline.has_events:
            self.diagnostics += (f"{NO_EVENTS} {self.baseline.horizon:g}",)
        if self.kind != "time-dependent":  # which is evaluated by the baseline, in the next step
            self._diagnose(pooled_concordance(self._evaluations, config.confidence_level))
            self._records.complete(self.final)
        return metrics

    def draw_curves(self, exchange: Exchange, arrays: ArrayRecord) -> PooledCurves | None:
        """Step 4, ``curves``: predicted and observed survival by risk group, and the metrics that
        need the baseline hazard or the distribution of censoring.

        Of a model whose risk depends on time, the C-index is one of these.
        """
        if self.baseline is None or self._risk_moments is None:
            return None
        assert self.statistics is not None, "gather_statistics comes first"
        request = curves_request(
            arrays,
            self.statistics,
            self.baseline,
            self._risk_moments,
            config=self.config,
            kind=self.kind,
            label_cuts=self.label_cuts,
        )
        messages = self._to_all(exchange, request.to_record(), CURVES)
        replies = exchange.read_messages(
            exchange.send_and_receive(messages),
            lambda reply: read_curves(reply.content, request, stated=self._stated_rows(reply)),
        )
        self.curves = pool_curves([reply.curves for _, reply in replies])
        parts = [reply.metrics for _, reply in replies if reply.metrics is not None]
        self._take_metrics(parts, request.plan)
        return self.curves

    def _take_metrics(self, parts: list[SurvivalMetricsSums], plan: EvaluationPlan | None) -> None:
        if plan is not None:
            level = self.config.confidence_level
            self.metrics = pooled_metrics(parts, plan, level)
            if self.metrics.antolini is not None:
                rows = sum(int(part.rows) for part in parts)
                self.final |= c_index_entries(self.metrics.antolini, rows=rows)
                self._diagnose(self.metrics.antolini)
            self.diagnostics += self.metrics.collapse_signs(self._c_index)
        elif self.kind == "time-dependent":  # whose C-index is one of the metrics
            self.final["c-index-reason"] = FOLLOW_UP_TOO_SHORT
        self.final |= metrics_entries(self.metrics)

    # Checks ---------------------------------------------------------------------------------

    def check_update(self, reply: Message, sent: Mapping[str, NDArray[Any]]) -> Arrays:
        """Set a reply aside also if its metrics are malformed, or not those of the site's rows.

        Without privatization, so with no bound on an update's length, one that moves an element
        by more than :data:`~strategies.survival_checks.FARTHEST_STEP` is set aside.
        """
        arrays = super().check_update(reply, sent)
        try:
            check_train_metrics(reply.content, kind=self.kind, stated=self._stated_rows(reply))
        except MalformedReply as error:
            raise SiteFault(MALFORMED, str(error)) from None
        if self.privatization is None:
            refuse_far_steps(arrays, sent)
        return arrays

    def _stated_rows(self, reply: Message) -> tuple[int, int] | None:
        """Return the rows that the sender of a reply stated in set-up."""
        assert self.statistics is not None, "gather_statistics comes first"
        return self.statistics.rows_of(self._exchange.name_of(reply.metadata.src_node_id))

    # The final model ------------------------------------------------------------------------

    def _diagnose(self, result: Concordance) -> None:
        """Look at the final model's C-index; say why it, or its interval, does not exist."""
        assert self._risk_moments is not None, "aggregate_evaluate comes first"
        self._c_index = result
        evaluated = any(part.rows for part in self._evaluations)
        if result.reason:
            self.final["c-index-reason"] = result.reason if evaluated else NO_EVALUATION_ROWS
        self.diagnostics += signs_of_collapse(result, self._evaluations, self._risk_moments)

    def _to_all(self, exchange: Exchange, content: RecordDict, message_type: str) -> list[Message]:
        return [
            Message(content, dst_node_id=node, message_type=message_type)
            for node in exchange.get_node_ids()
        ]


def _are_equal(first: ArrayRecord, second: ArrayRecord) -> bool:
    return first.keys() == second.keys() and all(
        np.array_equal(array.numpy(), second[name].numpy()) for name, array in first.items()
    )
