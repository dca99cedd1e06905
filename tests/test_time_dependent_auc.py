"""Time-dependent AUC within sites against scikit-survival, brute force and replicated rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sksurv.metrics import cumulative_dynamic_auc

from tasks.survival.censoring import CensoringEstimate, censoring_estimate
from tasks.survival.concordance import NO_COMPARABLE_PAIRS
from tasks.survival.curves import kaplan_meier
from tasks.survival.time_dependent_auc import AucSums, auc_at_times, mean_auc
from tests.survival_oracles import grid_rows
from tests.test_unos_concordance import simulated, tied_rows

STEADY = CensoringEstimate(np.array([0.0, 10.0]), np.array([1.0, 0.2]))
TIMES = np.array([2.0, 3.5, 6.0])


def brute_force(risk, time, event, times):
    rows = len(risk)
    a, b = np.zeros((2, rows, len(times)))
    for k, moment in enumerate(times):
        for i in range(rows):
            for j in range(rows):
                if event[i] and time[i] <= moment < time[j]:
                    weight = 1 / float(STEADY.before(time[i]))
                    score = 1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0
                    for row in (i, j):
                        b[row, k] += weight
                        a[row, k] += weight * score
    return AucSums(a.sum(axis=0) / 2, b.sum(axis=0) / 2, a.T @ a, a.T @ b, b.T @ b)


@settings(max_examples=60, deadline=None)
@given(tied_rows(max_rows=20), st.integers(0, 2**32 - 1))
def test_any_split_adds_up_to_pairs_within_sites(rows, seed):
    site = np.random.default_rng(seed).integers(0, 3, rows[0].size)
    total, expected = AucSums.zeros(3), AucSums.zeros(3)
    for k in range(3):
        own = [part[site == k] for part in rows]
        total += AucSums.of(*own, times=TIMES, censoring=STEADY)
        expected += brute_force(*own, TIMES)
    np.testing.assert_allclose(total.to_floats(), expected.to_floats(), rtol=1e-10, atol=1e-10)
    for k, result in enumerate(auc_at_times(total, 0.95)):
        assert (result.value is None) == (total.b[k] == 0)
    mean = mean_auc(total, [0.8, 0.8, 0.4], 0.95)
    assert (mean.value is None) == (total.b[[0, 2]] == 0).any()
    assert mean.value is None or np.isfinite(mean.value)
    assert mean.value is not None or mean.reason == NO_COMPARABLE_PAIRS


@settings(max_examples=30, deadline=None)
@given(tied_rows(max_rows=12), st.integers(0, 2**32 - 1))
def test_row_weights_are_replicated_rows(rows, seed):
    weight = np.random.default_rng(seed).integers(0, 4, rows[0].size)
    weighted = AucSums.of(*rows, times=TIMES, censoring=STEADY, row_weight=weight)
    replicated = [np.repeat(part, weight) for part in rows]
    plain = AucSums.of(*replicated, times=TIMES, censoring=STEADY)
    np.testing.assert_allclose(weighted.to_floats(), plain.to_floats(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("by_time", [False, True])
def test_equals_scikit_survival_with_the_same_censoring_estimate(seed, by_time):
    # The last row is an event, so that sksurv gives it a weight at all.
    rows = grid_rows(seed, 150)
    event = rows.event | (rows.time == rows.time.max())
    counts = type(rows)(rows.time, event, rows.risk, rows.survival, rows.grid)
    at = np.array([30, 60, 61, 100])
    risk = 1 - rows.survival[:, at] if by_time else rows.risk
    sums = AucSums.of(
        risk,
        rows.time,
        event,
        times=rows.grid[at],
        censoring=censoring_estimate(counts.counts, rows.grid),
    )
    auc, mean = cumulative_dynamic_auc(
        counts.structured, counts.structured, risk, rows.grid[at], tied_tol=0.0
    )
    values = [result.value for result in auc_at_times(sums, 0.95)]
    np.testing.assert_allclose(values, auc, atol=1e-10)
    survival = kaplan_meier(counts.counts.at_risk_count, counts.counts.events)[at]
    assert mean_auc(sums, survival, 0.95).value == pytest.approx(mean, abs=1e-10)


def test_variances_are_those_of_the_bootstrap():
    rng = np.random.default_rng(6)
    risk, time, event = simulated(rng, 300)
    censoring = CensoringEstimate(np.array([0.0, 40.0]), np.array([1.0, np.exp(-20.0)]))
    survival = [0.7, 0.5, 0.3]

    def results(rows):
        sums = AucSums.of(
            risk[rows], time[rows], event[rows], times=[0.3, 0.8, 1.6], censoring=censoring
        )
        return [*auc_at_times(sums, 0.95), mean_auc(sums, survival, 0.95)]

    drawn = [results(rng.integers(0, 300, 300)) for _ in range(300)]
    for k, result in enumerate(results(np.arange(300))):
        logits = [np.log(one[k].value / (1 - one[k].value)) for one in drawn]
        width = np.log(result.upper / (1 - result.upper)) - np.log(
            result.lower / (1 - result.lower)
        )
        assert width / 2 / 1.96 == pytest.approx(np.std(logits), rel=0.15)


def test_numbers_travel_and_come_back():
    sums = AucSums.of(*simulated(np.random.default_rng(0), 50), times=[0.5, 1.0], censoring=STEADY)
    again = AucSums.from_floats(sums.to_floats(), times=2)
    np.testing.assert_array_equal(again.to_floats(), sums.to_floats())
    with pytest.raises(ValueError, match="need 16 numbers"):
        AucSums.from_floats(np.zeros(5), times=2)


@pytest.mark.parametrize(
    ("position", "value", "words"),
    [
        (0, np.nan, "finite"),
        (0, -1.0, "not negative"),
        (0, 1e6, "more concordant"),
        (5, 1e12, "products"),
    ],
)
def test_what_no_rows_can_give_is_refused(position, value, words):
    sums = AucSums.of(*simulated(np.random.default_rng(0), 50), times=[0.5, 1.0], censoring=STEADY)
    numbers = sums.to_floats()
    numbers[position] = value
    with pytest.raises(ValueError, match=words):
        AucSums.from_floats(numbers, times=2)


def test_times_and_survival_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="ascend"):
        AucSums.of([0.0], [1.0], [1], times=[2.0, 1.0], censoring=STEADY)
    with pytest.raises(ValueError, match="risks have shape"):
        AucSums.of(np.zeros((1, 3)), [1.0], [1], times=[1.0, 2.0], censoring=STEADY)
    with pytest.raises(ValueError, match="fall from 1"):
        mean_auc(AucSums.zeros(2), [0.5, 0.6], 0.95)
