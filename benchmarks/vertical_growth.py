"""How the cost of vertical XGBoost grows: what is varied, the table, the figure."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

AXES = ("clients", "depth", "trees", "bits")
_COLUMNS = ("axis", "value", "crypto", "ciphertexts", "bytes", "exchanges", "wall_seconds")


def sweeps(*, clients: int, quick: bool) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    """Give axis, value, number of clients and changed settings of each run.

    All but the varied setting are those of one tree of depth 3 (quick: 2) under 2048 bits (quick:
    1024, which protects nothing).
    """
    base: dict[str, Any] = {"num_trees": 1, "max_depth": 3, "key_bits": 2048}
    values = {
        "clients": (2, 4, 10),
        "depth": (2, 3, 4, 5, 6),
        "trees": (1, 2, 5, 10),
        "bits": (1024, 2048, 3072),
    }
    if quick:
        base |= {"max_depth": 2, "key_bits": 1024}
        values = {"clients": (2, 4), "depth": (1, 2), "trees": (1, 2), "bits": (1024, 2048)}
    keys = {"depth": "max_depth", "trees": "num_trees", "bits": "key_bits"}
    for axis in AXES:
        for value in values[axis]:
            changes = {**base, **({keys[axis]: value} if axis in keys else {})}
            changes["allow_weak_key"] = changes["key_bits"] < 2048
            yield axis, value, value if axis == "clients" else clients, changes


def growth_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as lines of text."""
    lines = ["axis     value   CPU s  ciphertexts  all MB  exchanges  wall s"]
    lines += [
        f"{row['axis']:8} {row['value']:5}  {row['crypto']:6.2f}  {row['ciphertexts']:11}  "
        f"{row['bytes'] / 1e6:6.2f}  {row['exchanges']:9}  {row['wall_seconds']:6.1f}"
        for row in rows
    ]
    return "\n".join(lines)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the table, one line a run."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def draw_growth(path: Path, rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw CPU seconds and megabytes against each varied setting; return what was saved."""
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    panels = figure.subplots(2, len(AXES), sharey="row", squeeze=False)
    for column, axis in enumerate(AXES):
        chosen = [row for row in rows if row["axis"] == axis]
        values = [row["value"] for row in chosen]
        for panel, key, scale in ((panels[0], "crypto", 1.0), (panels[1], "bytes", 1e6)):
            heights = [row[key] / scale for row in chosen]
            panel[column].plot(values, heights, marker="o", color="#0072b2")
            panel[column].set_xticks(values)
            panel[column].grid(visible=True, axis="y", color="#d8dde3")
            panel[column].spines[["top", "right"]].set_visible(False)
        panels[1][column].set_xlabel(axis)
    for panel, key, scale in ((panels[0], "crypto", 1.0), (panels[1], "bytes", 1e6)):
        panel[0].set_ylim(0, 1.05 * max(row[key] for row in rows) / scale)  # shared by the row
    panels[0][0].set_ylabel("CPU s in cryptography")
    panels[1][0].set_ylabel("MB of all messages")
    figure.savefig(path, dpi=150)
    return figure
