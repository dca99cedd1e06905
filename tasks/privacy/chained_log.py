"""A log on disk that is only ever added to, and that says so when somebody took from it.

JSON lines. Each holds the SHA-256 of itself and of all before it, and a second file, the head, says
how many entries there are and which sum the last one has. So an entry that was changed or taken
away, a file that was cut off, emptied or removed is noticed instead of read as less. An entry is
on the disk (fsync), and in the head, before `OpenLog.append` returns. What a crash leaves behind
the last entry of the head is kept if it is whole, and dropped if it is a piece of a line: nobody
was told that it had been written.

Against who may write the folder this protects from accidents only: both files can be put back to
an older state together.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOCK_SECONDS = 30.0
"""How long a process waits for another one that holds the log."""

_GENESIS = hashlib.sha256(b"fedapp-chained-log-1").hexdigest()
_NAP = 0.02
_NUMBER, _SUM = "entry", "chain"


class LogFault(Exception):
    """The log is not as it was left, or cannot be read or written; says what and where."""


@dataclass
class OpenLog:
    """A log that this process holds.

    Attributes
    ----------
    entries : list of dict
        What was appended, oldest first.
    """

    folder: Path
    name: str
    entries: list[dict[str, Any]] = field(default_factory=list)
    _chain: str = _GENESIS
    _length: int = 0

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write an entry, so that it outlives whatever happens after the return.

        Parameters
        ----------
        entry : mapping
            What JSON can hold; the keys ``entry`` and ``chain`` are the log's.

        Raises
        ------
        LogFault
            If it could not be written. It may be there all the same, later.
        """
        numbered = {_NUMBER: len(self.entries) + 1, **entry}
        chain = _sum(self._chain, numbered)
        line = json.dumps({**numbered, _SUM: chain}, allow_nan=False).encode() + b"\n"
        path = self.folder / f"{self.name}.jsonl"
        try:
            if not self.entries:
                _write_head(self.folder, self.name, entries=0, chain=_GENESIS)
            _add(path, line, at=self._length)
            _sync_folder(self.folder)
            _write_head(self.folder, self.name, entries=len(self.entries) + 1, chain=chain)
        except OSError as error:
            raise LogFault(f"{path}: no entry can be written ({_words(error)})") from None
        self.entries.append(dict(entry))
        self._chain, self._length = chain, self._length + len(line)


@contextlib.contextmanager
def opened(folder: Path, name: str, *, seconds: float = LOCK_SECONDS) -> Iterator[OpenLog]:
    """Read a log, and keep other processes and threads from it while the block runs.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    name : str
        Of the files in it: ``<name>.jsonl``, ``<name>.head`` and ``<name>.lock``.
    seconds : float
        How long to wait for others.

    Raises
    ------
    LogFault
        If the folder cannot be written, another process holds the log for too long, or the log is
        not as it was left.
    """
    with _locked(folder, name, seconds):
        yield _read(folder, name)


@contextlib.contextmanager
def _locked(folder: Path, name: str, seconds: float) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:
        raise LogFault(f"{folder}: this system has no file locks (fcntl)") from None
    path = folder / f"{name}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (OSError, ValueError) as error:
        raise LogFault(f"{path}: cannot be written ({_words(error)})") from None
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise LogFault(f"{path}: held by another process for {seconds:g} s") from None
                time.sleep(_NAP)
            except OSError as error:
                raise LogFault(f"{path}: cannot be locked ({_words(error)})") from None
        yield
    finally:
        os.close(lock)  # and with it the lock


def _read(folder: Path, name: str) -> OpenLog:
    path = folder / f"{name}.jsonl"
    try:
        head = _read_head(folder / f"{name}.head")
        data = path.read_bytes() if path.exists() else None
    except OSError as error:
        raise LogFault(f"{path}: cannot be read ({_words(error)})") from None
    if head is None:
        if data:
            raise LogFault(f"{path}: its head, {name}.head, is missing: it was altered")
        return OpenLog(folder, name)
    expected, chain = head
    if data is None and expected:
        raise LogFault(f"{path}: missing, and its head knows of {expected} entries")
    log = OpenLog(folder, name)
    # What follows the last line end is a piece of a line that a crash has left.
    for line in (data or b"").split(b"\n")[:-1]:
        log.entries.append(_entry(line, log, path))
        log._length += len(line) + 1
        if len(log.entries) == expected and log._chain != chain:
            raise LogFault(f"{path}: entry {expected} is not the one that its head knows: altered")
    if len(log.entries) < expected:
        raise LogFault(
            f"{path}: {len(log.entries)} whole entries, and its head knows of {expected}: cut off"
        )
    return log


def _entry(line: bytes, log: OpenLog, path: Path) -> dict[str, Any]:
    number = len(log.entries) + 1
    altered = LogFault(f"{path}: line {number} is not as it was written: altered")
    try:
        found: dict[str, Any] = json.loads(line)
        said = found.pop(_SUM)
        if found[_NUMBER] != number or said != _sum(log._chain, found):
            raise ValueError("of another chain")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise altered from None
    log._chain = str(said)
    del found[_NUMBER]
    return found


def _sum(before: str, numbered: Mapping[str, Any]) -> str:
    words = json.dumps(numbered, sort_keys=True, allow_nan=False)
    return hashlib.sha256(f"{before}\n{words}".encode()).hexdigest()


def _read_head(path: Path) -> tuple[int, str] | None:
    """Number of entries and the sum of the last; None if there is no head."""
    if not path.exists():
        return None
    altered = LogFault(f"{path}: not as it was written: altered")
    try:
        found = json.loads(path.read_bytes())
        entries, chain = found["entries"], found["chain"]
    except (ValueError, LookupError, TypeError):
        raise altered from None
    if type(entries) is not int or entries < 0 or not isinstance(chain, str):
        raise altered
    if entries == 0 and chain != _GENESIS:
        raise altered
    return entries, chain


def _write_head(folder: Path, name: str, *, entries: int, chain: str) -> None:
    new = folder / f"{name}.head.new"
    with open(new, "wb", opener=_private) as file:
        file.write(json.dumps({"entries": entries, "chain": chain}).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, folder / f"{name}.head")
    _sync_folder(folder)


def _add(path: Path, line: bytes, *, at: int) -> None:
    """Write a line behind the whole entries; on failure leave them as they were."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(file, at)
        try:
            written = 0
            while written < len(line):
                written += os.pwrite(file, line[written:], at + written)
            os.fsync(file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file, at)
            raise
    finally:
        os.close(file)


def _sync_folder(folder: Path) -> None:
    entry = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(entry)
    finally:
        os.close(entry)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
