"""The baseline hazard from binned risk sets, against lifelines."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from lifelines import CoxPHFitter
from lifelines.datasets import load_gbsg2

from tasks.survival.baseline import BaselineHazard, breslow
from tasks.survival.risk_sets import RiskSetSums, coarsen, horizon_bound, time_grid

GRID = time_grid(8.0, 16)


def test_rows_beyond_the_horizon_are_at_risk_in_the_whole_last_cell():
    time = np.array([1.0, 2.0, 9.0, 9.0, 9.0])
    sums = RiskSetSums.of(time, np.ones(5), np.zeros(5), grid=time_grid(2, 2))
    np.testing.assert_array_equal(sums.at_risk_count, [5, 4, 3])
    np.testing.assert_array_equal(sums.events, [1, 1])
    np.testing.assert_allclose(
        breslow([sums], time_grid(2, 2)).cumulative, [0, 1 / 4.5, 0.508], 1e-3
    )
    # Enough of them are a group of their own, without a trace on the cells before.
    sent = coarsen(
        RiskSetSums.of(np.repeat(time, 4), np.ones(20), np.zeros(20), grid=time_grid(2, 2)),
        privacy_level=4,
    )
    np.testing.assert_allclose(sent.at_risk_count, [20, 16, 12])


@pytest.fixture(scope="module")
def gbsg2():
    """Times, events and the linear predictor of a Cox model, and lifelines' baseline hazard."""
    frame = pd.get_dummies(load_gbsg2(), drop_first=True, dtype=float)
    cox = CoxPHFitter().fit(frame, "time", "cens")
    predictor = cox.predict_log_partial_hazard(frame).to_numpy()
    hazard = cox.baseline_cumulative_hazard_.iloc[:, 0]
    return frame["time"].to_numpy(float), frame["cens"].to_numpy(bool), predictor, hazard


def baseline_of_five_sites(gbsg2, privacy_level, center=0.0):
    time, event, predictor, _ = gbsg2
    sites = np.array_split(np.random.default_rng(0).permutation(time.size), 5)
    horizon = max(horizon_bound(time[rows], privacy_level=privacy_level) for rows in sites)
    grid = time_grid(horizon, 128)
    sums = [
        coarsen(
            RiskSetSums.of(time[rows], event[rows], predictor[rows], grid=grid, center=center),
            privacy_level=privacy_level,
        )
        for rows in sites
    ]
    return breslow(sums, grid, center=center)


@pytest.mark.parametrize(
    ("privacy_level", "largest", "mean", "typical_row"),
    [(1, 0.01, 0.002, 0.003), (5, 0.15, 0.015, 0.03)],
)
def test_baseline_agrees_with_lifelines_on_gbsg2(gbsg2, privacy_level, largest, mean, typical_row):
    time, _, predictor, hazard = gbsg2
    baseline = baseline_of_five_sites(gbsg2, privacy_level)
    points = baseline.grid[baseline.grid <= time.max()]
    last = np.searchsorted(hazard.index.to_numpy(), points, side="right") - 1
    expected = np.where(last < 0, 0, hazard.to_numpy()[last])
    error = np.abs(
        baseline.survival(points, predictor) - np.exp(-np.outer(np.exp(predictor), expected))
    )
    print(f"privacy level {privacy_level}: largest {error.max():.4f}, mean {error.mean():.4f}")
    assert error.max() < largest
    assert error.mean() < mean
    # The largest errors are where fewer than 20 rows are at risk, and in rows of extreme risk.
    followed = np.array([(time > point).sum() >= 20 for point in points])
    of_typical = np.abs(baseline.survival(points, [0.0])[0] - np.exp(-expected))[followed]
    print(f"  row of mean risk, until 20 are at risk: {of_typical.max():.4f}")
    assert of_typical.max() < typical_row


def test_sites_pool_to_the_baseline_of_all_rows(gbsg2):
    time, event, predictor, _ = gbsg2
    grid = time_grid(3000, 128)
    pooled = breslow([RiskSetSums.of(time, event, predictor, grid=grid)], grid)
    np.testing.assert_allclose(
        baseline_of_five_sites(gbsg2, 1).cumulative, pooled.cumulative, rtol=1e-12
    )


def test_center_changes_nothing_but_the_size_of_numbers(gbsg2):
    time, event, predictor, hazard = gbsg2
    moved = baseline_of_five_sites((time, event, predictor + 700, hazard), 5, center=700.0)
    expected = baseline_of_five_sites(gbsg2, 5).survival([500, 2000], predictor)
    np.testing.assert_allclose(moved.survival([500, 2000], predictor + 700), expected, rtol=1e-9)


def test_no_events_give_survival_1_and_a_flag():
    sums = RiskSetSums.of([1.0, 2.0, 3.0], [0, 0, 0], [0.0, 1.0, 2.0], grid=GRID)
    baseline = breslow([sums], GRID)
    assert not baseline.has_events
    np.testing.assert_array_equal(baseline.survival(GRID, [-3.0, 0.0, 60.0]), 1.0)


def test_huge_linear_predictors_give_neither_nan_nor_overflow():
    time = np.linspace(0.5, 7.5, 40)
    predictor = np.where(np.arange(40) % 2, 1e5, -1e5)
    sums = coarsen(RiskSetSums.of(time, np.ones(40), predictor, grid=GRID), privacy_level=5)
    survival = breslow([sums], GRID).survival(GRID, predictor)
    assert np.isfinite(survival).all()
    assert survival.min() >= 0
    assert survival.max() <= 1
    assert (np.diff(survival, axis=1) <= 0).all()


def test_survival_is_asked_for_within_the_grid_only():
    baseline = BaselineHazard(np.array([0.0, 1.0, 2.0]), np.array([0.0, 0.5, 2.0]))
    assert baseline.survival(1.5, 0.0) == pytest.approx(np.exp(-1.25))
    assert baseline.survival([0, 2], [0.0, 1.0]).shape == (2, 2)
    with pytest.raises(ValueError, match=r"3 of 4 times lie outside 0\.\.2"):
        baseline.survival([1, -1, 2.5, np.nan], [0.0])
    with pytest.raises(ValueError, match="1 of 2 linear predictors are not finite"):
        baseline.survival([1], [0.0, np.nan])


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"grid must be finite and ascend.*cumulative"):
        BaselineHazard(np.array([0.0, 2.0, 1.0]), np.array([0.0, np.nan, 1.0]))
    with pytest.raises(ValueError, match="one length"):
        BaselineHazard(np.zeros(3), np.zeros(4))
    with pytest.raises(ValueError, match="at least one site"):
        breslow([], GRID)
