"""Records of the rounds of a survival run, each complete once its model has been evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from logging import INFO
from typing import Any

from flwr.supercore import log

Record = dict[str, Any]


class RoundRecords:
    """Records by round: what training told, and in the next exchange the evaluation of its model.

    Parameters
    ----------
    tell : callable
        Called with each record that is complete.

    Attributes
    ----------
    open : dict
        The record of the round whose model is not evaluated yet; at first of the initial model.
    done : list of dict
        Those that are complete, in order.
    """

    def __init__(self, tell: Callable[[Record], None]) -> None:
        self._tell = tell
        self.open: Record = {"round": 0}
        self.done: list[Record] = []

    def begin(self, server_round: int, told: Mapping[str, Any]) -> None:
        """Open the record of a round that was trained."""
        self.open = {"round": server_round, **told}

    def complete(self, evaluation: Mapping[str, Any]) -> None:
        """Add the evaluation of its model to the open record, and tell it."""
        record = {**self.open, **evaluation}
        if "c-index-lower" in record:
            log(
                INFO,
                "round %d: C-index %.3f (%.3f to %.3f)",
                record["round"],
                record["c-index"],
                record["c-index-lower"],
                record["c-index-upper"],
            )
        self.done.append(record)
        self._tell(record)

    def restore(self, opened: Mapping[str, Any], done: Iterable[Mapping[str, Any]]) -> None:
        """Be as when these were `open` and `done`; tell the latter again."""
        self.open = dict(opened)
        self.done = [dict(record) for record in done]
        for record in self.done:
            self._tell(record)
