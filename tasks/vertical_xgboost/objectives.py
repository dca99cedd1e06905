"""The two losses: gradients, Hessians, base score, metrics.

All functions work row by row, so that a label owner computes for its rows what one owner of all
rows would, to the last bit. The logistic function is scipy's, a scalar loop: numpy's vectorized
``exp`` may round a value differently depending on the array it stands in.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import expit

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.config import ObjectiveName, VerticalXGBoostConfig
from tasks.vertical_xgboost.fixed_point import (
    FixedPointScale,
    FloatArray,
    GradientScales,
    common_exponent,
    exponent_of,
)

_HEADROOM = 2
"""Gradients of later trees stay below 4 times the bound of the first ones."""


@dataclass(frozen=True)
class Metrics:
    """Means over a set of rows.

    Parameters
    ----------
    loss : float
        Mean loss of the objective: log loss, or half the squared error.
    quality : float
        Accuracy for a classifier (threshold one half), root mean squared error for a regression.
    """

    loss: float
    quality: float


class Objective(ABC):
    """A loss l(y, margins) with what the protocol needs of it.

    Margins are (roots, n) arrays, labels (n,). A loss of one margin a row works element by element,
    so it takes and gives (n,) arrays too.
    """

    name: ClassVar[ObjectiveName]
    quality_name: ClassVar[str]

    @property
    def num_roots(self) -> int:
        """Margins of a row, hence trees a round."""
        return 1

    @abstractmethod
    def gradients(self, margins: FloatArray, labels: FloatArray) -> tuple[FloatArray, FloatArray]:
        """First and second derivative of the loss by each margin, in the margins' shape."""

    @abstractmethod
    def losses(self, margins: FloatArray, labels: FloatArray) -> FloatArray:
        """Loss of each row, at most the bound of `loss_scale`."""

    @abstractmethod
    def qualities(self, margins: FloatArray, labels: FloatArray) -> FloatArray:
        """What the quality is a mean of, of each row: 1 where it is predicted correctly, else 0.

        0 where the quality follows from the loss.
        """

    @abstractmethod
    def base_margin(self, base_score: float) -> float:
        """Margin of a base score."""

    def label_sums(
        self, labels: FloatArray, scale: FixedPointScale, *, weights: FloatArray | None = None
    ) -> list[int]:
        """What base scores are made of: sums over an owner's training rows, one a root."""
        return [int(scale.encode(labels if weights is None else labels * weights).sum())]

    def base_scores(
        self, label_sums: Sequence[int], weight: float, scale: FixedPointScale
    ) -> tuple[float, ...]:
        """Base scores from the sums over all owners, one a root: the mean label."""
        return tuple(float(scale.decode(each)) / weight for each in label_sums)

    def base_margins(self, base_scores: Sequence[float]) -> tuple[float, ...]:
        """Margin of each base score; raises as `base_margin`."""
        return tuple(self.base_margin(each) for each in base_scores)

    @abstractmethod
    def label_exponent(self, labels: FloatArray, *, label_bound: float) -> int:
        """What an owner tells of the size of its labels (evaluation rows too), for their mean."""

    @abstractmethod
    def gradient_exponent(
        self, labels: FloatArray, *, base_margins: Sequence[float], label_bound: float
    ) -> int:
        """What an owner tells of the size of its first gradients (evaluation rows too)."""

    @abstractmethod
    def bound_exponent(self, exponents: Sequence[int]) -> int:
        """Bound of all gradients of a run, from what the owners told by `gradient_exponent`."""

    def scales(self, exponent: int, *, bits: int, weight_exponent: int = 0) -> GradientScales:
        """Scales of a run, from `bound_exponent` and the bound of weights; Hessians at most 1."""
        return GradientScales.of(
            bits=bits, gradient_exponent=exponent, weight_exponent=weight_exponent
        )

    @abstractmethod
    def loss_scale(self, scales: GradientScales) -> FixedPointScale:
        """Scale in which losses are summed."""

    def quality_scale(self, scales: GradientScales) -> FixedPointScale:
        """Scale in which `qualities` are summed, by default with bound 1."""
        return scales.of_rows(0)

    @abstractmethod
    def metrics(self, loss: float, quality: float) -> Metrics:
        """Metrics from the (weighted) means of losses and of `qualities`."""


class BinaryLogistic(Objective):
    """Labels 0 and 1, the margin is the log odds of 1."""

    name = "binary:logistic"
    quality_name = "accuracy"

    _LARGEST_LOSS_EXPONENT = 6

    def gradients(self, margins: FloatArray, labels: FloatArray) -> tuple[FloatArray, FloatArray]:
        """g = p - y, h = p (1 - p)."""
        probability = expit(margins)
        return probability - labels, probability * (1.0 - probability)

    def losses(self, margins: FloatArray, labels: FloatArray) -> FloatArray:
        """Log loss, capped at 64 (a row given a probability of 1e-28)."""
        loss = np.logaddexp(0.0, np.where(labels > 0.5, -margins, margins))
        return np.minimum(loss, math.ldexp(1.0, self._LARGEST_LOSS_EXPONENT))

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

    def label_exponent(self, labels: FloatArray, *, label_bound: float) -> int:
        """0: labels are at most 1."""
        return 0

    def gradient_exponent(
        self, labels: FloatArray, *, base_margins: Sequence[float], label_bound: float
    ) -> int:
        """0: gradients are at most 1."""
        return 0

    def bound_exponent(self, exponents: Sequence[int]) -> int:
        """0: bound 1."""
        return 0

    def loss_scale(self, scales: GradientScales) -> FixedPointScale:
        """Bound 64."""
        return scales.of_rows(self._LARGEST_LOSS_EXPONENT)

    def metrics(self, loss: float, quality: float) -> Metrics:
        """Log loss and accuracy."""
        return Metrics(loss, quality)


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
        return common_exponent(exponents, headroom=_HEADROOM)

    def loss_scale(self, scales: GradientScales) -> FixedPointScale:
        """Bound of half a squared gradient."""
        return scales.of_rows(2 * scales.row_exponent - 1)

    def metrics(self, loss: float, quality: float) -> Metrics:
        """Half the mean squared error, and the root of the mean squared error."""
        return Metrics(loss, math.sqrt(2.0 * loss))


_OBJECTIVES: dict[str, Objective] = {
    objective.name: objective for objective in (BinaryLogistic(), SquaredError())
}


def objective_of(config: VerticalXGBoostConfig) -> Objective:
    """Return the objective that a configuration names."""
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
