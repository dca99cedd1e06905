"""From what was pooled to every number of a validation, one function a kind of release.

A number that does not exist is None, with its reason beside it; nothing here raises for that but
a federation without a row of one class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.roc_glm import cell_estimates as cells
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.counts import ClassCounts, require_both_classes
from tasks.roc_glm.estimates import (
    AucTest,
    Interval,
    auc_interval,
    auc_test,
    delong_variance,
    require_two_of_each,
)
from tasks.roc_glm.probit import RocGlmFit, fit_roc_glm
from tasks.roc_glm.releases import NoisyCounts
from tasks.roc_glm.survivor import FloatArray, IntArray
from tasks.site.not_estimable import NotEstimable

MOST_POINTS = 1000


@dataclass(frozen=True)
class AucEstimate:
    """The AUC with its uncertainty.

    Attributes
    ----------
    auc : float
        From counts, debiased.
    variance : float or None
    interval : Interval or None
    test : AucTest or None
    no_interval, no_test : NotEstimable or None
        Why there is none.
    """

    auc: float
    variance: float | None
    interval: Interval | None
    test: AucTest | None
    no_interval: NotEstimable | None
    no_test: NotEstimable | None


@dataclass(frozen=True)
class CellCounts:
    """Counts of the classes in cells of [0, 1], as they are or as noise leaves them estimated.

    Attributes
    ----------
    cuts : (M - 1,) float64
    negative, positive : (M,) float64
    """

    cuts: FloatArray
    negative: FloatArray
    positive: FloatArray


@dataclass(frozen=True)
class Validation:
    """What a validation run estimates of the ROC curve.

    Attributes
    ----------
    num_negative, num_positive : int
        Class sizes.
    estimate : AucEstimate
    undebiased_auc : float or None
        With the bias of the noise, where the release has one that was taken out.
    fit : RocGlmFit or None
        The ROC-GLM.
    no_fit : NotEstimable or None
        Why there is none.
    undebiased_fit : RocGlmFit or None
        The ROC-GLM of Schalk et al., on noisy scores as they are.
    false_positive_rate, true_positive_rate : (P,) float64
        Points of the curve from counts.
    cells : CellCounts or None
        Where scores are probabilities.
    """

    num_negative: int
    num_positive: int
    estimate: AucEstimate
    fit: RocGlmFit | None
    no_fit: NotEstimable | None
    false_positive_rate: FloatArray
    true_positive_rate: FloatArray
    undebiased_auc: float | None = None
    undebiased_fit: RocGlmFit | None = None
    cells: CellCounts | None = None


def estimate_auc(
    auc: float,
    variance: float,
    *,
    num_negative: int,
    num_positive: int,
    config: RocGlmConfig,
) -> AucEstimate:
    """Interval and test of an AUC; `variance` is not looked at where a class has no two rows."""
    try:
        require_two_of_each(num_negative=num_negative, num_positive=num_positive)
    except NotEstimable as reason:
        return AucEstimate(auc, None, None, None, reason, reason)
    interval, test = None, None
    no_interval = no_test = None
    try:
        interval = auc_interval(auc, variance, alpha=config.alpha)
    except NotEstimable as reason:
        no_interval = reason
    try:
        test = auc_test(auc, variance, null_auc=config.null_auc, alpha=config.alpha)
    except NotEstimable as reason:
        no_test = reason
    return AucEstimate(auc, variance, interval, test, no_interval, no_test)


def try_fit(
    w1: FloatArray | IntArray, num_positive: float
) -> tuple[RocGlmFit | None, NotEstimable | None]:
    """The ROC-GLM, or why there is none."""
    try:
        return fit_roc_glm(w1, num_positive), None
    except NotEstimable as reason:
        return None, reason


def auc_of_counts(counts: ClassCounts, *, config: RocGlmConfig) -> AucEstimate:
    """The AUC alone, from exact counts: no ROC-GLM is fitted.

    Raises
    ------
    NotEstimable
        ``"one-class"``.
    """
    counts.require_both_classes()
    of_negatives, of_positives = counts.placement_moments()
    sizes = {"num_negative": counts.num_negative, "num_positive": counts.num_positive}
    variance = float("nan")
    if min(sizes.values()) >= 2:
        variance = delong_variance(of_negatives=of_negatives, of_positives=of_positives)
    return estimate_auc(float(counts.auc()), variance, **sizes, config=config)


def validate_counts(counts: ClassCounts, *, config: RocGlmConfig) -> Validation:
    """Everything from exact pooled counts (`secure-counts`, `binned`, `exact`).

    Raises
    ------
    NotEstimable
        ``"one-class"``.
    """
    estimate = auc_of_counts(counts, config=config)
    fit, no_fit = try_fit(
        counts.threshold_counts(config.num_thresholds, config.ties), counts.num_positive
    )
    points = counts.roc_points()
    return Validation(
        num_negative=counts.num_negative,
        num_positive=counts.num_positive,
        estimate=estimate,
        fit=fit,
        no_fit=no_fit,
        false_positive_rate=thinned(points[0]),
        true_positive_rate=thinned(points[1]),
    )


def validate_noisy_cells(
    noisy: NoisyCounts,
    *,
    num_negative: int,
    num_positive: int,
    cuts: FloatArray,
    scale: float,
    noises: int,
    config: RocGlmConfig,
) -> Validation:
    """Everything from pooled noisy counts, by post-processing alone.

    Parameters
    ----------
    noisy : NoisyCounts
        Summed over sites.
    num_negative, num_positive : int
        Public class sizes of all sites.
    cuts : (M - 1,) float64
    scale : float
        Standard deviation of one noise.
    noises : int
        Independent noises in the sum.
    config : RocGlmConfig

    Raises
    ------
    NotEstimable
        ``"one-class"``.
    """
    sizes = {"num_negative": num_negative, "num_positive": num_positive}
    require_both_classes(**sizes)
    by_counts = config.release == "noisy-counts"
    fitted = cells.fit_cumulative_counts if by_counts else cells.fit_histogram
    negative, positive = fitted(noisy.negative, num_negative), fitted(noisy.positive, num_positive)
    variance = float("nan")
    if min(sizes.values()) >= 2:
        added = cells.noise_variance(
            "noisy-counts" if by_counts else "noisy-histogram",
            negative,
            positive,
            sigma=scale,
            noises=noises,
            **sizes,
        )
        variance = float(cells.cell_delong_variance(negative, positive, **sizes) + added)
    w1 = cells.cell_threshold_counts(
        negative, positive, num_positive=num_positive, num_thresholds=config.num_thresholds
    )
    fit, no_fit = try_fit(w1, num_positive)
    auc = float(np.clip(cells.cell_auc(negative, positive), 0.0, 1.0))
    counted = CellCounts(cuts, negative * num_negative, positive * num_positive)
    false, true = cell_points(counted)
    return Validation(
        num_negative=sizes["num_negative"],
        num_positive=sizes["num_positive"],
        estimate=estimate_auc(auc, variance, **sizes, config=config),
        fit=fit,
        no_fit=no_fit,
        false_positive_rate=false,
        true_positive_rate=true,
        cells=counted,
    )


def cell_points(counted: CellCounts) -> tuple[FloatArray, FloatArray]:
    """ROC points of cells, ascending from (0, 0)."""
    return (
        np.concatenate([[0.0], np.cumsum(counted.negative[::-1])]) / counted.negative.sum(),
        np.concatenate([[0.0], np.cumsum(counted.positive[::-1])]) / counted.positive.sum(),
    )


def thinned(points: FloatArray) -> FloatArray:
    """At most `MOST_POINTS` points of a curve, its ends among them."""
    if len(points) <= MOST_POINTS:
        return points
    return points[np.linspace(0, len(points) - 1, MOST_POINTS).astype(np.int64)]
