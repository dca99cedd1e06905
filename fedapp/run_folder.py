"""The folder a run leaves behind: configuration, status, metrics, ledger, model and figures.

A reader never sees half a file, and what is written is strict JSON: a number that does not exist
(NaN, infinity) is left out together with its key.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedapp.fingerprint import code_fingerprint
from fedapp.record_shape import LedgerRow, ledger_faults
from fedapp.run_record import (
    CONFIG,
    LEDGER,
    METRICS,
    STATUS,
    RunFolderError,
    RunRecord,
    read_document,
    refuse,
)
from fedapp.stopping import start_of
from fedapp.strict_json import (
    append_lines,
    encode,
    plain,
    replace_bytes,
    replace_json,
    replace_or_overwrite_json,
)

FIGURES = "figures"

STATUSES = ("running", "ok", "not-estimable", "refused", "failed")

_TASK_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VERSIONED = ("flwr", "torch", "numpy")
_NAME_ATTEMPTS = 100
_STATUS_BYTES = 4096
"""Size of ``status.json`` from the beginning: what a file system takes for a small file anyway."""


@dataclass(frozen=True)
class RunFolder:
    """The files of one run, to write while it goes on and to read afterwards.

    Make one with `create` or `open`; ``path`` is absolute.
    """

    path: Path

    @classmethod
    def create(cls, base: Path, *, task: str) -> RunFolder:
        """Make a new folder ``<base>/<UTC timestamp>-<task>-<random>`` with status ``running``.

        Parameters
        ----------
        base : Path
            Folder that holds the runs; made if it does not exist.
        task : str
            Name of the task: lower-case letters and digits, in words joined by ``-``.

        Raises
        ------
        RunFolderError
            The name of the task is malformed, or the folder cannot be made or written to.
        """
        if not _TASK_NAME.fullmatch(task):
            raise RunFolderError(
                f"task = {task!r}: must be lower-case letters and digits, in words joined by '-'"
            )
        started = datetime.now(UTC)
        try:
            base = base.expanduser().resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise RunFolderError(f"{str(base)!r}: no run folder can be there ({error})") from None
        folder = cls(_new_folder(base, started=started, task=task))
        # Who runs it: a process that is killed cannot say so, but it can be looked for.
        running: dict[str, object] = {"process": os.getpid(), "host": socket.gethostname()}
        if started_at := start_of(os.getpid()):
            running["process-started"] = started_at
        begun = {"status": "running", "reason": "", "started": _timestamp(started), **running}
        with _writing(folder.path):
            folder.figures.mkdir()
            replace_json(folder.path / CONFIG, {"task": task, "versions": _versions()})
            for name in (METRICS, LEDGER):
                replace_bytes(folder.path / name, b"")
            # With room for its end: that has to be told on a full disk, too.
            replace_json(folder.path / STATUS, folder._status(begun), least=_STATUS_BYTES)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open the folder of an earlier run.

        Raises
        ------
        RunFolderError
            The folder does not exist, or is not a run folder; says which files it lacks.
        """
        try:
            path = path.expanduser().resolve()
            if not path.is_dir():
                raise RunFolderError(f"{path}: no such folder")
            files = (CONFIG, STATUS, METRICS, LEDGER)
            missing = [name for name in files if not (path / name).is_file()]
        except OSError as error:  # a folder that may not be entered, a name that is too long
            raise RunFolderError(f"{str(path)[:200]!r}: {error.strerror or error}") from None
        except (ValueError, RuntimeError) as error:
            raise RunFolderError(f"{str(path)!r}: {error}") from None
        if missing:
            raise RunFolderError(f"{path} is not a run folder: it lacks {', '.join(missing)}")
        return cls(path)

    @property
    def figures(self) -> Path:
        """Folder of the figures."""
        return self.path / FIGURES

    def model_path(self, suffix: str = ".npz") -> Path:
        """Where the trained model belongs; write it inside `replacing` or with `write_bytes`."""
        return self.path / f"model{suffix}"

    def write_config(
        self,
        config: Mapping[str, Any],
        *,
        seed: int | None,
        runtime: str,
        defaults: Mapping[str, Any] | None = None,
        meanings: Mapping[str, str] | None = None,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        """Write ``config.json``.

        Parameters
        ----------
        config : mapping
            Resolved run configuration: dotted kebab-case key to value, of this task only.
        seed : int or None
            Seed of the run; None if its randomness came from the operating system.
        runtime : str
            What ran it: ``"flwr-simulation"``, ``"flwr-serverapp"`` or ``"in-process"``.
        defaults, meanings : mapping, optional
            Default and one-line meaning of the same keys. The report needs them to mark what
            was changed and to explain it, since it reads nothing but the run folder. Other keys
            in them are ignored.
        versions : mapping, optional
            Further versions to record, next to those of Python, fedapp, flwr, torch and numpy.

        Raises
        ------
        RunFolderError
            The folder cannot be written to.
        """
        document = {
            "task": self._read_json(CONFIG).get("task", ""),
            "seed": seed,
            "runtime": runtime,
            "config": config,
            "defaults": {key: value for key, value in (defaults or {}).items() if key in config},
            "meanings": {key: value for key, value in (meanings or {}).items() if key in config},
            "versions": {**_versions(), **(versions or {})},
        }
        with _writing(self.path):
            replace_json(self.path / CONFIG, document)

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``; keys whose number does not exist are left out."""
        append_lines(self.path / METRICS, [encode(metrics)])

    def write_ledger(self, rows: Sequence[LedgerRow]) -> None:
        """Write the whole ledger, in place of what was there."""
        lines = _ledger_lines(rows)
        replace_bytes(self.path / LEDGER, "".join(f"{line}\n" for line in lines).encode())

    def append_ledger(self, rows: Iterable[LedgerRow]) -> None:
        """Add rows to the ledger, so that a run which dies has said what it disclosed."""
        append_lines(self.path / LEDGER, _ledger_lines(rows))

    def write_json(self, name: str, document: Mapping[str, Any]) -> Path:
        """Write a further JSON file, for example ``curves.json``."""
        return replace_json(self.path / name, document)

    def write_bytes(self, name: str, content: bytes) -> Path:
        """Write a further file, for example the model."""
        return replace_bytes(self.path / name, content)

    def finish(
        self, status: str, reason: str = "", summary: Mapping[str, Any] | None = None
    ) -> None:
        """Say how the run ended; with a summary, append it to the metrics first.

        Parameters
        ----------
        status : str
            ``"ok"``, ``"not-estimable"``, ``"refused"`` or ``"failed"``.
        reason : str
            Why, if it is not ``"ok"``.
        summary : mapping, optional
            Flat results. ``summary: true`` and ``status`` are added to the line.
        """
        if status not in STATUSES[1:]:
            raise ValueError(f"status = {status!r}: must be one of {', '.join(STATUSES[1:])}")
        if summary is not None:
            self.append_metrics({**summary, "summary": True, "status": status})
        started = self._read_json(STATUS).get("started", "")
        finished = _timestamp(datetime.now(UTC))
        ended = {"status": status, "reason": reason, "started": started, "finished": finished}
        replace_or_overwrite_json(self.path / STATUS, self._status(ended))

    def read(self) -> RunRecord:
        """Read the whole folder.

        Raises
        ------
        RunFolderError
            A file is not what it should be; names the file and the line.
        """
        return RunRecord.of(self.path)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Content of a further JSON file; None if the run did not leave it."""
        return self._read_json(name) if (self.path / name).is_file() else None

    def _status(self, document: Mapping[str, object]) -> dict[str, object]:
        return {**document, "run-folder": str(self.path)}

    def _read_json(self, name: str) -> dict[str, Any]:
        return read_document(self.path / name)


def _ledger_lines(rows: Iterable[LedgerRow]) -> list[str]:
    converted = [plain(row, name="ledger row") for row in rows]
    refuse(ledger_faults(converted), where="ledger")
    return [encode(row) for row in converted]


def base_fault(base: Path) -> str:
    """Say why no run folder can be made under `base`, which need not exist; ``""`` if one can."""
    try:
        base = base.expanduser().resolve()
        nearest = next(path for path in (base, *base.parents) if path.exists())
    except (OSError, ValueError, RuntimeError) as error:
        return f"cannot be used ({error})"
    if not nearest.is_dir():
        return f"{nearest} is a file, and no folder"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"{nearest} cannot be written to"
    return ""


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say which folder it is that cannot be written to."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise RunFolderError(f"{path} cannot be written to ({reason})") from None


def _new_folder(base: Path, *, started: datetime, task: str) -> Path:
    stamp = started.strftime("%Y%m%dT%H%M%SZ")
    try:
        base.mkdir(parents=True, exist_ok=True)
        for _ in range(_NAME_ATTEMPTS):
            path = base / f"{stamp}-{task}-{secrets.token_hex(3)}"
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    except OSError as error:
        raise RunFolderError(f"{base}: cannot make a run folder there ({error.strerror})") from None
    raise RunFolderError(f"{base}: found no free name for a run folder")


def _timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "fedapp": code_fingerprint()}
    for package in _VERSIONED:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions
