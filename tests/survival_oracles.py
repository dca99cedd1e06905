"""Rows whose times lie on a grid without ties: there every estimate of censoring is the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sksurv.util import Surv

from tasks.survival.risk_sets import RiskSetSums


@dataclass(frozen=True)
class GridRows:
    """Rows 1..n in time, one a grid point."""

    time: NDArray[np.float64]
    event: NDArray[np.bool_]
    risk: NDArray[np.float64]
    survival: NDArray[np.float64]
    grid: NDArray[np.float64]

    @property
    def counts(self) -> RiskSetSums:
        return RiskSetSums.of(self.time, self.event, np.zeros(self.time.size), grid=self.grid)

    @property
    def structured(self):
        return Surv.from_arrays(self.event, self.time)


def grid_rows(seed: int, rows: int, *, events: float = 0.6, decimals: int = 1) -> GridRows:
    """Untied times on grid points, tied risks, survival that goes with the risk."""
    rng = np.random.default_rng(seed)
    risk = np.round(rng.normal(size=rows), decimals)
    order = np.argsort(np.argsort(rng.exponential(size=rows) * np.exp(-0.8 * risk)))
    time = order + 1.0
    grid = np.arange(rows + 1.0)
    hazard = np.exp(0.8 * risk + 0.2 * rng.normal(size=rows))
    survival = np.exp(-np.outer(hazard, grid / rows))
    return GridRows(time, rng.random(rows) < events, risk, survival, grid)
