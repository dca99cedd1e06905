"""Runs that are stopped from outside: by a signal, by Flower, by Ctrl-C, by force."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from flwr.supercore.exit.exit_handler import trigger_exit_handlers

from fedapp import flower_run
from fedapp.cli import main
from fedapp.run_folder import RunFolder
from fedapp.server_app import _Ending
from fedapp.simulation import simulate
from fedapp.stopping import is_gone, terminated_by_exception, told_when_flower_leaves
from strategies.exchange import Exchange
from strategies.survival import SurvivalFedAvg

QUICK = {"survival.rounds": 2, "survival.local-steps": 1, "num-sites": 3}


def ended_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    return child.pid


def test_sigterm_of_an_in_process_run_is_told(tmp_path: Path) -> None:
    """From outside, as `kill` and job schedulers do."""
    settings = ["survival.rounds=100000", "survival.local-steps=1", f"run-dir={tmp_path}"]
    command = [sys.executable, "-m", "fedapp.cli", "run", "--in-process", "--set", *settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                ledgers = list(tmp_path.glob("*/ledger.jsonl"))
                if ledgers and b'"exchange": 4' in ledgers[0].read_bytes():
                    break
                time.sleep(0.05)
            child.send_signal(signal.SIGTERM)
            child.communicate(timeout=30)
        finally:
            child.kill()
    (folder,) = tmp_path.iterdir()
    record = RunFolder.open(folder).read()
    assert record.status["status"] == "failed"
    assert "stopped (SystemExit) after" in record.status["reason"]
    assert record.ledger
    assert child.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_stop_while_the_task_is_imported_is_told(
    stop: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(task: str) -> None:
        raise stop

    monkeypatch.setattr("fedapp.server_app.task_module", stopped)
    with pytest.raises(stop):
        simulate("survival", config={**QUICK, "run-dir": str(tmp_path)})
    (folder,) = tmp_path.iterdir()
    status = RunFolder.open(folder).read().status
    assert status["status"] == "failed"
    assert status["reason"] == f"stopped ({stop.__name__}) before the first exchange"


def test_the_handler_of_sigterm_is_there_only_during_a_run(tmp_path: Path) -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    simulate("survival", config={**QUICK, "run-dir": str(tmp_path)})
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with terminated_by_exception(), pytest.raises(SystemExit) as caught:
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 128 + signal.SIGTERM


def test_the_handler_of_somebody_else_is_left_alone() -> None:
    theirs = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with terminated_by_exception():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, theirs)


def test_in_another_thread_nothing_is_installed() -> None:
    found: list[object] = []

    def look() -> None:
        with terminated_by_exception():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]


def test_the_ledger_grows_with_every_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed run disclosed is in its folder, though nothing wrote its end."""
    seen: list[int] = []

    def count(self: SurvivalFedAvg, *_: object) -> None:
        (folder,) = tmp_path.iterdir()
        seen.append(max(row["exchange"] for row in RunFolder.open(folder).read().ledger))

    monkeypatch.setattr(SurvivalFedAvg, "draw_curves", count)
    result = simulate("survival", config={**QUICK, "run-dir": str(tmp_path)})
    assert seen == [2 + 3]
    rows = RunFolder.open(result.run_folder).read().ledger
    assert len(rows) == len({json.dumps(row) for row in rows}), "no row twice"


def test_flower_leaving_writes_the_end_once(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, task="survival")
    ending = _Ending(folder, Exchange.around(None), started=time.time())  # type: ignore[arg-type]
    with told_when_flower_leaves(ending.stopped):
        trigger_exit_handlers(run_before_force_exit=False)
        assert folder.read().status["status"] == "failed"
        ending.write("ok", "", {})
    assert "stopped from outside after 0 exchanges" in folder.read().status["reason"]
    assert len((folder.path / "metrics.jsonl").read_text().splitlines()) == 1


def test_an_exit_after_the_run_changes_nothing(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, task="survival")
    ending = _Ending(folder, Exchange.around(None), started=time.time())  # type: ignore[arg-type]
    with told_when_flower_leaves(ending.stopped):
        pass
    trigger_exit_handlers(run_before_force_exit=False)
    assert folder.read().status["status"] == "running"


def test_a_killed_run_is_known_by_its_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder.create(tmp_path, task="survival")
    assert folder.read().abandoned == "", "this process runs it"
    status = json.loads((folder.path / "status.json").read_text())
    status["process"] = ended_process()
    (folder.path / "status.json").write_text(json.dumps(status))
    assert "stopped from outside" in folder.read().abandoned
    assert main(["report", str(folder.path)]) == 0
    assert "has ended without a word" in capsys.readouterr().err
    assert "has ended without a word" in (folder.path / "report.html").read_text()
    status["host"] = f"not-{socket.gethostname()}"
    (folder.path / "status.json").write_text(json.dumps(status))
    assert folder.read().abandoned == "", "of another machine nothing is known"


@pytest.mark.parametrize(
    "process",
    [None, True, 0, -1, "1", 10**30, pytest.param(os.getpid(), id="this process"), 1],
)
def test_only_an_id_without_a_process_is_gone(process: object) -> None:
    assert not is_gone(process)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_a_process_that_ended_and_was_not_waited_for_is_gone() -> None:
    """A SuperLink leaves a ServerApp that was killed so, and its run could not be resumed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert not is_gone(child.pid)
        child.kill()
        deadline = time.monotonic() + 20
        while not is_gone(child.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(child.pid, 0)  # its id is not free
        assert is_gone(child.pid)


FLWR = """#!{python}
import sys, time
open({log!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1] == "run":
    print({line!r}, flush=True)
    time.sleep(60)
print("no such run")
sys.exit({code})
"""


def interrupted_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, line: str, code: int
) -> tuple[list[str], list[str]]:
    """Interrupt `run_with_flower` at the line; return what was said and the flwr commands."""
    log, script = tmp_path / "log", tmp_path / "flwr"
    script.write_text(FLWR.format(python=sys.executable, log=str(log), line=line, code=code))
    script.chmod(0o755)
    monkeypatch.setattr(flower_run, "_flwr", lambda: str(script))
    said: list[str] = []

    def echo(words: str) -> None:
        said.append(words)
        if words == line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flower_run.run_with_flower({}, num_supernodes=2, superlink="lab", echo=echo)
    return said, [entry for entry in log.read_text().splitlines() if entry.startswith("stop")]


def test_ctrl_c_stops_the_run_at_the_same_superlink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "🎊 Successfully started run 12345"
    said, stops = interrupted_run(tmp_path, monkeypatch, line=line, code=0)
    assert stops == ["stop 12345 lab"]
    assert said[-1] == "run 12345 has been stopped (flwr stop 12345 lab)"


def test_ctrl_c_says_if_the_run_could_not_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "🎊 Successfully started run 12345"
    said, _ = interrupted_run(tmp_path, monkeypatch, line=line, code=1)
    assert said[-1].startswith("run 12345 may go on, `flwr stop` said: no such run; stop it by")


def test_a_run_that_nobody_listens_to_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `fedapp run | head`: it would go on unseen."""
    line = "🎊 Successfully started run 12345"
    log, script = tmp_path / "log", tmp_path / "flwr"
    script.write_text(FLWR.format(python=sys.executable, log=str(log), line=line, code=0))
    script.chmod(0o755)
    monkeypatch.setattr(flower_run, "_flwr", lambda: str(script))

    def echo(words: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        flower_run.run_with_flower({}, num_supernodes=2, superlink="lab", echo=echo)
    assert log.read_text().splitlines()[-1] == "stop 12345 lab"


def test_ctrl_c_before_a_run_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, stops = interrupted_run(tmp_path, monkeypatch, line="Starting SuperLink", code=0)
    assert stops == []
    assert "no run had been started yet" in said[-1]
