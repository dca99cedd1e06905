"""Fields of a reply read with their types checked; what is wrong is said by the field's name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.site.foreign_text import LONGEST_LINE, LONGEST_WORD

SECONDS = "seconds"
"""Name of the record in which a reply tells processor seconds by operation."""

MOST_TEXTS = 100_000
"""Most elements of a list of texts."""

_MOST_ROWS = 2**53
"""Counts beyond it are no whole numbers any more where they enter sums of doubles."""


class MalformedReply(ValueError):
    """A reply of another form than its message type has.

    The text names the field and what is allowed, and holds nothing that the reply does: it may
    be logged.
    """


def text(record: Mapping[str, Any], key: str, *, longest: int = LONGEST_WORD) -> str:
    """Return a text of at most `longest` characters."""
    value = record.get(key)
    if not isinstance(value, str) or len(value) > longest:
        raise MalformedReply(f"{key}: must be text of at most {longest} characters")
    return value


def texts(record: Mapping[str, Any], key: str, *, longest: int = LONGEST_LINE) -> list[str]:
    """Return a list of texts of at most `longest` characters each; it may be empty."""
    value = record.get(key)
    if (
        not isinstance(value, list)
        or len(value) > MOST_TEXTS
        or not all(isinstance(item, str) and len(item) <= longest for item in value)
    ):
        raise MalformedReply(f"{key}: must be a list of texts of at most {longest} characters")
    return value


def count(record: Mapping[str, Any], key: str, *, least: int = 0) -> int:
    """Return a whole number that can be one of rows."""
    value = record.get(key)
    if type(value) is not int or not least <= value <= _MOST_ROWS:
        raise MalformedReply(f"{key}: must be a whole number, at least {least}")
    return value


def number(record: Mapping[str, Any], key: str) -> float:
    """Return a finite number."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise MalformedReply(f"{key}: must be a finite number")
    return float(value)


def numbers(record: Mapping[str, Any], key: str) -> NDArray[np.float64]:
    """Return a list of finite numbers as an array; it may be empty."""
    value = record.get(key)
    if not isinstance(value, list) or not all(
        isinstance(item, int | float) and not isinstance(item, bool) and math.isfinite(item)
        for item in value
    ):
        raise MalformedReply(f"{key}: must be a list of finite numbers")
    return np.array(value, dtype=np.float64)


def reals(arrays: Mapping[str, NDArray[Any]], key: str, *, ndim: int = 1) -> NDArray[np.float64]:
    """Return an array of doubles with so many axes; its elements are not looked at."""
    value = arrays.get(key)
    if value is None or value.dtype != np.float64 or value.ndim != ndim:
        raise MalformedReply(f"{key}: must be an array of doubles with {ndim} axes")
    return np.asarray(value)
