"""What travels between server and parties in the vertical XGBoost task, message by message.

``sealed`` maps are what one party sends another: in a reply by receiver, in a request by sender.
The server carries them and cannot read them. Every ``reveals`` is a sentence of the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from tasks.secure.secure_sums import MaskedVector
from tasks.secure.transcript import decode, encode
from tasks.site.messages import Facts
from tasks.vertical_xgboost.candidates import CandidateLayout, IntpArray

LABELS = "query.vertical_labels"
BUCKETS = "query.vertical_buckets"
HISTOGRAMS = "query.vertical_histograms"
FINISH = "query.vertical_finish"
STOP = "query.vertical_stop"

LABELS_STEP = "vertical-labels"
BUCKETS_STEP = "vertical-buckets"

Sealed = dict[str, bytes]
Arrays = Mapping[str, NDArray[np.generic]]
Seconds = dict[str, float]

_PAILLIER = "fedapp/paillier-key-of-site/1"


def metrics_step(tree: int) -> str:
    """Name of the step under which metrics after a tree are masked; trees count from 0."""
    return f"vertical-metrics-{tree}"


# Hello ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PaillierBundle:
    """A Paillier key that its owner signed.

    Parameters
    ----------
    key : bytes
        Public key; empty where nothing is encrypted.
    signature : bytes
        By the owner's signing key of the run, over `signed`.
    """

    key: bytes
    signature: bytes

    @staticmethod
    def signed(run: str, site: str, key: bytes) -> bytes:
        """What is signed."""
        return encode(_PAILLIER, run, site, key)

    def to_bytes(self) -> bytes:
        """Return both parts as bytes."""
        return encode(_PAILLIER, self.key, self.signature)

    @classmethod
    def from_bytes(cls, data: bytes) -> PaillierBundle:
        """Read both parts; ValueError if they are not there."""
        key, signature = decode(data, _PAILLIER)
        return cls(key, signature)


@dataclass(frozen=True)
class PartyFacts:
    """What a party adds to its introduction.

    Attributes
    ----------
    num_rows, num_evaluation : int
        Rows, and how many of them evaluate: the same at all parties.
    digest : bytes
        Of the ids in order with their evaluation flags.
    label_exponent : int
        Power of two that bounds its labels.
    negative_label : str or None
        How it spells the negative class.
    paillier : bytes
        `PaillierBundle`.
    """

    num_rows: int
    num_evaluation: int
    digest: bytes
    label_exponent: int
    negative_label: str | None
    paillier: bytes

    reveals: ClassVar[str] = (
        "public keys, number of rows, digest of all ids, spelling of the negative label, power of "
        "two above the party's largest label (regression only)"
    )

    def to_facts(self) -> Facts:
        """Return the facts for the introduction."""
        facts: dict[str, int | str | bytes] = {
            "num-rows": self.num_rows,
            "num-evaluation": self.num_evaluation,
            "digest": self.digest,
            "label-exponent": self.label_exponent,
            "paillier": self.paillier,
        }
        if self.negative_label is not None:
            facts["negative-label"] = self.negative_label
        return facts

    @classmethod
    def from_facts(cls, facts: Facts) -> PartyFacts:
        """Read the facts; raises ValueError or KeyError if they are malformed."""
        negative = facts.get("negative-label")
        return cls(
            num_rows=_whole(facts["num-rows"]),
            num_evaluation=_whole(facts["num-evaluation"]),
            digest=_bytes(facts["digest"]),
            label_exponent=_whole(facts["label-exponent"]),
            negative_label=None if negative is None else str(negative),
            paillier=_bytes(facts["paillier"]),
        )


# Set-up ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelsRequest:
    """Server to every party: keys of all, who decrypts for whom; tell whose labels you own.

    Attributes
    ----------
    roster : bytes
        Public keys of all parties.
    paillier : tuple of bytes
        `PaillierBundle` of each, in the order of names.
    split_clients : tuple of int
        Place of each source's split client.
    label_exponent : int
        Of the bound for all labels.
    """

    roster: bytes
    paillier: tuple[bytes, ...]
    split_clients: tuple[int, ...]
    label_exponent: int

    reveals: ClassVar[str] = (
        "public keys of all parties, who decrypts the sums of whose columns, and the largest of "
        "the powers of two told"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        settings = ConfigRecord(
            {
                "roster": self.roster,
                "paillier": list(self.paillier),
                "split-clients": list(self.split_clients),
                "label-exponent": self.label_exponent,
            }
        )
        return RecordDict({"labels": settings})

    @classmethod
    def from_record(cls, content: RecordDict) -> LabelsRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        settings = content.config_records["labels"]
        return cls(
            roster=_bytes(settings["roster"]),
            paillier=tuple(cast(list[bytes], settings["paillier"])),
            split_clients=tuple(cast(list[int], settings["split-clients"])),
            label_exponent=_whole(settings["label-exponent"]),
        )


@dataclass(frozen=True, eq=False)
class LabelsReply:
    """A party: the rows whose labels it owns, sealed for each other; sums under masks.

    Attributes
    ----------
    sealed : dict of receiver to bytes
    masked : MaskedVector
        Sum of training labels, training rows owned, rows owned.
    seconds : dict of str to float
        Processor time of cryptography.
    """

    sealed: Sealed
    masked: MaskedVector
    seconds: Seconds = field(default_factory=dict)

    reveals: ClassVar[str] = (
        "nothing of one party: which labels it owns goes sealed to the others, the sum of its "
        "labels under masks, read as the mean label of all training rows"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        content = RecordDict({"sealed": ConfigRecord(dict(self.sealed))})
        _put_masked(content, self.masked)
        _put_seconds(content, self.seconds)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> LabelsReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        masked = _read_masked(content)
        if masked is None:
            raise ValueError("no masked sums")
        return cls(_read_sealed(content), masked, _read_seconds(content))


@dataclass(frozen=True)
class BucketsRequest:
    """Server to every party: whose labels are whose; tell the owners the buckets of their rows.

    Attributes
    ----------
    sealed : dict of sender to bytes
    base_margin : float
    """

    sealed: Sealed
    base_margin: float

    reveals: ClassVar[str] = (
        "the base score; sealed, from each other party: the rows whose labels it owns"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        settings = ConfigRecord({"base-margin": self.base_margin})
        return RecordDict({"buckets": settings, "sealed": ConfigRecord(dict(self.sealed))})

    @classmethod
    def from_record(cls, content: RecordDict) -> BucketsRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        margin = content.config_records["buckets"]["base-margin"]
        return cls(_read_sealed(content), float(cast(float, margin)))


@dataclass(frozen=True)
class BucketsReply:
    """A party as source: bucket maps, sealed for each label owner; in clear what the server needs.

    Attributes
    ----------
    sealed : dict of receiver to bytes
    layout : CandidateLayout
        Of its (renumbered, shuffled) features.
    ranks : tuple of int
        Place of each in the party's order of columns, for ties.
    gradient_exponent : int
        Power of two that bounds its first gradients.
    seconds : dict of str to float
    """

    sealed: Sealed
    layout: CandidateLayout
    ranks: tuple[int, ...]
    gradient_exponent: int
    seconds: Seconds = field(default_factory=dict)

    reveals: ClassVar[str] = (
        "number of buckets of each unnamed feature, which of them have missing values, their rank "
        "in the party's order of columns, power of two above its largest first gradient "
        "(regression only); sealed for the others: buckets of their own rows"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        content = RecordDict(
            {
                "buckets": ConfigRecord({"gradient-exponent": self.gradient_exponent}),
                "sealed": ConfigRecord(dict(self.sealed)),
            }
        )
        arrays = {
            "num-buckets": np.array(self.layout.num_buckets, dtype=np.int32),
            "has-missing": np.array(self.layout.has_missing, dtype=np.bool_),
            "ranks": np.array(self.ranks, dtype=np.int32),
        }
        content["arrays"] = array_record(arrays)
        _put_seconds(content, self.seconds)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> BucketsReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        arrays = read_arrays(content)
        layout = CandidateLayout(
            tuple(map(int, arrays["num-buckets"].tolist())),
            tuple(map(bool, arrays["has-missing"].tolist())),
        )
        ranks = tuple(map(int, arrays["ranks"].tolist()))
        layout.canonical_positions(ranks)  # a permutation, or ValueError
        exponent = _whole(content.config_records["buckets"]["gradient-exponent"])
        return cls(_read_sealed(content), layout, ranks, exponent, _read_seconds(content))


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
    """

    sealed: Sealed
    layouts: tuple[CandidateLayout, ...]
    gradient_exponent: int


# Levels ---------------------------------------------------------------------------------------


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


def _put_decisions(content: RecordDict, decisions: tuple[SealedDecision, ...]) -> None:
    numbers = [[d.source, d.candidate, d.place] for d in decisions]
    array = np.array(numbers, dtype=np.int32).reshape(-1, 3)
    content["decisions"] = array_record({"decisions": array})
    content["leaves"] = ConfigRecord({"weights": [d.weights for d in decisions]})


def _read_decisions(content: RecordDict) -> tuple[SealedDecision, ...]:
    numbers = content.array_records["decisions"]["decisions"].numpy().tolist()
    sealed = cast(list[bytes], content.config_records["leaves"]["weights"])
    return tuple(
        SealedDecision(int(source), int(candidate), int(place), weights)
        for (source, candidate, place), weights in zip(numbers, sealed, strict=True)
    )


@dataclass(frozen=True, eq=False)
class HistogramsRequest:
    """Server to every party: what became of the level above; sum up this one.

    Attributes
    ----------
    tree, level : int
        Of what is to be summed, from 0.
    decisions : tuple of SealedDecision
        One an open node of the level above; empty at the start of training.
    orders : dict of source to (candidates,) intp
        The secret order of the level for each source; not for those the receiver decrypts for.
    start : StartOfTraining or None
    """

    tree: int
    level: int
    decisions: tuple[SealedDecision, ...]
    orders: Mapping[str, IntpArray]
    start: StartOfTraining | None = None

    reveals: ClassVar[str] = (
        "source, unnamed feature, bucket and side of each split; secret orders of candidates, but "
        "for sources that the party decrypts for; sealed: weights of leaves, first bucket maps of "
        "own rows"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        at = ConfigRecord({"tree": self.tree, "level": self.level})
        orders = {name: order.astype(np.int32) for name, order in self.orders.items()}
        content = RecordDict({"histograms": at, "orders": array_record(orders)})
        _put_decisions(content, self.decisions)
        if self.start is not None:
            start = self.start
            buckets = [np.array(la.num_buckets, dtype=np.int32) for la in start.layouts]
            missing = [np.array(la.has_missing, dtype=np.bool_) for la in start.layouts]
            content["sealed"] = ConfigRecord(dict(start.sealed))
            content["start"] = ConfigRecord({"gradient-exponent": start.gradient_exponent})
            content["layouts"] = array_record(
                {
                    f"{n}/{at}": a
                    for at, pair in enumerate(zip(buckets, missing, strict=True))
                    for n, a in zip(("num-buckets", "has-missing"), pair, strict=True)
                }
            )
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> HistogramsRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        at = content.config_records["histograms"]
        start = None
        if "start" in content.config_records:
            arrays = content.array_records["layouts"]
            layouts = tuple(
                CandidateLayout(
                    tuple(map(int, arrays[f"num-buckets/{i}"].numpy().tolist())),
                    tuple(map(bool, arrays[f"has-missing/{i}"].numpy().tolist())),
                )
                for i in range(len(arrays) // 2)
            )
            exponent = _whole(content.config_records["start"]["gradient-exponent"])
            start = StartOfTraining(_read_sealed(content), layouts, exponent)
        orders = {
            name: array.numpy().astype(np.intp)
            for name, array in content.array_records["orders"].items()
        }
        return cls(_whole(at["tree"]), _whole(at["level"]), _read_decisions(content), orders, start)


@dataclass(frozen=True, eq=False)
class HistogramsReply:
    """A party: its sums for every source, encrypted for the source's split client.

    Attributes
    ----------
    shares : dict of source to bytes
        Ciphertexts (plain numbers with ``encryption = "none"``).
    refused : dict of source to (1 + candidates, nodes) bool
        Where ``min-instances`` refuses candidates.
    metrics : MaskedVector or None
        Losses after the tree that was finished with this request.
    seconds : dict of str to float
    """

    shares: Mapping[str, bytes]
    refused: Mapping[str, NDArray[np.bool_]]
    metrics: MaskedVector | None = None
    seconds: Seconds = field(default_factory=dict)

    reveals: ClassVar[str] = (
        "nothing of one party: sums of gradients encrypted for split clients (the server has no "
        "key), losses under masks; which candidates min-instances refuses, where it is set"
    )
    reveals_plain: ClassVar[str] = (
        "SUMS OF THE PARTY'S GRADIENTS IN CLEAR (encryption = none): from them labels can be found"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        content = RecordDict(
            {"shares": ConfigRecord(dict(self.shares)), "refused": array_record(self.refused)}
        )
        if self.metrics is not None:
            _put_masked(content, self.metrics)
        _put_seconds(content, self.seconds)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> HistogramsReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        shares = content.config_records["shares"]
        refused = content.array_records["refused"]
        return cls(
            {name: _bytes(value) for name, value in shares.items()},
            {name: array.numpy().astype(np.bool_) for name, array in refused.items()},
            _read_masked(content),
            _read_seconds(content),
        )


# The end --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FinishRequest:
    """Server to every party: what became of the last level; keep your part of the model.

    Attributes
    ----------
    decisions : tuple of SealedDecision
        Empty if training stopped in front of a tree.
    trees_to_keep : int
    folder : str
        Simulation only: where each party writes its part.
    """

    decisions: tuple[SealedDecision, ...]
    trees_to_keep: int
    folder: str = ""

    reveals: ClassVar[str] = "the last splits, how many trees are kept; sealed: weights of leaves"

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        settings = ConfigRecord({"trees-to-keep": self.trees_to_keep, "folder": self.folder})
        content = RecordDict({"finish": settings})
        _put_decisions(content, self.decisions)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> FinishRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        settings = content.config_records["finish"]
        return cls(
            _read_decisions(content), _whole(settings["trees-to-keep"]), str(settings["folder"])
        )


@dataclass(frozen=True, eq=False)
class FinishReply:
    """A party has stored its part of the model."""

    metrics: MaskedVector | None = None
    seconds: Seconds = field(default_factory=dict)

    reveals: ClassVar[str] = "nothing of one party: losses under masks"

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        content = RecordDict()
        if self.metrics is not None:
            _put_masked(content, self.metrics)
        _put_seconds(content, self.seconds)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> FinishReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        return cls(_read_masked(content), _read_seconds(content))


@dataclass(frozen=True)
class StopRequest:
    """Server to every party: the run has ended, and why; forget its keys. No answer is needed."""

    reason: str

    reveals: ClassVar[str] = "why the run ends, in words that hold no value of a row"

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        return RecordDict({"stop": ConfigRecord({"reason": self.reason})})

    @classmethod
    def from_record(cls, content: RecordDict) -> StopRequest:
        """Read the message's content; raises KeyError if it is malformed."""
        return cls(str(content.config_records["stop"]["reason"]))


# Parts ----------------------------------------------------------------------------------------


def array_record(arrays: Arrays) -> ArrayRecord:
    """Arrays as they travel."""
    return ArrayRecord({name: Array(np.ascontiguousarray(a)) for name, a in arrays.items()})


def read_arrays(content: RecordDict) -> dict[str, NDArray[np.generic]]:
    """Arrays of a message under "arrays"."""
    return {name: array.numpy() for name, array in content.array_records["arrays"].items()}


def _put_masked(content: RecordDict, own: MaskedVector) -> None:
    content["masked"] = ConfigRecord(
        {"site": own.site, "run": own.run, "step": own.step, "roster-digest": own.roster_digest}
    )
    content["masked-words"] = array_record({"words": own.words})


def _read_masked(content: RecordDict) -> MaskedVector | None:
    settings = content.config_records.get("masked")
    if settings is None:
        return None
    words = content.array_records["masked-words"]["words"].numpy()
    if words.dtype.kind != "u" or words.ndim != 1:
        raise ValueError("masked values that are not words")
    return MaskedVector(
        site=str(settings["site"]),
        run=str(settings["run"]),
        step=str(settings["step"]),
        roster_digest=_bytes(settings["roster-digest"]),
        words=words.astype(np.uint64),
    )


def _put_seconds(content: RecordDict, seconds: Seconds) -> None:
    content["seconds"] = ConfigRecord({name: float(value) for name, value in seconds.items()})


def _read_seconds(content: RecordDict) -> Seconds:
    record = content.config_records["seconds"]
    return {name: float(cast(float, value)) for name, value in record.items()}


def _read_sealed(content: RecordDict) -> Sealed:
    return {name: _bytes(value) for name, value in content.config_records["sealed"].items()}


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("not bytes")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("not a whole number")
    return value
