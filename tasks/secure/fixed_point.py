"""Reals as whole numbers, so that they can be summed exactly under masks.

A value x goes as the whole number nearest to x * 2**bits. Scaling by a power of two is exact, so
the only errors are half a unit a site and, on the way back, one rounding of the sum to a double.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.site.faults import SiteFault

WORD_BOUND = 2**63
"""Sums stay below this in absolute value: one signed 64-bit word."""

_MAX_BITS = 512


class FixedPointFault(SiteFault):
    """A format that does not fit, or a value outside it (the bound is named, never the value)."""


@dataclass(frozen=True)
class FixedPoint:
    """How reals travel under masks.

    Parameters
    ----------
    bits : int
        Bits behind the point, 0 to 512.
    bound : float
        Largest absolute value that one site may send, positive and finite; with
        bound * 2**bits below 2**63.

    Raises
    ------
    FixedPointFault
        ``invalid-fixed-point``, all faults at once.
    """

    bits: int
    bound: float

    def __post_init__(self) -> None:
        faults = []
        if not 0 <= self.bits <= _MAX_BITS:
            faults.append(f"bits = {self.bits}: must be a whole number from 0 to {_MAX_BITS}")
        if not (math.isfinite(self.bound) and self.bound > 0):
            faults.append(f"bound = {self.bound}: must be positive and finite")
        if not faults and self.integer_bound >= WORD_BOUND:
            faults.append(
                f"bound = {self.bound} with bits = {self.bits}: "
                "bound * 2**bits must be less than 2**63"
            )
        if faults:
            raise FixedPointFault("invalid-fixed-point", *faults)

    @classmethod
    def finest(cls, *, bound: float, num_sites: int) -> Self:
        """The format with the most bits in which the sum over all sites still fits.

        Parameters
        ----------
        bound : float
            Largest absolute value that one site may send.
        num_sites : int
            Number of sites, 1 or more.

        Raises
        ------
        FixedPointFault
            ``invalid-fixed-point`` if not even whole numbers fit, or the bound is no bound.
        """
        if num_sites < 1:
            reason = f"num_sites = {num_sites}: must be 1 or more"
            raise FixedPointFault("invalid-fixed-point", reason)
        if not (math.isfinite(bound) and bound > 0):
            return cls(bits=0, bound=bound)  # raises, with the message of the constructor
        for bits in range(min(_MAX_BITS, 64 - math.frexp(bound)[1]), -1, -1):
            if num_sites * _scaled(bound, bits) < WORD_BOUND:
                return cls(bits=bits, bound=bound)
        raise FixedPointFault(
            "invalid-fixed-point",
            f"bound = {bound}: {num_sites} times it must be less than 2**63",
        )

    @property
    def integer_bound(self) -> int:
        """Largest absolute whole number of one site, the `bound` of a masked sum."""
        return _scaled(self.bound, self.bits)

    def tolerance(self, num_sites: int) -> float:
        """Largest error of a decoded sum against the exact sum of the sites' doubles.

        Parameters
        ----------
        num_sites : int
            Number of sites summed.
        """
        rounding = math.ldexp(num_sites, -self.bits - 1)
        return rounding + math.ldexp(num_sites * self.bound + rounding, -53)

    def encode(self, values: ArrayLike) -> NDArray[np.int64]:
        """Bring reals to whole numbers.

        Parameters
        ----------
        values : array_like
            Real numbers, any shape.

        Returns
        -------
        ndarray of int64
            Same shape.

        Raises
        ------
        FixedPointFault
            ``outside-bound`` if a value is not a number or exceeds the bound.
        """
        reals = np.asarray(values, dtype=np.float64)
        if not np.all(np.abs(reals) <= self.bound):  # false for NaN too
            raise FixedPointFault(
                "outside-bound",
                f"a value is not finite or exceeds {self.bound:g} in absolute value, "
                "the bound stated for a masked sum",
            )
        return np.rint(np.ldexp(reals, self.bits)).astype(np.int64)

    def decode(self, sums: NDArray[np.int64]) -> NDArray[np.float64]:
        """Bring sums of whole numbers back to reals.

        Parameters
        ----------
        sums : ndarray of int64
            Any shape.

        Returns
        -------
        ndarray of float64
            Same shape, off by at most `tolerance`.
        """
        return np.ldexp(sums.astype(np.float64), -self.bits)


def _scaled(bound: float, bits: int) -> int:
    # Through integers: no overflow, and no rounding where bound * 2**bits is large.
    numerator, denominator = bound.as_integer_ratio()
    return -(-(numerator << bits) // denominator)
