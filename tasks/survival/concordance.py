"""Harrell's concordance within sites, from five sums a site.

A pair of rows is compared only if both rows belong to one site, so nothing of a single row has to
leave it. The pooled value is the ratio of the summed concordant to the summed comparable pairs,
which is the C index stratified by site. It is not the C index of the pooled rows, which also
compares rows of different sites.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.survival.estimate import logistic, normal_quantile
from tasks.survival.pair_counts import pair_counts

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

NO_COMPARABLE_PAIRS = "no-comparable-pairs"
AT_BOUNDARY = "c-index-at-boundary"
NO_VARIANCE = "no-variance"

IDENTICAL_ACROSS_SAMPLES = "identical_across_samples"
EXACTLY_HALF = "c_index_exactly_half"
NEGLIGIBLE_SPREAD = "negligible_spread"

# One standard deviation of the linear predictor below this is a hazard ratio below 1.01.
SPREAD_NEAR_ZERO = 0.01

# Below this share of sum(a_i^2), what is left of the variance is rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class ConcordanceSums:
    """What a site contributes to the concordance: five sums over pairs and rows.

    Two rows are comparable if the one with the event left first: an event before any later time,
    and an event before a censoring at the same time. Two events at one time are not comparable.
    Row i takes part in ``b_i`` comparable pairs, of which ``a_i`` are concordant (the earlier
    event has the higher risk; equal risks count 1/2). A pair counts for both of its rows, so
    ``sum(b_i)`` is twice the number of pairs.

    Attributes
    ----------
    a : float
        Concordant pairs, each pair once: ``sum(a_i) / 2``.
    b : float
        Comparable pairs, each pair once: ``sum(b_i) / 2``.
    aa, ab, bb : float
        ``sum(a_i ** 2)``, ``sum(a_i * b_i)`` and ``sum(b_i ** 2)`` over rows.

    Raises
    ------
    ValueError
        If a sum is not finite or negative, or there are more concordant than comparable pairs.
    """

    a: float = 0.0
    b: float = 0.0
    aa: float = 0.0
    ab: float = 0.0
    bb: float = 0.0

    def __post_init__(self) -> None:
        sums = (self.a, self.b, self.aa, self.ab, self.bb)
        if not all(math.isfinite(value) and value >= 0 for value in sums):
            raise ValueError("concordance sums must be finite and not negative")
        if self.a > self.b:
            raise ValueError("concordance sums: more concordant than comparable pairs")

    @classmethod
    def of(cls, risk: npt.ArrayLike, time: npt.ArrayLike, event: npt.ArrayLike) -> ConcordanceSums:
        """Sums over the rows of one site, in O(n log n).

        Parameters
        ----------
        risk : array_like, shape (n,)
            Predicted risk; higher means an earlier event. Only its order matters.
        time : array_like, shape (n,)
            Follow-up times.
        event : array_like of bool, shape (n,)
            True where the event was seen, False where the row was censored.

        Raises
        ------
        ValueError
            If lengths differ, a risk is NaN or a time is not finite.
        """
        return cls.of_pairs(*pair_counts(risk, time, event))

    @classmethod
    def of_pairs(
        cls,
        concordant: FloatArray,
        comparable: FloatArray,
        *,
        row_weight: FloatArray | None = None,
    ) -> ConcordanceSums:
        """Sums of the pairs that every row takes part in.

        Parameters
        ----------
        concordant, comparable : ndarray, shape (n,)
            ``a_i`` and ``b_i``.
        row_weight : ndarray, shape (n,), optional
            How often a row counts; once by default.
        """
        weight = np.ones(concordant.size) if row_weight is None else row_weight
        weighted_concordant, weighted_comparable = weight * concordant, weight * comparable
        return cls(
            a=float(weighted_concordant.sum() / 2),
            b=float(weighted_comparable.sum() / 2),
            aa=float(weighted_concordant @ concordant),
            ab=float(weighted_concordant @ comparable),
            bb=float(weighted_comparable @ comparable),
        )

    def __add__(self, other: ConcordanceSums) -> ConcordanceSums:
        return ConcordanceSums(
            a=self.a + other.a,
            b=self.b + other.b,
            aa=self.aa + other.aa,
            ab=self.ab + other.ab,
            bb=self.bb + other.bb,
        )

    def to_floats(self) -> FloatArray:
        """The five sums as a vector, in the order of the attributes."""
        return np.array([self.a, self.b, self.aa, self.ab, self.bb])

    @classmethod
    def from_floats(cls, values: FloatArray) -> ConcordanceSums:
        """The inverse of `to_floats`; raises ValueError as the class does."""
        if values.shape != (5,):
            raise ValueError(f"concordance sums are 5 numbers, got shape {values.shape}")
        return cls(*values.tolist())


def impossible_sums(sums: ConcordanceSums, *, rows: float | None = None) -> bool:
    """Whether squares are not those of pair counts with these sums, ``0 <= a_i <= b_i``.

    Parameters
    ----------
    sums : ConcordanceSums
        That came from elsewhere.
    rows : float, optional
        Rows behind them: then squares that are too small for so many are impossible, too.
    """
    root_aa, root_bb, rounded = math.sqrt(sums.aa), math.sqrt(sums.bb), 1 + 1e-9
    if (
        root_bb > 2 * sums.b * rounded
        or root_aa > min(root_bb, 2 * sums.a) * rounded
        or sums.ab > root_aa * root_bb * rounded
        or sums.aa > sums.ab * rounded
    ):
        return True
    if rows is None:
        return False
    most = math.sqrt(rows) * rounded
    return 2 * sums.b > root_bb * most or 2 * sums.a > root_aa * most


@dataclass(frozen=True)
class Concordance:
    """Pooled concordance with its confidence interval.

    Attributes
    ----------
    value : float or None
        C in 0..1; None if no pair is comparable.
    lower, upper : float or None
        Bounds of the interval; None if it does not exist (see `reason`).
    comparable_pairs : float
        Number of pairs that C rests on.
    reason : str
        Why something is missing: ``no-comparable-pairs``, ``c-index-at-boundary`` (C is 0 or 1,
        where the logit is infinite), ``no-variance`` (every row has the same share of concordant
        pairs, as with identical predictions); empty if nothing is.
    """

    value: float | None
    lower: float | None
    upper: float | None
    comparable_pairs: float
    reason: str = ""


def concordance(sums: ConcordanceSums, confidence_level: float) -> Concordance:
    """C and its confidence interval on the logit scale, from the sums of all sites.

    Parameters
    ----------
    sums : ConcordanceSums
        Sum of the sites' sums.
    confidence_level : float
        In (0, 1), for example .95.

    Raises
    ------
    ValueError
        If the confidence level is out of range.
    """
    normal_quantile(confidence_level)  # refused before it matters
    if sums.b == 0:
        return Concordance(None, None, None, 0.0, NO_COMPARABLE_PAIRS)
    return logit_interval(sums.a / sums.b, concordance_variance(sums), sums.b, confidence_level)


def logit_interval(
    value: float, variance: float, pairs: float, confidence_level: float
) -> Concordance:
    """A share of concordant pairs with its interval on the logit scale.

    Parameters
    ----------
    value, variance : float
        The share, in 0..1, and its variance; none is known if the variance is 0.
    pairs : float
        Comparable pairs behind it.
    confidence_level : float
        In (0, 1).

    Raises
    ------
    ValueError
        If the confidence level is out of range.
    """
    quantile = normal_quantile(confidence_level)
    if value in (0.0, 1.0):
        return Concordance(value, None, None, pairs, AT_BOUNDARY)
    if variance == 0:
        return Concordance(value, None, None, pairs, NO_VARIANCE)
    half_width = quantile * math.sqrt(variance) / (value * (1 - value))
    logit = math.log(value / (1 - value))
    return Concordance(value, logistic(logit - half_width), logistic(logit + half_width), pairs)


def concordance_variance(sums: ConcordanceSums) -> float:
    """Variance of C = A / B, ``sum((a_i - C b_i) ** 2) / B ** 2``.

    C solves sum over pairs (concordant - C comparable) = 0. That sum is a U-statistic, and its
    projection gives each row the pairs it takes part in, a_i - C b_i, without a factor: hence
    a_i and b_i count a pair for both of its rows while B counts it once. It is the infinitesimal
    jackknife of a ratio.

    Rows of all sites enter as one sample, so where sites differ in their own C, that difference
    is taken for chance and the variance is too large (by 10 % with C from .57 to .73).

    Raises
    ------
    ValueError
        If there is no comparable pair.
    """
    if sums.b == 0:
        raise ValueError("no comparable pairs: the concordance has no variance")
    value = sums.a / sums.b
    squares = sums.aa - 2 * value * sums.ab + value**2 * sums.bb
    if squares <= _ROUNDING * sums.aa:
        return 0.0
    return squares / sums.b**2


def collapse(
    concordance: Concordance, *, identical_across_samples: bool, spread: float
) -> tuple[str, ...]:
    """Signs that the model predicts the same for everybody.

    Parameters
    ----------
    concordance : Concordance
        Pooled concordance of the model.
    identical_across_samples : bool
        All predictions are equal, see `identical_predictions`.
    spread : float
        Standard deviation of the predicted risk over all rows (the logarithm of a hazard).

    Returns
    -------
    tuple of str
        One line a sign, each starting with its name (``identical_across_samples``,
        ``c_index_exactly_half``, ``negligible_spread``); empty if there is none.
    """
    signs = []
    if identical_across_samples:
        signs.append(f"{IDENTICAL_ACROSS_SAMPLES}: every row has the same prediction")
    if concordance.value == 0.5:
        signs.append(
            f"{EXACTLY_HALF}: C is exactly .5 over {concordance.comparable_pairs:.0f} pairs, "
            "as it is for equal predictions"
        )
    lower, upper = concordance.lower, concordance.upper
    if (
        spread < SPREAD_NEAR_ZERO
        and lower is not None
        and upper is not None
        and lower <= 0.5 <= upper
    ):
        signs.append(
            f"{NEGLIGIBLE_SPREAD}: the predicted risk varies by a standard deviation of "
            f"{spread:.2g} only, and the interval of C ({lower:.3f} to {upper:.3f}) contains .5"
        )
    return tuple(signs)


def identical_predictions(risk: npt.ArrayLike) -> bool:
    """Whether all predictions of a site are equal, bit for bit (no rows: True)."""
    values = np.asarray(risk)
    return bool(values.size == 0 or np.all(values == values.flat[0]))
