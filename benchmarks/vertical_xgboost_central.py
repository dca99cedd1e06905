"""The central reference learner of the vertical XGBoost task beside XGBoost itself.

Both learn the same buckets (32 quantile buckets from the training rows) of the same 80/20 split,
five trees of depth 3; XGBoost's ``hist`` is given the bucket numbers. Text columns become the
numbers of their values in alphabetical order.

    python benchmarks/vertical_xgboost_central.py --data credit.zip --label class --drop ID
    python benchmarks/vertical_xgboost_central.py --data bank.zip --label y --positive-label yes
    python benchmarks/vertical_xgboost_central.py --data energy.zip --label Appliances \\
        --objective reg:squarederror --drop date

A file may be a zip of one CSV file. Exits with 1 if accuracy differs by more than .001 (RMSE: .1)
on a seed, or if a fit takes over 1.5 s.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pandas as pd

from fedapp.vertical_against_xgboost import xgboost_margins
from tasks.vertical_xgboost.central import fit_central
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.joined import JoinedTable, join
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.rows import read_table

LARGEST_DIFFERENCE = {"binary:logistic": 0.001, "reg:squarederror": 0.1}
MAX_SECONDS = 1.5


@dataclass(frozen=True)
class SeedResult:
    """One split: accuracy or RMSE on the test rows, and seconds of our fit."""

    seed: int
    ours: float
    xgboost: float
    largest_margin_difference: float
    seconds: float


def read_data(path: Path, *, drop: Sequence[str], label: str) -> pd.DataFrame:
    """Read a table, number its text columns and its rows."""
    frame = pd.read_csv(path, sep=None, engine="python")
    frame = frame.drop(columns=list(drop))
    for name in frame.columns:
        if name != label and not pd.api.types.is_numeric_dtype(frame[name].dtype):
            frame[name] = frame[name].astype("category").cat.codes
    frame.insert(0, "row-number", np.arange(len(frame)))
    return frame


def compare(
    frame: pd.DataFrame, seed: int, *, label: str, config: VerticalXGBoostConfig
) -> SeedResult:
    """Fit both on one split."""
    party = read_table(frame, id_column="row-number", label_column=label, config=config, seed=seed)
    table = join({"all": party})
    start = time.perf_counter()
    model = fit_central(table, config)
    seconds = time.perf_counter() - start
    ours = model.margins(table.features)
    theirs = xgboost_margins(
        table, config, base_scores=model.base_scores, num_trees=config.num_trees
    )
    return SeedResult(
        seed=seed,
        ours=quality(ours, table, config),
        xgboost=quality(theirs, table, config),
        largest_margin_difference=float(np.abs(ours - theirs).max()),
        seconds=seconds,
    )


def quality(margins: Any, table: JoinedTable, config: VerticalXGBoostConfig) -> float:
    """Accuracy or RMSE on the test rows, written down anew."""
    predicted, labels = margins[0, table.is_evaluation], table.labels[table.is_evaluation]
    if config.objective == "binary:logistic":
        return float(np.mean((predicted > 0) == (labels == 1)))
    return float(np.sqrt(np.mean((predicted - labels) ** 2)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison over seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="CSV file, or a zip of one")
    parser.add_argument("--label", required=True, help="label column")
    parser.add_argument("--positive-label", default="1")
    parser.add_argument("--drop", nargs="*", default=[], help="columns that are no features")
    parser.add_argument("--objective", choices=list(LARGEST_DIFFERENCE), default="binary:logistic")
    parser.add_argument("--base-score", default="mean")
    parser.add_argument("--max-depth", type=int, default=3)
    parser.add_argument("--num-trees", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5, help="splits 0 to this number less one")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args(arguments)
    config = VerticalXGBoostConfig(
        objective=options.objective,
        positive_label=options.positive_label,
        base_score=options.base_score,
        max_depth=options.max_depth,
        num_trees=options.num_trees,
    )
    frame = read_data(options.data, drop=options.drop, label=options.label)
    results = [
        compare(frame, seed, label=options.label, config=config) for seed in range(options.seeds)
    ]
    return report(results, config, options.json)


def report(results: list[SeedResult], config: VerticalXGBoostConfig, path: Path | None) -> int:
    """Print a table; 0 if what must hold does."""
    name = objective_of(config).quality_name
    print(f"seed  {name}  xgboost's  largest margin difference  seconds")
    for result in results:
        print(
            f"{result.seed:4}  {result.ours:8.4f}  {result.xgboost:9.4f}  "
            f"{result.largest_margin_difference:25.2g}  {result.seconds:7.2f}"
        )
    ours = np.array([result.ours for result in results])
    print(f"mean  {ours.mean():8.4f}  {np.mean([r.xgboost for r in results]):9.4f}")
    allowed = LARGEST_DIFFERENCE[config.objective]
    holds = all(
        abs(result.ours - result.xgboost) <= allowed and result.seconds <= MAX_SECONDS
        for result in results
    )
    verdict = "holds" if holds else "does NOT hold"
    print(f"{name} within {allowed} and fits within {MAX_SECONDS} s: {verdict}")
    if path:
        rows = [asdict(result) for result in results]
        path.write_text(json.dumps({"holds": holds, "seeds": rows}, indent=2) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
