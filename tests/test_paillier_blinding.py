"""What blinds a ciphertext: the right powers, of the right form, fresh every time."""

from __future__ import annotations

import statistics
from itertools import pairwise

import gmpy2
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tasks.vertical_xgboost.paillier import blinding
from tasks.vertical_xgboost.paillier.blinding import (
    Comb,
    CombShape,
    blinding_factors,
    draw_blinding_base,
    draw_digits,
    forget_tables,
    shape_for,
)
from tasks.vertical_xgboost.paillier.ciphertexts import Ciphertexts
from tasks.vertical_xgboost.paillier.engine import Engine, engine_named
from tasks.vertical_xgboost.paillier.keys import PrivateKey
from tests.paillier_keys import weak_key

ENGINES = [engine_named("gmpy2"), engine_named("phe")]
engines = pytest.mark.parametrize("engine", ENGINES, ids=lambda each: each.name)


def _factor_out(key: PrivateKey, ciphertext: mpz) -> mpz:
    """The n-th root modulo n of what blinds a ciphertext, as the key owner can compute it."""
    n, order = key.public.n, (key.p - 1) * (key.q - 1)
    return gmpy2.powmod(ciphertext % n, gmpy2.invert(n, order), n)


@settings(max_examples=60, deadline=None)
@given(
    teeth=st.integers(1, 10),
    blocks=st.integers(1, 5),
    columns=st.integers(1, 5),
    base=st.integers(2, 10**9),
    data=st.data(),
)
def test_a_comb_raises_to_the_exponent_that_its_digits_stand_for(
    teeth: int, blocks: int, columns: int, base: int, data: st.DataObject
) -> None:
    shape = CombShape(teeth, blocks, columns)
    digit = st.integers(0, 2**teeth - 1)
    size = blocks * columns
    digits = data.draw(st.lists(digit, min_size=size, max_size=size))
    modulus = mpz(2) ** 127 - 1
    comb = Comb(mpz(base), modulus, shape)
    exponent = comb.exponent(digits)
    assert 0 <= exponent < 2 ** (teeth * size)
    assert comb.power(digits) == pow(base, exponent, int(modulus))


def test_digits_stand_for_every_exponent_once() -> None:
    comb = Comb(mpz(3), mpz(1009), CombShape(2, 2, 2))
    every = [[a, b, c, d] for a in range(4) for b in range(4) for c in range(4) for d in range(4)]
    assert sorted(comb.exponent(digits) for digits in every) == list(range(256))


@pytest.mark.parametrize("exponent_bits", [512, 1024, 1536, 2048])
def test_exponents_have_at_least_half_the_length_of_the_key(exponent_bits: int) -> None:
    shapes = [shape_for(exponent_bits, powers=powers) for powers in (1, 50, 500, 10**6)]
    for shape in shapes:
        bits = shape.teeth * shape.blocks * shape.columns
        assert exponent_bits <= bits < exponent_bits + shape.teeth * shape.blocks
    for few, many in pairwise(shapes):
        assert few.teeth <= many.teeth
        assert few.multiplications_a_power >= many.multiplications_a_power
    assert shapes[-1].blocks * 2 ** shapes[-1].teeth * exponent_bits * 4 / 8 < 17e6


def test_digits_are_uniform() -> None:
    shape = CombShape(4, 8, 8)
    digits = [digit for power in draw_digits(shape, powers=400) for digit in power]
    assert len(digits) == 400 * 64
    counts = [digits.count(value) for value in range(16)]
    assert stats.chisquare(counts).pvalue > 1e-6


def test_a_blinding_base_is_minus_a_square() -> None:
    key = weak_key()
    bases = {draw_blinding_base(key.public.n) for _ in range(20)}
    assert len(bases) == 20
    for base in bases:  # -1 is no square modulo p or q, so no base is
        assert gmpy2.legendre(base, key.p) == gmpy2.legendre(base, key.q) == -1


@pytest.mark.parametrize("own", [False, True])
def test_factors_are_powers_of_one_drawn_base(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    key = weak_key()
    h = draw_blinding_base(key.public.n)
    drawn: list[list[int]] = []

    def remember(shape: CombShape, *, powers: int) -> list[list[int]]:
        drawn.extend(draw_digits(shape, powers=powers))
        return drawn[-powers:]

    forget_tables()
    monkeypatch.setattr(blinding, "draw_blinding_base", lambda _n: h)
    monkeypatch.setattr(blinding, "draw_digits", remember)
    factors = blinding_factors(key if own else key.public, 5)
    forget_tables()
    shape = shape_for(512, powers=5)
    n, n_squared = key.public.n, key.public.n_squared
    plain = Comb(h, n_squared, shape)
    for factor, digits in zip(factors, drawn, strict=True):
        assert factor == gmpy2.powmod(h, n * plain.exponent(digits), n_squared)


def test_every_process_and_every_key_has_a_base_of_its_own() -> None:
    key = weak_key()
    bases = set()
    for _ in range(3):
        forget_tables()
        blinding_factors(key.public, 1)
        blinding_factors(key, 1)
        bases |= {int(source._base) for source in blinding._sources.values()}
    assert len(bases) == 6


def test_tables_grow_with_use_and_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_tables()
    monkeypatch.setattr(blinding, "_KEPT", 2)
    key = weak_key(0)
    teeth = []
    for count in (1, 200, 3000):
        blinding_factors(key.public, count)
        (source,) = blinding._sources.values()
        assert source._tables is not None
        teeth.append(source._tables[0].teeth)
    assert teeth == sorted(set(teeth))
    for other in (weak_key(1).public, weak_key(2).public):
        blinding_factors(other, 1)
    assert {name[1] for name in blinding._sources} == {weak_key(1).public.n, weak_key(2).public.n}
    forget_tables()


@engines
def test_no_two_ciphertexts_of_a_number_are_the_same(engine: Engine) -> None:
    key = weak_key()
    both = [*engine.encrypt(key.public, [5] * 40), *engine.encrypt(key, [5] * 40)]
    roots = {int(_factor_out(key, each)) for each in both}
    assert len(set(both)) == len(roots) == 80
    assert not {0, 1, int(key.public.n) - 1} & roots


@engines
def test_the_jacobi_symbol_says_nothing(engine: Engine) -> None:
    key = weak_key()
    n = key.public.n
    own, others = engine.encrypt(key, range(40)), engine.encrypt(key.public, range(40))
    mixed = ENGINES[0].add(ENGINES[1].encrypt(key, range(40)), others)
    folded = engine.fold(own, group=7, shift_bits=50)
    for vector in (own, others, mixed, folded, engine.rerandomise(folded)):
        assert {gmpy2.jacobi(each, n) for each in vector} == {1}


@engines
@pytest.mark.parametrize("own", [False, True])
def test_the_key_owner_sees_residues_and_non_residues_alike(engine: Engine, own: bool) -> None:
    key = weak_key()
    count = 400
    vector = engine.encrypt(key if own else key.public, [1] * count)
    symbols = [gmpy2.legendre(each, key.p) for each in vector]
    assert symbols == [gmpy2.legendre(each, key.q) for each in vector]
    assert stats.binomtest(symbols.count(1), count, 0.5).pvalue > 1e-6


@engines
def test_ciphertexts_look_uniform_whatever_they_hold(engine: Engine) -> None:
    key = weak_key()
    n_squared = key.public.n_squared
    for numbers in ([0] * 150, [key.public.largest] * 150):
        shares = [float(gmpy2.mpfr(each) / n_squared) for each in engine.encrypt(key, numbers)]
        assert stats.kstest(shares, "uniform").pvalue > 1e-6
        assert 0.3 < statistics.mean(shares) < 0.7


def test_rerandomising_changes_the_blinding() -> None:
    key = weak_key()
    for engine in ENGINES:
        before = engine.encrypt(key.public, [9])
        after: Ciphertexts = engine.rerandomise(before)
        assert _factor_out(key, before.values[0]) != _factor_out(key, after.values[0])
