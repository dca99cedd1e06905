"""Survivor functions in integers, and the placement values that they give.

A survivor function S(c) = P(score > c) of n scores takes values k / (2 n) when ties count half,
so a placement value travels and is compared as its integer numerator k: whether it is at most a
threshold j / (n_T + 1) is then decided exactly, which doubles do not
((1 - 7/10) <= 3/10 is False in floating point).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Ties = Literal["mid", "strict", "weak"]


@dataclass(frozen=True)
class ScoreSurvivor:
    """Survivor function of scores themselves (releases `exact` and `noisy-scores`).

    Attributes
    ----------
    levels : (L,) float64
        Distinct scores in ascending order.
    counts : (L,) int64
        Number of scores at each level, 0 allowed.
    """

    levels: FloatArray
    counts: IntArray

    @classmethod
    def of(cls, scores: FloatArray) -> ScoreSurvivor:
        """Survivor function of the scores, in any order."""
        levels, counts = np.unique(scores, return_counts=True)
        return cls(levels=levels, counts=counts.astype(np.int64))

    @property
    def total(self) -> int:
        """Number of scores."""
        return int(self.counts.sum())

    def numerators(self, scores: FloatArray, ties: Ties = "mid") -> IntArray:
        """Numerators of the placement values.

        Parameters
        ----------
        scores : (n,) float64
            Fast when in ascending order.
        ties : {"mid", "strict", "weak"}
            A score equal to c counts half, not at all, or fully as being above c.

        Returns
        -------
        (n,) int64
            In [0, 2 total].
        """
        below = _from_below(self.counts)
        place = np.searchsorted(self.levels, scores, side="left")
        found = np.zeros(len(scores), dtype=np.int64)
        inside = place < len(self.levels)
        found[inside] = self.levels[place[inside]] == scores[inside]
        return _numerators(
            self.total, less=below[place], not_greater=below[place + found], ties=ties
        )


@dataclass(frozen=True)
class CellSurvivor:
    """Survivor function of scores counted in cells (releases `binned` and `secure-counts`).

    All scores of a cell are tied.

    Attributes
    ----------
    cuts : (M - 1,) float64
        Cut points in ascending order; cell m is (cut m-1, cut m].
    counts : (M,) int64
        Number of scores in each cell.
    """

    cuts: FloatArray
    counts: IntArray

    @property
    def total(self) -> int:
        """Number of scores."""
        return int(self.counts.sum())

    def numerators(self, scores: FloatArray, ties: Ties = "mid") -> IntArray:
        """Numerators of the placement values; see `ScoreSurvivor.numerators`."""
        below = _from_below(self.counts)
        cell = np.searchsorted(self.cuts, scores, side="left")
        return _numerators(self.total, less=below[cell], not_greater=below[cell + 1], ties=ties)


@dataclass(frozen=True)
class LinearSurvivor:
    """Survivor function of a density that is constant in equal cells of [0, 1] (deconvolved).

    Attributes
    ----------
    probabilities : (M,) float64
        Probability of each cell, sum 1.
    """

    probabilities: FloatArray

    def values(self, scores: FloatArray) -> FloatArray:
        """Placement values in [0, 1].

        Parameters
        ----------
        scores : (n,) float64
        """
        cells = len(self.probabilities)
        edges = np.arange(cells + 1) / cells
        above = np.concatenate([[0.0], np.cumsum(self.probabilities[::-1])])[::-1]
        return np.asarray(np.interp(scores, edges, above / above[0]), dtype=np.float64)


def level_numerators(counts: IntArray, ties: Ties = "mid") -> IntArray:
    """Numerators of the placement values at the levels of a survivor function themselves.

    Parameters
    ----------
    counts : (L,) int64
        Scores of the class at each level, levels ascending.

    Returns
    -------
    (L,) int64
        In units of 1 / (2 sum(counts)).
    """
    below = _from_below(counts)
    return _numerators(int(below[-1]), less=below[:-1], not_greater=below[1:], ties=ties)


def threshold_limits(num_thresholds: int, total: int) -> IntArray:
    """Largest numerator k with k / (2 total) <= j / (num_thresholds + 1), for each threshold.

    Parameters
    ----------
    num_thresholds : int
        n_T; the thresholds are j / (n_T + 1), j = 1..n_T.
    total : int
        Number of scores behind the survivor function.

    Returns
    -------
    (n_T,) int64
        In ascending order; worked out in unbounded integers.
    """
    limits = [2 * total * j // (num_thresholds + 1) for j in range(1, num_thresholds + 1)]
    return np.array(limits, dtype=np.int64)


def threshold_counts(
    numerators: IntArray, *, total: int, num_thresholds: int, weights: IntArray | None = None
) -> IntArray:
    """w1_j: number of positives whose placement value is at most threshold j.

    Parameters
    ----------
    numerators : (n,) int64
        Of the positives, in units of 1 / (2 total).
    total : int
        Number of negatives behind the survivor function.
    num_thresholds : int
        n_T.
    weights : (n,) int64, optional
        Positives behind each numerator; one each by default.

    Returns
    -------
    (n_T,) int64
        In ascending order.
    """
    limits = threshold_limits(num_thresholds, total)
    first = np.searchsorted(limits, numerators, side="left")
    if weights is None:
        per_threshold = np.bincount(first, minlength=num_thresholds + 1)
    else:
        per_threshold = np.zeros(num_thresholds + 1, dtype=np.int64)
        np.add.at(per_threshold, first, weights)
    return np.asarray(np.cumsum(per_threshold[:num_thresholds]), dtype=np.int64)


def _from_below(counts: IntArray) -> IntArray:
    """Number of scores below each level, and in the last place below all: their total."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _numerators(total: int, *, less: IntArray, not_greater: IntArray, ties: Ties) -> IntArray:
    if ties == "strict":
        return 2 * (total - not_greater)
    if ties == "weak":
        return 2 * (total - less)
    return 2 * total - less - not_greater
