"""The sites that answer every exchange of a fit: fixed after the first, fewer when one is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from logging import WARNING
from typing import TypeVar

from flwr.app import Message, RecordDict
from flwr.supercore import log

from strategies.exchange import SERVER, Exchange, TooFewSites, duplicates
from strategies.membership import Refused
from tasks.glm.messages import SiteReply
from tasks.site.foreign_text import LONGEST_WORD, printable

Reply = TypeVar("Reply", bound=SiteReply)


class Cohort:
    """Sites whose rows a likelihood is made of.

    Parameters
    ----------
    exchange : Exchange
        Its nodes are the first cohort; whoever is lost is not one of them any more.
    min_sites : int
        Fewest sites that may be left.
    feature_names : tuple of str, optional
        What the sites' columns must be called; default: all as the first of them says.

    Attributes
    ----------
    nodes : list of int
        Who takes part, ordered by site name.
    lost : list of str
        Who stopped to give usable replies.
    """

    def __init__(
        self, exchange: Exchange, *, min_sites: int, feature_names: tuple[str, ...] | None = None
    ) -> None:
        self.exchange = exchange
        self.min_sites = min_sites
        self.feature_names = feature_names
        self.nodes: list[int] = []
        self.lost: list[str] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sites that take part, in order."""
        return tuple(self.exchange.name_of(node) for node in self.nodes)

    def address(self, content: RecordDict, message_type: str) -> list[Message]:
        """Return a message with this content to everybody who takes part."""
        self.nodes = list(self.exchange.get_node_ids())
        return [
            Message(content, dst_node_id=node, message_type=message_type) for node in self.nodes
        ]

    def read(
        self, replies: Iterable[Message], parse: Callable[[RecordDict], Reply]
    ) -> dict[str, Reply]:
        """Read replies by site name, in order of names; sites without a usable one are lost.

        Raises
        ------
        Refused
            If names of sites or columns do not fit together, or a name is not of one site only.
        TooFewSites
            If fewer than `min_sites` are left.
        """
        exchange, messages = self.exchange, list(replies)
        nodes = {exchange.name_of(m.metadata.src_node_id): m.metadata.src_node_id for m in messages}
        read = {nodes[name]: reply for name, reply in exchange.read(messages, parse)}
        self._learn_names(read)
        for node in self.nodes:
            if node not in read:
                self.lost.append(exchange.name_of(node))
                log(WARNING, "%s is lost: the fit goes on without its rows", self.lost[-1])
        if len(read) < self.min_sites:
            raise TooFewSites(
                f"{len(read)} sites are left, {self.min_sites} needed", exchange.faults
            )
        exchange.admit({node: exchange.name_of(node) for node in read})
        self.nodes = [node for node in exchange.get_node_ids() if node in read]
        return {exchange.name_of(node): read[node] for node in self.nodes}

    def _learn_names(self, read: Mapping[int, SiteReply]) -> None:
        exchange = self.exchange
        new = {
            node: printable(r.site, longest=LONGEST_WORD)
            for node, r in read.items()
            if r.site and node not in exchange.names
        }
        names = [new.get(node, exchange.name_of(node)) for node in read]
        faults = [f"{n}: must be the name of one site only" for n in duplicates([*names, SERVER])]
        stated = dict(sorted(zip(names, (r.feature_names for r in read.values()), strict=True)))
        if self.feature_names is None:
            self.feature_names = next(filter(None, stated.values()), None)
        faults += [
            f"{name}: its columns are {', '.join(columns)}, "
            f"not {', '.join(self.feature_names or ())}"
            for name, columns in stated.items()
            if columns and columns != self.feature_names
        ]
        if faults:
            raise Refused(faults)
        exchange.learn_names(new)
