"""Where a party keeps its part of the model: in a folder of its own choice, or nowhere."""

from __future__ import annotations

import dataclasses
import json
import math
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedapp import vertical_party, vertical_run
from fedapp.run_config import defaults
from fedapp.run_config import read as read_config
from fedapp.simulation import SimulationResult
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.client import introduction
from tasks.vertical_xgboost.model_part import ModelPart
from tasks.vertical_xgboost.part_document import digest_of
from tasks.vertical_xgboost.part_files import own_part
from tasks.vertical_xgboost.site import VerticalSite
from tests.vertical_attacks import frames_of
from tests.vertical_frames import cut, random_frame
from tests.vertical_runs import run


@pytest.fixture
def site(tmp_path: Path) -> VerticalSite:
    """A deployed party, with a file and a folder of its own."""
    path = tmp_path / "rows.csv"
    frames_of()[0].to_csv(path, index=False)
    node = {"site-name": "a", "data-path": str(path), "model-dir": f" {tmp_path / 'kept'} "}
    keys = {"task": "vertical-xgboost", "vertical-xgboost.encryption": "none"}
    return vertical_party.prepare_vertical_site(node, read_config({**defaults(), **keys}))


def introduce(site: VerticalSite) -> None:
    introduction(site, Context(7, 1, {}, RecordDict(), {}))


def test_a_deployed_party_needs_a_folder_for_its_part(site: VerticalSite, tmp_path: Path) -> None:
    assert not site.simulated
    assert site.model_dir == str(tmp_path / "kept")
    introduce(site)
    assert not list((tmp_path / "kept").iterdir())
    with pytest.raises(SiteFault, match='node config "model-dir" is missing') as caught:
        introduce(dataclasses.replace(site, model_dir=""))
    assert caught.value.code == "no-model-dir"
    for bad in (str(tmp_path / "rows.csv"), str(tmp_path / "rows.csv" / "below"), "nul\0"):
        with pytest.raises(SiteFault, match="no file can be written there") as caught:
            introduce(dataclasses.replace(site, model_dir=bad))
        assert str(tmp_path) not in str(caught.value)
    introduce(dataclasses.replace(site, model_dir="", simulated=True))


def test_deployed_parties_write_where_they_say_and_not_where_the_server_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = vertical_party.prepare_vertical_site

    def deployed(*arguments: Any) -> VerticalSite:
        site = really(*arguments)
        return dataclasses.replace(
            site, simulated=False, model_dir=str(tmp_path / "kept" / site.name)
        )

    monkeypatch.setattr(vertical_party, "prepare_vertical_site", deployed)
    monkeypatch.setattr(vertical_run, "read_joined", lambda *_: None)
    result = run(tmp_path / "runs", frames_of(), max_depth=2, num_trees=2, max_bin=4)
    assert result.summary["status"] == "ok", result.summary.get("reason")
    assert not list((tmp_path / "runs").rglob("parties/*"))
    for at in range(3):
        (path,) = (tmp_path / "kept" / f"site-{at}").rglob("*.json")
        assert path.match(f"vertical-xgboost/run-*/site-{at}.json")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        part = ModelPart.load(path)
        assert part.name == f"site-{at}"
        assert len(part.trees) == result.summary["trees-kept"] == 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SimulationResult:
    """A run whose labels depend on whether a value is missing: some thresholds are infinite."""
    frame = random_frame(5, rows=120, missing=0.4)
    odd = np.arange(len(frame)) % 7 == 0
    frame["label"] = (frame["b"].isna() ^ odd).astype(int)
    frames = cut(frame, parties=3, labels="even")
    directory = tmp_path_factory.mktemp("trained")
    return run(directory, frames, max_depth=3, num_trees=3, max_bin=8)


def load(trained: SimulationResult, name: str = "site-0") -> ModelPart:
    return ModelPart.load(trained.run_folder / "parties" / f"{name}.json")


def test_a_part_is_json_that_reads_back_to_the_last_bit(
    trained: SimulationResult, tmp_path: Path
) -> None:
    parts = [load(trained, f"site-{at}") for at in range(3)]
    for part in parts:
        part.save(tmp_path / "again.json")
        again = ModelPart.load(tmp_path / "again.json")
        assert again.lookup.records == part.lookup.records
        assert vars(dataclasses.replace(again, lookup=part.lookup)) == vars(part)
        document = json.loads((tmp_path / "again.json").read_text())["part"]
        assert document["run"] == trained.summary["model"]
        assert document["parties"] == ["site-0", "site-1", "site-2"]
        assert document["settings"]["max-depth"] == 3
        assert document["code"]
    assert len({part.model_digest for part in parts}) == 1
    infinite = [r for part in parts for r in part.lookup.records if math.isinf(r.threshold)]
    assert infinite  # "all present left" has no threshold


def test_covers_are_the_hessians_of_own_training_rows(trained: SimulationResult) -> None:
    """Before the first tree every training row has p (1 - p) of the base score."""
    parts = [load(trained, f"site-{at}") for at in range(3)]
    base = trained.summary["base-score"]
    rows = trained.summary["n-rows"] - trained.summary["n-evaluation"]
    total = sum(sum(part.trees[0].covers.values()) for part in parts)
    assert total == pytest.approx(rows * base * (1 - base), rel=1e-8)


def test_the_server_keeps_a_skeleton(trained: SimulationResult) -> None:
    document = json.loads((trained.run_folder / "trees.json").read_text())
    assert document["run"] == trained.summary["model"]
    assert document["parties"] == ["site-0", "site-1", "site-2"]
    assert document["base-margin"] == load(trained).base_margins[0]
    named = {key for tree in document["trees"] for node in tree["nodes"] for key in node}
    assert named == {"id", "leaf", "owner", "record", "left", "right", "gain"}


def edited(path: Path, change: Callable[[dict[str, Any]], None], *, seal: bool = True) -> Path:
    """A copy of a part's file that is changed, with its checksum unless told otherwise."""
    document = json.loads(path.read_text())
    change(document)
    if seal:
        document["checksum"] = digest_of(document["part"]).hex()
    found = path.with_name("edited.json")
    found.write_text(json.dumps(document))
    return found


EDITS: list[tuple[str, Callable[[dict[str, Any]], Any], bool]] = [
    ("its checksum is another one", lambda d: d["part"].update(eta=0.5), False),
    ("version 4, newer than this software's", lambda d: d.update(version=4), True),
    ("is of version 1; 2 and 3 can be read", lambda d: d.update(version=1), True),
    ("has no version", lambda d: d.pop("version"), True),
    ("is not a party's part", lambda d: d.update(format="other"), True),
    (r"field of another form \(eta\)", lambda d: d["part"].update(eta="fast"), True),
    (
        r"\(trees.0.leaves.0.weight\)",
        lambda d: d["part"]["trees"][0]["leaves"][0].pop("weight"),
        True,
    ),
    ("nodes of a tree", lambda d: d["part"]["trees"][0]["leaves"].pop(), True),
    ("records", lambda d: d["part"]["records"].pop(), True),
    ("column of a record", lambda d: d["part"]["records"][0].update(column=99), True),
    ("parties", lambda d: d["part"].update(party="other"), True),
    (
        "a split in front of its parent",
        lambda d: d["part"]["trees"][0]["splits"].reverse(),
        True,
    ),
    ("a split of no party", lambda d: d["part"]["trees"][0]["splits"][0].update(source="x"), True),
]


@pytest.mark.parametrize(("words", "change", "seal"), EDITS)
def test_a_file_that_is_no_part_is_refused(
    words: str, change: Callable[[dict[str, Any]], Any], seal: bool, trained: SimulationResult
) -> None:
    path = edited(trained.run_folder / "parties" / "site-0.json", change, seal=seal)
    with pytest.raises(SiteFault, match=words) as caught:
        ModelPart.load(path)
    assert caught.value.code == "bad-model-part"
    assert str(caught.value).startswith("edited.json: ")


def test_a_file_of_version_2_has_one_margin_a_row(trained: SimulationResult) -> None:
    def older(document: dict[str, Any]) -> None:
        document["version"] = 2
        (document["part"]["base-margin"],) = document["part"].pop("base-margins")

    path = trained.run_folder / "parties" / "site-0.json"
    part = load(trained)
    read = ModelPart.load(edited(path, older))
    assert read.model_digest == part.model_digest
    assert read.base_margins == part.base_margins


def test_a_file_that_is_cut_short_or_gone_is_named(
    trained: SimulationResult, tmp_path: Path
) -> None:
    path = tmp_path / "site-0.json"
    whole = (trained.run_folder / "parties" / "site-0.json").read_text()
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(SiteFault, match=r"site-0.json: is not JSON: it was altered"):
        ModelPart.load(path)
    path.unlink()
    with pytest.raises(SiteFault, match=r"site-0.json: this part of the model is missing") as gone:
        ModelPart.load(path)
    assert gone.value.code == "no-model-part"


def test_a_deployed_party_reads_the_part_of_the_run_that_is_named(
    site: VerticalSite, trained: SimulationResult, tmp_path: Path
) -> None:
    run_name = trained.summary["model"]

    def own(model: str) -> ModelPart:
        return own_part(model, name="site-0", simulated=False, model_dir=site.model_dir)

    kept = tmp_path / "kept" / "vertical-xgboost" / run_name / "site-0.json"
    with pytest.raises(SiteFault, match=f"vertical-xgboost/{run_name}/site-0.json in model-dir"):
        own(run_name)
    load(trained).save(kept)
    assert own(run_name).name == "site-0"
    load(trained, "site-1").save(kept)
    with pytest.raises(SiteFault, match="is the part of site-1"):
        own(run_name)
    dataclasses.replace(load(trained), run="run-7").save(kept)
    with pytest.raises(SiteFault, match="is a part of run-7"):
        own(run_name)
    for bad in ("", "../run-7", str(trained.run_folder), "run-"):
        with pytest.raises(SiteFault, match="must be the name of a training run"):
            own(bad)
