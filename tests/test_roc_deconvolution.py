"""Deconvolution of noisy scores: the kernel, the fit, the debiased AUC and the noise variance."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from tasks.roc_glm.cell_estimates import cell_auc
from tasks.roc_glm.deconvolution import NoiseBlur, apportion
from tasks.roc_glm.survivor import LinearSurvivor, ScoreSurvivor


def test_kernel_is_the_distribution_of_uniform_plus_noise() -> None:
    blur = NoiseBlur(0.1, cells=10)
    assert blur.kernel.sum(axis=0) == pytest.approx(np.ones(10), abs=1e-12)
    inside = 0.3 + (np.arange(2000) + 0.5) / 20_000
    expected = norm.cdf(blur.edges[:, None], inside, 0.1).mean(axis=1)
    assert np.cumsum(blur.kernel[:, 3])[:-1] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("tau", [0.003, 0.1, 0.5])
def test_number_of_bins_is_bounded(tau: float) -> None:
    assert len(NoiseBlur(tau).kernel) <= 250


@pytest.mark.parametrize("tau", [1e-5, 1e-12, 1e-160, 1e-300, 5e-324])
def test_almost_no_noise_leaves_scores_where_they_are(tau: float) -> None:
    blur = NoiseBlur(tau, cells=16)
    ends = np.array([0.0, *blur.edges, 1.0])
    low = np.maximum(ends[:-1, None], np.arange(16) / 16)
    high = np.minimum(ends[1:, None], np.arange(1, 17) / 16)
    assert blur.kernel == pytest.approx(16 * np.maximum(high - low, 0.0), abs=20 * tau + 1e-12)


def test_bin_counts_count_everything() -> None:
    blur = NoiseBlur(0.2)
    noisy = np.array([-50.0, 0.5, 0.5, 99.0])
    counts = blur.bin_counts(noisy)
    assert counts.sum() == 4
    assert (counts[0], counts[-1], counts.max()) == (1, 1, 2)


def test_an_exact_blur_is_undone() -> None:
    blur = NoiseBlur(0.05, cells=20)
    truth = np.exp(-((np.arange(20) - 6) ** 2) / 30.0)
    truth /= truth.sum()
    fitted = blur.deconvolve(1e6 * blur.kernel @ truth, rounds=3000)
    assert fitted == pytest.approx(truth, abs=2e-3)


def test_a_stack_is_one_by_one() -> None:
    blur = NoiseBlur(0.15)
    counts = np.random.default_rng(0).poisson(20, (3, len(blur.kernel))).astype(float)
    together = blur.deconvolve(counts)
    for row in range(3):
        assert blur.deconvolve(counts[row]) == pytest.approx(together[row], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("rounds", [1, 10, 150])
def test_em_never_lowers_the_likelihood(rounds: int) -> None:
    blur = NoiseBlur(0.15)
    counts = blur.bin_counts(np.random.default_rng(0).normal(0.4, 0.3, 500))
    likelihood = [
        counts @ np.log(blur.kernel @ blur.deconvolve(counts, rounds=r))
        for r in (rounds, rounds + 1)
    ]
    assert likelihood[1] >= likelihood[0]


def draws(tau: float, repeats: int) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Debiased and plain AUCs of one data set under fresh noise, its AUC, and the mean variance."""
    generator = np.random.default_rng(4)
    negative = np.sort(generator.beta(2, 4, 700))
    positive = np.sort(generator.beta(4, 2.5, 500))
    exact = 1 - ScoreSurvivor.of(negative).numerators(positive).mean() / (2 * len(negative))
    blur = NoiseBlur(tau)
    noisy = negative + generator.normal(0, tau, (repeats, 700))
    fitted = blur.deconvolve(np.array([blur.bin_counts(row) for row in noisy]))
    debiased = np.array([1 - LinearSurvivor(p).values(positive).mean() for p in fitted])
    plain = np.array(
        [1 - ScoreSurvivor.of(row).numerators(positive).mean() / 1400 for row in noisy]
    )
    noisy_positives = blur.bin_counts(positive + generator.normal(0, tau, 500))
    variance = np.mean(
        [
            blur.noise_variance(
                p, noisy_positives, num_negative=700, generator=generator, redraws=60
            )
            for p in fitted[:10]
        ]
    )
    return debiased, plain, exact, float(variance)


@pytest.mark.parametrize("tau", [0.1, 0.25])
def test_debiasing_removes_the_bias_and_the_variance_is_right(tau: float) -> None:
    debiased, plain, exact, variance = draws(tau, 150)
    assert exact - plain.mean() > 10 * abs(exact - debiased.mean())
    assert debiased.mean() == pytest.approx(exact, abs=0.003)
    assert 0.7 < variance / debiased.var(ddof=1) < 1.6


def test_cell_auc_is_the_mean_of_the_linear_survivor() -> None:
    generator = np.random.default_rng(0)
    p0, p1 = generator.dirichlet(np.ones(50), 2)
    positives = np.repeat((np.arange(50) + 0.5) / 50, np.round(1e6 * p1).astype(int))
    assert float(cell_auc(p0, p1)) == pytest.approx(
        1 - LinearSurvivor(p0).values(positives).mean(), abs=1e-5
    )


@pytest.mark.parametrize("number", [0, 1, 7, 1000])
def test_apportion_sums_and_stays_within_one(number: int) -> None:
    shares = np.random.default_rng(number).dirichlet(np.ones(9))
    whole = np.array(apportion(shares, number))
    assert whole.sum() == number
    assert (np.abs(whole - shares * number) < 1).all()
