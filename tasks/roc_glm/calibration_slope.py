"""Calibration slope and intercept: logistic regression of the label on the logit of the score.

A well calibrated model has slope 1 and, with the slope held at 1, intercept 0 (Cox 1958;
Steyerberg, "Clinical Prediction Models", 2019, section 15.3). Where exchanges are spent on Fisher
scoring, a site sends `slope_sums` and `intercept_sums` each round; in one-shot mode the pooled
counts of the cells are enough for `grouped_calibration`, which is exact at distinct scores and
close with `cell_scores` for cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import logit

from tasks.glm.families import FisherSums, site_sums, starting_sums
from tasks.glm.scoring import FisherIteration, GlmFit
from tasks.roc_glm.calibration import CalibrationSums
from tasks.roc_glm.counts import ClassCounts
from tasks.roc_glm.rows import RocRows
from tasks.roc_glm.survivor import FloatArray
from tasks.site.not_estimable import NotEstimable

_LEAST = 0.01  # of a cell's width, from its ends
_FEWEST, _FULLEST = 10, 0.7


@dataclass(frozen=True)
class CalibrationFit:
    """Slope with its intercept, and the intercept at slope 1.

    Attributes
    ----------
    slope, slope_error, intercept, intercept_error : float
        Of logit P(Y = 1) = intercept + slope logit(score), with standard errors.
    intercept_in_the_large, intercept_in_the_large_error : float
        Of logit P(Y = 1) = intercept + logit(score).
    """

    slope: float
    slope_error: float
    intercept: float
    intercept_error: float
    intercept_in_the_large: float
    intercept_in_the_large_error: float

    @classmethod
    def of(cls, both: GlmFit, in_the_large: GlmFit) -> CalibrationFit:
        """Join the two fits, of (intercept, slope) and of the intercept alone."""
        errors = both.standard_errors
        return cls(
            slope=float(both.coefficients[1]),
            slope_error=float(errors[1]),
            intercept=float(both.coefficients[0]),
            intercept_error=float(errors[0]),
            intercept_in_the_large=float(in_the_large.coefficients[0]),
            intercept_in_the_large_error=float(in_the_large.standard_errors[0]),
        )


def interior_rows(rows: RocRows) -> tuple[RocRows, int]:
    """Rows whose score has a finite logit, and how many (score 0 or 1) were left out."""
    kept = RocRows(
        negative=rows.negative[(rows.negative > 0) & (rows.negative < 1)],
        positive=rows.positive[(rows.positive > 0) & (rows.positive < 1)],
    )
    left_out = rows.num_negative + rows.num_positive - kept.num_negative - kept.num_positive
    return kept, left_out


def slope_sums(rows: RocRows, coefficients: FloatArray | None) -> FisherSums:
    """A site's sums for (intercept, slope).

    Parameters
    ----------
    rows : RocRows
        From `interior_rows`.
    coefficients : (2,) float64 or None
        Where to evaluate; None in the first round.
    """
    predictor, label = _logits(rows)
    design = np.column_stack([np.ones(len(predictor)), predictor])
    if coefficients is None:
        return starting_sums("logit", design, label)
    return site_sums("logit", design, label, coefficients)


def intercept_sums(rows: RocRows, coefficients: FloatArray | None) -> FisherSums:
    """A site's sums for the intercept with the slope held at 1; parameters as `slope_sums`."""
    predictor, label = _logits(rows)
    design = np.ones((len(predictor), 1))
    if coefficients is None:
        return starting_sums("logit", design, label, offset=predictor)
    return site_sums("logit", design, label, coefficients, offset=predictor)


def grouped_calibration(counts: ClassCounts, scores: FloatArray) -> CalibrationFit:
    """Slope and intercepts from pooled counts at levels of the score.

    Parameters
    ----------
    counts : ClassCounts
        Of L levels.
    scores : (L,) float64
        Score of each level (a cell: of `cell_scores`); levels at 0 or 1 are left out.

    Raises
    ------
    NotEstimable
        ``"one-class"``, ``"constant-scores"``, ``"separated"`` or ``"not-converged"``.
    """
    counts.require_both_classes()
    trials = (counts.negative + counts.positive).astype(np.float64)
    used = (trials > 0) & (scores > 0) & (scores < 1)
    if int(used.sum()) < 2:
        raise NotEstimable("constant-scores", "a slope needs two different scores inside (0, 1)")
    ones, trials = counts.positive[used].astype(np.float64), trials[used]
    predictor = np.asarray(logit(scores[used]))
    design = np.column_stack([np.ones(len(predictor)), predictor])
    both = _fit(
        lambda theta: (
            starting_sums("logit", design, ones, trials=trials)
            if theta is None
            else site_sums("logit", design, ones, theta, trials=trials)
        )
    )
    alone = _fit(
        lambda theta: (
            starting_sums("logit", design[:, :1], ones, trials=trials, offset=predictor)
            if theta is None
            else site_sums("logit", design[:, :1], ones, theta, trials=trials, offset=predictor)
        )
    )
    return CalibrationFit.of(both, alone)


def cell_scores(
    cuts: FloatArray, counts: ClassCounts, *, edges: FloatArray, sums: CalibrationSums
) -> FloatArray:
    """A score for each cell of [0, 1], such that the sums of scores are the true ones.

    The middle of a cell is no good where scores crowd at one end of it, as those of a rare class
    do. All cells of a calibration bin are represented at one fraction of their width, by which the
    known sum of the scores in the bin is met; where bins are not unions of cells, or rows were left
    out of them, all cells together.

    Parameters
    ----------
    cuts : (M - 1,) float64
        Cut points of the cells.
    counts : ClassCounts
        Of M cells.
    edges : (B + 1,) float64
        Of the calibration bins.
    sums : CalibrationSums
        Of the same rows.

    Returns
    -------
    (M,) float64
        Inside the cells.
    """
    ends = np.concatenate([[0.0], cuts, [1.0]])
    low, width = ends[:-1], np.diff(ends)
    rows = (counts.negative + counts.positive).astype(np.float64)
    by_bin = bool(np.isin(edges[1:-1], cuts).all()) and sums.suppressed == 0
    inner, totals = (edges[1:-1], sums.bin_scores) if by_bin else (edges[:0], [sums.scores])
    group = np.searchsorted(inner, ends[1:], side="left")
    spread = np.bincount(group, rows * width, len(totals))
    above = totals - np.bincount(group, rows * low, len(totals))
    fraction = np.divide(above, spread, out=np.full(len(totals), 0.5), where=spread > 0)
    return np.asarray(low + width * np.clip(fraction, _LEAST, 1.0 - _LEAST)[group])


def too_coarse(counts: ClassCounts) -> bool:
    """Whether cells say too little for a slope: few have rows, or one has most of all rows."""
    rows = counts.negative + counts.positive
    return int((rows > 0).sum()) < _FEWEST or bool(rows.max() > _FULLEST * rows.sum())


def _fit(sums: Callable[[FloatArray | None], FisherSums]) -> GlmFit:
    iteration = FisherIteration("logit", criterion="step", tolerance=1e-10, max_rounds=50)
    while not iteration.finished:
        iteration.advance(sums(iteration.coefficients))
    return iteration.fit()


def _logits(rows: RocRows) -> tuple[FloatArray, FloatArray]:
    scores = np.concatenate([rows.negative, rows.positive])
    label = np.repeat([0.0, 1.0], [rows.num_negative, rows.num_positive])
    return np.asarray(logit(scores)), label
