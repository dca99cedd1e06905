"""AUC of the fitted curve, DeLong variance, confidence interval, test, and band of the curve.

Sources: Pepe, "The Statistical Evaluation of Medical Tests for Classification and Prediction",
2003, sections 4.5 and 5.2; DeLong, DeLong and Clarke-Pearson, 1988.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit, ndtr, ndtri

from tasks.roc_glm.moments import Moments
from tasks.roc_glm.survivor import FloatArray
from tasks.site.not_estimable import NotEstimable


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval of the AUC.

    Attributes
    ----------
    lower, upper : float
        In [0, 1].
    level : float
        Nominal coverage, 1 - alpha.
    degenerate : bool
        True when the variance is 0 (constant scores): the interval is a point and says nothing.
    """

    lower: float
    upper: float
    level: float
    degenerate: bool = False


@dataclass(frozen=True)
class AucTest:
    """Test of H0: AUC <= null_auc against AUC > null_auc on the logit scale.

    Attributes
    ----------
    statistic : float
        Standard normal under AUC = null_auc.
    p_value : float
    rejected : bool
        p < alpha. Equivalent to the (1 - 2 alpha) interval lying above null_auc.
    """

    null_auc: float
    alpha: float
    statistic: float
    p_value: float
    rejected: bool


def auc_of_roc_glm(gamma_1: FloatArray | float, gamma_2: FloatArray | float) -> FloatArray:
    """Area under ``Phi(gamma_1 + gamma_2 Phi^-1(t))``, the closed form of the integral.

    Parameters
    ----------
    gamma_1, gamma_2 : float or array
        Broadcast against each other.
    """
    return np.asarray(ndtr(gamma_1 / np.sqrt(1.0 + np.square(gamma_2))))


def delong_variance(*, of_negatives: Moments, of_positives: Moments) -> float:
    """DeLong variance of the empirical AUC.

    Parameters
    ----------
    of_negatives : Moments
        Of the placement values S1(score) of the n0 negatives.
    of_positives : Moments
        Of the placement values S0(score) of the n1 positives.

    Raises
    ------
    NotEstimable
        ``"too-few-negatives"`` or ``"too-few-positives"``: each class needs two.
    """
    require_two_of_each(num_negative=of_negatives.count, num_positive=of_positives.count)
    return of_negatives.variance / of_negatives.count + of_positives.variance / of_positives.count


def require_two_of_each(*, num_negative: int, num_positive: int) -> None:
    """Raise `NotEstimable` unless both classes have the two rows that a variance needs."""
    if num_positive < 2:
        raise NotEstimable("too-few-positives", "a variance needs 2 positives")
    if num_negative < 2:
        raise NotEstimable("too-few-negatives", "a variance needs 2 negatives")


def auc_interval(auc: float, variance: float, *, alpha: float = 0.05) -> Interval:
    """Confidence interval of the AUC: symmetric on the logit scale, mapped back.

    Parameters
    ----------
    auc : float
        In [0, 1]; the centre.
    variance : float
        Of the AUC, at least 0; that of the noise of a release included.
    alpha : float
        1 - level, in (0, 1).

    Raises
    ------
    NotEstimable
        ``"auc-0-or-1"``: the logit does not exist.
    """
    _require_interior(auc)
    lower, upper = logit_bounds(auc, variance, alpha=alpha)
    return Interval(float(lower), float(upper), 1.0 - alpha, degenerate=variance == 0.0)


def logit_bounds(
    auc: FloatArray | float, variance: FloatArray | float, *, alpha: float
) -> tuple[FloatArray, FloatArray]:
    """Bounds of many intervals at once; `auc` strictly between 0 and 1."""
    half = -ndtri(alpha / 2.0) * _logit_error(auc, variance)
    return np.asarray(expit(logit(auc) - half)), np.asarray(expit(logit(auc) + half))


def auc_test(auc: float, variance: float, *, null_auc: float = 0.5, alpha: float = 0.05) -> AucTest:
    """One-sided test of H0: AUC <= null_auc.

    Parameters
    ----------
    auc : float
        In [0, 1].
    variance : float
        Of the AUC.
    null_auc, alpha : float
        In (0, 1).

    Raises
    ------
    NotEstimable
        ``"auc-0-or-1"``, or ``"zero-variance"`` when the variance is 0.
    """
    _require_interior(auc)
    if variance == 0.0:
        raise NotEstimable("zero-variance", "no test: the variance of the AUC is 0")
    statistic = float((logit(auc) - logit(null_auc)) / _logit_error(auc, variance))
    p_value = float(ndtr(-statistic))
    return AucTest(null_auc, alpha, statistic, p_value, p_value < alpha)


@dataclass(frozen=True)
class RocBand:
    """The parametric ROC curve with a pointwise band.

    Attributes
    ----------
    false_positive_rate, true_positive_rate, lower, upper : (T,) float64
        All in [0, 1].
    """

    false_positive_rate: FloatArray
    true_positive_rate: FloatArray
    lower: FloatArray
    upper: FloatArray


def roc_band(
    gamma_1: float,
    gamma_2: float,
    *,
    at: FloatArray,
    num_negative: int,
    num_positive: int,
    alpha: float = 0.05,
) -> RocBand:
    """The fitted curve at false positive rates, with its pointwise band.

    The variance is ``ROC (1 - ROC) / n1 + slope^2 t (1 - t) / n0`` (Pepe 2003, section 5.2.3). The
    probit's own standard errors are 3 to 5 times too small, because the responses of a patient at
    all thresholds depend on each other.

    Parameters
    ----------
    gamma_1, gamma_2 : float
        Of the ROC-GLM.
    at : (T,) float64
        False positive rates t, strictly between 0 and 1.
    num_negative, num_positive : int
        n0 and n1, at least 1.
    alpha : float
        1 - level, in (0, 1).
    """
    quantile = ndtri(at)
    predictor = gamma_1 + gamma_2 * quantile
    curve = ndtr(predictor)
    # slope = gamma_2 phi(predictor) / phi(quantile); all of its term in one exponential, which
    # stays finite at the ends (a band that wide is cut to [0, 1] anyway).
    exponent = np.square(quantile) - np.square(predictor) + np.log(at) + np.log1p(-at)
    of_cut = gamma_2**2 * np.exp(np.minimum(exponent, 600.0))
    variance = curve * (1.0 - curve) / num_positive + of_cut / num_negative
    half = -ndtri(alpha / 2.0) * np.sqrt(variance)
    return RocBand(
        false_positive_rate=at,
        true_positive_rate=curve,
        lower=np.clip(curve - half, 0.0, 1.0),
        upper=np.clip(curve + half, 0.0, 1.0),
    )


def _logit_error(auc: FloatArray | float, variance: FloatArray | float) -> FloatArray:
    return np.asarray(np.sqrt(variance) / (np.asarray(auc) * (1.0 - np.asarray(auc))))


def _require_interior(auc: float) -> None:
    if not (math.isfinite(auc) and 0.0 < auc < 1.0):
        raise NotEstimable("auc-0-or-1", "the AUC is 0 or 1: its logit is infinite")
