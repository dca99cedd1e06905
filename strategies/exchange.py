"""One exchange: messages to nodes and their replies back, counted, checked and written down.

An exchange is what costs in a deployed federation (about six seconds, whatever it carries), so it
is made in one place. :class:`Exchange` is a Flower Grid around another one: strategies, Flower's
own ``start`` included, send through it without knowing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import TypeVar

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore import log
from flwr.supercore.constant import TaskType
from flwr.supercore.run import Run

Reply = TypeVar("Reply")

SERVER = "server"
_FIRST_POLL = 0.01
_LONGEST_POLL = 1.0
_POLL_GROWTH = 1.3
_SIMULATION_PATIENCE = 5.0
_MALFORMED = (
    *(ValueError, TypeError, LookupError, AttributeError, OverflowError),
    *(EOFError, StopIteration),  # an array without bytes, a reply without a record
)
_FAULT_REVEALS = "that the site could not answer: kind of fault, names and counts, no values"


@dataclass(frozen=True)
class Disclosure:
    """What the messages of one type are called and what they reveal to their receiver."""

    step: str
    request: str
    reply: str


@dataclass(frozen=True)
class Fault:
    """Why a site's reply does not count."""

    site: str
    step: str
    code: str
    reason: str

    def __str__(self) -> str:
        return f"{self.site}: {self.step}: {self.reason}"


class TooFewSites(RuntimeError):
    """Fewer usable replies than the run needs.

    Parameters
    ----------
    message : str
        What was needed and what came.
    faults : list of Fault
        What happened at the others.
    """

    def __init__(self, message: str, faults: list[Fault]) -> None:
        self.faults = faults
        super().__init__("; ".join([message, *map(str, faults)]))


@dataclass
class Exchange(Grid):
    """A Grid that polls, checks replies, counts exchanges and keeps the disclosure ledger.

    Build it with :meth:`around`.

    Attributes
    ----------
    grid : Grid
        The Grid of the runtime.
    timeout : float or None
        Seconds after which a reply is late; None: what the caller of
        :meth:`send_and_receive` says.
    min_sites : int
        Fewest usable replies with which an exchange counts, unless fewer sites were addressed.
    disclosures : mapping of str to Disclosure
        By message type, for the ledger.
    names : dict of int to str
        Site name by node id, known after the first exchange of a run.
    ledger : list of dict
        One entry a message: exchange, step, sender, receiver, bytes, sealed, reveals.
    faults : list of Fault
        Everything that did not count, in order.
    count : int
        Exchanges made.
    """

    grid: Grid
    timeout: float | None = None
    min_sites: int = 1
    disclosures: Mapping[str, Disclosure] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    ledger: list[dict[str, object]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    count: int = 0
    _members: frozenset[int] | None = None

    @classmethod
    def around(
        cls,
        grid: Grid,
        *,
        timeout: float | None = None,
        min_sites: int = 1,
        disclosures: Mapping[str, Disclosure] | None = None,
    ) -> Exchange:
        """Return an Exchange around a Grid; one that is an Exchange already is returned as it is.

        Parameters
        ----------
        grid : Grid
            Any Flower Grid.
        timeout : float or None
            Seconds after which a reply is late.
        min_sites : int
            Fewest usable replies with which an exchange counts.
        disclosures : mapping of str to Disclosure, optional
            Ledger words by message type.
        """
        if isinstance(grid, Exchange):
            return grid
        return cls(grid, timeout=timeout, min_sites=min_sites, disclosures=disclosures or {})

    # What a Grid has, passed on -------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self.grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run."""
        return self.grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message (Flower's older way)."""
        return self.grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that take part, ordered by site name."""
        nodes = self.grid.get_node_ids()
        if self._members is not None:
            nodes = self._members.intersection(nodes)
        return sorted(nodes, key=self._order)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes that take part."""
        members = self._members
        return [
            node for node in self.grid.get_nodes() if members is None or node.node_id in members
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages without waiting; neither counted nor written down."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Fetch what arrived for message ids."""
        return self.grid.pull_messages(message_ids)

    # Who takes part -------------------------------------------------------------------------

    def name_of(self, node_id: int) -> str:
        """Return the site's name, or ``node-<id>`` before it is known."""
        return self.names.get(node_id, f"node-{node_id}")

    def admit(self, names: Mapping[int, str]) -> None:
        """From now on only these nodes take part, under these names."""
        self.learn_names(names)
        self._members = frozenset(names)

    def learn_names(self, names: Mapping[int, str]) -> None:
        """Note what sites are called, whether or not they take part."""
        self.names.update(names)
        placeholders = {f"node-{node_id}": name for node_id, name in names.items()}
        for entry in self.ledger:  # the first exchange was written down before names were known
            for end in ("sender", "receiver"):
                entry[end] = placeholders.get(str(entry[end]), entry[end])

    def exclude(self, node_ids: Iterable[int]) -> None:
        """From now on these nodes do not take part."""
        known = self._members if self._members is not None else frozenset(self.grid.get_node_ids())
        self._members = known.difference(node_ids)

    def wait_for_nodes(self, minimum: int) -> list[int]:
        """Wait until so many nodes are connected, at most for the timeout.

        In simulation all nodes connect when the run starts, so the wait is short there.

        Raises
        ------
        TooFewSites
            If they are not there in time.
        """
        began, patience = time.monotonic(), self.timeout or 3600.0
        pause, said = _FIRST_POLL, False
        while len(nodes := list(self.get_node_ids())) < minimum:
            if self.run.primary_task_type == TaskType.SIMULATION:
                patience = min(patience, _SIMULATION_PATIENCE)
            if time.monotonic() > began + patience:
                there = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
                raise TooFewSites(f"{there} connected, {minimum} needed", [])
            if not said and pause >= _LONGEST_POLL:
                log(INFO, "waiting for nodes: %d connected, %d needed", len(nodes), minimum)
                said = True
            time.sleep(pause)
            pause = min(_LONGEST_POLL, pause * _POLL_GROWTH)
        return nodes

    # The exchange ---------------------------------------------------------------------------

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Make one exchange.

        Parameters
        ----------
        messages : iterable of Message
            One a node; none at all costs and counts nothing.
        timeout : float, optional
            Seconds to wait; the shorter of this and the Exchange's own holds.

        Returns
        -------
        list of Message
            The usable replies, ordered by site name. Errors, late and malformed replies are in
            ``faults`` and were logged.

        Raises
        ------
        TooFewSites
            If fewer than ``min_sites`` (or than all addressed, where that is less) are usable.
        """
        requests = list(messages)
        if not requests:
            return []
        self.count += 1
        before = len(self.faults)
        waiting = self._push(requests)
        limits = [limit for limit in (timeout, self.timeout) if limit is not None]
        replies = self._collect(waiting, min(limits, default=None))
        for request in waiting.values():
            waited = min(limits, default=0.0)
            self._fault(request, "late", f"no reply within {waited:g} s")
        needed = min(self.min_sites, len(requests))
        if len(replies) < needed:
            step = self._disclosure(requests[0]).step
            raise TooFewSites(
                f"{step}: {len(replies)} of {len(requests)} sites gave a usable reply, "
                f"{needed} needed",
                self.faults[before:],
            )
        return sorted(replies, key=lambda reply: self._order(reply.metadata.src_node_id))

    def read(
        self, replies: Iterable[Message], parse: Callable[[RecordDict], Reply]
    ) -> list[tuple[str, Reply]]:
        """Read the content of replies; a malformed one is reported by site and left out.

        Parameters
        ----------
        replies : iterable of Message
            As :meth:`send_and_receive` returns them.
        parse : callable
            ``from_record`` of the message's dataclass.

        Returns
        -------
        list of (str, object)
            Site name and what `parse` made of its reply, in the order given.

        Raises
        ------
        TooFewSites
            If fewer than ``min_sites`` of them can be read.
        """
        before = len(self.faults)
        messages = list(replies)
        read: list[tuple[str, Reply]] = []
        for message in messages:
            node = message.metadata.src_node_id
            try:
                read.append((self.name_of(node), parse(message.content)))
            except _MALFORMED as error:
                step = self._disclosure(message).step
                reason = f"reply of another form than expected ({type(error).__name__})"
                self.report_fault(node, "malformed", reason, step=step)
        if len(read) < min(self.min_sites, len(messages)):
            raise TooFewSites(
                f"{len(read)} of {len(messages)} replies can be read, {self.min_sites} needed",
                self.faults[before:],
            )
        return read

    def report_fault(self, node_id: int, code: str, reason: str, *, step: str = "") -> None:
        """Note that a reply which arrived cannot be used, as the strategy found.

        Parameters
        ----------
        node_id : int
            Whose reply.
        code : str
            Kebab-case kind.
        reason : str
            One line without any value of the reply.
        step : str
            The step's name.
        """
        fault = Fault(self.name_of(node_id), step or "reply", code, reason)
        self.faults.append(fault)
        log(WARNING, "%s", fault)

    def bytes_sent(self) -> int:
        """Return the bytes of all messages, both directions."""
        return sum(int(str(entry["bytes"])) for entry in self.ledger)

    def _push(self, requests: list[Message]) -> dict[str, Message]:
        ids = list(self.grid.push_messages(requests))
        if len(ids) != len(requests):  # a Grid that drops what it refuses, without its place
            accepted = set(ids)
            ids = [
                request.metadata.message_id if request.metadata.message_id in accepted else ""
                for request in requests
            ]
        waiting: dict[str, Message] = {}
        for message_id, request in zip(ids, requests, strict=True):
            if message_id:
                self._write_down(request, sent=True)
                waiting[message_id] = request
            else:
                self._fault(request, "not-sent", "the runtime did not take the message")
        return waiting

    def _collect(self, waiting: dict[str, Message], timeout: float | None) -> list[Message]:
        """Take replies until all are there or time is up; leaves in `waiting` what is not."""
        deadline = None if timeout is None else time.monotonic() + timeout
        usable: list[Message] = []
        pause = _FIRST_POLL
        while waiting:
            arrived = list(self.grid.pull_messages(list(waiting)))
            for reply in arrived:
                request = waiting.pop(reply.metadata.reply_to_message_id, None)
                if request is not None and self._is_usable(request, reply):
                    usable.append(reply)
            if not waiting or (deadline is not None and time.monotonic() >= deadline):
                break
            pause = _FIRST_POLL if arrived else min(_LONGEST_POLL, pause * _POLL_GROWTH)
            if deadline is not None:
                pause = min(pause, max(0.0, deadline - time.monotonic()))
            time.sleep(pause)
        return usable

    def _is_usable(self, request: Message, reply: Message) -> bool:
        self._write_down(reply, sent=False)  # whatever it is worth, it has been disclosed
        if reply.has_error():
            reason = reply.error.reason or f"error code {reply.error.code}"
            code, separator, words = reason.partition(": ")
            known = bool(separator) and " " not in code
            self._fault(request, code if known else "error", words if known else reason)
            return False
        expected = request.metadata
        if reply.metadata.src_node_id != expected.dst_node_id or not reply.has_content():
            self._fault(request, "misrouted", "the reply is not the addressed node's")
            return False
        return True

    def _fault(self, request: Message, code: str, reason: str) -> None:
        step = self._disclosure(request).step
        # Only the first line: a runtime's error text can carry a whole traceback.
        first_line = reason.strip().splitlines()[0] if reason.strip() else code
        self.report_fault(request.metadata.dst_node_id, code, first_line, step=step)

    def _write_down(self, message: Message, *, sent: bool) -> None:
        disclosure = self._disclosure(message)
        site = self.name_of(message.metadata.dst_node_id if sent else message.metadata.src_node_id)
        reveals = disclosure.request if sent else disclosure.reply
        if message.has_error():
            reveals, size = _FAULT_REVEALS, len((message.error.reason or "").encode())
        else:
            size = content_bytes(message.content)
        self.ledger.append(
            {
                "exchange": self.count,
                "step": disclosure.step,
                "sender": SERVER if sent else site,
                "receiver": site if sent else SERVER,
                "bytes": size,
                "sealed": False,
                "reveals": reveals,
            }
        )

    def _disclosure(self, message: Message) -> Disclosure:
        kind = message.metadata.message_type
        unknown = "not declared by this strategy"
        return self.disclosures.get(kind, Disclosure(kind, unknown, unknown))

    def _order(self, node_id: int) -> tuple[str, int]:
        return (self.names.get(node_id, ""), node_id)


def content_bytes(content: RecordDict) -> int:
    """Return the size of a message's content: array data, and other records as serialized."""
    return sum(
        record.count_bytes() if isinstance(record, ArrayRecord) else len(record.deflate())
        for record in content.values()
    )


def duplicates(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, sorted."""
    return sorted(name for name, times in Counter(names).items() if times > 1)
