"""The reference learner: one party that holds the joined table.

What the protocol builds equals this bit for bit, however columns and labels are spread. It uses the
parties' own functions (buckets, sums, gains, leaves) in the protocol's order, so its agreement with
XGBoost is what shows that those are right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.buckets import BoolArray, Float32Array, bucket_columns
from tasks.vertical_xgboost.candidates import Candidate, CandidateLayout, IntpArray, bucket_left
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.earlier_trees import gradient_exponent
from tasks.vertical_xgboost.early_stopping import EarlyStopping
from tasks.vertical_xgboost.fixed_point import FloatArray, GradientScales, IntArray
from tasks.vertical_xgboost.gains import SplitRule, best_splits, winner
from tasks.vertical_xgboost.histograms import (
    candidate_sums,
    node_slots,
    node_sums,
    refused_candidates,
)
from tasks.vertical_xgboost.joined import JoinedTable
from tasks.vertical_xgboost.leaves import add_leaves, base_layer, leaf_weights
from tasks.vertical_xgboost.objective import Metrics, Objective
from tasks.vertical_xgboost.objectives import (
    base_scores_of,
    label_scale,
    objective_of,
)
from tasks.vertical_xgboost.row_metrics import (
    metric_sums,
    metrics_of_sums,
    weight_of,
    weighted,
)
from tasks.vertical_xgboost.sampling import (
    Sampling,
    candidates_of_features,
    check_drawn,
    training_places,
)
from tasks.vertical_xgboost.told_numbers import weight_exponent
from tasks.vertical_xgboost.tree import (
    GrowingTree,
    NodeArray,
    Record,
    move_down,
    on_roots,
    roots_of,
)


@dataclass(frozen=True)
class CentralTree:
    """A tree with everything in clear.

    Parameters
    ----------
    splits : mapping of int to Candidate
        Split nodes; `Candidate.feature` is a column of the joined table. Empty where the buckets
        of the training are not known any more.
    records : mapping of int to Record
        The same splits with thresholds.
    children : mapping of int to (int, int)
    weights : mapping of int to float
        Leaves, not times eta.
    num_roots : int
        Margins of a row.
    """

    splits: Mapping[int, Candidate]
    records: Mapping[int, Record]
    children: Mapping[int, tuple[int, int]]
    weights: Mapping[int, float]
    num_roots: int = 1

    @cached_property
    def roots(self) -> dict[int, int]:
        """Root above each node."""
        return roots_of(self.children, self.num_roots)

    def route(self, features: Float32Array) -> NodeArray:
        """Leaf of each row below each root, (roots, n) int32."""
        nodes = on_roots(self.num_roots, len(features))
        for node in sorted(self.records):
            left = self.records[node].goes_left(features)
            move_down(nodes[self.roots[node]], node, self.children[node], left)
        return nodes


@dataclass(frozen=True)
class TreeMetrics:
    """Metrics after a tree; `evaluation` is None without evaluation rows."""

    train: Metrics
    evaluation: Metrics | None


@dataclass(frozen=True)
class CentralModel:
    """A trained model.

    Parameters
    ----------
    base_scores, base_margins : tuple of float
        Prediction before the first tree, as scores and as margins, one a root.
    eta : float
    trees : tuple of CentralTree
        Those that are kept: up to the best one with early stopping, behind those of an earlier
        model.
    metrics : tuple of TreeMetrics
        After each tree that was grown here.
    """

    base_scores: tuple[float, ...]
    base_margins: tuple[float, ...]
    eta: float
    trees: tuple[CentralTree, ...]
    metrics: tuple[TreeMetrics, ...]

    def margins(self, features: Float32Array) -> FloatArray:
        """Margins of each row: base margin plus eta times the leaves, tree after tree.

        Parameters
        ----------
        features : (n, p) float32
            Columns of the joined table, NaN where missing.

        Returns
        -------
        (roots, n) float64
        """
        margins = base_layer(self.base_margins, len(features))
        for tree in self.trees:
            add_leaves(margins, tree.route(features), tree.weights, eta=self.eta)
        return margins


def fit_central(
    table: JoinedTable,
    config: VerticalXGBoostConfig,
    *,
    ranks: Sequence[int] | None = None,
    seed: int = 0,
    warm_start: CentralModel | None = None,
) -> CentralModel:
    """Boost trees on the joined table.

    Parameters
    ----------
    table : JoinedTable
    config : VerticalXGBoostConfig
        Keys of encryption and of parties do not matter here; `min_instances` takes the rows' owners
        into account.
    ranks : sequence of int, optional
        Place of each column in the canonical order, which decides ties; the order of the table if
        not given.
    seed : int
        Of the run: draws rows and columns, where these are sampled.
    warm_start : CentralModel, optional
        Its trees come first; the base score is its own, and `config` must have its eta.

    Raises
    ------
    SiteFault
        ``"one-class"``, ``"no-training-rows"``, ``"no-weight"``, ``"outside-bound"`` or
        ``"too-many-rows"``.
    """
    return _CentralFit(table, config, ranks, seed, warm_start).run()


class _CentralFit:
    """State of one training: rows' margins and nodes, as a label owner has them."""

    def __init__(
        self,
        table: JoinedTable,
        config: VerticalXGBoostConfig,
        ranks: Sequence[int] | None,
        seed: int,
        earlier: CentralModel | None,
    ) -> None:
        self.config = config
        self.earlier = earlier
        self.table = table
        self.is_training = ~table.is_evaluation
        self.num_training = int(np.count_nonzero(self.is_training))
        if not self.num_training:
            raise SiteFault("no-training-rows", "no rows are left for training")
        check_drawn(self.num_training, fraction=config.subsample)
        self.objective: Objective = objective_of(config)
        self.buckets, self.bucket_map = bucket_columns(
            table.features, self.is_training, max_bin=config.max_bin
        )
        self.layout = CandidateLayout.of(self.buckets)
        order = list(ranks) if ranks is not None else list(range(self.layout.num_features))
        self.sampling = Sampling(
            seed,
            self.num_training,
            training_places(table.is_evaluation),
            (np.array(order, dtype=np.int32),) if config.samples_columns else (),
            len(self._trees_before),
        )
        self.positions = self.layout.canonical_positions(order)
        self.base_scores, self.base_margins, self.scales = self._start()
        self.rule = SplitRule.of(config, self.scales)
        self.margins = base_layer(self.base_margins, len(table.labels))
        if earlier is not None:
            self.margins = earlier.margins(table.features)

    def run(self) -> CentralModel:
        """Grow trees until there are enough, or no progress."""
        stopping = EarlyStopping(self.config.early_stopping_rounds)
        trees: list[CentralTree] = []
        metrics: list[TreeMetrics] = []
        for number in range(self.config.num_trees):
            trees.append(self._grow_tree(number))
            train, _ = self._metrics(self.is_training)
            evaluation, loss_sum = self._metrics(~self.is_training)
            assert train is not None
            metrics.append(TreeMetrics(train, evaluation))
            if stopping.update(loss_sum):
                break
        return CentralModel(
            base_scores=self.base_scores,
            base_margins=self.base_margins,
            eta=self.config.eta,
            trees=(*self._trees_before, *trees[: stopping.trees_to_keep]),
            metrics=tuple(metrics),
        )

    def _start(self) -> tuple[tuple[float, ...], tuple[float, ...], GradientScales]:
        labels, config = self.table.labels, self.config
        heaviest = weight_exponent(self.table.weights)
        base_scores, base_margins = self._base(heaviest)
        exponent = gradient_exponent(
            labels, config, base_margins=base_margins, trees=self._trees_before
        )
        scales = self.objective.scales(
            self.objective.bound_exponent([exponent]),
            bits=config.fixed_point_bits,
            weight_exponent=heaviest,
        )
        return base_scores, base_margins, scales

    @property
    def _trees_before(self) -> tuple[CentralTree, ...]:
        return () if self.earlier is None else self.earlier.trees

    def _base(self, heaviest: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Base scores and their margins."""
        labels, config, weights = self.table.labels, self.config, self.table.weights
        rows = self.is_training
        own = None if weights is None else weights[rows]
        whole = self.objective.scales(0, bits=config.fixed_point_bits, weight_exponent=heaviest)
        total = weight_of(own, whole, self.num_training)
        if not total:
            raise SiteFault("no-weight", "all training rows have weight 0")
        if self.earlier is not None:
            return self.earlier.base_scores, self.earlier.base_margins
        exponents = [self.objective.label_exponent(labels, label_bound=config.label_bound)]
        scale = label_scale(exponents, config, weight_exponent=heaviest)
        scale.bound_of_sum(len(labels))
        sums = self.objective.label_sums(labels[rows], scale, weights=own)
        base_scores = base_scores_of(sums, total, scale, config)
        return base_scores, self.objective.base_margins(base_scores)

    def _grow_tree(self, number: int) -> CentralTree:
        self.is_sampled = self.sampling.rows(number, self.config)
        (self.features,) = self.sampling.features(number, [self.layout], self.config)
        gradient, hessian = self.objective.gradients(self.margins, self.table.labels)
        own = self.table.weights
        values = self.scales.encode(weighted(gradient, own), weighted(hessian, own))
        num_roots = self.objective.num_roots
        tree: GrowingTree[Candidate] = GrowingTree(self.config.max_depth, num_roots)
        nodes = on_roots(num_roots, len(self.table.labels))
        while tree.open_nodes:
            level = tree.open_nodes
            decisions = self._decide(values, nodes, level)
            tree.grow(decisions)
            self._move(nodes, tree, level)
        leaves = tree.leaves
        slots = node_slots(nodes, leaves, self.is_sampled)
        sums = node_sums(values, slots, num_nodes=len(leaves))
        weights = dict(zip(leaves, leaf_weights(sums, self.rule).tolist(), strict=True))
        add_leaves(self.margins, nodes, weights, eta=self.config.eta)
        records = {
            node: Record.of(split, self.buckets[split.feature], column=split.feature)
            for node, split in tree.splits.items()
        }
        return CentralTree(tree.splits, records, tree.children, weights, num_roots)

    def _decide(
        self, values: IntArray, nodes: NodeArray, level: list[int]
    ) -> list[Candidate | None]:
        if not self.config.max_depth:
            return [None] * len(level)  # there are no candidates
        slots = node_slots(nodes, level, self.is_sampled)
        layout, numbers = self.layout.of_features(self.features), self.bucket_map[self.features]
        candidates = candidates_of_features(self.layout, self.features)
        left = candidate_sums(numbers, layout, values, slots, num_nodes=len(level))
        total = node_sums(values, slots, num_nodes=len(level))
        found = best_splits(left, total, self.rule, refused=self._refused(slots, len(level)))
        chosen = [winner([split], [self.positions[candidates]]) for split in found]
        return [
            self.layout.candidate(int(candidates[pair[1]])) if pair else None for pair in chosen
        ]

    def _refused(self, slots: IntpArray, num_nodes: int) -> BoolArray | None:
        if self.config.min_instances < 2:
            return None
        layout, numbers = self.layout.of_features(self.features), self.bucket_map[self.features]
        refused = np.zeros((num_nodes, layout.num_candidates), dtype=np.bool_)
        for owner in np.unique(self.table.owner):
            own = self.table.owner == owner
            refused |= refused_candidates(
                numbers[:, own],
                layout,
                slots[:, own],
                num_nodes=num_nodes,
                min_instances=self.config.min_instances,
            )
        return refused

    def _move(self, nodes: NodeArray, tree: GrowingTree[Candidate], level: list[int]) -> None:
        roots = tree.roots
        for node in level:
            split = tree.splits.get(node)
            if split is not None:
                left = bucket_left(self.bucket_map, self.layout, split)
                move_down(nodes[roots[node]], node, tree.children[node], left)

    def _metrics(self, rows: BoolArray) -> tuple[Metrics | None, int]:
        if not rows.any():
            return None, 0
        own = None if self.table.weights is None else self.table.weights[rows]
        margins, labels = self.margins[:, rows], self.table.labels[rows]
        sums = metric_sums(self.objective, self.scales, margins, labels, own)
        weight = weight_of(own, self.scales, len(labels))
        return metrics_of_sums(self.objective, self.scales, sums, weight), sums[0]
