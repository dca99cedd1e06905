"""More than two classes: a tree for each of them in the same exchanges."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost
from pydantic import ValidationError
from scipy.special import log_softmax, softmax
from sklearn.datasets import load_wine
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from fedapp.report import write_report
from fedapp.run_folder import RunFolder
from fedapp.simulation import SimulationResult, simulate
from fedapp.vertical_audit import audit
from fedapp.vertical_export import exported_model
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.central import fit_central
from tasks.vertical_xgboost.labels import read_labels
from tasks.vertical_xgboost.model_part import ModelPart
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.partial_dp import LeafNoise, most_releases
from tasks.vertical_xgboost.softmax import centred_log_shares, log_losses, probabilities
from tests.vertical_frames import config_of, cut, joined, random_frame
from tests.vertical_runs import TASK, assert_same, central_fit, record, run

NAMES = ("low", "middle", "high")
SOFTPROB: dict[str, Any] = {"objective": "multi:softprob", "classes": "low,middle,high"}
SMALL: dict[str, Any] = {**SOFTPROB, "max_depth": 2, "num_trees": 2, "max_bin": 8}


def frames_of(
    parties: int = 3, *, seed: int = 0, rows: int = 160, **how: Any
) -> list[pd.DataFrame]:
    frame = random_frame(seed, rows=rows, objective="multi:softprob")
    return cut(frame, parties=parties, labels="even", interleaved=True, **how)


# Softmax --------------------------------------------------------------------------------------


def test_softmax_is_scipys_and_does_not_depend_on_other_rows() -> None:
    random = np.random.default_rng(0)
    margins = random.normal(size=(9, 300)) * random.choice([0.1, 1.0, 30.0, 800.0], size=300)
    classes = random.integers(0, 9, size=300).astype(float)
    found, losses = probabilities(margins), log_losses(margins, classes)
    np.testing.assert_allclose(found, softmax(margins, axis=0), rtol=0, atol=1e-15)
    theirs = -log_softmax(margins, axis=0)[classes.astype(int), np.arange(300)]
    np.testing.assert_allclose(losses, theirs, rtol=1e-12, atol=1e-14)
    for row in range(300):
        one = np.ascontiguousarray(margins[:, [row]])
        assert np.array_equal(probabilities(one)[:, 0], found[:, row])
        assert log_losses(one, classes[[row]])[0] == losses[row]


def test_gradients_are_those_of_the_log_loss() -> None:
    objective = objective_of(config_of(**SOFTPROB))
    random = np.random.default_rng(1)
    margins, labels = random.normal(size=(3, 50)), random.integers(0, 3, size=50).astype(float)
    gradient, hessian = objective.gradients(margins, labels)
    for root in range(3):
        step = np.zeros((3, 1))
        step[root] = 1e-5
        up, down = (objective.losses(margins + s, labels) for s in (step, -step))
        np.testing.assert_allclose(gradient[root], (up - down) / 2e-5, atol=1e-8)
        second = (up - 2 * objective.losses(margins, labels) + down) / 1e-10
        np.testing.assert_allclose(hessian[root], 2 * second, atol=1e-4)
    assert hessian.max() <= 0.5
    assert objective.gradients(np.array([[900.0], [0.0], [0.0]]), np.zeros(1))[1].min() == 1e-16


def test_metrics_are_sklearns_and_the_lowest_of_equal_classes_wins() -> None:
    objective = objective_of(config_of(**SOFTPROB))
    random = np.random.default_rng(2)
    margins, labels = random.normal(size=(3, 80)), random.integers(0, 3, size=80).astype(float)
    theirs = log_loss(labels, softmax(margins, axis=0).T)
    assert objective.losses(margins, labels).mean() == pytest.approx(theirs, rel=1e-12)
    right = accuracy_score(labels, margins.argmax(axis=0), normalize=False)
    assert objective.qualities(margins, labels).sum() == right
    assert list(objective.qualities(np.zeros((3, 3)), np.arange(3.0))) == [1, 0, 0]


def test_the_base_score_is_xgboosts_own() -> None:
    """From 3.2 on; before, XGBoost began with .5 for all classes."""
    labels = np.repeat([0.0, 1.0, 2.0], [50, 30, 20])
    found = centred_log_shares([50, 30, 20])
    assert probabilities(np.array(found)[:, np.newaxis])[:, 0] == pytest.approx([0.5, 0.3, 0.2])
    assert math.fsum(found) == pytest.approx(0.0, abs=1e-15)
    if tuple(map(int, xgboost.__version__.split(".")[:2])) < (3, 2):
        return
    parameters = {"objective": "multi:softprob", "num_class": 3}
    data = xgboost.DMatrix(np.zeros((100, 1)), label=labels)
    booster = xgboost.train(parameters, data, num_boost_round=1)
    theirs = json.loads(booster.save_raw("json"))["learner"]["learner_model_param"]["base_score"]
    assert json.loads(theirs) == pytest.approx(found, abs=1e-5)  # it adds 1e-6 to shares


# Configuration and labels ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"classes": ""}, "allowed are 2 to 100 spellings"),
        ({"classes": "one"}, "allowed are 2 to 100 spellings"),
        ({"classes": "a,,b"}, "allowed are 2 to 100 spellings"),
        ({"classes": ",".join(map(str, range(101)))}, "allowed are 2 to 100 spellings"),
        ({"classes": "a,b,a"}, "must differ from one another"),
        ({"classes": "1,2,1.0"}, "must differ from one another"),
        ({"base_score": "0.5"}, "base-score = 0.5 with objective = 'multi:softprob'"),
        ({"label_bound": 3.0}, "label-bound = 3.0"),
        ({"objective": "binary:logistic"}, "classes = 'low,middle,high': allowed with objective"),
    ],
    ids=str,
)
def test_bad_declarations_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        config_of(**{**SOFTPROB, **keys})


@pytest.mark.parametrize(
    ("labels", "classes", "numbers"),
    [
        (["b", "a", None, " c ", ""], "c, b,a", [1, 2, np.nan, 0, np.nan]),
        ([1, 2, 3], "3,2,1", [2, 1, 0]),
        ([1.0, np.nan, 3.0], "1,2,3", [0, np.nan, 2]),
        (["1", "2.0"], "1,2", [0, 1]),
        ([True, False], "no,true,false", [1, 2]),
    ],
    ids=str,
)
def test_labels_in_any_spelling(labels: list[Any], classes: str, numbers: list[float]) -> None:
    config = config_of(objective="multi:softprob", classes=classes)
    found = read_labels(pd.Series(labels), len(labels), config)
    assert np.array_equal(found, numbers, equal_nan=True)


def test_a_label_of_no_class_is_refused_without_a_value() -> None:
    with pytest.raises(SiteFault, match="none of classes = 'low,middle,high'") as caught:
        read_labels(pd.Series(["low", "secret"]), 2, config_of(**SOFTPROB))
    assert caught.value.code == "bad-labels"
    assert "secret" not in str(caught.value)


def test_a_class_without_training_rows_is_named_and_a_base_score_of_0_helps(tmp_path: Path) -> None:
    keys = {**SMALL, "classes": "low,middle,high,highest"}
    refused = run(tmp_path, frames_of(), **keys)
    assert refused.summary["status"] == "refused"
    assert "no training row is of class highest" in refused.summary["reason"]
    keys["base_score"] = "0"
    result = run(tmp_path, frames_of(), **keys)
    assert_same(result, central_fit(frames_of(), **keys))
    assert result.summary["base-score"] == [0.0] * 4


# Training -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parties", "keys"),
    [
        (2, {}),
        (3, {"max_depth": 4, "test_fraction": 0.0}),
        (4, {"aggregator": "source"}),
        (4, {"shuffle": False, "gamma": 1.0, "fixed_point_bits": 40}),
        (3, {"min_instances": 4}),
        (3, {"num_trees": 12, "early_stopping_rounds": 2, "eta": 1.0}),
        (3, {"max_depth": 0}),
        (3, {"subsample": 0.7, "colsample_bytree": 0.5, "max_depth": 3}),
        (3, {"gamma": 1e9}),
    ],
    ids=str,
)
def test_the_trees_of_all_classes_are_the_central_ones(
    parties: int, keys: dict[str, Any], tmp_path: Path
) -> None:
    frames = frames_of(parties, seed=parties)
    settings = {**SMALL, **keys}
    result = run(tmp_path, frames, **settings)
    assert_same(result, central_fit(frames, **settings))
    if "early_stopping_rounds" in keys:
        assert result.summary["trees-kept"] < result.summary["trees"] < 12


def test_weighted_rows_of_classes_give_the_central_trees(tmp_path: Path) -> None:
    frames = frames_of()
    weights = np.random.default_rng(3).gamma(1.0, 2.0, 2000)  # by id
    for frame in frames:
        frame["w"] = pd.Series(weights[frame["id"]]).where(frame["label"].notna())
    settings = {**SMALL, "weight": "w"}
    result, central = run(tmp_path, frames, **settings), central_fit(frames, **settings)
    assert_same(result, central)
    table = central.joined
    assert table.weights is not None
    rows = ~table.is_evaluation
    share = np.bincount(table.labels[rows].astype(int), weights=table.weights[rows])
    assert central.model.base_scores == pytest.approx(centred_log_shares(share), abs=1e-8)
    summary = result.summary
    theirs = summary["central"]
    assert summary["test-loss"] == pytest.approx(theirs["xgboost-test-loss"], rel=1e-4)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"aggregator": "source"},
        # Slots are wider, and of 12 open nodes 6 fit into a plaintext.
        {"min_instances": 2, "max_depth": 3, "num_trees": 1, "min_child_weight": 0.0},
    ],
    ids=str,
)
def test_encrypted_trees_are_the_same(keys: dict[str, Any], tmp_path: Path) -> None:
    frames, settings = frames_of(), {**SMALL, **keys}
    result = record(tmp_path, frames, encryption="paillier", **settings).result
    assert_same(result, central_fit(frames, **settings))
    assert result.summary["ciphertexts"] > 0


def test_a_round_takes_the_exchanges_of_one_tree(tmp_path: Path) -> None:
    keys = {**SMALL, "max_depth": 3, "num_trees": 3}
    frame = random_frame(1, rows=160, objective="multi:softprob")
    of_two = frame.assign(label=(frame["label"] == "low").astype(int))
    two = {key: value for key, value in keys.items() if key not in SOFTPROB}
    many, few = (
        run(tmp_path, cut(rows, parties=3, labels="even", interleaved=True), **settings)
        for rows, settings in ((frame, keys), (of_two, two))
    )
    assert many.exchanges == few.exchanges == 4 + 2 * 3 * 3
    document = RunFolder.open(many.run_folder).read_json("trees.json")
    assert document is not None
    assert document["roots"] == 3
    roots = [tree["nodes"][:3] for tree in document["trees"]]
    assert all(not node["leaf"] for nodes in roots for node in nodes)


def test_the_server_of_another_number_of_margins_is_refused(tmp_path: Path) -> None:
    from tests.vertical_attacks import attack

    def before(party: str, kind: str, content: Any, send: Any) -> None:
        if kind.endswith("buckets") and party == "site-1":
            told = content.config_records["buckets"]
            told["base-margins"] = list(told["base-margins"])[:2]

    attacked = attack(tmp_path, frames=frames_of(), before=before, **SMALL)
    assert "base-margins: of no base score that this run can have" in attacked.reason


def test_wine_is_told_apart_as_well_as_by_xgboost(tmp_path: Path) -> None:
    data = load_wine(as_frame=True).frame
    frame = data.rename(columns={"target": "label"})
    frame.insert(0, "id", np.arange(len(frame)) + 1)
    frames = cut(frame, parties=3, labels="even")
    keys = {"objective": "multi:softprob", "classes": "0,1,2", "max_depth": 3, "num_trees": 6}
    config = {"run-dir": str(tmp_path), f"{TASK}.encryption": "none"}
    config |= {f"{TASK}.{name.replace('_', '-')}": value for name, value in keys.items()}
    result = simulate(TASK, sites=frames, config=config)
    summary = result.summary
    assert summary["central"]["same-trees"] is True
    assert summary["test-accuracy"] > 0.85
    assert summary["test-accuracy"] == summary["central"]["xgboost-test-accuracy"]
    assert summary["test-loss"] == pytest.approx(summary["central"]["xgboost-test-loss"], rel=1e-4)
    assert list(result.predictions) == ["id", "margin-0", "margin-1", "margin-2"]


# Use of the model -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SimulationResult:
    """A model whose first rounds have trees without splits, too."""
    keys = {**SMALL, "max_depth": 3, "num_trees": 4, "gamma": 4.0, "export_consent": True}
    result = run(tmp_path_factory.mktemp("trained"), frames_of(4), **keys)
    assert result.summary["status"] == "ok", result.summary.get("reason")
    return result


@pytest.mark.parametrize(
    ("way", "asker"), [("direct", ""), ("direct", "site-1"), ("routed", ""), ("routed", "site-1")]
)
def test_rows_of_the_training_get_its_margins(
    way: str, asker: str, trained: SimulationResult, tmp_path: Path
) -> None:
    config = {"run-dir": str(tmp_path), f"{TASK}.mode": "predict", f"{TASK}.prediction": way}
    config |= {f"{TASK}.model": str(trained.run_folder), f"{TASK}.asker": asker}
    found = simulate(TASK, sites=frames_of(4), config=config)
    assert found.summary["status"] == "ok", found.summary.get("reason")
    rows = found.predictions
    assert list(rows) == [
        "id",
        *(f"margin-{name}" for name in NAMES),
        *(f"probability-{name}" for name in NAMES),
        "prediction",
    ]
    assert trained.predictions is not None
    theirs, ours = trained.predictions.to_numpy()[:, 1:], rows.to_numpy()[:, 1:4]
    if way == "direct":
        assert np.array_equal(ours, theirs)
    assert np.abs((ours - theirs).astype(float)).max() < 1e-9
    chance = rows.to_numpy()[:, 4:7].astype(float)
    np.testing.assert_allclose(chance, softmax(ours.astype(float), axis=1), atol=1e-12)
    assert list(rows["prediction"]) == [NAMES[at] for at in chance.argmax(axis=1)]
    depth = 3
    steps = max(depth, 1 if asker else 2) if way == "routed" else 1 if asker else 2
    assert found.exchanges <= 1 + steps + 1


def test_names_that_look_like_numbers_stay_names(tmp_path: Path) -> None:
    frame = random_frame(2, rows=90, objective="multi:softprob")
    frame["label"] = frame["label"].map({"low": "01", "middle": "NA", "high": "2"})
    frames = cut(frame, parties=3, labels="even")
    keys = {**SMALL, "classes": "01,NA,2", "num_trees": 1}
    model = run(tmp_path, frames, **keys)
    config = {"run-dir": str(tmp_path), f"{TASK}.mode": "predict"}
    found = simulate(TASK, sites=frames, config=config | {f"{TASK}.model": str(model.run_folder)})
    assert set(found.predictions["prediction"]) <= {"01", "NA", "2"}


def test_the_export_is_xgboosts_and_explains_itself(
    trained: SimulationResult, tmp_path: Path
) -> None:
    document, importance = exported_model(trained.run_folder)
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    booster = xgboost.Booster()
    booster.load_model(path)
    assert booster.num_boosted_rounds() == 4
    assert len(booster.get_dump()) == 12
    config = config_of(**SMALL)
    table = joined(frames_of(4), config)
    rows = xgboost.DMatrix(table.features, feature_names=booster.feature_names)
    margins = booster.predict(rows, output_margin=True)
    assert trained.predictions is not None
    ours = trained.predictions.to_numpy()[:, 1:].astype(float)
    np.testing.assert_allclose(margins, ours, rtol=0, atol=1e-6)
    np.testing.assert_allclose(booster.predict(rows), softmax(ours, axis=1), atol=1e-6)
    contributions = booster.predict(rows, pred_contribs=True)
    assert contributions.shape == (len(ours), 3, table.features.shape[1] + 1)
    np.testing.assert_allclose(contributions.sum(axis=2), ours, atol=1e-5)
    theirs = booster.get_score(importance_type="weight")
    assert {name: each["weight"] for name, each in importance.items()} == theirs
    covers = booster.get_score(importance_type="cover")
    assert {name: each["cover"] for name, each in importance.items()} == pytest.approx(covers)


def test_importance_is_summed_over_the_trees_of_all_classes(
    trained: SimulationResult, tmp_path: Path
) -> None:
    config = {"run-dir": str(tmp_path), f"{TASK}.mode": "importance"}
    config |= {f"{TASK}.model": str(trained.run_folder), f"{TASK}.export-consent": True}
    summed = simulate(TASK, sites=frames_of(4), config=config)
    assert summed.summary["status"] == "ok", summed.summary.get("reason")
    found = RunFolder.open(summed.run_folder).read_json("importance.json")
    assert found is not None
    _, exported = exported_model(trained.run_folder)
    assert sorted(found) == sorted(exported)
    for name, each in exported.items():
        assert found[name] == pytest.approx(each, rel=1e-6)


def test_report_and_ledger_speak_of_classes(trained: SimulationResult) -> None:
    page = write_report(trained.run_folder).read_text()
    assert "for each of 3 classes" in page
    assert "The first tree (of class low)" in page
    told = [line["reveals"] for line in trained.ledger if line["step"] == "labels"]
    assert any("of training rows of each class" in words for words in told)


# Privacy --------------------------------------------------------------------------------------


def test_one_label_moves_two_leaves_of_the_first_round_and_any_of_later_ones() -> None:
    """What releases are counted by: one label changes, the splits stay."""
    random = np.random.default_rng(0)
    leaf_of = random.integers(0, 4, size=(3, 3, 60))  # rounds, classes: trees of 4 leaves
    labels = random.integers(0, 3, size=60)

    def weights(labels: np.ndarray) -> list[np.ndarray]:
        margins, found = np.zeros((3, 60)), []
        for leaves in leaf_of:
            p = softmax(margins, axis=0)
            g, h = p - (labels == np.arange(3)[:, np.newaxis]), 2 * p * (1 - p)
            trees = np.array(
                [
                    [
                        -g[c][leaves[c] == leaf].sum() / (h[c][leaves[c] == leaf].sum() + 1)
                        for leaf in range(4)
                    ]
                    for c in range(3)
                ]
            )
            margins = margins + 0.3 * np.take_along_axis(trees, leaves, axis=1)
            found.append(trees)
        return found

    other = labels.copy()
    other[7] = (other[7] + 1) % 3
    moved = [np.count_nonzero(a != b) for a, b in zip(weights(labels), weights(other), strict=True)]
    assert moved[0] == 2
    assert max(moved[1:]) == 12
    assert most_releases(num_trees=3, max_depth=2, num_roots=3) == 2 + 12 + 12


def test_noise_is_for_the_leaves_of_all_classes(tmp_path: Path) -> None:
    keys = {**SMALL, "dp_epsilon": 5.0, "dp_clip": 0.5}
    exact = LeafNoise.of(config_of(**keys))
    paper = LeafNoise.of(config_of(**keys, sensitivity="paper"))
    assert exact is not None
    assert paper is not None
    assert (exact.sensitivity, exact.releases) == (1.0, 2 + 12)
    assert (paper.sensitivity, paper.releases) == (0.5, 2 * 3)
    result = run(tmp_path, frames_of(), **keys)
    assert result.summary["status"] == "ok", result.summary.get("reason")
    assert result.summary["dp-epsilon"] == pytest.approx(5.0, rel=1e-6)
    assert result.summary["dp-releases"] == 14
    assert 0.0 <= result.summary["exact-leaves-test-accuracy"] <= 1.0
    parts = [json.loads(p.read_text()) for p in sorted(result.run_folder.glob("parties/*.json"))]
    weights = [[leaf["weight"] for leaf in part["part"]["trees"][0]["leaves"]] for part in parts]
    assert weights[0] != weights[1] or weights[1] != weights[2]


def test_the_audit_guesses_each_class_against_the_rest(tmp_path: Path) -> None:
    """A party with all informative columns knows all leaves, hence the model's own margins."""
    frame = random_frame(3, rows=200, objective="multi:softprob", missing=0.0)
    frame["none"] = 1.0
    frames = cut(frame, parties=3, labels="even")
    names = [name for name in frame.columns if name not in ("id", "label", "none")]
    whole = frame.set_index("id")
    frames = [each[[c for c in ("id", "label") if c in each]] for each in frames]
    frames[0] = frames[0].join(whole[names], on="id")
    frames[1] = frames[1].assign(none=1.0)
    frames[2] = frames[2].assign(none=2.0)
    keys = {**SMALL, "num_trees": 4, "max_depth": 3}
    result = run(tmp_path, frames, **keys)
    central = central_fit(frames, **keys)
    parts = {n: ModelPart.load(result.run_folder / f"parties/{n}.json") for n in central.tables}
    found = audit(parts, central.tables, config_of(**keys))
    assert set(found["leaf-weights"]) >= {f"site-0: {name}" for name in NAMES}
    table = central.joined
    victims = ~table.is_evaluation & ~central.tables["site-0"].owns
    chances = softmax(central.model.margins(table.features)[:, victims], axis=0)
    for number, name in enumerate(NAMES):
        quality = found["leaf-weights"][f"site-0: {name}"]
        truth = table.labels[victims] == number
        assert quality.auc == pytest.approx(roc_auc_score(truth, chances[number]), abs=1e-3)
        assert quality.accuracy == pytest.approx(np.mean((chances[number] > 0.5) == truth))
        assert quality.auc > 0.6
    assert set(found["own-data"]) >= {f"site-0: {name}" for name in NAMES}


def test_two_classes_of_softprob_are_told_apart_like_those_of_a_logistic_loss() -> None:
    """Another parametrization of the same loss: nearly the same accuracy."""
    frame = random_frame(4, rows=400)
    keys = {"max_depth": 3, "num_trees": 10, "eta": 0.2}
    two = config_of(**keys)
    many = config_of(objective="multi:softprob", classes="0,1", **keys)
    metrics = [
        fit_central(joined([frame], each), each).metrics[-1].evaluation for each in (two, many)
    ]
    assert metrics[0] is not None
    assert metrics[1] is not None
    assert metrics[1].quality == pytest.approx(metrics[0].quality, abs=0.05)
    assert metrics[1].loss == pytest.approx(metrics[0].loss, abs=0.08)
