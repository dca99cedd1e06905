"""Sites of an in-process run in a process of their own, so that the server's costs are its own.

The server's process is forked at the first message; what it forks handles every message from then
on, and keeps the sites' memory. What is left in the server's process is what a ServerApp does,
and taking messages to the other process, which is counted apart.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from flwr.app import Message

from fedapp import simulation

_RESET_PEAK = "5"  # proc(5), clear_refs


@dataclass
class Spent:
    """What a run took, from its first message until it has been written down.

    Attributes
    ----------
    server_cpu, copying_cpu, site_cpu : float
        Processor seconds of the server's process without taking messages to the sites and back, of
        that, and of all sites together.
    server_memory : int
        Bytes by which the server's process grew at most.
    """

    server_cpu: float = 0.0
    copying_cpu: float = 0.0
    site_cpu: float = 0.0
    server_memory: int = 0


class SitesApart(simulation.InProcessGrid):
    """An InProcessGrid that does not handle messages in this process."""

    spent: Spent
    _pipe: Connection | None = None

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let every addressed node handle its message."""
        if self._pipe is None:
            self._begin()
        assert self._pipe is not None
        began = time.process_time()
        message_ids = []
        for message in messages:
            message_id = f"message-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = message_id
            self._pipe.send(message)
            self._replies[message_id], seconds = self._pipe.recv()
            self.spent.site_cpu += seconds
            message_ids.append(message_id)
        self.spent.copying_cpu += time.process_time() - began
        return message_ids

    def _begin(self) -> None:
        here, there = get_context("fork").Pipe()
        self._child = get_context("fork").Process(target=self._serve, args=(there,), daemon=True)
        self._child.start()
        there.close()
        self._pipe = here
        self._memory = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
        self._began = time.process_time()

    def _serve(self, pipe: Connection) -> None:
        while (message := pipe.recv()) is not None:
            began = time.process_time()
            reply: Any = self._handle(message)
            pipe.send((reply, time.process_time() - began))

    def end(self) -> None:
        """Note what was spent, and end the sites."""
        if self._pipe is None:
            return
        total = time.process_time() - self._began
        self.spent.server_cpu = total - self.spent.copying_cpu
        self.spent.server_memory = _memory("VmHWM") - self._memory
        self._pipe.send(None)
        self._child.join()
        self._pipe.close()


@contextmanager
def sites_apart() -> Iterator[Spent]:
    """Have `simulate` keep its sites in another process; complete once the block is left."""
    spent = Spent()
    grids: list[SitesApart] = []
    usual = simulation.InProcessGrid

    class Grid(SitesApart):
        """Of this run."""

        def __init__(self, *parts: Any) -> None:
            super().__init__(*parts)
            self.spent = spent
            grids.append(self)

    simulation.InProcessGrid = Grid  # type: ignore[misc]
    try:
        yield spent
    finally:
        simulation.InProcessGrid = usual  # type: ignore[misc]
        for grid in grids:
            grid.end()


def _memory(key: str) -> int:
    """Bytes of this process, of ``VmRSS`` (now) or ``VmHWM`` (at most)."""
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])
