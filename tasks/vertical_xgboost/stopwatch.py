"""Seconds of processor time spent in each operation of cryptography."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Stopwatch:
    """Adds up processor seconds of this thread by the name of an operation."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, operation: str) -> Iterator[None]:
        """Time what is done inside."""
        began = time.thread_time()
        try:
            yield
        finally:
            spent = time.thread_time() - began
            self.seconds[operation] = self.seconds.get(operation, 0.0) + spent

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add what somebody else measured."""
        for operation, spent in seconds.items():
            self.seconds[operation] = self.seconds.get(operation, 0.0) + spent

    @property
    def total(self) -> float:
        """Seconds of all operations."""
        return sum(self.seconds.values())
