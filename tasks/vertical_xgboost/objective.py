"""What the protocol needs of a loss, whichever it is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tasks.vertical_xgboost.config import ObjectiveName
from tasks.vertical_xgboost.fixed_point import FixedPointScale, FloatArray, GradientScales

LARGEST_LOG_LOSS_EXPONENT = 6
"""The log loss of a row counts as at most 2 to this power."""

HEADROOM = 2
"""Gradients of later trees stay below 4 times the bound of the first ones."""


@dataclass(frozen=True)
class Metrics:
    """Means over a set of rows.

    Parameters
    ----------
    loss : float
        Mean loss of the objective: log loss, half the squared error, or Poisson's negative log
        likelihood.
    quality : float
        Accuracy for a classifier (threshold one half; of more classes the most probable one), root
        mean squared error for a regression or counts.
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
    max_delta_step: ClassVar[float] = 0.0
    """Largest absolute weight of a leaf, not times eta, as XGBoost's of this name; 0: any."""

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


class LogLoss(Objective):
    """A loss of classes: labels are counted, gradients at most 1, the loss of a row capped."""

    quality_name = "accuracy"

    def label_exponent(self, labels: FloatArray, *, label_bound: float) -> int:
        """0: labels count 1 at most."""
        return 0

    def gradient_exponent(
        self, labels: FloatArray, *, base_margins: Sequence[float], label_bound: float
    ) -> int:
        """0: neither gradients nor Hessians are above 1."""
        return 0

    def bound_exponent(self, exponents: Sequence[int]) -> int:
        """0: bound 1."""
        return 0

    def loss_scale(self, scales: GradientScales) -> FixedPointScale:
        """Bound 64."""
        return scales.of_rows(LARGEST_LOG_LOSS_EXPONENT)

    def metrics(self, loss: float, quality: float) -> Metrics:
        """Log loss and accuracy."""
        return Metrics(loss, quality)

    def _capped(self, losses: FloatArray) -> FloatArray:
        """Log losses of rows, at most 64 (a row given a probability of 1e-28)."""
        return np.minimum(losses, math.ldexp(1.0, LARGEST_LOG_LOSS_EXPONENT))
