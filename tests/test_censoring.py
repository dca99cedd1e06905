"""The shared censoring estimate against lifelines, scikit-survival and hand-made cells."""

from __future__ import annotations

import numpy as np
import pytest
from lifelines import KaplanMeierFitter
from sksurv.nonparametric import CensoringDistributionEstimator

from tasks.survival.censoring import CensoringEstimate, censoring_estimate, median_follow_up
from tasks.survival.risk_sets import RiskSetSums, coarsen
from tests.survival_oracles import grid_rows


@pytest.mark.parametrize("actuarial", [True, False])
def test_equals_scikit_survival_for_untied_times_on_the_grid(actuarial):
    rows = grid_rows(0, 80)
    estimate = censoring_estimate(rows.counts, rows.grid, actuarial=actuarial)
    oracle = CensoringDistributionEstimator().fit(rows.structured)
    np.testing.assert_allclose(
        estimate.at(rows.grid[1:]), oracle.predict_proba(rows.grid[1:]), atol=1e-12
    )
    events = rows.time[rows.event]
    np.testing.assert_allclose(estimate.before(events), oracle.predict_proba(events), atol=1e-12)


def test_without_actuarial_correction_tied_times_on_the_grid_are_exact():
    rng = np.random.default_rng(1)
    time, event = rng.integers(1, 9, 300).astype(float), rng.random(300) < 0.5
    grid = np.arange(9.0)
    counts = RiskSetSums.of(time, event, np.zeros(300), grid=grid)
    estimate = censoring_estimate(counts, grid, actuarial=False)
    # Censorings a moment later than events at the same time.
    oracle = KaplanMeierFitter().fit(time + 0.25 * ~event, ~event)
    np.testing.assert_allclose(
        estimate.at(grid), oracle.survival_function_at_times(grid + 0.3), atol=1e-12
    )
    np.testing.assert_allclose(
        estimate.before(grid), oracle.survival_function_at_times(grid), atol=1e-12
    )


def test_cells_by_hand():
    # 10 rows: 2 events and 1 censoring in the first cell, 4 censorings in the second.
    counts = RiskSetSums(np.zeros(3), np.array([2.0, 0.0]), np.array([10.0, 7.0, 3.0]))
    grid = np.array([0.0, 1.0, 2.0])
    smooth = censoring_estimate(counts, grid)
    np.testing.assert_allclose(smooth.survival, [1, 8 / 9, 8 / 9 * 3 / 7])
    assert smooth.at([0.5]) == pytest.approx(np.sqrt(8 / 9))
    assert smooth.before([1.0]) == smooth.at([1.0])
    steps = censoring_estimate(counts, grid, actuarial=False)
    np.testing.assert_allclose(steps.survival, [1, 7 / 8, 7 / 8 * 3 / 7])
    np.testing.assert_allclose(steps.at([0.5, 1.0, 1.5, 2.0]), [1, 7 / 8, 7 / 8, 3 / 8])
    np.testing.assert_allclose(steps.before([0.0, 0.5, 1.0, 1.5]), [1, 1, 1, 7 / 8])


@pytest.mark.parametrize("horizon", [8, 3])
def test_counts_with_the_privacy_level_stay_near_the_truth(horizon):
    rng = np.random.default_rng(2)
    limit, time = rng.exponential(2.0, 4000), rng.exponential(1.5, 4000)
    event, time = time <= limit, np.minimum(time, limit)
    grid = np.linspace(0, horizon, 65)
    parts = np.array_split(np.arange(4000), 10)
    counts = [RiskSetSums.of(time[p], event[p], np.zeros(p.size), grid=grid) for p in parts]
    told = [coarsen(own, privacy_level=5) for own in counts]
    pooled, exact = sum(told[1:], told[0]), sum(counts[1:], counts[0])
    followed = exact.at_risk_count >= 200
    truth = np.exp(-grid / 2.0)
    for sums in (pooled, exact):
        gap = np.abs(censoring_estimate(sums, grid).survival - truth)
        assert gap[followed].max() < 0.03


def test_where_all_are_censored_it_falls_to_zero():
    counts = RiskSetSums(np.zeros(3), np.zeros(2), np.array([4.0, 2.0, 0.0]))
    estimate = censoring_estimate(counts, np.array([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(estimate.at([1.0, 1.5, 2.0]), [0.5, 0.5, 0.0])


@pytest.mark.parametrize(
    ("grid", "survival", "words"),
    [
        ([0.0, 1.0], [1.0, 0.5, 0.2], "one length"),
        ([0.0, 0.0], [1.0, 0.5], "ascend from 0"),
        ([0.0, 1.0], [1.0, 1.5], "fall from 1"),
        ([0.0, 1.0], [0.9, np.nan], "fall from 1"),
    ],
)
def test_other_forms_are_refused(grid, survival, words):
    with pytest.raises(ValueError, match=words):
        CensoringEstimate(np.array(grid), np.array(survival))


def test_times_beyond_the_grid_are_refused():
    with pytest.raises(ValueError, match=r"1 of 2 times lie outside 0..1"):
        CensoringEstimate(np.array([0.0, 1.0]), np.array([1.0, 0.5])).at([0.5, 1.5])
    with pytest.raises(ValueError, match="counts of 1 cells"):
        censoring_estimate(
            RiskSetSums(np.zeros(2), np.zeros(1), np.ones(2)), np.array([0.0, 1.0, 2.0])
        )


def test_median_follow_up_is_that_of_lifelines_on_censored_times():
    rng = np.random.default_rng(4)
    event_time, censoring = rng.exponential(10.0, 4000), rng.uniform(0.0, 20.0, 4000)
    time, event = np.minimum(event_time, censoring), event_time <= censoring
    oracle = KaplanMeierFitter().fit(time, ~event).median_survival_time_
    grid = np.linspace(0.0, 20.0, 129)
    counts = RiskSetSums.of(time, event, np.zeros(time.size), grid=grid)
    assert median_follow_up(counts, grid) == pytest.approx(oracle, abs=0.1)
    merged = coarsen(counts, privacy_level=20)
    assert median_follow_up(merged, grid) == pytest.approx(oracle, abs=0.4)


def test_median_follow_up_does_not_exist_where_few_are_censored():
    grid = np.linspace(0.0, 4.0, 5)
    time, event = np.array([1.0, 2.0, 3.0, 4.0]), np.ones(4, dtype=bool)
    counts = RiskSetSums.of(time, event, np.zeros(4), grid=grid)
    assert median_follow_up(counts, grid) is None
