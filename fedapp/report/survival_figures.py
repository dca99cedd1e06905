"""What the figures of the survival task show, drawn into the axes they are given."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedapp.report import figures
from fedapp.run_record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FAINT_SITES = 12  # from so many on, the line of a site is drawn thinner still
_RASTER_POINTS = 20_000  # more points of thin lines than this go into the SVG as an image
_LOG_SCALE_SPAN = 20.0


def draw_convergence(axes: Axes, run: RunRecord, measured: Sequence[Mapping[str, Any]]) -> None:
    """Draw the C-index by round, with its band, the line of chance and the final value."""
    rounds = [int(line["round"]) for line in measured]
    values = [line["c-index"] for line in measured]
    lower = [line.get("c-index-lower", math.nan) for line in measured]
    upper = [line.get("c-index-upper", math.nan) for line in measured]
    final = run.summary if "c-index" in run.summary else measured[-1]
    end = max(rounds[-1], int(run.summary.get("rounds", 0)))
    axes.axhline(0.5, color=figures.MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.fill_between(rounds, lower, upper, color=figures.BLUE, alpha=0.16, linewidth=0)
    axes.plot(rounds, values, color=figures.BLUE, linewidth=1.8)
    if len(rounds) == 1:
        axes.vlines(rounds, lower, upper, color=figures.BLUE, linewidth=1.8, alpha=0.5)
    axes.plot([end], [final["c-index"]], marker="o", markersize=5, color=figures.BLUE)
    seen = [value for value in (*values, *lower, *upper, final["c-index"]) if math.isfinite(value)]
    bottom, top = min(0.46, *seen), max(0.6, *seen)
    pad = 0.04 * (top - bottom)
    axes.set_ylim(bottom - pad, top + pad)
    figures.whole_numbers(axes, lowest=min(rounds), highest=end)
    axes.annotate(
        f"{final['c-index']:.3f}",
        (end, final["c-index"]),
        xytext=(8, 0),
        textcoords="offset points",
        annotation_clip=False,
        va="center",
        fontweight="bold",
        color=figures.BLUE,
    )
    axes.annotate(
        "chance",
        (1, 0.5),
        xycoords=("axes fraction", "data"),
        xytext=(-2, -3),
        textcoords="offset points",
        ha="right",
        va="top",
        color=figures.MUTED,
        fontsize=figures.SMALL,
    )
    axes.set_xlabel("round")
    axes.set_ylabel("C-index within sites")


def draw_curves(axes: Axes, times: Sequence[float], groups: Sequence[Mapping[str, Any]]) -> None:
    """Draw predicted survival (lines) and Kaplan-Meier estimates (steps) by risk group."""
    from matplotlib.lines import Line2D

    handles = []
    for group, colour in zip(groups, _group_colours(len(groups)), strict=True):
        if group.get("kaplan-meier"):
            steps = _numbers(group["kaplan-meier"])
            axes.step(times, steps, where="post", color=colour, linewidth=1.0, alpha=0.75)
        if group.get("predicted"):
            axes.plot(times, _numbers(group["predicted"]), color=colour, linewidth=2.0)
        rows = f" ({group['rows']} rows)" if "rows" in group else ""
        handles.append(Line2D([], [], color=colour, linewidth=2.0, label=f"{group['name']}{rows}"))
    muted = figures.MUTED
    handles.append(Line2D([], [], color=muted, linewidth=2.0, label="predicted"))
    handles.append(Line2D([], [], color=muted, linewidth=1.0, label="Kaplan-Meier"))
    axes.set_xlim(min(0.0, times[0]), times[-1] if len(times) > 1 else None)
    axes.set_ylim(0, 1.03)
    axes.set_xlabel("time")
    axes.set_ylabel("survival probability")
    axes.figure.legend(handles=handles, loc="outside lower left", ncols=2)


def _group_colours(count: int) -> list[str]:
    """Return colours from low to high risk."""
    palette = [figures.BLUE, figures.GREEN, figures.RED, figures.PURPLE, figures.ORANGE]
    if count == 2:
        return [figures.BLUE, figures.RED]
    return [palette[index % len(palette)] for index in range(count)]


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]


def draw_noise(axes: Axes, measured: Sequence[Mapping[str, Any]], sites: Sequence[str]) -> None:
    """Draw noise to signal by round: a line a site, their median, the region above 1."""
    from matplotlib.lines import Line2D

    rounds = [int(line["round"]) for line in measured]
    ratios = [line["noise-to-signal"] for line in measured]
    top = _scale_noise(axes, [ratio for line in ratios for ratio in line.values()])
    axes.axhspan(1, top, color=figures.RED, alpha=0.09, linewidth=0, zorder=0)
    axes.axhline(1, color=figures.RED, linewidth=1.0)
    _draw_sites(axes, rounds, [[line.get(site, math.nan) for line in ratios] for site in sites])
    medians = [statistics.median(line.values()) for line in ratios]
    dot = "o" if len(rounds) == 1 else None
    axes.plot(rounds, medians, color=figures.BLUE, linewidth=2.0, marker=dot)
    axes.annotate(
        "noise larger than signal",
        (0, 1),
        xycoords="axes fraction",
        xytext=(6, -5),
        textcoords="offset points",
        va="top",
        color=figures.RED,
        fontsize=figures.SMALL,
    )
    figures.whole_numbers(axes, lowest=min(rounds), highest=max(rounds))
    axes.set_xlabel("round")
    axes.set_ylabel("noise to signal")
    handles = [
        Line2D([], [], color=figures.SKY, linewidth=0.9, label="a site"),
        Line2D([], [], color=figures.BLUE, linewidth=2.0, label="median over sites"),
    ]
    axes.figure.legend(handles=handles, loc="outside upper right", ncols=2)


def _scale_noise(axes: Axes, ratios: Sequence[float]) -> float:
    """Set the y axis so that the line at 1 and the region above it show; return its upper end."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    lowest, highest = min(ratios), max(ratios)
    if lowest <= 0 or highest <= _LOG_SCALE_SPAN * lowest:
        top = max(1.35, 1.12 * highest)
        axes.set_ylim(0, top)
        return top
    top = max(2.5, 2.0 * highest)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if top < 100 * lowest else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(min(0.5, 0.8 * lowest), top)
    return top


def _draw_sites(axes: Axes, rounds: Sequence[int], lines: Sequence[Sequence[float]]) -> None:
    few = len(lines) <= _FAINT_SITES
    has_gap = any(math.isnan(ratio) for line in lines for ratio in line)
    for line in lines:
        axes.plot(
            rounds,
            line,
            color=figures.SKY,
            linewidth=0.9 if few else 0.5,
            alpha=0.9 if few else 0.45,
            # between two gaps a line has no length, only a mark shows
            marker="." if has_gap or len(rounds) == 1 else None,
            markersize=3,
            rasterized=len(lines) * len(rounds) > _RASTER_POINTS,
        )
