"""The disclosure ledger: who told whom what in a run, and how it was protected on its way.

A row has

``exchange``, ``step``
    When: the exchange, from 1, and the name of its step.
``sender``, ``receiver``
    Names of sites, or ``"server"``.
``bytes``
    Size.
``sealed``
    False: a message between server and site; ``bytes`` are all of it.
    True: what one site sealed for another (`tasks.secure.sealed_relay`) and sent through the
    server, which sees sizes alone. It lies within the sender's reply of the same exchange, whose
    row counts these bytes too: volumes are sums over rows that are not sealed. The next request
    that needs it takes it to its receiver.
``reveals``
    What the receiver learns.
``protection``
    Of a message, how its records are protected: of ``sealed``, ``encrypted``, ``masked`` and
    ``clear`` (`tasks.secure.record_names`) those that it has, joined by ``" + "``.
``parts``
    Sealed parts that the row stands for, or that the message carries.
``seconds``
    Of a reply: from when the server began to send the exchange's requests until it had the reply.
    Of a request: until the exchange had ended, with this reply or without; not there before.
``site-seconds``
    Of a reply that tells it: processor seconds of the site's cryptography, as the site says.

A sealed row stands for all parts of one record of one reply that are for one receiver.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Message, RecordDict

from tasks.secure.record_names import PROTECTIONS, protection_of
from tasks.secure.sealed_relay import has_sealed_form
from tasks.site.reply_fields import SECONDS

SERVER = "server"
_FAULT_REVEALS = "that the site could not answer: kind of fault, names and counts, no values"
_UNKNOWN = "not declared by this strategy"
_NO_SITE = "no site of the run"
_MOST_SECONDS = 1e7  # what a site tells beyond four months is no time that it took
_PER_ROW = ("seconds", "site-seconds")

Row = dict[str, object]


@dataclass(frozen=True)
class Disclosure:
    """What the messages of one type are called and what they reveal to their receiver.

    Attributes
    ----------
    step : str
    request, reply : str
        To the site, and to the server.
    sealed : mapping of str to str
        To the site for which a part of the reply is sealed, by name of the record that has it, up
        to a slash.
    """

    step: str
    request: str
    reply: str
    sealed: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Ledger:
    """Rows of a run, in the order in which messages were sent and arrived.

    Attributes
    ----------
    disclosures : mapping of str to Disclosure
        By message type.
    rows : list of dict
        As the module says: exchange, step, sender, receiver, bytes, sealed, reveals, protection,
        parts, seconds, site-seconds.
    """

    disclosures: Mapping[str, Disclosure] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    _taken: int = 0
    _first: int = 0
    _began: float | None = None

    def begin_exchange(self) -> None:
        """Count the seconds of what is written down next from now on."""
        self._first, self._began = len(self.rows), time.monotonic()

    def end_exchange(self) -> None:
        """Note at the requests since :meth:`begin_exchange` how long the exchange took."""
        for row in self.rows[self._first :]:
            if row["sender"] == SERVER:
                row.update(self._seconds())
        self._began = None

    def _seconds(self) -> dict[str, float]:
        if self._began is None:  # a message outside an exchange
            return {}
        return {"seconds": round(time.monotonic() - self._began, 4)}

    def disclosure(self, message_type: str) -> Disclosure:
        """Return the words for messages of a type; a type without words is marked as such."""
        return self.disclosures.get(message_type, Disclosure(message_type, _UNKNOWN, _UNKNOWN))

    def write_down(
        self,
        message: Message,
        *,
        message_type: str,
        exchange: int,
        site: str,
        sent: bool,
        sites: Collection[str] = (),
    ) -> Row:
        """Add the row of a message, and those of what a reply carries sealed for other sites.

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
        sites : collection of str
            For whom parts can be sealed.

        Returns
        -------
        dict
            The message's row, for `take_back`.
        """
        disclosure = self.disclosure(message_type)
        reveals = disclosure.request if sent else disclosure.reply
        content = RecordDict() if message.has_error() else message.content
        size = content_bytes(content)
        if message.has_error():
            reveals, size = _FAULT_REVEALS, len((message.error.reason or "").encode())
        row: Row = {
            "exchange": exchange,
            "step": disclosure.step,
            "sender": SERVER if sent else site,
            "receiver": site if sent else SERVER,
            "bytes": size,
            "sealed": False,
            "reveals": reveals,
            "protection": " + ".join(protections(content)),
            "parts": sum(len(parts) for *_, parts in _sealed_parts(content)),
        }
        self.rows.append(row)
        if not sent:
            row.update({**self._seconds(), **_told_seconds(content)})
            self._write_down_sealed(content, row, disclosure.sealed, sites)
        return row

    def take_back(self, row: Row) -> None:
        """Remove the row of a message that was not sent after all, in the exchange that is on."""
        at = next(at for at in range(self._first, len(self.rows)) if self.rows[at] is row)
        del self.rows[at]

    def _write_down_sealed(
        self, content: RecordDict, row: Row, reveals: Mapping[str, str], sites: Collection[str]
    ) -> None:
        found: dict[tuple[str, str], list[bytes]] = {}
        known: frozenset[str] = frozenset()
        for name, receiver, parts in _sealed_parts(content):
            known = known or frozenset(sites)
            # A site may write any name there, and as many as it likes.
            to = receiver if receiver in known else _NO_SITE
            found.setdefault((name.split("/", 1)[0], to), []).extend(parts)
        for (name, receiver), parts in found.items():
            own = {
                "receiver": receiver,
                "bytes": sum(map(len, parts)),
                "sealed": True,
                "reveals": reveals.get(name, _UNKNOWN),
                "protection": "sealed",
                "parts": len(parts),
            }
            shared = {key: value for key, value in row.items() if key not in _PER_ROW}
            self.rows.append({**shared, **own})

    def rename(self, names: Mapping[str, str]) -> None:
        """Put names in the place of those under which sites were written down before."""
        for row in self.rows:
            for end in ("sender", "receiver"):
                row[end] = names.get(str(row[end]), row[end])

    def bytes_sent(self) -> int:
        """Return the bytes of all messages, both directions."""
        return sum(int(str(row["bytes"])) for row in self.rows if not row["sealed"])

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


def protections(content: RecordDict) -> list[str]:
    """How the records of a message are protected, by their names; of one without any ``clear``.

    A record that is called sealed, but holds anything else, counts as clear.
    """
    found = {protection_of(name) for name, record in content.items() if len(record)}
    found.discard("sealed")
    for name, record in content.config_records.items():
        if protection_of(name) == "sealed":
            values = [part for value in record.values() for part in _as_list(value) if part != b""]
            found |= {"sealed" if has_sealed_form(part) else "clear" for part in values}
    return [kind for kind in PROTECTIONS if kind in found] or ["clear"]


def _sealed_parts(content: RecordDict) -> Iterator[tuple[str, str, list[bytes]]]:
    """Name of the record, who is at the other end, and the parts."""
    for name, record in content.config_records.items():
        if protection_of(name) != "sealed":
            continue
        for end, value in record.items():
            parts = [part for part in _as_list(value) if has_sealed_form(part)]
            if parts:
                yield name, end, [bytes(part) for part in parts]


def _told_seconds(content: RecordDict) -> dict[str, float]:
    """What a reply says of its site's time; whatever else the site may have put there is none."""
    told = content.config_records.get(SECONDS)
    if told is None:
        return {}
    values = [value for value in told.values() if isinstance(value, float)]
    spent = sum(value for value in values if 0 <= value <= _MOST_SECONDS)
    return {"site-seconds": round(spent, 4)} if math.isfinite(spent) else {}


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]
