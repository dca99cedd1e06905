"""Paillier key pairs: drawn, stored, sent, and checked when they come from somebody else.

Keys have the form that Damgard, Jurik and Nielsen ask for ("A generalization of Paillier's
public-key system with applications to electronic voting", section 6): n = p q with p = q = 3
modulo 4 and gcd(p - 1, q - 1) = 2. Then h = -x^2 has Jacobi symbol 1 for every x and generates
(for all but few x) everything that has. Beyond the paper, (p - 1) / 2 has no prime factor below
2^16: "few" is then less than one x in 2^15, and no residue character of small order tells the key
owner anything of how a ciphertext was blinded.

A receiver checks what can be checked without the factors. That n is a product of two primes
is not shown to it: a party that makes a crooked key harms what is encrypted for itself.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

import gmpy2
from gmpy2 import mpz

from tasks.site.faults import SiteFault

KEY_BITS = (2048, 3072, 4096)
WEAK_KEY_BITS = (1024,)
DEFAULT_KEY_BITS = 2048
KEY_ID_BYTES = 16

_SMALL_FACTORS_BELOW = 2**16
_SMALL = gmpy2.primorial(2**8) // 2  # most candidates fall here, at little cost
_ODD_PRIMORIAL = gmpy2.primorial(_SMALL_FACTORS_BELOW) // 2


class PaillierFault(SiteFault):
    """A key, ciphertext or number that is refused; the reasons hold no value of any of them."""


@dataclass(frozen=True)
class PublicKey:
    """What encrypts.

    Parameters
    ----------
    n : mpz
        The modulus. Not checked here: use `PublicKey.from_bytes` for what another party sent.
    """

    n: mpz = field(repr=False)

    @cached_property
    def n_squared(self) -> mpz:
        """Modulus of the ciphertexts."""
        return self.n * self.n

    @cached_property
    def largest(self) -> int:
        """Largest absolute value of a plaintext: (n - 1) / 2."""
        return int(self.n // 2)

    @property
    def bits(self) -> int:
        """Length of the modulus."""
        return int(self.n.bit_length())

    @property
    def ciphertext_bytes(self) -> int:
        """Length of one ciphertext on the wire."""
        return (2 * self.bits + 7) // 8

    @cached_property
    def _digest(self) -> bytes:
        return hashlib.sha256(b"fedapp/paillier-key/1" + self.to_bytes()).digest()

    @property
    def key_id(self) -> bytes:
        """16 bytes that go with every vector of ciphertexts."""
        return self._digest[:KEY_ID_BYTES]

    @property
    def fingerprint(self) -> str:
        """64 hexadecimal digits, to be compared by another way than the relay."""
        return self._digest.hex()

    def to_bytes(self) -> bytes:
        """Give the modulus, most significant byte first."""
        return int(self.n).to_bytes((self.bits + 7) // 8, "big")

    @classmethod
    def from_bytes(
        cls, data: bytes, *, owner: str = "another party", allow_weak_key: bool = False
    ) -> PublicKey:
        """Read and check a key that somebody sent.

        Parameters
        ----------
        data : bytes
            From `PublicKey.to_bytes`.
        owner : str
            Whose key it is, for the message.
        allow_weak_key : bool
            Take 1024 bits too.

        Raises
        ------
        PaillierFault
            ``weak-key`` or ``bad-key``.
        """
        key = cls(mpz(int.from_bytes(data, "big")))
        check_key_bits(key.bits, owner=owner, allow_weak_key=allow_weak_key)
        crooked = (
            len(data) * 8 != key.bits
            or key.n % 4 != 1
            or gmpy2.gcd(key.n, _ODD_PRIMORIAL) != 1
            or gmpy2.is_power(key.n)
            or gmpy2.is_prime(key.n)
        )
        if crooked:
            raise PaillierFault(
                "bad-key",
                f"the Paillier key of {owner} is no product of two large primes that are 3 "
                "modulo 4: damaged, or made by another program",
            )
        return key


@dataclass(frozen=True)
class PrivateKey:
    """What decrypts, and encrypts faster than the public key.

    Parameters
    ----------
    p, q : mpz
        The two primes. Not checked here: see `generate_key` and `PrivateKey.from_bytes`.
    """

    p: mpz = field(repr=False)
    q: mpz = field(repr=False)

    @cached_property
    def public(self) -> PublicKey:
        """The public half."""
        return PublicKey(self.p * self.q)

    @cached_property
    def p_squared(self) -> mpz:
        """Modulus of one half of the work by the Chinese remainder theorem."""
        return self.p * self.p

    @cached_property
    def q_squared(self) -> mpz:
        """Modulus of the other half."""
        return self.q * self.q

    @cached_property
    def _inverse_of_p_squared(self) -> mpz:
        return gmpy2.invert(self.p_squared, self.q_squared)

    @cached_property
    def _decryption(self) -> tuple[mpz, mpz, mpz]:
        """1 / (-q) modulo p, 1 / (-p) modulo q, 1 / p modulo q.

        (1 + n)^(p - 1) = 1 + (p - 1) q p = 1 - q p modulo p^2, of which L is -q.
        """
        p, q = self.p, self.q
        return gmpy2.invert(-q, p), gmpy2.invert(-p, q), gmpy2.invert(p, q)

    def join_squares(self, modulo_p: mpz, modulo_q: mpz) -> mpz:
        """Number modulo n^2 from its residues modulo p^2 and q^2."""
        step = (modulo_q - modulo_p) * self._inverse_of_p_squared % self.q_squared
        return modulo_p + self.p_squared * step

    def decrypt_residue(self, ciphertext: mpz) -> mpz:
        """Plaintext in [0, n) of one ciphertext (Paillier 1999, section 7)."""
        p, q = self.p, self.q
        of_p, of_q, inverse_of_p = self._decryption
        power_p = gmpy2.powmod(ciphertext % self.p_squared, p - 1, self.p_squared)
        power_q = gmpy2.powmod(ciphertext % self.q_squared, q - 1, self.q_squared)
        m_p = (power_p - 1) // p * of_p % p
        m_q = (power_q - 1) // q * of_q % q
        return m_p + p * ((m_q - m_p) * inverse_of_p % q)

    def to_bytes(self) -> bytes:
        """Give both primes in clear, for the owner's own state: never to be sent."""
        width = (self.public.bits // 2 + 7) // 8
        return b"".join(int(prime).to_bytes(width, "big") for prime in (self.p, self.q))

    @classmethod
    def from_bytes(cls, data: bytes, *, allow_weak_key: bool = False) -> PrivateKey:
        """Read the owner's own key and check that nothing happened to it.

        Raises
        ------
        PaillierFault
            ``weak-key`` or ``bad-key``.
        """
        half = len(data) // 2
        key = cls(mpz(int.from_bytes(data[:half], "big")), mpz(int.from_bytes(data[half:], "big")))
        if 2 * half != len(data) or not _is_sound(key, bits=16 * half):
            raise PaillierFault("bad-key", "the stored Paillier key is damaged")
        check_key_bits(key.public.bits, owner="this site", allow_weak_key=allow_weak_key)
        return key


def check_key_bits(bits: int, *, owner: str, allow_weak_key: bool) -> None:
    """Refuse a length that is too short, or that nobody uses.

    Raises
    ------
    PaillierFault
        ``weak-key``.
    """
    allowed = WEAK_KEY_BITS + KEY_BITS if allow_weak_key else KEY_BITS
    if bits not in allowed:
        lengths = ", ".join(map(str, allowed))
        hint = "" if allow_weak_key else " (1024 only with allow-weak-key, for tests)"
        raise PaillierFault(
            "weak-key", f"Paillier key of {owner}: {bits} bits; allowed: {lengths}{hint}"
        )


def check_distinct(keys: Mapping[str, PublicKey]) -> None:
    """Refuse two parties with one key, or with keys that share a prime.

    Parameters
    ----------
    keys : mapping of str to PublicKey
        Key of every party, by its name.

    Raises
    ------
    PaillierFault
        ``same-key``, naming all such pairs.
    """
    related = [
        f"{first} and {second} sent the same Paillier key, or keys that share a prime"
        for first, second in combinations(sorted(keys), 2)
        if gmpy2.gcd(keys[first].n, keys[second].n) != 1
    ]
    if related:
        raise PaillierFault("same-key", *related)


def generate_key(bits: int = DEFAULT_KEY_BITS, *, allow_weak_key: bool = False) -> PrivateKey:
    """Draw a key pair from the operating system's generator.

    Parameters
    ----------
    bits : int
        Length of n: 2048, 3072 or 4096.
    allow_weak_key : bool
        Allow 1024 too, for tests.

    Raises
    ------
    PaillierFault
        ``weak-key``.
    """
    check_key_bits(bits, owner="this site", allow_weak_key=allow_weak_key)
    while True:
        key = PrivateKey(_draw_prime(bits // 2), _draw_prime(bits // 2))
        if _is_sound(key, bits=bits):
            return key


def _draw_prime(bits: int) -> mpz:
    """Prime p = 3 modulo 4 with two leading ones and (p - 1) / 2 free of small factors."""
    frame = (mpz(3) << (bits - 2)) | 3
    while True:
        p = mpz(secrets.randbits(bits)) | frame
        product = p * (p // 2)
        if gmpy2.gcd(product, _SMALL) != 1 or gmpy2.gcd(product, _ODD_PRIMORIAL) != 1:
            continue
        if gmpy2.is_prime(p, 40):
            return p


def _is_sound(key: PrivateKey, *, bits: int) -> bool:
    p, q = key.p, key.q
    n = p * q
    return bool(
        n.bit_length() == bits
        and p.bit_length() == q.bit_length() == bits // 2
        and p % 4 == q % 4 == 3
        and abs(p - q).bit_length() > bits // 2 - 100  # as FIPS 186: no factor near the root
        and gmpy2.gcd(n, (p - 1) * (q - 1)) == 1
        and gmpy2.gcd(p - 1, q - 1) == 2
        and gmpy2.is_prime(p)
        and gmpy2.is_prime(q)
    )
