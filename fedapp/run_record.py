"""What the files of a run folder say: read strictly, with the name of one that is not as written.

`fedapp.run_folder` writes them.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.record_shape import (
    LedgerRow,
    config_faults,
    ledger_faults,
    metrics_faults,
    status_faults,
)
from fedapp.stopping import is_gone
from fedapp.strict_json import decode

CONFIG = "config.json"
STATUS = "status.json"
METRICS = "metrics.jsonl"
LEDGER = "ledger.jsonl"


class RunFolderError(Exception):
    """A run folder cannot be made or read; the message names the file and what is wrong."""


@dataclass(frozen=True)
class RunRecord:
    """What the files of a run folder say.

    Attributes
    ----------
    path : Path
        The run folder.
    config : dict
        Content of ``config.json``: ``task``, ``seed``, ``runtime``, ``versions``, ``config``
        (key to value), ``defaults`` and ``meanings`` (by the same keys).
    status : dict
        Content of ``status.json``.
    rounds : list of dict
        Lines of ``metrics.jsonl`` that are not the summary, in the order written.
    summary : dict
        Last summary line of ``metrics.jsonl``; empty if the run has none.
    ledger : list of LedgerRow
        Lines of ``ledger.jsonl``.
    """

    path: Path
    config: dict[str, Any]
    status: dict[str, Any]
    rounds: list[dict[str, Any]]
    summary: dict[str, Any]
    ledger: list[LedgerRow]

    @classmethod
    def of(cls, path: Path) -> RunRecord:
        """Read the files of a run folder.

        Raises
        ------
        RunFolderError
            A file is not what it should be; names the file and the line.
        """
        lines = _read_lines(path / METRICS)
        for number, line in enumerate(lines, start=1):
            refuse(metrics_faults(line), where=f"{path / METRICS}, line {number}")
        config, status = read_document(path / CONFIG), read_document(path / STATUS)
        refuse(config_faults(config), where=str(path / CONFIG))
        refuse(status_faults(status), where=str(path / STATUS))
        summaries = [line for line in lines if line.get("summary") is True]
        return cls(
            path=path,
            config=config,
            status=status,
            rounds=[line for line in lines if line.get("summary") is not True],
            summary=summaries[-1] if summaries else {},
            ledger=read_ledger_lines(path / LEDGER),
        )

    @property
    def task(self) -> str:
        """Name of the task."""
        return str(self.config.get("task", ""))

    @property
    def abandoned(self) -> str:
        """Why the run cannot end any more, though its status is ``running``; ``""`` if it may."""
        process, host = self.status.get("process"), self.status.get("host")
        if self.status.get("status") != "running" or host != socket.gethostname():
            return ""
        if not is_gone(process, started=self.status.get("process-started")):
            return ""
        return f"stopped from outside: its process, {process} on {host}, has ended without a word"

    def setting(self, key: str, default: Any = None) -> Any:
        """Value of one key of the resolved configuration, for example ``"survival.rounds"``."""
        return self.config.get("config", {}).get(key, default)


def read_ledger_lines(path: Path) -> list[LedgerRow]:
    """Read the rows of a ledger.

    Raises
    ------
    RunFolderError
        If a line is no row of a ledger; names the file and the line.
    """
    rows = _read_lines(path)
    refuse(ledger_faults(rows), where=str(path))
    return rows  # type: ignore[return-value]  # checked row by row


def read_document(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object.

    Raises
    ------
    RunFolderError
        If it cannot be read, or is no such file.
    """
    return _parse(_read_text(path), where=str(path))


def refuse(faults: Sequence[str], *, where: str) -> None:
    """Raise `RunFolderError` with the place and all faults, if there are any."""
    if faults:
        raise RunFolderError(f"{where}: {'; '.join(faults)}")


def _read_lines(path: Path) -> list[dict[str, Any]]:
    # Split at "\n" alone: str.splitlines also splits at U+2028 and others that JSON allows in
    # strings. The piece after the last "\n" is empty, or an append that was cut short.
    *complete, _ = _read_text(path).split("\n")
    return [
        _parse(line, where=f"{path}, line {number}")
        for number, line in enumerate(complete, start=1)
    ]


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path}: cannot be read ({error})") from None


def _parse(text: str, *, where: str) -> dict[str, Any]:
    try:
        return decode(text)
    except ValueError as error:
        raise RunFolderError(f"{where}: {error}") from None
