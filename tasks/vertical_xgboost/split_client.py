"""What a split client makes of decrypted sums: gains, and weights of leaves that may come."""

from __future__ import annotations

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
    weights : tuple of tuple of float
        One (w,) for the node as a leaf, if no candidate is eligible; at the last level one
        (w_L, w_R) a place; else empty.
    """

    gain: float
    places: IntpArray
    weights: tuple[tuple[float, ...], ...]


def node_offers(
    sums: IntArray, rule: SplitRule, *, is_last: bool, refused: BoolArray | None = None
) -> list[NodeOffer]:
    """Judge the candidates of one source at one level.

    Parameters
    ----------
    sums : (1 + candidates, nodes, 2) int64
        Decrypted, the nodes' full sums first.
    rule : SplitRule
    is_last : bool
        Whether children of these nodes are leaves in any case.
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
    for node, split in enumerate(found):
        if split is None:
            nobody = np.empty(0, dtype=np.intp)
            offers.append(NodeOffer(0.0, nobody, ((float(leaves[node]),),)))
            continue
        weights: tuple[tuple[float, ...], ...] = ()
        if is_last:
            pairs = child_weights(left[node, split.records], total[node], rule)
            weights = tuple((float(pair[0]), float(pair[1])) for pair in pairs)
        offers.append(NodeOffer(split.gain, split.records, weights))
    return offers
