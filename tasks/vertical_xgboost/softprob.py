"""The loss of more than two classes: log loss of the softmax of a margin for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.fixed_point import FixedPointScale, FloatArray
from tasks.vertical_xgboost.objective import LogLoss
from tasks.vertical_xgboost.softmax import centred_log_shares, log_losses, probabilities


@dataclass(frozen=True)
class Softprob(LogLoss):
    """Labels 0 to k - 1, one margin a class, whose softmax is its probability.

    Parameters
    ----------
    classes : tuple of str
        Names, class 0 first.
    """

    classes: tuple[str, ...]

    name = "multi:softprob"

    @property
    def num_roots(self) -> int:
        """One margin a class."""
        return len(self.classes)

    def gradients(self, margins: FloatArray, labels: FloatArray) -> tuple[FloatArray, FloatArray]:
        """g = p_c - (1 of the row's class, else 0), h = max(2 p_c (1 - p_c), 1e-16).

        Both are XGBoost's. Twice the second derivative bounds what moving all margins at once may
        do; the floor is lost again where h is rounded to a whole number.
        """
        share = probabilities(margins)
        is_own = labels == np.arange(self.num_roots)[:, np.newaxis]
        return share - is_own, np.maximum(2.0 * share * (1.0 - share), 1e-16)

    def losses(self, margins: FloatArray, labels: FloatArray) -> FloatArray:
        """Log loss, capped at 64 as that of two classes."""
        return self._capped(log_losses(margins, labels))

    def qualities(self, margins: FloatArray, labels: FloatArray) -> FloatArray:
        """1 where the row's class has the largest margin, the lowest class of equal ones."""
        hits: FloatArray = (np.argmax(margins, axis=0) == labels).astype(np.float64)
        return hits

    def base_margin(self, base_score: float) -> float:
        """The base score itself, which is a margin."""
        return base_score

    def label_sums(
        self, labels: FloatArray, scale: FixedPointScale, *, weights: FloatArray | None = None
    ) -> list[int]:
        """Rows of each class, or the sum of their weights."""
        whole = scale.encode(np.ones(len(labels)) if weights is None else weights)
        return [int(whole[labels == number].sum()) for number in range(self.num_roots)]

    def base_scores(
        self, label_sums: Sequence[int], weight: float, scale: FixedPointScale
    ) -> tuple[float, ...]:
        """Logarithms of the shares of classes, less their mean.

        Raises
        ------
        SiteFault
            ``"one-class"`` with the classes that no training row (with a weight) has.
        """
        pairs = zip(self.classes, label_sums, strict=True)
        if missing := [name for name, total in pairs if total < 1]:
            raise SiteFault(
                "one-class",
                f"no training row is of class {', '.join(missing)} (classes), so its share has no "
                "logarithm; allowed are rows of every class, or base-score = 0",
            )
        return centred_log_shares([float(scale.decode(total)) for total in label_sums])
