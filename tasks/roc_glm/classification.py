"""Confusion counts at score thresholds: rates, predictive values and net benefit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.roc_glm.rows import RocRows
from tasks.roc_glm.survivor import FloatArray


@dataclass(frozen=True)
class ConfusionCounts:
    """Rows by class and by prediction (positive: score above the threshold).

    Attributes
    ----------
    true_positive, false_negative, false_positive, true_negative : (T,)
        One number a threshold. Not whole after noise.
    """

    true_positive: FloatArray
    false_negative: FloatArray
    false_positive: FloatArray
    true_negative: FloatArray

    def __add__(self, other: ConfusionCounts) -> ConfusionCounts:
        return ConfusionCounts(
            self.true_positive + other.true_positive,
            self.false_negative + other.false_negative,
            self.false_positive + other.false_positive,
            self.true_negative + other.true_negative,
        )


@dataclass(frozen=True)
class Rates:
    """Rates at one threshold; None where the denominator is 0."""

    threshold: float
    sensitivity: float | None
    specificity: float | None
    positive_predictive_value: float | None
    negative_predictive_value: float | None
    accuracy: float | None
    net_benefit: float | None
    net_benefit_treat_all: float | None


def confusion_counts(rows: RocRows, thresholds: FloatArray) -> ConfusionCounts:
    """Confusion counts of a site.

    Parameters
    ----------
    rows : RocRows
    thresholds : (T,) float64
        A score above the threshold predicts positive (as S1(c) = P(score > c) is the true
        positive rate).
    """
    not_above = [
        np.searchsorted(scores, thresholds, side="right")
        for scores in (rows.positive, rows.negative)
    ]
    false_negative, true_negative = (part.astype(np.float64) for part in not_above)
    return ConfusionCounts(
        true_positive=rows.num_positive - false_negative,
        false_negative=false_negative,
        false_positive=rows.num_negative - true_negative,
        true_negative=true_negative,
    )


def rates(counts: ConfusionCounts, thresholds: FloatArray) -> list[Rates]:
    """Rates and net benefit at each threshold.

    Net benefit (Vickers and Elkin 2006) is TP / n - FP / n * p / (1 - p) at a threshold p that is
    a probability; None for a threshold outside [0, 1).

    Parameters
    ----------
    counts : ConfusionCounts
        Pooled, for T thresholds.
    thresholds : (T,) float64
    """
    return [
        _rates_at(float(threshold), *(float(number) for number in numbers))
        for threshold, *numbers in zip(
            thresholds,
            counts.true_positive,
            counts.false_negative,
            counts.false_positive,
            counts.true_negative,
            strict=True,
        )
    ]


def _rates_at(threshold: float, tp: float, fn: float, fp: float, tn: float) -> Rates:
    number = tp + fn + fp + tn
    odds = threshold / (1.0 - threshold) if 0.0 <= threshold < 1.0 else None
    has_benefit = odds is not None and number > 0
    return Rates(
        threshold=threshold,
        sensitivity=_ratio(tp, tp + fn),
        specificity=_ratio(tn, tn + fp),
        positive_predictive_value=_ratio(tp, tp + fp),
        negative_predictive_value=_ratio(tn, tn + fn),
        accuracy=_ratio(tp + tn, number),
        net_benefit=(tp - fp * (odds or 0.0)) / number if has_benefit else None,
        net_benefit_treat_all=(tp + fn - (fp + tn) * (odds or 0.0)) / number
        if has_benefit
        else None,
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
