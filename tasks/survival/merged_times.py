"""Censoring weights of rows of which only a merged cell of time is told.

A weight ``1 / G(t-)`` of a row's exact time gives the time away: G is public and falls all the
time, so that a sum in which few rows have weight can be solved for their times. A site therefore
merges cells of the time grid until privacy-level of its evaluation rows leave in each, and lets a
row enter the sums by its merged cell alone, with the mean over the times that a row may have
there. Whatever is solved from the sums is then a count by merged cell, as the risk sets tell it.

Within a merged cell events come as the pooled Kaplan-Meier estimate falls, and censorings as G
does. Where an event is surely past, its weight is ``1 / G`` in the mean over the cell; where the
merged cell is not over yet, a row counts as gone by the share that is gone by then. At borders of
merged cells nothing is shared, and the times of the metrics are made borders where enough rows
leave before and after.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tasks.survival.censoring import CensoringEstimate
from tasks.survival.risk_sets import FloatArray, IntArray, group_borders

BoolArray = npt.NDArray[np.bool_]


def evaluation_borders(
    time: npt.ArrayLike, grid: FloatArray, *, wanted: Iterable[int], least: int
) -> IntArray:
    """Borders of merged cells in which at least `least` rows leave, with those wanted if possible.

    Parameters
    ----------
    time : array_like, shape (n,)
        Follow-up times, at least `least` of them.
    grid : ndarray, shape (bins + 1,)
        Time grid.
    wanted : iterable of int
        Grid points to be borders, the earlier one first where only some can be.
    least : int
        Rows that leave in every merged cell.

    Returns
    -------
    ndarray of int
        First slots of the merged cells, and the end; slots are the cells of the grid and one for
        rows that stay beyond it, as of `tasks.survival.risk_sets.merged_borders`.

    Raises
    ------
    ValueError
        If there are fewer rows.
    """
    slots = _slots(time, grid)
    if slots.size < max(least, 1):
        raise ValueError(f"{slots.size} rows are too few for cells of {least}")
    leaving = np.bincount(slots, minlength=grid.size).astype(np.float64)
    gone = np.concatenate(([0.0], np.cumsum(leaving)))
    parts = [0]
    for point in sorted(set(wanted)):
        if gone[point] - gone[parts[-1]] >= least and gone[-1] - gone[point] >= least:
            parts.append(point)
    parts.append(leaving.size)
    merged = [
        start + group_borders(leaving[start:stop], least=least)[:-1]
        for start, stop in itertools.pairwise(parts)
    ]
    return np.append(np.concatenate(merged), leaving.size)


class MergedCensoring:
    """Weights of rows by merged cells; has the methods of `CensoringEstimate` that weigh rows.

    Parameters
    ----------
    censoring : CensoringEstimate
        G on the time grid.
    survival : ndarray, shape (bins + 1,)
        Pooled Kaplan-Meier estimate on it.
    borders : ndarray of int
        See `evaluation_borders`.
    upper : int
        Grid point of the upper limit: events behind it have no weight.
    by_cell : bool
        Whether a row counts as gone from the end of its own cell of the grid on. The weight of an
        event is the mean over its merged cell all the same.
    """

    def __init__(
        self,
        censoring: CensoringEstimate,
        survival: FloatArray,
        *,
        borders: IntArray,
        upper: int,
        by_cell: bool = False,
    ) -> None:
        self.grid, self.borders, self._by_cell = censoring.grid, borders, by_cell
        self._bins = self.grid.size - 1
        self._group_of_slot = np.repeat(np.arange(borders.size - 1), np.diff(borders))
        g, falls = censoring.survival, np.maximum(-np.diff(survival), 0.0)
        staying = (g[:-1] + g[1:]) / 2 if censoring.continuous else g[:-1]
        inverse = np.zeros(self._bins)
        inverse[:upper] = 1 / staying[:upper]
        events = self._shares(np.append(staying * falls, 0.0), beyond=False)
        followed = (survival[:-1] + survival[1:]) / 2
        others = self._shares(np.append(followed * -np.diff(g), survival[-1] * g[-1]), beyond=True)
        self._events_gone = np.minimum(_up_to(events), 1.0)
        self._others_gone = np.minimum(_up_to(others), 1.0)
        self._case_weight = _up_to(events * inverse)
        early = self._events_gone[:, upper]
        self._mean_weight = np.divide(
            self._case_weight[:, upper], early, out=np.zeros_like(early), where=early > 0
        )
        self._squared_weight = (events * inverse**2).sum(axis=1)
        self._control_weight = np.zeros(self.grid.size)
        self._control_weight[: upper + 1] = 1 / g[: upper + 1]

    def case_weights(self, times: FloatArray) -> FloatArray:
        """Weight of events whose merged cell is over, shape (n,)."""
        return np.asarray(self._case_weight[self._groups(times), -1], dtype=np.float64)

    def squared_weights(self, times: FloatArray, *, tau: float) -> FloatArray:
        """Mean squared weight of events, those from the upper limit on counted 0, shape (n,)."""
        return np.asarray(self._squared_weight[self._groups(times)], dtype=np.float64)

    def score_weights(
        self, times: FloatArray, events: BoolArray, grid: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Weights of rows as cases and as controls at the first points of the grid, (n, m)."""
        if not np.array_equal(grid, self.grid[: grid.size]):
            raise ValueError("scores are not at the first points of the time grid")
        groups, points = self._groups(times), slice(grid.size)
        if self._by_cell:
            is_gone = times[:, None] <= grid
            weight = np.where(events, self._mean_weight[groups], 0.0)[:, None]
            return (
                np.where(is_gone, weight, 0.0),
                np.where(is_gone, 0.0, self._control_weight[points]),
            )
        seen = (events & (_slots(times, self.grid) < self._bins))[:, None]
        case = np.where(seen, self._case_weight[groups, points], 0.0)
        gone = np.where(seen, self._events_gone[groups, points], self._others_gone[groups, points])
        return case, (1 - gone) * self._control_weight[points]

    def _groups(self, times: FloatArray) -> IntArray:
        return self._group_of_slot[_slots(times, self.grid)]

    def _shares(self, mass: FloatArray, *, beyond: bool) -> FloatArray:
        """Share of each slot in its merged cell, shape (cells, slots); even where nothing is."""
        groups = self._group_of_slot
        rows = np.zeros((self.borders.size - 1, mass.size))
        rows[groups, np.arange(mass.size)] = mass
        empty = rows.sum(axis=1) <= 0
        even = np.zeros_like(rows)
        even[groups, np.arange(mass.size)] = 1.0
        if not beyond:
            even[:, -1] = 0.0
        rows = np.where(empty[:, None], even, rows)
        total = rows.sum(axis=1, keepdims=True)
        shares = np.divide(rows, total, out=np.zeros_like(rows), where=total > 0)
        return np.asarray(shares[:, : self._bins], dtype=np.float64)


def _slots(times: npt.ArrayLike, grid: FloatArray) -> IntArray:
    """Cell of the grid that each time lies in; behind the last, one for what is beyond."""
    return np.searchsorted(grid, np.asarray(times, dtype=np.float64), side="left") - 1


def _up_to(values: FloatArray) -> FloatArray:
    """Sums of cells before each grid point, shape (merged cells, bins + 1)."""
    sums = np.cumsum(values, axis=1)
    return np.concatenate((np.zeros((values.shape[0], 1)), sums), axis=1)
