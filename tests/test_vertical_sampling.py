"""Trees grown on some of the rows and columns: drawn alike by all, and XGBoost's on those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost
from pydantic import ValidationError

from strategies.vertical_result import vertical_disclosures
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost import level_client
from tasks.vertical_xgboost.candidates import CandidateLayout
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.decide_messages import DECIDE, DecideRequest
from tasks.vertical_xgboost.level_messages import HISTOGRAMS, StartOfTraining
from tasks.vertical_xgboost.model_part import ModelPart
from tasks.vertical_xgboost.party import OwnColumns
from tasks.vertical_xgboost.sampling import (
    Sampling,
    candidates_of_features,
    check_drawn,
    drawn,
    features_of_sources,
    restricted_order,
    training_places,
)
from tests.vertical_frames import cut, random_frame
from tests.vertical_runs import assert_same, central_fit, numbers_of, record, run

SMALL: dict[str, Any] = {"max_depth": 2, "num_trees": 3, "max_bin": 8}
BOTH: dict[str, Any] = {"subsample": 0.5, "colsample_bytree": 0.4}


def frames_of(parties: int = 3, rows: int = 120, **how: Any) -> list[pd.DataFrame]:
    return cut(random_frame(5, rows=rows, **how), parties=parties, labels="even")


# Draws ----------------------------------------------------------------------------------------


def test_draws_have_their_number_and_depend_on_seed_and_tree() -> None:
    found = [drawn("rows", 1000, fraction=0.3, seed=seed, tree=tree) for seed, tree in
             [(0, 0), (0, 1), (1, 0)]]  # fmt: skip
    assert [int(each.sum()) for each in found] == [300] * 3
    shared = [int((found[0] & each).sum()) for each in found[1:]]
    assert all(55 <= number <= 125 for number in shared)  # 90 by chance
    halves = found[0][:500].sum()
    assert 120 <= halves <= 180
    assert drawn("rows", 7, fraction=0.01, seed=3, tree=2).sum() == 1
    assert drawn("columns", 7, fraction=1.0, seed=3, tree=2).all()
    rows = drawn("rows", 500, fraction=0.5, seed=0, tree=0)
    assert (rows != drawn("columns", 500, fraction=0.5, seed=0, tree=0)).any()


def test_draws_are_the_same_with_any_version() -> None:
    """Written down once: parties may run other versions of NumPy."""
    rows = np.flatnonzero(drawn("rows", 20, fraction=0.3, seed=7, tree=1)).tolist()
    columns = np.flatnonzero(drawn("columns", 20, fraction=0.3, seed=7, tree=1)).tolist()
    assert rows == [7, 9, 13, 16, 17, 18]
    assert columns == [5, 6, 14, 15, 17, 19]


def test_columns_are_drawn_in_canonical_order_whatever_their_numbers() -> None:
    ranks = [[2, 0, 1], [1, 0], [0]]
    taken = drawn("columns", 6, fraction=0.5, seed=4, tree=3)
    found = features_of_sources(ranks, fraction=0.5, seed=4, tree=3)
    canonical = [
        first + rank
        for first, own, features in zip([0, 3, 5], ranks, found, strict=True)
        for rank in (own[at] for at in features.tolist())
    ]
    assert sorted(canonical) == np.flatnonzero(taken).tolist()


def test_orders_of_all_candidates_are_restricted_to_those_of_a_tree() -> None:
    layout = CandidateLayout((3, 2, 1, 4), (True, False, False, False))
    numbers = candidates_of_features(layout, np.array([1, 3]))
    assert numbers.tolist() == [5, 6, 7, 8]
    order = np.array([8, 0, 5, 2, 7, 1, 3, 6, 4])
    assert numbers[restricted_order(order, numbers)].tolist() == [8, 5, 7, 6]
    assert not len(candidates_of_features(layout, np.array([], dtype=np.intp)))


def test_owners_take_their_own_of_the_rows_that_all_draw() -> None:
    random = np.random.default_rng(0)
    is_evaluation = random.random(50) < 0.3
    owner = random.integers(0, 3, 50)
    config = VerticalXGBoostConfig(subsample=0.4)
    places, number = training_places(is_evaluation), int((~is_evaluation).sum())
    taken = np.zeros(50, dtype=bool)
    for party in range(3):
        own = owner == party
        taken[own] = Sampling(9, number, places[own]).rows(2, config)
    assert not (taken & is_evaluation).any()
    assert np.array_equal(
        taken[~is_evaluation], drawn("rows", number, fraction=0.4, seed=9, tree=2)
    )


@pytest.mark.parametrize("value", [0.0, -0.1, 1.01, float("nan")])
@pytest.mark.parametrize("key", ["subsample", "colsample-bytree"])
def test_shares_out_of_range_are_refused(key: str, value: float) -> None:
    with pytest.raises(ValidationError, match=key):
        VerticalXGBoostConfig(**{key: value})


@pytest.mark.parametrize(("fraction", "rows"), [(1e-9, 1), (0.1, 9)])
def test_trees_of_few_rows_that_all_know_are_refused(
    fraction: float, rows: int, tmp_path: Path
) -> None:
    """A split client reads the sum of their gradients: of one row it is its label."""
    words = f"of 96 training rows: {rows} rows a tree"
    result = run(tmp_path, frames_of(), **{**SMALL, "subsample": fraction})
    assert result.summary["status"] == "refused"
    assert words in str(result.summary["reason"])
    assert result.exchanges <= 3  # with the one that ends it
    with pytest.raises(SiteFault, match=words):
        central_fit(frames_of(), **{**SMALL, "subsample": fraction})
    check_drawn(100, fraction=0.1)
    check_drawn(3, fraction=1.0)


# Runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parties", "keys"),
    [
        (3, {}),
        (4, {"aggregator": "source"}),
        (3, {"aggregator": "source", "shuffle": False, "min_instances": 3}),
        (2, {"objective": "reg:squarederror", "min_instances": 2}),
        (3, {"colsample_bytree": 1.0, "early_stopping_rounds": 1, "eta": 1.0}),
        (3, {"subsample": 1.0, "aggregator": "source"}),
        (3, {"subsample": 0.11, "colsample_bytree": 0.01, "min_child_weight": 0.0}),
        (3, {"max_depth": 0}),
    ],
    ids=str,
)
def test_trees_are_those_of_one_party_with_everything(
    parties: int, keys: dict[str, Any], tmp_path: Path
) -> None:
    frames = frames_of(parties, objective=keys.get("objective", "binary:logistic"))
    settings = {**SMALL, **BOTH, **keys}
    result = run(tmp_path, frames, seed=3, **settings)
    assert_same(result, central_fit(frames, seed=3, **settings))


def test_trees_are_the_same_under_encryption_whoever_adds(tmp_path: Path) -> None:
    frames = frames_of(rows=80)
    keys: dict[str, Any] = {**BOTH, "max_depth": 2, "num_trees": 2, "max_bin": 4}
    central = central_fit(frames, **keys)
    for aggregator in ("server", "source"):
        made = record(tmp_path, frames, encryption="paillier", aggregator=aggregator, **keys)
        assert_same(made.result, central)
        whole = record(
            tmp_path, frames, encryption="paillier", aggregator=aggregator,
            **{**keys, "colsample_bytree": 1.0},
        )  # fmt: skip
        assert made.result.summary["ciphertexts"] < 0.8 * whole.result.summary["ciphertexts"]


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror"])
def test_each_tree_is_the_one_of_xgboost_on_the_rows_and_columns_drawn(objective: str) -> None:
    """XGBoost grows one tree from the margins so far, on these rows and columns alone."""
    frames = frames_of(rows=400, objective=objective, missing=0.0)
    keys: dict[str, Any] = {"max_depth": 3, "num_trees": 5, "max_bin": 16, **BOTH}
    central = central_fit(frames, seed=2, objective=objective, **keys)
    table, model = central.joined, central.model
    training = np.flatnonzero(~table.is_evaluation)
    margins = np.full(len(table.labels), model.base_margins[0])
    for number, tree in enumerate(model.trees):
        of_tree: dict[str, Any] = {"seed": 2, "tree": number}
        rows = training[drawn("rows", len(training), fraction=0.5, **of_tree)]
        number_of_columns = table.features.shape[1]
        columns = np.flatnonzero(drawn("columns", number_of_columns, fraction=0.4, **of_tree))
        assert {split.feature for split in tree.splits.values()} <= set(columns.tolist())
        inputs = np.full(table.features.shape, np.nan, dtype=np.float32)
        inputs[:, columns] = bucketed(table.features, training)[:, columns]
        parameters = {
            "objective": objective, "max_depth": 3, "base_score": 0.5, "tree_method": "hist",
            "max_bin": 256, "nthread": 1,
        }  # fmt: skip
        data = xgboost.DMatrix(inputs[rows], label=table.labels[rows], base_margin=margins[rows])
        booster = xgboost.train(parameters, data, num_boost_round=1)
        every = xgboost.DMatrix(inputs, base_margin=margins)
        theirs = booster.predict(every, output_margin=True)
        nodes = tree.route(table.features)[0]
        ours = margins + 0.3 * np.array([tree.weights[node] for node in nodes.tolist()])
        assert len(tree.splits) >= 2
        assert ours == pytest.approx(theirs, abs=2e-4 if objective == "reg:squarederror" else 2e-6)
        margins = ours


def bucketed(features: np.ndarray, training: np.ndarray) -> np.ndarray:
    """Numbers of 16 buckets of about equally many training rows, by pandas."""
    found = np.empty_like(features)
    for at in range(features.shape[1]):
        column = features[:, at]
        kept = np.sort(column[training])
        cuts = np.unique(kept)
        if len(cuts) > 16:
            cuts = np.unique([kept[0], *(kept[k * len(kept) // 16] for k in range(1, 16))])
        found[:, at] = np.searchsorted(cuts[1:], column, side="right")
    return found


def test_covers_are_sums_over_the_rows_drawn(tmp_path: Path) -> None:
    """Of a regression: how many rows there are in each leaf; half of the training rows in all."""
    frames = frames_of(objective="reg:squarederror")
    result = run(tmp_path, frames, objective="reg:squarederror", subsample=0.5, **SMALL)
    parts = [ModelPart.load(result.run_folder / "parties" / f"site-{at}.json") for at in range(3)]
    for at in range(SMALL["num_trees"]):
        assert sum(sum(part.trees[at].covers.values()) for part in parts) == 48  # of 96


# What is told ---------------------------------------------------------------------------------


def test_sums_of_rows_that_all_know_are_equations_of_their_labels(tmp_path: Path) -> None:
    """What the docs warn of: with a small eta one split client has the labels of all parties."""
    frames = frames_of(rows=30)
    keys: dict[str, Any] = {"subsample": 0.5, "eta": 1e-3, "num_trees": 30}
    keys |= {"max_depth": 0, "test_fraction": 0.0}
    made = record(tmp_path, frames, **keys)
    central = central_fit(frames, **keys)
    base, labels = central.model.base_scores[0], central.joined.labels
    drawn_rows, sums = [], []
    for _, request, _ in made.of_type(DECIDE):
        asked = DecideRequest.from_record(request.content, protection="clear")
        taken = drawn("rows", 30, fraction=0.5, seed=0, tree=asked.tree)
        for total in asked.totals.values():
            gradient = np.frombuffer(total, dtype="<i8")[0] / 2**32
            drawn_rows.append(taken.astype(float))
            sums.append(base * taken.sum() - gradient)
    solved = np.linalg.lstsq(np.array(drawn_rows), np.array(sums), rcond=None)[0]
    assert ((solved > 0.5) == (labels > 0.5)).mean() > 0.9


def test_ranks_are_told_only_where_columns_are_drawn(tmp_path: Path) -> None:
    frames = frames_of()
    keys: dict[str, Any] = {"max_depth": 1, "num_trees": 1, "max_bin": 4}
    for fraction, told in ((1.0, 0), (0.5, 3)):
        made = record(tmp_path, frames, colsample_bytree=fraction, **keys)
        first = next(request for _, request, _ in made.of_type(HISTOGRAMS))
        assert sum(name.startswith("ranks/") for name in numbers_of(first)) == told
        words = vertical_disclosures(VerticalXGBoostConfig(colsample_bytree=fraction))
        assert ("rank of each unnamed feature" in words[HISTOGRAMS].request) == bool(told)


def test_a_server_that_tells_other_ranks_is_refused() -> None:
    layouts = (CandidateLayout((2, 3), (False, False)), CandidateLayout((2,), (False,)))
    own = OwnColumns((), np.array([1, 0]))

    class Place:
        place = 0

    config = VerticalXGBoostConfig(colsample_bytree=0.5)
    level_client._check_ranks(
        StartOfTraining({}, layouts, 0, ((1, 0), (0,))), own, Place(), config  # type: ignore[arg-type]
    )  # fmt: skip
    for ranks in (((0, 1), (0,)), ((1, 0), (1,)), ((1, 0),), ()):
        with pytest.raises(SiteFault, match="ranks of columns"):
            level_client._check_ranks(
                StartOfTraining({}, layouts, 0, ranks), own, Place(), config  # type: ignore[arg-type]
            )  # fmt: skip
