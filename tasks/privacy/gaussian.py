"""The Gaussian mechanism: how much noise, what it guarantees, and where the noise comes from.

Calibration is the analytic one (Balle and Wang, "Improving the Gaussian Mechanism for Differential
Privacy: Analytical Calibration and Optimal Denoising", ICML 2018, theorem 8): exact for every
epsilon, and never larger than needed. Everything depends on the ratio ``mu = sensitivity / sigma``
alone, and several Gaussian releases of the same data are one release with ``mu = sqrt(sum mu_i^2)``
(Dong, Roth and Su, "Gaussian differential privacy", 2022, corollary 3.3), so composition is a
closed form here and needs no accountant.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, ndtr, ndtri

# Relative slack by which `sigma` errs to the side of more noise: the root finder's own error.
_SLACK = 1e-13
_SQRT2 = math.sqrt(2.0)
# Noise is released as a multiple of sigma * 2^-20 or less: see `gaussian_noise`.
_LATTICE_BITS = 20


def delta(*, epsilon: float, sigma: float, sensitivity: float) -> float:
    """Smallest delta for which Gaussian noise is (epsilon, delta)-differentially private.

    Parameters
    ----------
    epsilon : float
        At least 0.
    sigma : float
        Standard deviation of the noise, above 0.
    sensitivity : float
        Largest L2 distance between the released vectors of two neighbours, above 0.

    Returns
    -------
    float
        In [0, 1); 0 only where the true value is below the smallest double.

    Raises
    ------
    ValueError
        If a parameter is out of its range.
    """
    _refuse(
        _from_zero("epsilon", epsilon),
        _above_zero("sigma", sigma),
        _above_zero("sensitivity", sensitivity),
    )
    return math.exp(_log_delta(epsilon, sensitivity / sigma))


def sigma(*, epsilon: float, delta: float, sensitivity: float, releases: int = 1) -> float:
    """Smallest standard deviation that makes the releases (epsilon, delta)-DP all together.

    Parameters
    ----------
    epsilon : float
        Above 0. Checked for 1e-3 to 100.
    delta : float
        In (0, 1). Checked down to 1e-300.
    sensitivity : float
        L2 sensitivity of one release, above 0.
    releases : int
        Number of releases of the same data, each with this noise, that share the budget.

    Returns
    -------
    float
        Standard deviation per coordinate, in the unit of `sensitivity`.

    Raises
    ------
    ValueError
        If a parameter is out of its range.
    """
    _refuse(
        _above_zero("epsilon", epsilon),
        _probability(delta),
        _above_zero("sensitivity", sensitivity),
        "" if releases >= 1 else f"releases = {releases}: allowed is 1 or more",
    )
    target = math.log(delta)
    log_mu = _increasing_root(lambda x: _log_delta(epsilon, math.exp(x)) - target, start=0.0)
    return sensitivity * math.sqrt(releases) / math.exp(log_mu) * (1.0 + _SLACK)


def epsilon(*, delta: float, sigma: float, sensitivity: float) -> float:
    """Smallest epsilon for which Gaussian noise is (epsilon, delta)-differentially private.

    Parameters
    ----------
    delta : float
        In (0, 1).
    sigma, sensitivity : float
        Noise and L2 sensitivity, above 0.

    Returns
    -------
    float
        0 where the noise is enough for (0, delta).
    """
    _refuse(
        _probability(delta),
        _above_zero("sigma", sigma),
        _above_zero("sensitivity", sensitivity),
    )
    return composed_epsilon(delta=delta, ratios=[sensitivity / sigma])


def composed_epsilon(*, delta: float, ratios: Sequence[float]) -> float:
    """Epsilon spent by several Gaussian releases of the same data, at one delta.

    Parameters
    ----------
    delta : float
        In (0, 1), for all releases together.
    ratios : sequence of float
        ``sensitivity / sigma`` of each release, at least 0 (0: released nothing).

    Returns
    -------
    float
        Tight: the epsilon of one release with the root of the summed squares as its ratio.
    """
    _refuse(_probability(delta))
    mu = composed_ratio(ratios)
    target = math.log(delta)
    if mu == 0 or _log_delta(0.0, mu) <= target:
        return 0.0
    # In the logarithm, because epsilon spans from 1e-300 to 1e6 and must be right relatively.
    return math.exp(_increasing_root(lambda x: target - _log_delta(math.exp(x), mu), start=0.0))


def composed_ratio(ratios: Sequence[float]) -> float:
    """``sensitivity / sigma`` of the one release that several releases amount to.

    Parameters
    ----------
    ratios : sequence of float
        Finite, at least 0.
    """
    _refuse(*(_from_zero("sensitivity / sigma", ratio) for ratio in ratios))
    return math.hypot(*ratios)


def classic_sigma(*, epsilon: float, delta: float, sensitivity: float) -> float:
    """Noise by the textbook formula ``sqrt(2 ln(1.25 / delta)) sensitivity / epsilon``.

    Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, theorem A.1. Its
    proof needs ``epsilon < 1``; above, it gives too little noise.

    Raises
    ------
    ValueError
        If `epsilon` is 1 or more, or a parameter is out of its range.
    """
    _refuse(
        _above_zero("epsilon", epsilon),
        _probability(delta),
        _above_zero("sensitivity", sensitivity),
    )
    if epsilon >= 1:
        raise ValueError(
            f"epsilon = {epsilon}: the classic Gaussian mechanism is allowed below 1 only "
            "(above, its noise is too small); use the analytic one"
        )
    return math.sqrt(2.0 * math.log(1.25 / delta)) * sensitivity / epsilon


def gaussian_noise(
    sigma: float,
    shape: int | tuple[int, ...],
    *,
    generator: np.random.Generator | None = None,
) -> NDArray[np.float64]:
    """Draw centred Gaussian noise.

    Parameters
    ----------
    sigma : float
        Standard deviation, at least 0.
    shape : int or tuple of int
        Shape of the result.
    generator : numpy.random.Generator, optional
        For simulations. Without it the noise comes from the operating system's generator.

    Returns
    -------
    ndarray of float64
        Noise. Add it with `add_noise`, which also takes care of the low-order bits.
    """
    _refuse(_from_zero("sigma", sigma))
    if generator is not None:
        return generator.normal(0.0, sigma, shape)
    return sigma * _system_normal(shape)


def add_noise(
    values: NDArray[np.float64] | NDArray[np.int64],
    sigma: float,
    *,
    generator: np.random.Generator | None = None,
) -> NDArray[np.float64]:
    """Release values under Gaussian noise.

    The sum is rounded to a lattice whose step, a power of two, is 2^-20 sigma or less. Otherwise
    the low-order bits of a sum of doubles tell which values it can come from (Mironov, "On
    significance of the least significant bits for differential privacy", 2012); the rounding is
    the same for every value, hence post-processing.

    Parameters
    ----------
    values : ndarray
        What is released; any shape.
    sigma : float
        Standard deviation of the noise, above 0.
    generator : numpy.random.Generator, optional
        For simulations. Without it the noise comes from the operating system's generator.
    """
    _refuse(_above_zero("sigma", sigma))
    noisy = np.asarray(values, dtype=np.float64) + gaussian_noise(
        sigma, np.shape(values), generator=generator
    )
    step = 2.0 ** (math.floor(math.log2(sigma)) - _LATTICE_BITS)
    return np.asarray(np.round(noisy / step) * step, dtype=np.float64)


def _system_normal(shape: int | tuple[int, ...]) -> NDArray[np.float64]:
    """Standard normal variables from 128 bits each of the operating system's generator.

    Half-normal by inversion, with a sign: the smallest uniform is 2^-128, so the tail reaches
    13 standard deviations, and what is cut off would add less than 1e-38 to delta.
    """
    count = int(np.prod(shape))
    words = np.frombuffer(os.urandom(16 * count), dtype=np.uint64).reshape(2, count)
    sign = np.where(words[1] & np.uint64(1), 1.0, -1.0)
    low = (words[1].astype(np.float64) + 0.5) * 2.0**-64
    uniform = np.minimum((words[0].astype(np.float64) + low) * 2.0**-64, 1.0)
    # Inverting the lower half keeps full relative precision where the tail is.
    return np.asarray((sign * ndtri(0.5 * uniform)).reshape(shape), dtype=np.float64)


def _log_delta(epsilon: float, mu: float) -> float:
    """Logarithm of ``Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)``.

    ``e^epsilon phi(b) = phi(a)`` for the two arguments a and b, so both terms share the factor
    ``exp(-a^2/2)`` and what is left are two scaled complementary error functions: neither
    ``e^epsilon`` nor a tiny tail probability is ever formed.
    """
    upper = mu / 2.0 - epsilon / mu
    lower = -mu / 2.0 - epsilon / mu
    far = erfcx(-lower / _SQRT2)
    if upper > 0:
        return _log(float(ndtr(upper) - 0.5 * math.exp(-0.5 * upper * upper) * far))
    return _log(0.5 * float(erfcx(-upper / _SQRT2) - far)) - 0.5 * upper * upper


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _increasing_root(function: Callable[[float], float], *, start: float) -> float:
    """Root of an increasing function; the bracket grows from `start` by doubling steps."""
    low = high = start
    step = 1.0
    while function(low) > 0:
        low, step = low - step, 2.0 * step
    step = 1.0
    while function(high) < 0:
        high, step = high + step, 2.0 * step
    if low == high:
        return low
    # Imported here: it takes as long as Flower itself, and every message of a deployment that
    # reads a configuration imports this module.
    from scipy.optimize import brentq

    return float(brentq(_finite(function), low, high, xtol=1e-15, rtol=8.9e-16, maxiter=500))


def _finite(function: Callable[[float], float]) -> Callable[[float], float]:
    """The function with infinities cut to a size that the secant steps of brentq can bear."""
    return lambda x: max(min(function(x), 1e6), -1e6)


def _above_zero(name: str, value: float) -> str:
    """The fault in a parameter that must be finite and positive, or ""."""
    return (
        "" if _is_finite(value) and value > 0 else f"{name} = {value}: allowed is above 0, finite"
    )


def _from_zero(name: str, value: float) -> str:
    """The fault in a parameter that must be finite and not negative, or ""."""
    return (
        "" if _is_finite(value) and value >= 0 else f"{name} = {value}: allowed is from 0, finite"
    )


def _probability(value: float) -> str:
    """The fault in a delta, or ""."""
    inside = _is_finite(value) and 0 < value < 1
    return "" if inside else f"delta = {value}: allowed is between 0 and 1, both excluded"


def _is_finite(value: float) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _refuse(*faults: str) -> None:
    """Raise one error that names every fault, if there is any."""
    found = [fault for fault in faults if fault]
    if found:
        raise ValueError("; ".join(found))
