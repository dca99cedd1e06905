"""Pairs of rows of one site that every row takes part in: comparable ones, and concordant ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.survival.rank_sums import FloatArray, IntArray, prefix_sums, sums_below


def pair_counts(
    risk: npt.ArrayLike, time: npt.ArrayLike, event: npt.ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Concordant and comparable pairs of every row, ``(a_i, b_i)``, each of shape (n,).

    Parameters and errors are those of `tasks.survival.concordance.ConcordanceSums.of`.
    """
    risk, time, event = checked_rows(risk, time, event, positive=False)
    rank = _ranks(risk)
    # An event precedes a censoring at the same time: then "comparable" is "event, and a later key".
    key = 2 * _ranks(time) + ~event
    by_key = np.argsort(key, kind="stable")
    sorted_key, sorted_rank = key[by_key], rank[by_key]
    is_event = event[by_key]

    # The row as the later one of the pair: events that precede it and have the higher risk.
    earlier = np.searchsorted(sorted_key[is_event], key, side="left")
    comparable = earlier.astype(np.float64)
    concordant = comparable - _mid_counts_of_prefix(sorted_rank[is_event], earlier, rank)

    # The row as the earlier one, which must be an event: later rows with the lower risk.
    passed = np.searchsorted(sorted_key, key[event], side="right")
    comparable[event] += risk.size - passed
    concordant[event] += _mid_counts(rank)[event]
    concordant[event] -= _mid_counts_of_prefix(sorted_rank, passed, rank[event])
    return concordant, comparable


def weighted_pair_counts(
    risk: FloatArray,
    time: FloatArray,
    event: npt.NDArray[np.bool_],
    *,
    pair_weight: FloatArray,
    row_weight: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Weighted concordant and comparable pairs of every row, ``(a_i, b_i)``, each of shape (n,).

    Pairs are comparable as for Harrell's concordance. One counts ``pair_weight`` of its earlier
    row, times ``row_weight`` of the other row: the counts are those of one of the copies that a
    row stands for.

    Parameters
    ----------
    risk, time, event : ndarray, shape (n,)
        Checked already.
    pair_weight, row_weight : ndarray, shape (n,)
        Not negative; the first matters for events only.
    """
    rank = _ranks(risk)
    # An event precedes a censoring at the same time: then "comparable" is "event, and a later key".
    key = 2 * _ranks(time) + ~event
    by_key = np.argsort(key, kind="stable")
    sorted_key, sorted_rank = key[by_key], rank[by_key]
    begins = by_key[event[by_key] & (pair_weight[by_key] > 0)]

    # The row as the later one of the pair: events that precede it and have the higher risk.
    earlier = np.searchsorted(key[begins], key, side="left")
    begin_weight = row_weight[begins] * pair_weight[begins]
    comparable = prefix_sums(begin_weight)[earlier]
    # Ranks from the other end, so that higher risks are below.
    top = int(rank.max(initial=0))
    concordant = _mid_sums(
        top - rank[begins], begin_weight, np.zeros_like(earlier), earlier, top - rank
    )

    # The row as the earlier one, which must be an event: later rows with the lower risk.
    passed = np.searchsorted(sorted_key, key[begins], side="right")
    sorted_weight = row_weight[by_key]
    later = prefix_sums(sorted_weight)
    comparable[begins] += pair_weight[begins] * (later[-1] - later[passed])
    concordant[begins] += pair_weight[begins] * _mid_sums(
        sorted_rank, sorted_weight, passed, np.full_like(passed, risk.size), rank[begins]
    )
    return np.clip(concordant, 0.0, comparable), comparable


def checked_rows(
    risk: npt.ArrayLike, time: npt.ArrayLike, event: npt.ArrayLike, *, positive: bool = True
) -> tuple[FloatArray, FloatArray, npt.NDArray[np.bool_]]:
    """Return vectors of one length; `positive` asks it of the times.

    Raises
    ------
    ValueError
        With all that is wrong.
    """
    risks = np.asarray(risk, dtype=np.float64)
    times, events = np.asarray(time, dtype=np.float64), np.asarray(event)
    if risks.ndim != 1 or risks.shape != times.shape or risks.shape != events.shape:
        raise ValueError(
            "risk, time and event must be vectors of one length, "
            f"got shapes {risks.shape}, {times.shape} and {events.shape}"
        )
    faults = []
    if np.isnan(risks).any():
        faults.append(f"{np.isnan(risks).sum()} of {risks.size} risks are NaN")
    bad = ~np.isfinite(times) | (positive & (times <= 0))
    if bad.any():
        allowed = "positive and finite" if positive else "finite"
        faults.append(f"{bad.sum()} of {times.size} times are not {allowed}")
    if events.dtype != np.bool_ and not np.isin(events, (0, 1)).all():
        faults.append("events must be true or false (1 or 0)")
    if faults:
        raise ValueError("; ".join(faults))
    return risks, times, events.astype(np.bool_)


def checked_row_weights(row_weight: npt.ArrayLike | None, rows: int) -> FloatArray:
    """Weights of rows, ones if there are none, or a ValueError."""
    if row_weight is None:
        return np.ones(rows)
    weights = np.asarray(row_weight, dtype=np.float64)
    if weights.shape != (rows,):
        raise ValueError(f"row weights have shape {weights.shape}; allowed: ({rows},)")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError("row weights must be finite and not negative")
    return weights


def _ranks(values: npt.NDArray[Any]) -> IntArray:
    """Dense ranks from 0; equal values share one."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _mid_counts(ranks: IntArray) -> FloatArray:
    """For every row, the rows below and half of the rows equal to it, itself among them."""
    equal = np.bincount(ranks)
    mid: FloatArray = np.cumsum(equal) - equal / 2
    return mid[ranks]


def _mid_counts_of_prefix(values: IntArray, lengths: IntArray, ranks: IntArray) -> FloatArray:
    """Values below, and half of those equal to ``ranks[i]``, among the first ``lengths[i]``."""
    below, below_or_equal = np.split(
        sums_below(
            values,
            np.zeros(2 * lengths.size, dtype=np.int64),
            np.tile(lengths, 2),
            np.concatenate((ranks, ranks + 1)),
        ),
        2,
    )
    return (below + below_or_equal) / 2


def _mid_sums(
    values: IntArray, weights: FloatArray, start: IntArray, stop: IntArray, limits: IntArray
) -> FloatArray:
    """Weights of values below ``limits[i]``, and half of equal ones, in ``start[i]:stop[i]``."""
    below = sums_below(
        values,
        np.tile(start, 2),
        np.tile(stop, 2),
        np.concatenate((limits, limits + 1)),
        weights=weights,
    )
    return np.asarray(below.reshape(2, -1).sum(axis=0) / 2, dtype=np.float64)
