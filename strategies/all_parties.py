"""Exchanges in which every site has to answer: of a joined model or sum none may be missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from logging import WARNING
from typing import TypeVar

from flwr.app import Message, RecordDict
from flwr.supercore import log

from strategies.exchange import Exchange, Fault, TooFewSites
from strategies.faults import LATE, MALFORMED, MISROUTED, NOT_SENT
from strategies.membership import Refused
from tasks.site.name_lists import some_names

Reply = TypeVar("Reply")

EVERY_PARTY = "; every party's columns and labels are needed: begin a new run"

_NOT_A_VERDICT = frozenset({LATE, MALFORMED, NOT_SENT, MISROUTED, "error", "internal"})
"""Kinds of fault that say something of the runtime or the code, not of rows or settings."""


class AllParties:
    """The parties of a run, asked together.

    Parameters
    ----------
    exchange : Exchange
        Knows their names.
    timeout : float, optional
        Seconds to wait for a reply; the shorter of this and the Exchange's own holds.
    closing : str
        Follows the names of those who are lost: why the run ends, and what to do.
    can_refuse : bool
        What a party finds wrong with rows or settings refuses the run; False: it is lost as well.
    """

    def __init__(
        self,
        exchange: Exchange,
        *,
        timeout: float | None = None,
        closing: str = EVERY_PARTY,
        can_refuse: bool = True,
    ) -> None:
        self.exchange = exchange
        self.timeout = timeout
        self.closing = closing
        self.can_refuse = can_refuse

    def ask(
        self,
        contents: Mapping[str, RecordDict],
        message_type: str,
        parse: Callable[[RecordDict], Reply],
        *,
        step: str,
    ) -> dict[str, Reply]:
        """Make an exchange in which all answer in one form; see `ask_each`."""
        return self.ask_each(contents, message_type, lambda _, content: parse(content), step=step)

    def ask_each(
        self,
        contents: Mapping[str, RecordDict],
        message_type: str,
        parse: Callable[[str, RecordDict], Reply],
        *,
        step: str,
    ) -> dict[str, Reply]:
        """Make an exchange with parties, all of which have to answer.

        Parameters
        ----------
        contents : mapping of str to RecordDict
            What each party is sent.
        message_type : str
        parse : callable
            Takes a party's name and its reply.
        step : str
            Name of the step, for faults.

        Returns
        -------
        dict of str to object
            Reply by party, in the order of names.

        Raises
        ------
        Refused
            If parties found something wrong with rows, settings or messages: each reason once,
            with who says it.
        TooFewSites
            If a party is lost.
        """
        exchange = self.exchange
        nodes = {exchange.name_of(node): node for node in exchange.get_node_ids()}
        before = len(exchange.faults)
        messages = [
            Message(content, dst_node_id=nodes[name], message_type=message_type)
            for name, content in contents.items()
            if name in nodes
        ]
        try:
            replies = exchange.send_and_receive(messages, timeout=self.timeout)
            read = dict(
                exchange.read_messages(
                    replies,
                    lambda reply: parse(
                        exchange.name_of(reply.metadata.src_node_id), reply.content
                    ),
                )
            )
        except TooFewSites:
            read = {}
        faults = exchange.faults[before:]
        blamed = sorted({fault.site for fault in faults} & set(contents))
        lost = blamed or [name for name in sorted(contents) if name not in read]
        if lost:
            verdicts = [fault for fault in faults if fault.code not in _NOT_A_VERDICT]
            if self.can_refuse and verdicts and len(verdicts) == len(faults):
                raise refusal_of(verdicts)
            raise lost_sites(lost, faults, step=step, closing=self.closing)
        return {name: read[name] for name in sorted(read)}

    def tell(self, content: RecordDict, message_type: str, *, timeout: float | None = None) -> None:
        """Tell all something that needs no answer; whoever does not hear it is passed over.

        Where the SuperLink is silent nobody can be told, and it is not waited for once more.

        Parameters
        ----------
        content : RecordDict
        message_type : str
        timeout : float, optional
            Seconds to wait at most, if fewer than otherwise.
        """
        if self.exchange.is_silent:
            log(WARNING, "nobody heard that the run has ended: the SuperLink does not answer")
            return
        limits = [limit for limit in (timeout, self.timeout) if limit is not None]
        try:
            self.exchange.send_and_receive(
                [
                    Message(content, dst_node_id=node, message_type=message_type)
                    for node in self.exchange.get_node_ids()
                ],
                timeout=min(limits, default=None),
            )
        except Exception as error:  # the run has ended already; this must not hide why
            log(WARNING, "not everybody heard that the run has ended: %s", type(error).__name__)


def lost_sites(
    names: Iterable[str], faults: list[Fault], *, step: str, closing: str
) -> TooFewSites:
    """Say that a step cannot do without these sites; `closing` as of `AllParties`."""
    return TooFewSites(f"{step}: no usable answer of {some_names(names)}{closing}", faults)


def refusal_of(verdicts: Iterable[Fault]) -> Refused:
    """Refuse the run for what sites found wrong: each reason once, with who says it."""
    said_by: dict[str, list[str]] = {}
    for fault in verdicts:
        said_by.setdefault(fault.reason, []).append(fault.site)
    return Refused([f"{', '.join(sorted(names))}: {why}" for why, names in said_by.items()])
