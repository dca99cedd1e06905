"""The distribution of censoring times, shared by all sites, from binned counts.

Inverse probability of censoring weights need G, the probability of not being censored up to a
time. It is estimated once, from the pooled counts of events and rows at risk on the public time
grid, and every site weights its rows by it: a sum of weighted rows over sites is then the sum
over the pooled rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tasks.survival.risk_sets import FloatArray, RiskSetSums


class CensoringWeights(Protocol):
    """What weighs rows for censoring: an estimate of G, or one that knows merged cells only."""

    def case_weights(self, times: FloatArray) -> FloatArray:
        """Weights of event times, shape (n,)."""

    def squared_weights(self, times: FloatArray, *, tau: float) -> FloatArray:
        """Squared weights of event times, 0 from `tau` on, shape (n,)."""

    def score_weights(
        self, times: FloatArray, events: npt.NDArray[np.bool_], grid: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Weights of rows as cases and as controls at points of time, each of shape (n, m)."""


@dataclass(frozen=True, eq=False)
class CensoringEstimate:
    """Probability G(t) = P(censoring time > t) on the time grid.

    Attributes
    ----------
    grid : ndarray, shape (bins + 1,)
        Times, ascending from 0.
    survival : ndarray, shape (bins + 1,)
        G at these times: from 1, not rising, not negative.
    continuous : bool
        How G goes on between grid points. True: with a constant hazard within each cell, so that
        G(t-) = G(t). False: a step function that falls at grid points only, for times that are
        rounded up to the grid; G(t-) is then its value at the grid point before t.

    Raises
    ------
    ValueError
        If the arrays do not have this form; all faults in one message.
    """

    grid: FloatArray
    survival: FloatArray
    continuous: bool = True

    def __post_init__(self) -> None:
        if self.grid.ndim != 1 or self.grid.shape != self.survival.shape or self.grid.size < 2:
            raise ValueError(
                "grid and censoring survival must be vectors of one length of at least 2, "
                f"got shapes {self.grid.shape} and {self.survival.shape}"
            )
        faults = []
        if not (
            np.isfinite(self.grid).all() and self.grid[0] == 0 and np.diff(self.grid).min() > 0
        ):
            faults.append("the grid must be finite and ascend from 0")
        if not (
            np.isfinite(self.survival).all()
            and self.survival[0] == 1
            and np.diff(self.survival).max() <= 0
            and self.survival[-1] >= 0
        ):
            faults.append("the censoring survival must fall from 1 and not be negative")
        if faults:
            raise ValueError("; ".join(faults))

    def at(self, times: npt.ArrayLike) -> FloatArray:
        """G(t), right-continuous, for times in 0..horizon."""
        values = self._checked(times)
        if not self.continuous:
            return self.survival[np.searchsorted(self.grid, values, side="right") - 1]
        return self._constant_hazard(values)

    def before(self, times: npt.ArrayLike) -> FloatArray:
        """G(t-), the probability of not being censored before t, for times in 0..horizon."""
        values = self._checked(times)
        if not self.continuous:
            cell = np.searchsorted(self.grid, values, side="left") - 1
            return self.survival[np.maximum(cell, 0)]
        return self._constant_hazard(values)

    def case_weights(self, times: FloatArray) -> FloatArray:
        """``1 / G(t-)`` of event times.

        Raises
        ------
        ValueError
            If G(t-) is 0 for any.
        """
        probability = self.before(times)
        if (probability <= 0).any():
            raise ValueError(
                f"{(probability <= 0).sum()} of {times.size} events have no weight: the "
                "probability of not being censored before them is 0; end at an earlier time"
            )
        return np.asarray(1 / probability, dtype=np.float64)

    def squared_weights(self, times: FloatArray, *, tau: float) -> FloatArray:
        """``1 / G(t-) ** 2`` of event times before `tau`, 0 of others; raises as `case_weights`."""
        weights = np.zeros(times.size)
        early = times < tau
        weights[early] = self.case_weights(times[early]) ** 2
        return weights

    def score_weights(
        self, times: FloatArray, events: npt.NDArray[np.bool_], grid: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Weights of rows in the Brier score as cases and as controls, each of shape (n, m).

        Raises
        ------
        ValueError
            If G is 0 at a point of `grid`, or before an event within it.
        """
        staying = self.at(grid)
        if (staying <= 0).any():
            raise ValueError(
                f"the probability of not being censored is 0 at {(staying <= 0).sum()} of "
                f"{grid.size} points of the integration grid; end it earlier"
            )
        scored = events & (times <= grid[-1])
        inverse = np.zeros(times.size)
        inverse[scored] = self.case_weights(times[scored])
        gone = times[:, None] <= grid
        return np.where(gone, inverse[:, None], 0.0), np.where(gone, 0.0, 1 / staying)

    def _constant_hazard(self, times: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            logarithm = np.log(self.survival)
        # A cell in which G falls to 0 has no constant hazard: there G stays until its end.
        finite = np.isfinite(logarithm)
        last = int(np.flatnonzero(finite)[-1])
        values = np.exp(np.interp(times, self.grid[: last + 1], logarithm[: last + 1]))
        if last + 1 < self.grid.size:
            values = np.where(times >= self.grid[last + 1], 0.0, values)
        return np.asarray(values, dtype=np.float64)

    def _checked(self, times: npt.ArrayLike) -> FloatArray:
        values = np.asarray(times, dtype=np.float64)
        outside = ~((values >= 0) & (values <= self.grid[-1]))
        if outside.any():
            raise ValueError(
                f"{outside.sum()} of {values.size} times lie outside 0..{self.grid[-1]:g}, "
                "the grid of the censoring estimate"
            )
        return values


def censoring_estimate(
    counts: RiskSetSums, grid: FloatArray, *, actuarial: bool = True
) -> CensoringEstimate:
    """Kaplan-Meier estimate of the censoring distribution from pooled counts.

    In a cell with n rows at risk at its start, d events and c censorings, an event precedes a
    censoring at the same time. With `actuarial`, events are taken to come evenly within the cell
    and count as half a row at risk of censoring: ``G`` is multiplied by ``1 - c / (n - d / 2)``
    and has a constant hazard within the cell. Without, all times are taken to be the cell's end:
    ``1 - c / (n - d)``, a step there, which is exact for times that lie on the grid. Where every
    cell has events only or censorings only, the two agree at grid points.

    Parameters
    ----------
    counts : RiskSetSums
        Pooled counts; weights are not used.
    grid : ndarray, shape (bins + 1,)
        The grid of the counts.
    actuarial : bool
        See above.

    Raises
    ------
    ValueError
        If the counts are not of this grid.
    """
    if grid.shape != counts.at_risk_count.shape:
        raise ValueError(
            f"counts of {counts.events.size} cells are not of a grid with shape {grid.shape}"
        )
    start = counts.at_risk_count[:-1]
    # Events of merged cells are spread, and can exceed what leaves in one of them.
    censored = np.maximum(counts.leaving_count - counts.events, 0.0)
    exposed = start - counts.events / (2 if actuarial else 1)
    hazard = np.divide(censored, exposed, out=np.zeros_like(exposed), where=exposed > 0)
    survival = np.concatenate(([1.0], np.cumprod(1 - np.minimum(hazard, 1.0))))
    return CensoringEstimate(grid, survival, continuous=actuarial)


def median_follow_up(counts: RiskSetSums, grid: FloatArray) -> float | None:
    """Median follow-up by the reverse Kaplan-Meier estimate [1]_: the time at which G is 1/2.

    None if G stays above 1/2 up to the horizon.

    References
    ----------
    .. [1] M. Schemper and T. L. Smith, A note on quantifying follow-up in studies of failure
       time, Controlled Clinical Trials 17 (1996) 343-346.
    """
    survival = censoring_estimate(counts, grid).survival
    if survival[-1] > 0.5:
        return None
    end = int(np.argmax(survival <= 0.5))
    return float(np.interp(0.5, survival[[end, end - 1]], grid[[end, end - 1]]))
