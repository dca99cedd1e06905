"""What the files of a run folder must hold: rows of the ledger, and the keys that readers use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, get_type_hints

SERVER = "server"
"""What the server is called in a ledger."""


class _Row(TypedDict):
    exchange: int
    step: str
    sender: str
    receiver: str
    bytes: int
    sealed: bool
    reveals: str


_Told = TypedDict("_Told", {"site-seconds": float}, total=False)


class LedgerRow(_Row, _Told, total=False):
    """One row of the disclosure ledger.

    ``exchange`` counts from 1; ``sender`` and ``receiver`` are site names or ``"server"``;
    ``reveals`` is the sentence on what the receiver learns. A row that is not ``sealed`` is a
    message between server and site. One that is lies within a message: so many ``parts``, which
    only the receiver can read; their bytes are in the message's row, too. ``protection`` tells
    how a message's records travel. ``seconds`` are those from the beginning of the exchange until
    its reply was there, or, of a request, until it had ended; ``site-seconds`` what the site says
    of its own time. What wrote the ledger may leave the last four out.
    """

    protection: str
    parts: int
    seconds: float


_ROW_TYPES: dict[str, type] = get_type_hints(LedgerRow)

_ACCEPTED: dict[type, tuple[type, ...]] = {float: (float, int)}  # JSON writers may drop ".0"

_KINDS: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "a number": (int, float),
    "a list": (list,),
    "an object": (dict,),
}
_CONFIG = {
    "task": "text",
    **dict.fromkeys(("config", "defaults", "meanings", "versions"), "an object"),
}
_STATUS = {"status": "text", "reason": "text", "run-folder": "text"}
_LINE = {
    **dict.fromkeys(("diagnostics", "excluded", "lost", "faults", "sites"), "a list"),
    **dict.fromkeys(("round", "rounds", "n-sites", "exchanges", "bytes", "seconds"), "a number"),
    **dict.fromkeys(("c-index", "c-index-lower", "c-index-upper"), "a number"),
    **dict.fromkeys(("noise-to-signal-median", "noise-to-signal-max"), "a number"),
    **dict.fromkeys(("noise-to-signal-unbounded", "comparable-pairs", "auc"), "a number"),
    **dict.fromkeys(("privacy", "noise-driver"), "text"),
    "noise-to-signal": "an object",
}


def config_faults(document: Mapping[str, Any]) -> list[str]:
    """Return which keys of ``config.json`` hold what they cannot hold."""
    return list(_misfits(document, _CONFIG))


def status_faults(document: Mapping[str, Any]) -> list[str]:
    """Return which keys of ``status.json`` hold what they cannot hold."""
    return list(_misfits(document, _STATUS))


def metrics_faults(line: Mapping[str, Any]) -> list[str]:
    """Return which keys of a line of ``metrics.jsonl`` hold what they cannot hold."""
    faults = list(_misfits(line, _LINE))
    sites = line.get("sites")
    if isinstance(sites, list) and not all(isinstance(site, dict) for site in sites):
        faults.append("sites must be a list of objects")
    ratios = line.get("noise-to-signal")
    if isinstance(ratios, dict) and not all(_is(value, "a number") for value in ratios.values()):
        faults.append("noise-to-signal must hold numbers")
    return faults


def ledger_faults(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with rows of the ledger, a line a fault."""
    return [
        f"row {number}: {fault}"
        for number, row in enumerate(rows, start=1)
        for fault in _row_faults(row)
    ]


def _misfits(document: Mapping[str, Any], kinds: Mapping[str, str]) -> Iterator[str]:
    for key, kind in kinds.items():
        if key in document and not _is(document[key], kind):
            yield f"{key} must be {kind}"


def _is(value: object, kind: str) -> bool:
    return isinstance(value, _KINDS[kind]) and not isinstance(value, bool)


def _row_faults(row: Mapping[str, Any]) -> list[str]:
    faults = [f"key {key!r} is unknown" for key in row if key not in _ROW_TYPES]
    for key, kind in _ROW_TYPES.items():
        lowest = 1 if key == "exchange" else 0
        if key not in row:
            if key in LedgerRow.__optional_keys__:
                continue
            faults.append(f"{key} is missing")
        elif type(row[key]) not in _ACCEPTED.get(kind, (kind,)):
            faults.append(f"{key} must be of type {kind.__name__}")
        elif kind in (int, float) and row[key] < lowest:
            faults.append(f"{key} = {row[key]}: must be at least {lowest}")
    return faults
