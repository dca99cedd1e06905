"""How well a party guesses labels of others from what a training gave it.

An honest but curious party knows, of every row, its own columns; of every split, whose it is; of
its own splits the threshold, so which side every row takes; the weights of leaves that were sent to
it; and of rows whose label it owns the label and, from the bucket maps, the leaf. Nothing else goes
in here: an :class:`AttackerView` has no field for it.

- ``leaf-weights``: the attack of the PIVODL paper (Table III). Where all splits above a leaf are
  the party's own, it knows the leaf of every row. It adds up the weights that it knows of a row,
  and guesses 1 where the prediction is above 0. Rows of which it knows no leaf are left out.
- ``mean-leaf-weights``: the same for all rows; where a row may be in several leaves, the mean of
  their weights, by the party's own rows in each.
- ``structure``: without weights. The share of its own labels in the leaves in which a row may be:
  what the shape of the trees and the bucket order of its own rows say.
- ``own-data``: without the training. Trees on its own columns and labels alone; what the other
  three have to be compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.stats import rankdata

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.buckets import BoolArray, Float32Array
from tasks.vertical_xgboost.central import fit_central
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.fixed_point import FloatArray
from tasks.vertical_xgboost.joined import JoinedTable
from tasks.vertical_xgboost.tree import LookupTable, NodeArray, children_of

ATTACKS = ("leaf-weights", "mean-leaf-weights", "structure", "own-data")
"""Names of the attacks."""


class SeenSplit(Protocol):
    """A split as every party knows it."""

    @property
    def source(self) -> int | str:
        """Whose it is."""

    @property
    def record(self) -> int:
        """Its number among those of its source."""


class SeenTree(Protocol):
    """A tree as a party knows it."""

    @property
    def splits(self) -> Mapping[int, SeenSplit]:
        """By node, in the order in which they were made."""

    @property
    def weights(self) -> Mapping[int, float]:
        """By leaf, as they were sent to the party."""


@dataclass(frozen=True, eq=False)
class AttackerView:
    """What one party has after a training.

    Parameters
    ----------
    source : int or str
        How splits name the party.
    trees : tuple of SeenTree
        With the weights that were sent to this party.
    lookup : LookupTable
        Own splits.
    base_margin, eta : float
    features : (n, p) float32
        Own columns of all rows.
    is_training : (n,) bool
    owns : (n,) bool
        Rows whose label the party owns.
    labels : (n,) float64
        Own labels; NaN elsewhere.
    own_leaves : (trees, owned) int32
        Leaf of each owned row in each tree.
    """

    source: int | str
    trees: tuple[SeenTree, ...]
    lookup: LookupTable
    base_margin: float
    eta: float
    features: Float32Array
    is_training: BoolArray
    owns: BoolArray
    labels: FloatArray
    own_leaves: NodeArray

    def __post_init__(self) -> None:
        if not np.array_equal(self.owns, ~np.isnan(self.labels)):
            raise ValueError("labels: must be those of owned rows, and of no others")
        if self.own_leaves.shape != (len(self.trees), np.count_nonzero(self.owns)):
            raise ValueError("own_leaves: must be one a tree and owned row")

    @property
    def victims(self) -> BoolArray:
        """Rows whose labels are guessed: others' rows of training."""
        return self.is_training & ~self.owns


@dataclass(frozen=True)
class GuessQuality:
    """How good the guesses of an attack are.

    Attributes
    ----------
    rows : int
        Rows of which a guess was made.
    share : float
        Of all labels of others in the training.
    accuracy : float
        Share of right guesses, as the paper has it.
    balanced_accuracy : float
        Mean over both classes of the share of right guesses; .5 says nothing of labels.
    auc : float
        Of the scores behind the guesses; .5 says nothing of labels, 0 is 1 turned round.
    gain : float
        Accuracy less that of always guessing the more frequent class of these rows.
    """

    rows: int
    share: float
    accuracy: float
    balanced_accuracy: float
    auc: float
    gain: float


def attack(view: AttackerView, config: VerticalXGBoostConfig) -> dict[str, FloatArray]:
    """Scores of every attack for every row, as margins: above 0 the guess is 1.

    Parameters
    ----------
    view : AttackerView
    config : VerticalXGBoostConfig
        Of the training, which all parties have.

    Returns
    -------
    dict of str to (n,) float64
        NaN where an attack makes no guess.
    """
    reached = [reachable_leaves(view, at) for at in range(len(view.trees))]
    return {
        "leaf-weights": _known_weights(view, reached),
        "mean-leaf-weights": _mean_weights(view, reached),
        "structure": _structure(view, reached),
        "own-data": _own_data(view, config),
    }


def reachable_leaves(view: AttackerView, tree: int) -> BoolArray:
    """Leaves in which each row may be, as far as the party can tell: (n, nodes) bool."""
    splits = view.trees[tree].splits
    reached = np.zeros((len(view.owns), 2 * len(splits) + 1), dtype=np.bool_)
    reached[:, 0] = True
    for node, (left, right) in children_of(splits, 1).items():
        here = reached[:, node].copy()
        reached[:, left] = reached[:, right] = here
        split = splits[node]
        if split.source == view.source:
            side = view.lookup.records[split.record].goes_left(view.features)
            reached[:, left] = here & side
            reached[:, right] = here & ~side
        reached[:, node] = False
    return reached


def guess_quality(scores: FloatArray, truth: FloatArray) -> GuessQuality | None:
    """Compare guesses with labels; None where there are no guesses, or labels of one class.

    Parameters
    ----------
    scores : (n,) float64
        Margins; NaN where there is no guess.
    truth : (n,) float64
        0 or 1.
    """
    made = ~np.isnan(scores)
    found, labels = scores[made], truth[made] == 1.0
    positive = int(np.count_nonzero(labels))
    negative = len(labels) - positive
    if not positive or not negative:
        return None
    right = (found > 0.0) == labels
    ranks = rankdata(found)
    auc = (ranks[labels].sum() - positive * (positive + 1) / 2) / (positive * negative)
    accuracy = float(right.mean())
    return GuessQuality(
        rows=len(labels),
        share=len(labels) / len(truth),
        accuracy=accuracy,
        balanced_accuracy=float((right[labels].mean() + right[~labels].mean()) / 2),
        auc=float(auc),
        gain=accuracy - max(positive, negative) / len(labels),
    )


def mean_quality(found: Sequence[GuessQuality]) -> dict[str, float]:
    """Mean over parties of each figure."""
    names = ("rows", "share", "accuracy", "balanced_accuracy", "auc", "gain")
    return {
        name.replace("_", "-"): float(np.mean([getattr(each, name) for each in found]))
        for name in names
    }


def _known_weights(view: AttackerView, reached: Sequence[BoolArray]) -> FloatArray:
    total = np.zeros(len(view.owns))
    known = np.zeros(len(view.owns), dtype=np.bool_)
    for tree, leaves in zip(view.trees, reached, strict=True):
        single = leaves.sum(axis=1) == 1
        total += np.where(single, leaves @ _by_node(tree.weights, leaves.shape[1]), 0.0)
        known |= single
    return np.where(known, view.base_margin + view.eta * total, np.nan)


def _mean_weights(view: AttackerView, reached: Sequence[BoolArray]) -> FloatArray:
    total = np.zeros(len(view.owns))
    for at, (tree, leaves) in enumerate(zip(view.trees, reached, strict=True)):
        # One more a leaf, for leaves without own rows.
        rows = 1.0 + _own_counts(view, at, leaves.shape[1])
        total += leaves @ (rows * _by_node(tree.weights, leaves.shape[1])) / (leaves @ rows)
    return view.base_margin + view.eta * total


def _structure(view: AttackerView, reached: Sequence[BoolArray]) -> FloatArray:
    learnt = view.is_training[view.owns]
    positive = view.labels[view.owns] == 1.0
    share = (np.count_nonzero(positive & learnt) + 0.5) / (np.count_nonzero(learnt) + 1.0)
    scores = np.zeros(len(view.owns))
    for at, leaves in enumerate(reached):
        rows = leaves @ _own_counts(view, at, leaves.shape[1])
        ones = leaves @ _own_counts(view, at, leaves.shape[1], among=positive)
        found = (ones + share) / (rows + 1.0)
        scores += np.log(found / (1.0 - found)) / len(reached)
    return scores


def _own_data(view: AttackerView, config: VerticalXGBoostConfig) -> FloatArray:
    own = view.owns
    table = JoinedTable(
        feature_names=tuple(map(str, range(view.features.shape[1]))),
        features=view.features[own],
        labels=view.labels[own],
        owner=np.zeros(np.count_nonzero(own), dtype=np.intp),
        is_evaluation=~view.is_training[own],
    )
    try:
        model = fit_central(table, config.model_copy(update={"early_stopping_rounds": 0}))
    except SiteFault:  # no labels, or of one class
        return np.full(len(own), np.nan)
    (margins,) = model.margins(view.features)
    return np.asarray(margins, dtype=np.float64)


def _own_counts(
    view: AttackerView, tree: int, num_nodes: int, *, among: BoolArray | None = None
) -> FloatArray:
    """Own rows of training in each leaf, (nodes,)."""
    learnt = view.is_training[view.owns]
    chosen = learnt if among is None else learnt & among
    return np.bincount(view.own_leaves[tree][chosen], minlength=num_nodes).astype(np.float64)


def _by_node(weights: Mapping[int, float], num_nodes: int) -> FloatArray:
    found = np.zeros(num_nodes)
    found[list(weights)] = list(weights.values())
    return found
