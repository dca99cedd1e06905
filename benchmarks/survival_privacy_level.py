"""What the privacy level costs: baseline survival S0 of a run, against Breslow's exact estimate.

GBSG2 is dealt to 5 and to 20 sites. A run leaves a model and a baseline hazard made of counts that
the sites merged over cells until privacy-level rows left in each. The exact estimate is made here
of the pooled rows, one event time after the other, with the linear predictors of the same model:
both say what a row with the mean linear predictor survives, and differ by the merging and the grid
alone. The table has the largest absolute difference over the points of the time grid, where at
least 50 rows are at risk and in the tail after that; mean and largest over seeds.

    python benchmarks/survival_privacy_level.py [--seeds 0-4] [--rounds 5] [--json FILE]

The exit code is 1 if level 1 differs by more than .005 where 50 rows are at risk: then it is not
the privacy level that costs.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedapp.simulation import simulate
from fedapp.site_data import BUNDLED
from fedapp.site_data.bundled import encode
from tasks.survival.predictor import SurvivalPredictor

MANY_AT_RISK = 50
LARGEST_AT_LEVEL_1 = 0.005
SETTINGS = ((1, 5), (5, 5), (1, 20), (5, 20))
"""Privacy level and number of sites."""

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """Largest absolute differences of S0 in one run; of a tail without events it is 0."""

    privacy_level: int
    n_sites: int
    seed: int
    body: float
    tail: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default="0-4", help="first and last seed, as 0-4")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of training, default 5")
    parser.add_argument("--json", type=Path, help="file to write every run's differences to")
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition("-")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    found = [
        difference(privacy_level=level, n_sites=n_sites, seed=seed, rounds=options.rounds)
        for level, n_sites in SETTINGS
        for seed in range(int(first), int(last or first) + 1)
    ]
    print(f"{'privacy level':>13} {'sites':>6} {'>= 50 at risk':>20} {'tail':>20}")
    for level, n_sites in SETTINGS:
        runs = [one for one in found if (one.privacy_level, one.n_sites) == (level, n_sites)]
        body, tail = [one.body for one in runs], [one.tail for one in runs]
        print(f"{level:13d} {n_sites:6d} {_mean_and_largest(body)} {_mean_and_largest(tail)}")
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    worst = max(one.body for one in found if one.privacy_level == 1)
    return int(worst > LARGEST_AT_LEVEL_1)


def difference(*, privacy_level: int, n_sites: int, seed: int, rounds: int = 5) -> Difference:
    """Run once and compare both estimates of S0."""
    bundled = BUNDLED["gbsg2"]
    frame = encode(bundled.load(), bundled.encoding)
    with tempfile.TemporaryDirectory(prefix="privacy-level-") as folder:
        result = simulate(
            "survival",
            config={
                "run-dir": folder,
                "survival.rounds": rounds,
                "survival.test-fraction": 0.0,
                "survival.dp-mechanism": "none",
                "survival.privacy-level": privacy_level,
            },
            num_sites=n_sites,
            seed=seed,
        )
        predictor = SurvivalPredictor.load(result.run_folder / "model.npz")
    baseline = predictor.baseline
    risk = np.asarray(predictor.risk(frame)) - baseline.center
    exact, at_risk = exact_baseline(
        baseline.grid, frame[bundled.time], frame[bundled.event] == 1, risk
    )
    estimated = baseline.survival(baseline.grid, [baseline.center])[0]
    gap = np.abs(estimated - exact)
    many = at_risk >= MANY_AT_RISK
    body, tail = (float(np.max(part, initial=0.0)) for part in (gap[many], gap[~many]))
    return Difference(privacy_level, n_sites, seed, body=body, tail=tail)


def exact_baseline(
    grid: FloatArray, time: pd.Series, event: pd.Series, risk: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Breslow's estimate of S0 at the points of a grid, and the number of rows at risk there."""
    seen, events = time.to_numpy(dtype=np.float64), event.to_numpy(dtype=bool)
    times = np.unique(seen[events])
    deaths = ((seen[:, None] == times) & events[:, None]).sum(axis=0)
    weight = ((seen[:, None] >= times) * np.exp(risk)[:, None]).sum(axis=0)
    hazard = np.concatenate(([0.0], np.cumsum(deaths / weight)))
    at_risk = (seen[:, None] >= grid).sum(axis=0).astype(np.float64)
    return np.exp(-hazard[np.searchsorted(times, grid, side="right")]), at_risk


def _mean_and_largest(values: Sequence[float]) -> str:
    return f"{np.mean(values):8.3f} (at most {max(values):.3f})".rjust(24)


if __name__ == "__main__":
    sys.exit(main())
