"""The file of a trained survival model: arrays, and a header of JSON text.

The file is a NumPy ``.npz`` archive, the header one of its arrays, of bytes. It is read without
pickle, so a file from elsewhere cannot run code.
"""

from __future__ import annotations

import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

FORMAT = "survival-predictor"
FORMAT_VERSION = 2

OWN_ARRAYS = ("standardizer/mean", "standardizer/scale", "baseline/grid", "baseline/cumulative")
"""Arrays that every file has, beside those of the network."""

NETWORK = "network/"
"""What the names of the network's arrays begin with."""

_HEADER = "header"


class Header(BaseModel):
    """What a model file holds beside arrays."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
        protected_namespaces=(),
    )

    format: str = FORMAT
    version: int = FORMAT_VERSION
    feature_names: tuple[str, ...]
    encoding: dict[str, dict[str, FiniteFloat]]
    feature_encoding: str = ""
    model: str
    hidden_layers: tuple[int, ...]
    dropout: FiniteFloat
    label_cuts: tuple[FiniteFloat, ...] = (0.0, 1.0)  # files of version 1 have none
    deephit_alpha: FiniteFloat = 0.2  # nor these
    deephit_sigma: FiniteFloat = 0.1
    controls: int = 1
    baseline_center: FiniteFloat
    network_arrays: tuple[str, ...]
    metadata: dict[str, Any]


def write(path: Path, header: Header, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write the file; who reads `path` meanwhile finds the former file or the whole new one.

    Raises
    ------
    ValueError
        If the metadata is not JSON (a NaN or infinite number is not).
    OSError
        If the file cannot be written.
    """
    try:
        text = json.dumps(header.model_dump(by_alias=True), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metadata is not JSON: {error}") from None
    members = {_HEADER: np.frombuffer(text.encode(), dtype=np.uint8), **arrays}
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with draft.open("xb") as file:
            np.savez_compressed(file, allow_pickle=False, **members)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read(path: Path) -> tuple[Header, dict[str, npt.NDArray[Any]]]:
    """Read header and arrays of a file.

    Raises
    ------
    ValueError
        If it is no such file, damaged, of a newer format, or lacks something.
    OSError
        If there is no file or it cannot be read.
    """
    members = _read_archive(path)
    return _checked_header(members), members


def array_faults(arrays: Mapping[str, npt.NDArray[Any]]) -> list[str]:
    """Return a line for each of the arrays that is not of numbers, or not finite."""
    faults = []
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            faults.append(f"array {name} holds no numbers")
        elif not np.isfinite(array).all():
            faults.append(f"array {name} holds values that are not finite")
    return faults


def _read_archive(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an .npz file."""
    try:
        # Opened here: np.load leaves a file open if it turns out to be no archive.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    except (ValueError, EOFError, AttributeError, TypeError, KeyError, NotImplementedError):
        # numpy's own words depend on what it took the file for.
        raise ValueError("this is no survival model file") from None
    except (zipfile.BadZipFile, zlib.error):
        raise ValueError("this is no survival model file, or a damaged one") from None


def _checked_header(members: Mapping[str, npt.NDArray[Any]]) -> Header:
    """Decoded header, after a look at what the file must hold beside it."""
    try:
        text = members[_HEADER].tobytes().decode()
        plain = json.loads(text)
        ours, version = plain["format"] == FORMAT, int(plain["version"])
    except (KeyError, TypeError, ValueError):
        raise ValueError("this is no survival model file") from None
    if not ours:
        raise ValueError("this is no survival model file")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"format version {version} is newer than this program, which reads up to "
            f"{FORMAT_VERSION}; update it"
        )
    try:
        header = Header.model_validate_json(text)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise ValueError(
            "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found)
        ) from None
    expected = [*OWN_ARRAYS, *(NETWORK + name for name in header.network_arrays)]
    faults = [f"array {name} is missing" for name in expected if name not in members]
    faults += array_faults({name: members[name] for name in expected if name in members})
    if faults:
        raise ValueError("; ".join(faults))
    return header
