"""What a vertical run says of partial differential privacy: numbers, and the words with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.partial_dp import NEIGHBOURS, NOT_COVERED, LeafNoise


def privacy_summary(config: VerticalXGBoostConfig, *, seeded_noise: bool) -> dict[str, Any]:
    """Numbers for a run's summary; empty where partial differential privacy is off.

    ``dp-epsilon`` is what the noise guarantees, not what was asked for; ``dp-epsilon-paper``, with
    ``sensitivity = "paper"``, is what was asked for.
    """
    noise = LeafNoise.of(config)
    if noise is None:
        return {}
    epsilon = noise.guaranteed_epsilon(
        num_trees=config.num_trees,
        max_depth=config.max_depth,
        num_roots=objective_of(config).num_roots,
    )
    found: dict[str, Any] = {
        "dp-epsilon": epsilon,
        "dp-delta": noise.delta,
        "dp-sigma": noise.sigma,
        "dp-clip": noise.clip,
        "dp-releases": noise.releases,
        "dp-sensitivity": config.sensitivity,
        "dp-noise": "seeded" if seeded_noise else "operating system",
    }
    if config.sensitivity == "paper":
        found["dp-epsilon-paper"] = noise.epsilon
    return found


def privacy_lines(summary: Mapping[str, Any]) -> list[str]:
    """Sentences on the guarantee of a run: what it is, what it compares, what it leaves out."""
    if "dp-epsilon" not in summary:
        return []
    lines = [
        "partial differential privacy: all leaf weights that one source receives under noise "
        f"(sigma {summary['dp-sigma']:.4g}, clipped to [-C, C], C = {summary['dp-clip']:g}) are "
        f"together ({summary['dp-epsilon']:.4g}, {summary['dp-delta']:g})-differentially private. "
        f"Neighbours: {NEIGHBOURS}.",
        f"not covered: {NOT_COVERED}.",
    ]
    if "dp-epsilon-paper" in summary:
        lines.append(
            f"sensitivity = paper: the noise is the paper's for epsilon "
            f"{summary['dp-epsilon-paper']:g} and does NOT give it, since one row moves a weight "
            "by 2C, and after the first tree every leaf"
        )
    if summary.get("dp-noise") == "seeded":
        lines.append(
            "seeded-noise = true: who knows the seed subtracts the noise; it does NOT protect"
        )
    return lines
