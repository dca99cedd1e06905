"""A tree as it grows, as the server knows it, and as the owner of a split knows it.

A round of boosting adds one tree for each margin of a row: one, or one a class. The trees of a
round grow together, as one with as many roots, and are called a tree here. Nodes are numbered alike
by everybody: root r is r, and the children of a level's splits take the next numbers in the order
of their parents, left before right. A row is on one node below each root. A level is what is
decided together: all open nodes, unless the server leaves some for later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tasks.vertical_xgboost.buckets import BoolArray, FeatureBuckets, Float32Array
from tasks.vertical_xgboost.candidates import Candidate

NodeArray = NDArray[np.int32]
S = TypeVar("S")


class GrowingTree(Generic[S]):
    """The shape of a tree while levels are added, with what is known of each split.

    Parameters
    ----------
    max_depth : int
        Levels of splits, 0 or more.
    num_roots : int
        Margins of a row, 1 or more.

    Attributes
    ----------
    splits : dict of int to S
        What is known of each split node, by its number, in the order in which they were split.
    children : dict of int to (int, int)
        Left and right child of each split node.
    open_nodes : list of int
        Nodes that wait for a decision, ascending; empty when the tree is done.
    depth : int
        Levels that were added.
    """

    def __init__(self, max_depth: int, num_roots: int) -> None:
        self.max_depth = max_depth
        self.num_roots = num_roots
        self.splits: dict[int, S] = {}
        self.children: dict[int, tuple[int, int]] = {}
        self.depth = 0
        self.num_nodes = num_roots
        self.open_nodes = list(range(num_roots))

    @property
    def roots(self) -> dict[int, int]:
        """Root above each node."""
        return roots_of(self.children, self.num_roots)

    def are_last(self, nodes: Sequence[int]) -> list[bool]:
        """Whether children of each of these nodes are leaves in any case."""
        depths = depths_of(self.children, self.num_roots)
        return [depths[node] + 1 >= self.max_depth for node in nodes]

    @property
    def leaves(self) -> list[int]:
        """Nodes that are not split and no longer open, ascending."""
        undecided = set(self.open_nodes)
        return [n for n in range(self.num_nodes) if n not in self.splits and n not in undecided]

    def grow(self, decisions: Sequence[S | None], nodes: Sequence[int] | None = None) -> None:
        """Add a level.

        Parameters
        ----------
        decisions : sequence
            For each of the nodes its split, or None for a leaf.
        nodes : sequence of int, optional
            Open nodes, ascending; all if not given.

        Raises
        ------
        ValueError
            If they are not one a node, or splits of a tree of depth 0.
        """
        level = self.open_nodes if nodes is None else nodes
        still_open = set(self.open_nodes) - set(level)
        for node, split, is_last in zip(level, decisions, self.are_last(level), strict=True):
            if split is None:
                continue
            if not self.max_depth:
                raise ValueError("a tree of depth 0 has no splits")
            self.splits[node] = split
            self.children[node] = (self.num_nodes, self.num_nodes + 1)
            still_open |= set() if is_last else set(self.children[node])
            self.num_nodes += 2
        self.depth += 1
        self.open_nodes = sorted(still_open)


def children_of(splits: Iterable[int], num_roots: int) -> dict[int, tuple[int, int]]:
    """Children of each split node: numbers are given in the order in which nodes are split."""
    first = num_roots
    return {node: (first + 2 * at, first + 2 * at + 1) for at, node in enumerate(splits)}


def roots_of(children: Mapping[int, tuple[int, int]], num_roots: int) -> dict[int, int]:
    """Root above each node, itself above a root; `children` in the order of splits."""
    roots = {root: root for root in range(num_roots)}
    for parent, pair in children.items():
        roots |= dict.fromkeys(pair, roots[parent])
    return roots


def depths_of(children: Mapping[int, tuple[int, int]], num_roots: int) -> dict[int, int]:
    """Depth of each node, 0 of a root; `children` in the order of splits."""
    depths = dict.fromkeys(range(num_roots), 0)
    for parent, pair in children.items():
        depths |= dict.fromkeys(pair, depths[parent] + 1)
    return depths


def on_roots(num_roots: int, num_rows: int) -> NodeArray:
    """Nodes of rows that no split has moved yet, (roots, n) int32."""
    return np.repeat(np.arange(num_roots, dtype=np.int32)[:, np.newaxis], num_rows, axis=1)


def move_down(nodes: NodeArray, node: int, children: tuple[int, int], left: BoolArray) -> None:
    """Move the rows of a split node to its children, in place.

    Parameters
    ----------
    nodes : (n,) int32
        Node of each row below one root.
    node : int
    children : (int, int)
    left : (n,) bool
        Whether a row goes left; looked at for rows of the node only.
    """
    here = nodes == node
    nodes[here & left] = children[0]
    nodes[here & ~left] = children[1]


@dataclass(frozen=True)
class Record:
    """A split as its source keeps it, in its look-up table.

    Parameters
    ----------
    column : int
        Column in the source's own order.
    threshold : float
        Values below it go left; inf where every value does.
    missing_left : bool
        Side of missing values.
    """

    column: int
    threshold: float
    missing_left: bool

    @classmethod
    def of(cls, candidate: Candidate, buckets: FeatureBuckets, *, column: int) -> Record:
        """Record of a candidate that won.

        Parameters
        ----------
        candidate : Candidate
        buckets : FeatureBuckets
            Of the candidate's feature.
        column : int
            Its column in the source's own order.
        """
        return cls(column, buckets.threshold(candidate.bucket), candidate.missing_left)

    def goes_left(self, features: Float32Array) -> BoolArray:
        """Whether each row of the source's table goes left.

        Parameters
        ----------
        features : (n, p) float32
            NaN where missing.
        """
        values = features[:, self.column]
        left: BoolArray = values < self.threshold
        return left | np.isnan(values) if self.missing_left else left


class LookupTable:
    """Records of the splits that a source won, by record id (counted from 0)."""

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self.records = list(records)

    def enter(self, record: Record) -> int:
        """Keep a record and return its id."""
        self.records.append(record)
        return len(self.records) - 1


@dataclass(frozen=True)
class OwnedSplit:
    """A split as the server and the other parties know it: who can route, and by which record."""

    source: str
    record: int


@dataclass(frozen=True)
class OwnedTree:
    """A finished tree without features, thresholds or leaf weights.

    Parameters
    ----------
    splits : mapping of int to OwnedSplit
    children : mapping of int to (int, int)
        Of the split nodes; every other node is a leaf.
    num_roots : int
    """

    splits: Mapping[int, OwnedSplit]
    children: Mapping[int, tuple[int, int]]
    num_roots: int = 1

    @property
    def num_nodes(self) -> int:
        """Nodes, leaves included."""
        return 2 * len(self.splits) + self.num_roots

    @property
    def leaves(self) -> list[int]:
        """Numbers of the leaves, ascending."""
        return [node for node in range(self.num_nodes) if node not in self.splits]

    def route(
        self, tables: Mapping[str, LookupTable], features: Mapping[str, Float32Array], num_rows: int
    ) -> NodeArray:
        """Leaf of each row below each root, where all parties' tables are at hand: (roots, n).

        Parameters
        ----------
        tables, features : mapping of source to LookupTable and to (n, p) float32
        num_rows : int
        """
        nodes = on_roots(self.num_roots, num_rows)
        roots = roots_of(self.children, self.num_roots)
        for node in sorted(self.splits):  # a parent's number is below its children's
            split = self.splits[node]
            record = tables[split.source].records[split.record]
            left = record.goes_left(features[split.source])
            move_down(nodes[roots[node]], node, self.children[node], left)
        return nodes


def text_of(tree: OwnedTree) -> str:
    """The tree as the server knows it, one line a node."""
    lines: list[str] = []

    def add(node: int, indent: int) -> None:
        """One node and what is below it."""
        split = tree.splits.get(node)
        words = "leaf" if split is None else f"{split.source}, record {split.record}"
        lines.append(f"{'  ' * indent}{node}: {words}")
        for child in tree.children.get(node, ()):
            add(child, indent + 1)

    for root in range(tree.num_roots):
        add(root, 0)
    return "\n".join(lines)
