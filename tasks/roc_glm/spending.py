"""What a ROC-GLM run spends of a site's privacy, as the site works it out itself.

The neighbours are the same for every run, or runs could not be added up: one patient is replaced by
another of the same class, with any score. For `noisy-counts` that is more than the run's own
statement, which lets a score move by its `sensitivity` only. Nor does a site count on the noise of
others: where noise is shared under masks, its own part is what protects it from whoever holds the
parts of the others.
"""

from __future__ import annotations

import math

from tasks.privacy import gaussian
from tasks.privacy.site_budget import Cost
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.noise_plan import NoisePlan, noise_plan
from tasks.roc_glm.release_names import NOISY_RELEASES
from tasks.roc_glm.survivor import FloatArray

EXACT_SUMS = (
    "roc-glm.release = 'noisy-scores': exact sums over the positives leave beside the noisy scores"
)


def unstated(config: RocGlmConfig) -> list[str]:
    """Say why a release has no epsilon, a line a reason; empty if it has one."""
    if config.release not in NOISY_RELEASES:
        return [f"roc-glm.release = '{config.release}': leaves without noise"]
    reasons = []
    if config.release == "noisy-scores" and not config.debias:
        reasons.append(
            "roc-glm.debias = false with release = 'noisy-scores': scores need not lie in [0, 1], "
            "so nothing bounds how far one moves"
        )
    if config.estimates_sensitivity:
        reasons.append(
            "roc-glm.estimate-sensitivity = true: the estimate leaves without noise, and bounds "
            "nothing"
        )
    return reasons


def release_cost(config: RocGlmConfig, plan: NoisePlan, *, num_cuts: int) -> Cost:
    """Cost of a release and its statistics, which a patient of one class moves.

    Parameters
    ----------
    config : RocGlmConfig
        One whose `unstated` is empty.
    plan : NoisePlan
        The noise that the site adds itself.
    num_cuts : int
        Cut points of the cells, of `noisy-counts`.
    """
    moved = {
        "noisy-scores": 1.0,  # [0, 1]
        "noisy-counts": math.sqrt(num_cuts),  # each cumulative count by 1
        "noisy-histogram": math.sqrt(2.0),  # one out of a cell, one into another
    }[config.release]
    ratios = [moved / plan.scale]
    if plan.statistics is not None:
        noise = plan.statistics
        ratios += [
            1.0 / noise.squares,
            math.sqrt(2.0) / noise.bin_rows,
            math.sqrt(2.0) / noise.bin_scores,
            1.0 / noise.above,
        ]
    return Cost(ratio=gaussian.composed_ratio(ratios))


def least_cost(config: RocGlmConfig, cuts: FloatArray) -> Cost:
    """Cost of the release if the site shared its noise with nobody and told no statistics.

    Parameters
    ----------
    config : RocGlmConfig
        One whose `unstated` is empty.
    cuts : (M - 1,) float64
        Cut points of the configuration.
    """
    plan = noise_plan(config, score_sensitivity=config.sensitivity, cuts=cuts, is_probability=False)
    return release_cost(config, plan, num_cuts=len(cuts))
