"""Medians of columns with missing values, from histograms that at least privacy-level rows fill.

A median is at most one standard deviation from the mean. So the histogram has `MEDIAN_BINS` cells
of equal width from mean - sd to mean + sd of the pooled observed values, and a slot at either end;
the median of those values is exact to a cell, but for what sites merge.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks.survival.risk_sets import group_borders
from tasks.survival.standardization import FeatureMoments

FloatArray = NDArray[np.float64]

MEDIAN_BINS = 256
"""Cells of a histogram; with the slots at its ends it has two counts more."""


def kept_rows(
    values: FloatArray, *, privacy_level: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Rows of a column that its sums are over: those observed, but for a few.

    As many observed rows are left out, at random, as make the number of all rows that are left
    out a multiple of `privacy_level`: a smaller number of missing values is not told. A column
    with fewer than `privacy_level` rows to keep has none.

    Parameters
    ----------
    values : ndarray, shape (n,)
        NaN where missing.
    privacy_level : int
        At least 1; 1 keeps all that are observed.
    rng : numpy.random.Generator
        Not touched where nothing is missing.
    """
    kept = ~np.isnan(values)
    observed = np.flatnonzero(kept)
    surplus = -(values.size - observed.size) % privacy_level
    if observed.size - surplus < privacy_level:
        return np.zeros_like(kept)
    if surplus:
        kept[rng.choice(observed, size=surplus, replace=False)] = False
    return kept


def median_range(moments: FeatureMoments) -> tuple[float, float]:
    """Mean less and plus a standard deviation, of one column with at least one row."""
    deviation = float(np.sqrt(moments.m2[0] / moments.count))
    return float(moments.mean[0]) - deviation, float(moments.mean[0]) + deviation


def slot_counts(values: FloatArray, *, low: float, high: float, privacy_level: int) -> FloatArray:
    """Histogram of a site's kept values, merged: shape (MEDIAN_BINS + 2,), or zeros if none.

    Consecutive slots are merged until each group has at least `privacy_level` values, and the
    values of a group spread evenly over its slots. Cells are closed on the right.
    """
    if values.size == 0:
        return np.zeros(MEDIAN_BINS + 2)
    borders = np.linspace(low, high, MEDIAN_BINS + 1)
    slots = np.searchsorted(borders, values, side="left")
    counts = np.bincount(slots, minlength=MEDIAN_BINS + 2).astype(np.float64)
    if privacy_level == 1:
        return counts
    groups = group_borders(counts, least=privacy_level)
    sizes = np.diff(groups)
    return np.repeat(np.add.reduceat(counts, groups[:-1]) / sizes, sizes)


def median(counts: FloatArray, *, low: float, high: float) -> float:
    """Lower median: where half of the values of a histogram, or just more, are reached.

    Parameters
    ----------
    counts : ndarray, shape (MEDIAN_BINS + 2,)
        Pooled; their sum is positive.
    low, high : float
        Ends of the cells.

    Returns
    -------
    float
        Within the cell of the median, values being spread evenly there; `low` or `high` if it is
        beyond.
    """
    borders = np.linspace(low, high, MEDIAN_BINS + 1)
    reached = np.cumsum(counts)
    half = reached[-1] / 2
    slot = int(np.searchsorted(reached, half * (1 - 1e-12), side="left"))
    if slot == 0 or slot > MEDIAN_BINS:
        return low if slot == 0 else high
    share = (half - reached[slot - 1]) / counts[slot]
    value = borders[slot - 1] + min(max(share, 0.0), 1.0) * (borders[slot] - borders[slot - 1])
    return float(value)
