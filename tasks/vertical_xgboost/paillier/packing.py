"""Many signed sums in one plaintext: slots, how wide and how many.

A sum of gradients or Hessians is a whole number (fixed point, 2^-f units) and gets a slot of W
bits, W = ceil(log2(rows g_max 2^f)) + 2. A plaintext is sum_j v_j 2^(W j) over its slots, taken
as one signed number: negative slots borrow from their upper neighbour. That map is linear, so
sums of packed plaintexts are packed sums; and it can be undone as long as every |v_j| < 2^(W-1).
Overflow cannot happen unnoticed: each owner's sums are checked against its own number of rows
before anything is encrypted, and decrypted sums against the number of all rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import gmpy2
import numpy as np
import numpy.typing as npt
from gmpy2 import mpz

from tasks.vertical_xgboost.paillier.keys import PaillierFault

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_MOST_SUM_BITS = 61  # two spare bits more and a slot is still an int64
MASK_SPARE_BITS = 40


@dataclass(frozen=True)
class SlotLayout:
    """Slots of a plaintext: how wide, how many.

    Parameters
    ----------
    rows : int
        Training rows of all parties together.
    row_bound : int
        Largest |g| or |h| of one row, as a whole number: ceil(g_max 2^f).
    key_bits : int
        Length of the key that the plaintexts are encrypted under.
    spare_bits : int
        Bits by which slots are wider than sums need, so that `mask` can hide a slot: the sum
        under a mask is at a statistical distance of at most 2^(1 - spare_bits) from any other.
        0 where nothing is masked, else `MASK_SPARE_BITS`.

    Raises
    ------
    PaillierFault
        ``slot-overflow``: sums need more than 61 bits, or no pair fits the key.
    """

    rows: int
    row_bound: int
    key_bits: int
    spare_bits: int = 0

    def __post_init__(self) -> None:
        if min(self.rows, self.row_bound) < 1 or self.spare_bits < 0:
            raise ValueError("rows and row_bound must be positive, spare_bits not negative")
        bits = self.sum_bits
        if bits > _MOST_SUM_BITS:
            raise PaillierFault(
                "slot-overflow",
                f"sums over {self.rows} rows need {bits} bits; allowed: {_MOST_SUM_BITS}: "
                "use fewer fraction bits",
            )
        if self.pairs < 1:
            raise PaillierFault(
                "slot-overflow",
                f"a pair of {self.slot_bits}-bit slots does not fit a key of {self.key_bits} bits",
            )

    @property
    def sum_bound(self) -> int:
        """Largest absolute value of a sum over all rows."""
        return self.rows * self.row_bound

    @property
    def sum_bits(self) -> int:
        """Bits of `sum_bound`: ceil(log2(rows g_max 2^f))."""
        return (self.sum_bound - 1).bit_length()

    @property
    def slot_bits(self) -> int:
        """Width W of a slot, spare bits included."""
        return self.sum_bits + 2 + self.spare_bits

    @property
    def pairs(self) -> int:
        """Pairs (g, h) that one plaintext holds; its absolute value stays below n / 2."""
        return (self.key_bits - 1) // (2 * self.slot_bits)

    def pack(self, values: npt.ArrayLike, *, rows: int) -> list[mpz]:
        """Pack each row of a table of sums into one plaintext.

        Parameters
        ----------
        values : array of int64, shape (plaintexts, slots)
            Sums of one owner; at most 2 `pairs` slots, the first one lowest.
        rows : int
            Rows that the owner has summed over: what bounds its sums.

        Raises
        ------
        PaillierFault
            ``slot-overflow``: a sum is larger than so many rows can make it.
        """
        table = np.asarray(values, dtype=np.int64)
        bound = rows * self.row_bound
        if rows > self.rows or bool(((table > bound) | (table < -bound)).any()):
            raise PaillierFault(
                "slot-overflow",
                f"a sum over {rows} of {self.rows} rows is larger than the agreed bound of a "
                "row's gradient allows",
            )
        return self._join((table + self._offset_of_sums).tolist(), offset=self._offset_of_sums)

    @property
    def _offset_of_sums(self) -> int:
        return 1 << (self.sum_bits + 1)

    def _join(self, shifted: list[list[int]], *, offset: int) -> list[mpz]:
        """Join slots that were made positive by adding the offset to each."""
        if not shifted or not shifted[0]:
            return [mpz(0)] * len(shifted)
        constant = gmpy2.pack([offset] * len(shifted[0]), self.slot_bits)
        return [gmpy2.pack(slots, self.slot_bits) - constant for slots in shifted]

    def split(self, plaintexts: Sequence[int], *, slots: int) -> list[list[int]]:
        """Split each plaintext into so many signed numbers below 2^(W-1) in absolute value.

        Raises
        ------
        PaillierFault
            ``slot-overflow``: a plaintext holds more than that.
        """
        width = self.slot_bits
        offset = 1 << (width - 1)
        constant = gmpy2.pack([offset] * slots, width) if slots else mpz(0)
        table = []
        for plaintext in plaintexts:
            shifted = mpz(plaintext) + constant
            if not 0 <= shifted < mpz(1) << (width * slots):
                raise PaillierFault("slot-overflow", "a decrypted number is no packed sum")
            numbers = [int(number) - offset for number in gmpy2.unpack(shifted, width)]
            table.append((numbers + [-offset] * slots)[:slots])  # leading zeros are left out
        return table

    def draw_masks(self, refused: BoolArray) -> list[mpz]:
        """Plaintexts to add: a fresh random number in refused slots, 0 in others.

        Parameters
        ----------
        refused : array of bool, shape (plaintexts, slots)

        Raises
        ------
        ValueError
            The layout has no spare bits.
        """
        if self.spare_bits < 1:
            raise ValueError("slots without spare bits cannot be masked")
        bits = self.slot_bits - 2
        slots = [[secrets.randbits(bits) if flag else 0 for flag in row] for row in refused]
        return self._join(slots, offset=0)
