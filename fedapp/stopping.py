"""A run that is stopped from outside still says so in its folder.

SIGTERM ends a Python process without an exception; here it becomes one. Flower's own processes
have handlers for it, and for `flwr stop`: they run exit handlers and then leave, in a simulation
without waiting for the thread of the ServerApp. An exit handler writes the end of the run there.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


@contextmanager
def terminated_by_exception() -> Iterator[None]:
    """Let SIGTERM raise SystemExit while the block runs; then restore what was before.

    A handler that somebody else has set is left alone, and so are threads other than the main
    one, in which Python lets nobody set one.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def told_when_flower_leaves(write: Callable[[], None]) -> Iterator[None]:
    """Call `write` if Flower ends this process, by a signal or `flwr stop`, in the block."""
    # Imported here, so that reading a run folder needs no Flower.
    from flwr.supercore.exit import add_exit_handler

    is_over = threading.Event()

    def write_unless_over() -> None:
        if not is_over.is_set():
            write()

    add_exit_handler(write_unless_over)
    try:
        yield
    finally:
        is_over.set()


def is_gone(process: object) -> bool:
    """Return whether no process of this machine has the id; False where that cannot be told.

    One that has ended, and that its parent has not asked for yet (as a SuperLink does of runs that
    were killed), has the id still, and is gone.
    """
    if os.name != "posix" or type(process) is not int or process <= 0:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return _is_zombie(process)


def _is_zombie(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:  # no Linux
        return False
    # The name before the state is in parentheses and may hold any character.
    return stat.rpartition(b")")[2].split()[:1] == [b"Z"]
