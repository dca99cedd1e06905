"""Intervals, tests, bands and heterogeneity."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit, logit, ndtr, ndtri
from statsmodels.stats.meta_analysis import combine_effects

from tasks.roc_glm.estimates import (
    auc_interval,
    auc_of_roc_glm,
    auc_test,
    delong_variance,
    roc_band,
)
from tasks.roc_glm.heterogeneity import SiteAuc, heterogeneity
from tasks.roc_glm.moments import Moments
from tasks.site.not_estimable import NotEstimable


@pytest.mark.parametrize(("g1", "g2"), [(1.0, 1.0), (-0.5, 0.3), (2.5, 4.0), (0.0, -1.0)])
def test_auc_is_the_integral_of_the_curve(g1: float, g2: float) -> None:
    integral, _ = quad(lambda t: ndtr(g1 + g2 * ndtri(t)), 0, 1, epsabs=1e-12)
    assert float(auc_of_roc_glm(g1, g2)) == pytest.approx(integral, abs=1e-9)


def test_test_agrees_with_the_interval_of_twice_alpha() -> None:
    for auc in np.linspace(0.3, 0.95, 40):
        test = auc_test(auc, 0.003, null_auc=0.6, alpha=0.05)
        interval = auc_interval(auc, 0.003, alpha=0.10)
        assert test.rejected == (interval.lower > 0.6)
        assert test.rejected == (test.p_value < 0.05)


def test_p_value_and_interval_by_hand() -> None:
    error = np.sqrt(0.002) / (0.8 * 0.2)
    test = auc_test(0.8, 0.002, null_auc=0.7)
    z = (logit(0.8) - logit(0.7)) / error
    assert test.statistic == pytest.approx(z, rel=1e-14)
    assert test.p_value == pytest.approx(1 - ndtr(z), rel=1e-12)
    interval = auc_interval(0.8, 0.002)
    assert interval.lower == pytest.approx(expit(logit(0.8) - 1.959963984540054 * error), rel=1e-14)
    assert interval.upper == pytest.approx(expit(logit(0.8) + 1.959963984540054 * error), rel=1e-14)
    assert interval.level == 0.95


@pytest.mark.parametrize("auc", [0.0, 1.0])
def test_no_interval_at_the_boundary(auc: float) -> None:
    for estimate in (auc_interval, auc_test):
        with pytest.raises(NotEstimable) as caught:
            estimate(auc, 0.0)
        assert caught.value.reason == "auc-0-or-1"


def test_too_few_rows_are_named_by_class() -> None:
    one, two = Moments(1, 0.5, 0.0), Moments(2, 0.5, 0.1)
    with pytest.raises(NotEstimable, match="too-few-positives"):
        delong_variance(of_negatives=two, of_positives=one)
    with pytest.raises(NotEstimable, match="too-few-negatives"):
        delong_variance(of_negatives=one, of_positives=two)


@pytest.mark.parametrize("spread", [1.0, 2.0])
def test_band_is_the_delta_method_of_simulated_curves(spread: float) -> None:
    """Binormal scores: the curve at t, estimated from many samples, varies as the band says."""
    generator = np.random.default_rng(1)
    n0, n1, t = 400, 300, 0.2
    cut_points, curve = [], []
    for _ in range(3000):
        negative = generator.normal(0.0, 1.0, n0)
        positive = generator.normal(spread, spread, n1)
        cut = np.quantile(negative, 1 - t)
        cut_points.append(cut)
        curve.append((positive > cut).mean())
    band = roc_band(
        1.0, 1.0 / spread, at=np.array([t]), num_negative=n0, num_positive=n1, alpha=2 * ndtr(-1.0)
    )
    half = (band.upper - band.lower)[0] / 2
    assert half == pytest.approx(np.std(curve), rel=0.06)
    assert band.true_positive_rate[0] == pytest.approx(ndtr(1.0 + ndtri(t) / spread))


def test_band_is_finite_and_inside_the_unit_square_at_the_ends() -> None:
    at = np.array([1e-300, 1e-12, 0.5, 1 - 1e-12])
    band = roc_band(3.0, 0.01, at=at, num_negative=10, num_positive=10)
    for values in (band.lower, band.true_positive_rate, band.upper):
        assert ((values >= 0) & (values <= 1)).all()


def test_heterogeneity_is_that_of_statsmodels() -> None:
    auc = np.array([0.71, 0.80, 0.66, 0.92])
    variance = np.array([0.002, 0.001, 0.004, 0.0015])
    theirs = combine_effects(logit(auc), variance / (auc * (1 - auc)) ** 2, method_re="dl")
    ours = heterogeneity(
        [SiteAuc(f"site-{k}", *values) for k, values in enumerate(zip(auc, variance, strict=True))]
    )
    homogeneity = theirs.test_homogeneity()
    assert ours.statistic == pytest.approx(homogeneity.statistic, rel=1e-10)
    assert ours.p_value == pytest.approx(homogeneity.pvalue, rel=1e-10)
    assert ours.inconsistency == pytest.approx(theirs.i2, rel=1e-10)
    assert ours.between_variance == pytest.approx(theirs.tau2, rel=1e-10)
    assert ours.mean_auc == pytest.approx(expit(theirs.mean_effect_re), rel=1e-10)


def test_heterogeneity_needs_two_sites_with_a_variance() -> None:
    with pytest.raises(NotEstimable, match="too-few-sites: 1 sites"):
        heterogeneity([SiteAuc("a", 0.7, 0.01), SiteAuc("b", 1.0, 0.0)])
