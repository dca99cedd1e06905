"""What travels until the parties know which rows they have in common.

With keyed hashes `align` and `match`; a private set intersection begins with `invite`. The answer
of the hub goes on with the request of `labels`, or of `common` where parties must tell how large
their labels of common rows are before that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from flwr.app import ConfigRecord, RecordDict

from tasks.vertical_xgboost.message_parts import (
    SEALED,
    Sealed,
    Seconds,
    as_bytes,
    as_whole,
    put_sealed,
    put_seconds,
    read_exponent,
    read_sealed,
    read_seconds,
)

INVITE = "query.vertical_invite"
ALIGN = "query.vertical_align"
MATCH = "query.vertical_match"
COMMON = "query.vertical_common"

INVITE_STEP = "vertical-invite"
ALIGN_STEP = "vertical-align"
MATCH_STEP = "vertical-match"

_COMMON = "common-rows"
_SEALED_COMMON = "sealed-common"


@dataclass(frozen=True)
class CommonRows:
    """What the hub found, on its way to a party.

    Attributes
    ----------
    num_rows : int
        Common rows, as the hub told the server.
    sealed : bytes
        The hub's answer; empty to the hub itself.
    """

    num_rows: int
    sealed: bytes

    def put(self, content: RecordDict) -> None:
        """Put it into a message."""
        content[_COMMON] = ConfigRecord({"num-rows": self.num_rows})
        if self.sealed:
            content[_SEALED_COMMON] = ConfigRecord({"hub": self.sealed})

    @classmethod
    def read(cls, content: RecordDict) -> CommonRows | None:
        """Read it, if it is in a message; raises ValueError or KeyError if it is malformed."""
        told = content.config_records.get(_COMMON)
        if told is None:
            return None
        sealed = content.config_records.get(_SEALED_COMMON)
        return cls(as_whole(told["num-rows"]), as_bytes(sealed["hub"]) if sealed else b"")


@dataclass(frozen=True)
class AlignRequest:
    """Server to the parties that take a step of the alignment: keys of all, parts sealed for them.

    Attributes
    ----------
    roster : bytes
        Public keys of all parties.
    sealed : dict of sender to bytes
        Empty at the first step.
    """

    roster: bytes
    sealed: Sealed = field(default_factory=dict)

    reveals: ClassVar[str] = "public keys of all parties"
    reveals_invited: ClassVar[str] = (
        "public keys of all parties; sealed, from the hub: its ids, blinded by a key of its own"
    )
    reveals_matching: ClassVar[str] = (
        "public keys of all parties; sealed, from each other party: its ids as keyed hashes, and "
        "the key"
    )
    reveals_matching_psi: ClassVar[str] = (
        "public keys of all parties; sealed, from each other party: which of the hub's ids it has, "
        "and the number of its ids"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        content = RecordDict({"align": ConfigRecord({"roster": self.roster})})
        put_sealed(content, self.sealed)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> AlignRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        return cls(as_bytes(content.config_records["align"]["roster"]), read_sealed(content))


@dataclass(frozen=True)
class AlignReply:
    """A party: what it sealed at ``invite`` or ``align``.

    Attributes
    ----------
    sealed : dict of receiver to bytes
    seconds : dict of str to float
        Processor time of cryptography.
    """

    sealed: Sealed
    seconds: Seconds = field(default_factory=dict)

    reveals: ClassVar[str] = (
        "number of ids, by the size of what is sealed; seconds per operation of cryptography"
    )
    reveals_sealed_invite: ClassVar[Mapping[str, str]] = {
        SEALED: "number of the hub's ids: they are blinded by a key of its own"
    }
    reveals_sealed: ClassVar[Mapping[str, str]] = {
        SEALED: "all ids of the sender as keyed hashes, and the key: the receiver can test whether "
        "an id that it can name is among them"
    }
    reveals_sealed_psi: ClassVar[Mapping[str, str]] = {
        SEALED: "which of the receiver's ids the sender has, and the number of the sender's ids"
    }

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        content = RecordDict()
        put_sealed(content, self.sealed)
        put_seconds(content, self.seconds)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> AlignReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        return cls(read_sealed(content), read_seconds(content))


@dataclass(frozen=True)
class MatchReply:
    """The hub: the common rows, sealed for each other party, and their number in clear.

    Attributes
    ----------
    sealed : dict of receiver to bytes
    num_rows : int
    seconds : dict of str to float
    """

    sealed: Sealed
    num_rows: int
    seconds: Seconds = field(default_factory=dict)

    reveals: ClassVar[str] = (
        "number of rows that all parties have; seconds per operation of cryptography"
    )
    reveals_sealed: ClassVar[Mapping[str, str]] = {
        SEALED: "which of the receiver's ids all parties have"
    }

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        content = RecordDict({"match": ConfigRecord({"num-rows": self.num_rows})})
        put_sealed(content, self.sealed)
        put_seconds(content, self.seconds)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> MatchReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        num_rows = as_whole(content.config_records["match"]["num-rows"])
        return cls(read_sealed(content), num_rows, read_seconds(content))


@dataclass(frozen=True)
class CommonRequest:
    """Server to every party: what the hub found; tell how large your labels of common rows are."""

    common: CommonRows

    reveals: ClassVar[str] = (
        "number of common rows; sealed, from the hub: which of the party's ids all parties have"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        content = RecordDict()
        self.common.put(content)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> CommonRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        common = CommonRows.read(content)
        if common is None:
            raise ValueError("no common rows")
        return cls(common)


@dataclass(frozen=True)
class CommonReply:
    """A party: the powers of two that bound its labels and its weights of common rows."""

    label_exponent: int
    weight_exponent: int = 0
    seconds: Seconds = field(default_factory=dict)

    reveals: ClassVar[str] = (
        "power of two above the party's largest label of a common row, or that it has none, and "
        "of its largest row weight, where rows have weights; "
        "seconds per operation of cryptography"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        told = ConfigRecord(
            {"label-exponent": self.label_exponent, "weight-exponent": self.weight_exponent}
        )
        content = RecordDict({"common": told})
        put_seconds(content, self.seconds)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> CommonReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        told = content.config_records["common"]
        return cls(
            read_exponent(told["label-exponent"], "label-exponent"),
            read_exponent(told["weight-exponent"], "weight-exponent"),
            read_seconds(content),
        )
