"""Antolini's concordance within sites, for models whose curves may cross.

A pair is concordant if, at the time of its earlier event, the row with the event has the lower
predicted survival (Antolini et al., Stat Med 24 (2005), 3927-3944), with the treatment of ties
known as ``adj_antolini`` in pycox:

- an event at t and a row with a later time: 1 if the event's survival at t is the lower one, 1/2
  if both are equal;
- an event and a censoring at one time: the same, and the pair counts twice;
- two events at one time: 1 if their survival is equal, 1/2 if not, and the pair counts twice.

Predicted survival is interpolated between grid points: taken as steps, it ties rows that a
discrete model tells apart. For proportional hazards without ties in time the value is Harrell's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tasks.survival.concordance import ConcordanceSums
from tasks.survival.pair_counts import checked_rows
from tasks.survival.risk_sets import FloatArray, IntArray

_FLUSH = 127  # steps of at most 2 that an unsigned byte can add up


def antolini_sums(
    time: npt.ArrayLike, event: npt.ArrayLike, survival: npt.ArrayLike, *, grid: npt.ArrayLike
) -> ConcordanceSums:
    """Pair sums of the rows of one site; value and interval by `concordance`.

    Curves are arbitrary, so that every event is compared with every later row: O(distinct event
    times x n) steps, on vectors of n, beside a copy of `survival`. With half of the rows events,
    20,000 rows take about .4 s and 100,000 about 4 s
    (`benchmarks/survival_metrics_speed.py`).

    Parameters
    ----------
    time, event : array_like, shape (n,)
        Follow-up times, positive; whether the event was seen.
    survival : array_like, shape (n, m)
        Predicted survival of every row at the times of the grid, in 0..1; linear between them,
        constant beyond them.
    grid : array_like, shape (m,)
        Ascending times, at least one.

    Raises
    ------
    ValueError
        If shapes do not fit or a number is out of range.
    """
    return ConcordanceSums.of_pairs(*antolini_pair_counts(time, event, survival, grid=grid))


def antolini_pair_counts(
    time: npt.ArrayLike, event: npt.ArrayLike, survival: npt.ArrayLike, *, grid: npt.ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Concordant and comparable pairs of every row, ``(a_i, b_i)``, each of shape (n,).

    Parameters and errors are those of `antolini_sums`.
    """
    times = np.asarray(time, dtype=np.float64)
    _, times, events = checked_rows(np.zeros(times.shape), times, event)
    curves, borders = _checked_curves(survival, grid, rows=times.size)
    order = np.argsort(times, kind="stable")
    times, events = times[order], events[order]
    at_times = np.ascontiguousarray(curves[order].T)
    counts = _PairCounts(_untied_pairs(times, events))
    groups = _groups_with_events(times, events)
    values_of_groups = _interpolated(at_times, borders, times, [start for start, _ in groups])
    for (start, end), values in zip(groups, values_of_groups, strict=True):
        is_event = events[start:end]
        own = values[: end - start]
        if end - start > 1:
            counts.add_tied(start, own, is_event)
        counts.add_later(
            start + np.flatnonzero(is_event), own[is_event], end, values[end - start :]
        )
    concordant, comparable = counts.totals()
    restored = np.empty((2, times.size))
    restored[:, order] = concordant, comparable
    return restored[0], restored[1]


class _PairCounts:
    """Counts by row, in the order of times."""

    def __init__(self, comparable: FloatArray) -> None:
        rows = comparable.size
        self._concordant = np.zeros(rows)
        self._comparable = comparable
        self._twice = np.zeros(rows, dtype=np.int64)
        self._few = np.zeros(rows, dtype=np.uint8)
        self._added = 0
        self._above = np.empty(rows, dtype=np.bool_)

    def add_tied(self, start: int, values: FloatArray, is_event: npt.NDArray[np.bool_]) -> None:
        """Pairs at one time, of which at least one row has an event; each counts twice."""
        rows = start + np.arange(values.size)
        on_event, on_censored = rows[is_event], rows[~is_event]
        seen, left = values[is_event], values[~is_event]
        _, inverse, equal = np.unique(seen, return_inverse=True, return_counts=True)
        # Equal survival: 1, else 1/2; the row itself is no pair.
        self._concordant[on_event] += (seen.size - 1) + (equal[inverse] - 1)
        self._comparable[on_event] += 2 * (seen.size - 1)
        self._concordant[on_event] += 2 * _mid_above(np.sort(left), seen)
        self._comparable[on_event] += 2 * left.size
        self._concordant[on_censored] += 2 * _mid_below(np.sort(seen), left)
        self._comparable[on_censored] += 2 * seen.size

    def add_later(
        self, on_event: IntArray, own: FloatArray, later: int, values: FloatArray
    ) -> None:
        """Concordant pairs of the events at one time with all later rows."""
        if not values.size:
            return
        if own.size > 1:
            self._concordant[later:] += _mid_below(np.sort(own), values)
            self._concordant[on_event] += _mid_above(np.sort(values), own)
            return
        above = self._above[later:]
        few = self._few[later:]
        counted = 0
        for compare in (np.greater, np.greater_equal):
            compare(values, own[0], out=above)
            few += above.view(np.uint8)
            counted += int(np.count_nonzero(above))
        self._concordant[on_event] += counted / 2
        self._added += 1
        if self._added == _FLUSH:
            self._flush()

    def _flush(self) -> None:
        self._twice += self._few
        self._few[:] = 0
        self._added = 0

    def totals(self) -> tuple[FloatArray, FloatArray]:
        """Concordant and comparable pairs."""
        self._flush()
        return self._concordant + self._twice / 2, self._comparable


def _untied_pairs(times: FloatArray, events: npt.NDArray[np.bool_]) -> FloatArray:
    """Pairs of every row with one of another time; times ascend."""
    earlier_events = np.searchsorted(times[events], times, side="left")
    later_rows = times.size - np.searchsorted(times, times, side="right")
    return np.asarray(earlier_events + events * later_rows, dtype=np.float64)


def _groups_with_events(times: FloatArray, events: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First row, and the row behind the last, of ascending equal times with an event."""
    changes = np.flatnonzero(np.diff(times)) + 1
    borders = np.concatenate(([0], changes, [times.size]))
    events_before = np.concatenate(([0], np.cumsum(events)))[borders]
    has_event = np.diff(events_before) > 0
    starts, ends = borders[:-1][has_event], borders[1:][has_event]
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def _interpolated(
    survival: FloatArray, grid: FloatArray, times: FloatArray, first: list[int]
) -> Iterator[FloatArray]:
    """Survival at the time of each row ``first``, of the rows from it on; valid until the next."""
    buffer = np.empty(survival.shape[1])
    moments = times[first]
    cells = np.searchsorted(grid, moments, side="right") - 1
    cell_of_difference = -1
    difference = buffer
    for time, start, cell in zip(moments.tolist(), first, cells.tolist(), strict=True):
        if cell < 0 or cell == grid.size - 1 or time == grid[cell]:
            yield survival[max(cell, 0), start:]
            continue
        if cell != cell_of_difference:
            difference = survival[cell + 1] - survival[cell]
            cell_of_difference = cell
        values = buffer[start:]
        share = (time - grid[cell]) / (grid[cell + 1] - grid[cell])
        np.multiply(difference[start:], share, out=values)
        values += survival[cell, start:]
        yield values


def _mid_below(ascending: FloatArray, values: FloatArray) -> FloatArray:
    """Elements of `ascending` below each value, and half of those equal to it."""
    below = np.searchsorted(ascending, values, side="left")
    return (below + np.searchsorted(ascending, values, side="right")) / 2


def _mid_above(ascending: FloatArray, values: FloatArray) -> FloatArray:
    """Elements of `ascending` above each value, and half of those equal to it."""
    return ascending.size - _mid_below(ascending, values)


def _checked_curves(
    survival: npt.ArrayLike, grid: npt.ArrayLike, *, rows: int
) -> tuple[FloatArray, FloatArray]:
    curves = np.asarray(survival, dtype=np.float64)
    borders = np.asarray(grid, dtype=np.float64)
    if borders.ndim != 1 or borders.size < 1 or curves.shape != (rows, borders.size):
        raise ValueError(
            f"survival of {rows} rows has shape {curves.shape}, its grid {borders.shape}; "
            "allowed: (rows, times) and (times,)"
        )
    faults = []
    if not (np.isfinite(borders).all() and (np.diff(borders) > 0).all()):
        faults.append("the grid must be finite and ascend")
    outside = ~((curves >= 0) & (curves <= 1))
    if outside.any():
        faults.append(f"{outside.sum()} of {curves.size} survival probabilities are not in 0..1")
    if faults:
        raise ValueError("; ".join(faults))
    return curves, borders
