"""How often the confidence intervals of the survival metrics contain the true value.

Each replication has 5 sites with 100 evaluation rows and 400 training rows each; baseline hazards
differ between sites, hazards are proportional, and the model predicts with noise. The censoring
estimate and the Kaplan-Meier reference are made of the training rows' counts, merged at every site
up to privacy level 5, as in a run; times are fixed. True values: Harrell's concordance of a large
sample with censoring; all others of a large sample without any censoring, where no weights are
needed.

    python benchmarks/survival_ci_coverage.py [--replications 1500] [--json FILE]

The exit code is 1 if the interval of the C-index contains its true value in less than .92 or more
than .97 of the replications.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np

from tasks.survival.censoring import CensoringEstimate
from tasks.survival.concordance import Concordance, ConcordanceSums, concordance
from tasks.survival.estimate import Estimate
from tasks.survival.evaluation_plan import EvaluationPlan, evaluation_plan
from tasks.survival.pooled_metrics import SurvivalMetrics, survival_metrics
from tasks.survival.risk_sets import RiskSetSums, coarsen, time_grid
from tasks.survival.survival_metrics import EvaluationRows, SurvivalMetricsSums

SITES = (-0.4, -0.2, 0.0, 0.2, 0.4)
"""Log hazard of every site at its mean row."""
EVALUATION_ROWS, TRAINING_ROWS = 100, 400
LARGE = 20_000
PRIVACY_LEVEL = 5
LEVEL = 0.95
ALLOWED = (0.92, 0.97)
GRID = time_grid(6.0, 128)


@dataclass(frozen=True)
class Coverage:
    """Share of intervals that contain the true value, with its standard error."""

    metric: str
    truth: float
    mean: float
    coverage: float
    standard_error: float
    intervals: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--replications", type=int, default=1500, help="samples drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args(arguments)
    found = study(options.replications, np.random.default_rng(options.seed))
    print(f"{'metric':<18} {'true':>7} {'mean':>7} {'coverage':>9} {'+-':>6} {'intervals':>9}")
    for one in found:
        print(
            f"{one.metric:<18} {one.truth:7.4f} {one.mean:7.4f} {one.coverage:9.3f} "
            f"{one.standard_error:6.3f} {one.intervals:9d}"
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    return int(not ALLOWED[0] <= found[0].coverage <= ALLOWED[1])


def study(replications: int, rng: np.random.Generator) -> list[Coverage]:
    """Coverage of every metric."""
    fixed = _plan([site_rows(rng, LARGE, shift) for shift in SITES], privacy_level=1)
    truth = true_values(rng, fixed)
    drawn: dict[str, list[Estimate | Concordance]] = {name: [] for name in truth}
    for _ in range(replications):
        for name, estimate in replication(rng, fixed).items():
            drawn[name].append(estimate)
    return [_coverage(name, truth[name], own) for name, own in drawn.items()]


def replication(
    rng: np.random.Generator, fixed: EvaluationPlan
) -> dict[str, Estimate | Concordance]:
    """Estimates of one sample."""
    training = [site_rows(rng, TRAINING_ROWS, shift) for shift in SITES]
    estimated = _plan(training, privacy_level=PRIVACY_LEVEL)
    plan = replace(fixed, censoring=estimated.censoring, reference=estimated.reference)
    evaluation = [site_rows(rng, EVALUATION_ROWS, shift) for shift in SITES]
    sums = [SurvivalMetricsSums.of(own, plan, privacy_level=PRIVACY_LEVEL) for own in evaluation]
    metrics = survival_metrics(reduce(add, sums), plan, LEVEL)
    return {"c-index": _harrell(evaluation), **_named(metrics)}


def true_values(rng: np.random.Generator, fixed: EvaluationPlan) -> dict[str, float]:
    """Values that the metrics estimate, from large samples."""
    censored = [site_rows(rng, LARGE, shift) for shift in SITES]
    complete = [site_rows(rng, LARGE, shift, censored=False) for shift in SITES]
    nobody = CensoringEstimate(GRID, np.ones(GRID.size))
    # The reference is what Kaplan and Meier estimate: the share of all sites' rows that survive.
    follow_up = np.concatenate([own.time for own in complete])
    surviving = (follow_up[:, None] > GRID).mean(axis=0)
    plan = replace(fixed, censoring=nobody, reference=surviving, time_dependent=False)
    sums = [SurvivalMetricsSums.of(own, plan, privacy_level=1) for own in complete]
    metrics = survival_metrics(reduce(add, sums), plan, LEVEL)
    # Proportional hazards without ties: Antolini's concordance is Harrell's.
    values = {"c-index": _harrell(censored), **_named(metrics)}
    values["antolini-c-index"] = values["c-index"]
    truth = {name: one.value for name, one in values.items() if one.value is not None}
    return {name: truth[name] for name in ("c-index", *_NAMES)}


_NAMES = (
    "antolini-c-index",
    "uno-c-index",
    "auc-1",
    "auc-2",
    "auc-3",
    "auc-mean",
    "brier-1",
    "brier-2",
    "brier-3",
    "ibs",
    "ibs-difference",
    "calibration",
)


def _named(metrics: SurvivalMetrics) -> dict[str, Estimate | Concordance]:
    named: dict[str, Estimate | Concordance] = {
        "uno-c-index": metrics.uno,
        "auc-mean": metrics.mean_auc,
        "ibs": metrics.brier.integrated,
        "ibs-difference": metrics.brier.difference,
        "calibration": metrics.calibration.overall.observed,
    }
    if metrics.antolini is not None:
        named["antolini-c-index"] = metrics.antolini
    for number, (auc, brier) in enumerate(zip(metrics.auc, metrics.brier.at_times, strict=True), 1):
        named |= {f"auc-{number}": auc, f"brier-{number}": brier}
    return named


def site_rows(
    rng: np.random.Generator, rows: int, shift: float, *, censored: bool = True
) -> EvaluationRows:
    """Rows of a site with the predictions of a model that sees the risk with noise."""
    risk = rng.normal(scale=0.8, size=rows)
    event_time = rng.exponential(size=rows) * np.exp(-risk - shift)
    limit = rng.exponential(2.0, size=rows) if censored else np.full(rows, np.inf)
    seen = 0.8 * risk + rng.normal(scale=0.4, size=rows)
    survival = np.exp(-np.outer(np.exp(seen), GRID))
    time = np.minimum(event_time, limit) + 1e-9
    return EvaluationRows(time, event_time <= limit, survival, seen)


def _plan(training: Sequence[EvaluationRows], *, privacy_level: int) -> EvaluationPlan:
    counts = [
        coarsen(
            RiskSetSums.of(own.time, own.event, np.zeros(own.time.size), grid=GRID),
            privacy_level=privacy_level,
        )
        for own in training
    ]
    plan = evaluation_plan(
        reduce(add, counts),
        GRID,
        sites=len(counts),
        privacy_level=privacy_level,
        time_dependent=True,
    )
    assert plan is not None
    return plan


def _harrell(sites: Sequence[EvaluationRows]) -> Concordance:
    sums = ConcordanceSums()
    for own in sites:
        assert own.risk is not None
        sums += ConcordanceSums.of(own.risk, own.time, own.event)
    return concordance(sums, LEVEL)


def _coverage(name: str, truth: float, drawn: Sequence[Estimate | Concordance]) -> Coverage:
    values = [one.value for one in drawn if one.value is not None]
    intervals = [
        (one.lower, one.upper) for one in drawn if one.lower is not None and one.upper is not None
    ]
    share = float(np.mean([lower <= truth <= upper for lower, upper in intervals]))
    error = math.sqrt(share * (1 - share) / len(intervals))
    return Coverage(name, truth, float(np.mean(values)), share, error, len(intervals))


if __name__ == "__main__":
    sys.exit(main())
