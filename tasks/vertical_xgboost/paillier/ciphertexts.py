"""Vectors of ciphertexts under one key, their bytes, and the checks on what arrives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import gmpy2
from gmpy2 import mpz

from tasks.vertical_xgboost.paillier.keys import KEY_ID_BYTES, PaillierFault, PublicKey


@dataclass(frozen=True)
class Ciphertexts:
    """A vector of ciphertexts under one key.

    Parameters
    ----------
    key : PublicKey
        Key that all of them are encrypted under.
    values : tuple of mpz
        Numbers in [1, n^2).
    """

    key: PublicKey = field(repr=False)
    values: tuple[mpz, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[mpz]:
        return iter(self.values)

    def take(self, indices: Iterable[int]) -> Ciphertexts:
        """Give the ones at the indices, in their order."""
        return Ciphertexts(self.key, tuple(self.values[index] for index in indices))

    def to_bytes(self) -> bytes:
        """Give the key id, then every ciphertext, most significant byte first, at fixed width.

        Raises
        ------
        PaillierFault
            ``not-blinded``: one was made by arithmetic alone and shows its plaintext.
        """
        if any(value % self.key.n == 1 for value in self.values):
            raise PaillierFault("not-blinded", "a ciphertext without blinding may not be sent")
        width = self.key.ciphertext_bytes
        body = (int(value).to_bytes(width, "big") for value in self.values)
        return self.key.key_id + b"".join(body)

    @classmethod
    def from_bytes(
        cls, data: bytes, *, key: PublicKey, count: int, sender: str = "another party"
    ) -> Ciphertexts:
        """Read ciphertexts that somebody sent, and check every one.

        Parameters
        ----------
        data : bytes
            From `Ciphertexts.to_bytes`.
        key : PublicKey
            Key that they must be under.
        count : int
            How many there must be.
        sender : str
            Whose they are, for the message.

        Raises
        ------
        PaillierFault
            ``wrong-key`` (key id), ``ciphertext-count`` (length), or ``bad-ciphertext`` where
            0 < c < n^2, gcd(c, n) = 1 or the blinding fails.
        """
        if data[:KEY_ID_BYTES] != key.key_id:
            raise PaillierFault("wrong-key", f"ciphertexts of {sender} are under another key")
        width = key.ciphertext_bytes
        body = memoryview(data)[KEY_ID_BYTES:]
        if len(body) != count * width:
            raise PaillierFault(
                "ciphertext-count",
                f"ciphertexts of {sender}: {len(body)} bytes; expected: {count} of {width} bytes",
            )
        pieces = (body[start : start + width] for start in range(0, len(body), width))
        values = tuple(mpz(int.from_bytes(piece, "big")) for piece in pieces)
        faults = _count_bad(values, key)
        if faults:
            raise PaillierFault(
                "bad-ciphertext", f"{faults} of {count} ciphertexts of {sender} are damaged"
            )
        return cls(key, values)


def _count_bad(values: Sequence[mpz], key: PublicKey) -> int:
    """How many are out of range, share a factor with n, or carry no blinding."""
    n, n_squared = key.n, key.n_squared
    residues = [value % n for value in values]
    product = mpz(1)
    for residue in residues:
        product = product * residue % n
    in_range = all(0 < value < n_squared for value in values)
    if in_range and gmpy2.gcd(product, n) == 1 and 1 not in residues:  # one gcd for all of them
        return 0
    return sum(
        not 0 < value < n_squared or residue == 1 or gmpy2.gcd(residue, n) != 1
        for value, residue in zip(values, residues, strict=True)
    )
