"""Distributed Fisher scoring for four families against statsmodels; separation; convergence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.glm.families import FisherSums, pool_sums, site_sums, starting_sums
from tasks.glm.scoring import FisherIteration, GlmFit
from tasks.site.faults import SiteFault
from tasks.site.not_estimable import NotEstimable

FAMILIES: dict[Any, Any] = {
    "probit": lambda: sm.families.Binomial(link=sm.families.links.Probit()),
    "logit": sm.families.Binomial,
    "poisson": sm.families.Poisson,
    "gaussian": sm.families.Gaussian,
}


def fit(
    family: Any,
    sites: list[tuple[Any, Any]],
    *,
    start: Any = None,
    **settings_: Any,
) -> GlmFit:
    iteration = FisherIteration(family, start=start, **settings_)
    while not iteration.finished:
        theta = iteration.coefficients
        iteration.advance(
            pool_sums(
                starting_sums(family, x, y) if theta is None else site_sums(family, x, y, theta)
                for x, y in sites
            )
        )
    return iteration.fit()


def draw(family: str, seed: int, number: int = 400) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    x = np.column_stack([np.ones(number), generator.normal(0, 1, number), generator.random(number)])
    predictor = x @ [0.3, -0.7, 1.1]
    if family == "poisson":
        return x, generator.poisson(np.exp(predictor + 2)).astype(float)
    if family == "gaussian":
        return x, predictor + generator.normal(0, 2, number)
    return x, (predictor + generator.normal(0, 1, number) > 0).astype(float)


def split(x: Any, y: Any, sites: int, seed: int) -> list[tuple[Any, Any]]:
    place = np.random.default_rng(seed).integers(0, sites, len(y))
    return [(x[place == k], y[place == k]) for k in range(sites)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_federated_fit_is_that_of_statsmodels(family: str, seed: int) -> None:
    x, y = draw(family, seed)
    theirs = sm.GLM(y, x, family=FAMILIES[family]()).fit(tol=1e-15, maxiter=100)
    ours = fit(family, split(x, y, 4, seed), criterion="step", tolerance=1e-11, max_rounds=60)
    assert ours.coefficients == pytest.approx(theirs.params, rel=1e-8)
    assert ours.standard_errors == pytest.approx(theirs.bse, rel=1e-8)
    assert ours.deviance == pytest.approx(theirs.deviance, rel=1e-8)
    table = ours.table()
    assert [row.z for row in table] == pytest.approx(theirs.tvalues, rel=1e-7)
    assert [row.p_value for row in table] == pytest.approx(theirs.pvalues, rel=1e-6, abs=1e-14)
    assert [[row.lower, row.upper] for row in table] == [
        pytest.approx(bounds, rel=1e-7) for bounds in theirs.conf_int()
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_default_stops_as_r_does(family: str) -> None:
    x, y = draw(family, 3)
    theirs = sm.GLM(y, x, family=FAMILIES[family]()).fit(tol=1e-15, maxiter=100)
    ours = fit(family, split(x, y, 3, 1))
    assert ours.coefficients == pytest.approx(theirs.params, abs=1e-4)
    assert ours.rounds <= 9


def test_a_tolerance_of_rounding_still_converges() -> None:
    x, y = draw("probit", 5)
    theirs = sm.GLM(y, x, family=FAMILIES["probit"]()).fit(tol=1e-15, maxiter=100)
    ours = fit("probit", [(x, y)], tolerance=1e-15)
    assert ours.coefficients == pytest.approx(theirs.params, rel=1e-7)


def test_offsets() -> None:
    x, y = draw("poisson", 2)
    offset = np.random.default_rng(4).normal(0, 0.5, len(y))
    theirs = sm.GLM(y, x, family=sm.families.Poisson(), offset=offset).fit(tol=1e-15)
    iteration = FisherIteration("poisson", criterion="step", tolerance=1e-12)
    while not iteration.finished:
        theta = iteration.coefficients
        iteration.advance(
            starting_sums("poisson", x, y, offset=offset)
            if theta is None
            else site_sums("poisson", x, y, theta, offset=offset)
        )
    assert iteration.fit().coefficients == pytest.approx(theirs.params, rel=1e-8)


@settings(deadline=None, max_examples=40)
@given(
    family=st.sampled_from(list(FAMILIES)), sites=st.integers(1, 6), seed=st.integers(0, 2**32 - 1)
)
def test_sums_do_not_depend_on_the_split(family: Any, sites: int, seed: int) -> None:
    x, y = draw(family, seed % 1000, number=60)
    theta = np.random.default_rng(seed).normal(0, 0.5, 3)
    whole = site_sums(family, x, y, theta)
    parts = pool_sums(site_sums(family, a, b, theta) for a, b in split(x, y, sites, seed))
    assert parts.score == pytest.approx(whole.score, rel=1e-10, abs=1e-10)
    assert parts.information == pytest.approx(whole.information, rel=1e-10, abs=1e-10)
    assert parts.deviance == pytest.approx(whole.deviance, rel=1e-12)
    assert parts.rows == whole.rows


@pytest.mark.parametrize("family", FAMILIES)
def test_score_and_information_are_derivatives(family: Any) -> None:
    x, y = draw(family, 7, number=50)
    theta, h = np.array([0.2, -0.3, 0.5]), 1e-6
    sums = site_sums(family, x, y, theta)
    slope = [
        (
            site_sums(family, x, y, theta + h * e).deviance
            - site_sums(family, x, y, theta - h * e).deviance
        )
        / (2 * h)
        for e in np.eye(3)
    ]
    assert -0.5 * np.array(slope) == pytest.approx(sums.score, rel=1e-6, abs=1e-5)


def test_trials_are_repeated_rows() -> None:
    x = np.array([[1.0, -1.0], [1.0, 0.5], [1.0, 2.0]])
    ones, trials = np.array([1.0, 2.0, 6.0]), np.array([5.0, 4.0, 7.0])
    long_x = np.repeat(x, trials.astype(int), axis=0)
    long_y = np.concatenate([np.arange(n) < k for n, k in zip(trials, ones, strict=True)])
    theta = np.array([0.1, 0.4])
    for family in ("probit", "logit"):
        grouped = site_sums(family, x, ones, theta, trials=trials)
        long = site_sums(family, long_x, long_y.astype(float), theta)
        assert grouped.score == pytest.approx(long.score, rel=1e-12)
        assert grouped.information == pytest.approx(long.information, rel=1e-12)
        assert grouped.deviance == pytest.approx(long.deviance, rel=1e-12)
        assert grouped.rows == long.rows == 16


@pytest.mark.parametrize("family", ["probit", "logit"])
@pytest.mark.parametrize("quasi", [False, True])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_separation_is_an_error_by_name(family: str, quasi: bool, scale: float) -> None:
    values = np.concatenate([np.linspace(-2, -0.1, 20), np.linspace(0.1, 2, 20)])
    y = (values > 0).astype(float)
    if quasi:
        values, y = np.append(values, [0, 0, 0]), np.append(y, [0, 1, 1])
    x = np.column_stack([np.ones(len(values)), values * scale])
    with pytest.raises(NotEstimable) as caught:
        fit(family, [(x[::2], y[::2]), (x[1::2], y[1::2])])
    assert caught.value.reason == "separated"


def test_counts_of_zero_only_have_no_finite_mean() -> None:
    x = np.ones((30, 1))
    with pytest.raises(NotEstimable, match="separated"):
        fit("poisson", [(x, np.zeros(30))])


@pytest.mark.parametrize("family", FAMILIES)
def test_collinear_columns_are_an_error_by_name(family: str) -> None:
    x, y = draw(family, 0)
    with pytest.raises(NotEstimable, match="collinear"):
        fit(family, [(np.column_stack([x, x[:, 1] - x[:, 0]]), y)])


def test_rounds_that_run_out_are_an_error_by_name() -> None:
    x, y = draw("probit", 0)
    with pytest.raises(NotEstimable, match="not-converged: no convergence within max-rounds = 3"):
        fit("probit", [(x, y)], criterion="step", tolerance=1e-12, max_rounds=3)


@pytest.mark.parametrize("at", [-1e6, -1000.0, -30.0, -5.0, 5.0, 30.0, 1000.0, 1e6])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_start_far_off_ends_at_the_same_fit(family: str, at: float) -> None:
    x, y = draw(family, 0)
    iteration = FisherIteration(family, criterion="step", start=np.full(x.shape[1], at))
    while not iteration.finished:
        theta = iteration.coefficients
        iteration.advance(
            starting_sums(family, x, y) if theta is None else site_sums(family, x, y, theta)
        )
    expected = fit(family, [(x, y)], criterion="step").coefficients
    assert iteration.fit().coefficients == pytest.approx(expected, abs=1e-6)


def test_a_bad_start_is_halved_back_or_given_up() -> None:
    x, y = draw("poisson", 1)
    theirs = sm.GLM(y, x, family=sm.families.Poisson()).fit(tol=1e-15)
    # A full first step from here goes to a mean that overflows.
    start = np.array([-4.0, 0.0, 0.0])
    iteration = FisherIteration("poisson", start=start, max_rounds=60)
    deviances = []
    while not iteration.finished:
        theta = iteration.coefficients
        if theta is None:
            iteration.advance(starting_sums("poisson", x, y))
            continue
        sums = site_sums("poisson", x, y, theta)
        deviances.append(sums.deviance)
        iteration.advance(sums)
    assert max(deviances[1:4]) == np.inf or max(np.diff(deviances)) > 0  # a rise was proposed
    assert iteration.fit().coefficients == pytest.approx(theirs.params, abs=1e-4)


def test_large_counts_start_without_overflow() -> None:
    x, _ = draw("poisson", 1)
    y = np.random.default_rng(0).poisson(1e6, len(x)).astype(float)
    theirs = sm.GLM(y, x, family=sm.families.Poisson()).fit(tol=1e-15)
    assert fit("poisson", [(x, y)]).coefficients == pytest.approx(theirs.params, abs=1e-6)


def test_predictors_far_out_stay_finite() -> None:
    x = np.array([[-40.0], [40.0], [-1e3], [1e3]])
    for family in ("probit", "logit"):
        sums = site_sums(family, x, np.array([1.0, 0.0, 0.0, 1.0]), np.array([1.0]))
        assert np.isfinite(sums.deviance)
        assert np.isfinite(sums.score).all()


def test_bad_rows_are_counted_not_shown() -> None:
    x = np.array([[1.0], [np.nan], [1.0]])
    with pytest.raises(SiteFault) as caught:
        site_sums("logit", x, np.array([0.0, 7.25, 1.0]), np.zeros(1))
    message = str(caught.value)
    assert "1 rows have a NaN or infinite covariate" in message
    assert "1 rows have a response that is not 0 or 1" in message
    assert "7.25" not in message
    with pytest.raises(SiteFault, match="1 rows have a response that is not a finite number from"):
        site_sums("poisson", np.ones((2, 1)), np.array([3.0, -1.0]), np.zeros(1))
    with pytest.raises(SiteFault, match="3 responses"):
        site_sums("gaussian", np.ones((2, 1)), np.zeros(3), np.zeros(1))
    with pytest.raises(SiteFault, match="trials: only a family of responses 0 and 1 has them"):
        site_sums("poisson", np.ones((2, 1)), np.ones(2), np.zeros(1), trials=np.ones(2))


def test_an_estimate_of_nothing_but_zeros_has_z_zero() -> None:
    x, _ = draw("gaussian", 0)
    (first, *_others) = fit("gaussian", [(x, np.zeros(len(x)))]).table()
    assert (first.estimate, first.standard_error, first.z, first.p_value) == (0.0, 0.0, 0.0, 1.0)
    exact, *_others = fit("gaussian", [(np.ones((4, 1)), np.full(4, -3.0))]).table()
    assert (exact.standard_error, exact.z, exact.p_value) == (0.0, -np.inf, 0.0)


def test_a_dispersion_needs_its_statistic() -> None:
    x, y = draw("gaussian", 0)
    iteration = FisherIteration("gaussian")
    while not iteration.finished:
        theta = iteration.coefficients
        sums = (
            starting_sums("gaussian", x, y) if theta is None else site_sums("gaussian", x, y, theta)
        )
        iteration.advance(FisherSums(sums.score, sums.information, sums.deviance, sums.rows))
    with pytest.raises(ValueError, match="no Pearson statistic"):
        iteration.fit()


def test_nothing_to_pool() -> None:
    with pytest.raises(ValueError, match="0 sites"):
        pool_sums([])
    with pytest.raises(RuntimeError):
        FisherIteration("logit").fit()


def test_an_empty_site_adds_nothing() -> None:
    x, y = draw("logit", 0)
    empty = site_sums("logit", x[:0], y[:0], np.zeros(3))
    assert isinstance(empty, FisherSums)
    assert (empty.rows, empty.deviance) == (0, 0.0)
    assert not empty.information.any()
