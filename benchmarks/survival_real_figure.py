"""Figure of `survival_real.py`: C-index by model, beside central Cox and federated-survival."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from survival_real_results import PEER_C, PEER_SEEDS, PRODUCT, ModelResult

OURS, PEERS, COX = "#1b5e8c", "#c2571a", "#555555"
TITLES = {"gbsg2": "GBSG2", "metabric": "METABRIC", "support": "SUPPORT"}


def plot(
    found: Sequence[ModelResult],
    path: Path,
) -> None:
    """Write one panel a data set: means with 95 % intervals over splits, best model on top."""
    names = list(dict.fromkeys(one.data_set for one in found))
    most = max(len({one.model for one in found if one.data_set == name}) for name in names)
    figure = Figure(figsize=(1.4 + 4.8 * len(names), 2.3 + 0.5 * most), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(1, len(names), squeeze=True))
    for name, ax in zip(names, axes, strict=True):
        here = [one for one in found if one.data_set == name]
        ours = sorted((one for one in here if one.by == PRODUCT), key=lambda one: one.c.mean)
        place = {one.model: row for row, one in enumerate(ours)}
        central = float(np.mean([result.central for result in ours[0].results]))
        ax.axvline(central, color=COX, linestyle="--", linewidth=1.2, label="central Cox")
        for one in here:
            mine = one.by == PRODUCT
            ax.errorbar(
                one.c.mean,
                place[one.model] + (0.12 if mine else -0.12),
                xerr=one.c.half_width,
                fmt="o" if mine else "s",
                color=OURS if mine else PEERS,
                capsize=3,
                label=f"{one.by}, same splits",
            )
        for one in ours:
            _seeds_of_the_peer(ax, one, place[one.model])
        ax.set_yticks(list(place.values()), list(place))
        ax.set_ylim(-0.6, len(place) - 0.4)
        ax.set_title(f"{TITLES[name]}, {len(ours[0].results)} splits")
        ax.set_xlabel("C-index of the pooled test rows (95 % CI over splits)")
        ax.grid(axis="x", alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
    handles = {}
    for ax in axes:
        handles |= {
            label: handle for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
        }
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=2, frameon=False
    )
    figure.savefig(path, dpi=150)


def _seeds_of_the_peer(ax: Axes, one: ModelResult, row: int) -> None:
    """Draw what the peer's stated figure can be compared with: means over the same few seeds."""
    stated, mean = PEER_C.get((one.data_set, one.model)), one.on_peer_seeds
    if stated is None:
        return
    words = f"seeds {PEER_SEEDS[0]}-{PEER_SEEDS[-1]} only"
    ax.plot(stated, row - 0.12, "x", color=PEERS, label=f"federated-survival, stated: {words}")
    if mean is not None:
        central = float(np.mean([r.central for r in one.results if r.seed in PEER_SEEDS]))
        ax.plot(mean, row + 0.12, "o", color=OURS, mfc="white", label=f"{one.by}, {words}")
        ax.axvline(central, color=COX, linestyle=":", linewidth=1, label=f"central Cox, {words}")
