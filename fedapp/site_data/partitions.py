"""How the rows of one survival table are dealt to simulated sites.

====================  =========================================================================
name                  sites
====================  =========================================================================
``iid``               equally many rows each, dealt at random
``random``            dealt at random, but of unequal size: shares are drawn uniformly from .5
                      to 1.5 of the equal one
``censoring-non-iid`` rows sorted by whether the event was seen, and cut: the first sites have
                      (almost) only censored rows, perhaps no event at all
``time-non-iid``      rows sorted by follow-up time, and cut: the first sites have the shortest
``dirichlet``         rows in strata of similar time and same event indicator; every stratum is
                      spread over the sites by shares from a Dirichlet distribution. A small
                      `alpha` makes sites very different, a large one alike
``natural``           a site is what has one value in a column, such as the hospital
====================  =========================================================================

The Dirichlet strata are those of A. Archetti et al., Heterogeneous datasets for federated survival
analysis simulation, ICPE 2023: label skew with quantized times as labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tasks.site.faults import SiteFault

Rows = npt.NDArray[np.intp]

# Keeps the dealing of rows apart from other uses of the run's seed.
_DEALING = 0x6465616C

_TIME_STRATA = 10


@dataclass(frozen=True)
class Partition:
    """How rows are dealt.

    Attributes
    ----------
    kind : str
        One of `PARTITIONS`.
    alpha : float
        Concentration of ``dirichlet``, positive.
    column : str
        Column of ``natural``; it is no feature.
    time, event : str
        Columns that the sorted and the Dirichlet partitions look at.
    event_value : str
        What the event column says where the event was seen.
    """

    kind: str = "iid"
    alpha: float = 1.0
    column: str = ""
    time: str = ""
    event: str = ""
    event_value: str = "1"


def deal(frame: pd.DataFrame, partition: Partition, *, sites: int, seed: int) -> tuple[Rows, ...]:
    """Positions of every site's rows, each in the order of the table.

    Every row goes to exactly one site. A site may get none: `frame` may be shorter than `sites`,
    and ``dirichlet`` may leave one out.

    Parameters
    ----------
    frame : DataFrame
        The whole table.
    partition : Partition
        How its rows are dealt.
    sites : int
        At least 1; for ``natural`` the number of different values.
    seed : int
        At least 0. The same arguments deal alike in every process.

    Raises
    ------
    SiteFault
        ``bad-partition``: an unknown kind, a column that is not there or has missing values, a
        number of sites that is not the number of values, a seed below 0.
    """
    if seed < 0:
        raise SiteFault("bad-partition", f"seed = {seed} must be at least 0")
    if partition.kind not in _DEALERS:
        raise SiteFault(
            "bad-partition",
            f'partition "{partition.kind}" must be one of: {", ".join(PARTITIONS)}',
        )
    rng = np.random.default_rng([_DEALING, seed])
    owner = _DEALERS[partition.kind](frame, partition, sites, rng)
    return tuple(np.flatnonzero(owner == site) for site in range(sites))


def natural_sites(frame: pd.DataFrame, column: str) -> int:
    """Return how many sites the column of a natural partition makes.

    Raises
    ------
    SiteFault
        ``bad-partition``, as `deal`.
    """
    return int(_natural_values(frame, column).max()) + 1


def _iid(frame: pd.DataFrame, _: Partition, sites: int, rng: np.random.Generator) -> Rows:
    return _cut(rng.permutation(len(frame)), _equal_ends(len(frame), sites))


def _random(frame: pd.DataFrame, _: Partition, sites: int, rng: np.random.Generator) -> Rows:
    order = rng.permutation(len(frame))
    shares = rng.uniform(0.5, 1.5, size=sites)
    ends = np.rint(np.cumsum(shares) / shares.sum() * len(frame)).astype(np.intp)
    return _cut(order, ends)


def _by_censoring(
    frame: pd.DataFrame, partition: Partition, sites: int, rng: np.random.Generator
) -> Rows:
    seen = _events(frame, partition)
    order = np.lexsort((rng.random(len(frame)), seen))
    return _cut(order, _equal_ends(len(frame), sites))


def _by_time(
    frame: pd.DataFrame, partition: Partition, sites: int, rng: np.random.Generator
) -> Rows:
    order = np.lexsort((rng.random(len(frame)), _times(frame, partition)))
    return _cut(order, _equal_ends(len(frame), sites))


def _dirichlet(
    frame: pd.DataFrame, partition: Partition, sites: int, rng: np.random.Generator
) -> Rows:
    if not 0 < partition.alpha < np.inf:
        raise SiteFault("bad-partition", f"dirichlet-alpha = {partition.alpha} must be positive")
    rank = pd.Series(_times(frame, partition)).rank(method="first").to_numpy() - 1
    stratum = (rank * _TIME_STRATA // len(frame)).astype(np.intp)
    stratum = 2 * stratum + _events(frame, partition)
    owner = np.empty(len(frame), dtype=np.intp)
    for label in np.unique(stratum):
        rows = rng.permutation(np.flatnonzero(stratum == label))
        shares = rng.dirichlet(np.full(sites, partition.alpha))
        # All shares round to 0 where alpha is tiny: one site takes the stratum, as in the limit.
        if not np.isfinite(shares).all():
            shares = np.eye(sites)[rng.integers(sites)]
        ends = np.rint(np.cumsum(shares) * rows.size).astype(np.intp)
        ends[-1] = rows.size
        owner[rows] = np.searchsorted(ends, np.arange(rows.size), side="right")
    return owner


def _natural(frame: pd.DataFrame, partition: Partition, sites: int, _: np.random.Generator) -> Rows:
    if partition.column and partition.column in (partition.time, partition.event):
        raise SiteFault(
            "bad-partition",
            f'partition "natural": partition-column = "{partition.column}" is the column of times '
            "or events, which cannot name the sites as well",
        )
    owner = _natural_values(frame, partition.column)
    found = int(owner.max()) + 1
    if found != sites:
        raise SiteFault(
            "bad-partition",
            f'partition "natural": column "{partition.column}" has {found} values, but there are '
            f"{sites} sites; run with num-sites = {found}",
        )
    return owner


def _natural_values(frame: pd.DataFrame, column: str) -> Rows:
    """Position of every row's value among the sorted values of a column."""
    if not column:
        raise SiteFault(
            "bad-partition", 'partition "natural" needs partition-column, the column with the sites'
        )
    values = _column(frame, column)
    missing = int(values.isna().sum())
    if missing:
        raise SiteFault(
            "bad-partition",
            f'partition "natural": column "{column}" is missing in {missing} of {len(frame)} rows',
        )
    try:
        _, owner = np.unique(values.to_numpy(), return_inverse=True)
    except TypeError:  # text and numbers in one column
        _, owner = np.unique(values.astype(str).to_numpy(), return_inverse=True)
    return owner.astype(np.intp)


def _column(frame: pd.DataFrame, name: str) -> pd.Series:
    if name not in frame.columns:
        raise SiteFault("bad-partition", f'column "{name}", by which rows are dealt, is missing')
    return frame[name]


def _events(frame: pd.DataFrame, partition: Partition) -> npt.NDArray[np.bool_]:
    """Whether the column says that the event was seen; rows that are malformed are refused later,
    by the site that gets them."""
    values = _column(frame, partition.event)
    if values.dtype.kind in "biuf":
        try:
            event_value = float(partition.event_value)
        except ValueError:
            return np.zeros(len(frame), dtype=np.bool_)
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan) == event_value)
    return np.asarray(values.astype(str) == partition.event_value)


def _times(frame: pd.DataFrame, partition: Partition) -> npt.NDArray[np.float64]:
    times = pd.to_numeric(_column(frame, partition.time), errors="coerce")
    return np.asarray(times.to_numpy(dtype=np.float64, na_value=np.nan), dtype=np.float64)


def _equal_ends(rows: int, sites: int) -> Rows:
    """Ends of parts whose sizes differ by at most one, the larger first."""
    sizes = np.full(sites, rows // sites)
    sizes[: rows % sites] += 1
    return np.cumsum(sizes)


def _cut(order: npt.NDArray[np.integer], ends: Rows) -> Rows:
    """Owner of every row: the part of `order` that it lies in."""
    owner = np.empty(order.size, dtype=np.intp)
    owner[order] = np.searchsorted(ends, np.arange(order.size), side="right")
    return owner


_DEALERS: dict[str, Callable[[pd.DataFrame, Partition, int, np.random.Generator], Rows]] = {
    "iid": _iid,
    "random": _random,
    "censoring-non-iid": _by_censoring,
    "time-non-iid": _by_time,
    "dirichlet": _dirichlet,
    "natural": _natural,
}

PARTITIONS = tuple(_DEALERS)
