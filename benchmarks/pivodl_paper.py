"""Figures 6 to 15 and Table III of the PIVODL paper, made anew: CSV and PNG.

    python benchmarks/pivodl_paper.py --data-dir PATH --out FOLDER
    python benchmarks/pivodl_paper.py --data-dir PATH --out FOLDER --quick
    python benchmarks/pivodl_paper.py --data-dir PATH --out FOLDER --only figure-9,table-3

| figure | along x | along y |
|---|---|---|
| 6, 7, 8 | clients, depth, trees | accuracy (energy: RMSE) on test rows, without and with noise |
| 9 | epsilon | the same |
| 10, 11, 12 | clients, depth, trees | seconds of training, without and with encryption |
| 13, 14, 15 | clients, depth, trees | megabytes of all messages, without and with encryption |
| Table III | epsilon | how well parties guess labels of others |

Data sets as in `vertical_document.py`, settings as in `pivodl_plan.py`. Every number comes from a
run of the whole protocol; runs without encryption grow the trees of encrypted ones, which is
checked. Seconds are those of the training alone, all parties and the server in one process: what a
deployment with a machine a party would take together. Results are kept in ``results.jsonl`` as
they come; the same command goes on where it was stopped.

Exits with 1 if what must hold does not: trees equal to central ones, encrypted or not, and as good
as XGBoost's; accuracy at every epsilon within .01 of that without noise, and RMSE within 2 %;
noise brings the AUC of the paper's attack nearer to one half. ``--quick`` (few rows, small trees)
checks trees only.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

from pivodl_figures import draw, draw_guesses  # noqa: E402
from pivodl_plan import (  # noqa: E402
    FIGURES,
    NAMES,
    QUICK,
    TABLE,
    Plan,
    Reference,
    Run,
    Work,
    attacked,
    expected_seconds,
    work_of,
)
from pivodl_runs import RESULTS, Store, measure_all  # noqa: E402
from pivodl_tables import (  # noqa: E402
    COLUMNS,
    TABLE_COLUMNS,
    central_accuracy,
    figure_rows,
    guess_rows,
    outcomes,
    write_csv,
    write_runs,
)
from vertical_attack import faults as guess_faults  # noqa: E402
from vertical_document import DATA_SETS  # noqa: E402
from vertical_partial_dp import faults as noise_faults  # noqa: E402
from vertical_partial_dp import table as noise_table  # noqa: E402
from vertical_xgboost_central import LARGEST_DIFFERENCE  # noqa: E402


def time_plan(works: Sequence[Work], missing: Sequence[Work], *, jobs: int) -> str:
    """What there is to do, and how long that should take on cores that do nothing else."""
    lines = []
    kinds = {
        "references (XGBoost, trivial)": [w for w in missing if isinstance(w, Reference)],
        "runs without encryption": [
            w for w in missing if isinstance(w, Run) and w.encryption == "none"
        ],
        "encrypted runs": [w for w in missing if isinstance(w, Run) and w.encryption != "none"],
    }
    for name, chosen in kinds.items():
        minutes = sum(map(expected_seconds, chosen)) / 60
        lines.append(f"  {len(chosen):4} {name:30} {minutes:6.1f} min of CPU")
    total = sum(map(expected_seconds, missing)) / 60 / jobs
    done = len(works) - len(missing)
    lines.append(f"  {done:4} done before; about {total:.0f} min, {jobs} at a time")
    return "\n".join(lines)


def work(options: argparse.Namespace, plan: Plan, store: Store) -> None:
    """Measure what is missing, telling how it goes."""
    works = work_of(options.only, plan)
    guessed = frozenset(attacked(plan))
    missing = store.missing(works, guessed=guessed)
    print(time_plan(works, missing, jobs=options.jobs), flush=True)
    began, left, spent = time.perf_counter(), sum(map(expected_seconds, missing)), 0.0
    measured = measure_all(missing, options.data_dir, store, guessed=guessed, jobs=options.jobs)
    for count, (done, result) in enumerate(measured, start=1):
        spent += expected_seconds(done)
        passed = time.perf_counter() - began
        ahead = passed * max(0.0, left - spent) / spent / 60
        print(
            f"[{count}/{len(missing)}] {_words(done)}: {result['quality']:.4f}, "
            f"{result['cpu-seconds']:.1f} s; {ahead:.0f} min left",
            file=sys.stderr,
            flush=True,
        )


def _words(done: Work) -> str:
    if isinstance(done, Reference):
        return f"{done.data}, seed {done.seed}, XGBoost, depth {done.depth}, {done.trees} trees"
    words = f"{done.data}, seed {done.seed}, {done.clients} clients, depth {done.depth}"
    words += f", {done.trees} trees"
    if done.epsilon:
        words += f", epsilon {done.epsilon:g}" + (" (paper)" * (done.sensitivity == "paper"))
    return words + (", encrypted" if done.encryption != "none" else "")


def write(options: argparse.Namespace, plan: Plan, store: Store) -> None:
    """Write CSV and PNG of each figure, and all runs."""
    rows = f"first {plan.rows:,} rows" if plan.rows else "all rows"
    fixed = {"clients": f"{plan.clients} clients", "depth": f"depth {plan.depth}"}
    fixed["trees"] = f"{plan.trees} trees"
    for figure in FIGURES:
        if figure.name not in options.only:
            continue
        found = figure_rows(figure, plan, store)
        write_csv(options.out / f"{figure.name}.csv", COLUMNS, found)
        note = ", ".join([*(text for axis, text in fixed.items() if axis != figure.axis), rows])
        if figure.measure == "megabytes":
            note += "; central: the joined table, sent once"
        elif figure.measure == "seconds":
            note += "; all parties and the server in one process"
        draw(options.out / f"{figure.name}.png", figure, plan, found, note=note)
    if TABLE in options.only and (guesses := guess_rows(plan, store)):
        write_csv(options.out / f"{TABLE}.csv", TABLE_COLUMNS, guesses)
        note = ", ".join([*fixed.values(), rows]) + "; means over parties and seeds"
        central = central_accuracy(plan, store)
        draw_guesses(options.out / f"{TABLE}.png", guesses, central=central, note=note)
    write_runs(options.out / "runs.csv", store)


def faults(options: argparse.Namespace, plan: Plan, store: Store) -> list[str]:
    """What does not hold."""
    found = []
    for run in work_of(options.only, plan):
        if isinstance(run, Reference):
            continue
        result = store[run]
        if result["same-trees"] is False:
            found.append(f"{_words(run)}: other trees than the central fit")
        if run.epsilon == 0 and (theirs := result["xgboost-quality"]) is not None:
            difference = abs(result["quality"] - theirs)
            if difference > LARGEST_DIFFERENCE[DATA_SETS[run.data].settings["objective"]]:
                found.append(f"{_words(run)}: {difference:.4g} from XGBoost on test rows")
        plain = replace(run, encryption="none", key_bits=0)
        if run.encryption != "none" and store[plain]["quality"] != result["quality"]:
            found.append(f"{_words(run)}: {result['quality']}, {store[plain]['quality']} plain")
    if options.quick:
        return found
    if "figure-9" in options.only:
        found += noise_faults(noise_table(outcomes(plan, store)))
    if TABLE in options.only:
        exact = [row for row in guess_rows(plan, store) if row["noise"] != "paper"]
        found += guess_faults(exact)
    return found


def summary(options: argparse.Namespace, plan: Plan, store: Store) -> str:
    """Figure 9 and Table III in a few lines, and what all of it took."""
    lines = []
    if "figure-9" in options.only:
        lines.append("test rows by epsilon, mean over seeds (less without noise)")
        for row in noise_table(outcomes(plan, store)):
            text = "{data:8} epsilon {epsilon:4g}: {mean:9.4f} ({difference:+.4f})"
            lines.append(text.format(**row))
    if TABLE in options.only:
        lines.append("guesses from leaf weights: accuracy, AUC, over the majority guess")
        for row in guess_rows(plan, store):
            if row["attack"] == "leaf-weights":
                text = "{data:8} epsilon {epsilon:4g} {noise:6}"
                text += " {accuracy:.3f} {auc:.3f} {gain:+.3f}"
                lines.append(text.format(**row))
    works = work_of(options.only, plan)
    spent = sum(store[one]["cpu-seconds"] for one in works) / 60
    lines.append(f"{len(works)} measurements, {spent:.1f} min of CPU in training and fits")
    codes = dict.fromkeys(store[one]["code"] for one in works)
    if len(codes) > 1:
        lines.append(f"CAUTION: measured with several versions of the code: {', '.join(codes)}")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the zip files")
    parser.add_argument("--out", type=Path, required=True, help="folder of results; made")
    parser.add_argument("--only", default=",".join(NAMES), help="as figure-6,table-3")
    parser.add_argument("--data", nargs="*", choices=list(DATA_SETS), default=list(DATA_SETS))
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--seeds", type=int, help="default 5, 2 with --quick")
    parser.add_argument("--encrypted-seeds", type=int, help="seeds of encrypted runs; default 1")
    parser.add_argument("--quick", action="store_true", help="few rows, small trees, weak keys")
    options = parser.parse_args(arguments)
    options.only = options.only.split(",")
    if unknown := [name for name in options.only if name not in NAMES]:
        parser.error(f"--only {', '.join(unknown)}: allowed are {', '.join(NAMES)}")
    for name in ("jobs", "seeds", "encrypted_seeds"):
        if (number := getattr(options, name)) is not None and number < 1:
            parser.error(f"--{name.replace('_', '-')} {number}: must be at least 1")
    return options


def plan_of(options: argparse.Namespace) -> Plan:
    """The whole or the quick form, with what the command line changes."""
    base = QUICK if options.quick else Plan()
    seeds = options.seeds or base.seeds
    encrypted = min(options.encrypted_seeds or base.encrypted_seeds, seeds)
    return replace(base, data=tuple(options.data), seeds=seeds, encrypted_seeds=encrypted)


def main(arguments: Sequence[str] | None = None, *, plan: Plan | None = None) -> int:
    """Make it all; 0 if what must hold does."""
    options = parse(arguments)
    plan = plan or plan_of(options)
    options.out.mkdir(parents=True, exist_ok=True)
    store = Store(options.out / RESULTS)
    began = time.perf_counter()
    work(options, plan, store)
    write(options, plan, store)
    print(summary(options, plan, store))
    passed, spent = time.perf_counter() - began, sum(os.times()[:4])  # of children too
    load = os.getloadavg()[2]
    print(
        f"this time {passed / 60:.1f} min, {spent / 60:.1f} min of CPU; load of the last 15 min "
        f"{load:.1f}, {os.cpu_count()} cores"
    )
    print(f"written to {options.out.resolve()}")
    wrong = faults(options, plan, store)
    for fault in wrong:
        print(f"does NOT hold: {fault}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
