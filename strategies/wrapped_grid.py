"""A Flower Grid around another one, to change some of what it does."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run


class WrappedGrid(Grid):
    """Passes on to another Grid what a subclass does not do by itself.

    Attributes
    ----------
    grid : Grid
        The one inside; a subclass sets it.
    """

    grid: Grid

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
        """Return the ids of the nodes."""
        return self.grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes."""
        return self.grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages without waiting."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Fetch what arrived for message ids."""
        return self.grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for their replies."""
        return self.grid.send_and_receive(messages, timeout=timeout)
