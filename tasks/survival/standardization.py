"""Means and scales of the features over all sites, from each site's moments.

No row leaves a site: a site sends count, mean and sum of squared deviations of each column,
and these combine exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from tasks.survival.encoding import FeatureEncoding

LARGEST_MAGNITUDE = 1e100
"""Features beyond it are refused: sums of their squares could overflow."""

LARGEST_STANDARDIZED = 1e6
"""Standardized values are limited to plus and minus this, so that they fit a network."""

_CONSTANT = 1e-13
"""A scale below this share of the mean is rounding error of a constant column."""


@dataclass(frozen=True, eq=False)
class FeatureMoments:
    """Count, mean and sum of squared deviations of feature columns.

    Attributes
    ----------
    count : int
        Rows behind the moments.
    mean : ndarray, shape (p,)
        Column means; 0 if there are no rows.
    m2 : ndarray, shape (p,)
        Sums of squared deviations from the column mean.

    Raises
    ------
    ValueError
        If the moments cannot be those of any rows; all faults in one message.
    """

    count: int
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]

    def __post_init__(self) -> None:
        faults = []
        if self.count < 0:
            faults.append(f"count is {self.count}; allowed: 0 or more")
        if self.mean.ndim != 1 or self.mean.shape != self.m2.shape:
            faults.append(
                f"mean and m2 have shapes {self.mean.shape} and {self.m2.shape}; "
                "allowed: one value a column each"
            )
        # written so that NaN is a fault
        if not (np.abs(self.mean) <= LARGEST_MAGNITUDE).all():
            faults.append(f"mean holds a value that is not within ±{LARGEST_MAGNITUDE:g}")
        if not ((self.m2 >= 0) & np.isfinite(self.m2)).all():
            faults.append("m2 holds a value that is negative or not finite")
        if faults:
            raise ValueError("; ".join(faults))

    @classmethod
    def of(cls, features: NDArray[np.float64]) -> FeatureMoments:
        """Moments of the rows of a feature matrix, shape (n, p), n may be 0.

        Two passes, the second corrected for the rounding of the mean (Chan, Golub and
        LeVeque 1983, eq. 1.7).

        Raises
        ------
        ValueError
            If a value is NaN, infinite or beyond ``LARGEST_MAGNITUDE``.
        """
        features = np.asarray(features, dtype=np.float64)
        n_rows, n_columns = features.shape
        if not (np.abs(features) <= LARGEST_MAGNITUDE).all():
            raise ValueError(f"features must be numbers within ±{LARGEST_MAGNITUDE:g}")
        if n_rows == 0:
            return cls(0, np.zeros(n_columns), np.zeros(n_columns))
        mean = features.mean(axis=0)
        deviations = features - mean
        remainder = deviations.sum(axis=0)
        m2 = (deviations**2).sum(axis=0) - remainder**2 / n_rows
        return cls(n_rows, mean + remainder / n_rows, np.maximum(m2, 0.0))

    @classmethod
    def merge(cls, parts: Iterable[FeatureMoments]) -> FeatureMoments:
        """Moments of all rows together, merged one after the other in the order given.

        Chan, Golub and LeVeque (1983), eq. 2.1. The error of a scale is that of the means
        that arrived: about 2e-16 times mean / scale, relative.

        Raises
        ------
        ValueError
            If there are no parts, or they differ in their number of columns.
        """
        parts = list(parts)
        if not parts:
            raise ValueError("no moments to merge")
        widths = {part.mean.size for part in parts}
        if len(widths) > 1:
            raise ValueError(f"moments differ in their number of columns: {sorted(widths)}")
        return reduce(cls._merged_with, parts)

    def _merged_with(self, other: FeatureMoments) -> FeatureMoments:
        count = self.count + other.count
        if self.count == 0 or other.count == 0:
            return self if other.count == 0 else other
        delta = other.mean - self.mean
        share = other.count / count
        return FeatureMoments(
            count,
            self.mean + delta * share,
            self.m2 + other.m2 + delta**2 * (self.count * share),
        )

    def standardizer(self) -> Standardizer:
        """Mean and standard deviation (divisor n) of each column; a constant one gets scale 1.

        Raises
        ------
        ValueError
            If there are no rows.
        """
        if self.count == 0:
            raise ValueError("no rows to standardize by")
        scale = np.sqrt(self.m2 / self.count)
        constant = scale <= np.maximum(_CONSTANT * np.abs(self.mean), 1 / LARGEST_MAGNITUDE)
        return Standardizer(mean=self.mean, scale=np.where(constant, 1.0, scale))


@dataclass(frozen=True, eq=False)
class Standardizer:
    """Encodes, shifts and scales feature columns, the same way at all sites.

    Attributes
    ----------
    mean : ndarray, shape (p,)
    scale : ndarray, shape (p,)
        Positive.
    encoding : FeatureEncoding or None
        How the columns of a table become the p inputs; None: every column is its input.

    Raises
    ------
    ValueError
        If the shapes differ, there are not as many inputs, a mean is not finite or a scale is not
        positive and finite.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    encoding: FeatureEncoding | None = None

    def __post_init__(self) -> None:
        inputs = self.encoding.input_names if self.encoding else ()
        if self.encoding and len(inputs) != self.mean.size:
            raise ValueError(f"mean has {self.mean.size} values for {len(inputs)} inputs")
        if self.mean.ndim != 1 or self.mean.shape != self.scale.shape:
            raise ValueError(
                f"mean and scale have shapes {self.mean.shape} and {self.scale.shape}; "
                "allowed: one value a column each"
            )
        if not (np.isfinite(self.mean).all() and np.isfinite(self.scale).all()):
            raise ValueError("mean and scale must be finite")
        if not (self.scale > 0).all():
            raise ValueError("scale must be positive")

    def apply(self, features: NDArray[np.float64]) -> NDArray[np.float32]:
        """(features - mean) / scale within ±``LARGEST_STANDARDIZED``, shape (n, p), float32.

        Of the encoded features, where there is an encoding; `features` are then what it takes.
        """
        features = np.asarray(features, dtype=np.float64)
        if self.encoding is not None:
            features = self.encoding.apply(features)
        if features.ndim != 2 or features.shape[1] != self.mean.size:
            raise ValueError(
                f"features have shape {features.shape}; allowed: (n, {self.mean.size})"
            )
        with np.errstate(over="ignore"):  # an infinite result is limited like any other
            standardized = (features - self.mean) / self.scale
        limited = np.clip(standardized, -LARGEST_STANDARDIZED, LARGEST_STANDARDIZED)
        return np.ascontiguousarray(limited, dtype=np.float32)
