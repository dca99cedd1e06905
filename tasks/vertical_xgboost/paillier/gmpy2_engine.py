"""The default engine: a thin layer on gmpy2, with blinding factors from fixed-base tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import gmpy2
from gmpy2 import mpz

from tasks.vertical_xgboost.paillier.blinding import blinding_factors
from tasks.vertical_xgboost.paillier.engine import Engine, public_half
from tasks.vertical_xgboost.paillier.keys import PrivateKey, PublicKey


class Gmpy2Engine(Engine):
    """Paillier on gmpy2; see `blinding` for what makes encryption cheap."""

    name: ClassVar[str] = "gmpy2"

    def _encrypt(self, key: PublicKey | PrivateKey, residues: Sequence[mpz]) -> list[mpz]:
        public = public_half(key)
        n, n_squared = public.n, public.n_squared
        factors = blinding_factors(key, len(residues))
        return [
            (1 + m * n) * factor % n_squared for m, factor in zip(residues, factors, strict=True)
        ]

    def _decrypt(self, key: PrivateKey, values: Sequence[mpz]) -> list[mpz]:
        return [key.decrypt_residue(value) for value in values]

    def _add(self, key: PublicKey, first: Sequence[mpz], second: Sequence[mpz]) -> tuple[mpz, ...]:
        n_squared = key.n_squared
        return tuple(a * b % n_squared for a, b in zip(first, second, strict=True))

    def _multiply(
        self, key: PublicKey, values: Sequence[mpz], factors: Sequence[int]
    ) -> tuple[mpz, ...]:
        n_squared = key.n_squared
        return tuple(
            gmpy2.powmod(value, factor, n_squared)
            for value, factor in zip(values, factors, strict=True)
        )

    def _fold(self, key: PublicKey, values: Sequence[mpz], shift_bits: int) -> mpz:
        n_squared, power_of_two = key.n_squared, mpz(1) << shift_bits
        total = values[-1]
        for value in reversed(values[:-1]):
            total = gmpy2.powmod(total, power_of_two, n_squared) * value % n_squared
        return total
