"""Gradients, Hessians and losses as whole numbers, so that their sums do not depend on order.

Float sums differ with the order of rows and with the way rows are cut over parties; sums of whole
numbers do not. Every value is rounded once, before anything is summed, in every mode.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.site.faults import SiteFault

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

SMALLEST_EXPONENT = -128
"""Exponent told by a party whose values are all zero, or that has none."""

LARGEST_EXPONENT = 103
"""Of first gradients where labels and base score are 1e30, with the headroom of later trees."""

_WORD_BITS = 62


@dataclass(frozen=True)
class FixedPointScale:
    """Reals up to 2**exponent as whole numbers up to 2**bits.

    Scaling by a power of two is exact, so the one error is the rounding of each value to a
    multiple of 2**(exponent - bits).

    Parameters
    ----------
    bits : int
        f: bits of the largest whole number, 1 to 52.
    exponent : int
        The bound of a value is 2**exponent; may be negative.
    """

    bits: int
    exponent: int

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 52:
            raise ValueError(f"bits = {self.bits}: must be 1 to 52")

    @property
    def bound(self) -> float:
        """Largest absolute value of a row."""
        return math.ldexp(1.0, self.exponent)

    def bound_of_sum(self, num_rows: int) -> int:
        """Largest absolute whole number of a sum over `num_rows` rows.

        Raises
        ------
        SiteFault
            ``"too-many-rows"`` if the sum may not fit into a signed word of 64 bits.
        """
        bound = num_rows << self.bits
        if bound.bit_length() > _WORD_BITS:
            raise SiteFault(
                "too-many-rows",
                f"{num_rows} rows with fixed-point-bits = {self.bits}: allowed are "
                f"{1 << (_WORD_BITS - self.bits)} rows",
            )
        return bound

    def encode(self, values: ArrayLike) -> IntArray:
        """Round each value to a whole number.

        Parameters
        ----------
        values : array_like
            Real numbers of any shape, at most `bound` in absolute value.

        Returns
        -------
        ndarray of int64
            Same shape; halves go to the even neighbour.

        Raises
        ------
        SiteFault
            ``"outside-bound"`` if values are NaN or exceed the bound; not how many.
        """
        reals = np.asarray(values, dtype=np.float64)
        if not (np.abs(reals) <= self.bound).all():
            raise SiteFault(
                "outside-bound",
                f"values are NaN or exceed {self.bound:g} in absolute value; a larger label-bound "
                "may be needed",
            )
        whole: IntArray = np.rint(np.ldexp(reals, self.bits - self.exponent)).astype(np.int64)
        return whole

    def decode(self, sums: ArrayLike) -> FloatArray:
        """Bring sums back to reals: one rounding to a double, then an exact scaling.

        Parameters
        ----------
        sums : array_like of int64
            Any shape.
        """
        whole = np.asarray(sums, dtype=np.int64)
        return np.ldexp(whole.astype(np.float64), self.exponent - self.bits)


@dataclass(frozen=True)
class GradientScales:
    """How the gradients and Hessians of a run become whole numbers.

    Parameters
    ----------
    gradient, hessian : FixedPointScale
        Of the same bits, so that one slot width fits both sums; of what is summed, rows' gradients
        and Hessians times their weights.
    weight : FixedPointScale
        Of weights; bound 1 where rows have none.
    """

    gradient: FixedPointScale
    hessian: FixedPointScale
    weight: FixedPointScale

    @classmethod
    def of(
        cls,
        *,
        bits: int,
        gradient_exponent: int,
        hessian_exponent: int = 0,
        weight_exponent: int = 0,
    ) -> GradientScales:
        """Scales with f = `bits`, from exponents of gradients and Hessians without weights."""
        return cls(
            FixedPointScale(bits, gradient_exponent + weight_exponent),
            FixedPointScale(bits, hessian_exponent + weight_exponent),
            FixedPointScale(bits, weight_exponent),
        )

    @property
    def row_exponent(self) -> int:
        """Exponent of the bound of a row's gradient without its weight."""
        return self.gradient.exponent - self.weight.exponent

    def of_rows(self, exponent: int) -> FixedPointScale:
        """Scale of numbers whose bound without weights has this exponent."""
        return FixedPointScale(self.gradient.bits, exponent + self.weight.exponent)

    def encode(self, gradient: FloatArray, hessian: FloatArray) -> IntArray:
        """Both as one (2, n) array of whole numbers, gradients first."""
        return np.stack([self.gradient.encode(gradient), self.hessian.encode(hessian)])


def exponent_of(values: ArrayLike) -> int:
    """Least e with every absolute value at most 2**e: all that a party tells of its largest one.

    Parameters
    ----------
    values : array_like
        Finite numbers, possibly none.

    Returns
    -------
    int
        At least `SMALLEST_EXPONENT`.
    """
    reals = np.abs(np.asarray(values, dtype=np.float64))
    largest = float(reals.max()) if reals.size else 0.0
    if largest == 0.0:
        return SMALLEST_EXPONENT
    fraction, exponent = math.frexp(largest)  # fraction in [1/2, 1)
    return max(SMALLEST_EXPONENT, exponent - 1 if fraction == 0.5 else exponent)


def common_exponent(exponents: Iterable[int], *, headroom: int = 0) -> int:
    """Exponent of a bound for all parties: the largest one told, times 2**headroom."""
    return max(exponents, default=SMALLEST_EXPONENT) + headroom


def sums_by_group(values: IntArray, groups: NDArray[np.intp], num_groups: int) -> IntArray:
    """Exact sum of whole numbers in each group.

    Parameters
    ----------
    values : (n,) int64
    groups : (n,) integer
        In [0, num_groups).
    num_groups : int

    Returns
    -------
    (num_groups,) int64
    """
    largest = int(np.abs(values).max()) if len(values) else 0
    if largest * len(values) < 2**53:  # then every partial sum is a whole number that doubles hold
        return np.bincount(groups, weights=values, minlength=num_groups).astype(np.int64)
    sums = np.zeros(num_groups, dtype=np.int64)
    np.add.at(sums, groups, values)
    return sums
