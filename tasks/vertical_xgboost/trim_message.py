"""The exchange that early stopping adds where the last tree allowed turns out no better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flwr.app import ConfigRecord, RecordDict

from tasks.vertical_xgboost.message_parts import as_whole

TRIM = "query.vertical_trim"


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
