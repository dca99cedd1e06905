"""Runs in which the replies of one site are disturbed on their way, within a limit of time."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fedapp import simulation
from fedapp.simulation import InProcessGrid, SimulationResult, simulate

Value = bool | int | float | str
Spoil = Callable[[RecordDict], RecordDict | Error]


@dataclass
class Disturbance:
    """What becomes of the replies of one site to messages of one type.

    Attributes
    ----------
    site : str
    message_type : str
    spoil : callable, optional
        Makes another content, or an error, of a reply's.
    copies : int
        How often each reply arrives.
    late : bool
        The replies arrive only when the next exchange waits for its own.
    run_id : int, optional
        The run of which the replies say that they are.
    forgetting : bool
        The site has lost what it remembered of the run when the messages come, as a SuperNode
        that was started again has.
    disturbed : int
        How many replies there were so far.
    """

    site: str
    message_type: str
    spoil: Spoil | None = None
    copies: int = 1
    late: bool = False
    run_id: int | None = None
    forgetting: bool = False
    disturbed: int = 0
    _held: list[Message] = field(default_factory=list)

    def grid(self) -> type[InProcessGrid]:
        """Return the class of Grids on which this happens."""
        happens = self

        class DisturbedGrid(InProcessGrid):
            def _handle(self, message: Message) -> Message:
                kind, node = message.metadata.message_type, message.metadata.dst_node_id
                own = self.contexts[node].node_config["site-name"] == happens.site
                if happens.forgetting and own and kind == happens.message_type:
                    self.contexts[node].state = RecordDict()
                return super()._handle(message)

            def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
                held, happens._held = happens._held, []
                arrived = list(super().pull_messages(message_ids))
                if not arrived:  # nothing else to do: what was held back stays so
                    happens._held = held
                    return []
                return [*held, *(one for reply in arrived for one in happens.to(reply, self))]

        return DisturbedGrid

    def to(self, reply: Message, grid: InProcessGrid) -> list[Message]:
        """Return what arrives in place of a reply."""
        node = grid.contexts[reply.metadata.src_node_id].node_config
        if node["site-name"] != self.site or reply.metadata.message_type != self.message_type:
            return [reply]
        self.disturbed += 1
        if self.spoil is not None and reply.has_content():
            reply = _answered(reply, self.spoil(reply.content))
        if self.run_id is not None:
            reply.metadata.__dict__["_run_id"] = self.run_id
        replies = [reply, *(copy.deepcopy(reply) for _ in range(self.copies - 1))]
        if self.late:
            self._held += replies
            return []
        return replies


def _answered(reply: Message, what: RecordDict | Error) -> Message:
    to = Message(RecordDict(), reply.metadata.src_node_id, reply.metadata.message_type)
    answer = Message(what, reply_to=to)
    answer.metadata.__dict__.update(reply.metadata.__dict__)
    return answer


# What a site may answer ---------------------------------------------------------------------------


def of_other_records(content: RecordDict) -> RecordDict:
    """Records that nobody asked for."""
    return RecordDict(
        {
            "noise": ConfigRecord({"bytes": b"\xff\x00\xfe", "words": ["\x1b[2J", "DROP"]}),
            "more": ArrayRecord({"x": Array(np.array([[3.0, -1.0]]))}),
        }
    )


def of_nothing(content: RecordDict) -> RecordDict:
    """No record at all."""
    return RecordDict()


def of_text(content: RecordDict) -> RecordDict:
    """The right records and keys, with text as every value."""
    return _changed(
        content,
        array=lambda a: np.full(a.shape, "garbage"),
        entry=lambda value: "garbage",
    )


def of_no_numbers(content: RecordDict) -> RecordDict:
    """NaN as every number."""

    def entry(value: Any) -> Any:
        if isinstance(value, list):
            return [entry(one) for one in value]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float("nan") if is_number else value

    return _changed(content, array=lambda a: np.full(a.shape, np.nan), entry=entry)


def of_wrong_shapes(content: RecordDict) -> RecordDict:
    """Every array and list one element longer, every bytes one byte."""

    def array(values: np.ndarray) -> np.ndarray:
        flat = values.ravel()
        return np.concatenate([flat, flat[:1] if flat.size else np.zeros(1, values.dtype)])

    def entry(value: Any) -> Any:
        if isinstance(value, bytes):
            return value + b"\0"
        return [*value, *(value[:1] or [0])] if isinstance(value, list) else value

    return _changed(content, array=array, entry=entry)


def _changed(
    content: RecordDict,
    *,
    array: Callable[[np.ndarray], np.ndarray],
    entry: Callable[[Any], Any],
) -> RecordDict:
    changed = RecordDict()
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            arrays = {key: Array(array(one.numpy())) for key, one in record.items()}
            changed[name] = ArrayRecord(arrays)
            continue
        entries = {key: entry(value) for key, value in record.items()}
        try:
            changed[name] = type(record)(entries)
        except TypeError:  # a MetricRecord has no text
            changed[name] = ConfigRecord(entries)
    return changed


def of_another(replies: Sequence[RecordDict]) -> Spoil:
    """What was answered elsewhere: in another run, or before."""
    left = list(replies)

    def spoil(content: RecordDict) -> RecordDict:
        return copy.deepcopy(left.pop(0) if len(left) > 1 else left[0])

    return spoil


# Runs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A task with small data, in which one site can be disturbed."""

    task: str
    frames: Mapping[str, pd.DataFrame]
    settings: Mapping[str, Value]
    bad: str

    def run(
        self,
        directory: Path,
        disturbance: Disturbance | None = None,
        *,
        without: str = "",
        **more: Value,
    ) -> SimulationResult:
        """Run over the sites, or over all but one."""
        names = [name for name in self.frames if name != without]
        grid = InProcessGrid if disturbance is None else disturbance.grid()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(simulation, "InProcessGrid", grid)
            return simulate(
                self.task,
                sites=[self.frames[name] for name in names],
                site_names=names,
                config={**self.settings, "run-dir": str(directory), **more},
            )

    def replies(self, directory: Path, **more: Value) -> dict[str, list[RecordDict]]:
        """Run, and return what the site answers to messages of each type."""
        found: dict[str, list[RecordDict]] = {}
        bad = self.bad

        class RecordingGrid(InProcessGrid):
            def _handle(self, message: Message) -> Message:
                reply = super()._handle(message)
                node = self.contexts[message.metadata.dst_node_id].node_config
                if node["site-name"] == bad and reply.has_content():
                    kind = message.metadata.message_type
                    found.setdefault(kind, []).append(copy.deepcopy(reply.content))
                return reply

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(simulation, "InProcessGrid", RecordingGrid)
            names = list(self.frames)
            simulate(
                self.task,
                sites=[self.frames[name] for name in names],
                site_names=names,
                config={**self.settings, "run-dir": str(directory), **more},
            )
        return found


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block after so many seconds, so that a hang is a failure."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
