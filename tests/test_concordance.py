"""Concordance within sites against lifelines, scikit-survival, brute force and simulation."""

from __future__ import annotations

import math
import time as clock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines.utils import concordance_index
from sksurv.metrics import concordance_index_censored

from tasks.survival.concordance import (
    Concordance,
    ConcordanceSums,
    collapse,
    concordance,
    concordance_variance,
    identical_predictions,
    pair_counts,
)


def brute_force_counts(risk, time, event):
    """Per-row (concordant, comparable) pairs by comparing each row with each."""
    rows = len(risk)
    concordant, comparable = np.zeros(rows), np.zeros(rows)
    for i in range(rows):
        for j in range(rows):
            if not event[i] or time[i] > time[j] or (time[i] == time[j] and (event[j] or i == j)):
                continue
            score = 1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0
            for row in (i, j):
                comparable[row] += 1
                concordant[row] += score
    return concordant, comparable


@st.composite
def tied_rows(draw, max_rows=40):
    """Rows with few distinct times and risks."""
    rows = draw(st.integers(1, max_rows))
    levels = draw(st.integers(1, 6))
    integers = st.lists(st.integers(0, levels), min_size=rows, max_size=rows)
    risk = np.array(draw(integers), dtype=float) / 3 - 1
    time = np.array(draw(integers), dtype=float) + 1
    event = np.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    return risk, time, event


@settings(max_examples=150, deadline=None)
@given(tied_rows())
def test_counts_equal_brute_force_and_lifelines_with_heavy_ties(rows):
    risk, time, event = rows
    concordant, comparable = pair_counts(risk, time, event)
    expected_concordant, expected_comparable = brute_force_counts(risk, time, event)
    np.testing.assert_array_equal(concordant, expected_concordant)
    np.testing.assert_array_equal(comparable, expected_comparable)

    result = concordance(ConcordanceSums.of(risk, time, event), 0.95)
    if comparable.sum() == 0:
        assert result.value is None
        with pytest.raises(ZeroDivisionError):
            concordance_index(time, -risk, event)
    else:
        assert result.value == pytest.approx(concordance_index(time, -risk, event), abs=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_equals_scikit_survival(seed):
    rng = np.random.default_rng(seed)
    time = np.ceil(rng.exponential(20, 700))
    risk = np.round(rng.normal(size=700), 1)
    event = rng.random(700) < 0.6
    sums = ConcordanceSums.of(risk, time, event)
    value, concordant, discordant, tied_risk, _ = concordance_index_censored(event, time, risk)
    assert sums.b == concordant + discordant + tied_risk
    assert sums.a == concordant + tied_risk / 2
    assert concordance(sums, 0.95).value == pytest.approx(value, abs=1e-12)


def test_sums_are_what_the_docstring_says():
    rng = np.random.default_rng(0)
    risk, time, event = rng.normal(size=60), np.ceil(rng.exponential(5, 60)), rng.random(60) < 0.5
    a, b = brute_force_counts(risk, time, event)
    sums = ConcordanceSums.of(risk, time, event)
    assert (sums.a, sums.b) == (a.sum() / 2, b.sum() / 2)
    assert (sums.aa, sums.ab, sums.bb) == (sum(a * a), sum(a * b), sum(b * b))


def test_sites_add_up_and_pairs_across_sites_do_not_count():
    rng = np.random.default_rng(1)
    sites = [
        (rng.normal(size=n), rng.exponential(size=n), rng.random(n) < 0.7) for n in (5, 30, 80)
    ]
    total = sum((ConcordanceSums.of(*site) for site in sites), ConcordanceSums())
    # An oracle for pairs within sites: lifelines on each, weighted by its comparable pairs.
    pairs = [brute_force_counts(*site)[1].sum() / 2 for site in sites]
    values = [concordance_index(time, -risk, event) for risk, time, event in sites]
    result = concordance(total, 0.95)
    assert result.comparable_pairs == sum(pairs)
    assert result.value == pytest.approx(np.average(values, weights=pairs), abs=1e-12)


def test_only_the_order_of_risks_matters():
    rng = np.random.default_rng(2)
    risk, time, event = rng.normal(size=200), rng.exponential(size=200), rng.random(200) < 0.7
    assert ConcordanceSums.of(risk, time, event) == ConcordanceSums.of(np.exp(risk), time, event)
    sums, reverse = (ConcordanceSums.of(sign * risk, time, event) for sign in (1, -1))
    assert reverse.a == sums.b - sums.a
    assert concordance_variance(reverse) == pytest.approx(concordance_variance(sums), rel=1e-12)


def simulate_site(rng, rows, shift, effect):
    """Weibull times with proportional hazards, censored; the risk is the true one and noise."""
    covariate = rng.normal(size=rows)
    time = (rng.exponential(size=rows) * np.exp(shift - effect * covariate)) ** 0.7
    limit = rng.exponential(2.5, size=rows)
    risk = covariate + rng.normal(scale=0.5, size=rows)
    return risk, np.minimum(time, limit), time <= limit


# Baseline hazards differ between sites; the effect of the covariate does or does not.
UNLIKE_SITES = [(-0.5, 0.3), (-0.25, 0.6), (0.0, 0.9), (0.25, 0.6), (0.5, 1.2)]
SITES = [(shift, 0.8) for shift, _ in UNLIKE_SITES]


def simulated_sums(rng, rows, sites):
    return sum(
        (ConcordanceSums.of(*simulate_site(rng, rows, *s)) for s in sites), ConcordanceSums()
    )


@pytest.mark.parametrize(
    ("sites", "variance_ratio"), [(SITES, (0.87, 1.15)), (UNLIKE_SITES, (0.95, 1.3))]
)
def test_interval_covers_the_true_value_in_95_of_100_samples(sites, variance_ratio):
    rng = np.random.default_rng(2024)
    large = simulated_sums(rng, 20_000, sites)
    truth = large.a / large.b
    samples = [simulated_sums(rng, 100, sites) for _ in range(400)]
    results = [concordance(sums, 0.95) for sums in samples]

    assert 0.92 <= np.mean([r.lower <= truth <= r.upper for r in results]) <= 0.97
    assert np.mean([r.value for r in results]) == pytest.approx(truth, abs=0.004)
    # What the variance estimates is the spread of C over samples. It errs on the side of too much
    # where sites differ in C.
    spread = np.var([r.value for r in results], ddof=1)
    ratio = np.mean([concordance_variance(sums) for sums in samples]) / spread
    assert variance_ratio[0] < ratio < variance_ratio[1]


def test_variance_agrees_with_the_jackknife_over_rows_of_all_sites():
    rng = np.random.default_rng(3)
    sites = [simulate_site(rng, 100, *s) for s in SITES]
    sums = [ConcordanceSums.of(*site) for site in sites]
    total = sum(sums, ConcordanceSums())
    without_row = []
    for site, own in zip(sites, sums, strict=True):
        for row in range(len(site[0])):
            less = ConcordanceSums.of(*(np.delete(column, row) for column in site))
            a, b = total.a - own.a + less.a, total.b - own.b + less.b
            without_row.append(a / b)
    rows = len(without_row)
    jackknife = (rows - 1) / rows * np.sum((without_row - np.mean(without_row)) ** 2)
    assert concordance_variance(total) == pytest.approx(jackknife, rel=0.05)


def test_replicated_rows_keep_c_and_its_pairs_scale():
    rng = np.random.default_rng(4)
    risk, time, event = simulate_site(rng, 80, 0.0, 0.8)
    event[:] = True  # copies of an event are tied in time, hence not comparable with one another
    once = ConcordanceSums.of(risk, time, event)
    thrice = ConcordanceSums.of(*(np.repeat(column, 3) for column in (risk, time, event)))
    assert (thrice.a, thrice.b) == (9 * once.a, 9 * once.b)
    # Three times the rows, but not three times the information: a third of the variance.
    assert concordance_variance(thrice) == pytest.approx(concordance_variance(once) / 3, rel=1e-12)


@pytest.mark.parametrize(
    ("risk", "time", "event", "value", "reason"),
    [
        ([3, 2, 1], [1, 2, 3], [1, 1, 1], 1.0, "c-index-at-boundary"),
        ([1, 2, 3], [1, 2, 3], [1, 1, 1], 0.0, "c-index-at-boundary"),
        ([1, 1, 1], [1, 2, 3], [1, 1, 1], 0.5, "no-variance"),
        ([1, 2, 3], [1, 2, 3], [0, 0, 0], None, "no-comparable-pairs"),
        ([1, 2], [1, 1], [1, 1], None, "no-comparable-pairs"),
        ([1], [1], [1], None, "no-comparable-pairs"),
        ([], [], [], None, "no-comparable-pairs"),
    ],
)
def test_what_does_not_exist_is_none_with_a_reason(risk, time, event, value, reason):
    result = concordance(ConcordanceSums.of(risk, time, event), 0.95)
    assert result.value == value
    assert result.lower is None
    assert result.upper is None
    assert result.reason == reason


def test_interval_widens_with_the_level_and_stays_inside_0_and_1():
    sums = ConcordanceSums.of([4, 3, 1, 2], [1, 2, 3, 4], [1, 1, 1, 1])
    narrow, wide = concordance(sums, 0.6), concordance(sums, 0.999)
    assert 0 < wide.lower < narrow.lower < narrow.value < narrow.upper < wide.upper < 1


def test_infinite_risks_have_an_order():
    assert ConcordanceSums.of([np.inf, 0, -np.inf], [1, 2, 3], [1, 1, 0]).a == 3


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (([1.0, np.nan], [1, 2], [1, 0]), "1 of 2 risks are NaN"),
        (([1.0, 2.0], [1, np.inf], [1, 0]), "1 of 2 times are not finite"),
        (([1.0, 2.0], [1, 2], [1, 2]), "events must be true or false"),
        (([1.0, 2.0], [1, 2, 3], [1, 0]), "one length"),
        (([np.nan, 2.0], [np.nan, 2], [1, 0]), "NaN; 1 of 2 times"),
    ],
)
def test_bad_rows_are_refused(rows, words):
    with pytest.raises(ValueError, match=words):
        ConcordanceSums.of(*rows)


@pytest.mark.parametrize("sums", [(math.nan, 1, 0, 0, 0), (2, 1, 0, 0, 0), (0, 1, -1, 0, 0)])
def test_impossible_sums_are_refused(sums):
    with pytest.raises(ValueError, match=r"pairs|finite"):
        ConcordanceSums(*sums)


def test_confidence_level_is_checked():
    with pytest.raises(ValueError, match="confidence level"):
        concordance(ConcordanceSums(), 95)


def test_100_000_rows_take_less_than_a_second():
    rng = np.random.default_rng(5)
    rows = 100_000
    risk, time, event = rng.normal(size=rows), rng.exponential(size=rows), rng.random(rows) < 0.6
    before = clock.process_time()
    sums = ConcordanceSums.of(risk, time, event)
    assert clock.process_time() - before < 1
    assert 0.49 < sums.a / sums.b < 0.51


def test_collapse_names_identical_predictions_and_exactly_half():
    rng = np.random.default_rng(6)
    time, event = rng.exponential(size=50), rng.random(50) < 0.6
    risk = np.full(50, 0.3)
    result = concordance(ConcordanceSums.of(risk, time, event), 0.95)
    signs = collapse(result, identical_across_samples=identical_predictions(risk), spread=0.0)
    assert [sign.split(":")[0] for sign in signs] == [
        "identical_across_samples",
        "c_index_exactly_half",
    ]


def test_collapse_sees_a_spread_near_zero_that_orders_nothing():
    useless = Concordance(0.51, 0.46, 0.56, 900)
    (sign,) = collapse(useless, identical_across_samples=False, spread=1e-4)
    assert sign.startswith("negligible_spread: ")
    assert "0.0001" in sign
    # A small spread that orders the rows is a well-calibrated weak model, and a wide one is none.
    useful = Concordance(0.61, 0.56, 0.66, 900)
    assert collapse(useful, identical_across_samples=False, spread=1e-4) == ()
    assert collapse(useless, identical_across_samples=False, spread=0.5) == ()


def test_identical_predictions_is_exact():
    assert identical_predictions([0.1, 0.1, 0.1])
    assert not identical_predictions(np.float32([0.1, 0.1, np.nextafter(np.float32(0.1), 1)]))
