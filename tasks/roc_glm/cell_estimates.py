"""AUC, its variance and the ROC-GLM from class probabilities in cells, as noisy counts leave them.

Every function takes a stack of data sets in the leading axes, so that a simulation is one call.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from tasks.roc_glm.probit import thresholds
from tasks.roc_glm.survivor import FloatArray


def fit_cumulative_counts(noisy: FloatArray, total: FloatArray | float) -> FloatArray:
    """Cell probabilities from noisy counts above the cuts: least squares, decreasing, in [0, n].

    Parameters
    ----------
    noisy : (..., M - 1) float64
        Number of scores above each cut, summed over sites, with noise.
    total : (...,) float64 or float
        Class size n, public.

    Returns
    -------
    (..., M) float64
        Probabilities of the cells, lowest first; sum 1.
    """
    size = np.asarray(total, dtype=np.float64)[..., None]
    # Bounded isotonic regression is the isotonic one, cut to the bounds.
    above = np.clip(-isotonic(-noisy), 0.0, size) / size
    ends = np.ones((*above.shape[:-1], 1))
    return -np.diff(np.concatenate([ends, above, 0.0 * ends], axis=-1), axis=-1)


def fit_histogram(noisy: FloatArray, total: FloatArray | float) -> FloatArray:
    """Cell probabilities from noisy cell counts.

    The cells are first made to sum to the public class size (least squares under that
    restriction), then accumulated and fitted as cumulative counts are: a cut to positive cells
    would flatten the distribution and pull the AUC towards 1/2.

    Parameters
    ----------
    noisy : (..., M) float64
        Number of scores in each cell, summed over sites, with noise.
    total : (...,) float64 or float
        Class size n, public.

    Returns
    -------
    (..., M) float64
    """
    size = np.asarray(total, dtype=np.float64)[..., None]
    cells = noisy + (size - noisy.sum(axis=-1, keepdims=True)) / noisy.shape[-1]
    above = np.cumsum(cells[..., :0:-1], axis=-1)[..., ::-1]
    return fit_cumulative_counts(above, total)


def isotonic(values: FloatArray) -> FloatArray:
    """Least-squares fit that does not decrease along the last axis, equal weights.

    By the max-min formula (Barlow et al., "Statistical inference under order restrictions", 1972,
    theorem 1.4): fit_i = max over a <= i of min over b >= i of mean(values[a..b]).

    Parameters
    ----------
    values : (..., m) float64
    """
    m = values.shape[-1]
    sums = np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)
    start, end = np.arange(m)[:, None], np.arange(m)[None, :]
    length = end - start + 1
    means = (sums[..., None, 1:] - sums[..., :-1, None]) / np.where(length > 0, length, 1)
    means = np.where(length > 0, means, np.inf)
    smallest = np.minimum.accumulate(means[..., ::-1], axis=-1)[..., ::-1]
    smallest = np.where(length > 0, smallest, -np.inf)
    return np.asarray(smallest.max(axis=-2))


def cell_placement(probabilities: FloatArray) -> FloatArray:
    """Survivor function at the scores of each cell, ties half; (..., M) to (..., M)."""
    from_above = np.cumsum(probabilities[..., ::-1], axis=-1)[..., ::-1]
    return from_above - 0.5 * probabilities


def cell_auc(negative: FloatArray, positive: FloatArray) -> FloatArray:
    """AUC of two sets of cell probabilities, ties half; (..., M) each to (...,)."""
    return np.asarray((negative * cell_placement(positive)).sum(axis=-1))


def cell_delong_variance(
    negative: FloatArray,
    positive: FloatArray,
    *,
    num_negative: FloatArray | float,
    num_positive: FloatArray | float,
) -> FloatArray:
    """DeLong variance of the AUC from cell probabilities (..., M) and class sizes (...,) >= 2."""
    return placement_mean_variance(negative, positive, num_negative) + placement_mean_variance(
        positive, negative, num_positive
    )


def placement_mean_variance(
    of: FloatArray, against: FloatArray, number: FloatArray | float
) -> FloatArray:
    """One half of the DeLong variance: that of the mean placement value of a class.

    Parameters
    ----------
    of, against : (..., M) float64
        Cell probabilities of the class whose placement values are meant, and of the other class.
    number : (...,) float64 or float
        Size of the class, at least 2.
    """
    values = cell_placement(against)
    mean = (of * values).sum(axis=-1, keepdims=True)
    spread = (of * (values - mean) ** 2).sum(axis=-1)
    return np.asarray(spread / (np.asarray(number, dtype=np.float64) - 1.0))


def cell_threshold_counts(
    negative: FloatArray,
    positive: FloatArray,
    *,
    num_positive: FloatArray | float,
    num_thresholds: int,
) -> FloatArray:
    """w1_j of the ROC-GLM, real-valued, from cell probabilities; (..., n_T).

    The fitted ROC curve with straight lines between the cells, which is what ties counted half
    mean, read at the thresholds: with few cells a step function would make w1 jump.
    """
    zeros = np.zeros((*negative.shape[:-1], 1))
    false = np.concatenate([zeros, np.cumsum(negative[..., ::-1], axis=-1)], axis=-1)
    true = np.concatenate([zeros, np.cumsum(positive[..., ::-1], axis=-1)], axis=-1)
    at = thresholds(num_thresholds)
    # First point of the curve to the right of each threshold, for a stack of curves at once.
    right = np.clip((false[..., None, :] <= at[:, None]).sum(axis=-1), 1, false.shape[-1] - 1)
    x0, x1 = (np.take_along_axis(false, right + shift, axis=-1) for shift in (-1, 0))
    y0, y1 = (np.take_along_axis(true, right + shift, axis=-1) for shift in (-1, 0))
    width = np.where(x1 > x0, x1 - x0, 1.0)
    curve = np.where(x1 > x0, y0 + (y1 - y0) * np.clip((at - x0) / width, 0.0, 1.0), y1)
    return curve * np.asarray(num_positive, dtype=np.float64)[..., None]


def noise_variance(
    release: Literal["noisy-counts", "noisy-histogram"],
    negative: FloatArray,
    positive: FloatArray,
    *,
    num_negative: FloatArray | float,
    num_positive: FloatArray | float,
    sigma: float,
    noises: int,
) -> FloatArray:
    """Variance that the noise of the release adds to the AUC, to first order.

    Parameters
    ----------
    release : {"noisy-counts", "noisy-histogram"}
    negative, positive : (..., M) float64
        Fitted cell probabilities.
    num_negative, num_positive : (...,) float64 or float
        Class sizes.
    sigma : float
        Standard deviation of one noise.
    noises : int
        Independent noises in the sum: the number of sites, or 1 where they share it.
    """
    n0 = np.asarray(num_negative, dtype=np.float64)
    n1 = np.asarray(num_positive, dtype=np.float64)
    if release == "noisy-counts":
        # A cumulative count of one class enters with the other class's mass around its cut.
        by_positive = 0.5 * (negative[..., :-1] + negative[..., 1:])
        by_negative = 0.5 * (positive[..., :-1] + positive[..., 1:])
    else:
        # A cell of one class enters with the other class's placement value; the restriction to
        # the class size takes out the mean.
        by_positive = cell_placement(negative)
        by_negative = cell_placement(positive)
        by_positive = by_positive - by_positive.mean(axis=-1, keepdims=True)
        by_negative = by_negative - by_negative.mean(axis=-1, keepdims=True)
    return np.asarray(
        noises
        * sigma**2
        * ((by_positive**2).sum(axis=-1) / n1**2 + (by_negative**2).sum(axis=-1) / n0**2)
    )
