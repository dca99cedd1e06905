"""A pooled value with its confidence interval, or the reason why there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

NO_ROWS = "no-rows"
ONE_ROW = "one-row"


@dataclass(frozen=True)
class Estimate:
    """A value with its confidence interval.

    Attributes
    ----------
    value : float or None
        None if it does not exist (see `reason`).
    lower, upper : float or None
        Bounds of the interval; None if it does not exist.
    reason : str
        Why something is missing, in kebab-case; empty if nothing is.
    """

    value: float | None
    lower: float | None = None
    upper: float | None = None
    reason: str = ""


def normal_quantile(confidence_level: float) -> float:
    """Half width of a two-sided interval in standard errors, as 1.96 for .95.

    Raises
    ------
    ValueError
        If the confidence level is not between 0 and 1.
    """
    if not 0 < confidence_level < 1:
        raise ValueError(f"confidence level must be between 0 and 1, got {confidence_level}")
    return NormalDist().inv_cdf(0.5 + confidence_level / 2)


def mean_estimate(
    rows: float, total: float, squares: float, *, confidence_level: float, least: float = -math.inf
) -> Estimate:
    """Mean of rows and its normal interval, from the number, sum and sum of squares of rows.

    Parameters
    ----------
    rows, total, squares : float
        Number of rows, sum of their values and of the squares.
    confidence_level : float
        In (0, 1).
    least : float
        Smallest possible value; the interval ends there.

    Returns
    -------
    Estimate
        Without a value if there are no rows, without an interval if there is one only.

    Raises
    ------
    ValueError
        If the confidence level is out of range.
    """
    quantile = normal_quantile(confidence_level)
    if rows <= 0:
        return Estimate(None, reason=NO_ROWS)
    mean = total / rows
    if rows <= 1:
        return Estimate(mean, reason=ONE_ROW)
    variance = max(0.0, squares - rows * mean**2) / (rows - 1) / rows
    half_width = quantile * math.sqrt(variance)
    return Estimate(mean, max(least, mean - half_width), mean + half_width)


def logistic(value: float) -> float:
    """Inverse of the logit, without overflow for either sign."""
    if value >= 0:
        return 1 / (1 + math.exp(-value))
    return math.exp(value) / (1 + math.exp(value))
