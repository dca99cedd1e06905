"""Both Paillier engines against textbook formulas, against each other, and on bad input."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction

import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.vertical_xgboost.paillier.ciphertexts import Ciphertexts
from tasks.vertical_xgboost.paillier.engine import Engine, engine_named
from tasks.vertical_xgboost.paillier.keys import PaillierFault, PrivateKey, generate_key
from tests.paillier_keys import weak_key

ENGINES = [engine_named("gmpy2"), engine_named("phe")]
GMPY2, PHE = ENGINES
LARGEST = weak_key().public.largest
NUMBERS = st.one_of(
    st.integers(-LARGEST, LARGEST),
    st.integers(-(2**60), 2**60),
    st.sampled_from([0, 1, -1, LARGEST, -LARGEST, LARGEST - 1]),
)
engines = pytest.mark.parametrize("engine", ENGINES, ids=lambda each: each.name)
pairs_of_engines = pytest.mark.parametrize(
    ("one", "other"),
    [(GMPY2, PHE), (PHE, GMPY2), (GMPY2, GMPY2), (PHE, PHE)],
    ids=lambda each: each.name,
)
few = settings(max_examples=15, deadline=None)


def textbook_encrypt(n: int, m: int, r: int) -> int:
    """Paillier 1999, scheme 1 with g = n + 1."""
    return pow(n + 1, m, n * n) * pow(r, n, n * n) % (n * n)


def textbook_decrypt(p: int, q: int, c: int) -> int:
    n = p * q
    carmichael = math.lcm(p - 1, q - 1)
    mu = pow((pow(n + 1, carmichael, n * n) - 1) // n, -1, n)
    return (pow(c, carmichael, n * n) - 1) // n * mu % n


@engines
@pytest.mark.parametrize(("p", "q"), [(47, 59), (59, 47), (83, 107), (2039, 2027)])
def test_small_keys_decrypt_what_the_textbook_encrypts(engine: Engine, p: int, q: int) -> None:
    key, n = PrivateKey(mpz(p), mpz(q)), p * q
    cases = [(m, r) for m in [*range(0, n, n // 40), n - 1, n // 2, n // 2 + 1] for r in (2, n - 3)]
    ciphertexts = Ciphertexts(key.public, tuple(mpz(textbook_encrypt(n, m, r)) for m, r in cases))
    expected = [m if m <= n // 2 else m - n for m, _ in cases]
    assert engine.decrypt(key, ciphertexts) == expected


def test_a_worked_example() -> None:
    # p = 47, q = 59, m = 42, r = 23: (1 + 42 * 2773) * 23^2773 modulo 2773^2, by plain powers
    assert textbook_encrypt(2773, 42, 23) == (1 + 42 * 2773) * 23**2773 % 2773**2 == 3029395
    key = PrivateKey(mpz(47), mpz(59))
    for engine in ENGINES:
        assert engine.decrypt(key, Ciphertexts(key.public, (mpz(3029395),))) == [42]


@engines
@pytest.mark.parametrize("own", [False, True])
def test_the_textbook_decrypts_what_an_engine_encrypts(engine: Engine, own: bool) -> None:
    key = weak_key()
    numbers = [0, 1, 12345678901234567890, key.public.largest, -1, -(2**300)]
    for number, c in zip(numbers, engine.encrypt(key if own else key.public, numbers), strict=True):
        assert textbook_decrypt(int(key.p), int(key.q), int(c)) == number % int(key.public.n)


@pairs_of_engines
@pytest.mark.parametrize("own", [False, True])
@few
@given(numbers=st.lists(NUMBERS, max_size=4))
def test_one_engine_decrypts_what_another_encrypts(
    one: Engine, other: Engine, own: bool, numbers: list[int]
) -> None:
    key = weak_key()
    ciphertexts = one.encrypt(key if own else key.public, numbers)
    data = ciphertexts.to_bytes()
    read = Ciphertexts.from_bytes(data, key=key.public, count=len(numbers))
    assert read == ciphertexts
    assert other.decrypt(key, read) == numbers


@pairs_of_engines
@few
@given(data=st.data())
def test_sums_multiples_and_folds_are_those_of_the_numbers(
    one: Engine, other: Engine, data: st.DataObject
) -> None:
    key = weak_key()
    size = data.draw(st.integers(1, 5))
    small = st.lists(st.integers(-(2**60), 2**60), min_size=size, max_size=size)
    a, b, c, k = (data.draw(small) for _ in range(4))
    of_a, of_b = one.encrypt(key.public, a), other.encrypt(key.public, b)
    of_c = one.encrypt(key, c)
    expected = [x + y + z for x, y, z in zip(a, b, c, strict=True)]
    left = other.add(other.add(of_a, of_b), of_c)
    right = one.add(of_a, one.add(of_b, of_c))
    assert left == right == one.add(of_c, of_a, of_b)
    assert other.decrypt(key, left) == expected
    assert one.decrypt(key, one.multiply(of_a, k)) == [x * y for x, y in zip(a, k, strict=True)]
    group = data.draw(st.integers(1, 5))
    folded = other.fold(of_a, group=group, shift_bits=64)
    assert folded == one.fold(of_a, group=group, shift_bits=64)
    groups = [a[start : start + group] for start in range(0, size, group)]
    assert one.decrypt(key, folded) == [
        sum(x << (64 * place) for place, x in enumerate(each)) for each in groups
    ]


@engines
def test_a_number_beyond_the_key_is_refused_before_anything_is_encrypted(engine: Engine) -> None:
    key = weak_key()
    for number in (key.public.largest + 1, -key.public.largest - 1, 2**5000):
        with pytest.raises(PaillierFault) as caught:
            engine.encrypt(key.public, [1, number])
        assert caught.value.code == "plaintext-overflow"
        assert str(number)[:8] not in str(caught.value)


@engines
def test_ciphertexts_of_another_key_or_length_are_refused(engine: Engine) -> None:
    key, foreign = weak_key(0), weak_key(1)
    mine, theirs = engine.encrypt(key.public, [1, 2]), engine.encrypt(foreign.public, [1, 2])
    for action in (
        lambda: engine.add(mine, theirs),
        lambda: engine.decrypt(foreign, mine),
        lambda: Ciphertexts.from_bytes(theirs.to_bytes(), key=key.public, count=2),
        lambda: engine.rerandomise(mine, key=foreign),
        lambda: Ciphertexts.from_bytes(b"", key=key.public, count=0),
    ):
        with pytest.raises(PaillierFault) as caught:
            action()
        assert caught.value.code == "wrong-key"
    for action in (
        lambda: engine.add(mine, mine.take([0])),
        lambda: engine.multiply(mine, [1]),
        lambda: Ciphertexts.from_bytes(mine.to_bytes(), key=key.public, count=1),
        lambda: Ciphertexts.from_bytes(mine.to_bytes()[:-1], key=key.public, count=2),
    ):
        with pytest.raises(PaillierFault) as caught:
            action()
        assert caught.value.code == "ciphertext-count"


def test_damaged_ciphertexts_are_refused_and_counted() -> None:
    key = weak_key()
    public, width = key.public, key.public.ciphertext_bytes
    good = GMPY2.encrypt(public, [5]).values[0]
    blinding_left_out = 1 + 5 * public.n
    bad = [0, public.n_squared, 2 ** (8 * width) - 1, key.p, good * key.q % public.n_squared]
    for value in [*bad, blinding_left_out, 1]:
        body = b"".join(int(each).to_bytes(width, "big") for each in (good, value, good, value))
        with pytest.raises(PaillierFault, match="2 of 4 ciphertexts of south") as caught:
            Ciphertexts.from_bytes(public.key_id + body, key=public, count=4, sender="south")
        assert caught.value.code == "bad-ciphertext"


@engines
def test_what_has_no_blinding_is_not_sent(engine: Engine) -> None:
    key = weak_key()
    bare = engine.multiply(engine.encrypt(key.public, [7]), [0])
    assert bare.values == (1,)
    with pytest.raises(PaillierFault) as caught:
        bare.to_bytes()
    assert caught.value.code == "not-blinded"
    blinded = engine.rerandomise(bare)
    assert engine.decrypt(
        key, Ciphertexts.from_bytes(blinded.to_bytes(), key=key.public, count=1)
    ) == [0]


@engines
@pytest.mark.parametrize("own", [False, True])
def test_rerandomised_ciphertexts_keep_their_numbers_only(engine: Engine, own: bool) -> None:
    key = weak_key()
    before = engine.encrypt(key.public, [3, -3])
    after = engine.rerandomise(before, key=key if own else None)
    assert engine.decrypt(key, after) == [3, -3]
    assert not set(before.values) & set(after.values)


def test_printing_shows_no_ciphertext() -> None:
    ciphertexts = GMPY2.encrypt(weak_key().public, [1])
    assert str(int(ciphertexts.values[0]))[:12] not in repr(ciphertexts)


def test_only_whole_numbers_are_encrypted() -> None:
    for engine in ENGINES:
        for number in (1.5, Fraction(1, 2)):
            with pytest.raises(TypeError):
                engine.encrypt(weak_key().public, [number])  # type: ignore[list-item]


def test_an_engine_is_found_by_its_name() -> None:
    assert [engine_named(name).name for name in ("gmpy2", "phe")] == ["gmpy2", "phe"]
    with pytest.raises(PaillierFault, match='"tenseal"; allowed: "gmpy2", "phe"'):
        engine_named("tenseal")


def test_the_default_engine_does_not_import_phe() -> None:
    code = (
        "import sys; from tasks.vertical_xgboost.paillier import packing, engine;"
        "engine.engine_named('gmpy2'); assert not any(m.split('.')[0] in ('phe', 'flwr')"
        " for m in sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_key_of_default_length() -> None:
    key = generate_key()
    numbers = [0, -1, 2**2000, -(2**2000), key.public.largest]
    for one, other in ((GMPY2, PHE), (PHE, GMPY2)):
        for encrypting in (key, key.public):
            sent = one.encrypt(encrypting, numbers).to_bytes()
            assert len(sent) == 16 + 5 * 512
            read = Ciphertexts.from_bytes(sent, key=key.public, count=5)
            assert other.decrypt(key, read) == numbers
