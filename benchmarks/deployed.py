"""A deployed federation for benchmarks: SuperLink, SuperNodes, a bare app, and memory by process.

Everything runs on this machine, insecure and on the loopback address, with a Flower home and ports
of its own, and is ended by process id.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from tests.runtimes import SuperLink, call, checkout, superlink, supernode  # noqa: E402

CLIENT_APP = "flwr-clientapp"
SERVER_APP = "flwr-serverapp"
SUPERNODE = "flower-supernode"
SUPERLINK = "flower-superlink"
KINDS = (
    *(CLIENT_APP, SERVER_APP, SUPERNODE, SUPERLINK),
    "flower-superexec",  # starts the process of a message, or of the ServerApp
    "flwr-simulation",  # ServerApp and Flower's simulation runtime
    "ray::ClientAppActor",
    "raylet",
    "gcs_server",
)
"""Words of the command lines of Flower's and Ray's processes."""

OTHERS = "others"
RUN_LIMIT = 1800.0
_TICKS = os.sysconf("SC_CLK_TCK")

BARE_PROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "bare"
description = "Nothing but exchanges"
version = "1.0.0"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.42.0"]

[tool.uv]
exclude-dependencies = ["flwr"]

[tool.flwr.app]
publisher = "benchmark"
fab-format-version = 1
flwr-version-target = "1.42.0"
fab-include = ["bare/*.py", "LICENSE"]

[tool.flwr.app.components]
serverapp = "bare.server_app:app"
clientapp = "bare.client_app:app"

[tool.flwr.app.config]
exchanges = 4
nodes = 1
own-polling = false
out = ""
"""

BARE_SERVER = '''\
"""Send nothing to every node and wait for the replies, so many times."""

import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


def polled(grid, messages):
    """Replies fetched as soon as they are there, with pauses that grow from 10 ms to 1 s."""
    waiting, replies, pause = set(grid.push_messages(messages)), [], 0.01
    while waiting:
        arrived = list(grid.pull_messages(list(waiting)))
        waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
        replies += arrived
        if waiting:
            pause = 0.01 if arrived else min(1.0, 1.3 * pause)
            time.sleep(pause)
    return replies


@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < context.run_config["nodes"]:
        time.sleep(0.05)
    seconds = []
    for _ in range(context.run_config["exchanges"]):
        content = RecordDict({"please": ConfigRecord({"answer": True})})
        messages = [Message(content, node, "query") for node in nodes]
        began = time.monotonic()
        if context.run_config["own-polling"]:
            replies = polled(grid, messages)
        else:
            replies = list(grid.send_and_receive(messages))
        seconds.append(time.monotonic() - began)
        assert len(replies) == len(nodes) and not any(reply.has_error() for reply in replies)
    Path(context.run_config["out"]).write_text(json.dumps(seconds))
'''

BARE_CLIENT = '''\
"""Answer at once."""

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def query(message, context):
    return Message(RecordDict({"answer": ConfigRecord({"is": 1})}), reply_to=message)
'''


def write_bare_app(folder: Path) -> Path:
    """Write a Flower app that does nothing but exchange."""
    package = folder / "bare"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(BARE_PROJECT)
    (folder / "LICENSE").write_text("None needed: it is made for a measurement and thrown away.\n")
    for name, source in (
        ("__init__", ""),
        ("server_app", BARE_SERVER),
        ("client_app", BARE_CLIENT),
    ):
        (package / f"{name}.py").write_text(source)
    return folder


@dataclass
class Federation:
    """A deployed federation that runs.

    Attributes
    ----------
    link : SuperLink
    base : Path
        Scratch folder, with the checkout of the app and the bare app.
    num_sites : int
    """

    link: SuperLink
    base: Path
    num_sites: int
    _runs: int = 0

    def run_bare(self, *, exchanges: int, own_polling: bool) -> list[float]:
        """Seconds of so many bare exchanges with all nodes."""
        self._runs += 1
        out = self.base / f"bare-{self._runs}.json"
        words = (
            f"exchanges={exchanges} nodes={self.num_sites} "
            f'own-polling={str(own_polling).lower()} out="{out}"'
        )
        done = self._flwr_run("bare", words)
        if not out.is_file():
            raise RuntimeError(f"the bare app left no result:\n{done[-3000:]}")
        return [float(seconds) for seconds in json.loads(out.read_text())]

    def run_task(self, config: Mapping[str, object]) -> Path:
        """Run folder of a run of ours."""
        self._runs += 1
        runs = self.base / f"runs-{self._runs}"
        values = {"report": False, "timeout": 300.0, **config, "run-dir": str(runs)}
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
        done = self._flwr_run("app", words)
        folders = list(runs.iterdir()) if runs.is_dir() else []
        if len(folders) != 1:
            raise RuntimeError(f"no run folder:\n{done[-3000:]}")
        return folders[0]

    def _flwr_run(self, app: str, words: str) -> str:
        command = ["flwr", "run", str(self.base / app), "deployed", "--stream"]
        return call(
            [*command, "--run-config", words],
            self.link.environment,
            cwd=self.base / app,
            limit=RUN_LIMIT,
        ).stdout


@contextmanager
def federation(base: Path, node_configs: Sequence[Mapping[str, str]]) -> Iterator[Federation]:
    """Run a SuperLink, and a SuperNode for every node configuration."""
    app = checkout(base / "app")
    write_bare_app(base / "bare")
    with ExitStack() as stack:
        link = stack.enter_context(superlink(base / "flwr", cwd=app, simulation=False))
        for number, node_config in enumerate(node_configs):
            log = base / f"node-{number}.log"
            underscored = {key.replace("-", "_"): value for key, value in node_config.items()}
            stack.enter_context(supernode(link, log, cwd=base, **underscored))
        yield Federation(link, base, len(node_configs))


def simulated_run(base: Path, config: Mapping[str, object], *, nodes: int) -> Path:
    """Run folder of a run of ours by `flwr run` with so many simulated SuperNodes."""
    app, runs = checkout(base / "app"), base / "runs"
    values = {"report": False, "timeout": 300.0, **config, "run-dir": str(runs)}
    words = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
    command = ["flwr", "run", ".", "local", "--stream", "--run-config", words]
    command += ["--federation-config", f"num-supernodes={nodes}"]
    with superlink(base / "flwr", cwd=app, simulation=True) as link:
        done = call(command, link.environment, cwd=app, limit=RUN_LIMIT).stdout
    folders = list(runs.iterdir()) if runs.is_dir() else []
    if len(folders) != 1:
        raise RuntimeError(f"no run folder:\n{done[-3000:]}")
    return folders[0]


@dataclass
class Watch:
    """Peak resident memory and processor time of what this process has started, by kind.

    They are read while it is entered, every so often: what a process did between the last look and
    its end is not in them.

    Attributes
    ----------
    kinds : tuple of str
        What a process is recognized by: a word of its command line; others are ``"others"``.
    peaks : dict of int to (str, int)
        By process id: its kind, and the most bytes it ever had resident (``VmHWM``).
    seconds : dict of int to (str, float)
        By process id: its kind, and its processor seconds.
    total : int
        Most bytes that all of them, of any kind, had resident at once; pages that processes share
        count once a process.
    """

    kinds: tuple[str, ...] = KINDS
    peaks: dict[int, tuple[str, int]] = field(default_factory=dict)
    seconds: dict[int, tuple[str, float]] = field(default_factory=dict)
    total: int = 0
    pause: float = 0.1

    def __enter__(self) -> Watch:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def largest(self, kind: str) -> int:
        """Most bytes that a process of a kind had; 0 if none was seen."""
        return max((size for found, size in self.peaks.values() if found == kind), default=0)

    def by_kind(self) -> dict[str, dict[str, float]]:
        """Number of processes, most bytes of one, and seconds of all together, by kind seen."""
        found = {}
        for kind in (*self.kinds, OTHERS):
            seconds = [each for other, each in self.seconds.values() if other == kind]
            if seconds:
                found[kind] = {
                    "processes": len(seconds),
                    "peak-bytes": self.largest(kind),
                    "cpu-seconds": round(sum(seconds), 2),
                }
        return found

    def _watch(self) -> None:
        while not self._stop.is_set():
            resident = sum(self._look_at(pid) for pid in descendants(os.getpid()))
            self.total = max(self.total, resident)
            self._stop.wait(self.pause)

    def _look_at(self, pid: int) -> int:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
            status = Path(f"/proc/{pid}/status").read_text()
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:  # it has ended
            return 0
        kind = next((kind for kind in self.kinds if kind in words), OTHERS)
        if peak := re.search(r"VmHWM:\s+(\d+) kB", status):  # not of one that waits to be reaped
            self.peaks[pid] = (kind, 1024 * int(peak[1]))
            user, system = map(int, stat.rpartition(")")[2].split()[11:13])
            self.seconds[pid] = (kind, (user + system) / _TICKS)
        now = re.search(r"VmRSS:\s+(\d+) kB", status)
        return 1024 * int(now[1]) if now else 0


def descendants(pid: int) -> list[int]:
    """Ids of the processes that a process has started, and of those that these have."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                stat = (path / "stat").read_text()
            except OSError:
                continue
            parent = int(stat.rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(path.name))
    found = list(parents.get(pid, []))
    for child in found:
        found += parents.get(child, [])
    return found
