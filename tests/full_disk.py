"""A disk that is full from some write on: half of what is written still fits, then no more."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest


class FullDisk:
    """Stands for the disk under a folder.

    Parameters
    ----------
    folder : Path
        Files elsewhere are written as ever.
    room : int
        How many writes fit; of the one after them half of the bytes, then nothing.
    """

    def __init__(self, folder: Path, *, room: int) -> None:
        self.folder = folder
        self.room = room
        self.writes = 0
        self._open = Path.open

    def install(self, patch: pytest.MonkeyPatch) -> FullDisk:
        """Let files under the folder be on this disk."""
        disk = self

        def opened(path: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            if set(mode) <= {"r", "t", "b"} or disk.folder not in path.parents:
                return disk._open(path, mode, *arguments, **named)
            assert "b" in mode, "files of a run are written as bytes"
            return _File(path, mode.replace("b", ""), disk)

        patch.setattr(Path, "open", opened)
        return self

    def take(self, size: int) -> int:
        """Return how many of so many bytes fit."""
        self.writes += 1
        if self.writes <= self.room:
            return size
        return size // 2 if self.writes == self.room + 1 else 0


class _File(io.FileIO):
    def __init__(self, path: Path, mode: str, disk: FullDisk) -> None:
        super().__init__(path, mode)
        self._disk = disk

    def write(self, data: Any) -> int:
        content = bytes(data)
        has = os.fstat(self.fileno()).st_size - self.tell()
        more = max(0, len(content) - has)
        # What a file has already takes no room again.
        fits = len(content) - more + (self._disk.take(more) if more else 0)
        written = super().write(content[:fits]) or 0
        if fits < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written
