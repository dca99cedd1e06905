"""Brier scores at given times and their integral, as means over the rows of all sites.

With inverse probability of censoring weights from the shared estimate G of
`tasks.survival.censoring`, row i with predicted survival S_i scores at t (Graf et al., Stat Med 18
(1999), 2529-2545)

- ``S_i(t) ** 2 / G(t_i-)`` after its event (t_i <= t),
- ``(1 - S_i(t)) ** 2 / G(t)`` as long as it is followed (t_i > t),
- 0 after its censoring.

The integrated score of a row is the integral of this over the points of the integration grid by
the trapezoidal rule, divided by the grid's length. Both are means over rows, so that the pooled
value is that of the pooled rows exactly. The same rows are scored with a reference, one survival
function for all of them (the Kaplan-Meier estimate of the pooled counts): the difference tells
whether the model knows more than no features at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.survival.censoring import CensoringWeights
from tasks.survival.estimate import Estimate, mean_estimate
from tasks.survival.pair_counts import checked_row_weights, checked_rows
from tasks.survival.risk_sets import FloatArray

_BLOCK = 2048  # rows that are scored at a time
_ROUNDED = 1 + 1e-9
_MOST_ROWS = 2.0**53
_FIELDS = ("score", "square", "reference", "reference_square", "product")


@dataclass(frozen=True, eq=False)
class BrierSums:
    """What a site contributes: sums over rows of Q scores, the last one the integrated score.

    Attributes
    ----------
    rows : float
        Rows behind the sums.
    score, square : ndarray, shape (Q,)
        Sum of the model's scores and of their squares.
    reference, reference_square : ndarray, shape (Q,)
        The same of the reference's scores.
    product : ndarray, shape (Q,)
        Sum of the products of both.

    Raises
    ------
    ValueError
        If shapes do not fit, a sum is negative or not finite, or sums are not those of any rows:
        beyond what Cauchy and Schwarz allow.
    """

    rows: float
    score: FloatArray
    square: FloatArray
    reference: FloatArray
    reference_square: FloatArray
    product: FloatArray

    def __post_init__(self) -> None:
        sums = [getattr(self, name) for name in _FIELDS]
        if any(values.shape != self.score.shape or values.ndim != 1 for values in sums):
            raise ValueError("Brier sums must be vectors of one length")
        if not (
            np.isfinite(self.rows)
            and 0 <= self.rows <= _MOST_ROWS
            and all((np.isfinite(values) & (values >= 0)).all() for values in sums)
        ):
            raise ValueError("Brier sums must be finite and not negative")
        if (
            _exceeds(self.score, self.rows, self.square)
            or _exceeds(self.reference, self.rows, self.reference_square)
            or _exceeds(self.product, self.square, self.reference_square)
        ):
            raise ValueError("Brier sums are beyond those of any rows")

    @classmethod
    def zeros(cls, times: int) -> BrierSums:
        """Sums over no rows, for so many times beside the integral."""
        return cls(0.0, *(np.zeros(times + 1) for _ in _FIELDS))

    @classmethod
    def of(
        cls,
        time: npt.ArrayLike,
        event: npt.ArrayLike,
        survival: npt.ArrayLike,
        *,
        grid: npt.ArrayLike,
        at: npt.ArrayLike,
        reference: npt.ArrayLike,
        censoring: CensoringWeights,
        model_censoring: CensoringWeights | None = None,
        row_weight: npt.ArrayLike | None = None,
    ) -> BrierSums:
        """Sums over the rows of one site, in O(n m).

        Parameters
        ----------
        time, event : array_like, shape (n,)
            Follow-up times, positive; whether the event was seen.
        survival : array_like, shape (n, m)
            Predicted survival at the points of the integration grid, in 0..1.
        grid : array_like, shape (m,)
            Integration grid, ascending, at least two points; G positive up to the last.
        at : array_like of int, shape (K,)
            Points of the grid at which the Brier score itself is summed.
        reference : array_like, shape (m,)
            Survival that the reference predicts for every row.
        censoring : CensoringWeights
            Shared by all sites.
        model_censoring : CensoringWeights, optional
            Other weights for the model's scores, where these may depend on more of the rows' times
            than the reference's.
        row_weight : array_like, shape (n,), optional
            Rows that each row stands for; 1 if left out.

        Raises
        ------
        ValueError
            If shapes do not fit, a number is out of range, or G is 0 within the grid.
        """
        times = np.asarray(time, dtype=np.float64)
        _, times, events = checked_rows(np.zeros(times.shape), times, event)
        weights = checked_row_weights(row_weight, times.size)
        points = np.asarray(grid, dtype=np.float64)
        curves = np.asarray(survival, dtype=np.float64)
        baseline = np.asarray(reference, dtype=np.float64)
        _refuse_bad_curves(points, curves, baseline, rows=times.size)
        scored = _Scored(points, np.asarray(at, dtype=np.int64), censoring)
        sums = np.zeros((len(_FIELDS), scored.at.size + 1))
        for start in range(0, times.size, _BLOCK):
            own = slice(start, start + _BLOCK)
            case, control = scored.weights(times[own], events[own])
            r = scored.scores(case, control, baseline)
            if model_censoring is not None:
                case, control = model_censoring.score_weights(times[own], events[own], points)
            x = scored.scores(case, control, curves[own])
            w = weights[own]
            sums += [w @ x, w @ x**2, w @ r, w @ r**2, w @ (x * r)]
        return cls(float(weights.sum()), *sums)

    def __add__(self, other: BrierSums) -> BrierSums:
        if self.score.shape != other.score.shape:
            raise ValueError("Brier sums of different numbers of times do not add up")
        return BrierSums(
            self.rows + other.rows,
            *(getattr(self, name) + getattr(other, name) for name in _FIELDS),
        )

    def to_floats(self) -> FloatArray:
        """All numbers in one vector, shape (1 + 5 Q,)."""
        return np.concatenate([[self.rows], *(getattr(self, name) for name in _FIELDS)])

    @classmethod
    def from_floats(cls, values: FloatArray, *, times: int) -> BrierSums:
        """The inverse of `to_floats`; raises ValueError as the class does."""
        if values.shape != (1 + len(_FIELDS) * (times + 1),):
            raise ValueError(
                f"Brier sums of {times} times need {1 + len(_FIELDS) * (times + 1)} numbers"
            )
        return cls(float(values[0]), *values[1:].reshape(len(_FIELDS), times + 1))


@dataclass(frozen=True)
class BrierScores:
    """Pooled scores with confidence intervals.

    Attributes
    ----------
    at_times : tuple of Estimate
        Brier score at every time.
    integrated : Estimate
        Integrated Brier score.
    reference : Estimate
        Integrated Brier score of the reference on the same rows.
    difference : Estimate
        The model's integrated score less the reference's; its interval is that of paired rows.
    """

    at_times: tuple[Estimate, ...]
    integrated: Estimate
    reference: Estimate
    difference: Estimate

    @property
    def worse_than_reference(self) -> bool:
        """Whether the model's integrated score exceeds the reference's."""
        return self.difference.value is not None and self.difference.value > 0


def brier_scores(sums: BrierSums, confidence_level: float) -> BrierScores:
    """Means over rows with normal intervals, G and reference taken as known.

    Parameters
    ----------
    sums : BrierSums
        Sum of the sites' sums.
    confidence_level : float
        In (0, 1).

    Raises
    ------
    ValueError
        If the confidence level is out of range.
    """

    def score(total: float, squares: float) -> Estimate:
        return mean_estimate(
            sums.rows, total, squares, confidence_level=confidence_level, least=0.0
        )

    by_column = [score(float(x), float(xx)) for x, xx in zip(sums.score, sums.square, strict=True)]
    difference = sums.square[-1] - 2 * sums.product[-1] + sums.reference_square[-1]
    return BrierScores(
        at_times=tuple(by_column[:-1]),
        integrated=by_column[-1],
        reference=score(float(sums.reference[-1]), float(sums.reference_square[-1])),
        difference=mean_estimate(
            sums.rows,
            float(sums.score[-1] - sums.reference[-1]),
            float(difference),
            confidence_level=confidence_level,
        ),
    )


def _exceeds(products: FloatArray, one: FloatArray | float, other: FloatArray) -> bool:
    """Whether sums of products exceed the bound by the sums of squares of their factors."""
    return bool((products > np.sqrt(one) * np.sqrt(other) * _ROUNDED).any())


class _Scored:
    """Scores of rows on an integration grid."""

    def __init__(self, grid: FloatArray, at: npt.NDArray[np.int64], censoring: CensoringWeights):
        self._grid, self.at, self._censoring = grid, at, censoring
        step = np.diff(grid) / (grid[-1] - grid[0]) / 2
        self._trapezoid = np.append(step, 0.0) + np.append(0.0, step)

    def weights(
        self, time: FloatArray, event: npt.NDArray[np.bool_]
    ) -> tuple[FloatArray, FloatArray]:
        """Weights of rows as cases and as controls at every point of the grid, shape (n, m)."""
        return self._censoring.score_weights(time, event, self._grid)

    def scores(self, case: FloatArray, control: FloatArray, survival: FloatArray) -> FloatArray:
        """Scores at the chosen points, and the integrated one, shape (n, K + 1)."""
        scores = survival**2 * case
        scores += (1 - survival) ** 2 * control
        return np.column_stack((scores[:, self.at], scores @ self._trapezoid))


def _refuse_bad_curves(
    grid: FloatArray, survival: FloatArray, reference: FloatArray, *, rows: int
) -> None:
    if grid.ndim != 1 or grid.size < 2 or not (np.diff(grid) > 0).all():
        raise ValueError("the integration grid must have at least two points and ascend")
    if survival.shape != (rows, grid.size) or reference.shape != grid.shape:
        raise ValueError(
            f"survival of {rows} rows at {grid.size} times has shape {survival.shape}, that of "
            f"the reference {reference.shape}; allowed: (rows, times) and (times,)"
        )
    outside = sum(int((~((values >= 0) & (values <= 1))).sum()) for values in (survival, reference))
    if outside:
        raise ValueError(f"{outside} survival probabilities are not in 0..1")
