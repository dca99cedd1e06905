"""The first messages of every run: a site says who it is and which code it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, cast

from flwr.app import ConfigRecord, RecordDict

HELLO = "query.hello"
"""Message type of the first exchange."""


@dataclass(frozen=True)
class HelloRequest:
    """Server to every node: introduce yourself, and check your data for this run."""

    fingerprint: str

    reveals: ClassVar[str] = "fingerprint of the server's code"

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        return RecordDict({"hello": ConfigRecord({"fingerprint": self.fingerprint})})

    @classmethod
    def from_record(cls, content: RecordDict) -> HelloRequest:
        """Read the message's content."""
        return cls(fingerprint=cast(str, content.config_records["hello"]["fingerprint"]))


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
    """

    site: str
    fingerprint: str
    fault_code: str = ""
    fault_reasons: list[str] = field(default_factory=list)

    reveals: ClassVar[str] = (
        "site name, fingerprint of its code, and what is wrong with its data or settings, if "
        "anything: names and counts, no values"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        return RecordDict(
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

    @classmethod
    def from_record(cls, content: RecordDict) -> HelloReply:
        """Read the message's content.

        Raises
        ------
        ValueError
            If it is not of this form: the node runs other code.
        """
        record = content.config_records.get("hello")
        needed = {"site", "fingerprint", "fault-code", "fault-reasons"}
        if record is None or not needed <= set(record):
            raise ValueError("not the introduction of a site")
        return cls(
            site=cast(str, record["site"]),
            fingerprint=cast(str, record["fingerprint"]),
            fault_code=cast(str, record["fault-code"]),
            fault_reasons=list(cast(list[str], record["fault-reasons"])),
        )
