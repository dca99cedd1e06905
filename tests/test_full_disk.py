"""Every task on a disk that is full from some write on: told, no half files, sites let go of."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import Message

from fedapp.run_folder import RunFolder
from fedapp.run_record import RunFolderError
from fedapp.simulation import InProcessGrid
from fedapp.strict_json import replace_json, replace_or_overwrite_json
from tasks.vertical_xgboost.end_messages import STOP
from tests.faulty_sites import time_limit
from tests.full_disk import FullDisk
from tests.test_faults import CASES, LIMIT

FULL = "No space left on device"
TASKS = ("survival", "roc-glm masked", "vertical")
BEGIN = 2
"""Writes until the folder is there; the third is the configuration, then come exchanges."""


@pytest.fixture(scope="module")
def needed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """How many writes a run needs."""
    found = {}
    for case in TASKS:
        directory = tmp_path_factory.mktemp("whole")
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(directory, room=10**9).install(patch)
            assert CASES[case].run(directory).summary["status"] == "ok"
        found[case] = disk.writes
    return found


def fill(directory: Path, case: str, room: int) -> tuple[str, list[object]]:
    """Run with room for so many writes; what is raised, and who was told to stop."""
    told: list[object] = []
    really = InProcessGrid._handle

    def handle(grid: InProcessGrid, message: Message) -> Message:
        if message.metadata.message_type == STOP:
            told.append(message.metadata.dst_node_id)
        return really(grid, message)

    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patch, time_limit(LIMIT):
        patch.setattr(InProcessGrid, "_handle", handle)
        FullDisk(directory, room=room).install(patch)
        with pytest.raises(RunFolderError) as raised:
            CASES[case].run(directory)
    assert time.monotonic() - began < LIMIT
    return str(raised.value), told


def files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("case", TASKS)
@pytest.mark.parametrize("room", range(BEGIN + 1))
def test_a_run_that_cannot_begin_asks_nobody(
    case: str, room: int, needed: dict[str, int], tmp_path: Path
) -> None:
    words, told = fill(tmp_path, case, room)
    (folder,) = tmp_path.iterdir()
    assert words == f"{folder} cannot be written to ({FULL})"
    assert told == []
    assert all(path.read_bytes() == b"" for path in files(tmp_path) if path.suffix == ".jsonl")
    assert not [path for path in files(tmp_path) if path.suffix == ".tmp"]


@pytest.mark.parametrize("case", TASKS)
@pytest.mark.parametrize("part", [0.0, 0.1, 0.4, 0.7, 1.0])
def test_a_run_whose_disk_is_full_fails_and_says_so(
    case: str,
    part: float,
    needed: dict[str, int],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The last write but one is the summary: there is no result without it.
    room = BEGIN + 1 + round(part * (needed[case] - 2 - BEGIN - 1))
    words, told = fill(tmp_path, case, room)
    (folder,) = tmp_path.iterdir()
    assert words == f"{folder} cannot be written to ({FULL})"
    record = RunFolder.open(folder).read()  # every line and every document is whole
    assert record.status["status"] == "failed"
    assert record.status["reason"] == words
    assert record.summary == {}
    assert "Traceback" not in caplog.text
    assert record.ledger or part == 0.0
    assert not [path for path in files(tmp_path) if path.suffix == ".tmp"]
    for path in files(tmp_path):
        if path.suffix == ".json":
            json.loads(path.read_text())
    if case == "vertical" and part < 0.7:  # later the parties have heard the end already
        assert set(told) == {1, 2, 3}


@pytest.mark.parametrize("case", TASKS)
def test_the_word_that_a_run_has_its_result_has_its_place(
    case: str, needed: dict[str, int], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(tmp_path, room=needed[case] - 1).install(patch)
        assert CASES[case].run(tmp_path).summary["status"] == "ok"
    (folder,) = tmp_path.iterdir()
    assert RunFolder.open(folder).read().status["status"] == "ok"


def test_a_document_that_needs_more_room_than_there_is_leaves_the_old_one(tmp_path: Path) -> None:
    path = replace_json(tmp_path / "status.json", {"status": "running"}, least=100)
    before = path.read_bytes()
    assert len(before) == 100
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(tmp_path, room=0).install(patch)
        with pytest.raises(OSError, match=FULL):
            replace_or_overwrite_json(path, {"status": "x" * 100})
        assert path.read_bytes() == before
        replace_or_overwrite_json(path, {"status": "failed"})
    assert len(path.read_bytes()) == 100
    assert json.loads(path.read_text()) == {"status": "failed"}
