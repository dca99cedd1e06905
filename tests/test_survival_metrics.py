"""All metrics of one evaluation: plan, sums over sites, and what a hostile reply can do."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sksurv.metrics import concordance_index_ipcw, cumulative_dynamic_auc, integrated_brier_score

from tasks.survival.brier import BrierScores
from tasks.survival.censoring import CensoringEstimate
from tasks.survival.concordance import Concordance, ConcordanceSums, concordance
from tasks.survival.estimate import Estimate
from tasks.survival.evaluation_plan import EvaluationPlan, evaluation_plan
from tasks.survival.pooled_metrics import survival_metrics
from tasks.survival.risk_sets import RiskSetSums, coarsen, time_grid
from tasks.survival.survival_metrics import EvaluationRows, SurvivalMetricsSums
from tests.survival_oracles import grid_rows


def site_rows(rng, rows, *, effect=1.0, by_curve=False, levels=None):
    """Exponential times, censored; the prediction is right if `effect` is 1."""
    risk = rng.normal(size=rows) if levels is None else rng.integers(0, levels, rows) / 2.0
    time = rng.exponential(size=rows) * np.exp(-risk)
    limit = rng.exponential(1.5, size=rows)
    event, time = time <= limit, np.minimum(time, limit) + 1e-6
    if levels is not None:
        time = np.ceil(time * 4) / 4
    survival = np.exp(-np.outer(np.exp(effect * risk), GRID))
    return EvaluationRows(time, event, survival, None if by_curve else effect * risk)


GRID = time_grid(8.0, 64)


def plan_of(rows, **settings_):
    counts = RiskSetSums.of(rows.time, rows.event, np.zeros(rows.time.size), grid=GRID)
    return evaluation_plan(counts, GRID, **({"sites": 1, "privacy_level": 1} | settings_))


PLAN = plan_of(site_rows(np.random.default_rng(0), 2000))
CURVES_PLAN = plan_of(site_rows(np.random.default_rng(0), 2000), time_dependent=True)


def pooled(sites, plan, level=1):
    zeros = SurvivalMetricsSums.zeros(plan)
    return sum((SurvivalMetricsSums.of(own, plan, privacy_level=level) for own in sites), zeros)


def part(rows, own):
    risk = None if rows.risk is None else rows.risk[own]
    return EvaluationRows(rows.time[own], rows.event[own], rows.survival[own], risk)


# The plan -----------------------------------------------------------------------------------


def test_the_upper_limit_keeps_its_three_bounds():
    counts = RiskSetSums.of(
        *(lambda r: (r.time, r.event))(site_rows(np.random.default_rng(0), 2000)),
        np.zeros(2000),
        grid=GRID,
    )
    upper = PLAN.upper
    within = (PLAN.censoring.survival >= 0.1) & (counts.at_risk_count >= 100)
    assert within[upper]
    assert not within[upper + 1 :].any()
    assert PLAN.largest_weight <= 10
    np.testing.assert_allclose(PLAN.times, PLAN.tau * np.array([0.25, 0.5, 0.75]), atol=0.0626)
    assert PLAN.grid[PLAN.calibration_at] == PLAN.times[1]


@pytest.mark.parametrize("rows", [0, 9])
def test_too_few_rows_give_no_plan(rows):
    assert plan_of(site_rows(np.random.default_rng(1), rows)) is None


def test_ten_rows_are_at_risk_at_the_upper_limit():
    time = np.arange(1, 21) * 0.25  # one row leaves every other cell
    counts = RiskSetSums.of(time, np.ones(20, dtype=bool), np.zeros(20), grid=GRID)
    plan = evaluation_plan(counts, GRID, sites=1, privacy_level=1)
    assert counts.at_risk_count[plan.upper] == 10
    assert counts.at_risk_count[plan.upper + 1] < 10


def test_what_sites_merge_at_the_end_of_their_follow_up_is_not_used():
    rows = site_rows(np.random.default_rng(0), 2000)
    sites = np.array_split(np.arange(2000), 40)
    exact = [
        RiskSetSums.of(rows.time[own], rows.event[own], np.zeros(own.size), grid=GRID)
        for own in sites
    ]
    pooled_ = functools.reduce(operator.add, (coarsen(own, privacy_level=5) for own in exact))
    plan = evaluation_plan(pooled_, GRID, sites=40, privacy_level=5)
    assert pooled_.at_risk_count[plan.upper] >= 400 > pooled_.at_risk_count[plan.upper + 1]
    truth = np.exp(-GRID / 1.5)
    assert np.abs(plan.censoring.survival - truth)[: plan.upper + 1].max() < 0.03


def test_rows_that_all_leave_in_the_first_cell_give_no_plan():
    time = np.full(50, 0.01)
    counts = RiskSetSums.of(time, np.ones(50, dtype=bool), np.zeros(50), grid=GRID)
    assert evaluation_plan(counts, GRID, sites=1, privacy_level=1) is None


def test_a_plan_travels_and_comes_back():
    again = EvaluationPlan.from_arrays(CURVES_PLAN.to_arrays())
    for name, values in CURVES_PLAN.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], values)
    assert again.time_dependent
    assert again.censoring.continuous


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("censoring-survival", lambda v: np.where(np.arange(v.size) > 1, 1e-9, v), "at least 0.1"),
        ("reference-survival", lambda v: v * 2, "probabilities"),
        ("evaluation-points", lambda v: v[:0], "1 to 5 times"),
        ("evaluation-points", lambda v: np.arange(1, 20), "1 to 5 times"),
        ("evaluation-points", lambda v: v + 60, "up to the upper limit"),
        ("calibration-cuts", lambda v: np.linspace(0.1, 0.9, 40), "cuts"),
        ("plan", lambda v: v[:2], "allowed"),
    ],
)
def test_a_site_refuses_a_plan_that_would_single_out_rows(name, change, words):
    arrays = PLAN.to_arrays()
    arrays[name] = change(arrays[name])
    with pytest.raises(ValueError, match=words):
        EvaluationPlan.from_arrays(arrays)


# Values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_curve", [False, True])
def test_one_site_equals_scikit_survival(by_curve):
    rows = grid_rows(4, 200)
    plan = evaluation_plan(
        rows.counts, rows.grid, sites=1, privacy_level=1, time_dependent=by_curve
    )
    own = EvaluationRows(rows.time, rows.event, rows.survival, None if by_curve else rows.risk)
    metrics = survival_metrics(pooled([own], plan), plan, 0.95)
    y, until = rows.structured, rows.grid[1 : plan.upper + 1]
    curves = rows.survival[:, : plan.upper + 1]
    risk = -np.trapezoid(curves, rows.grid[: plan.upper + 1], axis=1) if by_curve else rows.risk
    assert metrics.uno.value == pytest.approx(
        concordance_index_ipcw(y, y, risk, tau=plan.tau, tied_tol=0)[0], abs=1e-10
    )
    # Beyond tau sksurv asks for weights that nothing depends on: leave such events out of it.
    seen = rows.event & ((rows.time <= plan.tau) | (rows.time == rows.time.max()))
    late = type(rows)(rows.time, seen, rows.risk, rows.survival, rows.grid).structured
    early = y.copy()
    early["event"] = np.where(rows.time <= plan.tau, rows.event, True)
    auc, mean = cumulative_dynamic_auc(
        early, late, 1 - curves[:, plan.at] if by_curve else risk, plan.times, tied_tol=0
    )
    np.testing.assert_allclose([one.value for one in metrics.auc], auc, atol=1e-10)
    assert metrics.mean_auc.value == pytest.approx(mean, abs=1e-10)
    # sksurv has no score at 0, where ours is 0.
    first = integrated_brier_score(y, y, curves[:, 1:], until) * (plan.tau - 1)
    at_1 = np.mean(np.where(rows.time > 1, (1 - curves[:, 1]) ** 2, curves[:, 1] ** 2 * rows.event))
    assert metrics.brier.integrated.value == pytest.approx((first + at_1 / 2) / plan.tau, abs=1e-10)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 5), st.booleans())
def test_any_split_with_ties_has_finite_values_or_reasons(seed, rows, levels, by_curve):
    rng = np.random.default_rng(seed)
    plan = CURVES_PLAN if by_curve else PLAN
    all_rows = site_rows(rng, rows, levels=levels, by_curve=by_curve)
    if rng.random() < 0.3:
        all_rows.event[:] = False
    site = rng.integers(0, 4, rows)
    sums = pooled([part(all_rows, site == k) for k in range(4)], plan)
    together = pooled([all_rows], plan)
    # Means over rows are those of the pooled rows; pairs are within sites and add up.
    np.testing.assert_allclose(sums.brier.to_floats(), together.brier.to_floats(), rtol=1e-10)
    np.testing.assert_allclose(
        sums.calibration.to_floats(), together.calibration.to_floats(), rtol=1e-10, atol=1e-10
    )
    own = [
        SurvivalMetricsSums.of(part(all_rows, site == k), plan, privacy_level=1) for k in range(4)
    ]
    assert sums.uno.b == pytest.approx(sum(one.uno.b for one in own))
    assert sums.uno.b <= together.uno.b * (1 + 1e-12)

    again = SurvivalMetricsSums.from_arrays(sums.to_arrays(), plan)
    metrics = survival_metrics(again, plan, 0.95)
    summary = metrics.summary()
    assert all(math.isfinite(value) for value in summary.values() if not isinstance(value, str))
    for key in ("uno-c-index", "auc-mean", "ibs", "auc-1", "brier-3", "calibration-observed"):
        assert key in summary or summary[f"{key}-reason"]
        assert f"{key}-lower" in summary or summary[f"{key}-reason"]
    assert ("antolini-c-index" in summary or "antolini-c-index-reason" in summary) == by_curve


def test_a_site_below_the_privacy_level_tells_zeros():
    rows = site_rows(np.random.default_rng(2), 4)
    sums = SurvivalMetricsSums.of(rows, PLAN, privacy_level=5)
    assert all(not values.any() for values in sums.to_arrays().values())
    summary = survival_metrics(sums, PLAN, 0.95).summary()
    assert {summary[f"{key}-reason"] for key in ("ibs", "brier-1", "calibration-observed")} == {
        "no-rows"
    }
    assert {summary[f"{key}-reason"] for key in ("uno-c-index", "auc-mean", "auc-2")} == {
        "no-comparable-pairs"
    }


def test_harrell_and_antolini_agree_for_proportional_hazards():
    rows = site_rows(np.random.default_rng(3), 300)
    sums = SurvivalMetricsSums.of(rows, CURVES_PLAN, privacy_level=5)
    harrell = ConcordanceSums.of(rows.risk, rows.time, rows.event)
    value = survival_metrics(sums, CURVES_PLAN, 0.95).antolini.value
    assert value == pytest.approx(concordance(harrell, 0.95).value, abs=1e-3)


def test_a_right_model_beats_kaplan_meier_and_a_wrong_one_is_named():
    rng = np.random.default_rng(4)
    right = survival_metrics(pooled([site_rows(rng, 400)], PLAN), PLAN, 0.95)
    assert right.brier.difference.upper < 0
    assert right.collapse_signs(Concordance(0.7, 0.6, 0.8, 1.0)) == ()
    wrong = survival_metrics(pooled([site_rows(rng, 400, effect=-1.0)], PLAN), PLAN, 0.95)
    assert wrong.brier.difference.lower > 0
    assert wrong.collapse_signs(Concordance(0.7, 0.6, 0.8, 1.0)) == ()
    (sign,) = wrong.collapse_signs(Concordance(0.5, 0.45, 0.55, 1.0))
    assert sign.startswith("worse_than_kaplan_meier: the integrated Brier score 0.")


def test_a_model_is_not_called_worse_by_nothing():
    """All scores are 0 where nobody has left before the upper limit."""
    metrics = survival_metrics(pooled([site_rows(np.random.default_rng(4), 400)], PLAN), PLAN, 0.95)
    nothing = Estimate(1e-9)
    scores = BrierScores((), Estimate(2e-9), nothing, nothing)
    even = dataclasses.replace(metrics, brier=scores)
    assert even.collapse_signs(Concordance(0.5, 0.45, 0.55, 1.0)) == ()


# Hostile replies ----------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(["uno", "antolini", "auc", "brier", "calibration"]),
    st.integers(0, 10_000),
    st.sampled_from([0.0, -1.0, 1e-300, 0.5, 3.0, 1e6, 1e154, 1e300, math.inf, math.nan]),
)
def test_a_changed_number_is_refused_or_pools_without_harm(name, position, value):
    plan = CURVES_PLAN
    good = SurvivalMetricsSums.of(
        site_rows(np.random.default_rng(5), 40, by_curve=True), plan, privacy_level=5
    )
    arrays = good.to_arrays()
    arrays[name][position % arrays[name].size] = value
    try:
        hostile = SurvivalMetricsSums.from_arrays(arrays, plan)
    except ValueError:
        return
    metrics = survival_metrics(good + hostile, plan, 0.95)
    for number in metrics.summary().values():
        assert isinstance(number, str) or math.isfinite(number)
    for c in (metrics.uno, metrics.antolini, metrics.mean_auc, *metrics.auc):
        assert c.value is None or 0 <= c.value <= 1


@pytest.mark.parametrize(
    ("name", "factor", "words"),
    [
        ("uno", 1e4, "uno: more pairs"),
        ("antolini", 10.0, "antolini: more pairs"),
        ("auc", 100.0, "auc: more pairs"),
        ("brier", 1.01, "whole number"),
        ("calibration", 2.0, "other rows than the evaluation rows"),
    ],
)
def test_sums_of_more_rows_than_stated_are_refused(name, factor, words):
    rows = site_rows(np.random.default_rng(5), 41, by_curve=True)
    arrays = SurvivalMetricsSums.of(rows, CURVES_PLAN, privacy_level=1).to_arrays()
    squared = {"uno": 2, "antolini": 2, "auc": 6}.get(name, len(arrays[name]))
    arrays[name] = np.concatenate(
        (arrays[name][:squared] * factor, arrays[name][squared:] * factor**2)
    )
    with pytest.raises(ValueError, match=words):
        SurvivalMetricsSums.from_arrays(arrays, CURVES_PLAN)


def test_a_reply_of_another_plan_is_refused():
    arrays = SurvivalMetricsSums.zeros(PLAN).to_arrays()
    for name in arrays:
        with pytest.raises(ValueError, match=r"numbers|shape"):
            SurvivalMetricsSums.from_arrays(arrays | {name: np.zeros(3)}, PLAN)
    rows = site_rows(np.random.default_rng(0), 20)
    crossing = SurvivalMetricsSums.of(rows, CURVES_PLAN, privacy_level=1).to_arrays()
    with pytest.raises(ValueError, match="antolini: more pairs"):
        SurvivalMetricsSums.from_arrays(crossing, PLAN)


def test_a_censoring_estimate_with_steps_travels_as_such():
    steps = CensoringEstimate(GRID, np.linspace(1, 0.5, GRID.size), continuous=False)
    plan = EvaluationPlan(
        steps,
        np.ones(GRID.size),
        upper=10,
        at=np.array([4]),
        calibration_at=4,
        cuts=np.array([0.5]),
    )
    assert not EvaluationPlan.from_arrays(plan.to_arrays()).censoring.continuous
