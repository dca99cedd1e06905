"""Where a party keeps its part of the model: in a folder of its own choice, or nowhere."""

from __future__ import annotations

import dataclasses
import stat
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from fedapp import vertical_party, vertical_run
from fedapp.run_config import defaults
from fedapp.run_config import read as read_config
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.client import introduction
from tasks.vertical_xgboost.model_part import ModelPart
from tasks.vertical_xgboost.site import VerticalSite
from tests.vertical_attacks import frames_of
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
    assert not list((tmp_path / "runs").rglob("*.npz"))
    for at in range(3):
        (path,) = (tmp_path / "kept" / f"site-{at}").rglob("*.npz")
        assert path.match(f"vertical-xgboost/run-*/site-{at}.npz")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        part = ModelPart.load(path)
        assert part.name == f"site-{at}"
        assert len(part.trees) == result.summary["trees-kept"] == 2
