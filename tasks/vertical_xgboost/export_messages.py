"""What travels where a model is exported with the consent of all its parties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flwr.app import ConfigRecord, RecordDict

from tasks.site.faults import SiteFault
from tasks.site.reply_fields import MalformedReply
from tasks.vertical_xgboost.model_part import ModelPart

EXPORT = "query.vertical_export"


@dataclass(frozen=True)
class ExportRequest:
    """Server to every party: tell your part of the model."""

    reveals: ClassVar[str] = "that the model is to be exported"

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        return RecordDict({"export": ConfigRecord({"asked": True})})

    @classmethod
    def from_record(cls, content: RecordDict) -> ExportRequest:
        """Read the message's content; raises KeyError if it is malformed."""
        _ = content.config_records["export"]["asked"]
        return cls()


@dataclass(frozen=True)
class ExportReply:
    """A party that consents: its part of the model.

    Attributes
    ----------
    text : str
        As its file has it, without settings and fingerprint.
    """

    text: str

    reveals: ClassVar[str] = (
        "in clear, with the party's consent: names of its columns, the categories of those of "
        "text, its thresholds, weights of all leaves, sums of Hessians over its own training rows "
        "in each leaf"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        return RecordDict({"part": ConfigRecord({"text": self.text})})

    @classmethod
    def from_record(cls, content: RecordDict) -> ExportReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        text = content.config_records["part"]["text"]
        if not isinstance(text, str):
            raise MalformedReply("part: must be text")
        return cls(text)

    def part(self, name: str) -> ModelPart:
        """The part of a party; MalformedReply if it is none."""
        try:
            part = ModelPart.from_text(self.text, what="part")
        except SiteFault as fault:
            raise MalformedReply(str(fault)) from None
        if part.name != name:
            raise MalformedReply("part: must be the party's own")
        return part
