"""What the figures of vertical XGBoost show, drawn into the axes they are given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedapp.report import figures
from fedapp.report.vertical_xgboost_trees import DrawnTree, Place, is_split

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OWNER_COLOURS = (
    figures.BLUE,
    figures.ORANGE,
    figures.GREEN,
    figures.PURPLE,
    figures.RED,
    figures.SKY,
)
_LONGEST_OWNER = 18
_ROW_INCHES = 0.22


def draw_loss(axes: Axes, lines: Sequence[Mapping[str, Any]], *, kept: int | None) -> None:
    """Draw the mean loss by tree on training and evaluation rows.

    Parameters
    ----------
    axes : Axes
    lines : sequence of mapping
        ``tree`` and ``train-loss`` or ``test-loss`` or both.
    kept : int or None
        Number of trees that were kept; marked if it is less than were grown.
    """
    trees = [int(line["tree"]) for line in lines]
    for key, colour, label in (
        ("train-loss", figures.SKY, "training rows"),
        ("test-loss", figures.BLUE, "evaluation rows"),
    ):
        losses = [line.get(key, math.nan) for line in lines]
        if any(key in line for line in lines):
            marker = "o" if len(trees) <= 30 else None
            axes.plot(trees, losses, color=colour, linewidth=1.8, marker=marker, markersize=3.5)
            axes.plot([], [], color=colour, linewidth=1.8, label=label)
    if kept is not None and kept < trees[-1]:
        axes.axvline(kept, color=figures.MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    figures.whole_numbers(axes, lowest=min(trees), highest=max(trees))
    axes.set_xlabel("tree")
    axes.set_ylabel("mean loss")
    axes.figure.legend(loc="outside upper left", ncols=2, handlelength=1.4)


def draw_seconds(axes: Axes, seconds: Mapping[str, float]) -> None:
    """Draw the CPU seconds of each operation as bars."""
    from matplotlib.ticker import MaxNLocator

    rows = range(len(seconds))
    axes.barh(rows, list(seconds.values()), height=0.62, color=figures.BLUE)
    for row, value in zip(rows, seconds.values(), strict=True):
        axes.annotate(
            f"{value:.3g} s",
            (value, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=figures.SMALL,
        )
    axes.set_yticks(rows, list(seconds))
    axes.set_ylim(len(seconds) - 0.5, -0.5)
    axes.set_xlim(0, 1.18 * (max(seconds.values()) or 1.0))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.set_xlabel("CPU seconds")
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.tick_params(axis="y", length=0)


def draw_tree(axes: Axes, tree: DrawnTree) -> None:
    """Draw a tree from left to right, every node in a row of its own."""
    owners = tree.owners
    for place in tree.places:
        if place.parent_row is not None:
            axes.plot(
                [place.level - 1, place.level - 1, place.level],
                [place.parent_row, place.row, place.row],
                color=figures.MUTED,
                linewidth=0.9,
                zorder=1,
            )
        _draw_node(axes, place, owners)
    deepest = max(place.level for place in tree.places)
    axes.set_xlim(-0.15, deepest + max(1.0, 0.45 * deepest))
    axes.set_ylim(len(tree.places) - 0.4, -0.6)
    axes.set_axis_off()


def _draw_node(axes: Axes, place: Place, owners: Sequence[str]) -> None:
    node = place.node
    if is_split(node):
        owner = str(node.get("owner", ""))
        colour = _OWNER_COLOURS[owners.index(owner) % len(_OWNER_COLOURS)]
        marker, words = "o", f"{_short(owner)} · record {node.get('record', '–')}"
        if node.get("gain") is not None:
            words += f" · {node['gain']:.4g}"
        if place.below:
            words += f" · … {place.below} more"
    else:
        colour, marker, words = figures.MUTED, "s", "leaf"
    axes.plot([place.level], [place.row], marker=marker, markersize=5.5, color=colour, zorder=2)
    axes.annotate(
        words,
        (place.level, place.row),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=figures.SMALL,
        color=figures.INK if is_split(node) else figures.MUTED,
        annotation_clip=False,
    )


def tree_height(tree: DrawnTree) -> float:
    """Height of the figure of `draw_tree`, in inches."""
    return 0.4 + _ROW_INCHES * len(tree.places)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_OWNER else name[: _LONGEST_OWNER - 1] + "…"
