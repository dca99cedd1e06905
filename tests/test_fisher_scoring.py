"""Fisher scoring over sites: estimates against statsmodels, what does not exist, hooks."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import statsmodels.api as sm
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.exchange import Exchange, TooFewSites
from strategies.fisher_result import Iteration
from strategies.fisher_scoring import FisherScoring
from tasks.glm.client import answer
from tasks.glm.families import Family, FisherSums, RowTerms
from tasks.glm.messages import FisherReply, FisherRequest, SiteReply
from tasks.glm.scoring import Iterate
from tasks.secure.fixed_point import FixedPoint
from tasks.site.faults import SiteFault
from tasks.site.not_estimable import NotEstimable
from tests.glm_sites import (
    FAMILIES,
    NAMES,
    PRECISE,
    assert_equal_fits,
    deal,
    draw,
    grid_of,
    grid_with,
    pooled,
    thirds,
)

# Estimates ------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None, max_examples=8)
@given(
    seed=st.integers(0, 50),
    place=st.lists(st.integers(0, 4), min_size=120, max_size=120),
)
def test_however_rows_are_dealt_the_fit_is_the_pooled_one(
    family: str, seed: int, place: list[int]
) -> None:
    x, y = draw(family, seed, number=len(place))
    grid = grid_with(deal(x, y, np.array(place), 5), privacy_level=1)
    ours = FisherScoring(family=family, **PRECISE).start(grid)
    assert_equal_fits(ours, pooled(family, x, y))
    assert ours.sites == tuple(f"site-{k}" for k in range(5))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_is_that_of_statsmodels(family: str) -> None:
    x, y = draw(family, 3)
    ours = FisherScoring(family=family, **PRECISE).start(grid_with(thirds(x, y)))
    theirs = pooled(family, x, y)
    table = ours.table(alpha=0.1)
    assert tuple(table) == ours.feature_names == NAMES
    assert [row.z for row in table.values()] == pytest.approx(theirs.tvalues, rel=1e-7)
    assert [row.p_value for row in table.values()] == pytest.approx(theirs.pvalues, rel=1e-6)
    bounds = np.array([[row.lower, row.upper] for row in table.values()])
    assert bounds == pytest.approx(theirs.conf_int(0.1), rel=1e-7, abs=1e-8)
    assert ours.converged
    assert ours.arrays["coefficients"].numpy().tolist() == ours.coefficients.tolist()
    assert ours.train_metrics_clientapp[ours.iterations]["deviance"] == ours.deviance
    text = repr(ours)
    assert "300 rows of 3 sites" in text
    assert all(name in text for name in NAMES)


def test_a_site_with_one_class_and_a_site_without_rows_take_part() -> None:
    x, y = draw("logit", 1)
    place = np.where(y == 1, 0, np.arange(len(y)) % 2)  # site-1 has zeros only, site-2 nothing
    ours = FisherScoring(family="logit", **PRECISE).start(grid_with(deal(x, y, place, 3)))
    assert_equal_fits(ours, pooled("logit", x, y))
    assert ours.fit.rows == len(y)


def test_trials_and_offsets() -> None:
    x, _ = draw("logit", 2, number=60)
    rng = np.random.default_rng(5)
    trials, offset = rng.integers(3, 9, 60), rng.normal(0, 0.5, 60)
    ones = rng.binomial(trials, 0.4)

    def handler(message: Message, site: str) -> Message:
        k = slice(int(site[-1]), None, 2)
        return answer(
            *(message, x[k], ones[k]), trials=trials[k], offset=offset[k], intercept=True, site=site
        )

    grid = grid_of(["site-0", "site-1"], handler)
    ours = FisherScoring(family="probit", **PRECISE).start(grid)
    both = np.column_stack([ones, trials - ones])
    theirs = pooled("probit", x, both, offset=offset)
    assert ours.coefficients == pytest.approx(theirs.params, rel=1e-8)
    assert ours.fit.standard_errors == pytest.approx(theirs.bse, rel=1e-8)
    assert ours.fit.rows == trials.sum()


def test_every_iteration_is_one_exchange_and_there_is_no_other() -> None:
    x, y = draw("probit", 0)
    exchange = Exchange.around(
        grid_with(thirds(x, y)), min_sites=2, disclosures=FisherScoring.disclosures
    )
    ours = FisherScoring(family="probit").start(exchange)
    assert exchange.count == ours.iterations == len(ours.history) <= 8
    assert {entry["step"] for entry in exchange.ledger} == {"fisher"}
    assert len(exchange.ledger) == 2 * 3 * ours.iterations
    assert ours.coefficients == pytest.approx(pooled("probit", x, y).params, abs=1e-5)
    replies = [entry for entry in exchange.ledger if entry["receiver"] == "server"]
    assert {entry["sender"] for entry in replies} == {"site-0", "site-1", "site-2"}
    assert all("can determine the rows" in str(entry["reveals"]) for entry in replies)


def test_the_order_of_nodes_does_not_change_a_bit() -> None:
    x, y = draw("poisson", 4)
    sites = deal(x, y, np.random.default_rng(0).integers(0, 5, len(y)), 5)
    backwards = dict(reversed(sites.items()))
    first, second, third = (
        FisherScoring(family="poisson").start(grid_with(part)) for part in (sites, sites, backwards)
    )
    for other in (second, third):
        assert first.coefficients.tobytes() == other.coefficients.tobytes()
        assert first.covariance.tobytes() == other.covariance.tobytes()
        assert first.deviance == other.deviance
        assert first.sites == other.sites


# Numbers that do not exist ----------------------------------------------------------------------


@pytest.mark.parametrize("family", ["probit", "logit"])
def test_separation_is_named(family: str) -> None:
    x, _ = draw(family, 0)
    y = (x["age"] > 0.1).to_numpy().astype(float)
    with pytest.raises(NotEstimable) as caught:
        FisherScoring(family=family).start(grid_with(thirds(x, y)))
    assert caught.value.reason == "separated"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("initial", [None, ArrayRecord({"theta": Array(np.zeros(4))})])
def test_collinear_columns_are_named(family: str, initial: ArrayRecord | None) -> None:
    x, y = draw(family, 0)
    x["sum"] = x["age"] + x["bmi"]
    with pytest.raises(NotEstimable) as caught:
        FisherScoring(family=family).start(grid_with(thirds(x, y)), initial)
    assert caught.value.reason == "collinear"


def test_rounds_that_run_out_are_named_and_leave_their_history() -> None:
    x, y = draw("logit", 0)
    strategy = FisherScoring(family="logit")
    with pytest.raises(NotEstimable) as caught:
        strategy.start(grid_with(thirds(x, y)), num_rounds=3)
    assert caught.value.reason == "not-converged"
    assert [iteration.converged for iteration in strategy.history] == [False, False]


def test_a_deviance_that_rises_halves_the_step() -> None:
    x, y = draw("poisson", 1)
    start = ArrayRecord({"theta": Array(np.array([-4.0, 0.0, 0.0]))})
    strategy = FisherScoring(family="poisson", **PRECISE)
    ours = strategy.start(grid_with(thirds(x, y)), start, num_rounds=60)
    assert_equal_fits(ours, pooled("poisson", x, y))
    assert ours.history[0].evaluated == pytest.approx([-4.0, 0.0, 0.0])
    halved = [iteration for iteration in ours.history if iteration.halved]
    assert halved
    assert not ours.history[-1].halved
    for this in halved:
        assert this.deviance > min(i.deviance for i in ours.history[: this.number - 1])


def test_a_start_at_which_the_likelihood_overflows_is_replaced() -> None:
    x, y = draw("poisson", 1)
    start = ArrayRecord({"theta": Array(np.array([800.0, 0.0, 0.0]))})
    ours = FisherScoring(family="poisson", **PRECISE).start(grid_with(thirds(x, y)), start)
    assert_equal_fits(ours, pooled("poisson", x, y))
    assert ours.history[0].halved
    assert ours.history[1].evaluated is None


def test_sums_of_few_iterations_give_the_counts_back() -> None:
    """The claim under *What is revealed*: aggregates of several rounds hide nothing."""
    levels, trials = np.linspace(-1.5, 1.5, 6), np.full(6, 40.0)
    ones = np.array([7.0, 9.0, 18.0, 20.0, 29.0, 37.0])
    design = np.column_stack([np.ones(6), levels])
    seen: list[FisherSums] = []

    class Curious(FisherScoring):
        def pool(self, replies: Mapping[str, Any]) -> FisherSums:
            seen.append(replies["b"].sums)
            return super().pool(replies)

    def handler(message: Message, site: str) -> Message:
        own = ones if site == "b" else np.array([2.0, 5.0, 11.0, 25.0, 36.0, 39.0])
        return answer(message, design, own, trials=trials, site=site)

    begin = ArrayRecord({"theta": Array(np.array([0.0, 0.2]))})
    strategy = Curious(family="probit")
    strategy.start(grid_of(["a", "b"], handler), begin)
    rows, values = [], []
    # Score and deviance are linear in the counts, and what multiplies these is known.
    for sums, theta in zip(seen[:4], (i.evaluated for i in strategy.history), strict=False):
        zero, units = np.zeros(6), np.eye(6)
        at = [_probit_sums(design, u, trials, theta) for u in (zero, *units)]
        told = np.append(sums.score, sums.deviance)
        rows += list((np.array(at[1:]) - at[0]).T)
        values += list(told - at[0])
    counts, *_ = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)
    assert np.rint(counts).tolist() == ones.tolist()


def _probit_sums(design: Any, ones: Any, trials: Any, theta: Any) -> Any:
    model = sm.GLM(ones / trials, design, family=FAMILIES["probit"](), freq_weights=trials)
    predictor = design @ theta
    mean = FAMILIES["probit"]().link.inverse(predictor)
    loglik = ones @ np.log(mean) + (trials - ones) @ np.log(1 - mean)
    return np.append(model.score(theta), -2 * loglik)


# Hooks ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MaskedReply(SiteReply):
    words: Any


class MaskedScoring(FisherScoring):
    """Sums in fixed point under masks that cancel over the sites asked, modulo 2^64."""

    point = FixedPoint(bits=36, bound=1e7)

    def request(self, server_round: int, coefficients: Any) -> RecordDict:
        content = super().request(server_round, coefficients)
        self.roster = list(self.cohort.exchange.get_node_ids())
        content["roster"] = ConfigRecord({"nodes": self.roster})
        return content

    def parse_reply(self, content: RecordDict) -> MaskedReply:
        return MaskedReply(words=content.array_records["masked"]["words"].numpy())

    def pool(self, replies: Mapping[str, Any]) -> FisherSums:
        while len(replies) < len(self.roster):
            replies = self.ask_again()
        self.seen = np.array([reply.words for reply in replies.values()])
        sums = self.point.decode(self.seen.sum(axis=0, dtype=np.uint64).view(np.int64))
        return FisherSums(sums[:3], sums[3:12].reshape(3, 3), float(sums[12]), int(sums[13]))


def mask(roster: list[int], node: int, server_round: int) -> Any:
    masks = np.random.default_rng([len(roster), server_round]).integers(
        0, 2**64, (len(roster), 14), dtype=np.uint64
    )
    masks[-1] = np.uint64(0) - masks[:-1].sum(axis=0, dtype=np.uint64)
    return masks[roster.index(node)]


def test_a_subclass_pools_masked_sums_and_asks_again() -> None:
    x, y = draw("logit", 8)
    sites, point = thirds(x, y), MaskedScoring.point
    calls: list[tuple[str, int]] = []

    def handler(message: Message, site: str) -> Message:
        request = FisherRequest.from_record(message.content)
        roster: Any = message.content.config_records["roster"]["nodes"]
        calls.append((site, request.server_round))
        if site == "site-1" and request.server_round == 3:
            raise SiteFault("gone", "no longer takes part")
        reply = answer(message, *sites[site], intercept=True, site=site)
        sums = FisherReply.from_record(reply.content).sums
        deviance = sums.deviance if request.coefficients is not None else 0.0
        flat = np.concatenate([sums.score, sums.information.ravel(), [deviance, sums.rows]])
        words = point.encode(flat).view(np.uint64)
        words += mask(roster, message.metadata.dst_node_id, request.server_round)
        hidden = ArrayRecord({"words": Array(words)})
        return Message(RecordDict({"masked": hidden}), reply_to=message)

    strategy = MaskedScoring(
        family="logit", tolerance=1e-9, rounding=1e-9, feature_names=NAMES, min_sites=2
    )
    exchange = Exchange.around(grid_of(list(sites), handler))
    ours = strategy.start(exchange)
    kept = np.arange(len(y)) % 3 != 1
    theirs = pooled("logit", x[kept], y[kept])
    assert ours.coefficients == pytest.approx(theirs.params, abs=1e-6)
    assert ours.fit.standard_errors == pytest.approx(theirs.bse, abs=1e-6)
    assert ours.fit.rows == kept.sum()
    assert [call for call in calls if call[1] == 3] == [
        *[("site-0", 3), ("site-1", 3), ("site-2", 3)],
        *[("site-0", 3), ("site-2", 3)],  # asked again, under masks for two
    ]
    assert exchange.count == ours.iterations + 1
    one_site = point.decode(strategy.seen.view(np.int64)[0])
    assert np.abs(one_site[:3]).max() > 1e5  # a mask, not a score


def cloglog_terms(predictor: Any, ones: Any, trials: Any) -> RowTerms:
    hazard = np.exp(predictor)
    mean, zeros = -np.expm1(-hazard), trials - ones
    return RowTerms(
        slope=hazard * (ones * (1 - mean) / mean - zeros),
        weight=trials * hazard**2 * (1 - mean) / mean,
        deviance=-2 * (ones * np.log(mean) - zeros * hazard),
    )


def gamma_terms(predictor: Any, values: Any, _: Any) -> RowTerms:
    """With the inverse as link: NaN where a predictor is negative, and the step is halved."""
    mean = 1 / predictor
    return RowTerms(
        slope=mean - values,
        weight=mean**2,
        deviance=2 * ((values - mean) / mean - np.log(values / mean)),
    )


CLOGLOG = Family(
    terms=cloglog_terms,
    start=lambda ones, trials: np.log(-np.log1p(-(ones + 0.5) / (trials + 1))),
    allowed="0 or 1",
    binary=True,
)
GAMMA = Family(
    terms=gamma_terms,
    start=lambda values, _: 1 / values,
    allowed="a finite number above 0",
    least=math.ulp(0.0),
    has_dispersion=True,
)


class OwnFamilies(FisherScoring):
    families: ClassVar[Mapping[str, Family]] = {"cloglog": CLOGLOG, "gamma": GAMMA}


def test_a_binary_family_of_ones_own() -> None:
    x, y = draw("logit", 9)
    grid = grid_with(thirds(x, y), families=OwnFamilies.families)
    ours = OwnFamilies(family="cloglog", **PRECISE).start(grid)
    design = np.column_stack([np.ones(len(x)), x])
    link = sm.families.links.CLogLog()
    theirs = sm.GLM(y, design, family=sm.families.Binomial(link=link)).fit(
        tol=1e-13, tol_criterion="params"
    )
    assert_equal_fits(ours, theirs)
    assert ours.fit.dispersion == 1.0
    with pytest.raises(TooFewSites, match="family = 'cloglog': must be one of probit, logit"):
        OwnFamilies(family="cloglog").start(grid_with(thirds(x, y)))
    few = np.where(np.cumsum(y) <= 4, y, 0.0)
    with pytest.raises(TooFewSites, match="fewer than privacy-level = 5 responses 1 here"):
        OwnFamilies(family="cloglog").start(
            grid_with({"a": (x, few), "b": (x, y)}, families=OwnFamilies.families)
        )


@pytest.mark.filterwarnings("ignore:The InversePower link function")
def test_a_family_of_ones_own_with_a_dispersion() -> None:
    x, _ = draw("gaussian", 9)
    rng = np.random.default_rng(1)
    design = np.column_stack([np.ones(len(x)), x])
    y = rng.gamma(1.7, 1 / (1 + design @ [0.3, -0.1, 0.4]) / 1.7)
    options = {"families": OwnFamilies.families}
    ours = OwnFamilies(family="gamma", **PRECISE).start(grid_with(thirds(x, y), **options))
    theirs = sm.GLM(y, design, family=sm.families.Gamma()).fit(
        tol=1e-13, tol_criterion="params", maxiter=100
    )
    assert_equal_fits(ours, theirs)
    assert ours.fit.dispersion == pytest.approx(theirs.scale, rel=1e-10)
    assert ours.fit.dispersion != pytest.approx(ours.deviance / (len(y) - 3), rel=0.02)
    y[:7] = 0.0
    with pytest.raises(TooFewSites, match=r"2 rows have a response that is not a finite number a"):
        OwnFamilies(family="gamma").start(grid_with(thirds(x, y), **options))


def test_a_site_without_the_dispersions_statistic_is_lost() -> None:
    x, y = draw("gaussian", 9)
    sites = thirds(x, y)

    def handler(message: Message, site: str) -> Message:
        reply = answer(message, *sites[site], intercept=True, site=site)
        if site == "site-1":
            reply.content.config_records["fisher"].pop("pearson", None)
        if site == "site-2" and "pearson" in reply.content.config_records["fisher"]:
            reply.content.config_records["fisher"]["pearson"] = -1.0
        return reply

    exchange = Exchange.around(grid_of(list(sites), handler))
    ours = FisherScoring(family="gaussian", min_sites=1).start(exchange)
    assert ours.sites == ("site-0",)
    assert [fault.code for fault in exchange.faults] == ["malformed", "malformed"]


def test_stopping_and_callback_are_hooks() -> None:
    x, y = draw("logit", 0)
    told: list[Iteration] = []
    looked_at: list[tuple[int | None, int]] = []

    class SmallScore(FisherScoring):
        def has_converged(self, before: Iterate | None, now: Iterate) -> bool:
            looked_at.append((before.round if before else None, now.round))
            return float(np.abs(now.sums.score).max()) < 1e-3

    strategy = SmallScore(family="logit", after_iteration=told.append)
    evaluated: list[tuple[int, bool]] = []
    ours = strategy.start(
        grid_with(thirds(x, y)),
        evaluate_fn=lambda number, arrays: evaluated.append((number, bool(arrays))),
    )
    assert tuple(told) == ours.history
    assert [iteration.number for iteration in told] == list(range(1, len(told) + 1))
    assert looked_at[0] == (None, 2)
    assert looked_at[-1] == (len(told) - 1, len(told))
    assert evaluated == [(number, True) for number in range(1, len(told) + 1)]
    plain = FisherScoring(family="logit").start(grid_with(thirds(x, y)))
    assert len(told) < plain.iterations
    assert ours.coefficients == pytest.approx(plain.coefficients, abs=1e-4)


def test_a_configuration_goes_along_with_the_request() -> None:
    x, y = draw("logit", 0)
    got: list[Any] = []

    def handler(message: Message, site: str) -> Message:
        got.append(copy.copy(message.content.config_records["config"]["visit"]))
        return answer(message, x, y, site=site)

    FisherScoring().start(grid_of(["a", "b"], handler), train_config=ConfigRecord({"visit": 3}))
    assert set(got) == {3}


def test_bad_settings_are_refused_all_at_once() -> None:
    with pytest.raises(ValueError, match="family = 'gamma': must be one of probit") as caught:
        FisherScoring(
            family="gamma",
            criterion="score",  # type: ignore[arg-type]
            tolerance=0.0,
            rounding=float("nan"),
            min_sites=0,
        )
    assert len(str(caught.value).split("; ")) == 5
    x, y = draw("logit", 0)
    grid = grid_with(thirds(x, y))
    with pytest.raises(ValueError, match="num_rounds = 1: must be a whole number >= 2"):
        FisherScoring().start(grid, num_rounds=1)
    with pytest.raises(ValueError, match="evaluate_config: must be left out"):
        FisherScoring().start(grid, evaluate_config=ConfigRecord({"a": 1}))
    with pytest.raises(ValueError, match="initial_arrays: must be one vector"):
        FisherScoring().start(grid, ArrayRecord({"theta": Array(np.full(3, np.nan))}))
