"""FedAvg in which every client clips and noises its update before it leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from flwr.supercore import log
from numpy.typing import NDArray

from strategies.averaging import (
    Arrays,
    Update,
    matching_arrays,
    mean_of_common_metrics,
    refuse_too_long,
    stated_examples,
    weighted_mean,
)
from strategies.exchange import Disclosure, Exchange
from strategies.lateness import Lateness
from strategies.rounds import Rounds
from strategies.snapshot import (
    Snapshot,
    TakeSnapshot,
    generator_state,
    restore_generator,
    taken_apart,
)
from strategies.update_intake import UpdateIntake, noise_to_signal
from tasks.privacy.client import NUM_CLIENTS, SERVER_ROUND
from tasks.privacy.mechanisms import AdditiveNoise, PrivatizationSettings

AfterRound = Callable[[int, ArrayRecord, MetricRecord | None], None]


class DPFedAvg(FedAvg):
    """Federated averaging (McMahan et al. 2017) of updates that the clients privatized.

    Steps of a round, which is one exchange:

    1. :meth:`configure_train`: the server samples K nodes and sends each the global model.
    2. Each client evaluates that model on its own rows, trains it, and privatizes the update:
       global + clip(local - global) + noise, the noise scale divided by sqrt(K). Its ClientApp
       has the mod :class:`tasks.privacy.client.UpdatePrivatization`, or does the same by itself.
    3. :meth:`aggregate_train`: the server sets aside what fails :meth:`check_update`, averages
       the rest by :meth:`combine`, with weights by :meth:`weigh`, estimates how much of each
       update is noise, and calls :meth:`after_round`.

    The model of a round is evaluated in the next one, so :meth:`configure_evaluate` addresses
    nodes in the last round only: rounds + 1 exchanges in all.

    **Messages.** ``train``: an ArrayRecord, the model; a ConfigRecord with ``server-round`` and
    ``num-clients``, the K of the round. Reply: one ArrayRecord, the privatized model, with the
    same names, shapes and types; one MetricRecord with ``num-examples`` and metrics of the model
    that was *received*.

    ``evaluate``: the same, with the final model. Reply: one MetricRecord with ``num-examples``.

    **What is revealed.** To the server: each site's privatized model by itself, not only the
    average; the number of its rows; its metrics, which have no noise. Integer and boolean arrays
    leave no site. The server knows the scale of the noise and subtracts d sigma^2 from the squared
    length of what came to estimate how long the clipped update was: post-processing, which
    discloses nothing beyond the update itself. To a client: the global models, which are averages
    of privatized updates. No (epsilon, delta) is claimed: the
    influence of one row is not bounded, and dividing by sqrt(K) is an argument about variances.
    With two sites each can subtract its own update from the average and has the other's,
    privatized as it is; with K sites K - 1 of them can do so together.

    **Who is left out.** Where `clip_norm` is known, an update that is longer than clipping and
    noise can make it is set aside. A site whose replies are late in two rounds in a row is not
    addressed any more, as long as the fewest sites are left.

    Parameters
    ----------
    weighting : {"examples", "equal"}
        Weight of a reply in the average: its ``num-examples``, or 1.
    mechanism : {"gaussian", "laplace", "none"}
        What the clients are set to; read for the estimate only.
    clip_norm : float, optional
        Likewise, as the next three; without it nothing is estimated. See
        :class:`tasks.privacy.mechanisms.PrivatizationSettings`.
    noise_multiplier : float, optional
        Drives Gaussian noise.
    sensitivity : float
        Factor on the noise scale.
    epsilon : float, optional
        Drives Laplace noise.
    weigh : callable, optional
        Takes a reply and returns its weight: see :meth:`weigh`.
    after_round : callable, optional
        Takes round, new model and metrics: see :meth:`after_round`.
    rng : numpy.random.Generator, optional
        Samples nodes where ``fraction_train`` or ``fraction_evaluate`` is below 1.
    on_snapshot : callable, optional
        Takes a :class:`~strategies.snapshot.Snapshot` before the first round and after each, from
        one of which ``start(resume_from=...)`` goes on.
    **fedavg
        What :class:`flwr.serverapp.strategy.FedAvg` takes. Metrics are averaged as there unless
        ``train_metrics_aggr_fn`` or ``evaluate_metrics_aggr_fn`` says otherwise; those that not
        every reply has are left out.

    Attributes
    ----------
    noise_to_signal : dict of int to dict of str to float
        Estimated ratio by round and site; infinite where no signal is seen behind the noise.
    shortfalls : dict of int to tuple of int
        Usable replies and clients addressed, of the rounds in which these differ.

    Raises
    ------
    ValueError
        For settings out of range.
    """

    disclosures: ClassVar[Mapping[str, Disclosure]] = {
        MessageType.TRAIN: Disclosure(
            "train",
            "global model, round, number of clients addressed",
            "privatized model of the site, number of its rows, metrics of the received model",
        ),
        MessageType.EVALUATE: Disclosure(
            "evaluate",
            "final model, round, number of clients addressed",
            "number of the site's rows, metrics of the final model",
        ),
    }

    kind_of_snapshot: ClassVar[str] = "dp-fedavg"

    def __init__(
        self,
        *,
        weighting: Literal["examples", "equal"] = "examples",
        mechanism: Literal["gaussian", "laplace", "none"] = "gaussian",
        clip_norm: float | None = None,
        noise_multiplier: float | None = None,
        sensitivity: float = 1.0,
        epsilon: float | None = None,
        weigh: Callable[[Message], float] | None = None,
        after_round: AfterRound | None = None,
        rng: np.random.Generator | None = None,
        on_snapshot: TakeSnapshot | None = None,
        **fedavg: Any,
    ) -> None:
        if weighting not in ("examples", "equal"):
            raise ValueError(f'weighting = {weighting!r}: must be "examples" or "equal"')
        for kind in ("train", "evaluate"):
            fedavg.setdefault(f"{kind}_metrics_aggr_fn", mean_of_common_metrics)
        super().__init__(**fedavg)
        self.weighting = weighting
        self.privatization: PrivatizationSettings | None = None
        if clip_norm is not None and mechanism != "none":
            self.privatization = PrivatizationSettings(
                clip_norm=clip_norm,
                mechanism=mechanism,
                noise_multiplier=noise_multiplier,
                sensitivity=sensitivity,
                epsilon=epsilon,
            )
        self.noise_to_signal: dict[int, dict[str, float]] = {}
        self.shortfalls: dict[int, tuple[int, int]] = {}
        self._weigh = weigh
        self._after_round = after_round
        self._rng = rng or np.random.default_rng()
        self._on_snapshot = on_snapshot
        self._lateness = Lateness()
        self._num_rounds: int | None = None
        self._timeout: float | None = None
        # Of the exchange under way:
        self._intake: UpdateIntake | None = None
        self._sent: Arrays = {}

    # The protocol -----------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        resume_from: Snapshot | None = None,
    ) -> Result:
        """Run the protocol; arguments and result are Flower's, but for the last.

        With `resume_from`, a snapshot of a run with the same settings, only the rounds that it
        lacks are run. The result is that of the whole run, equal to that of one which was not
        interrupted where the clients' answers depend on model, round and rows alone.

        Raises
        ------
        strategies.exchange.TooFewSites
            If too few nodes connect within `timeout` seconds, or too few replies are usable.
        strategies.snapshot.UnusableSnapshot
            If the snapshot is of another strategy, another model or more rounds.
        """
        if num_rounds < 1:
            raise ValueError(f"num_rounds = {num_rounds!r}: must be a whole number >= 1")
        self._num_rounds, self._timeout = num_rounds, timeout
        self.noise_to_signal, self.shortfalls, self._lateness = {}, {}, Lateness()
        with taken_apart():
            if resume_from is not None:
                self.restore(resume_from)
            rounds = Rounds(
                self,
                snapshot=self.snapshot,
                num_rounds=num_rounds,
                take=self._on_snapshot,
                resume_from=resume_from,
            )
        return rounds.run(
            Exchange.around(grid, timeout=timeout, disclosures=self.disclosures),
            initial_arrays,
            timeout=timeout,
            train_config=train_config,
            evaluate_config=evaluate_config,
            evaluate_fn=evaluate_fn,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address K nodes: the model, `config`, the round and K."""
        self._intake = None
        if self.fraction_train == 0:
            return []
        self._sent = {name: array.numpy() for name, array in arrays.items()}
        nodes = self._address(grid, self.fraction_train, self.min_train_nodes)
        return self._messages(nodes, MessageType.TRAIN, server_round, arrays, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the usable replies.

        Raises
        ------
        strategies.update_intake.NoUsableReplies
            If there are fewer than the Exchange's ``min_sites``, or none.
        """
        intake = self._intake
        if intake is None:
            return None, None
        updates = intake.usable_updates(
            replies, check=lambda reply: self.check_update(reply, self._sent), weigh=self.weigh
        )
        if intake.is_short(server_round, len(updates)):
            self.shortfalls[server_round] = (len(updates), len(intake.addressed))
        noise, settings = self.noise(len(intake.addressed)), self.privatization
        if noise is not None:
            self.noise_to_signal[server_round] = noise_to_signal(
                *(server_round, self._sent, updates, noise),
                clip_norm=math.inf if settings is None else settings.clip_norm,
            )
        arrays = self.combine(self._sent, updates)
        contents = [update.reply.content for update in updates]
        metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        self.after_round(server_round, arrays, metrics)
        self._lateness.leave_out(
            intake.exchange,
            intake.addressed,
            faults=intake.faults,
            fewest=max(self.min_available_nodes, self.min_train_nodes, self.min_evaluate_nodes),
        )
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address nodes in the last round, nobody before; in a loop other than `start`, always."""
        self._intake = None
        last = self._num_rounds is None or server_round == self._num_rounds
        if self.fraction_evaluate == 0 or not last:
            return []
        nodes = self._address(grid, self.fraction_evaluate, self.min_evaluate_nodes)
        return self._messages(nodes, MessageType.EVALUATE, server_round, arrays, config)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the metrics of the usable replies; None if there are none."""
        if self._intake is None:
            return None
        contents = self._intake.usable_metrics(replies, self.weighted_by_key)
        return self.evaluate_metrics_aggr_fn(contents, self.weighted_by_key) if contents else None

    def summary(self) -> None:
        """Log how the strategy is set up."""
        super().summary()
        log(INFO, "\t├──> Weighting: %s", self.weighting)
        log(INFO, "\t└──> Privatization at the clients: %s", self.privatization or "not told")

    # What a subclass may change ---------------------------------------------------------------

    def weigh(self, reply: Message) -> float:
        """Return a reply's weight in the average, finite and > 0; weights need not sum to 1."""
        if self._weigh is not None:
            return self._weigh(reply)
        if self.weighting == "equal":
            return 1.0
        return stated_examples(reply.content, self.weighted_by_key)

    def check_update(self, reply: Message, sent: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return a reply's model, in the order of the one that was sent, or set the reply aside.

        Parameters
        ----------
        reply : Message
            A training reply with content.
        sent : mapping of str to numpy.ndarray
            The global model of the round.

        Raises
        ------
        tasks.site.faults.SiteFault
            Why the reply may not enter the average. By default: other names, shapes or types than
            sent, an element that is not finite, an update that is longer than clipping and noise
            can make it (where `clip_norm` is known), or a MetricRecord without a usable number of
            examples (which equal weighting does without).
        """
        records = reply.content.metric_records.values()
        if self.weighting == "examples" or any(self.weighted_by_key in r for r in records):
            stated_examples(reply.content, self.weighted_by_key)
        arrays = matching_arrays(reply.content, sent)
        # A client may add the noise of a round with one client, whatever K is: see `num_clients`
        # of `UpdatePrivatization`.
        noise, settings = self.noise(1), self.privatization
        if noise is not None and settings is not None:
            refuse_too_long(arrays, sent, noise, clip_norm=settings.clip_norm)
        return arrays

    def combine(self, sent: Mapping[str, NDArray[Any]], updates: Sequence[Update]) -> ArrayRecord:
        """Return the new global model: by default the weighted mean of the sites' models.

        A server's optimizer has its place here (FedOpt, Reddi et al. 2021): the mean minus `sent`
        is what it takes for a gradient, with the sign changed.

        Parameters
        ----------
        sent : mapping of str to numpy.ndarray
            The global model of the round.
        updates : sequence of Update
            The usable ones, at least one, with arrays as sent and their weights.

        Returns
        -------
        ArrayRecord
            Names, shapes and types as sent.
        """
        return weighted_mean(sent, updates)

    def noise(self, num_clients: int) -> AdditiveNoise | None:
        """Return the noise of an update when so many clients are addressed; None: not known."""
        if self.privatization is None:
            return None
        return self.privatization.noise(num_clients=num_clients)

    def after_round(
        self, server_round: int, arrays: ArrayRecord, metrics: MetricRecord | None
    ) -> None:
        """Do something with the new model and the metrics of the one before; nothing by default."""
        if self._after_round is not None:
            self._after_round(server_round, arrays, metrics)

    def snapshot(self, server_round: int) -> Snapshot:
        """Return what :meth:`restore` needs to go on after a round; the model is added to it.

        A subclass that remembers more between rounds returns the same ``facts`` and ``arrays``
        and its own, and sets them in :meth:`restore`.
        """
        facts = {
            "generator": generator_state(self._rng),
            "late-in-a-row": self._lateness.in_a_row,
            "noise-to-signal": {str(n): ratios for n, ratios in self.noise_to_signal.items()},
            "shortfalls": {str(n): list(counts) for n, counts in self.shortfalls.items()},
        }
        return Snapshot(self.kind_of_snapshot, server_round, facts)

    def restore(self, snapshot: Snapshot) -> None:
        """Be as after the round that a snapshot is of.

        Raises
        ------
        strategies.snapshot.UnusableSnapshot
            If it is of another strategy.
        """
        facts = snapshot.of_kind(self.kind_of_snapshot).facts
        restore_generator(self._rng, facts["generator"])
        self._lateness = Lateness(facts["late-in-a-row"])
        self.noise_to_signal = {int(n): dict(r) for n, r in facts["noise-to-signal"].items()}
        self.shortfalls = {int(n): (a, b) for n, (a, b) in facts["shortfalls"].items()}

    # Parts of the steps -----------------------------------------------------------------------

    @property
    def _exchange(self) -> Exchange:
        """The exchange under way."""
        assert self._intake is not None, "configure_train or configure_evaluate comes first"
        return self._intake.exchange

    def _address(self, grid: Grid, fraction: float, minimum: int) -> list[int]:
        """Choose the nodes of this exchange, ordered by site name; wait until there are enough."""

        def sample_size(connected: int) -> int:
            return max(int(connected * fraction), minimum, 1)

        exchange = Exchange.around(grid, timeout=self._timeout, disclosures=self.disclosures)
        connected = len(list(exchange.get_node_ids()))
        nodes = exchange.wait_for_nodes(max(self.min_available_nodes, sample_size(connected)))
        size = sample_size(len(nodes))
        if size < len(nodes):
            nodes = [nodes[i] for i in sorted(self._rng.choice(len(nodes), size, replace=False))]
        self._intake = UpdateIntake(exchange, nodes)
        return nodes

    def _messages(
        self,
        nodes: Sequence[int],
        message_type: str,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
    ) -> list[Message]:
        own = ConfigRecord({**config, SERVER_ROUND: server_round, NUM_CLIENTS: len(nodes)})
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: own})
        return [Message(content, dst_node_id=node, message_type=message_type) for node in nodes]
