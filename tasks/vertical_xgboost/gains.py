"""Which candidate of a source splits a node best: what a split client computes after decryption.

Gains are float64 numbers from exact sums by one fixed order of operations, so that whoever
computes them finds the same bits, and equal sums give equal gains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.buckets import BoolArray
from tasks.vertical_xgboost.candidates import IntpArray
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.fixed_point import FloatArray, GradientScales, IntArray
from tasks.vertical_xgboost.objectives import objective_of

LEAST_GAIN = 1e-6
"""A gain must exceed this, whatever gamma is (XGBoost's kRtEps)."""


def impossible_sums() -> SiteFault:
    """The fault of decrypted sums that no rows give, in the same words whatever is wrong.

    Too large, negative, or in a slot that must be empty: a server that adds numbers of its own to
    the sums would learn of them from the difference.
    """
    return SiteFault("bad-sums", "decrypted sums that no rows of this run can give")


@dataclass(frozen=True)
class SplitRule:
    """What decides over splits and leaves.

    Parameters
    ----------
    reg_lambda, gamma, min_child_weight : float
        As in XGBoost.
    scales : GradientScales
        Units of the sums.
    max_delta_step : float
        As in XGBoost: largest absolute weight of a leaf, 0 for any; gains are those of such leaves.
    """

    reg_lambda: float
    gamma: float
    min_child_weight: float
    scales: GradientScales
    max_delta_step: float = 0.0

    @classmethod
    def of(cls, config: VerticalXGBoostConfig, scales: GradientScales) -> SplitRule:
        """The rule of a run."""
        return cls(
            config.reg_lambda,
            config.gamma,
            config.min_child_weight,
            scales,
            objective_of(config).max_delta_step,
        )

    def reals(self, sums: IntArray) -> tuple[FloatArray, FloatArray]:
        """G and H of whole-number sums (..., 2)."""
        return self.scales.gradient.decode(sums[..., 0]), self.scales.hessian.decode(sums[..., 1])


@dataclass(frozen=True)
class BestSplit:
    """The best candidates of one source for one node.

    Parameters
    ----------
    gain : float
        Above `LEAST_GAIN` and at least gamma.
    records : (r,) intp
        Numbers of all candidates that reach it, ascending, in the order of the sums given.
    """

    gain: float
    records: IntpArray


def split_gains(left: IntArray, total: IntArray, rule: SplitRule) -> FloatArray:
    """Gain of each candidate, XGBoost's (unhalved).

    Parameters
    ----------
    left : (..., candidates, 2) int64
        Sums of gradients and Hessians over the rows that go left.
    total : (..., 2) int64
        Sums over the node.
    rule : SplitRule

    Returns
    -------
    (..., candidates) float64
        -inf where a side has H = 0 or less than min-child-weight.

    Raises
    ------
    SiteFault
        As `impossible_sums`, unless 0 <= H_L <= H everywhere.
    """
    whole = total[..., np.newaxis, :]
    if np.any(left[..., 1] < 0) or np.any(left[..., 1] > whole[..., 1]):
        raise impossible_sums()
    (g_left, h_left), (g_right, h_right) = rule.reals(left), rule.reals(whole - left)
    g_node, h_node = rule.reals(whole)
    allowed = (np.minimum(h_left, h_right) >= rule.min_child_weight) & (h_left > 0) & (h_right > 0)
    with np.errstate(divide="ignore", invalid="ignore"):  # H + lambda = 0 is never allowed
        children = _score(g_left, h_left, rule) + _score(g_right, h_right, rule)
        gains = children - _score(g_node, h_node, rule)
    return np.where(allowed, gains, -np.inf)


def best_split(gains: FloatArray, rule: SplitRule) -> BestSplit | None:
    """The best of one node's candidates, with all that tie; None if none may split it.

    Parameters
    ----------
    gains : (candidates,) float64
        -inf for candidates that are not eligible or were refused.
    rule : SplitRule
    """
    if not len(gains):
        return None
    gain = float(gains.max())
    if not (gain > LEAST_GAIN and gain >= rule.gamma):
        return None
    return BestSplit(gain, np.flatnonzero(gains == gain).astype(np.intp))


def best_splits(
    left: IntArray, total: IntArray, rule: SplitRule, *, refused: BoolArray | None = None
) -> list[BestSplit | None]:
    """The best split of each open node by one source's candidates.

    Parameters
    ----------
    left : (nodes, candidates, 2) int64
        In any order of candidates; `BestSplit.records` counts in it.
    total : (nodes, 2) int64
    rule : SplitRule
    refused : (nodes, candidates) bool, optional
        Candidates that a label owner refused; their sums are not looked at.
    """
    if refused is not None:
        left = np.where(refused[..., np.newaxis], 0, left)  # H_L = 0: not eligible
    return [best_split(gains, rule) for gains in split_gains(left, total, rule)]


def winner(
    splits: Sequence[BestSplit | None], positions: Sequence[IntpArray]
) -> tuple[int, int] | None:
    """The source and candidate that split a node: what the server decides.

    Parameters
    ----------
    splits : sequence of BestSplit or None
        Best of each source, in the order of clients; records are candidate numbers of the source's
        layout (a secret order is undone before).
    positions : sequence of (candidates,) intp
        `CandidateLayout.canonical_positions` of each source.

    Returns
    -------
    (source, candidate) or None
        None if the node becomes a leaf.
    """
    best: tuple[float, int] | None = None
    for source, split in enumerate(splits):
        if split is not None and (best is None or split.gain > best[0]):
            best = (split.gain, source)
    if best is None:
        return None
    source = best[1]
    split = splits[source]
    assert split is not None
    return source, int(split.records[np.argmin(positions[source][split.records])])


def _score(gradient: FloatArray, hessian: FloatArray, rule: SplitRule) -> FloatArray:
    bottom = hessian + rule.reg_lambda
    if not rule.max_delta_step:
        return gradient * gradient / bottom
    weight = np.clip((0.0 - gradient) / bottom, -rule.max_delta_step, rule.max_delta_step)
    return -(2.0 * gradient * weight + bottom * (weight * weight))
