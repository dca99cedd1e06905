"""Figures: one style for all of them, saved as PNG and SVG, and set into the page.

Matplotlib is imported when a figure is drawn and through its object interface alone; the same
data give the same bytes. The colours are Okabe and Ito's, which colour-blind readers can tell
apart.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapp.report.ledger import Flow, format_bytes
from fedapp.strict_json import replace_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#1f2328"
MUTED = "#59636e"
RULE = "#d8dde3"
PAPER = "#ffffff"
BLUE = "#0072b2"
SKY = "#56b4e9"
GREEN = "#009e73"
ORANGE = "#e69f00"
RED = "#d55e00"
PURPLE = "#aa4499"

DPI = 150
WIDTH = 4.8  # inches: on a telephone the text of 10 points is 10 pixels high
SMALL = 9.0

# On the page a colour becomes a variable, so that figures follow light and dark.
_VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    RULE: "rule",
    PAPER: "paper",
    BLUE: "blue",
    SKY: "sky",
    GREEN: "green",
    ORANGE: "orange",
    RED: "red",
    PURPLE: "purple",
}

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "text.color": INK,
    "text.parse_math": False,  # a "$" in a name is a "$"
    "axes.labelcolor": INK,
    "axes.labelsize": 10.0,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.frameon": False,
    "legend.fontsize": SMALL,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "savefig.facecolor": PAPER,
    "svg.fonttype": "none",  # text stays text: to select, to search, in the fonts of the page
    "path.simplify_threshold": 0.2,
}


def draw(folder: Path, name: str, plot: Callable[[Axes], None], *, height: float = 3.5) -> str:
    """Draw a figure, save it as PNG and SVG, and return it as SVG for the page.

    Parameters
    ----------
    folder : Path
        Where ``<name>.png`` and ``<name>.svg`` go.
    name : str
        Name of the figure, unique on the page.
    plot : callable
        Draws into the axes it is given.
    height : float
        In inches.

    Returns
    -------
    str
        An ``<svg>`` element without fixed size, whose colours are variables of the page.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    # "default" first: the matplotlibrc of whoever makes the report changes nothing.
    styles: Any = ["default", _STYLE, {"svg.hashsalt": name}]
    with style.context(styles), warnings.catch_warnings():
        # a name in a script that the font lacks: the page shows it, the PNG has boxes
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        plot(figure.subplots())
        png, svg = io.BytesIO(), io.BytesIO()
        figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None})
        figure.set_layout_engine("none")  # what the PNG has worked out holds for the SVG
        figure.savefig(svg, format="svg", metadata=dict.fromkeys(_SVG_METADATA))
    replace_bytes(folder / f"{name}.png", png.getvalue())
    replace_bytes(folder / f"{name}.svg", svg.getvalue())
    return for_page(svg.getvalue().decode(), name=name)


_SVG_METADATA = ("Date", "Creator", "Format", "Type")


def discard(folder: Path, name: str) -> None:
    """Remove a figure that an earlier report made and this one cannot."""
    for suffix in ("png", "svg"):
        (folder / f"{name}.{suffix}").unlink(missing_ok=True)


def for_page(svg: str, *, name: str) -> str:
    """Make a stand-alone SVG fit into the page: no fixed size, own ids, colours of the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    # Ids of several figures in one page must differ.
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = svg.replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    # Inside attributes only: text is escaped and may look like a colour.
    svg = re.sub(r'style="[^"]*"', lambda match: _page_style(match[0]), svg)
    return svg.strip()


def _page_style(style: str) -> str:
    for colour, variable in _VARIABLES.items():
        style = style.replace(colour, f"var(--{variable})")
    return style.replace("'DejaVu Sans'", "inherit")


def whole_numbers(axes: Axes, *, lowest: float, highest: float) -> None:
    """Set up an x axis of whole numbers, rounds for example."""
    from matplotlib.ticker import MaxNLocator

    margin = max(0.02 * (highest - lowest), 0.5 if lowest == highest else 0.0)
    axes.set_xlim(lowest - margin, highest + margin)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))


DIRECTION_COLOURS = {
    "server → sites": BLUE,
    "sites → server": ORANGE,
    "site → site": GREEN,
}


def bytes_by_step(axes: Axes, flows: Sequence[Flow]) -> None:
    """Draw the volume of each step as a bar, split by direction."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    steps = list(dict.fromkeys(flow.step for flow in flows))
    ends = dict.fromkeys(steps, 0)
    for direction, colour in DIRECTION_COLOURS.items():
        volumes = {flow.step: flow.bytes for flow in flows if flow.direction == direction}
        if volumes:
            axes.barh(
                [steps.index(step) for step in volumes],
                list(volumes.values()),
                left=[ends[step] for step in volumes],
                height=0.62,
                color=colour,
                label=direction,
            )
        for step, volume in volumes.items():
            ends[step] += volume
    for row, step in enumerate(steps):
        axes.annotate(
            format_bytes(ends[step]),
            (ends[step], row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL,
        )
    axes.set_yticks(range(len(steps)), steps)
    axes.set_ylim(len(steps) - 0.5, -0.5)
    axes.set_xlim(0, 1.18 * max([*ends.values(), 1]))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda volume, _: format_bytes(int(volume))))
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.tick_params(axis="y", length=0)
    axes.figure.legend(loc="outside upper left", ncols=len(DIRECTION_COLOURS), handlelength=1.0)
