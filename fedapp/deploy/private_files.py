"""Files that only their owner reads, and none that is written over by accident."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Write a new file with mode 0600; its folder, if that is new, has mode 0700.

    The file is never readable by others, not even for a moment.

    Raises
    ------
    FileExistsError
        If the file is there.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def replace_private(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write a file in the place of one that may be there, whose owner it gets; never half of it.

    By default the file is never readable by others, not even for a moment. Root may so renew what
    the user of a server reads.
    """
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    write_private(new, content)
    if mode != 0o600:
        new.chmod(mode)
    if path.exists():
        owner = path.stat()
        with suppress(PermissionError):
            os.chown(new, owner.st_uid, owner.st_gid)
    new.replace(path)


def write_text(path: Path, text: str, *, executable: bool = False) -> None:
    """Write a text file that others may read and its owner may change, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755 if executable else 0o644)  # whatever the umask is


def check_new_folder(folder: Path) -> None:
    """Refuse a folder that holds anything: it may be keys that are in use.

    Raises
    ------
    ValueError
        If it is there and is no empty folder.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"{folder}: is there already and is not an empty folder; nothing was written. "
            "Name a new one: keys that are in use are never written over"
        )
