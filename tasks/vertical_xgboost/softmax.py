"""The softmax of several margins a row, computed so that the bits do not depend on other rows.

Exponentials and logarithms are scipy's scalar loops and sums over classes go class by class, since
numpy's vectorized functions may round a value differently depending on the array it stands in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import expm1, log1p

from tasks.vertical_xgboost.fixed_point import FloatArray


def probabilities(margins: FloatArray) -> FloatArray:
    """Probability of each class, exp(m_c) over their sum.

    Parameters
    ----------
    margins : (classes, n) float64

    Returns
    -------
    (classes, n) float64
    """
    shares, total = _shares(margins)
    return shares / total


def log_losses(margins: FloatArray, classes: FloatArray) -> FloatArray:
    """-log of the probability of each row's class.

    Parameters
    ----------
    margins : (classes, n) float64
    classes : (n,) float64
        Whole numbers from 0.

    Returns
    -------
    (n,) float64
    """
    _, total = _shares(margins)
    own = margins[classes.astype(np.intp), np.arange(margins.shape[1])]
    losses: FloatArray = log1p(total - 1.0) + (margins.max(axis=0) - own)
    return losses


def centred_log_shares(counts: Sequence[float]) -> tuple[float, ...]:
    """Margins that give each class its share, as XGBoost from 3.2 on has them: of mean 0.

    Parameters
    ----------
    counts : sequence of float
        Rows of each class, or sums of their weights, above 0.
    """
    logs = [math.log(count) for count in counts]
    mean = math.fsum(logs) / len(logs)
    return tuple(each - mean for each in logs)


def _shares(margins: FloatArray) -> tuple[FloatArray, FloatArray]:
    """exp of margins less the largest of their row, and the sum of these, 1 or more."""
    # With an absolute error of 1e-16, which is far below the fixed point of gradients.
    shares = expm1(margins - margins.max(axis=0)) + 1.0
    total = np.zeros(margins.shape[1])
    for each in shares:
        total = total + each
    return shares, total
