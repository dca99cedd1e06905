"""Brier score, calibration curve and observed against expected: sums of a site, and what they give.

All of it needs scores that are probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.roc_glm.rows import RocRows
from tasks.roc_glm.survivor import FloatArray

BINS = 10


@dataclass(frozen=True)
class CalibrationSums:
    """What a site sends; adding two is pooling them.

    Attributes
    ----------
    rows : int or float
        Number of rows (not whole after noise, here and below).
    positives : int or float
        Number of positives.
    scores : float
        Sum of the scores.
    squares : float
        Sum of (score - label)^2.
    bin_rows, bin_positives, bin_scores : (B,)
        Rows, positives and sum of scores in each bin, suppressed site-bins left out.
    suppressed : int
        Rows left out of the bins because their site has fewer than privacy-level of them there;
        of all bins together, since a number below the level is what is not to be told.
    """

    rows: float
    positives: float
    scores: float
    squares: float
    bin_rows: FloatArray
    bin_positives: FloatArray
    bin_scores: FloatArray
    suppressed: int

    def __add__(self, other: CalibrationSums) -> CalibrationSums:
        return CalibrationSums(
            self.rows + other.rows,
            self.positives + other.positives,
            self.scores + other.scores,
            self.squares + other.squares,
            self.bin_rows + other.bin_rows,
            self.bin_positives + other.bin_positives,
            self.bin_scores + other.bin_scores,
            self.suppressed + other.suppressed,
        )

    @property
    def brier(self) -> float:
        """Mean squared difference of score and label."""
        return self.squares / self.rows

    @property
    def observed_to_expected(self) -> float | None:
        """O/E, positives over the sum of scores; None where all scores are 0."""
        return self.positives / self.scores if self.scores > 0 else None

    def curve(self, edges: FloatArray | None = None) -> list[CalibrationBin]:
        """The bins of the calibration curve, lowest first.

        Parameters
        ----------
        edges : (B + 1,) float64, optional
            Of the bins; equal ones by default.
        """
        edges = bin_edges(len(self.bin_rows)) if edges is None else edges
        return [
            CalibrationBin(
                lower=float(edges[b]),
                upper=float(edges[b + 1]),
                rows=float(rows),
                mean_score=float(self.bin_scores[b] / rows) if rows > 0 else None,
                observed=float(self.bin_positives[b] / rows) if rows > 0 else None,
            )
            for b, rows in enumerate(self.bin_rows)
        ]


@dataclass(frozen=True)
class CalibrationBin:
    """A point of the calibration curve.

    Attributes
    ----------
    lower, upper : float
        The bin is (lower, upper]; the first one includes 0.
    rows : float
        Rows behind the point.
    mean_score, observed : float or None
        Mean score and share of positives; None without a row.
    """

    lower: float
    upper: float
    rows: float
    mean_score: float | None
    observed: float | None


def bin_edges(bins: int = BINS) -> FloatArray:
    """Edges 0, 1/bins, ..., 1; each the double closest to the fraction, as a typed score is."""
    return np.arange(bins + 1) / bins


def calibration_sums(
    rows: RocRows, *, privacy_level: int, edges: FloatArray | None = None
) -> CalibrationSums:
    """The calibration sums of a site.

    Parameters
    ----------
    rows : RocRows
        Scores in [0, 1].
    privacy_level : int
        q: a bin with fewer rows at this site (but at least one) is suppressed.
    edges : (B + 1,) float64, optional
        Of the bins, from 0 to 1; by default those of ten equal bins.
    """
    inner = (bin_edges() if edges is None else edges)[1:-1]
    negative = bin_slices(rows.negative, inner)
    positive = bin_slices(rows.positive, inner)
    positives = np.array([len(part) for part in positive])
    number = positives + [len(part) for part in negative]
    # Sums of ascending runs (numpy adds pairwise), not running totals: right to 1e-15 relatively.
    scores = np.array(
        [low.sum() + high.sum() for low, high in zip(negative, positive, strict=True)]
    )
    kept = number >= privacy_level
    return CalibrationSums(
        rows=rows.num_negative + rows.num_positive,
        positives=rows.num_positive,
        scores=float(rows.negative.sum() + rows.positive.sum()),
        squares=float(np.square(rows.negative).sum() + np.square(1.0 - rows.positive).sum()),
        bin_rows=np.where(kept, number, 0).astype(np.float64),
        bin_positives=np.where(kept, positives, 0).astype(np.float64),
        bin_scores=np.where(kept, scores, 0.0),
        suppressed=int(number[~kept].sum()),
    )


def bin_slices(ascending: FloatArray, inner_edges: FloatArray) -> list[FloatArray]:
    """The scores of each bin (edge, next edge]."""
    return np.split(ascending, np.searchsorted(ascending, inner_edges, side="right"))
