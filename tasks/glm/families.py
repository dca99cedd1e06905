"""What a site computes for one round of distributed Fisher scoring, for four families.

Score vector, information and deviance are sums over rows, so the sums of the sites are those of
the pooled data (Jones et al., "Combined analysis of correlated data when data cannot be pooled",
2013). Sums of several rounds do not hide the rows: they are aggregates, not a privacy mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, expit, log_expit, log_ndtr, logit, ndtri, xlogy

from tasks.site.faults import SiteFault

FloatArray = NDArray[np.float64]
FamilyName = Literal["probit", "logit", "poisson", "gaussian"]


@dataclass(frozen=True)
class FisherSums:
    """What travels in one round; adding two is pooling their rows.

    Attributes
    ----------
    score : (p,) float64
        V, the gradient of the log-likelihood. With unit dispersion for the Gaussian family.
    information : (p, p) float64
        I, the expected information, likewise.
    deviance : float
        For a Bernoulli response -2 log-likelihood. Infinite where a mean overflows.
    rows : int
        Number of responses behind the sums.
    """

    score: FloatArray
    information: FloatArray
    deviance: float
    rows: int

    def __add__(self, other: FisherSums) -> FisherSums:
        return FisherSums(
            self.score + other.score,
            self.information + other.information,
            self.deviance + other.deviance,
            self.rows + other.rows,
        )


@dataclass(frozen=True)
class _RowTerms:
    """Per row: derivative of the log-likelihood by the predictor, its expected square, deviance."""

    slope: FloatArray
    weight: FloatArray
    deviance: FloatArray


@dataclass(frozen=True)
class _Family:
    """A response distribution with its link."""

    terms: Callable[[FloatArray, FloatArray, FloatArray], _RowTerms]
    start: Callable[[FloatArray, FloatArray], FloatArray]
    binary: bool
    allowed: str


def site_sums(
    family: FamilyName,
    design: FloatArray,
    response: FloatArray,
    coefficients: FloatArray,
    *,
    trials: FloatArray | None = None,
    offset: FloatArray | float = 0.0,
) -> FisherSums:
    """Score vector, information and deviance of a site's rows.

    Parameters
    ----------
    family : {"probit", "logit", "poisson", "gaussian"}
        Poisson with the logarithm, Gaussian with the identity as link.
    design : (n, p) float64
        Covariates, the column of ones included.
    response : (n,) float64
        0 or 1; number of ones where `trials` is given; counts; reals.
    coefficients : (p,) float64
        theta, where to evaluate.
    trials : (n,) float64, optional
        Bernoulli responses that a row stands for, all with the row's covariates.
    offset : (n,) float64 or float
        Known part of the linear predictor.

    Raises
    ------
    SiteFault
        ``"bad-response"`` or ``"bad-design"``; with counts, never with a value.
    """
    chosen = _FAMILIES[family]
    number = _check_rows(chosen, design, response, trials)
    with np.errstate(over="ignore", invalid="ignore"):
        predictor = design @ coefficients + offset
        terms = chosen.terms(predictor, response, number)
        deviance = math.fsum(terms.deviance) if np.isfinite(terms.deviance).all() else math.inf
        return FisherSums(
            score=design.T @ terms.slope,
            information=design.T @ (terms.weight[:, None] * design),
            deviance=deviance,
            rows=int(number.sum()) if chosen.binary else len(response),
        )


def starting_sums(
    family: FamilyName,
    design: FloatArray,
    response: FloatArray,
    *,
    trials: FloatArray | None = None,
    offset: FloatArray | float = 0.0,
) -> FisherSums:
    """Sums of the first round, from which theta = I^-1 V without any guess of theta.

    As in R's glm and in statsmodels each row starts at a mean close to its own response; the
    weighted least squares of the working response are then additive as every later round is. A
    start at theta = 0 would overflow for large counts.

    Parameters and raises: see `site_sums`. The deviance is infinite: there is no theta yet.
    """
    chosen = _FAMILIES[family]
    number = _check_rows(chosen, design, response, trials)
    predictor = chosen.start(response, number)
    terms = chosen.terms(predictor, response, number)
    working = terms.weight * (predictor - offset) + terms.slope
    return FisherSums(
        score=design.T @ working,
        information=design.T @ (terms.weight[:, None] * design),
        deviance=math.inf,
        rows=int(number.sum()) if chosen.binary else len(response),
    )


def pool_sums(sites: Iterable[FisherSums]) -> FisherSums:
    """Sum over sites (give them in the order of site names).

    Raises
    ------
    ValueError
        If there is no site.
    """
    pooled: FisherSums | None = None
    for site in sites:
        pooled = site if pooled is None else pooled + site
    if pooled is None:
        raise ValueError("0 sites: allowed is 1 or more")
    return pooled


def mills_ratio(x: FloatArray) -> FloatArray:
    """phi(x) / Phi(x), finite and accurate in both tails."""
    return np.asarray(math.sqrt(2.0 / math.pi) / erfcx(-x / math.sqrt(2.0)))


def _probit(predictor: FloatArray, ones: FloatArray, trials: FloatArray) -> _RowTerms:
    up, down = mills_ratio(predictor), mills_ratio(-predictor)
    zeros = trials - ones
    return _RowTerms(
        slope=ones * up - zeros * down,
        weight=trials * up * down,
        deviance=-2.0 * (_times(ones, log_ndtr(predictor)) + _times(zeros, log_ndtr(-predictor))),
    )


def _logit(predictor: FloatArray, ones: FloatArray, trials: FloatArray) -> _RowTerms:
    mean = expit(predictor)
    zeros = trials - ones
    return _RowTerms(
        slope=ones * expit(-predictor) - zeros * mean,
        weight=trials * mean * expit(-predictor),
        deviance=-2.0 * (_times(ones, log_expit(predictor)) + _times(zeros, log_expit(-predictor))),
    )


def _poisson(predictor: FloatArray, counts: FloatArray, _: FloatArray) -> _RowTerms:
    mean = np.exp(predictor)
    # y log(y / mean) with the logarithm of the mean known: no division by a mean of 0.
    deviance = 2.0 * (xlogy(counts, counts) - counts * predictor - (counts - mean))
    return _RowTerms(slope=counts - mean, weight=mean, deviance=deviance)


def _gaussian(predictor: FloatArray, values: FloatArray, _: FloatArray) -> _RowTerms:
    residual = values - predictor
    return _RowTerms(slope=residual, weight=np.ones_like(residual), deviance=residual**2)


def _times(number: FloatArray, logarithm: FloatArray) -> FloatArray:
    """number * logarithm, 0 where the number is 0 even if the logarithm is -inf."""
    return np.where(number == 0, 0.0, number * logarithm)


def _between(ones: FloatArray, trials: FloatArray) -> FloatArray:
    """A mean strictly between 0 and 1 and close to the observed share of ones."""
    return (ones + 0.5) / (trials + 1.0)


_FAMILIES = {
    "probit": _Family(
        terms=_probit,
        start=lambda ones, trials: np.asarray(ndtri(_between(ones, trials))),
        binary=True,
        allowed="0 or 1 (with trials: 0 to trials)",
    ),
    "logit": _Family(
        terms=_logit,
        start=lambda ones, trials: np.asarray(logit(_between(ones, trials))),
        binary=True,
        allowed="0 or 1 (with trials: 0 to trials)",
    ),
    "poisson": _Family(
        terms=_poisson,
        start=lambda counts, _: np.log(counts + 0.1),
        binary=False,
        allowed="a finite number from 0",
    ),
    "gaussian": _Family(
        terms=_gaussian,
        start=lambda values, _: values,
        binary=False,
        allowed="a finite number",
    ),
}


def _check_rows(
    family: _Family, design: FloatArray, response: FloatArray, trials: FloatArray | None
) -> FloatArray:
    """Refuse rows that the family cannot have; return the trials."""
    number = np.ones(len(response)) if trials is None else trials
    if design.ndim != 2 or len(design) != len(response) or len(number) != len(response):
        raise SiteFault(
            "bad-design",
            f"{len(response)} responses and {len(number)} trials beside a design of shape "
            f"{design.shape}: allowed is one row of the design each",
        )
    faults = []
    wild = int((~np.isfinite(design)).any(axis=1).sum())
    if wild:
        faults.append(f"{wild} rows have a NaN or infinite covariate")
    wrong = ~np.isfinite(response)
    if family.binary:
        wrong |= (response < 0) | (response > number)
    elif "from 0" in family.allowed:
        wrong |= response < 0
    if wrong.any():
        faults.append(f"{int(wrong.sum())} rows have a response that is not {family.allowed}")
    if faults:
        raise SiteFault("bad-design" if wild else "bad-response", *faults)
    return number
