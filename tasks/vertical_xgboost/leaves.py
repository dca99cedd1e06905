"""Weights of leaves (PIVODL paper, Eq. 5), and what they add to predictions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.vertical_xgboost.fixed_point import FloatArray, IntArray
from tasks.vertical_xgboost.gains import SplitRule


def leaf_weights(sums: IntArray, rule: SplitRule) -> FloatArray:
    """w = -G / (H + lambda), not yet times eta; within ``max_delta_step``, where there is one.

    0 where H is 0 or below min-child-weight, as in XGBoost; of a tree's nodes only a root can be
    that light.

    Parameters
    ----------
    sums : (..., 2) int64
        Sums of gradients and Hessians over the leaf's training rows.
    rule : SplitRule

    Returns
    -------
    (...) float64
    """
    gradient, hessian = rule.reals(sums)
    heavy = (hessian > 0.0) & (hessian >= rule.min_child_weight)
    denominator = np.where(heavy, hessian + rule.reg_lambda, 1.0)
    weights = np.where(heavy, (0.0 - gradient) / denominator, 0.0)
    if rule.max_delta_step:
        weights = np.clip(weights, -rule.max_delta_step, rule.max_delta_step)
    return weights


def child_weights(left: IntArray, total: IntArray, rule: SplitRule) -> FloatArray:
    """Weights of both children of a split at the last level.

    Parameters
    ----------
    left, total : (..., 2) int64
        Sums over the left child and over the node.
    rule : SplitRule

    Returns
    -------
    (..., 2) float64
        (w_L, w_R).
    """
    return leaf_weights(np.stack([left, total - left], axis=-2), rule)


def base_layer(base_margins: ArrayLike, num_rows: int) -> FloatArray:
    """Margins in front of the first tree.

    Parameters
    ----------
    base_margins : (roots,) float
    num_rows : int

    Returns
    -------
    (roots, n) float64
    """
    column = np.asarray(base_margins, dtype=np.float64)[:, np.newaxis]
    return np.repeat(column, num_rows, axis=1)


def add_leaves(
    margins: FloatArray, nodes: NDArray[np.integer], weights: Mapping[int, float], *, eta: float
) -> None:
    """Add eta times the leaf's weight to each row's margin, in place.

    Parameters
    ----------
    margins : (..., n) float64
    nodes : (..., n) integer
        Leaf of each row, below each root.
    weights : mapping of int to float
        Of every leaf.
    eta : float
    """
    by_node = np.zeros(max(weights) + 1)
    for node, weight in weights.items():
        by_node[node] = eta * weight
    margins += by_node[nodes]
