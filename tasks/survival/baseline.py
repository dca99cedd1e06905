"""Baseline hazard of a proportional-hazards model from binned sums of the sites.

The server adds the sites' risk sets on the grid of times (`tasks.survival.risk_sets`) and takes
the Breslow estimate with an actuarial correction for what happens inside a cell.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.survival.risk_sets import FloatArray, RiskSetSums, hazard_ratio


@dataclass(frozen=True, eq=False)
class BaselineHazard:
    """Cumulative hazard of a row whose linear predictor equals `center`.

    Attributes
    ----------
    grid : ndarray, shape (bins + 1,)
        Times, ascending from 0 to the horizon.
    cumulative : ndarray, shape (bins + 1,)
        Cumulative hazard at these times, from 0; linear between them.
    center : float
        Constant subtracted from every linear predictor.

    Raises
    ------
    ValueError
        If the arrays do not have this form; all faults in one message.
    """

    grid: FloatArray
    cumulative: FloatArray
    center: float = 0.0

    def __post_init__(self) -> None:
        if self.grid.ndim != 1 or self.grid.shape != self.cumulative.shape or self.grid.size < 2:
            raise ValueError(
                "baseline grid and cumulative hazard must be vectors of one length of at least 2, "
                f"got shapes {self.grid.shape} and {self.cumulative.shape}"
            )
        faults = []
        if not _ascends(self.grid, strictly=True):
            faults.append("baseline grid must be finite and ascend from 0")
        if not _ascends(self.cumulative, strictly=False):
            faults.append("baseline cumulative hazard must be finite and ascend from 0")
        if not np.isfinite(self.center):
            faults.append(f"baseline center must be finite, got {self.center}")
        if faults:
            raise ValueError("; ".join(faults))

    @property
    def horizon(self) -> float:
        """End of the grid; nothing is known beyond it."""
        return float(self.grid[-1])

    @property
    def has_events(self) -> bool:
        """False if no event was seen at all: the hazard is 0 and every survival 1."""
        return bool(self.cumulative[-1] > 0)

    def refuse_outside(self, times: FloatArray) -> None:
        """Raise ValueError if a time lies outside 0..horizon."""
        outside = ~((times >= 0) & (times <= self.horizon))
        if outside.any():
            raise ValueError(
                f"{outside.sum()} of {times.size} times lie outside 0..{self.horizon:g}, "
                "the range of the baseline hazard"
            )

    def survival(self, times: npt.ArrayLike, risk: npt.ArrayLike) -> FloatArray:
        """Probability of no event up to each time, for each row.

        Parameters
        ----------
        times : array_like, shape (m,)
            From 0 to the horizon, in any order.
        risk : array_like, shape (n,)
            Linear predictor of every row.

        Returns
        -------
        ndarray, shape (n, m)

        Raises
        ------
        ValueError
            If a time lies outside 0..horizon or a risk is not finite.
        """
        times = np.atleast_1d(np.asarray(times, dtype=np.float64))
        self.refuse_outside(times)
        cumulative = np.interp(times, self.grid, self.cumulative)
        return np.exp(-np.outer(hazard_ratio(risk, center=self.center), cumulative))


def breslow(
    sums_of_sites: Sequence[RiskSetSums], grid: FloatArray, *, center: float = 0.0
) -> BaselineHazard:
    """Pooled Breslow estimate, with the actuarial correction within cells.

    The hazard of a cell is its events over the mean weight at risk: the weight at the cell's
    start less half of the weight that leaves in it (Breslow 1974 on exact times; life table
    correction as in Kalbfleisch and Prentice, Statistical Analysis of Failure Time Data, 1.4).
    A cell in which nobody is at risk has no hazard.

    Parameters
    ----------
    sums_of_sites : sequence of RiskSetSums
        At least one; in the order of the sites' names, for equal results down to the last bit.
    grid : ndarray, shape (bins + 1,)
        The grid of all the sums.
    center : float
        The constant that the sites subtracted.

    Raises
    ------
    ValueError
        If there is no site or the shapes differ.
    """
    if not sums_of_sites:
        raise ValueError("a baseline hazard needs the sums of at least one site")
    total = functools.reduce(operator.add, sums_of_sites)
    mean_weight = (total.at_risk_weight[:-1] + total.at_risk_weight[1:]) / 2
    hazard = np.divide(
        total.events, mean_weight, out=np.zeros_like(mean_weight), where=mean_weight > 0
    )
    return BaselineHazard(grid, np.concatenate(([0.0], np.cumsum(hazard))), center)


def _ascends(values: FloatArray, *, strictly: bool) -> bool:
    steps = np.diff(values)
    ascends = (steps > 0).all() if strictly else (steps >= 0).all()
    return bool(np.isfinite(values).all() and values[0] == 0 and ascends)
