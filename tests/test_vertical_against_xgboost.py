"""The central learner against XGBoost's ``hist`` on bucket numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import xgboost

from tasks.vertical_xgboost.buckets import bucket_columns
from tasks.vertical_xgboost.candidates import Candidate, CandidateLayout, bucket_left
from tasks.vertical_xgboost.central import CentralTree, fit_central
from tasks.vertical_xgboost.classes import class_names
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.joined import JoinedTable
from tasks.vertical_xgboost.leaves import add_leaves, base_layer
from tasks.vertical_xgboost.objectives import objective_of
from tests.vertical_frames import config_of, joined, random_frame


@dataclass
class Sides:
    """Both learners' view of the training rows."""

    table: JoinedTable
    config: VerticalXGBoostConfig

    def __post_init__(self) -> None:
        training = ~self.table.is_evaluation
        buckets, bucket_map = bucket_columns(
            self.table.features, training, max_bin=self.config.max_bin
        )
        self.layout = CandidateLayout.of(buckets)
        self.bucket_map = bucket_map[:, training]
        self.labels = self.table.labels[training]
        numbers = self.bucket_map.T.astype(np.float32)
        counts = np.array(self.layout.num_buckets, dtype=np.float32)
        numbers[numbers == counts] = np.nan
        self.numbers = numbers

    def boost(self, base_score: float, margins: np.ndarray | None, rounds: int) -> xgboost.Booster:
        """XGBoost with the same settings, from given margins."""
        start = None if margins is None else margins.T
        data = xgboost.DMatrix(self.numbers, label=self.labels, base_margin=start)
        config = self.config
        parameters = {
            "objective": config.objective,
            "tree_method": "hist",
            "max_bin": 256,
            "eta": config.eta,
            "lambda": config.reg_lambda,
            "gamma": config.gamma,
            "min_child_weight": config.min_child_weight,
            "max_depth": config.max_depth,
            "base_score": base_score,
            "nthread": 1,
        }
        if config.objective == "multi:softprob":
            parameters |= {"num_class": len(class_names(config.classes)), "base_score": 0.0}
        return xgboost.train(parameters, data, num_boost_round=rounds)

    def gain(self, margins: np.ndarray, rows: np.ndarray, split: Candidate, root: int) -> float:
        """Gain of a split in doubles, from nothing of the learner's."""
        g, h = (each[root] for each in objective_of(self.config).gradients(margins, self.labels))
        left = rows & bucket_left(self.bucket_map, self.layout, split)
        right = rows & ~left
        score = [
            g[side].sum() ** 2 / (h[side].sum() + self.config.reg_lambda)
            for side in (left, right, rows)
        ]
        return float(score[0] + score[1] - score[2])


def parsed(booster: xgboost.Booster, number: int) -> dict[str, Any]:
    """A tree as XGBoost stores it."""
    tree: dict[str, Any] = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"][
        "model"
    ]["trees"][number]
    return tree


def differing_nodes(
    sides: Sides, margins: np.ndarray, ours: CentralTree, theirs: dict[str, Any], *, root: int = 0
) -> tuple[int, int]:
    """Walk both trees; count equal and differing splits, and hold the differing ones to the rule.

    A split may differ only if its gain is within 1e-6 relative of the best, or, for the decision
    whether to split at all, of the least gain.
    """
    same = different = 0
    todo = [(root, 0, np.ones(len(sides.labels), dtype=bool))]
    while todo:
        node, other, rows = todo.pop()
        our_split = ours.splits.get(node)
        is_leaf = theirs["left_children"][other] == -1
        if our_split is None and is_leaf:
            weight = sides.config.eta * ours.weights[node]
            leaf = theirs["split_conditions"][other]
            if not different:
                assert weight == pytest.approx(leaf, rel=1e-4, abs=1e-6)
            continue
        if our_split is None or is_leaf:
            split = our_split or their_split(sides, theirs, other)
            least = max(sides.config.gamma, 1e-6)
            assert sides.gain(margins, rows, split, root) == pytest.approx(least, rel=1e-6)
            different += 1
            continue
        their = their_split(sides, theirs, other)
        left = bucket_left(sides.bucket_map, sides.layout, our_split)
        their_left = bucket_left(sides.bucket_map, sides.layout, their)
        # A missing side that no training row of the node tells apart is no difference.
        our_missing = (
            sides.bucket_map[our_split.feature] == sides.layout.num_buckets[our_split.feature]
        )
        settles = bool((our_missing & rows).any()) or our_split.missing_left == their.missing_left
        equal = (our_split.feature, our_split.bucket) == (their.feature, their.bucket)
        if equal and np.array_equal(left & rows, their_left & rows) and settles:
            same += 1
            children = ours.children[node]
            todo.append((children[0], theirs["left_children"][other], rows & left))
            todo.append((children[1], theirs["right_children"][other], rows & ~left))
            continue
        best = sides.gain(margins, rows, our_split, root)
        assert sides.gain(margins, rows, their, root) == pytest.approx(best, rel=1e-6)
        different += 1
    return same, different


def their_split(sides: Sides, tree: dict[str, Any], node: int) -> Candidate:
    """XGBoost's split of bucket numbers as a candidate."""
    feature = tree["split_indices"][node]
    threshold = tree["split_conditions"][node]
    bucket = int(np.ceil(threshold)) - 1
    bucket = min(bucket, sides.layout.num_buckets[feature] - 1)
    return Candidate(feature, bucket, bool(tree["default_left"][node]))


def compare(
    frame_seed: int, *, rows: int = 400, missing: float = 0.1, **keys: Any
) -> tuple[int, int]:
    """Compare every tree, XGBoost continuing from our margins, and the run as a whole."""
    objective = keys.get("objective", "binary:logistic")
    if objective == "multi:softprob":
        keys = {"classes": "low,middle,high", **keys}
    frame = random_frame(frame_seed, rows=rows, objective=objective, missing=missing)
    config = config_of(**keys)
    table = joined([frame], config)
    sides = Sides(table, config)
    model = fit_central(table, config)
    training = ~table.is_evaluation
    features = table.features[training]
    margins = base_layer(model.base_margins, len(sides.labels))
    same = different = 0
    for tree in model.trees:
        booster = sides.boost(model.base_scores[0], margins, 1)
        for root in range(len(margins)):
            found = differing_nodes(sides, margins, tree, parsed(booster, root), root=root)
            same, different = same + found[0], different + found[1]
        add_leaves(margins, tree.route(features), tree.weights, eta=config.eta)
    if not different:
        start = base_layer(model.base_margins, len(sides.labels)) if len(margins) > 1 else None
        booster = sides.boost(model.base_scores[0], start, len(model.trees))
        rows = xgboost.DMatrix(sides.numbers, base_margin=None if start is None else start.T)
        theirs = booster.predict(rows, output_margin=True)
        scale = max(1.0, float(np.abs(sides.labels).max()))
        np.testing.assert_allclose(np.atleast_2d(theirs.T), margins, rtol=0, atol=1e-6 * scale)
    return same, different


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror"])
@pytest.mark.parametrize("depth", range(1, 7))
def test_same_splits_at_any_depth(depth: int, objective: str) -> None:
    same, different = compare(depth, objective=objective, max_depth=depth, num_trees=4)
    assert same >= 4 * min(2**depth - 1, 6)
    assert different <= same / 20


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror"])
@pytest.mark.parametrize(
    "keys",
    [
        {"gamma": 3.0},
        {"reg_lambda": 0.0, "min_child_weight": 5.0},
        {"base_score": "0.2", "eta": 0.1},
        {"max_bin": 255},
        {"min_child_weight": 0.0, "reg_lambda": 0.5},
    ],
    ids=str,
)
def test_same_splits_with_any_setting(keys: dict[str, Any], objective: str) -> None:
    same, different = compare(11, objective=objective, **{"max_depth": 4, "num_trees": 3, **keys})
    assert same >= 10
    assert different <= same / 20


@pytest.mark.parametrize(
    "keys",
    [
        {"max_depth": 5, "num_trees": 4},
        {"max_depth": 1},
        {"gamma": 2.0, "eta": 1.0, "max_bin": 255},
        {"reg_lambda": 0.0, "min_child_weight": 5.0},
        {"base_score": "0"},
    ],
    ids=str,
)
def test_same_trees_of_every_class(keys: dict[str, Any]) -> None:
    keys = {"objective": "multi:softprob", "max_depth": 3, "num_trees": 3, **keys}
    same, different = compare(12, **keys)
    assert same >= 3 * keys["num_trees"]
    assert different <= same / 20


@pytest.mark.parametrize("missing", [0.0, 0.5, 0.95])
def test_same_side_for_missing_values(missing: float) -> None:
    total = 0
    for seed in range(4):
        same, different = compare(seed, missing=missing, max_depth=3, num_trees=2, max_bin=8)
        assert different <= 1
        total += same
    assert total >= 40


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror"])
def test_a_single_leaf(objective: str) -> None:
    same, different = compare(0, objective=objective, gamma=1e9, num_trees=3)
    assert (same, different) == (0, 0)


def test_a_root_below_the_least_weight_is_a_leaf_of_weight_zero() -> None:
    same, different = compare(0, rows=4, test_fraction=0.0, base_score="0.5", num_trees=1)
    assert (same, different) == (0, 0)
    config = config_of(test_fraction=0.0, base_score="0.3", num_trees=1, min_child_weight=2.0)
    model = fit_central(joined([random_frame(0, rows=4)], config), config)
    assert model.trees[0].weights == {0: 0.0}
