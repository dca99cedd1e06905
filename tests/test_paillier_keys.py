"""Paillier keys: how they are drawn, stored and sent, and which ones are refused."""

from __future__ import annotations

import math

import gmpy2
import pytest
from gmpy2 import mpz

from tasks.vertical_xgboost.paillier import keys as keys_module
from tasks.vertical_xgboost.paillier.keys import (
    PaillierFault,
    PrivateKey,
    PublicKey,
    check_distinct,
    generate_key,
)
from tests.paillier_keys import weak_key


def _refused(code: str, data: bytes, **options: bool) -> PaillierFault:
    with pytest.raises(PaillierFault) as caught:
        PublicKey.from_bytes(data, owner="north", allow_weak_key=True, **options)
    assert caught.value.code == code
    assert "north" in str(caught.value)
    return caught.value


def _bytes_of(n: int) -> bytes:
    return n.to_bytes((n.bit_length() + 7) // 8, "big")


@pytest.mark.parametrize("bits", [2048, 3072])
def test_drawn_keys_have_the_form_that_the_scheme_needs(bits: int) -> None:
    key = generate_key(bits)
    p, q = int(key.p), int(key.q)
    assert p != q
    assert p.bit_length() == q.bit_length() == bits // 2
    assert (p * q).bit_length() == key.public.bits == bits
    assert p % 4 == q % 4 == 3
    assert gmpy2.is_prime(p, 50)
    assert gmpy2.is_prime(q, 50)
    assert math.gcd(p * q, (p - 1) * (q - 1)) == 1
    assert math.gcd(p - 1, q - 1) == 2
    for half in (p // 2, q // 2):
        assert all(half % small for small in range(3, 2**16, 2))


def test_two_draws_share_nothing() -> None:
    first, second = weak_key(0), weak_key(1)
    assert math.gcd(int(first.public.n), int(second.public.n)) == 1
    assert first.public.key_id != second.public.key_id
    assert first.public.fingerprint != second.public.fingerprint


@pytest.mark.parametrize("bits", [0, 512, 1024, 2047, 2056, 8192])
def test_a_length_that_is_weak_or_unusual_is_refused(bits: int) -> None:
    with pytest.raises(PaillierFault, match=rf"{bits} bits; allowed: 2048, 3072, 4096") as caught:
        generate_key(bits)
    assert caught.value.code == "weak-key"


def test_weak_keys_are_taken_only_where_they_are_allowed() -> None:
    key = weak_key()
    assert PublicKey.from_bytes(key.public.to_bytes(), allow_weak_key=True) == key.public
    assert PrivateKey.from_bytes(key.to_bytes(), allow_weak_key=True) == key
    for read in (PublicKey.from_bytes, PrivateKey.from_bytes):
        data = key.public.to_bytes() if read == PublicKey.from_bytes else key.to_bytes()
        with pytest.raises(PaillierFault) as caught:
            read(data)
        assert caught.value.code == "weak-key"
    with pytest.raises(PaillierFault, match="allowed: 1024, 2048"):
        generate_key(512, allow_weak_key=True)


def test_a_key_survives_its_bytes() -> None:
    key = generate_key()
    assert PrivateKey.from_bytes(key.to_bytes()) == key
    public = PublicKey.from_bytes(key.public.to_bytes())
    assert public == key.public
    assert public.fingerprint == key.public.fingerprint
    assert len(public.to_bytes()) == 256
    assert public.ciphertext_bytes == 512


def test_a_damaged_private_key_is_refused() -> None:
    data = weak_key().to_bytes()
    for damaged in (
        data[:-1],
        b"",
        data[: len(data) // 2] * 2,
        bytes([data[0] ^ 1]) + data[1:],
        data[:-1] + bytes([data[-1] ^ 4]),
    ):
        with pytest.raises(PaillierFault) as caught:
            PrivateKey.from_bytes(damaged, allow_weak_key=True)
        assert caught.value.code == "bad-key"


def test_a_public_key_of_another_form_is_refused() -> None:
    key = weak_key()
    n, p = int(key.public.n), int(key.p)
    _refused("weak-key", b"")
    _refused("weak-key", _bytes_of(n >> 1))
    _refused("bad-key", b"\0" + _bytes_of(n))  # same number, another encoding: another key id
    _refused("bad-key", _bytes_of(n - 1))  # even
    _refused("bad-key", _bytes_of(n + 2))  # 3 modulo 4
    _refused("bad-key", _bytes_of(p * p))
    prime = next(c for c in range(n + 4, n + 10**6, 4) if gmpy2.is_prime(c))
    _refused("bad-key", _bytes_of(prime))
    small = next(c for c in range(n + 4, n + 10**6, 4) if c % 17 == 0)
    _refused("bad-key", _bytes_of(small))


def test_parties_with_one_key_or_a_common_prime_are_named() -> None:
    a, b = weak_key(0), weak_key(1)
    shared = PublicKey(a.p * b.q)
    check_distinct({"west": a.public, "east": b.public})
    with pytest.raises(PaillierFault) as caught:
        check_distinct({"west": a.public, "east": a.public, "north": shared})
    assert caught.value.code == "same-key"
    assert [reason.split(" sent")[0] for reason in caught.value.reasons] == [
        "east and north",
        "east and west",
        "north and west",
    ]


def test_no_key_shows_its_numbers_when_printed() -> None:
    key = weak_key()
    shown = f"{key!r} {key.public!r}"
    assert not any(str(int(each))[:12] in shown for each in (key.p, key.q, key.public.n))


def test_unsuitable_pairs_of_primes_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = weak_key(0).p, weak_key(0).q
    near = gmpy2.next_prime(p)
    draws = iter([p, p, p, near, mpz(2) ** 511 + 111, q, p, q])
    monkeypatch.setattr(keys_module, "_draw_prime", lambda _bits: next(draws))
    assert generate_key(1024, allow_weak_key=True) == PrivateKey(p, q)
