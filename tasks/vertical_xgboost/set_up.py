"""A party's part of the set-up: whose labels are whose, base score, renumbered bucket maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tasks.secure.transcript import decode, encode
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.buckets import BoolArray, BucketMap, bucket_columns
from tasks.vertical_xgboost.candidates import CandidateLayout
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.fixed_point import FixedPointScale, FloatArray, IntArray
from tasks.vertical_xgboost.labels import check_ownership
from tasks.vertical_xgboost.leaves import base_layer
from tasks.vertical_xgboost.model_part import ModelPart
from tasks.vertical_xgboost.objectives import label_scale, objective_of
from tasks.vertical_xgboost.party import OwnColumns, Party
from tasks.vertical_xgboost.party_arrays import (
    columns_from_arrays,
    sampling_from_arrays,
    weights_from_arrays,
)
from tasks.vertical_xgboost.routing import num_records, pack, unpack
from tasks.vertical_xgboost.rows import PartyTable
from tasks.vertical_xgboost.secret_order import secret_permutation
from tasks.vertical_xgboost.tree import GrowingTree, on_roots

_MAP = "fedapp/bucket-map/1"


def label_sums(
    table: PartyTable,
    config: VerticalXGBoostConfig,
    *,
    label_exponent: int,
    weight_exponent: int = 0,
) -> IntArray:
    """What a party adds to the masked sums of the labels.

    Returns
    -------
    (sums + 2,) or (sums + 4,) int64
        Sums of its training labels (`Objective.label_sums`; 0 where the base score is known),
        training rows and rows whose labels it owns; where rows have weights, in front of that the
        sums of the weights of training and of evaluation rows.

    Raises
    ------
    SiteFault
        ``"outside-bound"`` or ``"too-many-rows"``.
    """
    own = table.owns
    training = own & ~table.is_evaluation
    objective = objective_of(config)
    sums = [0] * objective.num_roots
    if config.sums_labels:
        scale = label_scale([label_exponent], config, weight_exponent=weight_exponent)
        scale.bound_of_sum(len(table.ids))
        own_weights = None if table.weights is None else table.weights[training]
        sums = objective.label_sums(table.labels[training], scale, weights=own_weights)
    weights = []
    if table.weights is not None:
        whole = FixedPointScale(config.fixed_point_bits, weight_exponent)
        whole.bound_of_sum(len(table.ids))
        rows = (training, own & table.is_evaluation)
        weights = [int(whole.encode(table.weights[each]).sum()) for each in rows]
    counts = [np.count_nonzero(training), np.count_nonzero(own)]
    return np.array([*weights, *sums, *counts], dtype=np.int64)


def owned_rows(opened: Mapping[str, bytes], num_rows: int) -> dict[str, BoolArray]:
    """Rows whose labels other parties own, from what they sealed; (n,) bool each."""
    found = {}
    for name, data in opened.items():
        if len(data) != -(-num_rows // 8):
            raise SiteFault("bad-request", f"{name}: tells labels of another number of rows")
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=num_rows)
        found[name] = bits.astype(np.bool_)
    return found


def with_digest(owned: bytes, table: PartyTable) -> bytes:
    """Own rows' places behind the digest of all rows, to be sealed: for `check_aligned`."""
    return table.digest() + owned


def check_aligned(opened: Mapping[str, bytes], table: PartyTable) -> dict[str, bytes]:
    """What others sealed of their labels, without the digest of their rows, which must be equal.

    Raises
    ------
    SiteFault
        ``"not-aligned"`` with the names of those who hold other rows.
    """
    own = table.digest()
    other = [name for name, data in opened.items() if data[: len(own)] != own]
    if other:
        raise SiteFault("not-aligned", f"other common rows than here at {', '.join(other)}")
    return {name: data[len(own) :] for name, data in opened.items()}


def check_owners(owners: Mapping[str, BoolArray]) -> None:
    """Refuse rows with labels at two parties, or at none; every party finds the same.

    Raises
    ------
    SiteFault
        ``"bad-labels"`` with the counts.
    """
    check_ownership(np.sum([own.astype(np.intp) for own in owners.values()], axis=0))


def renumbered_columns(
    table: PartyTable, config: VerticalXGBoostConfig
) -> tuple[OwnColumns, BucketMap]:
    """A source's columns in a secret order, and the bucket of every row in it.

    Returns
    -------
    own : OwnColumns
    bucket_map : (p, n) uint8
    """
    found, bucket_map = bucket_columns(table.features, ~table.is_evaluation, max_bin=config.max_bin)
    column = secret_permutation(len(found))
    return OwnColumns(tuple(found[at] for at in column), column), bucket_map[column]


def map_as_bytes(bucket_map: BucketMap, sides: BoolArray) -> bytes:
    """Buckets and sides of rows as they are sealed.

    Never empty, so that padding hides how many rows there are.

    Parameters
    ----------
    bucket_map : (p, n) uint8
    sides : (records, n) bool
        At the sender's splits of the earlier model, if there is one.
    """
    return encode(_MAP, pack(list(sides)), bucket_map.tobytes())


def read_maps(
    opened: Mapping[str, bytes],
    layouts: Sequence[CandidateLayout],
    names: Sequence[str],
    *,
    num_rows: int,
    earlier: ModelPart | None = None,
) -> tuple[dict[str, BucketMap], dict[str, BoolArray]]:
    """Bucket maps of own rows from what sources sealed, and sides at splits of an earlier model.

    Returns
    -------
    maps : dict of str to (features, n) uint8
    sides : dict of str to (records, n) bool

    Raises
    ------
    SiteFault
        ``"bad-request"`` if one does not fit its layout or the earlier model.
    """
    maps, sides = {}, {}
    for name, layout in zip(names, layouts, strict=True):
        if name not in opened:
            continue
        try:
            bits, data = decode(opened[name], _MAP)
        except ValueError:
            raise SiteFault("bad-request", f"{name}: a bucket map of another form") from None
        numbers = np.frombuffer(data, dtype=np.uint8)
        if len(numbers) != layout.num_features * num_rows:
            raise SiteFault("bad-request", f"{name}: a bucket map of another size")
        bucket_map = numbers.reshape(layout.num_features, num_rows)
        most = np.array(layout.num_buckets, dtype=np.int64)
        if bucket_map.size and (bucket_map.astype(np.int64).max(axis=1) > most).any():
            raise SiteFault("bad-request", f"{name}: a bucket map with unknown buckets")
        maps[name] = bucket_map
        records = 0 if earlier is None else num_records(earlier, name)
        sides[name] = unpack(bits, records, num_rows, sender=name)
    return maps, sides


def new_party(
    arrays: Mapping[str, NDArray[np.generic]],
    config: VerticalXGBoostConfig,
    *,
    place: int,
    layouts: tuple[CandidateLayout, ...],
    maps: Mapping[str, BucketMap],
    gradient_exponent: int,
    weight_exponent: int = 0,
    ranks: Sequence[Sequence[int]] = (),
    margins: FloatArray | None = None,
) -> Party:
    """A party in front of its first tree.

    Parameters
    ----------
    arrays : mapping
        What the party kept at step ``buckets``.
    config : VerticalXGBoostConfig
    place : int
        Of the party among all.
    layouts : tuple of CandidateLayout
    maps : mapping of str to (features, n) uint8
        Of the other sources, by name.
    gradient_exponent, weight_exponent : int
        Of the bounds of all gradients without weights, and of all weights.
    ranks : sequence of sequence of int
        Of all sources' features, where columns are sampled.
    margins : (roots, n) float64, optional
        Of own rows under the trees of an earlier model.
    """
    labels = arrays["labels"].astype(np.float64)
    others = [maps[name] for name in sorted(maps)]
    own_map = arrays["own-map"].astype(np.uint8)
    base_margins = arrays["base-margins"].astype(np.float64)
    return Party(
        config=config,
        place=place,
        own=columns_from_arrays(arrays),
        labels=labels,
        is_training=arrays["is-training"].astype(np.bool_),
        layouts=layouts,
        maps=(*others[:place], own_map, *others[place:]),
        scales=objective_of(config).scales(
            gradient_exponent, bits=config.fixed_point_bits, weight_exponent=weight_exponent
        ),
        row_weights=weights_from_arrays(arrays),
        base_margins=tuple(base_margins.tolist()),
        margins=base_layer(base_margins, len(labels)) if margins is None else margins,
        nodes=on_roots(len(base_margins), len(labels)),
        tree=GrowingTree(config.max_depth, len(base_margins)),
        sampling=replace(
            sampling_from_arrays(arrays),
            ranks=tuple(np.array(each, dtype=np.int32) for each in ranks),
        ),
    )
