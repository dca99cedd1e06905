"""What several messages of the vertical task have in common: arrays, sealed parts, masked sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from tasks.secure.secure_sums import MaskedVector

Sealed = dict[str, bytes]
"""What parties seal for one another: in a reply by receiver, in a request by sender."""

SEALED = "sealed"
SEALED_ORDERS = "sealed-orders"
SEALED_SHARES = "sealed-shares"
SEALED_LEAVES = "sealed-leaves"

Arrays = Mapping[str, NDArray[np.generic]]

Seconds = dict[str, float]
"""Processor time of cryptography by operation."""


def array_record(arrays: Arrays) -> ArrayRecord:
    """Arrays as they travel."""
    return ArrayRecord({name: Array(np.ascontiguousarray(a)) for name, a in arrays.items()})


def read_arrays(content: RecordDict) -> dict[str, NDArray[np.generic]]:
    """Arrays of a message under "arrays"."""
    return {name: array.numpy() for name, array in content.array_records["arrays"].items()}


def put_masked(content: RecordDict, own: MaskedVector) -> None:
    """Put sums under masks into a message."""
    content["masked"] = ConfigRecord(
        {"site": own.site, "run": own.run, "step": own.step, "roster-digest": own.roster_digest}
    )
    content["masked-words"] = array_record({"words": own.words})


def read_masked(content: RecordDict) -> MaskedVector | None:
    """Sums under masks of a message, if it has any; ValueError if they are malformed."""
    settings = content.config_records.get("masked")
    if settings is None:
        return None
    words = content.array_records["masked-words"]["words"].numpy()
    if words.dtype.kind != "u" or words.ndim != 1:
        raise ValueError("masked values that are not words")
    return MaskedVector(
        site=str(settings["site"]),
        run=str(settings["run"]),
        step=str(settings["step"]),
        roster_digest=as_bytes(settings["roster-digest"]),
        words=words.astype(np.uint64),
    )


def put_seconds(content: RecordDict, seconds: Seconds) -> None:
    """Put processor times into a message."""
    content["seconds"] = ConfigRecord({name: float(value) for name, value in seconds.items()})


def read_seconds(content: RecordDict) -> Seconds:
    """Processor times of a message."""
    record = content.config_records["seconds"]
    return {name: float(cast(float, value)) for name, value in record.items()}


def put_sealed(content: RecordDict, sealed: Sealed, name: str = SEALED) -> None:
    """Put sealed parts into a message, by the party at their other end.

    Parameters
    ----------
    content : RecordDict
    sealed : dict of str to bytes
    name : str
        Of the record; it begins with "sealed", as `tasks.secure.record_names` says.
    """
    content[name] = ConfigRecord(dict(sealed))


def read_sealed(content: RecordDict, name: str = SEALED) -> Sealed:
    """Sealed parts of a message under a record's name, by the party at their other end."""
    return {party: as_bytes(value) for party, value in content.config_records[name].items()}


def as_bytes(value: object) -> bytes:
    """The value, if it is bytes; else ValueError."""
    if not isinstance(value, bytes):
        raise ValueError("not bytes")
    return value


def as_whole(value: object) -> int:
    """The value, if it is a whole number; else ValueError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("not a whole number")
    return value
