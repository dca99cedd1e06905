"""A party's training state as arrays, compact enough to travel with every message of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tasks.vertical_xgboost.buckets import FeatureBuckets
from tasks.vertical_xgboost.candidates import Candidate, CandidateLayout
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.fixed_point import FloatArray
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.party import KnownSplit, KnownTree, OwnColumns, Party
from tasks.vertical_xgboost.sampling import Sampling
from tasks.vertical_xgboost.tree import GrowingTree, LookupTable, Record, children_of

Arrays = Mapping[str, NDArray[np.generic]]


def columns_to_arrays(own: OwnColumns) -> dict[str, NDArray[np.generic]]:
    """A source's thresholds and numbering."""
    thresholds = [feature.thresholds for feature in own.buckets]
    return {
        "thresholds": np.concatenate([*thresholds, np.empty(0, dtype=np.float32)]),
        "num-thresholds": np.array([len(each) for each in thresholds], dtype=np.int32),
        "own-missing": np.array([each.has_missing for each in own.buckets], dtype=np.bool_),
        "column": own.column.astype(np.int32),
    }


def columns_from_arrays(arrays: Arrays) -> OwnColumns:
    """The reverse of `columns_to_arrays`."""
    ends = np.cumsum(arrays["num-thresholds"].astype(np.intp))
    pieces = np.split(arrays["thresholds"].astype(np.float32), ends)[: len(ends)]
    missing = arrays["own-missing"].tolist()
    buckets = tuple(FeatureBuckets(t, bool(m)) for t, m in zip(pieces, missing, strict=True))
    return OwnColumns(buckets, arrays["column"].astype(np.intp))


def party_to_arrays(party: Party) -> dict[str, NDArray[np.generic]]:
    """Everything of a party but the configuration."""
    trees = [*party.finished, KnownTree(party.tree.splits, party.weights)]
    layouts = party.layouts
    return {
        **columns_to_arrays(party.own),
        "labels": party.labels,
        "is-training": party.is_training,
        "num-features": np.array([la.num_features for la in layouts], dtype=np.int32),
        "num-buckets": np.array([b for la in layouts for b in la.num_buckets], dtype=np.int32),
        "has-missing": np.array([m for la in layouts for m in la.has_missing], dtype=np.bool_),
        "maps": np.concatenate(party.maps, axis=0),
        "margins": party.margins,
        "nodes": party.nodes,
        "open-nodes": np.array(party.tree.open_nodes, dtype=np.int32),
        "level": np.array(party.level, dtype=np.int32),
        "numbers": np.array(
            [
                party.place,
                party.scales.row_exponent,
                party.tree.depth,
                party.tree.num_nodes,
                len(party.finished),
            ],
            dtype=np.int64,
        ),
        "base-margins": np.array(party.base_margins),
        "weight-exponent": np.array([party.scales.weight.exponent], dtype=np.int32),
        **weights_to_arrays(party.row_weights),
        **sampling_to_arrays(party.sampling),
        "records": np.array(
            [[r.column, r.threshold, r.missing_left] for r in party.lookup.records],
            dtype=np.float64,
        ).reshape(-1, 3),
        **trees_to_arrays(trees),
    }


def party_from_arrays(arrays: Arrays, config: VerticalXGBoostConfig) -> Party:
    """The reverse of `party_to_arrays`."""
    place, exponent, depth, num_nodes, num_finished = map(int, arrays["numbers"].tolist())
    ends = np.cumsum(arrays["num-features"].astype(np.intp))[:-1]
    layouts = tuple(
        CandidateLayout(tuple(map(int, buckets.tolist())), tuple(map(bool, missing.tolist())))
        for buckets, missing in zip(
            np.split(arrays["num-buckets"], ends),
            np.split(arrays["has-missing"], ends),
            strict=True,
        )
    )
    *finished, growing = trees_from_arrays(arrays, num_trees=num_finished + 1)
    base_margins = tuple(map(float, arrays["base-margins"].tolist()))
    tree: GrowingTree[KnownSplit] = GrowingTree(config.max_depth, len(base_margins))
    tree.splits, tree.depth, tree.num_nodes = growing.splits, depth, num_nodes
    tree.children = children_of(growing.splits, tree.num_roots)
    tree.open_nodes = list(map(int, arrays["open-nodes"].tolist()))
    records = [Record(int(c), float(t), bool(m)) for c, t, m in arrays["records"].tolist()]
    return Party(
        config=config,
        place=place,
        own=columns_from_arrays(arrays),
        labels=arrays["labels"].astype(np.float64),
        is_training=arrays["is-training"].astype(np.bool_),
        layouts=layouts,
        maps=tuple(np.split(arrays["maps"].astype(np.uint8), ends)),
        scales=objective_of(config).scales(
            exponent,
            bits=config.fixed_point_bits,
            weight_exponent=int(arrays["weight-exponent"][0]),
        ),
        base_margins=base_margins,
        margins=arrays["margins"].astype(np.float64),
        nodes=arrays["nodes"].astype(np.int32),
        tree=tree,
        level=list(map(int, arrays["level"].tolist())),
        weights=growing.weights,
        finished=finished,
        lookup=LookupTable(records),
        sampling=sampling_from_arrays(arrays),
        row_weights=weights_from_arrays(arrays),
    )


def weights_to_arrays(weights: FloatArray | None) -> dict[str, NDArray[np.generic]]:
    """Weights of own rows, where they have some."""
    return {} if weights is None else {"row-weights": weights}


def weights_from_arrays(arrays: Arrays) -> FloatArray | None:
    """The reverse of `weights_to_arrays`."""
    return arrays["row-weights"].astype(np.float64) if "row-weights" in arrays else None


def sampling_to_arrays(sampling: Sampling) -> dict[str, NDArray[np.generic]]:
    """What draws of rows and columns depend on."""
    return {
        "sampling": np.array(
            [sampling.seed, sampling.num_rows, sampling.trees_before], dtype=np.int64
        ),
        "training-places": sampling.places,
        "num-ranks": np.array([len(each) for each in sampling.ranks], dtype=np.int32),
        "ranks": np.concatenate([*sampling.ranks, np.empty(0, dtype=np.int32)]),
    }


def sampling_from_arrays(arrays: Arrays) -> Sampling:
    """The reverse of `sampling_to_arrays`."""
    seed, num_rows, before = map(int, arrays["sampling"].tolist())
    ends = np.cumsum(arrays["num-ranks"].astype(np.intp))
    ranks = np.split(arrays["ranks"].astype(np.int32), ends)[: len(ends)]
    places = arrays["training-places"].astype(np.int32)
    return Sampling(seed, num_rows, places, tuple(ranks), before)


def trees_to_arrays(trees: Sequence[KnownTree]) -> dict[str, NDArray[np.generic]]:
    """Splits and leaves of trees, a row each."""
    splits = [
        [
            at,
            node,
            s.source,
            s.candidate.feature,
            s.candidate.bucket,
            s.candidate.missing_left,
            s.record,
        ]
        for at, tree in enumerate(trees)
        for node, s in tree.splits.items()
    ]
    leaves = [(at, node, w) for at, tree in enumerate(trees) for node, w in tree.weights.items()]
    return {
        "splits": np.array(splits, dtype=np.int32).reshape(-1, 7),
        "leaves": np.array([row[:2] for row in leaves], dtype=np.int32).reshape(-1, 2),
        "weights": np.array([row[2] for row in leaves], dtype=np.float64),
        "covers": np.array([trees[at].covers.get(node, np.nan) for at, node, _ in leaves]),
    }


def trees_from_arrays(arrays: Arrays, *, num_trees: int) -> list[KnownTree]:
    """The reverse of `trees_to_arrays`."""
    trees = [KnownTree({}, {}) for _ in range(num_trees)]
    for at, node, source, feature, bucket, left, record in arrays["splits"].tolist():
        candidate = Candidate(feature, bucket, bool(left))
        trees[at].splits[node] = KnownSplit(source, candidate, record)
    covers = arrays["covers"].tolist()
    for (at, node), weight, cover in zip(
        arrays["leaves"].tolist(), arrays["weights"].tolist(), covers, strict=True
    ):
        trees[at].weights[node] = weight
        if not np.isnan(cover):  # of a finished tree
            trees[at].covers[node] = cover
    return trees
