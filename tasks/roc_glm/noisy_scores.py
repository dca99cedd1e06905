"""Every number of a validation after `noisy-scores`, with the noise taken out or left in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.roc_glm import cell_estimates as cells
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.deconvolution import NoiseBlur
from tasks.roc_glm.estimates import delong_variance
from tasks.roc_glm.moments import Moments
from tasks.roc_glm.releases import NoisyScores
from tasks.roc_glm.survivor import FloatArray, IntArray, ScoreSurvivor
from tasks.roc_glm.validation import (
    CellCounts,
    Validation,
    cell_points,
    estimate_auc,
    thinned,
    try_fit,
)


@dataclass(frozen=True)
class Deconvolved:
    """Noisy scores without their noise, in the cells of `NoiseBlur`.

    Attributes
    ----------
    blur : NoiseBlur
    positive_bins : (B,) float64
        Counts of the noisy positives.
    negative, positive : (cells,) float64
        Probabilities.
    """

    blur: NoiseBlur
    positive_bins: FloatArray
    negative: FloatArray
    positive: FloatArray

    @classmethod
    def of(cls, scores: NoisyScores, tau: float) -> Deconvolved:
        """Deconvolve the scores of all sites; both classes have rows."""
        blur = NoiseBlur(tau)
        bins = blur.bin_counts(scores.positive)
        negative = blur.deconvolve(blur.bin_counts(scores.negative))
        return cls(blur, bins, negative, blur.deconvolve(bins))


def validate_noisy_scores(
    scores: NoisyScores,
    deconvolved: Deconvolved | None,
    *,
    threshold_counts: Sequence[IntArray],
    moments: Sequence[Moments],
    config: RocGlmConfig,
    generator: np.random.Generator,
) -> Validation:
    """Everything from noisy scores, and sums of exact positives under their survivor function.

    Parameters
    ----------
    scores : NoisyScores
        Of all sites.
    deconvolved : Deconvolved or None
        None without debiasing.
    threshold_counts, moments : sequence
        Pooled w1 and placement moments of the exact positives: under the survivor function of the
        noisy negatives as they are, and, where `deconvolved` is given, under that.
    config : RocGlmConfig
    generator : numpy.random.Generator
        Draws the noise anew for its part of the variance.
    """
    sizes = {"num_negative": len(scores.negative), "num_positive": len(scores.positive)}
    raw_auc = min(max(1.0 - moments[0].mean, 0.0), 1.0)  # from sums: rounding can leave [0, 1]
    raw_fit, raw_no_fit = try_fit(threshold_counts[0], moments[0].count)
    if deconvolved is None:
        variance = float("nan")
        if min(sizes.values()) >= 2:
            survivor = ScoreSurvivor.of(scores.positive)
            values = survivor.numerators(scores.negative) / (2.0 * survivor.total)
            variance = delong_variance(of_negatives=Moments.of(values), of_positives=moments[0])
        points = _score_points(scores)
        return Validation(
            num_negative=sizes["num_negative"],
            num_positive=sizes["num_positive"],
            estimate=estimate_auc(raw_auc, variance, **sizes, config=config),
            fit=raw_fit,
            no_fit=raw_no_fit,
            false_positive_rate=points[0],
            true_positive_rate=points[1],
        )
    variance = float("nan")
    if min(sizes.values()) >= 2:
        variance = _debiased_variance(deconvolved, moments[1], config, generator, **sizes)
    fit, no_fit = try_fit(threshold_counts[1], moments[1].count)
    auc = min(max(1.0 - moments[1].mean, 0.0), 1.0)
    number = len(deconvolved.negative)
    counted = CellCounts(
        np.arange(1, number) / number,
        deconvolved.negative * sizes["num_negative"],
        deconvolved.positive * sizes["num_positive"],
    )
    false, true = cell_points(counted)
    return Validation(
        num_negative=sizes["num_negative"],
        num_positive=sizes["num_positive"],
        estimate=estimate_auc(auc, variance, **sizes, config=config),
        fit=fit,
        no_fit=no_fit,
        false_positive_rate=false,
        true_positive_rate=true,
        undebiased_auc=raw_auc,
        undebiased_fit=raw_fit,
        cells=counted,
    )


def _debiased_variance(
    deconvolved: Deconvolved,
    of_positives: Moments,
    config: RocGlmConfig,
    generator: np.random.Generator,
    *,
    num_negative: int,
    num_positive: int,
) -> float:
    half = cells.placement_mean_variance(deconvolved.negative, deconvolved.positive, num_negative)
    added = deconvolved.blur.noise_variance(
        deconvolved.negative,
        deconvolved.positive_bins,
        num_negative=num_negative,
        generator=generator,
        redraws=config.redraws,
    )
    return float(half) + of_positives.variance / num_positive + added


def _score_points(scores: NoisyScores) -> tuple[FloatArray, FloatArray]:
    at = np.unique(np.concatenate([scores.negative, scores.positive]))[::-1]
    at = thinned(np.concatenate([[np.inf], at]))
    false, true = (
        1.0 - np.searchsorted(np.sort(part), at, side="left") / len(part)
        for part in (scores.negative, scores.positive)
    )
    return false, true
