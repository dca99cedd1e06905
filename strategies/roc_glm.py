"""Validation of a classifier over sites: release, sums, Fisher scoring, and what they give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import INFO

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from strategies.all_parties import AllParties
from strategies.exchange import Exchange
from strategies.fisher_result import COEFFICIENTS, Iteration
from strategies.fisher_resume import keep_members
from strategies.membership import Refused
from strategies.roc_glm_checks import check_exact_sums
from strategies.roc_glm_first_step import RocGlmFirstStep
from strategies.roc_glm_fisher import AFTER_RELEASE, RocGlmFisher
from strategies.roc_glm_pooling import PooledRelease, survivors_of
from strategies.roc_glm_result import PositiveSums, RocGlmResult, RoundsFit, roc_glm_disclosures
from strategies.snapshot import Snapshot, TakeSnapshot
from strategies.without_rounds import unused_arguments
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.counts import require_both_classes
from tasks.roc_glm.counts_messages import COUNTS, CountsReply, CountsRequest
from tasks.roc_glm.noisy_scores import validate_noisy_scores
from tasks.roc_glm.probit import require_existence
from tasks.roc_glm.release_names import NOISY_RELEASES
from tasks.roc_glm.score_model import ScoreModel
from tasks.roc_glm.validation import Validation, validate_counts, validate_noisy_cells
from tasks.site.messages import TaskPart
from tasks.site.name_lists import some_names
from tasks.site.not_estimable import NotEstimable


class RocGlm(RocGlmFirstStep):
    """Validation of a binary classifier by the distributed ROC-GLM, after sites were introduced.

    Steps, each one exchange but the iterations of Fisher scoring, which are one each:

    1. ``release`` (:meth:`gather_release`): each site releases the survivor functions of its two
       classes as ``roc-glm.release`` says, and the server pools them. Where these are exact
       counts, statistics (confusion counts, calibration sums) come with them.
    2. ``counts`` (:meth:`gather_counts`), after noisy scores: the exact positives as sums under
       the pooled survivor function, and statistics. A site looks for its own noisy negatives in
       that function first.
    3. ``fisher`` (:meth:`fit_by_rounds`), with ``roc-glm.mode = "fisher"``: probit regression of
       "placement value at most t" on (1, Phi^-1(t)), and calibration, by
       :class:`~strategies.roc_glm_fisher.RocGlmFisher`, a Fisher scoring that this strategy holds.

    :meth:`estimate` makes every number of it at the server.

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
    after_iteration : callable, optional
        Takes an :class:`~strategies.fisher_result.Iteration` of Fisher scoring.
    on_snapshot : callable, optional
        Takes a :class:`~strategies.snapshot.Snapshot` after each iteration of Fisher scoring but
        the last; none after a release with noise, which cannot be made again.

    Attributes
    ----------
    fisher : RocGlmFisher
        The strategy of step 3.

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
        after_iteration: Callable[[Iteration], None] | None = None,
        on_snapshot: TakeSnapshot | None = None,
    ) -> None:
        super().__init__(config=config, sites=sites, model=model)
        self.min_sites = min_sites
        self.rng = rng or np.random.default_rng()
        self.fisher = RocGlmFisher(
            config=config,
            min_sites=min_sites,
            after_iteration=after_iteration,
            on_snapshot=None if config.release in NOISY_RELEASES else on_snapshot,
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        resume_from: Snapshot | None = None,
    ) -> RocGlmResult:
        """Run all steps; arguments are Flower's.

        Parameters
        ----------
        grid : Grid
            The Exchange with which the sites were introduced: it knows their names.
        initial_arrays, train_config, evaluate_config, evaluate_fn : None
            There is nothing to begin at, to pass on or to evaluate.
        num_rounds : int, optional
            Most iterations of Fisher scoring, 2 or more; default ``roc-glm.max-rounds``.
        timeout : float
            Seconds to wait for the replies of an exchange, unless the Exchange has its own.
        resume_from : Snapshot, optional
            Of a run with the same settings, sites and rows. Exact counts are released again, which
            tells nothing new, and compared; then the iterations that are left are made.

        Raises
        ------
        NotEstimable
            ``"one-class"``; whatever else does not exist is said in the result.
        strategies.exchange.TooFewSites
            If sites do not answer without which there is no result.
        ValueError
            For arguments that mean nothing here, all at once, or a Grid of other sites.
        """
        faults = unused_arguments(
            self,
            initial_arrays=initial_arrays,
            train_config=train_config,
            evaluate_config=evaluate_config,
            evaluate_fn=evaluate_fn,
        )
        self._refuse_settings(num_rounds, faults)
        exchange = Exchange.around(
            grid,
            timeout=timeout,
            min_sites=self.min_sites,
            disclosures=roc_glm_disclosures(self.config),
        )
        self._refuse_strangers(exchange)
        self.roster, self._left_out = None, []
        if resume_from is not None:
            keep_members(exchange, resume_from.of_kind(self.fisher.kind_of_snapshot))
        pooled = self.gather_release(exchange)
        require_both_classes(num_negative=pooled.num_negative, num_positive=pooled.num_positive)
        sums = by_rounds = None
        if pooled.scores is not None:
            sums = self.gather_counts(exchange, pooled)
        if self.config.mode == "fisher" and pooled.noisy is None:
            by_rounds = self.fit_by_rounds(exchange, pooled, num_rounds, resume_from)
        return self._result(self.estimate(pooled, by_rounds, sums), pooled, by_rounds, sums)

    # The steps after the first -------------------------------------------------------------------

    def gather_counts(self, exchange: Exchange, pooled: PooledRelease) -> PositiveSums:
        """Step 2, ``counts``: w1 and moments of the positives, one a survivor; statistics."""
        survivors = survivors_of(self.plan, pooled)
        request = CountsRequest(survivors, self.plan.is_probability)

        def parse(name: str, content: RecordDict) -> CountsReply:
            """Read a reply, and refuse another than was asked for or one that cannot be."""
            reply = CountsReply.from_record(content)
            if reply.threshold_counts.shape != (len(survivors), self.config.num_thresholds):
                raise ValueError("counts of another shape than asked for")
            check_exact_sums(self.plan, reply, self.facts[name])
            return reply

        everybody = AllParties(exchange, closing=AFTER_RELEASE, can_refuse=False)
        requests = dict.fromkeys(pooled.sites, request.to_record())
        replies = everybody.ask_each(requests, COUNTS, parse, step="counts")
        return PositiveSums.of(list(replies.values()), self.plan.shape)

    def fit_by_rounds(
        self,
        exchange: Exchange,
        pooled: PooledRelease,
        num_rounds: int | None = None,
        resume_from: Snapshot | None = None,
    ) -> RoundsFit:
        """Step 3, ``fisher``: fit the ROC-GLM, and calibration where scores are probabilities.

        Where exact counts show that there is no fit, no exchange is spent.
        """
        if pooled.counts is not None:
            w1 = pooled.counts.threshold_counts(self.config.num_thresholds, self.config.ties)
            try:
                require_existence(w1, pooled.num_positive)
            except NotEstimable as reason:
                return RoundsFit(no_fit=reason)
            self.fisher.release_digest = pooled.digest
        return self.fisher.fit_by_rounds(
            exchange,
            survivors_of(self.plan, pooled)[-1],
            roster=self.roster,
            num_positive=pooled.num_positive,
            with_calibration=pooled.counts is not None and self.plan.is_probability,
            num_rounds=num_rounds,
            resume_from=resume_from,
        )

    def estimate(
        self,
        pooled: PooledRelease,
        by_rounds: RoundsFit | None = None,
        sums: PositiveSums | None = None,
    ) -> Validation:
        """Return every estimate, from what the steps gave; nothing is asked of a site."""
        config, plan = self.config, self.plan
        if pooled.counts is not None:
            validation = validate_counts(pooled.counts, config=config)
        elif pooled.noisy is not None:
            assert plan.noise is not None, "noisy counts have noise"
            validation = validate_noisy_cells(
                pooled.noisy,
                num_negative=pooled.num_negative,
                num_positive=pooled.num_positive,
                cuts=plan.cuts,
                scale=plan.noise.scale,
                noises=1 if config.secure else len(pooled.sites),
                config=config,
            )
        else:
            assert pooled.scores is not None, "the release is noisy-scores"
            assert sums is not None, "gather_counts comes first"
            validation = validate_noisy_scores(
                pooled.scores,
                pooled.deconvolved,
                threshold_counts=sums.threshold_counts,
                moments=sums.moments,
                config=config,
                generator=self.rng,
            )
        if by_rounds is None:
            return validation
        if sums is not None:
            try:
                require_existence(sums.threshold_counts[-1], sums.moments[-1].count)
            except NotEstimable as reason:
                by_rounds = RoundsFit(no_fit=reason)
        return replace(validation, fit=by_rounds.fit, no_fit=by_rounds.no_fit)

    # Parts of the steps -----------------------------------------------------------------------

    def _refuse_settings(self, num_rounds: int | None, faults: list[str]) -> None:
        if num_rounds is not None and (type(num_rounds) is not int or num_rounds < 2):
            faults.append(f"num_rounds = {num_rounds!r}: must be a whole number >= 2")
        elif num_rounds is not None and self.config.mode != "fisher":
            faults.append("num_rounds: must be left out, only roc-glm.mode = 'fisher' has rounds")
        if faults:
            raise ValueError("; ".join(faults))

    def _refuse_strangers(self, exchange: Exchange) -> None:
        names = {exchange.name_of(node) for node in exchange.get_node_ids()}
        if not names or not names <= set(self.facts):
            raise ValueError(
                "grid: must be the Exchange with which strategies.membership.meet_sites "
                "introduced the sites"
            )

    def summary(self) -> None:
        """Log how the strategy is set up."""
        log(INFO, "\t├──> Sites: %s", some_names(self.facts))
        log(INFO, "\t├──> Release: %s", self.config.release)
        log(INFO, "\t└──> Mode: %s", self.config.mode)

    def _result(
        self,
        validation: Validation,
        pooled: PooledRelease,
        by_rounds: RoundsFit | None,
        sums: PositiveSums | None,
    ) -> RocGlmResult:
        if not 0.0 <= validation.estimate.auc <= 1.0:
            raise Refused(["what the sites sent gives no AUC in [0, 1]: one answered falsely"])
        arrays = ArrayRecord()
        if (fit := validation.fit) is not None:
            arrays = ArrayRecord({COEFFICIENTS: Array(np.array([fit.gamma_1, fit.gamma_2]))})
        return RocGlmResult(
            arrays=arrays,
            validation=validation,
            plan=self.plan,
            pooled=pooled,
            statistics=pooled.statistics if sums is None else sums.statistics,
            sites=pooled.sites,
            lost_sites=tuple(self._left_out),
            iterations=by_rounds.iterations if by_rounds else 0,
            roster=self.roster,
            calibration=by_rounds.calibration if by_rounds else None,
        )
