"""Processes of a rehearsal: what is said when they do not start, and that all of them end."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest

from fedapp import flower_run
from fedapp.cli import main
from fedapp.deploy import processes, rehearsal
from fedapp.deploy.processes import (
    ProcessFault,
    check_port_free,
    free_ports,
    own_environment,
    service,
    wait_until,
)

SLEEPER = "import time; time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); "
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {SLEEPER!r}])
print(child.pid, flush=True)
time.sleep(60)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def ended(process: int, *, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while is_running(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_service_ends_with_what_it_started_also_after_an_error(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "parent.log"

    def block() -> None:
        environment = own_environment(tmp_path)
        with service(
            "parent", python(PARENT), environment=environment, cwd=tmp_path, log=log
        ) as one:
            wait_until(lambda: log.read_text().endswith("\n"), seconds=20, what="its child")
            family.extend([one.process.pid, int(log.read_text())])
            assert all(map(is_running, family))
            raise KeyboardInterrupt

    family: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        block()
    assert len(family) == 2
    assert all(map(ended, family))


def test_one_that_ended_unseen_leaves_nothing_either(tmp_path: Path) -> None:
    """Nobody has asked after it before the end; what it started goes on until then."""
    log = tmp_path / "log"
    command = python(PARENT.removesuffix("time.sleep(60)\n"))
    with service("x", command, environment=own_environment(tmp_path), cwd=tmp_path, log=log) as one:
        wait_until(lambda: log.read_text().endswith("\n"), seconds=20, what="its child")
        child = int(log.read_text())
        wait_until(lambda: not is_running(one.process.pid), seconds=20, what="its end")
        assert one.process.returncode is None
    assert ended(child)


def test_one_that_does_not_listen_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_STOP_SECONDS", 0.3)
    log = tmp_path / "log"
    command = python(STUBBORN + "time.sleep(60)")
    with service("x", command, environment=own_environment(tmp_path), cwd=tmp_path, log=log) as one:
        wait_until(lambda: "up" in log.read_text(), seconds=20, what="a start")
        number = one.process.pid
    assert ended(number)


def test_one_that_ends_by_itself_is_named_with_its_last_words(tmp_path: Path) -> None:
    command = python("import sys; print('no such key'); sys.exit(7)")
    environment = own_environment(tmp_path)
    with (
        service(
            "SuperNode of a", command, environment=environment, cwd=tmp_path, log=tmp_path / "l"
        ) as one,
        pytest.raises(ProcessFault) as caught,
    ):
        wait_until(lambda: False, seconds=30, what="nothing", services=[one])
    assert "SuperNode of a ended by itself (exit code 7)" in str(caught.value)
    assert "no such key" in str(caught.value)


def test_waiting_has_an_end() -> None:
    begun = time.monotonic()
    with pytest.raises(ProcessFault, match=r"the moon: not within 0\.3 seconds"):
        wait_until(lambda: False, seconds=0.3, what="the moon")
    assert time.monotonic() - begun < 5


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ProcessFault, match="SuperLink: /no/such: No such file"),
        service("SuperLink", ["/no/such"], environment={}, cwd=tmp_path, log=tmp_path / "log"),
    ):
        pass


def test_ports_are_free_and_different() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    for port in ports:
        check_port_free(port, what="a test")


def test_processes_get_nothing_of_the_caller_s_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "secret")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("FLWR_HOME", "/elsewhere")
    environment = own_environment(tmp_path, SUPERNODE_PORT="1")
    assert not {"DATABASE_PASSWORD", "PYTHONPATH", "FLWR_HOME"} & set(environment)
    assert environment["HOME"] == str(tmp_path)
    assert environment["SUPERNODE_PORT"] == "1"


def rehearse(tmp_path: Path, *words: str) -> int:
    return main(["deploy", "rehearse", "--out", str(tmp_path / "new"), *words])


def test_a_port_that_is_taken_is_named_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert rehearse(tmp_path, "--data", "lung", "--port", str(port)) == 1
    assert f"port {port}, for the SuperLink: Address already in use" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_stopped_while_sites_are_registered_nothing_is_left(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script's own process, too: whoever stopped it may not be a terminal."""
    child = tmp_path / "child"
    (tmp_path / "register.sh").write_text(
        f"sleep 60 & echo $! > '{child}.part'\nmv '{child}.part' '{child}'\nwait\n"
    )

    def stop(_: float) -> None:
        if child.exists():
            raise error

    monkeypatch.setattr(processes.time, "sleep", stop)
    with pytest.raises(error):
        rehearsal._register(tmp_path, tmp_path / "log", own_environment(tmp_path), print)
    monkeypatch.undo()
    assert ended(int(child.read_text()))


def test_what_sites_are_told_is_echoed_and_a_failure_named(tmp_path: Path) -> None:
    (tmp_path / "register.sh").write_text("echo 'a: registered'; echo 'b: NOT' >&2; exit 1\n")
    said: list[str] = []
    with pytest.raises(ProcessFault, match="not every site"):
        rehearsal._register(tmp_path, tmp_path / "log", own_environment(tmp_path), said.append)
    assert said == ["a: registered", "b: NOT"]


def test_an_environment_without_flower_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rehearsal, "_PROGRAMS", ("flower-superlink", "flower-nothing"))
    assert rehearse(tmp_path) == 1
    assert "not installed: flower-nothing;" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--data", "no.csv"), "--data = 'no.csv': no such file"),
        (("--sites", "a,a"), "sites need different names"),
        (("--set", "survival.rounds=0"), "survival.rounds"),
        (("--time-limit", "0"), "--time-limit 0: must be above 0"),
        (("--time-limit", "nan"), "--time-limit nan: must be above 0"),
        (("--sites", "300", "--data", "lung"), "this site has none"),
    ],
)
def test_what_cannot_be_rehearsed_is_named(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rehearse(tmp_path, *words) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("task", "table", "said"),
    [
        (
            "survival",
            "time,event,x\n" + "1.5,3,0\n" * 90,
            "a, b, c: event column 'event'",
        ),
        ("survival", "time,event,x\n" + "1.5,1,0\n" * 9, "training rows"),
        (
            "roc-glm",
            "label,score\n" + "1,2\n0,3\n" * 30,
            "a, b, c: release = 'secure-counts' needs scores in [0, 1]",
        ),
        ("roc-glm", "relapse,score\n" + "1,.2\n0,.3\n" * 30, 'no column "label"'),
        ("vertical-xgboost", "id,label,u,v,w\n" + "".join(f"{n},x,1,2,3\n" for n in range(60)), ""),
        ("vertical-xgboost", "id,label,u,v,w\n" + "7,1,1,2,3\n" * 60, "60 of 60 rows have an id"),
    ],
)
def test_rows_that_sites_would_refuse_start_nothing(
    task: str, table: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A minute and a half goes by until processes are up and the run refuses them."""
    (tmp_path / "all.csv").write_text(table)
    words = ("--task", task, "--data", str(tmp_path / "all.csv"), "--sites", "a,b,c")
    assert rehearse(tmp_path, *words) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_folder_with_something_in_it_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine").write_text("mine")
    assert rehearse(tmp_path) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert os.listdir(tmp_path / "new") == ["mine"]


FLWR = """#!{python}
import signal, sys, time
if {stubborn}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open({log!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1] == "run":
    print("Successfully started run 77", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_run_that_is_not_over_in_time_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    log, script = tmp_path / "log", tmp_path / "flwr"
    script.write_text(FLWR.format(python=sys.executable, log=str(log), stubborn=stubborn))
    monkeypatch.setattr(flower_run, "_END_SECONDS", 0.3)
    script.chmod(0o755)
    monkeypatch.setattr(flower_run, "_flwr", lambda: str(script))
    begun = time.monotonic()
    with pytest.raises(flower_run.FlowerRunError, match=r"not over after 3 seconds; run 77 has"):
        flower_run.run_with_flower({}, num_supernodes=None, superlink="lab", limit=3.0)
    assert time.monotonic() - begun < 20
    assert log.read_text().splitlines()[-1] == "stop 77 lab"
