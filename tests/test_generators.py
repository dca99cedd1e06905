"""Simulated survival data: their laws, against SciPy's distributions and lifelines' concordance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines.utils import concordance_index
from scipy import stats

from tasks.survival.generators import (
    DEFAULT_RATE,
    GENERATORS,
    LOGNORMAL_SIGMA,
    RATE_GENERATORS,
    WEIBULL_SHAPE,
    Design,
    ar1_features,
    generate,
)


def event_times(name: str, *, rows: int = 20_000, features: int = 5, seed: int = 1):  # type: ignore[no-untyped-def]
    """Rows whose events are all seen."""
    return generate(name, Design(rows, features, censoring_fraction=0.0), seed=seed)


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.6, 0.75])
def test_features_are_standard_normal_with_ar1_correlation(rho: float) -> None:
    x = ar1_features(40_000, 4, rho=rho, rng=np.random.default_rng(0))
    for column in x.T:
        assert stats.kstest(column, "norm").pvalue > 1e-4
    distance = np.abs(np.subtract.outer(np.arange(4), np.arange(4)))
    assert np.abs(np.corrcoef(x.T) - float(rho) ** distance).max() < 4 / np.sqrt(40_000)


def test_weibull_is_a_weibull() -> None:
    data = event_times("weibull")
    standardized = data.time * np.exp(data.risk / WEIBULL_SHAPE)
    assert stats.kstest(standardized, stats.weibull_min(WEIBULL_SHAPE).cdf).pvalue > 1e-4
    # and not the log-normal that others have under this name
    assert (
        stats.kstest(
            np.log(standardized), stats.norm(*stats.norm.fit(np.log(standardized))).cdf
        ).pvalue
        < 1e-6
    )


def test_lognormal_is_a_lognormal() -> None:
    data = event_times("lognormal")
    z = (np.log(data.time) + data.risk) / LOGNORMAL_SIGMA
    assert stats.kstest(z, "norm").pvalue > 1e-4


def test_sdgm1_has_the_mean_of_the_second_half() -> None:
    data = event_times("SDGM1")
    mean = np.exp(0.1 * data.features[:, 2:].sum(axis=1))
    assert stats.kstest(data.time / mean, "expon").pvalue > 1e-4


def test_sdgm2() -> None:
    data = event_times("SDGM2")
    x1, x2, x3 = data.features[:, :3].T
    mean = np.sin(np.pi * x1) + 2 * np.abs(x2 - 0.5) + x3**3
    assert stats.kstest(data.time / mean, "expon").pvalue > 1e-4
    assert stats.kstest(data.features.ravel(), "uniform").pvalue > 1e-4


def test_sdgm3() -> None:
    data = event_times("SDGM3", features=5)
    shape = 0.5 + 0.25 * np.abs(data.features[:, 2])
    assert stats.kstest(stats.gamma.cdf(data.time, shape, scale=2.0), "uniform").pvalue > 1e-4


def test_sdgm4() -> None:
    data = event_times("SDGM4", features=5)
    mu = 0.1 * np.abs(data.features[:, 0]) + 0.1 * np.abs(data.features[:, 4])
    assert stats.kstest(np.log(data.time) - mu, "norm").pvalue > 1e-4


def test_sdgm1_in_the_documents_setting() -> None:
    """A rate of .4 censors 29 % (so about 30 % of 200 rows), the oracle's C is .570."""
    data = generate("SDGM1", Design(40_000, 5, censoring_rate=0.4), seed=3)
    assert abs(data.censored_fraction - 0.30) < 0.032  # standard error at 200 rows
    rate_of_event = np.exp(data.risk)
    assert abs(data.censored_fraction - (0.4 / (0.4 + rate_of_event)).mean()) < 0.007
    c = concordance_index(data.time, -data.risk, data.event)
    assert abs(c - 0.570) < 0.006  # two standard errors of it, about


def test_censoring_of_each_generator_is_its_law() -> None:
    rows = 40_000
    shares = {
        name: generate(name, Design(rows, 5), seed=5).censored_fraction for name in GENERATORS
    }
    # SDGM4: C/T is log-normal with mean .5 and variance 2 whatever the features
    assert abs(shares["SDGM4"] - stats.norm.cdf(-0.5 / np.sqrt(2))) < 4 * 0.5 / np.sqrt(rows)
    data = generate("SDGM2", Design(rows, 5), seed=5)
    assert data.time[~data.event].max() < 4
    data = generate("SDGM3", Design(rows, 5), seed=5)
    assert data.time[~data.event].max() < 15
    for name in RATE_GENERATORS:
        x = generate(name, Design(rows, 5, censoring_fraction=0.0), seed=5)
        expected = 1 - np.exp(-DEFAULT_RATE * x.time).mean()  # P(C < T | T)
        assert abs(shares[name] - expected) < 0.02, name


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("fraction", [0.05, 0.4, 0.9])
def test_a_censoring_fraction_is_hit(name: str, fraction: float) -> None:
    data = generate(name, Design(10_000, 5, censoring_fraction=fraction), seed=2)
    assert abs(data.censored_fraction - fraction) < 0.01
    assert abs(data.censored_fraction - fraction) <= 1e-4  # what rows allow


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(GENERATORS),
    rows=st.integers(1, 60),
    features=st.integers(3, 12),
    fraction=st.one_of(st.none(), st.floats(0, 0.999)),
    seed=st.integers(0, 2**32),
)
def test_every_row_can_be_used(
    name: str, rows: int, features: int, fraction: float | None, seed: int
) -> None:
    design = Design(rows, features, censoring_fraction=fraction)
    data = generate(name, design, seed=seed)
    assert data.features.shape == (rows, features)
    assert np.isfinite(data.time).all()
    assert (data.time > 0).all()
    if fraction is not None:
        assert abs(data.event.sum() - rows * (1 - fraction)) <= 1
        assert data.event.any()
    again = generate(name, design, seed=seed)
    assert (again.time == data.time).all()
    assert (again.features == data.features).all()


@pytest.mark.parametrize(
    ("name", "design", "words"),
    [
        ("SDGM9", {}, "'SDGM9' is unknown; allowed: weibull"),
        ("SDGM2", {"n_features": 2}, "SDGM2 needs at least 3"),
        ("SDGM2", {"rho": 0.5}, "independent features"),
        ("SDGM3", {"censoring_rate": 0.4}, "no exponential censoring"),
        ("SDGM1", {"n_rows": 0, "n_features": 0}, "n_rows = 0.*n_features = 0"),
        ("SDGM1", {"rho": 1.0}, "rho = 1.0"),
        ("SDGM1", {"censoring_fraction": 1.0}, "censoring_fraction = 1.0"),
        ("SDGM1", {"censoring_rate": 0.0}, "censoring_rate = 0.0"),
        ("SDGM1", {"censoring_rate": 1.0, "censoring_fraction": 0.5}, "give one of them"),
    ],
)
def test_what_cannot_be_generated(name: str, design: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        generate(name, Design(**design), seed=0)  # type: ignore[arg-type]
