"""Noise that protects: Gaussian and Laplace vectors, the exponential mechanism, and randomness.

Where the noise comes from matters as much as its distribution: whoever can predict it can subtract
it. :class:`SecureNoise` draws from the operating system's cryptographically secure generator and
is what sites use; :class:`SeededNoise` repeats itself and is for simulations.

Known limitation
----------------
Theorems about these mechanisms speak of real numbers. Floating-point noise has gaps, and which
sums ``value + noise`` can occur at all depends on the value: by its lowest bits a noisy number may
tell candidates for the value apart (I. Mironov, *On significance of the least significant bits for
differential privacy*, CCS 2012). Nothing here closes that gap. Noise is drawn and added in double
precision and the sum is rounded to the array's own type, which removes most of those bits from
float32 arrays and none from float64 arrays. Only noise that is discrete from the start has a
guarantee that holds for the bits which are sent.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float64Array = NDArray[np.float64]
Size = int | tuple[int, ...]

GAUSSIAN = "gaussian"
LAPLACE = "laplace"
EXPONENTIAL = "exponential"

_WORD_BYTES = 8


class NoiseSource(Protocol):
    """Where noise is drawn from; all three methods return float64 arrays of shape `size`."""

    def normal(self, scale: float, size: Size) -> Float64Array:
        """Draw from the normal distribution with mean 0 and standard deviation `scale` >= 0."""
        ...

    def laplace(self, scale: float, size: Size) -> Float64Array:
        """Draw from the Laplace distribution with mean 0 and density ~ exp(-|x| / scale)."""
        ...

    def uniform(self, size: Size) -> Float64Array:
        """Draw from the uniform distribution on the open interval (0, 1)."""
        ...


class SecureNoise:
    """Noise from the operating system's cryptographically secure generator.

    Each number takes 64 random bits: one is the sign, 63 are the probability with which the
    magnitude is exceeded, and the inverse of the distribution makes it a magnitude. So tails are
    as fine as they are wide: normal noise reaches 9.1 standard deviations and Laplace noise 44
    scales, with a probability of 1e-19 beyond that is missing.
    """

    def normal(self, scale: float, size: Size) -> Float64Array:
        """Draw from the normal distribution; see :class:`NoiseSource`."""
        from scipy.special import ndtri  # slow to load, and every message starts a process

        signs, exceedance = _signs_and_exceedance(size)
        magnitudes: Float64Array = -ndtri(exceedance / 2)
        return signs * magnitudes * scale

    def laplace(self, scale: float, size: Size) -> Float64Array:
        """Draw from the Laplace distribution; see :class:`NoiseSource`."""
        signs, exceedance = _signs_and_exceedance(size)
        return signs * (-np.log(exceedance)) * scale

    def uniform(self, size: Size) -> Float64Array:
        """Draw from the uniform distribution; see :class:`NoiseSource`."""
        # 52 bits and a half: with 53 the largest value would round to 1.
        bits = (_random_words(size) >> np.uint64(12)).astype(np.float64)
        return (bits + 0.5) * 2.0**-52


class SeededNoise:
    """Noise from a seeded generator, for simulations: it can be repeated, hence subtracted.

    Parameters
    ----------
    rng : numpy.random.Generator
        Give every site its own.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def normal(self, scale: float, size: Size) -> Float64Array:
        """Draw from the normal distribution; see :class:`NoiseSource`."""
        return self.rng.standard_normal(size) * scale

    def laplace(self, scale: float, size: Size) -> Float64Array:
        """Draw from the Laplace distribution; see :class:`NoiseSource`."""
        return self.rng.laplace(size=size) * scale

    def uniform(self, size: Size) -> Float64Array:
        """Draw from the uniform distribution; see :class:`NoiseSource`."""
        cells = self.rng.integers(2**52, size=size)
        return np.asarray((cells + 0.5) * 2.0**-52, dtype=np.float64)


def noise_source(rng: np.random.Generator | None) -> NoiseSource:
    """Return the secure source, or, given a generator, the repeatable one of simulations."""
    return SecureNoise() if rng is None else SeededNoise(rng)


@dataclass(frozen=True)
class AdditiveNoise:
    """A mechanism that adds independent noise to every element, and its scale.

    Parameters
    ----------
    mechanism : {"gaussian", "laplace"}
        Distribution of the noise.
    scale : float
        Finite and >= 0: the standard deviation of Gaussian noise, the b of Laplace noise.
        Zero draws nothing.

    Raises
    ------
    ValueError
        If the mechanism adds no noise or the scale is not usable.
    """

    mechanism: Literal["gaussian", "laplace"]
    scale: float

    def __post_init__(self) -> None:
        faults = additive_mechanism_faults(self.mechanism, "mechanism")
        if not is_number(self.scale) or not (self.scale >= 0):
            faults.append(f"scale = {self.scale!r}: must be a finite number >= 0")
        if faults:
            raise ValueError("; ".join(faults))

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of one element's noise: the scale, sqrt(2) times it under Laplace."""
        return self.scale * (math.sqrt(2) if self.mechanism == LAPLACE else 1.0)

    def draw(self, source: NoiseSource, size: Size) -> Float64Array:
        """Draw independent noise of shape `size`."""
        if self.scale == 0:
            return np.zeros(size)
        if self.mechanism == LAPLACE:
            return source.laplace(self.scale, size)
        return source.normal(self.scale, size)


def additive_mechanism_faults(mechanism: object, name: str) -> list[str]:
    """Return what is wrong with the name of a mechanism that is to train; empty if nothing is.

    Parameters
    ----------
    mechanism : object
        What was configured.
    name : str
        The setting's name, for the message.
    """
    if mechanism in (GAUSSIAN, LAPLACE):
        return []
    reason = f'{name} = {mechanism!r}: must be "gaussian" or "laplace"'
    if mechanism == EXPONENTIAL:
        reason += "; the exponential mechanism selects one of several candidates, adds no noise "
        reason += "and is refused in training"
    return [reason]


@dataclass(frozen=True, kw_only=True)
class PrivatizationSettings:
    """How updates are privatized.

    Parameters
    ----------
    clip_norm : float
        Bound of the update's L2 norm, > 0.
    mechanism : {"gaussian", "laplace"}
        Distribution of the noise.
    noise_multiplier : float, optional
        Drives Gaussian noise, >= 0; ignored under Laplace.
    sensitivity : float
        Factor on the noise scale, > 0.
    epsilon : float, optional
        Drives Laplace noise, > 0; ignored under Gaussian noise. No epsilon of differential
        privacy: clipping bounds the L2 norm, while Laplace noise is calibrated to the L1 norm.

    Raises
    ------
    ValueError
        For everything out of range: name, value and what is allowed.
    """

    clip_norm: float
    mechanism: Literal["gaussian", "laplace"] = "gaussian"
    noise_multiplier: float | None = None
    sensitivity: float = 1.0
    epsilon: float | None = None

    def __post_init__(self) -> None:
        faults = additive_mechanism_faults(self.mechanism, "mechanism")
        ignored = "noise_multiplier" if self.mechanism == LAPLACE else "epsilon"
        settings = {name: getattr(self, name) for name in _RANGES}
        faults += setting_faults(
            {k: v for k, v in settings.items() if not (k == ignored and v is None)}
        )
        if faults:
            raise ValueError("; ".join(faults))
        self.noise(num_clients=1)  # the largest scale of all: refused here if it is not finite

    def noise(self, *, num_clients: int) -> AdditiveNoise:
        """Return the noise of one client's update when `num_clients` >= 1 clients are addressed.

        Gaussian: sigma = noise_multiplier sensitivity clip_norm / sqrt(K); Laplace: b =
        sensitivity clip_norm / (sqrt(K) epsilon). Dividing by sqrt(K) keeps the noise-to-signal
        ratio of the average as K grows; it is an argument about variances, not accounting.
        """
        if not is_number(num_clients) or num_clients < 1 or num_clients != int(num_clients):
            raise ValueError(f"num_clients = {num_clients!r}: must be a whole number >= 1")
        scale = float(self.sensitivity) * float(self.clip_norm) / math.sqrt(num_clients)
        if self.mechanism == LAPLACE:
            return AdditiveNoise("laplace", scale / float(self.epsilon or 0.0))
        return AdditiveNoise("gaussian", scale * float(self.noise_multiplier or 0.0))


_RANGES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "clip_norm": (lambda value: value > 0, "a finite number > 0"),
    "noise_multiplier": (lambda value: value >= 0, "a finite number >= 0"),
    "sensitivity": (lambda value: value > 0, "a finite number > 0"),
    "epsilon": (lambda value: value > 0, "a finite number > 0"),
}


def setting_faults(settings: Mapping[str, Any], *, prefix: str = "") -> list[str]:
    """Return one line for each numeric setting out of range: name, value, what is allowed.

    Parameters
    ----------
    settings : mapping
        Values of ``clip_norm``, ``noise_multiplier``, ``sensitivity`` and ``epsilon``, or some.
    prefix : str
        Put before the names in the messages.
    """
    return [
        f"{prefix}{name} = {value!r}: must be {_RANGES[name][1]}"
        for name, value in settings.items()
        if not (is_number(value) and _RANGES[name][0](value))
    ]


def selection_probabilities(
    quality: ArrayLike, *, epsilon: float, sensitivity: float
) -> Float64Array:
    """Return the exponential mechanism's probabilities, P_i ~ exp(epsilon q_i / (2 sensitivity)).

    F. McSherry, K. Talwar, *Mechanism design via differential privacy*, FOCS 2007.

    Parameters
    ----------
    quality : array_like, shape (m,)
        Quality q of each of m >= 1 candidates; higher is better.
    epsilon : float
        Finite and > 0. One selection is epsilon-differentially private if `sensitivity` is right.
    sensitivity : float
        Finite and > 0: most by which one change of the data moves any candidate's quality.

    Returns
    -------
    numpy.ndarray, shape (m,)
        Probabilities; they sum to 1 however large the qualities are.

    Raises
    ------
    ValueError
        If an argument is not of this form; all faults at once.
    """
    scores = np.asarray(quality, dtype=np.float64)
    faults = []
    if scores.ndim != 1 or scores.size == 0:
        faults.append(f"quality of shape {scores.shape}: must be a vector of at least one score")
    if not np.isfinite(scores).all():
        faults.append("quality: every score must be finite")
    for name, value in (("epsilon", epsilon), ("sensitivity", sensitivity)):
        if not is_number(value) or not value > 0:
            faults.append(f"{name} = {value!r}: must be a finite number > 0")
    if faults:
        raise ValueError("; ".join(faults))
    # Halves first: the difference of two finite scores may overflow, that of their halves cannot.
    behind = scores / 2 - np.max(scores) / 2
    with np.errstate(over="ignore"):  # -inf is right: the candidate's probability is 0
        weights = np.exp(behind / sensitivity * epsilon)
    return np.asarray(weights / weights.sum())


def select_candidate(
    quality: ArrayLike, *, epsilon: float, sensitivity: float, source: NoiseSource
) -> int:
    """Select a candidate by the exponential mechanism.

    Parameters and what is raised: see :func:`selection_probabilities`.

    Returns
    -------
    int
        Index of the selected candidate.
    """
    cumulated = np.cumsum(
        selection_probabilities(quality, epsilon=epsilon, sensitivity=sensitivity)
    )
    return first_exceeding(cumulated, float(source.uniform(1)[0]))


def first_exceeding(cumulated: Float64Array, share: float) -> int:
    """Return the index at which cumulated probabilities first exceed `share` of their total."""
    return int(np.searchsorted(cumulated, share * cumulated[-1], side="right"))


def is_number(value: object) -> bool:
    """Whether a value is a number that a double can hold; a truth value is none."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _random_words(size: Size) -> NDArray[np.uint64]:
    shape: Sequence[int] = (size,) if isinstance(size, int) else size
    random_bytes = secrets.token_bytes(_WORD_BYTES * math.prod(shape))
    return np.frombuffer(random_bytes, dtype=np.uint64).reshape(shape)


def _signs_and_exceedance(size: Size) -> tuple[Float64Array, Float64Array]:
    """Return random signs, and uniform values in (0, 1] that are finest near 0."""
    words = _random_words(size)
    signs = np.where(words & np.uint64(1), 1.0, -1.0)
    exceedance = ((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-63
    return signs, exceedance
