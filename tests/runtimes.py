"""Real Flower processes for tests: each with its own home and port, ended by process id."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(sys.executable).parent
START_LIMIT = 60.0
RUN_LIMIT = 240.0


@dataclass(frozen=True)
class SuperLink:
    """A SuperLink that runs, and the environment in which commands reach it."""

    port: int
    environment: dict[str, str]


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def checkout(folder: Path) -> Path:
    """Copy the app as a checkout of its own."""
    folder.mkdir(parents=True)
    for package in ("fedapp", "strategies", "tasks"):
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    return folder


@contextmanager
def superlink(home: Path, *, cwd: Path, simulation: bool) -> Iterator[SuperLink]:
    """Run a SuperLink, insecure and on the loopback address only."""
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "PATH": f"{SCRIPTS}{os.pathsep}{os.environ.get('PATH', '')}",
        # As for a user who has the checkout's folder only, and its packages not installed.
        "PYTHONPATH": "",
        "OMP_NUM_THREADS": "1",
    }
    command = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--simulation"] if simulation else []
    log = home / "superlink.log"
    with process(command, environment, cwd=cwd, log=log):
        wait_until_healthy(port, log)
        name = "local" if simulation else "deployed"
        address = f'address = "127.0.0.1:{port}"\ninsecure = true\n'
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{name}"\n\n[superlink.{name}]\n{address}'
        )
        yield SuperLink(port, environment)


@contextmanager
def supernode(
    link: SuperLink, log: Path, *, cwd: Path, **node_config: bool | int | float | str
) -> Iterator[None]:
    """Run a SuperNode with this node configuration."""
    words = " ".join(
        f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in node_config.items()
    )
    command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link.port}"]
    command += ["--node-config", words, "--port", str(free_port())]
    with process(command, link.environment, cwd=cwd, log=log):
        yield


@contextmanager
def process(
    command: list[str], environment: Mapping[str, str], *, cwd: Path, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process while the block runs; then end it, and what it started, by id."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            env=dict(environment),
            cwd=cwd,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as child,
    ):
        try:
            yield child
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)


def wait_until_healthy(port: int, log: Path) -> None:
    """Wait until the SuperLink answers."""
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(f"no SuperLink at port {port}:\n{log.read_text(errors='replace')[-2000:]}")


def call(
    command: list[str], environment: Mapping[str, str], *, cwd: Path, limit: float = RUN_LIMIT
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, output and errors together."""
    return subprocess.run(
        command,
        env=dict(environment),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
        check=False,
    )
