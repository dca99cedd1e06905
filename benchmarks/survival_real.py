"""Federated survival models on real data, against a Cox model of all rows of the same split.

For every seed a data set is split 80/20, stratified by event. The training rows are dealt to 5
sites at random; `fedapp.simulation.simulate` trains on them, 30 rounds of 10 steps, and the saved
model predicts the test rows. The C-index of all test rows together is computed here, and what the
product says of itself plays no part: Harrell's by lifelines for proportional hazards, Antolini's by
pycox (adjusted for ties) for the others, whose curves are read at every test time, so interpolated
between cuts. Differences are paired by seed. With `--peer-python` federated-survival trains on the
same rows at the same sites, as many rounds and steps, and its curves are measured in the same way.

    python benchmarks/survival_real.py [--data survival.zip] [--data-sets gbsg2,metabric]
        [--models CoxPH,DeepSurv] [--seeds 0-11] [--private] [--peer-python PATH]
        [--figure FILE] [--json FILE]

The exit code is 1 if a bounded model is too low: CoxPH and DeepSurv on GBSG2, DeepSurv and
LogisticHazard on METABRIC; `survival_real_results` has the bounds.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import logging
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from lifelines import CoxPHFitter
from lifelines.utils import concordance_index
from pycox.evaluation import EvalSurv
from seed_intervals import seeds
from survival_data_sets import DATA_SETS, EVENT, TIME, deal, read, split
from survival_peer import PREDICT, run_peer
from survival_real_results import ModelResult, SeedResult, document, falls_short, table

from fedapp.simulation import simulate
from tasks.survival.model_names import BUILT_IN
from tasks.survival.predictor import SurvivalPredictor

PROPORTIONAL = ("CoxPH", "DeepSurv", "CoxCC")
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """How models are trained; everything else is the product's default.

    ``private``: whether updates are clipped and noised, with the default clip norm and multiplier.
    """

    n_sites: int = 5
    rounds: int = 30
    local_steps: int = 10
    private: bool = False

    def config(self, model: str, run_dir: Path) -> dict[str, bool | int | float | str]:
        """Return the run configuration; no test rows are kept at the sites."""
        privatization: dict[str, bool | int | float | str] = (
            # Noise from the seed has the same distribution, and the table can be made again.
            {"seeded-noise": True} if self.private else {"survival.dp-mechanism": "none"}
        )
        return {
            "run-dir": str(run_dir),
            "survival.model": model,
            "survival.time": TIME,
            "survival.event": EVENT,
            "survival.rounds": self.rounds,
            "survival.local-steps": self.local_steps,
            "survival.test-fraction": 0.0,
            **privatization,
        }


def harrell(test: pd.DataFrame, risk: FloatArray) -> float:
    """Return lifelines' concordance of risks with the rows' outcomes."""
    return float(concordance_index(test[TIME], -risk, test[EVENT]))


def antolini(
    test: pd.DataFrame, survival: Callable[[FloatArray], FloatArray], *, until: float
) -> float:
    """Return pycox's time-dependent concordance of curves that are read at every test time.

    Parameters
    ----------
    test : DataFrame, n rows
    survival : callable
        From times, shape (m,), to survival, shape (n, m).
    until : float
        End of the curves: what they are there holds for later times.
    """
    times = test[TIME].to_numpy(dtype=np.float64)
    grid = np.unique(times)
    curves = pd.DataFrame(survival(np.minimum(grid, until)).T, index=grid)
    evaluation = EvalSurv(curves, times, test[EVENT].to_numpy())
    return float(evaluation.concordance_td("adj_antolini"))


def central_cox(frame: pd.DataFrame, seed: int) -> float:
    """Fit lifelines' Cox model to all training rows of a split; its C on the test rows."""
    train, test = split(frame, seed=seed)
    cox = CoxPHFitter().fit(train, duration_col=TIME, event_col=EVENT)
    return harrell(test, cox.predict_log_partial_hazard(test).to_numpy())


def federated(
    frame: pd.DataFrame, model: str, seed: int, setting: Setting, *, central: float
) -> SeedResult:
    """Train one model over sites on one split, and evaluate it on its test rows."""
    train, test = split(frame, seed=seed)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as run_dir:
        result = simulate(
            "survival",
            sites=deal(train, n_sites=setting.n_sites, seed=seed),
            config=setting.config(model, Path(run_dir)),
            seed=seed,
        )
        seconds = time.perf_counter() - began
        summary = result.summary
        if summary["status"] != "ok":
            raise RuntimeError(f"seed {seed}: {summary['status']}: {summary.get('reason', '')}")
        predictor = SurvivalPredictor.load(result.run_folder / "model.npz")
    if model in PROPORTIONAL:
        c = harrell(test, predictor.risk(test))
    else:
        c = antolini(
            test,
            lambda times: predictor.survival(test, times),
            until=float(predictor.baseline.grid[-1]),
        )
    ratio = summary.get("noise-to-signal-max")
    largest = math.inf if "noise-to-signal-unbounded" in summary else ratio
    return SeedResult(seed, c, central, largest, seconds)


def by_peer(
    python: Path,
    name: str,
    frame: pd.DataFrame,
    models: Sequence[str],
    setting: Setting,
    *,
    central: dict[int, float],
) -> list[ModelResult]:
    """Let federated-survival train on the same rows at the same sites, by its own defaults.

    Raises
    ------
    RuntimeError
        If it does not run.
    """
    splits = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for seed in central:
            train, test = split(frame, seed=seed)
            sites = deal(train, n_sites=setting.n_sites, seed=seed)
            dealt = pd.concat([rows.assign(site=number) for number, rows in enumerate(sites)])
            files = {"train": folder / f"train-{seed}", "test": folder / f"test-{seed}"}
            dealt.to_parquet(files["train"])
            test.to_parquet(files["test"])
            for model in models:
                paths = {key: str(path) for key, path in files.items()}
                out = str(folder / f"{model}-{seed}.npz")
                splits.append({**paths, "model": model, "seed": seed, "out": out})
        asked = {"time": TIME, "event": EVENT, "splits": splits, "settings": {}}
        asked |= {"rounds": setting.rounds, "local_steps": setting.local_steps}
        peer = f"federated-survival {run_peer(python, PREDICT, asked)['version']}"
        found: dict[str, list[SeedResult]] = {model: [] for model in models}
        for one in splits:
            test = pd.read_parquet(one["test"])
            with np.load(one["out"]) as curves:
                c = antolini(test, _interpolated(**curves), until=float(curves["times"][-1]))
            seed = int(one["seed"])
            found[str(one["model"])].append(SeedResult(seed, c, central[seed]))
    return [ModelResult(name, model, peer, tuple(results)) for model, results in found.items()]


def _interpolated(times: FloatArray, survival: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """Curves, shape (n, cuts), linear between cuts and from 1 at time 0."""
    if times[0] > 0:
        times, survival = np.append(0.0, times), np.insert(survival, 0, 1.0, axis=1)
    return lambda at: np.array([np.interp(at, times, curve) for curve in survival])


def measure(
    name: str,
    frame: pd.DataFrame,
    models: Sequence[str],
    chosen: Sequence[int],
    setting: Setting,
    *,
    peer_python: Path | None,
) -> list[ModelResult]:
    """All models on one data set, by the product, then by the peer if there is one."""
    central = {seed: central_cox(frame, seed) for seed in chosen}
    found = []
    for model in models:
        results = []
        for seed in chosen:
            results.append(federated(frame, model, seed, setting, central=central[seed]))
            said = f"{name}, {model}, seed {seed}: {results[-1].seconds:.1f} s"
            print(said, file=sys.stderr, flush=True)
        found.append(ModelResult(name, model, "fedapp", tuple(results)))
    if peer_python is not None:
        try:
            found += by_peer(peer_python, name, frame, models, setting, central=central)
        except RuntimeError as error:
            print(error, file=sys.stderr)
    return found


def _names(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    def read_names(text: str) -> list[str]:
        names = list(allowed) if text == "all" else text.split(",")
        if unknown := [name for name in names if name not in allowed]:
            words = f"{', '.join(unknown)}: must be of {', '.join(allowed)}, or all"
            raise argparse.ArgumentTypeError(words)
        return names

    return read_names


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--data", type=Path, help="ZIP file or folder with the CSV files")
    parser.add_argument(
        "--data-sets", type=_names(DATA_SETS), help="default gbsg2, and metabric with --data"
    )
    parser.add_argument("--models", type=_names(BUILT_IN), help="default: those that are bounded")
    parser.add_argument("--seeds", type=seeds, default=seeds("0-11"), help="default 0-11")
    parser.add_argument("--private", action="store_true", help="clip and noise the updates")
    parser.add_argument("--peer-python", type=Path, help="Python that has federated-survival")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="plot C by model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    chosen = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    names = chosen.data_sets or (["gbsg2", "metabric"] if chosen.data else ["gbsg2"])
    setting = Setting(private=chosen.private)
    found: list[ModelResult] = []
    try:
        frames = {name: read(name, chosen.data) for name in names}
    except ValueError as error:
        parser.error(str(error))
    for name, frame in frames.items():
        bounded = ["DeepSurv", "LogisticHazard"] if name == "metabric" else ["CoxPH", "DeepSurv"]
        models = chosen.models or bounded
        found += measure(name, frame, models, chosen.seeds, setting, peer_python=chosen.peer_python)
    print(table(found))
    short = falls_short(found)
    print("\n".join(short) if short else "every bound holds")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(document(found, asdict(setting)), indent=2) + "\n")
    if chosen.figure is not None:
        from survival_real_figure import plot

        plot(found, chosen.figure)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
