"""Fisher scoring over sites: a generalized linear model whose estimates are the pooled ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from logging import INFO
from typing import Any, ClassVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from strategies.cohort import Cohort
from strategies.exchange import Disclosure, Exchange
from strategies.fisher_checks import (
    check_sums,
    refuse_other_number,
    refuse_other_rows,
    refuse_other_sizes,
)
from strategies.fisher_result import COEFFICIENTS, FisherResult, Iteration
from strategies.fisher_resume import (
    keep_members,
    pack_history,
    pack_iterations,
    unpack_history,
    unpack_iterations,
)
from strategies.fisher_settings import initial_coefficients, refuse_settings
from strategies.snapshot import Snapshot, TakeSnapshot, UnusableSnapshot, taken_apart
from strategies.without_rounds import WithoutEvaluation
from tasks.glm.families import FAMILIES, Family, FisherSums, FloatArray, pool_sums
from tasks.glm.messages import (
    FISHER,
    FisherReply,
    FisherRequest,
    SiteReply,
)
from tasks.glm.scoring import Criterion, FisherIteration, Iterate

FISHER_DISCLOSURES = {FISHER: Disclosure("fisher", FisherRequest.reveals, FisherReply.reveals)}


class FisherScoring(WithoutEvaluation):
    """Maximum-likelihood fit of a generalized linear model on rows spread over sites.

    The score vector V, the information I and the deviance are sums over rows, so their sums over
    sites are those of the pooled rows, and so are the estimates, standard errors and deviance.

    Steps of an iteration, which is one exchange:

    1. :meth:`configure_train`: the server sends every site the coefficients theta; in the first
       iteration none, unless ``start`` was given ``initial_arrays``.
    2. Each site returns V, I and the deviance of its rows at theta (without theta: the sums of
       weighted least squares on a working response, from which theta = I^-1 V):
       :func:`tasks.glm.client.answer`.
    3. :meth:`aggregate_train`: the server reads the replies (:meth:`parse_reply`), pools them
       (:meth:`pool`), and takes theta + I^-1 V, or goes halfway back if the deviance has risen.
       :meth:`has_converged` says whether theta is the estimate; :meth:`after_iteration` is told.

    Another exchange is needed for nothing: names of sites and columns come with the replies.

    **Messages.** ``query.fisher_scoring``: :class:`tasks.glm.messages.FisherRequest`,
    the family and theta (and ``train_config``, if given). Reply:
    :class:`~tasks.glm.messages.FisherReply`, V, I, deviance, number of rows, names.

    **What is revealed.** To the server: of every site by itself, in clear and exact, V, I, the
    deviance and the number of rows at each theta. That is an aggregate, and no more than that is
    claimed: sums over several iterations do NOT hide the rows. Each iteration weighs the rows
    otherwise, and where there are few distinct rows (counts at thresholds, a table of factors)
    least squares over a handful of iterations gives their counts back exactly. A subclass can
    have the sums masked (:meth:`pool`), so that the server sees those over all sites only; then
    the same holds for the pooled counts. No (epsilon, delta) covers any of this. To a site: the
    coefficients of each iteration, which depend on all sites' rows.

    **Sites that are lost.** A site without a usable reply takes no further part, since its rows
    would change the likelihood in mid-run; with ``min_sites`` left the iteration begins anew at
    the coefficients reached, on the rows of the others, and the result names who was lost.

    Parameters
    ----------
    family : {"probit", "logit", "poisson", "gaussian"}
        Poisson with the logarithm, Gaussian with the identity as link. A subclass adds others to
        `families`, as its sites do to those of :func:`tasks.glm.client.answer`.
    criterion : {"deviance", "step"}
        Stop at a relative change of the deviance below `tolerance`, as R's glm does (at 1e-8 that
        leaves about 4e-6 in the coefficients), or at a step whose largest entry is below it.
    tolerance : float
        Positive and finite.
    rounding : float
        Relative error of the pooled deviance, from 0. Only a rise by more halves the step; larger
        where :meth:`pool` adds sums in fixed point.
    min_sites : int
        Fewest sites, at the start and later; an Exchange given to ``start`` has its own as well.
    feature_names : sequence of str, optional
        Names of the coefficients, in order. Sites that state names must state these, or, without
        them, all the same.
    after_iteration : callable, optional
        Takes an :class:`Iteration`.
    on_snapshot : callable, optional
        Takes a :class:`~strategies.snapshot.Snapshot` after each iteration but the last, from one
        of which ``start(resume_from=...)`` goes on.

    Attributes
    ----------
    history : list of Iteration
        Of the last ``start``; also there when it raised.
    cohort : strategies.cohort.Cohort
        Of the last ``start``: the sites that take part, those that were lost, the Exchange.

    Raises
    ------
    ValueError
        For settings out of range, all at once.
    """

    disclosures: ClassVar[Mapping[str, Disclosure]] = FISHER_DISCLOSURES
    message_type: ClassVar[str] = FISHER
    families: ClassVar[Mapping[str, Family]] = FAMILIES
    kind_of_snapshot: ClassVar[str] = "fisher-scoring"

    def __init__(
        self,
        *,
        family: str = "logit",
        criterion: Criterion = "deviance",
        tolerance: float = 1e-8,
        rounding: float = 1e-13,
        min_sites: int = 2,
        feature_names: Iterable[str] | None = None,
        after_iteration: Callable[[Iteration], None] | None = None,
        on_snapshot: TakeSnapshot | None = None,
    ) -> None:
        refuse_settings(
            family=(family, tuple(self.families)),
            criterion=criterion,
            tolerance=tolerance,
            rounding=rounding,
            min_sites=min_sites,
        )
        self.family = family
        self.criterion = criterion
        self.tolerance = tolerance
        self.rounding = rounding
        self.min_sites = min_sites
        self.feature_names = None if feature_names is None else tuple(feature_names)
        self.history: list[Iteration] = []
        self._after_iteration = after_iteration
        self._on_snapshot = on_snapshot
        # Of the run under way:
        self.cohort: Cohort
        self._iteration: FisherIteration
        self._round = 0
        self._num_rounds = 0
        self._timeout: float = 3600
        self._config: ConfigRecord | None = None
        self._resumed: Snapshot | None = None  # until its sites have answered

    # The protocol -----------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 25,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        resume_from: Snapshot | None = None,
    ) -> FisherResult:
        """Run the protocol; arguments are Flower's, but for the last.

        Parameters
        ----------
        grid : Grid
            Flower's, or an Exchange around it that other steps of a run share.
        initial_arrays : ArrayRecord, optional
            One array, (p,) float64: coefficients to begin at.
        num_rounds : int
            Most iterations, 2 or more.
        timeout : float
            Seconds to wait for nodes and for the replies of an iteration.
        train_config : ConfigRecord, optional
            Sent along to the sites, as ``config``.
        evaluate_config : None
            Sites evaluate nothing.
        evaluate_fn : callable, optional
            Called with the iteration and the next coefficients.
        resume_from : Snapshot, optional
            Of a fit with the same settings, sites and rows: its iterations are not made again, and
            the result is the same to the last bit.

        Raises
        ------
        tasks.site.not_estimable.NotEstimable
            ``"separated"``, ``"collinear"`` or ``"not-converged"`` within `num_rounds`.
        strategies.exchange.TooFewSites
            If fewer than ``min_sites`` connect or give usable replies.
        strategies.membership.Refused
            If the sites' columns differ, or two have one name; in a fit that goes on, if a site
            of it is not there, or the sites have more or fewer rows than before.
        strategies.snapshot.UnusableSnapshot
            If the snapshot is of another strategy.
        """
        if evaluate_config:
            raise ValueError("evaluate_config: must be left out, sites evaluate nothing")
        self._begin(grid, initial_arrays, num_rounds=num_rounds, timeout=timeout)
        exchange = self.cohort.exchange
        log(INFO, "Starting %s strategy:", type(self).__name__)
        self.summary()
        exchange.wait_for_nodes(self.min_sites)
        arrays, config = initial_arrays or ArrayRecord(), train_config or ConfigRecord()
        metrics: dict[int, MetricRecord] = {}
        evaluated: dict[int, MetricRecord] = {}
        server_round = 0
        if resume_from is not None:
            with taken_apart():
                server_round = self.restore(resume_from)
                metrics, evaluated = unpack_history(resume_from)[1]
        while not self._iteration.finished:
            server_round += 1
            requests = self.configure_train(server_round, arrays, config, exchange)
            replies = exchange.send_and_receive(requests, timeout=timeout)
            arrays, metrics[server_round] = self.aggregate_train(server_round, replies)
            said = evaluate_fn(server_round, arrays) if evaluate_fn else None
            if said is not None:
                evaluated[server_round] = said
            if self._on_snapshot and not self._iteration.finished:
                self._on_snapshot(self.snapshot(metrics, evaluated))
        fit = self._iteration.fit()
        return FisherResult(
            arrays=ArrayRecord({COEFFICIENTS: Array(fit.coefficients)}),
            train_metrics_clientapp=metrics,
            evaluate_metrics_serverapp=evaluated,
            fit=fit,
            family=self.family,
            feature_names=self._coefficient_names(len(fit.coefficients)),
            sites=self.cohort.names,
            lost_sites=tuple(self.cohort.lost),
            history=tuple(self.history),
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address every site that takes part with :meth:`request`, and `config` if it has keys."""
        self._round, self._config = server_round, config
        return self._messages()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Pool the replies and make the step; return the next coefficients and the deviance."""
        iteration, lost = self._iteration, len(self.cohort.lost)
        evaluated = iteration.coefficients
        read = self.cohort.read(replies, self.parse_reply)
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            read = self._of_same_sites(read, resumed)
        sums = self.pool(read)
        refuse_other_rows(sums, self.history, sites=self.cohort.names)
        if resumed is not None and self._on_snapshot:  # it fits: from here this fit has it
            self._on_snapshot(resumed)
        refuse_other_number(len(sums.score), self.cohort.feature_names)
        if len(self.cohort.lost) > lost:  # another likelihood than that of the iterations before
            iteration = self._new_iteration(evaluated, rounds=server_round - 1)
        iteration.advance(sums)
        done = Iteration(
            number=server_round,
            evaluated=evaluated,
            deviance=math.inf if evaluated is None else sums.deviance,
            rows=sums.rows,
            halved=iteration.halved,
            converged=iteration.finished,
            sites=self.cohort.names,
        )
        self.history.append(done)
        self.after_iteration(done)
        arrays = ArrayRecord()
        if iteration.coefficients is not None:
            arrays[COEFFICIENTS] = Array(iteration.coefficients)
        return arrays, done.metrics()

    def summary(self) -> None:
        """Log how the strategy is set up."""
        log(INFO, "\t├──> Family: %s", self.family)
        size = "relative change of the deviance" if self.criterion == "deviance" else "largest step"
        log(INFO, "\t└──> Stops: %s below %g", size, self.tolerance)

    # What a subclass may change ---------------------------------------------------------------

    def request(self, server_round: int, coefficients: FloatArray | None) -> RecordDict:
        """Return what every site is sent; None for `coefficients` asks for a start.

        The message goes out under `message_type`; have its ledger words in `disclosures`.
        """
        return FisherRequest(self.family, server_round, coefficients).to_record()

    def parse_reply(self, content: RecordDict) -> SiteReply:
        """Read one reply. A subclass whose sites answer otherwise returns its own SiteReply.

        Raises
        ------
        ValueError, TypeError or LookupError
            If it is malformed; the site is then lost.
        """
        reply = FisherReply.from_record(content)
        has_dispersion = self.families[self.family].has_dispersion
        check_sums(reply.sums, self.coefficients, has_dispersion=has_dispersion)
        return reply

    def pool(self, replies: Mapping[str, Any]) -> FisherSums:
        """Add up the sums of the sites.

        Parameters
        ----------
        replies : mapping of str to SiteReply
            What :meth:`parse_reply` returned, by site name and in the order of names. Sites that
            are not in it were lost. Where their answers are needed to read the sum, a subclass
            may :meth:`ask_again` those that are left, or raise.

        Returns
        -------
        FisherSums
            Over all sites that take part. The deviance of a start is not looked at.
        """
        refuse_other_sizes(replies)
        return pool_sums(reply.sums for reply in replies.values())

    def has_converged(self, before: Iterate | None, now: Iterate) -> bool:
        """Whether `now` is the estimate: by default `criterion` and `tolerance`.

        Parameters
        ----------
        before, now : Iterate
            The last two coefficients that did not raise the deviance, with their sums and steps;
            `before` is None the first time.
        """
        return self._iteration.meets_criterion(before, now)

    def after_iteration(self, iteration: Iteration) -> None:
        """Do something after an iteration; by default call what was given as `after_iteration`."""
        if self._after_iteration is not None:
            self._after_iteration(iteration)

    def snapshot(
        self, metrics: Mapping[int, MetricRecord], evaluated: Mapping[int, MetricRecord]
    ) -> Snapshot:
        """Return what :meth:`restore` needs to go on after the last iteration.

        A subclass that remembers more returns the same ``facts`` and ``arrays`` and its own.

        Parameters
        ----------
        metrics, evaluated : mapping of int to MetricRecord
            As in the result, of the iterations made.
        """
        fits, arrays = pack_iterations([self._iteration])
        facts, history = pack_history(self.history, metrics, evaluated)
        facts |= {
            "fits": fits,
            "family": self.family,
            "sites": list(self.cohort.names),
            "lost": list(self.cohort.lost),
            "feature-names": self.cohort.feature_names and list(self.cohort.feature_names),
        }
        return Snapshot(self.kind_of_snapshot, self._round, facts, {**arrays, **history})

    def restore(self, snapshot: Snapshot) -> int:
        """Be as after the iteration that a snapshot is of; return its number."""
        facts = snapshot.of_kind(self.kind_of_snapshot).facts
        if facts["family"] != self.family:
            raise UnusableSnapshot(f"of family {facts['family']}, not {self.family}")
        self.history = unpack_history(snapshot)[0]
        unpack_iterations([self._iteration], snapshot, facts["fits"][:1])
        self.cohort.lost = list(facts["lost"])
        if facts["feature-names"]:
            self.cohort.feature_names = tuple(facts["feature-names"])
        self._resumed = snapshot
        log(INFO, "%d iterations were made before", snapshot.round)
        return snapshot.round

    def ask_again(self) -> dict[str, Any]:
        """Make one more exchange at the same coefficients; for :meth:`pool`.

        Returns
        -------
        dict of str to SiteReply
            Of the sites that are left, as :meth:`pool` gets them; it can lose further ones.
        """
        replies = self.cohort.exchange.send_and_receive(self._messages(), timeout=self._timeout)
        return self.cohort.read(replies, self.parse_reply)

    @property
    def coefficients(self) -> FloatArray | None:
        """Where the sites evaluate in this exchange; None: they were asked for a start."""
        return self._iteration.coefficients

    # Parts of the steps -----------------------------------------------------------------------

    def _begin(
        self, grid: Grid, initial: ArrayRecord | None, *, num_rounds: int, timeout: float
    ) -> None:
        if num_rounds < 2:
            raise ValueError(f"num_rounds = {num_rounds!r}: must be a whole number >= 2")
        exchange = Exchange.around(
            grid, timeout=timeout, min_sites=self.min_sites, disclosures=self.disclosures
        )
        self.cohort = Cohort(exchange, min_sites=self.min_sites, feature_names=self.feature_names)
        self._num_rounds, self._timeout = num_rounds, timeout
        self.history, self._resumed = [], None
        self._new_iteration(initial_coefficients(initial), rounds=0)

    def _new_iteration(self, start: FloatArray | None, *, rounds: int) -> FisherIteration:
        self._iteration = FisherIteration(
            self.family,
            criterion=self.criterion,
            tolerance=self.tolerance,
            rounding=self.rounding,
            max_rounds=self._num_rounds,
            start=start,
            has_converged=self.has_converged,
            families=self.families,
        )
        self._iteration.rounds = rounds
        return self._iteration

    def _messages(self) -> list[Message]:
        content = self.request(self._round, self.coefficients)
        if self._config:
            content["config"] = self._config
        return self.cohort.address(content, self.message_type)

    def _of_same_sites(self, read: dict[str, Any], snapshot: Snapshot) -> dict[str, Any]:
        """Return the replies of those who took part before; sites may tell names only now."""
        keep_members(self.cohort.exchange, snapshot)
        self.cohort.nodes = list(self.cohort.exchange.get_node_ids())
        return {name: read[name] for name in self.cohort.names}

    def _coefficient_names(self, number: int) -> tuple[str, ...]:
        return self.cohort.feature_names or tuple(f"x{i}" for i in range(1, number + 1))
