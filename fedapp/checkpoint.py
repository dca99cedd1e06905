"""The checkpoint in a run folder: the last snapshot of its strategy, whole or not at all.

One file: a line with format, version and SHA-256 of what follows, then an NPZ archive without
pickle whose member ``facts`` is JSON. The hash finds a file that was cut short or altered by
accident. It is no signature: whoever may write in the run folder can write another checkpoint, as
they can write another model.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.supercore import log
from numpy.typing import NDArray

from fedapp.strict_json import replacing
from strategies.snapshot import Snapshot

CHECKPOINT = "checkpoint"
"""Name of the file in a run folder."""

VERSION = 1
_FORMAT = b"fedapp-checkpoint"
_FACTS = "facts"
_ARRAY = "array/"


class CheckpointError(ValueError):
    """A checkpoint is not there or not usable; the message names the file and what is wrong."""


def write_checkpoint(folder: Path, snapshot: Snapshot) -> Path:
    """Write the checkpoint of a run folder in place of the one before.

    It is on the disk, name and content, when this returns: after a loss of power the folder has
    either the old or the new one.

    Raises
    ------
    OSError
        If it cannot be written; the one before is then left as it was.
    TypeError
        If the facts of the snapshot are not what JSON can hold.
    """
    path = folder / CHECKPOINT
    body = _packed(snapshot)
    head = b"%s %d %s\n" % (_FORMAT, VERSION, hashlib.sha256(body).hexdigest().encode())
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(head)
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(folder)
    return path


def read_checkpoint(folder: Path) -> Snapshot:
    """Read the checkpoint of a run folder.

    Raises
    ------
    CheckpointError
        If there is none, or it is cut short, altered, or of another version.
    """
    path = folder / CHECKPOINT
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: no checkpoint: the run ended before there was anything to go on from"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    head, _, body = content.partition(b"\n")
    words = head.split(b" ")
    if len(words) != 3 or words[0] != _FORMAT:
        raise CheckpointError(f"{path}: not a checkpoint, or its beginning is damaged")
    if words[1] != str(VERSION).encode():
        raise CheckpointError(
            f"{path}: version {words[1].decode(errors='replace')[:20]}; this code reads {VERSION}"
        )
    if hashlib.sha256(body).hexdigest().encode() != words[2]:
        raise CheckpointError(f"{path}: damaged: cut short, or altered after it was written")
    try:
        return _unpacked(body)
    except (ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path}: not what a checkpoint holds ({error})") from None


def checkpointing(folder: Path) -> Callable[[Snapshot], None]:
    """Return what a strategy hands its snapshots to: each becomes the folder's checkpoint.

    Where it cannot be written (the disk is full, the folder is gone) the run goes on with a
    warning, since it can still give its result; it can be resumed from the last one written.
    """

    def write(snapshot: Snapshot) -> None:
        """Write it, or warn that it cannot be."""
        try:
            write_checkpoint(folder, snapshot)
        except OSError as error:
            log(
                WARNING,
                "no checkpoint after round %d: %s cannot be written (%s); the run goes on, and "
                "can be resumed from the last checkpoint that was written only",
                *(snapshot.round, folder / CHECKPOINT, error.strerror or error),
            )

    return write


def remove_checkpoint(folder: Path) -> None:
    """Remove the checkpoint of a run that has its result: there is nothing to go on from."""
    try:
        (folder / CHECKPOINT).unlink(missing_ok=True)
    except OSError as error:
        log(WARNING, "%s cannot be removed (%s)", folder / CHECKPOINT, error.strerror or error)


def _packed(snapshot: Snapshot) -> bytes:
    # NaN and infinity are facts here, too: an unbounded ratio has to come back as one.
    document = {"kind": snapshot.kind, "round": snapshot.round, "facts": snapshot.facts}
    text = json.dumps(document, ensure_ascii=False, default=_refuse)
    members: dict[str, NDArray[Any]] = {_FACTS: np.frombuffer(text.encode(), dtype=np.uint8)}
    members |= {f"{_ARRAY}{name}": array for name, array in snapshot.arrays.items()}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **members)
    return buffer.getvalue()


def _unpacked(body: bytes) -> Snapshot:
    with np.load(io.BytesIO(body), allow_pickle=False) as archive:
        document = json.loads(archive[_FACTS].tobytes().decode())
        arrays = {
            name.removeprefix(_ARRAY): archive[name]
            for name in archive.files
            if name.startswith(_ARRAY)
        }
    if not isinstance(document, dict) or not isinstance(document.get("facts"), dict):
        raise ValueError("facts must be an object")
    return Snapshot(
        kind=str(document["kind"]),
        round=document["round"],
        facts=document["facts"],
        arrays=arrays,
    )


def _refuse(value: object) -> None:
    raise TypeError(f"{type(value).__name__} cannot be a fact of a checkpoint")


def _sync_folder(folder: Path) -> None:
    """Write the folder's names to the disk, where the system can do that."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
