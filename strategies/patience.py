"""Calls of the runtime that must not wait for ever.

Flower's own client of the SuperLink tries again without end when nobody answers. A ServerApp whose
SuperLink hangs, or cannot be reached, would wait in such a call, and no time limit would hold.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")

_SLICE = 0.5
"""Seconds after which a wait looks up. Flower stops a ServerApp by a signal that it raises in a
thread; Python runs its handler in the main thread, and a thread that waits for a lock does not hear
of it."""


class SilentRuntime(RuntimeError):
    """The runtime has not answered in time."""


def answered_within(seconds: float | None, call: Callable[[], Result]) -> Result:
    """Return what a call returns, or raise what it raises; but do not wait longer than allowed.

    Parameters
    ----------
    seconds : float or None
        Most that is waited; None: however long the call takes, in the caller's thread.
    call : callable
        Without arguments. Where it is not over in time it goes on in a thread that nobody waits
        for, and what comes of it is dropped.

    Raises
    ------
    SilentRuntime
        If it is not over in time.
    """
    if seconds is None:
        return call()
    ended: SimpleQueue[tuple[bool, Result | BaseException]] = SimpleQueue()

    def run() -> None:
        try:
            ended.put((True, call()))
        except BaseException as error:  # raised again below, where somebody hears it
            ended.put((False, error))

    threading.Thread(target=run, name="runtime-call", daemon=True).start()
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        try:
            returned, what = ended.get(timeout=max(0.0, min(left, _SLICE)))
            break
        except Empty:
            if left <= 0:
                raise SilentRuntime(f"the SuperLink has not answered for {seconds:g} s") from None
    if not returned:
        raise what  # type: ignore[misc]  # an exception, as `run` has put it
    return what  # type: ignore[return-value]  # the result
