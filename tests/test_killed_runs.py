"""A ServerApp that is killed in the middle of a real run, and the run that goes on from it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedapp.resumption import CONTINUED
from fedapp.run_folder import RunFolder
from fedapp.simulation import simulate
from tests.runtimes import RUN_LIMIT, call, checkout, process, superlink

pytestmark = pytest.mark.slow

ROUNDS = 8
CONFIG = {
    "survival.rounds": ROUNDS,
    "survival.local-steps": 2,
    "survival.dp-mechanism": "none",
    "num-sites": 3,
    "report": False,
}


def run_folder_with_rounds(runs: Path, number: int) -> Path:
    """Wait until the one run has written so many rounds; return its folder."""
    deadline = time.monotonic() + RUN_LIMIT
    while time.monotonic() < deadline:
        for metrics in runs.glob("*/metrics.jsonl"):
            if metrics.read_bytes().count(b"\n") >= number:
                return metrics.parent
        time.sleep(0.05)
    raise TimeoutError("the run did not come that far")


def test_a_server_app_killed_in_mid_run_is_resumed_with_the_same_result(tmp_path: Path) -> None:
    app, runs = checkout(tmp_path / "app"), tmp_path / "runs"
    settings = [f"{key}={json.dumps(value)}" for key, value in CONFIG.items()]
    fedapp = [sys.executable, "-m", "fedapp.cli", "run", "survival"]
    with superlink(tmp_path / "flwr", cwd=app, simulation=True) as link:
        begun = [*fedapp, "--set", *settings, f"run-dir={runs}"]
        with process(begun, link.environment, cwd=app, log=tmp_path / "first.log"):
            first = run_folder_with_rounds(runs, 3)
            os.kill(json.loads((first / "status.json").read_text())["process"], signal.SIGKILL)
        deadline = time.monotonic() + 30
        while not RunFolder.open(first).read().abandoned and time.monotonic() < deadline:
            time.sleep(0.2)
        before = RunFolder.open(first).read()
        assert before.status["status"] == "running", "nothing wrote its end"
        assert before.abandoned
        resumed = call([*fedapp, "--resume", str(first)], link.environment, cwd=app)
    assert resumed.returncode == 0, resumed.stdout[-3000:]
    second = Path(json.loads((first / CONTINUED).read_text())["run-folder"])
    record = RunFolder.open(second).read()
    assert record.status["status"] == "ok"
    assert 1 <= record.summary["resumed-after-round"] < ROUNDS
    assert record.summary["exchanges"] == ROUNDS - record.summary["resumed-after-round"] + 4

    values = {**CONFIG, "run-dir": str(tmp_path / "whole")}
    whole = simulate("survival", config=values, seed=0)
    assert record.rounds == RunFolder.open(whole.run_folder).read().rounds
    assert record.summary["c-index"] == whole.summary["c-index"]
    with np.load(second / "model.npz") as ours, np.load(whole.run_folder / "model.npz") as theirs:
        assert ours.files == theirs.files
        for name in set(ours.files) - {"header"}:
            assert ours[name].tobytes() == theirs[name].tobytes(), name
