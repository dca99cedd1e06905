"""Uno's concordance within sites against scikit-survival, brute force and replicated rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sksurv.metrics import concordance_index_ipcw

from tasks.survival.censoring import CensoringEstimate, censoring_estimate
from tasks.survival.concordance import (
    NO_COMPARABLE_PAIRS,
    ConcordanceSums,
    concordance,
    concordance_variance,
)
from tasks.survival.unos_concordance import unos_concordance_sums
from tests.survival_oracles import grid_rows

STEADY = CensoringEstimate(np.array([0.0, 10.0]), np.array([1.0, 0.2]))


def brute_force_counts(risk, time, event, tau):
    rows = len(risk)
    concordant, comparable = np.zeros(rows), np.zeros(rows)
    for i in range(rows):
        if not event[i] or time[i] >= tau:
            continue
        weight = STEADY.before(time[i]) ** -2.0
        for j in range(rows):
            if time[j] < time[i] or (time[j] == time[i] and event[j]):
                continue
            score = 1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0
            for row in (i, j):
                comparable[row] += weight
                concordant[row] += weight * score
    return concordant, comparable


def sums_of(counts):
    a, b = counts
    return np.array([a.sum() / 2, b.sum() / 2, a @ a, a @ b, b @ b])


@st.composite
def tied_rows(draw, max_rows=30):
    rows = draw(st.integers(0, max_rows))
    levels = draw(st.integers(1, 7))
    integers = st.lists(st.integers(0, levels), min_size=rows, max_size=rows)
    risk = np.array(draw(integers), dtype=float) / 3 - 1
    time = np.array(draw(integers), dtype=float) + 1
    event = np.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), dtype=bool)
    return risk, time, event


@settings(max_examples=80, deadline=None)
@given(tied_rows(), st.integers(0, 2**32 - 1), st.sampled_from([3.0, 5.5, 10.0]))
def test_any_split_adds_up_to_pairs_within_sites(rows, seed, tau):
    site = np.random.default_rng(seed).integers(0, 3, rows[0].size)
    total, expected = ConcordanceSums(), np.zeros(5)
    for k in range(3):
        own = [part[site == k] for part in rows]
        total += unos_concordance_sums(*own, censoring=STEADY, tau=tau)
        expected += sums_of(brute_force_counts(*own, tau))
    np.testing.assert_allclose(total.to_floats(), expected, rtol=1e-10, atol=1e-10)
    result = concordance(total, 0.95)
    assert (result.value is None) == (result.reason == NO_COMPARABLE_PAIRS) == (expected[1] == 0)


@settings(max_examples=40, deadline=None)
@given(tied_rows(max_rows=12), st.integers(0, 2**32 - 1))
def test_row_weights_are_replicated_rows(rows, seed):
    weight = np.random.default_rng(seed).integers(0, 4, rows[0].size)
    weighted = unos_concordance_sums(*rows, censoring=STEADY, tau=9.0, row_weight=weight)
    replicated = [np.repeat(part, weight) for part in rows]
    plain = unos_concordance_sums(*replicated, censoring=STEADY, tau=9.0)
    np.testing.assert_allclose(weighted.to_floats(), plain.to_floats(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tau", [60.0, 120.0])
def test_equals_scikit_survival_with_the_same_censoring_estimate(seed, tau):
    rows = grid_rows(seed, 150)
    sums = unos_concordance_sums(
        rows.risk,
        rows.time,
        rows.event,
        censoring=censoring_estimate(rows.counts, rows.grid),
        tau=tau,
    )
    expected = concordance_index_ipcw(rows.structured, rows.structured, rows.risk, tau=tau)[0]
    assert concordance(sums, 0.95).value == pytest.approx(expected, abs=1e-10)


def test_without_censoring_it_is_harrells():
    rng = np.random.default_rng(5)
    risk, time = np.round(rng.normal(size=300), 1), np.ceil(rng.exponential(3, 300))
    event = rng.random(300) < 0.5
    nobody = CensoringEstimate(np.array([0.0, 100.0]), np.ones(2))
    ours = unos_concordance_sums(risk, time, event, censoring=nobody, tau=99.0)
    harrell = ConcordanceSums.of(risk, time, event)
    np.testing.assert_allclose(ours.to_floats(), harrell.to_floats(), rtol=1e-12)


def simulated(rng, rows):
    risk = rng.normal(size=rows)
    time = rng.exponential(size=rows) * np.exp(-0.8 * risk) + 1e-9
    limit = rng.exponential(2.0, size=rows)
    return risk, np.minimum(time, limit), time <= limit


def test_variance_is_that_of_the_bootstrap():
    rng = np.random.default_rng(6)
    risk, time, event = simulated(rng, 300)
    censoring = CensoringEstimate(np.array([0.0, 20.0]), np.array([1.0, np.exp(-10.0)]))

    def sums(rows):
        return unos_concordance_sums(
            risk[rows], time[rows], event[rows], censoring=censoring, tau=2.0
        )

    drawn = [sums(rng.integers(0, 300, 300)) for _ in range(400)]
    bootstrap = np.var([one.a / one.b for one in drawn])
    assert concordance_variance(sums(np.arange(300))) == pytest.approx(bootstrap, rel=0.2)


def test_an_event_without_weight_is_refused():
    ended = CensoringEstimate(np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.5, 0.0]))
    rows = [0.0, 1.0], [2.0, 2.0], [True, False]
    with pytest.raises(ValueError, match="1 of 1 events have no weight"):
        unos_concordance_sums(*rows, censoring=ended, tau=3.0)
    assert unos_concordance_sums(*rows, censoring=ended, tau=2.0).b == 0


def test_all_faults_are_named_at_once():
    with pytest.raises(ValueError, match=r"1 of 2 risks are NaN; 1 of 2 times .*; events"):
        unos_concordance_sums([np.nan, 0], [0.0, 1.0], [2, 0], censoring=STEADY, tau=1.0)
    with pytest.raises(ValueError, match="row weights"):
        unos_concordance_sums([0.0], [1.0], [1], censoring=STEADY, tau=1.0, row_weight=[-1.0])
