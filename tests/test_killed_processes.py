"""SuperNodes and the SuperLink of a real federation, killed, started again and started late.

One federation of three sites serves all tests. An exchange takes as long as a ClientApp takes to
start, whatever it carries: a few seconds, or tens of them where others use the processors. Where
it takes half a minute, Flower gives the ClientApp up and starts another one: nothing can pass.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedapp.checkpoint import CHECKPOINT
from fedapp.deploy.federation_folder import SERVER, SITES
from fedapp.deploy.processes import Service, free_ports, own_environment, service
from fedapp.deploy.rehearsal import LOGS, RUNS, Federation, is_healthy, online_nodes
from fedapp.flower_run import FlowerRunError
from fedapp.resumption import CONTINUED
from fedapp.run_config import Value
from fedapp.run_folder import RunFolder
from fedapp.run_record import RunRecord
from fedapp.simulation import simulate
from fedapp.vertical_skeleton import SKELETON
from tests.deployed_sites import deployed_sites

pytestmark = pytest.mark.slow

NAMES = ("north", "south", "west")
LATE = 120.0
"""Seconds after which a reply is late: before that Flower misses the heartbeats of a killed node,
and after that sites of a busy machine have answered."""
NO_HEARTBEAT = "Node Unavailable"
"""Flower's word for a node without heartbeats for a minute."""
STOPPED = 60.0
"""Seconds from the end of the SuperLink to that of a run: half a minute, twice where it is busy."""
BUSY = 600.0
"""Seconds that a busy machine may take for a few exchanges and starts of processes."""

SURVIVAL: dict[str, Value] = {
    "task": "survival",
    "survival.features": "a,b",
    "survival.rounds": 3,
    "survival.local-steps": 2,
    "survival.dp-mechanism": "none",
}
ROC_GLM: dict[str, Value] = {"task": "roc-glm", "roc-glm.label": "truth", "roc-glm.mode": "fisher"}
VERTICAL: dict[str, Value] = {
    "task": "vertical-xgboost",
    "vertical-xgboost.encryption": "none",
    "vertical-xgboost.num-trees": 1,
    "vertical-xgboost.max-depth": 1,
}

NUMBERS = {
    "survival": ("c-index", "ibs"),
    "roc-glm": ("auc", "auc-variance", "gamma-1", "gamma-2", "deviance", "iterations"),
    "vertical-xgboost": ("train-loss", "test-loss", "trees-kept"),
}
"""Of the summary, equal to the last bit however often a run was interrupted."""


def frame_of(site: int) -> pd.DataFrame:
    """Columns for all tasks: of the same rows, each site has the labels of a third."""
    rng = np.random.default_rng(site)
    a, b = rng.normal(size=(2, 60))
    label = np.where(np.arange(60) % 3 == site, (a > 0).astype(float), np.nan)
    return pd.DataFrame(
        {
            "id": np.arange(60),
            "label": label,
            "time": rng.exponential(np.exp(-a)) + 0.01,
            "event": rng.integers(0, 2, 60),
            "truth": np.tile([0, 0, 1], 20),
            "score": rng.uniform(size=60).round(3),
            "a": a,
            "b": b,
        }
    )


FRAMES = [frame_of(site) for site in range(3)]


class Processes:
    """The federation, and what was started again in it."""

    def __init__(self, federation: Federation, stack: ExitStack) -> None:
        self.federation = federation
        self.west = federation.nodes["west"]
        self.link = federation.link
        self._stack = stack

    def start_west(self) -> None:
        """Start the SuperNode of west again, by its script."""
        (port,) = free_ports(1)
        self.west = self._start(SITES + "/west", "supernode-west", SUPERNODE_PORT=str(port))

    def start_link(self) -> None:
        """Start the SuperLink again, with its database, and wait for the SuperNodes."""
        before = self._heartbeats()
        self.link = self._start(SERVER, "superlink", SUPERLINK_LISTEN="127.0.0.1")
        authority = self.federation.folder / SERVER / "ca.crt"
        wait_for(lambda: is_healthy(self.federation.plan, authority), "the SuperLink")
        # The database has nodes as online for a minute after their last heartbeat, while they
        # still wait to try again. They are not activated anew: their heartbeats go on.
        wait_for(
            lambda: all(until > before[node] for node, until in self._heartbeats().items()),
            "heartbeats of all SuperNodes",
        )

    def complete(self) -> None:
        """Start again what a test has killed."""
        if self.link.process.poll() is not None:
            self.start_link()
        if self.west.process.poll() is not None:
            wait_for(lambda: self.online() < len(NAMES), "an end of heartbeats")
            self.start_west()
        wait_for(lambda: self.online() == len(NAMES), "all SuperNodes")

    def online(self) -> int:
        """How many SuperNodes the SuperLink has online."""
        return online_nodes(self.federation.plan, self.federation.environment)

    def _heartbeats(self) -> dict[int, float]:
        """Of each SuperNode, until when its last heartbeat makes it count as online."""
        database = self.federation.folder / SERVER / "superlink.sqlite"
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as read:
            rows = read.execute("SELECT node_id, online_until FROM node").fetchall()
        assert len(rows) == len(NAMES)
        return dict(rows)

    def _start(self, folder: str, log: str, **variables: str) -> Service:
        home = self.federation.folder / folder
        return self._stack.enter_context(
            service(
                log,
                ["/bin/sh", str(home / "start.sh")],
                environment=own_environment(home, **variables),
                cwd=home,
                log=self.federation.folder / LOGS / f"{log}-again.log",
            )
        )


class Run:
    """A run of the federation, in a thread; its folder is there once its ServerApp works."""

    def __init__(self, federation: Federation, values: dict[str, Value]) -> None:
        self.runs = federation.folder / RUNS / f"{values['task']}-{time.monotonic_ns()}"
        settings = {"report": False, "run-dir": str(self.runs), "timeout": LATE, **values}

        def run() -> None:
            with suppress(FlowerRunError):  # where the SuperLink is killed; the folder tells
                federation.run(settings, limit=2 * BUSY)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    @property
    def folder(self) -> Path | None:
        """The run folder, once it is there."""
        return next((path.parent for path in self.runs.glob("*/status.json")), None)

    def has(self, name: str, text: str = "") -> bool:
        """Whether a file of the folder is there and has a text in it."""
        path = self.folder and self.folder / name
        return bool(path and path.is_file() and text in path.read_bytes().decode(errors="replace"))

    def end(self, what: str) -> RunRecord:
        """Wait for its end, and read what it left."""
        wait_for(lambda: self.has("status.json") and not self.has("status.json", "running"), what)
        self._thread.join(BUSY)
        assert not self._thread.is_alive(), f"flwr run of {what} goes on"
        assert self.folder is not None
        return RunFolder.open(self.folder).read()


def wait_for(happened: Callable[[], Any], what: str, *, seconds: float = BUSY) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.1)


def kill(process: Service) -> None:
    """As a machine that loses power: no word, and nothing of the group goes on."""
    os.killpg(process.process.pid, signal.SIGKILL)
    process.process.wait(timeout=30)


@pytest.fixture
def processes(started: Processes) -> Processes:
    started.complete()
    return started


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    folder = tmp_path_factory.mktemp("killed") / "federation"
    rows = dict(zip(NAMES, FRAMES, strict=True))
    with ExitStack() as stack, deployed_sites(folder, rows) as federation:
        yield Processes(federation, stack)


def test_a_late_site_is_waited_for_and_a_killed_one_ends_runs_that_need_all(
    processes: Processes,
) -> None:
    processes.west.process.terminate()
    wait_for(lambda: processes.online() == 2, "the end of west")
    every: dict[str, Value] = {"min-sites": 3}
    runs = [Run(processes.federation, {**task, **every}) for task in (ROC_GLM, VERTICAL)]
    wait_for(lambda: all(run.folder for run in runs), "run folders")
    time.sleep(2.0)
    assert not any(run.has("ledger.jsonl", "hello") for run in runs), "nobody is asked before"
    processes.start_west()
    wait_for(lambda: all(run.has("ledger.jsonl", "hello") for run in runs), "introductions")
    kill(processes.west)  # `complete` starts it again for the next test
    killed = time.monotonic()
    roc_glm, vertical = (run.end("a run without west") for run in runs)
    assert time.monotonic() - killed < 2 * LATE  # one exchange, and telling the others
    for record in (roc_glm, vertical):
        assert record.status["status"] == "failed"
        assert " west: " in record.status["reason"]
        assert NO_HEARTBEAT in record.status["reason"]
    assert "auc" not in roc_glm.summary
    told = {row["receiver"] for row in vertical.ledger if row["step"] == "stop"}
    assert {"north", "south"} <= told


def test_a_site_killed_in_mid_run_is_missed_and_can_be_started_again(processes: Processes) -> None:
    run = Run(processes.federation, {**SURVIVAL, "min-sites": 2})
    wait_for(lambda: run.has("metrics.jsonl", '"round": 0'), "the first round")
    kill(processes.west)
    # So long Flower takes the node for connected, and its key for in use.
    wait_for(lambda: processes.online() == 2, "an end of heartbeats")
    processes.start_west()
    record = run.end("survival")
    assert record.status["status"] == "ok", record.status
    assert [line["round"] for line in record.rounds] == [0, 1, 2, 3]
    assert record.summary["faults"]
    assert all(fault.startswith("west: ") for fault in record.summary["faults"])
    every = {row["exchange"] for row in record.ledger}
    answered = {
        site: {
            row["exchange"]
            for row in record.ledger
            if row["sender"] == site and "could not answer" not in row["reveals"]
        }
        for site in NAMES
    }
    assert answered["north"] == answered["south"] == every
    assert every - answered["west"], "west has missed nothing"
    assert max(every) in answered["west"], "west has not taken part again"
    wait_for(lambda: processes.online() == 3, "west again")


def test_runs_end_when_the_superlink_is_killed_and_go_on_when_it_is_back(
    processes: Processes, tmp_path: Path
) -> None:
    """A run of each task at the same time, in the middle of its rounds, iterations or trees."""
    every: dict[str, Value] = {"min-sites": 3, "timeout": BUSY}
    vertical: dict[str, Value] = {**VERTICAL, **every, "vertical-xgboost.num-trees": 3}
    tasks = [vertical, {**ROC_GLM, **every}, {**SURVIVAL, **every}]
    runs = [Run(processes.federation, vertical)]
    # A tree takes more exchanges than a round: who comes to its checkpoint sooner begins later.
    wait_for(lambda: runs[0].has("ledger.jsonl", '"labels"'), "a set-up")
    runs += [Run(processes.federation, values) for values in tasks[1:]]
    wait_for(lambda: all(run.has(CHECKPOINT) for run in runs), "checkpoints")
    assert all(run.has("status.json", "running") for run in runs)
    kill(processes.link)
    wait_for(
        lambda: not any(run.has("status.json", "running") for run in runs),
        "runs without SuperLink",
        seconds=STOPPED,
    )
    for run in runs:
        killed = run.end("a run without SuperLink")
        assert killed.status["status"] == "failed"
        assert "stopped from outside after" in killed.status["reason"]
        assert killed.ledger
        assert not {"auc", "ibs", "trees-kept"} & set(killed.summary), "it has no result"
    processes.start_link()
    wait_for(lambda: processes.online() == 3, "SuperNodes that are back")
    resumed = [
        Run(processes.federation, {**values, "resume": str(run.folder)})
        for values, run in zip(tasks, runs, strict=True)
    ]
    for values, run, again in zip(tasks, runs, resumed, strict=True):
        record = again.end("the resumed run")
        assert record.status["status"] == "ok", record.status
        assert record.summary["resumed-after-round"] >= (record.task != "survival")
        assert_equals_an_uninterrupted_run(record, values, tmp_path)
        assert run.folder is not None
        assert json.loads((run.folder / CONTINUED).read_text())


def assert_equals_an_uninterrupted_run(
    record: RunRecord, values: dict[str, Value], directory: Path
) -> None:
    """Numbers and model to the last bit, of a run in this process."""
    config = {key: value for key, value in values.items() if key != "task"}
    config["run-dir"] = str(directory)
    whole = simulate(record.task, sites=FRAMES, site_names=list(NAMES), config=config)
    for key in NUMBERS[record.task]:
        assert record.summary[key] == whole.summary[key], key
    if record.task == "vertical-xgboost":
        ours, theirs = (
            json.loads((folder / SKELETON).read_text())
            for folder in (record.path, whole.run_folder)
        )
        assert ours["trees"] == theirs["trees"]
        assert ours["trees"]
    elif record.task == "survival":
        with (
            np.load(record.path / "model.npz") as our_model,
            np.load(whole.run_folder / "model.npz") as their_model,
        ):
            arrays = set(their_model.files) - {"header"}
            assert arrays
            for name in arrays:
                assert our_model[name].tobytes() == their_model[name].tobytes(), name
