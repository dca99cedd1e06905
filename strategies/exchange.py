"""One exchange: messages to nodes and their replies back, counted, checked and written down.

An exchange is what costs in a deployed federation (about six seconds, whatever it carries), so it
is made in one place. :class:`Exchange` is a Flower Grid around another one: strategies, Flower's
own ``start`` included, send through it without knowing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from logging import INFO, WARNING
from typing import TypeVar

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore import log
from flwr.supercore.constant import TaskType

from strategies.faults import (
    FORM_ERRORS,
    LATE,
    MALFORMED,
    NOT_SENT,
    Fault,
    TooFewSites,
    what_is_wrong,
)
from strategies.ledger import SERVER, Disclosure, Ledger, Row, content_bytes
from strategies.patience import SilentRuntime, answered_within
from strategies.wrapped_grid import WrappedGrid
from tasks.site.foreign_text import LONGEST_WORD, printable
from tasks.site.name_lists import duplicates
from tasks.site.reply_fields import MalformedReply

__all__ = [
    "SERVER",
    "Disclosure",
    "Exchange",
    "Fault",
    "TooFewSites",
    "content_bytes",
    "duplicates",
]

Reply = TypeVar("Reply")
Result = TypeVar("Result")

_FIRST_POLL = 0.01
_LONGEST_POLL = 1.0
_POLL_PER_MESSAGE = 1e-4
_POLL_GROWTH = 1.3
_SIMULATION_PATIENCE = 5.0
_LONGEST_CALL = 60.0
"""Seconds beyond the time limit that a call of the SuperLink may take: large replies travel."""


@dataclass
class Exchange(WrappedGrid):
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
    record : Ledger
        What was disclosed to whom, with the words for it.
    names : dict of int to str
        Site name by node id, known after the first exchange of a run.
    faults : list of Fault
        Everything that did not count, in order.
    count : int
        Exchanges made.
    after_exchange : callable or None
        Called after every exchange with the new rows of the ledger. Those of the first exchange
        come once the sites' names are learnt.
    is_silent : bool
        Whether a SuperLink has left a call without an answer: nobody can be told anything.
    """

    grid: Grid
    timeout: float | None = None
    min_sites: int = 1
    record: Ledger = field(default_factory=Ledger)
    names: dict[int, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    count: int = 0
    after_exchange: Callable[[list[Row]], None] | None = None
    is_silent: bool = False
    _members: frozenset[int] | None = None
    _excluded: frozenset[int] = frozenset()

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
        return cls(grid, timeout=timeout, min_sites=min_sites, record=Ledger(disclosures or {}))

    # Who takes part -------------------------------------------------------------------------

    def get_node_ids(self) -> list[int]:
        """Return the ids of the nodes that take part and are connected, ordered by site name.

        Raises
        ------
        strategies.patience.SilentRuntime
            As :meth:`send_and_receive`.
        """
        return self._connected(self.timeout)

    def get_nodes(self) -> list[NodeInfo]:
        """Return the nodes that take part and are connected; raises as :meth:`get_node_ids`."""
        nodes = self._runtime(lambda: list(self.grid.get_nodes()), self.timeout)
        return [node for node in nodes if self._takes_part(node.node_id)]

    def _connected(self, timeout: float | None) -> list[int]:
        nodes = self._runtime(lambda: list(self.grid.get_node_ids()), timeout)
        return sorted(filter(self._takes_part, nodes), key=self._order)

    def name_of(self, node_id: int) -> str:
        """Return the site's name, or ``node-<id>`` before it is known."""
        return self.names.get(node_id, f"node-{node_id}")

    def admit(self, names: Mapping[int, str]) -> None:
        """From now on only these nodes take part, under these names."""
        self.learn_names(names)
        self._members = frozenset(names)
        self._excluded = self._excluded.difference(names)

    def learn_names(self, names: Mapping[int, str]) -> None:
        """Note what sites are called, whether or not they take part."""
        names = {node: printable(name, longest=LONGEST_WORD) for node, name in names.items()}
        self.names.update(names)
        # The first exchange was written down before names were known.
        self.record.rename({f"node-{node_id}": name for node_id, name in names.items()})
        self._deliver_rows()

    def exclude(self, node_ids: Iterable[int]) -> None:
        """From now on these nodes do not take part."""
        self._excluded = self._excluded.union(node_ids)

    def _takes_part(self, node_id: int) -> bool:
        admitted = self._members is None or node_id in self._members
        return admitted and node_id not in self._excluded

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
        while len(nodes := self._connected(patience)) < minimum:
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
        strategies.patience.SilentRuntime
            If the SuperLink does not answer, for a minute longer than the time limit.
        """
        requests = list(messages)
        if not requests:
            return []
        self.count += 1
        self.record.begin_exchange()
        try:
            return self._exchange(requests, timeout)
        finally:
            self.record.end_exchange()
            self._deliver_rows()

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
        return self.read_messages(replies, lambda message: parse(message.content))

    def read_messages(
        self, replies: Iterable[Message], parse: Callable[[Message], Reply]
    ) -> list[tuple[str, Reply]]:
        """Read replies as :meth:`read` does, where it matters whose they are."""
        before = len(self.faults)
        messages = list(replies)
        read: list[tuple[str, Reply]] = []
        for message in messages:
            node = message.metadata.src_node_id
            try:
                read.append((self.name_of(node), parse(message)))
            except FORM_ERRORS as error:
                step = self._step(message)
                found = error if isinstance(error, MalformedReply) else type(error).__name__
                reason = f"reply of another form than expected ({found})"
                self.report_fault(node, MALFORMED, reason, step=step)
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
            One line without any value of the reply; control characters are replaced, and
            what is too long is cut.
        step : str
            The step's name.
        """
        fault = Fault(
            self.name_of(node_id),
            printable(step or "reply", longest=LONGEST_WORD),
            printable(code, longest=LONGEST_WORD),
            printable(reason),
        )
        self.faults.append(fault)
        log(WARNING, "%s", fault)

    def bytes_sent(self) -> int:
        """Return the bytes of all messages, both directions."""
        return self.record.bytes_sent()

    @property
    def ledger(self) -> list[Row]:
        """Rows of :mod:`strategies.ledger`, of messages and of what sites seal for one another."""
        return self.record.rows

    def _exchange(self, requests: list[Message], timeout: float | None) -> list[Message]:
        before = len(self.faults)
        limits = [limit for limit in (timeout, self.timeout) if limit is not None]
        patience = min(limits, default=None)
        waiting = self._push(requests, patience)
        replies = self._collect(waiting, patience)
        for request in waiting.values():
            self._fault(request, LATE, f"no reply within {patience or 0.0:g} s")
        needed = min(self.min_sites, len(requests))
        if len(replies) < needed:
            step = self._step(requests[0])
            raise TooFewSites(
                f"{step}: {len(replies)} of {len(requests)} sites gave a usable reply, "
                f"{needed} needed",
                self.faults[before:],
            )
        return sorted(replies, key=lambda reply: self._order(reply.metadata.src_node_id))

    def _runtime(self, call: Callable[[], Result], timeout: float | None) -> Result:
        """Call the runtime; where it is a SuperLink, wait no longer than for a site's reply."""
        if timeout is None or self.run.primary_task_type != TaskType.SERVER_APP:
            return call()  # a simulation computes in these calls
        try:
            return answered_within(timeout + _LONGEST_CALL, call)
        except SilentRuntime:
            self.is_silent = True
            raise

    def _push(self, requests: list[Message], timeout: float | None) -> dict[str, Message]:
        # Before they are sent: who stops the run in the middle of it does not know what was sent.
        rows = [self._write_down(request, request, sent=True) for request in requests]
        ids = self._runtime(lambda: list(self.grid.push_messages(requests)), timeout)
        if len(ids) != len(requests):  # a Grid that drops what it refuses, without its place
            accepted = set(ids)
            ids = [
                request.metadata.message_id if request.metadata.message_id in accepted else ""
                for request in requests
            ]
        waiting: dict[str, Message] = {}
        for message_id, request, row in zip(ids, requests, rows, strict=True):
            if message_id:
                waiting[message_id] = request
            else:
                self.record.take_back(row)
                self._fault(request, NOT_SENT, "the runtime did not take the message")
        if not waiting:  # nothing was exchanged
            self.count -= 1
        return waiting

    def _collect(self, waiting: dict[str, Message], timeout: float | None) -> list[Message]:
        """Take replies until all are there or time is up; leaves in `waiting` what is not."""
        deadline = None if timeout is None else time.monotonic() + timeout
        usable: list[Message] = []
        pause = _FIRST_POLL
        while waiting:
            asked = list(waiting)
            arrived = self._runtime(partial(self._pull, asked), timeout)
            for reply in arrived:
                request = waiting.pop(reply.metadata.reply_to_message_id, None)
                if request is not None and self._is_usable(request, reply):
                    usable.append(reply)
            if not waiting or (deadline is not None and time.monotonic() >= deadline):
                break
            # A poll names every message that is waited for: of ten thousand, one a second.
            shortest = min(_LONGEST_POLL, max(_FIRST_POLL, _POLL_PER_MESSAGE * len(waiting)))
            pause = shortest if arrived else min(_LONGEST_POLL, pause * _POLL_GROWTH)
            if deadline is not None:
                pause = min(pause, max(0.0, deadline - time.monotonic()))
            time.sleep(pause)
        return usable

    def _pull(self, message_ids: list[str]) -> list[Message]:
        return list(self.grid.pull_messages(message_ids))

    def _is_usable(self, request: Message, reply: Message) -> bool:
        self._write_down(reply, request, sent=False)  # whatever it is worth, it has been disclosed
        wrong = what_is_wrong(request, reply)
        if wrong is not None:
            self._fault(request, *wrong)
        return wrong is None

    def _fault(self, request: Message, code: str, reason: str) -> None:
        step = self._step(request)
        # Only the first line: a runtime's error text can carry a whole traceback.
        first_line = reason.strip().splitlines()[0] if reason.strip() else code
        self.report_fault(request.metadata.dst_node_id, code, first_line, step=step)

    def _write_down(self, message: Message, request: Message, *, sent: bool) -> Row:
        return self.record.write_down(
            message,
            message_type=request.metadata.message_type,
            exchange=self.count,
            site=self.name_of(request.metadata.dst_node_id),
            sent=sent,
            sites=self.names.values(),
        )

    def _deliver_rows(self) -> None:
        """Hand new rows of the ledger on, once sites have names."""
        if self.after_exchange is not None and self.names and (rows := self.record.take_new()):
            self.after_exchange(rows)

    def _step(self, message: Message) -> str:
        return self.record.disclosure(message.metadata.message_type).step

    def _order(self, node_id: int) -> tuple[str, int]:
        return (self.names.get(node_id, ""), node_id)
