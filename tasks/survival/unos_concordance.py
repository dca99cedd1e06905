"""Uno's concordance within sites: Harrell's pairs, weighted for censoring.

A comparable pair counts ``1 / G(t-) ** 2``, t the time of its earlier event and G the shared
estimate of `tasks.survival.censoring`; events from the truncation time tau on begin no pair. So
the value does not depend on how long the sites follow up (Uno et al., Stat Med 30 (2011),
1105-1117). Only rows of one site are compared. The sums are `ConcordanceSums` of weighted pairs,
and `tasks.survival.concordance.concordance` makes value and interval of them: G is taken as
known, which leaves out of the variance what estimating it adds or saves.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tasks.survival.censoring import CensoringWeights
from tasks.survival.concordance import ConcordanceSums
from tasks.survival.rank_sums import prefix_sums, sums_below
from tasks.survival.risk_sets import FloatArray, IntArray


def unos_concordance_sums(
    risk: npt.ArrayLike,
    time: npt.ArrayLike,
    event: npt.ArrayLike,
    *,
    censoring: CensoringWeights,
    tau: float,
    row_weight: npt.ArrayLike | None = None,
) -> ConcordanceSums:
    """Weighted pair sums of the rows of one site, in O(n log n).

    Parameters
    ----------
    risk : array_like, shape (n,)
        Predicted risk; only its order matters, equal risks count 1/2.
    time : array_like, shape (n,)
        Follow-up times, positive.
    event : array_like of bool, shape (n,)
        Whether the event was seen.
    censoring : CensoringWeights
        G, which must be positive before `tau`.
    tau : float
        Truncation time; a pair begins with an event before it.
    row_weight : array_like, shape (n,), optional
        Rows that each row stands for, not negative; 1 if left out.

    Raises
    ------
    ValueError
        If lengths differ, a number is out of range, or G is 0 at an event before `tau`.
    """
    risks, times, events = checked_rows(risk, time, event)
    weights = checked_row_weights(row_weight, times.size)
    first = np.zeros(times.size)
    first[events] = censoring.squared_weights(times[events], tau=tau)
    concordant, comparable = weighted_pair_counts(
        risks, times, events, pair_weight=first, row_weight=weights
    )
    return ConcordanceSums.of_pairs(concordant, comparable, row_weight=weights)


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
    rank = np.unique(risk, return_inverse=True)[1].astype(np.int64)
    # An event precedes a censoring at the same time: then "comparable" is "event, and a later key".
    key = 2 * np.unique(time, return_inverse=True)[1].astype(np.int64) + ~event
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
    risk: npt.ArrayLike, time: npt.ArrayLike, event: npt.ArrayLike
) -> tuple[FloatArray, FloatArray, npt.NDArray[np.bool_]]:
    """Vectors of one length, or a ValueError with all that is wrong."""
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
    bad = ~(np.isfinite(times) & (times > 0))
    if bad.any():
        faults.append(f"{bad.sum()} of {times.size} times are not positive and finite")
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
