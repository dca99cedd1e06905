"""Predicted and Kaplan-Meier curves of risk groups against lifelines on pooled rows."""

from __future__ import annotations

import numpy as np
import pytest
from lifelines import KaplanMeierFitter
from lifelines.datasets import load_gbsg2

from tasks.survival.baseline import BaselineHazard, RiskSetSums, breslow, time_grid
from tasks.survival.curves import GroupCurves, curve_grid, kaplan_meier, pool_curves, risk_cuts


@pytest.fixture(scope="module")
def rows():
    """Times, events and a linear predictor (number of positive nodes) of gbsg2."""
    frame = load_gbsg2()
    nodes = np.log(frame["pnodes"].to_numpy(float))
    return frame["time"].to_numpy(float), frame["cens"].to_numpy(bool), nodes - nodes.mean()


@pytest.fixture(scope="module")
def baseline(rows):
    grid = time_grid(3000.0, 128)
    return breslow([RiskSetSums.of(*rows, grid=grid)], grid)


def five_sites(rows, baseline, privacy_level, cells=50):
    time, event, predictor = rows
    grid = curve_grid(baseline.horizon, cells)
    cuts = risk_cuts(predictor.mean(), predictor.std())
    parts = np.array_split(np.random.default_rng(0).permutation(time.size), 5)
    sites = [
        GroupCurves.of(
            time[part],
            event[part],
            predictor[part],
            cuts=cuts,
            baseline=baseline,
            grid=grid,
            privacy_level=privacy_level,
        )
        for part in parts
    ]
    return sites, grid, np.digitize(predictor, cuts)


@pytest.mark.parametrize(("privacy_level", "largest"), [(1, 0.01), (5, 0.08)])
def test_kaplan_meier_of_groups_agrees_with_lifelines(rows, baseline, privacy_level, largest):
    time, event, _ = rows
    sites, grid, group = five_sites(rows, baseline, privacy_level)
    pooled = pool_curves(sites)
    assert [curve.rows for curve in pooled] == np.bincount(group).tolist()
    for index, curve in enumerate(pooled):
        own = group == index
        # Until 20 rows are at risk; behind that the curves of 5 sites rest on single rows.
        points = grid[[(time[own] > point).sum() >= 20 for point in grid]]
        expected = KaplanMeierFitter().fit(time[own], event[own]).predict(points).to_numpy()
        error = np.abs(curve.kaplan_meier[: points.size] - expected).max()
        print(f"privacy level {privacy_level}, group {index}: {error:.4f}")
        assert error < largest
        assert (np.diff(curve.kaplan_meier) <= 0).all()


def test_actuarial_correction_is_what_makes_coarse_cells_right(rows):
    time, event, _ = rows
    grid = time_grid(3000.0, 12)
    sums = RiskSetSums.of(time, event, np.zeros(time.size), grid=grid)
    curve = kaplan_meier(sums.at_risk_count, sums.events)
    uncorrected = np.cumprod(1 - sums.events / np.maximum(sums.at_risk_count[:-1], 1))
    expected = KaplanMeierFitter().fit(time, event).predict(grid).to_numpy()
    followed = sums.at_risk_count >= 20
    error = np.abs(curve - expected)[followed].max()
    assert error < 0.01
    assert error < np.abs(uncorrected - expected[1:])[followed[1:]].max() / 3


def test_kaplan_meier_is_exact_without_censoring():
    time = np.random.default_rng(1).integers(1, 40, 200).astype(float)
    grid = time_grid(40.0, 8)
    sums = RiskSetSums.of(time, np.ones(200), np.zeros(200), grid=grid)
    expected = KaplanMeierFitter().fit(time).predict(grid).to_numpy()
    np.testing.assert_allclose(kaplan_meier(sums.at_risk_count, sums.events), expected, atol=1e-12)


@pytest.mark.parametrize("privacy_level", [1, 5])
def test_mean_prediction_is_exact(rows, baseline, privacy_level):
    sites, grid, group = five_sites(rows, baseline, privacy_level)
    for index, curve in enumerate(pool_curves(sites)):
        survival = np.exp(
            -np.outer(
                np.exp(rows[2][group == index]), np.interp(grid, baseline.grid, baseline.cumulative)
            )
        )
        np.testing.assert_allclose(curve.mean_predicted, survival.mean(axis=0), rtol=1e-12)


def test_counts_of_each_group_are_coarsened(rows, baseline):
    sites, _, _ = five_sites(rows, baseline, 5)
    for site in sites:
        for at_risk in site.at_risk_count:
            at_risk = np.append(at_risk, 0.0)
            bends = np.flatnonzero(np.abs(np.diff(at_risk, 2)) > 1e-9) + 1
            borders = np.concatenate(([0], bends, [at_risk.size - 1]))
            assert (-np.diff(at_risk[borders]) >= 5 - 1e-9).all()


def test_small_groups_of_a_site_are_suppressed(baseline):
    time, event = np.linspace(100, 2900, 24), np.ones(24, dtype=bool)
    common = {"baseline": baseline, "grid": curve_grid(3000.0, 128), "privacy_level": 5}
    risk = np.repeat([-1.0, 0.0, 1.0], [5, 15, 4])
    few = GroupCurves.of(time, event, risk, cuts=[-0.5, 0.5], **common)
    assert few.suppressed.tolist() == [False, False, True]
    assert few.rows.tolist() == [5, 15, 0]
    assert few.survival_sum[2].sum() == few.at_risk_count[2].sum() == few.events[2].sum() == 0

    # A group without any row is not told from one with a few.
    none = GroupCurves.of(time[:20], event[:20], risk[:20], cuts=[-0.5, 0.5], **common)
    assert none.suppressed[2]
    low, _, high = pool_curves([few, none])
    assert (low.rows, low.suppressed_sites) == (10, 0)
    assert (high.rows, high.suppressed_sites) == (0, 2)
    assert high.mean_predicted is None
    assert high.kaplan_meier is None


def test_a_site_smaller_than_the_privacy_level_tells_nothing(baseline):
    curves = GroupCurves.of(
        [100.0, 200.0],
        [1, 0],
        [0.0, 1.0],
        cuts=[0.5],
        baseline=baseline,
        grid=curve_grid(3000.0, 128),
        privacy_level=3,
    )
    assert curves.suppressed.all()
    assert curves.rows.sum() == curves.survival_sum.sum() == curves.at_risk_count.sum() == 0


def test_all_censored_or_equal_predictions_give_curves_too(baseline):
    grid = curve_grid(3000.0, 128)
    curves = GroupCurves.of(
        np.linspace(100, 4000, 30),
        np.zeros(30),
        np.zeros(30),
        cuts=risk_cuts(0.0, 0.0),
        baseline=baseline,
        grid=grid,
        privacy_level=5,
    )
    assert curves.rows.tolist() == [0, 0, 30]  # a predictor at a cut belongs above it
    np.testing.assert_array_equal(pool_curves([curves])[2].kaplan_meier, 1.0)


def test_curves_have_no_more_cells_than_the_baseline():
    assert curve_grid(10.0, 4).size == 5
    assert curve_grid(10.0, 10_000).size == 51


def test_bad_input_is_refused():
    baseline = BaselineHazard(np.array([0.0, 10.0]), np.array([0.0, 1.0]))
    common = {"baseline": baseline, "grid": time_grid(10.0, 2), "privacy_level": 1}
    with pytest.raises(ValueError, match="cuts must be finite and ascend"):
        GroupCurves.of([1.0], [1], [0.0], cuts=[1.0, 0.0], **common)
    with pytest.raises(ValueError, match="1 of 2 linear predictors are not finite"):
        GroupCurves.of([1.0, 2.0], [1, 0], [0.0, np.nan], cuts=[0.0], **common)
    with pytest.raises(ValueError, match="vectors of one length"):
        GroupCurves.of([1.0, 2.0], [1], [0.0, 1.0], cuts=[0.0], **common)
    with pytest.raises(ValueError, match="at least one site"):
        pool_curves([])
    one = GroupCurves.of([1.0], [1], [0.0], cuts=[0.0], **common)
    two = GroupCurves.of([1.0], [1], [0.0], cuts=[0.0, 1.0], **common)
    with pytest.raises(ValueError, match="sites differ"):
        pool_curves([one, two])
    with pytest.raises(ValueError, match=r"rows has shape \(3,\).*survival_sum must be finite"):
        GroupCurves(
            np.zeros(3, dtype=np.int64),
            np.full((2, 3), np.nan),
            np.zeros((2, 3)),
            np.zeros((2, 2)),
            np.zeros(2, dtype=bool),
        )
