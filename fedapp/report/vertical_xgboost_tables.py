"""Tables of the report on a run of vertical XGBoost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedapp.report.ledger import format_bytes
from fedapp.report.page import Table
from fedapp.report.vertical_xgboost_trees import is_split

QUALITIES = (
    "train-loss",
    "test-loss",
    "train-accuracy",
    "test-accuracy",
    "train-rmse",
    "test-rmse",
)

_OPERATIONS = {
    "encrypt": "encrypt",
    "encrypt-own": "encrypt own share",
    "check": "check",
    "fold": "fold",
    "mask": "mask",
    "add": "add",
    "rerandomise": "re-randomise",
    "decrypt": "decrypt",
    "seal": "seal for another party",
    "open": "open what was sealed",
}


def quality_name(key: str) -> str:
    """Words for a quantity: ``"test-rmse"`` is ``"test RMSE"``."""
    return key.replace("-", " ").replace("rmse", "RMSE")


def seconds_by_operation(
    summary: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """CPU seconds of each operation over the whole run, in words, in the order of a level."""
    recorded = summary.get("crypto-seconds")
    sources = [recorded] if isinstance(recorded, Mapping) else []
    sources = sources or [line.get("crypto-seconds") or {} for line in lines]
    total: dict[str, float] = {}
    for source in sources:
        for operation, seconds in source.items():
            total[operation] = total.get(operation, 0.0) + float(seconds)
    known = [operation for operation in _OPERATIONS if operation in total]
    others = [operation for operation in total if operation not in _OPERATIONS]
    return {_OPERATIONS.get(name, name.replace("-", " ")): total[name] for name in known + others}


def trees_table(lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> list[Table]:
    """Numbers of each tree, between those of set-up and end; no table without trees."""
    if not lines:
        return []
    qualities = [key for key in QUALITIES if any(key in line for line in lines)]
    before, after = (
        [{"tree": word, **summary[key]}] if isinstance(summary.get(key), Mapping) else []
        for word, key in (("set-up", "set-up"), ("end", "ending"))
    )
    rows = [
        [
            str(line["tree"]),
            *(_digits(line.get(key)) for key in qualities),
            _count(line.get("exchanges")),
            format_bytes(int(line["bytes"])) if "bytes" in line else "–",
            _count(line.get("ciphertexts")),
            f"{sum((line.get('crypto-seconds') or {}).values()):.3g} s",
        ]
        for line in [*before, *lines, *after]
    ]
    heads = [quality_name(key) for key in qualities]
    columns = ["tree", *heads, "exchanges", "volume", "ciphertexts", "cryptography"]
    return [Table(dict.fromkeys(columns, "number"), rows, caption="Tree by tree")]


def owners_table(document: Mapping[str, Any]) -> list[Table]:
    """Splits of each party over all trees, and the sum of their gains."""
    splits: dict[str, list[float]] = {}
    for tree in document.get("trees") or []:
        for node in tree.get("nodes") or []:
            if is_split(node):
                gains = splits.setdefault(str(node.get("owner", "")), [])
                gains.append(float(node.get("gain") or 0.0))
    if not splits:
        return []
    total = sum(sum(gains) for gains in splits.values())
    rows = [
        [owner, str(len(gains)), f"{sum(gains):.6g}", f"{100 * sum(gains) / total:.0f} %"]
        if total
        else [owner, str(len(gains)), "–", "–"]
        for owner, gains in sorted(splits.items())
    ]
    columns = {"owner": "short", "splits": "number", "gain": "number", "share of gain": "number"}
    return [Table(columns, rows, caption="Splits by owner, all trees")]


def central_table(summary: Mapping[str, Any], central: Mapping[str, Any]) -> list[Table]:
    """Quantities of this run beside those of a central fit and of XGBoost itself."""
    keys = [
        key
        for key in QUALITIES
        if _is_number(central.get(key)) or _is_number(central.get(f"xgboost-{key}"))
    ]
    if not keys:
        return []
    with_xgboost = any(_is_number(central.get(f"xgboost-{key}")) for key in keys)
    rows = [
        [
            quality_name(key),
            _digits(summary.get(key)),
            _digits(central.get(key)),
            *([_digits(central.get(f"xgboost-{key}"))] if with_xgboost else []),
        ]
        for key in keys
    ]
    heads = ["this run", "central fit", *(["XGBoost"] if with_xgboost else [])]
    columns = {"quantity": "short", **dict.fromkeys(heads, "number")}
    return [Table(columns, rows, caption="The same rows, joined in one table")]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _digits(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else "–"


def _count(value: object) -> str:
    return "–" if value is None else f"{value:,}".replace(",", "\u202f")
