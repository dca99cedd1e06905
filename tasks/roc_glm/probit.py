"""The ROC-GLM: probit regression of the counts at thresholds on (1, Phi^-1(t)).

The n1 x n_T responses u_ij have n_T distinct covariate rows, so w1_j = sum_i u_ij is sufficient
(Pepe 2003, section 5.5.2; Pepe 2000): the long data set is never built.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtri

from tasks.glm.families import FisherSums, mills_ratio, site_sums, starting_sums
from tasks.roc_glm.estimates import auc_of_roc_glm
from tasks.roc_glm.survivor import FloatArray, IntArray
from tasks.site.not_estimable import NotEstimable

_STEP_TOLERANCE = 1e-12
_MAX_ROUNDS = 100
_MAX_HALVINGS = 40
# A deviance that rises by less than its own rounding has not risen.
_ROUNDING = 1e-13


@dataclass(frozen=True)
class RocGlmFit:
    """A fitted ROC-GLM.

    Attributes
    ----------
    gamma_1, gamma_2 : float
        ROC(t) = Phi(gamma_1 + gamma_2 Phi^-1(t)).
    auc : float
        Phi(gamma_1 / sqrt(1 + gamma_2^2)).
    deviance : float
        Bernoulli deviance over all n1 x n_T responses.
    """

    gamma_1: float
    gamma_2: float
    auc: float
    deviance: float


@dataclass(frozen=True)
class RocGlmBatch:
    """Fits of D data sets at once; rows that are not `estimable` hold NaN.

    Attributes
    ----------
    gamma : (D, 2) float64
    auc, deviance : (D,) float64
    estimable : (D,) bool
    """

    gamma: FloatArray
    auc: FloatArray
    deviance: FloatArray
    estimable: np.ndarray[tuple[int], np.dtype[np.bool_]]


def thresholds(num_thresholds: int) -> FloatArray:
    """The set T: j / (n_T + 1), j = 1..n_T. 0 and 1 are excluded, the probit is infinite there."""
    return np.arange(1, num_thresholds + 1) / (num_thresholds + 1)


def probit_design(num_thresholds: int) -> FloatArray:
    """Covariates h(t) = (1, Phi^-1(t)) of the thresholds; (n_T, 2)."""
    return np.column_stack([np.ones(num_thresholds), ndtri(thresholds(num_thresholds))])


def probit_sums(w1: IntArray, num_positive: int, gamma: FloatArray | None) -> FisherSums:
    """A site's score vector, information and deviance for the `fisher` mode.

    Parameters
    ----------
    w1 : (n_T,) int64
        The site's positives with a placement value at or below each threshold.
    num_positive : int
        The site's positives, n1_k; may be 0.
    gamma : (2,) float64 or None
        Where to evaluate; None in the first round.
    """
    design = probit_design(len(w1))
    ones, trials = w1.astype(np.float64), np.full(len(w1), float(num_positive))
    if gamma is None:
        return starting_sums("probit", design, ones, trials=trials)
    return site_sums("probit", design, ones, gamma, trials=trials)


def require_existence(w1: FloatArray | IntArray, num_positive: float) -> None:
    """Raise unless the maximum-likelihood estimate exists.

    It does if and only if at least two thresholds have 0 < w1_j < n1; otherwise a step in t
    separates the responses, and iterations only stop because rounds run out.

    Raises
    ------
    NotEstimable
        ``"separated"`` (no such threshold) or ``"quasi-separated"`` (exactly one).
    """
    mixed = int(((w1 > 0) & (w1 < num_positive)).sum())
    if mixed >= 2:
        return
    raise NotEstimable(
        "separated" if mixed == 0 else "quasi-separated",
        f"{mixed} of {len(w1)} thresholds have positives on both sides; the ROC-GLM needs 2",
    )


def fit_roc_glm(w1: FloatArray | IntArray, num_positive: float) -> RocGlmFit:
    """Fit the ROC-GLM to pooled counts, to a step below 1e-12.

    Parameters
    ----------
    w1 : (n_T,)
        Pooled counts; not integers after a release with noise.
    num_positive : float
        n1.

    Raises
    ------
    NotEstimable
        ``"separated"``, ``"quasi-separated"`` or ``"not-converged"``.
    """
    require_existence(w1, num_positive)
    batch = fit_roc_glm_batch(
        np.asarray(w1, dtype=np.float64)[None, :], np.array([float(num_positive)])
    )
    if not batch.estimable[0]:
        raise NotEstimable("not-converged", f"no convergence within {_MAX_ROUNDS} rounds")
    return RocGlmFit(
        gamma_1=float(batch.gamma[0, 0]),
        gamma_2=float(batch.gamma[0, 1]),
        auc=float(batch.auc[0]),
        deviance=float(batch.deviance[0]),
    )


def fit_roc_glm_batch(w1: FloatArray | IntArray, num_positive: FloatArray) -> RocGlmBatch:
    """Fit the ROC-GLM to many data sets at once.

    Newton's method with the observed information and step halving: the same maximum as Fisher
    scoring, with quadratic convergence, which matters here since no exchange is paid for it. The
    log-likelihood is concave, so the maximum is the only stationary point.

    Parameters
    ----------
    w1 : (D, n_T)
        Pooled counts of each data set.
    num_positive : (D,) float64
        n1 of each data set.

    Returns
    -------
    RocGlmBatch
        `estimable` is False where the estimate does not exist or was not reached.
    """
    ones = np.asarray(w1, dtype=np.float64)
    trials = np.asarray(num_positive, dtype=np.float64)[:, None]
    estimable = ((ones > 0) & (ones < trials)).sum(axis=1) >= 2
    gamma = np.full((len(ones), 2), np.nan)
    deviance = np.full(len(ones), np.nan)
    active = np.flatnonzero(estimable)
    gamma[active], deviance[active], reached = _newton(ones[active], trials[active])
    gamma[active[~reached]] = np.nan
    deviance[active[~reached]] = np.nan
    estimable[active[~reached]] = False
    auc = np.full(len(ones), np.nan)
    auc[estimable] = auc_of_roc_glm(gamma[estimable, 0], gamma[estimable, 1])
    return RocGlmBatch(gamma=gamma, auc=auc, deviance=deviance, estimable=estimable)


def _newton(
    ones: FloatArray, trials: FloatArray
) -> tuple[FloatArray, FloatArray, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Coefficients (D, 2), deviances (D,), and whether each row arrived at a step < 1e-12."""
    x = ndtri(thresholds(ones.shape[1]))
    gamma = _empirical_line(x, ones, trials)
    deviance = _deviance(x, ones, trials, gamma)
    reached = np.zeros(len(ones), dtype=bool)
    for _ in range(_MAX_ROUNDS):
        todo = np.flatnonzero(~reached)
        if len(todo) == 0:
            break
        step = _newton_step(x, ones[todo], trials[todo], gamma[todo])
        gamma[todo], deviance[todo] = _halve(
            x, ones[todo], trials[todo], gamma[todo], step, deviance[todo]
        )
        reached[todo] = np.abs(step).max(axis=1) < _STEP_TOLERANCE * (
            1.0 + np.abs(gamma[todo]).max(axis=1)
        )
    return gamma, deviance, reached


def _empirical_line(x: FloatArray, ones: FloatArray, trials: FloatArray) -> FloatArray:
    """Start: the least-squares line through the empirical probits, pulled off 0 and 1."""
    probits = ndtri((ones + 0.5) / (trials + 1.0))
    slope = probits @ x / (x @ x)  # x is symmetric around 0
    return np.column_stack([probits.mean(axis=1), slope])


def _deviance(x: FloatArray, ones: FloatArray, trials: FloatArray, gamma: FloatArray) -> FloatArray:
    predictor = gamma[:, :1] + gamma[:, 1:] * x
    likelihood = ones * log_ndtr(predictor) + (trials - ones) * log_ndtr(-predictor)
    return np.asarray(-2.0 * likelihood.sum(axis=1))


def _newton_step(
    x: FloatArray, ones: FloatArray, trials: FloatArray, gamma: FloatArray
) -> FloatArray:
    predictor = gamma[:, :1] + gamma[:, 1:] * x
    up, down = mills_ratio(predictor), mills_ratio(-predictor)
    zeros = trials - ones
    slope = ones * up - zeros * down
    weight = ones * up * (up + predictor) + zeros * down * (down - predictor)
    score_1, score_2 = slope.sum(axis=1), slope @ x
    i11, i12, i22 = weight.sum(axis=1), weight @ x, weight @ (x * x)
    determinant = i11 * i22 - i12 * i12
    return np.column_stack(
        [
            (i22 * score_1 - i12 * score_2) / determinant,
            (i11 * score_2 - i12 * score_1) / determinant,
        ]
    )


def _halve(
    x: FloatArray,
    ones: FloatArray,
    trials: FloatArray,
    gamma: FloatArray,
    step: FloatArray,
    before: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Take the step, halved in the rows where the deviance would rise."""
    length = np.ones(len(step))
    reached = gamma + step
    after = _deviance(x, ones, trials, reached)
    for _ in range(_MAX_HALVINGS):
        risen = np.flatnonzero(~(after <= before + _ROUNDING * (np.abs(before) + 0.1)))
        if len(risen) == 0:
            break
        length[risen] /= 2.0
        reached[risen] = gamma[risen] + length[risen, None] * step[risen]
        after[risen] = _deviance(x, ones[risen], trials[risen], reached[risen])
    return reached, after
