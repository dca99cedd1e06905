"""Many nodes on one machine: SuperNodes of a deployment, and simulated ones."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedapp.run_config import Value
from fedapp.run_folder import RunFolder
from fedapp.simulation import SimulationResult, read_result, simulate
from fedapp.site_data import write_site_files
from tests.runtimes import call, checkout, superlink, supernode

pytestmark = pytest.mark.slow

LARGEST = 600.0
"""Seconds that each of these tests may take, with start and end of all processes."""

ROC_GLM: dict[str, Value] = {
    "task": "roc-glm",
    "roc-glm.label": "label",
    "roc-glm.score": "score",
    "report": False,
    "timeout": 240.0,
}
SAME = ("auc", "auc-variance", "ci-lower", "ci-upper", "gamma-1", "gamma-2", "deviance", "brier")


def scored(number: int) -> list[pd.DataFrame]:
    frames = []
    for seed in range(number):
        rng = np.random.default_rng(seed)
        label = np.arange(60) % 2
        score = 1 / (1 + np.exp(-rng.normal(label - 0.5)))
        frames.append(pd.DataFrame({"label": label, "score": score.round(6)}))
    return frames


def words(config: dict[str, Value]) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def the_one(runs: Path, said: str) -> SimulationResult:
    folders = list(runs.iterdir()) if runs.is_dir() else []
    assert len(folders) == 1, said
    assert RunFolder.open(folders[0]).read().status["status"] == "ok", said
    return read_result(folders[0])


def equals_in_process(
    result: SimulationResult, frames: list[pd.DataFrame], runs: Path
) -> SimulationResult:
    own = {key: value for key, value in ROC_GLM.items() if key != "task"}
    mine = simulate("roc-glm", sites=frames, config={**own, "run-dir": str(runs)})
    for key in SAME:
        assert result.summary[key] == mine.summary[key], key
    return mine


def test_eight_supernodes_equal_the_in_process_run_within_ten_minutes(tmp_path: Path) -> None:
    """A process a message for each of them, all on this machine."""
    began, frames, runs = time.monotonic(), scored(8), tmp_path / "runs"
    app = checkout(tmp_path / "app")
    with ExitStack() as stack:
        link = stack.enter_context(superlink(tmp_path / "flwr", cwd=app, simulation=False))
        for number, frame in enumerate(frames):
            path = tmp_path / f"site-{number}.csv"
            frame.to_csv(path, index=False)
            node = {"site_name": f"site-{number}", "data_path": str(path)}
            log = tmp_path / f"node-{number}.log"
            stack.enter_context(supernode(link, log, cwd=tmp_path, **node))
        config = {**ROC_GLM, "min-sites": len(frames), "run-dir": str(runs)}
        command = ["flwr", "run", ".", "deployed", "--stream", "--run-config", words(config)]
        said = call(command, link.environment, cwd=app, limit=LARGEST).stdout
        result = the_one(runs, said)
    assert result.exchanges <= 5
    mine = equals_in_process(result, frames, tmp_path / "here")
    # The in-process ledger is that of a deployment, but for the digits of the run's number.
    sizes = [sum(row["bytes"] for row in one.ledger if not row["sealed"]) for one in (result, mine)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)
    assert time.monotonic() - began < LARGEST


def test_a_hundred_simulated_nodes_equal_the_in_process_run(tmp_path: Path) -> None:
    began, frames, runs = time.monotonic(), scored(100), tmp_path / "runs"
    data = tmp_path / "sites"
    data.mkdir()
    write_site_files(frames, data)
    app = checkout(tmp_path / "app")
    config = {**ROC_GLM, "roc-glm.data": str(data), "run-dir": str(runs)}
    command = ["flwr", "run", ".", "local", "--stream", "--run-config", words(config)]
    command += ["--federation-config", f"num-supernodes={len(frames)}"]
    with superlink(tmp_path / "flwr", cwd=app, simulation=True) as link:
        said = call(command, link.environment, cwd=app, limit=LARGEST).stdout
    result = the_one(runs, said)
    assert len({row["receiver"] for row in result.ledger} - {"server"}) == 100
    assert result.exchanges == 2
    equals_in_process(result, frames, tmp_path / "here")
    assert time.monotonic() - began < LARGEST
