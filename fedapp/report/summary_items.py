"""Lists in the summary of a run, as runs of any version wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedapp.run_record import RunRecord


def items_of(run: RunRecord, key: str) -> Sequence[Any]:
    """Return a list of the summary; of what is no list, one with it alone; empty without it."""
    items = run.summary.get(key, [])
    return items if isinstance(items, list) else [items]
