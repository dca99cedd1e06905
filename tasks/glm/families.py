"""What a site computes for one round of distributed Fisher scoring; four families and one's own.

Score vector, information and deviance are sums over rows, so the sums of the sites are those of
the pooled data (Jones et al., "Combined analysis of correlated data when data cannot be pooled",
2013). Sums of several rounds do not hide the rows: they are aggregates, not a privacy mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, expit, log_expit, log_ndtr, logit, ndtri, xlogy

from tasks.site.faults import SiteFault

FloatArray = NDArray[np.float64]


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
    pearson : float
        Pearson statistic, the sum of (response - mean)^2 / variance, from which the dispersion is
        estimated. NaN where the family's dispersion is 1, and at a start.
    """

    score: FloatArray
    information: FloatArray
    deviance: float
    rows: int
    pearson: float = math.nan

    def __add__(self, other: FisherSums) -> FisherSums:
        return FisherSums(
            self.score + other.score,
            self.information + other.information,
            self.deviance + other.deviance,
            self.rows + other.rows,
            self.pearson + other.pearson,
        )


@dataclass(frozen=True)
class RowTerms:
    """What each row adds to the sums, at a linear predictor and with unit dispersion.

    Attributes
    ----------
    slope : (n,) float64
        Derivative of the log-likelihood by the predictor, (y - mean) mean' / variance.
    weight : (n,) float64
        Its expected square, mean'^2 / variance; not negative.
    deviance : (n,) float64
        Twice the log-likelihood of a perfect fit less that at the predictor. May be infinite or
        NaN where a mean overflows: the server then halves the step.
    """

    slope: FloatArray
    weight: FloatArray
    deviance: FloatArray


@dataclass(frozen=True, kw_only=True)
class Family:
    """A response distribution with its link.

    Server and sites name it alike in their ``families``; see `FAMILIES` for those that come along.

    Attributes
    ----------
    terms : callable
        Takes predictor, response and trials, each (n,) float64; returns `RowTerms`.
    start : callable
        Takes response and trials; returns a finite predictor close to each row's own response.
    allowed : str
        What a response may be, in words.
    least : float or None
        Smallest response; None: any finite number. For responses above 0 ``math.ulp(0.0)``, the
        smallest of them.
    binary : bool
        Responses are 0 or 1, or with trials a number of ones: the privacy level then holds for
        ones and zeros apart.
    has_dispersion : bool
        The variance has a factor that is estimated, as of statsmodels and R by the Pearson
        statistic over the residual degrees of freedom. Otherwise the factor is 1, and coefficients
        that grow without bound mean that the responses are separated.
    """

    terms: Callable[[FloatArray, FloatArray, FloatArray], RowTerms]
    start: Callable[[FloatArray, FloatArray], FloatArray]
    allowed: str
    least: float | None = None
    binary: bool = False
    has_dispersion: bool = False


def mills_ratio(x: FloatArray) -> FloatArray:
    """phi(x) / Phi(x), finite and accurate in both tails."""
    return np.asarray(math.sqrt(2.0 / math.pi) / erfcx(-x / math.sqrt(2.0)))


def _probit(predictor: FloatArray, ones: FloatArray, trials: FloatArray) -> RowTerms:
    up, down = mills_ratio(predictor), mills_ratio(-predictor)
    zeros = trials - ones
    return RowTerms(
        slope=ones * up - zeros * down,
        weight=trials * up * down,
        deviance=-2.0 * (_times(ones, log_ndtr(predictor)) + _times(zeros, log_ndtr(-predictor))),
    )


def _logit(predictor: FloatArray, ones: FloatArray, trials: FloatArray) -> RowTerms:
    mean = expit(predictor)
    zeros = trials - ones
    return RowTerms(
        slope=ones * expit(-predictor) - zeros * mean,
        weight=trials * mean * expit(-predictor),
        deviance=-2.0 * (_times(ones, log_expit(predictor)) + _times(zeros, log_expit(-predictor))),
    )


def _poisson(predictor: FloatArray, counts: FloatArray, _: FloatArray) -> RowTerms:
    mean = np.exp(predictor)
    # y log(y / mean) with the logarithm of the mean known: no division by a mean of 0.
    deviance = 2.0 * (xlogy(counts, counts) - counts * predictor - (counts - mean))
    return RowTerms(slope=counts - mean, weight=mean, deviance=deviance)


def _gaussian(predictor: FloatArray, values: FloatArray, _: FloatArray) -> RowTerms:
    residual = values - predictor
    return RowTerms(slope=residual, weight=np.ones_like(residual), deviance=residual**2)


def _times(number: FloatArray, logarithm: FloatArray) -> FloatArray:
    """number * logarithm, 0 where the number is 0 even if the logarithm is -inf."""
    return np.where(number == 0, 0.0, number * logarithm)


def _between(ones: FloatArray, trials: FloatArray) -> FloatArray:
    """A mean strictly between 0 and 1 and close to the observed share of ones."""
    return (ones + 0.5) / (trials + 1.0)


FAMILIES: Mapping[str, Family] = {
    "probit": Family(
        terms=_probit,
        start=lambda ones, trials: np.asarray(ndtri(_between(ones, trials))),
        binary=True,
        allowed="0 or 1 (with trials: 0 to trials)",
    ),
    "logit": Family(
        terms=_logit,
        start=lambda ones, trials: np.asarray(logit(_between(ones, trials))),
        binary=True,
        allowed="0 or 1 (with trials: 0 to trials)",
    ),
    "poisson": Family(
        terms=_poisson,
        start=lambda counts, _: np.log(counts + 0.1),
        allowed="a finite number from 0",
        least=0.0,
    ),
    "gaussian": Family(
        terms=_gaussian,
        start=lambda values, _: values,
        allowed="a finite number",
        has_dispersion=True,
    ),
}
"""Probit, logit, Poisson with the logarithm and Gaussian with the identity as link."""


def site_sums(
    family: str,
    design: FloatArray,
    response: FloatArray,
    coefficients: FloatArray,
    *,
    trials: FloatArray | None = None,
    offset: FloatArray | float = 0.0,
    families: Mapping[str, Family] = FAMILIES,
) -> FisherSums:
    """Score vector, information and deviance of a site's rows.

    Parameters
    ----------
    family : str
        One of `families`.
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
    families : mapping of str to Family
        Those to choose from.

    Raises
    ------
    SiteFault
        ``"bad-response"`` or ``"bad-design"``; with counts, never with a value.
    """
    chosen = families[family]
    number = _check_rows(chosen, design, response, trials)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        predictor = design @ coefficients + offset
        terms = chosen.terms(predictor, response, number)
        return FisherSums(
            score=design.T @ terms.slope,
            information=design.T @ (terms.weight[:, None] * design),
            deviance=_total(terms.deviance),
            rows=int(number.sum()) if chosen.binary else len(response),
            pearson=_pearson(terms) if chosen.has_dispersion else math.nan,
        )


def starting_sums(
    family: str,
    design: FloatArray,
    response: FloatArray,
    *,
    trials: FloatArray | None = None,
    offset: FloatArray | float = 0.0,
    families: Mapping[str, Family] = FAMILIES,
) -> FisherSums:
    """Sums of the first round, from which theta = I^-1 V without any guess of theta.

    As in R's glm and in statsmodels each row starts at a mean close to its own response; the
    weighted least squares of the working response are then additive as every later round is. A
    start at theta = 0 would overflow for large counts.

    Parameters and raises: see `site_sums`. The deviance is infinite: there is no theta yet.
    """
    chosen = families[family]
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


def _total(values: FloatArray) -> float:
    return math.fsum(values) if np.isfinite(values).all() else math.inf


def _pearson(terms: RowTerms) -> float:
    """Sum of (y - mean)^2 / variance: the link's derivative cancels in slope^2 / weight."""
    return _total(np.square(terms.slope) / terms.weight)


def _check_rows(
    family: Family, design: FloatArray, response: FloatArray, trials: FloatArray | None
) -> FloatArray:
    """Refuse rows that the family cannot have; return the trials."""
    number = np.ones(len(response)) if trials is None else trials
    if design.ndim != 2 or len(design) != len(response) or len(number) != len(response):
        raise SiteFault(
            "bad-design",
            f"{len(response)} responses and {len(number)} trials beside a design of shape "
            f"{design.shape}: allowed is one row of the design each",
        )
    if trials is not None and not family.binary:
        raise SiteFault("bad-design", "trials: only a family of responses 0 and 1 has them")
    faults = []
    wild = int((~np.isfinite(design)).any(axis=1).sum())
    if wild:
        faults.append(f"{wild} rows have a NaN or infinite covariate")
    wrong = ~np.isfinite(response)
    if family.binary:
        wrong |= (response < 0) | (response > number)
    elif family.least is not None:
        wrong |= response < family.least
    if wrong.any():
        faults.append(f"{int(wrong.sum())} rows have a response that is not {family.allowed}")
    if faults:
        raise SiteFault("bad-design" if wild else "bad-response", *faults)
    return number
