"""A run that goes on where another one was interrupted: from which, and whether it may.

The key ``resume`` names the folder of the interrupted run. The new run has a folder of its own, in
which `fedapp.prior_runs` finds what was done before it; the old folder stays as it was, but for a
note that names the new one, since two runs that go on from one checkpoint would spend privacy
twice.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from logging import INFO
from pathlib import Path

from flwr.supercore import log

from fedapp.checkpoint import (
    CheckpointError,
    checkpointing,
    read_checkpoint,
    write_checkpoint,
)
from fedapp.fingerprint import code_fingerprint
from fedapp.prior_runs import EARLIER_LEDGER, PRIOR, Prior, earlier_ledger, read_prior
from fedapp.run_config import ConfigError, RunConfig, Value
from fedapp.run_folder import RunFolder
from fedapp.run_record import RunFolderError, RunRecord
from strategies.membership import Refused
from strategies.snapshot import Snapshot, TakeSnapshot
from tasks.roc_glm.release_names import NOISY_RELEASES

OWN_FRAMES = "(frames given to simulate)"
"""What the configuration of a run says of its data if they are the caller's frames."""

MAY_DIFFER = frozenset({"timeout", "run-dir", "report", "resume"})
"""Keys of the configuration that may be others than those of the interrupted run."""

CONTINUED = "continued.json"
"""File of an interrupted run: by which run it was continued."""

_SETTLED = 2.0
_SLACK = 60.0


@dataclass(frozen=True)
class Resumption:
    """An interrupted run to go on from.

    Attributes
    ----------
    record : RunRecord
        What its folder says.
    snapshot : Snapshot
        Its checkpoint.
    """

    record: RunRecord
    snapshot: Snapshot

    @classmethod
    def of(cls, config: RunConfig) -> Resumption | None:
        """Return the run that the configuration says to go on from; None if there is none.

        Raises
        ------
        strategies.membership.Refused
            If its folder or its checkpoint cannot be read.
        """
        if not config.general.resume:
            return None
        try:
            record = open_run(config.general.resume).read()
            return cls(record, read_checkpoint(record.path))
        except (RunFolderError, CheckpointError) as error:
            raise Refused([f"resume = {config.general.resume!r}: {error}"]) from None

    @property
    def prior(self) -> Prior:
        """What was done before the run that resumes it."""
        earlier = read_prior(self.record.path)
        rows = self.record.ledger
        return Prior(
            folder=str(self.record.path),
            round=self.snapshot.round,
            runs=1 + (earlier.runs if earlier else 0),
            exchanges=max((row["exchange"] for row in rows), default=0)
            + (earlier.exchanges if earlier else 0),
            bytes=sum(row["bytes"] for row in rows if not row["sealed"])
            + (earlier.bytes if earlier else 0),
            killed=(self.record.status.get("status") == "running")
            + (earlier.killed if earlier else 0),
        )

    def begin(self, folder: RunFolder) -> Prior:
        """Say in both folders that `folder` goes on from this run; return what was before.

        Call it once sites and snapshot have been found to fit: from here on the interrupted run
        cannot be resumed again, the new one can, from a checkpoint that `folder` must have.

        Raises
        ------
        strategies.membership.Refused
            If somebody else has continued the interrupted run in the meantime.
        OSError
            If a folder cannot be written to; the interrupted run can then be resumed as before.
        """
        prior = self.prior
        rows = [*earlier_ledger(self.record.path), *self.record.ledger]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        folder.write_bytes(EARLIER_LEDGER, lines.encode())
        folder.write_json(PRIOR, vars(prior))
        _mark_continued(self.record.path, by=folder.path)
        log(INFO, "resumed: %s", prior.words())
        return prior


def snapshots_to(folder: RunFolder, earlier: Resumption | None) -> TakeSnapshot:
    """Return what a strategy hands its snapshots to: each becomes the checkpoint of `folder`.

    The first one comes when sites and state have been found to fit: then `folder` takes over from
    the run before, if there is one. Where that checkpoint cannot be written the new run ends (with
    an OSError): with none in `folder`, nobody could go on from either of them.
    """
    write = checkpointing(folder.path)
    if earlier is None:
        return write
    begun: list[Prior] = []

    def write_and_begin(snapshot: Snapshot) -> None:
        """Write the checkpoint; after the first, note who goes on from whom."""
        if begun:
            write(snapshot)
            return
        write_checkpoint(folder.path, snapshot)
        begun.append(earlier.begin(folder))

    return write_and_begin


def open_run(path: str) -> RunFolder:
    """Open the folder that the key ``resume`` names, relative to the working directory.

    Raises
    ------
    RunFolderError
        If it is no run folder.
    """
    return RunFolder.open(Path(path))


def resume_faults(chosen: Mapping[str, Value]) -> list[str]:
    """Return why the run that the key ``resume`` names cannot be gone on from.

    Parameters
    ----------
    chosen : mapping
        The whole configuration of the new run, as its ``config.json`` has it.

    Returns
    -------
    list of str
        All faults, a line each, with the names of all keys that differ; none if it can, or if
        there is nothing to resume.
    """
    path = str(chosen.get("resume", ""))
    if not path:
        return []
    start = f"resume = {path!r}: "
    try:
        record = open_run(path).read()
        read_prior(record.path)  # what `begin` will need
        earlier_ledger(record.path)
    except RunFolderError as error:
        return [f"{start}{error}"]
    faults = []
    if record.task != chosen["task"]:
        faults.append(f"it is a run of {record.task}, not of {chosen['task']}")
    if fault := _status_fault(record):
        faults.append(fault)
    if (record.path / CONTINUED).exists():
        faults.append(_continued(record.path))
    code = str(record.config.get("versions", {}).get("fedapp", ""))
    if code != code_fingerprint():
        faults.append(f"other code ran it ({code}) than runs now ({code_fingerprint()})")
    if not faults and record.task == "roc-glm" and (fault := _roc_glm_fault(chosen)):
        faults.append(fault)
    if not faults:
        faults += _differences(record.config.get("config", {}), chosen)
    return [f"{start}{fault}" for fault in faults]


def refuse_to_resume(chosen: Mapping[str, Value]) -> None:
    """Raise ConfigError with what `resume_faults` finds, or where no checkpoint can be read."""
    faults = resume_faults(chosen)
    if not faults and chosen.get("resume"):
        try:
            read_checkpoint(open_run(str(chosen["resume"])).path)
        except CheckpointError as error:
            faults = [f"resume = {chosen['resume']!r}: {error}"]
    if faults:
        raise ConfigError(faults)


def settings_of(path: str) -> dict[str, Value]:
    """Return the configuration with which a run can be resumed: its own.

    Raises
    ------
    RunFolderError
        If it is no run folder, the run ended before its configuration was complete, or its data
        were frames that only its caller has.
    """
    record = open_run(path).read()
    settings: dict[str, Value] = record.config.get("config", {})
    if not settings:
        raise RunFolderError(f"{record.path}: the run ended before its configuration was complete")
    if settings.get(f"{record.task}.data") == OWN_FRAMES:
        raise RunFolderError(
            f"{record.path}: its data were frames given to simulate: resume it by simulate, with "
            "the same sites and config, and the key resume"
        )
    return {**settings, "resume": str(record.path)}


def _status_fault(record: RunRecord) -> str:
    status = record.status.get("status")
    if status == "ok":
        return "the run has its result: there is nothing to go on with"
    if status != "running" or record.abandoned:
        return ""
    host = record.status.get("host")
    if host == socket.gethostname():
        return f"the run still goes on: its process is {record.status.get('process')}"
    # Of a process on another machine nothing is known, but a run that goes on writes its ledger
    # after every exchange, which takes no longer than the timeout.
    longest = _SETTLED * float(record.setting("timeout", 0.0)) + _SLACK
    silent = time.time() - _last_written(record.path)
    if silent > longest:
        return ""
    return (
        f"the run may still go on, on {host}: it wrote to its folder {silent:.0f} s ago; it counts "
        f"as ended after {longest:.0f} s"
    )


def _last_written(folder: Path) -> float:
    """Return when a file of a folder was last written, as a Unix time; now, if none stays."""
    times = []
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # moved into place by the run just now
            times.append(file.stat().st_mtime)
    return max(times, default=time.time())


def _roc_glm_fault(chosen: Mapping[str, Value]) -> str:
    """Say why a ROC-GLM run has no step to go on from."""
    release = chosen["roc-glm.release"]
    if release in NOISY_RELEASES:
        return (
            f"roc-glm.release = {release!r} is made once in a run: in one that goes on, noise "
            "would be drawn and its budget spent again; begin a new run if that is meant"
        )
    if chosen["roc-glm.mode"] != "fisher":
        return (
            "roc-glm.mode = 'one-shot' is one exchange after the introduction: there is nothing to "
            "go on from; begin a new run"
        )
    return ""


def _mark_continued(folder: Path, *, by: Path) -> None:
    """Note in the folder of an interrupted run who goes on from it; only one can."""
    note = json.dumps({"run-folder": str(by)}) + "\n"
    path = folder / CONTINUED
    try:
        file = path.open("xb")
    except FileExistsError:
        raise Refused([_continued(folder)]) from None
    with file:
        try:
            file.write(note.encode())
            file.flush()
        except OSError:  # nobody goes on from it
            path.unlink(missing_ok=True)
            raise


def _continued(path: Path) -> str:
    try:
        by = json.loads((path / CONTINUED).read_text(encoding="utf-8"))["run-folder"]
    except (OSError, ValueError, KeyError, TypeError):
        by = "another run"
    return f"it has been continued by {by}: resume that one"


def _differences(before: Mapping[str, Value], now: Mapping[str, Value]) -> list[str]:
    """Return one line for each key that is not what it was."""
    missing = object()
    faults = []
    for key in sorted(before.keys() | now.keys()):
        was, given = before.get(key, missing), now.get(key, missing)
        if key in MAY_DIFFER or (was == given and isinstance(was, bool) == isinstance(given, bool)):
            continue
        words = [("no such key" if value is missing else repr(value)) for value in (given, was)]
        faults.append(f"{key} = {words[0]}: must be what it was in that run, {words[1]}")
    return faults
