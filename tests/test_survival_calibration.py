"""Calibration at a horizon against lifelines on the pooled rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines import KaplanMeierFitter

from tasks.survival.calibration import (
    NO_EVENTS,
    NOT_FOLLOWED,
    ONLY_EVENTS,
    CalibrationSums,
    calibration,
    calibration_cuts,
)
from tasks.survival.estimate import NO_ROWS
from tests.survival_oracles import grid_rows

CUTS = [0.3, 0.6]


def sums_of(time, event, predicted, grid, level=1, cuts=CUTS):
    return CalibrationSums.of(time, event, predicted, cuts=cuts, grid=grid, privacy_level=level)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 80))
def test_any_split_equals_lifelines_on_pooled_rows(seed, horizon):
    rows = grid_rows(seed, 90)
    predicted = 1 - rows.survival[:, horizon]
    grid = rows.grid[: horizon + 1]
    site = np.random.default_rng(seed).integers(0, 4, 90)
    total = CalibrationSums.zeros(3, horizon)
    for k in range(4):
        own = site == k
        total += sums_of(rows.time[own], rows.event[own], predicted[own], grid)
    result = calibration(total, 0.9)
    groups = np.searchsorted(CUTS, predicted, side="right")
    for index, one in enumerate(result.bins):
        own = groups == index
        assert one.rows == own.sum()
        if not own.any():
            assert (one.predicted, one.observed.reason) == (None, NO_ROWS)
            continue
        assert one.predicted == pytest.approx(predicted[own].mean(), abs=1e-12)
        if one.observed.reason == NOT_FOLLOWED:
            assert rows.time[own].max() < horizon
            continue
        fitted = KaplanMeierFitter(alpha=0.1).fit(rows.time[own], rows.event[own])
        expected = 1 - fitted.survival_function_at_times(horizon).item()
        assert one.observed.value == pytest.approx(expected, abs=1e-10)
        if one.observed.reason:
            assert one.observed.reason == {0.0: NO_EVENTS, 1.0: ONLY_EVENTS}[one.observed.value]
            continue
        interval = fitted.confidence_interval_survival_function_
        lower, upper = interval[interval.index <= horizon].iloc[-1]
        assert one.observed.lower == pytest.approx(1 - upper, abs=1e-10)
        assert one.observed.upper == pytest.approx(1 - lower, abs=1e-10)
    together = KaplanMeierFitter().fit(rows.time, rows.event)
    assert result.overall.observed.value == pytest.approx(
        1 - together.survival_function_at_times(horizon).item(), abs=1e-10
    )
    assert result.error == pytest.approx(
        np.average(
            [abs(b.predicted - b.observed.value) for b in result.bins if _has_both(b)],
            weights=[b.rows for b in result.bins if _has_both(b)],
        )
    )


def _has_both(one):
    return one.predicted is not None and one.observed.value is not None


def test_within_cells_of_continuous_times_the_error_is_small():
    rng = np.random.default_rng(0)
    risk = rng.normal(scale=0.5, size=6000)
    time, limit = rng.exponential(np.exp(-risk)), rng.exponential(1.5, 6000)
    event, time = time <= limit, np.minimum(time, limit) + 1e-12
    predicted = -np.expm1(-np.exp(risk))
    grid = np.linspace(0, 1, 65)
    fine = calibration(sums_of(time, event, predicted, grid, cuts=[0.55, 0.7]), 0.99)
    sites = np.array_split(np.arange(6000), 30)
    told = sum(
        (sums_of(time[s], event[s], predicted[s], grid, level=5, cuts=[0.55, 0.7]) for s in sites),
        CalibrationSums.zeros(3, 64),
    )
    coarse = calibration(told, 0.95)
    for exact, merged in zip(fine.bins, coarse.bins, strict=True):
        assert exact.observed.lower < exact.predicted < exact.observed.upper
        assert merged.rows == exact.rows
        assert merged.observed.value == pytest.approx(exact.observed.value, abs=0.02)
    assert coarse.error < 0.03


def test_cells_of_a_site_have_privacy_level_rows_leaving():
    rng = np.random.default_rng(1)
    time, event = rng.exponential(1, 400) + 1e-9, rng.random(400) < 0.5
    grid = np.linspace(0, 1, 101)
    predicted = rng.random(400)
    sums = sums_of(time, event, predicted, grid, level=20)
    exact = sums_of(time, event, predicted, grid)
    told_of_bins = (sums.at_risk_count[:-1], exact.at_risk_count[:-1])  # the remainder is empty
    for told, true in zip(*told_of_bins, strict=True):
        assert told[[0, -1]] == pytest.approx(true[[0, -1]])
        slopes = np.round(np.diff(told), 9)
        lengths = np.diff(np.flatnonzero(np.diff(slopes, prepend=np.nan, append=np.nan) != 0))
        gone = lengths * -slopes[np.cumsum(lengths) - 1]
        assert (gone >= 20 - 1e-6).all()
    np.testing.assert_allclose(sums.events.sum(axis=1), exact.events.sum(axis=1))


def test_few_leaving_are_one_cell():
    time, event = np.array([0.5, 5, 5, 5, 5, 5]), np.array([True] * 6)
    sums = sums_of(time, event, np.full(6, 0.1), np.linspace(0, 1, 5), level=5)
    np.testing.assert_array_equal(sums.rows, [6, 0, 0, 0])
    np.testing.assert_allclose(sums.events[0], [0.25] * 4)
    np.testing.assert_allclose(sums.at_risk_count[0], [6, 5.75, 5.5, 5.25, 5])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(2, 12))
def test_every_row_of_a_site_counts_and_no_few_are_told(seed, rows, level):
    rng = np.random.default_rng(seed)
    time, event = rng.exponential(1, rows) + 1e-9, rng.random(rows) < 0.5
    predicted = rng.beta(*rng.uniform(0.3, 3, size=2), size=rows)
    cuts = np.sort(rng.random(4))
    sums = sums_of(time, event, predicted, np.linspace(0, 1, 9), level=level, cuts=cuts)
    if rows < level:
        assert not sums.to_floats().any()
        return
    assert sums.rows.sum() == rows
    assert ((sums.rows == 0) | (sums.rows >= level)).all()
    assert sums.predicted.sum() == pytest.approx(predicted.sum())
    assert sums.events.sum() == pytest.approx((event & (time <= 1)).sum())
    assert sums.at_risk_count[:, -1].sum() == pytest.approx((time > 1).sum())
    result = calibration(sums, 0.95)
    assert len(result.bins) == 5
    assert result.overall.rows == rows


def test_what_was_observed_does_not_depend_on_what_was_predicted():
    """Rows of small bins were left out, and they are chosen by their prediction."""
    rng = np.random.default_rng(3)
    time, event = rng.exponential(3, 300) + 1e-9, np.ones(300, dtype=bool)
    grid = np.linspace(0, 1, 33)
    # Events are predicted apart from the others: most bins of a site of 15 rows are small.
    apart = np.where(time <= 1, rng.uniform(0.5, 1, 300), rng.uniform(0, 0.2, 300))
    cuts = [0.55, 0.65, 0.75, 0.85]
    for predicted in (apart, np.full(300, 0.3), rng.random(300)):
        told = CalibrationSums.zeros(5, 32)
        for own in np.array_split(np.arange(300), 20):
            told += sums_of(time[own], event[own], predicted[own], grid, level=5, cuts=cuts)
        overall = calibration(told, 0.95).overall
        assert overall.rows == 300
        assert overall.observed.value == pytest.approx((time <= 1).mean(), abs=1e-9)


@pytest.mark.parametrize(
    ("time", "event", "reason", "value"),
    [
        ([5.0, 6.0], [True, True], NO_EVENTS, 0.0),
        ([0.5, 0.6], [True, True], ONLY_EVENTS, 1.0),
        ([0.2, 0.3], [True, False], NOT_FOLLOWED, None),
    ],
)
def test_what_does_not_exist_has_a_reason(time, event, reason, value):
    sums = sums_of(time, event, [0.5, 0.5], [0.0, 0.5, 1.0], cuts=[])
    observed = calibration(sums, 0.95).bins[0].observed
    assert (observed.value, observed.lower, observed.reason) == (value, None, reason)


def test_no_rows_at_all():
    result = calibration(CalibrationSums.zeros(3, 4), 0.95)
    assert result.error is None
    assert {one.observed.reason for one in (*result.bins, result.overall)} == {NO_ROWS}


def test_cuts_lie_around_the_probability():
    cuts = calibration_cuts(0.2)
    odds = cuts / (1 - cuts) * 4
    np.testing.assert_allclose(np.log(odds), [-0.75, -0.25, 0.25, 0.75])
    for extreme in (0.0, 1.0):
        assert ((calibration_cuts(extreme) > 0) & (calibration_cuts(extreme) < 1)).all()


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="predicted probabilities"):
        sums_of([1.0], [True], [1.5], [0.0, 1.0])
    with pytest.raises(ValueError, match="ascends"):
        sums_of([1.0], [True], [0.5], [0.0, 1.0], cuts=[0.6, 0.3])
    with pytest.raises(ValueError, match="do not add up"):
        _ = CalibrationSums.zeros(3, 4) + CalibrationSums.zeros(3, 5)


@pytest.mark.parametrize(
    ("position", "value"), [(0, np.nan), (0, 1e6), (3, 1.0), (4, 1e6), (8, 1e6), (11, -1.0)]
)
def test_what_no_rows_can_give_is_refused(position, value):
    sums = sums_of([0.4, 0.6, 2.0], [True] * 3, [0.1] * 3, [0.0, 0.5, 1.0], cuts=[])
    numbers = sums.to_floats()
    np.testing.assert_array_equal(
        CalibrationSums.from_floats(numbers, bins=1, cells=2).rows, [3, 0]
    )
    numbers[position] = value
    if position == 3:
        numbers[3], numbers[4] = 1.0, 2.0
    with pytest.raises(ValueError, match="calibration sums"):
        CalibrationSums.from_floats(numbers, bins=1, cells=2)
