"""Brier score, calibration and rates under noise, on a budget of their own.

After `noisy-counts` and `noisy-histogram` nothing exact may follow, so these sums are released
under the Gaussian mechanism too, or not at all. Four blocks a class share the budget: several
Gaussian releases compose in closed form, so each gets noise for sqrt(4) times its sensitivity.
Classes are disjoint, each has the whole budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tasks.privacy import gaussian
from tasks.roc_glm.calibration import BINS, CalibrationSums, bin_edges, bin_slices
from tasks.roc_glm.classification import ConfusionCounts
from tasks.roc_glm.releases import cuts_in_window
from tasks.roc_glm.rows import RocRows
from tasks.roc_glm.survivor import FloatArray

_BLOCKS = 4


@dataclass(frozen=True)
class StatisticsNoise:
    """Standard deviations of the noise of the four blocks of a class."""

    squares: float
    bin_rows: float
    bin_scores: float
    above: float


@dataclass(frozen=True)
class ClassStatistics:
    """The sums of one class; adding two is pooling sites.

    Attributes
    ----------
    squares : float
        Sum of (score - label)^2.
    bin_rows, bin_scores : (B,) float64
        Rows and sum of scores in each calibration bin.
    above : (T,) float64
        Rows with a score above each threshold.
    """

    squares: float
    bin_rows: FloatArray
    bin_scores: FloatArray
    above: FloatArray

    def __add__(self, other: ClassStatistics) -> ClassStatistics:
        return ClassStatistics(
            self.squares + other.squares,
            self.bin_rows + other.bin_rows,
            self.bin_scores + other.bin_scores,
            self.above + other.above,
        )


def statistics_noise(
    *, epsilon: float, delta: float, score_sensitivity: float, thresholds: FloatArray
) -> StatisticsNoise:
    """Noise of the statistics.

    Parameters
    ----------
    epsilon, delta : float
        Budget of the statistics, apart from that of the release.
    score_sensitivity : float
        Largest move of a score in [0, 1] between neighbours, in (0, 1]; 1 for replacing a patient.
    thresholds : (T,) float64
        In ascending order.
    """
    base = gaussian.sigma(epsilon=epsilon, delta=delta, sensitivity=1.0, releases=_BLOCKS)
    move = min(score_sensitivity, 1.0)
    return StatisticsNoise(
        # |s^2 - (s + d)^2| is largest at the upper end of [0, 1].
        squares=base * move * (2.0 - move),
        # A score that changes its bin changes two entries, by at most 1 each.
        bin_rows=base * math.sqrt(2.0),
        bin_scores=base * math.sqrt(2.0),
        # At least 1: some threshold lies in some window, however short.
        above=base * math.sqrt(cuts_in_window(thresholds, move)),
    )


def release_statistics(
    rows: RocRows,
    thresholds: FloatArray,
    noise: StatisticsNoise,
    *,
    bins: int = BINS,
    generator: np.random.Generator | None = None,
) -> tuple[ClassStatistics, ClassStatistics]:
    """The noisy statistics of a site: of its negatives, and of its positives.

    Parameters
    ----------
    rows : RocRows
        Scores in [0, 1].
    thresholds : (T,) float64
    noise : StatisticsNoise
    bins : int
        Calibration bins.
    generator : numpy.random.Generator, optional
        For simulations only.
    """
    return (
        _release_class(rows.negative, 0.0, thresholds, noise, bins, generator),
        _release_class(rows.positive, 1.0, thresholds, noise, bins, generator),
    )


def calibration_of(
    negative: ClassStatistics, positive: ClassStatistics, *, num_negative: int, num_positive: int
) -> CalibrationSums:
    """Calibration sums from pooled noisy statistics; what noise made negative counts as 0."""
    bin_negatives = np.clip(negative.bin_rows, 0.0, None)
    bin_positives = np.clip(positive.bin_rows, 0.0, None)
    bin_rows = bin_negatives + bin_positives
    edges = bin_edges(len(bin_rows))  # a mean of scores lies in its bin, whatever noise makes it
    bin_scores = np.clip(
        negative.bin_scores + positive.bin_scores, edges[:-1] * bin_rows, edges[1:] * bin_rows
    )
    return CalibrationSums(
        rows=num_negative + num_positive,
        positives=num_positive,
        scores=float(bin_scores.sum()),
        squares=max(0.0, negative.squares + positive.squares),
        bin_rows=bin_rows,
        bin_positives=bin_positives,
        bin_scores=bin_scores,
        suppressed=0,
    )


def confusion_of(
    negative: ClassStatistics, positive: ClassStatistics, *, num_negative: int, num_positive: int
) -> ConfusionCounts:
    """Confusion counts from pooled noisy statistics, cut to [0, class size]."""
    true_positive = np.clip(positive.above, 0.0, num_positive)
    false_positive = np.clip(negative.above, 0.0, num_negative)
    return ConfusionCounts(
        true_positive=true_positive,
        false_negative=num_positive - true_positive,
        false_positive=false_positive,
        true_negative=num_negative - false_positive,
    )


def _release_class(
    scores: FloatArray,
    label: float,
    thresholds: FloatArray,
    noise: StatisticsNoise,
    bins: int,
    generator: np.random.Generator | None,
) -> ClassStatistics:
    parts = bin_slices(scores, bin_edges(bins)[1:-1])
    squares = np.array([np.square(scores - label).sum()])
    above = len(scores) - np.searchsorted(scores, thresholds, side="right")
    rows = np.array([len(part) for part in parts], dtype=np.float64)
    sums = np.array([part.sum() for part in parts])
    return ClassStatistics(
        squares=float(gaussian.add_noise(squares, noise.squares, generator=generator)[0]),
        bin_rows=gaussian.add_noise(rows, noise.bin_rows, generator=generator),
        bin_scores=gaussian.add_noise(sums, noise.bin_scores, generator=generator),
        above=gaussian.add_noise(above, noise.above, generator=generator),
    )
