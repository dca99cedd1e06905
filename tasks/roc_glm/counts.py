"""Counts of the two classes at levels of the score: at distinct scores, or in cells between cuts.

Pooled over sites they are all that AUC, its variance and the ROC-GLM need, and every one of these
is worked out in integers until the last division.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tasks.roc_glm.moments import Moments
from tasks.roc_glm.rows import RocRows
from tasks.roc_glm.survivor import (
    FloatArray,
    IntArray,
    Ties,
    level_numerators,
    threshold_counts,
)
from tasks.site.not_estimable import NotEstimable


@dataclass(frozen=True)
class ClassCounts:
    """Number of rows of each class at each level, levels ascending.

    Attributes
    ----------
    negative, positive : (L,) int64
    """

    negative: IntArray
    positive: IntArray

    def __add__(self, other: ClassCounts) -> ClassCounts:
        return ClassCounts(self.negative + other.negative, self.positive + other.positive)

    @property
    def num_negative(self) -> int:
        """n0."""
        return int(self.negative.sum())

    @property
    def num_positive(self) -> int:
        """n1."""
        return int(self.positive.sum())

    def require_both_classes(self) -> None:
        """Raise `NotEstimable` ("one-class") if a class has no row."""
        require_both_classes(num_negative=self.num_negative, num_positive=self.num_positive)

    def auc(self) -> Fraction:
        """Mann-Whitney AUC with ties counted half, exact. Never flipped to be above 1/2.

        Raises
        ------
        NotEstimable
            ``"one-class"``.
        """
        self.require_both_classes()
        above = level_numerators(self.positive)
        if 2 * self.num_negative * self.num_positive < 2**63:
            wins = int(np.dot(self.negative, above))
        else:
            wins = int(np.dot(self.negative.astype(object), above.astype(object)))
        return Fraction(wins, 2 * self.num_negative * self.num_positive)

    def placement_moments(self) -> tuple[Moments, Moments]:
        """Moments of the placement values, mid ties: S1 at the negatives, S0 at the positives.

        Raises
        ------
        NotEstimable
            ``"one-class"``.
        """
        self.require_both_classes()
        of_negatives = level_numerators(self.positive) / (2.0 * self.num_positive)
        of_positives = level_numerators(self.negative) / (2.0 * self.num_negative)
        return (
            Moments.of_counted(of_negatives, self.negative),
            Moments.of_counted(of_positives, self.positive),
        )

    def threshold_counts(self, num_thresholds: int, ties: Ties = "mid") -> IntArray:
        """w1_j: positives whose placement value is at most j / (num_thresholds + 1); (n_T,).

        Raises
        ------
        NotEstimable
            ``"one-class"``.
        """
        self.require_both_classes()
        return threshold_counts(
            level_numerators(self.negative, ties),
            total=self.num_negative,
            num_thresholds=num_thresholds,
            weights=self.positive,
        )

    def roc_points(self) -> tuple[FloatArray, FloatArray]:
        """False and true positive rates of the empirical ROC curve, from (0, 0) to (1, 1).

        Returns
        -------
        false_positive_rate, true_positive_rate : (L + 1,) float64
            Ascending. Straight lines between the points are the ties counted half.
        """
        self.require_both_classes()
        false = np.concatenate([[0], np.cumsum(self.negative[::-1])]) / self.num_negative
        true = np.concatenate([[0], np.cumsum(self.positive[::-1])]) / self.num_positive
        return false, true


@dataclass(frozen=True)
class DistinctCounts:
    """Counts at distinct scores (release `exact`): they disclose the scores.

    Attributes
    ----------
    levels : (L,) float64
        Distinct scores, ascending.
    counts : ClassCounts
        Of L levels.
    """

    levels: FloatArray
    counts: ClassCounts

    @classmethod
    def of(cls, rows: RocRows) -> DistinctCounts:
        """Counts of a site at its own distinct scores. Near-ties are not merged."""
        merged = np.concatenate([rows.negative, rows.positive])
        positive = np.repeat([0, 1], [rows.num_negative, rows.num_positive])
        return _count_distinct(merged, 1 - positive, positive)


def pool_distinct(sites: Sequence[DistinctCounts]) -> DistinctCounts:
    """Counts of all sites at all their distinct scores.

    Parameters
    ----------
    sites : sequence of DistinctCounts
        At least one.
    """
    return _count_distinct(
        np.concatenate([site.levels for site in sites]),
        np.concatenate([site.counts.negative for site in sites]),
        np.concatenate([site.counts.positive for site in sites]),
    )


def count_in_cells(rows: RocRows, cuts: FloatArray) -> ClassCounts:
    """Counts of a site in the cells (cut m-1, cut m].

    Parameters
    ----------
    rows : RocRows
    cuts : (M - 1,) float64
        Cut points in ascending order; the outer cells are unbounded.

    Returns
    -------
    ClassCounts
        Of M cells.
    """
    return ClassCounts(_cell_counts(rows.negative, cuts), _cell_counts(rows.positive, cuts))


def equal_cuts(cells: int) -> FloatArray:
    """Cut points j / cells on [0, 1], j = 1 .. cells - 1.

    Parameters
    ----------
    cells : int
        At least 2.
    """
    return np.arange(1, cells) / cells


def quantile_cuts(quantiles: FloatArray) -> FloatArray:
    """Cut points at quantiles of the model's training scores: sorted, each once.

    Parameters
    ----------
    quantiles : (M - 1,) float64
        Finite, as shipped with the model.

    Raises
    ------
    ValueError
        If one is not finite, or none is given.
    """
    if len(quantiles) == 0 or not np.isfinite(quantiles).all():
        raise ValueError(
            f"{len(quantiles)} training quantiles, {int((~np.isfinite(quantiles)).sum())} of them "
            "not finite: allowed is at least 1, all finite"
        )
    return np.unique(quantiles)


def require_both_classes(*, num_negative: int, num_positive: int) -> None:
    """Raise `NotEstimable` ("one-class") if the federation has no row of a class."""
    empty = [
        name
        for name, number in (("negative", num_negative), ("positive", num_positive))
        if number == 0
    ]
    if empty:
        raise NotEstimable("one-class", f"no {' and no '.join(empty)} row at any site")


def _cell_counts(ascending: FloatArray, cuts: FloatArray) -> IntArray:
    up_to_cut = np.searchsorted(ascending, cuts, side="right")
    return np.diff(up_to_cut, prepend=0, append=len(ascending)).astype(np.int64)


def _count_distinct(scores: FloatArray, negative: IntArray, positive: IntArray) -> DistinctCounts:
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    first = np.flatnonzero(np.diff(ordered, prepend=np.nan) != 0)
    if len(ordered) == 0:
        none = np.empty(0, dtype=np.int64)
        return DistinctCounts(ordered, ClassCounts(none, none))
    return DistinctCounts(
        ordered[first],
        ClassCounts(
            np.add.reduceat(negative[order], first).astype(np.int64),
            np.add.reduceat(positive[order], first).astype(np.int64),
        ),
    )
