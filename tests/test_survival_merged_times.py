"""Metric sums tell nothing of a row's time but its merged cell, and stay close to the exact."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.survival.censoring import CensoringEstimate
from tasks.survival.evaluation_plan import evaluation_plan
from tasks.survival.merged_times import MergedCensoring, evaluation_borders
from tasks.survival.pooled_metrics import survival_metrics
from tasks.survival.risk_sets import RiskSetSums, time_grid
from tasks.survival.survival_metrics import EvaluationRows, SurvivalMetricsSums

GRID = time_grid(6.0, 64)
LEVEL = 5


def patients(rng, rows, *, effect=1.0):
    risk = rng.normal(size=rows)
    time = rng.exponential(size=rows) * np.exp(-risk)
    limit = rng.exponential(1.5, size=rows)
    event, time = time <= limit, np.minimum(time, limit) + 1e-6
    survival = np.exp(-np.outer(np.exp(effect * risk), GRID))
    return EvaluationRows(time, event, survival, effect * risk)


def plan_of(rows):
    counts = RiskSetSums.of(rows.time, rows.event, np.zeros(rows.time.size), grid=GRID)
    return evaluation_plan(counts, GRID, sites=1, privacy_level=1)


def part(rows, own):
    return EvaluationRows(rows.time[own], rows.event[own], rows.survival[own], rows.risk[own])


PLAN = plan_of(patients(np.random.default_rng(0), 2000))


def solved_times(sums, plan):
    """What a server reads from the AUC at times with one case: b = controls / G(time of the case).

    It knows G, and bb = b ** 2 (1 + 1 / controls) where one case is behind b.
    """
    found = []
    for k, limit in enumerate(plan.times):
        b, bb = sums.auc.b[k], sums.auc.bb[k, k]
        controls = 1 / (bb / b**2 - 1) if b > 0 and bb > b**2 else 0.0
        if round(controls) < 1 or abs(controls - round(controls)) > 1e-6:
            continue
        weight, low, high = b / round(controls), 0.0, float(limit)
        for _ in range(80):
            middle = (low + high) / 2
            early = 1 / plan.censoring.before(middle) < weight
            low, high = (middle, high) if early else (low, middle)
        found.append(high)
    return np.array(found)


def test_no_event_time_is_solved_from_the_sums_of_a_small_site():
    rng = np.random.default_rng(1)
    exact, told = 0, 0
    for _ in range(60):
        rows = patients(rng, 7)
        for level in (1, LEVEL):
            sums = SurvivalMetricsSums.of(rows, PLAN, privacy_level=level)
            times = solved_times(sums, PLAN)
            hit = (np.abs(times[:, None] - rows.time[rows.event]) < 1e-6).any(axis=1).sum()
            exact, told = (exact + hit, told) if level == 1 else (exact, told + hit)
    assert exact > 10  # the attack works on exact sums
    assert told == 0


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(LEVEL, 70), st.sampled_from([2, 5, 9]), st.booleans())
def test_times_may_be_any_of_their_merged_cells(seed, rows, level, same):
    """Whatever is solved from the sums: they are the same, bit for bit, for all these times.

    The model's scores are of the rows' predictions as well; if all have one, so that the server
    knows it, they are among these sums.
    """
    rng = np.random.default_rng(seed)
    own = patients(rng, max(rows, level))
    wanted = [*PLAN.at.tolist(), PLAN.upper]
    if same:
        own = dataclasses.replace(own, survival=np.repeat(own.survival[:1], own.time.size, axis=0))
    borders = evaluation_borders(own.time, GRID, wanted=wanted, least=level)
    slot = np.searchsorted(GRID, own.time, side="left") - 1
    cell = np.searchsorted(borders, slot, side="right") - 1
    leaving = np.bincount(cell, minlength=borders.size - 1)
    assert (leaving >= level).all()
    ends = np.append(GRID, 50.0)
    moved = own.time.copy()
    for one in range(leaving.size):
        inside = np.flatnonzero(cell == one)
        inside = inside[np.argsort(own.time[inside])]
        low, high = ends[borders[one]], ends[borders[one + 1]]
        moved[inside] = np.sort(rng.uniform(low + 1e-9, min(high, GRID[-1]), inside.size))
    # A cell that reaches over the horizon: an event beyond it is a censoring.
    one = dataclasses.replace(own, event=own.event & (own.time <= GRID[-1]))
    other = dataclasses.replace(one, time=moved)
    again = evaluation_borders(moved, GRID, wanted=wanted, least=level)
    if not np.array_equal(again, borders):  # another cell holds the last row that was needed
        return
    before, after = (SurvivalMetricsSums.of(x, PLAN, privacy_level=level) for x in (one, other))
    for name in ("uno", "auc"):
        np.testing.assert_array_equal(before.to_arrays()[name], after.to_arrays()[name])
    for name in ("score", "square", "product") if same else ():
        np.testing.assert_array_equal(getattr(before.brier, name), getattr(after.brier, name))
    for name in ("reference", "reference_square"):
        np.testing.assert_array_equal(getattr(before.brier, name), getattr(after.brier, name))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_sums_of_pairs_have_enough_events_cases_and_controls(seed, rows):
    own = patients(np.random.default_rng(seed), rows)
    sums = SurvivalMetricsSums.of(own, PLAN, privacy_level=LEVEL)
    for k, moment in enumerate(PLAN.times):
        cases, controls = (own.event & (own.time <= moment)).sum(), (own.time > moment).sum()
        if min(cases, controls) < LEVEL:
            assert not any((sums.auc.b[k], sums.auc.bb[k].any(), sums.auc.bb[:, k].any()))
    if own.event.sum() < LEVEL:
        assert not sums.uno.to_floats().any()
    again = SurvivalMetricsSums.from_arrays(sums.to_arrays(), PLAN)
    np.testing.assert_array_equal(again.brier.to_floats(), sums.brier.to_floats())


@pytest.mark.parametrize("rows", [12, 30, 100])
def test_small_sites_together_give_about_the_exact_metrics(rows):
    everybody = patients(np.random.default_rng(2), 3000, effect=0.7)
    exact, told = SurvivalMetricsSums.zeros(PLAN), SurvivalMetricsSums.zeros(PLAN)
    for own in np.array_split(np.arange(3000), 3000 // rows):
        site = part(everybody, own)
        exact += SurvivalMetricsSums.of(site, PLAN, privacy_level=1)
        told += SurvivalMetricsSums.of(site, PLAN, privacy_level=LEVEL)
    a, b = (survival_metrics(sums, PLAN, 0.95) for sums in (exact, told))
    assert b.uno.value == pytest.approx(a.uno.value, abs=0.01)
    # With a dozen rows a third of the sites has too few that leave to say which cell is over.
    error = 0.008 if rows == 12 else 0.003
    assert b.brier.integrated.value == pytest.approx(a.brier.integrated.value, abs=error)
    assert b.brier.reference.value == pytest.approx(a.brier.reference.value, abs=0.003)
    assert b.brier.difference.value == pytest.approx(a.brier.difference.value, abs=error)
    for one, other in zip(a.brier.at_times, b.brier.at_times, strict=True):
        assert other.value == pytest.approx(one.value, abs=error)
    assert b.auc[0].value == pytest.approx(a.auc[0].value, abs=0.02)


def test_times_of_the_metrics_are_borders_where_enough_rows_leave():
    time = np.array([0.1] * 7 + [1.0] * 3 + [2.0] * 9 + [7.0] * 5)
    at_half, at_1, at_3 = (int(np.searchsorted(GRID, t)) for t in (0.5, 1.5, 3.0))
    borders = evaluation_borders(time, GRID, wanted=[at_half, at_1, at_3], least=5)
    # Of the three rows between .5 and 1.5 no cell is made.
    assert {at_half, at_3} <= set(borders.tolist())
    assert at_1 not in borders
    with pytest.raises(ValueError, match="too few"):
        evaluation_borders(time[:4], GRID, wanted=[], least=5)


def test_at_borders_weights_are_exact_and_between_them_shared():
    g = np.array([1.0, 0.8, 0.6, 0.5, 0.4])
    survival = np.array([1.0, 0.9, 0.6, 0.6, 0.5])
    grid = np.arange(5.0)
    steps = CensoringEstimate(grid, g, continuous=False)
    merged = MergedCensoring(steps, survival, borders=np.array([0, 2, 5]), upper=4)
    time, event = np.array([0.5, 1.5, 0.5, 3.5, 9.0]), np.array([True, True, False, True, True])
    case, control = merged.score_weights(time, event, grid)
    # Events of the first cell: 1 * .1 of .8 * .3 + 1 * .1 in its first half, weights 1 and 1 / .8.
    mass = np.array([1 * 0.1, 0.8 * 0.3])
    share = mass / mass.sum()
    after = share @ [1, 1 / 0.8]
    np.testing.assert_allclose(case[0], [0, share[0], after, after, after])
    np.testing.assert_array_equal(case[0], case[1])
    np.testing.assert_array_equal(case[2], 0)
    np.testing.assert_allclose(control[0], [1, (1 - share[0]) / 0.8, 0, 0, 0])
    censored = np.array([0.95 * 0.2, 0.75 * 0.2])
    left = censored / censored.sum()
    np.testing.assert_allclose(control[2], [1, (1 - left[0]) / 0.8, 0, 0, 0])
    np.testing.assert_allclose(case[3], [0, 0, 0, 0, 1 / 0.5])
    np.testing.assert_array_equal(case[4], 0)
    np.testing.assert_allclose(merged.squared_weights(time[:1], tau=4.0), share @ [1, 1 / 0.64])
