"""The candidate splits of one source, numbered so that every party means the same by a number.

Of a feature with B buckets there are, in this order: B - 1 candidates that send missing values
right, by rising threshold; where training rows miss the value, "all present left, missing right";
then B - 1 that send missing values left, by falling threshold. That is the order in which XGBoost's
``hist`` looks at them, and the first of equal ones wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tasks.vertical_xgboost.buckets import BoolArray, BucketMap, FeatureBuckets

IntpArray = NDArray[np.intp]


@dataclass(frozen=True)
class Candidate:
    """A split of a source.

    Parameters
    ----------
    feature : int
        Number of the feature in the source's numbering.
    bucket : int
        Values in buckets up to this one go left.
    missing_left : bool
        Side of missing values.
    """

    feature: int
    bucket: int
    missing_left: bool


@dataclass(frozen=True)
class CandidateLayout:
    """All candidates of a source, as they follow from its bucket counts.

    Parameters
    ----------
    num_buckets : tuple of int
        Buckets of values of each feature, 1 or more.
    has_missing : tuple of bool
        Whether the feature's side of missing values is learned.
    """

    num_buckets: tuple[int, ...]
    has_missing: tuple[bool, ...]

    def __post_init__(self) -> None:
        if len(self.num_buckets) != len(self.has_missing):
            raise ValueError("num_buckets and has_missing must be of one length")
        if not all(1 <= count <= 255 for count in self.num_buckets):
            raise ValueError("num_buckets: must be 1 to 255 each")

    @classmethod
    def of(cls, buckets: Sequence[FeatureBuckets]) -> CandidateLayout:
        """Layout of features in the order given."""
        return cls(
            tuple(feature.num_buckets for feature in buckets),
            tuple(feature.has_missing for feature in buckets),
        )

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Both tuples as arrays, as they travel."""
        return {
            "num-buckets": np.array(self.num_buckets, dtype=np.int32),
            "has-missing": np.array(self.has_missing, dtype=np.bool_),
        }

    @property
    def num_features(self) -> int:
        """Number of features."""
        return len(self.num_buckets)

    @property
    def num_candidates(self) -> int:
        """Number of candidates over all features."""
        return int(self.offsets[-1])

    @cached_property
    def offsets(self) -> IntpArray:
        """First candidate of each feature, and the number of all; (num_features + 1,)."""
        counts = [
            2 * count - 1 if missing else count - 1
            for count, missing in zip(self.num_buckets, self.has_missing, strict=True)
        ]
        return np.concatenate([[0], np.cumsum(counts, dtype=np.intp)]).astype(np.intp)

    def of_features(self, features: IntpArray) -> CandidateLayout:
        """Layout of some of the features, in the order given."""
        places = features.tolist()
        return CandidateLayout(
            tuple(self.num_buckets[at] for at in places),
            tuple(self.has_missing[at] for at in places),
        )

    def candidate(self, number: int) -> Candidate:
        """The candidate with a number in [0, num_candidates)."""
        if not 0 <= number < self.num_candidates:
            raise IndexError(f"candidate {number}: must be 0 to {self.num_candidates - 1}")
        feature = int(np.searchsorted(self.offsets, number, side="right")) - 1
        place = number - int(self.offsets[feature])
        last_right = self.num_buckets[feature] - 1 + self.has_missing[feature]
        if place < last_right:
            return Candidate(feature, place, missing_left=False)
        return Candidate(
            feature, self.num_buckets[feature] - 2 - (place - last_right), missing_left=True
        )

    def number(self, candidate: Candidate) -> int:
        """The number of a candidate; the reverse of `candidate`."""
        feature, buckets = candidate.feature, self.num_buckets[candidate.feature]
        place = candidate.bucket
        if candidate.missing_left:
            place = buckets - 1 + self.has_missing[feature] + buckets - 2 - candidate.bucket
        number = int(self.offsets[feature]) + place
        if number >= self.num_candidates or self.candidate(number) != candidate:
            raise ValueError("no candidate of this source")
        return number

    def canonical_positions(self, ranks: Sequence[int]) -> IntpArray:
        """Place of each candidate in the canonical order, which decides ties.

        Parameters
        ----------
        ranks : sequence of num_features int
            Place of each (renumbered) feature in the source's order of columns: a permutation of
            0 to num_features - 1.

        Returns
        -------
        (num_candidates,) intp
            A permutation of 0 to num_candidates - 1.
        """
        if sorted(ranks) != list(range(self.num_features)):
            raise ValueError(f"ranks: must be a permutation of 0 to {self.num_features - 1}")
        positions = np.empty(self.num_candidates, dtype=np.intp)
        start = 0
        for feature in np.argsort(np.asarray(ranks, dtype=np.intp)):
            first, end = int(self.offsets[feature]), int(self.offsets[feature + 1])
            positions[first:end] = np.arange(start, start + end - first)
            start += end - first
        return positions


def goes_left(numbers: NDArray[np.uint8], candidate: Candidate, *, num_buckets: int) -> BoolArray:
    """Whether each row goes left.

    Parameters
    ----------
    numbers : (n,) uint8
        The rows' buckets of the candidate's feature.
    candidate : Candidate
    num_buckets : int
        Of that feature; also the number that stands for a missing value.
    """
    left: BoolArray = numbers <= candidate.bucket
    return left | (numbers == num_buckets) if candidate.missing_left else left


def bucket_left(bucket_map: BucketMap, layout: CandidateLayout, split: Candidate) -> BoolArray:
    """Whether each row of a bucket map goes left at a split of its source.

    Parameters
    ----------
    bucket_map : (num_features, n) uint8
    layout : CandidateLayout
    split : Candidate
    """
    return goes_left(
        bucket_map[split.feature], split, num_buckets=layout.num_buckets[split.feature]
    )
