"""The files of a run: written whole or not at all, strict JSON, read back as written."""

from __future__ import annotations

import json
import os
import re
import secrets
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedapp import run_folder as run_folder_module
from fedapp.record_shape import LedgerRow
from fedapp.run_folder import RunFolder
from fedapp.run_record import RunFolderError
from fedapp.strict_json import plain, replace_bytes, replacing

ROW: LedgerRow = {
    "exchange": 1,
    "step": "query.set_up",
    "sender": "Universitätsklinikum Köln",
    "receiver": "server",
    "bytes": 912,
    "sealed": False,
    "reveals": "the name of the site",
}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, task="survival")


def files_of(folder: RunFolder) -> set[str]:
    return {path.name for path in folder.path.iterdir()}


def test_round_trip(folder: RunFolder) -> None:
    folder.write_config(
        {"task": "survival", "survival.rounds": 2, "survival.dp-clip-norm": 0.5},
        seed=7,
        runtime="in-process",
        defaults={"survival.rounds": 30, "roc-glm.bins": 4},
        meanings={"survival.rounds": "rounds of training"},
        versions={"pycox": "0.3.0"},
    )
    for number in (1, 2):
        folder.append_metrics({"round": number, "c-index": 0.5 + number / 10})
    folder.write_ledger([ROW])
    folder.append_ledger([{**ROW, "exchange": 2, "bytes": np.int64(5)}])  # type: ignore[typeddict-item]
    folder.write_json("curves.json", {"times": np.array([0.0, 1.5])})
    folder.finish("ok", summary={"c-index": np.float32(0.75), "rounds": np.int64(2)})

    run = RunFolder.open(folder.path).read()

    assert run.task == "survival"
    assert run.config["seed"] == 7
    assert run.config["runtime"] == "in-process"
    assert run.setting("survival.dp-clip-norm") == 0.5
    assert run.setting("survival.absent", "default") == "default"
    assert run.config["defaults"] == {"survival.rounds": 30}
    assert run.config["versions"]["pycox"] == "0.3.0"
    assert run.config["versions"]["numpy"] == np.__version__
    assert {"python", "flwr", "torch", "fedapp"} <= set(run.config["versions"])
    assert run.rounds == [{"round": 1, "c-index": 0.6}, {"round": 2, "c-index": 0.7}]
    assert run.summary == {"c-index": 0.75, "rounds": 2, "summary": True, "status": "ok"}
    assert run.ledger == [ROW, {**ROW, "exchange": 2, "bytes": 5}]
    assert folder.read_json("curves.json") == {"times": [0.0, 1.5]}
    assert folder.read_json("other.json") is None
    assert run.status["status"] == "ok"
    assert run.status["run-folder"] == str(folder.path)
    started, finished = (datetime.fromisoformat(run.status[key]) for key in ("started", "finished"))
    assert started <= finished
    assert started.utcoffset() is not None


def test_new_folder_is_absolute_named_and_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(Path("runs"), task="roc-glm")
    assert folder.path.is_absolute()
    assert folder.path.parent == tmp_path / "runs"
    assert re.fullmatch(r"\d{8}T\d{6}Z-roc-glm-[0-9a-f]{6}", folder.path.name)
    assert files_of(folder) == {
        "config.json",
        "status.json",
        "metrics.jsonl",
        "ledger.jsonl",
        "figures",
    }
    status = json.loads((folder.path / "status.json").read_text())
    assert status["status"] == "running"
    assert "finished" not in status
    assert folder.model_path().parent == folder.path


def test_never_an_existing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = iter(["aaaaaa", "aaaaaa", "aaaaaa", "bbbbbb"])
    real = secrets.token_hex
    monkeypatch.setattr(secrets, "token_hex", lambda n: next(tokens) if n == 3 else real(n))
    frozen = datetime.fromisoformat("2026-01-02T03:04:05+00:00")

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Clock:
            return cls.fromtimestamp(frozen.timestamp(), tz)

    monkeypatch.setattr(run_folder_module, "datetime", Clock)
    first = RunFolder.create(tmp_path, task="survival")
    first.append_metrics({"round": 1})
    second = RunFolder.create(tmp_path, task="survival")
    assert first.path.name == "20260102T030405Z-survival-aaaaaa"
    assert second.path.name == "20260102T030405Z-survival-bbbbbb"
    assert len(first.read().rounds) == 1
    assert second.read().rounds == []

    monkeypatch.setattr(secrets, "token_hex", lambda n: "aaaaaa")
    with pytest.raises(RunFolderError, match="no free name"):
        RunFolder.create(tmp_path, task="survival")


@pytest.mark.parametrize("task", ["", "../evil", "Survival", "a b", "a/b", "a--b"])
def test_malformed_task_name_is_refused(tmp_path: Path, task: str) -> None:
    with pytest.raises(RunFolderError, match="task = "):
        RunFolder.create(tmp_path, task=task)
    assert list(tmp_path.iterdir()) == []


def test_base_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunFolderError, match="cannot make a run folder there"):
        RunFolder.create(tmp_path / "file", task="survival")


def test_an_exception_leaves_the_old_file_and_no_other(folder: RunFolder) -> None:
    before = files_of(folder)
    old = (folder.path / "config.json").read_bytes()
    with pytest.raises(TypeError, match=r"config\.survival\.model: object cannot"):
        folder.write_config({"survival.model": object()}, seed=0, runtime="in-process")
    with pytest.raises(TypeError, match=r"value\.b: complex"):
        folder.append_metrics({"a": 1, "b": 1j})
    assert (folder.path / "config.json").read_bytes() == old
    assert (folder.path / "metrics.jsonl").read_bytes() == b""
    assert files_of(folder) == before


def test_replacing_drops_half_a_file(tmp_path: Path) -> None:
    target = tmp_path / "model.npz"
    target.write_bytes(b"old")

    def write_half() -> None:
        with replacing(target) as temporary:
            temporary.write_bytes(b"ne")
            assert target.read_bytes() == b"old"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
    replace_bytes(target, b"new")
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_move_leaves_the_old_file(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}

    def fail(source: object, target: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        folder.write_ledger([ROW])
    after = {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    assert after == before


def test_numbers_that_do_not_exist_are_never_written(folder: RunFolder) -> None:
    folder.append_metrics(
        {
            "c-index": float("nan"),
            "loss": np.float32("inf"),
            "noise-to-signal": {"a": np.inf, "b": np.float64(0.5)},
            "curve": np.array([1.0, np.nan]),
            "absent": None,
            "flag": np.bool_(True),
            "count": np.int64(3),
            "path": Path("x"),
        }
    )
    text = (folder.path / "metrics.jsonl").read_text()

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} in {text}")

    assert json.loads(text, parse_constant=refuse) == {
        "noise-to-signal": {"b": 0.5},
        "curve": [1.0, None],
        "absent": None,
        "flag": True,
        "count": 3,
        "path": "x",
    }


def test_keys_must_be_strings() -> None:
    with pytest.raises(TypeError, match=r"value\.sites: key 1 is not a string"):
        plain({"sites": {1: 0.5}})


def test_names_of_any_script_survive(folder: RunFolder) -> None:
    names = ["Köln", "東京", "a\u2028b", "line\nbreak", "\x85", "🏥", '"quoted\\"']
    folder.append_metrics({"round": 1, "noise-to-signal": dict.fromkeys(names, 0.5)})
    folder.write_ledger([{**ROW, "sender": name} for name in names])
    run = RunFolder.open(folder.path).read()
    assert list(run.rounds[0]["noise-to-signal"]) == names
    assert [row["sender"] for row in run.ledger] == names


def test_a_line_cut_short_is_not_read_and_then_overwritten(folder: RunFolder) -> None:
    folder.append_metrics({"round": 1})
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 2, "c-ind')
    assert [line["round"] for line in folder.read().rounds] == [1]
    folder.append_metrics({"round": 2})
    assert [line["round"] for line in folder.read().rounds] == [1, 2]


@pytest.mark.parametrize("status", ["running", "done", ""])
def test_a_run_ends_in_a_known_status(folder: RunFolder, status: str) -> None:
    with pytest.raises(ValueError, match="must be one of ok, not-estimable, refused, failed"):
        folder.finish(status)
    assert folder.read().status["status"] == "running"


def test_a_refused_run_says_why(folder: RunFolder) -> None:
    folder.finish("refused", "survival.rounds = 0: must be >= 1")
    run = folder.read()
    assert run.status["status"] == "refused"
    assert run.status["reason"] == "survival.rounds = 0: must be >= 1"
    assert run.summary == {}


def test_bad_ledger_rows_are_refused_with_all_faults(folder: RunFolder) -> None:
    folder.write_ledger([ROW])
    bad: Any = {**ROW, "exchange": 0, "bytes": -1, "sealed": "no", "extra": 1}
    del bad["step"]
    with pytest.raises(RunFolderError) as caught:
        folder.write_ledger([ROW, bad])
    for fault in (
        "row 2: key 'extra' is unknown",
        "row 2: exchange = 0: must be at least 1",
        "row 2: bytes = -1: must be at least 0",
        "row 2: sealed must be of type bool",
        "row 2: step is missing",
    ):
        assert fault in str(caught.value)
    assert folder.read().ledger == [ROW]


def test_seconds_of_the_ledger_are_numbers_that_can_be_times(folder: RunFolder) -> None:
    timed: Any = {**ROW, "seconds": 6.25, "site-seconds": 0}  # a writer of JSON may drop ".0"
    folder.write_ledger([ROW, timed])
    assert folder.read().ledger == [ROW, timed]
    wrong: list[Any] = [{**ROW, "seconds": -0.5}, {**ROW, "site-seconds": True}]
    with pytest.raises(RunFolderError) as caught:
        folder.write_ledger(wrong)
    assert "row 1: seconds = -0.5: must be at least 0" in str(caught.value)
    assert "row 2: site-seconds must be of type float" in str(caught.value)


def test_open_names_what_is_missing(folder: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="nowhere: no such folder"):
        RunFolder.open(tmp_path / "nowhere")
    (folder.path / "config.json").unlink()
    (folder.path / "ledger.jsonl").unlink()
    with pytest.raises(RunFolderError, match=r"it lacks config\.json, ledger\.jsonl$"):
        RunFolder.open(folder.path)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("config.json", "{", r"config\.json: not JSON"),
        ("status.json", "[]", r"status\.json: must be a JSON object"),
        ("metrics.jsonl", '{"a": 1}\n{"a": NaN}\n', r"metrics\.jsonl, line 2: not JSON \(NaN"),
        ("ledger.jsonl", '{"exchange": 1}\n', r"ledger\.jsonl: row 1: step is missing"),
    ],
)
def test_broken_files_are_named(folder: RunFolder, name: str, content: str, fault: str) -> None:
    (folder.path / name).write_text(content)
    with pytest.raises(RunFolderError, match=fault):
        RunFolder.open(folder.path).read()


def test_bytes_that_are_no_text_are_named(folder: RunFolder) -> None:
    (folder.path / "metrics.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl: cannot be read"):
        folder.read()
