"""How rows find their leaves where each split's owner alone knows the side: mathematics only.

Either the asker hears all sides of its rows and routes by itself, or rows are handed on level by
level from the owner of a split to the owners of its children, all trees at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.buckets import BoolArray, Float32Array
from tasks.vertical_xgboost.fixed_point import FloatArray
from tasks.vertical_xgboost.leaves import add_leaves, base_layer
from tasks.vertical_xgboost.model_part import ModelPart
from tasks.vertical_xgboost.part_tree import PartTree
from tasks.vertical_xgboost.poisson import exponential
from tasks.vertical_xgboost.rows import PartyTable
from tasks.vertical_xgboost.softmax import probabilities
from tasks.vertical_xgboost.tree import move_down, on_roots


def features_of(part: ModelPart, table: PartyTable) -> Float32Array:
    """Columns of a table in the order of the part's features, (n, p) float32.

    Raises
    ------
    SiteFault
        ``"unknown-column"``; features are told by position, since names are the party's own.
    """
    at = {name: place for place, name in enumerate(table.feature_names)}
    missing = [str(n) for n, name in enumerate(part.feature_names, start=1) if name not in at]
    if missing:
        raise SiteFault(
            "unknown-column",
            f"of the {len(part.feature_names)} features of this party's part of the model, "
            f"{len(missing)} are no columns of its rows (feature {', '.join(missing[:5])})",
        )
    return table.features[:, [at[name] for name in part.feature_names]]


def own_sides(part: ModelPart, features: Float32Array) -> BoolArray:
    """Whether rows go left at each of the party's own splits, (records, n) bool."""
    sides = np.empty((len(part.lookup.records), len(features)), dtype=np.bool_)
    for at, record in enumerate(part.lookup.records):
        sides[at] = record.goes_left(features)
    return sides


def num_records(part: ModelPart, source: str) -> int:
    """Splits of a source in the model."""
    return sum(split.source == source for tree in part.trees for split in tree.splits.values())


def margins_by_sides(part: ModelPart, sides: Mapping[str, BoolArray], num_rows: int) -> FloatArray:
    """Margins of rows whose sides are known at every split, (roots, n).

    Added up tree after tree, as in the training: equal to its margins to the last bit.

    Parameters
    ----------
    part : ModelPart
        Of any party: shape and weights.
    sides : mapping of source to (records, n) bool
    num_rows : int
    """
    margins = base_layer(part.base_margins, num_rows)
    for tree in part.trees:
        nodes = on_roots(tree.num_roots, num_rows)
        for node in sorted(tree.splits):  # a parent's number is below its children's
            split = tree.splits[node]
            left = sides[split.source][split.record]
            move_down(nodes[tree.roots[node]], node, tree.children[node], left)
        add_leaves(margins, nodes, tree.weights, eta=part.eta)
    return margins


def single_leaves(part: ModelPart) -> FloatArray:
    """What trees without a split add to every row, (roots,)."""
    added = np.zeros(part.num_roots)
    for tree in part.trees:
        for root in range(part.num_roots):
            added[root] += part.eta * tree.weights.get(root, 0.0)
    return added


def num_levels(part: ModelPart) -> int:
    """Steps in which rows are handed on: the model's depth, and one more to tellers of leaves.

    Without noise the source above a leaf adds its weight, and none is more.
    """
    return part.depth + (part.has_noise and part.depth > 0)


def num_steps(levels: int, *, routed: bool, has_asker: bool) -> int:
    """Exchanges between the introduction and the one in which askers hear the rest.

    Without an asker the label owners ask, and first tell one another whose rows are whose.

    Parameters
    ----------
    levels : int
        As `num_levels` has it.
    routed, has_asker : bool
    """
    least = 1 if has_asker else 2
    return max(levels, least) if routed else least


def response(margins: FloatArray, objective: str) -> FloatArray:
    """Predictions on the scale of the labels, in the shape of the margins.

    Probabilities for ``binary:logistic`` (of class 1) and ``multi:softprob`` (of each class),
    rates for ``count:poisson``.

    Raises
    ------
    SiteFault
        ``"bad-model-part"`` for an objective that this version does not know.
    """
    if objective == "binary:logistic":
        return np.asarray(expit(margins), dtype=np.float64)
    if objective == "multi:softprob":
        return probabilities(margins)
    if objective == "reg:squarederror":
        return margins
    if objective == "count:poisson":
        return exponential(margins)
    raise SiteFault("bad-model-part", f'objective "{objective}": not known to this version')


Place = tuple[int, int]
"""A node: number of the tree (of a round) from 0, and of the node in it."""


@dataclass(frozen=True, eq=False)
class Wave:
    """One party's rows on their way down.

    Parameters
    ----------
    part : ModelPart
    sums : (roots, n) float64
        Weights times eta of the leaves that rows have reached below the party's own splits.
    arrived : mapping of Place to (n,) bool
        Rows at the splits of this level that are the party's own, and at leaves that it tells.
    """

    part: ModelPart
    sums: FloatArray
    arrived: Mapping[Place, BoolArray]

    @classmethod
    def start(cls, part: ModelPart, num_rows: int) -> Wave:
        """All rows at all roots that are the party's own."""
        roots = [
            (at, root)
            for at, tree in enumerate(part.trees)
            for root in range(part.num_roots)
            if _owner(part, tree, root) == part.name
        ]
        every = np.ones(num_rows, dtype=np.bool_)
        return cls(part, np.zeros((part.num_roots, num_rows)), dict.fromkeys(roots, every))

    def step(self, sides: BoolArray) -> tuple[Wave, dict[str, list[BoolArray]]]:
        """Move rows one level down.

        Parameters
        ----------
        sides : (records, n) bool
            Of the party's own splits.

        Returns
        -------
        wave : Wave
            With the rows that are at own splits again.
        handed_on : dict of str to list of (n,) bool
            Rows for other owners, in the order of `expected`.
        """
        part, sums = self.part, self.sums.copy()
        arrived: dict[Place, BoolArray] = {}
        handed_on: dict[str, dict[Place, BoolArray]] = {}
        for (at, node), rows in self.arrived.items():
            tree = part.trees[at]
            if node in tree.weights:
                sums[tree.roots[node], rows] += part.eta * tree.weights[node]
                continue
            left = sides[tree.splits[node].record]
            for child, here in zip(tree.children[node], (rows & left, rows & ~left), strict=True):
                owner = _owner(part, tree, child)
                if owner != part.name:
                    handed_on.setdefault(owner, {})[at, child] = here
                elif child in tree.weights:
                    sums[tree.roots[child], here] += part.eta * tree.weights[child]
                else:
                    arrived[at, child] = here
        ordered = {to: [found[at] for at in sorted(found)] for to, found in handed_on.items()}
        return Wave(part, sums, arrived), ordered

    def with_arrived(self, arrived: Mapping[Place, BoolArray]) -> Wave:
        """With rows that others handed on."""
        return Wave(self.part, self.sums, {**self.arrived, **arrived})


def expected(part: ModelPart, sender: str, receiver: str, *, depth: int) -> list[Place]:
    """Nodes of the receiver at a depth whose rows the sender, another party, hands on, in order."""
    return [
        (at, node)
        for at, tree in enumerate(part.trees)
        for node in sorted(tree.depths)
        if tree.depths[node] == depth
        and tree.sources.get(node) == sender
        and _owner(part, tree, node) == receiver
    ]


def pack(rows: Sequence[BoolArray]) -> bytes:
    """Flags of rows as bits, one array after the other."""
    return b"".join(np.packbits(each).tobytes() for each in rows)


def unpack(data: bytes, count: int, num_rows: int, *, sender: str) -> BoolArray:
    """The reverse of `pack`, (count, n) bool; SiteFault ``"bad-request"`` for another size."""
    width = -(-num_rows // 8)
    if len(data) != count * width:
        raise SiteFault("bad-request", f"{sender}: tells of another number of rows or splits")
    packed = np.frombuffer(data, dtype=np.uint8).reshape(count, width)
    return np.unpackbits(packed, axis=1, count=num_rows).astype(np.bool_)


def _owner(part: ModelPart, tree: PartTree, node: int) -> str:
    """Whose a split is, or who tells a leaf: with noise a party that has the exact weight."""
    split = tree.splits.get(node)
    if split is not None:
        return split.source
    source = tree.sources.get(node, "")
    if not source or not part.has_noise:
        return source
    return part.names[(part.names.index(source) + 1) % len(part.names)]
