"""Blinding factors h^(n a) for random a of half the key's length, from a fixed-base table.

Damgard, Jurik and Nielsen (section 6) replace r^n by a power of h^n, h = -x^2 modulo n, with a
random exponent of half the length of n; that is as safe as Paillier's scheme under their
assumption that such powers of h cannot be told from random elements with Jacobi symbol 1.
Here every process draws its own x for every key, so a key owner cannot choose a bad h.

The table is a comb (Lim and Lee, "More flexible exponentiation with precomputation", CRYPTO '94):
the exponent's bits stand in `teeth` rows of `blocks * columns` bits, and one table entry covers a
bit of each row. Since exponents are random and nobody needs them as numbers, the digits that
choose entries are drawn themselves: `teeth` random bits each.

Tables are a cache of the process and never stored: they cost a tenth of a second, and the next
process draws another x.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass

import gmpy2
import numpy as np
from gmpy2 import mpz

from tasks.vertical_xgboost.paillier.keys import PrivateKey, PublicKey

_BLOCKS = 8
_TEETH = (4, 6, 8, 10)  # 10: 8,192 entries, 4.6 MB at 2048 bits
_KEPT = 32  # keys whose tables are kept; in simulation one process plays all parties


@dataclass(frozen=True)
class CombShape:
    """Size of a comb.

    Parameters
    ----------
    teeth : int
        Bits that one table entry covers.
    blocks : int
        Tables of 2^teeth entries.
    columns : int
        Entries of each table that one power multiplies; columns - 1 squarings join them.
    """

    teeth: int
    blocks: int
    columns: int

    @classmethod
    def covering(cls, exponent_bits: int, *, teeth: int) -> CombShape:
        """Give the smallest comb of so many teeth for exponents of at least so many bits."""
        per_tooth = -(-exponent_bits // teeth)
        return cls(teeth, _BLOCKS, -(-per_tooth // _BLOCKS))

    @property
    def multiplications_to_build(self) -> int:
        """Work of building the tables."""
        return self.blocks * (1 << self.teeth) + self.teeth * self.blocks * self.columns

    @property
    def multiplications_a_power(self) -> int:
        """Work of one power."""
        return self.blocks * self.columns + self.columns


def shape_for(exponent_bits: int, *, powers: int) -> CombShape:
    """Give the comb that makes so many powers, its tables included, with the least work."""
    shapes = [CombShape.covering(exponent_bits, teeth=teeth) for teeth in _TEETH]
    return min(
        shapes,
        key=lambda shape: shape.multiplications_to_build + powers * shape.multiplications_a_power,
    )


def draw_digits(shape: CombShape, *, powers: int) -> list[list[int]]:
    """Random exponents, as the table entries that they choose, column by column.

    Returns
    -------
    list of list of int
        `powers` lists of `columns * blocks` digits in [0, 2^teeth), uniform, from the operating
        system.
    """
    count = shape.columns * shape.blocks
    words = np.frombuffer(secrets.token_bytes(2 * powers * count), dtype=np.uint16)
    digits: list[list[int]] = (words & (2**shape.teeth - 1)).reshape(powers, count).tolist()
    return digits


class Comb:
    """Powers of one base modulo one modulus.

    Parameters
    ----------
    base, modulus : mpz
        What is raised, and modulo what.
    shape : CombShape
        Size of the tables.
    """

    def __init__(self, base: mpz, modulus: mpz, shape: CombShape) -> None:
        self._modulus = modulus
        self._shape = shape
        per_tooth = mpz(1) << (shape.blocks * shape.columns)
        per_block = mpz(1) << shape.columns
        tooth = [base]
        for _ in range(shape.teeth - 1):
            tooth.append(gmpy2.powmod(tooth[-1], per_tooth, modulus))
        self._tables = []
        for _ in range(shape.blocks):
            self._tables.append(self._subset_products(tooth))
            tooth = [gmpy2.powmod(each, per_block, modulus) for each in tooth]

    def _subset_products(self, factors: list[mpz]) -> list[mpz]:
        modulus = self._modulus
        products = [mpz(1)]
        for factor in factors:
            products += [product * factor % modulus for product in products]
        return products

    def power(self, digits: list[int]) -> mpz:
        """Base to the exponent that the digits stand for.

        Parameters
        ----------
        digits : list of int
            From `draw_digits`, for a comb of this shape.
        """
        modulus, tables, blocks = self._modulus, self._tables, self._shape.blocks
        result = mpz(1)
        for start in range(0, len(digits), blocks):
            result = result * result % modulus
            for table, digit in zip(tables, digits[start : start + blocks], strict=True):
                result = result * table[digit] % modulus
        return result

    def exponent(self, digits: list[int]) -> int:
        """Exponent that the digits stand for (a check on `power`)."""
        shape = self._shape
        total = 0
        for index, digit in enumerate(digits):
            column, block = divmod(index, shape.blocks)
            bit = block * shape.columns + shape.columns - 1 - column
            for tooth in range(shape.teeth):
                if digit >> tooth & 1:
                    total += 1 << (tooth * shape.blocks * shape.columns + bit)
        return total


def draw_blinding_base(n: mpz) -> mpz:
    """Draw h = -x^2 modulo n, x uniform from the operating system."""
    while True:
        x = mpz(secrets.randbelow(int(n)))
        if gmpy2.gcd(x, n) == 1:
            return -x * x % n


class _Source:
    """Blinding factors of one key; its tables grow with the number of factors asked for."""

    def __init__(self, key: PublicKey | PrivateKey) -> None:
        public = key.public if isinstance(key, PrivateKey) else key
        # the owner works modulo p^2 and q^2, which is half the work for the same factors
        self._owner = key if isinstance(key, PrivateKey) else None
        self._moduli = (
            [key.p_squared, key.q_squared] if isinstance(key, PrivateKey) else [key.n_squared]
        )
        self._base = gmpy2.powmod(draw_blinding_base(public.n), public.n, public.n_squared)
        self._exponent_bits = public.bits // 2
        self._asked = 0
        self._tables: tuple[CombShape, list[Comb]] | None = None

    def factors(self, count: int) -> list[mpz]:
        """Give so many fresh blinding factors modulo n^2."""
        self._asked += count
        wanted = shape_for(self._exponent_bits, powers=self._asked)
        tables = self._tables
        if tables is None or tables[0].teeth < wanted.teeth:
            tables = wanted, [Comb(self._base % each, each, wanted) for each in self._moduli]
            self._tables = tables
        shape, combs = tables
        drawn = draw_digits(shape, powers=count)
        if self._owner is None:
            return [combs[0].power(digits) for digits in drawn]
        join = self._owner.join_squares
        return [join(combs[0].power(digits), combs[1].power(digits)) for digits in drawn]


_sources: OrderedDict[tuple[bool, mpz], _Source] = OrderedDict()


def blinding_factors(key: PublicKey | PrivateKey, count: int) -> list[mpz]:
    """Draw blinding factors: n-th powers modulo n^2, of elements with Jacobi symbol 1.

    Parameters
    ----------
    key : PublicKey or PrivateKey
        The owner passes its private key: same factors, less time.
    count : int
        How many.

    Returns
    -------
    list of mpz
        In [1, n^2). Never 1.
    """
    own = isinstance(key, PrivateKey)
    public = key.public if isinstance(key, PrivateKey) else key
    name = (own, public.n)
    source = _sources.get(name)
    if source is None:
        source = _sources[name] = _Source(key)
    _sources.move_to_end(name)
    while len(_sources) > _KEPT:
        _sources.popitem(last=False)
    factors = source.factors(count)
    while 1 in factors:  # never seen at a real key length
        factors = [factor if factor != 1 else source.factors(1)[0] for factor in factors]
    return factors


def forget_tables() -> None:
    """Drop all tables and bases, as the end of the process does."""
    _sources.clear()
