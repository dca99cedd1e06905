"""Binned risk sets of a site, and their coarsening before they leave it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.site.faults import SiteFault
from tasks.survival.risk_sets import (
    RiskSetSums,
    coarsen,
    horizon_bound,
    is_round_number,
    merged_borders,
    time_grid,
)

ROUND_NUMBERS = sorted(
    float(f"{mantissa}e{power}")
    for mantissa in ("1", "1.5", "2", "3", "4", "5", "6", "8")
    for power in range(-12, 13)
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=30)
    | st.lists(st.sampled_from(ROUND_NUMBERS[20:-20]), min_size=1, max_size=30),
    st.integers(1, 30),
)
def test_horizon_is_the_smallest_round_number_that_few_times_exceed(times, privacy_level):
    times = np.array(times)
    if times.size < privacy_level:
        with pytest.raises(SiteFault, match="privacy-level"):
            horizon_bound(times, privacy_level=privacy_level)
        return
    expected = next(bound for bound in ROUND_NUMBERS if (times > bound).sum() < privacy_level)
    assert horizon_bound(times, privacy_level=privacy_level) == expected


def test_horizon_of_single_times_tells_no_maximum():
    times = [10.0] * 20 + [977.0, 1234.0, 5678.0, 9876.0]
    assert horizon_bound(times, privacy_level=5) == 10
    assert horizon_bound(times, privacy_level=1) == 10_000


@pytest.mark.parametrize("time", [0.0, -1.0, np.nan, np.inf])
def test_times_must_be_positive_and_finite(time):
    with pytest.raises(ValueError, match="1 of 3 times are not positive and finite"):
        horizon_bound([1.0, time, 2.0], privacy_level=1)
    with pytest.raises(ValueError, match="1 of 3 times are not positive and finite"):
        RiskSetSums.of([1.0, time, 2.0], [1, 1, 0], [0, 0, 0], grid=time_grid(4, 4))


@st.composite
def site_rows(draw):
    """Follow-up of one site on a grid 0..8 with 16 cells, some of it beyond, many ties."""
    rows = draw(st.integers(1, 60))
    eighths = draw(st.lists(st.integers(1, 80), min_size=rows, max_size=rows))
    event = draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
    seed = draw(st.integers(0, 1000))
    predictor = np.random.default_rng(seed).normal(size=rows)
    return np.array(eighths) / 8, np.array(event), predictor


GRID = time_grid(8.0, 16)


@settings(max_examples=80, deadline=None)
@given(site_rows())
def test_risk_sets_equal_a_count_by_definition(rows):
    time, event, predictor = rows
    sums = RiskSetSums.of(time, event, predictor, grid=GRID, center=0.3)
    for border, start in enumerate(GRID):
        assert sums.at_risk_count[border] == (time > start).sum()
        weight = np.exp(predictor[time > start] - 0.3).sum()
        assert sums.at_risk_weight[border] == pytest.approx(weight)
    for cell in range(16):
        inside = (time > GRID[cell]) & (time <= GRID[cell + 1])
        assert sums.events[cell] == event[inside].sum()
        assert sums.leaving_count[cell] == inside.sum()
        leaving = sums.at_risk_weight[cell] - sums.at_risk_weight[cell + 1]
        assert leaving == pytest.approx(np.exp(predictor[inside] - 0.3).sum())


def groups_in(sent):
    """Borders between which all that is sent runs straight: what a receiver can tell apart."""
    at_risk = np.append(sent.at_risk_count, 0.0)
    weight = np.append(sent.at_risk_weight, 0.0)
    bends = (np.abs(np.diff(at_risk, 2)) > 1e-9) | (np.abs(np.diff(weight, 2)) > 1e-9)
    bends[:-1] |= np.abs(np.diff(sent.events)) > 1e-9
    return np.concatenate(([0], np.flatnonzero(bends) + 1, [at_risk.size - 1])), at_risk


@settings(max_examples=80, deadline=None)
@given(site_rows(), st.integers(2, 12))
def test_every_difference_in_what_is_sent_has_enough_rows_behind_it(rows, level):
    time, event, predictor = rows
    exact = RiskSetSums.of(time, event, predictor, grid=GRID)
    if time.size < level:
        with pytest.raises(SiteFault) as fault:
            coarsen(exact, privacy_level=level)
        assert fault.value.code == "small-site"
        assert f"{time.size} rows" in str(fault.value)
        return
    sent = coarsen(exact, privacy_level=level)
    borders, at_risk = groups_in(sent)
    assert (-np.diff(at_risk[borders]) >= level - 1e-9).all()

    # Nothing is lost, and what is sent is exact at the groups' borders.
    true_count = np.append(exact.at_risk_count, 0.0)
    true_weight = np.append(exact.at_risk_weight, 0.0)
    np.testing.assert_allclose(at_risk[borders], true_count[borders], atol=1e-9)
    sent_weight = np.append(sent.at_risk_weight, 0.0)
    np.testing.assert_allclose(sent_weight[borders], true_weight[borders], atol=1e-9)
    for start, end in itertools.pairwise(borders):
        assert sent.events[start:end].sum() == pytest.approx(exact.events[start:end].sum())
        cells = sent.events[start : min(end, 16)]
        np.testing.assert_allclose(cells, cells.mean() if cells.size else 0, atol=1e-12)
        within = sent_weight[start : end + 1]
        np.testing.assert_allclose(np.diff(within, 2), 0, atol=1e-9)


@settings(max_examples=80, deadline=None)
@given(site_rows(), st.integers(2, 12), st.integers(0, 100))
def test_what_is_sent_depends_on_group_sums_only(rows, level, seed):
    time, event, predictor = rows
    if time.size < level:
        return
    sent = coarsen(RiskSetSums.of(time, event, predictor, grid=GRID), privacy_level=level)
    # Within each group, deal times, events and predictors anew between the rows.
    slot = np.minimum(np.ceil(time * 2).astype(int) - 1, 16)
    borders, _ = groups_in(sent)
    rng = np.random.default_rng(seed)
    shuffled = [time.copy(), event.copy(), predictor.copy()]
    for start, end in itertools.pairwise(borders):
        inside = np.flatnonzero((slot >= start) & (slot < end))
        if end == 17:  # an event beyond the horizon is none
            inside = inside[slot[inside] < 16]
        for column in shuffled:
            column[inside] = column[rng.permutation(inside)]
    again = coarsen(RiskSetSums.of(*shuffled, grid=GRID), privacy_level=level)
    for name in ("at_risk_weight", "events", "at_risk_count"):
        np.testing.assert_allclose(getattr(again, name), getattr(sent, name), atol=1e-9)


def test_too_few_rows_at_the_end_join_the_last_group():
    time = np.array([1, 1, 1, 2, 2, 2, 3, 5.0])
    sent = coarsen(
        RiskSetSums.of(time, time < 3, np.zeros(8), grid=time_grid(4, 4)), privacy_level=3
    )
    # Groups: cell 0; cells 1 to 3 and beyond the horizon, five rows in four slots.
    np.testing.assert_allclose(sent.at_risk_count, [8, 5, 3.75, 2.5, 1.25])
    np.testing.assert_allclose(sent.events, [3, 1, 1, 1])


def test_privacy_level_1_leaves_the_sums_as_they_are():
    sums = RiskSetSums.of([1.0, 7.0], [1, 0], [0.0, 1.0], grid=GRID)
    assert coarsen(sums, privacy_level=1) is sums
    np.testing.assert_array_equal(merged_borders(sums, privacy_level=1), np.arange(18))


@settings(max_examples=80, deadline=None)
@given(site_rows(), st.integers(2, 12))
def test_all_that_is_sent_runs_straight_between_merged_borders(rows, level):
    time, event, predictor = rows
    exact = RiskSetSums.of(time, event, predictor, grid=GRID)
    if time.size < level:
        return
    borders = merged_borders(exact, privacy_level=level)
    told_apart, _ = groups_in(coarsen(exact, privacy_level=level))
    assert set(told_apart) <= set(borders)
    assert (np.add.reduceat(exact.leaving_by_slot, borders[:-1]) >= level).all()


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="need 17 weights"):
        RiskSetSums(np.zeros(16), np.zeros(16), np.zeros(17))
    with pytest.raises(ValueError, match="events must be finite and not negative"):
        RiskSetSums(np.zeros(3), np.array([1.0, np.nan]), np.zeros(3))
    with pytest.raises(ValueError, match="do not add up"):
        RiskSetSums(np.zeros(3), np.zeros(2), np.zeros(3)) + RiskSetSums(
            np.zeros(2), np.zeros(1), np.zeros(2)
        )
    with pytest.raises(ValueError, match="positive horizon"):
        time_grid(0.0, 128)
    with pytest.raises(ValueError, match="vectors of one length"):
        RiskSetSums.of([1.0, 2.0], [1, 0], [0.0], grid=GRID)


def test_a_bound_is_a_round_number_and_little_else_is() -> None:
    rng = np.random.default_rng(0)
    times = 10.0 ** rng.uniform(-29, 29, size=300)
    bounds = [horizon_bound([time], privacy_level=1) for time in times]
    assert all(map(is_round_number, bounds))
    assert not any(map(is_round_number, times))
    assert not any(is_round_number(np.nextafter(bound, np.inf)) for bound in bounds)
    assert not is_round_number(7.0)
