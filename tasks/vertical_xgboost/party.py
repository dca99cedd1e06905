"""One party of a training: what it knows of its rows, of the sources, and of the growing tree.

A party is label owner of some rows, source of its columns, and split client of some sources. It
holds what the protocol tells it and no more: of other sources the buckets of its own rows on
renumbered features. No message and no cryptography here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tasks.vertical_xgboost.buckets import BoolArray, BucketMap, FeatureBuckets
from tasks.vertical_xgboost.candidates import (
    Candidate,
    CandidateLayout,
    IntpArray,
    bucket_left,
)
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.fixed_point import FloatArray, GradientScales, IntArray
from tasks.vertical_xgboost.gains import SplitRule
from tasks.vertical_xgboost.histograms import node_slots, node_sums
from tasks.vertical_xgboost.leaves import add_leaves
from tasks.vertical_xgboost.level_sums import LevelSums
from tasks.vertical_xgboost.objective import Objective
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.row_metrics import metric_sums, weighted
from tasks.vertical_xgboost.sampling import Sampling, candidates_of_features
from tasks.vertical_xgboost.tree import (
    GrowingTree,
    LookupTable,
    NodeArray,
    Record,
    move_down,
    on_roots,
)


@dataclass(frozen=True)
class KnownSplit:
    """A split as every label owner knows it.

    Parameters
    ----------
    source : int
        Place of the party whose column it is.
    candidate : Candidate
        In that source's numbering.
    record : int
        Number of the split among those of its source.
    """

    source: int
    candidate: Candidate
    record: int


@dataclass(frozen=True)
class KnownTree:
    """A finished tree.

    Parameters
    ----------
    splits : dict of int to KnownSplit
        By node.
    weights : dict of int to float
        By leaf, not times eta.
    covers : dict of int to float
        By leaf: sum of Hessians over the party's own training rows there.
    """

    splits: dict[int, KnownSplit]
    weights: dict[int, float]
    covers: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """What the server says of an open node.

    Parameters
    ----------
    source, candidate : int
        The winner and its number; -1 for a leaf.
    weights : tuple of float
        (w,) of a leaf, (w_L, w_R) of a split at the last level, else empty.
    """

    source: int
    candidate: int
    weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class OwnColumns:
    """A source's columns under the numbers that others know.

    Parameters
    ----------
    buckets : tuple of FeatureBuckets
        In the anonymous numbering.
    column : (p,) intp
        Own column behind each anonymous feature: its rank in the canonical order.
    """

    buckets: tuple[FeatureBuckets, ...]
    column: IntpArray

    @property
    def layout(self) -> CandidateLayout:
        """All candidates."""
        return CandidateLayout.of(self.buckets)

    def record(self, candidate: Candidate) -> Record:
        """Record of a candidate that won."""
        feature = candidate.feature
        return Record.of(candidate, self.buckets[feature], column=int(self.column[feature]))


@dataclass
class Party:
    """State of a training at one party.

    Parameters
    ----------
    config : VerticalXGBoostConfig
    place : int
        Of the party among all, in the order of names.
    own : OwnColumns
    labels : (n,) float64
        Of own rows, evaluation rows included.
    is_training : (n,) bool
    layouts : tuple of CandidateLayout
        Of each source.
    maps : tuple of (features, n) uint8
        Buckets of own rows for each source.
    scales : GradientScales
    base_margins : tuple of float
        Prediction before the first tree, one a root.
    margins : (roots, n) float64
        Prediction with all finished trees.
    nodes : (roots, n) int32
        Node of each row in the growing tree, below each root.
    tree : GrowingTree of KnownSplit
    level : list of int
        Nodes that the level under way is on.
    weights : dict of int to float
        Leaves of the growing tree that are known.
    finished : list of KnownTree
    lookup : LookupTable
        Splits that this party won as source.
    sampling : Sampling
        Which rows and columns each tree is grown on.
    row_weights : (n,) float64 or None
        None where rows have none.
    """

    config: VerticalXGBoostConfig
    place: int
    own: OwnColumns
    labels: FloatArray
    is_training: BoolArray
    layouts: tuple[CandidateLayout, ...]
    maps: tuple[BucketMap, ...]
    scales: GradientScales
    base_margins: tuple[float, ...]
    margins: FloatArray
    nodes: NodeArray
    tree: GrowingTree[KnownSplit]
    sampling: Sampling
    level: list[int] = field(default_factory=list)
    weights: dict[int, float] = field(default_factory=dict)
    finished: list[KnownTree] = field(default_factory=list)
    lookup: LookupTable = field(default_factory=LookupTable)
    row_weights: FloatArray | None = None

    @property
    def objective(self) -> Objective:
        """The loss."""
        return objective_of(self.config)

    @property
    def rule(self) -> SplitRule:
        """What decides over splits."""
        return SplitRule.of(self.config, self.scales)

    @property
    def num_training(self) -> int:
        """Own training rows."""
        return int(np.count_nonzero(self.is_training))

    @property
    def is_sampled(self) -> BoolArray:
        """Own training rows that the growing tree is grown on, (n,) bool."""
        return self.is_training & self.sampling.rows(len(self.finished), self.config)

    def candidates_in(self, source: int) -> IntpArray:
        """Numbers of a source's candidates in the growing tree, ascending."""
        if not self.config.max_depth:
            return np.empty(0, dtype=np.intp)
        features = self.sampling.features(len(self.finished), self.layouts, self.config)
        return candidates_of_features(self.layouts[source], features[source])

    def num_candidates(self, source: int) -> int:
        """How many candidates a source has in the growing tree."""
        return len(self.candidates_in(source))

    # A level ------------------------------------------------------------------------------------

    def begin_level(self, nodes: Sequence[int]) -> None:
        """Hear which nodes are to be decided together; ValueError unless they are open ones."""
        if not nodes or sorted(set(nodes) & set(self.tree.open_nodes)) != list(nodes):
            raise ValueError("nodes of a level: must be open ones, ascending")
        self.level = list(nodes)

    def gradient_sums(self) -> LevelSums:
        """What is summed over own rows at this level."""
        features = self.sampling.features(len(self.finished), self.layouts, self.config)
        none = np.empty(0, dtype=np.intp)
        return LevelSums(
            layouts=self.layouts,
            maps=self.maps,
            features=features if self.config.max_depth else (none,) * len(features),
            values=self._gradients(),
            slots=node_slots(self.nodes, self.level, self.is_sampled),
            num_nodes=len(self.level),
            min_instances=self.config.min_instances,
        )

    def _gradients(self) -> IntArray:
        """Gradients and Hessians of own rows times their weights, as whole numbers."""
        gradient, hessian = self.objective.gradients(self.margins, self.labels)
        return self.scales.encode(
            weighted(gradient, self.row_weights), weighted(hessian, self.row_weights)
        )

    def hear(self, decisions: Sequence[Decision]) -> bool:
        """Enter a level's decisions; True if the tree is finished with them.

        Raises
        ------
        ValueError
            If they are not one decision a node, or splits of a tree of depth 0.
        """
        level, are_last = self.level, self.tree.are_last(self.level)
        splits: list[KnownSplit | None] = []
        for node, decision in zip(level, decisions, strict=True):
            if decision.source < 0:
                (self.weights[node],) = decision.weights
                splits.append(None)
                continue
            candidate = self.layouts[decision.source].candidate(decision.candidate)
            record = self._records_of(decision.source, splits)
            splits.append(KnownSplit(decision.source, candidate, record))
            if decision.source == self.place:
                self.lookup.enter(self.own.record(candidate))
        self.tree.grow(splits, level)
        self._move(level)
        for node, decision, is_last in zip(level, decisions, are_last, strict=True):
            if is_last and decision.source >= 0:
                left, right = self.tree.children[node]
                self.weights[left], self.weights[right] = decision.weights
        if self.tree.open_nodes:
            return False
        self._finish_tree()
        return True

    def _records_of(self, source: int, splits: Sequence[KnownSplit | None]) -> int:
        trees = [tree.splits for tree in self.finished] + [self.tree.splits]
        earlier = sum(split.source == source for tree in trees for split in tree.values())
        return earlier + sum(split is not None and split.source == source for split in splits)

    def _move(self, level: Sequence[int]) -> None:
        roots = self.tree.roots
        for node in level:
            split = self.tree.splits.get(node)
            if split is not None:
                at = split.source
                left = bucket_left(self.maps[at], self.layouts[at], split.candidate)
                move_down(self.nodes[roots[node]], node, self.tree.children[node], left)

    def _finish_tree(self) -> None:
        covers = self._own_covers()
        add_leaves(self.margins, self.nodes, self.weights, eta=self.config.eta)
        self.finished.append(KnownTree(self.tree.splits, self.weights, covers))
        num_roots, num_rows = self.nodes.shape
        self.tree, self.weights = GrowingTree(self.config.max_depth, num_roots), {}
        self.nodes = on_roots(num_roots, num_rows)

    def _own_covers(self) -> dict[int, float]:
        leaves = self.tree.leaves
        slots = node_slots(self.nodes, leaves, self.is_sampled)
        sums = node_sums(self._gradients(), slots, num_nodes=len(leaves))
        _, hessians = self.rule.reals(sums)
        return dict(zip(leaves, hessians.tolist(), strict=True))

    def metric_sums(self) -> IntArray:
        """Sums of loss and quality, (4,): over training rows, then over evaluation rows."""
        sums: list[int] = []
        for rows in (self.is_training, ~self.is_training):
            weights = None if self.row_weights is None else self.row_weights[rows]
            sums += metric_sums(
                self.objective, self.scales, self.margins[:, rows], self.labels[rows], weights
            )
        return np.array(sums, dtype=np.int64)
