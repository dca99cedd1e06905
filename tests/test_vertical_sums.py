"""Fixed point, buckets, candidates and sums of vertical XGBoost."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.buckets import quantile_buckets
from tasks.vertical_xgboost.candidates import Candidate, CandidateLayout, goes_left
from tasks.vertical_xgboost.fixed_point import (
    SMALLEST_EXPONENT,
    FixedPointScale,
    exponent_of,
    sums_by_group,
)
from tasks.vertical_xgboost.histograms import (
    NO_NODE,
    candidate_sums,
    node_slots,
    node_sums,
    refused_candidates,
)

REALS = st.floats(-1, 1)
LAYOUTS = st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=5).map(
    lambda pairs: CandidateLayout(tuple(p[0] for p in pairs), tuple(p[1] for p in pairs))
)


# Fixed point ------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(REALS, min_size=1), st.integers(20, 40), st.integers(-30, 30))
def test_a_value_is_off_by_half_a_unit_and_its_sum_does_not_depend_on_order(
    values: list[float], bits: int, exponent: int
) -> None:
    scale = FixedPointScale(bits, exponent)
    reals = np.ldexp(values, exponent)
    whole = scale.encode(reals)
    unit = Fraction(2) ** (exponent - bits)
    for real, number in zip(reals.tolist(), whole.tolist(), strict=True):
        assert abs(Fraction(real) - number * unit) <= unit / 2
    assert abs(int(whole.sum())) <= scale.bound_of_sum(len(values))
    exact = Fraction(int(whole.sum())) * unit
    assert float(scale.decode(whole.sum())) == float(exact)
    assert whole[::-1].sum() == whole.sum()


@pytest.mark.parametrize("bad", [1.0000001, -2.0, math.nan, math.inf])
def test_a_value_beyond_the_bound_is_refused_without_a_count(bad: float) -> None:
    with pytest.raises(SiteFault, match=r"^values are NaN or exceed 1 in") as caught:
        FixedPointScale(32, 0).encode([0.5, bad, 1.0])
    assert caught.value.code == "outside-bound"
    assert str(bad) not in str(caught.value)


def test_sums_that_could_overflow_are_refused_before_they_do() -> None:
    scale = FixedPointScale(40, 0)
    assert scale.bound_of_sum(2**21) == 2**61
    with pytest.raises(SiteFault, match="allowed are 4194304 rows"):
        scale.bound_of_sum(2**22)


@pytest.mark.parametrize(
    ("values", "exponent"),
    [([1.0], 0), ([1.0000001], 1), ([-4.0, 3.0], 2), ([0.3], -1), ([1e9], 30), ([0.0], None)],
)
def test_the_exponent_is_the_power_of_two_above(values: list[float], exponent: int | None) -> None:
    assert exponent_of(values) == (SMALLEST_EXPONENT if exponent is None else exponent)
    assert exponent_of([]) == SMALLEST_EXPONENT


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-(2**40), 2**40), st.integers(0, 3)), max_size=60))
def test_sums_by_group_are_exact_in_both_ways(pairs: list[tuple[int, int]]) -> None:
    values = np.array([p[0] for p in pairs], dtype=np.int64)
    groups = np.array([p[1] for p in pairs], dtype=np.intp)
    for factor in (1, 2**15):  # the second beyond what doubles hold
        expected = [sum(v * factor for v, g in pairs if g == group) for group in range(4)]
        assert sums_by_group(values * factor, groups, 4).tolist() == expected


# Buckets ----------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.floats(-5, 5, width=32), st.just(math.nan)), max_size=80),
    st.integers(2, 12),
)
def test_buckets_are_few_filled_and_ordered(values: list[float], max_bin: int) -> None:
    column = np.array(values, dtype=np.float32)
    feature = quantile_buckets(column, max_bin=max_bin)
    numbers = feature.numbers(column)
    present = ~np.isnan(column)
    assert feature.num_buckets <= max_bin
    assert np.all(np.diff(feature.thresholds) > 0)
    assert np.all(numbers[~present] == feature.num_buckets)
    assert feature.has_missing == bool(present.any() and not present.all())
    if present.any():
        assert set(numbers[present].tolist()) == set(range(feature.num_buckets))
    for bucket in range(feature.num_buckets):
        below = column[present] < feature.threshold(bucket)
        assert np.array_equal(numbers[present] <= bucket, below)
    shuffled = quantile_buckets(column[::-1].copy(), max_bin=max_bin)
    assert np.array_equal(shuffled.thresholds, feature.thresholds)


def test_buckets_are_quantiles() -> None:
    values = np.random.default_rng(0).permutation(3200).astype(np.float32)
    feature = quantile_buckets(values, max_bin=32)
    assert np.bincount(feature.numbers(values)).tolist() == [100] * 32


def test_few_values_have_a_bucket_each_and_a_constant_has_one() -> None:
    feature = quantile_buckets(np.array([7, 1, 1, 3, 7], dtype=np.float32), max_bin=3)
    assert feature.thresholds.tolist() == [3, 7]
    assert feature.numbers(np.array([-9, 2, 3, 6.9, 99], dtype=np.float32)).tolist() == [
        0, 0, 1, 1, 2,
    ]  # fmt: skip
    for column in ([4.0, 4.0], [math.nan, math.nan], []):
        constant = quantile_buckets(np.array(column, dtype=np.float32), max_bin=8)
        assert CandidateLayout.of([constant]).num_candidates == 0


# Candidates and sums ----------------------------------------------------------------------


def test_candidates_stand_in_the_order_of_xgboost() -> None:
    layout = CandidateLayout((3, 1, 1, 2), (True, False, True, False))
    assert [layout.candidate(number) for number in range(layout.num_candidates)] == [
        Candidate(0, 0, False),
        Candidate(0, 1, False),
        Candidate(0, 2, False),  # all present left, missing right
        Candidate(0, 1, True),
        Candidate(0, 0, True),
        Candidate(2, 0, False),
        Candidate(3, 0, False),
    ]


@settings(deadline=None)
@given(LAYOUTS, st.randoms())
def test_numbers_and_canonical_positions_are_permutations(
    layout: CandidateLayout, random: Any
) -> None:
    numbers = range(layout.num_candidates)
    assert [layout.number(layout.candidate(number)) for number in numbers] == list(numbers)
    ranks = list(range(layout.num_features))
    random.shuffle(ranks)
    positions = layout.canonical_positions(ranks)
    in_order = CandidateLayout(
        tuple(layout.num_buckets[ranks.index(rank)] for rank in range(layout.num_features)),
        tuple(layout.has_missing[ranks.index(rank)] for rank in range(layout.num_features)),
    )
    for number in numbers:
        split = layout.candidate(number)
        own = Candidate(ranks[split.feature], split.bucket, split.missing_left)
        assert in_order.number(own) == positions[number]


def test_what_is_no_candidate_is_refused() -> None:
    layout = CandidateLayout((3, 2), (False, True))
    for number in (-1, layout.num_candidates):
        with pytest.raises(IndexError):
            layout.candidate(number)
    for split in (Candidate(0, 2, False), Candidate(0, 1, True), Candidate(1, 1, True)):
        with pytest.raises(ValueError, match="no candidate"):
            layout.number(split)


@settings(max_examples=40, deadline=None)
@given(LAYOUTS, st.integers(0, 2**32 - 1))
def test_sums_equal_those_over_the_rows_that_go_left(layout: CandidateLayout, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = 50
    bucket_map = np.stack(
        [random.integers(0, count + 1, rows) for count in layout.num_buckets]
    ).astype(np.uint8)
    nodes = random.integers(0, 6, rows)
    training = random.random(rows) < 0.8
    open_nodes = [1, 2, 5]
    slots = node_slots(nodes, open_nodes, training)
    values = random.integers(-(2**33), 2**33, (2, rows))
    left = candidate_sums(bucket_map, layout, values, slots, num_nodes=3)
    refused = refused_candidates(bucket_map, layout, slots, num_nodes=3, min_instances=4)
    totals = node_sums(values, slots, num_nodes=3)
    assert left.shape == (3, layout.num_candidates, 2)
    for at, node in enumerate(open_nodes):
        here = (nodes == node) & training
        assert np.array_equal(slots == at, here)
        assert totals[at].tolist() == values[:, here].sum(axis=1).tolist()
        for number in range(layout.num_candidates):
            split = layout.candidate(number)
            count = layout.num_buckets[split.feature]
            side = goes_left(bucket_map[split.feature], split, num_buckets=count)
            assert left[at, number].tolist() == values[:, here & side].sum(axis=1).tolist()
            sizes = [int((here & side).sum()), int((here & ~side).sum())]
            assert refused[at, number] == any(0 < size < 4 for size in sizes)
    assert set(slots.tolist()) <= {NO_NODE, 0, 1, 2}


def test_no_rows_and_no_features_are_no_trouble() -> None:
    layout = CandidateLayout((3,), (True,))
    slots = node_slots(np.empty(0, dtype=np.int32), [0, 1], np.empty(0, dtype=bool))
    nothing = np.empty((2, 0), dtype=np.int64)
    left = candidate_sums(np.empty((1, 0), dtype=np.uint8), layout, nothing, slots, num_nodes=2)
    assert left.shape == (2, 5, 2)
    assert not left.any()
    empty = CandidateLayout((), ())
    assert candidate_sums(
        np.empty((0, 0), dtype=np.uint8), empty, nothing, slots, num_nodes=2
    ).shape == (2, 0, 2)
