"""Sums of a tree level on their way: an owner's share, the total, and what is read from it.

Sums have the shape (1 + candidates, nodes, 2): the nodes' full sums first, then the candidates of
one source in the level's order. `PaillierSums` protects them; `PlainSums` is a baseline for
experiments and protects nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.buckets import BoolArray
from tasks.vertical_xgboost.candidates import IntpArray
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.fixed_point import IntArray
from tasks.vertical_xgboost.gains import impossible_sums
from tasks.vertical_xgboost.paillier.ciphertexts import Ciphertexts
from tasks.vertical_xgboost.paillier.engine import Engine, engine_named
from tasks.vertical_xgboost.paillier.keys import PaillierFault, PrivateKey, PublicKey
from tasks.vertical_xgboost.paillier.level_packing import LevelPacking
from tasks.vertical_xgboost.paillier.packing import MASK_SPARE_BITS, SlotLayout
from tasks.vertical_xgboost.stopwatch import Stopwatch


@dataclass(frozen=True)
class LevelShape:
    """Size of what is summed: candidates of one source, and open nodes."""

    candidates: int
    nodes: int

    @property
    def sums(self) -> tuple[int, int, int]:
        """Shape of the sums, full sums included."""
        return 1 + self.candidates, self.nodes, 2


def places_of(order: IntpArray) -> IntpArray:
    """The order of an array of sums, in which the full sums stay first."""
    return np.concatenate([[0], 1 + order]).astype(np.intp)


class ProtectedSums(ABC):
    """How sums travel from label owners over the aggregator to a split client.

    Parameters
    ----------
    watch : Stopwatch
        Told how long operations take.
    """

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch

    @abstractmethod
    def share(
        self, sums: IntArray, *, rows: int, key: PublicKey | PrivateKey | None, single: bool
    ) -> bytes:
        """What an owner sends of its sums.

        Parameters
        ----------
        sums : (1 + candidates, nodes, 2) int64
        rows : int
            Own training rows.
        key : PublicKey or PrivateKey or None
            Of the split client; its own private one if the owner is that.
        single : bool
            Each candidate by itself, since the owner does not know the level's order.
        """

    @abstractmethod
    def total(
        self,
        shares: Mapping[int, bytes],
        shape: LevelShape,
        *,
        names: Sequence[str],
        key: PublicKey | None,
        single: int | None,
        order: IntpArray,
        refused: BoolArray | None = None,
        rerandomise: bool = False,
    ) -> bytes:
        """Add up all owners' shares without reading them.

        Parameters
        ----------
        shares : mapping of owner's place to bytes
        shape : LevelShape
        names : sequence of str
            Of owners by place, for what is said of malformed shares.
        key : PublicKey or None
            Of the split client.
        single : int or None
            Owner whose candidates came by themselves, in the source's numbering.
        order : (candidates,) intp
            Number of the candidate at each place of the level's order.
        refused : (1 + candidates, nodes) bool, optional
            In the level's order: hidden under a random number.
        rerandomise : bool
            Whether the aggregator knows one of the shares from inside.
        """

    @abstractmethod
    def read(
        self,
        total: bytes,
        shape: LevelShape,
        *,
        key: PrivateKey | None,
        sender: str,
        refused: BoolArray | None = None,
    ) -> IntArray:
        """Decrypt a total: (1 + candidates, nodes, 2) int64, 0 where refused.

        Parameters
        ----------
        total : bytes
        shape : LevelShape
        key : PrivateKey or None
        sender : str
            Who added it up, for what is said of a malformed one.
        refused : (1 + candidates, nodes) bool, optional

        Raises
        ------
        SiteFault
            If it is malformed, or as `impossible_sums`.
        """

    @abstractmethod
    def count(self, shape: LevelShape, *, single: bool) -> int:
        """Ciphertexts of a share (of a total: not single)."""


class PaillierSums(ProtectedSums):
    """Packed under Paillier's cryptosystem.

    Parameters
    ----------
    layout : SlotLayout
    engine : Engine
    watch : Stopwatch
    """

    def __init__(self, layout: SlotLayout, engine: Engine, watch: Stopwatch) -> None:
        super().__init__(watch)
        self.layout = layout
        self.engine = engine

    def share(
        self, sums: IntArray, *, rows: int, key: PublicKey | PrivateKey | None, single: bool
    ) -> bytes:
        """Pack and encrypt; see `ProtectedSums.share`."""
        assert key is not None, "Paillier needs a key"
        packing = LevelPacking(self.layout, sums.shape[0], sums.shape[1])
        packed = (packing.pack_single if single else packing.pack)(sums, rows=rows)
        with self.watch.measure("encrypt-own" if isinstance(key, PrivateKey) else "encrypt"):
            return self.engine.encrypt(key, packed).to_bytes()

    def total(
        self,
        shares: Mapping[int, bytes],
        shape: LevelShape,
        *,
        names: Sequence[str],
        key: PublicKey | None,
        single: int | None,
        order: IntpArray,
        refused: BoolArray | None = None,
        rerandomise: bool = False,
    ) -> bytes:
        """Check, fold, add; see `ProtectedSums.total`."""
        assert key is not None, "Paillier needs a key"
        packing = self._packing(shape)
        parts = []
        for owner, data in shares.items():
            alone = owner == single
            with self.watch.measure("check"):
                part = Ciphertexts.from_bytes(
                    data,
                    key=key,
                    count=packing.num_single if alone else packing.num_shared,
                    sender=names[owner],
                )
            if alone:
                with self.watch.measure("fold"):
                    part = packing.fold(self.engine, part, order=places_of(order).tolist())
            parts.append(part)
        if refused is not None and refused.any():
            with self.watch.measure("mask"):
                parts.append(self.engine.encrypt(key, packing.draw_masks(refused)))
        with self.watch.measure("add"):
            total = self.engine.add(*parts)
        if rerandomise:
            with self.watch.measure("rerandomise"):
                total = self.engine.rerandomise(total)
        return total.to_bytes()

    def read(
        self,
        total: bytes,
        shape: LevelShape,
        *,
        key: PrivateKey | None,
        sender: str,
        refused: BoolArray | None = None,
    ) -> IntArray:
        """Decrypt and unpack; see `ProtectedSums.read`."""
        assert key is not None, "Paillier needs a key"
        packing = self._packing(shape)
        found = Ciphertexts.from_bytes(
            total, key=key.public, count=packing.num_shared, sender=sender
        )
        with self.watch.measure("decrypt"):
            plain = self.engine.decrypt(key, found)
        try:
            return packing.unpack(plain, refused=refused)
        except PaillierFault:
            raise impossible_sums() from None

    def count(self, shape: LevelShape, *, single: bool) -> int:
        """Ciphertexts of a share; see `ProtectedSums.count`."""
        packing = self._packing(shape)
        return packing.num_single if single else packing.num_shared

    def _packing(self, shape: LevelShape) -> LevelPacking:
        return LevelPacking(self.layout, 1 + shape.candidates, shape.nodes)


class PlainSums(ProtectedSums):
    """Sums in clear: whoever adds them reads them."""

    def share(
        self, sums: IntArray, *, rows: int, key: PublicKey | PrivateKey | None, single: bool
    ) -> bytes:
        """Write the numbers down; see `ProtectedSums.share`."""
        return sums.astype("<i8").tobytes()

    def total(
        self,
        shares: Mapping[int, bytes],
        shape: LevelShape,
        *,
        names: Sequence[str],
        key: PublicKey | None,
        single: int | None,
        order: IntpArray,
        refused: BoolArray | None = None,
        rerandomise: bool = False,
    ) -> bytes:
        """Sort and add; see `ProtectedSums.total`."""
        total = np.zeros(shape.sums, dtype=np.int64)
        for owner, data in shares.items():
            sums = _numbers(data, shape, sender=names[owner])
            total += sums[places_of(order)] if owner == single else sums
        if refused is not None:
            total[refused] = 0
        return total.astype("<i8").tobytes()

    def read(
        self,
        total: bytes,
        shape: LevelShape,
        *,
        key: PrivateKey | None,
        sender: str,
        refused: BoolArray | None = None,
    ) -> IntArray:
        """Read the numbers; see `ProtectedSums.read`."""
        return _numbers(total, shape, sender=sender)

    def count(self, shape: LevelShape, *, single: bool) -> int:
        """0: nothing is encrypted."""
        return 0


def protected_sums(
    config: VerticalXGBoostConfig, *, num_training: int, watch: Stopwatch
) -> ProtectedSums:
    """The way of sums that a configuration names.

    Parameters
    ----------
    config : VerticalXGBoostConfig
    num_training : int
        Training rows of all owners.
    watch : Stopwatch
    """
    if config.encryption == "none":
        return PlainSums(watch)
    layout = SlotLayout(
        rows=num_training,
        row_bound=1 << config.fixed_point_bits,
        key_bits=config.key_bits,
        spare_bits=MASK_SPARE_BITS if config.has_refusals else 0,
    )
    return PaillierSums(layout, engine_named(config.engine), watch)


def _numbers(data: bytes, shape: LevelShape, *, sender: str) -> IntArray:
    rows, nodes, pair = shape.sums
    if len(data) != 8 * rows * nodes * pair:
        expected = 8 * rows * nodes * pair
        raise SiteFault("bad-sums", f"{sender}: {len(data)} bytes of sums; expected: {expected}")
    return np.frombuffer(data, dtype="<i8").reshape(shape.sums).astype(np.int64)
