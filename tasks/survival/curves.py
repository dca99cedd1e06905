"""Predicted and observed survival by risk group, from sums of the sites.

Rows are put into groups by public cuts on their linear predictor. A site sums the predicted
survival of each group's rows and counts who is at risk and who has an event in the cells of a
public grid; from these the server draws the mean prediction beside the Kaplan-Meier curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.survival.baseline import BaselineHazard, RiskSetSums, coarsen, time_grid

FloatArray = npt.NDArray[np.float64]

CURVE_CELLS = 50
"""Most cells that a curve's grid has."""

# Cuts a normal distribution into thirds.
_THIRD = 0.43


def risk_cuts(mean: float, standard_deviation: float) -> FloatArray:
    """Two cuts on the linear predictor that make thirds of a normal one, shape (2,)."""
    return np.array([mean - _THIRD * standard_deviation, mean + _THIRD * standard_deviation])


def curve_grid(horizon: float, time_bins: int) -> FloatArray:
    """Times of the curves: at most `CURVE_CELLS` cells of equal width from 0 to `horizon`."""
    return time_grid(horizon, min(time_bins, CURVE_CELLS))


@dataclass(frozen=True, eq=False)
class GroupCurves:
    """What a site tells of its risk groups, from low to high risk.

    Attributes
    ----------
    rows : ndarray of int, shape (groups,)
        Rows in each group; 0 where it is suppressed.
    survival_sum : ndarray, shape (groups, cells + 1)
        Sum over the group's rows of the predicted survival at each time of the grid.
    at_risk_count : ndarray, shape (groups, cells + 1)
        Rows at risk just after each time of the grid, coarsened.
    events : ndarray, shape (groups, cells)
        Events in each cell, coarsened.
    suppressed : ndarray of bool, shape (groups,)
        True where the site has too few rows of the group, none included: all else is 0 there.

    Raises
    ------
    ValueError
        If shapes do not fit together, or a number is negative or not finite.
    """

    rows: npt.NDArray[np.int64]
    survival_sum: FloatArray
    at_risk_count: FloatArray
    events: FloatArray
    suppressed: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        if self.events.ndim != 2:
            raise ValueError(f"events have shape {self.events.shape}; allowed: (groups, cells)")
        groups, cells = self.events.shape
        expected = {
            "rows": (groups,),
            "survival_sum": (groups, cells + 1),
            "at_risk_count": (groups, cells + 1),
            "events": (groups, cells),
            "suppressed": (groups,),
        }
        faults = []
        for name, shape in expected.items():
            values = getattr(self, name)
            if values.shape != shape:
                faults.append(f"{name} has shape {values.shape}; allowed: {shape}")
            elif not (np.isfinite(values).all() and (values >= 0).all()):
                faults.append(f"{name} must be finite and not negative")
        if faults:
            raise ValueError("; ".join(faults))

    @classmethod
    def of(
        cls,
        time: npt.ArrayLike,
        event: npt.ArrayLike,
        linear_predictor: npt.ArrayLike,
        *,
        cuts: npt.ArrayLike,
        baseline: BaselineHazard,
        grid: FloatArray,
        privacy_level: int,
    ) -> GroupCurves:
        """Sums over the rows of one site; at least `privacy_level` rows stand behind each.

        The counts of a group are those of its rows only, so they must not be released beside
        counts of all rows together, from which a suppressed group would follow by subtraction.

        Parameters
        ----------
        time, event, linear_predictor : array_like, shape (n,)
            As for `RiskSetSums.of`.
        cuts : array_like, shape (groups - 1,)
            Ascending; a linear predictor equal to a cut belongs to the higher group.
        baseline : BaselineHazard
            Gives the predicted survival.
        grid : ndarray, shape (cells + 1,)
            See `curve_grid`; not beyond the baseline's horizon.
        privacy_level : int
            A group with fewer rows is suppressed.

        Raises
        ------
        ValueError
            If cuts do not ascend, lengths differ or a number is out of range.
        """
        time, event = np.asarray(time, dtype=np.float64), np.asarray(event, dtype=np.bool_)
        risk = np.asarray(linear_predictor, dtype=np.float64)
        cuts = np.asarray(cuts, dtype=np.float64)
        if not (np.isfinite(cuts).all() and (np.diff(cuts) >= 0).all()):
            raise ValueError("cuts must be finite and ascend")
        # Before rows are left out: what is wrong with one of them is a fault, wherever it is.
        RiskSetSums.of(time, event, risk, grid=grid)
        group = np.searchsorted(cuts, risk, side="right")
        groups, cells = cuts.size + 1, grid.size - 1
        rows = np.bincount(group, minlength=groups)
        suppressed = rows < privacy_level
        survival_sum = np.zeros((groups, cells + 1))
        at_risk_count, events = np.zeros((groups, cells + 1)), np.zeros((groups, cells))
        for index in np.flatnonzero(~suppressed):
            own = group == index
            counts = RiskSetSums.of(time[own], event[own], np.zeros(rows[index]), grid=grid)
            counts = coarsen(counts, privacy_level=privacy_level)
            at_risk_count[index], events[index] = counts.at_risk_count, counts.events
            survival_sum[index] = baseline.survival(grid, risk[own]).sum(axis=0)
        return cls(np.where(suppressed, 0, rows), survival_sum, at_risk_count, events, suppressed)


@dataclass(frozen=True, eq=False)
class RiskGroup:
    """Pooled curves of one risk group.

    Attributes
    ----------
    rows : int
        Rows of all sites behind the curves.
    suppressed_sites : int
        Sites that have too few rows of the group to tell of them.
    mean_predicted, kaplan_meier : ndarray, shape (cells + 1,), or None
        Survival at the times of the grid; None if there are no rows.
    """

    rows: int
    suppressed_sites: int
    mean_predicted: FloatArray | None
    kaplan_meier: FloatArray | None


def pool_curves(curves_of_sites: Sequence[GroupCurves]) -> tuple[RiskGroup, ...]:
    """Curves of every risk group over all sites, from low to high risk.

    Raises
    ------
    ValueError
        If there is no site, or the sites differ in groups or cells.
    """
    if not curves_of_sites:
        raise ValueError("curves need the sums of at least one site")
    shapes = {curves.events.shape for curves in curves_of_sites}
    if len(shapes) > 1:
        raise ValueError(f"sites differ in their (groups, cells): {sorted(shapes)}")
    rows = np.sum([curves.rows for curves in curves_of_sites], axis=0)
    suppressed = np.sum([curves.suppressed for curves in curves_of_sites], axis=0)
    predicted = np.sum([curves.survival_sum for curves in curves_of_sites], axis=0)
    at_risk = np.sum([curves.at_risk_count for curves in curves_of_sites], axis=0)
    events = np.sum([curves.events for curves in curves_of_sites], axis=0)
    return tuple(
        RiskGroup(
            rows=int(rows[group]),
            suppressed_sites=int(suppressed[group]),
            mean_predicted=predicted[group] / rows[group] if rows[group] else None,
            kaplan_meier=kaplan_meier(at_risk[group], events[group]) if rows[group] else None,
        )
        for group in range(rows.size)
    )


def kaplan_meier(at_risk_count: FloatArray, events: FloatArray) -> FloatArray:
    """Survival at the borders of cells from counts, with the actuarial correction.

    A row that is censored in a cell counts as half a row at risk in it (Cutler and Ederer,
    J Chronic Dis 8 (1958), 699-712): a cell with n rows at its start, d events and c censorings
    multiplies the survival by ``1 - d / (n - c / 2)``. Exact without censoring.

    Parameters
    ----------
    at_risk_count : ndarray, shape (cells + 1,)
    events : ndarray, shape (cells,)

    Returns
    -------
    ndarray, shape (cells + 1,)
        From 1; constant where nobody is at risk any more.
    """
    start = at_risk_count[:-1]
    censored = start - at_risk_count[1:] - events
    exposed = start - censored / 2
    hazard = np.divide(events, exposed, out=np.zeros_like(exposed), where=exposed > 0)
    # Rounding of coarsened counts may leave a cell whose rows all have events a hair above 1.
    return np.concatenate(([1.0], np.cumprod(1 - np.minimum(hazard, 1.0))))
