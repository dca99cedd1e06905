"""Digests of what a message holds, to know it again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from flwr.app import ArrayRecord, RecordDict


def digest_of(content: RecordDict) -> bytes:
    """SHA-256 of a message's content: every name, value, and array."""
    found = hashlib.sha256()
    for name in sorted(content):
        record = content[name]
        if isinstance(record, ArrayRecord):
            found.update(array_digest(record))
        else:
            found.update(repr(sorted(record.items())).encode())
        found.update(repr((name, type(record).__name__)).encode())
    return found.digest()


def settings_digest(settings: Mapping[str, object]) -> bytes:
    """SHA-256 of a run's configuration: every key, value, and its type."""
    return hashlib.sha256(repr(sorted(settings.items())).encode()).digest()


def array_digest(record: ArrayRecord) -> bytes:
    """SHA-256 of the arrays of a record: names, types, shapes and elements."""
    found = hashlib.sha256()
    for name in sorted(record):
        array = np.ascontiguousarray(record[name].numpy())
        found.update(repr((name, array.dtype.str, array.shape)).encode())
        found.update(array.tobytes())
    return found.digest()
