"""Long-running processes of a rehearsal: started, watched, and ended by their ids."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_STOP_SECONDS = 20.0
_TAIL_LINES = 12
# What a process needs of the caller's environment; everything else is the caller's own business.
_PASSED = ("LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH", "SYSTEMROOT", "TZ")
_PASSED_PREFIXES = ("FLWR_TELEMETRY", "FLWR_DISABLE", "OMP_", "UV_")


class ProcessFault(RuntimeError):
    """A process could not be started, ended by itself, or was not ready in time."""


@dataclass(frozen=True)
class Service:
    """A process that runs until it is ended.

    Attributes
    ----------
    name : str
        What messages call it.
    log : Path
        Its output and errors.
    process : Popen
        The process; its id is that of its process group.
    """

    name: str
    log: Path
    process: subprocess.Popen[bytes]

    def check(self) -> None:
        """Raise `ProcessFault`, with the last lines of the log, if the process has ended."""
        code = self.process.poll()
        if code is not None:
            raise ProcessFault(f"{self.name} ended by itself (exit code {code}); {self.tail()}")

    def tail(self) -> str:
        """Last lines of the log, in words of a message."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        last = "\n".join(line for line in lines if line.strip()).splitlines()[-_TAIL_LINES:]
        return f"the last lines of {self.log}:\n" + "\n".join(f"    {line}" for line in last)


def own_environment(folder: Path, **more: str) -> dict[str, str]:
    """Environment of a process that shares nothing with the caller but its programs.

    ``HOME`` is the process's own folder, Python paths are left out, and nothing secret that the
    caller's environment may hold is passed on.

    Parameters
    ----------
    folder : Path
        The process's folder.
    **more : str
        Further variables.
    """
    passed = {
        key: value
        for key, value in os.environ.items()
        if key in _PASSED or key.startswith(_PASSED_PREFIXES)
    }
    scripts = str(Path(sys.executable).parent)
    path = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
    return {**passed, "PATH": path, "HOME": str(folder), "PYTHONUNBUFFERED": "1", **more}


@contextmanager
def service(
    name: str, command: Sequence[str], *, environment: Mapping[str, str], cwd: Path, log: Path
) -> Iterator[Service]:
    """Run a process while the block runs, then end it and what it started.

    It gets a session of its own: Ctrl-C in a terminal reaches the caller only, who ends all
    processes in order.

    Raises
    ------
    ProcessFault
        If it cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        try:
            process = subprocess.Popen(
                list(command),
                env=dict(environment),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ProcessFault(f"{name}: {command[0]}: {error.strerror}") from None
    try:
        yield Service(name=name, log=log, process=process)
    finally:
        _end(process)


def wait_until(
    ready: Callable[[], bool],
    *,
    seconds: float,
    what: str,
    services: Sequence[Service] = (),
    step: float = 0.2,
) -> None:
    """Wait for something, but not for a process that has ended, and not for ever.

    Raises
    ------
    ProcessFault
        If one of `services` has ended, or `seconds` are over.
    """
    deadline = time.monotonic() + seconds
    while True:
        for one in services:
            one.check()
        if ready():
            return
        if time.monotonic() > deadline:
            tails = "".join(f"\n{one.name}: {one.tail()}" for one in services)
            raise ProcessFault(f"{what}: not within {seconds:g} seconds{tails}")
        time.sleep(step)


def check_port_free(port: int, *, what: str) -> None:
    """Refuse a port at which somebody listens on the loopback address.

    Raises
    ------
    ProcessFault
        If it is taken or cannot be had.
    """
    with socket.socket() as probe:
        # As the servers do: a port that was closed a minute ago is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ProcessFault(
                f"port {port}, for {what}: {error.strerror}; name another one (--port)"
            ) from None


def free_ports(count: int) -> list[int]:
    """Return different ports of the loopback address that are free now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process by SIGTERM, and what it leaves of its group by SIGKILL."""
    if process.returncode is not None:
        return  # its id may be another's by now; its children end without their parent
    # Popen.terminate would take a process that has ended by itself from the system, see below.
    os.kill(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    try:
        # Looked at, and not yet taken from the system: so long nobody else gets the group's id.
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
    finally:  # a second Ctrl-C, too, leaves nothing
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
