"""C-index by noise and clip norm: federated-survival's own table, and one with power.

SDGM1 with 200 rows, 5 features and censoring rate .4; 3 clients, rows dealt at random; DeepSurv,
5 rounds of 3 steps; everything else the product's default. Harrell's C by lifelines.

1. The table of federated-survival's privacy page: 40 of the 200 rows kept for the test, seeds 0-2,
   beside what that page has. It cannot tell much: on 40 rows the C-index of the true risk itself
   varies by more than the rows of the table differ.
2. The same models, 20 seeds, on 4,000 fresh rows of the generator each, with 95 % confidence
   intervals over seeds, below the C-index of the true risk on the same rows.

    python benchmarks/survival_dp_table.py [--quick] [--seeds 0-19] [--test-rows 4000] [--json FILE]

The exit code is 1 if the second table has, without privatization, a mean that is below the lower
end of federated-survival's .526 +- .006.
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from lifelines.utils import concordance_index
from seed_intervals import Interval, seeds
from survival_data_sets import EVENT, TIME, deal, split

from fedapp.fingerprint import code_fingerprint
from fedapp.simulation import simulate
from tasks.survival.generators import Design, SimulatedSurvival, generate
from tasks.survival.predictor import SurvivalPredictor

DESIGN = Design(n_rows=200, n_features=5, censoring_rate=0.4)
N_SITES, ROUNDS, LOCAL_STEPS = 3, 5, 3
SMALL_SEEDS = (0, 1, 2)
FRESH = 1_000_000
"""Added to a seed for the rows that are drawn for the test only."""

PEER_OFF = 0.526
"""federated-survival without privatization, measured as the second table is, +- .006."""

LEAST_OFF = PEER_OFF - 0.006

VERSIONS_OF = ("flwr", "torch", "numpy", "lifelines", "scikit-learn")

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """A row of the tables: Gaussian noise by multiplier and clip norm, or none at all.

    ``page``: C-index on federated-survival's page; ``peer``: its C-index on fresh rows, if known.
    """

    multiplier: float | None
    clip_norm: float | None
    page: float
    peer: float | None = None

    @property
    def name(self) -> str:
        """As the tables have it."""
        if self.multiplier is None:
            return "DP off"
        return f"{self.multiplier:g}, clip {self.clip_norm:g}"

    @property
    def config(self) -> dict[str, bool | int | float | str]:
        """Keys of the run configuration; noise from the seed, so that the tables repeat."""
        if self.multiplier is None or self.clip_norm is None:
            return {"survival.dp-mechanism": "none"}
        return {
            "seeded-noise": True,
            "survival.dp-mechanism": "gaussian",
            "survival.dp-noise-multiplier": self.multiplier,
            "survival.dp-clip-norm": self.clip_norm,
        }


ROWS = (
    Row(None, None, 0.5454, PEER_OFF),
    Row(0.01, 1.0, 0.5357),
    Row(0.05, 1.0, 0.5348),
    Row(0.1, 1.0, 0.5200, 0.516),
    Row(0.3, 1.0, 0.5349),
    Row(0.5, 1.0, 0.5579),
    Row(1.0, 1.0, 0.5602, 0.499),
    Row(2.0, 1.0, 0.5000),
    Row(0.1, 0.1, 0.5357),
    Row(0.1, 0.01, 0.5064),
    Row(0.5, 0.01, 0.5040),
)


@dataclass(frozen=True)
class Cell:
    """One model: a row of the tables and a seed.

    Attributes
    ----------
    row : str
        Name of the row, or "true risk".
    seed : int
    small, fresh : float
        Harrell's C on the rows kept for the test, and on those that are drawn for it.
    noise_to_signal : float or None
        Largest over sites and rounds; infinite if no signal could be told from the noise.
    identical : bool
        Whether all fresh rows have the same risk.
    """

    row: str
    seed: int
    small: float
    fresh: float
    noise_to_signal: float | None = None
    identical: bool = False


@dataclass(frozen=True, eq=False)
class Draw:
    """The data of one seed: training and test rows of the 200, and fresh ones with true risks."""

    train: pd.DataFrame
    test: pd.DataFrame
    test_risk: FloatArray
    fresh: pd.DataFrame
    fresh_risk: FloatArray


def draw(seed: int, *, test_rows: int) -> Draw:
    """Draw the rows of one seed."""
    own = generate("SDGM1", DESIGN, seed=seed)
    design = Design(n_rows=test_rows, n_features=5, censoring_rate=0.4)
    fresh = generate("SDGM1", design, seed=FRESH + seed)
    train, test = split(_frame(own), seed=seed)
    return Draw(train, test, own.risk[test.index], _frame(fresh), fresh.risk)


def _frame(drawn: SimulatedSurvival) -> pd.DataFrame:
    names = [f"x{number}" for number in range(1, drawn.features.shape[1] + 1)]
    frame = pd.DataFrame(drawn.features, columns=names)
    return frame.assign(**{TIME: drawn.time, EVENT: drawn.event.astype("int64")})


def harrell(rows: pd.DataFrame, risk: FloatArray) -> float:
    """Return lifelines' concordance of risks with the rows' outcomes."""
    return float(concordance_index(rows[TIME], -risk, rows[EVENT]))


def true_risk(data: Draw, seed: int) -> Cell:
    """Return the C-index of the risk that the rows were drawn with."""
    small, fresh = harrell(data.test, data.test_risk), harrell(data.fresh, data.fresh_risk)
    return Cell("true risk", seed, small, fresh)


def measure(row: Row, data: Draw, seed: int) -> Cell:
    """Train one model, and evaluate it on both kinds of test rows."""
    with tempfile.TemporaryDirectory() as run_dir:
        result = simulate(
            "survival",
            sites=deal(data.train, n_sites=N_SITES, seed=seed),
            config={
                "run-dir": run_dir,
                "survival.rounds": ROUNDS,
                "survival.local-steps": LOCAL_STEPS,
                "survival.test-fraction": 0.0,
                **row.config,
            },
            seed=seed,
        )
        summary = result.summary
        if summary["status"] != "ok":
            raise RuntimeError(f"seed {seed}: {summary['status']}: {summary.get('reason', '')}")
        predictor = SurvivalPredictor.load(result.run_folder / "model.npz")
    fresh = predictor.risk(data.fresh)
    ratio = summary.get("noise-to-signal-max")
    return Cell(
        row.name,
        seed,
        harrell(data.test, predictor.risk(data.test)),
        harrell(data.fresh, fresh),
        math.inf if "noise-to-signal-unbounded" in summary else ratio,
        bool(np.ptp(fresh) == 0),
    )


def tables(cells: Sequence[Cell], *, test_rows: int) -> str:
    """Return both tables as text."""
    by_row: dict[str, list[Cell]] = {}
    for cell in cells:
        by_row.setdefault(cell.row, []).append(cell)
    rows = {row.name: row for row in ROWS}
    small = [cell.seed for cell in by_row["true risk"] if cell.seed in SMALL_SEEDS]
    lines = [
        f"1. 40 test rows, seeds {', '.join(map(str, small))}: mean C-index, and sd over seeds",
        f"{'multiplier':>16}  {'C-index':>7}  {'sd':>5}  {'page':>6}",
    ]
    for name, found in by_row.items():
        c = [cell.small for cell in found if cell.seed in SMALL_SEEDS]
        page = f"{rows[name].page:6.4f}" if name in rows else f"{'-':>6}"
        if c:
            sd = f"{np.std(c, ddof=1):5.3f}" if len(c) > 1 else f"{'-':>5}"
            lines.append(f"{name:>16}  {np.mean(c):7.4f}  {sd}  {page}")
    n_seeds = len(by_row["true risk"])
    lines += [
        "",
        f"2. {test_rows:,} fresh test rows, {n_seeds} seeds: mean C-index (95 % CI)",
        f"{'multiplier':>16}  {'C-index':>7}  {'(95 % CI)':16}  {'peer':>5}  "
        f"{'noise/signal, median':>20}  identical",
    ]
    for name, found in by_row.items():
        of = Interval.of([cell.fresh for cell in found])
        ratios = [cell.noise_to_signal for cell in found if cell.noise_to_signal is not None]
        known = rows[name].peer if name in rows else None
        lines.append(
            f"{name:>16}  {of.mean:7.4f}  ({of.lower:.4f}, {of.upper:.4f})  "
            f"{'-' if known is None else format(known, '.3f'):>5}  "
            f"{_ratio(ratios):>20}  "
            f"{sum(cell.identical for cell in found)}/{len(found)}"
        )
    verdict = "holds" if holds(cells) else "does NOT hold"
    lines.append(f"DP off: mean >= {LEAST_OFF:.3f}: {verdict}")
    return "\n".join(lines)


def _ratio(ratios: Sequence[float]) -> str:
    if not ratios:
        return "-"
    median = float(np.median(ratios))
    return "unbounded" if median == math.inf else format(median, ".2f")


def holds(cells: Sequence[Cell]) -> bool:
    """Whether the mean without privatization is as high as it has to be."""
    off = [cell.fresh for cell in cells if cell.row == ROWS[0].name]
    return float(np.mean(off)) >= LEAST_OFF


def document(cells: Sequence[Cell], *, test_rows: int) -> dict[str, Any]:
    """Return everything for a JSON file; a ratio without bound is the text ``"unbounded"``."""
    written = [asdict(cell) for cell in cells]
    for cell in written:
        if cell["noise_to_signal"] == math.inf:
            cell["noise_to_signal"] = "unbounded"
    names = dict.fromkeys(cell.row for cell in cells)
    return {
        "benchmark": "survival_dp_table",
        "setting": {
            "design": asdict(DESIGN),
            "n_sites": N_SITES,
            "rounds": ROUNDS,
            "local_steps": LOCAL_STEPS,
            "test_rows": test_rows,
        },
        "versions": {
            "fedapp": code_fingerprint(),
            **{name: version(name) for name in VERSIONS_OF},
        },
        "rows": [asdict(row) for row in ROWS],
        "fresh": {
            name: asdict(Interval.of([cell.fresh for cell in cells if cell.row == name]))
            for name in names
        },
        "cells": written,
        "holds": holds(cells),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seeds", type=seeds, default=seeds("0-19"), help="default 0-19")
    parser.add_argument("--test-rows", type=int, default=4000, help="fresh ones; default 4000")
    parser.add_argument("--quick", action="store_true", help="seeds 0-3 and 1,000 fresh rows")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    chosen = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if chosen.test_rows < 20:
        parser.error("--test-rows must be 20 or more")
    with_seeds = seeds("0-3") if chosen.quick else chosen.seeds
    test_rows = 1000 if chosen.quick else chosen.test_rows
    draws = {seed: draw(seed, test_rows=test_rows) for seed in with_seeds}
    cells = [true_risk(data, seed) for seed, data in draws.items()]
    for row in ROWS:
        cells += [measure(row, data, seed) for seed, data in draws.items()]
        print(f"{row.name} done", file=sys.stderr, flush=True)
    print(tables(cells, test_rows=test_rows))
    if chosen.json is not None:
        numbers = document(cells, test_rows=test_rows)
        chosen.json.write_text(json.dumps(numbers, indent=2) + "\n")
    return 0 if holds(cells) else 1


if __name__ == "__main__":
    sys.exit(main())
