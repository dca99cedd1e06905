"""Which run can be gone on from: what is checked before anybody is asked for anything."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedapp import run_config
from fedapp.checkpoint import CHECKPOINT, read_checkpoint, write_checkpoint
from fedapp.cli import main
from fedapp.prior_runs import earlier_ledger, read_prior, totals
from fedapp.record_shape import LedgerRow
from fedapp.report import write_report
from fedapp.resumption import (
    OWN_FRAMES,
    Resumption,
    resume_faults,
    settings_of,
    snapshots_to,
)
from fedapp.run_folder import RunFolder
from fedapp.run_record import RunFolderError
from fedapp.simulation import simulate
from strategies.membership import Refused
from strategies.snapshot import Snapshot
from tests.full_disk import FullDisk

ROW: LedgerRow = {
    "exchange": 3,
    "step": "train",
    "sender": "server",
    "receiver": "north",
    "bytes": 100,
    "sealed": False,
    "reveals": "the global model",
}


def interrupted(
    base: Path, *, status: str = "failed", values: dict[str, Any] | None = None
) -> RunFolder:
    """Return the folder of a survival run that ended so, with a checkpoint."""
    folder = RunFolder.create(base, task="survival")
    folder.write_config(run_config.read(values or {}).flat(), seed=0, runtime="in-process")
    folder.append_ledger([ROW, {**ROW, "sealed": True}])
    write_checkpoint(folder.path, Snapshot("survival", 2))
    if status != "running":
        folder.finish(status, "" if status == "ok" else "stopped")
    return folder


def chosen(folder: RunFolder | Path | str, **changed: Any) -> dict[str, Any]:
    path = folder.path if isinstance(folder, RunFolder) else folder
    return {**run_config.read({"resume": str(path)}).flat(), **changed}


def set_status(folder: RunFolder, **changed: Any) -> None:
    path = folder.path / "status.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def ended_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    return child.pid


def test_an_interrupted_run_with_the_same_configuration_can_be_resumed(tmp_path: Path) -> None:
    folder = interrupted(tmp_path)
    assert resume_faults(chosen(folder)) == []
    assert resume_faults(run_config.read({}).flat()) == [], "nothing to resume"


def test_time_limit_folders_and_report_may_differ(tmp_path: Path) -> None:
    other = {"timeout": 5.0, "run-dir": "elsewhere", "report": False}
    assert resume_faults(chosen(interrupted(tmp_path), **other)) == []


def test_every_other_key_that_differs_is_named_with_both_values(tmp_path: Path) -> None:
    differ = {"seed": 1, "survival.rounds": 4, "survival.dp-mechanism": "none", "min-sites": 3}
    faults = resume_faults(chosen(interrupted(tmp_path), **differ))
    assert len(faults) == len(differ)
    for key, value in differ.items():
        was = run_config.defaults()[key]
        words = f"{key} = {value!r}: must be what it was in that run, {was!r}"
        assert sum(fault.endswith(words) for fault in faults) == 1, key


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    (fault,) = resume_faults(chosen(tmp_path / "gone"))
    assert fault.startswith(f"resume = '{tmp_path / 'gone'}': ")
    assert "no such folder" in fault
    (fault,) = resume_faults(chosen(tmp_path))
    assert "is not a run folder: it lacks config.json" in fault
    (fault,) = resume_faults(chosen("a\0b"))
    assert "null" in fault
    (fault,) = resume_faults(chosen("x" * 4000))
    assert "File name too long" in fault
    assert len(fault) < 5000


def test_a_folder_that_may_not_be_entered_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    (fault,) = resume_faults(chosen(tmp_path / "locked"))
    assert fault.endswith("locked': Permission denied")


def test_a_finished_run_another_task_and_other_code_are_refused_at_once(tmp_path: Path) -> None:
    folder = interrupted(tmp_path, status="ok")
    path = folder.path / "config.json"
    config = json.loads(path.read_text())
    config["versions"]["fedapp"] = "0.0.9+aaaa"
    path.write_text(json.dumps({**config, "task": "roc-glm"}))
    faults = " ".join(resume_faults(chosen(folder)))
    assert "a run of roc-glm, not of survival" in faults
    assert "the run has its result" in faults
    assert "other code ran it (0.0.9+aaaa)" in faults


def test_a_run_that_still_goes_on_is_refused(tmp_path: Path) -> None:
    folder = interrupted(tmp_path, status="running")
    (fault,) = resume_faults(chosen(folder))
    assert f"still goes on: its process is {os.getpid()}" in fault
    set_status(folder, process=ended_process())
    assert resume_faults(chosen(folder)) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells when a process began")
def test_a_run_whose_process_id_is_another_s_by_now_has_ended(tmp_path: Path) -> None:
    """After the machine was started again, ids are given anew."""
    folder = interrupted(tmp_path, status="running")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        set_status(folder, process=child.pid)
        assert resume_faults(chosen(folder)) == []
        set_status(folder, process=1)
        assert resume_faults(chosen(folder)) == []
        child.communicate(b"\n")


def test_a_run_of_another_machine_counts_as_ended_after_a_silence(tmp_path: Path) -> None:
    """A container that is made again has another host name: nobody could look for the process."""
    folder = interrupted(tmp_path, status="running")
    set_status(folder, host=f"not-{socket.gethostname()}")
    (fault,) = resume_faults(chosen(folder))
    assert f"may still go on, on not-{socket.gethostname()}" in fault
    assert "after 1260 s" in fault
    long_ago = time.time() - 1270
    for file in folder.path.iterdir():
        os.utime(file, (long_ago, long_ago))
    assert resume_faults(chosen(folder)) == []


def test_a_file_that_moves_while_the_folder_is_looked_at_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run on another machine writes files under another name first, and moves them."""
    folder = interrupted(tmp_path, status="running")
    set_status(folder, host=f"not-{socket.gethostname()}")
    everything = [*folder.path.iterdir(), folder.path / ".config.json.0a1b.tmp"]
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(everything))
    (fault,) = resume_faults(chosen(folder))
    assert "may still go on" in fault


@pytest.mark.parametrize("room", range(5))
def test_a_run_that_could_not_go_on_for_want_of_room_can_be_resumed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Else nothing could: the new run has no checkpoint, and the old one would be marked."""
    first = interrupted(tmp_path)
    resumption = Resumption.of(run_config.read({"resume": str(first.path)}))
    assert resumption is not None
    second = RunFolder.create(tmp_path, task="survival")
    with monkeypatch.context() as patch:
        FullDisk(tmp_path, room=room).install(patch)
        with pytest.raises(OSError, match="No space left"):
            snapshots_to(second, resumption)(resumption.snapshot)
    assert resume_faults(chosen(first)) == []
    snapshots_to(second, resumption)(resumption.snapshot)
    assert read_checkpoint(second.path).round == 2
    assert read_prior(second.path) is not None


def test_a_run_is_continued_once(tmp_path: Path) -> None:
    """Two runs that go on from one checkpoint would each say that they repeat one round only."""
    first = interrupted(tmp_path)
    resumption = Resumption.of(run_config.read({"resume": str(first.path)}))
    assert resumption is not None
    second = RunFolder.create(tmp_path, task="survival")
    prior = resumption.begin(second)
    assert (prior.round, prior.runs, prior.exchanges, prior.bytes, prior.killed) == (
        2,
        1,
        3,
        100,
        0,
    )
    assert read_prior(second.path) == prior
    assert earlier_ledger(second.path) == [ROW, {**ROW, "sealed": True}]
    (fault,) = resume_faults(chosen(first))
    assert f"has been continued by {second.path}: resume that one" in fault
    with pytest.raises(Refused, match="has been continued"):
        resumption.begin(RunFolder.create(tmp_path, task="survival"))


def test_what_was_before_adds_up_over_several_runs(tmp_path: Path) -> None:
    first = interrupted(tmp_path, status="running")
    second = interrupted(tmp_path, values={"resume": str(first.path)})
    third = RunFolder.create(tmp_path, task="survival")
    for folder, onto in ((first, second), (second, third)):
        resumption = Resumption.of(run_config.read({"resume": str(folder.path)}))
        assert resumption is not None
        prior = resumption.begin(onto)
    assert (prior.runs, prior.exchanges, prior.bytes, prior.killed) == (2, 6, 200, 1)
    assert len(earlier_ledger(third.path)) == 4
    told = totals(third.path, exchanges=5, bytes_sent=7)
    assert told["resumed-from"] == str(second.path)
    assert (told["runs"], told["exchanges-total"], told["bytes-total"]) == (3, 11, 207)
    assert totals(first.path, exchanges=5, bytes_sent=7) == {}


def test_the_report_tells_what_was_before(tmp_path: Path) -> None:
    first = interrupted(tmp_path)
    second = interrupted(tmp_path, values={"resume": str(first.path)})
    resumption = Resumption.of(run_config.read({"resume": str(first.path)}))
    assert resumption is not None
    resumption.begin(second)
    text = write_report(second.path).read_text(encoding="utf-8")
    assert f"This run goes on from {first.path} after round 2" in text
    assert "3 exchanges of 100 B were made" in text
    assert "with it 6 of 200 B" in text
    assert "goes on from" not in write_report(first.path).read_text(encoding="utf-8")


def test_a_run_without_a_usable_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = interrupted(tmp_path)
    config = run_config.read({"resume": str(folder.path)})
    (folder.path / CHECKPOINT).write_bytes(b"fedapp-checkpoint")
    with pytest.raises(Refused, match="damaged"):
        Resumption.of(config)
    (folder.path / CHECKPOINT).unlink()
    with pytest.raises(Refused, match="no checkpoint"):
        Resumption.of(config)
    assert Resumption.of(run_config.read({})) is None


def test_a_damaged_word_of_what_was_before_is_told(tmp_path: Path) -> None:
    folder = interrupted(tmp_path)
    for text in ('{"folder": "x"}', '{"folder": "x", "round": -1}', "{"):
        (folder.path / "prior.json").write_text(text)
        with pytest.raises(RunFolderError, match=r"prior\.json"):
            read_prior(folder.path)
        (fault,) = resume_faults(chosen(folder))
        assert "prior.json" in fault


def test_ledgers_of_runs_before_are_read_as_ledgers(tmp_path: Path) -> None:
    first, second = interrupted(tmp_path), interrupted(tmp_path)
    row: LedgerRow = {**ROW, "reveals": "a name with a line\u2028of its own\x85"}
    first.write_ledger([row])
    resumption = Resumption.of(run_config.read({"resume": str(first.path)}))
    assert resumption is not None
    resumption.begin(second)
    assert earlier_ledger(second.path) == [row]
    for text in ("[]\n", '{"exchange": 3}\n', "{\n"):
        (second.path / "earlier-ledger.jsonl").write_text(text)
        (fault,) = resume_faults(chosen(second))
        assert "earlier-ledger.jsonl" in fault


def test_the_configuration_is_taken_over(tmp_path: Path) -> None:
    values = {"seed": 5, "survival.rounds": 4, "run-dir": str(tmp_path)}
    folder = interrupted(tmp_path, values=values)
    assert settings_of(str(folder.path)) == {
        **run_config.read(values).flat(),
        "resume": str(folder.path),
    }
    bare = RunFolder.create(tmp_path, task="survival")
    with pytest.raises(RunFolderError, match="before its configuration was complete"):
        settings_of(str(bare.path))
    own = interrupted(tmp_path, values={"survival.data": OWN_FRAMES})
    with pytest.raises(RunFolderError, match="frames given to simulate"):
        settings_of(str(own.path))


def test_the_command_refuses_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = interrupted(tmp_path, values={"run-dir": str(tmp_path)})
    command = ["run", "--in-process", "--resume", str(folder.path)]
    before = set(tmp_path.iterdir())
    assert main([*command, "--set", "survival.rounds=3"]) == 2
    assert "survival.rounds = 3: must be what it was in that run, 30" in capsys.readouterr().err
    assert main(["run", "--resume", str(tmp_path / "gone")]) == 2
    assert "no such folder" in capsys.readouterr().err
    (folder.path / CHECKPOINT).unlink()
    assert main(command) == 2
    assert "no checkpoint" in capsys.readouterr().err
    assert set(tmp_path.iterdir()) == before


def test_a_run_that_cannot_be_resumed_is_refused_in_its_own_folder(tmp_path: Path) -> None:
    """By the ServerApp, as where `flwr run` was called."""
    folder = interrupted(tmp_path)
    result = simulate(
        "survival", config={"resume": str(folder.path), "run-dir": str(tmp_path)}, seed=1
    )
    assert result.summary["status"] == "refused"
    assert "seed = 1: must be what it was" in result.summary["reason"]
    assert result.exchanges == 0
