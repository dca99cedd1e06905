"""What a vertical XGBoost run gives, and the ledger words of its messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.serverapp.strategy import Result

from strategies.exchange import Disclosure
from tasks.vertical_xgboost.aggregate_messages import (
    AGGREGATE,
    AggregateReply,
    AggregateRequest,
)
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.decide_messages import DECIDE, DecideReply, DecideRequest
from tasks.vertical_xgboost.level_messages import (
    HISTOGRAMS,
    HistogramsReply,
    HistogramsRequest,
)
from tasks.vertical_xgboost.messages import (
    BUCKETS,
    FINISH,
    LABELS,
    STOP,
    BucketsReply,
    BucketsRequest,
    FinishReply,
    FinishRequest,
    LabelsReply,
    LabelsRequest,
    StopRequest,
)
from tasks.vertical_xgboost.objectives import Metrics
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
    return {
        LABELS: Disclosure(
            "labels", LabelsRequest.reveals, LabelsReply.reveals, LabelsReply.reveals_sealed
        ),
        BUCKETS: Disclosure(
            "buckets", BucketsRequest.reveals, BucketsReply.reveals, BucketsReply.reveals_sealed
        ),
        HISTOGRAMS: Disclosure("histograms", HistogramsRequest.reveals, sums, shares),
        AGGREGATE: Disclosure("aggregate", added, totals, AggregateReply.reveals_sealed),
        DECIDE: Disclosure(
            "decide", DecideRequest.reveals, DecideReply.reveals, DecideReply.reveals_sealed
        ),
        FINISH: Disclosure("finish", FinishRequest.reveals, FinishReply.reveals),
        STOP: Disclosure("stop", StopRequest.reveals, "nothing"),
    }


@dataclass(frozen=True)
class GrownTree:
    """A tree, and what it took to grow it.

    Attributes
    ----------
    number : int
        From 1.
    tree : OwnedTree
        As the server knows it: owner and record of each split.
    train : Metrics
        After the tree.
    evaluation : Metrics or None
        None without rows for evaluation.
    gains : mapping of int to float
        Of each split node.
    exchanges, bytes, ciphertexts : int
        Of the tree's levels.
    seconds : mapping of str to float
        Processor time of cryptography by operation, over all parties and the server.
    """

    number: int
    tree: OwnedTree
    gains: Mapping[int, float]
    train: Metrics
    evaluation: Metrics | None
    exchanges: int
    bytes: int
    ciphertexts: int
    seconds: Mapping[str, float]


@dataclass(kw_only=True)
class VerticalResult(Result):
    """A trained model as the server knows it; also Flower's Result, without arrays.

    Attributes
    ----------
    parties : tuple of str
        In the order of names.
    split_clients : mapping of str to str
        Who decrypted the sums of whose columns.
    base_score, base_margin : float
    trees : tuple of GrownTree
        All that were grown.
    trees_to_keep : int
        How many of them are the model.
    seconds : mapping of str to float
        Processor time of cryptography by operation, set-up included.
    roster_fingerprint : str
        One code for the keys of all parties.
    num_rows, num_evaluation : int
    num_features : mapping of str to int
        Columns of each party.
    """

    parties: tuple[str, ...]
    split_clients: Mapping[str, str]
    base_score: float
    base_margin: float
    trees: tuple[GrownTree, ...]
    trees_to_keep: int
    seconds: Mapping[str, float]
    roster_fingerprint: str
    num_rows: int
    num_evaluation: int
    num_features: Mapping[str, int]

    @property
    def ciphertexts(self) -> int:
        """Ciphertexts that parties sent."""
        return sum(tree.ciphertexts for tree in self.trees)
