"""How long a site takes to sum the survival metrics of its evaluation rows.

Exponential times with proportional hazards, half of them censored; survival predicted at 129 times
by curves that cross. One thread; the least of the repeats, in seconds of CPU and of wall time.
Beside Harrell's concordance, in turn with it so that other load hits both: lifelines' concordance
of the same rows.

    python benchmarks/survival_metrics_speed.py [--rows 100000] [--repeats 3] [--json FILE]

The exit code is 1 if Harrell's concordance takes 1 s of CPU time or more.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from lifelines.utils import concordance_index

from tasks.survival.antolini import antolini_sums
from tasks.survival.brier import BrierSums
from tasks.survival.concordance import ConcordanceSums
from tasks.survival.evaluation_plan import EvaluationPlan, evaluation_plan
from tasks.survival.risk_sets import RiskSetSums, horizon_bound, time_grid
from tasks.survival.survival_metrics import EvaluationRows, SurvivalMetricsSums
from tasks.survival.time_dependent_auc import AucSums
from tasks.survival.unos_concordance import unos_concordance_sums

LONGEST_CONCORDANCE = 1.0
TIME_BINS = 128

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Timing:
    """Least seconds of the repeats."""

    name: str
    rows: int
    cpu: float
    wall: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the site")
    parser.add_argument("--repeats", type=int, default=3, help="times each is measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args(arguments)
    timings = measure(options.rows, repeats=options.repeats)
    print(f"{'sums of one site':<32} {'rows':>8} {'CPU s':>8} {'wall s':>8}")
    for one in timings:
        print(f"{one.name:<32} {one.rows:8d} {one.cpu:8.3f} {one.wall:8.3f}")
    ours, lifelines = timings[0], timings[1]
    ratio = lifelines.cpu / ours.cpu
    print(f"lifelines takes {ratio:.1f} times as long for the C-index")
    if options.json:
        numbers = {"timings": [asdict(one) for one in timings], "lifelines_ratio": ratio}
        options.json.write_text(json.dumps(numbers, indent=2) + "\n")
    return int(ours.cpu >= LONGEST_CONCORDANCE)


def measure(rows: int, *, repeats: int) -> list[Timing]:
    """Time every metric on the same rows."""
    site, linear_predictor = simulated(rows, seed=0)
    own_plan = plan(site)
    until = slice(0, own_plan.upper + 1)
    time_, event, censoring = site.time, site.event, own_plan.censoring
    metrics: dict[str, Callable[[], object]] = {
        "C-index (Harrell)": lambda: ConcordanceSums.of(linear_predictor, time_, event),
        "C-index (Harrell), lifelines": lambda: concordance_index(time_, -linear_predictor, event),
        "Uno's C-index": lambda: unos_concordance_sums(
            linear_predictor, time_, event, censoring=censoring, tau=own_plan.tau
        ),
        "AUC at 3 times, mean": lambda: AucSums.of(
            linear_predictor, time_, event, times=own_plan.times, censoring=censoring
        ),
        "Brier at 3 times, IBS": lambda: BrierSums.of(
            time_,
            event,
            site.survival[:, until],
            grid=own_plan.grid[until],
            at=own_plan.at,
            reference=own_plan.reference[until],
            censoring=censoring,
        ),
        "Antolini's C-index": lambda: antolini_sums(
            time_, event, site.survival, grid=own_plan.grid
        ),
        "all of a model whose curves cross": lambda: SurvivalMetricsSums.of(
            site, own_plan, privacy_level=5
        ),
    }
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in metrics}
    for _ in range(repeats):
        for name, metric in metrics.items():
            cpu, wall = time.process_time(), time.perf_counter()
            metric()
            samples[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return [
        Timing(name, rows, cpu=min(cpu for cpu, _ in own), wall=min(wall for _, wall in own))
        for name, own in samples.items()
    ]


def simulated(rows: int, *, seed: int) -> tuple[EvaluationRows, FloatArray]:
    """Rows of a site with crossing survival curves, and their linear predictor."""
    rng = np.random.default_rng(seed)
    risk = rng.normal(scale=0.7, size=rows)
    event_time = rng.exponential(size=rows) * np.exp(-risk)
    limit = rng.exponential(size=rows)
    follow_up = np.minimum(event_time, limit) + 1e-9
    grid = time_grid(horizon_bound(follow_up, privacy_level=5), TIME_BINS)
    shape = np.exp(0.1 * rng.normal(size=rows))
    cumulative = np.exp(risk)[:, None] * grid[None, :] ** shape[:, None]
    return EvaluationRows(follow_up, event_time <= limit, np.exp(-cumulative)), risk


def plan(site: EvaluationRows) -> EvaluationPlan:
    """The evaluation plan from the counts of these rows."""
    horizon = horizon_bound(site.time, privacy_level=5)
    grid = time_grid(horizon, TIME_BINS)
    counts = RiskSetSums.of(site.time, site.event, np.zeros(site.time.size), grid=grid)
    made = evaluation_plan(counts, grid, sites=1, privacy_level=1, time_dependent=True)
    if made is None:
        raise SystemExit(f"{site.time.size} rows are too few for a plan; at least 200")
    return made


if __name__ == "__main__":
    sys.exit(main())
