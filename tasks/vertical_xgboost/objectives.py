"""The losses: gradients, Hessians, base score, metrics.

All functions work row by row, so that a label owner computes for its rows what one owner of all
rows would, to the last bit. The logistic function is scipy's, a scalar loop: numpy's vectorized
``exp`` may round a value differently depending on the array it stands in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.classes import class_names
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.fixed_point import (
    FixedPointScale,
    FloatArray,
    GradientScales,
    common_exponent,
    exponent_of,
)
from tasks.vertical_xgboost.objective import (
    HEADROOM,
    LogLoss,
    Metrics,
    Objective,
)
from tasks.vertical_xgboost.poisson import Poisson
from tasks.vertical_xgboost.softprob import Softprob


class BinaryLogistic(LogLoss):
    """Labels 0 and 1, the margin is the log odds of 1."""

    name = "binary:logistic"

    def gradients(self, margins: FloatArray, labels: FloatArray) -> tuple[FloatArray, FloatArray]:
        """g = p - y, h = p (1 - p)."""
        probability = expit(margins)
        return probability - labels, probability * (1.0 - probability)

    def losses(self, margins: FloatArray, labels: FloatArray) -> FloatArray:
        """Log loss, capped at 64."""
        loss = np.logaddexp(0.0, np.where(labels > 0.5, -margins, margins))
        return self._capped(loss)

    def qualities(self, margins: FloatArray, labels: FloatArray) -> FloatArray:
        """1 on the right side of probability one half; at one half 0 is predicted."""
        hits: FloatArray = ((margins > 0.0) == (labels > 0.5)).astype(np.float64)
        return hits

    def base_margin(self, base_score: float) -> float:
        """Log odds of a probability.

        Raises
        ------
        SiteFault
            ``"one-class"`` for 0 and 1, the means of labels of one class.
        """
        if not 0.0 < base_score < 1.0:
            raise SiteFault(
                "one-class",
                "training labels are of one class only, so their mean has no log odds; "
                "allowed are two classes, or a given base-score",
            )
        return math.log(base_score / (1.0 - base_score))


class SquaredError(Objective):
    """Real labels, the margin is the prediction."""

    name = "reg:squarederror"
    quality_name = "rmse"

    def gradients(self, margins: FloatArray, labels: FloatArray) -> tuple[FloatArray, FloatArray]:
        """g = prediction - y, h = 1."""
        return margins - labels, np.ones_like(margins)

    def losses(self, margins: FloatArray, labels: FloatArray) -> FloatArray:
        """Half the squared error."""
        difference = margins - labels
        return 0.5 * (difference * difference)

    def qualities(self, margins: FloatArray, labels: FloatArray) -> FloatArray:
        """0: the root mean squared error follows from the loss."""
        return np.zeros(len(labels))

    def base_margin(self, base_score: float) -> float:
        """The base score itself."""
        return base_score

    def label_exponent(self, labels: FloatArray, *, label_bound: float) -> int:
        """Of the declared bound, else of the largest label."""
        return exponent_of([label_bound] if label_bound else labels)

    def gradient_exponent(
        self, labels: FloatArray, *, base_margins: Sequence[float], label_bound: float
    ) -> int:
        """Of the declared bound (and the base score), else of the largest first gradient."""
        if label_bound:
            return exponent_of([label_bound, *base_margins])
        return exponent_of(base_margins[0] - labels)

    def bound_exponent(self, exponents: Sequence[int]) -> int:
        """4 times the largest one told."""
        return common_exponent(exponents, headroom=HEADROOM)

    def loss_scale(self, scales: GradientScales) -> FixedPointScale:
        """Bound of half a squared gradient."""
        return scales.of_rows(2 * scales.row_exponent - 1)

    def metrics(self, loss: float, quality: float) -> Metrics:
        """Half the mean squared error, and the root of the mean squared error."""
        return Metrics(loss, math.sqrt(2.0 * loss))


_OBJECTIVES: dict[str, Objective] = {
    objective.name: objective for objective in (BinaryLogistic(), SquaredError(), Poisson())
}


def objective_of(config: VerticalXGBoostConfig) -> Objective:
    """Return the objective that a configuration names."""
    if config.objective == Softprob.name:
        return Softprob(class_names(config.classes))
    return _OBJECTIVES[config.objective]


def label_scale(
    exponents: Sequence[int], config: VerticalXGBoostConfig, *, weight_exponent: int = 0
) -> FixedPointScale:
    """Scale in which labels are summed for their mean, from the owners' `label_exponent`."""
    exponent = common_exponent(exponents) + weight_exponent
    return FixedPointScale(config.fixed_point_bits, exponent)


def base_scores_of(
    label_sums: Sequence[int],
    weight: float,
    scale: FixedPointScale,
    config: VerticalXGBoostConfig,
) -> tuple[float, ...]:
    """Return the given base score for each root, else what the training labels give.

    Parameters
    ----------
    label_sums : sequence of int
        `Objective.label_sums` over the training rows of all owners.
    weight : float
        Of all training rows, above 0; where they have none, how many there are.
    scale : FixedPointScale
        Of the labels.
    config : VerticalXGBoostConfig
    """
    objective = objective_of(config)
    if config.given_base_score is not None:
        return (config.given_base_score,) * objective.num_roots
    return objective.base_scores(label_sums, weight, scale)
