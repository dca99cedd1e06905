"""What travels in the set-up of the vertical XGBoost task, message by message.

The exchanges of a tree level are in `level_messages`, `aggregate_messages` and `decide_messages`,
those of the end in `end_messages`.
``sealed`` maps are what one party sends another: in a reply by receiver, in a request by sender.
The server carries them and cannot read them. Every ``reveals`` is a sentence of the ledger, and so
is every ``reveals_sealed``: to the receiver of a sealed part of the reply, by name of its record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from tasks.secure.secure_sums import MaskedVector
from tasks.site.reply_fields import MalformedReply
from tasks.vertical_xgboost.aggregate_messages import (
    ORDER_REVEALS,
    NextOrder,
    put_order,
    read_order,
)
from tasks.vertical_xgboost.alignment_messages import CommonRows
from tasks.vertical_xgboost.candidates import CandidateLayout
from tasks.vertical_xgboost.going_on import GoingOn
from tasks.vertical_xgboost.message_parts import (
    SEALED,
    SEALED_ORDERS,
    Sealed,
    Seconds,
    array_record,
    as_bytes,
    as_list,
    as_whole,
    put_masked,
    put_sealed,
    put_seconds,
    read_arrays,
    read_exponent,
    read_layout,
    read_masked,
    read_sealed,
    read_seconds,
    whole_numbers,
)

LABELS = "query.vertical_labels"
BUCKETS = "query.vertical_buckets"

LABELS_STEP = "vertical-labels"
BUCKETS_STEP = "vertical-buckets"


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
    weight_exponent : int
        Of the bound for all weights; 0 where rows have none.
    common : CommonRows or None
        What the hub of the alignment found, unless that was told before or all rows are common.
    going_on : GoingOn or None
        Where a resumed training goes on.
    """

    roster: bytes
    paillier: tuple[bytes, ...]
    split_clients: tuple[int, ...]
    label_exponent: int
    weight_exponent: int = 0
    common: CommonRows | None = None
    going_on: GoingOn | None = None

    reveals: ClassVar[str] = (
        "public keys of all parties, who decrypts the sums of whose columns, and the largest of "
        "the powers of two told; of a resumed training, after which tree it goes on"
    )
    reveals_aligned: ClassVar[str] = (
        f"{reveals}; number of common rows; sealed, from the hub: which of the party's ids all "
        "parties have"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        settings = ConfigRecord(
            {
                "roster": self.roster,
                "paillier": list(self.paillier),
                "split-clients": list(self.split_clients),
                "label-exponent": self.label_exponent,
                "weight-exponent": self.weight_exponent,
            }
        )
        content = RecordDict({"labels": settings})
        if self.common is not None:
            self.common.put(content)
        if self.going_on is not None:
            self.going_on.put(content)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> LabelsRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        settings = content.config_records["labels"]
        return cls(
            roster=as_bytes(settings["roster"]),
            paillier=tuple(map(as_bytes, as_list(settings["paillier"]))),
            split_clients=tuple(map(as_whole, as_list(settings["split-clients"]))),
            label_exponent=read_exponent(settings["label-exponent"], "label-exponent"),
            weight_exponent=read_exponent(settings["weight-exponent"], "weight-exponent"),
            common=CommonRows.read(content),
            going_on=GoingOn.read(content),
        )


@dataclass(frozen=True, eq=False)
class LabelsReply:
    """A party: the rows whose labels it owns, sealed for each other; sums under masks.

    Attributes
    ----------
    sealed : dict of receiver to bytes
    masked : MaskedVector
        Sums of training labels (of several classes: rows of each), training rows owned, rows
        owned; where rows have weights, in front their sums over training and evaluation rows.
    seconds : dict of str to float
        Processor time of cryptography.
    """

    sealed: Sealed
    masked: MaskedVector
    seconds: Seconds = field(default_factory=dict)

    reveals: ClassVar[str] = (
        "nothing of one party: which labels it owns goes sealed to the others, the sum of its "
        "labels under masks, read as the mean label of all training rows; seconds per operation "
        "of cryptography"
    )
    reveals_numbers: ClassVar[str] = (
        "nothing of one party: which labels it owns goes sealed to the others, their number under "
        "masks; seconds per operation of cryptography"
    )
    reveals_weights: ClassVar[str] = (
        "under masks too sums of row weights, read as those of all training and all evaluation rows"
    )
    reveals_classes: ClassVar[str] = (
        "nothing of one party: which labels it owns goes sealed to the others, the number of its "
        "labels of each class (where rows have weights, their sum) under masks, read as the number "
        "of training rows of each class; seconds per operation of cryptography"
    )
    reveals_sealed: ClassVar[Mapping[str, str]] = {
        SEALED: "the rows whose labels the sender owns, not the labels"
    }

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        content = RecordDict()
        put_sealed(content, self.sealed)
        put_masked(content, self.masked)
        put_seconds(content, self.seconds)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> LabelsReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        masked = read_masked(content)
        if masked is None:
            raise ValueError("no masked sums")
        return cls(read_sealed(content), masked, read_seconds(content))


@dataclass(frozen=True)
class BucketsRequest:
    """Server to every party: whose labels are whose; tell the owners the buckets of their rows.

    Attributes
    ----------
    sealed : dict of sender to bytes
    base_margins : tuple of float
        Prediction before the first tree, one a root.
    folder : str
        Simulation only: where each party writes its part while the training goes on.
    """

    sealed: Sealed
    base_margins: tuple[float, ...]
    folder: str = ""

    reveals: ClassVar[str] = (
        "the base score; sealed, from each other party: the rows whose labels it owns"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        settings = ConfigRecord({"base-margins": list(self.base_margins), "folder": self.folder})
        content = RecordDict({"buckets": settings})
        put_sealed(content, self.sealed)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> BucketsRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        settings = content.config_records["buckets"]
        told = as_list(settings["base-margins"])
        margins = tuple(each for each in told if isinstance(each, float) and math.isfinite(each))
        if not margins or len(margins) != len(told):
            raise MalformedReply("base-margins: must be finite numbers")
        return cls(read_sealed(content), margins, str(settings["folder"]))


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
    following : NextOrder or None
        Source as aggregator: the order of the first level.
    seconds : dict of str to float
    """

    sealed: Sealed
    layout: CandidateLayout
    ranks: tuple[int, ...]
    gradient_exponent: int
    following: NextOrder | None = None
    seconds: Seconds = field(default_factory=dict)

    reveals: ClassVar[str] = (
        "number of buckets of each unnamed feature, which of them have missing values, their rank "
        "in the party's order of columns, power of two above its largest first gradient, "
        "or that it has no label (regression or counts without label-bound only), seconds per "
        "operation of cryptography; sealed for the others: "
        "buckets of their own rows, with warm-start or resume also sides at the sender's earlier "
        "splits"
    )
    reveals_sealed: ClassVar[Mapping[str, str]] = {
        SEALED: "buckets of the rows whose labels the receiver owns, on the sender's renumbered, "
        "unnamed features; with warm-start or resume also on which side these rows are at each of "
        "the sender's earlier splits",
        SEALED_ORDERS: ORDER_REVEALS,
    }

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        settings = ConfigRecord({"gradient-exponent": self.gradient_exponent})
        content = RecordDict({"buckets": settings})
        put_sealed(content, self.sealed)
        arrays = {
            **self.layout.to_arrays(),
            "ranks": np.array(self.ranks, dtype=np.int32),
        }
        content["arrays"] = array_record(arrays)
        put_order(content, self.following)
        put_seconds(content, self.seconds)
        return content

    @classmethod
    def from_record(cls, content: RecordDict, *, has_order: bool, has_splits: bool) -> BucketsReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed.

        Parameters
        ----------
        content : RecordDict
        has_order : bool
            Whether the source draws an order for the first level.
        has_splits : bool
            Whether trees have any.
        """
        arrays = read_arrays(content)
        layout = read_layout(arrays["num-buckets"], arrays["has-missing"])
        ranks = tuple(whole_numbers(arrays["ranks"], "ranks").tolist())
        layout.canonical_positions(ranks)  # a permutation, or ValueError
        told = content.config_records["buckets"]["gradient-exponent"]
        exponent = read_exponent(told, "gradient-exponent")
        sealed, following = read_sealed(content), read_order(content)
        candidates = layout.num_candidates if has_splits else 0
        if (len(following.order) if following else None) != (candidates if has_order else None):
            raise MalformedReply("order: must be one of all candidates, where it is drawn")
        return cls(sealed, layout, ranks, exponent, following, read_seconds(content))
