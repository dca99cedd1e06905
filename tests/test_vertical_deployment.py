"""What a vertical model goes through, on the deployment runtime: as in process, to the last bit.

One federation serves all. A training is stopped, resumed and gone on from, and the model is used;
beside it, other objectives are trained. Every step needs the one before, so they are one test.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost

from fedapp.checkpoint import CHECKPOINT
from fedapp.deploy.federation_folder import SITES
from fedapp.deploy.rehearsal import RUNS, Federation
from fedapp.resumption import CONTINUED
from fedapp.run_config import Value
from fedapp.run_folder import RunFolder
from fedapp.run_record import RunRecord
from fedapp.simulation import SimulationResult, simulate
from fedapp.vertical_export import exported_model
from tasks.vertical_xgboost.model_part import ModelPart, part_path
from tasks.vertical_xgboost.part_files import run_dir
from tests import hostile_server
from tests.deployed_sites import NAME, deployed_sites, fedapp
from tests.runtimes import checkout
from tests.vertical_frames import cut, random_frame

pytestmark = pytest.mark.slow

TASK = "vertical-xgboost"
NAMES = ("north", "south", "west")
RUN_LIMIT = 600.0
EVERY: dict[str, Value] = {
    "report": False,
    "min-sites": 3,
    "timeout": 120.0,
    f"{TASK}.num-trees": 1,
    f"{TASK}.max-depth": 1,
    f"{TASK}.max-bin": 4,
    f"{TASK}.eta": 1.0,  # so that later trees split on other columns
    f"{TASK}.key-bits": 1024,
    f"{TASK}.allow-weak-key": True,
}
CLASSES: dict[str, Value] = {
    f"{TASK}.objective": "multi:softprob",
    f"{TASK}.classes": "0,1,2",
    f"{TASK}.label": "class",
}
COUNTS: dict[str, Value] = {
    f"{TASK}.objective": "count:poisson",
    f"{TASK}.label": "count",
    f"{TASK}.weight": "w",
}


def table() -> list[pd.DataFrame]:
    """Of each party: some columns, and of the rows whose labels it owns labels for all objectives.

    What is no label of a run is a column like others there.
    """
    frames = cut(random_frame(3, rows=90), parties=len(NAMES), labels="even", interleaved=True)
    random = np.random.default_rng(5)
    for frame in frames:
        own = frame["label"].notna()
        drawn = {
            "class": random.integers(0, 3, len(frame)) * 1.0,
            "count": random.poisson(1.5 + frame["label"].fillna(0.0)) * 1.0,
            "w": random.integers(1, 4, len(frame)) / 2,
        }
        for name, values in drawn.items():
            frame[name] = np.where(own, values, np.nan)
    return frames


FRAMES = table()


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("vertical") / "federation"
    limits = {name: {"export-consent": True} for name in NAMES}
    rows = dict(zip(NAMES, FRAMES, strict=True))
    with deployed_sites(folder, rows, limits=limits) as running:
        yield running
        assert running.dead() == []


def deployed(federation: Federation, values: Mapping[str, Value]) -> RunRecord:
    folder = federation.run({"task": TASK, **EVERY, **values}, limit=RUN_LIMIT)
    record = RunFolder.open(folder).read()
    assert record.status["status"] == "ok", record.status
    return record


def here(directory: Path, values: Mapping[str, Value]) -> SimulationResult:
    """The same in this process, with the consent that node configurations give there."""
    config = {**EVERY, f"{TASK}.export-consent": True, **values, "run-dir": str(directory)}
    result = simulate(TASK, sites=FRAMES, site_names=list(NAMES), config=config)
    assert result.summary["status"] == "ok", result.summary
    return result


def models(federation: Federation, name: str, run: str) -> Path:
    """Where a site keeps its part of a model."""
    return run_dir(str(federation.folder / SITES / name / "models"), run)


def assert_same_model(federation: Federation, found: RunRecord, mine: SimulationResult) -> None:
    """Trees, thresholds, leaves, covers and losses to the last bit; no part at the server."""
    for key in ("train-loss", "test-loss", "trees", "trees-kept", "base-score", "n-evaluation"):
        assert found.summary[key] == mine.summary[key], key
    losses = [
        [(line["tree"], line["train-loss"], line["test-loss"]) for line in record.rounds]
        for record in (found, RunFolder.open(mine.run_folder).read())
    ]
    assert losses[0] == losses[1]
    assert "central" not in found.summary, "nobody has all columns and labels"
    assert not (found.path / "parties").exists()
    for name in NAMES:
        theirs = ModelPart.load(part_path(models(federation, name, found.summary["model"]), name))
        ours = ModelPart.load(part_path(mine.run_folder / "parties", name))
        assert theirs.lookup.records == ours.lookup.records
        assert theirs.base_margins == ours.base_margins
        grown = [
            [(dict(tree.splits), dict(tree.weights), dict(tree.covers)) for tree in part.trees]
            for part in (theirs, ours)
        ]
        assert grown[0] == grown[1]


@contextmanager
def at_the_same_time(work: Any, *arguments: Any) -> Iterator[None]:
    """Do something else in a thread; what fails there fails here at the end."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work, *arguments)
        yield
        done.result(timeout=RUN_LIMIT)


def test_other_objectives_and_a_model_that_is_stopped_resumed_gone_on_from_and_used(
    federation: Federation, tmp_path: Path
) -> None:
    with at_the_same_time(train_other_objectives, federation, tmp_path / "others"):
        trees: dict[str, Value] = {f"{TASK}.num-trees": 2}
        stopped = stop_after_a_tree(federation, trees)
        first = resume(federation, stopped)
        whole = here(tmp_path / "whole", trees)
        assert first.summary["resumed-after-round"] == 1
        assert first.summary["exchanges"] == 4 + 2
        assert_same_model(federation, first, whole)

        warm = deployed(federation, {f"{TASK}.warm-start": first.summary["model"]})
        mine = here(tmp_path / "warm", {f"{TASK}.warm-start": str(whole.run_folder)})
        assert warm.summary["trees-before"] == 2
        assert_same_model(federation, warm, mine)
    use(federation, warm, mine, tmp_path / "use")


def train_other_objectives(federation: Federation, directory: Path) -> None:
    # In run folders of their own: the test looks for the checkpoint of another training.
    runs: dict[str, Value] = {"run-dir": str(federation.folder / RUNS / "others")}
    for values in (CLASSES, COUNTS):
        found = deployed(federation, {**values, **runs})
        assert found.summary["exchanges"] == 4 + 2
        assert_same_model(federation, found, here(directory, values))


def words_of(values: Mapping[str, Value]) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def stop_after_a_tree(federation: Federation, values: Mapping[str, Value]) -> Path:
    """Begin a training by the command, and stop it by Ctrl-C once a tree is there."""
    runs = federation.folder / RUNS
    words = words_of({**EVERY, **values, "run-dir": str(runs)})
    process = fedapp(federation, "run", TASK, "--superlink", NAME, "--set", *words)
    ended = threading.Timer(RUN_LIMIT, process.kill)
    ended.start()
    try:
        while not (found := list(runs.glob(f"*/{CHECKPOINT}"))):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    finally:
        ended.cancel()
        process.kill()
    assert "has been stopped (flwr stop" in said
    folder = found[0].parent
    status = RunFolder.open(folder).read().status
    assert status["status"] == "failed", status
    assert "stopped from outside after" in status["reason"]
    return folder


def resume(federation: Federation, stopped: Path) -> RunRecord:
    process = fedapp(federation, "run", TASK, "--superlink", NAME, "--resume", str(stopped))
    try:
        said, _ = process.communicate(timeout=RUN_LIMIT)
    finally:
        process.kill()
    assert process.returncode == 0, said
    folder = Path(json.loads((stopped / CONTINUED).read_text())["run-folder"])
    return RunFolder.open(folder).read()


def use(
    federation: Federation, trained: RunRecord, mine: SimulationResult, directory: Path
) -> None:
    """Predict, sum importance and export, two at a time."""

    def deploy(mode: str) -> RunRecord:
        model = str(trained.summary["model"])
        return deployed(federation, {f"{TASK}.mode": mode, f"{TASK}.model": model})

    with ThreadPoolExecutor(2) as pool:
        predicted, summed, exported = pool.map(deploy, ("predict", "importance", "export"))

    of_mine: dict[str, Value] = {f"{TASK}.model": str(mine.run_folder)}
    ours = here(directory, {f"{TASK}.mode": "predict", **of_mine})
    for name in NAMES:
        file = f"{name}.predictions.csv"
        (theirs,) = (federation.folder / SITES / name / "models").rglob(file)
        assert theirs.read_text() == (ours.run_folder / "parties" / file).read_text()
    assert not list(predicted.path.rglob("*predictions*")), "the server has none"

    ours = here(directory, {f"{TASK}.mode": "importance", **of_mine})
    assert summed.summary["parties-with-names"] == list(NAMES)
    assert summed.summary["importance"] == ours.summary["importance"]
    assert len(summed.summary["importance"]) > 1

    out = directory / "model.json"
    process = fedapp(federation, "export-model", str(exported.path), "--out", str(out))
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    document, _ = exported_model(mine.run_folder)
    assert json.loads(out.read_text()) == document
    booster = xgboost.Booster()
    booster.load_model(out)
    assert booster.num_boosted_rounds() == 3


def test_a_server_that_alters_repeats_or_swaps_is_refused(
    federation: Federation, tmp_path: Path
) -> None:
    """What sites seal for one another, a request, and a site's public keys."""
    app = hostile_server.checkout_of(checkout(tmp_path / "app"))

    def refused(seed: int) -> dict[str, Any]:
        runs = tmp_path / f"runs-{seed}"
        words = words_of({**EVERY, "seed": seed, "run-dir": str(runs)})
        command = ("run", TASK, "--superlink", NAME, "--set", *words)
        process = fedapp(federation, *command, app=app)
        try:
            said, _ = process.communicate(timeout=RUN_LIMIT)
        finally:
            process.kill()
        assert process.returncode == 3, said
        (folder,) = runs.iterdir()
        assert not (folder / "trees.json").exists()
        return RunFolder.open(folder).read().status

    kinds = (hostile_server.ALTERED, hostile_server.REPLAYED, hostile_server.SWAPPED)
    with ThreadPoolExecutor(2) as pool:
        altered, replayed, swapped = (each["reason"] for each in pool.map(refused, kinds))
    for name in ("south", "west"):
        words = f"{name}: message of north for step vertical-labels: it was altered, or is not by"
        assert words in altered
    assert "north, south, west: step buckets: expected histograms-0-0" in replayed
    for name in ("north", "south"):
        assert f"{name}: west: its key has the fingerprint" in swapped
    assert ", pinned is " in swapped
