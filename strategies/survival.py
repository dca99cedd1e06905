"""Training of a survival model over sites: set-up by sums, rounds of DPFedAvg, baseline hazard."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from logging import INFO
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore import log
from numpy.typing import NDArray

from strategies.dp_fedavg import DPFedAvg
from strategies.exchange import Disclosure, Exchange
from strategies.membership import Refused
from tasks.site.not_estimable import NotEstimable
from tasks.survival.baseline import BaselineHazard, breslow
from tasks.survival.concordance import ConcordanceSums, collapse, concordance
from tasks.survival.config import SurvivalConfig
from tasks.survival.curves import GroupCurves, PooledCurves, pool_curves, risk_cuts
from tasks.survival.messages import (
    CURVES,
    EVALUATE,
    STATISTICS,
    TRAIN,
    Arrays,
    CurvesReply,
    CurvesRequest,
    EvaluateReply,
    EvaluationSums,
    StatisticsReply,
    StatisticsRequest,
    TrainConfig,
    TrainReply,
    to_array_record,
)
from tasks.survival.models import arrays_of, build
from tasks.survival.risk_sets import time_grid
from tasks.survival.standardization import FeatureMoments

SURVIVAL_DISCLOSURES = {
    STATISTICS: Disclosure("statistics", StatisticsRequest.reveals, StatisticsReply.reveals),
    TRAIN: Disclosure("train", TrainConfig.reveals, TrainReply.reveals),
    EVALUATE: Disclosure("evaluate", TrainConfig.reveals, EvaluateReply.reveals),
    CURVES: Disclosure("curves", CurvesRequest.reveals, CurvesReply.reveals),
}


@dataclass(frozen=True)
class PooledStatistics:
    """What the sites' rows are like, together.

    Attributes
    ----------
    feature_names : tuple of str
        In the order of the model's inputs.
    moments : FeatureMoments
        Of the training rows of all sites.
    horizon : float
        End of the time grid.
    data_set : str
        Bundled data set of all sites; ``""`` where any has its own rows.
    sites : list of dict
        Name, training rows, events and evaluation rows of each.
    """

    feature_names: tuple[str, ...]
    moments: FeatureMoments
    horizon: float
    data_set: str
    sites: list[dict[str, Any]]


class SurvivalFedAvg(DPFedAvg):
    """Federated averaging of a survival model, from set-up to survival curves.

    Steps, each one exchange but the rounds, which are one each:

    1. ``statistics``: moments of the features, number of events, outline of follow-up.
    2. ``train``, once a round: each site evaluates the global model that it receives on its
       evaluation rows, trains it on its training rows, and returns the privatized update.
    3. ``evaluate``: the final model's evaluation, and risk-set sums on a public time grid, from
       which the server makes the baseline hazard.
    4. ``curves``: predicted and observed survival by risk group.

    With the introduction of sites (:mod:`strategies.membership`) that is rounds + 4.

    **What is revealed.** The server gets sums with at least ``survival.privacy-level`` rows of a
    site behind each, and model updates. A sum is no noise: nothing here but the update is
    privatized, and no formal guarantee is claimed for that either. Sites get the global model
    and pooled sums; they get nothing of one another. The sentences are in
    ``SURVIVAL_DISCLOSURES``, the messages of a run in its ledger.

    Parameters
    ----------
    config : SurvivalConfig
        Settings of the task.
    seed : int
        Seed of the initial model.
    min_sites : int
        Fewest sites.
    on_round : callable, optional
        Called with the record of a round once its model is evaluated, which happens in the next
        exchange: ``round``, ``c-index`` with bounds, ``train-loss``, ``noise-to-signal`` by site.
    """

    def __init__(
        self,
        *,
        config: SurvivalConfig,
        seed: int = 0,
        min_sites: int = 2,
        on_round: Callable[[dict[str, Any]], None] | None = None,
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
            train_metrics_aggr_fn=self._pool_train_metrics,
            evaluate_metrics_aggr_fn=self._pool_evaluate_metrics,
        )
        self.config = config
        self.seed = seed
        self.on_round = on_round or (lambda record: None)
        self.statistics: PooledStatistics | None = None
        self.baseline: BaselineHazard | None = None
        self.curves: PooledCurves | None = None
        self.diagnostics: tuple[str, ...] = ()
        self.final: dict[str, Any] = {}
        self._record: dict[str, Any] = {"round": 0}
        self._risk_moments: FeatureMoments | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all steps; arguments as of Flower's ``start``, those left out are made here."""
        exchange = Exchange.around(grid, timeout=timeout, disclosures=SURVIVAL_DISCLOSURES)
        statistics = self.gather_statistics(exchange)
        config = TrainConfig(
            standardizer=statistics.moments.standardizer(), grid_horizon=statistics.horizon
        ).to_config()
        config.update(train_config or {})
        result = super().start(
            grid=exchange,
            initial_arrays=initial_arrays or self.initial_arrays(),
            num_rounds=num_rounds or self.config.rounds,
            timeout=timeout,
            train_config=config,
            evaluate_config=config if evaluate_config is None else evaluate_config,
            evaluate_fn=evaluate_fn,
        )
        self.draw_curves(exchange, result.arrays)
        return result

    # The steps ------------------------------------------------------------------------------

    def gather_statistics(self, exchange: Exchange) -> PooledStatistics:
        """Step 1, ``statistics``: pool what the sites' rows are like.

        Raises
        ------
        Refused
            If sites have different feature columns.
        NotEstimable
            If no site has an event.
        """
        content = StatisticsRequest().to_record()
        replies = exchange.send_and_receive(self._to_all(exchange, content, STATISTICS))
        named = dict(exchange.read(replies, StatisticsReply.from_record))
        _refuse_other_features(named)
        first = next(iter(named.values()))
        if sum(reply.n_events for reply in named.values()) == 0:
            raise NotEstimable("no-events", "no site has an event among its training rows")
        data_sets = {reply.data_set for reply in named.values()}
        self.statistics = PooledStatistics(
            feature_names=first.feature_names,
            moments=FeatureMoments.merge(reply.moments for reply in named.values()),
            horizon=self.config.horizon or max(reply.horizon for reply in named.values()),
            data_set=data_sets.pop() if len(data_sets) == 1 else "",
            sites=[
                {
                    "site": name,
                    "training-rows": reply.moments.count,
                    "training-events": reply.n_events,
                    "evaluation-rows": reply.n_test,
                }
                for name, reply in named.items()
            ],
        )
        return self.statistics

    def initial_arrays(self) -> ArrayRecord:
        """Return the initial model, which depends on the seed and the number of features."""
        assert self.statistics is not None, "gather_statistics comes first"
        model = build(
            self.config.model,
            n_features=len(self.statistics.feature_names),
            hidden_layers=self.config.hidden_units,
            dropout=self.config.dropout,
            seed=self.seed,
        )
        return to_array_record(arrays_of(model.network))

    def after_round(
        self, server_round: int, arrays: ArrayRecord, metrics: MetricRecord | None
    ) -> None:
        """Complete the record of the round before, whose model was evaluated in this one."""
        found = dict(metrics or {})
        loss = {"train-loss": found.pop("train-loss")} if "train-loss" in found else {}
        self._complete_record(found)
        self._record = {
            "round": server_round,
            **loss,
            "noise-to-signal": self.noise_to_signal.get(server_round, {}),
        }

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
        exchange = self._exchange
        assert exchange is not None, "start comes first"
        named = dict(exchange.read(messages, self._read_evaluation))
        usable = [m for m in messages if exchange.name_of(m.metadata.src_node_id) in named]
        metrics = super().aggregate_evaluate(server_round, usable)
        read = list(named.values())
        assert self.statistics is not None, "gather_statistics comes first"
        grid = time_grid(self.statistics.horizon, self.config.time_bins)
        self.baseline = breslow([reply.risk_sets for reply in read], grid)
        self._risk_moments = FeatureMoments.merge(reply.risk_moments for reply in read)
        self.final = dict(metrics or {})
        self._find_collapse([reply.evaluation for reply in read])
        self._complete_record(self.final)
        return metrics

    def draw_curves(self, exchange: Exchange, arrays: ArrayRecord) -> PooledCurves | None:
        """Step 4, ``curves``: predicted and observed survival by risk group."""
        if self.baseline is None or self._risk_moments is None:
            return None
        assert self.statistics is not None, "gather_statistics comes first"
        moments = self._risk_moments
        request = CurvesRequest(
            arrays=arrays,
            standardizer=self.statistics.moments.standardizer(),
            baseline=self.baseline,
            cuts=risk_cuts(float(moments.mean[0]), math.sqrt(float(moments.m2[0]) / moments.count)),
        )
        messages = self._to_all(exchange, request.to_record(), CURVES)
        asked = (request.cuts.size + 1, request.baseline.grid.size - 1)

        def parse(content: RecordDict) -> GroupCurves:
            sums = CurvesReply.from_record(content).curves
            if sums.events.shape != asked:
                raise ValueError("sums of other groups or another grid than asked for")
            return sums

        replies = exchange.read(exchange.send_and_receive(messages), parse)
        self.curves = pool_curves([sums for _, sums in replies])
        return self.curves

    # Checks ---------------------------------------------------------------------------------

    def check_update(self, reply: Message, sent: Mapping[str, NDArray[Any]]) -> Arrays:
        """Set a reply aside also if what it says of the received model cannot be read."""
        arrays = super().check_update(reply, sent)
        metrics = next(iter(reply.content.metric_records.values()))
        EvaluationSums.from_metrics(metrics)
        for key in ("loss", "loss-steps"):
            _number(metrics, key)
        return arrays

    def _read_evaluation(self, content: RecordDict) -> EvaluateReply:
        reply = EvaluateReply.from_record(content)
        cells, predictors = reply.risk_sets.events.size, reply.risk_moments.mean.size
        if (cells, predictors) != (self.config.time_bins, 1):
            raise ValueError("sums on another grid than asked for")
        return reply

    # Pooling --------------------------------------------------------------------------------

    def _pool_train_metrics(self, contents: list[RecordDict], weighted_by: str) -> MetricRecord:
        pooled = self._pool_evaluate_metrics(contents, weighted_by)
        metrics = [next(iter(content.metric_records.values())) for content in contents]
        steps = math.fsum(_number(metric, "loss-steps") for metric in metrics)
        if steps:
            losses = (_number(part, "loss") * _number(part, "loss-steps") for part in metrics)
            pooled["train-loss"] = math.fsum(losses) / steps
        return pooled

    def _pool_evaluate_metrics(self, contents: list[RecordDict], weighted_by: str) -> MetricRecord:
        sums = ConcordanceSums()
        rows = 0
        for content in contents:
            part = EvaluationSums.from_metrics(next(iter(content.metric_records.values())))
            sums, rows = sums + part.concordance, rows + part.rows
        result = concordance(sums, self.config.confidence_level)
        metrics = {
            "c-index": result.value,
            "c-index-lower": result.lower,
            "c-index-upper": result.upper,
            "comparable-pairs": result.comparable_pairs or None,
            "evaluated-rows": rows or None,
        }
        return MetricRecord({key: value for key, value in metrics.items() if value is not None})

    def _find_collapse(self, evaluations: list[EvaluationSums]) -> None:
        evaluated = [part for part in evaluations if part.rows]
        if not evaluated or self._risk_moments is None:
            return
        sums = sum((part.concordance for part in evaluated), ConcordanceSums())
        moments = self._risk_moments
        self.diagnostics = collapse(
            concordance(sums, self.config.confidence_level),
            identical_across_samples=all(part.identical for part in evaluated),
            spread=math.sqrt(float(moments.m2[0]) / moments.count),
        )

    def _complete_record(self, evaluation: dict[str, Any]) -> None:
        record = {**self._record, **evaluation}
        if "c-index-lower" in record:
            log(
                INFO,
                "round %d: C-index %.3f (%.3f to %.3f)",
                record["round"],
                record["c-index"],
                record["c-index-lower"],
                record["c-index-upper"],
            )
        self.on_round(record)

    def _to_all(self, exchange: Exchange, content: RecordDict, message_type: str) -> list[Message]:
        return [
            Message(content, dst_node_id=node, message_type=message_type)
            for node in exchange.get_node_ids()
        ]


def _refuse_other_features(named: dict[str, StatisticsReply]) -> None:
    first_name, first = next(iter(named.items()))
    faults = []
    for name, reply in named.items():
        if reply.feature_names != first.feature_names:
            missing = sorted(set(first.feature_names) - set(reply.feature_names))
            further = sorted(set(reply.feature_names) - set(first.feature_names))
            differ = f"missing: {', '.join(missing) or 'none'}; further: "
            differ += ", ".join(further) or "none"
            faults.append(f"{name}: its feature columns are not those of {first_name} ({differ})")
    if faults:
        raise Refused(faults)


def _number(metrics: MetricRecord, key: str) -> float:
    value = metrics[key]
    if isinstance(value, list):
        raise ValueError(f"{key} is a list")
    return float(value)
