"""Calibration at a horizon: predicted beside observed event probability by bins of prediction.

Rows are put into bins by public cuts on their predicted probability of an event up to the
horizon. A site sums the predictions of a bin and counts its rows at risk and events by cell of
the time grid, merged until privacy-level rows of the bin leave in each. Bins with fewer rows are
taken together as a remainder, which counts in what is of all rows, and in no bin; so that it has
privacy-level rows, too, the smallest other bin joins it if need be.

The last cell ends at the horizon: the rows at risk there are those that stay beyond it, a sum over
all rows of the bin, and so is the number of events where too few leave for more than one cell. The
server sets the mean prediction beside the Kaplan-Meier estimate of the pooled counts, with
Greenwood's variance and an interval on the log(-log) scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.survival.curves import kaplan_meier
from tasks.survival.estimate import NO_ROWS, Estimate, normal_quantile
from tasks.survival.pair_counts import checked_rows
from tasks.survival.risk_sets import FloatArray, IntArray, RiskSetSums, group_borders

NO_EVENTS = "no-events"
ONLY_EVENTS = "only-events"
NOT_FOLLOWED = "not-followed-to-horizon"

MOST_BINS = 10
"""Most bins; each takes privacy-level rows of a site to say anything."""

_ROUNDED = 1 + 1e-9
_LOGIT_STEPS = (-0.75, -0.25, 0.25, 0.75)


def calibration_cuts(event_probability: float) -> FloatArray:
    """Four public cuts around a probability, .75 and .25 below and above it on the logit scale.

    Parameters
    ----------
    event_probability : float
        Pooled probability of an event up to the horizon; what is nearer to 0 or 1 than .001 is
        taken for .001 or .999.

    Returns
    -------
    ndarray, shape (4,)
        Ascending, between 0 and 1.
    """
    middle = min(max(event_probability, 0.001), 0.999)
    logit = math.log(middle / (1 - middle)) + np.array(_LOGIT_STEPS)
    return np.asarray(1 / (1 + np.exp(-logit)), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class CalibrationSums:
    """What a site contributes, by bin from low to high predicted probability, remainder last.

    Attributes
    ----------
    predicted : ndarray, shape (bins + 1,)
        Sum of the predicted event probabilities.
    at_risk_count : ndarray, shape (bins + 1, cells + 1)
        Rows at risk just after each time of the grid; the first are all rows of the bin.
    events : ndarray, shape (bins + 1, cells)
        Events in each cell.

    Raises
    ------
    ValueError
        If shapes do not fit, a number is negative or not finite, rows at risk increase, or a sum
        exceeds the rows.
    """

    predicted: FloatArray
    at_risk_count: FloatArray
    events: FloatArray

    def __post_init__(self) -> None:
        if self.events.ndim != 2:
            raise ValueError(f"events have shape {self.events.shape}; allowed: (bins + 1, cells)")
        bins, cells = self.events.shape
        if self.predicted.shape != (bins,) or self.at_risk_count.shape != (bins, cells + 1):
            raise ValueError(f"calibration sums of {bins} bins and {cells} cells do not fit")
        fields = (self.predicted, self.at_risk_count, self.events)
        if not all((np.isfinite(values) & (values >= 0)).all() for values in fields):
            raise ValueError("calibration sums must be finite and not negative")
        most = self.rows * _ROUNDED
        if (
            (self.predicted > most).any()
            or (self.events.sum(axis=1) > most).any()
            or (np.diff(self.at_risk_count, axis=1) > 1e-9 * self.rows[:, None]).any()
        ):
            raise ValueError("calibration sums are beyond those of any rows")

    @property
    def rows(self) -> FloatArray:
        """Rows of every bin and of the remainder, shape (bins + 1,)."""
        return self.at_risk_count[:, 0]

    @classmethod
    def zeros(cls, bins: int, cells: int) -> CalibrationSums:
        """Sums over no rows."""
        parts = bins + 1
        return cls(np.zeros(parts), np.zeros((parts, cells + 1)), np.zeros((parts, cells)))

    @classmethod
    def of(
        cls,
        time: npt.ArrayLike,
        event: npt.ArrayLike,
        event_probability: npt.ArrayLike,
        *,
        cuts: npt.ArrayLike,
        grid: npt.ArrayLike,
        privacy_level: int,
    ) -> CalibrationSums:
        """Sums over the rows of one site.

        Parameters
        ----------
        time, event : array_like, shape (n,)
            Follow-up times, positive; whether the event was seen.
        event_probability : array_like, shape (n,)
            Predicted probability of an event up to the horizon, in 0..1.
        cuts : array_like, shape (bins - 1,)
            Ascending, at most `MOST_BINS` - 1; what equals a cut belongs to the higher bin.
        grid : array_like, shape (cells + 1,)
            Ascends from 0 to the horizon.
        privacy_level : int
            Rows behind every count, zeros if there are fewer; with 1 the counts are exact.

        Raises
        ------
        ValueError
            If lengths differ or a number is out of range.
        """
        predicted, times, events = checked_rows(event_probability, time, event)
        if ((predicted < 0) | (predicted > 1)).any():
            raise ValueError("predicted probabilities must be in 0..1")
        borders = np.asarray(cuts, dtype=np.float64)
        if borders.ndim != 1 or borders.size >= MOST_BINS or not (np.diff(borders) >= 0).all():
            raise ValueError(f"cuts must be a vector of at most {MOST_BINS - 1} that ascends")
        points = np.asarray(grid, dtype=np.float64)
        bins = borders.size + 1
        sums = cls.zeros(bins, points.size - 1)
        if times.size < max(privacy_level, 1):
            return sums
        part_of_row = _with_remainder(
            np.searchsorted(borders, predicted, side="right"), bins, least=privacy_level
        )
        for index in np.unique(part_of_row):
            own = part_of_row == index
            exact = RiskSetSums.of(times[own], events[own], np.zeros(own.sum()), grid=points)
            borders_of_cells = _cell_borders(exact, least=privacy_level)
            sums.predicted[index] = predicted[own].sum()
            sums.at_risk_count[index] = _straight(exact.at_risk_count, borders_of_cells)
            before = np.concatenate(([0.0], np.cumsum(exact.events)))
            sums.events[index] = np.diff(_straight(before, borders_of_cells))
        return sums

    def __add__(self, other: CalibrationSums) -> CalibrationSums:
        if self.events.shape != other.events.shape:
            raise ValueError("calibration sums of different bins or grids do not add up")
        return CalibrationSums(
            self.predicted + other.predicted,
            self.at_risk_count + other.at_risk_count,
            self.events + other.events,
        )

    def to_floats(self) -> FloatArray:
        """All numbers in one vector, shape ((bins + 1) * (2 cells + 2),)."""
        return np.concatenate([self.predicted, self.at_risk_count.ravel(), self.events.ravel()])

    @classmethod
    def from_floats(cls, values: FloatArray, *, bins: int, cells: int) -> CalibrationSums:
        """The inverse of `to_floats`; raises ValueError as the class does."""
        parts = bins + 1
        if values.shape != (parts * (2 * cells + 2),):
            raise ValueError(
                f"calibration sums of {bins} bins and {cells} cells need "
                f"{parts * (2 * cells + 2)} numbers"
            )
        predicted, at_risk, events = np.split(values, [parts, parts * (cells + 2)])
        return cls(predicted, at_risk.reshape(parts, cells + 1), events.reshape(parts, cells))


@dataclass(frozen=True)
class CalibrationBin:
    """Predicted and observed event probability of a bin.

    Attributes
    ----------
    rows : int
        Rows of the sites that have enough in it.
    predicted : float or None
        Mean prediction; None without rows.
    observed : Estimate
        1 - Kaplan-Meier at the horizon. A reason may be ``no-rows``, ``no-events`` and
        ``only-events`` (0 and 1 have no interval), ``not-followed-to-horizon`` (nobody was at
        risk in the last cell before the horizon).
    """

    rows: int
    predicted: float | None
    observed: Estimate


@dataclass(frozen=True)
class Calibration:
    """Pooled calibration.

    Attributes
    ----------
    bins : tuple of CalibrationBin
        From low to high predicted probability.
    overall : CalibrationBin
        All rows together, those of the remainders, too.
    error : float or None
        Mean of the absolute difference of predicted and observed probability over the rows of
        bins that have both; None if none has.
    """

    bins: tuple[CalibrationBin, ...]
    overall: CalibrationBin
    error: float | None


def calibration(sums: CalibrationSums, confidence_level: float) -> Calibration:
    """Predicted beside observed probabilities, from the sums of all sites.

    Censorings within a cell count as half a row at risk (`kaplan_meier`).

    Parameters
    ----------
    sums : CalibrationSums
        Sum of the sites' sums.
    confidence_level : float
        In (0, 1).

    Raises
    ------
    ValueError
        If the confidence level is out of range.
    """
    quantile = normal_quantile(confidence_level)
    bins = tuple(
        _bin(float(sums.predicted[i]), sums.at_risk_count[i], sums.events[i], quantile)
        for i in range(sums.predicted.size - 1)
    )
    overall = _bin(
        float(sums.predicted.sum()),
        sums.at_risk_count.sum(axis=0),
        sums.events.sum(axis=0),
        quantile,
    )
    gaps = [
        (one.rows, abs(one.predicted - one.observed.value))
        for one in bins
        if one.predicted is not None and one.observed.value is not None
    ]
    counted = sum(rows for rows, _ in gaps)
    error = sum(rows * gap for rows, gap in gaps) / counted if counted else None
    return Calibration(bins, overall, error)


def _with_remainder(bin_of_row: IntArray, bins: int, *, least: int) -> IntArray:
    """Bins of rows, or `bins`, the remainder, for those of bins with fewer than `least` rows."""
    rows = np.bincount(bin_of_row, minlength=bins)
    small = rows < least
    if 0 < rows[small].sum() < least:
        # Else the remainder would be few rows. There is another bin, as there are enough rows.
        small[np.argmin(np.where(small, bin_of_row.size + 1, rows))] = True
    return np.where(small[bin_of_row], bins, bin_of_row)


def _cell_borders(counts: RiskSetSums, *, least: int) -> IntArray:
    """Borders of cells up to the horizon in which enough rows leave, one cell if too few do."""
    leaving = counts.leaving_count
    if least <= 1:
        return np.arange(leaving.size + 1)
    if leaving.sum() < least:
        return np.array([0, leaving.size])
    return group_borders(leaving, least=least)


def _straight(values: FloatArray, borders: IntArray) -> FloatArray:
    """Values at the borders, straight lines between."""
    line = np.interp(np.arange(values.size), borders, values[borders])
    return np.asarray(line, dtype=np.float64)


def _bin(
    predicted: float, at_risk: FloatArray, events: FloatArray, quantile: float
) -> CalibrationBin:
    rows = round(float(at_risk[0]))
    if rows == 0:
        return CalibrationBin(0, None, Estimate(None, reason=NO_ROWS))
    return CalibrationBin(rows, predicted / rows, _observed(at_risk, events, quantile))


def _observed(at_risk: FloatArray, events: FloatArray, quantile: float) -> Estimate:
    survival = float(kaplan_meier(at_risk, events)[-1])
    if survival <= 0:
        return Estimate(1.0, reason=ONLY_EVENTS)
    if at_risk[-2] <= 0:
        return Estimate(None, reason=NOT_FOLLOWED)
    if survival == 1:
        return Estimate(0.0, reason=NO_EVENTS)
    start = at_risk[:-1]
    exposed = start - np.maximum(start - at_risk[1:] - events, 0.0) / 2
    with_events = (events > 0) & (exposed > events)
    n, d = exposed[with_events], events[with_events]
    greenwood = float((d / (n * (n - d))).sum())
    logarithm = math.log(survival)
    half_width = quantile * math.sqrt(greenwood) / -logarithm
    log_hazard = math.log(-logarithm)
    return Estimate(
        1 - survival,
        -math.expm1(-math.exp(log_hazard - half_width)),
        -math.expm1(-math.exp(min(log_hazard + half_width, 700.0))),
    )
