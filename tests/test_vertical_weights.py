"""Weights of rows: as rows that are there more often, as XGBoost has them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost
from flwr.app import Message
from sklearn import metrics

from fedapp import simulation
from fedapp.simulation import InProcessGrid
from tasks.site.faults import SiteFault
from tasks.site.messages import HELLO
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.messages import LABELS
from tasks.vertical_xgboost.model_part import ModelPart
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.row_metrics import metric_sums, metrics_of_rows, metrics_of_sums
from tasks.vertical_xgboost.rows import read_table
from tests.vertical_frames import cut, random_frame
from tests.vertical_runs import assert_same, central_fit, record, run

SMALL: dict[str, Any] = {"max_depth": 2, "num_trees": 2, "max_bin": 8}
REGRESSION = "reg:squarederror"


def weighted_frame(rows: int = 120, *, whole: bool = False, **how: Any) -> pd.DataFrame:
    frame = random_frame(6, rows=rows, **how)
    random = np.random.default_rng(2)
    frame["w"] = random.integers(0, 4, rows) if whole else random.gamma(0.5, 20.0, rows)
    return frame


def frames_of(frame: pd.DataFrame, parties: int = 3) -> list[pd.DataFrame]:
    """Columns and labels cut over parties; each has weights of the rows whose labels it owns."""
    frames = cut(frame.drop(columns="w"), parties=parties, labels="even", interleaved=True)
    weights = frame.set_index("id")["w"]
    for each in frames:
        each["w"] = weights[each["id"]].to_numpy(dtype=float)
        each.loc[each["label"].isna(), "w"] = np.nan
    return frames


# Metrics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["binary:logistic", REGRESSION])
def test_metrics_are_weighted_means(name: str) -> None:
    random = np.random.default_rng(0)
    margins, weights = random.normal(size=(1, 60)), random.gamma(1.0, 5.0, 60)
    labels = random.integers(0, 2, 60).astype(float)
    objective = objective_of(VerticalXGBoostConfig(objective=name))  # type: ignore[arg-type]
    scales = objective.scales(4, bits=32, weight_exponent=6)
    sums = metric_sums(objective, scales, margins, labels, weights)
    found = metrics_of_sums(objective, scales, sums, weights.sum())
    exact = metrics_of_rows(objective, margins, labels, weights)
    assert (found.loss, found.quality) == pytest.approx((exact.loss, exact.quality), rel=1e-7)
    if name == REGRESSION:
        theirs = metrics.root_mean_squared_error(labels, margins[0], sample_weight=weights)
    else:
        theirs = metrics.accuracy_score(labels, margins[0] > 0, sample_weight=weights)
        probability = 1 / (1 + np.exp(-margins[0]))
        assert found.loss == pytest.approx(
            metrics.log_loss(labels, probability, sample_weight=weights), rel=1e-6
        )
    assert found.quality == pytest.approx(theirs, rel=1e-7)


# Runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parties", "keys"),
    [
        (3, {}),
        (4, {"aggregator": "source", "subsample": 0.7}),
        (3, {"objective": REGRESSION, "min_instances": 2}),
        (3, {"objective": REGRESSION, "label_bound": 400.0, "base_score": "3"}),
        (3, {"early_stopping_rounds": 1, "eta": 1.0, "num_trees": 4}),
        (2, {"test_fraction": 0.0, "max_depth": 0}),
    ],
    ids=str,
)
def test_trees_are_those_of_one_party_with_everything(
    parties: int, keys: dict[str, Any], tmp_path: Path
) -> None:
    objective = keys.get("objective", "binary:logistic")
    frames = frames_of(weighted_frame(objective=objective), parties)
    settings = {**SMALL, "weight": "w", **keys}
    result = run(tmp_path, frames, **settings)
    assert_same(result, central_fit(frames, **settings))


def test_encrypted_sums_of_heavy_rows_do_not_overflow(tmp_path: Path) -> None:
    frame = weighted_frame(60)
    frame.loc[::2, "w"] = 1e9
    keys: dict[str, Any] = {"max_depth": 1, "num_trees": 1, "max_bin": 4, "weight": "w"}
    made = record(tmp_path, frames_of(frame), encryption="paillier", **keys)
    assert_same(made.result, central_fit(frames_of(frame), **keys))


@pytest.mark.parametrize("objective", ["binary:logistic", REGRESSION])
def test_trees_and_metrics_are_those_of_xgboost(objective: str, tmp_path: Path) -> None:
    frame = weighted_frame(300, objective=objective)
    frames = frames_of(frame)
    keys: dict[str, Any] = {"max_depth": 3, "num_trees": 4, "max_bin": 16}
    result = run(tmp_path, frames, objective=objective, weight="w", **keys)
    assert result.summary["central"]["same-trees"]
    quality = "test-rmse" if objective == REGRESSION else "test-accuracy"
    for name in ("train-loss", "test-loss", quality):
        theirs = result.summary["central"][f"xgboost-{name}"]
        assert result.summary[name] == pytest.approx(theirs, rel=1e-5)
    unweighted = run(tmp_path, [each.drop(columns="w") for each in frames], objective=objective,
                     **keys)  # fmt: skip
    assert result.summary["train-loss"] != pytest.approx(unweighted.summary["train-loss"], rel=0.01)


def test_the_base_score_is_that_of_xgboost(tmp_path: Path) -> None:
    frame = weighted_frame(120)
    result = run(tmp_path, frames_of(frame), test_fraction=0.0, weight="w", **SMALL)
    data = xgboost.DMatrix(frame[["a"]], label=frame["label"], weight=frame["w"])
    booster = xgboost.train({"objective": "binary:logistic"}, data, num_boost_round=1)
    import json

    theirs = json.loads(booster.save_config())["learner"]["learner_model_param"]["base_score"]
    assert result.summary["base-score"] == pytest.approx(float(theirs.strip("[]")), rel=1e-5)


def test_a_whole_weight_is_a_row_that_is_there_so_often() -> None:
    """Leaves of a first tree, of rows with weights and of rows repeated; 0 is a row that is not."""
    frame = weighted_frame(150, whole=True)
    keys: dict[str, Any] = {"num_trees": 1, "max_depth": 2, "test_fraction": 0.0, "max_bin": 255}
    weighted = central_fit(frames_of(frame), weight="w", **keys).model
    repeated = frame.loc[frame.index.repeat(frame["w"])].drop(columns="w")
    repeated["id"] = np.arange(len(repeated))
    often = central_fit(cut(repeated, parties=3, labels="even", interleaved=True), **keys).model
    assert weighted.base_scores == pytest.approx(often.base_scores, rel=1e-8)
    for one, other in zip(weighted.trees, often.trees, strict=True):
        assert [s.feature for s in one.splits.values()] == [
            s.feature for s in other.splits.values()
        ]
        assert one.weights == pytest.approx(dict(other.weights), rel=1e-6)
    assert weighted.metrics[0].train.loss == pytest.approx(often.metrics[0].train.loss, rel=1e-7)


def test_weights_of_one_are_no_weights() -> None:
    frame = weighted_frame().assign(w=1.0)
    plain = central_fit([each.drop(columns="w") for each in frames_of(frame)], **SMALL).model
    ones = central_fit(frames_of(frame), weight="w", **SMALL).model
    assert [tree.weights for tree in ones.trees] == [tree.weights for tree in plain.trees]
    assert ones.metrics == plain.metrics


def test_covers_are_sums_of_weighted_hessians(tmp_path: Path) -> None:
    frame = weighted_frame(objective=REGRESSION)
    result = run(tmp_path, frames_of(frame), objective=REGRESSION, weight="w", test_fraction=0.0,
                 **SMALL)  # fmt: skip
    parts = [ModelPart.load(result.run_folder / "parties" / f"site-{at}.json") for at in range(3)]
    found = sum(sum(part.trees[0].covers.values()) for part in parts)
    assert found == pytest.approx(frame["w"].sum(), rel=1e-7)


def test_weights_of_common_rows_alone_are_told_and_used(tmp_path: Path) -> None:
    frame = weighted_frame()
    frames = frames_of(frame)
    extra = frames[0].iloc[:2].assign(id=[1, 2], label=[0.0, 1.0], w=1e12)
    longer = [pd.concat([frames[0], extra], ignore_index=True), *frames[1:]]
    made = record(tmp_path, longer, alignment="hashed", weight="w", **SMALL)
    assert_same(made.result, central_fit(frames, weight="w", **SMALL))
    told = [request.content["labels"]["weight-exponent"] for _, request, _ in made.of_type(LABELS)]
    assert told == [int(np.ceil(np.log2(frame["w"].max())))] * 3


def test_a_power_of_two_is_all_that_is_told_of_weights(tmp_path: Path) -> None:
    made = record(tmp_path, frames_of(weighted_frame()), weight="w", **SMALL)
    for name, _, reply in made.of_type(HELLO):
        exponent = reply.content["facts"]["weight-exponent"]
        frame = frames_of(weighted_frame())[int(name[-1])]
        assert exponent == int(np.ceil(np.log2(frame["w"].max())))
    hello = [row for row in made.result.ledger if row["step"] == "hello"]
    assert any("row weights" in str(row["reveals"]) for row in hello)


# Refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1, -2, 3], '1 rows with a label have no weight of 0 to 1e\\+30 in column "w"'),
        ([1, None, np.inf], "2 rows with a label"),
        (["many", 1, 2], 'weights in column "w" are not numbers'),
        ([True, False, True], "not numbers"),
        (None, 'no column "w"'),
    ],
)
def test_bad_weights_are_refused_with_column_and_count(weights: Any, words: str) -> None:
    frame = pd.DataFrame({"id": [1, 2, 3], "x": [1, 2, 3], "label": [0, 1, 0]})
    if weights is not None:
        frame["w"] = pd.Series(weights, dtype=object)
    config = VerticalXGBoostConfig(weight="w")
    with pytest.raises(SiteFault, match=words) as caught:
        read_table(frame, id_column="id", label_column="label", config=config, seed=0)
    assert "many" not in str(caught.value)


def test_weights_are_no_feature_and_looked_at_beside_labels_only() -> None:
    frame = pd.DataFrame(
        {"id": [1, 2, 3], "x": [1, 2, 3], "w": [2.0, np.nan, -9], "label": [0, None, None]}
    )
    config = VerticalXGBoostConfig(weight="w")
    table = read_table(frame, id_column="id", label_column="label", config=config, seed=0)
    assert table.feature_names == ("x",)
    assert table.weights is not None
    assert table.weights.tolist() == [2.0, 0.0, 0.0]
    none = read_table(
        frame[["id", "x"]], id_column="id", label_column="label", config=config, seed=0
    )
    assert none.weights is not None
    assert not none.weights.any()
    for column in ("id", "label"):
        with pytest.raises(SiteFault, match="the weight is the column"):
            read_table(
                frame, id_column="id", label_column="label",
                config=VerticalXGBoostConfig(weight=column), seed=0,
            )  # fmt: skip


def test_rows_without_any_weight_are_refused(tmp_path: Path) -> None:
    result = run(tmp_path, frames_of(weighted_frame().assign(w=0.0)), weight="w", **SMALL)
    assert result.summary["status"] == "refused"
    assert "all training rows have weight 0" in str(result.summary["reason"])
    assert "all evaluation rows have weight 0" in str(result.summary["reason"])


def test_a_bound_below_a_partys_own_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LyingGrid(InProcessGrid):
        def _handle(self, message: Message) -> Message:
            if message.metadata.message_type == LABELS:
                message.content["labels"]["weight-exponent"] = -3
            return super()._handle(message)

    monkeypatch.setattr(simulation, "InProcessGrid", LyingGrid)
    result = run(tmp_path, frames_of(weighted_frame()), weight="w", **SMALL)
    assert result.summary["status"] == "refused"
    assert "weight-exponent: not one that holds" in str(result.summary["reason"])
