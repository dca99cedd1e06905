"""The release of a ROC-GLM run at the server: what sites are asked for, by what they told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from strategies.membership import Refused
from strategies.roc_glm_checks import (
    check_facts,
)
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.cut_points import StatisticsPlaces, planned_cuts
from tasks.roc_glm.messages import SiteFacts
from tasks.roc_glm.noise_plan import NoisePlan, noise_plan
from tasks.roc_glm.release_names import NOISY_RELEASES
from tasks.roc_glm.rows import coding_faults
from tasks.roc_glm.score_model import ScoreModel
from tasks.roc_glm.sensitivity import pool_sensitivity
from tasks.roc_glm.site_statistics import (
    StatisticsShape,
)
from tasks.roc_glm.small_sites import common_cuts
from tasks.roc_glm.survivor import (
    FloatArray,
)
from tasks.site.messages import TaskPart
from tasks.site.name_lists import lines_by_words

_MOST_NOISE = 1e12

LEAST_MASKED = 3
"""Fewest sites of a masked sum: of two, each would learn the other's values."""


@dataclass(frozen=True)
class ReleasePlan:
    """What sites are asked to release.

    Attributes
    ----------
    config : RocGlmConfig
    cuts : (M - 1,) float64
        Cut points, after merging where every cell must have q rows; empty without cells.
    is_probability : bool
        Whether all scores of all sites lie in [0, 1].
    sensitivity : float
        Largest move of a score between neighbours.
    noise : NoisePlan or None
        None for releases without noise.
    """

    config: RocGlmConfig
    cuts: FloatArray
    is_probability: bool
    sensitivity: float
    noise: NoisePlan | None

    @property
    def places(self) -> StatisticsPlaces:
        """Where the statistics that come with the release are cut."""
        return StatisticsPlaces.of(self.config, self.cuts, is_probability=self.is_probability)

    @property
    def shape(self) -> StatisticsShape:
        """Of the statistics that come with the release."""
        return StatisticsShape(1, max(0, len(self.places.edges) - 1))


def read_facts(sites: Mapping[str, TaskPart], config: RocGlmConfig) -> dict[str, SiteFacts]:
    """Read what each site told of its rows.

    Raises
    ------
    Refused
        The sites that told what cannot be, what was not asked for, or less.
    """
    facts, faults = {}, []
    for name, part in sites.items():
        try:
            facts[name] = SiteFacts.from_facts(part.facts)
            check_facts(facts[name], config)
        except (KeyError, ValueError, TypeError) as why:
            said = f"no {why}" if isinstance(why, KeyError) else f"{why}"
            faults.append((name, f"malformed: an introduction that cannot be ({said})"))
    if faults:
        raise Refused(lines_by_words(faults))
    return facts


def plan_release(
    config: RocGlmConfig, facts: Mapping[str, SiteFacts], model: ScoreModel | None
) -> ReleasePlan:
    """Settle what is asked for, from what sites told of themselves.

    Raises
    ------
    Refused
        If sites spell labels differently, sums are to be masked over fewer than three sites, or
        no cut point is left. All faults at once.
    """
    faults = coding_faults({name: fact.coding for name, fact in facts.items()})
    if config.masks_sums and len(facts) < LEAST_MASKED:
        faults.append(_too_few_to_mask(config, len(facts)))
    cuts = planned_cuts(config, model)
    if config.merges_cells:
        kept = [np.array(fact.kept_cuts, dtype=bool) for fact in facts.values()]
        if any(len(bits) != len(cuts) for bits in kept):
            faults.append("sites have other cut points than the server: cells cannot be merged")
        elif not len(cuts := common_cuts(cuts, kept)):
            faults.append(
                f"privacy-level-of = 'cell': no cut point leaves {config.privacy_level} rows of a "
                "class, or none, in every cell of every site; allowed are a smaller "
                "roc-glm.privacy-level and privacy-level-of = 'class'"
            )
    if faults:
        raise Refused(faults)
    is_probability = all(fact.in_unit_interval for fact in facts.values())
    sensitivity = config.sensitivity
    estimates = [fact.sensitivity for fact in facts.values() if fact.sensitivity is not None]
    if config.estimates_sensitivity and estimates:
        sensitivity = pool_sensitivity(estimates).sensitivity
    noise = None
    if config.release in NOISY_RELEASES:
        noise = noise_plan(
            config, score_sensitivity=sensitivity, cuts=cuts, is_probability=is_probability
        )
        if not noise.scale <= _MOST_NOISE:
            raise Refused(
                [
                    f"noise of standard deviation {noise.scale:.3g}: at most {_MOST_NOISE:g} can "
                    "be computed with; allowed are a larger roc-glm.epsilon or a smaller "
                    "roc-glm.sensitivity"
                ]
            )
    return ReleasePlan(config, cuts, is_probability, sensitivity, noise)


def _too_few_to_mask(config: RocGlmConfig, number: int) -> str:
    sites = "1 site takes" if number == 1 else f"{number} sites take"
    what = "secure = true" if config.secure else "release = 'secure-counts'"
    others = (
        "secure = false"
        if config.secure
        else "release = 'binned' (each site's counts in clear), 'noisy-counts' or "
        "'noisy-histogram' (counts with noise), 'noisy-scores', and 'exact' (with "
        "allow-score-disclosure = true)"
    )
    return (
        f"{what} needs {LEAST_MASKED} sites or more (of two, each would learn the other's counts "
        f"from the sum), and {sites} part; allowed with fewer: {others}"
    )
