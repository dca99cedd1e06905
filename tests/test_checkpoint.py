"""Checkpoints: whole or not at all, exact, and refused when damaged."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
import pytest

from fedapp import checkpoint as checkpoint_module
from fedapp.checkpoint import (
    CHECKPOINT,
    CheckpointError,
    checkpointing,
    read_checkpoint,
    write_checkpoint,
)
from strategies.snapshot import (
    Snapshot,
    UnusableSnapshot,
    generator_state,
    restore_generator,
)


def snapshot(number: int = 3) -> Snapshot:
    return Snapshot(
        kind="survival",
        round=number,
        facts={
            "ratio": {"Köln": math.inf, "north": 0.1 + 0.2},
            "nothing": None,
            "long": 2**127 + 1,
            "lists": [1, "a", True, [math.nan]],
        },
        arrays={
            "model/net.0.weight": np.array([[1.0, -0.0], [np.nan, 5e-324]]),
            "counts": np.array([2**62, 3], dtype=np.int64),
            "scalar": np.array(0.1, dtype=np.float32),
            "empty": np.zeros((0, 4)),
            "mask": np.array([True, False]),
        },
    )


def test_what_is_read_is_what_was_written_to_the_last_bit(tmp_path: Path) -> None:
    written = snapshot()
    write_checkpoint(tmp_path, written)
    read = read_checkpoint(tmp_path)
    assert (read.kind, read.round) == ("survival", 3)
    assert repr(read.facts) == repr(written.facts)
    assert read.arrays.keys() == written.arrays.keys()
    for name, array in written.arrays.items():
        assert read.arrays[name].dtype == array.dtype
        assert read.arrays[name].shape == array.shape
        assert read.arrays[name].tobytes() == array.tobytes()
    assert read.part("model").keys() == {"net.0.weight"}
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT], "nothing temporary is left"


def test_a_generator_goes_on_where_it_was(tmp_path: Path) -> None:
    for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox):
        ours, theirs = np.random.Generator(kind(5)), np.random.Generator(kind(6))
        ours.normal(size=7)
        write_checkpoint(tmp_path, Snapshot("x", 0, {"rng": generator_state(ours)}))
        restore_generator(theirs, read_checkpoint(tmp_path).facts["rng"])
        assert ours.normal(size=9).tolist() == theirs.normal(size=9).tolist()


@pytest.mark.parametrize("state", [{}, {"bit_generator": "PCG64"}, {"bit_generator": "MT19937"}])
def test_a_state_of_another_generator_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(UnusableSnapshot, match="random generator"):
        restore_generator(np.random.default_rng(0), state)


def test_a_checkpoint_cut_short_anywhere_or_altered_is_refused(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, snapshot())
    whole = path.read_bytes()
    for length in (0, 5, 30, 90, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=str(path)):
            read_checkpoint(tmp_path)
    for place in (0, 20, 25, 100, len(whole) // 2, len(whole) - 1):
        altered = bytearray(whole)
        altered[place] ^= 1
        path.write_bytes(bytes(altered))
        with pytest.raises(CheckpointError, match=r"damaged|version|not a checkpoint"):
            read_checkpoint(tmp_path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(tmp_path)


def test_no_checkpoint_and_another_version_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint: the run ended before"):
        read_checkpoint(tmp_path)
    path = write_checkpoint(tmp_path, snapshot())
    head, _, body = path.read_bytes().partition(b"\n")
    path.write_bytes(head.replace(b" 1 ", b" 2 ") + b"\n" + body)
    with pytest.raises(CheckpointError, match="version 2; this code reads 1"):
        read_checkpoint(tmp_path)


def test_no_pickle_is_written_or_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="numbers or booleans"):
        Snapshot("x", 0, arrays={"a": np.array([object()])})
    with pytest.raises(TypeError, match="cannot be a fact"):
        write_checkpoint(tmp_path, Snapshot("x", 0, {"a": object()}))
    assert not list(tmp_path.iterdir()), "nothing half-written is left"


def test_a_write_that_fails_leaves_the_checkpoint_before_and_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a full disk: the run goes on, and can be resumed from the older one."""
    take = checkpointing(tmp_path)
    take(snapshot(3))

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_module.os, "fsync", full)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        take(snapshot(4))
    assert "no checkpoint after round 4" in caplog.text
    assert "No space left on device" in caplog.text
    assert read_checkpoint(tmp_path).round == 3
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]


@pytest.mark.parametrize("number", [-1, True, 1.0])
def test_a_round_is_a_whole_number(number: object) -> None:
    with pytest.raises(ValueError, match="whole number"):
        Snapshot("x", number)  # type: ignore[arg-type]
