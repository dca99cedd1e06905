"""What the command ``fedapp`` starts: sets up the process, so that Ctrl-C ends imports quietly.

Importing takes a second or more, and an exception that a signal raises there comes out of
whichever module is just being imported, with its trace. Nothing is begun by then, so the process
just ends. Where Ctrl-C is ignored, as in the background of a script, it stays so.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType

STOPPED = 130
"""Exit code of a command that Ctrl-C has stopped, as of a shell: 128 and the signal's number."""


def main() -> int:
    """Import the command line, run it, and return its exit code."""
    # Also into a pipe or file lines go as they come, and before what standard error says of them.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from fedapp.cli import main as run

    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(STOPPED)


if __name__ == "__main__":
    sys.exit(main())
