"""A training that goes on from the trees of an earlier model."""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost

from fedapp.run_folder import RunFolder
from fedapp.simulation import SimulationResult
from fedapp.vertical_skeleton import kept_model
from tasks.privacy import gaussian
from tasks.vertical_xgboost.buckets import bucket_columns
from tasks.vertical_xgboost.central import CentralModel, fit_central
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.joined import JoinedTable, join
from tasks.vertical_xgboost.messages import BUCKETS
from tasks.vertical_xgboost.model_part import ModelPart
from tests.vertical_frames import config_of, cut, joined, random_frame, tables_of
from tests.vertical_runs import Central, assert_same, central_fit, record, run

KEYS: dict[str, Any] = {"max_depth": 2, "num_trees": 2, "max_bin": 8}


@dataclass(frozen=True)
class First:
    """A model, the rows that it was trained on, and other rows of the same columns."""

    trained: SimulationResult
    frames: list[pd.DataFrame]
    others: list[pd.DataFrame]
    keys: dict[str, Any]

    @property
    def folder(self) -> str:
        return str(self.trained.run_folder)

    def part(self, name: str = "site-0") -> ModelPart:
        return ModelPart.load(self.trained.run_folder / "parties" / f"{name}.json")


def first_model(directory: Path, **keys: Any) -> First:
    keys = {**KEYS, **keys}
    objective = keys.get("objective", "binary:logistic")
    frame = random_frame(8, rows=320, objective=objective, missing=0.2)
    frames = cut(frame[:200], parties=3, labels="even", interleaved=True)
    others = cut(frame[140:], parties=3, labels="even", interleaved=True, seed=4)
    trained = run(directory, frames, **keys)
    assert trained.summary["status"] == "ok", trained.summary.get("reason")
    return First(trained, frames, others, keys)


@pytest.fixture(scope="module", params=["binary:logistic", "reg:squarederror"])
def first(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> First:
    return first_model(tmp_path_factory.mktemp("first"), objective=request.param)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> First:
    return first_model(tmp_path_factory.mktemp("classifier"))


def central_warm(first: First, frames: list[pd.DataFrame], **keys: Any) -> Central:
    """Both trainings on the joined tables."""
    earlier = central_fit(first.frames, **first.keys).model
    again = central_fit(frames, **{**first.keys, **keys})
    config = VerticalXGBoostConfig(**{"allow_weak_key": True, **first.keys, **keys})
    model = fit_central(again.joined, config, warm_start=earlier)
    return dataclasses.replace(again, model=model)


@pytest.mark.parametrize(
    ("rows", "keys"),
    [
        ("other", {}),
        ("same", {"aggregator": "source", "max_depth": 2, "num_trees": 2}),
        ("other", {"max_bin": 30, "gamma": 0.2, "min_child_weight": 3.0, "num_trees": 2}),
    ],
    ids=["other rows", "source adds up", "other settings"],
)
def test_new_trees_are_the_central_ones(
    rows: str, keys: dict[str, Any], first: First, tmp_path: Path
) -> None:
    go_on(tmp_path, first, first.frames if rows == "same" else first.others, **keys)


def test_encryption_changes_nothing(classifier: First, tmp_path: Path) -> None:
    keys = {"num_trees": 1, "max_depth": 2}
    go_on(tmp_path, classifier, classifier.others, encryption="paillier", **keys)


def go_on(directory: Path, first: First, frames: list[pd.DataFrame], **keys: Any) -> None:
    settings = {**first.keys, **keys}
    again = run(directory, frames, warm_start=first.folder, **settings)
    assert_same(again, central_warm(first, frames, **keys))
    assert again.summary["central"]["same-trees"] is True
    assert again.summary["warm-start"] == first.trained.summary["model"]
    assert again.summary["model"] != first.trained.summary["model"]
    assert again.summary["trees-before"] == first.keys["num_trees"]
    assert again.summary["trees-kept"] == first.keys["num_trees"] + settings["num_trees"]
    exchanges = {"server": 2, "source": 3}[settings.get("aggregator", "server")]
    assert again.exchanges == 4 + exchanges * settings["num_trees"] * settings["max_depth"]


def test_gradients_are_bounded_where_earlier_trees_have_moved_rows(tmp_path: Path) -> None:
    """Of other rows: labels near the base score, margins far from it."""
    first = first_model(tmp_path, objective="reg:squarederror", eta=1.0)
    base = first.part().base_margins[0]
    frames = [frame.copy() for frame in first.others]
    for frame in frames:
        frame["label"] = base + 1e-3 * (frame["label"] - base)
    go_on(tmp_path, first, frames, num_trees=2)


def test_early_stopping_counts_new_trees_only(classifier: First, tmp_path: Path) -> None:
    keys = {"num_trees": 9, "early_stopping_rounds": 1}
    again = run(
        tmp_path, classifier.others, warm_start=classifier.folder, **{**classifier.keys, **keys}
    )
    central = central_warm(classifier, classifier.others, **keys)
    before = classifier.keys["num_trees"]
    assert before < len(central.model.trees) < before + 9
    assert len(central.model.metrics) > len(central.model.trees) - before
    assert_same(again, central)


def test_models_follow_one_another(classifier: First, tmp_path: Path) -> None:
    second = run(tmp_path, classifier.others, warm_start=classifier.folder, **classifier.keys)
    third = run(tmp_path, classifier.frames, warm_start=str(second.run_folder), **classifier.keys)
    central = central_warm(classifier, classifier.others)
    config = VerticalXGBoostConfig(**classifier.keys)
    last = fit_central(
        central_fit(classifier.frames, **classifier.keys).joined, config, warm_start=central.model
    )
    assert_same(
        third, dataclasses.replace(central_fit(classifier.frames, **classifier.keys), model=last)
    )
    assert third.summary["trees-before"] == 4


def test_the_new_model_predicts_and_is_exported(classifier: First, tmp_path: Path) -> None:
    from fedapp.vertical_export import exported_model

    again = run(
        tmp_path,
        classifier.others,
        warm_start=classifier.folder,
        export_consent=True,
        **classifier.keys,
    )
    found = run(
        tmp_path, classifier.others, mode="predict", model=str(again.run_folder), encryption="none"
    )
    assert found.summary["status"] == "ok", found.summary.get("reason")
    assert found.predictions is not None
    assert again.predictions is not None
    assert np.array_equal(found.predictions["margin"], again.predictions["margin"])
    document, _ = exported_model(again.run_folder)
    booster = xgboost.Booster()
    booster.load_model(bytearray(json.dumps(document).encode()))
    assert booster.num_boosted_rounds() == 4


def xgboost_both(
    table: JoinedTable, config: VerticalXGBoostConfig, base_score: float, rounds: tuple[int, int]
) -> np.ndarray:
    """Margins of training rows by XGBoost, trained twice: the second time with ``xgb_model``."""
    training = ~table.is_evaluation
    buckets, numbers = bucket_columns(table.features, training, max_bin=config.max_bin)
    inputs = numbers.T.astype(np.float32)
    inputs[inputs == np.array([each.num_buckets for each in buckets])] = np.nan
    parameters = {
        "objective": config.objective,
        "tree_method": "hist",
        "max_bin": 256,
        "eta": config.eta,
        "lambda": config.reg_lambda,
        "max_depth": config.max_depth,
        "base_score": base_score,
        "nthread": 1,
    }
    data = xgboost.DMatrix(inputs[training], label=table.labels[training])
    one = xgboost.train(parameters, data, num_boost_round=rounds[0])
    two = xgboost.train(parameters, data, num_boost_round=rounds[1], xgb_model=one)
    return np.asarray(two.predict(data, output_margin=True))


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror"])
def test_xgboost_goes_on_alike(objective: str) -> None:
    config = config_of(objective=objective, max_depth=3, num_trees=3)
    table = joined([random_frame(11, rows=400, objective=objective)], config)
    earlier = fit_central(table, config)
    more = config_of(objective=objective, max_depth=3, num_trees=2)
    model = fit_central(table, more, warm_start=earlier)
    training = ~table.is_evaluation
    theirs = xgboost_both(table, config, model.base_scores[0], (3, 2))
    scale = max(1.0, float(np.abs(table.labels).max()))
    ours = model.margins(table.features)[0, training]
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-6 * scale)


def test_going_on_is_as_if_the_training_had_not_stopped() -> None:
    config = config_of(max_depth=4, num_trees=5)
    table = joined([random_frame(2)], config)
    whole = fit_central(table, config)
    first = fit_central(table, config_of(max_depth=4, num_trees=2))
    more = fit_central(table, config_of(max_depth=4, num_trees=3), warm_start=first)
    assert more.trees == whole.trees
    assert more.metrics == whole.metrics[2:]


def test_sides_go_sealed_and_as_long_for_everybody(classifier: First, tmp_path: Path) -> None:
    recorded = record(tmp_path, classifier.others, warm_start=classifier.folder, **classifier.keys)
    lengths = {
        len(sealed)
        for _, _, reply in recorded.of_type(BUCKETS)
        for sealed in reply.content.config_records["sealed"].values()
        if isinstance(sealed, bytes)
    }
    by_source = {
        party: {
            len(each)
            for each in reply.content.config_records["sealed"].values()
            if isinstance(each, bytes)
        }
        for party, _, reply in recorded.of_type(BUCKETS)
    }
    assert lengths
    assert all(len(sizes) == 1 for sizes in by_source.values())


# Refusals ---------------------------------------------------------------------------------------


def refused(directory: Path, first: First, frames: list[pd.DataFrame], **keys: Any) -> str:
    result = run(directory, frames, **{**first.keys, "warm_start": first.folder, **keys})
    assert result.summary["status"] == "refused"
    return str(result.summary["reason"])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"eta": 0.1}, "eta = 0.1: must be 0.3"),
        ({"reg_lambda": 2.0}, "lambda = 2.0: must be 1.0"),
        ({"base_score": "0.4"}, "base-score = '0.4': allowed is 'mean'"),
        ({"dp_epsilon": 1.0}, "dp-epsilon = 1.0: must be 0"),
        ({"positive_label": "2"}, "positive-label"),
        ({"objective": "reg:squarederror"}, "objective = 'reg:squarederror': must be 'binary"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_named(
    keys: dict[str, Any], words: str, classifier: First, tmp_path: Path
) -> None:
    assert words in refused(tmp_path, classifier, classifier.others, **keys)


def test_only_a_training_goes_on() -> None:
    with pytest.raises(ValueError, match=r"warm-start = 'run-1': allowed with mode = 'train'"):
        config_of(mode="predict", model="run-2", warm_start="run-1")


def test_columns_that_do_not_fit_are_told_by_position(classifier: First, tmp_path: Path) -> None:
    frames = list(classifier.others)
    frames[1] = frames[1].rename(columns={frames[1].columns[1]: "secret-name"})
    words = refused(tmp_path, classifier, frames)
    assert "site-1: " in words
    assert "feature 1 of the part is no column here; column 1 here is no feature" in words
    assert "secret-name" not in words
    frames = list(classifier.others)
    names = [name for name in frames[0].columns if name not in ("id", "label")]
    frames[0] = frames[0][["id", *reversed(names), "label"]]
    assert "another order, which decides ties" in refused(tmp_path, classifier, frames)


def test_what_is_missing_is_named(classifier: First, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(classifier.trained.run_folder, copy)
    (copy / "parties" / "site-2.json").unlink()
    words = refused(tmp_path, classifier, classifier.others, warm_start=str(copy))
    assert "site-2: site-2.json: this part of the model is missing" in words
    shutil.rmtree(copy / "parties")
    words = refused(tmp_path, classifier, classifier.others, warm_start=str(copy))
    assert all(f"site-{at}.json: this part of the model is missing" in words for at in range(3))
    (copy / "trees.json").unlink()
    words = refused(tmp_path, classifier, classifier.others, warm_start=str(copy))
    assert f"{copy / 'trees.json'}: is missing" in words
    with pytest.raises(ValueError, match=r'"run-77": no folder in .* \(run-dir\) has the trees'):
        kept_model("run-77", key="warm-start", run_dir=tmp_path, simulated=False)
    name = str(classifier.trained.summary["model"])
    runs = classifier.trained.run_folder.parent
    assert kept_model(name, key="warm-start", run_dir=runs, simulated=False).run == name


def test_a_part_of_another_model_is_refused(classifier: First, tmp_path: Path) -> None:
    other = run(tmp_path, classifier.frames, **{**classifier.keys, "max_depth": 1})
    copy = tmp_path / "copy"
    shutil.copytree(classifier.trained.run_folder, copy)
    shutil.copy(other.run_folder / "parties" / "site-1.json", copy / "parties" / "site-1.json")
    words = refused(tmp_path, classifier, classifier.others, warm_start=str(copy))
    assert words.startswith("site-1: the part of run-")
    assert "is not of the model that the server keeps" in words


def test_other_parties_are_named(classifier: First, tmp_path: Path) -> None:
    words = refused(tmp_path, classifier, classifier.others[:2], allow_two_parties=True)
    assert "the parties are not those of the model" in words
    assert "missing: site-2" in words


# Partial differential privacy --------------------------------------------------------------------


def test_budgets_of_both_trainings_add_up(tmp_path: Path) -> None:
    keys = {"dp_epsilon": 2.0, "dp_delta": 1e-5, "max_depth": 2, "num_trees": 2}
    first = first_model(tmp_path, **keys)
    again = run(
        tmp_path, first.others, warm_start=first.folder, **{**first.keys, "dp_epsilon": 1.0}
    )
    assert again.summary["status"] == "ok", again.summary.get("reason")
    summary = again.summary
    one = 2.0 / gaussian.sigma(epsilon=2.0, delta=1e-5, sensitivity=2.0, releases=1 + 4)
    # No tree of the second training is a first one: rows may be those of before.
    two = 2.0 / gaussian.sigma(epsilon=1.0, delta=1e-5, sensitivity=2.0, releases=4 + 4)
    total = gaussian.composed_epsilon(delta=1e-5, ratios=[one] * 5 + [two] * 8)
    assert summary["dp-epsilon"] == pytest.approx(total, rel=1e-9)
    assert summary["dp-epsilon-here"] == pytest.approx(1.0, rel=1e-6)
    assert 2.0 < summary["dp-epsilon"] < 3.0
    assert summary["dp-releases"] == 8
    part = ModelPart.load(again.run_folder / "parties" / "site-0.json")
    assert [each.count for each in part.origin.releases] == [5, 8]
    skeleton = RunFolder.open(again.run_folder).read_json("trees.json")
    assert skeleton is not None
    assert [each["count"] for each in skeleton["releases"]] == [5, 8]
    words = refused(tmp_path, first, first.others, dp_epsilon=0.0)
    assert "dp-epsilon = 0: must be above 0" in words


def test_seeded_noise_of_the_second_training_is_another(tmp_path: Path) -> None:
    """With one seed both trainings would draw the same noise, if trees did not count on."""
    from tasks.vertical_xgboost.partial_dp import noisy_weights

    config = config_of(dp_epsilon=1.0, num_trees=2, max_depth=2)
    drawn = [
        noisy_weights(config, seed=3, tree=tree, level=1, source=0, num_nodes=1)[0].of([0.5])
        for tree in (0, 2)
    ]
    assert drawn[0] != drawn[1]


def test_tables_of_both_trainings_join(classifier: First) -> None:
    """The oracle itself: rows of both trainings overlap, and are not the same."""
    config = config_of()
    one, two = (
        join(tables_of(frames, config)) for frames in (classifier.frames, classifier.others)
    )
    assert len(one.labels) == 200
    assert len(two.labels) == 180
    assert isinstance(fit_central(two, config), CentralModel)
