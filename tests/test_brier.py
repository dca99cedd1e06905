"""Brier scores against scikit-survival untied, and tied against cases by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sksurv.metrics import brier_score, integrated_brier_score

from tasks.survival.brier import BrierSums, brier_scores
from tasks.survival.censoring import CensoringEstimate, censoring_estimate
from tasks.survival.curves import kaplan_meier
from tasks.survival.estimate import NO_ROWS, ONE_ROW
from tests.survival_oracles import grid_rows
from tests.test_unos_concordance import tied_rows

GRID = np.array([0.0, 1.0, 2.0, 4.0])
REFERENCE = np.array([1.0, 0.8, 0.5, 0.2])
STEADY = CensoringEstimate(np.array([0.0, 10.0]), np.array([1.0, 0.2]))


def sums_of(time, event, survival, **changed):
    given_ = {"grid": GRID, "at": [1, 2], "reference": REFERENCE, "censoring": STEADY}
    return BrierSums.of(time, event, survival, **(given_ | changed))


def survival_of(risk):
    return np.exp(-np.outer(np.exp(risk), GRID / 3))


@pytest.mark.parametrize("seed", range(3))
def test_equals_scikit_survival_untied(seed):
    rows = grid_rows(seed, 150)
    points = np.arange(1, 110, 3)
    counts = rows.counts
    reference = kaplan_meier(counts.at_risk_count, counts.events)[points]
    sums = BrierSums.of(
        rows.time,
        rows.event,
        rows.survival[:, points],
        grid=rows.grid[points],
        at=np.arange(points.size),
        reference=reference,
        censoring=censoring_estimate(counts, rows.grid),
    )
    scores = brier_scores(sums, 0.95)
    times, estimate, y = rows.grid[points], rows.survival[:, points], rows.structured
    np.testing.assert_allclose(
        [one.value for one in scores.at_times], brier_score(y, y, estimate, times)[1], atol=1e-10
    )
    expected = integrated_brier_score(y, y, estimate, times)
    assert scores.integrated.value == pytest.approx(expected, abs=1e-10)
    same_for_all = np.tile(reference, (150, 1))
    expected = integrated_brier_score(y, y, same_for_all, times)
    assert scores.reference.value == pytest.approx(expected, abs=1e-10)
    assert scores.difference.value == pytest.approx(
        scores.integrated.value - scores.reference.value, abs=1e-12
    )


def test_tied_times_by_hand():
    # At time 1: an event and a censoring; at 2 an event; one row stays beyond 2.
    time, event = [1.0, 1.0, 2.0, 3.0], [True, False, True, False]
    survival = np.array([[1, 0.5, 0.25], [1, 0.6, 0.5], [1, 0.75, 0.5], [1, 1, 0.75]])
    # G falls at 1 (one of the three rows without an event there), not before: G(1-) = 1.
    censoring = CensoringEstimate(
        np.array([0.0, 1.0, 2.0]), np.array([1.0, 2 / 3, 2 / 3]), continuous=False
    )
    scores = brier_scores(
        sums_of(
            time,
            event,
            survival,
            grid=[0.0, 1.0, 2.0],
            at=[0, 1, 2],
            reference=[1.0, 1.0, 1.0],
            censoring=censoring,
        ),
        0.95,
    )
    at_1 = (0.5**2 / 1 + 0 + 0.25**2 * 3 / 2 + 0) / 4
    at_2 = (0.25**2 / 1 + 0 + 0.5**2 * 3 / 2 + 0.25**2 * 3 / 2) / 4
    assert [one.value for one in scores.at_times] == pytest.approx([0, at_1, at_2], abs=1e-15)
    assert scores.integrated.value == pytest.approx((at_1 + (at_1 + at_2)) / 4, abs=1e-15)
    assert scores.reference.value == pytest.approx((1 / 4 + (1 / 4 + 2.5 / 4)) / 4, abs=1e-15)


@settings(max_examples=60, deadline=None)
@given(tied_rows(), st.integers(0, 2**32 - 1))
def test_any_split_gives_the_pooled_value_and_weights_are_replicated_rows(rows, seed):
    risk, time, event = rows
    rng = np.random.default_rng(seed)
    site, weight = rng.integers(0, 3, time.size), rng.integers(0, 4, time.size)
    total = BrierSums.zeros(2)
    for k in range(3):
        own = site == k
        total += sums_of(time[own], event[own], survival_of(risk[own]))
    pooled = sums_of(time, event, survival_of(risk))
    np.testing.assert_allclose(total.to_floats(), pooled.to_floats(), rtol=1e-12, atol=1e-12)
    weighted = sums_of(time, event, survival_of(risk), row_weight=weight)
    copies = sums_of(
        np.repeat(time, weight), np.repeat(event, weight), survival_of(np.repeat(risk, weight))
    )
    np.testing.assert_allclose(weighted.to_floats(), copies.to_floats(), rtol=1e-12, atol=1e-12)
    result = brier_scores(total, 0.95).integrated
    if time.size == 0:
        assert (result.value, result.reason) == (None, NO_ROWS)
    else:
        assert np.isfinite(result.value)
        assert (result.lower is None) == (result.reason == ONE_ROW) == (time.size == 1)


def test_intervals_are_those_of_the_rows():
    rng = np.random.default_rng(0)
    risk, time = rng.normal(size=200), rng.exponential(2, 200) + 1e-9
    event, survival = rng.random(200) < 0.6, survival_of(risk)
    one_by_one = [
        sums_of(time[i : i + 1], event[i : i + 1], survival[i : i + 1]) for i in range(200)
    ]
    own = np.array([one.score[-1] for one in one_by_one])
    reference = np.array([one.reference[-1] for one in one_by_one])
    scores = brier_scores(sums_of(time, event, survival), 0.95)
    for estimate, values in [
        (scores.integrated, own),
        (scores.reference, reference),
        (scores.difference, own - reference),
    ]:
        error = values.std(ddof=1) / np.sqrt(200)
        assert estimate.upper - estimate.value == pytest.approx(1.959964 * error, rel=1e-6)
        assert estimate.value - estimate.lower == pytest.approx(1.959964 * error, rel=1e-6)


def test_more_rows_than_a_block_are_all_scored():
    rng = np.random.default_rng(1)
    time, event = rng.exponential(2, 5000) + 1e-9, rng.random(5000) < 0.6
    survival = survival_of(rng.normal(size=5000))
    parts = [slice(0, 1000), slice(1000, 5000)]
    total = sum((sums_of(time[p], event[p], survival[p]) for p in parts), BrierSums.zeros(2))
    np.testing.assert_allclose(
        total.to_floats(), sums_of(time, event, survival).to_floats(), rtol=1e-12
    )


def test_a_censoring_estimate_of_zero_is_refused():
    ended = CensoringEstimate(np.array([0.0, 2.0, 4.0]), np.array([1.0, 0.5, 0.0]))
    with pytest.raises(ValueError, match="is 0 at 1 of 4 points"):
        sums_of([1.0], [True], survival_of([0.0]), censoring=ended)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"grid": [0.0, 1.0, 1.0, 2.0]}, "ascend"),
        ({"reference": [1.0, 0.5]}, "shape"),
        ({"reference": [1.0, 0.5, 0.2, -0.1]}, "1 survival probabilities"),
        ({"row_weight": [np.nan]}, "row weights"),
    ],
)
def test_bad_input_is_refused(changed, words):
    with pytest.raises(ValueError, match=words):
        sums_of([1.0], [True], survival_of([0.0]), **changed)


@pytest.mark.parametrize(
    ("position", "value"), [(0, -1.0), (0, np.inf), (0, 1e300), (0, 0.0), (1, 1e9), (13, 1e9)]
)
def test_what_no_rows_can_give_is_refused(position, value):
    numbers = sums_of([1.0, 3.0], [True, False], survival_of([0.0, 1.0])).to_floats()
    assert BrierSums.from_floats(numbers, times=2).rows == 2
    numbers[position] = value
    with pytest.raises(ValueError, match="Brier sums"):
        BrierSums.from_floats(numbers, times=2)
