"""Draws the figures and Table III of the PIVODL paper from the rows of `pivodl_tables`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from pivodl_plan import Figure, Plan
from pivodl_tables import CENTRAL, ENCRYPTED, EXACT, NOISY, PLAIN, TRIVIAL

TITLES = {"credit": "Credit card", "bank": "Bank marketing", "energy": "Appliances energy"}
_BLUE, _ORANGE, _GREEN, _GREY, _PINK = "#0072b2", "#d55e00", "#009e73", "#666666", "#cc79a7"
_STYLES: dict[str, dict[str, Any]] = {
    EXACT: {"color": _BLUE, "marker": "o"},
    NOISY: {"color": _ORANGE, "marker": "s"},
    PLAIN: {"color": _BLUE, "marker": "o"},
    ENCRYPTED: {"color": _ORANGE, "marker": "s"},
    CENTRAL: {"color": _GREEN, "linestyle": "--"},
    TRIVIAL: {"color": _GREY, "linestyle": ":"},
}
_AXES = {
    "clients": "number of clients",
    "depth": "maximum depth of a tree",
    "trees": "number of trees",
    "epsilon": "epsilon of partial DP",
}
_HEIGHTS = {
    "accuracy": "accuracy on test rows",
    "rmse": "RMSE on test rows (Wh)",
    "cpu-seconds": "training, CPU seconds",
    "megabytes": "all messages (MB)",
}
_SUBJECTS = {
    "quality": "test performance",
    "seconds": "training time",
    "megabytes": "communication",
}


def draw(
    path: Path, figure: Figure, plan: Plan, rows: Sequence[Mapping[str, Any]], *, note: str
) -> Canvas:
    """Draw a figure: a panel a data set, mean lines with a band from the lowest to the highest."""
    canvas = Canvas(figsize=(max(8.5, 1 + 3.9 * len(plan.data)), 4.4), layout="constrained")
    FigureCanvasAgg(canvas)
    panels = canvas.subplots(1, len(plan.data), squeeze=False)[0]
    for panel, data in zip(panels, plan.data, strict=True):
        here = [row for row in rows if row["data"] == data and row["measure"] in _HEIGHTS]
        for series in dict.fromkeys(row["series"] for row in here):
            _line(panel, [row for row in here if row["series"] == series], series)
        panel.set_title(TITLES[data])
        panel.set_xlabel(_AXES[figure.axis])
        panel.set_xticks([row["value"] for row in here if row["series"] == here[0]["series"]])
        panel.set_ylabel(_HEIGHTS[here[0]["measure"]])
        if figure.measure != "quality":
            panel.set_ylim(bottom=-0.02 * panel.get_ylim()[1])  # a line at 0 is seen
        _clean(panel)
    _legend(canvas, panels)
    words = f"PIVODL, Figure {figure.number}: {_SUBJECTS[figure.measure]} by {_AXES[figure.axis]}"
    canvas.suptitle(f"{words}\n{note}", fontsize=10)
    canvas.savefig(path, dpi=150)
    return canvas


def _line(panel: Axes, rows: Sequence[Mapping[str, Any]], series: str) -> None:
    values = [row["value"] for row in rows]
    style = {"linewidth": 1.6, "markersize": 5, **_STYLES[series]}
    runs = max(row["runs"] for row in rows)
    label = series
    if series in (NOISY, ENCRYPTED) and rows[0][_OF_LABEL[series]] != "":
        settings = dict.fromkeys(row[_OF_LABEL[series]] for row in rows)
        if len(settings) == 1:
            only = next(iter(settings))
            label = f"{series}, epsilon {only:g}" if series == NOISY else f"{series}, {only} bits"
    if series in (EXACT, NOISY, PLAIN, ENCRYPTED):
        label += f" (mean and range of {runs} seeds)" if runs > 1 else " (1 seed)"
    panel.plot(values, [row["mean"] for row in rows], label=label, **style)
    if runs > 1 and series not in (CENTRAL, TRIVIAL):
        low, high = [row["lowest"] for row in rows], [row["highest"] for row in rows]
        panel.fill_between(values, low, high, color=style["color"], alpha=0.15, linewidth=0)


_ALL_LABELS = f"{CENTRAL} (all columns and labels, test rows)"
_OF_LABEL = {NOISY: "epsilon", ENCRYPTED: "key-bits"}


def draw_guesses(
    path: Path, rows: Sequence[Mapping[str, Any]], *, central: Mapping[str, float], note: str
) -> Canvas:
    """Draw Table III: guess accuracy above and AUC below, by noise.

    Beside the guesses, by data set, the accuracy of a central XGBoost on rows it has not seen.
    """
    names = list(dict.fromkeys(row["data"] for row in rows))
    canvas = Canvas(figsize=(max(9.0, 1 + 6.0 * len(names)), 6.8), layout="constrained")
    FigureCanvasAgg(canvas)
    panels = canvas.subplots(2, len(names), squeeze=False)
    for column, data in enumerate(names):
        here = [row for row in rows if row["data"] == data]
        places = dict.fromkeys((row["noise"], row["epsilon"]) for row in here)
        for panel, figure in zip(panels[:, column], ("accuracy", "auc"), strict=True):
            _bars(panel, here, list(places), figure)
            panel.set_ylabel("guess accuracy" if figure == "accuracy" else "AUC of the guesses")
        panels[0, column].set_title(TITLES[data])
        panels[0, column].axhline(central[data], label=_ALL_LABELS, **_STYLES[CENTRAL])
    _legend(canvas, panels.ravel())
    words = "PIVODL, Table III: labels of others guessed from leaf weights"
    canvas.suptitle(f"{words}\n{note}", fontsize=10)
    canvas.savefig(path, dpi=150)
    return canvas


def _bars(
    panel: Axes, rows: Sequence[Mapping[str, Any]], places: list[tuple[str, float]], figure: str
) -> None:
    words = {"none": "no noise", "exact": "eps {:g}", "paper": "eps {:g}\n(paper's\nnoise)"}
    for shift, (attack, label, color) in enumerate(
        (
            ("leaf-weights", "leaf weights (the paper's attack)", _BLUE),
            ("mean-leaf-weights", "means of leaf weights, all rows", _ORANGE),
        )
    ):
        found = {(row["noise"], row["epsilon"]): row for row in rows if row["attack"] == attack}
        at = [place + 0.38 * (shift - 0.5) for place, key in enumerate(places) if key in found]
        heights = [found[key][figure] for key in places if key in found]
        panel.bar(at, heights, width=0.36, color=color, label=label)
    own = [row[figure] for row in rows if row["attack"] == "own-data"]
    if own:
        label = "trees on a party's own columns and labels"
        panel.axhline(sum(own) / len(own), color=_PINK, linestyle="-.", label=label)
    if figure == "accuracy":
        alike = [row for row in rows if row["attack"] == "mean-leaf-weights"]
        always = [row["accuracy"] - row["gain"] for row in alike]
        panel.axhline(sum(always) / len(always), **_STYLES[TRIVIAL], label="always the majority")
    panel.axhline(0.5, color="black", linewidth=0.8, label="a coin")
    panel.set_ylim(0, 1)
    panel.set_xticks(range(len(places)), [words[noise].format(eps) for noise, eps in places])
    _clean(panel)


def _clean(panel: Axes) -> None:
    panel.grid(visible=True, axis="y", color="#d8dde3", linewidth=0.7)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _legend(canvas: Canvas, panels: Sequence[Axes]) -> None:
    handles: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    columns = 2 if len(handles) == 4 else 3
    canvas.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False
    )
