"""What a split client makes of decrypted sums: gains, and weights of leaves that may come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.vertical_xgboost.buckets import BoolArray
from tasks.vertical_xgboost.candidates import IntpArray
from tasks.vertical_xgboost.fixed_point import IntArray
from tasks.vertical_xgboost.gains import SplitRule, best_splits
from tasks.vertical_xgboost.leaves import child_weights, leaf_weights


@dataclass(frozen=True)
class NodeOffer:
    """What a split client offers for one node of one source.

    Parameters
    ----------
    gain : float
        Of the best candidates; 0 if none is eligible.
    places : (r,) intp
        All that reach it, in the level's secret order; empty if none is eligible.
    pairs : tuple of (float, float)
        Where children are leaves in any case one (w_L, w_R) a place; else empty.
    leaf : float or None
        Weight of the node itself, where it may become a leaf.
    """

    gain: float
    places: IntpArray
    pairs: tuple[tuple[float, float], ...]
    leaf: float | None


def node_offers(
    sums: IntArray,
    rule: SplitRule,
    *,
    are_last: Sequence[bool],
    may_prune: bool = False,
    refused: BoolArray | None = None,
) -> list[NodeOffer]:
    """Judge the candidates of one source at one level.

    Parameters
    ----------
    sums : (1 + candidates, nodes, 2) int64
        Decrypted, the nodes' full sums first.
    rule : SplitRule
    are_last : sequence of bool
        Whether children of each node are leaves in any case.
    may_prune : bool
        Whether a node may become a leaf although a candidate is eligible.
    refused : (1 + candidates, nodes) bool, optional

    Returns
    -------
    list of NodeOffer
        One a node.

    Raises
    ------
    SiteFault
        ``"bad-sums"`` unless 0 <= H_L <= H everywhere.
    """
    total, left = sums[0], sums[1:].transpose(1, 0, 2)
    mask = None if refused is None else refused[1:].T
    found = best_splits(left, total, rule, refused=mask)
    leaves = leaf_weights(total, rule)
    offers = []
    for node, (split, is_last) in enumerate(zip(found, are_last, strict=True)):
        leaf = float(leaves[node])
        if split is None:
            offers.append(NodeOffer(0.0, np.empty(0, dtype=np.intp), (), leaf))
            continue
        pairs: tuple[tuple[float, float], ...] = ()
        if is_last:
            weights = child_weights(left[node, split.records], total[node], rule)
            pairs = tuple((float(pair[0]), float(pair[1])) for pair in weights)
        offers.append(NodeOffer(split.gain, split.records, pairs, leaf if may_prune else None))
    return offers
