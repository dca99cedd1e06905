"""The first messages of every run: a site says who it is and which code it runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, cast

from flwr.app import ConfigRecord, RecordDict

from tasks.site.foreign_text import printable
from tasks.site.names import SITE_NAME_RULE, is_site_name
from tasks.site.reply_fields import MalformedReply, text, texts

HELLO = "query.hello"
"""Message type of the first exchange."""

_LONGEST_REASON = 100_000
_MOST_REASONS = 100

FactValue = (
    bool
    | int
    | float
    | str
    | bytes
    | list[bool]
    | list[int]
    | list[float]
    | list[str]
    | list[bytes]
)
Facts = Mapping[str, FactValue]
"""What a task adds to the first exchange; its own ``messages.py`` says what the keys mean."""


@dataclass(frozen=True)
class TaskPart:
    """What a task adds to a site's introduction.

    Attributes
    ----------
    key_bundle : bytes
        The site's public keys of this run (`tasks.secure.keys`); empty where none are needed.
    facts : mapping
        What the task tells of the site's rows.
    """

    key_bundle: bytes = b""
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class HelloRequest:
    """Server to every node: introduce yourself, and check your data for this run.

    Attributes
    ----------
    fingerprint : str
        Of the server's code.
    task : mapping
        What the task tells every site before it looks at its rows; empty for most.
    """

    fingerprint: str
    task: Facts = field(default_factory=dict)

    reveals: ClassVar[str] = "fingerprint of the server's code"

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        content = RecordDict({"hello": ConfigRecord({"fingerprint": self.fingerprint})})
        if self.task:
            content["task"] = ConfigRecord(dict(self.task))
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> HelloRequest:
        """Read the message's content."""
        records = content.config_records
        return cls(
            fingerprint=cast(str, records["hello"]["fingerprint"]),
            task=dict(records.get("task", ConfigRecord())),
        )


@dataclass(frozen=True)
class HelloReply:
    """A node to the server.

    Attributes
    ----------
    site : str
        The site's name; ``""`` if it has no usable one.
    fingerprint : str
        Fingerprint of the code that answered.
    fault_code : str
        Kebab-case kind of what is wrong with the site's data or configuration; ``""``: nothing.
    fault_reasons : list of str
        One line a fault, without any value of a row.
    task : TaskPart
        What the task adds.
    """

    site: str
    fingerprint: str
    fault_code: str = ""
    fault_reasons: list[str] = field(default_factory=list)
    task: TaskPart = field(default_factory=TaskPart)

    reveals: ClassVar[str] = (
        "site name, fingerprint of its code, and what is wrong with its data or settings, if "
        "anything: names and counts, no values"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        content = RecordDict(
            {
                "hello": ConfigRecord(
                    {
                        "site": self.site,
                        "fingerprint": self.fingerprint,
                        "fault-code": self.fault_code,
                        "fault-reasons": self.fault_reasons,
                    }
                )
            }
        )
        if self.task.key_bundle:
            content["keys"] = ConfigRecord({"bundle": self.task.key_bundle})
        if self.task.facts:
            content["facts"] = ConfigRecord(dict(self.task.facts))
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> HelloReply:
        """Read the message's content.

        Raises
        ------
        ValueError
            If it is not of this form: the node runs other code.
        tasks.site.reply_fields.MalformedReply
            If it is of this form with fields that no site would send.
        """
        record = content.config_records.get("hello")
        needed = {"site", "fingerprint", "fault-code", "fault-reasons"}
        if record is None or not needed <= set(record):
            raise ValueError("not the introduction of a site")
        keys = content.config_records.get("keys", ConfigRecord({"bundle": b""}))
        bundle = keys.get("bundle")
        if not isinstance(bundle, bytes):
            raise MalformedReply("keys: must be bytes")
        site, code = text(record, "site"), text(record, "fault-code")
        reasons = texts(record, "fault-reasons", longest=_LONGEST_REASON)
        if (not site and not code) or (site and not is_site_name(site)):
            raise MalformedReply(f"site: must be {SITE_NAME_RULE}")
        if code and not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code):
            raise MalformedReply("fault-code: must be words in small letters, joined by hyphens")
        if bool(code) != bool(reasons):
            raise MalformedReply("fault-reasons: must be there with a fault-code, and only then")
        return cls(
            site=site,
            fingerprint=text(record, "fingerprint"),
            fault_code=code,
            fault_reasons=[printable(reason) for reason in reasons[:_MOST_REASONS]],
            task=TaskPart(bundle, dict(content.config_records.get("facts", ConfigRecord()))),
        )
