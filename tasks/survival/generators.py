"""Simulated survival data with a known truth: six generators.

Features are standard normal with an AR(1) correlation, ``corr(x_i, x_j) = rho ** |i - j|`` (SDGM2:
uniform and independent). Event times T and censoring times C are drawn for every row; what is
observed is the smaller one.

=============  ===================================================  ============================
name           event time                                           censoring time
=============  ===================================================  ============================
``weibull``    Weibull, shape 1.5, hazard ratio exp(x'b)            exponential with a rate
``lognormal``  exp(-x'b + N(0, .8^2))                               exponential with a rate
``SDGM1``      exponential, mean exp(.1 sum of the second half)     exponential with a rate
``SDGM2``      exponential, mean sin(pi x1) + 2 |x2 - .5| + x3^3    uniform on (0, 4)
``SDGM3``      Gamma, shape .5 + .25 |sum of the middle|, scale 2   uniform on (0, 15)
``SDGM4``      log-normal, mu = .1 |sum of the first fifth|         log-normal, mu + .5: depends
               + .1 |sum of the last fifth|                         on the features
=============  ===================================================  ============================

The effects b of ``weibull`` and ``lognormal`` are .5 (-.8)^j for j = 0, 1, ...: signs alternate
and sizes fall, so that every feature says something and some say little.

A *rate* of the censoring is not the share of censored rows: a rate of .4 leaves 29 % of SDGM1
censored. Who wants a share asks for the share (`Design.censoring_fraction`).

References
----------
R. Zhu and M. R. Kosorok, Recursively imputed survival trees, JASA 107 (2012) 331-340, section 4:
the scenarios that SDGM1 to SDGM4 go back to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

WEIBULL_SHAPE = 1.5
LOGNORMAL_SIGMA = 0.8

DEFAULT_RATE = 0.4
"""Rate of exponential censoring where none is given."""

_SHORTEST = 1e-12
"""Times are at least this: a draw of exactly 0 is no follow-up time."""


@dataclass(frozen=True)
class Design:
    """What is asked of a generator.

    Attributes
    ----------
    n_rows : int
        At least 1.
    n_features : int
        At least 1 (SDGM2: 3).
    rho : float or None
        Correlation of neighbouring features, in (-1, 1); None: the generator's own. SDGM2 has
        independent features.
    censoring_rate : float or None
        Rate of exponential censoring, positive; None: .4. Only for `RATE_GENERATORS`.
    censoring_fraction : float or None
        Share of censored rows, in [0, 1): the censoring times of all rows are multiplied by the
        one factor with which the realised share comes as near to it as rows allow. None: as the
        generator has it.

    Raises
    ------
    ValueError
        With everything that is out of range.
    """

    n_rows: int = 1000
    n_features: int = 10
    rho: float | None = None
    censoring_rate: float | None = None
    censoring_fraction: float | None = None

    def __post_init__(self) -> None:
        faults = []
        if self.n_rows < 1:
            faults.append(f"n_rows = {self.n_rows}: must be at least 1")
        if self.n_features < 1:
            faults.append(f"n_features = {self.n_features}: must be at least 1")
        if self.rho is not None and not -1 < self.rho < 1:
            faults.append(f"rho = {self.rho}: must be between -1 and 1, both excluded")
        if self.censoring_rate is not None and not 0 < self.censoring_rate < np.inf:
            faults.append(f"censoring_rate = {self.censoring_rate}: must be positive and finite")
        if self.censoring_fraction is not None and not 0 <= self.censoring_fraction < 1:
            faults.append(
                f"censoring_fraction = {self.censoring_fraction}: must be at least 0, less than 1"
            )
        if self.censoring_rate is not None and self.censoring_fraction is not None:
            faults.append("censoring_rate and censoring_fraction: give one of them")
        if faults:
            raise ValueError("; ".join(faults))


@dataclass(frozen=True, eq=False)
class SimulatedSurvival:
    """Rows of a generator and their truth.

    Attributes
    ----------
    features : ndarray, shape (n, p)
    time : ndarray, shape (n,)
        The smaller of event and censoring time, positive.
    event : ndarray of bool, shape (n,)
        Whether the event came first.
    risk : ndarray, shape (n,)
        What orders the rows' event times best, larger means earlier: the oracle's prediction.
    """

    features: FloatArray
    time: FloatArray
    event: npt.NDArray[np.bool_]
    risk: FloatArray

    @property
    def censored_fraction(self) -> float:
        """Share of censored rows that came out."""
        return float(1 - self.event.mean())


@dataclass(frozen=True, eq=False)
class _Times:
    """Event and censoring times of rows with given features, shape (n,) each."""

    event: FloatArray
    censoring: FloatArray
    risk: FloatArray


_Law = Callable[[FloatArray, float, np.random.Generator], _Times]


def generate(name: str, design: Design, *, seed: int) -> SimulatedSurvival:
    """Draw the rows of a generator.

    Parameters
    ----------
    name : str
        One of `GENERATORS`.
    design : Design
        Numbers of rows and features, correlation, censoring.
    seed : int
        At least 0; the same arguments give the same rows.

    Returns
    -------
    SimulatedSurvival

    Raises
    ------
    ValueError
        If the name is unknown, or the generator cannot follow the design; all faults at once.
    """
    faults = design_faults(name, design)
    if faults:
        raise ValueError("; ".join(faults))
    law, default_rho, _ = _GENERATORS[name]
    rng = np.random.default_rng(seed)
    if default_rho is None:
        features = rng.random((design.n_rows, design.n_features))
    else:
        rho = default_rho if design.rho is None else design.rho
        features = ar1_features(design.n_rows, design.n_features, rho=rho, rng=rng)
    times = law(features, design.censoring_rate or DEFAULT_RATE, rng)
    censoring = times.censoring
    if design.censoring_fraction is not None:
        factor = _censoring_factor(times.event / censoring, design.censoring_fraction)
        censoring = factor * censoring
    observed = np.maximum(np.minimum(times.event, censoring), _SHORTEST)
    return SimulatedSurvival(features, observed, times.event <= censoring, times.risk)


def design_faults(name: str, design: Design) -> list[str]:
    """Return what a generator cannot follow of a design, a line a fault; empty if nothing."""
    if name not in _GENERATORS:
        return [f"generator {name!r} is unknown; allowed: {', '.join(GENERATORS)}"]
    _, default_rho, least_features = _GENERATORS[name]
    faults = []
    if design.n_features < least_features:
        faults.append(f"n_features = {design.n_features}: {name} needs at least {least_features}")
    if default_rho is None and design.rho is not None:
        faults.append(f"rho = {design.rho}: {name} has independent features")
    if design.censoring_rate is not None and name not in RATE_GENERATORS:
        allowed = ", ".join(RATE_GENERATORS)
        faults.append(
            f"censoring_rate = {design.censoring_rate}: {name} has no exponential censoring "
            f"(only {allowed} have); a censoring fraction works for all"
        )
    return faults


def ar1_features(rows: int, features: int, *, rho: float, rng: np.random.Generator) -> FloatArray:
    """Standard normal features with correlation rho ** |i - j|, shape (rows, features)."""
    steps = rng.standard_normal((rows, features))
    steps[:, 1:] *= np.sqrt(1 - rho**2)
    for column in range(1, features):
        steps[:, column] += rho * steps[:, column - 1]
    return steps


def _censoring_factor(ratio: FloatArray, fraction: float) -> float:
    """Factor f with which a share `fraction` of rows has event time > f * censoring time.

    From `ratio`, event over censoring time: a row is censored if its ratio exceeds f.
    """
    censored = round(fraction * ratio.size)
    descending = np.sort(ratio)[::-1]
    censored = min(censored, ratio.size - 1)  # one event stays, however few rows there are
    # A hair more: the row whose ratio it is must not be censored by rounding.
    return float(descending[censored] * (1 + 1e-12))


def _effects(features: int) -> FloatArray:
    return np.asarray(0.5 * (-0.8) ** np.arange(features), dtype=np.float64)


def _weibull(x: FloatArray, rate: float, rng: np.random.Generator) -> _Times:
    risk = x @ _effects(x.shape[1])
    event = (rng.exponential(size=len(x)) * np.exp(-risk)) ** (1 / WEIBULL_SHAPE)
    return _Times(event, rng.exponential(1 / rate, size=len(x)), risk)


def _lognormal(x: FloatArray, rate: float, rng: np.random.Generator) -> _Times:
    risk = x @ _effects(x.shape[1])
    event = np.exp(-risk + LOGNORMAL_SIGMA * rng.standard_normal(len(x)))
    return _Times(event, rng.exponential(1 / rate, size=len(x)), risk)


def _sdgm1(x: FloatArray, rate: float, rng: np.random.Generator) -> _Times:
    log_mean = 0.1 * x[:, x.shape[1] // 2 :].sum(axis=1)
    event = np.exp(log_mean) * rng.exponential(size=len(x))
    return _Times(event, rng.exponential(1 / rate, size=len(x)), -log_mean)


def _sdgm2(x: FloatArray, _: float, rng: np.random.Generator) -> _Times:
    mean = np.sin(np.pi * x[:, 0]) + 2 * np.abs(x[:, 1] - 0.5) + x[:, 2] ** 3
    event = mean * rng.exponential(size=len(x))
    return _Times(event, rng.uniform(0, 4, size=len(x)), -mean)


def _sdgm3(x: FloatArray, _: float, rng: np.random.Generator) -> _Times:
    p = x.shape[1]
    width = max(1, p // 5)
    first = (p - width) // 2
    shape = 0.5 + 0.25 * np.abs(x[:, first : first + width].sum(axis=1))
    event = rng.gamma(shape, 2.0)
    return _Times(event, rng.uniform(0, 15, size=len(x)), -shape)


def _sdgm4(x: FloatArray, _: float, rng: np.random.Generator) -> _Times:
    width = max(1, x.shape[1] // 5)
    mu = 0.1 * np.abs(x[:, :width].sum(axis=1)) + 0.1 * np.abs(x[:, -width:].sum(axis=1))
    event = np.exp(mu + rng.standard_normal(len(x)))
    return _Times(event, np.exp(mu + 0.5 + rng.standard_normal(len(x))), -mu)


_GENERATORS: dict[str, tuple[_Law, float | None, int]] = {
    "weibull": (_weibull, 0.5, 1),
    "lognormal": (_lognormal, 0.5, 1),
    "SDGM1": (_sdgm1, 0.6, 1),
    "SDGM2": (_sdgm2, None, 3),
    "SDGM3": (_sdgm3, 0.75, 1),
    "SDGM4": (_sdgm4, 0.75, 1),
}
"""Law of the times, correlation of neighbouring features (None: uniform, independent), fewest
features."""

GENERATORS = tuple(_GENERATORS)
RATE_GENERATORS = ("weibull", "lognormal", "SDGM1")
"""Those with exponential censoring."""
