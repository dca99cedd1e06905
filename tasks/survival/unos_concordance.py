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
from tasks.survival.pair_counts import checked_row_weights, checked_rows, weighted_pair_counts


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
