"""Survival runs that were interrupted and go on: equal, bit for bit, to one that was not."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedapp import checkpoint, prepared_sites, run_folder
from fedapp.checkpoint import CHECKPOINT, read_checkpoint
from fedapp.run_folder import RunFolder
from fedapp.run_record import RunFolderError
from fedapp.simulation import SimulationResult, simulate
from strategies.survival import SurvivalFedAvg

ROUNDS = 4
CONFIG: dict[str, Any] = {
    "survival.rounds": ROUNDS,
    "survival.local-steps": 2,
    "survival.batch-size": 16,
    "survival.hidden-layers": "4",
    "survival.dropout": 0.2,
    "survival.time-bins": 10,
    "survival.dp-mechanism": "none",
}


OF_RESUMED = {"resumed-from", "resumed-after-round", "runs"} | {
    f"{what}-{when}" for what in ("exchanges", "bytes") for when in ("before", "total")
}


class Killed(BaseException):
    """Stands for a process that ends: no handler of the run makes it a failure of the run."""


def rows(seed: int, number: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, number))
    time = rng.exponential(np.exp(-x)) + 0.01
    return pd.DataFrame({"time": time, "event": rng.integers(0, 2, number), "x": x, "y": y})


SITES = [rows(seed) for seed in range(3)]
NAMES = ["east", "north", "west"]


def run(
    base: Path,
    *,
    sites: list[pd.DataFrame] | None = None,
    names: list[str] | None = None,
    **more: Any,
) -> SimulationResult:
    return simulate(
        "survival",
        sites=SITES if sites is None else sites,
        site_names=NAMES if names is None else names,
        config={**CONFIG, "run-dir": str(base), **more},
        seed=3,
    )


def newest(base: Path) -> Path:
    return max(
        (path for path in base.iterdir() if path.is_dir()), key=lambda p: p.stat().st_mtime_ns
    )


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Run until a hook of the strategy is called in a round; return the run folder."""

    def until(base: Path, hook: str, number: int, **more: Any) -> Path:
        before = getattr(SurvivalFedAvg, hook)

        def stop(self: SurvivalFedAvg, server_round: Any, *arguments: Any, **named: Any) -> Any:
            if server_round == number or number == 0:
                raise Killed
            return before(self, server_round, *arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(SurvivalFedAvg, hook, stop)
            with pytest.raises(Killed):
                run(base, **more)
        return newest(base)

    return until


def assert_equal_models(ours: SimulationResult, theirs: SimulationResult) -> None:
    """Every array of the model files is the same to the last bit."""
    with (
        np.load(ours.run_folder / "model.npz") as mine,
        np.load(theirs.run_folder / "model.npz") as other,
    ):
        assert mine.files == other.files
        assert len(mine.files) > 5
        for name in set(mine.files) - {"header"}:
            assert mine[name].tobytes() == other[name].tobytes(), name
        heads = [json.loads(file["header"].tobytes()) for file in (mine, other)]
        for head in heads:
            del head["metadata"]  # the configuration, with the folders of the runs
        assert heads[0] == heads[1]


def assert_equal_runs(ours: SimulationResult, theirs: SimulationResult) -> None:
    """Model, history and results are the same to the last bit."""
    assert_equal_models(ours, theirs)
    histories = [RunFolder.open(each.run_folder).read().rounds for each in (ours, theirs)]
    assert histories[0] == histories[1]
    assert len(histories[0]) == ROUNDS + 1
    curves = [(each.run_folder / "curves.json").read_text() for each in (ours, theirs)]
    assert curves[0] == curves[1]
    own = {"seconds", "exchanges", "bytes"}
    of_resumed = {key for key in ours.summary if key not in theirs.summary}
    assert all(
        "resumed" in k or k == "runs" or k.endswith(("-before", "-total")) for k in of_resumed
    )
    for key in theirs.summary.keys() - own:
        assert ours.summary[key] == theirs.summary[key], key


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> SimulationResult:
    return run(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("hook", "number", "done"),
    [
        ("configure_train", 1, 0),  # after set-up
        ("aggregate_train", 3, 2),  # updates of round 3 have left the sites
        ("configure_evaluate", 3, 3),  # between two rounds
        ("configure_evaluate", ROUNDS, ROUNDS),  # trained, not evaluated
        ("draw_curves", 0, ROUNDS),
    ],
)
def test_a_resumed_run_is_equal_to_an_uninterrupted_one(
    tmp_path: Path,
    interrupt: Callable[..., Path],
    uninterrupted: SimulationResult,
    hook: str,
    number: int,
    done: int,
) -> None:
    folder = interrupt(tmp_path, hook, number)
    assert read_checkpoint(folder).round == done
    result = run(tmp_path, resume=str(folder))
    assert_equal_runs(result, uninterrupted)
    # hello, statistics, the rounds that were left, evaluation, curves
    assert result.exchanges == 2 + ROUNDS - done + 2
    assert result.summary["resumed-from"] == str(folder)
    assert result.summary["resumed-after-round"] == done
    assert not (result.run_folder / CHECKPOINT).exists(), "there is nothing to go on from"


def test_totals_say_both_parts(
    tmp_path: Path, interrupt: Callable[..., Path], uninterrupted: SimulationResult
) -> None:
    folder = interrupt(tmp_path, "aggregate_train", 3)
    first = RunFolder.open(folder).read()
    result = run(tmp_path, resume=str(folder))
    told = result.summary
    assert told["exchanges-before"] == max(row["exchange"] for row in first.ledger) == 5
    assert told["bytes-before"] == first.summary["bytes"]
    assert told["exchanges-total"] == 5 + told["exchanges"]
    assert told["bytes-total"] == told["bytes-before"] + told["bytes"]
    # hello, statistics and round 3 were made twice
    assert told["exchanges-total"] == uninterrupted.exchanges + 3
    lines = (result.run_folder / "earlier-ledger.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == first.ledger


def test_a_resumed_run_can_be_interrupted_and_resumed_itself(
    tmp_path: Path, interrupt: Callable[..., Path], uninterrupted: SimulationResult
) -> None:
    first = interrupt(tmp_path, "aggregate_train", 2)
    second = interrupt(tmp_path, "aggregate_train", 4, resume=str(first))
    third = interrupt(tmp_path, "configure_train", 4, resume=str(second))
    result = run(tmp_path, resume=str(third))
    assert_equal_runs(result, uninterrupted)
    assert result.summary["runs"] == 4
    again = run(tmp_path, resume=str(first))
    assert again.summary["status"] == "refused"
    assert f"has been continued by {second}" in again.summary["reason"]


@pytest.mark.parametrize("model", ["LogisticHazard", "CoxTime"])
def test_models_with_cuts_or_without_proportional_hazards(
    tmp_path: Path, interrupt: Callable[..., Path], model: str
) -> None:
    more = {"survival.model": model}
    whole = run(tmp_path, **more)
    folder = interrupt(tmp_path, "aggregate_train", 3, **more)
    assert_equal_runs(run(tmp_path, resume=str(folder), **more), whole)


def test_text_columns_and_medians(tmp_path: Path, interrupt: Callable[..., Path]) -> None:
    """The encoding of columns and the medians of missing values are those agreed on before."""
    more = {"survival.missing": "median"}
    sites = []
    for frame in SITES:
        gaps = frame.assign(sex=np.where(frame.x > 0, "f", "m"))
        gaps.loc[::7, "y"] = np.nan
        sites.append(gaps)
    whole = run(tmp_path, sites=sites, **more)
    assert whole.summary["status"] == "ok", whole.summary["reason"]
    folder = interrupt(tmp_path, "aggregate_train", 2, sites=sites, **more)
    assert_equal_runs(run(tmp_path, sites=sites, resume=str(folder), **more), whole)


# Privacy --------------------------------------------------------------------------------------

NOISE = {"survival.dp-mechanism": "gaussian"}


def test_updates_of_the_interrupted_round_count_as_released(
    tmp_path: Path, interrupt: Callable[..., Path]
) -> None:
    folder = interrupt(tmp_path, "aggregate_train", 3, **NOISE)
    told = run(tmp_path, resume=str(folder), **NOISE).summary
    assert (told["releases"], told["releases-repeated"]) == (ROUNDS + 1, 1)
    assert f"at most {ROUNDS + 1} privatized updates, {ROUNDS} rounds + 1 rep" in told["privacy"]


def test_between_two_rounds_nothing_is_released_twice(
    tmp_path: Path, interrupt: Callable[..., Path]
) -> None:
    folder = interrupt(tmp_path, "configure_evaluate", 3, **NOISE)
    told = run(tmp_path, resume=str(folder), **NOISE).summary
    assert (told["releases"], told["releases-repeated"]) == (ROUNDS, 0)


def test_of_a_killed_run_one_round_more_counts_as_released(
    tmp_path: Path, interrupt: Callable[..., Path]
) -> None:
    """It may have been in the middle of an exchange, which is in no ledger then."""
    folder = interrupt(tmp_path, "configure_evaluate", 3, **NOISE)
    set_running(folder)
    told = run(tmp_path, resume=str(folder), **NOISE).summary
    assert (told["releases"], told["releases-repeated"]) == (ROUNDS + 1, 1)


def test_every_round_since_the_last_checkpoint_counts(
    tmp_path: Path, interrupt: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where checkpoints could not be written, the ledger still says what was asked for."""
    write = checkpoint.write_checkpoint

    def full(folder: Path, snapshot: Any) -> Path:
        if snapshot.round > 1:
            raise OSError(28, "No space left on device")
        return write(folder, snapshot)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_checkpoint", full)
        folder = interrupt(tmp_path, "aggregate_train", 4, **NOISE)
    assert read_checkpoint(folder).round == 1
    told = run(tmp_path, resume=str(folder), **NOISE).summary
    assert (told["releases"], told["releases-repeated"]) == (ROUNDS + 3, 3)


def test_seeded_noise_is_drawn_as_it_would_have_been(
    tmp_path: Path, interrupt: Callable[..., Path]
) -> None:
    more = {**NOISE, "seeded-noise": True}
    whole = run(tmp_path, **more)
    folder = interrupt(tmp_path, "configure_evaluate", 2, **more)
    result = run(tmp_path, resume=str(folder), **more)
    drop = ("privacy", "releases", "releases-repeated")
    for summary in (result.summary, whole.summary):
        for key in drop:
            summary.pop(key, None)
    assert_equal_runs(result, whole)


# The same sites -------------------------------------------------------------------------------


def refusal(base: Path, folder: Path, **more: Any) -> str:
    told = run(base, resume=str(folder), **more).summary
    assert told["status"] == "refused"
    return str(told["reason"])


def test_sites_that_are_missing_are_named(tmp_path: Path, interrupt: Callable[..., Path]) -> None:
    folder = interrupt(tmp_path, "aggregate_train", 3)
    # num-sites is what the interrupted run had: with frames it says nothing
    reason = refusal(tmp_path, folder, names=["east", "north", "south"])
    assert "west: takes part in the run that is resumed, and is not there" in reason
    assert "south" not in reason
    assert not (folder / "continued.json").exists(), "it can still be resumed"


def test_sites_with_other_rows_or_columns_are_named(
    tmp_path: Path, interrupt: Callable[..., Path]
) -> None:
    folder = interrupt(tmp_path, "aggregate_train", 3)
    one_value = SITES[1].copy()
    one_value.loc[5, "x"] += 1e-9
    reason = refusal(tmp_path, folder, sites=[SITES[0], one_value, SITES[2]])
    assert "north: statistics of its rows are not what they were" in reason
    assert "east" not in reason
    renamed = [SITES[0], SITES[1], SITES[2].rename(columns={"y": "z"})]
    reason = refusal(tmp_path, folder, sites=renamed)
    assert "west: tells other columns" in reason


def test_a_site_that_was_left_out_stays_left_out(
    tmp_path: Path, interrupt: Callable[..., Path]
) -> None:
    """Its rows are not in the pooled moments; they may not be in the rest of the rounds."""
    more = {"survival.on-small-site": "exclude"}
    small = [*SITES, rows(9, number=4)]
    names = [*NAMES, "wild"]
    whole = run(tmp_path, sites=small, names=names, **more)
    assert whole.summary["excluded"] == ["wild"]
    folder = interrupt(tmp_path, "aggregate_train", 3, sites=small, names=names, **more)
    grown = [*SITES, rows(9)]
    result = run(tmp_path, sites=grown, names=names, resume=str(folder), **more)
    assert result.summary["excluded"] == ["wild"]
    assert result.summary["n-sites"] == 3
    with (
        np.load(result.run_folder / "model.npz") as a,
        np.load(whole.run_folder / "model.npz") as b,
    ):
        for name in a.files:
            if a[name].dtype.kind == "f":
                assert a[name].tobytes() == b[name].tobytes(), name


def test_a_run_that_ended_in_set_up_has_nothing_to_go_on_from(
    tmp_path: Path, interrupt: Callable[..., Path]
) -> None:
    folder = interrupt(tmp_path, "gather_statistics", 0)
    assert "no checkpoint: the run ended before" in refusal(tmp_path, folder)


def test_batches_and_dropout_do_not_depend_on_what_a_process_has_done_before(
    tmp_path: Path, interrupt: Callable[..., Path], uninterrupted: SimulationResult
) -> None:
    """Every round's random numbers follow from seed, round and name of the site."""
    folder = interrupt(tmp_path, "configure_evaluate", 2)
    np.random.default_rng().normal(size=10)
    torch.manual_seed(99)
    prepared_sites.forget_sites()
    assert_equal_runs(run(tmp_path, resume=str(folder)), uninterrupted)


def set_running(folder: Path) -> None:
    """Make the folder that of a run whose process was killed."""
    path = folder / "status.json"
    status = {**json.loads(path.read_text()), "status": "running"}
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    path.write_text(json.dumps({**status, "host": socket.gethostname(), "process": child.pid}))


# Disks that are full ---------------------------------------------------------------------------


def full(*_: Any) -> Any:
    raise OSError(28, "No space left on device")


def test_a_run_without_room_for_checkpoints_goes_on_and_warns(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uninterrupted: SimulationResult,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(checkpoint, "write_checkpoint", full)
    result = run(tmp_path)
    assert_equal_models(result, uninterrupted)
    assert caplog.text.count("No space left on device") == ROUNDS + 1


def test_a_run_without_room_for_its_ledger_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is disclosed must be written down."""
    monkeypatch.setattr(run_folder, "append_lines", full)
    with pytest.raises(RunFolderError, match=r"cannot be written to \(No space left on device"):
        run(tmp_path)
    record = RunFolder.open(newest(tmp_path)).read()
    assert record.status["status"] == "failed"
    assert "No space left on device" in record.status["reason"]
