"""A site's half of the ROC-GLM task: message in, a release or sums out.

What a handler needs of its site is in :class:`RocGlmSite`; it holds rows and never travels. What a
site must remember between messages (keys, guard, roster, a release with noise) is in the node's
state, in :mod:`tasks.roc_glm.site_state`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from flwr.app import Context, Message
from numpy.typing import NDArray

from tasks.roc_glm import site_state
from tasks.roc_glm.calibration_slope import intercept_sums, interior_rows, slope_sums
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.counts import ClassCounts, DistinctCounts, count_in_cells
from tasks.roc_glm.counts_messages import (
    CountsReply,
    CountsRequest,
    RocGlmFisherReply,
    RocGlmFisherRequest,
    fisher_step,
    fisher_vector,
)
from tasks.roc_glm.cut_points import planned_cuts
from tasks.roc_glm.messages import (
    RELEASE_STEP,
    MaskedReply,
    ReleaseReply,
    ReleaseRequest,
    SiteFacts,
)
from tasks.roc_glm.noise_plan import noise_plan
from tasks.roc_glm.noisy_statistics import release_statistics
from tasks.roc_glm.placement import placement_moments, site_threshold_counts
from tasks.roc_glm.probit import probit_sums
from tasks.roc_glm.releases import (
    NOISY_RELEASES,
    needs_unit_interval,
    release_cumulative_counts,
    release_histogram,
    release_scores,
    unit_interval_fault,
)
from tasks.roc_glm.rows import LabelCoding, RocRows
from tasks.roc_glm.score_model import ScoreModel
from tasks.roc_glm.sensitivity import SensitivityEstimate
from tasks.roc_glm.site_statistics import SiteStatistics, noisy_vector, site_statistics
from tasks.roc_glm.site_table import read_table, table_sensitivity
from tasks.roc_glm.small_sites import cell_shortfalls, class_shortfalls, keepable_cuts
from tasks.secure import split_reals
from tasks.secure.roster import Roster
from tasks.site.faults import SiteFault
from tasks.site.messages import TaskPart

SMALL_SITE = "small-site"
"""Code of the fault of a site below the privacy level."""

_NOISE = 4  # apart from other uses of the run's seed


@dataclass(frozen=True, eq=False)
class RocGlmSite:
    """Rows and settings of one site.

    Attributes
    ----------
    name : str
        The site's name.
    rows : RocRows
        Its scores by class.
    coding : LabelCoding
        How it spells the classes.
    config : RocGlmConfig
        Settings of the run.
    cuts : (M - 1,) float64
        Cut points of the configuration; empty where the release has none.
    sensitivity : SensitivityEstimate or None
        Of its own rows, where it is to be estimated.
    noise_seed : int or None
        Of protecting noise, in simulations that ask for it; None: the operating system's.
    """

    name: str
    rows: RocRows
    coding: LabelCoding
    config: RocGlmConfig
    cuts: NDArray[np.float64]
    sensitivity: SensitivityEstimate | None = None
    noise_seed: int | None = None

    @classmethod
    def prepare(
        cls,
        frame: pd.DataFrame,
        *,
        name: str,
        label: str,
        score: str,
        config: RocGlmConfig,
        model: ScoreModel | None = None,
        quantiles_of: ScoreModel | None = None,
        noise_seed: int | None = None,
    ) -> RocGlmSite:
        """Read a site's table, and check it against the privacy level.

        Parameters
        ----------
        frame : DataFrame
            The site's rows.
        name : str
            The site's name.
        label, score : str
            Columns; `score` is not looked for where there is a model.
        config : RocGlmConfig
        model : ScoreModel, optional
            Predicts the scores.
        quantiles_of : ScoreModel, optional
            Whose training quantiles are the cut points, where the configuration says so.
        noise_seed : int, optional
            Of protecting noise.

        Raises
        ------
        SiteFault
            With everything that is wrong with the table, or ``small-site`` if A1 fails.
        """
        rows, coding = read_table(frame, label=label, score=score, config=config, model=model)
        by_equal_cuts = config.cut_points == "equal"
        unit = needs_unit_interval(config.release, equal_cuts=by_equal_cuts, debias=config.debias)
        if unit and not rows.in_unit_interval:
            raise SiteFault("scores-outside-unit-interval", unit_interval_fault(config.release))
        if short := class_shortfalls(rows, config.privacy_level):
            raise SiteFault(SMALL_SITE, *(f"roc-glm.{rule}" for rule in short))
        cuts = planned_cuts(config, quantiles_of or model)
        estimate = None
        if config.estimate_sensitivity and config.release in NOISY_RELEASES:
            estimate = table_sensitivity(
                frame, label=label, score=score, config=config, model=model
            )
        return cls(name, rows, coding, config, cuts, estimate, noise_seed)

    @property
    def noise_rng(self) -> np.random.Generator | None:
        """Seeded generator of protecting noise, or None for the secure one."""
        if self.noise_seed is None:
            return None
        return np.random.default_rng([_NOISE, self.noise_seed, *self.name.encode()])

    def facts(self) -> SiteFacts:
        """What the site adds to its introduction."""
        sizes: tuple[int | None, int | None] = (self.rows.num_negative, self.rows.num_positive)
        if self.config.release == "secure-counts":
            sizes = None, None
        kept: tuple[bool, ...] = ()
        if self.config.merges_cells:
            counts = count_in_cells(self.rows, self.cuts)
            kept = tuple(map(bool, keepable_cuts(counts, self.config.privacy_level)))
        return SiteFacts(
            coding=self.coding,
            in_unit_interval=self.rows.in_unit_interval,
            dropped=self.rows.dropped,
            num_negative=sizes[0],
            num_positive=sizes[1],
            kept_cuts=kept,
            sensitivity=self.sensitivity,
        )

    def statistics(self, *, is_probability: bool) -> SiteStatistics:
        """Confusion counts at the threshold, and calibration sums of probabilities."""
        config = self.config
        by_cell = config.privacy_level_of == "cell"
        is_probability = is_probability and self.rows.in_unit_interval
        return site_statistics(
            self.rows,
            np.array([config.threshold]),
            bins=config.calibration_bins if is_probability else 0,
            privacy_level=config.privacy_level,
            cell_level=config.privacy_level if by_cell else 0,
        )


def introduction(site: RocGlmSite, context: Context) -> TaskPart:
    """What the task adds to the introduction: facts, and keys where sums are masked."""
    bundle = b""
    if site.config.masks_sums:
        bundle = site_state.own_keys(context, site.name).public.to_bytes()
    return TaskPart(bundle, site.facts().to_facts())


def release(message: Message, site: RocGlmSite, context: Context) -> Message:
    """Answer ``release``: the survivor functions as the configuration lets them leave.

    A release with noise is drawn once in a run: asked again, the site says the same, since a
    second draw would spend the budget a second time.
    """
    request = ReleaseRequest.from_record(message.content)
    if site.config.release in NOISY_RELEASES:
        said = site_state.earlier_release(context)
        if said is None:
            said = _noisy(request, site, context).to_record()
            site_state.remember_release(context, said)
        return Message(said, reply_to=message)
    counts, levels = _counts(request, site)
    statistics = site.statistics(is_probability=request.is_probability)
    if not site.config.masks_sums:
        reply = ReleaseReply(
            counts.negative, counts.positive, levels, statistics.counts(), statistics.sums()
        )
        return Message(reply.to_record(), reply_to=message)
    roster = site_state.accept_roster(context, site.name, request.roster)
    number = len(roster.names)
    values = [counts.negative, counts.positive, statistics.counts()]
    values.append(split_reals.split(statistics.sums(), num_sites=number))
    return _masked(message, site, context, roster, np.concatenate(values), step=RELEASE_STEP)


def counts(message: Message, site: RocGlmSite, context: Context) -> Message:
    """Answer ``counts``: exact sums over the site's positives under the pooled survivors."""
    if site.config.release != "noisy-scores":
        raise _not_asked(site, "sums of exact positives")
    request = CountsRequest.from_record(message.content)
    if len(request.survivors) > 2:
        raise SiteFault("bad-request", "more than two survivor functions are not answered")
    config, positive = site.config, site.rows.positive
    statistics = site.statistics(is_probability=request.is_probability)
    w1 = [
        site_threshold_counts(
            survivor, positive, num_thresholds=config.num_thresholds, ties=config.ties
        )
        for survivor in request.survivors
    ]
    reply = CountsReply(
        np.array(w1),
        tuple(placement_moments(survivor, positive) for survivor in request.survivors),
        statistics.counts(),
        statistics.sums(),
    )
    return Message(reply.to_record(), reply_to=message)


def fisher(message: Message, site: RocGlmSite, context: Context) -> Message:
    """Answer ``fisher``: score vector, information and deviance of the ROC-GLM, and calibration."""
    config = site.config
    if config.mode != "fisher" or config.release in ("noisy-counts", "noisy-histogram"):
        raise _not_asked(site, "sums of Fisher scoring")
    request = RocGlmFisherRequest.from_record(message.content)
    if not 1 <= request.server_round <= config.max_rounds:
        raise SiteFault(
            "bad-request", f"round {request.server_round}: max-rounds = {config.max_rounds}"
        )
    w1 = site_threshold_counts(
        request.survivor,
        site.rows.positive,
        num_thresholds=config.num_thresholds,
        ties=config.ties,
    )
    fits = [probit_sums(w1, site.rows.num_positive, request.coefficients)]
    if request.calibrations:
        if config.release == "noisy-scores" or not site.rows.in_unit_interval:
            raise _not_asked(site, "sums of calibration over rounds")
        rows, _ = interior_rows(site.rows)
        slope, intercept = request.calibrations
        fits += [slope_sums(rows, slope), intercept_sums(rows, intercept)]
    vector = fisher_vector(fits)
    if not config.masks_sums:
        return Message(RocGlmFisherReply(vector=vector).to_record(), reply_to=message)
    roster = site_state.known_roster(context, site.name)
    values = split_reals.split(vector, num_sites=len(roster.names))
    step = fisher_step(request.server_round)
    return _masked(message, site, context, roster, values, step=step)


# Parts ----------------------------------------------------------------------------------------


def _counts(request: ReleaseRequest, site: RocGlmSite) -> tuple[ClassCounts, NDArray[np.float64]]:
    config = site.config
    if config.release == "exact":
        distinct = DistinctCounts.of(site.rows)
        found, levels = distinct.counts, distinct.levels
    else:
        if not set(request.cuts.tolist()) <= set(site.cuts.tolist()):
            raise SiteFault("bad-request", "cut points that are not those of the configuration")
        found, levels = count_in_cells(site.rows, request.cuts), np.empty(0)
    by_cell = config.privacy_level_of == "cell"
    if by_cell and (short := cell_shortfalls(found, config.privacy_level)):
        raise SiteFault(SMALL_SITE, *(f"roc-glm.{rule}" for rule in short))
    return found, levels


def _noisy(
    request: ReleaseRequest, site: RocGlmSite, context: Context
) -> ReleaseReply | MaskedReply:
    config, generator = site.config, site.noise_rng
    if config.release != "noisy-scores" and not np.array_equal(request.cuts, site.cuts):
        raise SiteFault("bad-request", "cut points that are not those of the configuration")
    moves = request.sensitivity if config.estimate_sensitivity else config.sensitivity
    is_probability = request.is_probability and site.rows.in_unit_interval
    plan = noise_plan(
        config, score_sensitivity=moves, cuts=request.cuts, is_probability=is_probability
    )
    if config.release == "noisy-scores":
        scores = release_scores(site.rows, plan.scale, generator=generator)
        return ReleaseReply(scores.negative, scores.positive)
    roster = None
    if config.masks_sums:
        roster = site_state.accept_roster(context, site.name, request.roster)
        plan = plan.share(len(roster.names))
    draw = release_cumulative_counts if config.release == "noisy-counts" else release_histogram
    noisy = draw(count_in_cells(site.rows, request.cuts), plan.scale, generator=generator)
    sums = np.empty(0)
    if plan.statistics is not None:
        threshold = np.array([config.threshold])
        sums = noisy_vector(
            *release_statistics(
                site.rows,
                threshold,
                plan.statistics,
                bins=config.calibration_bins,
                generator=generator,
            )
        )
    if roster is None:
        return ReleaseReply(noisy.negative, noisy.positive, sums=sums)
    reals = np.concatenate([noisy.negative, noisy.positive, sums])
    values = split_reals.split(reals, num_sites=len(roster.names))
    masked = site_state.masked(context, site.name, roster, values, step=RELEASE_STEP)
    return MaskedReply(masked)


def _masked(
    message: Message,
    site: RocGlmSite,
    context: Context,
    roster: Roster,
    values: NDArray[np.int64],
    *,
    step: str,
) -> Message:
    masked = site_state.masked(
        context,
        site.name,
        roster,
        values,
        step=step,
        may_repeat=site.config.drop_outs == "semi-honest-server",
    )
    return Message(MaskedReply(masked).to_record(), reply_to=message)


def _not_asked(site: RocGlmSite, what: str) -> SiteFault:
    config = site.config
    return SiteFault(
        "bad-request",
        f"{what} do not leave with release = '{config.release}' and mode = '{config.mode}'",
    )
