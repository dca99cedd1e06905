"""Measures a run of the PIVODL paper's experiments, and keeps what was measured.

Results are lines of JSON in one file, written as they come: who starts again goes on from there.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pivodl_plan import CLASSIFIED, Reference, Run, Work
from vertical_attack import FIGURES as GUESS_FIGURES
from vertical_attack import attack_run
from vertical_document import DATA_SETS, ID, DataSet, Setting, party_frames, privacy, train
from vertical_xgboost_central import quality

from fedapp.fingerprint import code_fingerprint
from fedapp.simulation import SimulationResult
from fedapp.vertical_against_xgboost import xgboost_margins
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.joined import JoinedTable, join
from tasks.vertical_xgboost.rows import read_table

RESULTS = "results.jsonl"
_SKELETON = "*/trees.json"  # written when the last tree is grown, before central fits are made
_LOOK_EVERY = 0.02


class Clock(threading.Thread):
    """Reads wall and CPU seconds when the training in a folder of runs has ended.

    What a simulation does afterwards (central fits, predictions of all rows) is no training.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.wall = self.cpu = 0.0
        self._folder, self._stop_looking = folder, threading.Event()
        self._began = time.perf_counter(), time.process_time()

    def run(self) -> None:
        """Look until the server has written its trees, or the run is over."""
        while not self._stop_looking.wait(_LOOK_EVERY):
            if any(self._folder.glob(_SKELETON)):
                break
        self.wall = time.perf_counter() - self._began[0]
        self.cpu = time.process_time() - self._began[1]

    @classmethod
    @contextmanager
    def around(cls, folder: Path) -> Iterator[Clock]:
        """Time the training that is done inside."""
        clock = cls(folder)
        clock.start()
        try:
            yield clock
        finally:
            clock._stop_looking.set()
            clock.join()


def measure(work: Work, folder: Path, *, guess: bool = False) -> dict[str, Any]:
    """Measure one piece of work on the data in a folder; let the parties guess labels, too."""
    if isinstance(work, Reference):
        return _measure_reference(work, folder)
    return _measure_run(work, folder, guess=guess)


@lru_cache(maxsize=4)
def _read(data: str, folder: Path, rows: int) -> pd.DataFrame:
    return DATA_SETS[data].read(folder, rows=rows or None)


@lru_cache(maxsize=4)
def _deal(data: str, folder: Path, rows: int, seed: int, clients: int) -> list[pd.DataFrame]:
    frame = _read(data, folder, rows)
    return party_frames(frame, DATA_SETS[data], seed=seed, parties=clients)


def _measure_run(run: Run, folder: Path, *, guess: bool) -> dict[str, Any]:
    _warm_up()
    data = DATA_SETS[run.data]
    frames = _deal(run.data, folder, run.rows, run.seed, run.clients)
    options = {
        **privacy(data, run.epsilon, sensitivity=run.sensitivity),
        "encryption": run.encryption,
        "shuffle": True,
        "allow-two-parties": run.clients == 2,
    }
    if run.key_bits:
        options |= {"key-bits": run.key_bits, "allow-weak-key": run.key_bits < 2048}
    setting = Setting(run.depth, run.trees, options, seeded_noise=run.epsilon > 0)
    with tempfile.TemporaryDirectory() as run_dir:
        with Clock.around(Path(run_dir)) as clock:
            result = train(frames, data, setting, seed=run.seed, run_dir=run_dir)
        found = _found(run, data, result)
        if guess:
            attacks = attack_run(result, frames, data, seed=run.seed)["attacks"]
            found["attacks"] = {
                name: {figure: by_party["mean"][figure] for figure in GUESS_FIGURES}
                for name, by_party in attacks.items()
            }
    return {**found, "wall-seconds": clock.wall, "cpu-seconds": clock.cpu}


def _found(run: Run, data: DataSet, result: SimulationResult) -> dict[str, Any]:
    summary = result.summary
    metric = metric_of(run.data)
    central = summary.get("central", {})
    return {
        "quality": float(summary.get(f"exact-leaves-test-{metric}", summary[f"test-{metric}"])),
        "quality-in-training": float(summary[f"test-{metric}"]),
        "training-rows-quality": float(summary[f"train-{metric}"]),
        "central-quality": central.get(f"test-{metric}"),
        "xgboost-quality": central.get(f"xgboost-test-{metric}"),
        "same-trees": central.get("same-trees"),  # with noise other ones are meant to grow
        "crypto-seconds": float(sum(summary["crypto-seconds"].values())),
        "bytes": int(summary["bytes"]),
        "ciphertexts": int(summary["ciphertexts"]),
        "exchanges": result.exchanges,
        "clip": float(summary.get("dp-clip", 0.0)),
        "sigma": float(summary.get("dp-sigma", 0.0)),
        "epsilon-given": float(summary.get("dp-epsilon", 0.0)),
    }


def metric_of(data: str) -> str:
    """``"accuracy"`` or ``"rmse"``."""
    return "accuracy" if data in CLASSIFIED else "rmse"


@lru_cache(maxsize=1)
def _warm_up() -> None:
    """Train once on nothing much: the first run of a process imports for seconds."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    columns = np.random.default_rng(0).normal(size=(60, 3))
    frame = pd.DataFrame(columns, columns=list("abc"))
    frame.insert(0, ID, np.arange(60))
    frame["label"] = (frame["a"] > 0).astype(int)
    data = DataSet("", "label", {"objective": "binary:logistic"}, clip=1.0)
    options = {"encryption": "paillier", "key-bits": 1024, "allow-weak-key": True}
    frames = party_frames(frame, data, seed=0, parties=3)
    with tempfile.TemporaryDirectory() as run_dir:
        train(frames, data, Setting(1, 1, options), seed=0, run_dir=run_dir)


@lru_cache(maxsize=4)
def _join(data: str, folder: Path, rows: int, seed: int) -> JoinedTable:
    frame = _read(data, folder, rows)
    config = _config(Reference(data, seed, 1, 1))
    label = DATA_SETS[data].label
    return join(
        {"all": read_table(frame, id_column=ID, label_column=label, config=config, seed=seed)}
    )


def _config(reference: Reference) -> VerticalXGBoostConfig:
    settings = {key.replace("-", "_"): x for key, x in DATA_SETS[reference.data].settings.items()}
    return VerticalXGBoostConfig(max_depth=reference.depth, num_trees=reference.trees, **settings)


def _measure_reference(work: Reference, folder: Path) -> dict[str, Any]:
    """XGBoost on the joined table, one thread; and who predicts the same for every row."""
    config = _config(work)
    table = _join(work.data, folder, work.rows, work.seed)
    training = table.labels[~table.is_evaluation]
    given = config.given_base_score
    base = float(training.mean()) if given is None else given
    _warm_up()
    wall, cpu = time.perf_counter(), time.process_time()
    margins = xgboost_margins(table, config, base_scores=(base,), num_trees=config.num_trees)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    mean = float(training.mean())
    margin = mean - 0.5 if metric_of(work.data) == "accuracy" else mean
    same = np.full((1, len(table.labels)), margin)
    return {
        "quality": quality(margins, table, config),
        "trivial-quality": quality(same, table, config),
        "wall-seconds": wall,
        "cpu-seconds": cpu,
        "rows": len(table.labels),
        "columns": table.features.shape[1],
        "bytes": table.features.nbytes + table.labels.nbytes,
    }


class Store:
    """What has been measured, in a file that only grows.

    Parameters
    ----------
    path : Path
        Made with the first result; a last line that was cut off by a sudden end is left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, dict[str, Any]] = {}
        if path.is_file():
            text = path.read_text()
            if not text.endswith("\n"):
                text = text[: text.rfind("\n") + 1]
                path.write_text(text)
            for line in text.splitlines():
                result = json.loads(line)
                self.found[result["key"]] = result

    def missing(self, works: Sequence[Work], *, guessed: Container[Work]) -> list[Work]:
        """Give what has not been measured, or not the guesses that are wanted of it."""
        return [
            work
            for work in works
            if work.key not in self.found
            or (work in guessed and "attacks" not in self.found[work.key])
        ]

    def add(self, work: Work, result: Mapping[str, Any], **facts: Any) -> None:
        """Keep a result, with its settings and the code and machine that it is of."""
        kind = "reference" if isinstance(work, Reference) else "run"
        line = {"key": work.key, "kind": kind, "settings": asdict(work), **result, **facts}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.found[work.key] = line

    def __getitem__(self, work: Work) -> dict[str, Any]:
        return self.found[work.key]


def measure_all(
    works: Sequence[Work], folder: Path, store: Store, *, guessed: Container[Work], jobs: int
) -> Iterator[tuple[Work, dict[str, Any]]]:
    """Measure and keep; gives each as it is done, in the order of the works with one job."""
    facts = {"cores": os.cpu_count(), "jobs": jobs, "code": code_fingerprint()}
    if jobs == 1:
        for work in works:
            result = measure(work, folder, guess=work in guessed)
            store.add(work, result, load=os.getloadavg()[0], **facts)
            yield work, store[work]
        return
    # Spawned: a fork would copy threads of Flower's in whatever state they are.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = {
            pool.submit(measure, work, folder, guess=work in guessed): work for work in works
        }
        for done in as_completed(waiting):
            work = waiting[done]
            store.add(work, done.result(), load=os.getloadavg()[0], **facts)
            yield work, store[work]
