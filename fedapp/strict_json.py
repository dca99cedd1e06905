"""Files that a reader never sees half of, holding strict JSON.

Whole files go to a temporary name and are moved into place; lines are appended in one write. A
number that does not exist (NaN, infinity) is left out of a mapping together with its key.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; move it to `path` at the end, drop it on an exception."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def plain(value: Any, *, name: str = "value") -> Any:
    """Turn numpy values, paths and containers into what strict JSON can hold.

    A NaN or infinite number is dropped with its key from a mapping, and is None in a sequence
    (so that the others keep their places).

    Raises
    ------
    TypeError
        Of a type that is not data, or a key that is not a string; names the place.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return _plain_mapping(value, name=name)
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), name=name)
    if isinstance(value, list | tuple):
        return [plain(item, name=f"{name}[{index}]") for index, item in enumerate(value)]
    raise TypeError(f"{name}: {type(value).__name__} cannot be written as JSON")


def _plain_mapping(mapping: Mapping[Any, Any], *, name: str) -> dict[str, Any]:
    converted = {}
    for key, value in mapping.items():
        if not isinstance(key, str):
            raise TypeError(f"{name}: key {key!r} is not a string")
        entry = plain(value, name=f"{name}.{key}")
        if entry is not None or value is None:
            converted[key] = entry
    return converted


def encode(document: Mapping[str, Any], *, indent: int | None = None) -> str:
    """Return `document` as strict JSON; numbers that do not exist are left out (see `plain`)."""
    return json.dumps(plain(document), ensure_ascii=False, allow_nan=False, indent=indent)


def decode(text: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises
    ------
    ValueError
        Not JSON (NaN and Infinity are not), or not an object.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number")

    try:
        document = json.loads(text, parse_constant=refuse)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(document, dict):
        raise ValueError("must be a JSON object")
    return document


def replace_json(path: Path, document: Mapping[str, Any], *, least: int = 0) -> Path:
    """Write a JSON file in one step; return `path`.

    Parameters
    ----------
    path : Path
    document : mapping
    least : int
        Bytes that the file has at least, for :func:`replace_or_overwrite_json`: spaces fill it up.
    """
    return replace_bytes(path, _json_bytes(document, least=least))


def replace_or_overwrite_json(path: Path, document: Mapping[str, Any]) -> Path:
    """Write a JSON file that is there in one step or, where the disk is full, in its place.

    Its blocks are on the disk already (file systems that copy on write may want new ones). A
    process that is killed in the middle of that one write could leave a mixture.

    Raises
    ------
    OSError
        If there is no room for another file, and `document` needs more than the old one has.
    """
    try:
        return replace_json(path, document)
    except OSError:
        size = path.stat().st_size
        content = _json_bytes(document, least=size)
        if len(content) > size:
            raise
    with path.open("r+b", buffering=0) as file:
        file.write(content)
    return path


def _json_bytes(document: Mapping[str, Any], *, least: int = 0) -> bytes:
    return encode(document, indent=2).encode().ljust(least - 1) + b"\n"


def replace_bytes(path: Path, content: bytes) -> Path:
    """Write a file in one step; return `path`."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return path


def append_lines(path: Path, lines: list[str]) -> None:
    """Append lines in one write; a line that an earlier process left unfinished is dropped."""
    payload = "".join(f"{line}\n" for line in lines).encode()
    content_end = path.stat().st_size if path.exists() else 0
    with path.open("r+b" if content_end else "wb") as file:
        if content_end:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.truncate(path.read_bytes().rfind(b"\n") + 1)
            file.seek(0, os.SEEK_END)
        file.write(payload)
        file.flush()
