"""The node configuration: every key that a SuperNode's ``--node-config`` may have.

A key that nobody reads is refused with the nearest that is read: a control that silently does not
apply is worse than none. So is a value of another type, as ``export-consent="true"``, which is
text, and no consent.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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


def ledger_folder_faults(folder: str, data_path: str) -> list[str]:
    """Return what is wrong with ``state-dir`` as the place of a ledger, beside a ``data-path``."""
    named = f'node config "state-dir" = "{folder}"'
    try:
        Path(folder).expanduser()
    except RuntimeError:
        return [f"{named}: no such user's home is known"]
    # Of one kind, a SuperNode that starts elsewhere, or for another user, finds no data either.
    kind = _kind_of_path(folder)
    if folder in ("", "-") or kind in ("absolute", _kind_of_path(data_path)) or not data_path:
        return []
    others = "in another folder" if kind == "relative" else "for another user"
    return [
        f'{named}: must be an absolute path, or begin as "data-path" does: where the SuperNode '
        f"is started {others} it would be another, empty ledger"
    ]


def _kind_of_path(path: str) -> Literal["absolute", "home", "relative"]:
    """What a path depends on; that of a named user's home, ~user, depends on nothing."""
    if path == "~" or path.startswith("~/"):
        return "home"
    return "absolute" if path.startswith("~") or Path(path).is_absolute() else "relative"
