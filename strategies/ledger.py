"""The disclosure ledger: one row for every message, with what it reveals to its receiver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Message, RecordDict

SERVER = "server"
_FAULT_REVEALS = "that the site could not answer: kind of fault, names and counts, no values"
_UNKNOWN = "not declared by this strategy"

Row = dict[str, object]


@dataclass(frozen=True)
class Disclosure:
    """What the messages of one type are called and what they reveal to their receiver."""

    step: str
    request: str
    reply: str


@dataclass
class Ledger:
    """Rows of a run, in the order in which messages were sent and arrived.

    Attributes
    ----------
    disclosures : mapping of str to Disclosure
        By message type.
    rows : list of dict
        One a message: exchange, step, sender, receiver, bytes, sealed, reveals.
    """

    disclosures: Mapping[str, Disclosure] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    _taken: int = 0

    def disclosure(self, message_type: str) -> Disclosure:
        """Return the words for messages of a type; a type without words is marked as such."""
        return self.disclosures.get(message_type, Disclosure(message_type, _UNKNOWN, _UNKNOWN))

    def write_down(
        self, message: Message, *, message_type: str, exchange: int, site: str, sent: bool
    ) -> None:
        """Add the row of a message.

        Parameters
        ----------
        message : Message
            The request or the reply.
        message_type : str
            Type of the request, whatever the reply says of itself.
        exchange : int
            Number of the exchange, from 1.
        site : str
            The site at the other end.
        sent : bool
            Whether the server sent it.
        """
        disclosure = self.disclosure(message_type)
        reveals = disclosure.request if sent else disclosure.reply
        if message.has_error():
            reveals, size = _FAULT_REVEALS, len((message.error.reason or "").encode())
        else:
            size = content_bytes(message.content)
        self.rows.append(
            {
                "exchange": exchange,
                "step": disclosure.step,
                "sender": SERVER if sent else site,
                "receiver": site if sent else SERVER,
                "bytes": size,
                "sealed": False,
                "reveals": reveals,
            }
        )

    def rename(self, names: Mapping[str, str]) -> None:
        """Put names in the place of those under which sites were written down before."""
        for row in self.rows:
            for end in ("sender", "receiver"):
                row[end] = names.get(str(row[end]), row[end])

    def bytes_sent(self) -> int:
        """Return the bytes of all messages, both directions."""
        return sum(int(str(row["bytes"])) for row in self.rows)

    def take_new(self) -> list[Row]:
        """Return the rows that were written down since the last call."""
        new = self.rows[self._taken :]
        self._taken = len(self.rows)
        return new


def content_bytes(content: RecordDict) -> int:
    """Return the size of a message's content: array data, and other records as serialized."""
    return sum(
        record.count_bytes() if isinstance(record, ArrayRecord) else len(record.deflate())
        for record in content.values()
    )
