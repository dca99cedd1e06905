"""The same on the library `phe` (python-paillier), which the protocol's authors used.

`phe` is licensed under GPL-3.0; this module is the only one that imports it, and is itself
imported only where the engine ``"phe"`` is asked for. Its floating-point encoding is not used: it
shows the exponent, and so the magnitude, of every number in clear.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import ClassVar

from gmpy2 import mpz
from phe import EncryptedNumber, PaillierPrivateKey, PaillierPublicKey

from tasks.vertical_xgboost.paillier.blinding import draw_blinding_base
from tasks.vertical_xgboost.paillier.engine import Engine, public_half
from tasks.vertical_xgboost.paillier.keys import PrivateKey, PublicKey


class PheEngine(Engine):
    """Paillier by `phe`: a full power of n for every ciphertext."""

    name: ClassVar[str] = "phe"

    def _encrypt(self, key: PublicKey | PrivateKey, residues: Sequence[mpz]) -> list[mpz]:
        public = public_half(key)
        theirs = PaillierPublicKey(int(public.n))
        return [
            mpz(theirs.raw_encrypt(int(m), r_value=_draw_signed_square(public.n))) for m in residues
        ]

    def _decrypt(self, key: PrivateKey, values: Sequence[mpz]) -> list[mpz]:
        theirs = PaillierPrivateKey(PaillierPublicKey(int(key.public.n)), int(key.p), int(key.q))
        return [mpz(theirs.raw_decrypt(int(value))) for value in values]

    def _add(self, key: PublicKey, first: Sequence[mpz], second: Sequence[mpz]) -> tuple[mpz, ...]:
        theirs = PaillierPublicKey(int(key.n))
        return tuple(
            _number(theirs, EncryptedNumber(theirs, int(a)) + EncryptedNumber(theirs, int(b)))
            for a, b in zip(first, second, strict=True)
        )

    def _multiply(
        self, key: PublicKey, values: Sequence[mpz], factors: Sequence[int]
    ) -> tuple[mpz, ...]:
        theirs = PaillierPublicKey(int(key.n))
        return tuple(
            _number(theirs, EncryptedNumber(theirs, int(value)) * int(factor))
            for value, factor in zip(values, factors, strict=True)
        )

    def _fold(self, key: PublicKey, values: Sequence[mpz], shift_bits: int) -> mpz:
        theirs = PaillierPublicKey(int(key.n))
        total = EncryptedNumber(theirs, int(values[-1]))
        for value in reversed(values[:-1]):
            total = total * (1 << shift_bits) + EncryptedNumber(theirs, int(value))
        return _number(theirs, total)


def _draw_signed_square(n: mpz) -> int:
    """A blinding of the same form as the other engine's: +x^2 or -x^2, Jacobi symbol 1."""
    negative_square = draw_blinding_base(n)
    return int(negative_square if secrets.randbits(1) else n - negative_square)


def _number(key: PaillierPublicKey, encrypted: EncryptedNumber) -> mpz:
    # be_secure would add blinding here; an engine's arithmetic says that it adds none
    return mpz(encrypted.ciphertext(be_secure=False))
