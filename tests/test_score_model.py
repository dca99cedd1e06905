"""Model files: they predict what scikit-learn and XGBoost do; what is wrong is named at once."""

from __future__ import annotations

import copy
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from tasks.roc_glm import score_model
from tasks.roc_glm.score_model import ScoreModel, score_quantiles
from tasks.roc_glm.score_model_export import from_sklearn_logistic, from_xgboost
from tasks.site.faults import SiteFault

NAMES = ["age", "tumour size", "grade"]
SECRET = 987654.125  # a value of a row: must never be in a message


def table(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.normal(60, 12, rows),
            "other": "text",
            "tumour size": rng.lognormal(3, 0.5, rows),
            "grade": rng.integers(1, 4, rows),
        }
    )


def outcome(frame: pd.DataFrame, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    signal = 0.05 * (frame["age"] - 60) + 0.04 * (frame["tumour size"] - 20) + frame["grade"] - 2
    return (signal + rng.logistic(size=len(frame)) > 0).to_numpy().astype(int)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return table()


@pytest.fixture(scope="module")
def booster(frame: pd.DataFrame) -> xgboost.Booster:
    with_gaps = frame[NAMES].mask(np.random.default_rng(2).random((len(frame), 3)) < 0.1)
    data = xgboost.DMatrix(with_gaps, outcome(frame))
    parameters = {
        "objective": "binary:logistic",
        "max_depth": 4,
        "gamma": 1.0,  # prunes nodes after they were grown; "exact" leaves them in the file
        "tree_method": "exact",
        "nthread": 1,
    }
    return xgboost.train(parameters, data, num_boost_round=20)


def text_of(booster: xgboost.Booster) -> str:
    return bytes(booster.save_raw("json")).decode()


def linear_document(**changes: Any) -> dict[str, Any]:
    document = {
        "format": "fedapp-score-model",
        "kind": "logistic",
        "features": ["a", "b"],
        "coefficients": [0.5, -1.0],
        "intercept": 0.25,
        "cut-points": [0.25, 0.5],
        "training-score-quantiles": [0.1, 0.1, 0.4],
    }
    return {key: value for key, value in {**document, **changes}.items() if value is not ...}


def refusal(document: object) -> SiteFault:
    text = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(SiteFault) as caught:
        ScoreModel.from_json(text)
    assert caught.value.code == "bad-score-model"
    return caught.value


# -- coefficients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("with_mean", [True, False])
@pytest.mark.parametrize("with_std", [True, False])
def test_pipeline_predicts_as_scikit_learn(
    frame: pd.DataFrame, with_mean: bool, with_std: bool
) -> None:
    scaler = StandardScaler(with_mean=with_mean, with_std=with_std)
    pipeline = make_pipeline(scaler, LogisticRegression(max_iter=5000))
    pipeline.fit(frame[NAMES], outcome(frame))
    new = table(1000, seed=5)
    model = ScoreModel.from_json(from_sklearn_logistic(pipeline).to_json())
    expected = pipeline.predict_proba(new[NAMES])[:, 1]
    assert np.ptp(expected) > 0.5
    np.testing.assert_allclose(model.predict(new), expected, rtol=0, atol=1e-12)


def test_bare_regression_and_the_other_class(frame: pd.DataFrame) -> None:
    labels = np.where(outcome(frame), "relapse", "none")
    regression = LogisticRegression(max_iter=5000).fit(frame[NAMES], labels)
    assert list(regression.classes_) == ["none", "relapse"]
    model = from_sklearn_logistic(regression)
    other = from_sklearn_logistic(regression, positive="none")
    expected = regression.predict_proba(frame[NAMES])
    np.testing.assert_allclose(model.predict(frame), expected[:, 1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(other.predict(frame), expected[:, 0], rtol=0, atol=1e-12)


def test_fit_on_arrays_needs_names(frame: pd.DataFrame) -> None:
    regression = LogisticRegression(max_iter=5000).fit(frame[NAMES].to_numpy(), outcome(frame))
    with pytest.raises(ValueError, match="features: must be the names of 3 columns"):
        from_sklearn_logistic(regression)
    model = from_sklearn_logistic(regression, features=NAMES)
    expected = regression.predict_proba(frame[NAMES].to_numpy())[:, 1]
    np.testing.assert_allclose(model.predict(frame), expected, rtol=0, atol=1e-12)


def test_other_scikit_learn_models_are_refused(frame: pd.DataFrame) -> None:
    steps = make_pipeline(MinMaxScaler(), LogisticRegression()).fit(frame[NAMES], outcome(frame))
    with pytest.raises(TypeError, match="MinMaxScaler -> LogisticRegression: must be Logistic"):
        from_sklearn_logistic(steps)
    three = LogisticRegression(max_iter=5000).fit(frame[["age"]], frame["grade"])
    with pytest.raises(ValueError, match="3 classes; must be 2"):
        from_sklearn_logistic(three)
    two = LogisticRegression(max_iter=5000).fit(frame[["age"]], outcome(frame))
    with pytest.raises(ValueError, match="positive = 'yes': must be one of"):
        from_sklearn_logistic(two, positive="yes")


def test_linear_kind_gives_the_predictor_itself() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, np.nan, np.inf], "b": [True, False, True, True]})
    model = ScoreModel.from_json(
        json.dumps(linear_document(kind="linear", **{"cut-points": [-3.0, 7.0]}))
    )
    assert model.kind == "linear"
    np.testing.assert_array_equal(model.predict(frame), [-0.25, 1.25, np.nan, np.nan])
    logistic = ScoreModel.from_json(json.dumps(linear_document()))
    expected = 1 / (1 + np.exp([0.25, -1.25]))
    np.testing.assert_allclose(logistic.predict(frame)[:2], expected, rtol=1e-15)


def test_predictor_of_any_size_gives_a_probability() -> None:
    frame = pd.DataFrame({"a": [1e308, -1e308], "b": [0.0, 0.0]})
    model = ScoreModel.from_json(json.dumps(linear_document(coefficients=[1e9, 1.0])))
    np.testing.assert_array_equal(model.predict(frame), [1.0, 0.0])


@pytest.mark.parametrize("kind", ["linear", "logistic"])
def test_no_coefficients_leave_a_row_without_a_score(kind: str) -> None:
    """Which rows have none is counted without noise: a server would choose which."""
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(rng.uniform(-100, 100, (200, 3)), columns=list("abc"))
    frame.iloc[0] = 1e308
    for coefficients in ([1e307, 0.0, 0.0], [1.7e308, -1.7e308, 1.0], [1e308, 1e308, -1e308]):
        document = linear_document(
            kind=kind, features=list("abc"), coefficients=coefficients, intercept=-1.7e308
        )
        scores = ScoreModel.from_json(json.dumps(document)).predict(frame)
        assert np.isfinite(scores).all()
        exact = [
            sum((Fraction(c) * Fraction(v) for c, v in zip(coefficients, row, strict=True)), start)
            for row in frame.to_numpy()
            if (start := Fraction(-1.7e308))
        ]
        sign = np.array([1.0 if value > 0 else -1.0 for value in exact])
        np.testing.assert_array_equal(np.sign(scores - (0.5 if kind == "logistic" else 0.0)), sign)


def test_lists_travel_with_the_model(frame: pd.DataFrame) -> None:
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    pipeline.fit(frame[NAMES], outcome(frame))
    scores = pipeline.predict_proba(frame[NAMES])[:, 1]
    model = from_sklearn_logistic(
        pipeline, training_scores=scores, cut_points=[0.2, 0.5], num_quantiles=19
    )
    again = ScoreModel.from_json(model.to_json())
    assert again.to_json() == model.to_json()
    np.testing.assert_array_equal(again.cut_points, [0.2, 0.5])
    expected = [pd.Series(scores).quantile(level / 20) for level in range(1, 20)]
    np.testing.assert_allclose(again.training_quantiles, expected, rtol=1e-14)
    np.testing.assert_allclose(again.quantiles_at(20), expected, rtol=1e-14)
    np.testing.assert_allclose(again.quantiles_at(4), np.quantile(scores, [0.25, 0.5, 0.75]))
    assert len(again.quantiles_at(50)) == 49
    assert (np.diff(again.quantiles_at(50)) >= 0).all()


def test_quantiles_of_a_model_without_them() -> None:
    model = ScoreModel.from_json(
        json.dumps(linear_document(**{"training-score-quantiles": ..., "cut-points": ...}))
    )
    assert len(model.cut_points) == len(model.training_quantiles) == 0
    with pytest.raises(SiteFault, match="has no training-score-quantiles"):
        model.quantiles_at(10)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5),
    st.floats(-1e6, 1e6),
    st.sampled_from(["logistic", "linear"]),
)
@settings(max_examples=50, deadline=None)
def test_a_file_gives_back_every_digit(
    coefficients: list[float], intercept: float, kind: str
) -> None:
    names = [f"x{number}" for number in range(len(coefficients))]
    document = {
        "format": "fedapp-score-model",
        "kind": kind,
        "features": names,
        "coefficients": coefficients,
        "intercept": intercept,
    }
    model = ScoreModel.from_json(json.dumps(document))
    again = json.loads(ScoreModel.from_json(model.to_json()).to_json())
    assert {key: again[key] for key in document} == document


def test_the_file_of_the_guide_is_read() -> None:
    guide = (Path(__file__).parents[1] / "docs" / "roc-glm.md").read_text(encoding="utf-8")
    model = ScoreModel.from_json(guide.partition("```json")[2].partition("```")[0])
    assert (model.kind, model.features) == ("logistic", ("age", "size"))
    expected = 1 / (1 + np.exp(2.1 - 0.03 * 50 - 0.4 * 2))
    frame = pd.DataFrame({"size": [2], "age": [50]})
    np.testing.assert_allclose(model.predict(frame), [expected], rtol=1e-14)


# -- what a file may not be -----------------------------------------------------------------------


def test_all_faults_at_once() -> None:
    fault = refusal(
        linear_document(
            kind="cubic",
            features=["a", "a"],
            coefficients=[1.0],
            intercept="0",
            extra=1,
            **{"cut-points": [0.5, 0.25], "training-score-quantiles": [True]},
        )
    )
    assert len(fault.reasons) == 7
    told = str(fault)
    for words in (
        "unknown key 'extra'",
        "kind: must be 'logistic' or 'linear'",
        "features: every name must be there once",
        "coefficients: 1 for 2 features",
        "intercept: must be a finite number",
        "cut-points: must ascend, each value once",
        "training-score-quantiles: must be a list of at most 100000 finite numbers",
    ):
        assert words in told


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "no key 'format'; no key 'kind'; no key 'features'"),
        (linear_document(format="other"), "format: must be 'fedapp-score-model'"),
        (linear_document(features=[], coefficients=[]), "features: must be a list of at least one"),
        (linear_document(features=["a", 1]), "features: must be a list of at least one name"),
        (linear_document(coefficients=[1.0, None]), "coefficients: must be a list of finite"),
        (linear_document(coefficients=[1, 10**400]), "coefficients: must be a list of finite"),
        (linear_document(**{"cut-points": [0.5, 0.5]}), "cut-points: must ascend, each value once"),
        (linear_document(**{"cut-points": [0.5, 1.5]}), r"cut-points: must lie in \[0, 1\]"),
        ('{"intercept": NaN}', "not JSON .NaN is no number"),
        ('{"intercept": 1e999, "format": 1}', "intercept: must be a finite number"),
        ('{"kind": "linear", "kind": "logistic"}', "a key is there twice"),
        ("[1]", "must be a JSON object"),
        ("\x80\x04\x95", "not JSON"),
        ("[" * 100_000, "nested too deeply|not JSON"),
    ],
)
def test_fault_of_a_file(document: object, words: str) -> None:
    with pytest.raises(SiteFault, match=words):
        ScoreModel.from_json(document if isinstance(document, str) else json.dumps(document))


def test_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(linear_document())
    monkeypatch.setattr(score_model, "MOST_BYTES", len(text.encode()))
    assert ScoreModel.from_json(text)
    monkeypatch.setattr(score_model, "MOST_BYTES", len(text.encode()) - 1)
    assert "more than" in str(refusal(text))


def test_faults_of_a_table_hold_no_value() -> None:
    model = ScoreModel.from_json(json.dumps(linear_document()))
    with pytest.raises(SiteFault) as caught:
        model.predict(pd.DataFrame({"c": [SECRET]}))
    assert caught.value.code == "unknown-column"
    assert caught.value.reasons == tuple(
        f'no column "{name}", a feature of the score model' for name in "ab"
    )
    with pytest.raises(SiteFault) as caught:
        model.predict(pd.DataFrame({"a": [f"{SECRET}"], "b": [f"x{SECRET}"]}))
    assert caught.value.code == "bad-features"
    assert len(caught.value.reasons) == 2
    assert str(SECRET) not in str(caught.value)


def test_columns_of_other_names() -> None:
    model = ScoreModel.from_json(json.dumps(linear_document()))
    frame = pd.DataFrame({"x": [1.0], "y": [2.0]})
    by_names = model.predict(frame.rename(columns={"x": "a", "y": "b"}))
    np.testing.assert_array_equal(model.predict(frame, columns=["x", "y"]), by_names)
    with pytest.raises(SiteFault, match="1 feature columns are given, the score model has 2: a, b"):
        model.predict(frame, columns=["x"])


def test_missing_values_of_nullable_columns() -> None:
    model = ScoreModel.from_json(json.dumps(linear_document()))
    frame = pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": [0.0, 0.0]})
    assert np.isnan(model.predict(frame)).tolist() == [False, True]


def test_quantiles_are_numpys() -> None:
    scores = np.random.default_rng(0).random(501)
    np.testing.assert_allclose(
        score_quantiles(scores, number=3), np.quantile(scores, [0.25, 0.5, 0.75])
    )


# -- XGBoost --------------------------------------------------------------------------------------


def test_xgboost_predicts_as_xgboost(booster: xgboost.Booster) -> None:
    new = table(1000, seed=7)
    new.loc[::5, "age"] = np.nan
    expected = booster.predict(xgboost.DMatrix(new[NAMES]))
    assert np.ptp(expected) > 0.5
    model = ScoreModel.from_json(text_of(booster))
    assert model.kind == "xgboost"
    assert model.features == tuple(NAMES)
    scores = model.predict(new)
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-6)
    again = ScoreModel.from_json(model.to_json())
    np.testing.assert_array_equal(again.predict(new), scores)


def test_pruned_nodes_are_in_the_file_and_left_out(booster: xgboost.Booster) -> None:
    def nodes(text: str) -> tuple[int, int]:
        model = json.loads(text)["learner"]["gradient_booster"]["model"]
        parameters = [tree["tree_param"] for tree in model["trees"]]
        return (
            sum(int(one["num_nodes"]) for one in parameters),
            sum(int(one["num_deleted"]) for one in parameters),
        )

    total, deleted = nodes(text_of(booster))
    assert deleted > 0
    assert nodes(ScoreModel.from_json(text_of(booster)).to_json()) == (total - deleted, 0)


def test_xgboost_classifier_stops_at_its_best_round(frame: pd.DataFrame) -> None:
    classifier = xgboost.XGBClassifier(
        n_estimators=200, learning_rate=0.5, early_stopping_rounds=5, n_jobs=1, num_parallel_tree=2
    )
    new = table(300, seed=9)
    classifier.fit(
        frame[NAMES], outcome(frame), eval_set=[(new[NAMES], outcome(new, seed=8))], verbose=False
    )
    assert classifier.best_iteration < classifier.get_booster().num_boosted_rounds() - 1
    expected = classifier.predict_proba(new[NAMES])[:, 1]
    model = from_xgboost(classifier, training_scores=expected, cut_points=[0.5])
    np.testing.assert_allclose(model.predict(new), expected, rtol=0, atol=1e-6)
    again = ScoreModel.from_json(model.to_json())
    np.testing.assert_array_equal(again.cut_points, [0.5])
    np.testing.assert_array_equal(again.training_quantiles, model.training_quantiles)
    assert len(again.training_quantiles) == 99
    # still a file of XGBoost's own
    native = xgboost.Booster(model_file=bytearray(model.to_json().encode()))
    np.testing.assert_allclose(
        native.predict(xgboost.DMatrix(new[NAMES])), expected, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_file_of_xgboost_stops_at_its_best_round(
    parallel: int, frame: pd.DataFrame, tmp_path: Path
) -> None:
    classifier = xgboost.XGBClassifier(
        n_estimators=200,
        learning_rate=0.5,
        early_stopping_rounds=5,
        n_jobs=1,
        num_parallel_tree=parallel,
    )
    new = table(300, seed=9)
    classifier.fit(
        frame[NAMES], outcome(frame), eval_set=[(new[NAMES], outcome(new, seed=8))], verbose=False
    )
    assert classifier.best_iteration < classifier.get_booster().num_boosted_rounds() - 1
    classifier.save_model(tmp_path / "model.json")
    document = json.loads((tmp_path / "model.json").read_text())
    expected = classifier.predict_proba(new[NAMES])[:, 1]
    every_tree = classifier.get_booster().predict(xgboost.DMatrix(new[NAMES]))
    assert np.abs(every_tree - expected).max() > 0.01
    model = ScoreModel.from_json(json.dumps(document))
    np.testing.assert_allclose(model.predict(new), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        ScoreModel.from_json(model.to_json()).predict(new), expected, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("version", [[1, 7, 6], [2, 0, 0], [3, 2, 0], None, "three"])
def test_the_version_that_wrote_a_file_changes_nothing(
    version: Any, booster: xgboost.Booster
) -> None:
    document = json.loads(text_of(booster))
    document["version"] = version
    for tree in document["learner"]["gradient_booster"]["model"]["trees"]:
        tree["default_left"] = [bool(way) for way in tree["default_left"]]
    model = ScoreModel.from_json(json.dumps(document))
    new = table(100, seed=3)
    expected = booster.predict(xgboost.DMatrix(new[NAMES]))
    np.testing.assert_allclose(model.predict(new), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("version", [[999, 0, 0], [0, 9, 0]])
def test_a_version_that_nobody_has_read_is_refused(
    version: list[int], booster: xgboost.Booster
) -> None:
    document = json.loads(text_of(booster))
    document["version"] = version
    assert "version: must be of XGBoost 1, 2 or 3" in str(refusal(document))


def test_infinite_feature_has_no_score(booster: xgboost.Booster) -> None:
    new = table(4)
    new.loc[1, "age"] = np.inf
    new.loc[2, "age"] = 1e300  # infinite in float32
    scores = ScoreModel.from_json(text_of(booster)).predict(new)
    assert np.isnan(scores).tolist() == [False, True, True, False]


def test_from_xgboost_takes_xgboost_only() -> None:
    with pytest.raises(TypeError, match="must be an xgboost Booster or XGBClassifier, not str"):
        from_xgboost("model.json")


def test_regression_forest_dart_and_categories_are_refused(frame: pd.DataFrame) -> None:
    labels = outcome(frame)
    data = xgboost.DMatrix(frame[NAMES], labels)
    squared = xgboost.train({"objective": "reg:squarederror", "nthread": 1}, data, 2)
    assert "objective.name: must be 'binary:logistic'" in str(refusal(text_of(squared)))
    dart = xgboost.train({"objective": "binary:logistic", "booster": "dart", "nthread": 1}, data, 2)
    assert "gradient_booster.name: must be 'gbtree'" in str(refusal(text_of(dart)))
    grades = frame.assign(grade=frame["grade"].astype("category"))
    categories = xgboost.train(
        {"objective": "binary:logistic", "nthread": 1},
        xgboost.DMatrix(grades[NAMES], labels, enable_categorical=True),
        2,
    )
    assert "only numeric features" in str(refusal(text_of(categories)))
    nameless = xgboost.train(
        {"objective": "binary:logistic", "nthread": 1},
        xgboost.DMatrix(frame[NAMES].to_numpy(), labels),
        2,
    )
    assert "the model must name its features" in str(refusal(text_of(nameless)))


def huge_leaf(tree: dict[str, Any]) -> None:
    """Two of them, of which one is negative, would be a row without a score."""
    tree["split_conditions"][tree["left_children"].index(-1)] = 9e38


def tampered(booster: xgboost.Booster, change: Any) -> dict[str, Any]:
    document = copy.deepcopy(json.loads(text_of(booster)))
    learner = document["learner"]
    trees = learner["gradient_booster"]["model"]["trees"]
    change(learner, trees)
    return document


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _, t: t[3]["left_children"].__setitem__(0, 10**6), "tree 3: a child is no node"),
        (lambda _, t: t[3]["left_children"].__setitem__(0, -5), "tree 3: a child is no node"),
        (lambda _, t: huge_leaf(t[3]), "tree 3: a leaf is beyond 1e+30"),
        (lambda _, t: t[3]["left_children"].__setitem__(0, 0), "tree 3: a child is no node"),
        (
            lambda _, t: t[3]["left_children"].__setitem__(0, t[3]["right_children"][0]),
            "tree 3: a node is the child of two others",
        ),
        (lambda _, t: t[1]["split_indices"].__setitem__(0, 3), "tree 1: a split is on a feature"),
        (lambda _, t: t[1]["split_indices"].__setitem__(0, -1), "tree 1: a split is on a feature"),
        (lambda _, t: t[0]["split_conditions"].pop(), "tree 0: split_conditions must be a list"),
        (lambda _, t: t[0]["base_weights"].__setitem__(0, "x"), "base_weights must hold numbers"),
        (lambda _, t: t[0]["tree_param"].update(num_nodes="9999"), "tree_param.num_nodes"),
        (lambda _, t: t[0].update(split_type=[1]), "splits on categories"),
        (lambda _, t: t.__setitem__(0, 7), "tree 0: must be a JSON object"),
        (lambda _, t: t[0]["left_children"].__setitem__(0, True), "left_children must hold"),
        (lambda _, t: t[0]["split_indices"].__setitem__(0, False), "split_indices must hold"),
        (lambda _, t: t[0]["base_weights"].__setitem__(0, True), "base_weights must hold"),
        (
            lambda learner, t: learner["attributes"].update(best_iteration=str(len(t))),
            "best_iteration: must be one of the model's rounds",
        ),
        (
            lambda learner, _: learner["attributes"].update(best_iteration="-1"),
            "best_iteration: must be one of the model's rounds",
        ),
        (lambda _, t: t.clear(), "at least one tree"),
        (
            lambda learner, _: learner["learner_model_param"].update(base_score="[2.0]"),
            "base_score: must be a probability",
        ),
        (
            lambda learner, _: learner["learner_model_param"].update(num_feature="4000000000"),
            "num_feature: must be the 3 names",
        ),
        (lambda learner, _: learner.update(feature_names=["a", "a", "b"]), "there once"),
        (
            lambda learner, _: learner["attributes"].update({"fedapp-cut-points": "[2, 1]"}),
            "cut-points: must ascend, each value once; cut-points: must lie in",
        ),
        (
            lambda learner, _: learner["attributes"].update({"fedapp-cut-points": "{"}),
            "cut-points: must be a list",
        ),
        (lambda learner, _: learner.clear(), "the model must name its features"),
    ],
)
def test_damaged_xgboost_file_ends_in_a_line(
    booster: xgboost.Booster, change: Any, words: str
) -> None:
    assert words in str(refusal(tampered(booster, change)))


def test_what_is_not_checked_is_not_passed_on(booster: xgboost.Booster) -> None:
    def change(learner: dict[str, Any], trees: list[dict[str, Any]]) -> None:
        model = learner["gradient_booster"]["model"]
        model["tree_info"] = [10**6] * len(trees)
        model["iteration_indptr"] = [5, -1]
        model["cats"] = {"enc": [10**9]}
        for tree in trees:
            tree["parents"] = [-77] * len(tree["parents"])

    model = ScoreModel.from_json(json.dumps(tampered(booster, change)))
    new = table(100, seed=3)
    expected = booster.predict(xgboost.DMatrix(new[NAMES]))
    np.testing.assert_allclose(model.predict(new), expected, rtol=0, atol=1e-6)


def test_an_xgboost_that_cannot_read_it(
    booster: xgboost.Booster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise xgboost.core.XGBoostError(f"Check failed: {SECRET}")

    model = ScoreModel.from_json(text_of(booster))
    monkeypatch.setattr(xgboost.Booster, "load_model", fail)
    with pytest.raises(SiteFault, match=r"xgboost [\d.]+ of this site cannot read") as caught:
        model.predict(table(3))
    assert str(SECRET) not in str(caught.value)
