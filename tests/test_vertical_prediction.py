"""Prediction of new rows by the parties of a model: what comes out, to whom, in how many steps."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message
from scipy.special import expit

from fedapp import client_app, prepared_sites, server_app, simulation
from fedapp.cli import main
from fedapp.report import write_report
from fedapp.run_config import defaults
from fedapp.run_folder import RunFolder
from fedapp.simulation import InProcessGrid, SimulationResult, simulate
from fedapp.vertical_skeleton import model_of
from tasks.vertical_xgboost.buckets import bucket_columns
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.joined import join
from tasks.vertical_xgboost.model_part import ModelPart
from tasks.vertical_xgboost.prediction_messages import PREDICT, PREDICTIONS, ROWS, SIDES
from tasks.vertical_xgboost.rows import read_table
from tests.vertical_frames import cut, random_frame
from tests.vertical_runs import TASK, bytes_of, run

WAYS = [("direct", ""), ("direct", "site-1"), ("routed", ""), ("routed", "site-1")]
DEPTH, TREES = 4, 6


@dataclass(frozen=True)
class Model:
    """A training, its frames, and new rows of the same columns."""

    trained: SimulationResult
    frames: list[pd.DataFrame]
    new: list[pd.DataFrame]
    objective: str


def train(directory: Path, objective: str, **keys: Any) -> Model:
    frame = random_frame(3, rows=260, objective=objective, missing=0.2)
    frames = cut(frame[:180], parties=4, labels="even", interleaved=True)
    new = cut(frame[180:], parties=4, labels="even", interleaved=True, seed=9)
    settings = {"max_depth": DEPTH, "num_trees": TREES, "max_bin": 16, **keys}
    trained = run(directory, frames, objective=objective, **settings)
    assert trained.summary["status"] == "ok", trained.summary.get("reason")
    return Model(trained, frames, new, objective)


@pytest.fixture(scope="module", params=["binary:logistic", "reg:squarederror"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return train(tmp_path_factory.mktemp("trained"), request.param)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return train(tmp_path_factory.mktemp("classifier"), "binary:logistic")


def predict(
    directory: Path, folder: Path, frames: list[pd.DataFrame], **keys: Any
) -> SimulationResult:
    config: dict[str, Any] = {"run-dir": str(directory), f"{TASK}.mode": "predict"}
    config[f"{TASK}.model"] = str(folder)
    config |= {f"{TASK}.{name.replace('_', '-')}": value for name, value in keys.items()}
    return simulate(TASK, sites=frames, config=config)


def exchanges(way: str, asker: str, depth: int = DEPTH) -> int:
    steps = max(depth, 1 if asker else 2) if way == "routed" else 1 if asker else 2
    return 1 + steps + 1


@pytest.mark.parametrize(("way", "asker"), WAYS)
def test_rows_of_the_training_get_its_predictions(
    way: str, asker: str, model: Model, tmp_path: Path
) -> None:
    folder = model.trained.run_folder
    keys = {"objective": model.objective} if not asker else {}
    found = predict(tmp_path, folder, model.frames, prediction=way, asker=asker, **keys)
    assert found.summary["status"] == "ok", found.summary.get("reason")
    assert found.predictions is not None
    assert model.trained.predictions is not None
    assert list(found.predictions["id"]) == list(model.trained.predictions["id"])
    theirs = model.trained.predictions["margin"].to_numpy()
    ours = found.predictions["margin"].to_numpy()
    if way == "direct":
        assert np.array_equal(ours, theirs)
    else:
        assert np.abs(ours - theirs).max() < 1e-9
    logistic = model.objective == "binary:logistic"
    assert np.array_equal(found.predictions["prediction"], expit(ours) if logistic else ours)
    assert found.exchanges == exchanges(way, asker)
    if way == "routed":
        assert found.exchanges <= DEPTH + 2


@pytest.mark.parametrize("way", ["direct", "routed"])
def test_new_rows_get_what_xgboost_itself_predicts(way: str, model: Model, tmp_path: Path) -> None:
    import xgboost

    config = VerticalXGBoostConfig(objective=model.objective, max_bin=16)  # type: ignore[arg-type]
    known, new = (
        join(
            {
                f"site-{at}": read_table(
                    frame, id_column="id", label_column="label", config=config, seed=0
                )
                for at, frame in enumerate(frames)
            }
        )
        for frames in (model.frames, model.new)
    )
    training = np.concatenate([~known.is_evaluation, np.zeros(len(new.labels), dtype=bool)])
    features = np.concatenate([known.features, new.features])
    buckets, numbers = bucket_columns(features, training, max_bin=16)
    inputs = numbers.T.astype(np.float32)
    inputs[inputs == np.array([feature.num_buckets for feature in buckets])] = np.nan
    parameters = {
        "objective": model.objective,
        "tree_method": "hist",
        "max_bin": 256,
        "max_depth": DEPTH,
        "base_score": model.trained.summary["base-score"],
        "nthread": 1,
    }
    data = xgboost.DMatrix(inputs[training], label=known.labels[~known.is_evaluation])
    booster = xgboost.train(parameters, data, num_boost_round=TREES)
    theirs = booster.predict(xgboost.DMatrix(inputs[len(known.labels) :]), output_margin=True)
    found = predict(tmp_path, model.trained.run_folder, model.new, prediction=way, asker="site-0")
    assert found.predictions is not None, found.summary.get("reason")
    scale = max(1.0, float(np.abs(known.labels).max()))
    assert np.abs(found.predictions["margin"].to_numpy() - theirs).max() < 1e-6 * scale


@pytest.mark.parametrize("way", ["direct", "routed"])
def test_each_label_owner_gets_its_own_rows_and_no_others(
    way: str, classifier: Model, tmp_path: Path
) -> None:
    found = predict(tmp_path, classifier.trained.run_folder, classifier.new, prediction=way)
    assert found.summary["askers"] == [f"site-{at}" for at in range(4)]
    for at, frame in enumerate(classifier.new):
        path = found.run_folder / "parties" / f"site-{at}.predictions.csv"
        with path.open() as file:
            ids = [row["id"] for row in csv.DictReader(file)]
        own = frame.loc[frame["label"].notna(), "id"] if "label" in frame else []
        assert sorted(ids) == sorted(map(str, own))
    asked = predict(
        tmp_path, classifier.trained.run_folder, classifier.new, prediction=way, asker="site-2"
    )
    files = list((asked.run_folder / "parties").iterdir())
    assert [path.name for path in files] == ["site-2.predictions.csv"]
    assert files[0].stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("way", ["direct", "routed"])
def test_exchanges_do_not_grow_with_trees_and_rows(way: str, tmp_path: Path) -> None:
    small = train(tmp_path / "a", "binary:logistic", num_trees=1, max_depth=3)
    large = train(tmp_path / "b", "binary:logistic", num_trees=9, max_depth=3)
    few = [frame[frame["id"].isin(sorted(small.new[0]["id"])[:5])] for frame in small.new]
    counts = [
        predict(tmp_path, small.trained.run_folder, few, prediction=way, asker="site-0").exchanges,
        predict(
            tmp_path, large.trained.run_folder, large.new, prediction=way, asker="site-0"
        ).exchanges,
    ]
    assert counts == [exchanges(way, "site-0", depth=3)] * 2


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(("way", "asker"), WAYS)
def test_trees_of_little_depth(way: str, asker: str, depth: int, tmp_path: Path) -> None:
    model = train(tmp_path, "binary:logistic", num_trees=2, max_depth=depth)
    found = predict(tmp_path, model.trained.run_folder, model.frames, prediction=way, asker=asker)
    assert found.predictions is not None, found.summary.get("reason")
    assert model.trained.predictions is not None
    theirs = model.trained.predictions["margin"]
    assert np.abs(found.predictions["margin"] - theirs).max() < 1e-9
    assert found.exchanges == exchanges(way, asker, depth)


def recorded(directory: Path, model: Model, **keys: Any) -> list[tuple[Message, Message]]:
    messages: list[tuple[Message, Message]] = []

    class RecordingGrid(InProcessGrid):
        def _handle(self, message: Message) -> Message:
            reply = super()._handle(message)
            messages.append((message, reply))
            return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "InProcessGrid", RecordingGrid)
        found = predict(directory, model.trained.run_folder, model.new, **keys)
    assert found.summary["status"] == "ok", found.summary.get("reason")
    return messages


@pytest.mark.parametrize(("way", "asker"), WAYS)
def test_the_server_sees_sealed_parts_only(
    way: str, asker: str, classifier: Model, tmp_path: Path
) -> None:
    clear: set[str] = set()
    for request, reply in recorded(tmp_path, classifier, prediction=way, asker=asker):
        if request.metadata.message_type not in (PREDICT, PREDICTIONS):
            continue
        for message in (request, reply):
            found = bytes_of(message)
            clear |= {key for key in found if not key.startswith("sealed-")}
    seconds = {key for key in clear if key.startswith("seconds/")}
    assert clear - seconds == {"predict/step/0", "predict/roster/0", "predictions/folder/0"}


def test_sizes_of_sealed_parts_do_not_tell_who_owns_how_many_rows(
    classifier: Model, tmp_path: Path
) -> None:
    new = cut(random_frame(3, rows=64, missing=0.2), parties=4, labels="skewed", interleaved=True)
    skewed = Model(classifier.trained, classifier.frames, new, classifier.objective)
    for way in ("direct", "routed"):
        for request, reply in recorded(tmp_path, skewed, prediction=way):
            if request.metadata.message_type != PREDICT:
                continue
            for name in ("sealed-sides", "sealed-sums"):
                if name in reply.content.config_records:
                    sizes = {len(part) for part in reply.content.config_records[name].values()}
                    assert len(sizes) == 1


def test_the_ledger_says_what_is_sealed_for_whom(classifier: Model, tmp_path: Path) -> None:
    for way in ("direct", "routed"):
        found = predict(
            tmp_path, classifier.trained.run_folder, classifier.new, prediction=way, asker="site-3"
        )
        rows = [row for row in found.ledger if row["step"] in ("predict", "predictions")]
        assert rows
        assert all("not declared" not in str(row["reveals"]) for row in found.ledger)
        replies = [row for row in rows if row["receiver"] == "server"]
        assert all(str(row["protection"]) in ("clear", "sealed + clear") for row in replies)
        if way == "direct":
            assert {row["receiver"] for row in rows if row["sealed"]} == {"site-3"}


def refused(directory: Path, folder: Path, frames: list[pd.DataFrame], **keys: Any) -> str:
    found = predict(directory, folder, frames, **keys)
    assert found.summary["status"] == "refused"
    assert found.predictions is None
    return str(found.summary["reason"])


@pytest.fixture
def copy(classifier: Model, tmp_path: Path) -> Path:
    return Path(shutil.copytree(classifier.trained.run_folder, tmp_path / "copy"))


def test_what_is_missing_is_named(classifier: Model, copy: Path, tmp_path: Path) -> None:
    (copy / "parties" / "site-1.json").unlink()
    said = refused(tmp_path, copy, classifier.new)
    assert "site-1.json: this part of the model is missing" in said
    shutil.rmtree(copy / "parties")
    said = refused(tmp_path, copy, classifier.new)
    assert "site-0.json: this part" in said
    assert "site-3.json: this part" in said


def test_parts_of_another_training_are_refused(
    classifier: Model, copy: Path, tmp_path: Path
) -> None:
    other = train(tmp_path / "other", "binary:logistic", num_trees=1)
    shutil.copy(other.trained.run_folder / "parties" / "site-2.json", copy / "parties")
    said = refused(tmp_path, copy, classifier.new)
    assert "the parts are of different models" in said
    assert f"site-2 ({other.trained.summary['model']})" in said


def test_a_part_that_was_altered_is_refused(classifier: Model, copy: Path, tmp_path: Path) -> None:
    path = copy / "parties" / "site-0.json"
    document = json.loads(path.read_text())
    document["part"]["trees"][0]["leaves"][0]["weight"] += 1
    path.write_text(json.dumps(document))
    assert "site-0.json: was altered" in refused(tmp_path, copy, classifier.new)


def test_rows_and_parties_have_to_fit(classifier: Model, tmp_path: Path) -> None:
    folder, new = classifier.trained.run_folder, classifier.new
    said = refused(tmp_path, folder, new[:3])
    assert "site-3: is a party of the model and does not take part" in said
    said = refused(tmp_path, folder, [new[0][1:], *new[1:]])
    assert "different numbers of rows" in said
    other = new[0].assign(id=new[0]["id"].replace({new[0]["id"].iloc[0]: 77}))
    assert "the parties' row ids differ (site-0 / site-1" in refused(
        tmp_path, folder, [other, *new[1:]]
    )
    said = refused(tmp_path, folder, new, asker="nobody")
    assert "vertical-xgboost.asker = 'nobody': must be one of site-0" in said
    column = next(name for name in new[1].columns if name not in ("id", "label"))
    said = refused(tmp_path, folder, [new[0], new[1].drop(columns=column), *new[2:]])
    assert "1 are no columns of its rows (feature 1)" in said
    twice = new[0].assign(label=1.0)
    assert "rows have labels at two parties" in refused(tmp_path, folder, [twice, *new[1:]])


def test_columns_in_another_order_and_others_beside_them_do_not_matter(
    classifier: Model, tmp_path: Path
) -> None:
    frames = [frame[frame.columns[::-1]].assign(remark="text") for frame in classifier.new]
    folder = classifier.trained.run_folder
    ours, theirs = (
        predict(tmp_path, folder, each, asker="site-0") for each in (frames, classifier.new)
    )
    assert ours.predictions is not None, ours.summary.get("reason")
    assert theirs.predictions is not None
    pd.testing.assert_frame_equal(ours.predictions, theirs.predictions)


def test_leaves_that_are_noisy_at_their_source_are_told_by_another_party(
    classifier: Model, copy: Path, tmp_path: Path
) -> None:
    for name in (f"site-{at}" for at in range(4)):
        path = copy / "parties" / f"{name}.json"
        part = ModelPart.load(path)
        trees = tuple(
            dataclasses.replace(
                tree,
                weights={
                    leaf: weight + 100.0 * (tree.sources.get(leaf) == name)
                    for leaf, weight in tree.weights.items()
                },
            )
            for tree in part.trees
        )
        settings = {**part.settings, "dp-epsilon": 2.0}
        dataclasses.replace(part, trees=trees, settings=settings).save(path)
    assert "allowed is 'routed'" in refused(tmp_path, copy, classifier.frames)
    assert classifier.trained.predictions is not None
    for asker in ("", "site-1"):
        found = predict(tmp_path, copy, classifier.frames, prediction="routed", asker=asker)
        assert found.predictions is not None, found.summary.get("reason")
        theirs = classifier.trained.predictions["margin"]
        assert np.abs(found.predictions["margin"] - theirs).max() < 1e-9
        assert found.exchanges == exchanges("routed", asker) + 1


HOSTILE: list[tuple[str, Callable[[dict[str, Any]], None], str]] = [
    ("direct", lambda sealed: sealed.pop(SIDES), "nothing sealed by"),
    ("direct", lambda sealed: sealed[SIDES].pop("site-1"), "nothing sealed by site-1 has come"),
    (
        "direct",
        lambda sealed: sealed[SIDES].update({"site-1": sealed[SIDES]["site-2"]}),
        "message of site-1 for step vertical-predict-sealed-sides",
    ),
]


@pytest.mark.parametrize(("way", "change", "words"), HOSTILE)
def test_a_server_that_drops_or_swaps_parts_is_told(
    way: str,
    change: Callable[[dict[str, Any]], None],
    words: str,
    classifier: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class AlteringGrid(InProcessGrid):
        def _handle(self, message: Message) -> Message:
            if message.metadata.message_type == PREDICTIONS:
                change(message.content.config_records)  # type: ignore[arg-type]
            return super()._handle(message)

    monkeypatch.setattr(simulation, "InProcessGrid", AlteringGrid)
    found = predict(
        tmp_path, classifier.trained.run_folder, classifier.new, prediction=way, asker="site-0"
    )
    assert found.summary["status"] != "ok"
    assert words in found.summary["reason"]


def test_rows_that_are_handed_on_are_needed(
    classifier: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AlteringGrid(InProcessGrid):
        def _handle(self, message: Message) -> Message:
            if ROWS in message.content.config_records:
                message.content.config_records[ROWS].clear()
            return super()._handle(message)

    monkeypatch.setattr(simulation, "InProcessGrid", AlteringGrid)
    found = predict(
        tmp_path, classifier.trained.run_folder, classifier.new, prediction="routed", asker="site-0"
    )
    assert "nothing sealed by" in found.summary["reason"]


def test_a_model_is_named_by_its_run_folder(classifier: Model, tmp_path: Path) -> None:
    folder = classifier.trained.run_folder
    assert model_of(str(folder), remote=False) == str(folder)
    assert model_of(str(folder), remote=True) == classifier.trained.summary["model"]
    assert model_of("run-12", remote=False) == "run-12"
    with pytest.raises(ValueError, match=r"trees.json: is missing"):
        model_of(str(tmp_path), remote=False)


def deployed_run(
    directory: Path, frames: list[pd.DataFrame], nodes: dict[str, dict[str, Any]], **keys: Any
) -> tuple[dict[str, Any], Path]:
    """A run of parties with files and folders of their own, as SuperNodes have them."""
    configs: list[dict[str, Any]] = []
    for at, frame in enumerate(frames):
        name, path = f"site-{at}", directory / f"rows-{at}.csv"
        frame.to_csv(path, index=False)
        own = {"site-name": name, "data-path": str(path), "model-dir": str(directory / name)}
        configs.append({**own, **nodes.get(name, {})})
    settings = {f"{TASK}.{name.replace('_', '-')}": value for name, value in keys.items()}
    values = {
        **defaults(),
        "task": TASK,
        "run-dir": str(directory / "runs"),
        f"{TASK}.encryption": "none",
        "report": False,
        **settings,
    }
    grid = InProcessGrid(client_app.app, configs, values)
    folder = server_app.run_task(grid, values, started=time.time())
    prepared_sites.forget_sites()
    return dict(RunFolder.open(folder).read().summary), folder


def test_deployed_parties_find_their_parts_by_the_name_of_the_training(
    classifier: Model, tmp_path: Path
) -> None:
    keys = {"num_trees": 3, "max_depth": 3, "max_bin": 8}
    summary, trained = deployed_run(tmp_path, classifier.frames, {}, **keys)
    assert summary["status"] == "ok", summary.get("reason")
    assert not (trained / "parties").exists()
    name = summary["model"]
    use: dict[str, Any] = {"model": name, "mode": "predict", "asker": "site-1"}
    summary, folder = deployed_run(tmp_path, classifier.new, {}, prediction="routed", **use)
    assert summary["status"] == "ok", summary.get("reason")
    assert not (folder / "parties").exists()
    (path,) = tmp_path.glob("site-*/vertical-xgboost/run-*/*.predictions.csv")
    assert path.parts[-4] == "site-1"
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open() as file:
        ids = [row["id"] for row in csv.DictReader(file)]
    assert ids == sorted(map(str, classifier.new[0]["id"]))
    consent = {f"site-{at}": {"export-consent": True} for at in (0, 1, 3)}
    use = {"model": name, "mode": "export"}
    summary, folder = deployed_run(tmp_path, classifier.new, consent, **use)
    assert summary["reason"].startswith('site-2: node config "export-consent" is not true')
    every = {**consent, "site-2": {"export-consent": True}}
    summary, folder = deployed_run(tmp_path, classifier.new, every, **use)
    assert summary["status"] == "ok", summary.get("reason")
    assert (folder / "model.json").is_file()
    shutil.rmtree(tmp_path / "site-3")
    summary, folder = deployed_run(tmp_path, classifier.new, {}, model=name, mode="predict")
    assert summary["status"] == "refused"
    assert f"site-3: vertical-xgboost/{name}/site-3.json in model-dir" in summary["reason"]


@pytest.mark.parametrize("way", ["direct", "routed"])
def test_the_report_says_who_learnt_what(way: str, classifier: Model, tmp_path: Path) -> None:
    folder = classifier.trained.run_folder
    found = predict(tmp_path, folder, classifier.new, prediction=way, asker="site-1")
    page = write_report(found.run_folder).read_text()
    assert "Who learnt what" in page
    assert ("level by level" in page) == (way == "routed")
    assert "of all rows" in page
    assert "split client" not in page


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"mode": "predict"}, "model = '' with mode = 'predict'"),
    ({"mode": "export"}, "model = '' with mode = 'export'"),
    ({"model": "run-1"}, "model = 'run-1': allowed with another mode than 'train'"),
    (
        {"mode": "predict", "model": "run-1", "alignment": "hashed"},
        "alignment = 'hashed' with mode = 'predict': allowed is 'same'",
    ),
]


@pytest.mark.parametrize(("keys", "words"), CONTRADICTIONS)
def test_keys_that_contradict_each_other_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        VerticalXGBoostConfig(**keys)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Train, predict the same bundled rows, export: all by run folders."""
    start = ["run", TASK, "--in-process", "--clients", "3", "--set", f"run-dir={tmp_path}"]
    sets = [f"{TASK}.{each}" for each in ("encryption=none", "export-consent=true")]
    small = [f"{TASK}.{each}" for each in ("num-trees=2", "max-depth=2", "max-bin=4")]
    assert main([*start, *sets, *small, "report=false"]) == 0
    (trained,) = tmp_path.iterdir()
    use = [f"{TASK}.model={trained}", f"{TASK}.mode=predict", f"{TASK}.asker=site-0"]
    assert main([*start, *sets, *use]) == 0
    said = capsys.readouterr().out
    folder = Path(said.split("run folder: ")[-1].strip())
    ours, theirs = (pd.read_parquet(at / "predictions.parquet") for at in (folder, trained))
    theirs = theirs.assign(id=theirs["id"].astype(str))
    assert np.array_equal(
        ours.set_index("id").loc[theirs["id"], "margin"].to_numpy(), theirs["margin"].to_numpy()
    )
    assert (folder / "report.html").is_file()
    assert main(["export-model", str(trained), "--out", str(tmp_path / "model.json")]) == 0
    assert main(["export-model", str(folder), "--out", str(tmp_path / "model.json")]) == 3
    assert "trees.json: is missing" in capsys.readouterr().err
