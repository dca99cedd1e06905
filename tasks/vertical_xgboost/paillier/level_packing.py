"""Where the sums of a tree level stand in plaintexts.

A level's sums have the shape (candidates, nodes, 2), the last axis g and h. A plaintext holds the
nodes of as many consecutive candidates as fit. Those who know the level's secret order pack in it.
The one who may not know it packs each candidate by itself, and the aggregator, who knows the
order, sorts those ciphertexts and folds them (`Engine.fold`), which gives the same layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from gmpy2 import mpz

from tasks.vertical_xgboost.paillier.ciphertexts import Ciphertexts
from tasks.vertical_xgboost.paillier.engine import Engine
from tasks.vertical_xgboost.paillier.keys import PaillierFault
from tasks.vertical_xgboost.paillier.packing import BoolArray, IntArray, SlotLayout


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
