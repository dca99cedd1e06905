"""The command line: thin, with an exit code that tells what happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedapp import entry, flower_run, run_config
from fedapp.cli import main
from fedapp.run_config import Value
from fedapp.site_data import write_site_files

SMALL = ["survival.rounds=2", "survival.local-steps=1", "report=false"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x = rng.normal(size=90)
    frame = pd.DataFrame(
        {"time": rng.exponential(np.exp(-x)) + 0.01, "event": rng.integers(0, 2, 90), "x": x}
    )
    path = tmp_path / "rows.csv"
    frame.to_csv(path, index=False)
    return path


def run(tmp_path: Path, *arguments: str) -> int:
    settings = ["--set", *SMALL, f"run-dir={tmp_path / 'runs'}"]
    return main(["run", "survival", "--in-process", *settings, *arguments])


def test_run_prints_the_run_folder_and_ends_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--clients", "3", "--set", "survival.model=DeepSurv") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    folder = Path(last.removeprefix("run folder: "))
    assert folder.is_absolute()
    config = json.loads((folder / "config.json").read_text())["config"]
    assert config["survival.rounds"] == 2
    assert config["num-sites"] == 3


def test_own_file_by_a_relative_path(
    tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path, "--data", "rows.csv", "--clients", "3") == 0


@pytest.mark.parametrize("how", ["--config", "--set"])
def test_the_task_may_be_a_setting(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toml = tmp_path / "mine.toml"
    toml.write_text('task = "roc-glm"\n')
    named = {"--config": str(toml), "--set": "task=roc-glm"}[how]
    assert main(["check", how, named]) == 0
    assert "configuration: task roc-glm" in capsys.readouterr().out
    assert main(["check", "survival", how, named]) == 2
    assert "task = 'roc-glm': survival was asked for" in capsys.readouterr().err


def test_settings_file_and_what_wins(tmp_path: Path) -> None:
    toml = tmp_path / "mine.toml"
    toml.write_text("num-sites = 4\n[survival]\nrounds = 7\ndp-mechanism = 'none'\n")
    assert run(tmp_path, "--config", str(toml)) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    config = json.loads((folder / "config.json").read_text())["config"]
    assert config["survival.dp-mechanism"] == "none"
    assert config["survival.rounds"] == 2, "--set goes before the file"
    assert config["num-sites"] == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "survival.round=3"], "did you mean survival.rounds?"),
        (["--set", "survival.rounds=many"], "survival.rounds = 'many': must be whole number"),
        (["--set", "survival.rounds"], "must be KEY=VALUE"),
        (["--config", "missing.toml"], "missing.toml"),
        (["--clients", "0"], "num-sites = 0"),
    ],
)
def test_what_is_wrong_with_the_command_line_is_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(tmp_path, *arguments) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "runs").exists(), "nothing starts"


def test_refused_data_are_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: Path
) -> None:
    assert run(tmp_path, "--data", str(table), "--set", "survival.time=tiem") == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("fedapp: refused: site-0, site-1, site-2, site-3, site-4: ")
    assert "'tiem'" in last


def test_no_result_is_code_4(tmp_path: Path, table: Path) -> None:
    frame = pd.read_csv(table)
    frame["event"] = 0
    frame.to_csv(table, index=False)
    assert run(tmp_path, "--data", str(table)) == 4


def test_check_starts_nothing_and_names_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: Path
) -> None:
    assert main(["check", "--clients", "3", "--set", f"run-dir={tmp_path / 'runs'}"]) == 0
    out = capsys.readouterr().out
    assert "site-2" in out
    assert "torch" in out
    assert not (tmp_path / "runs").exists()
    assert main(["check", "--data", str(table), "--set", "survival.event=evnt"]) == 2
    assert "'evnt'" in capsys.readouterr().out
    assert main(["check", "--clients", "1"]) == 2
    assert "min-sites" in capsys.readouterr().out


def test_config_lists_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    out = capsys.readouterr().out
    for name, default in run_config.defaults().items():
        assert f"{name} = {run_config.toml_value(default)}\n" in out
    assert main(["config", "survival.dp", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {key["name"] for key in listed} == {
        name for name in run_config.defaults() if name.startswith("survival.dp")
    }
    assert main(["config", "nothing-like-it"]) == 2


def test_predict_and_report_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: Path
) -> None:
    assert run(tmp_path, "--data", str(table), "--clients", "3") == 0
    (folder,) = (tmp_path / "runs").iterdir()
    capsys.readouterr()
    assert main(["report", str(folder)]) == 0
    assert Path(capsys.readouterr().out.strip()).is_file()

    out = tmp_path / "out.csv"
    assert main(["predict", str(folder), str(table), "--times", "0.5,1", "--out", str(out)]) == 0
    predicted = pd.read_csv(out)
    assert list(predicted) == ["risk", "survival(0.5)", "survival(1)"]
    assert len(predicted) == 90
    assert (predicted["survival(0.5)"] >= predicted["survival(1)"]).all()
    assert np.corrcoef(predicted["risk"], -predicted["survival(1)"])[0, 1] > 0.8

    capsys.readouterr()
    pd.read_csv(table).drop(columns="x").to_csv(table, index=False)
    assert main(["predict", str(folder), str(table)]) == 2
    assert 'column "x"' in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert main(["predict", str(tmp_path), str(table)]) == 2


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize(
    ("run_dir", "words"),
    [
        ("a-file", "is a file, and no folder"),
        ("a-file/runs", "is a file, and no folder"),
        ("runs\0", "null"),
    ],
)
def test_a_run_dir_that_cannot_be_is_one_line_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, run_dir: str, words: str
) -> None:
    (tmp_path / "a-file").write_text("")
    chosen = ["--set", f"run-dir={tmp_path / run_dir}"]
    assert main([command, "survival", *chosen]) == 2
    lines = "".join(capsys.readouterr()).splitlines()
    (line,) = [line for line in lines if "run-dir" in line]
    assert words in line
    assert not any("Traceback" in line for line in lines)


def test_a_run_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What access rights promise is not always so: a full disk, a file system of its own."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    assert run(tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("cannot make a run folder there (No space left on device)")


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize("data", ["nofile.csv", "no/such/folder", "gbsg3", "~/nofile.parquet"])
def test_data_that_are_not_there_are_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, data: str
) -> None:
    chosen = ["--set", f"run-dir={tmp_path / 'runs'}"]
    assert main([command, "survival", "--data", data, *chosen]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fedapp: --data = {data!r}: no such file")
    assert "gbsg2" in line
    assert not (tmp_path / "runs").exists()


def test_a_relative_folder_of_site_files_is_found(
    tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.read_csv(table)
    write_site_files([frame.iloc[:45], frame.iloc[45:]], tmp_path)
    monkeypatch.chdir(tmp_path.parent)
    assert run(tmp_path, "--data", tmp_path.name, "--clients", "2") == 0


def test_a_text_key_takes_the_text_as_it_stands(tmp_path: Path, table: Path) -> None:
    frame = pd.read_csv(table)
    frame["event"] += 1
    frame.to_csv(table, index=False)
    values = ["survival.event-value=2", "survival.censored-value=1", "survival.hidden-layers=16"]
    assert run(tmp_path, "--data", str(table), "--clients", "3", "--set", *values) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    config = json.loads((folder / "config.json").read_text())["config"]
    assert [config[value.partition("=")[0]] for value in values] == ["2", "1", "16"]


@pytest.mark.parametrize("times", ["abc", "1,,x", "nan", "1,inf"])
def test_times_that_are_no_numbers_name_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: Path, times: str
) -> None:
    assert main(["predict", str(tmp_path), str(table), "--times", times]) == 2
    assert capsys.readouterr().err.startswith(f"fedapp: --times {times}: must be numbers")


def test_times_that_look_alike_keep_their_columns(tmp_path: Path, table: Path) -> None:
    assert run(tmp_path, "--data", str(table), "--clients", "3") == 0
    (folder,) = (tmp_path / "runs").iterdir()
    out = tmp_path / "out.csv"
    times = "0.5,0.50000001,0.50000002"
    assert main(["predict", str(folder), str(table), "--times", times, "--out", str(out)]) == 0
    columns = [f"survival({time})" for time in times.split(",")]
    assert list(pd.read_csv(out)) == ["risk", *columns]


def test_check_says_the_same_of_many_sites_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: Path
) -> None:
    chosen = ["--data", str(table), "--set", "survival.event=evnt", f"run-dir={tmp_path}"]
    assert main(["check", "--clients", "40", *chosen]) == 2
    lines = [line for line in capsys.readouterr().out.splitlines() if "evnt" in line]
    assert len(lines) == 1
    assert "site-0, site-1, site-2 and 37 more" in lines[0]


def test_identity_writes_a_key_and_prints_what_to_pin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tasks.secure.identity import read_identity
    from tasks.secure.keys import SiteKeys

    file = tmp_path / "site.pem"
    assert main(["identity", str(file)]) == 0
    fingerprint = capsys.readouterr().out.strip()
    keys = SiteKeys.generate(site="north", run="run-1", identity=read_identity(file))
    assert keys.public.fingerprint == fingerprint
    assert file.stat().st_mode & 0o777 == 0o600
    assert main(["identity", str(file)]) == 2
    assert str(file) in capsys.readouterr().err


def test_a_folder_without_a_ledger_is_said_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["site-ledger", str(tmp_path)]) == 0
    assert "no ledger here" in capsys.readouterr().out
    assert main(["site-ledger", str(tmp_path), "--json", "--max-epsilon", "3"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["runs"], document["left"]) == ([], 3.0)
    assert not list(tmp_path.iterdir())


def test_output_that_nobody_reads_any_more_ends_quietly() -> None:
    command = [sys.executable, "-m", "fedapp.entry", "config"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_ctrl_c_while_it_starts_ends_it_quietly(tmp_path: Path) -> None:
    """At any moment of the imports: where it comes out of a module, Python shows a trace."""
    # The first module that the command line imports tells that it is being imported, and waits.
    (tmp_path / "argparse.py").write_text(
        "import sys, time\nprint('importing', flush=True)\ntime.sleep(60)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parent.parent)])
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; from fedapp.entry import main; sys.exit(main())"],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"importing\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b""


def test_ctrl_c_that_is_ignored_stays_so_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the background of a script: signals of a terminal are not for it."""
    set_to: list[object] = []
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN)
    monkeypatch.setattr(signal, "signal", lambda _, handler: set_to.append(handler))
    monkeypatch.setattr("fedapp.cli.main", lambda: 0)
    assert entry.main() == 0
    assert set_to == []


def test_standard_output_may_be_closed() -> None:
    """As a service manager or `>&-` leaves it: Python has none then."""
    command = [sys.executable, "-m", "fedapp.cli", "config", "seed"]
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_ctrl_c_in_a_command_has_the_code_of_a_shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedapp.run_config.all_keys", stopped)
    assert main(["config"]) == 130
    assert capsys.readouterr().err == "fedapp: stopped\n"


def with_superlink(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, end: str = "", folder: str = "/not/here/run"
) -> tuple[int, dict[str, Value]]:
    """Call `run` for a SuperLink of another machine that prints `end`; return code and settings."""
    given: dict[str, Value] = {}

    def instead(values: dict[str, Value], *, echo: Callable[[str], None], **_: object) -> Path:
        given.update(values)
        echo(f"INFO :      run folder: {folder}")
        if end:
            echo(f"INFO :      run status: {end}")
        return Path(folder)

    monkeypatch.setattr(flower_run, "run_with_flower", instead)
    return main(["run", "survival", "--superlink", "hub", *arguments]), given


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("ok", 0, ""),
        ("refused: south: no file; and more", 3, "fedapp: refused: south: no file; and more"),
        ("not-estimable: one-class", 4, "fedapp: not-estimable: one-class"),
        ("failed: train: 1 of 3", 1, "fedapp: failed: train: 1 of 3"),
        ("", 1, "how the run ended has not been heard here"),
    ],
)
def test_a_run_folder_of_another_machine_is_told_by_what_its_server_printed(
    end: str,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert with_superlink(monkeypatch, end=end)[0] == code
    said = capsys.readouterr()
    assert words in said.err
    assert bool(words) == bool(said.err)
    assert said.out.splitlines()[-1] == "run folder: /not/here/run (of the server's machine)"


def test_a_named_superlink_says_where_run_folders_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The operator's folder is none of the server's."""
    monkeypatch.chdir(tmp_path)
    assert "run-dir" not in with_superlink(monkeypatch)[1]
    paths = ["run-dir=results", "resume=results/first"]
    given = with_superlink(monkeypatch, "--set", *paths)[1]
    assert (given["run-dir"], given["resume"]) == ("results", "results/first")
    (tmp_path / "results/first").mkdir(parents=True)
    given = with_superlink(monkeypatch, "--set", *paths)[1]
    assert given["resume"] == str(tmp_path / "results/first"), "of this machine"
