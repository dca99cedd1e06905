"""The deployment runtime: a SuperLink and SuperNodes with their own files."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedapp.run_folder import RunFolder
from fedapp.simulation import read_result, simulate
from tasks.vertical_xgboost.model_part import ModelPart
from tests.runtimes import call, checkout, superlink, supernode
from tests.vertical_frames import cut, random_frame

pytestmark = pytest.mark.slow

CONFIG = {
    "survival.rounds": 2,
    "survival.local-steps": 2,
    "survival.dp-mechanism": "none",
    "report": False,
}


def rows(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, 60))
    time = rng.exponential(np.exp(-x)) + 0.01
    return pd.DataFrame({"time": time, "event": rng.integers(0, 2, 60), "x": x, "y": y})


def run(
    tmp_path: Path,
    sites: dict[str, tuple[str, str]],
    config: dict[str, object] | None = None,
    *,
    own_folder: str = "",
) -> tuple[Path, str]:
    """Deploy SuperNodes (label: site name, data path), run, and return the run folder.

    With `own_folder`, a key of the node configuration, each has a folder of its name there.
    """
    app = checkout(tmp_path / "app")
    with ExitStack() as stack:
        link = stack.enter_context(superlink(tmp_path / "flwr", cwd=app, simulation=False))
        for label, (name, path) in sites.items():
            log = tmp_path / f"{label}.log"
            node = {"site_name": name, "data_path": path}
            if own_folder:
                node[own_folder] = str(tmp_path / name)
            stack.enter_context(supernode(link, log, cwd=tmp_path, **node))
        every = {**(config or CONFIG), "run-dir": str(tmp_path / "runs"), "timeout": 120.0}
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in every.items())
        done = call(
            ["flwr", "run", ".", "deployed", "--stream", "--run-config", words],
            link.environment,
            cwd=app,
        )
    (folder,) = (tmp_path / "runs").iterdir()
    return folder, done.stdout


def test_two_sites_with_own_files_equal_the_in_process_run(tmp_path: Path) -> None:
    north, south = rows(1), rows(2)
    north.to_csv(tmp_path / "north.csv", index=False)
    south.to_parquet(tmp_path / "south.parquet", index=False)
    folder, output = run(
        tmp_path,
        {
            "north": ("north", str(tmp_path / "north.csv")),
            "south": ("south", str(tmp_path / "south.parquet")),
        },
    )
    deployed = read_result(folder)
    assert deployed.summary["status"] == "ok", output
    assert deployed.exchanges == 2 + 4
    here = simulate(
        "survival",
        sites=[north, south],
        site_names=["north", "south"],
        config={**CONFIG, "run-dir": str(tmp_path / "here")},
    )
    assert deployed.summary["c-index"] == here.summary["c-index"]
    with np.load(folder / "model.npz") as theirs, np.load(here.run_folder / "model.npz") as ours:
        arrays = [name for name in ours.files if name != "header"]
        assert all(theirs[name].tobytes() == ours[name].tobytes() for name in arrays)


def test_what_is_wrong_at_the_sites_is_named_before_training(tmp_path: Path) -> None:
    """Two nodes of one name, and one without its file."""
    rows(1).to_csv(tmp_path / "a.csv", index=False)
    folder, output = run(
        tmp_path,
        {
            "first": ("twin", str(tmp_path / "a.csv")),
            "second": ("twin", str(tmp_path / "a.csv")),
            "third": ("lonely", str(tmp_path / "missing.csv")),
        },
    )
    status = json.loads((folder / "status.json").read_text())
    assert status["status"] == "refused", output
    assert "twin: more than one node has this site name" in status["reason"]
    assert "lonely: no file at data-path" in status["reason"]
    assert not (folder / "model.npz").exists()


def test_roc_glm_of_three_sites_equals_the_in_process_run(tmp_path: Path) -> None:
    """Masked sums across processes: keys and masks live in the state that Flower keeps."""
    rng = np.random.default_rng(3)
    names = ["north", "south", "west"]
    frames = [
        pd.DataFrame({"label": np.tile([0, 0, 1], 20), "score": rng.uniform(size=60).round(3)})
        for _ in names
    ]
    for name, frame in zip(names, frames, strict=True):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    config: dict[str, object] = {
        "task": "roc-glm",
        "roc-glm.label": "label",
        "roc-glm.score": "score",
        "min-sites": 3,
        "report": False,
    }
    folder, output = run(
        tmp_path, {name: (name, str(tmp_path / f"{name}.csv")) for name in names}, config
    )
    deployed = read_result(folder)
    assert deployed.summary["status"] == "ok", output
    assert deployed.exchanges <= 5
    here = simulate(
        "roc-glm",
        sites=frames,
        site_names=names,
        config={
            **{key: value for key, value in config.items() if key != "task"},  # type: ignore[dict-item]
            "run-dir": str(tmp_path / "here"),
        },
    )
    for key in ("auc", "auc-variance", "gamma-1", "deviance", "brier"):
        assert deployed.summary[key] == here.summary[key], key


def test_vertical_xgboost_of_three_parties_equals_the_in_process_run(tmp_path: Path) -> None:
    """Each party keeps its part of the model where its node configuration says."""
    names = ["north", "south", "west"]
    frames = cut(random_frame(3, rows=90), parties=3, labels="even")
    for name, frame in zip(names, frames, strict=True):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    key = "vertical-xgboost"
    config: dict[str, object] = {"task": key, "min-sites": 3, "report": False}
    config |= {f"{key}.num-trees": 1, f"{key}.max-depth": 1, f"{key}.max-bin": 5}
    config |= {f"{key}.key-bits": 1024, f"{key}.allow-weak-key": True}
    folder, output = run(
        tmp_path,
        {name: (name, str(tmp_path / f"{name}.csv")) for name in names},
        config,
        own_folder="model-dir",
    )
    deployed = read_result(folder)
    assert deployed.summary["status"] == "ok", output
    assert deployed.exchanges == 4 + 2
    assert "central" not in deployed.summary  # nobody has all columns and labels
    assert not (folder / "parties").exists()
    here = simulate(
        key,
        sites=frames,
        site_names=names,
        config={
            **{name: value for name, value in config.items() if name != "task"},  # type: ignore[dict-item]
            "run-dir": str(tmp_path / "here"),
        },
    )
    assert deployed.summary["test-loss"] == here.summary["test-loss"]
    for name in names:
        (path,) = (tmp_path / name).rglob(f"{name}.json")
        ours, theirs = (
            ModelPart.load(part) for part in (here.run_folder / "parties" / f"{name}.json", path)
        )
        assert theirs.lookup.records == ours.lookup.records
        assert [tree.weights for tree in theirs.trees] == [tree.weights for tree in ours.trees]


def test_flwr_stop_is_told_in_the_run_folder(tmp_path: Path) -> None:
    """The ServerApp is then in the main thread of its process, unlike in a simulation."""
    app, runs = checkout(tmp_path / "app"), tmp_path / "runs"
    with ExitStack() as stack:
        link = stack.enter_context(superlink(tmp_path / "flwr", cwd=app, simulation=False))
        for number, name in enumerate(("north", "south")):
            path = tmp_path / f"{name}.csv"
            rows(number).to_csv(path, index=False)
            log = tmp_path / f"{name}.log"
            node = supernode(link, log, cwd=tmp_path, site_name=name, data_path=str(path))
            stack.enter_context(node)
        words = f'survival.rounds=100000 run-dir="{runs}"'
        started = call(
            ["flwr", "run", ".", "deployed", "--run-config", words], link.environment, cwd=app
        )
        (run_id,) = re.findall(r"started run (\d+)", started.stdout)
        wait_for(lambda: any('"exchange": 2' in p.read_text() for p in runs.glob("*/ledger.jsonl")))
        (folder,) = runs.iterdir()
        call(["flwr", "stop", run_id, "deployed"], link.environment, cwd=app)
        wait_for(lambda: '"running"' not in (folder / "status.json").read_text())
    record = RunFolder.open(folder).read()
    assert record.status["status"] == "failed"
    assert "stopped from outside after" in record.status["reason"]
    assert record.ledger


def wait_for(happened: Callable[[], bool], *, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it has not happened in time"
        time.sleep(0.2)
