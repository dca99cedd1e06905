"""The loss of counts: negative log likelihood of a Poisson rate, whose logarithm is the margin."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln, inv_boxcox

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.fixed_point import (
    FixedPointScale,
    FloatArray,
    GradientScales,
    common_exponent,
    exponent_of,
)
from tasks.vertical_xgboost.objective import HEADROOM, Metrics, Objective


class Poisson(Objective):
    """Counts, or rates of 0 and more; the margin is the logarithm of the expected one.

    As XGBoost has it with its ``max_delta_step`` of 0.7: Hessians are exp(0.7) times those of the
    loss, which shortens steps, and no leaf weighs more than 0.7.
    """

    name = "count:poisson"
    quality_name = "rmse"
    max_delta_step = 0.7

    _LEAST_RATE = 1e-16

    def gradients(self, margins: FloatArray, labels: FloatArray) -> tuple[FloatArray, FloatArray]:
        """g = rate - y, h = rate exp(0.7), where the rate is exp(margin)."""
        rates = exponential(margins)
        with np.errstate(over="ignore"):  # no bound admits what is infinite
            return rates - labels, rates * math.exp(self.max_delta_step)

    def losses(self, margins: FloatArray, labels: FloatArray) -> FloatArray:
        """Negative log likelihood, XGBoost's ``poisson-nloglik``: rates are 1e-16 at least."""
        least = math.log(self._LEAST_RATE)
        rates = np.maximum(exponential(margins), self._LEAST_RATE)
        with np.errstate(invalid="ignore"):  # of an infinite rate, which no bound admits
            losses = gammaln(labels + 1.0) + rates - labels * np.maximum(margins, least)
        return np.asarray(losses, dtype=np.float64)

    def qualities(self, margins: FloatArray, labels: FloatArray) -> FloatArray:
        """Squared difference of rate and label."""
        difference = (exponential(margins) - labels).reshape(-1)
        with np.errstate(over="ignore"):
            return np.asarray(difference * difference, dtype=np.float64)

    def base_margin(self, base_score: float) -> float:
        """Logarithm of a rate.

        Raises
        ------
        SiteFault
            ``"no-events"`` for 0, the mean of labels that are all 0.
        """
        if not base_score > 0.0:
            raise SiteFault(
                "no-events",
                "training labels are all 0, or round to 0 beside the largest one (or label-bound), "
                "so their mean has no logarithm; allowed are labels above 0 too, or a given "
                "base-score",
            )
        return math.log(base_score)

    def label_exponent(self, labels: FloatArray, *, label_bound: float) -> int:
        """Of the declared bound, else of the largest label."""
        return exponent_of([label_bound] if label_bound else labels)

    def gradient_exponent(
        self, labels: FloatArray, *, base_margins: Sequence[float], label_bound: float
    ) -> int:
        """Of the declared bound, else of the largest label; of the first rate, if that is more."""
        rate = float(exponential(np.array(base_margins[:1]))[0])
        return exponent_of([label_bound, rate] if label_bound else [*labels.tolist(), rate])

    def bound_exponent(self, exponents: Sequence[int]) -> int:
        """4 times the largest one told: of labels and of rates."""
        return common_exponent(exponents, headroom=HEADROOM)

    def scales(self, exponent: int, *, bits: int, weight_exponent: int = 0) -> GradientScales:
        """A Hessian is at most exp(0.7), less than 4, times the bound of rates."""
        return GradientScales.of(
            bits=bits,
            gradient_exponent=exponent,
            hessian_exponent=exponent + 2,
            weight_exponent=weight_exponent,
        )

    def loss_scale(self, scales: GradientScales) -> FixedPointScale:
        """Bound of what labels and rates up to 2^e make: 2^e times 1 - log(1e-16) + 2 |e| log 2.

        With e of the least rate at least, which stands for all smaller ones.
        """
        exponent = max(scales.row_exponent, math.ceil(math.log2(self._LEAST_RATE)))
        factor = 1.0 - math.log(self._LEAST_RATE) + 2.0 * abs(exponent) * math.log(2.0)
        return scales.of_rows(exponent + math.ceil(math.log2(factor)))

    def quality_scale(self, scales: GradientScales) -> FixedPointScale:
        """Bound of a squared gradient."""
        return scales.of_rows(2 * scales.row_exponent)

    def metrics(self, loss: float, quality: float) -> Metrics:
        """Negative log likelihood, and the root of the mean squared error of rates."""
        return Metrics(loss, math.sqrt(quality))


def exponential(margins: FloatArray) -> FloatArray:
    """exp of each, infinite where it is too large.

    By scipy's inverse of the Box-Cox transform with lambda = 0, a scalar loop as `expit` is.
    """
    with np.errstate(over="ignore"):
        return np.asarray(inv_boxcox(margins, 0.0), dtype=np.float64)
