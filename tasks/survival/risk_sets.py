"""Risk sets of a site on a public grid of times: what it tells of the follow-up of its rows.

A site tells how many rows are at risk, how many events there are, and the summed hazard ratio of
those at risk; never a single time. Before they leave, the sums are merged until enough rows stand
behind each.

Cells are open on the left and closed on the right, so that the hazard up to a grid point counts
the events at it. Rows that stay beyond the horizon, the end of the grid, are censored there: they
are at risk in the whole last cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.site.faults import SMALL_SITE, SiteFault

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_ROUND_MANTISSAS = ("1", "1.5", "2", "3", "4", "5", "6", "8")

SHORTEST_TIME = 1e-30
LONGEST_TIME = 1e30
"""Times outside are no follow-up times in any unit, and near the ends of what a double can hold
nothing of a grid of times can be counted on."""

LINEAR_PREDICTOR_BOUND = 50.0
"""Centered linear predictors are limited to plus and minus this before exp (exp(50) is 5e21)."""


def horizon_bound(times: npt.ArrayLike, *, privacy_level: int) -> float:
    """Round number that fewer than `privacy_level` of a site's times exceed.

    It is the smallest of {1, 1.5, 2, 3, 4, 5, 6, 8} x 10^k, and the only word on its largest
    times that a site says. The largest bound of all sites is a horizon for them all.

    Parameters
    ----------
    times : array_like, shape (n,)
        Follow-up times of the site, positive.
    privacy_level : int
        At least 1; 1 gives a bound that no time exceeds.

    Raises
    ------
    SiteFault
        ``small-site`` if there are fewer rows than `privacy_level`.
    ValueError
        If a time is not positive and finite.
    """
    times = _checked_times(times)
    _refuse_small_site(times.size, privacy_level)
    # h is exceeded by fewer than q times exactly if the q-th largest does not exceed it.
    reached = np.partition(times, times.size - privacy_level)[times.size - privacy_level]
    return next(bound for bound in _round_numbers_near(reached) if bound >= reached)


def is_round_number(value: float) -> bool:
    """Whether a positive, finite number is one of those of `horizon_bound`."""
    return value in _round_numbers_near(value)


def time_grid(horizon: float, time_bins: int) -> FloatArray:
    """Borders of `time_bins` cells of equal width from 0 to `horizon`, shape (time_bins + 1,)."""
    if not 0 < horizon < np.inf or time_bins < 1:
        raise ValueError(
            f"a time grid needs a positive horizon and 1 cell, got {horizon} and {time_bins}"
        )
    return np.linspace(0.0, horizon, time_bins + 1)


@dataclass(frozen=True, eq=False)
class RiskSetSums:
    """Risk sets of one site, or of several, on a grid with ``bins`` cells.

    Attributes
    ----------
    at_risk_weight : ndarray, shape (bins + 1,)
        Sum of ``exp(linear predictor - center)`` over the rows at risk just after every grid
        point, i.e. whose time exceeds it. The last element belongs to the rows that stay beyond
        the horizon. Where the relative hazard depends on time, it is taken at the grid point.
    events : ndarray, shape (bins,)
        Events in every cell.
    at_risk_count : ndarray, shape (bins + 1,)
        Rows at risk, as in `at_risk_weight`.

    Raises
    ------
    ValueError
        If shapes do not fit, or an element is negative or not finite.
    """

    at_risk_weight: FloatArray
    events: FloatArray
    at_risk_count: FloatArray

    def __post_init__(self) -> None:
        borders = (self.events.size + 1,)
        if self.at_risk_weight.shape != borders or self.at_risk_count.shape != borders:
            raise ValueError(
                f"risk sets of {self.events.size} cells need {borders[0]} weights and counts, got "
                f"shapes {self.at_risk_weight.shape} and {self.at_risk_count.shape}"
            )
        for name in ("at_risk_weight", "events", "at_risk_count"):
            values = getattr(self, name)
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise ValueError(f"{name} must be finite and not negative")

    @property
    def leaving_count(self) -> FloatArray:
        """Rows whose time lies in every cell, with or without an event, shape (bins,)."""
        return self.at_risk_count[:-1] - self.at_risk_count[1:]

    @property
    def leaving_by_slot(self) -> FloatArray:
        """`leaving_count`, and the rows that stay beyond the horizon, shape (bins + 1,)."""
        return np.append(self.leaving_count, self.at_risk_count[-1])

    @classmethod
    def of(
        cls,
        time: npt.ArrayLike,
        event: npt.ArrayLike,
        linear_predictor: npt.ArrayLike,
        *,
        grid: FloatArray,
        center: float = 0.0,
    ) -> RiskSetSums:
        """Sums over the rows of one site, exact: `coarsen` them before they leave it.

        Parameters
        ----------
        time, event, linear_predictor : array_like, shape (n,)
            Follow-up times, positive; whether the event was seen (one beyond the horizon counts
            as a censoring); log hazard ratios.
        grid : ndarray, shape (bins + 1,)
            See `time_grid`.
        center : float
            Public constant that is subtracted before exp, the same at all sites.

        Raises
        ------
        ValueError
            If lengths differ, a time is not positive and finite or a linear predictor not finite.
        """
        time = _checked_times(time)
        event = np.asarray(event, dtype=np.bool_)
        weight = hazard_ratio(linear_predictor, center=center)
        if not time.shape == event.shape == weight.shape:
            raise ValueError(
                "time, event and linear predictor must be vectors of one length, "
                f"got shapes {time.shape}, {event.shape} and {weight.shape}"
            )
        bins = grid.size - 1
        slot = np.searchsorted(grid, time, side="left") - 1  # `bins`: beyond the horizon
        weights = np.bincount(slot, weights=weight, minlength=bins + 1)
        return cls(
            at_risk_weight=_sums_from_the_end(weights),
            events=np.bincount(slot[event], minlength=bins + 1)[:bins].astype(np.float64),
            at_risk_count=_sums_from_the_end(np.bincount(slot, minlength=bins + 1)),
        )

    @classmethod
    def of_time_dependent(
        cls,
        time: npt.ArrayLike,
        event: npt.ArrayLike,
        log_hazard: FloatArray,
        *,
        grid: FloatArray,
        center: float = 0.0,
    ) -> RiskSetSums:
        """Sums over the rows of one site whose relative hazard depends on time.

        Parameters
        ----------
        time, event, grid, center
            As of `of`.
        log_hazard : ndarray, shape (n, bins + 1)
            Log relative hazard of every row at every point of the grid. The weight at a point is
            that of the rows at risk there, by their hazard there; it may grow with time.

        Raises
        ------
        ValueError
            As of `of`.
        """
        time = _checked_times(time)
        if log_hazard.shape != (time.size, grid.size):
            raise ValueError(
                f"log hazard has shape {log_hazard.shape}; allowed: ({time.size}, {grid.size})"
            )
        counts = cls.of(time, event, np.zeros(time.size), grid=grid)
        weight = hazard_ratio(log_hazard, center=center)
        at_risk = time[:, None] > grid
        return cls(np.where(at_risk, weight, 0.0).sum(axis=0), counts.events, counts.at_risk_count)

    def __add__(self, other: RiskSetSums) -> RiskSetSums:
        if self.events.shape != other.events.shape:
            raise ValueError(
                f"risk sets of {self.events.size} and of {other.events.size} cells do not add up"
            )
        return RiskSetSums(
            self.at_risk_weight + other.at_risk_weight,
            self.events + other.events,
            self.at_risk_count + other.at_risk_count,
        )


def coarsen(sums: RiskSetSums, *, privacy_level: int) -> RiskSetSums:
    """Risk sets of a site in which at least `privacy_level` rows stand behind every difference.

    Consecutive cells are merged until enough of the site's rows leave in each group (the rows
    beyond the horizon leave in one more slot behind the last cell); too few at the end join the
    last group. Weights and counts fall linearly within a group and its events are spread evenly,
    so that the result is a function of the group's three sums. Where the groups end is seen in
    it, too, and follows from the data: it tells in which cell the last row came that a group
    needed, not whose it was, nor what happened to it.

    A privacy level of 1 asks for nothing: the sums are returned as they are.

    Raises
    ------
    SiteFault
        ``small-site`` if there are fewer rows than `privacy_level`.
    """
    borders = merged_borders(sums, privacy_level=privacy_level)
    if privacy_level == 1:
        return sums
    return RiskSetSums(
        at_risk_weight=_linear_between(borders, sums.at_risk_weight),
        events=_even_within(borders, sums.events),
        at_risk_count=_linear_between(borders, sums.at_risk_count),
    )


def merged_borders(sums: RiskSetSums, *, privacy_level: int) -> IntArray:
    """Borders of what `coarsen` merges: first slots of the groups of slots, and the end.

    Slots are the cells of the grid and one behind the horizon. With a privacy level of 1 every
    slot is a group of its own.

    Raises
    ------
    SiteFault
        ``small-site`` if there are fewer rows than `privacy_level`.
    """
    _refuse_small_site(int(sums.at_risk_count[0]), privacy_level)
    leaving = sums.leaving_by_slot
    if privacy_level == 1:
        return np.arange(leaving.size + 1)
    return group_borders(leaving, least=privacy_level)


def group_borders(leaving: FloatArray, *, least: int) -> IntArray:
    """First slot of every group of consecutive slots with at least `least` rows, and the end.

    From the rows leaving in every slot, shape (slots,), at least `least` in all. The last group
    takes what is left where that is too little for a group, empty slots included; but if enough
    rows leave in the last slot alone (they stay beyond a horizon that was set short), they are a
    group of their own, since they are not to be spread over times before it.
    """
    borders = [0]
    total = leaving.sum()
    gone = gone_before_group = 0.0
    for slot, rows in enumerate(leaving):
        gone += rows
        if gone - gone_before_group >= least and total - gone >= least:
            borders.append(slot + 1)
            gone_before_group = gone
    if len(borders) > 1 and borders[-1] < leaving.size - 1 and leaving[-1] >= least:
        borders[-1] = leaving.size - 1
    return np.array([*borders, leaving.size])


def hazard_ratio(linear_predictor: npt.ArrayLike, *, center: float) -> FloatArray:
    """``exp(linear_predictor - center)``, the exponent limited to +-`LINEAR_PREDICTOR_BOUND`.

    Raises
    ------
    ValueError
        If a linear predictor is not finite.
    """
    values = np.atleast_1d(np.asarray(linear_predictor, dtype=np.float64))
    if not np.isfinite(values).all():
        raise ValueError(
            f"{(~np.isfinite(values)).sum()} of {values.size} linear predictors are not finite"
        )
    exponent = np.clip(values - center, -LINEAR_PREDICTOR_BOUND, LINEAR_PREDICTOR_BOUND)
    return np.asarray(np.exp(exponent), dtype=np.float64)


def _sums_from_the_end(values: npt.NDArray[np.float64] | IntArray) -> FloatArray:
    return np.asarray(np.cumsum(values[::-1])[::-1], dtype=np.float64)


def _linear_between(borders: IntArray, at_risk: FloatArray) -> FloatArray:
    """Values at the groups' borders, straight lines between; behind the last slot it is 0."""
    at_borders = np.append(at_risk, 0.0)[borders]
    return np.asarray(np.interp(np.arange(at_risk.size), borders, at_borders), dtype=np.float64)


def _even_within(borders: IntArray, events: FloatArray) -> FloatArray:
    """Events of every group spread over its cells; the slot beyond the horizon takes none."""
    ends = np.minimum(borders, events.size)
    cells = np.diff(ends)
    before = np.concatenate(([0.0], np.cumsum(events)))[ends]
    has_cells = cells > 0
    return np.repeat(np.diff(before)[has_cells] / cells[has_cells], cells[has_cells])


def _round_numbers_near(value: float) -> list[float]:
    """Round numbers from a decade below to a decade above a positive value, ascending."""
    decade = int(np.floor(np.log10(value)))
    return [
        float(f"{mantissa}e{power}")
        for power in (decade - 1, decade, decade + 1)
        for mantissa in _ROUND_MANTISSAS
    ]


def _checked_times(times: npt.ArrayLike) -> FloatArray:
    values = np.asarray(times, dtype=np.float64)
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        raise ValueError(f"{bad.sum()} of {values.size} times are not positive and finite")
    return values


def _refuse_small_site(rows: int, privacy_level: int) -> None:
    if privacy_level < 1:
        raise ValueError(f"privacy-level must be at least 1, got {privacy_level}")
    if rows < privacy_level:
        raise SiteFault(
            SMALL_SITE,
            f"{rows} rows: privacy-level asks for at least {privacy_level} behind every sum",
        )
