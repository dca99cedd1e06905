"""Validation of a classifier over sites: release, Fisher scoring, sums, and what they give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import WARNING
from typing import TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from strategies.exchange import Exchange, TooFewSites
from strategies.membership import Refused
from strategies.roc_glm_checks import check_exact_sums, check_masked, check_release
from strategies.roc_glm_fisher import RocGlmFisher
from strategies.roc_glm_release import (
    LEAST_MASKED,
    PooledRelease,
    plan_release,
    pool_clear,
    pool_masked,
    read_facts,
)
from strategies.roc_glm_result import RocGlmResult, roc_glm_disclosures
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.counts import require_both_classes
from tasks.roc_glm.counts_messages import (
    COUNTS,
    CountsReply,
    CountsRequest,
)
from tasks.roc_glm.messages import (
    RELEASE,
    RELEASE_STEP,
    MaskedReply,
    ReleaseReply,
    ReleaseRequest,
)
from tasks.roc_glm.moments import Moments, pool_moments
from tasks.roc_glm.noisy_scores import Deconvolved, validate_noisy_scores
from tasks.roc_glm.placement import Survivor
from tasks.roc_glm.probit import RocGlmFit, require_existence
from tasks.roc_glm.score_model import ScoreModel
from tasks.roc_glm.site_statistics import SiteStatistics, pool_statistics
from tasks.roc_glm.survivor import CellSurvivor, IntArray, LinearSurvivor, ScoreSurvivor
from tasks.roc_glm.validation import Validation, validate_counts, validate_noisy_cells
from tasks.secure.roster import Roster
from tasks.secure.secure_sums import unmask_sum
from tasks.site.messages import TaskPart
from tasks.site.name_lists import some_names
from tasks.site.not_estimable import NotEstimable

_Read = TypeVar("_Read")

_COEFFICIENTS = "coefficients"


class RocGlm(RocGlmFisher):
    """Validation of a binary classifier by the distributed ROC-GLM, after sites were introduced.

    Steps, each one exchange but the iterations of Fisher scoring, which are one each:

    1. ``release`` (:meth:`gather_release`): each site releases the survivor functions of its two
       classes as ``roc-glm.release`` says, and the server pools them. Where these are exact
       counts, statistics (confusion counts, calibration sums) come with them.
    2. ``counts`` (:meth:`gather_counts`), after noisy scores: the exact positives as sums under
       the pooled survivor function, and statistics. A site looks for its own noisy negatives in
       that function first.
    3. ``fisher``, with ``roc-glm.mode = "fisher"``: probit regression of "placement value at
       most t" on (1, Phi^-1(t)), and calibration, by
       :class:`~strategies.roc_glm_fisher.RocGlmFisher`.

    With the introduction (:func:`strategies.membership.meet_sites`) that is 2 exchanges in one-shot
    mode (3 after noisy scores), and as many as iterations more with ``fisher``. `noisy-counts` and
    `noisy-histogram` are followed by nothing: the server fits the ROC-GLM to what it has.

    **What is revealed.** To the server: of each site what `release_reveals` says of the release.
    ``secure-counts`` (and ``secure = true``): sums over three or more sites only, exact under
    masks; single sites' answers are uniform words. ``binned`` and ``exact``: each site's counts,
    which are aggregates and no noise. After ``noisy-scores``, exact sums over each site's
    positives, which the noise does not cover. Sums of Fisher scoring over several iterations
    give back the counts behind them: of one site in clear, of all sites under masks. To a site:
    cut points, public keys, the pooled survivor function of the negatives in steps 2 and 3.

    **Sites that are lost.** Before the release a site that is lost takes no part; in a masked
    release the run ends, or the step is repeated without it with
    ``drop-outs = "semi-honest-server"`` (the server could then subtract two sums, and is trusted
    not to). After the release the run ends, since the pooled survivor function has its rows.

    Parameters
    ----------
    config : RocGlmConfig
        Settings of the task.
    sites : mapping of str to TaskPart
        What each site told at its introduction.
    model : ScoreModel, optional
        Whose training quantiles are the cut points, where the configuration says so.
    min_sites : int
        Fewest sites.
    rng : numpy.random.Generator, optional
        Draws noise anew for the interval after noisy scores; it protects nobody.

    Raises
    ------
    strategies.membership.Refused
        If the sites do not fit together or the release needs more of them.
    """

    def __init__(
        self,
        *,
        config: RocGlmConfig,
        sites: Mapping[str, TaskPart],
        model: ScoreModel | None = None,
        min_sites: int = 2,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(config=config, min_sites=min_sites)
        self.bundles = {name: part.key_bundle for name, part in sites.items()}
        self.facts = read_facts(sites, config)
        self.plan = plan_release(config, self.facts, model)
        self.rng = rng or np.random.default_rng()
        self._left_out: list[str] = []

    def start(  # type: ignore[override]  # what it returns is not the fit of one model
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> RocGlmResult:
        """Run all steps; arguments as of :meth:`strategies.fisher_scoring.FisherScoring.start`.

        Raises
        ------
        NotEstimable
            ``"one-class"``; whatever else does not exist is said in the result.
        strategies.exchange.TooFewSites
            If sites do not answer without which there is no result.
        """
        exchange = Exchange.around(
            grid,
            timeout=timeout,
            min_sites=self.min_sites,
            disclosures=roc_glm_disclosures(self.config),
        )
        pooled = self.gather_release(exchange)
        require_both_classes(num_negative=pooled.num_negative, num_positive=pooled.num_positive)
        sites = tuple(exchange.name_of(node) for node in exchange.get_node_ids())
        validation, statistics = self.validate(exchange, pooled)
        if not 0.0 <= validation.estimate.auc <= 1.0:
            raise Refused(["what the sites sent gives no AUC in [0, 1]: one answered falsely"])
        arrays = ArrayRecord()
        if (fit := validation.fit) is not None:
            gamma = np.array([fit.gamma_1, fit.gamma_2])
            arrays = ArrayRecord({_COEFFICIENTS: Array(gamma)})
        return RocGlmResult(
            arrays=arrays,
            validation=validation,
            plan=self.plan,
            pooled=pooled,
            statistics=statistics,
            sites=sites,
            lost_sites=tuple(self._left_out),
            iterations=len(self.history),
            roster=self.roster,
            calibration=self.calibration,
        )

    # The steps --------------------------------------------------------------------------------

    def gather_release(self, exchange: Exchange) -> PooledRelease:
        """Step 1, ``release``: pool what the sites release of their survivor functions."""
        while True:
            nodes = {exchange.name_of(node): node for node in exchange.get_node_ids()}
            read = self._ask_release(exchange, list(nodes))
            lost = [name for name in nodes if name not in read]
            if not lost:
                break
            self._go_on_without(exchange, lost, left=len(read), step="release")
            exchange.exclude(nodes[name] for name in lost)
            if self.roster is None:
                break
        if self.roster is None:
            clear = {name: reply for name, reply in read.items() if isinstance(reply, ReleaseReply)}
            return pool_clear(self.plan, clear, self.facts)
        masked = [reply.masked for reply in read.values() if isinstance(reply, MaskedReply)]
        sums = unmask_sum(masked, roster=self.roster, step=RELEASE_STEP)
        return pool_masked(self.plan, sums, self.facts, self.roster.names)

    def validate(
        self, exchange: Exchange, pooled: PooledRelease
    ) -> tuple[Validation, SiteStatistics | None]:
        """Steps 2 and 3, where the release needs them, and every estimate."""
        config, plan = self.config, self.plan
        if pooled.counts is not None:
            validation = validate_counts(pooled.counts, config=config)
            if config.mode == "fisher" and validation.fit is not None:
                counts = pooled.counts.negative
                survivor = (
                    ScoreSurvivor(pooled.levels, counts)
                    if config.release == "exact"
                    else CellSurvivor(plan.cuts, counts)
                )
                fit, no_fit = self.fit_by_rounds(
                    exchange,
                    survivor,
                    num_positive=pooled.num_positive,
                    with_calibration=plan.is_probability,
                )
                validation = replace(validation, fit=fit, no_fit=no_fit)
            return validation, pooled.statistics
        assert plan.noise is not None, "what is not counts has noise"
        if pooled.noisy is not None:
            validation = validate_noisy_cells(
                pooled.noisy,
                num_negative=pooled.num_negative,
                num_positive=pooled.num_positive,
                cuts=plan.cuts,
                scale=plan.noise.scale,
                noises=1 if config.secure else len(list(exchange.get_node_ids())),
                config=config,
            )
            return validation, pooled.statistics
        return self._validate_scores(exchange, pooled, plan.noise.scale)

    def gather_counts(
        self, exchange: Exchange, survivors: tuple[Survivor, ...]
    ) -> tuple[list[IntArray], list[Moments], SiteStatistics]:
        """Step 2, ``counts``: w1 and moments of the positives, one a survivor; statistics."""
        request = CountsRequest(survivors, self.plan.is_probability)

        def parse(message: Message) -> CountsReply:
            """Read a reply, and refuse another than was asked for or one that cannot be."""
            reply = CountsReply.from_record(message.content)
            if reply.threshold_counts.shape != (len(survivors), self.config.num_thresholds):
                raise ValueError("counts of another shape than asked for")
            name = exchange.name_of(message.metadata.src_node_id)
            check_exact_sums(self.plan, reply, self.facts[name])
            return reply

        read = self._ask_all(exchange, request.to_record(), COUNTS, parse, step="counts")
        replies = list(read.values())
        w1 = [
            np.sum([reply.threshold_counts[at] for reply in replies], axis=0)
            for at in range(len(survivors))
        ]
        moments = [
            pool_moments(reply.moments[at] for reply in replies) for at in range(len(survivors))
        ]
        statistics = pool_statistics(
            SiteStatistics.from_vectors(reply.counts, reply.sums, self.plan.shape)
            for reply in replies
        )
        return w1, moments, statistics

    # Parts of the steps -----------------------------------------------------------------------

    def _ask_release(
        self, exchange: Exchange, names: list[str]
    ) -> dict[str, ReleaseReply | MaskedReply]:
        plan = self.plan
        if self.config.masks_sums:
            self.roster = Roster.from_bundles(
                [self.bundles[name] for name in names], run=f"run-{exchange.run.run_id}"
            )
        relayed = self.roster.to_bytes() if self.roster is not None else b""
        request = ReleaseRequest(plan.cuts, plan.is_probability, plan.sensitivity, relayed)

        def parse(message: Message) -> ReleaseReply | MaskedReply:
            """Read a reply, and refuse another than was asked for or one that cannot be."""
            name = exchange.name_of(message.metadata.src_node_id)
            if self.roster is not None:
                answer = MaskedReply.from_record(message.content)
                check_masked(answer.masked, name=name, roster=self.roster, step=RELEASE_STEP)
                return answer
            reply = ReleaseReply.from_record(message.content)
            check_release(plan, reply, self.facts[name])
            return reply

        messages = self._to_all(exchange, request.to_record(), RELEASE)
        return dict(exchange.read_messages(exchange.send_and_receive(messages), parse))

    def _go_on_without(self, exchange: Exchange, lost: list[str], *, left: int, step: str) -> None:
        """Note who is lost, or end the run."""
        self._left_out += lost
        config = self.config
        if config.masks_sums:
            repeats = config.drop_outs == "semi-honest-server" and not config.secure
            if not repeats or left < LEAST_MASKED:
                hint = (
                    f"{left} sites are left, {LEAST_MASKED} needed"
                    if repeats
                    else "roc-glm.drop-outs = 'semi-honest-server' would repeat it without them"
                )
                if config.secure:
                    hint = "noise that is shared between sites is not drawn anew: begin a new run"
                raise TooFewSites(
                    f"{step}: no usable answer of {some_names(lost)}, so the masked sum cannot be "
                    f"opened; {hint}",
                    list(exchange.faults),
                )
        log(WARNING, "%s: lost, the run goes on without", some_names(lost))

    def _validate_scores(
        self, exchange: Exchange, pooled: PooledRelease, tau: float
    ) -> tuple[Validation, SiteStatistics]:
        scores, config = pooled.scores, self.config
        assert scores is not None, "the release is noisy-scores"
        survivors: list[Survivor] = [ScoreSurvivor.of(scores.negative)]
        deconvolved = Deconvolved.of(scores, tau) if config.debias else None
        if deconvolved is not None:
            survivors.append(LinearSurvivor(deconvolved.negative))
        w1, moments, statistics = self.gather_counts(exchange, tuple(survivors))
        fitted: tuple[RocGlmFit | None, NotEstimable | None] | None = None
        if config.mode == "fisher":
            fitted = self.fit_by_rounds(exchange, survivors[-1], num_positive=pooled.num_positive)
        validation = validate_noisy_scores(
            scores,
            deconvolved,
            threshold_counts=w1,
            moments=moments,
            config=config,
            generator=self.rng,
        )
        if fitted is not None:
            try:
                require_existence(w1[-1], moments[-1].count)
                validation = replace(validation, fit=fitted[0], no_fit=fitted[1])
            except NotEstimable as reason:
                validation = replace(validation, fit=None, no_fit=reason)
        return validation, statistics

    def _ask_all(
        self,
        exchange: Exchange,
        content: RecordDict,
        message_type: str,
        parse: Callable[[Message], _Read],
        *,
        step: str,
    ) -> dict[str, _Read]:
        """Make an exchange in which every site has to answer."""
        names = [exchange.name_of(node) for node in exchange.get_node_ids()]
        messages = self._to_all(exchange, content, message_type)
        read = dict(exchange.read_messages(exchange.send_and_receive(messages), parse))
        if lost := [name for name in names if name not in read]:
            raise TooFewSites(
                f"{step}: no usable answer of {some_names(lost)}, whose rows are in the pooled "
                "survivor function: begin a new run",
                list(exchange.faults),
            )
        return read

    def _to_all(self, exchange: Exchange, content: RecordDict, message_type: str) -> list[Message]:
        return [
            Message(content, dst_node_id=node, message_type=message_type)
            for node in exchange.get_node_ids()
        ]
