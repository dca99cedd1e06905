"""The protocol's pieces, played by any number of parties, equal the central learner bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.central import CentralModel, fit_central
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.joined import JoinedTable, join
from tests.vertical_plain_protocol import (
    PlainModel,
    config_of,
    cut,
    joined,
    play,
    random_frame,
    tables_of,
)


def assert_same(
    plain: PlainModel, central: CentralModel, tables: dict[str, Any], table: JoinedTable
) -> None:
    """Same trees, thresholds, leaves, predictions and metrics, to the last bit."""
    starts = dict(
        zip(tables, np.cumsum([0] + [len(t.feature_names) for t in tables.values()]), strict=False)
    )
    assert plain.base_score == central.base_score
    assert len(plain.trees) == len(central.trees)
    for owned, weights, tree in zip(plain.trees, plain.weights, central.trees, strict=True):
        assert dict(owned.children) == dict(tree.children)
        assert weights == dict(tree.weights)
        for node, split in owned.splits.items():
            record = plain.lookups[split.source].records[split.record]
            ours = tree.records[node]
            assert starts[split.source] + record.column == ours.column
            assert (record.threshold, record.missing_left) == (ours.threshold, ours.missing_left)
    assert plain.metrics == [(m.train, m.evaluation) for m in central.metrics]
    margins = np.full(len(table.labels), plain.base_margin)
    features = {name: part.features for name, part in tables.items()}
    for owned, weights in zip(plain.trees, plain.weights, strict=True):
        nodes = owned.route(plain.lookups, features, len(margins))
        margins += np.array([central.eta * weights[node] for node in nodes])
    assert np.array_equal(margins, central.margins(table.features))


def check(frame: pd.DataFrame, config: VerticalXGBoostConfig, **how: Any) -> CentralModel:
    """Cut, play, fit, compare."""
    tables = tables_of(cut(frame, **how), config)
    table = join(tables)
    central = fit_central(table, config)
    assert_same(play(tables, config, seed=how["parties"]), central, tables, table)
    return central


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror"])
@pytest.mark.parametrize("labels", ["even", "skewed", "one"])
@pytest.mark.parametrize("parties", [2, 3, 4, 10])
def test_any_cut_gives_the_central_trees(parties: int, labels: str, objective: str) -> None:
    frame = random_frame(parties, objective=objective)
    config = config_of(objective=objective, max_depth=3, num_trees=3, max_bin=16)
    central = check(frame, config, parties=parties, labels=labels)
    assert all(len(tree.splits) >= 5 for tree in central.trees)


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror"])
@pytest.mark.parametrize("depth", range(7))
def test_any_depth_gives_the_central_trees(depth: int, objective: str) -> None:
    frame = random_frame(depth, rows=400, objective=objective)
    config = config_of(objective=objective, max_depth=depth, num_trees=2, min_child_weight=0.5)
    central = check(frame, config, parties=3, labels="even")
    deepest = max(len(tree.children) for tree in central.trees)
    assert deepest == 0 if depth == 0 else deepest >= min(2**depth - 1, 12)


@pytest.mark.parametrize(
    "keys",
    [
        {"gamma": 1e9},
        {"gamma": 2.0, "reg_lambda": 0.0, "min_child_weight": 0.0},
        {"base_score": "0.3", "eta": 1.0},
        {"min_instances": 5},
        {"num_trees": 30, "early_stopping_rounds": 2, "eta": 1.0},
        {"test_fraction": 0.0},
        {"fixed_point_bits": 40},
    ],
    ids=str,
)
def test_settings_do_not_break_equality(keys: dict[str, Any]) -> None:
    config = config_of(**{"max_depth": 3, "num_trees": 3, **keys})
    central = check(random_frame(7, rows=250), config, parties=4, labels="even", interleaved=True)
    if keys.get("gamma") == 1e9:
        assert [tree.children for tree in central.trees] == [{}] * 3
    if "early_stopping_rounds" in keys:
        assert len(central.trees) == len(central.metrics) - 2 < 28


def test_many_seeds_with_ties() -> None:
    for seed in range(15):
        frame = random_frame(seed, rows=60, missing=0.3).round(0)
        frame["label"] = frame["label"].astype(int)
        config = config_of(max_depth=4, num_trees=2, min_child_weight=0.1, max_bin=4)
        check(frame, config, parties=5, labels="even", interleaved=bool(seed % 2))


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror"])
def test_row_order_and_cut_of_columns_do_not_matter(objective: str) -> None:
    frame = random_frame(3, objective=objective)
    config = config_of(objective=objective, max_depth=5, num_trees=4)
    whole = fit_central(joined([frame], config), config)
    shuffled = fit_central(joined([frame.sample(frac=1, random_state=1)], config), config)
    assert whole == shuffled
    for parties in (2, 10):
        parts = cut(frame, parties=parties, labels="skewed")
        assert fit_central(joined(parts, config), config) == whole


def test_given_ranks_decide_ties_as_the_order_of_columns_would() -> None:
    frame = random_frame(5)
    config = config_of(max_depth=4, num_trees=2)
    names = [name for name in frame.columns if name not in ("id", "label")]
    turned = frame[["id", *reversed(names), "label"]]
    whole = fit_central(joined([frame], config), config)
    ranks = list(reversed(range(len(names))))
    other = fit_central(joined([turned], config), config, ranks=ranks)
    for tree, same in zip(whole.trees, other.trees, strict=True):
        assert tree.weights == same.weights
        assert {n: ranks[s.feature] for n, s in same.splits.items()} == {
            n: s.feature for n, s in tree.splits.items()
        }
    unranked = fit_central(joined([turned], config), config)
    assert {s.feature for t in unranked.trees for s in t.splits.values()} != {
        s.feature for t in other.trees for s in t.splits.values()
    }


def test_targets_of_a_billion_and_of_a_billionth_scale() -> None:
    frame = random_frame(2, objective="reg:squarederror")
    config = config_of(objective="reg:squarederror", max_depth=3, num_trees=3)
    for factor in (2.0**26, 2.0**-8):
        scaled = frame.assign(label=frame["label"] * factor)
        check(scaled, config, parties=3, labels="even")
        one = fit_central(joined([frame], config), config)
        many = fit_central(joined([scaled], config), config)
        for tree, same in zip(one.trees, many.trees, strict=True):
            assert tree.splits == same.splits
            assert {n: w * factor for n, w in tree.weights.items()} == same.weights


def test_a_declared_bound_replaces_what_owners_tell() -> None:
    frame = random_frame(2, objective="reg:squarederror")
    config = config_of(objective="reg:squarederror", label_bound=500.0, max_depth=3, num_trees=3)
    check(frame, config, parties=3, labels="even")
    with pytest.raises(SiteFault, match="300 rows have a label above 500") as caught:
        joined([frame.assign(label=1000.0)], config)
    assert caught.value.code == "bad-labels"


def test_one_class_has_no_mean_to_start_from_but_a_given_base_score_works() -> None:
    frame = random_frame(1).assign(label=1)
    config = config_of(max_depth=2, num_trees=1)
    with pytest.raises(SiteFault, match="one class"):
        fit_central(joined([frame], config), config)
    given = config_of(max_depth=2, num_trees=1, base_score="0.5")
    model = fit_central(joined([frame], given), given)
    assert model.trees[0].children == {}
    assert model.trees[0].weights[0] > 0


def test_one_training_row_is_a_leaf() -> None:
    config = config_of(base_score="0.5", test_fraction=0.0, min_child_weight=0.0)
    model = fit_central(joined([random_frame(0, rows=1)], config), config)
    assert all(len(tree.weights) == 1 for tree in model.trees)


def test_constant_targets_and_the_largest_allowed_ones() -> None:
    frame = random_frame(0, objective="reg:squarederror")
    config = config_of(objective="reg:squarederror", max_depth=3, num_trees=2)
    for target in (0.0, 0.1, 1e9, 1e30):
        model = fit_central(joined([frame.assign(label=target)], config), config)
        assert model.margins(joined([frame], config).features) == pytest.approx(target, rel=1e-9)
        assert all(not tree.splits for tree in model.trees)
    largest = frame.assign(label=frame["label"] / frame["label"].abs().max() * 1e30)
    assert fit_central(joined([largest], config), config).trees[0].splits
