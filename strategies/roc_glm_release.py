"""The release of a ROC-GLM run at the server: what is asked for, and how replies are pooled."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from strategies.membership import Refused
from strategies.roc_glm_checks import (
    check_counts,
    check_facts,
    check_noisy_total,
    check_statistics,
)
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.counts import (
    ClassCounts,
    DistinctCounts,
    pool_distinct,
    require_both_classes,
)
from tasks.roc_glm.cut_points import StatisticsPlaces, planned_cuts
from tasks.roc_glm.messages import ReleaseReply, SiteFacts
from tasks.roc_glm.noise_plan import NoisePlan, noise_plan
from tasks.roc_glm.noisy_scores import Deconvolved
from tasks.roc_glm.noisy_statistics import calibration_of, confusion_of
from tasks.roc_glm.placement import Survivor
from tasks.roc_glm.release_names import NOISY_RELEASES
from tasks.roc_glm.releases import NoisyCounts, NoisyScores
from tasks.roc_glm.rows import coding_faults
from tasks.roc_glm.score_model import ScoreModel
from tasks.roc_glm.sensitivity import pool_sensitivity
from tasks.roc_glm.site_statistics import (
    SiteStatistics,
    StatisticsShape,
    pool_statistics,
    read_noisy_vector,
)
from tasks.roc_glm.small_sites import common_cuts
from tasks.roc_glm.survivor import (
    CellSurvivor,
    FloatArray,
    IntArray,
    LinearSurvivor,
    ScoreSurvivor,
)
from tasks.secure import split_reals
from tasks.site.messages import TaskPart
from tasks.site.name_lists import lines_by_words, some_names
from tasks.site.reply_fields import MalformedReply

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


@dataclass(frozen=True)
class PooledRelease:
    """What the sites released, together.

    Attributes
    ----------
    num_negative, num_positive : int
    counts : ClassCounts or None
        In cells, or at `levels`.
    levels : (L,) float64
        Distinct scores, of `exact`; empty otherwise.
    by_site : dict of str to ClassCounts
        Each site's own, where they came in clear.
    noisy : NoisyCounts or None
    scores : NoisyScores or None
    deconvolved : Deconvolved or None
        `scores` without their noise, with ``roc-glm.debias``.
    statistics : SiteStatistics or None
    sites : tuple of str
        Whose rows these are.
    """

    num_negative: int
    num_positive: int
    counts: ClassCounts | None = None
    levels: FloatArray = field(default_factory=lambda: np.empty(0))
    by_site: Mapping[str, ClassCounts] = field(default_factory=dict)
    noisy: NoisyCounts | None = None
    scores: NoisyScores | None = None
    deconvolved: Deconvolved | None = None
    statistics: SiteStatistics | None = None
    sites: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of exact counts and of whose they are, to tell whether another run has them."""
        digest = hashlib.sha256(repr((self.num_negative, self.num_positive, self.sites)).encode())
        assert self.counts is not None, "what has noise is never released twice"
        arrays = [self.counts.negative, self.counts.positive, self.levels]
        if self.statistics is not None:
            arrays += [self.statistics.counts(), self.statistics.sums()]
        for array in arrays:
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


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


def pool_clear(
    plan: ReleasePlan, replies: Mapping[str, ReleaseReply], facts: Mapping[str, SiteFacts]
) -> PooledRelease:
    """Pool what came in clear, in the order of site names."""
    release, parts = plan.config.release, list(replies.values())
    if release in ("noisy-counts", "noisy-histogram"):
        reals = [np.concatenate([p.negative, p.positive, p.sums]) for p in parts]
        total = np.asarray(np.sum(reals, axis=0), dtype=np.float64)
        return _pooled_noisy(plan, total, {name: facts[name] for name in replies})
    if release == "noisy-scores":
        scores = NoisyScores(
            *(
                np.sort(np.concatenate([np.asarray(part, dtype=np.float64) for part in of_class]))
                for of_class in ([p.negative for p in parts], [p.positive for p in parts])
            )
        )
        return _pooled_scores(plan, scores, tuple(replies))
    by_site = {
        name: ClassCounts(p.negative.astype(np.int64), p.positive.astype(np.int64))
        for name, p in replies.items()
    }
    statistics = pool_statistics(
        SiteStatistics.from_vectors(part.counts, part.sums, plan.shape) for part in parts
    )
    if release == "exact":
        distinct = pool_distinct(
            [DistinctCounts(replies[name].levels, counts) for name, counts in by_site.items()]
        )
        counts, levels = distinct.counts, distinct.levels
    else:
        counts, levels = sum_counts(list(by_site.values())), np.empty(0)
    return PooledRelease(
        counts.num_negative,
        counts.num_positive,
        counts=counts,
        levels=levels,
        by_site=by_site,
        statistics=statistics,
        sites=tuple(replies),
    )


def pool_masked(
    plan: ReleasePlan, sums: IntArray, facts: Mapping[str, SiteFacts], names: Sequence[str]
) -> PooledRelease:
    """Read the sums over sites that came under masks.

    Raises
    ------
    Refused
        If they are impossible; which site answered falsely, the masks hide.
    """
    try:
        return _pool_masked(plan, sums, facts, names)
    except MalformedReply as why:
        raise Refused(
            [
                f"release: the masked sum of {some_names(names)} cannot be ({why}): a site "
                "answered falsely, and masks hide which"
            ]
        ) from None


def _pool_masked(
    plan: ReleasePlan, sums: IntArray, facts: Mapping[str, SiteFacts], names: Sequence[str]
) -> PooledRelease:
    number = len(names)
    if plan.config.release != "secure-counts":
        total = split_reals.join(sums, num_sites=number)
        rows = sum(
            (facts[name].num_negative or 0) + (facts[name].num_positive or 0) for name in names
        )
        check_noisy_total(plan, total, rows, noises=1)
        return _pooled_noisy(plan, total, {name: facts[name] for name in names})
    cells, shape = len(plan.cuts) + 1, plan.shape
    if len(sums) != 2 * cells + shape.num_counts + 2 * shape.num_sums:
        raise MalformedReply("it is of another length than asked for")
    ends = np.cumsum([cells, cells, shape.num_counts])
    negative, positive, whole, reals = np.split(sums, ends)
    for part in (negative, positive, whole):
        check_counts(part)
    counts = ClassCounts(negative, positive)
    statistics = SiteStatistics.from_vectors(
        whole, split_reals.join(reals, num_sites=number), shape
    )
    check_statistics(
        statistics, (counts.num_negative, counts.num_positive), edges=plan.places.edges
    )
    return PooledRelease(
        counts.num_negative,
        counts.num_positive,
        counts=counts,
        statistics=statistics,
        sites=tuple(names),
    )


def survivors_of(plan: ReleasePlan, pooled: PooledRelease) -> tuple[Survivor, ...]:
    """Survivor functions of the negatives that sites are told; the last is that of the ROC-GLM.

    There are two after noisy scores that were deconvolved, and none after noisy counts.
    """
    if pooled.counts is not None:
        negative = pooled.counts.negative
        if plan.config.release == "exact":
            return (ScoreSurvivor(pooled.levels, negative),)
        return (CellSurvivor(plan.cuts, negative),)
    if pooled.scores is None:
        return ()
    as_they_are = ScoreSurvivor.of(pooled.scores.negative)
    if pooled.deconvolved is None:
        return (as_they_are,)
    return (as_they_are, LinearSurvivor(pooled.deconvolved.negative))


def sum_counts(sites: Sequence[ClassCounts]) -> ClassCounts:
    """Sum of counts in the same cells; at least one."""
    first, *others = sites
    for other in others:
        first = first + other
    return first


def _pooled_noisy(
    plan: ReleasePlan, total: FloatArray, facts: Mapping[str, SiteFacts]
) -> PooledRelease:
    told = facts.values()
    sizes = [
        sum(size or 0 for size in of_class)
        for of_class in ([f.num_negative for f in told], [f.num_positive for f in told])
    ]
    length = len(plan.cuts) + (plan.config.release == "noisy-histogram")
    noisy = NoisyCounts(total[:length], total[length : 2 * length])
    statistics = None
    if plan.noise is not None and plan.noise.statistics is not None:
        negative, positive = read_noisy_vector(total[2 * length :], plan.shape)
        n0, n1 = sizes
        statistics = SiteStatistics(
            confusion_of(negative, positive, num_negative=n0, num_positive=n1),
            calibration_of(negative, positive, num_negative=n0, num_positive=n1),
        )
    return PooledRelease(sizes[0], sizes[1], noisy=noisy, statistics=statistics, sites=tuple(facts))


def _pooled_scores(plan: ReleasePlan, scores: NoisyScores, sites: tuple[str, ...]) -> PooledRelease:
    assert plan.noise is not None, "the release has noise"
    negative, positive = len(scores.negative), len(scores.positive)
    require_both_classes(num_negative=negative, num_positive=positive)
    deconvolved = Deconvolved.of(scores, plan.noise.scale) if plan.config.debias else None
    return PooledRelease(negative, positive, scores=scores, deconvolved=deconvolved, sites=sites)


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
