"""The simulation study of Schalk et al., for every release of the ROC-GLM task.

Data (the authors' code: gamma ~ U[0, 1], prevalence within [.1, .9]): n from 100..2500, scores
U[0, 1], label 1 above 1/2, the labels of a share gamma drawn anew. Grid: sensitivity .01 to .09,
epsilon .1 to .5, delta .1 to .5. Measured against the pooled AUC and its DeLong interval: bias,
mean absolute error (MAE), and the error of the interval |lower - lower'| + |upper - upper'|.

    python benchmarks/roc_glm_simulation.py [--quick] [--out FOLDER] [--json FILE]

writes `accuracy.csv` (the accuracy table), `grid.csv` (every cell, by AUC bin) and `grid.png`, the
figure of the paper: bias and error of the AUC and error of the interval by AUC bin. Exits with 1 if
a row of the accuracy table is missed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: the workers share the cores
_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

import numpy as np  # noqa: E402
from roc_glm_study import (  # noqa: E402
    NOISY,
    Estimates,
    FloatArray,
    Study,
    draw_document,
    draw_fixed_auc,
    noisy_cells,
    noisy_scores,
    noisy_scores_document,
    run_noisy,
    secure_counts,
    without_noise,
)

from tasks.roc_glm.counts import equal_cuts  # noqa: E402
from tasks.roc_glm.estimates import logit_bounds  # noqa: E402
from tasks.roc_glm.releases import noise_scale, release_sensitivity  # noqa: E402

SENSITIVITIES = (0.01, 0.03, 0.05, 0.07, 0.09)
EPSILONS = (0.1, 0.2, 0.3, 0.4, 0.5)
DELTAS = (0.1, 0.2, 0.3, 0.4, 0.5)
AUC_EDGES = np.linspace(0.5, 1.0, 21)
ALPHA = 0.05
INTERVALS_PER_BIN = 3  # redrawing noise is what costs: data sets an AUC bin that get an interval

Row = dict[str, float | str]


def mae(estimate: FloatArray, truth: FloatArray) -> float:
    return float(np.nanmean(np.abs(estimate - truth)))


def coverage(estimates: Estimates, truth: float) -> float:
    lower, upper = logit_bounds(estimates.auc, estimates.variance, alpha=ALPHA)
    return float(((lower <= truth) & (truth <= upper)).mean())


def tolerated_tau(study: Study, pooled: FloatArray, generator: np.random.Generator) -> float:
    """Largest noise at which the debiased AUC has MAE .01, by interpolation."""
    none = np.empty(0, dtype=np.int64)
    taus = np.array([0.15, 0.2, 0.25, 0.3, 0.35])
    errors = [
        mae(noisy_scores(study, tau, generator, intervals_of=none).auc, pooled) for tau in taus
    ]
    return float(np.interp(0.01, errors, taus))


def accuracy_table(*, datasets: int, runs: int, seed: int) -> list[dict[str, float | str]]:
    """The accuracy to reach: six settings, and coverage without noise."""
    generator = np.random.default_rng(seed)
    study = draw_document(datasets, generator)
    exact = without_noise(study)
    counts_sigma = _sigma_of_counts(0.2, 1.0, 1e-5)
    table: list[dict[str, float | str]] = []

    def row(setting: str, reached: float, bound: str) -> None:
        limit = float(bound.split()[1])
        met = reached <= limit if bound.startswith("<=") else reached >= limit
        table.append({"setting": setting, "reached": reached, "required": bound, "met": str(met)})

    row("no noise, ROC-GLM: MAE", mae(exact.auc_roc_glm, exact.auc), "<= 0.0034")
    row("secure-counts, 50 cells: MAE", mae(secure_counts(study).auc, exact.auc), "<= 0.001")
    document = noisy_scores_document(study, 0.095, generator)
    row("noisy-scores, document, tau .095: MAE", mae(document.auc_roc_glm, exact.auc), "<= 0.01")
    row(
        "noisy-scores, debiased: tau at MAE .01",
        tolerated_tau(study, exact.auc, generator),
        ">= 0.25",
    )
    noisy = noisy_cells("noisy-counts", study, counts_sigma, 20, generator)
    row("noisy-counts, .2, 1, 1e-5, 5 sites: MAE", mae(noisy.auc, exact.auc), "<= 0.013")

    fixed = draw_fixed_auc(runs, 1000, 0.8, generator)
    tau = noise_scale(epsilon=5.0, delta=1e-4, sensitivity=0.2)
    debiased = noisy_scores(fixed, tau, generator, intervals_of=np.arange(runs))
    row("coverage, noisy-scores debiased", coverage(debiased, 0.8), ">= 0.93")
    noisy = noisy_cells("noisy-counts", fixed, _sigma_of_counts(0.2, 5.0, 1e-4), 20, generator)
    row("coverage, noisy-counts", coverage(noisy, 0.8), ">= 0.93")
    for n in (200, 1000):
        plain = without_noise(draw_fixed_auc(4 * runs, n, 0.8, generator))
        row(f"coverage, no noise, n = {n}", coverage(plain, 0.8), ">= 0.93")
        row(f"coverage, no noise, n = {n} (upper bound)", coverage(plain, 0.8), "<= 0.97")
    return table


def _sigma_of_counts(sensitivity: float, epsilon: float, delta: float) -> float:
    moved = release_sensitivity("noisy-counts", score_sensitivity=sensitivity, cuts=equal_cuts(20))
    return noise_scale(epsilon=epsilon, delta=delta, sensitivity=moved)


def interval_error(estimates: Estimates, exact: Estimates) -> FloatArray:
    """Distance of the bounds from those of the pooled data; NaN where one does not exist."""
    bounds = []
    for one in (estimates, exact):
        usable = (one.auc > 0) & (one.auc < 1)
        bounds.append(logit_bounds(np.where(usable, one.auc, np.nan), one.variance, alpha=ALPHA))
    (low, high), (pooled_low, pooled_high) = bounds
    return np.abs(low - pooled_low) + np.abs(high - pooled_high)


def by_auc_bin(labels: Row, estimates: Estimates, exact: Estimates) -> list[Row]:
    """One row an AUC bin: bias, MAE of both AUCs, error of the interval."""
    place = np.digitize(exact.auc, AUC_EDGES) - 1
    error = interval_error(estimates, exact)
    rows: list[Row] = []
    for b in range(len(AUC_EDGES) - 1):
        inside = np.flatnonzero(place == b)
        with_interval = inside[np.isfinite(error[inside])]
        with_curve = inside[np.isfinite(estimates.auc_roc_glm[inside])]
        if len(inside) == 0:
            continue
        difference = estimates.auc[inside] - exact.auc[inside]
        curve = estimates.auc_roc_glm[with_curve] - exact.auc[with_curve]
        rows.append(
            labels
            | {
                "auc-bin": float(AUC_EDGES[b]),
                "datasets": len(inside),
                "auc-bias": float(difference.mean()),
                "auc-mae": float(np.abs(difference).mean()),
                "roc-glm-datasets": len(with_curve),
                "roc-glm-bias": float(curve.mean()) if len(curve) else float("nan"),
                "roc-glm-mae": float(np.abs(curve).mean()) if len(curve) else float("nan"),
                "interval-datasets": len(with_interval),
                "interval-error": float(error[with_interval].mean())
                if len(with_interval)
                else float("nan"),
            }
        )
    return rows


def grid_cell(
    study: Study, exact: Estimates, cell: tuple[float, float, float], seed: int
) -> list[Row]:
    """All noisy releases at one (sensitivity, epsilon, delta)."""
    sensitivity, epsilon, delta = cell
    generator = np.random.default_rng([seed, *(round(1000 * value) for value in cell)])
    place = np.digitize(exact.auc, AUC_EDGES)
    intervals_of = np.concatenate(
        [np.flatnonzero(place == b)[:INTERVALS_PER_BIN] for b in range(1, len(AUC_EDGES))]
    )
    rows: list[Row] = []
    for name in NOISY:
        scale, estimates = run_noisy(
            name,
            study,
            sensitivity=sensitivity,
            epsilon=epsilon,
            delta=delta,
            generator=generator,
            intervals_of=intervals_of,
        )
        labels: Row = {
            "release": name,
            "sensitivity": sensitivity,
            "epsilon": epsilon,
            "delta": delta,
            "noise": scale,
        }
        rows += by_auc_bin(labels, estimates, exact)
    return rows


def run_grid(
    *, datasets: int, seed: int, cells: list[tuple[float, float, float]], workers: int
) -> list[Row]:
    """The whole grid, and the releases without noise."""
    study = draw_document(datasets, np.random.default_rng(seed))
    exact = without_noise(study)
    rows: list[Row] = []
    for name, estimates in (("no noise", exact), ("secure-counts", secure_counts(study))):
        rows += by_auc_bin({"release": name}, estimates, exact)
    with ProcessPoolExecutor(workers) as pool:
        jobs = [pool.submit(grid_cell, study, exact, cell, seed) for cell in cells]
        for job in jobs:
            rows += job.result()
    return rows


PANELS = {"AUC bias": "auc-bias", "AUC error": "auc-mae", "interval error": "interval-error"}
ERRORS = [0, 0.0025, 0.005, 0.01, 0.02, 0.05, 1]
BIASES = [-1, -0.05, -0.02, -0.01, -0.0025, 0.0025, 0.01, 0.02, 0.05, 1]


def draw_grid(rows: list[Row], path: Path) -> None:
    """The figure of the paper: bias, error and error of the interval by AUC bin."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import colors
    from matplotlib import pyplot as plt

    noisy = [row for row in rows if row["release"] in NOISY]
    columns = sorted({row["sensitivity"] for row in noisy})
    lines = [(title, name) for title in PANELS for name in NOISY]
    figure, axes = plt.subplots(
        *(len(lines), len(columns)),
        figsize=(3 * len(columns), 2.1 * len(lines)),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    of_title = {
        title: axes[at * len(NOISY) : (at + 1) * len(NOISY)] for at, title in enumerate(PANELS)
    }
    for line, (title, name) in zip(axes, lines, strict=True):
        limits, colours = (BIASES, "RdBu_r") if title == "AUC bias" else (ERRORS, "RdYlGn_r")
        for axis, sensitivity in zip(line, columns, strict=True):
            chosen = [r for r in noisy if (r["release"], r["sensitivity"]) == (name, sensitivity)]
            image, labels = error_image(chosen, metric_of(title, name))
            drawn = axis.pcolormesh(
                np.arange(len(labels) + 1),
                AUC_EDGES,
                image,
                norm=colors.BoundaryNorm(limits, 256),
                cmap=colours,
            )
            axis.set_title(f"{name}, sensitivity {sensitivity}", fontsize=7)
            axis.set_xticks(np.arange(len(labels)) + 0.5)
            axis.set_xticklabels(labels, rotation=90, fontsize=5)
        line[0].set_ylabel(f"{title}\nAUC bin", fontsize=7)
        if name == NOISY[-1]:
            figure.colorbar(drawn, ax=of_title[title], label=title, ticks=limits)
    figure.supxlabel("delta, epsilon")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def metric_of(title: str, release: str) -> str:
    """Column of `grid.csv` that a panel shows; the paper has no AUC but that of the ROC-GLM."""
    metric = PANELS[title]
    return metric.replace("auc", "roc-glm") if "document" in release else metric


def error_image(rows: list[Row], metric: str) -> tuple[FloatArray, list[str]]:
    """Errors as (AUC bins, pairs of delta and epsilon), with the labels of the pairs."""
    pairs = sorted({(row["delta"], row["epsilon"]) for row in rows})
    image = np.full((len(AUC_EDGES) - 1, len(pairs)), np.nan)
    for row in rows:
        place = int(np.argmin(np.abs(AUC_EDGES - float(row["auc-bin"]))))
        image[place, pairs.index((row["delta"], row["epsilon"]))] = row[metric]
    return image, [f"{delta}, {epsilon}" for delta, epsilon in pairs]


def write_table(rows: list[Row], path: Path) -> None:
    longest = max(rows, key=len)  # rows of releases without noise have no budget
    names = list(longest)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def plain(rows: list[Row]) -> list[dict[str, float | str | None]]:
    """Rows for JSON, which has no NaN."""
    return [{key: None if value != value else value for key, value in row.items()} for row in rows]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer data sets and cells: a minute")
    parser.add_argument("--datasets", type=int, help="data sets of the grid (1000; quick 100)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("roc-glm-simulation"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write both tables there too")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()

    table = accuracy_table(
        datasets=1000 if options.quick else 4000,
        runs=300 if options.quick else 1000,
        seed=options.seed,
    )
    write_table(table, options.out / "accuracy.csv")
    for row in table:
        print(f"{row['setting']:45} {row['reached']:.5f}  {row['required']:>9}  met: {row['met']}")
    print(f"accuracy table: {time.perf_counter() - began:.0f} s")

    every = product(SENSITIVITIES, EPSILONS, DELTAS)
    some = product(SENSITIVITIES, EPSILONS[::2], DELTAS[::4])
    rows = run_grid(
        datasets=options.datasets or (100 if options.quick else 1000),
        seed=options.seed,
        cells=list(some if options.quick else every),
        workers=options.workers,
    )
    write_table(rows, options.out / "grid.csv")
    draw_grid(rows, options.out / "grid.png")
    print(f"{len(rows)} rows in {options.out.resolve()}: {time.perf_counter() - began:.0f} s")
    if options.json is not None:
        both = {"accuracy": plain(table), "grid": plain(rows)}
        options.json.write_text(json.dumps(both, indent=1, allow_nan=False) + "\n")
    return int(any(row["met"] != "True" for row in table))


if __name__ == "__main__":
    sys.exit(main())
