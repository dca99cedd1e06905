"""What an engine does with keys, numbers and ciphertexts; engines are interchangeable.

Every ciphertext that an engine blinds has the form (1 + m n) r^n where r is plus or minus a square
modulo n. With keys of this package (n = 1 modulo 4) its Jacobi symbol over n is 1, whoever
encrypted and with which engine: symbols of totals tell nothing of the parts.

What an engine's arithmetic gives (sums, multiples, folds) is blinded by its inputs only. Whoever
sends it to somebody who knows the inputs re-randomises it first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from operator import index
from typing import ClassVar

from gmpy2 import mpz

from tasks.vertical_xgboost.paillier.ciphertexts import Ciphertexts
from tasks.vertical_xgboost.paillier.keys import PaillierFault, PrivateKey, PublicKey


class Engine(ABC):
    """Arithmetic on Paillier ciphertexts.

    Where a method takes ``PublicKey | PrivateKey``, the owner passes its private key, which makes
    the same ciphertexts in less time. Numbers are signed, of at most (n - 1) / 2 in absolute
    value; a sum beyond that wraps, so whoever packs numbers keeps them below (`packing`).
    """

    name: ClassVar[str]

    def encrypt(self, key: PublicKey | PrivateKey, plaintexts: Sequence[int]) -> Ciphertexts:
        """Encrypt signed whole numbers with fresh blinding.

        Raises
        ------
        PaillierFault
            ``plaintext-overflow``: a number is beyond (n - 1) / 2; nothing was encrypted.
        TypeError
            A number is not whole.
        """
        public = public_half(key)
        n = public.n
        residues = []
        for plaintext in map(index, plaintexts):  # a float is refused, not cut off
            if abs(plaintext) > public.largest:
                raise PaillierFault(
                    "plaintext-overflow", f"a number does not fit a key of {public.bits} bits"
                )
            residues.append(mpz(plaintext) % n)
        return Ciphertexts(public, tuple(self._encrypt(key, residues)))

    def decrypt(self, key: PrivateKey, ciphertexts: Ciphertexts) -> list[int]:
        """Decrypt to signed whole numbers.

        Raises
        ------
        PaillierFault
            ``wrong-key``.
        """
        _check_same_key(key.public, ciphertexts.key)
        n, largest = key.public.n, key.public.largest
        residues = self._decrypt(key, ciphertexts.values)
        return [int(m - n if m > largest else m) for m in residues]

    def add(self, *vectors: Ciphertexts) -> Ciphertexts:
        """Add vectors of one length element by element.

        Raises
        ------
        PaillierFault
            ``wrong-key`` or ``ciphertext-count``.
        """
        first, *others = vectors
        total = first.values
        for vector in others:
            _check_same_key(first.key, vector.key)
            if len(vector) != len(first):
                raise PaillierFault(
                    "ciphertext-count",
                    f"vectors of {len(first)} and {len(vector)} ciphertexts cannot be added",
                )
            total = self._add(first.key, total, vector.values)
        return Ciphertexts(first.key, total)

    def multiply(self, ciphertexts: Ciphertexts, factors: Sequence[int]) -> Ciphertexts:
        """Multiply each ciphertext's number by a known signed whole number.

        Not re-randomised: times 1 it is the same ciphertext, times 0 it has no blinding left.

        Raises
        ------
        PaillierFault
            ``ciphertext-count``.
        """
        if len(factors) != len(ciphertexts):
            raise PaillierFault(
                "ciphertext-count",
                f"{len(ciphertexts)} ciphertexts cannot be multiplied by {len(factors)} numbers",
            )
        return Ciphertexts(
            ciphertexts.key, self._multiply(ciphertexts.key, ciphertexts.values, factors)
        )

    def rerandomise(
        self, ciphertexts: Ciphertexts, *, key: PrivateKey | None = None
    ) -> Ciphertexts:
        """Give ciphertexts of the same numbers that nobody can link to these.

        Parameters
        ----------
        key : PrivateKey, optional
            The owner's key, if the owner does it.
        """
        zeros = self.encrypt(key or ciphertexts.key, [0] * len(ciphertexts))
        return self.add(ciphertexts, zeros)

    def fold(self, ciphertexts: Ciphertexts, *, group: int, shift_bits: int) -> Ciphertexts:
        """Put neighbours into one plaintext each, without the key, by Horner's rule.

        Parameters
        ----------
        group : int
            How many go into one; the last group may be smaller.
        shift_bits : int
            Bits between two neighbours: number j of a group is multiplied by 2^(j shift_bits).
        """
        values = ciphertexts.values
        groups = [values[start : start + group] for start in range(0, len(values), group)]
        folded = tuple(self._fold(ciphertexts.key, each, shift_bits) for each in groups)
        return Ciphertexts(ciphertexts.key, folded)

    @abstractmethod
    def _encrypt(self, key: PublicKey | PrivateKey, residues: Sequence[mpz]) -> list[mpz]:
        """Encrypt numbers in [0, n)."""

    @abstractmethod
    def _decrypt(self, key: PrivateKey, values: Sequence[mpz]) -> list[mpz]:
        """Decrypt to numbers in [0, n)."""

    @abstractmethod
    def _add(
        self, key: PublicKey, first: Sequence[mpz], second: Sequence[mpz]
    ) -> tuple[mpz, ...]: ...

    @abstractmethod
    def _multiply(
        self, key: PublicKey, values: Sequence[mpz], factors: Sequence[int]
    ) -> tuple[mpz, ...]: ...

    @abstractmethod
    def _fold(self, key: PublicKey, values: Sequence[mpz], shift_bits: int) -> mpz: ...


def public_half(key: PublicKey | PrivateKey) -> PublicKey:
    """Public key of either."""
    return key.public if isinstance(key, PrivateKey) else key


def engine_named(name: str) -> Engine:
    """Give the engine ``"gmpy2"`` or ``"phe"``; the other one's library is not imported.

    Raises
    ------
    PaillierFault
        ``unknown-engine``.
    """
    if name == "gmpy2":
        from tasks.vertical_xgboost.paillier.gmpy2_engine import Gmpy2Engine

        return Gmpy2Engine()
    if name == "phe":
        from tasks.vertical_xgboost.paillier.phe_engine import PheEngine

        return PheEngine()
    raise PaillierFault("unknown-engine", f'Paillier engine "{name}"; allowed: "gmpy2", "phe"')


def _check_same_key(first: PublicKey, second: PublicKey) -> None:
    if first.n != second.n:
        raise PaillierFault("wrong-key", "ciphertexts are under another key")
