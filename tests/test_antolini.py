"""Antolini's concordance within sites against pycox and brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.survival.antolini import antolini_pair_counts, antolini_sums
from tasks.survival.concordance import NO_COMPARABLE_PAIRS, ConcordanceSums, concordance


def brute_force_counts(time, event, survival, grid):
    """Per-row (concordant, comparable) by comparing each row with each, as pycox does."""
    rows = len(time)
    curves = np.array([np.interp(time, grid, own) for own in survival]).reshape(rows, rows)
    concordant, comparable = np.zeros(rows), np.zeros(rows)
    for i in range(rows):
        for j in range(rows):
            if i == j:
                continue
            own, other = curves[i, i], curves[j, i]
            lower = 1.0 if own < other else 0.5 if own == other else 0.0
            if time[i] < time[j] and event[i]:
                score = lower
            elif time[i] == time[j] and event[i] and event[j]:
                score = 1.0 if own == other else 0.5
            elif time[i] == time[j] and event[i]:
                score = lower
            elif time[i] == time[j] and event[j]:
                score = 1.0 - lower
            else:
                continue
            for row in (i, j):
                comparable[row] += 1
                concordant[row] += score
    return concordant, comparable


@st.composite
def tied_rows(draw, max_rows=25):
    """Rows with few distinct times and survival curves of eighths on a coarse grid."""
    rows = draw(st.integers(1, max_rows))
    levels = draw(st.integers(1, 8))
    halves = st.lists(st.integers(1, levels), min_size=rows, max_size=rows)
    time = np.array(draw(halves)) / 2
    event = np.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    eighths = st.lists(st.integers(0, 8), min_size=4, max_size=4)
    survival = np.array([draw(eighths) for _ in range(rows)]) / 8
    return time, event, survival


GRID = np.arange(4.0)


@settings(max_examples=80, deadline=None)
@given(tied_rows())
def test_counts_equal_brute_force_with_ties(rows):
    for counts, expected in zip(
        antolini_pair_counts(*rows, grid=GRID), brute_force_counts(*rows, GRID), strict=True
    ):
        np.testing.assert_allclose(counts, expected, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(tied_rows(), st.integers(0, 2**32 - 1))
def test_any_split_adds_up_to_pairs_within_sites(rows, seed):
    site = np.random.default_rng(seed).integers(0, 3, rows[0].size)
    total, expected = ConcordanceSums(), np.zeros(2)
    for k in range(3):
        own = [part[site == k] for part in rows]
        total += antolini_sums(*own, grid=GRID)
        expected += [counts.sum() / 2 for counts in brute_force_counts(*own, GRID)]
    assert (total.a, total.b) == pytest.approx(tuple(expected), abs=1e-10)
    result = concordance(total, 0.95)
    assert (result.value is None) == (total.b == 0)


def pycox_value(time, event, survival, grid):
    pycox = pytest.importorskip("pycox.evaluation.concordance")
    at, index = np.unique(time, return_inverse=True)
    curves = np.array([np.interp(at, grid, own) for own in survival]).T
    return pycox.concordance_td(
        time, event.astype("int32"), np.ascontiguousarray(curves), index, "adj_antolini"
    )


@pytest.mark.parametrize(("seed", "decimals"), [(0, 6), (1, 1), (2, 0)])
def test_equals_pycox_for_crossing_curves(seed, decimals):
    rng = np.random.default_rng(seed)
    rows = 300
    time = np.round(rng.exponential(3, rows), decimals) + 0.1
    event = rng.random(rows) < 0.6
    grid = np.linspace(0, 8, 9)
    steps = rng.gamma(0.5, 0.3, size=(rows, 8))
    survival = np.exp(-np.concatenate((np.zeros((rows, 1)), np.cumsum(steps, axis=1)), axis=1))
    sums = antolini_sums(time, event, survival, grid=grid)
    value = concordance(sums, 0.95).value
    assert value == pytest.approx(pycox_value(time, event, survival, grid), abs=1e-10)


def test_proportional_hazards_without_ties_give_harrells_sums():
    rng = np.random.default_rng(3)
    risk, time, event = rng.normal(size=400), rng.exponential(size=400), rng.random(400) < 0.5
    grid = np.linspace(0, time.max(), 50)
    survival = np.exp(-np.outer(np.exp(risk), grid / 4))
    ours = antolini_sums(time, event, survival, grid=grid)
    harrell = ConcordanceSums.of(risk, time, event)
    np.testing.assert_allclose(ours.to_floats(), harrell.to_floats(), rtol=1e-12)


def test_many_events_without_ties_do_not_overflow_the_small_counters():
    rows = 700
    time = np.arange(1.0, rows + 1)
    survival = np.column_stack((np.ones(rows), np.linspace(0.1, 0.9, rows)))
    sums = antolini_sums(time, np.ones(rows, dtype=bool), survival, grid=[0.0, rows])
    assert sums.a == sums.b == rows * (rows - 1) / 2


def test_beyond_the_grid_curves_are_constant():
    time, event = np.array([5.0, 6.0]), np.array([True, False])
    survival = np.array([[1.0, 0.2], [1.0, 0.6]])
    sums = antolini_sums(time, event, survival, grid=[0.0, 1.0])
    assert (sums.a, sums.b) == (1.0, 1.0)


@pytest.mark.parametrize("event", [[False, False], [False]])
def test_without_events_there_is_no_value_but_a_reason(event):
    sums = antolini_sums(np.ones(len(event)), event, np.ones((len(event), 2)), grid=[0.0, 1.0])
    result = concordance(sums, 0.95)
    assert result.value is None
    assert result.reason == NO_COMPARABLE_PAIRS


def test_no_rows_are_no_pairs():
    assert antolini_sums([], [], np.ones((0, 2)), grid=[0.0, 1.0]) == ConcordanceSums()


@pytest.mark.parametrize(
    ("survival", "grid", "words"),
    [
        ([[1.0, np.nan]], [0.0, 1.0], "1 of 2 survival probabilities are not in 0..1"),
        ([[1.0, 1.5]], [1.0, 1.0], "ascend; 1 of 2 survival"),
        ([[1.0]], [0.0, 1.0], "shape"),
    ],
)
def test_bad_curves_are_refused(survival, grid, words):
    with pytest.raises(ValueError, match=words):
        antolini_sums([1.0], [True], survival, grid=grid)
