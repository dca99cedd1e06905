"""What a vertical XGBoost run gives, and the ledger words of its messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.serverapp.strategy import Result

from strategies.exchange import Disclosure
from strategies.vertical_alignment import alignment_disclosures
from strategies.vertical_earlier import EarlierModel, EarlierTree
from tasks.vertical_xgboost.aggregate_messages import (
    AGGREGATE,
    AggregateReply,
    AggregateRequest,
)
from tasks.vertical_xgboost.alignment import tells_exponents_later
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.decide_messages import DECIDE, DecideReply, DecideRequest
from tasks.vertical_xgboost.end_messages import (
    FINISH,
    STOP,
    TRIM,
    FinishReply,
    FinishRequest,
    StopRequest,
    TrimRequest,
)
from tasks.vertical_xgboost.level_messages import (
    HISTOGRAMS,
    HistogramsReply,
    HistogramsRequest,
)
from tasks.vertical_xgboost.messages import (
    BUCKETS,
    LABELS,
    BucketsReply,
    BucketsRequest,
    LabelsReply,
    LabelsRequest,
)
from tasks.vertical_xgboost.objective import Metrics
from tasks.vertical_xgboost.tree import OwnedTree


def vertical_disclosures(config: VerticalXGBoostConfig) -> dict[str, Disclosure]:
    """Ledger words of a run's messages, by message type."""
    plain, by_source = config.encryption == "none", config.aggregator == "source"
    sums = HistogramsReply.reveals_plain if plain else HistogramsReply.reveals
    if by_source:
        sums = HistogramsReply.reveals_for_source
    shares = HistogramsReply.reveals_sealed_plain if plain else HistogramsReply.reveals_sealed
    added = AggregateRequest.reveals_plain if plain else AggregateRequest.reveals
    totals = AggregateReply.reveals_plain if plain else AggregateReply.reveals
    keys = LabelsRequest.reveals
    if config.alignment != "same" and not tells_exponents_later(config):
        keys = LabelsRequest.reveals_aligned
    told = HistogramsRequest.reveals
    if config.samples_columns:
        told = HistogramsRequest.reveals_ranks
    labels = LabelsReply.reveals_classes if config.classes else LabelsReply.reveals
    if not config.sums_labels:
        labels = LabelsReply.reveals_numbers
    if config.weight:
        labels = f"{labels}; {LabelsReply.reveals_weights}"
    decided = DecideRequest.reveals
    if config.subsample < 1.0:
        decided = DecideRequest.reveals_sampled
    leaves = DecideReply.reveals_sealed
    if config.dp_epsilon:
        leaves = DecideReply.reveals_sealed_noisy
    return {
        **alignment_disclosures(config),
        LABELS: Disclosure("labels", keys, labels, LabelsReply.reveals_sealed),
        BUCKETS: Disclosure(
            "buckets", BucketsRequest.reveals, BucketsReply.reveals, BucketsReply.reveals_sealed
        ),
        HISTOGRAMS: Disclosure("histograms", told, sums, shares),
        AGGREGATE: Disclosure("aggregate", added, totals, AggregateReply.reveals_sealed),
        DECIDE: Disclosure("decide", decided, DecideReply.reveals, leaves),
        FINISH: Disclosure("finish", FinishRequest.reveals, FinishReply.reveals),
        TRIM: Disclosure("trim", TrimRequest.reveals, FinishReply.reveals),
        STOP: Disclosure("stop", StopRequest.reveals, "nothing"),
    }


@dataclass(frozen=True)
class Cost:
    """What a part of a run took.

    Attributes
    ----------
    exchanges, bytes, ciphertexts : int
        Messages of both directions; ciphertexts that parties sent.
    seconds : mapping of str to float
        Processor time of cryptography by operation, over all parties and the server.
    """

    exchanges: int
    bytes: int
    ciphertexts: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class GrownTree:
    """A tree, and what it took to grow it.

    Attributes
    ----------
    number : int
        From 1, trees of an earlier model among them.
    tree : OwnedTree
        As the server knows it: owner and record of each split.
    train : Metrics
        After the tree.
    evaluation : Metrics or None
        None without rows for evaluation.
    gains : mapping of int to float
        Of each split node.
    cost : Cost
        From the first message of the tree's first level to the last one of its last.
    """

    number: int
    tree: OwnedTree
    gains: Mapping[int, float]
    train: Metrics
    evaluation: Metrics | None
    cost: Cost

    def words(self, *, quality_name: str) -> str:
        """Return number and metrics as a line of a log."""
        parts = [f"training loss {self.train.loss:.5f}"]
        if self.evaluation is not None:
            parts.append(f"test loss {self.evaluation.loss:.5f}")
            parts.append(f"test {quality_name} {self.evaluation.quality:.4f}")
        return f"tree {self.number}: {', '.join(parts)}"


@dataclass(kw_only=True)
class VerticalResult(Result):
    """A trained model as the server knows it; also Flower's Result, without arrays.

    Attributes
    ----------
    run : str
        Name of the training, by which parties find their parts of the model again.
    parties : tuple of str
        In the order of names.
    split_clients : mapping of str to str
        Who decrypted the sums of whose columns.
    base_scores, base_margins : tuple of float
        Prediction before the first tree, one a root.
    trees : tuple of GrownTree
        All that were grown.
    trees_to_keep : int
        How many of them are the model, with those of `earlier`.
    set_up, ending : Cost
        Of what comes before the first tree (the introduction too) and after the last one (with
        early stopping the exchange in which it was found).
    roster_fingerprint : str
        One code for the keys of all parties.
    num_rows, num_evaluation : int
    num_features : mapping of str to int
        Columns of each party.
    rows_before : mapping of str to int
        Rows of each party, of which `num_rows` are common to all.
    model : EarlierModel
        All trees, earlier ones first, those too that are not kept.
    earlier : EarlierModel or None
        The model that the training went on from.
    """

    run: str
    parties: tuple[str, ...]
    split_clients: Mapping[str, str]
    base_scores: tuple[float, ...]
    base_margins: tuple[float, ...]
    trees: tuple[GrownTree, ...]
    trees_to_keep: int
    set_up: Cost
    ending: Cost
    roster_fingerprint: str
    num_rows: int
    num_evaluation: int
    num_features: Mapping[str, int]
    rows_before: Mapping[str, int]
    model: EarlierModel
    earlier: EarlierModel | None = None

    @property
    def trees_before(self) -> tuple[EarlierTree, ...]:
        """Trees of the model that the training went on from."""
        return () if self.earlier is None else self.earlier.trees

    @property
    def model_trees(self) -> tuple[OwnedTree, ...]:
        """Trees of the whole model, earlier ones first."""
        before = tuple(each.tree for each in self.trees_before)
        return (*before, *(grown.tree for grown in self.trees[: self.trees_to_keep]))

    @property
    def ciphertexts(self) -> int:
        """Ciphertexts that parties sent: shares, and totals where sources add up."""
        return sum(cost.ciphertexts for cost in self._costs)

    @property
    def seconds(self) -> dict[str, float]:
        """Processor time of cryptography by operation, over all parties and the server."""
        total: dict[str, float] = {}
        for cost in self._costs:
            for name, spent in cost.seconds.items():
                total[name] = total.get(name, 0.0) + spent
        return total

    @property
    def _costs(self) -> list[Cost]:
        return [self.set_up, *(grown.cost for grown in self.trees), self.ending]
