"""Predicted and Kaplan-Meier curves of risk groups against lifelines on pooled rows."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines import KaplanMeierFitter
from lifelines.datasets import load_gbsg2

from tasks.survival.baseline import BaselineHazard, breslow
from tasks.survival.common_borders import common_borders
from tasks.survival.curves import GroupCurves, kaplan_meier, pool_curves, risk_cuts
from tasks.survival.risk_sets import RiskSetSums, coarsen, merged_borders, time_grid

# Training and evaluation rows of 5 sites that share gbsg2.
TRAINING, EVALUATION = 5 * 110, 5 * 27


@pytest.fixture(scope="module", params=range(3))
def cohort(request):
    """Rows of 5 sites with their linear predictor (number of positive nodes) and risk group."""
    frame = load_gbsg2()
    nodes = np.log(frame["pnodes"].to_numpy(float))
    predictor = nodes - nodes.mean()
    order = np.random.default_rng(request.param).permutation(len(frame))
    cuts = risk_cuts(predictor.mean(), predictor.std())
    time, event = frame["time"].to_numpy(float), frame["cens"].to_numpy(bool)
    training = order[:TRAINING]
    grid = time_grid(3000.0, 128)
    sums = RiskSetSums.of(time[training], event[training], predictor[training], grid=grid)
    return SimpleNamespace(
        time=time,
        event=event,
        predictor=predictor,
        group=np.digitize(predictor, cuts),
        cuts=cuts,
        training=training,
        evaluation=order[TRAINING : TRAINING + EVALUATION],
        baseline=breslow([sums], grid),
    )


def curves_of_sites(cohort, privacy_level):
    return [
        GroupCurves.of(
            cohort.time[rows],
            cohort.event[rows],
            cohort.predictor[rows],
            cuts=cohort.cuts,
            baseline=cohort.baseline,
            privacy_level=privacy_level,
        )
        for rows in np.array_split(cohort.training, 5)
    ]


def curve_errors(cohort, rows, curves):
    """Distance of each group's curve from lifelines' on pooled rows, while 20 are at risk."""
    grid, errors = cohort.baseline.grid, []
    for index, curve in enumerate(curves):
        own = rows[cohort.group[rows] == index]
        followed = np.array(
            [(cohort.time[own] > point).sum() >= min(20, own.size / 4) for point in grid]
        )
        fitted = KaplanMeierFitter().fit(cohort.time[own], cohort.event[own])
        exact = fitted.predict(grid[followed]).to_numpy()
        errors.append(np.abs(curve[followed] - exact))
    return errors


@pytest.mark.parametrize(("privacy_level", "mean", "largest"), [(1, 0.001, 0.005), (5, 0.02, 0.07)])
def test_kaplan_meier_of_groups_agrees_with_lifelines(cohort, privacy_level, mean, largest):
    sites = curves_of_sites(cohort, privacy_level)
    pooled = pool_curves(sites)
    assert pooled.silent_sites == 0
    assert [group.rows for group in pooled.groups] == np.bincount(
        cohort.group[cohort.training]
    ).tolist()
    curves = [group.kaplan_meier for group in pooled.groups]
    for index, error in enumerate(curve_errors(cohort, cohort.training, curves)):
        print(f"level {privacy_level}, group {index}: {error.mean():.4f}, most {error.max():.4f}")
        assert error.mean() < mean
        assert error.max() < largest
        assert (np.diff(curves[index]) <= 0).all()


def test_curves_are_nearer_than_those_of_evaluation_rows_and_of_even_spreading(cohort):
    """Of a group's few evaluation rows at a site, all are in one cell or two."""
    pooled = pool_curves(curves_of_sites(cohort, 5))
    curves = {
        "as it is": (cohort.training, [group.kaplan_meier for group in pooled.groups]),
        "even": (cohort.training, evenly_spread(cohort, 5)),
        "evaluation": (cohort.evaluation, of_each_group_alone(cohort, cohort.evaluation, 5)),
    }
    mean = {
        name: np.mean([error.mean() for error in curve_errors(cohort, rows, of_groups)])
        for name, (rows, of_groups) in curves.items()
    }
    print(f"mean error {mean}")
    assert mean["as it is"] < mean["even"] / 1.5
    assert mean["as it is"] < mean["evaluation"] / 3


def sums_of_groups(cohort, rows):
    """Exact sums of each risk group of some rows."""
    return [
        RiskSetSums.of(
            cohort.time[own], cohort.event[own], np.zeros(own.size), grid=cohort.baseline.grid
        )
        for own in (rows[cohort.group[rows] == index] for index in range(3))
    ]


def of_each_group_alone(cohort, rows, level):
    """Curves from sums that are coarsened group by group."""
    sites = [sums_of_groups(cohort, part) for part in np.array_split(rows, 5)]
    curves = []
    for index in range(3):
        enough = [site[index] for site in sites if site[index].at_risk_count[0] >= level]
        total = sum_of([coarsen(sums, privacy_level=level) for sums in enough])
        curves.append(kaplan_meier(total.at_risk_count, total.events))
    return curves


def evenly_spread(cohort, level):
    """Curves from the same cells, but with rows and events spread evenly in them."""
    at_risk, events = np.zeros((3, 130)), np.zeros((3, 130))
    for part in np.array_split(cohort.training, 5):
        sums = sums_of_groups(cohort, part)
        borders = common_borders(
            np.array([own.leaving_by_slot for own in sums]),
            merged_borders(sum_of(sums), privacy_level=level),
            least=level,
        )
        for index, own in enumerate(sums):
            seen = np.concatenate(([0], np.cumsum(own.events), [own.events.sum()]))
            left = np.append(own.at_risk_count, 0)
            at_risk[index] += np.interp(np.arange(130), borders, left[borders])
            events[index] += np.interp(np.arange(130), borders, seen[borders])
    return [kaplan_meier(at_risk[k][:-1], np.diff(events[k][:-1])) for k in range(3)]


def sum_of(sums):
    return sum(sums[1:], sums[0])


def test_actuarial_correction_is_what_makes_coarse_cells_right():
    frame = load_gbsg2()
    time, event = frame["time"].to_numpy(float), frame["cens"].to_numpy(bool)
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


@pytest.mark.parametrize(("privacy_level", "largest"), [(1, 1e-12), (5, 0.012)])
def test_mean_prediction_is_that_of_all_rows(cohort, privacy_level, largest):
    baseline, rows = cohort.baseline, cohort.training
    for index, curve in enumerate(pool_curves(curves_of_sites(cohort, privacy_level)).groups):
        hazard_ratio = np.exp(cohort.predictor[rows[cohort.group[rows] == index]])
        survival = np.exp(-np.outer(hazard_ratio, baseline.cumulative)).mean(axis=0)
        error = np.abs(curve.mean_predicted - survival).max()
        print(f"level {privacy_level}, group {index}: {error:.2e}")
        assert error < largest


# What is behind the numbers of a site ------------------------------------------------------------

GRID = time_grid(8.0, 16)
BASELINE = BaselineHazard(GRID, np.cumsum([0, *[0.1, 0.0, 0.2, 0.05] * 4]), center=0.3)
CUTS = (-0.5, 0.5)


@st.composite
def site_rows(draw):
    """Follow-up of one site on a grid 0..8 with 16 cells, some of it beyond, many ties."""
    rows = draw(st.integers(20, 120))
    seed = draw(st.integers(0, 10_000))
    rng = np.random.default_rng(seed)
    return (
        rng.integers(1, 80, rows) / 8,
        rng.random(rows) < draw(st.floats(0, 1)),
        rng.normal(size=rows),
    )


def borders_of(rows, level):
    """Common borders of a site's groups, and each row's group."""
    time, event, predictor = rows
    group = np.digitize(predictor, CUTS)
    sums = [
        RiskSetSums.of(time[group == k], event[group == k], predictor[group == k], grid=GRID)
        for k in range(3)
    ]
    overall = RiskSetSums.of(*rows, grid=GRID)
    return (
        common_borders(
            np.array([own.leaving_by_slot for own in sums]),
            merged_borders(overall, privacy_level=level),
            least=level,
        ),
        group,
    )


def curves_of(rows, level):
    return GroupCurves.of(*rows, cuts=CUTS, baseline=BASELINE, privacy_level=level)


@settings(max_examples=60, deadline=None)
@given(site_rows(), st.integers(1, 6))
def test_what_is_sent_is_exact_at_the_borders_of_cells(rows, level):
    time, event, predictor = rows
    borders, group = borders_of(rows, level)
    curves = curves_of(rows, level)
    assert curves.silent == (borders is None)
    if borders is None:
        return
    inner = borders[borders <= 16]
    for index in range(3):
        own = group == index
        assert curves.rows[index] == own.sum()
        at_risk = [(time[own] > GRID[border]).sum() for border in inner]
        np.testing.assert_allclose(curves.at_risk_count[index][inner], at_risk, atol=1e-9)
        seen = [(event & own & (time <= GRID[border])).sum() for border in [*inner, 16]]
        sent = np.concatenate(([0.0], np.cumsum(curves.events[index])))[[*inner, 16]]
        np.testing.assert_allclose(sent, seen, atol=1e-9)
        survival = BASELINE.survival(GRID[inner], predictor[own]).sum(axis=0)
        np.testing.assert_allclose(curves.survival_sum[index][inner], survival, rtol=1e-9)


@settings(max_examples=80, deadline=None)
@given(site_rows(), st.integers(2, 6), st.integers(0, 100))
def test_beside_the_sums_of_all_rows_only_the_sums_of_cells_matter(rows, level, seed):
    time, event, predictor = rows
    event = event & (time <= 8)
    borders, _ = borders_of((time, event, predictor), level)
    if borders is None:
        return
    # Within a cell, deal the times of events, and those of censorings, anew between the groups.
    slot = np.minimum(np.ceil(time * 2).astype(int) - 1, 16)
    cell = np.searchsorted(borders, slot, side="right")
    rng, dealt = np.random.default_rng(seed), time.copy()
    for which, seen in itertools.product(np.unique(cell), (False, True)):
        rows_of_it = np.flatnonzero((cell == which) & (event == seen))
        dealt[rows_of_it] = time[rng.permutation(rows_of_it)]
    again, _ = borders_of((dealt, event, predictor), level)
    if not np.array_equal(again, borders):
        return  # where cells end follows from the data, and may be seen
    first = curves_of((time, event, predictor), level)
    second = curves_of((dealt, event, predictor), level)
    for name in ("rows", "survival_sum", "at_risk_count", "events"):
        np.testing.assert_allclose(getattr(first, name), getattr(second, name), atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(site_rows(), st.integers(2, 6))
def test_predicted_survival_is_told_at_the_borders_only(rows, level):
    """As many sums as the grid has times would tell every linear predictor of a small group."""
    borders, _ = borders_of(rows, level)
    if borders is None:
        return
    at = np.minimum(borders, 16)
    curves = curves_of(rows, level)
    for survival in curves.survival_sum:
        line = np.interp(BASELINE.cumulative, BASELINE.cumulative[at], np.log(survival[at]))
        np.testing.assert_allclose(np.log(survival), line, atol=1e-9)
    assert (len(np.unique(at)) - 1 <= curves.rows / level).all()


def test_a_site_with_few_rows_of_a_group_is_silent():
    time, event = np.linspace(0.5, 7.5, 30), np.ones(30, dtype=bool)
    risk = np.tile([-1.0, 0.0, 1.0], 10)
    enough = curves_of((time, event, risk), 5)
    assert enough.rows.tolist() == [10, 10, 10]
    few = curves_of((time, event, np.where(np.arange(30) < 18, risk, 0.0)), 7)
    none = curves_of((time, event, np.zeros(30)), 5)
    for curves in (few, none):
        assert curves.silent
        for name in ("rows", "survival_sum", "at_risk_count", "events"):
            assert not getattr(curves, name).any()
            assert getattr(curves, name).shape == getattr(enough, name).shape
    pooled = pool_curves([few, enough, none])
    assert pooled.silent_sites == 2
    for alone, together in zip(pool_curves([enough]).groups, pooled.groups, strict=True):
        assert together.rows == 10
        np.testing.assert_array_equal(together.kaplan_meier, alone.kaplan_meier)
        np.testing.assert_array_equal(together.mean_predicted, alone.mean_predicted)
    nobody = pool_curves([few, none])
    assert nobody.silent_sites == 2
    assert all(group.rows == 0 for group in nobody.groups)
    assert all(group.kaplan_meier is group.mean_predicted is None for group in nobody.groups)


def test_a_site_smaller_than_the_privacy_level_is_silent():
    assert curves_of(([1.0, 2.0], [1, 0], [0.0, 1.0]), 3).silent


def test_privacy_level_1_tells_of_empty_groups_too():
    time = np.linspace(0.5, 9.0, 30)
    curves = GroupCurves.of(
        time,
        np.zeros(30),
        np.zeros(30),
        cuts=risk_cuts(0.0, 0.0),
        baseline=BASELINE,
        privacy_level=1,
    )
    assert curves.rows.tolist() == [0, 0, 30]  # a predictor at a cut belongs above it
    assert not curves.silent
    low, _, high = pool_curves([curves]).groups
    assert low.kaplan_meier is low.mean_predicted is None
    np.testing.assert_array_equal(high.kaplan_meier, 1.0)


@pytest.mark.parametrize("event", [0, 1])
def test_nobody_or_everybody_has_an_event(event):
    rng = np.random.default_rng(3)
    rows = rng.integers(1, 80, 90) / 8, np.full(90, event), rng.normal(size=90)
    for group in pool_curves([curves_of(rows, 5)]).groups:
        assert group.kaplan_meier[0] == 1
        assert (np.diff(group.kaplan_meier) <= 0).all()
        assert group.kaplan_meier[-1] >= 0
        assert event or (group.kaplan_meier == 1).all()


def test_a_baseline_without_events_and_huge_predictors_give_curves_too():
    rng = np.random.default_rng(3)
    time, event, risk = rng.integers(1, 80, 90) / 8, rng.random(90) < 0.5, rng.normal(size=90) * 1e4
    cuts = [-5e3, 5e3]
    flat = BaselineHazard(GRID, np.zeros(17))
    for baseline in (flat, BASELINE):
        curves = GroupCurves.of(time, event, risk, cuts=cuts, baseline=baseline, privacy_level=5)
        assert not curves.silent
        mean = [group.mean_predicted for group in pool_curves([curves]).groups]
        assert all((np.diff(curve) <= 1e-12).all() and curve[0] == 1 for curve in mean)


def test_bad_input_is_refused():
    common = {"baseline": BASELINE, "privacy_level": 1}
    with pytest.raises(ValueError, match="cuts must be finite and ascend"):
        GroupCurves.of([1.0], [1], [0.0], cuts=[1.0, 0.0], **common)
    with pytest.raises(ValueError, match=r"cuts have shape \(8,\); allowed: \(0,\) to \(7,\)"):
        GroupCurves.of([1.0], [1], [0.0], cuts=np.arange(8.0), **common)
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
        )
