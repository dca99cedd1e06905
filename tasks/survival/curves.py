"""Predicted and observed survival by risk group, from sums of the sites.

Rows are put into groups by public cuts on their predicted risk. A site sums the predicted
survival of each group's training rows and counts who is at risk and who has an event in cells of
a public grid; from these the server draws the mean prediction beside the Kaplan-Meier curve. The
model was trained on these rows: what the curves show is calibration in the sample.

The counts of all training rows together have left the site before (`coarsen`), so the cells of the
groups are chosen such that the two releases cannot be subtracted
(`tasks.survival.common_borders`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.survival.baseline import BaselineHazard
from tasks.survival.common_borders import common_borders
from tasks.survival.risk_sets import FloatArray, IntArray, RiskSetSums, coarsen, merged_borders

MOST_CUTS = 7
"""Most cuts between risk groups; the search for borders doubles its work with every group."""

# Cuts a normal distribution into thirds.
_THIRD = 0.43


def risk_cuts(mean: float, standard_deviation: float) -> FloatArray:
    """Two cuts on the linear predictor that make thirds of a normal one, shape (2,)."""
    return np.array([mean - _THIRD * standard_deviation, mean + _THIRD * standard_deviation])


@dataclass(frozen=True, eq=False)
class GroupCurves:
    """What a site tells of its risk groups, from low to high risk.

    All is 0 if it has too few rows of any of them (see `silent`).

    Attributes
    ----------
    rows : ndarray of int, shape (groups,)
        Training rows in each group.
    survival_sum : ndarray, shape (groups, bins + 1)
        Sum over the group's rows of the predicted survival at each time of the grid; between the
        borders of cells interpolated.
    at_risk_count : ndarray, shape (groups, bins + 1)
        Rows at risk just after each time of the grid; within cells interpolated.
    events : ndarray, shape (groups, bins)
        Events between the times of the grid; those of a cell are spread.

    Raises
    ------
    ValueError
        If shapes do not fit together, or a number is negative or not finite.
    """

    rows: IntArray
    survival_sum: FloatArray
    at_risk_count: FloatArray
    events: FloatArray

    def __post_init__(self) -> None:
        if self.events.ndim != 2:
            raise ValueError(f"events have shape {self.events.shape}; allowed: (groups, bins)")
        groups, bins = self.events.shape
        expected = {
            "rows": (groups,),
            "survival_sum": (groups, bins + 1),
            "at_risk_count": (groups, bins + 1),
            "events": (groups, bins),
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

    @property
    def silent(self) -> bool:
        """Whether the site tells nothing, since it has too few rows of at least one group."""
        return not self.rows.any()

    @classmethod
    def of(
        cls,
        time: npt.ArrayLike,
        event: npt.ArrayLike,
        linear_predictor: npt.ArrayLike,
        *,
        cuts: npt.ArrayLike,
        baseline: BaselineHazard,
        privacy_level: int,
        predicted: FloatArray | None = None,
    ) -> GroupCurves:
        """Sums over the rows of one site, safe beside `coarsen` of the same rows on the same grid.

        Counts are those of the cells between `common_borders`. Within a cell a group's rows leave,
        and its events come, in the proportions of all rows together as `coarsen` tells them: that
        says nothing new and is twice as near to the truth as even spreading. Predicted survival
        is summed at the borders only, since as many sums as the grid has times would tell the
        linear predictor of every row of a small group; between them its logarithm is linear in
        the cumulative hazard, as it is if the group's rows are alike. So all that is told of a
        group beside its size is three numbers a cell, and a cell has at least `privacy_level` of
        its rows.

        Parameters
        ----------
        time, event, linear_predictor : array_like, shape (n,)
            As for `RiskSetSums.of`; of other models the risk that rows are grouped by.
        cuts : array_like, shape (groups - 1,)
            Ascending, at most `MOST_CUTS`; a risk equal to a cut belongs to the higher group.
        baseline : BaselineHazard
            Gives the predicted survival, the grid, and the shape of curves between borders.
        privacy_level : int
            With 1 all is exact, and a group may be empty.
        predicted : ndarray, shape (n, bins + 1), or None
            Survival of every row at the times of the grid, of a model without proportional
            hazards; None: by the baseline.

        Raises
        ------
        ValueError
            If cuts do not ascend, lengths differ or a number is out of range.
        """
        time, event = np.asarray(time, dtype=np.float64), np.asarray(event, dtype=np.bool_)
        risk, cuts = np.asarray(linear_predictor, dtype=np.float64), _checked_cuts(cuts)
        grid, center = baseline.grid, baseline.center
        # Before rows are left out: what is wrong with one of them is a fault, wherever it is.
        overall = RiskSetSums.of(time, event, risk, grid=grid, center=center)
        group = np.searchsorted(cuts, risk, side="right")
        members = [group == index for index in range(cuts.size + 1)]
        sums = [RiskSetSums.of(time[own], event[own], risk[own], grid=grid) for own in members]
        borders = _borders(overall, sums, privacy_level)
        if borders is None:
            return cls._nothing(len(members), bins=grid.size - 1)
        like = coarsen(overall, privacy_level=privacy_level)
        at = np.minimum(borders, grid.size - 1)  # nothing is predicted behind the horizon
        at_borders = baseline.survival(grid[at], risk) if predicted is None else predicted[:, at]
        return cls(
            rows=np.array([own.sum() for own in members]),
            survival_sum=np.stack([_survival(baseline, at_borders[own], at) for own in members]),
            at_risk_count=np.stack([_at_risk(own, like, borders) for own in sums]),
            events=np.stack([_events(own, like, borders) for own in sums]),
        )

    @classmethod
    def _nothing(cls, groups: int, *, bins: int) -> GroupCurves:
        per_border, per_bin = np.zeros((groups, bins + 1)), np.zeros((groups, bins))
        return cls(np.zeros(groups, dtype=np.int64), per_border, per_border, per_bin)


def _checked_cuts(cuts: npt.ArrayLike) -> FloatArray:
    values = np.asarray(cuts, dtype=np.float64)
    if values.ndim != 1 or values.size > MOST_CUTS:
        raise ValueError(f"cuts have shape {values.shape}; allowed: (0,) to ({MOST_CUTS},)")
    if not (np.isfinite(values).all() and (np.diff(values) >= 0).all()):
        raise ValueError("cuts must be finite and ascend")
    return values


def _borders(
    overall: RiskSetSums, sums: Sequence[RiskSetSums], privacy_level: int
) -> IntArray | None:
    """Common borders of the groups of a site, or None if it must be silent."""
    if overall.at_risk_count[0] < privacy_level:
        return None
    fine = merged_borders(overall, privacy_level=privacy_level)
    leaving = np.stack([own.leaving_by_slot for own in sums])
    return common_borders(leaving, fine, least=privacy_level)


def _at_risk(own: RiskSetSums, like: RiskSetSums, borders: IntArray) -> FloatArray:
    """Rows of a group at risk: exact at the borders, between them falling as `like` does."""
    rows = own.at_risk_count[0]
    gone = _follow(_gone(own), like=_gone(like), borders=borders)
    return np.asarray(np.clip(rows - gone[:-1], 0.0, rows), dtype=np.float64)


def _events(own: RiskSetSums, like: RiskSetSums, borders: IntArray) -> FloatArray:
    """Events of a group: the sum of every cell exact, spread over it as those of `like`."""
    seen = _follow(_seen(own), like=_seen(like), borders=borders)
    return np.maximum(np.diff(seen[:-1]), 0.0)


def _survival(baseline: BaselineHazard, at_borders: FloatArray, at: IntArray) -> FloatArray:
    """Summed predicted survival: exact at the borders, its logarithm linear in the hazard."""
    rows = len(at_borders)
    if not rows:
        return np.zeros(baseline.grid.size)
    mean = at_borders.mean(axis=0)
    log_mean = np.log(np.maximum(mean, np.finfo(np.float64).tiny))
    hazard = baseline.cumulative
    return np.asarray(rows * np.exp(np.interp(hazard, hazard[at], log_mean)), dtype=np.float64)


def _gone(sums: RiskSetSums) -> FloatArray:
    """Rows gone before every slot and after the last one, shape (slots + 1,)."""
    return np.concatenate(([0.0], np.cumsum(sums.leaving_by_slot)))


def _seen(sums: RiskSetSums) -> FloatArray:
    """Events before every slot and after the last one, which has none, shape (slots + 1,)."""
    return np.concatenate(([0.0], np.cumsum(np.append(sums.events, 0.0))))


def _follow(values: FloatArray, *, like: FloatArray, borders: IntArray) -> FloatArray:
    """Values at the borders, between them growing in proportion to `like`."""
    return np.asarray(np.interp(like, like[borders], values[borders]), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class RiskGroup:
    """Pooled curves of one risk group.

    Attributes
    ----------
    rows : int
        Training rows of all sites behind the curves.
    mean_predicted, kaplan_meier : ndarray, shape (bins + 1,), or None
        Survival at the times of the grid; None if there are no rows.
    """

    rows: int
    mean_predicted: FloatArray | None
    kaplan_meier: FloatArray | None


@dataclass(frozen=True, eq=False)
class PooledCurves:
    """Curves over all sites that tell of their groups.

    Attributes
    ----------
    groups : tuple of RiskGroup
        From low to high risk.
    silent_sites : int
        Sites that told nothing.
    """

    groups: tuple[RiskGroup, ...]
    silent_sites: int


def pool_curves(curves_of_sites: Sequence[GroupCurves]) -> PooledCurves:
    """Curves of every risk group over all sites.

    Raises
    ------
    ValueError
        If there is no site, or the sites differ in groups or grid.
    """
    if not curves_of_sites:
        raise ValueError("curves need the sums of at least one site")
    shapes = {curves.events.shape for curves in curves_of_sites}
    if len(shapes) > 1:
        raise ValueError(f"sites differ in their (groups, bins): {sorted(shapes)}")
    rows = np.sum([curves.rows for curves in curves_of_sites], axis=0)
    predicted = np.sum([curves.survival_sum for curves in curves_of_sites], axis=0)
    at_risk = np.sum([curves.at_risk_count for curves in curves_of_sites], axis=0)
    events = np.sum([curves.events for curves in curves_of_sites], axis=0)
    groups = tuple(
        RiskGroup(
            rows=int(rows[group]),
            mean_predicted=predicted[group] / rows[group] if rows[group] else None,
            kaplan_meier=kaplan_meier(at_risk[group], events[group]) if rows[group] else None,
        )
        for group in range(rows.size)
    )
    return PooledCurves(groups, silent_sites=sum(curves.silent for curves in curves_of_sites))


def kaplan_meier(at_risk_count: FloatArray, events: FloatArray) -> FloatArray:
    """Survival at the borders of cells from counts, with the actuarial correction.

    A row that is censored in a cell counts as half a row at risk in it (Cutler and Ederer,
    J Chronic Dis 8 (1958), 699-712): a cell with n rows at its start, d events and c censorings
    multiplies the survival by ``1 - d / (n - c / 2)``. Exact without censoring.

    Parameters
    ----------
    at_risk_count : ndarray, shape (bins + 1,)
    events : ndarray, shape (bins,)

    Returns
    -------
    ndarray, shape (bins + 1,)
        From 1; constant where nobody is at risk any more.
    """
    start = at_risk_count[:-1]
    censored = start - at_risk_count[1:] - events
    exposed = start - censored / 2
    hazard = np.divide(events, exposed, out=np.zeros_like(exposed), where=exposed > 0)
    # Rounding of interpolated counts may leave a cell whose rows all have events a hair above 1.
    return np.concatenate(([1.0], np.cumprod(1 - np.minimum(hazard, 1.0))))
