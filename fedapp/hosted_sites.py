"""Several simulated sites on one SuperNode.

``flwr run`` simulates two SuperNodes unless it is told otherwise, and an app cannot ask for more.
So that a plain ``flwr run .`` is a federation worth looking at, each of the two SuperNodes then
plays several sites: :class:`HostingGrid` at the server puts the messages of a node's sites into
one, and :func:`each_hosted_site` at the node handles them one after the other, each with its own
partition and its own state. Strategies and handlers see sites only. Any other number of SuperNodes
is taken as it is: one site each. A deployed SuperNode is always one site.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import cast

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.clientapp.typing import ClientAppCallable
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.constant import DEFAULT_SIMULATION_CONFIG, TaskType

from strategies.wrapped_grid import WrappedGrid
from tasks.site.client import SITE_FAULT_CODE

_HOSTED = "hosted-sites"
_ERROR = "error"
_OWN = ("site-name", "data-path")
"""Keys of a node's configuration that make it a site of its own."""


def with_hosted_sites(grid: Grid, num_sites: int) -> Grid:
    """Return the Grid in which Flower's default simulation has `num_sites` nodes.

    Parameters
    ----------
    grid : Grid
        The runtime's.
    num_sites : int
        Sites to play where the number of SuperNodes was left at Flower's default.
    """
    if grid.run.primary_task_type != TaskType.SIMULATION:
        return grid  # whose SuperLink may be silent: only the Exchange asks it, and not for ever
    default = DEFAULT_SIMULATION_CONFIG.num_supernodes
    nodes = list(grid.get_node_ids())
    if len(nodes) == default != num_sites:
        return HostingGrid(grid, hosts=nodes, num_sites=num_sites)
    return grid


class HostingGrid(WrappedGrid):
    """A Grid of sites of which several live on one node.

    Parameters
    ----------
    grid : Grid
        The Grid of the nodes.
    hosts : list of int
        Node ids; site s lives on host s modulo their number.
    num_sites : int
        Number of sites; their node ids here are 1, 2, ...
    """

    def __init__(self, grid: Grid, *, hosts: list[int], num_sites: int) -> None:
        self.grid = grid
        self.hosts = hosts
        self.num_sites = num_sites
        self._ids = itertools.count(1)
        self._pending: dict[str, dict[int, Message]] = {}  # by id of the host's message
        self._replies: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        """Return one id a site."""
        return list(range(1, self.num_sites + 1))

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the sites, as nodes."""
        return [NodeInfo(node_id=site) for site in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages of one type; those to sites of one host go together."""
        by_host: dict[int, dict[int, Message]] = {}
        message_ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"hosted-{next(self._ids)}"
            message_ids.append(message.metadata.message_id)
            site = message.metadata.dst_node_id - 1
            by_host.setdefault(self.hosts[site % len(self.hosts)], {})[site] = message
        bundles = [self._bundle(host, parts) for host, parts in by_host.items()]
        sent = set(self.grid.push_messages(bundles))
        for bundle, parts in zip(bundles, by_host.values(), strict=True):
            if bundle.metadata.message_id in sent:
                self._pending[bundle.metadata.message_id] = parts
            else:
                not_sent = {message.metadata.message_id for message in parts.values()}
                message_ids = ["" if key in not_sent else key for key in message_ids]
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return what arrived for these messages; each reply is given out once."""
        if self._pending:
            for reply in self.grid.pull_messages(list(self._pending)):
                parts = self._pending.pop(reply.metadata.reply_to_message_id)
                for site, request in parts.items():
                    self._replies[request.metadata.message_id] = _reply_of(site, request, reply)
        return [self._replies.pop(key) for key in list(message_ids) if key in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Not used: the Exchange around this Grid polls by itself."""
        raise NotImplementedError("HostingGrid is polled through strategies.exchange.Exchange")

    def _bundle(self, host: int, parts: dict[int, Message]) -> Message:
        content = RecordDict(
            {_HOSTED: ConfigRecord({"sites": list(parts), "num-sites": self.num_sites})}
        )
        for site, message in parts.items():
            for key, record in message.content.items():
                content[f"{site}/{key}"] = record
        message_type = next(iter(parts.values())).metadata.message_type
        return Message(content, dst_node_id=host, message_type=message_type)


def each_hosted_site(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Handle the message of every site that this SuperNode plays (a ClientApp mod)."""
    if not message.has_content() or _HOSTED not in message.content.config_records:
        return call_next(message, context)
    if named := [key for key in _OWN if key in context.node_config]:
        # Each hosted site has a memory of its own: asked as many, a site would answer as many.
        words = f'hosted-sites: a node with node config "{named[0]}" is one site'
        return Message(Error(SITE_FAULT_CODE, words), reply_to=message)
    if "partition-id" not in context.node_config:
        # Else any path that the run names would be opened, as in a simulation.
        words = "hosted-sites: only a simulated node, which has a partition-id, is several sites"
        return Message(Error(SITE_FAULT_CODE, words), reply_to=message)
    hosted = message.content.config_records[_HOSTED]
    answer = RecordDict()
    for site in cast(list[int], hosted["sites"]):
        own = Context(
            run_id=context.run_id,
            node_id=context.node_id,
            node_config={
                **context.node_config,
                "partition-id": site,
                "num-partitions": cast(int, hosted["num-sites"]),
            },
            state=_part(context.state, site),
            run_config=context.run_config,
            series_id=context.series_id,
        )
        request = make_message(metadata=message.metadata, content=_part(message.content, site))
        reply = call_next(request, own)
        if reply.has_error():
            answer[f"{site}/{_ERROR}"] = ConfigRecord(
                {"code": reply.error.code, "reason": reply.error.reason or ""}
            )
        else:
            answer.update({f"{site}/{key}": record for key, record in reply.content.items()})
        # As Flower does for one site on its own: also after an error.
        for key in [key for key in context.state if key.startswith(f"{site}/")]:
            del context.state[key]  # what a site forgets is not to come back
        context.state.update({f"{site}/{key}": record for key, record in own.state.items()})
    return Message(answer, reply_to=message)


def _part(records: RecordDict, site: int) -> RecordDict:
    prefix = f"{site}/"
    return RecordDict(
        {key.removeprefix(prefix): rec for key, rec in records.items() if key.startswith(prefix)}
    )


def _reply_of(site: int, request: Message, bundle: Message) -> Message:
    if bundle.has_error():
        return Message(bundle.error, reply_to=request)
    content = _part(bundle.content, site)
    error = content.config_records.get(_ERROR)
    if error is not None:
        words = Error(code=cast(int, error["code"]), reason=cast(str, error["reason"]))
        return Message(words, reply_to=request)
    return Message(content, reply_to=request)
