"""Objectives, gains, leaves and trees of vertical XGBoost."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from sklearn import metrics

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.buckets import FeatureBuckets
from tasks.vertical_xgboost.candidates import Candidate
from tasks.vertical_xgboost.early_stopping import EarlyStopping
from tasks.vertical_xgboost.fixed_point import (
    GradientScales,
)
from tasks.vertical_xgboost.gains import BestSplit, SplitRule, best_split, best_splits, split_gains
from tasks.vertical_xgboost.gains import winner as winner_of
from tasks.vertical_xgboost.labels import check_ownership
from tasks.vertical_xgboost.leaves import child_weights, leaf_weights
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.row_metrics import metric_sums, metrics_of_sums
from tasks.vertical_xgboost.tree import (
    GrowingTree,
    LookupTable,
    OwnedSplit,
    OwnedTree,
    Record,
    children_of,
    text_of,
)
from tests.vertical_frames import config_of

# Objectives -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["binary:logistic", "reg:squarederror"])
def test_gradient_and_hessian_are_derivatives_of_the_loss(name: str) -> None:
    objective = objective_of(config_of(objective=name))
    margins = np.linspace(-3, 3, 13)
    for label in (0.0, 1.0):
        labels = np.full(13, label)
        g, h = objective.gradients(margins, labels)
        for at, margin in enumerate(margins):
            slope = optimize.approx_fprime(
                [margin], lambda m, y=label: float(objective.losses(m, np.array([y]))[0])
            )
            bend = optimize.approx_fprime(
                [margin], lambda m, y=label: float(objective.gradients(m, np.array([y]))[0][0])
            )
            assert (g[at], h[at]) == pytest.approx((slope[0], bend[0]), abs=1e-6)


def test_metrics_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    margins, labels = random.normal(size=50), random.integers(0, 2, 50).astype(float)
    logistic = objective_of(config_of())
    scales = logistic.scales(0, bits=32)
    sums = metric_sums(logistic, scales, margins, labels, None)
    found = metrics_of_sums(logistic, scales, sums, 50.0)
    probability = 1 / (1 + np.exp(-margins))
    assert found.loss == pytest.approx(metrics.log_loss(labels, probability), abs=1e-8)
    assert found.quality == metrics.accuracy_score(labels, probability > 0.5)

    squared = objective_of(config_of(objective="reg:squarederror"))
    told = [squared.gradient_exponent(labels, base_margins=[0.5], label_bound=0.0)]
    scales = squared.scales(squared.bound_exponent(told), bits=32)
    sums = metric_sums(squared, scales, margins / 3, labels, None)
    found = metrics_of_sums(squared, scales, sums, 50.0)
    assert found.quality == pytest.approx(
        metrics.root_mean_squared_error(labels, margins / 3), abs=1e-8
    )


def test_losses_of_certain_and_wrong_predictions_stay_within_the_bound() -> None:
    logistic = objective_of(config_of())
    scale = logistic.loss_scale(GradientScales.of(bits=32, gradient_exponent=0))
    losses = logistic.losses(np.array([-1e6, 1e6, 1e6]), np.array([1.0, 0.0, 1.0]))
    assert losses.tolist() == [64.0, 64.0, 0.0]
    scale.encode(losses)


def test_gradients_do_not_depend_on_the_array_they_stand_in() -> None:
    margins = np.random.default_rng(0).normal(size=1001) * 3
    labels = (margins > 0).astype(float)
    logistic = objective_of(config_of())
    whole = np.stack(logistic.gradients(margins, labels))
    single = [logistic.gradients(margins[at : at + 1], labels[at : at + 1]) for at in range(1001)]
    assert np.array_equal(whole, np.array(single)[:, :, 0].T)
    assert np.array_equal(whole[:, ::3], np.stack(logistic.gradients(margins[::3], labels[::3])))


# Gains and leaves -------------------------------------------------------------------------


def rule_of(**keys: float) -> SplitRule:
    """A rule whose whole numbers are the sums themselves times 2**20."""
    scales = GradientScales.of(bits=20, gradient_exponent=0)
    return SplitRule(
        **{"reg_lambda": 1.0, "gamma": 0.0, "min_child_weight": 1.0, **keys}, scales=scales
    )  # type: ignore[arg-type]


def whole(*pairs: tuple[float, float]) -> np.ndarray:
    """Sums as whole numbers."""
    return np.rint(np.array(pairs) * 2**20).astype(np.int64)


def test_the_gain_is_that_of_the_formula() -> None:
    gains = split_gains(whole((3, 2), (-1, 4)), whole((2, 8))[0], rule_of())
    assert gains.tolist() == pytest.approx(
        [9 / 3 + 1 / 7 - 4 / 9, 1 / 5 + 9 / 5 - 4 / 9], rel=1e-15
    )


def test_light_and_empty_sides_are_no_candidates() -> None:
    left = whole((3, 0), (3, 0.5), (3, 1), (3, 7), (3, 7.5), (3, 8))
    total = whole((2, 8))[0]
    allowed = np.isfinite(split_gains(left, total, rule_of()))
    assert allowed.tolist() == [False, False, True, True, False, False]
    allowed = np.isfinite(split_gains(left, total, rule_of(min_child_weight=0.0, reg_lambda=0.0)))
    assert allowed.tolist() == [False, True, True, True, True, False]


@pytest.mark.parametrize("h_left", [-1.0, 9.0])
def test_impossible_sums_are_refused(h_left: float) -> None:
    with pytest.raises(SiteFault) as caught:
        split_gains(whole((0, h_left)), whole((0, 8))[0], rule_of())
    assert caught.value.code == "bad-sums"


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-(2**50), 2**50), st.integers(1, 2**49)), max_size=20))
def test_swapped_sides_have_the_same_gain_to_the_last_bit(pairs: list[tuple[int, int]]) -> None:
    left = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    total = np.array([2**48 + 12345, 2**50], dtype=np.int64)
    assert np.array_equal(
        split_gains(left, total, rule_of()), split_gains(total - left, total, rule_of())
    )


def test_gain_must_exceed_the_least_and_reach_gamma() -> None:
    gains = np.array([2.0, -np.inf, 5.0, 5.0, 1.0])
    best = best_split(gains, rule_of(gamma=5.0))
    assert best is not None
    assert (best.gain, best.records.tolist()) == (5.0, [2, 3])
    assert best_split(gains, rule_of(gamma=np.nextafter(5.0, 6.0))) is None
    assert best_split(np.array([1e-6]), rule_of()) is None
    assert best_split(np.array([1.01e-6]), rule_of()) is not None
    assert best_split(np.array([-np.inf]), rule_of()) is None
    assert best_split(np.empty(0), rule_of()) is None


def test_refused_candidates_are_not_looked_at() -> None:
    left = whole((3, 4), (1, 99))[np.newaxis]  # the second sum is filled with noise
    refused = np.array([[False, True]])
    (best,) = best_splits(left, whole((0, 8)), rule_of(), refused=refused)
    assert best is not None
    assert best.records.tolist() == [0]
    assert best_splits(left, whole((0, 8)), rule_of(), refused=~refused[:, ::-1] | True) == [None]


def test_ties_go_to_the_first_client_then_to_the_first_place() -> None:
    def tied(gain: float, *records: int) -> BestSplit:
        return BestSplit(gain, np.array(records, dtype=np.intp))

    positions = [np.array([2, 1, 0]), np.array([0, 1, 2])]
    assert winner_of([tied(1.0, 0, 1), tied(1.0, 0)], positions) == (0, 1)
    assert winner_of([tied(1.0, 0, 1), tied(1.5, 2, 1)], positions) == (1, 1)
    assert winner_of([None, tied(0.5, 2)], positions) == (1, 2)
    assert winner_of([None, None], positions) is None


def test_a_leaf_minimizes_the_penalized_quadratic() -> None:
    sums = whole((3, 2), (-5, 7))
    weights = leaf_weights(sums, rule_of(reg_lambda=2.0))
    for (g, h), weight in zip([(3, 2), (-5, 7)], weights, strict=True):
        found = optimize.minimize_scalar(lambda w, g=g, h=h: g * w + 0.5 * (h + 2.0) * w * w)
        assert weight == pytest.approx(found.x, abs=1e-7)
    assert leaf_weights(whole((3, 0.5), (3, 0)), rule_of(reg_lambda=0.0)).tolist() == [0.0, 0.0]
    pair = child_weights(sums[0], whole((-2, 9))[0], rule_of(reg_lambda=2.0))
    assert pair.tolist() == weights.tolist()


# Trees ------------------------------------------------------------------------------------


def test_nodes_are_numbered_level_by_level() -> None:
    tree: GrowingTree[str] = GrowingTree(3, 1)
    tree.grow(["root"])
    assert (tree.open_nodes, tree.are_last([1, 2])) == ([1, 2], [False, False])
    tree.grow([None, "right"])
    assert (tree.open_nodes, tree.leaves, tree.are_last([3])) == ([3, 4], [1], [True])
    tree.grow(["deep", None])
    assert tree.open_nodes == []
    assert tree.children == {0: (1, 2), 2: (3, 4), 3: (5, 6)}
    assert tree.leaves == [1, 4, 5, 6]
    with pytest.raises(ValueError, match="zip"):
        tree.grow(["too late"])
    leaf: GrowingTree[str] = GrowingTree(0, 1)
    assert (leaf.open_nodes, leaf.are_last([0])) == ([0], [True])
    with pytest.raises(ValueError, match="depth 0"):
        leaf.grow(["root"])
    leaf.grow([None])
    assert (leaf.open_nodes, leaf.leaves) == ([], [0])


def test_nodes_may_be_left_for_later() -> None:
    tree: GrowingTree[str] = GrowingTree(2, 1)
    tree.grow(["root"])
    tree.grow(["right"], [2])
    assert (tree.open_nodes, tree.children) == ([1], {0: (1, 2), 2: (3, 4)})
    tree.grow(["left"], [1])
    assert (tree.open_nodes, tree.children[1]) == ([], (5, 6))
    assert tree.leaves == [3, 4, 5, 6]
    assert children_of(tree.splits, 1) == tree.children


def test_a_tree_routes_by_its_owners_tables_and_shows_no_more() -> None:
    north, south = LookupTable(), LookupTable()
    assert north.enter(Record(1, 2.5, missing_left=True)) == 0
    assert south.enter(Record(0, math.inf, missing_left=False)) == 0
    tree = OwnedTree({0: OwnedSplit("north", 0), 2: OwnedSplit("south", 0)}, {0: (1, 2), 2: (3, 4)})
    nan = math.nan
    features = {
        "north": np.array([[0, 2.4], [0, 2.5], [9, nan], [9, 7]], dtype=np.float32),
        "south": np.array([[1], [1], [1], [nan]], dtype=np.float32),
    }
    tables = {"north": north, "south": south}
    assert tree.route(tables, features, 4).tolist() == [[1, 3, 1, 4]]
    assert tree.leaves == [1, 3, 4]
    assert text_of(tree).splitlines() == [
        "0: north, record 0",
        "  1: leaf",
        "  2: south, record 0",
        "    3: leaf",
        "    4: leaf",
    ]
    feature = FeatureBuckets(np.array([2.5], dtype=np.float32), has_missing=True)
    assert Record.of(Candidate(4, 0, True), feature, column=1) == north.records[0]
    assert Record.of(Candidate(4, 1, False), feature, column=0) == south.records[0]


def test_early_stopping_waits_for_a_strictly_smaller_loss() -> None:
    stopping = EarlyStopping(2)
    assert [stopping.update(loss) for loss in (9, 7, 7, 6, 8, 6)] == [False] * 5 + [True]
    assert stopping.trees_to_keep == 4
    never = EarlyStopping(0)
    assert not any(never.update(loss) for loss in (1, 2, 3))
    assert never.trees_to_keep == 3


def test_labels_at_two_parties_or_none_are_counted() -> None:
    check_ownership(np.array([1, 1]))
    with pytest.raises(SiteFault) as caught:
        check_ownership(np.array([1, 2, 0, 0, 3]))
    assert [reason[:6] for reason in caught.value.reasons] == ["2 rows", "2 rows"]


def test_the_loss_of_a_fit_falls() -> None:
    # Slope over trees of the training loss, an end-to-end sign check.
    from tasks.vertical_xgboost.central import fit_central
    from tests.vertical_frames import joined, random_frame

    config = config_of(max_depth=3, num_trees=8)
    model = fit_central(joined([random_frame(0)], config), config)
    losses = [each.train.loss for each in model.metrics]
    assert stats.spearmanr(range(8), losses).statistic == pytest.approx(-1)
