"""Sums of gradients and Hessians over a party's own rows, for every open node and candidate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks.vertical_xgboost.buckets import BoolArray, BucketMap
from tasks.vertical_xgboost.candidates import CandidateLayout, IntpArray
from tasks.vertical_xgboost.fixed_point import IntArray, sums_by_group

NO_NODE = -1
"""Slot of a row that is in no open node, or is kept for evaluation."""


def node_slots(
    nodes: NDArray[np.integer], open_nodes: list[int], is_training: BoolArray
) -> IntpArray:
    """Place of each row's node among the open nodes of the level.

    Parameters
    ----------
    nodes : (..., n) integer
        Node of each row, on an axis in front below each root.
    open_nodes : list of int
        Ascending numbers of the level's open nodes.
    is_training : (n,) bool

    Returns
    -------
    (..., n) intp
        `NO_NODE` for rows that take no part in the sums.
    """
    if not open_nodes:
        return np.full(nodes.shape, NO_NODE, dtype=np.intp)
    numbers = np.asarray(open_nodes)
    place = np.minimum(np.searchsorted(numbers, nodes), len(numbers) - 1)
    return np.where((numbers[place] == nodes) & is_training, place, NO_NODE).astype(np.intp)


def node_sums(values: IntArray, slots: IntpArray, *, num_nodes: int) -> IntArray:
    """Full sums of each open node.

    Parameters
    ----------
    values : (k, ..., n) int64
        Whole numbers to sum: gradients and Hessians (k = 2), or ones (k = 1).
    slots : (..., n) intp
        As `node_slots` gives them.
    num_nodes : int
        Open nodes.

    Returns
    -------
    (num_nodes, k) int64
    """
    taken = slots != NO_NODE
    groups = slots[taken]
    return np.stack([sums_by_group(row[taken], groups, num_nodes) for row in values], axis=1)


def candidate_sums(
    bucket_map: BucketMap,
    layout: CandidateLayout,
    values: IntArray,
    slots: IntpArray,
    *,
    num_nodes: int,
) -> IntArray:
    """Sums over the rows that go left, for each open node and each candidate of a source.

    Parameters
    ----------
    bucket_map : (num_features, n) uint8
        Buckets of the party's rows for the source's features.
    layout : CandidateLayout
        Of the source.
    values : (k, ..., n) int64
        Whole numbers to sum.
    slots : (..., n) intp
        As `node_slots` gives them.
    num_nodes : int
        Open nodes.

    Returns
    -------
    (num_nodes, num_candidates, k) int64
        In the numbering of `layout`.
    """
    taken = slots != NO_NODE
    chosen = values[:, taken]
    nodes = slots[taken]
    numbers = bucket_map[:, np.nonzero(taken)[-1]]  # a row once for each root
    left = np.empty((num_nodes, layout.num_candidates, len(values)), dtype=np.int64)
    for feature, buckets in enumerate(layout.num_buckets):
        start, end = int(layout.offsets[feature]), int(layout.offsets[feature + 1])
        if start == end:
            continue
        groups = nodes * (buckets + 1) + numbers[feature]
        for at, row in enumerate(chosen):
            histogram = sums_by_group(row, groups, num_nodes * (buckets + 1))
            left[:, start:end, at] = _left_sums(
                histogram.reshape(num_nodes, buckets + 1),
                learns_missing=layout.has_missing[feature],
            )
    return left


def refused_candidates(
    bucket_map: BucketMap,
    layout: CandidateLayout,
    slots: IntpArray,
    *,
    num_nodes: int,
    min_instances: int,
) -> BoolArray:
    """Candidates that a party refuses because a side would hold too few of its rows.

    Parameters
    ----------
    bucket_map : (num_features, n) uint8
    layout : CandidateLayout
    slots : (..., n) intp
    num_nodes : int
        As for `candidate_sums`.
    min_instances : int
        t: a side with more than 0 and fewer than t own rows is refused; 0 and 1 refuse nothing.

    Returns
    -------
    (num_nodes, num_candidates) bool
    """
    if min_instances < 2:
        return np.zeros((num_nodes, layout.num_candidates), dtype=np.bool_)
    ones = np.ones((1, *slots.shape), dtype=np.int64)
    left = candidate_sums(bucket_map, layout, ones, slots, num_nodes=num_nodes)[:, :, 0]
    right = node_sums(ones, slots, num_nodes=num_nodes) - left
    small = ((side > 0) & (side < min_instances) for side in (left, right))
    refused: BoolArray = np.logical_or(*small)
    return refused


def _left_sums(histogram: IntArray, *, learns_missing: bool) -> IntArray:
    """Sums of left children from the sums of buckets, that of missing values being the last."""
    up_to = np.cumsum(histogram[:, :-1], axis=1)
    if not learns_missing:
        return up_to[:, :-1]
    with_missing = up_to[:, :-1] + histogram[:, -1:]
    return np.concatenate([up_to, with_missing[:, ::-1]], axis=1)
