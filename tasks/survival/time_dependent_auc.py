"""Cumulative/dynamic AUC at given times, and its mean, within sites.

At a time t, cases are rows with an event up to t and controls are rows that stay beyond t. A pair
of a case and a control of one site counts ``1 / G(t_case-)``, G the shared estimate of
`tasks.survival.censoring`, and is concordant if the case has the higher risk (Uno et al., J Am
Stat Assoc 102 (2007), 527-537; Hung and Chiang, Can J Stat 38 (2010), 8-26). AUC(t) is the ratio
of the weights of the concordant to those of all pairs, summed over sites.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.survival.censoring import CensoringWeights
from tasks.survival.concordance import (
    NO_COMPARABLE_PAIRS,
    Concordance,
    ConcordanceSums,
    concordance,
    logit_interval,
)
from tasks.survival.pair_counts import checked_row_weights, checked_rows
from tasks.survival.risk_sets import FloatArray

_ROUNDED = 1 + 1e-9


@dataclass(frozen=True, eq=False)
class AucSums:
    """What a site contributes to the AUC at K times.

    Row i takes part in pairs of weight ``b_ik`` at time k, of which ``a_ik`` are concordant. The
    products of different times are what the variance of the mean over times needs.

    Attributes
    ----------
    a, b : ndarray, shape (K,)
        Concordant and all pairs, each once: ``sum_i a_ik / 2`` and ``sum_i b_ik / 2``.
    aa, ab, bb : ndarray, shape (K, K)
        ``sum_i a_ik a_il``, ``sum_i a_ik b_il`` and ``sum_i b_ik b_il``.

    Raises
    ------
    ValueError
        If shapes do not fit, a sum is negative or not finite, or sums are not those of any rows:
        more concordant than all pairs, or products beyond what Cauchy and Schwarz allow.
    """

    a: FloatArray
    b: FloatArray
    aa: FloatArray
    ab: FloatArray
    bb: FloatArray

    def __post_init__(self) -> None:
        times = self.a.size
        vectors, squares = (self.a, self.b), (self.aa, self.ab, self.bb)
        if any(values.shape != (times,) for values in vectors) or any(
            values.shape != (times, times) for values in squares
        ):
            raise ValueError(f"AUC sums of {times} times have shapes that do not fit")
        if not all((np.isfinite(v) & (v >= 0)).all() for v in (*vectors, *squares)):
            raise ValueError("AUC sums must be finite and not negative")
        if (self.a > self.b).any():
            raise ValueError("AUC sums: more concordant than comparable pairs")
        root = np.sqrt(self.bb.diagonal())
        bound = np.outer(root, root) * _ROUNDED
        if any((values > bound).any() for values in squares):
            raise ValueError("AUC sums: products are beyond those of any rows")

    @classmethod
    def zeros(cls, times: int) -> AucSums:
        """Sums over no rows."""
        vector, square = np.zeros(times), np.zeros((times, times))
        return cls(vector, vector, square, square, square)

    @classmethod
    def of(
        cls,
        risk: npt.ArrayLike,
        time: npt.ArrayLike,
        event: npt.ArrayLike,
        *,
        times: npt.ArrayLike,
        censoring: CensoringWeights,
        row_weight: npt.ArrayLike | None = None,
    ) -> AucSums:
        """Sums over the rows of one site, in O(K n log n).

        Parameters
        ----------
        risk : array_like, shape (n,) or (n, K)
            Predicted risk, one for all times or one for each; only its order matters.
        time, event : array_like, shape (n,)
            Follow-up times, positive; whether the event was seen.
        times : array_like, shape (K,)
            Ascending; within the censoring estimate's grid, G positive before the last.
        censoring : CensoringWeights
            Shared by all sites.
        row_weight : array_like, shape (n,), optional
            Rows that each row stands for; 1 if left out.

        Raises
        ------
        ValueError
            If lengths differ, a number is out of range, or G is 0 at a case.
        """
        at = checked_times(times)
        follow_up = np.asarray(time, dtype=np.float64)
        risks = np.asarray(risk, dtype=np.float64)
        if risks.ndim == 1:
            risks = np.broadcast_to(risks[:, None], (risks.size, at.size))
        if risks.shape != (follow_up.size, at.size):
            raise ValueError(
                f"risks have shape {risks.shape}; allowed: (rows,) or (rows, {at.size})"
            )
        weights = checked_row_weights(row_weight, follow_up.size)
        counts = np.zeros((2, follow_up.size, at.size))
        for k, (moment, column) in enumerate(zip(at, risks.T, strict=True)):
            checked, follow_up, events = checked_rows(column, follow_up, event)
            is_case = events & (follow_up <= moment)
            case_weight = np.zeros(follow_up.size)
            case_weight[is_case] = censoring.case_weights(follow_up[is_case])
            counts[:, :, k] = _pairs(checked, is_case, follow_up > moment, case_weight, weights)
        a, b = counts
        weighted_a, weighted_b = weights[:, None] * a, weights[:, None] * b
        return cls(
            a=weighted_a.sum(axis=0) / 2,
            b=weighted_b.sum(axis=0) / 2,
            aa=weighted_a.T @ a,
            ab=weighted_a.T @ b,
            bb=weighted_b.T @ b,
        )

    def only(self, told: npt.NDArray[np.bool_]) -> AucSums:
        """The sums of the times that are true in `told`, shape (K,), zeros for the others."""
        vector, square = told.astype(np.float64), np.outer(told, told).astype(np.float64)
        return AucSums(
            self.a * vector,
            self.b * vector,
            self.aa * square,
            self.ab * square,
            self.bb * square,
        )

    def __add__(self, other: AucSums) -> AucSums:
        return AucSums(
            self.a + other.a,
            self.b + other.b,
            self.aa + other.aa,
            self.ab + other.ab,
            self.bb + other.bb,
        )

    def at(self, k: int) -> ConcordanceSums:
        """The five sums of one time."""
        return ConcordanceSums(
            float(self.a[k]),
            float(self.b[k]),
            float(self.aa[k, k]),
            float(self.ab[k, k]),
            float(self.bb[k, k]),
        )

    def to_floats(self) -> FloatArray:
        """All numbers in one vector, shape (2 K + 3 K ** 2,)."""
        return np.concatenate(
            [values.ravel() for values in (self.a, self.b, self.aa, self.ab, self.bb)]
        )

    @classmethod
    def from_floats(cls, values: FloatArray, *, times: int) -> AucSums:
        """The inverse of `to_floats`; raises ValueError as the class does."""
        if values.shape != (2 * times + 3 * times**2,):
            raise ValueError(f"AUC sums of {times} times need {2 * times + 3 * times**2} numbers")
        vectors, squares = values[: 2 * times], values[2 * times :]
        a, b = vectors.reshape(2, times)
        aa, ab, bb = squares.reshape(3, times, times)
        return cls(a, b, aa, ab, bb)


def auc_at_times(sums: AucSums, confidence_level: float) -> tuple[Concordance, ...]:
    """AUC and its interval on the logit scale at every time; see `concordance`."""
    return tuple(concordance(sums.at(k), confidence_level) for k in range(sums.a.size))


def mean_auc(sums: AucSums, survival: npt.ArrayLike, confidence_level: float) -> Concordance:
    """Mean of the AUC over times, weighted by the events that come between them.

    The weight of time k is the fall of the survival function from time k - 1 (for the first, from
    0) to k, which is taken as known (Lambert and Chevret, Stat Methods Med Res 25 (2016),
    2088-2102).

    Parameters
    ----------
    sums : AucSums
        Sum of the sites' sums.
    survival : array_like, shape (K,)
        Pooled Kaplan-Meier estimate at the times, not rising.
    confidence_level : float
        In (0, 1).

    Returns
    -------
    Concordance
        Without a value if a time that has weight has no pairs.

    Raises
    ------
    ValueError
        If lengths differ or a number is out of range.
    """
    falling = np.concatenate(([1.0], np.asarray(survival, dtype=np.float64)))
    if falling.shape != (sums.a.size + 1,) or not (np.diff(falling) <= 0).all():
        raise ValueError(
            f"survival at {sums.a.size} times must be as many numbers that fall from 1"
        )
    fall = -np.diff(falling)
    used = fall > 0
    pairs = float(sums.b.sum())
    if not used.any() or (sums.b[used] == 0).any():
        return Concordance(None, None, None, pairs, NO_COMPARABLE_PAIRS)
    share = fall[used] / fall[used].sum()
    a, b = sums.a[used], sums.b[used]
    auc = a / b
    value = float(share @ auc)
    # Row i has the influence sum_k share_k (a_ik - AUC_k b_ik) / B_k.
    q, r = share / b, share * auc / b
    pick = np.ix_(used, used)
    aa, ab, bb = sums.aa[pick], sums.ab[pick], sums.bb[pick]
    variance = float(q @ aa @ q - 2 * (q @ ab @ r) + r @ bb @ r)
    if variance <= 1e-12 * float(q @ aa @ q):
        variance = 0.0
    return logit_interval(value, variance, pairs, confidence_level)


def checked_times(times: npt.ArrayLike) -> FloatArray:
    """Times that ascend, or a ValueError."""
    at = np.asarray(times, dtype=np.float64)
    if at.ndim != 1 or not at.size or not np.isfinite(at).all() or not (np.diff(at) > 0).all():
        raise ValueError("times must be at least one, finite, and ascend")
    return at


def _pairs(
    risk: FloatArray,
    is_case: npt.NDArray[np.bool_],
    is_control: npt.NDArray[np.bool_],
    case_weight: FloatArray,
    row_weight: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Concordant and all pairs of every row with the rows of the other kind."""
    concordant, comparable = np.zeros(risk.size), np.zeros(risk.size)
    controls = _Ranked(risk[is_control], row_weight[is_control])
    cases = _Ranked(risk[is_case], row_weight[is_case] * case_weight[is_case])
    weight = case_weight[is_case]
    comparable[is_case] = weight * controls.total
    concordant[is_case] = weight * controls.mid_below(risk[is_case])
    comparable[is_control] = cases.total
    concordant[is_control] = cases.total - cases.mid_below(risk[is_control])
    return np.clip(concordant, 0.0, comparable), comparable


class _Ranked:
    """Weighted values in ascending order."""

    def __init__(self, values: FloatArray, weights: FloatArray) -> None:
        order = np.argsort(values, kind="stable")
        self._values = values[order]
        self._before = np.concatenate(([0.0], np.cumsum(weights[order])))
        self.total = float(self._before[-1])

    def mid_below(self, limits: FloatArray) -> FloatArray:
        """Weight of the values below each limit, and half of those equal to it."""
        below = self._before[np.searchsorted(self._values, limits, side="left")]
        return (below + self._before[np.searchsorted(self._values, limits, side="right")]) / 2
