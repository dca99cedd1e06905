"""What the figures of the ROC-GLM task show, drawn into the axes they are given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from fedapp.report import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKED_POINTS = 60  # more points than this of a curve are drawn as its line alone
_LABELLED_BINS = 12
_BARS_TOP = 0.13  # height of the largest bar of counts under a calibration curve
_DASHED = (0, (4, 3))

Curve = Mapping[str, Any]


def numbers(values: Sequence[float | None]) -> list[float]:
    """Numbers of a list that may hold null, which becomes NaN."""
    return [math.nan if value is None else float(value) for value in values]


def draw_roc(axes: Axes, roc: Curve) -> None:
    """Draw the empirical and the parametric ROC curve with its band, and the chance diagonal."""
    _unit_square(axes)
    axes.plot([0, 1], [0, 1], color=figures.MUTED, linewidth=0.9, linestyle=_DASHED, label="chance")
    smooth = roc.get("parametric")
    if smooth:
        rates = numbers(smooth["false-positive-rate"])
        if smooth.get("lower") and smooth.get("upper"):
            axes.fill_between(
                rates,
                numbers(smooth["lower"]),
                numbers(smooth["upper"]),
                color=figures.BLUE,
                alpha=0.16,
                linewidth=0,
            )
        axes.plot(
            rates,
            numbers(smooth["true-positive-rate"]),
            color=figures.BLUE,
            linewidth=2.0,
            label="ROC-GLM",
        )
    if roc.get("false-positive-rate"):
        rates = numbers(roc["false-positive-rate"])
        axes.plot(
            rates,
            numbers(roc["true-positive-rate"]),
            color=figures.INK,
            linewidth=1.0,
            marker="o" if len(rates) <= _MARKED_POINTS else None,
            markersize=2.4,
            label="from counts",
        )
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("true positive rate")
    axes.legend(loc="lower right")


def draw_sites(axes: Axes, sites: Sequence[Curve], overall: Curve) -> None:
    """Draw the AUC of each site with its interval, and that of all sites together below."""
    rows = [*sites, *([overall] if "auc" in overall else [])]
    colours = [figures.SKY] * len(sites) + [figures.BLUE]
    for place, (row, colour) in enumerate(zip(rows, colours, strict=False)):
        if "lower" in row and "upper" in row:
            axes.hlines(place, row["lower"], row["upper"], color=colour, linewidth=1.8)
        axes.plot([row["auc"]], [place], marker="o", markersize=5, color=colour)
        axes.annotate(
            f"{row['auc']:.3f}",
            (1, place),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=figures.SMALL,
            annotation_clip=False,
        )
    if "auc" in overall:
        axes.axvline(overall["auc"], color=figures.BLUE, linewidth=0.8, alpha=0.5)
    seen = [row[key] for row in rows for key in ("auc", "lower", "upper") if key in row]
    low, high = min(seen), max(seen)
    if low <= 0.5 <= high:
        axes.axvline(0.5, color=figures.MUTED, linewidth=0.9, linestyle=_DASHED)
    pad = max(0.02, 0.05 * (high - low))
    axes.set_xlim(max(0.0, low - pad), min(1.0, high + pad))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [_short(str(row["site"])) for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set_xlabel("AUC")


def sites_height(count: int) -> float:
    """Height of the figure of `draw_sites`, in inches."""
    return 0.95 + min(0.3, 16.0 / (count + 1)) * (count + 1)


def draw_calibration(axes: Axes, bins: Sequence[Curve], *, level: float | None) -> None:
    """Draw the share of positives against the mean score by bin, with rows of each bin below.

    Parameters
    ----------
    axes : Axes
    bins : sequence of mapping
        Bins with rows.
    level : float or None
        Of the intervals (Wilson); None draws none.
    """
    _unit_square(axes)
    axes.plot([0, 1], [0, 1], color=figures.MUTED, linewidth=0.9, linestyle=_DASHED)
    most = max(row["n"] for row in bins)
    for row in bins:
        left, right, height = row["lower"], row["upper"], _BARS_TOP * row["n"] / most
        gap = 0.06 * (right - left)
        axes.bar(
            left + gap,
            height,
            width=right - left - 2 * gap,
            align="edge",
            color=figures.SKY,
            alpha=0.35,
            linewidth=0,
        )
        if len(bins) <= _LABELLED_BINS:
            axes.annotate(
                f"{row['n']:.0f}",
                (0.5 * (left + right), height),
                xytext=(0, 1.5),
                textcoords="offset points",
                ha="center",
                fontsize=7.5,
                color=figures.MUTED,
            )
        if level is not None:
            low, high = _wilson(row["observed"], row["n"], level=level)
            axes.vlines(row["mean-predicted"], low, high, color=figures.BLUE, linewidth=1.2)
    axes.plot(
        [row["mean-predicted"] for row in bins],
        [row["observed"] for row in bins],
        color=figures.BLUE,
        linewidth=1.4,
        marker="o",
        markersize=5,
    )
    axes.set_xlabel("mean score of the bin")
    axes.set_ylabel("share of positives")


def draw_net_benefit(axes: Axes, curve: Curve, *, threshold: float | None) -> None:
    """Draw the decision curve: model, treat all, treat none.

    The axis ends a little below 0: what treating all costs beyond that is of no interest.
    """
    at = numbers(curve["threshold"])
    model = numbers(curve["model"])
    axes.axhline(0, color=figures.MUTED, linewidth=1.2, label="treat none")
    shown = [value for value in model if math.isfinite(value)]
    if curve.get("treat-all"):
        treat_all = numbers(curve["treat-all"])
        axes.plot(at, treat_all, color=figures.ORANGE, linewidth=1.4, label="treat all")
        shown += [value for value in treat_all if math.isfinite(value) and value > 0]
    marker = "o" if len(at) == 1 else None
    axes.plot(at, model, color=figures.BLUE, linewidth=2.0, label="model", marker=marker)
    if threshold is not None and at[0] <= threshold <= at[-1]:
        axes.axvline(threshold, color=figures.MUTED, linewidth=0.8, linestyle=_DASHED)
    top = max([*shown, 0.05])
    bottom = max(min([*shown, 0.0]), -0.5 * top)
    axes.set_ylim(bottom - 0.08 * top, 1.05 * top)
    if len(at) > 1:
        axes.set_xlim(min(0.0, at[0]), max(1.0, at[-1]) if at[-1] > 0.5 else at[-1])
    axes.set_xlabel("threshold of the score")
    axes.set_ylabel("net benefit")
    axes.figure.legend(loc="outside upper left", ncols=3, handlelength=1.4)


def _unit_square(axes: Axes) -> None:
    axes.set_xlim(-0.01, 1.01)
    axes.set_ylim(-0.01, 1.01)
    axes.set_box_aspect(1)
    axes.grid(visible=True, axis="x")


def _short(name: str, most: int = 22) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _wilson(share: float, rows: float, *, level: float) -> tuple[float, float]:
    """Wilson's interval of a share (Wilson 1927)."""
    z = NormalDist().inv_cdf(0.5 + 0.5 * level)
    middle = (share + z**2 / (2 * rows)) / (1 + z**2 / rows)
    half = z / (1 + z**2 / rows) * math.sqrt(share * (1 - share) / rows + (z / (2 * rows)) ** 2)
    return max(0.0, middle - half), min(1.0, middle + half)
