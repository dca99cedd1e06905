"""What a vertical run says of partial differential privacy: numbers, and the words with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.origin import Releases, spent_epsilon
from tasks.vertical_xgboost.partial_dp import (
    NEIGHBOURS,
    NOT_COVERED,
    LeafNoise,
    planned_releases,
    spent_releases,
)


def privacy_summary(
    config: VerticalXGBoostConfig,
    *,
    seeded_noise: bool,
    releases: Sequence[Releases] = (),
    trainings: int = 1,
) -> dict[str, Any]:
    """Numbers for a run's summary; empty where partial differential privacy is off.

    ``dp-epsilon`` is what the noise guarantees, not what was asked for, trainings that the model
    goes on from included; ``dp-epsilon-here`` then is of this training alone. ``dp-epsilon-paper``,
    with ``sensitivity = "paper"``, is what was asked for.

    Parameters
    ----------
    config : VerticalXGBoostConfig
    seeded_noise : bool
    releases : sequence of Releases
        Of all trainings, this one's last; of this one alone if not given.
    trainings : int
        Of which the model is made.
    """
    noise = LeafNoise.of(config)
    if noise is None:
        return {}
    releases = releases or spent_releases(config)
    found: dict[str, Any] = {
        "dp-epsilon": spent_epsilon(releases, delta=noise.delta),
        "dp-delta": noise.delta,
        "dp-sigma": noise.sigma,
        "dp-clip": noise.clip,
        "dp-releases": noise.releases,
        "dp-sensitivity": config.sensitivity,
        "dp-noise": "seeded" if seeded_noise else "operating system",
    }
    if trainings > 1:
        found["dp-epsilon-here"] = spent_epsilon(releases[-1:], delta=noise.delta)
        found["dp-trainings"] = trainings
    if repeated := releases[-1].count - planned_releases(config):
        found["dp-releases-repeated"] = repeated
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
    if "dp-trainings" in summary:
        lines.append(
            f"that is of {summary['dp-trainings']} trainings together, the model having been "
            f"trained before: this one alone gives epsilon {summary['dp-epsilon-here']:.4g}, and "
            "Gaussian releases add up by the squares of sensitivity over sigma. Its trees count in "
            "full, since rows may be the same as before."
        )
    if "dp-releases-repeated" in summary:
        lines.append(
            f"{summary['dp-releases-repeated']} of these weights may have been told twice, each "
            "time under noise of its own, since the training was interrupted within a tree and "
            "resumed: they are counted twice, so epsilon is above what was asked for."
        )
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
