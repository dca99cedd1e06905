"""Sums over the rows of an interval whose rank is below a limit, for many queries at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def prefix_sums(values: FloatArray) -> FloatArray:
    """Return the sums of the first 0, 1, ..., n values, shape (n + 1,)."""
    return np.concatenate(([0.0], np.cumsum(values)))


def sums_below(
    values: IntArray,
    start: IntArray,
    stop: IntArray,
    limits: IntArray,
    *,
    weights: FloatArray | None = None,
) -> FloatArray:
    """Sum, for every query i, the weights of values below ``limits[i]`` in ``start[i]:stop[i]``.

    A wavelet matrix: the values are partitioned stably by one bit after the other, from the
    highest, and every query follows the bits of its limit with its interval of positions. Where
    the limit has a 1, the interval's values with a 0 lie below it. All queries take one step
    together, so there are as many steps as a rank has bits: O((n + queries) log n).

    Parameters
    ----------
    values : ndarray, shape (n,)
        Ranks, not negative.
    start, stop, limits : ndarray, shape (queries,)
        Interval of positions and limit of each query.
    weights : ndarray, shape (n,), optional
        Of the values; without them values are counted.

    Returns
    -------
    ndarray, shape (queries,)
    """
    below = np.zeros(limits.shape)
    if values.size == 0 or limits.size == 0:
        return below
    bits = int(max(values.max(), limits.max())).bit_length()
    for bit in range(bits - 1, -1, -1):
        is_zero = (values >> bit) & 1 == 0
        zeros_before = np.concatenate(([0], np.cumsum(is_zero)))
        zeros_start, zeros_stop = zeros_before[start], zeros_before[stop]
        limit_has_one = (limits >> bit) & 1 == 1
        if weights is None:
            inside = zeros_stop - zeros_start
        else:
            weight_before = prefix_sums(np.where(is_zero, weights, 0.0))
            inside = weight_before[stop] - weight_before[start]
            weights = np.concatenate((weights[is_zero], weights[~is_zero]))
        below += np.where(limit_has_one, inside, 0)
        zeros = zeros_before[-1]
        start = np.where(limit_has_one, zeros + start - zeros_start, zeros_start)
        stop = np.where(limit_has_one, zeros + stop - zeros_stop, zeros_stop)
        values = np.concatenate((values[is_zero], values[~is_zero]))
    return below
