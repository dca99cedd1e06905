"""Reals of any size in masked sums: the whole part and the fraction go in a word each.

One fixed point has to fit the largest value a site may send, so a bound that must not tell how
many rows a site has would cost the digits. Whole parts are summed exactly, as counts are, and
fractions with all the bits that a word has for numbers in [0, 1).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.secure.fixed_point import WORD_BOUND, FixedPoint, FixedPointFault


def word_bound(num_sites: int) -> int:
    """Largest whole number that each of so many sites may put into one masked sum."""
    return (WORD_BOUND - 1) // num_sites


def fraction_format(num_sites: int) -> FixedPoint:
    """Fixed point of the fractions; at 5 sites 60 bits behind the point."""
    return FixedPoint.finest(bound=1.0, num_sites=num_sites)


def tolerance(num_sites: int) -> float:
    """Largest error of a decoded sum, apart from the rounding of the double that holds it."""
    return math.ldexp(num_sites, -fraction_format(num_sites).bits - 1)


def describe(num_sites: int) -> str:
    """One line for the report: bits and tolerance."""
    return (
        f"whole parts exactly, fractions with {fraction_format(num_sites).bits} bits behind the "
        f"point: error of a sum over {num_sites} sites at most {tolerance(num_sites):.2g}, and "
        "the rounding of a double"
    )


def split(values: ArrayLike, *, num_sites: int) -> NDArray[np.int64]:
    """Bring reals to whole numbers, two a value.

    Parameters
    ----------
    values : array_like, shape (n,)
        Real numbers.
    num_sites : int
        Sites of the sum.

    Returns
    -------
    ndarray of int64, shape (2 n,)
        All whole parts, then all fractions.

    Raises
    ------
    FixedPointFault
        ``outside-bound`` if a value is not a number, or does not fit into a word.
    """
    reals = np.asarray(values, dtype=np.float64)
    whole = np.floor(reals)
    # A double below 2**62 / num_sites, so that its conversion is exact.
    if not np.all(np.abs(whole) <= word_bound(num_sites) // 2):
        raise FixedPointFault(
            "outside-bound",
            f"a value is not finite or exceeds {word_bound(num_sites) // 2} in absolute value, "
            "the bound stated for a masked sum",
        )
    fractions = fraction_format(num_sites).encode(reals - whole)
    return np.concatenate([whole.astype(np.int64), fractions])


def join(sums: NDArray[np.int64], *, num_sites: int) -> NDArray[np.float64]:
    """Bring sums of what `split` gave back to reals; (2 n,) to (n,)."""
    whole, fractions = np.split(sums, 2)
    return whole.astype(np.float64) + fraction_format(num_sites).decode(fractions)
