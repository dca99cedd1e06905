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
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.counts_messages import CountsReply
from tasks.roc_glm.messages import MOST_ROWS, ReleaseReply, SiteFacts
from tasks.roc_glm.noise_plan import NoisePlan
from tasks.roc_glm.probit import probit_design
from tasks.roc_glm.release_names import NOISY_RELEASES
from tasks.roc_glm.rows import declared_coding
from tasks.roc_glm.site_statistics import SiteStatistics
from tasks.roc_glm.survivor import FloatArray
from tasks.secure.roster import Roster
from tasks.secure.secure_sums import MaskedVector
from tasks.site.reply_fields import MalformedReply

if TYPE_CHECKING:
    from strategies.roc_glm_release import ReleasePlan

_ROUNDING = 1e-6  # of sums of scores, relative to the rows, fixed point under masks included
_TAILS = 40.0  # standard deviations that no draw is away
_LARGEST_SCORE = 1e150  # whose square is finite
_LARGEST_LOGIT = 750.0  # of the smallest double


def check_facts(facts: SiteFacts, config: RocGlmConfig) -> None:
    """Refuse an introduction with facts that were not asked for, or without one that was.

    A fact that nobody asked for would be believed: a sensitivity of a site's making, for one, would
    stand in the privacy statement of all.

    Raises
    ------
    MalformedReply
        What is wrong with it.
    """
    has_sizes = facts.num_negative is not None
    _require(has_sizes == (config.release != "secure-counts"), "class sizes: not as asked for")
    _require(bool(facts.kept_cuts) == config.merges_cells, "kept cut points: not as asked for")
    has_estimate = facts.sensitivity is not None
    _require(has_estimate == config.estimates_sensitivity, "sensitivity: not as asked for")
    asked = declared_coding(config.positive_label, config.negative_label)
    _require(facts.coding.positive == asked.positive, "positive label: not the one declared")
    _require(
        asked.negative is None or facts.coding.negative == asked.negative,
        "negative label: not the one declared",
    )


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
    _check_own_statistics(plan, reply, sizes)


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


def check_statistics(
    statistics: SiteStatistics, sizes: tuple[int, int], *, edges: FloatArray
) -> None:
    """Refuse confusion counts and calibration sums that rows of these classes cannot have.

    Parameters
    ----------
    statistics : SiteStatistics
        Of a site, or summed over sites.
    sizes : (int, int)
        Negative and positive rows.
    edges : (B + 1,) float64
        Of the calibration bins.
    """
    negative, positive = sizes
    table = statistics.confusion
    cells = [table.true_positive, table.false_negative, table.false_positive, table.true_negative]
    _require(
        all((cell >= 0).all() for cell in cells)
        and bool((table.true_positive + table.false_negative == positive).all())
        and bool((table.false_positive + table.true_negative == negative).all()),
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
        and float(sums.bin_rows.sum() + sums.suppressed) == rows,
        "bins that do not add up to the class sizes",
    )
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
    _check_own_statistics(plan, reply, sizes)


def check_fisher_sums(
    fits: Sequence[FisherSums],
    *,
    coefficients: FloatArray | None,
    num_thresholds: int,
    num_positive: int,
    is_total: bool,
) -> None:
    """Refuse sums of Fisher scoring that no rows can have; raises as `check_release`.

    Parameters
    ----------
    fits : sequence of FisherSums
        Of the ROC-GLM, and of the calibrations.
    coefficients : (2,) float64 or None
        Of the ROC-GLM, at which they were asked for; None in the first round.
    num_thresholds : int
        n_T.
    num_positive : int
        n1 of all sites.
    is_total : bool
        Of all sites; False: of one of them.
    """
    of_roc_glm, *others = fits
    trials = num_positive * num_thresholds
    _require(
        of_roc_glm.rows == trials if is_total else 0 <= of_roc_glm.rows <= trials,
        "sums of another number of positives than was released",
    )
    # A response adds at most |eta| + 1 to the score (Mills ratio) and 2 / pi to the information.
    design = probit_design(num_thresholds)
    predictor = np.abs(design @ (np.zeros(2) if coefficients is None else coefficients))
    score = num_positive * (np.abs(design) * (predictor[:, None] + 2.0)).sum(axis=0)
    information = 0.64 * num_positive * np.square(design).sum(axis=0)
    deviance = 2.0 * num_positive * float((np.square(predictor) / 2 + predictor + 2.0).sum())
    _require(
        bool((np.abs(of_roc_glm.score) <= score + 1.0).all())
        and bool((np.diag(of_roc_glm.information) <= information + 1.0).all())
        and (coefficients is None or -1.0 <= of_roc_glm.deviance <= deviance + 1.0),
        "sums that cannot be",
    )
    for sums in others:
        entries = np.concatenate([sums.score, sums.information.ravel()])
        most = _LARGEST_LOGIT**2 * (1.0 + sums.rows)
        _require(
            0 <= sums.rows <= MOST_ROWS and bool((np.abs(entries) <= most).all()),
            "sums that cannot be",
        )
    for sums in fits:
        information = sums.information
        limit = np.outer(np.diag(information), np.diag(information)) * (1.0 + 1e-9) + 1e-9
        _require(
            bool((np.diag(information) >= 0).all())
            and bool((np.square(information) <= limit).all()),
            "an information matrix that cannot be",
        )


def check_masked(masked: MaskedVector, *, name: str, roster: Roster, step: str) -> None:
    """Refuse a masked answer that is not the one asked of this site; raises as `check_release`."""
    _require(masked.site == name, "an answer in the name of another site")
    _require((masked.run, masked.step) == (roster.run, step), "an answer to another run or step")
    _require(masked.roster_digest == roster.digest, "an answer for other sites than were asked")


def check_noisy_total(plan: ReleasePlan, total: FloatArray, rows: int, *, noises: int) -> None:
    """Refuse a sum of `noises` noisy releases that lies further off than noise goes."""
    assert plan.noise is not None, "the release has noise"
    limit = rows + _TAILS * np.sqrt(noises) * _largest_noise(plan.noise)
    _require(bool((np.abs(total) <= limit).all()), "noisy sums further off than noise goes")


def _check_own_statistics(
    plan: ReleasePlan, reply: ReleaseReply | CountsReply, sizes: tuple[int, int]
) -> None:
    statistics = SiteStatistics.from_vectors(reply.counts, reply.sums, plan.shape)
    check_statistics(statistics, sizes, edges=plan.places.edges)


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
