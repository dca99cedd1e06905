"""What travels at the end of a training of the vertical XGBoost task, message by message.

After the last tree each party keeps its part of the model; `TrimRequest` is the exchange that early
stopping adds where the last tree allowed turns out no better. `StopRequest` ends a run early.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from flwr.app import ConfigRecord, RecordDict

from tasks.secure.secure_sums import MaskedVector
from tasks.vertical_xgboost.level_messages import SealedDecision, put_decisions, read_decisions
from tasks.vertical_xgboost.message_parts import (
    Seconds,
    as_whole,
    put_masked,
    put_seconds,
    read_masked,
    read_seconds,
)

FINISH = "query.vertical_finish"
TRIM = "query.vertical_trim"
STOP = "query.vertical_stop"


@dataclass(frozen=True, eq=False)
class FinishRequest:
    """Server to every party: what became of the last level; keep your part of the model.

    Attributes
    ----------
    decisions : tuple of SealedDecision
        Empty if training stopped in front of a tree.
    trees_to_keep : int
        Those of an earlier model are counted too.
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
        put_decisions(content, self.decisions)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> FinishRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        settings = content.config_records["finish"]
        return cls(
            read_decisions(content), as_whole(settings["trees-to-keep"]), str(settings["folder"])
        )


@dataclass(frozen=True, eq=False)
class FinishReply:
    """A party has stored its part of the model."""

    metrics: MaskedVector | None = None
    seconds: Seconds = field(default_factory=dict)

    reveals: ClassVar[str] = (
        "nothing of one party: losses and metrics under masks; seconds per operation of "
        "cryptography"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        content = RecordDict()
        if self.metrics is not None:
            put_masked(content, self.metrics)
        put_seconds(content, self.seconds)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> FinishReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        return cls(read_masked(content), read_seconds(content))


@dataclass(frozen=True)
class TrimRequest:
    """Server to every party: the last tree was no better; keep fewer. Only with early stopping.

    Attributes
    ----------
    trees_to_keep : int
    folder : str
        As in `FinishRequest`.
    """

    trees_to_keep: int
    folder: str = ""

    reveals: ClassVar[str] = "how many trees are kept"

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        settings = ConfigRecord({"trees-to-keep": self.trees_to_keep, "folder": self.folder})
        return RecordDict({"trim": settings})

    @classmethod
    def from_record(cls, content: RecordDict) -> TrimRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        settings = content.config_records["trim"]
        return cls(as_whole(settings["trees-to-keep"]), str(settings["folder"]))


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
