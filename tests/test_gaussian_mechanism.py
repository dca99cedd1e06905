"""Gaussian mechanism: calibration against dp-accounting, mpmath and reference values; the noise."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event, gaussian_mechanism
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from tasks.privacy import gaussian

CASES = json.loads((Path(__file__).parent / "roc_glm_cases.json").read_text())["gaussian_mechanism"]


def exact_delta(epsilon: float, sigma: float, sensitivity: float) -> mpmath.mpf:
    """Balle and Wang's formula in 400 digits."""
    with mpmath.workdps(400):
        mu = mpmath.mpf(sensitivity) / mpmath.mpf(sigma)
        e = mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['epsilon']}-{c['delta']}")
def test_reference_sigma(case: dict[str, float]) -> None:
    parameters = {key: case[key] for key in ("epsilon", "delta", "sensitivity")}
    assert gaussian.sigma(**parameters) == pytest.approx(case["sigma_analytic"], rel=1e-9, abs=0)
    if case["classic_valid"]:
        classic = gaussian.classic_sigma(**parameters)
        assert classic == pytest.approx(case["sigma_classic"], rel=1e-12)
    else:
        with pytest.raises(ValueError, match="allowed below 1"):
            gaussian.classic_sigma(**parameters)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    list(itertools.product([1e-3, 0.1, 1.0, 7.0, 100.0], [0.9, 0.1, 1e-5, 1e-30, 1e-300])),
)
def test_sigma_solves_the_exact_equation(epsilon: float, delta: float) -> None:
    sigma = gaussian.sigma(epsilon=epsilon, delta=delta, sensitivity=1.0)
    # At sigma the guarantee holds, and at a billionth less noise it does not.
    assert exact_delta(epsilon, sigma, 1.0) <= mpmath.mpf(delta)
    assert exact_delta(epsilon, sigma * (1 - 1e-9), 1.0) > mpmath.mpf(delta)
    assert math.log(gaussian.delta(epsilon=epsilon, sigma=sigma, sensitivity=1.0)) == (
        pytest.approx(float(mpmath.log(exact_delta(epsilon, sigma, 1.0))), rel=1e-11, abs=1e-11)
    )


@pytest.mark.parametrize(
    ("epsilon", "delta"), list(itertools.product([0.2, 1.0, 5.0], [1e-3, 1e-6]))
)
def test_sigma_is_that_of_dp_accounting(epsilon: float, delta: float) -> None:
    theirs = gaussian_mechanism.get_sigma_gaussian(epsilon, delta, 1e-12)
    ours = gaussian.sigma(epsilon=epsilon, delta=delta, sensitivity=1.0)
    assert ours == pytest.approx(theirs, rel=1e-9)
    assert gaussian.epsilon(delta=delta, sigma=ours, sensitivity=1.0) == pytest.approx(
        gaussian_mechanism.get_epsilon_gaussian(ours, delta, 1e-12), rel=1e-9
    )


@pytest.mark.parametrize("releases", [2, 10])
def test_composition_is_that_of_the_privacy_loss_distribution(releases: int) -> None:
    accountant = PLDAccountant()
    accountant.compose(dp_event.GaussianDpEvent(4.0), releases)
    ours = gaussian.composed_epsilon(delta=1e-5, ratios=[0.25] * releases)
    assert ours == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    sigma = gaussian.sigma(epsilon=ours, delta=1e-5, sensitivity=1.0, releases=releases)
    assert sigma == pytest.approx(4.0, rel=1e-9)


@settings(deadline=None, max_examples=80)
@given(
    epsilon=st.floats(1e-3, 100),
    log_delta=st.floats(math.log(1e-300), math.log(0.5)),
    sensitivity=st.floats(1e-6, 1e6),
)
def test_inverses(epsilon: float, log_delta: float, sensitivity: float) -> None:
    delta = math.exp(log_delta)
    sigma = gaussian.sigma(epsilon=epsilon, delta=delta, sensitivity=sensitivity)
    again = gaussian.delta(epsilon=epsilon, sigma=sigma, sensitivity=sensitivity)
    assert math.log(again) == pytest.approx(log_delta, abs=1e-7)
    spent = gaussian.epsilon(delta=delta, sigma=sigma, sensitivity=sensitivity)
    assert spent == pytest.approx(epsilon, rel=1e-8)
    assert gaussian.sigma(epsilon=2 * epsilon, delta=delta, sensitivity=sensitivity) < sigma


def test_enough_noise_spends_no_epsilon() -> None:
    assert gaussian.epsilon(delta=0.5, sigma=10.0, sensitivity=1.0) == 0.0
    assert gaussian.composed_epsilon(delta=1e-5, ratios=[]) == 0.0


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"epsilon = 0.*delta = 1\.5.*sensitivity = nan"):
        gaussian.sigma(epsilon=0, delta=1.5, sensitivity=math.nan)
    with pytest.raises(ValueError, match="sigma = -1"):
        gaussian.delta(epsilon=1, sigma=-1, sensitivity=1)


def test_system_noise_is_normal_and_never_the_same() -> None:
    noise = gaussian.gaussian_noise(2.0, 50_000)
    assert kstest(noise / 2.0, "norm").pvalue > 1e-6
    assert not np.array_equal(noise, gaussian.gaussian_noise(2.0, 50_000))
    assert gaussian.gaussian_noise(1.0, (3, 4)).shape == (3, 4)


def test_seeded_noise_repeats() -> None:
    values = np.arange(6.0)
    first = gaussian.add_noise(values, 0.3, generator=np.random.default_rng(5))
    second = gaussian.add_noise(values, 0.3, generator=np.random.default_rng(5))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, values)


@pytest.mark.parametrize("sigma", [0.013, 1.0, 7.46])
def test_released_values_lie_on_one_lattice(sigma: float) -> None:
    values = np.random.default_rng(0).random(1000)
    noisy = gaussian.add_noise(values, sigma)
    step = 2.0 ** (math.floor(math.log2(sigma)) - 20)
    assert step <= sigma * 2**-20
    assert np.array_equal(noisy / step, np.round(noisy / step))
    assert np.std(noisy - values) == pytest.approx(sigma, rel=0.15)
