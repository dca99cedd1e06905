"""The whole model as an XGBoost file: what it predicts, and whose consent it needs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
from flwr.app import Message

from fedapp import simulation, vertical_party
from fedapp.cli import main
from fedapp.simulation import InProcessGrid, SimulationResult, simulate
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.export_messages import EXPORT
from tasks.vertical_xgboost.joined import JoinedTable, join
from tasks.vertical_xgboost.model_part import ModelPart
from tasks.vertical_xgboost.rows import read_table
from tasks.vertical_xgboost.xgboost_document import check_whole, importances, xgboost_document
from tests.vertical_frames import cut, random_frame
from tests.vertical_runs import TASK, run

Trained = tuple[SimulationResult, list[Any], JoinedTable]


def train(directory: Path, objective: str = "binary:logistic", **keys: Any) -> Trained:
    frame = random_frame(4, rows=200, objective=objective, missing=0.3)
    odd = np.arange(len(frame)) % 5 == 0
    if objective == "binary:logistic":  # a label that a missing value tells: infinite thresholds
        frame["label"] = ((frame["b"].isna() | (frame["a"] > 0.5)) ^ odd).astype(int)
    frames = cut(frame, parties=3, labels="even", interleaved=True)
    settings = {"max_depth": 4, "num_trees": 5, "max_bin": 16, "export_consent": True, **keys}
    trained = run(directory, frames, objective=objective, **settings)
    config = VerticalXGBoostConfig(objective=objective)  # type: ignore[arg-type]
    tables = {
        f"site-{at}": read_table(each, id_column="id", label_column="label", config=config, seed=0)
        for at, each in enumerate(frames)
    }
    return trained, frames, join(tables)


@pytest.fixture(scope="module", params=["binary:logistic", "reg:squarederror"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("trained"), request.param)


def booster_of(path: Path) -> xgboost.Booster:
    booster = xgboost.Booster()
    booster.load_model(path)
    return booster


def parts_of(trained: SimulationResult) -> dict[str, ModelPart]:
    folder = trained.run_folder / "parties"
    return {path.stem: ModelPart.load(path) for path in sorted(folder.glob("*.json"))}


def test_xgboost_predicts_as_the_parties_do(trained: Trained, tmp_path: Path) -> None:
    result, _, joined = trained
    assert result.predictions is not None
    path = tmp_path / "model.json"
    assert main(["export-model", str(result.run_folder), "--out", str(path)]) == 0
    booster = booster_of(path)
    assert booster.feature_names == list(joined.feature_names)
    data = xgboost.DMatrix(joined.features, feature_names=list(joined.feature_names))
    theirs = booster.predict(data, output_margin=True)
    margins = result.predictions["margin"].to_numpy()
    scale = max(1.0, float(np.abs(joined.labels).max()))
    assert np.abs(theirs - margins).max() < 1e-6 * scale
    contributions = booster.predict(data, pred_contribs=True)
    assert contributions.shape == (len(margins), len(joined.feature_names) + 1)
    assert np.isfinite(contributions).all()
    assert np.abs(contributions.sum(axis=1) - margins).max() < 1e-5 * scale


def test_covers_and_gains_are_those_that_xgboost_itself_finds(trained: Trained) -> None:
    """Sums of Hessians of the first tree, from predictions alone; gains as the server had them."""
    result, _, joined = trained
    document = xgboost_document(parts_of(result))
    trees = document["learner"]["gradient_booster"]["model"]["trees"]
    base = result.summary["base-score"]
    training = int(np.count_nonzero(~joined.is_evaluation))
    logistic = document["learner"]["objective"]["name"] == "binary:logistic"
    hessian = base * (1 - base) if logistic else 1.0
    assert trees[0]["sum_hessian"][0] == pytest.approx(training * hessian, rel=1e-6)
    skeleton = json.loads((result.run_folder / "trees.json").read_text())
    for tree, known in zip(trees, skeleton["trees"], strict=True):
        told = [node.get("gain", 0.0) for node in known["nodes"]]
        assert tree["loss_changes"] == pytest.approx(told, rel=1e-6, abs=1e-9)


def test_importances_are_those_of_the_exported_booster(trained: Trained, tmp_path: Path) -> None:
    result = trained[0]
    path, table = tmp_path / "model.json", tmp_path / "importance.json"
    arguments = ["export-model", str(result.run_folder), "--out", str(path)]
    assert main([*arguments, "--importance", str(table)]) == 0
    booster, ours = booster_of(path), json.loads(table.read_text())
    for kind in ("weight", "gain", "cover"):
        theirs = booster.get_score(importance_type=kind)
        assert {name: each[kind] for name, each in ours.items()} == pytest.approx(theirs, rel=1e-5)


def test_without_consent_nothing_is_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, _, _ = train(tmp_path, export_consent=False, num_trees=1)
    out = tmp_path / "model.json"
    assert main(["export-model", str(result.run_folder), "--out", str(out)]) == 3
    said = capsys.readouterr().err
    assert "site-0, site-1, site-2: vertical-xgboost.export-consent is not true" in said
    assert not out.exists()


def ask(directory: Path, folder: Path, frames: list[Any], *, consent: bool) -> SimulationResult:
    config: dict[str, Any] = {
        "run-dir": str(directory),
        f"{TASK}.mode": "export",
        f"{TASK}.model": str(folder),
        f"{TASK}.export-consent": consent,
    }
    return simulate(TASK, sites=frames, config=config)


def test_parties_are_asked_in_one_exchange(trained: Trained, tmp_path: Path) -> None:
    result, frames, _ = trained
    asked = ask(tmp_path, result.run_folder, frames, consent=True)
    assert asked.summary["status"] == "ok", asked.summary.get("reason")
    assert asked.exchanges == 2
    assert all("not declared" not in str(row["reveals"]) for row in asked.ledger)
    paths = [tmp_path / "asked.json", tmp_path / "read.json"]
    for folder, path in zip((asked.run_folder, result.run_folder), paths, strict=True):
        assert main(["export-model", str(folder), "--out", str(path)]) == 0
    first, second = (json.loads(path.read_text()) for path in paths)
    assert first == second


def test_the_party_that_does_not_consent_is_named(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, frames, _ = trained
    really = vertical_party.prepare_vertical_site

    def without_one(*arguments: Any) -> Any:
        site = really(*arguments)
        return dataclasses.replace(site, consents=site.consents and site.name != "site-1")

    monkeypatch.setattr(vertical_party, "prepare_vertical_site", without_one)
    sent: list[str] = []

    class RecordingGrid(InProcessGrid):
        def _handle(self, message: Message) -> Message:
            sent.append(message.metadata.message_type)
            return super()._handle(message)

    monkeypatch.setattr(simulation, "InProcessGrid", RecordingGrid)
    asked = ask(tmp_path, result.run_folder, frames, consent=True)
    assert asked.summary["status"] == "refused"
    assert asked.summary["reason"].startswith("site-1: vertical-xgboost.export-consent is not true")
    assert EXPORT not in sent
    assert not (asked.run_folder / "model.json").exists()


def test_a_deployed_party_consents_in_its_node_configuration(tmp_path: Path) -> None:
    from fedapp.run_config import defaults
    from fedapp.run_config import read as read_config

    result, frames, _ = train(tmp_path, num_trees=1)
    name = result.summary["model"]
    (tmp_path / "kept" / TASK / name).mkdir(parents=True)
    kept = tmp_path / "kept" / TASK / name / "site-0.json"
    kept.write_text((result.run_folder / "parties" / "site-0.json").read_text())
    frames[0].to_csv(tmp_path / "rows.csv", index=False)
    node: dict[str, Any] = {
        "site-name": "site-0",
        "data-path": str(tmp_path / "rows.csv"),
        "model-dir": str(tmp_path / "kept"),
    }
    keys = {"task": TASK, f"{TASK}.mode": "export", f"{TASK}.model": name}
    config = read_config({**defaults(), **keys, f"{TASK}.export-consent": True})
    for given, expected in ((None, False), ("true", False), (False, False), (True, True)):
        own = node if given is None else {**node, "export-consent": given}
        assert vertical_party.prepare_vertical_site(own, config).consents is expected


def test_leaves_that_are_noisy_at_their_source_are_exported_exact(trained: Trained) -> None:
    parts = parts_of(trained[0])
    noisy = {}
    for name, part in parts.items():
        trees = tuple(
            dataclasses.replace(
                tree,
                weights={n: w + (tree.sources.get(n) == name) for n, w in tree.weights.items()},
            )
            for tree in part.trees
        )
        noisy[name] = dataclasses.replace(part, trees=trees)
    assert xgboost_document(noisy) == xgboost_document(parts)


def test_parts_that_are_not_all_of_one_model_are_refused(trained: Trained) -> None:
    parts = parts_of(trained[0])
    assert importances(parts)
    with pytest.raises(SiteFault, match="no part of site-2"):
        check_whole({name: part for name, part in parts.items() if name != "site-2"})
    other = parts["site-1"].first(1)
    with pytest.raises(SiteFault, match="different models"):
        xgboost_document({**parts, "site-1": other})
