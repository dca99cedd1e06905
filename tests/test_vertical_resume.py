"""A vertical training that is interrupted and gone on with, against one that was not."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedapp import checkpoint
from fedapp.checkpoint import CHECKPOINT
from fedapp.run_folder import RunFolder
from fedapp.simulation import SimulationResult, simulate
from strategies import vertical_xgboost
from strategies.snapshot import Snapshot
from tasks.privacy import gaussian
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost import client, level_client
from tasks.vertical_xgboost.model_part import ModelPart, part_path
from tests.vertical_frames import cut, random_frame
from tests.vertical_runs import TASK, run

KEYS: dict[str, Any] = {"max_depth": 2, "num_trees": 4, "max_bin": 8}


@pytest.fixture(scope="module")
def frames() -> list[pd.DataFrame]:
    return cut(random_frame(6, rows=160), parties=3, labels="even", interleaved=True)


def train(
    directory: Path,
    frames: list[pd.DataFrame],
    *,
    general: dict[str, Any] | None = None,
    **keys: Any,
) -> SimulationResult:
    """A run, in plain sums unless told otherwise, with `KEYS`."""
    settings = {"encryption": "none", **KEYS, **keys}
    config = {f"{TASK}.{name.replace('_', '-')}": value for name, value in settings.items()}
    config |= {"run-dir": str(directory), **(general or {})}
    return simulate(TASK, sites=frames, config=config)


class Killed(Exception):
    """What ends a server in the middle of a training."""


def interrupt(
    patch: pytest.MonkeyPatch, *, after: int, error: Callable[[], BaseException] = Killed
) -> None:
    """End the server in front of that step ``decide``, counted from 1."""
    really, count = vertical_xgboost.gather_offers, iter(range(1, 1000))

    def gather(*arguments: Any, **how: Any) -> Any:
        if next(count) == after:
            raise error()
        return really(*arguments, **how)

    patch.setattr(vertical_xgboost, "gather_offers", gather)


def interrupted_run(
    directory: Path, frames: list[pd.DataFrame], *, after: int = 6, **keys: Any
) -> SimulationResult:
    """A training that ends in its third tree unless told otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, after=after)
        result = train(directory, frames, **keys)
    assert result.summary["status"] == "failed"
    return result


def resumed(
    directory: Path, frames: list[pd.DataFrame], before: SimulationResult, **keys: Any
) -> SimulationResult:
    general = {**keys.pop("general", {}), "resume": str(before.run_folder)}
    return train(directory, frames, general=general, **keys)


def parts_of(result: SimulationResult) -> dict[str, ModelPart]:
    folder = result.run_folder / "parties"
    return {f"site-{at}": ModelPart.load(part_path(folder, f"site-{at}")) for at in range(3)}


def assert_as_if_never_interrupted(found: SimulationResult, whole: SimulationResult) -> None:
    """Parts, skeleton, metrics and predictions to the last bit."""
    assert found.summary["status"] == "ok", found.summary.get("reason")
    theirs = parts_of(whole)
    for name, part in parts_of(found).items():
        assert [vars_of(tree) for tree in part.trees] == [vars_of(t) for t in theirs[name].trees]
        assert part.lookup.records == theirs[name].lookup.records
        assert part.base_margins == theirs[name].base_margins
        assert part.origin.rows == theirs[name].origin.rows
        assert part.origin.trees_before == theirs[name].origin.trees_before
    ours, other = (RunFolder.open(each.run_folder) for each in (found, whole))
    skeletons = [folder.read_json("trees.json") for folder in (ours, other)]
    assert skeletons[0] is not None
    assert skeletons[1] is not None
    for key in ("trees", "trees-kept", "base-score", "base-margin", "parties"):
        assert skeletons[0][key] == skeletons[1][key]
    losses = [
        [{k: v for k, v in line.items() if "-" in k and k != "crypto-seconds"} for line in rounds]
        for rounds in (ours.read().rounds, other.read().rounds)
    ]
    assert losses[0] == losses[1]
    numbers = [[line["tree"] for line in folder.read().rounds] for folder in (ours, other)]
    assert numbers[0] == numbers[1]
    for key in ("train-loss", "test-loss", "trees", "trees-kept"):
        assert found.summary[key] == whole.summary[key]
    assert found.predictions is not None
    assert whole.predictions is not None
    assert np.array_equal(found.predictions["margin"], whole.predictions["margin"])
    if "same-trees" in whole.summary["central"]:
        assert found.summary["central"]["same-trees"] is True


def vars_of(tree: Any) -> tuple[Any, ...]:
    return dict(tree.splits), dict(tree.weights), dict(tree.covers)


@pytest.mark.parametrize(
    ("after", "keys"),
    [
        (6, {}),
        (5, {"aggregator": "source", "subsample": 0.8, "colsample_bytree": 0.8}),
        (6, {"objective": "reg:squarederror", "encryption": "none"}),
    ],
    ids=["server", "source, sampled", "regression"],
)
def test_a_resumed_training_gives_what_an_uninterrupted_one_gives(
    after: int, keys: dict[str, Any], frames: list[pd.DataFrame], tmp_path: Path
) -> None:
    if keys.get("objective"):
        frame = random_frame(6, rows=160, objective="reg:squarederror")
        frames = cut(frame, parties=3, labels="even")
    whole = train(tmp_path / "whole", frames, **keys)
    first = interrupted_run(tmp_path / "runs", frames, after=after, **keys)
    assert len(RunFolder.open(first.run_folder).read().rounds) == 2
    again = resumed(tmp_path / "runs", frames, first, **keys)
    assert_as_if_never_interrupted(again, whole)
    assert again.summary["resumed-from"] == str(first.run_folder)
    assert again.summary["resumed-after-round"] == 2
    # Introduction, set-up and end; two of the four trees, no exchange more.
    each = 3 if keys.get("aggregator") == "source" else 2
    assert again.exchanges == 4 + each * 2 * KEYS["max_depth"]
    assert not (again.run_folder / CHECKPOINT).exists()
    assert (first.run_folder / CHECKPOINT).exists()
    refused = resumed(tmp_path / "runs", frames, first, **keys)
    assert "it has been continued by" in refused.summary["reason"]


def test_early_stopping_goes_on_counting(frames: list[pd.DataFrame], tmp_path: Path) -> None:
    keys = {"early_stopping_rounds": 1, "num_trees": 9, "eta": 1.0, "max_depth": 3}
    whole = train(tmp_path / "whole", frames, **keys)
    assert (whole.summary["trees-kept"], whole.summary["trees"]) == (3, 4)
    first = interrupted_run(tmp_path / "runs", frames, after=3 * 3 + 2, **keys)
    again = resumed(tmp_path / "runs", frames, first, **keys)
    assert_as_if_never_interrupted(again, whole)
    assert again.summary["resumed-after-round"] == 3


def test_a_resumed_training_is_resumed_again(frames: list[pd.DataFrame], tmp_path: Path) -> None:
    """Also before the resumed one has grown a tree of its own."""
    whole = train(tmp_path / "whole", frames)
    first = interrupted_run(tmp_path / "runs", frames, after=4)
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, after=1)
        second = resumed(tmp_path / "runs", frames, first)
    assert second.summary["status"] == "failed"
    assert [line["tree"] for line in RunFolder.open(second.run_folder).read().rounds] == [1]
    third = resumed(tmp_path / "runs", frames, second)
    assert_as_if_never_interrupted(third, whole)
    assert third.summary["runs"] == 3


def test_a_warm_start_is_resumed(frames: list[pd.DataFrame], tmp_path: Path) -> None:
    model = train(tmp_path / "first", frames, num_trees=2)
    keys = {"warm_start": str(model.run_folder), "num_trees": 3}
    whole = train(tmp_path / "whole", frames, **keys)
    first = interrupted_run(tmp_path / "runs", frames, after=4, **keys)
    again = resumed(tmp_path / "runs", frames, first, **keys)
    assert_as_if_never_interrupted(again, whole)
    assert again.summary["trees-before"] == 2


def test_a_party_that_died_is_back(
    frames: list[pd.DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died while others had kept a tree more: they all go on from the last one of all."""
    whole = train(tmp_path / "whole", frames)
    really = level_client.histograms

    def dies(message: Any, site: Any, context: Any) -> Any:
        at = message.content.config_records["histograms"]
        if site.name == "site-1" and (at["tree"], at["level"]) == (3, 0):
            raise RuntimeError
        return really(message, site, context)

    with monkeypatch.context() as patch:
        patch.setattr(level_client, "histograms", dies)
        first = train(tmp_path / "runs", frames)
    assert first.summary["status"] == "failed"
    folder = first.run_folder / "parties"
    kept = [
        len(ModelPart.load(part_path(folder, f"site-{at}"), unfinished=True).trees)
        for at in range(3)
    ]
    assert sorted(kept) == [2, 3, 3]
    again = resumed(tmp_path / "runs", frames, first)
    assert again.summary["resumed-after-round"] == 2
    assert_as_if_never_interrupted(again, whole)


def test_an_end_that_one_party_missed_is_resumed(
    frames: list[pd.DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that were written are marked as unfinished, and no use is made of them."""
    whole = train(tmp_path / "whole", frames)

    def dies(message: Any, site: Any, context: Any) -> Any:
        if site.name == "site-2":
            raise RuntimeError
        return really(message, site, context)

    really = client.finish
    with monkeypatch.context() as patch:
        patch.setattr(client, "finish", dies)
        first = train(tmp_path / "runs", frames)
    assert first.summary["status"] == "failed"
    for at in range(3):
        path = part_path(first.run_folder / "parties", f"site-{at}")
        with pytest.raises(SiteFault, match=f"site-{at}.json: is of a training that has not come"):
            ModelPart.load(path)
    again = resumed(tmp_path / "runs", frames, first)
    assert_as_if_never_interrupted(again, whole)


def test_noise_of_repeated_leaves_is_counted(frames: list[pd.DataFrame], tmp_path: Path) -> None:
    keys = {"dp_epsilon": 2.0, "general": {"seeded-noise": True}}
    whole = train(tmp_path / "whole", frames, **keys)
    first = interrupted_run(tmp_path / "runs", frames, **keys)
    again = resumed(tmp_path / "runs", frames, first, **keys)
    assert_as_if_never_interrupted(again, whole)  # with a seed even the noise is the same
    planned, repeated = 1 + 3 * 4, 4
    sigma = gaussian.sigma(epsilon=2.0, delta=1e-5, sensitivity=2.0, releases=planned)
    spent = gaussian.composed_epsilon(delta=1e-5, ratios=[2.0 / sigma] * (planned + repeated))
    assert again.summary["dp-epsilon"] == pytest.approx(spent, rel=1e-9)
    assert again.summary["dp-epsilon"] > whole.summary["dp-epsilon"]
    assert again.summary["dp-releases-repeated"] == repeated
    for part in parts_of(again).values():
        assert [each.count for each in part.origin.releases] == [planned + repeated]


def test_noise_of_a_tree_without_a_checkpoint_is_counted(
    frames: list[pd.DataFrame], tmp_path: Path
) -> None:
    """No room for the checkpoint of the second tree: leaves of it, too, are told once more."""
    keys = {"dp_epsilon": 2.0, "general": {"seeded-noise": True}}
    really = checkpoint.write_checkpoint

    def write(folder: Path, snapshot: Snapshot) -> Path:
        if snapshot.round > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really(folder, snapshot)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "write_checkpoint", write)
        first = interrupted_run(tmp_path / "runs", frames, **keys)
    assert len(RunFolder.open(first.run_folder).read().rounds) == 2
    again = resumed(tmp_path / "runs", frames, first, **keys)
    assert again.summary["status"] == "ok"
    assert again.summary["dp-releases-repeated"] == 2 * 4


# Refusals ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def halted(
    frames: list[pd.DataFrame], tmp_path_factory: pytest.TempPathFactory
) -> SimulationResult:
    return interrupted_run(tmp_path_factory.mktemp("halted"), frames)


def copied(halted: SimulationResult, to: Path) -> SimulationResult:
    shutil.copytree(halted.run_folder, to)
    return SimulationResult({}, [], 0, to, None)


def reason(result: SimulationResult) -> str:
    assert result.summary["status"] == "refused"
    return str(result.summary["reason"])


def test_missing_parts_are_named(
    halted: SimulationResult, frames: list[pd.DataFrame], tmp_path: Path
) -> None:
    copy = copied(halted, tmp_path / "copy")
    part_path(copy.run_folder / "parties", "site-1").unlink()
    words = reason(resumed(tmp_path, frames, copy))
    assert words == "site-1: site-1.json: this part of the model is missing"


def test_other_rows_are_refused(
    halted: SimulationResult, frames: list[pd.DataFrame], tmp_path: Path
) -> None:
    other = [frame.copy() for frame in frames]
    column = next(name for name in other[2].columns if name not in ("id", "label"))
    other[2].loc[0, column] = 77.25
    result = resumed(tmp_path, other, copied(halted, tmp_path / "copy"))
    assert result.summary["status"] != "ok"
    assert "site-2" in result.summary["reason"]
    assert "rows are not those of the training that is resumed" in result.summary["reason"]
    assert "77.25" not in result.summary["reason"]


def test_other_settings_are_named(
    halted: SimulationResult, frames: list[pd.DataFrame], tmp_path: Path
) -> None:
    words = reason(resumed(tmp_path, frames, copied(halted, tmp_path / "copy"), num_trees=5))
    assert f"{TASK}.num-trees = 5: must be what it was in that run, 4" in words


def test_a_part_of_other_trees_is_refused(
    halted: SimulationResult, frames: list[pd.DataFrame], tmp_path: Path
) -> None:
    copy = copied(halted, tmp_path / "copy")
    path = part_path(copy.run_folder / "parties", "site-0")
    part = ModelPart.load(path, unfinished=True)
    object.__setattr__(part, "run", "run-1")
    part.save(path)
    result = resumed(tmp_path, frames, copy)
    assert "site-0" in result.summary["reason"]
    assert "not those of the server" in result.summary["reason"]


def test_nothing_to_go_on_from_is_said(frames: list[pd.DataFrame], tmp_path: Path) -> None:
    first = interrupted_run(tmp_path / "runs", frames, after=1)
    assert "no checkpoint" in reason(resumed(tmp_path / "runs", frames, first))


def test_an_unfinished_model_is_not_used(
    halted: SimulationResult, frames: list[pd.DataFrame], tmp_path: Path
) -> None:
    for keys in ({"mode": "predict"}, {"mode": "export"}):
        found = run(tmp_path, frames, model=str(halted.run_folder), **keys)
        for at in range(3):
            assert f"site-{at}.json: is of a training that has not come" in reason(found)
    words = reason(run(tmp_path, frames, warm_start=str(halted.run_folder), **KEYS))
    assert "trees.json: is missing" in words


def test_the_checkpoint_tells_no_row_and_no_threshold(halted: SimulationResult) -> None:
    content = (halted.run_folder / CHECKPOINT).read_bytes()
    assert b"threshold" not in content
    assert b"weight" not in content
    text = part_path(halted.run_folder / "parties", "site-0").read_text()
    assert json.loads(text)["part"]["origin"]["is-complete"] is False
    assert len(text) < 20_000
