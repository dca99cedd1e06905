"""Many signed sums in one plaintext, and the layout of a tree level.

A sum of gradients or Hessians is a whole number (fixed point, 2^-f units) and gets a slot of W
bits, W = ceil(log2(rows g_max 2^f)) + 2. A plaintext is sum_j v_j 2^(W j) over its slots, taken
as one signed number: negative slots borrow from their upper neighbour. That map is linear, so
sums of packed plaintexts are packed sums; and it can be undone as long as every |v_j| < 2^(W-1).
Overflow cannot happen unnoticed: each owner's sums are checked against its own number of rows
before anything is encrypted, and decrypted sums against the number of all rows.

A level's sums have the shape (candidates, nodes, 2), the last axis g and h. A plaintext holds the
nodes of as many consecutive candidates as fit. Those who know the level's secret order pack in it.
The one who may not know it packs each candidate by itself, and the aggregator, who knows the
order, sorts those ciphertexts and folds them (`Engine.fold`), which gives the same layout.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import gmpy2
import numpy as np
import numpy.typing as npt
from gmpy2 import mpz

from tasks.vertical_xgboost.paillier.ciphertexts import Ciphertexts
from tasks.vertical_xgboost.paillier.engine import Engine
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


@dataclass(frozen=True)
class LevelPacking:
    """Where the sums of a level's candidates and nodes stand in plaintexts.

    Parameters
    ----------
    layout : SlotLayout
        Slots.
    candidates : int
        Candidates of one source, whatever stands unshuffled before them (the nodes' full sums)
        included.
    nodes : int
        Open nodes. If more than a plaintext's pairs, they are cut into even chunks.
    """

    layout: SlotLayout
    candidates: int
    nodes: int

    @property
    def chunks(self) -> list[slice]:
        """Nodes of each chunk; chunk by chunk is the order of all plaintexts."""
        count = -(-self.nodes // self.layout.pairs)
        borders = [self.nodes * index // max(count, 1) for index in range(count + 1)]
        return [slice(a, b) for a, b in pairwise(borders)]

    def group(self, chunk: slice) -> int:
        """How many candidates share a plaintext in a chunk."""
        return self.layout.pairs // _width(chunk)

    def shift_bits(self, chunk: slice) -> int:
        """Bits of one candidate in a chunk."""
        return 2 * self.layout.slot_bits * _width(chunk)

    @property
    def num_shared(self) -> int:
        """Plaintexts of an owner who knows the order, and of the total."""
        return sum(-(-self.candidates // self.group(chunk)) for chunk in self.chunks)

    @property
    def num_single(self) -> int:
        """Plaintexts of the one who does not: one a candidate and chunk."""
        return self.candidates * len(self.chunks)

    def pack(self, sums: IntArray, *, rows: int) -> list[mpz]:
        """Pack sums that are in the level's order.

        Parameters
        ----------
        sums : array of int64, shape (candidates, nodes, 2)
            An owner's sums in fixed point.
        rows : int
            Rows that the owner has summed over.

        Returns
        -------
        list of mpz
            `num_shared` signed plaintexts.

        Raises
        ------
        PaillierFault
            ``slot-overflow``; see `SlotLayout.pack`.
        """
        return self._pack(sums, rows=rows, single=False)

    def pack_single(self, sums: IntArray, *, rows: int) -> list[mpz]:
        """Pack each candidate by itself: `num_single` plaintexts; else as `pack`."""
        return self._pack(sums, rows=rows, single=True)

    def _pack(self, sums: IntArray, *, rows: int, single: bool) -> list[mpz]:
        self._check_shape(sums.shape, (self.candidates, self.nodes, 2))
        packed: list[mpz] = []
        for chunk in self.chunks:
            table = sums[:, chunk].reshape(self.candidates, -1)
            packed += self.layout.pack(
                table if single else self._grouped(table, chunk, fill=0), rows=rows
            )
        return packed

    def _grouped(
        self, table: npt.NDArray[np.generic], chunk: slice, *, fill: int
    ) -> npt.NDArray[np.generic]:
        """One line a plaintext from one line a candidate."""
        group = self.group(chunk)
        lines = -(-len(table) // group)
        padded = np.full((lines * group, table.shape[1]), fill, dtype=table.dtype)
        padded[: len(table)] = table
        return padded.reshape(lines, -1)

    def fold(self, engine: Engine, single: Ciphertexts, *, order: Sequence[int]) -> Ciphertexts:
        """Sort single candidates' ciphertexts into the level's order and fold them.

        Parameters
        ----------
        engine : Engine
            Does it without the key.
        single : Ciphertexts
            Encrypted `pack_single`: chunk by chunk, in the owner's own order of candidates.
        order : sequence of int
            Own number of the candidate that stands at each place of the level's order.

        Returns
        -------
        Ciphertexts
            `num_shared` of them, to be added to the other owners'.

        Raises
        ------
        PaillierFault
            ``ciphertext-count``.
        """
        if len(single) != self.num_single:
            raise PaillierFault(
                "ciphertext-count",
                f"{len(single)} ciphertexts of single candidates; expected: {self.num_single}",
            )
        if sorted(order) != list(range(self.candidates)):
            raise ValueError("order must be a permutation of the candidates")
        folded: tuple[mpz, ...] = ()
        for index, chunk in enumerate(self.chunks):
            sorted_ones = single.take(index * self.candidates + own for own in order)
            folded += engine.fold(
                sorted_ones, group=self.group(chunk), shift_bits=self.shift_bits(chunk)
            ).values
        return Ciphertexts(single.key, folded)

    def draw_masks(self, refused: BoolArray) -> list[mpz]:
        """Plaintexts that hide the sums of refused candidates when they are added.

        Parameters
        ----------
        refused : array of bool, shape (candidates, nodes)
            In the level's order.

        Returns
        -------
        list of mpz
            `num_shared` plaintexts. To be encrypted and added once to the total, by somebody
            other than the one who decrypts.
        """
        self._check_shape(refused.shape, (self.candidates, self.nodes))
        pairs = np.repeat(np.asarray(refused, dtype=np.bool_), 2, axis=1)
        masks: list[mpz] = []
        for chunk in self.chunks:
            table = pairs[:, 2 * chunk.start : 2 * chunk.stop]
            grouped = self._grouped(table, chunk, fill=0).astype(np.bool_)
            masks += self.layout.draw_masks(grouped)
        return masks

    def unpack(self, plaintexts: Sequence[int], *, refused: BoolArray | None = None) -> IntArray:
        """Sums of all owners from the decrypted totals.

        Parameters
        ----------
        plaintexts : sequence of int
            `num_shared` signed numbers.
        refused : array of bool, shape (candidates, nodes), optional
            Masked ones, given as 0.

        Returns
        -------
        array of int64, shape (candidates, nodes, 2)

        Raises
        ------
        PaillierFault
            ``ciphertext-count``, or ``slot-overflow``: a sum beyond the bound of all rows, so
            some owner did not keep to the protocol.
        """
        if len(plaintexts) != self.num_shared:
            raise PaillierFault(
                "ciphertext-count", f"{len(plaintexts)} totals; expected: {self.num_shared}"
            )
        sums = np.empty((self.candidates, self.nodes, 2), dtype=np.int64)
        bound, start = self.layout.sum_bound, 0
        for chunk in self.chunks:
            group, width = self.group(chunk), _width(chunk)
            stop = start - (-self.candidates // group)
            split = self.layout.split(plaintexts[start:stop], slots=2 * group * width)
            wide = np.array(split, dtype=object).reshape(-1, width, 2)
            if np.any(wide[self.candidates :]):
                raise PaillierFault("slot-overflow", "a slot that must be empty is not")
            wide = wide[: self.candidates]
            if refused is not None:
                wide[refused[:, chunk]] = 0
            if np.any(wide > bound) or np.any(wide < -bound):
                raise PaillierFault(
                    "slot-overflow", f"a sum is larger than {self.layout.rows} rows can make it"
                )
            sums[:, chunk], start = wide.astype(np.int64), stop
        return sums

    @staticmethod
    def _check_shape(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if shape != expected:
            raise ValueError(f"shape {shape}; expected: {expected}")


def _width(chunk: slice) -> int:
    return int(chunk.stop) - int(chunk.start)
