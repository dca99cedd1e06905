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


def start_of(process: int) -> str:
    """Return when a process of this machine began, as Linux tells it; ``""`` where none is told.

    Text to compare: the id of the system's own start, and ticks since then. Two processes that
    had one id after the other differ in it.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {_stat(process)[19].decode('ascii')}"
    except (OSError, ValueError, IndexError):
        return ""


def is_gone(process: object, *, started: object = "") -> bool:
    """Return whether a process of this machine has ended; False where that cannot be told.

    One that has ended, and that its parent has not asked for yet (as a SuperLink does of runs that
    were killed), has the id still, and is gone.

    Parameters
    ----------
    process : object
        Its id.
    started : object
        What `start_of` said of it, if it did: the id may be another's by now, as after the machine
        was started again.
    """
    if os.name != "posix" or type(process) is not int or process <= 0:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OverflowError:
        return False
    except PermissionError:
        pass  # another user's
    return _is_zombie(process) or (bool(started) and start_of(process) not in ("", started))


def _is_zombie(process: int) -> bool:
    try:
        return _stat(process)[:1] == [b"Z"]
    except OSError:  # no Linux
        return False


def _stat(process: int) -> list[bytes]:
    """Return what Linux says of a process, from its state on."""
    # The name before the state is in parentheses and may hold any character.
    return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
