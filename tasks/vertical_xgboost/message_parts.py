"""What several messages of the vertical task have in common: arrays, sealed parts, masked sums."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from tasks.secure.secure_sums import MaskedVector
from tasks.site.reply_fields import SECONDS, MalformedReply
from tasks.vertical_xgboost.candidates import CandidateLayout
from tasks.vertical_xgboost.fixed_point import LARGEST_EXPONENT, SMALLEST_EXPONENT

Sealed = dict[str, bytes]
"""What parties seal for one another: in a reply by receiver, in a request by sender."""

SEALED = "sealed"
SEALED_ORDERS = "sealed-orders"
SEALED_SHARES = "sealed-shares"
SEALED_LEAVES = "sealed-leaves"

Arrays = Mapping[str, NDArray[np.generic]]

Seconds = dict[str, float]
"""Processor time of cryptography by operation."""

_OPERATION = re.compile("[a-z]{1,20}(-[a-z]{1,20}){0,3}")
_MOST_OPERATIONS = 50
_MOST_SECONDS = 1e7  # four months


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
    content[SECONDS] = ConfigRecord({name: float(value) for name, value in seconds.items()})


def read_seconds(content: RecordDict) -> Seconds:
    """Processor times of a message; MalformedReply if they are none."""
    record = content.config_records[SECONDS]
    if len(record) > _MOST_OPERATIONS or not all(map(_OPERATION.fullmatch, record)):
        raise MalformedReply("seconds: must be of operations, named in small letters")
    seconds = {name: value for name, value in record.items() if isinstance(value, float)}
    if len(seconds) != len(record) or not all(0 <= s <= _MOST_SECONDS for s in seconds.values()):
        raise MalformedReply(f"seconds: must be numbers from 0 to {_MOST_SECONDS:g}")
    return seconds


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


def whole_numbers(array: NDArray[np.generic], name: str, *, ndim: int = 1) -> NDArray[np.intp]:
    """The array, if it holds signed whole numbers on so many axes; else MalformedReply."""
    if array.dtype.kind != "i" or array.ndim != ndim:
        raise MalformedReply(f"{name}: must be whole numbers on {ndim} axes")
    return array.astype(np.intp)


def flags(array: NDArray[np.generic], name: str) -> NDArray[np.bool_]:
    """The array, if it holds true and false; else MalformedReply."""
    if array.dtype != np.bool_:
        raise MalformedReply(f"{name}: must be true or false")
    return array.astype(np.bool_)


def read_layout(
    num_buckets: NDArray[np.generic], has_missing: NDArray[np.generic]
) -> CandidateLayout:
    """A layout that `CandidateLayout.to_arrays` wrote; ValueError if it is none."""
    counts = whole_numbers(num_buckets, "num-buckets").tolist()
    return CandidateLayout(tuple(counts), tuple(flags(has_missing, "has-missing").tolist()))


def read_refused(record: ArrayRecord) -> dict[str, NDArray[np.bool_]]:
    """Refusals of ``min-instances`` by source; MalformedReply if they are no flags."""
    return {name: flags(array.numpy(), "refused") for name, array in record.items()}


def check_refused(
    refused: Mapping[str, NDArray[np.bool_]],
    shapes: Mapping[str, tuple[int, int]],
    *,
    expected: bool,
) -> None:
    """Refuse refusals of another form than a run has them.

    Parameters
    ----------
    refused : mapping of source to bool array
    shapes : mapping of source to (1 + candidates, nodes)
        Of every source of the message.
    expected : bool
        Whether there are any: ``min-instances`` of 2 and more.

    Raises
    ------
    tasks.site.reply_fields.MalformedReply
    """
    if set(refused) != (set(shapes) if expected else set()):
        words = "of each source" if expected else "absent where min-instances is below 2"
        raise MalformedReply(f"refused: must be {words}")
    if any(shapes[name] != mask.shape for name, mask in refused.items()):
        raise MalformedReply("refused: must be one flag a candidate and node")
    if any(mask[0].any() for mask in refused.values()):
        raise MalformedReply("refused: must be candidates, not the sums of a whole node")


def read_exponent(value: object, name: str) -> int:
    """The power of two of a bound; MalformedReply if it is no whole number, or out of range."""
    allowed = range(SMALLEST_EXPONENT, LARGEST_EXPONENT + 1)
    if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
        raise MalformedReply(
            f"{name}: must be a whole number from {SMALLEST_EXPONENT} to {LARGEST_EXPONENT}"
        )
    return value


def as_bytes(value: object) -> bytes:
    """The value, if it is bytes; else ValueError."""
    if not isinstance(value, bytes):
        raise ValueError("not bytes")
    return value


def as_list(value: object) -> list[object]:
    """The value, if it is a list; else ValueError."""
    if not isinstance(value, list):
        raise ValueError("not a list")
    return value


def as_whole(value: object) -> int:
    """The value, if it is a whole number; else ValueError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("not a whole number")
    return value
