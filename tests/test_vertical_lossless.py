"""What the central learner must not depend on, and what it makes of odd rows."""

from __future__ import annotations

import pytest

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.central import fit_central
from tests.vertical_frames import config_of, cut, joined, random_frame


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
        one = fit_central(joined([frame], config), config)
        many = fit_central(joined([scaled], config), config)
        for tree, same in zip(one.trees, many.trees, strict=True):
            assert tree.splits == same.splits
            assert {n: w * factor for n, w in tree.weights.items()} == same.weights


def test_a_label_above_a_declared_bound_is_refused() -> None:
    frame = random_frame(2, objective="reg:squarederror")
    config = config_of(objective="reg:squarederror", label_bound=500.0, max_depth=3, num_trees=3)
    with pytest.raises(SiteFault, match=r"^rows have a label above 500") as caught:
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
