"""Packed sums: what is packed comes back, sums of packed are packed sums, overflow is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tasks.vertical_xgboost.paillier.ciphertexts import Ciphertexts
from tasks.vertical_xgboost.paillier.engine import Engine, engine_named
from tasks.vertical_xgboost.paillier.keys import PaillierFault
from tasks.vertical_xgboost.paillier.level_packing import LevelPacking
from tasks.vertical_xgboost.paillier.packing import (
    MASK_SPARE_BITS,
    IntArray,
    SlotLayout,
)
from tests.paillier_keys import weak_key

ENGINES = [engine_named("gmpy2"), engine_named("phe")]
layouts = st.builds(
    SlotLayout,
    rows=st.integers(1, 1000),
    row_bound=st.one_of(st.integers(1, 9), st.sampled_from([2**20, 2**32, 2**32 - 1, 2**50])),
    key_bits=st.sampled_from([512, 1024, 2048]),
    spare_bits=st.sampled_from([0, 1, MASK_SPARE_BITS]),
)
packings = st.builds(
    LevelPacking, layout=layouts, candidates=st.integers(1, 9), nodes=st.integers(0, 40)
)
CREDIT = SlotLayout(rows=24_000, row_bound=2**32, key_bits=2048)


def _sums(packing: LevelPacking, seed: int, *, rows: int, extreme: bool = False) -> IntArray:
    bound = rows * packing.layout.row_bound
    generator = np.random.default_rng(seed)
    shape = (packing.candidates, packing.nodes, 2)
    if extreme:
        return generator.choice(np.unique(np.clip([-bound, -1, 0, 1, bound], -bound, bound)), shape)
    return generator.integers(-bound, bound, shape, endpoint=True)


def _slots(plaintext: int, width: int, count: int) -> list[int]:
    """Textbook two's complement, slot by slot from the lowest."""
    numbers = []
    for _ in range(count):
        low = plaintext % 2**width
        low -= 2**width * (low >= 2 ** (width - 1))
        numbers.append(low)
        plaintext = (plaintext - low) >> width
    assert plaintext == 0
    return numbers


def test_the_credit_data_get_twenty_pairs_a_plaintext() -> None:
    assert CREDIT.slot_bits == math.ceil(math.log2(24_000 * 2**32)) + 2 == 49
    assert CREDIT.pairs == 20
    level = LevelPacking(CREDIT, candidates=439, nodes=4)
    assert (level.num_shared, level.num_single) == (88, 439)
    assert level.chunks == [slice(0, 4)]


@given(layouts)
def test_slots_are_as_wide_as_the_formula_says(layout: SlotLayout) -> None:
    assert 2 ** (layout.sum_bits - 1) < layout.rows * layout.row_bound or layout.sum_bits == 0
    assert layout.rows * layout.row_bound <= 2**layout.sum_bits
    assert layout.slot_bits == layout.sum_bits + 2 + layout.spare_bits
    used = 2 * layout.pairs * layout.slot_bits
    assert layout.key_bits - 1 - 2 * layout.slot_bits < used <= layout.key_bits - 1


@settings(max_examples=80, deadline=None)
@given(packing=packings, seed=st.integers(0, 2**32), extreme=st.booleans())
def test_what_is_packed_comes_back(packing: LevelPacking, seed: int, extreme: bool) -> None:
    rows = packing.layout.rows
    sums = _sums(packing, seed, rows=rows, extreme=extreme)
    packed = packing.pack(sums, rows=rows)
    assert len(packed) == packing.num_shared
    np.testing.assert_array_equal(packing.unpack(packed), sums)
    assert all(abs(number) < 2 ** (packing.layout.key_bits - 2) for number in packed)
    assert len(packing.pack_single(sums, rows=rows)) == packing.num_single


@settings(max_examples=40, deadline=None)
@given(packing=packings, seed=st.integers(0, 2**32))
def test_slots_are_where_they_are_said_to_be(packing: LevelPacking, seed: int) -> None:
    sums = _sums(packing, seed, rows=packing.layout.rows)
    packed = iter(packing.pack(sums, rows=packing.layout.rows))
    single = iter(packing.pack_single(sums, rows=packing.layout.rows))
    width = packing.layout.slot_bits
    for chunk in packing.chunks:
        group, nodes = packing.group(chunk), chunk.stop - chunk.start
        assert 1 <= nodes * group <= packing.layout.pairs
        for start in range(0, packing.candidates, group):
            expected = sums[start : start + group, chunk].ravel().tolist()
            assert _slots(int(next(packed)), width, len(expected)) == expected
        for candidate in range(packing.candidates):
            expected = sums[candidate, chunk].ravel().tolist()
            assert _slots(int(next(single)), width, 2 * nodes) == expected
    assert next(packed, None) is next(single, None) is None


@settings(max_examples=60, deadline=None)
@given(
    packing=packings,
    seed=st.integers(0, 2**32),
    cuts=st.lists(st.integers(0, 1000), max_size=4),
    extreme=st.booleans(),
)
def test_sums_of_packed_are_packed_sums(
    packing: LevelPacking, seed: int, cuts: list[int], extreme: bool
) -> None:
    rows = packing.layout.rows
    borders = [0, *sorted(min(cut, rows) for cut in cuts), rows]
    shares = np.diff(borders).tolist()
    sums = [
        _sums(packing, seed + owner, rows=share, extreme=extreme)
        for owner, share in enumerate(shares)
    ]
    packed = [packing.pack(each, rows=share) for each, share in zip(sums, shares, strict=True)]
    total = [sum(numbers) for numbers in zip(*packed, strict=True)]
    assert total == [sum(numbers) for numbers in zip(*reversed(packed), strict=True)]
    np.testing.assert_array_equal(packing.unpack(total), np.sum(sums, axis=0))


def test_all_extremes_side_by_side_stay_in_their_slots() -> None:
    layout = SlotLayout(rows=8, row_bound=2**32, key_bits=1024)
    packing = LevelPacking(layout, candidates=1, nodes=layout.pairs)
    bound = 4 * 2**32
    for pattern in ([1, -1], [-1, 1], [1, 1], [-1, -1], [0, -1], [-1, 0]):
        sums = np.array([[pattern] * layout.pairs], dtype=np.int64) * bound
        twice = [2 * number for number in packing.pack(sums, rows=4)]
        np.testing.assert_array_equal(packing.unpack(twice), 2 * sums)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda each: each.name)
@pytest.mark.parametrize("nodes", [1, 2, 3, 11, 25])
def test_a_level_under_encryption(engine: Engine, nodes: int) -> None:
    """Two owners pack in the secret order; the third packs singly, and the server folds it in."""
    key = weak_key()
    layout = SlotLayout(rows=300, row_bound=2**32, key_bits=1024, spare_bits=MASK_SPARE_BITS)
    packing = LevelPacking(layout, candidates=5, nodes=nodes)
    generator = np.random.default_rng(nodes)
    order = [0, *(1 + generator.permutation(4)).tolist()]
    sums = [_sums(packing, owner, rows=100, extreme=owner == 1) for owner in range(3)]
    vectors = [engine.encrypt(key.public, packing.pack(each[order], rows=100)) for each in sums[:2]]
    single = engine.encrypt(key, packing.pack_single(sums[2], rows=100))
    received = Ciphertexts.from_bytes(single.to_bytes(), key=key.public, count=packing.num_single)
    total = engine.add(*vectors, packing.fold(engine, received, order=order))
    expected = np.sum(sums, axis=0)[order]
    np.testing.assert_array_equal(packing.unpack(engine.decrypt(key, total)), expected)

    refused = generator.random((5, nodes)) < 0.4
    masked = engine.add(total, engine.encrypt(key.public, packing.draw_masks(refused)))
    opened = packing.unpack(engine.decrypt(key, masked), refused=refused)
    np.testing.assert_array_equal(opened, np.where(refused[:, :, None], 0, expected))


def test_the_order_says_which_candidate_stands_where() -> None:
    key = weak_key()
    packing = LevelPacking(SlotLayout(rows=9, row_bound=9, key_bits=1024), candidates=3, nodes=1)
    sums = np.array([[[1, 2]], [[3, 4]], [[5, 6]]], dtype=np.int64)
    single = ENGINES[0].encrypt(key, packing.pack_single(sums, rows=9))
    folded = packing.fold(ENGINES[0], single, order=[2, 0, 1])
    opened = packing.unpack(ENGINES[0].decrypt(key, folded))
    assert opened[:, 0].tolist() == [[5, 6], [1, 2], [3, 4]]
    for order in ([0, 1], [0, 0, 1], [1, 2, 3]):
        with pytest.raises(ValueError, match="permutation"):
            packing.fold(ENGINES[0], single, order=order)
    with pytest.raises(PaillierFault) as caught:
        packing.fold(ENGINES[0], single.take([0, 1]), order=[0, 1, 2])
    assert caught.value.code == "ciphertext-count"


@given(
    packing=packings.filter(lambda each: each.nodes > 0),
    rows=st.integers(0, 1000),
    excess=st.integers(1, 5),
    negative=st.booleans(),
    place=st.integers(0, 10**6),
)
def test_a_sum_beyond_its_rows_is_refused_before_encryption(
    packing: LevelPacking, rows: int, excess: int, negative: bool, place: int
) -> None:
    rows = min(rows, packing.layout.rows)
    bound = rows * packing.layout.row_bound
    sums = np.zeros((packing.candidates, packing.nodes, 2), dtype=np.int64)
    sums.ravel()[place % sums.size] = (bound + excess) * (-1 if negative else 1)
    for pack in (packing.pack, packing.pack_single):
        with pytest.raises(PaillierFault, match=f"over {rows} of") as caught:
            pack(sums, rows=rows)
        assert caught.value.code == "slot-overflow"
    with pytest.raises(PaillierFault):
        packing.pack(0 * sums, rows=packing.layout.rows + 1)


def test_the_smallest_int64_is_refused_too() -> None:
    packing = LevelPacking(CREDIT, candidates=1, nodes=1)
    sums = np.array([[[np.iinfo(np.int64).min, 0]]], dtype=np.int64)
    with pytest.raises(PaillierFault):
        packing.pack(sums, rows=24_000)


def test_totals_that_no_rows_can_make_are_refused() -> None:
    packing = LevelPacking(SlotLayout(rows=5, row_bound=8, key_bits=512), candidates=2, nodes=1)
    assert packing.unpack([40])[0, 0].tolist() == [40, 0]
    beyond_slots = 1 << (4 * packing.layout.slot_bits)
    for total in (41, -41, beyond_slots, -beyond_slots, 1 << 200):
        with pytest.raises(PaillierFault) as caught:
            packing.unpack([total])
        assert caught.value.code == "slot-overflow"
    with pytest.raises(PaillierFault) as caught:
        packing.unpack([1, 2])
    assert caught.value.code == "ciphertext-count"


def test_what_fits_no_slot_is_refused_with_the_remedy() -> None:
    with pytest.raises(PaillierFault, match="fewer fraction bits"):
        SlotLayout(rows=2**30, row_bound=2**32, key_bits=2048)
    with pytest.raises(PaillierFault, match="does not fit a key of 64 bits"):
        SlotLayout(rows=100, row_bound=2**32, key_bits=64)
    for fault in ({"rows": 0}, {"row_bound": 0}, {"spare_bits": -1}):
        with pytest.raises(ValueError, match="must"):
            SlotLayout(**({"rows": 1, "row_bound": 1, "key_bits": 1024} | fault))


@given(
    packing=packings.filter(lambda each: each.nodes > 0 and each.layout.spare_bits > 0),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=40, deadline=None)
def test_masks_touch_no_other_slot(packing: LevelPacking, seed: int) -> None:
    rows = packing.layout.rows
    sums = _sums(packing, seed, rows=rows, extreme=True)
    refused = np.random.default_rng(seed).random(sums.shape[:2]) < 0.5
    masks = packing.draw_masks(refused)
    masked = [a + b for a, b in zip(packing.pack(sums, rows=rows), masks, strict=True)]
    opened = packing.unpack(masked, refused=refused)
    np.testing.assert_array_equal(opened, np.where(refused[:, :, None], 0, sums))


def test_masks_are_wide_uniform_and_fresh() -> None:
    layout = SlotLayout(rows=100, row_bound=2**32, key_bits=2048, spare_bits=MASK_SPARE_BITS)
    refused = np.ones((50, 2 * layout.pairs), dtype=np.bool_)
    numbers = [
        number
        for slots in layout.split(layout.draw_masks(refused), slots=2 * layout.pairs)
        for number in slots
    ]
    assert len(set(numbers)) == len(numbers)
    span = 2 ** (layout.slot_bits - 2)
    assert stats.kstest([number / span for number in numbers], "uniform").pvalue > 1e-6
    assert 2 * layout.sum_bound / span <= 2.0 ** (1 - MASK_SPARE_BITS)
    with pytest.raises(ValueError, match="spare bits"):
        CREDIT.draw_masks(refused)


@given(packing=packings)
def test_chunks_are_even_and_cover_every_node(packing: LevelPacking) -> None:
    sizes = [chunk.stop - chunk.start for chunk in packing.chunks]
    assert sum(sizes) == packing.nodes
    assert len(sizes) == math.ceil(packing.nodes / packing.layout.pairs)
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_a_table_of_another_shape_is_a_mistake_of_the_caller() -> None:
    packing = LevelPacking(CREDIT, candidates=2, nodes=3)
    with pytest.raises(ValueError, match=r"\(3, 2, 2\); expected: \(2, 3, 2\)"):
        packing.pack(np.zeros((3, 2, 2), dtype=np.int64), rows=1)
    with pytest.raises(ValueError, match="expected"):
        packing.draw_masks(np.zeros((3, 2), dtype=np.bool_))
