"""Cuts of time for discrete models: where they lie, and in which interval a row's time falls.

k intervals have k + 1 cuts, from 0 to the end of follow-up. They come from pooled counts on the
public time grid, so a cut is a point of that grid and no row's time.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from tasks.survival.curves import kaplan_meier
from tasks.survival.risk_sets import FloatArray, IntArray

Scheme = Literal["quantiles", "equidistant"]


def label_cuts(
    grid: FloatArray,
    events: FloatArray,
    at_risk: FloatArray,
    num_durations: int,
    scheme: Scheme,
) -> FloatArray:
    """Cuts from the pooled counts of all sites.

    Parameters
    ----------
    grid : ndarray, shape (bins + 1,)
        Times, ascending from 0 to the horizon.
    events : ndarray, shape (bins,)
        Events in every cell.
    at_risk : ndarray, shape (bins + 1,)
        Rows whose time exceeds each point of the grid.
    num_durations : int
        Intervals that are wanted, at least 1.
    scheme : {"quantiles", "equidistant"}
        ``"quantiles"``: between two cuts the Kaplan-Meier estimate falls by equal amounts, as
        nearly as the grid allows. It is ``pycox.preprocessing.discretization.cuts_quantiles`` of
        the times rounded up to the grid. ``"equidistant"``: intervals of equal width.

    Returns
    -------
    ndarray, shape (k + 1,)
        Ascending from 0 to the point of the grid by which every row has left, at most the
        horizon. Quantiles give k less than `num_durations` where fewer points of the grid differ.

    Raises
    ------
    ValueError
        If shapes do not fit, or there are no rows.
    """
    if events.shape != (grid.size - 1,) or at_risk.shape != grid.shape:
        raise ValueError(
            f"a grid of {grid.size} points needs {grid.size - 1} numbers of events and as many at "
            f"risk as points, got shapes {events.shape} and {at_risk.shape}"
        )
    if num_durations < 1 or at_risk[0] <= 0:
        raise ValueError(
            f"cuts need rows and 1 interval, got {at_risk[0]:g} rows and {num_durations} intervals"
        )
    gone = np.flatnonzero(at_risk <= 0)
    end = int(gone[0]) if gone.size else grid.size - 1
    if scheme == "equidistant":
        return np.linspace(0.0, float(grid[end]), num_durations + 1)
    leaving = np.concatenate(([True], at_risk[1 : end + 1] < at_risk[:end]))
    leaving[end] = True
    points, survival = grid[: end + 1][leaving], _kaplan_meier(events, at_risk, end)[leaving]
    levels = np.linspace(survival[-1], 1.0, num_durations + 1)
    # The last point at which survival is still at or above each level. It falls with time, so the
    # points are searched from the end.
    found = np.searchsorted(survival[::-1], levels - _EQUAL, side="left")
    cuts = np.unique(points[::-1][found])
    cuts[0] = 0.0
    return cuts if cuts.size > 1 else np.array([0.0, float(grid[end])])


_EQUAL = 1e-12  # levels and survival are rounded differently where they are the same number


def _kaplan_meier(events: FloatArray, at_risk: FloatArray, end: int) -> FloatArray:
    """Kaplan-Meier estimate at the first points of the grid, of times rounded up to it."""
    hazard = np.minimum(events[:end] / at_risk[:end], 1.0)
    return np.concatenate(([1.0], np.cumprod(1.0 - hazard)))


def survival_at(
    cuts: FloatArray, grid: FloatArray, events: FloatArray, at_risk: FloatArray
) -> FloatArray:
    """Pooled Kaplan-Meier estimate at the cuts, from the counts that `label_cuts` takes."""
    return np.interp(cuts, grid, kaplan_meier(at_risk, events))


def discrete_labels(
    time: FloatArray, event: npt.NDArray[np.bool_], cuts: FloatArray
) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Interval of each row for models of discrete time, and whether the event was seen in it.

    Interval j is open at ``cuts[j]`` and closed at ``cuts[j + 1]``. An event belongs to the
    interval that it is in; a censored row has survived the intervals up to the one returned, which
    ends at or before its time (-1: not even the first). A row beyond the last cut is censored
    there. ``pycox.preprocessing.label_transforms.LabTransDiscreteTime`` counts from 1 and has 0
    for -1, and models an event at time 0, which no row has.

    Returns
    -------
    interval : ndarray of int, shape (n,)
        -1 to k - 1.
    event : ndarray of bool, shape (n,)
    """
    seen = event & (time <= cuts[-1])
    own = np.searchsorted(cuts, np.minimum(time, cuts[-1]), side="left") - 1
    survived = np.searchsorted(cuts, time, side="right") - 2
    return np.where(seen, own, survived), seen


def piecewise_labels(
    time: FloatArray, event: npt.NDArray[np.bool_], cuts: FloatArray
) -> tuple[IntArray, npt.NDArray[np.bool_], FloatArray]:
    """Interval of each row for a piecewise constant hazard, event, and share of it that passed.

    As ``pycox.preprocessing.label_transforms.LabTransPCHazard``: a row belongs to the interval
    that its time is in, censored or not. A row beyond the last cut is censored there (in pycox
    it passes more than the whole interval).

    Returns
    -------
    interval : ndarray of int, shape (n,)
        0 to k - 1.
    event : ndarray of bool, shape (n,)
    share : ndarray, shape (n,)
        Part of the interval before the row's time, above 0 up to 1.
    """
    seen = event & (time <= cuts[-1])
    time = np.minimum(time, cuts[-1])
    own = np.searchsorted(cuts, time, side="left") - 1
    return own, seen, (time - cuts[own]) / (cuts[own + 1] - cuts[own])


def subdivided(cuts: FloatArray) -> FloatArray:
    """Cuts with nine points more between any two of them, shape (10 k + 1,).

    Fine enough for a curve that is exponential between cuts to be taken as linear.
    """
    points = np.arange(_PARTS * (cuts.size - 1) + 1) / _PARTS
    return np.interp(points, np.arange(cuts.size), cuts)


_PARTS = 10


def between_points(values: FloatArray, points: FloatArray, times: FloatArray) -> FloatArray:
    """Values of each row at times between points, linear; beyond the last point its value.

    Parameters
    ----------
    values : ndarray, shape (n, points)
    points : ndarray, shape (points,)
        Ascending, at least two.
    times : ndarray, shape (m,)
        From the first point on.

    Returns
    -------
    ndarray, shape (n, m)
    """
    cell = np.clip(np.searchsorted(points, times, side="right") - 1, 0, points.size - 2)
    share = np.clip((times - points[cell]) / (points[cell + 1] - points[cell]), 0.0, 1.0)
    return np.asarray(values[:, cell] * (1 - share) + values[:, cell + 1] * share)
