"""The release of a ROC-GLM run at the server: what the sites released, pooled."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from strategies.membership import Refused
from strategies.roc_glm_checks import (
    check_counts,
    check_noisy_total,
    check_statistics,
)
from strategies.roc_glm_release import ReleasePlan
from tasks.roc_glm.counts import (
    ClassCounts,
    DistinctCounts,
    pool_distinct,
    require_both_classes,
)
from tasks.roc_glm.messages import ReleaseReply, SiteFacts
from tasks.roc_glm.noisy_scores import Deconvolved
from tasks.roc_glm.noisy_statistics import calibration_of, confusion_of
from tasks.roc_glm.placement import Survivor
from tasks.roc_glm.releases import NoisyCounts, NoisyScores
from tasks.roc_glm.site_statistics import (
    SiteStatistics,
    pool_statistics,
    read_noisy_vector,
)
from tasks.roc_glm.survivor import (
    CellSurvivor,
    FloatArray,
    IntArray,
    LinearSurvivor,
    ScoreSurvivor,
)
from tasks.secure import split_reals
from tasks.site.name_lists import some_names
from tasks.site.reply_fields import MalformedReply


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
