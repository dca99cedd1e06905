"""What every test session needs: a Flower home of its own, and no telemetry."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator

import pytest

# Set before anything imports flwr, which reads some of these at import.
_HOME = tempfile.TemporaryDirectory(prefix="fedapp-test-flwr-")
os.environ["FLWR_HOME"] = _HOME.name
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
with socket.socket() as _probe:
    _probe.bind(("127.0.0.1", 0))
    os.environ["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"] = str(_probe.getsockname()[1])

# A shell's background jobs ignore Ctrl-C, and so would what they start; tests send it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _log_to_the_current_stderr() -> None:
    """Flower's handler keeps the stream of its import, which pytest has replaced since."""
    for handler in logging.getLogger("flwr").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.stream = sys.stderr  # setStream would flush the old one, which is closed


@pytest.fixture(autouse=True)
def _log_level_kept() -> Iterator[None]:
    """Benchmarks and others quieten Flower's log; the tests after them read it."""
    logger = logging.getLogger("flwr")
    level = logger.level
    yield
    logger.setLevel(level)
