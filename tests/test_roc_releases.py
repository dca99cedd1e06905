"""Releases under noise: sensitivity, scale, what the server fits to them, what is said of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from tasks.privacy import gaussian
from tasks.roc_glm import cell_estimates as cells
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.counts import ClassCounts, DistinctCounts, count_in_cells, equal_cuts
from tasks.roc_glm.estimates import delong_variance
from tasks.roc_glm.guarantee import MOMENTS_OF_POSITIVES, ROC_GLM_SUMS, guarantee
from tasks.roc_glm.noise_plan import noise_plan
from tasks.roc_glm.releases import (
    cuts_in_window,
    needs_unit_interval,
    noise_scale,
    noise_share,
    release_cumulative_counts,
    release_histogram,
    release_scores,
    release_sensitivity,
    unit_interval_fault,
)
from tests.roc_glm_reference import federations, rows_of


def test_cuts_in_a_window() -> None:
    assert cuts_in_window(equal_cuts(20), 0.2) == 4
    assert cuts_in_window(np.arange(1, 21) / 21, 0.2) == 5
    assert cuts_in_window(equal_cuts(20), 0.05) == 1
    assert cuts_in_window(equal_cuts(20), 0.051) == 2
    assert cuts_in_window(equal_cuts(20), 1.0) == 19
    quantiles = 0.01 + 0.001 * np.arange(19)
    assert cuts_in_window(quantiles, 0.2) == 19
    assert cuts_in_window(np.array([]), 0.2) == 0


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 40), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_sensitivity_of_cumulative_counts(number: int, width: int, seed: int) -> None:
    """No move of one score by at most the width changes more, and some move changes as much."""
    generator = np.random.default_rng(seed)
    cuts = np.unique(generator.integers(0, 100, number))
    most = 0
    for start in range(-width, 101):
        for step in range(width + 1):
            changed = ((cuts >= start) & (cuts < start + step)).sum()
            most = max(most, int(changed))
    assert cuts_in_window(cuts / 100, width / 100) == most
    found = release_sensitivity("noisy-counts", score_sensitivity=width / 100, cuts=cuts / 100)
    assert found == pytest.approx(math.sqrt(most))


def test_sensitivity_of_the_other_releases() -> None:
    assert release_sensitivity("noisy-scores", score_sensitivity=0.3) == 0.3
    assert release_sensitivity("noisy-histogram", score_sensitivity=0.3) == math.sqrt(2)
    with pytest.raises(ValueError, match="release = 'binned'"):
        release_sensitivity("binned", score_sensitivity=0.3)


def test_scale_by_either_mechanism() -> None:
    budget = {"epsilon": 0.5, "delta": 1e-5, "sensitivity": 0.1}
    assert noise_scale(**budget) == gaussian.sigma(**budget)
    assert noise_scale(mechanism="classic", **budget) == pytest.approx(
        math.sqrt(2 * math.log(1.25e5)) * 0.1 / 0.5
    )
    with pytest.raises(ValueError, match="allowed below 1"):
        noise_scale(mechanism="classic", epsilon=1.0, delta=1e-5, sensitivity=0.1)
    assert 5 * noise_share(2.0, 5) ** 2 == pytest.approx(4.0)


@settings(deadline=None, max_examples=80)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30))
def test_isotonic_is_that_of_scikit_learn(values: list[float]) -> None:
    array = np.array(values)
    theirs = IsotonicRegression().fit_transform(np.arange(len(array)), array)
    assert cells.isotonic(array) == pytest.approx(theirs, abs=1e-9)
    stack = np.stack([array, -array])
    assert np.array_equal(cells.isotonic(stack)[0], cells.isotonic(array))


@settings(deadline=None, max_examples=80)
@given(federations())
def test_without_noise_the_cells_give_what_the_counts_give(federation: Any) -> None:
    scores, labels, _ = federation
    counts = count_in_cells(rows_of(scores, labels), equal_cuts(9))
    n0, n1 = counts.num_negative, counts.num_positive
    cumulative = [
        np.cumsum(c[:0:-1])[::-1].astype(float) for c in (counts.negative, counts.positive)
    ]
    for p0, p1 in (
        [cells.fit_cumulative_counts(c, n) for c, n in zip(cumulative, (n0, n1), strict=True)],
        [
            cells.fit_histogram(c.astype(float), n)
            for c, n in ((counts.negative, n0), (counts.positive, n1))
        ],
    ):
        assert p0 == pytest.approx(counts.negative / n0, abs=1e-12)
        assert float(cells.cell_auc(p0, p1)) == pytest.approx(float(counts.auc()), abs=1e-12)
        a, b = counts.placement_moments()
        variance = cells.cell_delong_variance(p0, p1, num_negative=n0, num_positive=n1)
        assert float(variance) == pytest.approx(
            delong_variance(of_negatives=a, of_positives=b), abs=1e-12
        )
        w1 = cells.cell_threshold_counts(p0, p1, num_positive=n1, num_thresholds=28)
        false, true = counts.roc_points()
        # np.interp is free to choose at a vertical step; just above it is what P(pv <= t) means.
        expected = np.interp(np.arange(1, 29) / 29 + 1e-9, false, true) * n1
        assert w1 == pytest.approx(expected, abs=1e-5 * n1)
        assert (np.diff(w1) >= -1e-9).all()


def noisy_aucs(release: Any, counts: ClassCounts, sigma: float, repeats: int) -> np.ndarray:
    """AUCs from the unconstrained noisy counts: what the variance formula is about."""
    generator = np.random.default_rng(0)
    found = []
    for _ in range(repeats):
        if release == "noisy-counts":
            noisy = release_cumulative_counts(counts, sigma, generator=generator)
            p0, p1 = (
                -np.diff(np.concatenate([[1.0], above / total, [0.0]]))
                for above, total in (
                    (noisy.negative, counts.num_negative),
                    (noisy.positive, counts.num_positive),
                )
            )
        else:
            noisy = release_histogram(counts, sigma, generator=generator)
            p0, p1 = (
                (h + (total - h.sum()) / len(h)) / total
                for h, total in (
                    (noisy.negative, counts.num_negative),
                    (noisy.positive, counts.num_positive),
                )
            )
        found.append(float(cells.cell_auc(p0, p1)))
    return np.array(found)


@pytest.mark.parametrize("release", ["noisy-counts", "noisy-histogram"])
def test_noise_variance_is_that_of_simulated_noise(release: Any) -> None:
    generator = np.random.default_rng(2)
    labels = generator.integers(0, 2, 4000)
    counts = count_in_cells(rows_of(generator.beta(2 + labels, 3, 4000), labels), equal_cuts(20))
    p0, p1 = counts.negative / counts.num_negative, counts.positive / counts.num_positive
    expected = cells.noise_variance(
        release,
        p0,
        p1,
        num_negative=counts.num_negative,
        num_positive=counts.num_positive,
        sigma=8.0,
        noises=1,
    )
    aucs = noisy_aucs(release, counts, 8.0, 4000)
    assert np.var(aucs) == pytest.approx(float(expected), rel=0.1)
    assert np.mean(aucs) == pytest.approx(float(counts.auc()), abs=5 * math.sqrt(expected / 4000))


def test_releases_add_up_over_sites() -> None:
    counts = ClassCounts(np.array([5, 3, 2]), np.array([1, 4, 9]))
    noisy = release_cumulative_counts(counts, 1e-9, generator=np.random.default_rng(0))
    assert noisy.negative == pytest.approx([5, 2], abs=1e-6)
    assert noisy.positive == pytest.approx([13, 9], abs=1e-6)
    histogram = release_histogram(counts, 1e-9, generator=np.random.default_rng(0))
    assert (histogram + histogram).positive == pytest.approx([2, 8, 18], abs=1e-6)


def test_noise_hides_order_and_exact_values_of_scores() -> None:
    rows = rows_of(np.linspace(0, 1, 300), np.arange(300) % 2)
    first, second = release_scores(rows, 0.1), release_scores(rows, 0.1)
    assert len(first.negative) == rows.num_negative
    assert (np.diff(first.positive) >= 0).all()
    assert not np.isin(first.negative, rows.negative).any()
    assert not np.array_equal(first.negative, second.negative)


def test_an_empty_class_releases_nothing() -> None:
    noisy = release_scores(rows_of([0.2, 0.4], [0, 0]), 0.1)
    assert len(noisy.positive) == 0


def test_where_scores_must_be_probabilities() -> None:
    for debias in (True, False):
        assert needs_unit_interval("noisy-scores", equal_cuts=False, debias=debias) is debias
        assert needs_unit_interval("secure-counts", equal_cuts=True, debias=debias)
        assert not needs_unit_interval("secure-counts", equal_cuts=False, debias=debias)
        assert not needs_unit_interval("exact", equal_cuts=True, debias=debias)
    fault = unit_interval_fault("noisy-scores")
    assert "release = 'noisy-scores' needs scores in [0, 1]" in fault
    assert "1 / (1 + exp(-score))" in fault


def test_sign_and_logit_of_scores_do_not_change_an_exact_auc() -> None:
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(0, 3, 200), generator.integers(0, 2, 200)
    auc = DistinctCounts.of(rows_of(logits, labels)).counts.auc()
    assert DistinctCounts.of(rows_of(1 / (1 + np.exp(-logits)), labels)).counts.auc() == auc
    assert DistinctCounts.of(rows_of(-logits, labels)).counts.auc() == 1 - auc


def test_guarantee_names_mechanism_budget_neighbours_and_what_is_left_out() -> None:
    tau = noise_scale(epsilon=2.0, delta=1e-5, sensitivity=0.2)
    stated = guarantee(
        "noisy-scores",
        delta=1e-5,
        noise_ratios=[0.2 / tau],
        exact_sums=[ROC_GLM_SUMS["one-shot"], MOMENTS_OF_POSITIVES],
        score_sensitivity=0.2,
    )
    assert stated.epsilon == pytest.approx(2.0, rel=1e-9)
    sentence = stated.sentence()
    for words in (
        "Gaussian mechanism (analytic calibration)",
        "(epsilon, delta) = (2, 1e-05)",
        "one score differs by at most sensitivity = 0.2",
        "the exact sums w1",
        "class sizes and labels",
    ):
        assert words in sentence


def test_guarantee_of_the_classic_mechanism_says_what_was_really_spent() -> None:
    tau = noise_scale(epsilon=0.5, delta=1e-5, sensitivity=0.2, mechanism="classic")
    stated = guarantee("noisy-counts", delta=1e-5, noise_ratios=[0.2 / tau], mechanism="classic")
    assert stated.epsilon is not None
    assert stated.epsilon < 0.5


def test_guarantee_composes_the_release_with_the_statistics() -> None:
    one = gaussian.sigma(epsilon=1.0, delta=1e-5, sensitivity=1.0)
    stated = guarantee(
        "noisy-histogram", delta=1e-5, noise_ratios=[1 / one, 1 / one], is_shared=True
    )
    assert stated.epsilon is not None
    assert 1.4 < stated.epsilon < 2.0
    assert "one patient is replaced" in stated.sentence()
    assert "if every site adds its share" in stated.sentence()


def test_an_estimated_sensitivity_is_no_bound() -> None:
    stated = guarantee("noisy-scores", delta=1e-5, noise_ratios=[1.0], is_estimate=True)
    assert "no bound on unseen patients" in stated.sentence()


@pytest.mark.parametrize("release", ["secure-counts", "binned", "exact"])
def test_releases_without_noise_promise_no_privacy_budget(release: Any) -> None:
    stated = guarantee(release, delta=1e-5, noise_ratios=[])
    assert stated.epsilon is None
    assert stated.mechanism == "none"
    assert "epsilon" not in stated.sentence()


@pytest.mark.parametrize("release", ["secure-counts", "binned", "exact"])
def test_a_statement_without_noise_has_one_colon(release: Any) -> None:
    sentence = guarantee(release, delta=1e-5, noise_ratios=[]).sentence()
    assert sentence.startswith("Privacy: no")
    assert sentence.count(":") == 1
    assert "the server reads" in sentence


def test_shares_of_all_noise_add_up_to_the_noise_of_one_site() -> None:
    config = RocGlmConfig(release="noisy-counts", secure=True, statistics_epsilon=1.0)
    plan = noise_plan(config, score_sensitivity=0.2, cuts=equal_cuts(20), is_probability=True)
    share = plan.share(4)
    assert plan.statistics is not None
    assert share.statistics is not None
    assert 2.0 * share.scale == pytest.approx(plan.scale)
    for name in ("squares", "bin_rows", "bin_scores", "above"):
        own, whole = (getattr(part, name) for part in (share.statistics, plan.statistics))
        assert 2.0 * own == pytest.approx(whole)
