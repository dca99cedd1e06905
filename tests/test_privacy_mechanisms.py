"""Noise has the distribution and the scale it says, from a source that cannot be predicted."""

from __future__ import annotations

import math
import secrets

import numpy as np
import pytest
from scipy import stats

from tasks.privacy.mechanisms import (
    AdditiveNoise,
    NoiseSource,
    PrivatizationSettings,
    SecureNoise,
    SeededNoise,
    first_exceeding,
    noise_source,
    select_candidate,
    selection_probabilities,
)

N = 200_000
ALPHA = 1e-3


@pytest.fixture
def fixed_system_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system's bytes, repeatable: what is tested is what is made of them."""
    rng = np.random.default_rng(20260)
    monkeypatch.setattr(secrets, "token_bytes", rng.bytes)


def sources() -> list[NoiseSource]:
    return [SecureNoise(), SeededNoise(np.random.default_rng(7))]


@pytest.mark.usefixtures("fixed_system_bytes")
@pytest.mark.parametrize("source", sources(), ids=["secure", "seeded"])
def test_noise_has_its_distribution(source: NoiseSource) -> None:
    for drawn, expected in (
        (source.normal(1.7, N), stats.norm(scale=1.7)),
        (source.laplace(0.3, N), stats.laplace(scale=0.3)),
        (source.uniform(N), stats.uniform()),
    ):
        assert stats.kstest(drawn, expected.cdf).pvalue > ALPHA
        # Kolmogorov-Smirnov sees little of tails: equal-probability cells, far out included.
        edges = expected.ppf([1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1 - 1e-4])
        counts = np.histogram(drawn, [-np.inf, *edges, np.inf])[0]
        cells = np.diff(expected.cdf([-np.inf, *edges, np.inf]))
        assert stats.chisquare(counts, cells * N).pvalue > ALPHA


@pytest.mark.usefixtures("fixed_system_bytes")
@pytest.mark.parametrize("source", sources(), ids=["secure", "seeded"])
def test_the_tests_above_would_see_a_scale_two_percent_off(source: NoiseSource) -> None:
    assert stats.kstest(source.normal(1.02, N), stats.norm().cdf).pvalue < ALPHA
    assert stats.kstest(source.laplace(1.03, N), stats.laplace().cdf).pvalue < ALPHA


def test_real_system_noise_is_normal_and_differs_every_time() -> None:
    first, second = SecureNoise().normal(1.0, N), SecureNoise().normal(1.0, N)
    assert stats.kstest(first, stats.norm().cdf).pvalue > 1e-9
    assert abs(np.corrcoef(first, second)[0, 1]) < 7 / math.sqrt(N)
    assert np.unique(np.concatenate([first, second])).size == 2 * N


def test_secure_noise_takes_its_bytes_from_the_operating_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def token_bytes(count: int) -> bytes:
        asked.append(count)
        return b"\x00" * count

    monkeypatch.setattr(secrets, "token_bytes", token_bytes)
    np.random.seed(1)
    SecureNoise().normal(1.0, (3, 5))
    SecureNoise().laplace(1.0, 4)
    assert asked == [8 * 15, 8 * 4]


@pytest.mark.parametrize(
    ("word", "magnitude", "sign"),
    [
        (b"\x00" * 8, -stats.norm.ppf(2.0**-65), -1),
        (b"\x01" + b"\x00" * 7, -stats.norm.ppf(2.0**-65), 1),
        (b"\xff" * 8, 0.0, 1),
    ],
)
def test_extreme_random_words_give_finite_noise(
    monkeypatch: pytest.MonkeyPatch, word: bytes, magnitude: float, sign: int
) -> None:
    monkeypatch.setattr(secrets, "token_bytes", lambda count: word * (count // 8))
    drawn = SecureNoise().normal(1.0, 2)
    assert drawn == pytest.approx(np.full(2, sign * magnitude), abs=1e-12)
    assert np.isfinite(SecureNoise().laplace(1.0, 2)).all()
    assert (SecureNoise().uniform(2) > 0).all()
    assert (SecureNoise().uniform(2) < 1).all()


def test_only_a_generator_makes_noise_repeatable() -> None:
    assert isinstance(noise_source(None), SecureNoise)
    seeded = [noise_source(np.random.default_rng(3)).normal(1.0, 4) for _ in range(2)]
    assert np.array_equal(*seeded)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_noise_has_the_shape_asked_for(shape: tuple[int, ...]) -> None:
    for source in sources():
        for mechanism in ("gaussian", "laplace"):
            drawn = AdditiveNoise(mechanism, 1.0).draw(source, shape)
            assert np.shape(drawn) == shape


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_standard_deviation_is_the_true_one(mechanism: str) -> None:
    noise = AdditiveNoise(mechanism, 0.25)  # type: ignore[arg-type]
    drawn = noise.draw(SeededNoise(np.random.default_rng(5)), N)
    kurtosis = {"gaussian": 3.0, "laplace": 6.0}[mechanism]
    error = noise.standard_deviation * math.sqrt((kurtosis - 1) / 4 / N)
    assert drawn.std() == pytest.approx(noise.standard_deviation, abs=5 * error)


def test_no_noise_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_bytes", None)
    assert not AdditiveNoise("gaussian", 0.0).draw(SecureNoise(), (2, 2)).any()


@pytest.mark.parametrize("num_clients", [1, 3, 4])
def test_scales_are_those_of_the_table(num_clients: int) -> None:
    given = {"clip_norm": 0.8, "sensitivity": 1.5, "noise_multiplier": 0.3, "epsilon": 2.0}
    gaussian = PrivatizationSettings(mechanism="gaussian", **given)
    laplace = PrivatizationSettings(mechanism="laplace", **given)
    root = math.sqrt(num_clients)
    sigma, b = 0.3 * 1.5 * 0.8 / root, 1.5 * 0.8 / (root * 2.0)
    assert gaussian.noise(num_clients=num_clients).scale == pytest.approx(sigma, rel=1e-14)
    assert gaussian.noise(num_clients=num_clients).standard_deviation == pytest.approx(sigma)
    assert laplace.noise(num_clients=num_clients).scale == pytest.approx(b, rel=1e-14)
    assert laplace.noise(num_clients=num_clients).standard_deviation == pytest.approx(2**0.5 * b)


@pytest.mark.parametrize("num_clients", [0, -1, 1.5, math.nan, math.inf, True, None, "3"])
def test_a_number_of_clients_that_cannot_be_is_refused(num_clients: object) -> None:
    settings = PrivatizationSettings(clip_norm=1.0, noise_multiplier=1.0)
    with pytest.raises(ValueError, match=r"num_clients = .*whole number >= 1"):
        settings.noise(num_clients=num_clients)  # type: ignore[arg-type]


def test_bad_settings_are_named_all_at_once() -> None:
    with pytest.raises(ValueError, match="clip_norm") as caught:
        PrivatizationSettings(clip_norm=-1.0, noise_multiplier=math.nan, sensitivity=10**400)
    assert str(caught.value) == (
        "clip_norm = -1.0: must be a finite number > 0; "
        "noise_multiplier = nan: must be a finite number >= 0; "
        f"sensitivity = {10**400}: must be a finite number > 0"
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "noise_multiplier = None: must be a finite number >= 0"),
        ({"mechanism": "laplace"}, "epsilon = None: must be a finite number > 0"),
        ({"mechanism": "laplace", "epsilon": 0.0}, "epsilon = 0.0: must be a finite number > 0"),
        ({"mechanism": "exponential"}, "is refused in training"),
        ({"mechanism": "cauchy"}, 'mechanism = \'cauchy\': must be "gaussian" or "laplace"'),
        ({"noise_multiplier": True}, "noise_multiplier = True"),
        ({"noise_multiplier": 1e308, "sensitivity": 1e308}, "scale = inf"),
    ],
)
def test_settings_without_usable_noise_are_refused(settings: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PrivatizationSettings(clip_norm=1.0, **settings)  # type: ignore[arg-type]


# The exponential mechanism ----------------------------------------------------------------------


def test_selection_probabilities_are_the_formula() -> None:
    quality = np.array([0.5, 0.65, 0.9, -0.75])
    found = selection_probabilities(quality, epsilon=10.0, sensitivity=0.5)
    raw = np.exp(10.0 * quality / (2 * 0.5))
    assert found == pytest.approx(raw / raw.sum(), rel=1e-12)


def test_neighbouring_qualities_change_probabilities_by_at_most_epsilon() -> None:
    rng = np.random.default_rng(11)
    for _ in range(200):
        quality = rng.normal(size=6) * 3
        neighbour = quality + rng.uniform(-1, 1, size=6)  # each moves by at most sensitivity 1
        before = selection_probabilities(quality, epsilon=0.7, sensitivity=1.0)
        after = selection_probabilities(neighbour, epsilon=0.7, sensitivity=1.0)
        assert np.abs(np.log(before / after)).max() <= 0.7 + 1e-12


@pytest.mark.parametrize(
    ("quality", "expected"),
    [
        ([1e308, -1e308], [1.0, 0.0]),
        ([1e308, 1e308], [0.5, 0.5]),
        ([-1e308, -1e308, -1e308], [1 / 3] * 3),
        ([5.0], [1.0]),
    ],
)
def test_selection_is_stable_for_huge_qualities(
    quality: list[float], expected: list[float]
) -> None:
    found = selection_probabilities(quality, epsilon=1e3, sensitivity=1e-300)
    assert found == pytest.approx(expected)


def test_candidates_are_selected_with_their_probabilities() -> None:
    quality, m = np.array([0.5, 0.65, 0.9, 0.75, 0.8]), 20_000
    source = SeededNoise(np.random.default_rng(8))
    chosen = [
        select_candidate(quality, epsilon=10.0, sensitivity=1.0, source=source) for _ in range(m)
    ]
    expected = selection_probabilities(quality, epsilon=10.0, sensitivity=1.0)
    assert stats.chisquare(np.bincount(chosen, minlength=5), expected * m).pvalue > ALPHA


@pytest.mark.parametrize(("share", "index"), [(2.0**-53, 1), (0.3, 1), (0.5, 2), (1 - 2.0**-53, 2)])
def test_impossible_candidates_are_never_selected(share: float, index: int) -> None:
    cumulated = np.cumsum([0.0, 0.5, 0.5, 0.0])
    assert first_exceeding(cumulated, share) == index


@pytest.mark.parametrize(
    ("quality", "epsilon", "sensitivity", "words"),
    [
        ([], 1.0, 1.0, "shape"),
        ([[1.0]], 1.0, 1.0, "shape"),
        ([math.nan], 1.0, 1.0, "every score must be finite"),
        ([math.inf, 0.0], 1.0, 1.0, "every score must be finite"),
        ([1.0], 0.0, -1.0, "epsilon = 0.0.*; sensitivity = -1.0"),
        ([1.0], math.inf, 1.0, "epsilon = inf"),
    ],
)
def test_bad_selections_are_refused(
    quality: list[float], epsilon: float, sensitivity: float, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        selection_probabilities(quality, epsilon=epsilon, sensitivity=sensitivity)
