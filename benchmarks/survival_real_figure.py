"""Figure of `survival_real.py`: C-index by model, beside central Cox and federated-survival."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from survival_real_results import PEER_C, PRODUCT, ModelResult

OURS, PEERS, COX = "#1b5e8c", "#c2571a", "#555555"
TITLES = {"gbsg2": "GBSG2", "metabric": "METABRIC", "support": "SUPPORT"}


def plot(
    found: Sequence[ModelResult],
    path: Path,
) -> None:
    """Write one panel a data set: means with 95 % intervals over splits, best model on top."""
    names = list(dict.fromkeys(one.data_set for one in found))
    most = max(len({one.model for one in found if one.data_set == name}) for name in names)
    figure = Figure(figsize=(1.2 + 4.6 * len(names), 1.9 + 0.45 * most), layout="constrained")
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
        for model, row in place.items():
            if (name, model) in PEER_C:
                ax.plot(
                    PEER_C[name, model],
                    row - 0.12,
                    marker="x",
                    color=PEERS,
                    linestyle="none",
                    label="federated-survival, stated before (seeds 0-2)",
                )
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
