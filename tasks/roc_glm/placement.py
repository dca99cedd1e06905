"""What a site's own positives are under the pooled survivor function of the negatives."""

from __future__ import annotations

import numpy as np

from tasks.roc_glm.moments import Moments
from tasks.roc_glm.probit import thresholds
from tasks.roc_glm.survivor import (
    CellSurvivor,
    FloatArray,
    IntArray,
    LinearSurvivor,
    ScoreSurvivor,
    Ties,
    threshold_counts,
)

Survivor = ScoreSurvivor | CellSurvivor | LinearSurvivor


def site_threshold_counts(
    survivor: Survivor, positive: FloatArray, *, num_thresholds: int, ties: Ties
) -> IntArray:
    """w1_j of a site: its positives with a placement value at most j / (n_T + 1); (n_T,).

    Parameters
    ----------
    survivor : ScoreSurvivor, CellSurvivor or LinearSurvivor
        Of the negatives of all sites, at least one.
    positive : (n1,) float64
        Scores of the site's positives, ascending.
    num_thresholds : int
        n_T.
    ties : {"mid", "strict", "weak"}
        No part of a `LinearSurvivor`, which has no ties.
    """
    if isinstance(survivor, LinearSurvivor):
        ascending = np.sort(survivor.values(positive))
        at_most = np.searchsorted(ascending, thresholds(num_thresholds), side="right")
        return np.asarray(at_most, dtype=np.int64)
    return threshold_counts(
        survivor.numerators(positive, ties), total=survivor.total, num_thresholds=num_thresholds
    )


def placement_moments(survivor: Survivor, positive: FloatArray) -> Moments:
    """Moments of the placement values of a site's positives, ties counted half."""
    if isinstance(survivor, LinearSurvivor):
        return Moments.of(survivor.values(positive))
    return Moments.of(survivor.numerators(positive) / (2.0 * survivor.total))
