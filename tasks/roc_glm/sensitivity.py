"""A data-dependent estimate of the L2 sensitivity of a model: how far scores of neighbours differ.

As in the software of Schalk et al. (Distributed non-disclosive validation of predictive models by a
modified ROC-GLM), features become integers (cells of a histogram, one column a category),
neighbours are the pairs of rows at the smallest positive L1 distance, and the estimate is the
largest difference of their scores. It is an estimate: it bounds nothing for patients that are not
in the data, and it is itself worked out from single patients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.roc_glm.survivor import FloatArray, IntArray
from tasks.site.not_estimable import NotEstimable

_BLOCK = 512


@dataclass(frozen=True)
class SensitivityEstimate:
    """An estimate of Delta2; never a bound.

    Attributes
    ----------
    sensitivity : float
        Largest difference of scores over neighbouring rows.
    distance : int
        L1 distance of these rows in histogram cells; 1 is the definition of a neighbour.
    pairs : int
        Number of neighbouring pairs.
    """

    sensitivity: float
    distance: int
    pairs: int


def histogram_cells(column: NDArray[np.generic], breaks: int) -> IntArray:
    """A feature column as integers.

    Parameters
    ----------
    column : (n,) array
        Numbers become the index of one of `breaks` equal cells of their range; anything else
        becomes one 0/1 column a category.
    breaks : int
        At least 1.

    Returns
    -------
    (n, c) int64
    """
    if column.dtype.kind in "biuf":
        numbers = column.astype(np.float64)
        low, high = numbers.min(), numbers.max()
        if low == high:
            return np.zeros((len(column), 1), dtype=np.int64)
        cells = np.floor((numbers - low) / (high - low) * breaks).astype(np.int64)
        return np.asarray(np.minimum(cells, breaks - 1)[:, None], dtype=np.int64)
    categories, place = np.unique(column.astype(np.str_), return_inverse=True)
    one_hot: IntArray = np.eye(len(categories), dtype=np.int64)[place]
    return one_hot


def estimate_sensitivity(
    columns: Sequence[NDArray[np.generic]], scores: FloatArray, *, breaks: int | None = None
) -> SensitivityEstimate:
    """Estimate the L2 sensitivity of a model at a site.

    Parameters
    ----------
    columns : sequence of (n,) arrays
        Features of the rows.
    scores : (n,) float64
        The model's scores of the same rows.
    breaks : int, optional
        Cells of a numeric feature; n // 3 by default, as in the original.

    Raises
    ------
    NotEstimable
        ``"constant-scores"`` if no two rows differ in a feature, or no neighbours in score.
    """
    cells = max(1, len(scores) // 3) if breaks is None else breaks
    integers = np.concatenate([histogram_cells(column, cells) for column in columns], axis=1)
    found = _at_distance_one(integers, scores) or _at_smallest_distance(integers, scores)
    if found is None or found.sensitivity == 0.0:
        raise NotEstimable(
            "constant-scores",
            f"no two neighbouring rows differ in score at {cells} cells a feature; "
            "give the sensitivity, or take fewer cells",
        )
    return found


def pool_sensitivity(sites: Sequence[SensitivityEstimate]) -> SensitivityEstimate:
    """Estimate over all sites: the largest, since no site releases under less than its own.

    Distance and pairs are those of the sites that have it.
    """
    largest = max(site.sensitivity for site in sites)
    having = [site for site in sites if site.sensitivity == largest]
    return SensitivityEstimate(
        sensitivity=largest,
        distance=min(site.distance for site in having),
        pairs=sum(site.pairs for site in having),
    )


def _at_distance_one(integers: IntArray, scores: FloatArray) -> SensitivityEstimate | None:
    """Neighbours that differ by 1 in one column: rows alike in all the others, found by hashing."""
    largest, pairs = 0.0, 0
    for column in range(integers.shape[1]):
        others = np.ascontiguousarray(np.delete(integers, column, axis=1))
        groups: dict[bytes, dict[int, tuple[float, float, int]]] = defaultdict(dict)
        for row, cell, score in zip(
            others, integers[:, column].tolist(), scores.tolist(), strict=True
        ):
            group = groups[row.tobytes()]
            low, high, number = group.get(cell, (score, score, 0))
            group[cell] = (min(low, score), max(high, score), number + 1)
        for group in groups.values():
            for cell, (low, high, number) in group.items():
                if cell + 1 in group:
                    next_low, next_high, next_number = group[cell + 1]
                    largest = max(largest, high - next_low, next_high - low)
                    pairs += number * next_number
    return SensitivityEstimate(largest, 1, pairs) if pairs else None


def _at_smallest_distance(integers: IntArray, scores: FloatArray) -> SensitivityEstimate | None:
    """Closest pairs at whatever distance; block by block, n^2 p operations."""
    closest, largest, pairs = np.iinfo(np.int64).max, 0.0, 0
    for first in range(0, len(integers), _BLOCK):
        block = integers[first : first + _BLOCK]
        distance = np.zeros((len(block), len(integers) - first), dtype=np.int64)
        for column in range(integers.shape[1]):
            distance += np.abs(block[:, column, None] - integers[None, first:, column])
        # Each pair once: the rows of the block against those after them.
        later = np.arange(len(integers) - first)[None, :] > np.arange(len(block))[:, None]
        candidates = later & (distance > 0)
        if not candidates.any():
            continue
        smallest = int(distance[candidates].min())
        if smallest > closest:
            continue
        if smallest < closest:
            closest, largest, pairs = smallest, 0.0, 0
        row, other = np.nonzero(candidates & (distance == closest))
        largest = max(largest, float(np.abs(scores[first + row] - scores[first + other]).max()))
        pairs += len(row)
    return SensitivityEstimate(largest, int(closest), pairs) if pairs else None
