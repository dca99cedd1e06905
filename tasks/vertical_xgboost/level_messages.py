"""The first exchange of a tree level: what became of the level above, and encrypted sums back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from tasks.secure.record_names import Protection, protected_name
from tasks.secure.secure_sums import MaskedVector
from tasks.site.reply_fields import MalformedReply
from tasks.vertical_xgboost.candidates import CandidateLayout, IntpArray
from tasks.vertical_xgboost.message_parts import (
    SEALED_LEAVES,
    SEALED_ORDERS,
    SEALED_SHARES,
    Sealed,
    Seconds,
    array_record,
    as_bytes,
    as_list,
    as_whole,
    check_refused,
    put_masked,
    put_sealed,
    put_seconds,
    read_exponent,
    read_layout,
    read_masked,
    read_refused,
    read_sealed,
    read_seconds,
    whole_numbers,
)

HISTOGRAMS = "query.vertical_histograms"


def metrics_step(tree: int) -> str:
    """Name of the step under which metrics after a tree are masked; trees count from 0."""
    return f"vertical-metrics-{tree}"


@dataclass(frozen=True)
class StartOfTraining:
    """What the first level's request adds.

    Attributes
    ----------
    sealed : dict of sender to bytes
        Bucket maps.
    layouts : tuple of CandidateLayout
        Of each source.
    gradient_exponent : int
        Of the bound for all gradients.
    ranks : tuple of (tuple of int)
        Of each source's features, place in its order of columns; empty unless columns are sampled.
    """

    sealed: Sealed
    layouts: tuple[CandidateLayout, ...]
    gradient_exponent: int
    ranks: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, eq=False)
class SealedDecision:
    """The server on an open node of the level above.

    Attributes
    ----------
    source, candidate, place : int
        The winner, its number, its place in the level's order. For a leaf: the source whose split
        client sealed the weight, -1, -1.
    weights : bytes
        Sealed for the receiver by the source's split client: (w,), or (w_L, w_R) at the last
        level; empty where no leaf comes of it.
    """

    source: int
    candidate: int
    place: int
    weights: bytes

    @property
    def is_leaf(self) -> bool:
        """Whether the node is not split."""
        return self.candidate < 0


def put_decisions(content: RecordDict, decisions: tuple[SealedDecision, ...]) -> None:
    """Put decisions into a message."""
    numbers = [[d.source, d.candidate, d.place] for d in decisions]
    array = np.array(numbers, dtype=np.int32).reshape(-1, 3)
    content["decisions"] = array_record({"decisions": array})
    content[SEALED_LEAVES] = ConfigRecord({"weights": [d.weights for d in decisions]})


def read_decisions(content: RecordDict) -> tuple[SealedDecision, ...]:
    """Decisions of a message; ValueError or KeyError if they are malformed."""
    numbers = content.array_records["decisions"]["decisions"].numpy()
    sealed = as_list(content.config_records[SEALED_LEAVES]["weights"])
    return tuple(
        SealedDecision(source, candidate, place, as_bytes(weights))
        for (source, candidate, place), weights in zip(
            whole_numbers(numbers, "decisions", ndim=2).tolist(), sealed, strict=True
        )
    )


@dataclass(frozen=True, eq=False)
class HistogramsRequest:
    """Server to every party: what became of the level above; sum up this one.

    Attributes
    ----------
    tree, level : int
        Of what is to be summed, from 0.
    nodes : tuple of int
        Open nodes of the tree that this level is on, ascending.
    decisions : tuple of SealedDecision
        One an open node of the level above; empty at the start of training.
    orders : dict of source to (candidates,) intp
        The secret order of the level for each source; not for those the receiver decrypts for.
    start : StartOfTraining or None
    sealed_orders : dict of source to bytes
        Instead of `orders` where sources draw them.
    """

    tree: int
    level: int
    nodes: tuple[int, ...]
    decisions: tuple[SealedDecision, ...]
    orders: Mapping[str, IntpArray]
    start: StartOfTraining | None = None
    sealed_orders: Sealed = field(default_factory=dict)

    reveals: ClassVar[str] = (
        "source, unnamed feature, bucket and side of each split; secret orders of candidates, but "
        "for sources that the party decrypts for; with the first level, of every source number of "
        "buckets of each unnamed feature and which of them have missing values, and the power of "
        "two above all gradients; sealed: weights of leaves, first bucket maps of own rows"
    )

    reveals_ranks: ClassVar[str] = (
        f"{reveals}; with the first level, since columns are sampled, of every source the rank of "
        "each unnamed feature in its order of columns"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        nodes = list(self.nodes)
        at = ConfigRecord({"tree": self.tree, "level": self.level, "nodes": nodes})
        orders = {name: order.astype(np.int32) for name, order in self.orders.items()}
        content = RecordDict({"histograms": at, "orders": array_record(orders)})
        put_decisions(content, self.decisions)
        put_sealed(content, self.sealed_orders, SEALED_ORDERS)
        if self.start is not None:
            start = self.start
            put_sealed(content, start.sealed)
            content["start"] = ConfigRecord({"gradient-exponent": start.gradient_exponent})
            content["layouts"] = array_record(
                {
                    f"{name}/{at}": array
                    for at, layout in enumerate(start.layouts)
                    for name, array in layout.to_arrays().items()
                }
            )
            if start.ranks:
                ranks = {str(at): np.array(each, np.int32) for at, each in enumerate(start.ranks)}
                content["ranks"] = array_record(ranks)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> HistogramsRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        at = content.config_records["histograms"]
        start = None
        if "start" in content.config_records:
            arrays = content.array_records["layouts"]
            layouts = tuple(
                read_layout(arrays[f"num-buckets/{i}"].numpy(), arrays[f"has-missing/{i}"].numpy())
                for i in range(len(arrays) // 2)
            )
            told = content.config_records["start"]["gradient-exponent"]
            exponent = read_exponent(told, "gradient-exponent")
            told_ranks = content.array_records.get("ranks")
            ranks = (
                tuple(
                    tuple(whole_numbers(told_ranks[str(i)].numpy(), "ranks").tolist())
                    for i in range(len(told_ranks))
                )
                if told_ranks is not None
                else ()
            )
            start = StartOfTraining(read_sealed(content), layouts, exponent, ranks)
        orders = {
            name: whole_numbers(array.numpy(), "orders")
            for name, array in content.array_records["orders"].items()
        }
        return cls(
            tree=as_whole(at["tree"]),
            level=as_whole(at["level"]),
            nodes=tuple(map(as_whole, as_list(at["nodes"]))),
            decisions=read_decisions(content),
            orders=orders,
            start=start,
            sealed_orders=read_sealed(content, SEALED_ORDERS),
        )


@dataclass(frozen=True, eq=False)
class HistogramsReply:
    """A party: its sums for every source, encrypted for the source's split client.

    Attributes
    ----------
    shares : dict of source to bytes
        Ciphertexts (plain numbers with ``encryption = "none"``).
    refused : dict of source to (1 + candidates, nodes) bool
        Where ``min-instances`` refuses candidates.
    protection : str
        Of the shares.
    metrics : MaskedVector or None
        Losses after the tree that was finished with this request.
    seconds : dict of str to float
    """

    shares: Mapping[str, bytes]
    refused: Mapping[str, NDArray[np.bool_]]
    protection: Protection
    metrics: MaskedVector | None = None
    seconds: Seconds = field(default_factory=dict)

    reveals: ClassVar[str] = (
        "nothing of one party: sums of gradients encrypted for split clients (the server has no "
        "key), losses and metrics under masks, seconds per operation of cryptography; with "
        "min-instances, for each node and candidate whether fewer than that, but not none, of the "
        "party's own rows are on a side"
    )
    reveals_plain: ClassVar[str] = (
        "SUMS OF THE PARTY'S GRADIENTS IN CLEAR (encryption = none): from them labels can be found"
    )
    reveals_for_source: ClassVar[str] = (
        "nothing of one party: its sums of gradients, with what min-instances refuses, go sealed "
        "to the owners of the columns; losses and metrics under masks, seconds per operation of "
        "cryptography"
    )
    reveals_sealed: ClassVar[Mapping[str, str]] = {
        SEALED_SHARES: "ciphertexts of the sender's sums of gradients over the receiver's "
        "candidates, for which the receiver has no key; with min-instances, which of the "
        "candidates the sender refuses"
    }
    reveals_sealed_plain: ClassVar[Mapping[str, str]] = {
        SEALED_SHARES: "THE SENDER'S SUMS OF GRADIENTS over the receiver's candidates "
        "(encryption = none): from them labels can be found"
    }

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        shares = ConfigRecord(dict(self.shares))
        content = RecordDict({protected_name(self.protection, "shares"): shares})
        content["refused"] = array_record(self.refused)
        if self.metrics is not None:
            put_masked(content, self.metrics)
        put_seconds(content, self.seconds)
        return content

    @classmethod
    def from_record(
        cls,
        content: RecordDict,
        *,
        shapes: Mapping[str, tuple[int, int]],
        protection: Protection,
        has_refusals: bool,
    ) -> HistogramsReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed.

        Parameters
        ----------
        content : RecordDict
        shapes : mapping of source to (int, int)
            (1 + candidates, nodes) of every source.
        protection : str
            Of the shares.
        has_refusals : bool
            Whether it tells refusals of ``min-instances`` for every source.
        """
        shares = content.config_records[protected_name(protection, "shares")]
        if set(shares) != set(shapes):
            raise MalformedReply("shares: must be one for each source")
        refused = read_refused(content.array_records["refused"])
        check_refused(refused, shapes, expected=has_refusals)
        return cls(
            {name: as_bytes(value) for name, value in shares.items()},
            refused,
            protection,
            read_masked(content),
            read_seconds(content),
        )
