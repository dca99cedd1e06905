"""A site's half of the ROC-GLM task: message in, a release or sums out.

What a handler needs of its site is in :class:`RocGlmSite`; it holds rows and never travels. What a
site must remember between messages (keys, guard, roster, a release with noise) is in the node's
state, in :mod:`tasks.roc_glm.site_state`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from flwr.app import Context, Message, RecordDict
from numpy.typing import NDArray

from tasks.roc_glm import site_state
from tasks.roc_glm.answered import (
    answer_once,
    fix_survivor,
    refuse_another,
    was_answered,
)
from tasks.roc_glm.calibration_slope import intercept_sums, interior_rows, slope_sums
from tasks.roc_glm.counts import ClassCounts, DistinctCounts, count_in_cells
from tasks.roc_glm.counts_messages import (
    CountsReply,
    CountsRequest,
    RocGlmFisherReply,
    RocGlmFisherRequest,
    fisher_step,
    fisher_vector,
    survivor_record,
)
from tasks.roc_glm.messages import (
    RELEASE_STEP,
    MaskedReply,
    ReleaseReply,
    ReleaseRequest,
)
from tasks.roc_glm.noise_plan import NoisePlan, noise_plan
from tasks.roc_glm.noisy_statistics import release_statistics
from tasks.roc_glm.placement import placement_moments, site_threshold_counts
from tasks.roc_glm.probit import probit_sums
from tasks.roc_glm.release_names import NOISY_RELEASES
from tasks.roc_glm.releases import release_cumulative_counts, release_histogram, release_scores
from tasks.roc_glm.request_checks import (
    accepted_sensitivity,
    not_asked,
    read_request,
    refuse_cuts,
    refuse_pool,
    refuse_survivor,
)
from tasks.roc_glm.roc_site import RocGlmSite as RocGlmSite
from tasks.roc_glm.site_statistics import noisy_vector
from tasks.roc_glm.small_sites import cell_shortfalls
from tasks.roc_glm.spending import least_cost, release_cost
from tasks.secure import split_reals
from tasks.secure.roster import Roster
from tasks.site.content_digest import digest_of
from tasks.site.faults import SMALL_SITE, SiteFault
from tasks.site.messages import TaskPart

COUNTS_STEP, FISHER_STEP = "roc-glm-counts", "roc-glm-fisher"


def introduction(site: RocGlmSite, context: Context) -> TaskPart:
    """What the task adds to the introduction: facts, and keys where sums are masked.

    Model, keys and facts are those of the first introduction of the run, however often it is asked
    for.

    Raises
    ------
    SiteFault
        If the site could not note on its disk that it has drawn noise, as it is configured to, or
        its budget is spent.
    """
    if site.config.release in NOISY_RELEASES:
        site_state.check_state_dir(context)
        if site.budget is not None:
            site.budget.check(least_cost(site.config, site.cuts))
    bundle = b""
    if site.config.masks_sums:
        bundle = site_state.own_keys(context, site.name).public.to_bytes()
    return TaskPart(bundle, site_state.first_facts(context, site.facts().to_facts()))


def release(message: Message, site: RocGlmSite, context: Context) -> Message:
    """Answer ``release``: the survivor functions as the configuration lets them leave.

    It is answered for one request of a run. A release with noise is drawn once: asked again, the
    site says the same, since a second draw would spend the budget a second time.
    """
    site_state.require_introduction(context)
    request = read_request(message.content, ReleaseRequest.from_record)
    # Another roster is the guard's matter, which may answer a smaller one.
    asked = digest_of(replace(request, roster=b"").to_record())
    if site.config.release in NOISY_RELEASES:
        said = site_state.earlier_release(context)
        if said is None:
            said = _noisy(request, site, context).to_record()
            site_state.mark_release(context, site.name)
            site_state.remember_release(context, said)
        return Message(said, reply_to=message)
    if not site.config.masks_sums:
        reply = answer_once(
            context, RELEASE_STEP, request=asked, make=lambda: _clear_release(request, site)
        )
        return Message(reply, reply_to=message)
    refuse_another(context, RELEASE_STEP, asked)
    counts, _ = _counts(request, site)
    statistics = site.statistics(request.cuts, is_probability=request.is_probability)
    roster = site_state.accept_roster(context, site.name, request.roster)
    if was_answered(context, FISHER_STEP):
        site_state.refuse_another_roster(context, site.name, roster)
    number = len(roster.names)
    values = [counts.negative, counts.positive, statistics.counts()]
    values.append(split_reals.split(statistics.sums(), num_sites=number))
    reply = _masked(site, context, roster, np.concatenate(values), step=RELEASE_STEP)
    # Its digest is the guard's, which knows the rosters.
    answer_once(context, RELEASE_STEP, request=asked, make=RecordDict)
    return Message(reply, reply_to=message)


def counts(message: Message, site: RocGlmSite, context: Context) -> Message:
    """Answer ``counts``: exact sums over the site's positives under the pooled survivors.

    It is answered under survivor functions that can be those of a pool with the site's own noisy
    negatives in it, for one request of a run, and before any round of Fisher scoring.
    """
    if site.config.release != "noisy-scores":
        raise not_asked(site, "sums of exact positives")
    site_state.require_introduction(context)
    request = read_request(message.content, CountsRequest.from_record)
    said = site_state.earlier_release(context)
    if said is None:
        raise SiteFault("bad-request", "sums of exact positives are given after the release only")
    refuse_pool(
        request.survivors,
        own=np.asarray(ReleaseReply.from_record(said).negative, dtype=np.float64),
        tau=site_state.noise_scale(context),
        debias=site.config.debias,
    )
    fix_survivor(context, survivor_record(request.survivors[-1]))
    reply = answer_once(
        context,
        COUNTS_STEP,
        request=digest_of(request.to_record()),
        make=lambda: _exact_sums(request, site),
    )
    return Message(reply, reply_to=message)


def _exact_sums(request: CountsRequest, site: RocGlmSite) -> RecordDict:
    config, positive = site.config, site.rows.positive
    statistics = site.statistics(site.cuts, is_probability=request.is_probability)
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
    return reply.to_record()


def fisher(message: Message, site: RocGlmSite, context: Context) -> Message:
    """Answer ``fisher``: score vector, information and deviance of the ROC-GLM, and calibration."""
    config = site.config
    if not config.iterates:
        raise not_asked(site, "sums of Fisher scoring")
    site_state.require_introduction(context)
    request = read_request(message.content, RocGlmFisherRequest.from_record)
    if not 1 <= request.server_round <= config.max_rounds:
        raise SiteFault(
            "bad-request", f"round {request.server_round}: max-rounds = {config.max_rounds}"
        )
    refuse_survivor(request.survivor, site)
    before = COUNTS_STEP if config.release == "noisy-scores" else RELEASE_STEP
    if not was_answered(context, before):
        raise SiteFault("bad-request", f"sums of Fisher scoring are given after {before} only")
    fix_survivor(context, survivor_record(request.survivor))
    asked, number = digest_of(request.to_record()), request.server_round
    if not config.masks_sums:
        reply = answer_once(
            context,
            FISHER_STEP,
            request=asked,
            make=lambda: RocGlmFisherReply(vector=_fisher_sums(request, site)).to_record(),
            server_round=number,
        )
        return Message(reply, reply_to=message)
    refuse_another(context, FISHER_STEP, asked, server_round=number)
    vector = _fisher_sums(request, site)
    roster = site_state.known_roster(context, site.name)
    values = split_reals.split(vector, num_sites=len(roster.names))
    reply = _masked(site, context, roster, values, step=fisher_step(number))
    answer_once(context, FISHER_STEP, request=asked, make=RecordDict, server_round=number)
    return Message(reply, reply_to=message)


def _fisher_sums(request: RocGlmFisherRequest, site: RocGlmSite) -> NDArray[np.float64]:
    config = site.config
    w1 = site_threshold_counts(
        request.survivor,
        site.rows.positive,
        num_thresholds=config.num_thresholds,
        ties=config.ties,
    )
    fits = [probit_sums(w1, site.rows.num_positive, request.coefficients)]
    if request.calibrations:
        if config.release == "noisy-scores" or not site.rows.in_unit_interval:
            raise not_asked(site, "sums of calibration over rounds")
        rows, _ = interior_rows(site.rows)
        slope, intercept = request.calibrations
        fits += [slope_sums(rows, slope), intercept_sums(rows, intercept)]
    return fisher_vector(fits)


# Parts ----------------------------------------------------------------------------------------


def _counts(request: ReleaseRequest, site: RocGlmSite) -> tuple[ClassCounts, NDArray[np.float64]]:
    config = site.config
    if config.release == "exact":
        distinct = DistinctCounts.of(site.rows)
        found, levels = distinct.counts, distinct.levels
    else:
        refuse_cuts(request.cuts, site)
        found, levels = count_in_cells(site.rows, request.cuts), np.empty(0)
    by_cell = config.privacy_level_of == "cell"
    if by_cell and (short := cell_shortfalls(found, config.privacy_level)):
        raise SiteFault(SMALL_SITE, *(f"roc-glm.{rule}" for rule in short))
    return found, levels


def _clear_release(request: ReleaseRequest, site: RocGlmSite) -> RecordDict:
    counts, levels = _counts(request, site)
    statistics = site.statistics(request.cuts, is_probability=request.is_probability)
    return ReleaseReply(
        counts.negative, counts.positive, levels, statistics.counts(), statistics.sums()
    ).to_record()


def _noisy(
    request: ReleaseRequest, site: RocGlmSite, context: Context
) -> ReleaseReply | MaskedReply:
    config, generator = site.config, site.noise_rng
    if config.release != "noisy-scores" and not np.array_equal(request.cuts, site.cuts):
        raise SiteFault("bad-request", "cut points that are not those of the configuration")
    moves = accepted_sensitivity(request, site)
    is_probability = request.is_probability and site.rows.in_unit_interval
    plan = noise_plan(
        config, score_sensitivity=moves, cuts=request.cuts, is_probability=is_probability
    )
    site_state.remember_noise_scale(context, plan.scale)
    if config.release == "noisy-scores":
        scores = release_scores(site.rows, plan.scale, generator=generator)
        _spend(site, plan, num_cuts=0)
        return ReleaseReply(scores.negative, scores.positive)
    roster = None
    if config.masks_sums:
        roster = site_state.accept_roster(context, site.name, request.roster)
        plan = plan.share(len(roster.names))
    _spend(site, plan, num_cuts=len(request.cuts))
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


def _spend(site: RocGlmSite, plan: NoisePlan, *, num_cuts: int) -> None:
    """Note at the site what a release costs, if it sets a maximum: before it leaves."""
    if site.budget is not None:
        cost = release_cost(site.config, plan, num_cuts=num_cuts)
        site.budget.release(step=RELEASE_STEP, cost=cost, releases=1)


def _masked(
    site: RocGlmSite,
    context: Context,
    roster: Roster,
    values: NDArray[np.int64],
    *,
    step: str,
) -> RecordDict:
    masked = site_state.masked(
        context,
        site.name,
        roster,
        values,
        step=step,
        may_repeat=site.config.drop_outs == "semi-honest-server",
    )
    return MaskedReply(masked).to_record()
