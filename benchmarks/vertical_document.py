"""The data sets and runs of the PIVODL paper's experiments, for the benchmarks that repeat them.

UCI data, as a folder of zip files: ``credit-default.zip`` (default of credit card clients),
``bank-marketing.zip`` (``bank-full.csv``), ``appliances-energy.zip`` (Appliances energy
prediction). Text columns are numbered in alphabetical order. 80 % of the rows train; columns and
labels are dealt at random to 4 parties by the seed, which draws the rows for evaluation too.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from vertical_xgboost_central import read_data

from fedapp.simulation import SimulationResult, simulate
from fedapp.site_data import Spread, party_table

PARTIES = 4
ID = "row-number"


@dataclass(frozen=True)
class DataSet:
    """One of the paper's data sets.

    Attributes
    ----------
    file : str
    label : str
    settings : mapping
        Of the task, by key.
    clip : float
        C of partial differential privacy, in the unit of margins.
    drop : tuple of str
        Columns that are no features.
    """

    file: str
    label: str
    settings: Mapping[str, Any]
    clip: float
    drop: tuple[str, ...] = ()

    def read(self, folder: Path, *, rows: int | None = None) -> pd.DataFrame:
        """Read the rows (the first so many)."""
        path = folder / self.file
        if not path.is_file():
            sys.exit(f"{path}: no such file")
        frame = read_data(path, drop=self.drop, label=self.label)
        return frame if rows is None else frame.head(rows)


DATA_SETS: dict[str, DataSet] = {
    "credit": DataSet(
        "credit-default.zip",
        "class",
        {"objective": "binary:logistic", "base-score": "0.5"},
        clip=0.1,
        drop=("ID",),
    ),
    "bank": DataSet(
        "bank-marketing.zip",
        "y",
        {
            "objective": "binary:logistic",
            "positive-label": "yes",
            "negative-label": "no",
            "base-score": "0.5",
        },
        clip=0.1,
    ),
    "energy": DataSet(
        "appliances-energy.zip",
        "Appliances",
        {"objective": "reg:squarederror", "base-score": "mean"},
        clip=2.0,
    ),
}


@dataclass(frozen=True)
class Setting:
    """What the experiments share, and what they vary.

    Attributes
    ----------
    depth, trees : int
    options : mapping
        Further settings of the task, by key.
    seeded_noise : bool
        Draw the noise of partial differential privacy from the seed, so that a run repeats.
    """

    depth: int = 3
    trees: int = 5
    options: Mapping[str, Any] = field(default_factory=dict)
    seeded_noise: bool = False


def party_frames(
    frame: pd.DataFrame, data: DataSet, *, seed: int, parties: int = PARTIES
) -> list[pd.DataFrame]:
    """Deal the rows to the parties."""
    spread = Spread(id=ID, label=data.label)
    return [party_table(frame, spread, site=at, sites=parties, seed=seed) for at in range(parties)]


def train(
    frames: list[pd.DataFrame], data: DataSet, setting: Setting, *, seed: int, run_dir: str
) -> SimulationResult:
    """Train once; with plain sums unless told otherwise: the trees are those of encrypted ones."""
    task = {
        "id": ID,
        "label": data.label,
        "max-depth": setting.depth,
        "num-trees": setting.trees,
        "encryption": "none",
        "shuffle": False,
        **data.settings,
        **setting.options,
    }
    config = {f"vertical-xgboost.{key}": value for key, value in task.items()}
    config |= {"run-dir": run_dir, "seeded-noise": setting.seeded_noise}
    result = simulate("vertical-xgboost", sites=frames, config=config, seed=seed)
    if result.summary["status"] != "ok":
        sys.exit(f"{result.summary['status']}: {result.summary.get('reason', '')}")
    return result


def privacy(data: DataSet, epsilon: float, *, sensitivity: str = "exact") -> dict[str, Any]:
    """Settings of partial differential privacy; epsilon 0: off."""
    if not epsilon:
        return {}
    return {"dp-epsilon": float(epsilon), "dp-clip": data.clip, "sensitivity": sensitivity}
