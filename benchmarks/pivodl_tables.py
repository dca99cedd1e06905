"""The figures and Table III of the PIVODL paper as rows of numbers, out of what was measured."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pivodl_plan import TABLE, Figure, Plan, Run, attacked, noisy, points
from pivodl_runs import Store, metric_of
from vertical_attack import FIGURES as GUESS_FIGURES
from vertical_attack import table as mean_guesses
from vertical_partial_dp import Outcome

PLAIN, ENCRYPTED = "no encryption", "Paillier"
EXACT, NOISY = "no noise", "partial DP"
CENTRAL, TRIVIAL = "central XGBoost", "trivial baseline"

COLUMNS = (
    *("figure", "data", "axis", "value", "series", "measure", "unit"),
    *("mean", "lowest", "highest", "sd", "runs"),
    *("clients", "depth", "trees", "epsilon", "key-bits", "rows"),
)
TABLE_COLUMNS = ("table", "data", "noise", "epsilon", "attack", "runs", *GUESS_FIGURES, "auc-sd")

UNITS = {
    "accuracy": "share of test rows",
    "rmse": "Wh",
    "cpu-seconds": "s",
    "wall-seconds": "s",
    "megabytes": "MB (1e6 bytes)",
    "exchanges": "server to parties and back",
}


def figure_rows(figure: Figure, plan: Plan, store: Store) -> list[dict[str, Any]]:
    """Mean, lowest and highest of the seeds, for each series at each value of the axis."""
    rows = []
    for data in plan.data:
        for at in range(len(plan.values[figure.axis])):
            found: dict[tuple[str, str], list[float]] = {}
            for seed in range(plan.seeds):
                value, run = list(points(figure, plan, seed=seed, data=data))[at]
                for series, measure, number in _numbers(figure, plan, store, run, seed=seed):
                    found.setdefault((series, measure), []).append(number)
            for (series, measure), numbers in found.items():
                shown = _shown_settings(figure, plan, run, series)
                head = {"figure": figure.number, "data": data, "axis": figure.axis, "value": value}
                head |= {"series": series, "measure": measure, "unit": UNITS[measure]}
                rows.append({**head, **_spread(numbers), **shown})
    return rows


def _spread(numbers: Sequence[float]) -> dict[str, float | int]:
    sd = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else 0.0
    mean, lowest, highest = float(np.mean(numbers)), min(numbers), max(numbers)
    return {"mean": mean, "lowest": lowest, "highest": highest, "sd": sd, "runs": len(numbers)}


def _shown_settings(figure: Figure, plan: Plan, run: Run, series: str) -> dict[str, Any]:
    epsilon = noisy(run, plan).epsilon if series == NOISY else ""
    bits = plan.key_bits if series == ENCRYPTED else ""
    shown = {"depth": run.depth, "trees": run.trees, "epsilon": epsilon, "key-bits": bits}
    clients = "" if series in (CENTRAL, TRIVIAL) else run.clients
    return {"clients": clients, **shown, "rows": plan.rows or "all"}


def _numbers(
    figure: Figure, plan: Plan, store: Store, run: Run, *, seed: int
) -> Iterator[tuple[str, str, float]]:
    """Give series, measure and number of one seed at one point."""
    reference = store[plan.reference(run)]
    if figure.measure == "quality":
        metric = metric_of(run.data)
        exact = plan.run(run.data, seed) if figure.axis == "epsilon" else run
        yield EXACT, metric, store[exact]["quality"]
        yield NOISY, metric, store[noisy(run, plan)]["quality"]
        yield CENTRAL, metric, reference["quality"]
        yield TRIVIAL, metric, reference["trivial-quality"]
        return
    runs = [(PLAIN, run)]
    if seed < plan.encrypted_seeds:
        runs.append((ENCRYPTED, plan.encrypted(run)))
    for series, each in runs:
        found = store[each]
        if figure.measure == "seconds":
            yield series, "cpu-seconds", found["cpu-seconds"]
            yield series, "wall-seconds", found["wall-seconds"]
        else:
            yield series, "megabytes", found["bytes"] / 1e6
            yield series, "exchanges", found["exchanges"]
    if figure.measure == "seconds":
        yield CENTRAL, "cpu-seconds", reference["cpu-seconds"]
        yield CENTRAL, "wall-seconds", reference["wall-seconds"]
        yield TRIVIAL, "cpu-seconds", 0.0  # a mean of the labels: nothing to train
    else:
        yield CENTRAL, "megabytes", reference["bytes"] / 1e6
        yield TRIVIAL, "megabytes", 16.0 * run.clients / 1e6  # a sum and a count of each party


def guess_rows(plan: Plan, store: Store) -> list[dict[str, Any]]:
    """Table III: mean over parties and seeds of each attack's figures, by data set and noise."""
    rows = []
    for sensitivity in ("exact", "paper"):
        found = [
            {
                "data": run.data,
                "seed": run.seed,
                "epsilon": run.epsilon,
                "attacks": {name: {"mean": one} for name, one in store[run]["attacks"].items()},
            }
            for run in attacked(plan)
            if run.sensitivity == sensitivity
        ]
        for row in mean_guesses(found):
            noise = sensitivity if row["epsilon"] else "none"
            rows.append({"table": TABLE.removeprefix("table-"), "noise": noise, **row})
    return rows


def central_accuracy(plan: Plan, store: Store) -> dict[str, float]:
    """Mean accuracy of a central XGBoost on the rows for evaluation, by data set of Table III."""
    found: dict[str, list[float]] = {}
    for run in attacked(plan):
        if not run.epsilon:
            found.setdefault(run.data, []).append(store[plan.reference(run)]["quality"])
    return {data: float(np.mean(values)) for data, values in found.items()}


def outcomes(plan: Plan, store: Store) -> list[Outcome]:
    """Runs of Figure 9 as `vertical_partial_dp` has them, to hold against its bounds."""
    found = []
    for data in plan.data:
        for seed in range(plan.seeds):
            for epsilon in (0.0, *plan.values["epsilon"]):
                result = store[plan.run(data, seed, epsilon=float(epsilon))]
                numbers = (result["quality"], result["quality-in-training"])
                noise = (result["clip"], result["sigma"])
                found.append(Outcome(data, seed, float(epsilon), *numbers, *noise))
    return found


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a table, one line a row."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def write_runs(path: Path, store: Store) -> None:
    """Write all that was measured, one line a run or reference, settings first."""
    lines = [
        {
            "kind": result["kind"],
            **result["settings"],
            **{key: value for key, value in result.items() if key not in ("key", "settings")},
        }
        for result in store.found.values()
    ]
    columns = dict.fromkeys(key for line in lines for key in line if key != "attacks")
    write_csv(path, list(columns), lines)
