"""The ROC-GLM on counts: reference values, the long data set, existence, one-shot and fisher."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from tasks.glm.families import pool_sums
from tasks.glm.scoring import FisherIteration, GlmFit
from tasks.roc_glm.counts import DistinctCounts, pool_distinct
from tasks.roc_glm.probit import (
    fit_roc_glm,
    fit_roc_glm_batch,
    probit_design,
    probit_sums,
    require_existence,
    thresholds,
)
from tasks.roc_glm.survivor import ScoreSurvivor, threshold_counts
from tasks.site.not_estimable import NotEstimable
from tests.roc_glm_reference import CASES, federations, rows_of, sites_of


def fisher(counts_of_sites: list[tuple[Any, int]], **settings_: Any) -> GlmFit:
    iteration = FisherIteration("probit", **settings_)
    while not iteration.finished:
        iteration.advance(
            pool_sums(probit_sums(w1, n1, iteration.coefficients) for w1, n1 in counts_of_sites)
        )
    return iteration.fit()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
@pytest.mark.parametrize("ties", ["mid", "strict", "weak"])
@pytest.mark.parametrize("num_thresholds", [28, 9])
def test_reference_fit(case: dict[str, Any], ties: Any, num_thresholds: int) -> None:
    expected = case["roc_glm"][f"{ties}-{num_thresholds}"]
    sites = sites_of(case["scores"], case["labels"], case["site"])
    counts = pool_distinct([DistinctCounts.of(site) for site in sites]).counts
    w1 = counts.threshold_counts(num_thresholds, ties)
    if expected["status"] != "ok":
        with pytest.raises(NotEstimable) as caught:
            fit_roc_glm(w1, counts.num_positive)
        assert caught.value.reason == expected["status"].replace("_", "-")
        return
    fitted = fit_roc_glm(w1, counts.num_positive)
    assert fitted.gamma_1 == pytest.approx(expected["gamma1"], rel=1e-8)
    assert fitted.gamma_2 == pytest.approx(expected["gamma2"], rel=1e-8)
    assert fitted.auc == pytest.approx(expected["auc"], rel=1e-8)
    assert fitted.deviance == pytest.approx(expected["deviance_bernoulli"], rel=1e-8)


@pytest.mark.parametrize("case", CASES[:4], ids=lambda case: case["name"])
def test_fisher_mode_over_sites(case: dict[str, Any]) -> None:
    """What the paper does: each site counts from the pooled S0, sums travel every round."""
    sites = sites_of(case["scores"], case["labels"], case["site"])
    pooled = pool_distinct([DistinctCounts.of(site) for site in sites])
    s0 = ScoreSurvivor(pooled.levels, pooled.counts.negative)
    of_sites = [
        (
            threshold_counts(s0.numerators(rows.positive), total=s0.total, num_thresholds=28),
            rows.num_positive,
        )
        for rows in sites
    ]
    expected = case["roc_glm"]["mid-28"]
    fitted = fisher(of_sites)
    assert fitted.rounds <= 8
    assert fitted.coefficients == pytest.approx(
        [expected["gamma1"], expected["gamma2"]], rel=0, abs=1e-5
    )
    assert fitted.deviance == pytest.approx(expected["deviance_bernoulli"], rel=1e-8)
    assert fitted.rows == 28 * case["labels"].count(1)
    exact = fisher(of_sites, criterion="step", tolerance=1e-12, max_rounds=60)
    assert exact.coefficients == pytest.approx([expected["gamma1"], expected["gamma2"]], rel=1e-8)


@settings(deadline=None, max_examples=60)
@given(federations(), st.sampled_from([4, 28]))
def test_counts_give_the_fit_of_the_long_data(federation: Any, num_thresholds: int) -> None:
    scores, labels, _ = federation
    counts = DistinctCounts.of(rows_of(scores, labels)).counts
    w1 = counts.threshold_counts(num_thresholds)
    mixed = (w1 > 0) & (w1 < counts.num_positive)
    assume(mixed.sum() >= 2)
    ours = fit_roc_glm(w1, counts.num_positive)
    assume(abs(ours.gamma_1) < 8 and abs(ours.gamma_2) < 8)  # statsmodels loses the tails beyond
    long_y = np.concatenate([np.arange(counts.num_positive) < w for w in w1]).astype(float)
    long_x = np.repeat(probit_design(num_thresholds), counts.num_positive, axis=0)
    family = sm.families.Binomial(link=sm.families.links.Probit())
    theirs = sm.GLM(long_y, long_x, family=family).fit(tol=1e-15, maxiter=200)
    assert [ours.gamma_1, ours.gamma_2] == pytest.approx(theirs.params, rel=1e-6, abs=1e-6)
    assert ours.deviance == pytest.approx(theirs.deviance, rel=1e-8)


@settings(deadline=None, max_examples=100)
@given(
    st.integers(2, 40),
    st.integers(2, 500),
    st.integers(0, 2**32 - 1),
)
def test_exists_if_and_only_if_two_thresholds_are_mixed(
    num_thresholds: int, num_positive: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    mixed = min(int(generator.integers(0, 4)), num_thresholds)
    zeros = int(generator.integers(0, num_thresholds - mixed + 1))
    middle = np.sort(generator.integers(1, num_positive, mixed))
    full = np.full(num_thresholds - mixed - zeros, num_positive)
    w1 = np.concatenate([np.zeros(zeros, dtype=np.int64), middle, full])
    if mixed >= 2:
        fitted = fit_roc_glm(w1, num_positive)
        score = probit_sums(w1, num_positive, np.array([fitted.gamma_1, fitted.gamma_2])).score
        assert score == pytest.approx([0, 0], abs=1e-7 * num_positive)
        assert np.isfinite(fisher([(w1, num_positive)], max_rounds=40).deviance)
        return
    reason = "separated" if mixed == 0 else "quasi-separated"
    with pytest.raises(NotEstimable) as caught:
        fit_roc_glm(w1, num_positive)
    assert caught.value.reason == reason
    # Fisher scoring sees no counts, and must not stop at what the rounds happened to reach.
    with pytest.raises(NotEstimable) as caught:
        fisher([(w1, num_positive)])
    assert caught.value.reason == "separated"


def test_message_of_existence() -> None:
    with pytest.raises(NotEstimable, match="1 of 3 thresholds have positives on both sides"):
        require_existence(np.array([0, 4, 9]), 9)


def test_one_positive_in_all() -> None:
    """u is 0 up to its placement value and 1 above: separated, whatever the threshold."""
    counts = DistinctCounts.of(rows_of([0.1, 0.2, 0.3, 0.25], [0, 0, 0, 1])).counts
    with pytest.raises(NotEstimable, match="separated"):
        fit_roc_glm(counts.threshold_counts(28), counts.num_positive)


def test_batch_is_one_by_one() -> None:
    generator = np.random.default_rng(0)
    n1 = generator.integers(3, 400, 60).astype(float)
    p = ndtr(
        generator.normal(0.8, 0.6, (60, 1))
        + generator.uniform(0.3, 2, (60, 1)) * ndtri(thresholds(28))
    )
    w1 = generator.binomial(n1.astype(int)[:, None], p)
    w1 = np.sort(w1, axis=1)
    batch = fit_roc_glm_batch(w1, n1)
    for row in range(60):
        try:
            single = fit_roc_glm(w1[row], n1[row])
        except NotEstimable:
            assert not batch.estimable[row]
            assert np.isnan(batch.auc[row])
            continue
        assert batch.gamma[row] == pytest.approx([single.gamma_1, single.gamma_2], rel=1e-10)
        assert batch.auc[row] == pytest.approx(single.auc, rel=1e-10)
        assert batch.deviance[row] == pytest.approx(single.deviance, rel=1e-12)
    assert batch.estimable.sum() > 40


def test_a_curve_below_the_diagonal_is_not_flipped() -> None:
    p = ndtr(-0.8 + ndtri(thresholds(28)))
    fitted = fit_roc_glm(np.round(1e6 * p), 1e6)
    assert fitted.gamma_1 == pytest.approx(-0.8, abs=1e-5)
    assert fitted.auc < 0.5


def test_design_has_neither_0_nor_1() -> None:
    assert thresholds(28)[[0, -1]].tolist() == [1 / 29, 28 / 29]
    assert np.isfinite(probit_design(28)).all()
