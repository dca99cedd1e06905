"""Sites whose rows are not of the kind of the others': another unit, a wrong value, or a lie.

One of them would spoil what all sites have in common, the time grid or the standardization.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from tasks.site.foreign_text import LONGEST_WORD, printable
from tasks.survival.standardization import FeatureMoments

MOST_APART = 1000.0
"""Factor between a site's horizon and the median site's at which it is left out. Follow-up in
another unit is 1 to 365 times as long where days, weeks, months or years are meant."""

MOST_SPREADS = 100.0
"""Usual standard deviations (those of the median site) that a site's mean may be away from the
median site's, or its own standard deviation may have. A share 1/K of all rows then moves the pooled
mean by at most 100/K of them."""

_FEWEST = 3
_CONSTANT = 1e-13


def of_other_times(bounds: Mapping[str, float]) -> dict[str, str]:
    """Return why sites are left out whose horizon is far from the others', by name."""
    if not bounds:
        return {}
    # The lower of two: the larger horizon is the one that spoils the grid of all.
    usual = statistics.median_low(bounds.values())
    return {
        name: f"left out: its times reach up to {bound:g}, more than {MOST_APART:g} times "
        f"or less than 1/{MOST_APART:g} of the median of the sites, {usual:g}; another unit?"
        for name, bound in bounds.items()
        if not 1 / MOST_APART <= bound / usual <= MOST_APART
    }


def of_other_features(
    moments: Mapping[str, FeatureMoments], columns: Sequence[str]
) -> dict[str, str]:
    """Return why sites are left out whose moments are far from the others', by name.

    Of two sites nobody knows which is the stranger, and where most sites have one value only,
    there is no usual spread; these are not judged.

    Parameters
    ----------
    moments : mapping of str to FeatureMoments
        By site; those of no row are passed over.
    columns : sequence of str
        Names of the columns of the moments.
    """
    told = {name: one for name, one in moments.items() if one.count}
    if len(told) < _FEWEST:
        return {}
    means = np.array([one.mean for one in told.values()])
    spreads = np.array([np.sqrt(one.m2 / one.count) for one in told.values()])
    middle, usual = np.median(means, axis=0), np.median(spreads, axis=0)
    limit = MOST_SPREADS * usual
    far = (np.abs(means - middle) > limit) | (spreads > limit)
    far &= usual > _CONSTANT * np.abs(middle)
    reasons = {}
    for name, columns_far in zip(told, far, strict=True):
        if columns_far.any():
            column = printable(columns[int(np.argmax(columns_far))], longest=LONGEST_WORD)
            reasons[name] = (
                f"left out: mean or spread of column {column!r} is more than {MOST_SPREADS:g} "
                "times the usual spread of a site from the others'; another unit, a wrong value?"
            )
    return reasons
