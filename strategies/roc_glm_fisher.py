"""Fisher scoring of the ROC-GLM, in clear or under masks, with the calibration in its exchanges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from flwr.app import MetricRecord, RecordDict

from strategies.all_parties import lost_sites
from strategies.exchange import Exchange
from strategies.fisher_result import Iteration
from strategies.fisher_resume import pack_iterations, unpack_iterations
from strategies.fisher_scoring import FisherScoring
from strategies.membership import Refused
from strategies.roc_glm_checks import check_fisher_sums, check_masked
from strategies.roc_glm_result import MaskedSums, RoundsFit
from strategies.snapshot import Snapshot, TakeSnapshot
from tasks.glm.families import FisherSums
from tasks.glm.messages import SiteReply
from tasks.glm.scoring import FisherIteration, Iterate
from tasks.roc_glm.calibration_slope import CalibrationFit
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.counts_messages import (
    ROC_GLM_FISHER,
    RocGlmFisherReply,
    RocGlmFisherRequest,
    fisher_step,
    read_fisher_vector,
)
from tasks.roc_glm.estimates import auc_of_roc_glm
from tasks.roc_glm.messages import MaskedReply
from tasks.roc_glm.placement import Survivor
from tasks.roc_glm.probit import RocGlmFit
from tasks.roc_glm.survivor import FloatArray
from tasks.secure import split_reals
from tasks.secure.roster import Roster
from tasks.secure.secure_sums import unmask_sum
from tasks.site.name_lists import some_names
from tasks.site.not_estimable import NotEstimable
from tasks.site.reply_fields import MalformedReply

AFTER_RELEASE = ", whose rows are in the pooled survivor function: begin a new run"
"""Why no site can be missed once the survivor functions were pooled."""


class RocGlmFisher(FisherScoring):
    """Probit regression of "placement value at most t" on (1, Phi^-1(t)) over exchanges.

    The long data set is nowhere built: a site works on its counts at the thresholds. Two logistic
    regressions of the label on the logit of the score (calibration slope, and calibration in the
    large) are fitted in the same exchanges, where scores are probabilities.

    **What is revealed.** See :class:`strategies.roc_glm.RocGlm`: sums of each site in clear, or
    over all sites under masks. They do not hide the counts behind them over several rounds.

    Parameters
    ----------
    config : RocGlmConfig
        Settings of the task.
    min_sites : int
        Fewest sites.
    after_iteration : callable, optional
        Takes an :class:`~strategies.fisher_result.Iteration`.
    on_snapshot : callable, optional
        Takes a :class:`~strategies.snapshot.Snapshot` after each iteration but the last.
    """

    message_type: ClassVar[str] = ROC_GLM_FISHER
    kind_of_snapshot: ClassVar[str] = "roc-glm"

    def __init__(
        self,
        *,
        config: RocGlmConfig,
        min_sites: int = 2,
        after_iteration: Callable[[Iteration], None] | None = None,
        on_snapshot: TakeSnapshot | None = None,
    ) -> None:
        super().__init__(
            family="probit",
            criterion="deviance",
            tolerance=config.tolerance,
            min_sites=min_sites,
            feature_names=("gamma-1", "gamma-2"),
            after_iteration=after_iteration,
            on_snapshot=on_snapshot,
        )
        self.release_digest = ""
        self.config = config
        self.roster: Roster | None = None
        self._survivor: Survivor | None = None
        self._num_positive = 0
        self._calibrations: list[FisherIteration] = []
        self._failed: set[int] = set()

    def fit_by_rounds(
        self,
        exchange: Exchange,
        survivor: Survivor,
        *,
        num_positive: int,
        roster: Roster | None = None,
        with_calibration: bool = False,
        num_rounds: int | None = None,
        resume_from: Snapshot | None = None,
    ) -> RoundsFit:
        """Fit the ROC-GLM, and the calibration beside it.

        Parameters
        ----------
        exchange : Exchange
            With the sites that are behind `survivor`.
        survivor : Survivor
            Pooled survivor function of the negatives.
        num_positive : int
            n1 of these sites, by which sums are checked.
        roster : Roster, optional
            Sites of the masked sums; None: sums come in clear.
        with_calibration : bool
            Scores are probabilities, and sums over all rows may leave the sites.
        num_rounds : int, optional
            Most iterations; the configuration's ``max-rounds`` if not given.
        resume_from : Snapshot, optional
            Of a run with the same release: see `FisherScoring.start`.
        """
        most = num_rounds or self.config.max_rounds
        self.roster, self._survivor, self._failed = roster, survivor, set()
        self._num_positive = num_positive
        self._calibrations = [
            FisherIteration("logit", tolerance=self.config.tolerance, max_rounds=most)
            for _ in range(2 if with_calibration else 0)
        ]
        try:
            fit = self.start(
                exchange,
                num_rounds=most,
                timeout=exchange.timeout or 3600,
                resume_from=resume_from,
            ).fit
        except NotEstimable as reason:
            return RoundsFit(no_fit=reason, iterations=len(self.history))
        calibration = None
        if self._calibrations and not self._failed and not self._unfinished:
            calibration = CalibrationFit.of(*(each.fit() for each in self._calibrations))
        gamma_1, gamma_2 = (float(value) for value in fit.coefficients)
        auc = float(auc_of_roc_glm(gamma_1, gamma_2))
        return RoundsFit(
            fit=RocGlmFit(gamma_1, gamma_2, auc, fit.deviance),
            calibration=calibration,
            iterations=len(self.history),
        )

    # Hooks of FisherScoring -------------------------------------------------------------------

    def request(self, server_round: int, coefficients: FloatArray | None) -> RecordDict:
        """Return theta of every fit, and the pooled survivor function of the negatives."""
        assert self._survivor is not None, "fit_by_rounds comes first"
        calibrations = tuple(each.coefficients for each in self._calibrations)
        request = RocGlmFisherRequest(server_round, coefficients, self._survivor, calibrations)
        return request.to_record()

    def parse_reply(self, content: RecordDict) -> SiteReply:
        """Read sums in clear, or under masks."""
        if self.roster is not None:
            return MaskedSums(masked=MaskedReply.from_record(content).masked)
        reply = RocGlmFisherReply.from_record(content)
        self._check(read_fisher_vector(reply.vector, self._fits), is_total=False)
        return reply

    def pool(self, replies: Mapping[str, Any]) -> FisherSums:
        """Add up the sums, and step the calibration.

        A site that was lost ends the run: its rows are in the survivor function.
        """
        if lost := self.cohort.lost:
            faults = list(self.cohort.exchange.faults)
            raise lost_sites(lost, faults, step="fisher", closing=AFTER_RELEASE)
        if self.roster is None:
            vector = sum(reply.vector for reply in replies.values())
        else:
            vector = self._opened(replies, self.roster)
        of_roc_glm, *others = self._checked(vector, replies)
        for at, (iteration, pooled) in enumerate(zip(self._calibrations, others, strict=True)):
            if at in self._failed or iteration.finished:
                continue
            try:
                iteration.advance(pooled)
            except NotEstimable:
                self._failed.add(at)
        return of_roc_glm

    def has_converged(self, before: Iterate | None, now: Iterate) -> bool:
        """Whether the ROC-GLM has converged, and the calibration beside it."""
        is_last = self._round >= self._num_rounds
        return super().has_converged(before, now) and (is_last or not self._unfinished)

    def snapshot(
        self, metrics: Mapping[int, MetricRecord], evaluated: Mapping[int, MetricRecord]
    ) -> Snapshot:
        """Return the state after an iteration, the calibrations and the release's hash included."""
        bare = super().snapshot(metrics, evaluated)
        fits, arrays = pack_iterations([self._iteration, *self._calibrations])
        more = {"fits": fits, "failed": sorted(self._failed), "release": self.release_digest}
        return Snapshot(bare.kind, bare.round, {**bare.facts, **more}, {**bare.arrays, **arrays})

    def restore(self, snapshot: Snapshot) -> int:
        """Be as after the iteration that a snapshot is of.

        Raises
        ------
        Refused
            If the sites released something else than before.
        """
        number = super().restore(snapshot)
        if snapshot.facts["release"] != self.release_digest:
            raise Refused(
                [
                    "the sites do not release what they released in the run that is resumed: rows, "
                    "scores or labels of a site are others; begin a new run"
                ]
            )
        fits = [self._iteration, *self._calibrations]
        unpack_iterations(fits, snapshot, snapshot.facts["fits"])
        self._failed = set(snapshot.facts["failed"])
        return number

    def _opened(self, replies: Mapping[str, MaskedSums], roster: Roster) -> FloatArray:
        """Open the masked sum."""
        step = fisher_step(self._round)
        for name, reply in replies.items():
            try:
                check_masked(reply.masked, name=name, roster=roster, step=step)
            except MalformedReply as why:
                raise Refused([f"{name}: fisher: {why}"]) from None
        sums = unmask_sum([reply.masked for reply in replies.values()], roster=roster, step=step)
        return split_reals.join(sums, num_sites=len(roster.names))

    def _checked(self, vector: FloatArray, names: Iterable[str]) -> list[FisherSums]:
        """Read pooled sums, and end the run if they cannot be."""
        try:
            fits = read_fisher_vector(vector, self._fits)
            self._check(fits, is_total=True)
        except ValueError as why:
            masks = ", and masks hide which" if self.roster is not None else ""
            raise Refused(
                [
                    f"fisher: the sum of {some_names(names)} cannot be ({why}): a site answered "
                    f"falsely{masks}"
                ]
            ) from None
        return fits

    def _check(self, fits: list[FisherSums], *, is_total: bool) -> None:
        check_fisher_sums(
            fits,
            coefficients=self.coefficients,
            num_thresholds=self.config.num_thresholds,
            num_positive=self._num_positive,
            is_total=is_total,
        )

    @property
    def _fits(self) -> int:
        return 1 + len(self._calibrations)

    @property
    def _unfinished(self) -> bool:
        return any(
            at not in self._failed and not iteration.finished
            for at, iteration in enumerate(self._calibrations)
        )
