"""Quantile buckets of features, computed by the owner of a column from its training rows.

Features are rounded to 32-bit floats first, as XGBoost does, so that an exported model routes every
row as the buckets did. A value v is in bucket b if b thresholds are at most v; rows with a missing
value have the number after the last bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
BoolArray = NDArray[np.bool_]
BucketMap = NDArray[np.uint8]
"""(features, rows): the bucket of each row's value; the number of buckets for a missing one."""


@dataclass(frozen=True)
class FeatureBuckets:
    """Buckets of one feature.

    Parameters
    ----------
    thresholds : (num_buckets - 1,) float32
        Strictly ascending; every bucket holds a training row.
    has_missing : bool
        Some training rows miss the value and some have it: then the side of missing values is
        learned. Elsewhere they go right.
    """

    thresholds: Float32Array
    has_missing: bool

    @property
    def num_buckets(self) -> int:
        """Buckets of values, not counting that of missing ones; 1 for a constant feature."""
        return len(self.thresholds) + 1

    def numbers(self, values: Float32Array) -> NDArray[np.uint8]:
        """Bucket of each value.

        Parameters
        ----------
        values : (n,) float32
            NaN where missing.
        """
        numbers = np.searchsorted(self.thresholds, values, side="right")
        return np.where(np.isnan(values), self.num_buckets, numbers).astype(np.uint8)

    def threshold(self, bucket: int) -> float:
        """v < threshold exactly for the values in buckets up to `bucket`; inf for the last one."""
        return float(self.thresholds[bucket]) if bucket < len(self.thresholds) else np.inf


def quantile_buckets(training_values: Float32Array, *, max_bin: int) -> FeatureBuckets:
    """Cut a feature into at most `max_bin` buckets of about equally many training rows.

    With no more than `max_bin` different values every value has a bucket. Equal values are never
    separated, so a feature with heavy values has fewer buckets.

    Parameters
    ----------
    training_values : (n,) float32
        NaN where missing; order does not matter.
    max_bin : int
        2 to 255.
    """
    present = np.sort(training_values[~np.isnan(training_values)])
    missing = len(training_values) - len(present)
    if len(present) == 0:
        return FeatureBuckets(np.empty(0, dtype=np.float32), has_missing=False)
    different = np.unique(present)
    if len(different) > max_bin:
        cuts = np.arange(1, max_bin) * len(present) // max_bin
        different = np.unique(np.concatenate([present[:1], present[cuts]]))
    return FeatureBuckets(different[1:].copy(), has_missing=missing > 0)


def bucket_columns(
    features: Float32Array, is_training: BoolArray, *, max_bin: int
) -> tuple[tuple[FeatureBuckets, ...], BucketMap]:
    """Buckets of every column of a table, and the bucket of every row.

    Parameters
    ----------
    features : (n, p) float32
        NaN where missing.
    is_training : (n,) bool
        Rows from which thresholds are taken.
    max_bin : int
        Most buckets of a feature.

    Returns
    -------
    buckets : tuple of p FeatureBuckets
    bucket_map : (p, n) uint8
        All rows, those for evaluation too.
    """
    columns = [np.ascontiguousarray(features[:, at]) for at in range(features.shape[1])]
    buckets = tuple(quantile_buckets(column[is_training], max_bin=max_bin) for column in columns)
    bucket_map = np.empty((len(columns), len(features)), dtype=np.uint8)
    for at, column in enumerate(columns):
        bucket_map[at] = buckets[at].numbers(column)
    return buckets, bucket_map
