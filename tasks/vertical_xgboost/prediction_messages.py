"""What travels in a prediction of new rows by the parties of a model.

``sealed`` is by name of the record and then by party, as in `message_parts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from flwr.app import ConfigRecord, RecordDict

from tasks.site.messages import Facts
from tasks.site.reply_fields import MalformedReply
from tasks.vertical_xgboost.message_parts import (
    Sealed,
    Seconds,
    as_bytes,
    as_whole,
    put_sealed,
    put_seconds,
    read_sealed,
    read_seconds,
)
from tasks.vertical_xgboost.model_part import ModelPart
from tasks.vertical_xgboost.party_facts import DIGEST_BYTES
from tasks.vertical_xgboost.routing import num_levels

PREDICT = "query.vertical_predict"
PREDICTIONS = "query.vertical_predictions"

OWNED = "sealed-owned"
SIDES = "sealed-sides"
ROWS = "sealed-rows"
SUMS = "sealed-sums"
RECORDS = (OWNED, SIDES, ROWS, SUMS)
"""Records of sealed parts."""

AllSealed = Mapping[str, Sealed]


def prediction_step(kind: str, number: int) -> str:
    """Name of the step under which a record is sealed in a step, counted from 0."""
    return f"vertical-predict-{kind}-{number}"


def sums_step(asker: int) -> str:
    """Name of the step under which the sums of an asker's rows are masked, by its place."""
    return f"vertical-predict-masked-{asker}"


@dataclass(frozen=True)
class PartFacts:
    """What a party adds to its introduction where a model is there already.

    Attributes
    ----------
    run : str
        Training that left its part.
    model : bytes
        Digest of what the parts of a model have in common.
    parties : tuple of str
        Of the model.
    levels : int
        Steps of a routed prediction.
    num_rows : int
    digest : bytes
        Of the ids of the rows in order.
    """

    run: str
    model: bytes
    parties: tuple[str, ...]
    levels: int
    num_rows: int
    digest: bytes

    reveals: ClassVar[str] = (
        "public keys, training run and digest of the model's shape, its parties, depth of its "
        "trees, number of rows, digest of all ids"
    )

    @classmethod
    def of(cls, part: ModelPart, *, num_rows: int, digest: bytes) -> PartFacts:
        """Facts of a part, and of the rows beside it."""
        return cls(part.run, part.model_digest, part.names, num_levels(part), num_rows, digest)

    def to_facts(self) -> Facts:
        """Return the facts for the introduction."""
        return {
            "run": self.run,
            "model": self.model,
            "parties": list(self.parties),
            "levels": self.levels,
            "num-rows": self.num_rows,
            "digest": self.digest,
        }

    @classmethod
    def from_facts(cls, facts: Facts) -> PartFacts:
        """Read the facts; MalformedReply with the name of what is missing or of another form."""
        run, parties = facts.get("run"), facts.get("parties")
        if not isinstance(run, str) or not isinstance(parties, list):
            raise MalformedReply("run, parties: must be text and names")
        return cls(
            run,
            _digest(facts, "model"),
            tuple(map(str, parties)),
            _count(facts, "levels"),
            _count(facts, "num-rows"),
            _digest(facts, "digest"),
        )


def _digest(facts: Facts, key: str) -> bytes:
    value = facts.get(key)
    if not isinstance(value, bytes) or len(value) != DIGEST_BYTES:
        raise MalformedReply(f"{key}: must be {DIGEST_BYTES} bytes")
    return value


def _count(facts: Facts, key: str) -> int:
    value = facts.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise MalformedReply(f"{key}: must be a whole number of 0 or more")
    return value


@dataclass(frozen=True, eq=False)
class PredictRequest:
    """Server to every party: what others sealed for you; go on with the prediction.

    Attributes
    ----------
    step : int
        From 0.
    roster : bytes
        Public keys of all parties.
    sealed : mapping of str to (dict of sender to bytes)
        By name of the record.
    """

    step: int
    roster: bytes
    sealed: AllSealed

    reveals: ClassVar[str] = (
        "public keys of all parties; sealed, from other parties: whose labels are whose (without "
        "an asker); routed: which rows arrive at the receiver's own splits"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        settings = ConfigRecord({"step": self.step, "roster": self.roster})
        content = RecordDict({"predict": settings})
        _put_all(content, self.sealed)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> PredictRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        settings = content.config_records["predict"]
        return cls(as_whole(settings["step"]), as_bytes(settings["roster"]), _read_all(content))


@dataclass(frozen=True, eq=False)
class PredictReply:
    """A party: what it seals for others.

    Attributes
    ----------
    sealed : mapping of str to (dict of receiver to bytes)
        By name of the record.
    seconds : dict of str to float
        Processor time of cryptography.
    """

    sealed: AllSealed
    seconds: Seconds = field(default_factory=dict)

    reveals: ClassVar[str] = (
        "nothing but who seals something for whom, which follows from the shape of the trees; "
        "seconds per operation of cryptography"
    )
    reveals_sealed: ClassVar[Mapping[str, str]] = {
        OWNED: "the rows whose labels the sender owns, not the labels",
        SIDES: "whether each of the receiver's rows goes left at each split of the sender, "
        "unnamed: no threshold and no column",
        ROWS: "which rows arrive at splits of the receiver below splits of the sender",
        SUMS: "sums under masks: all parties' together are the margins of the receiver's rows "
        "less the base score, over all trees",
    }

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        content = RecordDict()
        _put_all(content, self.sealed)
        put_seconds(content, self.seconds)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> PredictReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        return cls(_read_all(content), read_seconds(content))


@dataclass(frozen=True, eq=False)
class PredictionsRequest:
    """Server to an asker: what the others sealed; write down the predictions of your rows.

    Attributes
    ----------
    sealed : mapping of str to (dict of sender to bytes)
        By name of the record.
    folder : str
        Simulation only: where the party writes them.
    """

    sealed: AllSealed
    folder: str = ""

    reveals: ClassVar[str] = (
        "sealed, of the receiver's rows alone: sides at the others' splits, or routed sums under "
        "masks; its predictions come of it"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        content = RecordDict({"predictions": ConfigRecord({"folder": self.folder})})
        _put_all(content, self.sealed)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> PredictionsRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        return cls(_read_all(content), str(content.config_records["predictions"]["folder"]))


@dataclass(frozen=True)
class PredictionsReply:
    """An asker has written its predictions down."""

    seconds: Seconds = field(default_factory=dict)

    reveals: ClassVar[str] = (
        "that the party has its predictions, not how many; seconds per operation of cryptography"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        content = RecordDict()
        put_seconds(content, self.seconds)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> PredictionsReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        return cls(read_seconds(content))


def _put_all(content: RecordDict, sealed: AllSealed) -> None:
    for name, parts in sealed.items():
        put_sealed(content, parts, name)


def _read_all(content: RecordDict) -> dict[str, Sealed]:
    return {name: read_sealed(content, name) for name in RECORDS if name in content.config_records}
