"""Count, mean and sum of squared deviations, and how those of two sites become one.

Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
variances", 1979. One exchange instead of the two that mean-then-deviations needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Moments:
    """Sufficient statistics of a mean and a variance.

    Attributes
    ----------
    count : int
        Number n of values.
    mean : float
        0 when there is no value.
    squares : float
        M2, the sum of squared deviations from the mean.
    """

    count: int
    mean: float
    squares: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Moments:
        """Moments of (n,) finite values; n may be 0."""
        if len(values) == 0:
            return cls(0, 0.0, 0.0)
        mean = float(np.mean(values))
        deviations = values - mean
        return cls(len(values), mean, float(np.dot(deviations, deviations)))

    @classmethod
    def of_counted(cls, values: NDArray[np.float64], counts: NDArray[np.int64]) -> Moments:
        """Moments of (L,) values of which each occurs (L,) `counts` times."""
        count = int(counts.sum())
        if count == 0:
            return cls(0, 0.0, 0.0)
        mean = float((values * counts).sum()) / count
        return cls(count, mean, float((counts * (values - mean) ** 2).sum()))

    def __add__(self, other: Moments) -> Moments:
        if self.count == 0:
            return other
        if other.count == 0:
            return self
        count = self.count + other.count
        shift = other.mean - self.mean
        share = other.count / count
        return Moments(
            count,
            self.mean + shift * share,
            self.squares + other.squares + shift * shift * self.count * share,
        )

    @property
    def variance(self) -> float:
        """Sample variance with n - 1; needs two values.

        Raises
        ------
        ValueError
            If there are fewer than two values.
        """
        if self.count < 2:
            raise ValueError(f"a sample variance of {self.count} values: allowed is 2 or more")
        return self.squares / (self.count - 1)


def pool_moments(sites: Iterable[Moments]) -> Moments:
    """Moments of the values of all sites together (give them in the order of site names)."""
    pooled = Moments(0, 0.0, 0.0)
    for site in sites:
        pooled = pooled + site
    return pooled
