"""The node configuration: every key that a SuperNode's ``--node-config`` may have.

A key that nobody reads is refused with the nearest that is read: a control that silently does not
apply is worse than none. So is a value of another type, as ``export-consent="true"``, which is
text, and no consent.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

_TEXT = "text in quotes"
_TRUTH = "true or false, without quotes"
_WHOLE = "a whole number, without quotes"
_NUMBER = "a number, without quotes"

_TYPES: dict[str, tuple[type, ...]] = {
    _TEXT: (str,),
    _TRUTH: (bool,),
    _WHOLE: (int,),
    _NUMBER: (int, float),
}

NODE_KEYS: dict[str, str] = {
    "site-name": _TEXT,
    "data-path": _TEXT,
    "columns": _TEXT,
    "categorical": _TEXT,
    "model-dir": _TEXT,
    "state-dir": _TEXT,
    "identity-path": _TEXT,
    "pinned-sites": _TEXT,
    "require-pinned": _TRUTH,
    "export-consent": _TRUTH,
    "allowed-tasks": _TEXT,
    "min-privacy-level": _WHOLE,
    "max-epsilon": _NUMBER,
    "max-delta": _NUMBER,
    "epsilon-covers": _TEXT,
    # Flower's own, of a simulation.
    "partition-id": _WHOLE,
    "num-partitions": _WHOLE,
}
"""What a value must be, by key; `fedapp.site_limits` and the readers of the others know ranges."""


@dataclass(frozen=True)
class NodeFault:
    """What is wrong with one key; in words that may travel."""

    key: str
    words: str

    def __str__(self) -> str:
        return f'node config "{self.key}"{self.words}'


def node_faults(node_config: Mapping[str, object]) -> list[NodeFault]:
    """Return the keys that are unknown, and the values of another type."""
    faults = []
    for key, value in node_config.items():
        if key not in NODE_KEYS:
            near = difflib.get_close_matches(key, NODE_KEYS, n=1, cutoff=0.5)
            hint = f'did you mean "{near[0]}"?' if near else f"known are {', '.join(NODE_KEYS)}"
            faults.append(NodeFault(key, f": unknown key; {hint}"))
            continue
        allowed = _TYPES[NODE_KEYS[key]]
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            faults.append(NodeFault(key, f" = {value!r}: must be {NODE_KEYS[key]}"))
    return faults
