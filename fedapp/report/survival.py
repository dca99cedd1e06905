"""Figures, key numbers and words of the report on a survival run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapp.report import figures
from fedapp.report.page import Absent, Figure, KeyNumber, Notice, Section
from fedapp.run_folder import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Federated survival analysis"
CURVES = "curves.json"

_FAINT_SITES = 12  # from so many on, the line of a site is drawn thinner still
_RASTER_POINTS = 20_000  # more points of thin lines than this go into the SVG as an image
_LOG_SCALE_SPAN = 20.0


def key_numbers(run: RunRecord) -> list[KeyNumber]:
    """Return the C-index of the run and the state of its privatization."""
    return [
        KeyNumber("C-index within sites", *_c_index_words(run)),
        KeyNumber("Privatization", *_privatization_words(run)),
    ]


def notices(run: RunRecord) -> list[Notice]:
    """Return what a reader must not miss: signs of failure, and noise that drowns the signal."""
    found = [Notice("failure", f"Diagnostic: {line}") for line in _lines(run, "diagnostics")]
    largest = run.summary.get("noise-to-signal-max")
    if largest is not None and largest > 1:
        found.append(
            Notice(
                "warning",
                f"The noise was up to {largest:.2f} times as large as the update it was added to "
                "(noise-to-signal above 1).",
            )
        )
    return found


def site_columns(run: RunRecord) -> dict[str, dict[str, str]]:
    """Return what the survival task adds to the table of sites: head to site to cell."""
    ratios: dict[str, list[float]] = {}
    for line in run.rounds:
        for site, ratio in line.get("noise-to-signal", {}).items():
            ratios.setdefault(site, []).append(ratio)
    if not ratios:
        return {}
    return {
        "noise to signal, median": {
            site: f"{statistics.median(values):.2f}" for site, values in ratios.items()
        }
    }


def sections(run: RunRecord, *, curves: Mapping[str, Any] | None, folder: Path) -> list[Section]:
    """Draw the figures of the task into `folder` and return the sections that hold them.

    Parameters
    ----------
    run : RunRecord
        The run.
    curves : mapping or None
        Content of ``curves.json``.
    folder : Path
        Folder of the figures.
    """
    return [
        Section(
            "Discrimination and survival curves",
            paragraphs=_c_index_meaning(run),
            figures=[_convergence(run, folder), _survival_curves(curves, folder)],
        ),
        Section(
            "Privacy and noise",
            paragraphs=_privacy_words(run),
            figures=[_noise_to_signal(run, folder)],
        ),
    ]


# Words


def _confidence(run: RunRecord) -> str:
    return f"{100 * run.setting('survival.confidence-level', 0.95):g} % CI"


def _interval(line: Mapping[str, Any]) -> str:
    if "c-index-lower" in line and "c-index-upper" in line:
        return f"{line['c-index-lower']:.3f} – {line['c-index-upper']:.3f}"
    return ""


def _c_index_words(run: RunRecord) -> tuple[str, str]:
    if "c-index" not in run.summary:
        return "–", "no estimate"
    interval = _interval(run.summary)
    detail = f"{_confidence(run)} {interval}" if interval else "no confidence interval"
    return f"{run.summary['c-index']:.3f}", detail


def _privatization_words(run: RunRecord) -> tuple[str, str]:
    mechanism = run.setting("survival.dp-mechanism")
    if mechanism is None:
        return "–", "not recorded"
    if mechanism == "none":
        return "off", "no noise added"
    driver = str(run.summary.get("noise-driver", "")).replace("_", "-")
    value = run.setting(f"survival.{driver}")
    return str(mechanism), f"{driver} = {value}" if value is not None else driver


def _c_index_meaning(run: RunRecord) -> list[str]:
    words = (
        "The C-index is the concordance within sites: the share of comparable pairs of rows in "
        "which the model gives the row with the earlier event the higher risk (equal risks count "
        "half). 0.5 is chance, 1 is perfect. Both rows of a pair are of the same site; pairs "
        "across sites are not compared, so this is not the C-index of the pooled rows. It and its "
        "confidence interval (logit scale) come from sums of each site alone."
    )
    pairs = [line["comparable-pairs"] for line in run.rounds if "comparable-pairs" in line]
    if pairs:
        words += f" Comparable pairs: {int(pairs[-1]):,}.".replace(",", "\u202f")
    if run.setting("survival.test-fraction", 0.2) == 0:
        words += " No rows were kept for evaluation: it was measured on the rows of training."
    return [words]


def _privacy_words(run: RunRecord) -> list[str]:
    words = [run.summary["privacy"]] if run.summary.get("privacy") else []
    if "noise-to-signal-median" in run.summary:
        words.append(
            f"Noise to signal over all sites and rounds: median "
            f"{run.summary['noise-to-signal-median']:.2f}, "
            f"largest {run.summary.get('noise-to-signal-max', math.nan):.2f}."
        )
    return words or ["The run left no statement on its privacy."]


def _lines(run: RunRecord, key: str) -> list[str]:
    return [str(line) for line in run.summary.get(key, [])]


# Convergence


def _convergence(run: RunRecord, folder: Path) -> Figure | Absent:
    name = "convergence"
    measured = [line for line in run.rounds if {"round", "c-index"} <= set(line)]
    if not measured:
        figures.discard(folder, name)
        return Absent("No figure of convergence: no round has a C-index.")
    words = _c_index_words(run)
    svg = figures.draw(folder, name, lambda axes: _draw_convergence(axes, run, measured))
    return Figure(
        name=name,
        svg=svg,
        alt=f"C-index by round, {len(measured)} rounds; final value {words[0]}, {words[1]}.",
        caption=f"C-index within sites by round, with its {_confidence(run)} (band). "
        "Dashed: chance.",
    )


def _draw_convergence(axes: Axes, run: RunRecord, measured: Sequence[Mapping[str, Any]]) -> None:
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


# Survival curves


def _survival_curves(curves: Mapping[str, Any] | None, folder: Path) -> Figure | Absent:
    name = "survival-curves"
    reason = _curves_fault(curves)
    if curves is None or reason:
        figures.discard(folder, name)
        return Absent(f"No survival curves: {reason}.")
    groups = curves["groups"]
    caption = (
        "Survival by risk group: predicted by the model (smooth lines) and observed "
        "(Kaplan-Meier, steps). Where the two lie together, the model is well calibrated."
    )
    if any(group.get("suppressed-sites") for group in groups):
        left_out = ", ".join(
            f"{group['name']} {group['suppressed-sites']}"
            for group in groups
            if group.get("suppressed-sites")
        )
        caption += f" Sites left out, with too few rows in a group to send their sums: {left_out}."
    svg = figures.draw(folder, name, lambda axes: _draw_curves(axes, curves["times"], groups))
    return Figure(
        name=name,
        svg=svg,
        alt="Survival probability over time by risk group, predicted and Kaplan-Meier: "
        + ", ".join(str(group["name"]) for group in groups),
        caption=caption,
    )


def _curves_fault(curves: Mapping[str, Any] | None) -> str:
    """Say why the curves cannot be drawn; empty if they can."""
    if curves is None:
        return f"the run folder has no {CURVES}"
    if not curves.get("times") or not curves.get("groups"):
        return f"{CURVES} has no times or no risk groups"
    for group in curves["groups"]:
        for key in ("predicted", "kaplan-meier"):
            if group.get(key) is not None and len(group[key]) != len(curves["times"]):
                return f"in {CURVES}, {key!r} of a group and the times differ in length"
    if not any(group.get("predicted") or group.get("kaplan-meier") for group in curves["groups"]):
        return f"{CURVES} holds no curve"
    return ""


def _draw_curves(axes: Axes, times: Sequence[float], groups: Sequence[Mapping[str, Any]]) -> None:
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


# Noise to signal


def _noise_to_signal(run: RunRecord, folder: Path) -> Figure | Absent:
    name = "noise-to-signal"
    measured = [line for line in run.rounds if "round" in line and line.get("noise-to-signal")]
    if not measured:
        figures.discard(folder, name)
        off = run.setting("survival.dp-mechanism") == "none"
        why = "no noise was added" if off else "no round has an estimate"
        return Absent(f"No figure of noise to signal: {why}.")
    sites = sorted({site for line in measured for site in line["noise-to-signal"]})
    caption = (
        "Norm of the noise over norm of the clipped update, one line a site. It is the server's "
        "estimate from what it received: the sites do not send the norm of their updates, and "
        "nothing more is disclosed by estimating it."
    )
    if any(len(line["noise-to-signal"]) < len(sites) for line in measured):
        caption += (
            " Where a line has a gap, the site did not answer in that round, or the noise left "
            "nothing of its update to estimate; the median is over the estimates there are."
        )
    svg = figures.draw(folder, name, lambda axes: _draw_noise(axes, measured, sites))
    return Figure(
        name=name,
        svg=svg,
        alt=f"Noise to signal by round for {len(sites)} sites, with their median.",
        caption=caption,
    )


def _draw_noise(axes: Axes, measured: Sequence[Mapping[str, Any]], sites: Sequence[str]) -> None:
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
