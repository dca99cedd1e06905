"""Whether what a site says can be: compared with its introduction, and with itself.

Nobody can check a count, but what is impossible is not to enter a sum: it ends as the fault of the
site that said it, not as an AUC that means nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tasks.glm.families import FisherSums
from tasks.roc_glm.calibration import bin_edges
from tasks.roc_glm.counts_messages import CountsReply
from tasks.roc_glm.messages import MOST_ROWS, ReleaseReply, SiteFacts
from tasks.roc_glm.noise_plan import NoisePlan
from tasks.roc_glm.releases import NOISY_RELEASES
from tasks.roc_glm.site_statistics import SiteStatistics
from tasks.roc_glm.survivor import FloatArray
from tasks.site.reply_fields import MalformedReply

if TYPE_CHECKING:
    from strategies.roc_glm_release import ReleasePlan

_ROUNDING = 1e-6  # of sums of scores, relative to the rows, fixed point under masks included
_TAILS = 40.0  # standard deviations that no draw is away
_LARGEST_SCORE = 1e150  # whose square is finite


def check_release(plan: ReleasePlan, reply: ReleaseReply, facts: SiteFacts) -> None:
    """Refuse a site's release in clear that is impossible or not of the form asked for.

    Raises
    ------
    MalformedReply
        What is wrong with it, without any of its values.
    """
    release = plan.config.release
    sizes = _sizes(facts)
    if release == "noisy-scores":
        _check_scores(plan, reply, sizes)
        return
    lengths = {"exact": len(reply.levels), "noisy-counts": len(plan.cuts)}
    expected = lengths.get(release, len(plan.cuts) + 1)
    _require(
        (len(reply.negative), len(reply.positive)) == (expected, expected),
        "counts of another length than asked for",
    )
    if release in NOISY_RELEASES:
        _check_noisy(plan, reply, sizes)
        return
    for counts, size in zip((reply.negative, reply.positive), sizes, strict=True):
        check_counts(counts, size)
    if release == "exact":
        _check_levels(plan, reply)
    _require(
        (len(reply.counts), len(reply.sums)) == (plan.shape.num_counts, plan.shape.num_sums),
        "statistics of another length than asked for",
    )
    check_statistics(SiteStatistics.from_vectors(reply.counts, reply.sums, plan.shape), sizes)


def check_counts(counts: NDArray[np.generic], size: int | None = None) -> None:
    """Refuse what are no counts, or not those of `size` rows.

    Parameters
    ----------
    counts : (L,) int64
    size : int, optional
        Rows of the class; None: not known.
    """
    _require(counts.dtype.kind == "i", "counts that are no whole numbers")
    found = [int(count) for count in counts.tolist()]
    _require(all(0 <= count <= MOST_ROWS for count in found), "counts that cannot be")
    _require(sum(found) <= MOST_ROWS, "counts that cannot be")
    if size is not None:
        _require(sum(found) == size, "counts that do not add up to the class size stated before")


def check_statistics(statistics: SiteStatistics, sizes: tuple[int, int]) -> None:
    """Refuse confusion counts and calibration sums that rows of these classes cannot have.

    Parameters
    ----------
    statistics : SiteStatistics
        Of a site, or summed over sites.
    sizes : (int, int)
        Negative and positive rows.
    """
    negative, positive = sizes
    table = statistics.confusion
    cells = [table.true_positive, table.false_negative, table.false_positive, table.true_negative]
    total = np.sum([*cells, table.suppressed], axis=0)
    _require(
        all((cell >= 0).all() for cell in cells)
        and bool((table.true_positive + table.false_negative <= positive).all())
        and bool((table.false_positive + table.true_negative <= negative).all())
        and bool((total == negative + positive).all()),
        "confusion counts that do not add up to the class sizes",
    )
    if (sums := statistics.calibration) is None:
        return
    rows = negative + positive
    slack = _ROUNDING * (1.0 + rows)
    _require((sums.rows, sums.positives) == (rows, positive), "calibration sums of other rows")
    _require(
        bool((sums.bin_positives <= sums.bin_rows).all())
        and float(sums.bin_positives.sum()) <= positive
        and float(sums.bin_rows.sum() + sums.suppressed.sum()) == rows,
        "bins that do not add up to the class sizes",
    )
    edges = bin_edges(len(sums.bin_rows))
    _require(
        -slack <= sums.scores <= rows + slack
        and -slack <= sums.squares <= rows + slack
        and bool((sums.bin_scores >= edges[:-1] * sums.bin_rows - slack).all())
        and bool((sums.bin_scores <= edges[1:] * sums.bin_rows + slack).all()),
        "sums of scores that scores in [0, 1] cannot have",
    )


def check_exact_sums(plan: ReleasePlan, reply: CountsReply, facts: SiteFacts) -> None:
    """Refuse sums over a site's positives that are impossible; raises as `check_release`."""
    sizes = _sizes(facts)
    for moments, w1 in zip(reply.moments, reply.threshold_counts, strict=True):
        _require(moments.count == sizes[1], "sums of another number of positives than stated")
        _require(bool((np.diff(w1) >= 0).all()), "counts at thresholds that fall")
        most = moments.count * moments.mean * (1.0 - moments.mean)
        slack = 1e-9 * (1.0 + moments.count)
        _require(
            -1e-12 <= moments.mean <= 1.0 + 1e-12 and -slack <= moments.squares <= most + slack,
            "moments that placement values in [0, 1] cannot have",
        )
    check_statistics(SiteStatistics.from_vectors(reply.counts, reply.sums, plan.shape), sizes)


def check_fisher_sums(fits: Sequence[FisherSums]) -> None:
    """Refuse sums of Fisher scoring that no rows can have; raises as `check_release`."""
    for sums in fits:
        entries = np.concatenate([sums.score, sums.information.ravel()])
        _require(
            0 <= sums.rows <= 10_000 * MOST_ROWS and bool((np.abs(entries) < 1e100).all()),
            "sums that cannot be",
        )
        information = sums.information
        limit = np.outer(np.diag(information), np.diag(information)) * (1.0 + 1e-9) + 1e-9
        _require(
            bool((np.diag(information) >= 0).all())
            and bool((np.square(information) <= limit).all()),
            "an information matrix that cannot be",
        )


def check_noisy_total(plan: ReleasePlan, total: FloatArray, rows: int, *, noises: int) -> None:
    """Refuse a sum of `noises` noisy releases that lies further off than noise goes."""
    assert plan.noise is not None, "the release has noise"
    limit = rows + _TAILS * np.sqrt(noises) * _largest_noise(plan.noise)
    _require(bool((np.abs(total) <= limit).all()), "noisy sums further off than noise goes")


def _check_scores(plan: ReleasePlan, reply: ReleaseReply, sizes: tuple[int, int]) -> None:
    assert plan.noise is not None, "the release has noise"
    _require((len(reply.negative), len(reply.positive)) == sizes, "other scores than rows stated")
    low, high = -_LARGEST_SCORE, _LARGEST_SCORE
    if plan.is_probability:
        low, high = -_TAILS * plan.noise.scale, 1.0 + _TAILS * plan.noise.scale
    values = np.concatenate([reply.negative, reply.positive]).astype(np.float64)
    _require(bool(((values >= low) & (values <= high)).all()), "scores further off than noise goes")


def _check_noisy(plan: ReleasePlan, reply: ReleaseReply, sizes: tuple[int, int]) -> None:
    shape = plan.shape
    per_class = 1 + 2 * shape.bins + shape.thresholds
    has_statistics = plan.noise is not None and plan.noise.statistics is not None
    _require(
        len(reply.sums) == (2 * per_class if has_statistics else 0),
        "noisy statistics of another length than asked for",
    )
    total = np.concatenate([reply.negative, reply.positive, reply.sums]).astype(np.float64)
    check_noisy_total(plan, total, sum(sizes), noises=1)


def _check_levels(plan: ReleasePlan, reply: ReleaseReply) -> None:
    _require(bool((np.diff(reply.levels) > 0).all()), "levels that do not ascend")
    _require(
        bool((reply.negative.astype(np.int64) + reply.positive.astype(np.int64) > 0).all()),
        "levels without a row",
    )
    if plan.is_probability and len(reply.levels):
        _require(
            reply.levels[0] >= 0.0 and reply.levels[-1] <= 1.0,
            "scores outside [0, 1], which was said to hold all",
        )


def _largest_noise(noise: NoisePlan) -> float:
    part = noise.statistics
    if part is None:
        return noise.scale
    return max(noise.scale, part.squares, part.bin_rows, part.bin_scores, part.above)


def _sizes(facts: SiteFacts) -> tuple[int, int]:
    if facts.num_negative is None or facts.num_positive is None:
        raise MalformedReply("no class sizes were stated")
    return facts.num_negative, facts.num_positive


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise MalformedReply(otherwise)
