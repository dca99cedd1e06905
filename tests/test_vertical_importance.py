"""How much a model uses each feature: as XGBoost counts it, names only with consent."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
from flwr.app import Message, RecordDict

from fedapp import simulation, vertical_party
from fedapp.cli import main
from fedapp.simulation import InProcessGrid, SimulationResult, simulate
from tasks.site.reply_fields import MalformedReply
from tasks.vertical_xgboost.feature_importance import distinct
from tasks.vertical_xgboost.importance_messages import (
    IMPORTANCE,
    ImportanceRequest,
    SplitColumns,
)
from tests.vertical_frames import cut, random_frame
from tests.vertical_runs import TASK, run

Trained = tuple[SimulationResult, list[Any]]


def train(directory: Path, *, parties: int = 3) -> Trained:
    frame = random_frame(4, rows=200, objective="binary:logistic", missing=0.3)
    frames = cut(frame, parties=parties, labels="even", interleaved=True)
    settings = {"max_depth": 4, "num_trees": 4, "max_bin": 16, "export_consent": True}
    return run(directory, frames, **settings), frames


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("trained"))


def ask(directory: Path, trained: Trained, **more: Any) -> SimulationResult:
    result, frames = trained
    config: dict[str, Any] = {
        "run-dir": str(directory),
        f"{TASK}.mode": "importance",
        f"{TASK}.model": str(result.run_folder),
        f"{TASK}.export-consent": True,
    }
    return simulate(TASK, sites=frames, config={**config, **more})


def scores_of(result: SimulationResult, path: Path) -> dict[str, dict[str, float]]:
    """XGBoost's own importances of the exported model."""
    assert main(["export-model", str(result.run_folder), "--out", str(path)]) == 0
    booster = xgboost.Booster()
    booster.load_model(path)
    kinds = ("weight", "gain", "cover")
    return {kind: booster.get_score(importance_type=kind) for kind in kinds}


def test_importances_are_those_of_xgboost(trained: Trained, tmp_path: Path) -> None:
    asked = ask(tmp_path, trained)
    assert asked.summary["status"] == "ok", asked.summary.get("reason")
    assert asked.exchanges == 2
    ours = json.loads((asked.run_folder / "importance.json").read_text())
    for kind, theirs in scores_of(trained[0], tmp_path / "model.json").items():
        assert {name: each[kind] for name, each in ours.items()} == pytest.approx(theirs, rel=1e-5)
    assert all("not declared" not in str(row["reveals"]) for row in asked.ledger)
    first = asked.summary["importance"][0]
    assert first["gain"] * first["weight"] == max(e["gain"] * e["weight"] for e in ours.values())


def test_names_are_told_by_parties_that_consent_alone(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = vertical_party.prepare_vertical_site

    def without_one(*arguments: Any) -> Any:
        site = really(*arguments)
        return dataclasses.replace(site, consents=site.name != "site-1")

    monkeypatch.setattr(vertical_party, "prepare_vertical_site", without_one)
    asked = ask(tmp_path, trained)
    ours = json.loads((asked.run_folder / "importance.json").read_text())
    theirs = scores_of(trained[0], tmp_path / "model.json")["weight"]
    names = {name for name in theirs if name.startswith("site-1.")}
    assert names
    assert not names & set(ours)
    assert {name for name in ours if name.startswith("site-1.")} == {
        f"site-1.#{at + 1}" for at in range(len(names))
    }
    assert sorted(each["weight"] for each in ours.values()) == sorted(theirs.values())
    assert asked.summary["parties-with-names"] == ["site-0", "site-2"]
    said = "".join(path.read_text() for path in asked.run_folder.glob("*.json*"))
    assert not any(f'"{name}"' in said for name in names)


def test_two_parties_need_to_permit_it(tmp_path: Path) -> None:
    frame = random_frame(4, rows=80, objective="binary:logistic", missing=0.0)
    frames = cut(frame, parties=2, labels="even", interleaved=True)
    pair = run(tmp_path, frames, num_trees=1, max_depth=2), frames
    asked = ask(tmp_path, pair)
    assert asked.summary["status"] == "refused"
    assert "allow-two-parties = true permits it" in asked.summary["reason"]
    permitted = ask(tmp_path, pair, **{f"{TASK}.allow-two-parties": True})
    assert permitted.summary["status"] == "ok", permitted.summary.get("reason")


def test_gains_of_another_training_are_refused(trained: Trained, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained[0].run_folder, copy)
    document = json.loads((copy / "trees.json").read_text())
    (copy / "trees.json").write_text(json.dumps({**document, "run": "run-1"}))
    words = ask(tmp_path, trained, **{f"{TASK}.model": str(copy)}).summary["reason"]
    assert f"model = '{copy}': is run-1; the parties' parts are of {document['run']}" in words
    (copy / "trees.json").write_text(json.dumps({**document, "trees-kept": "all"}))
    words = ask(tmp_path, trained, **{f"{TASK}.model": str(copy)}).summary["reason"]
    assert f"{copy / 'trees.json'}: holds what no training leaves" in words


def forge(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Let the server tell every party something else."""
    sent = InProcessGrid.push_messages

    def push(grid: InProcessGrid, messages: Any) -> Any:
        told = list(messages)
        for message in told:
            if message.metadata.message_type == IMPORTANCE:
                request = ImportanceRequest.from_record(message.content)
                forged = dataclasses.replace(request, groups=change(dict(request.groups)))
                message.content = forged.to_record()
        return sent(grid, told)

    monkeypatch.setattr(InProcessGrid, "push_messages", push)


def merged(groups: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {name: (0,) * len(own) for name, own in groups.items()}


def split_up(groups: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Every split on a column of its own: covers of single splits would be read."""
    return {name: tuple(range(len(own))) for name, own in groups.items()}


def shorter(groups: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {name: own[:-1] for name, own in groups.items()}


@pytest.mark.parametrize("change", [merged, split_up, shorter])
def test_a_party_sums_by_the_columns_that_it_told(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    forge(monkeypatch, change)
    asked = ask(tmp_path, trained)
    assert asked.summary["status"] != "ok"
    assert "groups:" in asked.summary["reason"]


def test_sums_of_a_party_are_masked(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.vertical_xgboost import importance_client

    own: dict[str, np.ndarray[Any, Any]] = {}
    really = importance_client.own_covers

    def noted(part: Any, groups: Any) -> Any:
        own[part.name] = really(part, groups)
        return own[part.name]

    replies: list[Message] = []
    answer = simulation.InProcessGrid.pull_messages

    def pull(grid: InProcessGrid, ids: Any) -> Any:
        got = list(answer(grid, ids))
        replies.extend(m for m in got if m.metadata.message_type == IMPORTANCE)
        return got

    monkeypatch.setattr(importance_client, "own_covers", noted)
    monkeypatch.setattr(InProcessGrid, "pull_messages", pull)
    ask(tmp_path, trained)
    assert len(own) == len(replies) == 3
    for reply in replies:
        for record in reply.content.array_records.values():
            words = [array.numpy() for array in record.values()]
            whole = {int(value) for array in words for value in array.ravel()}
            told = {int(value) for covers in own.values() for value in covers}
            assert len(whole & told) <= 1  # by chance


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "split-columns: must be whole numbers"),
        ({"split-columns": ["0"]}, "split-columns: must be whole numbers"),
        ({"split-columns": [True]}, "split-columns: must be whole numbers"),
        ({"split-columns": [1]}, "must count columns by first use"),
        ({"split-columns": [0, 2]}, "must count columns by first use"),
        ({"split-columns": [0, -1]}, "must count columns by first use"),
        ({"split-columns": [0], "column-names": []}, "must be one a column"),
        ({"split-columns": [0, 1], "column-names": ["a", "a"]}, "must be different texts"),
        ({"split-columns": [0], "column-names": "a"}, "must be one a column"),
    ],
)
def test_facts_of_another_form_are_refused(facts: dict[str, Any], words: str) -> None:
    with pytest.raises(MalformedReply, match=words):
        SplitColumns.from_facts(facts)


def test_long_names_that_are_cut_alike_stay_two() -> None:
    names = ["x" * 2000, "x" * 2000 + "y", "n\0", "n\1", "n"]
    read = SplitColumns.from_facts({"split-columns": [0, 1, 2, 3, 4], "column-names": names}).names
    assert read is not None
    assert len(set(read)) == 5
    assert read[4] == "n"


def test_distinct_names_avoid_those_that_end_alike() -> None:
    assert distinct(["a", "b", "c"]) == ["a", "b", "c"]
    assert distinct(["a#2", "a", "a", "a#2"]) == ["a#2", "a", "a#3", "a#2#3"]


def test_a_party_without_splits_tells_an_empty_list() -> None:
    from flwr.app import ConfigRecord

    none = SplitColumns((), ())
    record = RecordDict({"facts": ConfigRecord(dict(none.to_facts()))})
    assert SplitColumns.from_facts(dict(record.config_records["facts"])) == none
