"""A tree as it grows, as the server knows it, and as the owner of a split knows it.

Nodes are numbered alike by everybody: the root is 0, and the children of a level's splits take the
next numbers in the order of their parents, left before right. A level is what is decided together:
all open nodes, unless the server leaves some for later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self.splits: dict[int, S] = {}
        self.children: dict[int, tuple[int, int]] = {}
        self.depth = 0
        self.num_nodes = 1
        self.open_nodes = [0]

    def are_last(self, nodes: Sequence[int]) -> list[bool]:
        """Whether children of each of these nodes are leaves in any case."""
        depths = {0: 0}
        for parent, children in self.children.items():
            depths |= dict.fromkeys(children, depths[parent] + 1)
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


def move_down(nodes: NodeArray, node: int, children: tuple[int, int], left: BoolArray) -> None:
    """Move the rows of a split node to its children, in place.

    Parameters
    ----------
    nodes : (n,) int32
        Node of each row.
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
    """

    splits: Mapping[int, OwnedSplit]
    children: Mapping[int, tuple[int, int]]

    @property
    def num_nodes(self) -> int:
        """Nodes, leaves included."""
        return 2 * len(self.splits) + 1

    @property
    def leaves(self) -> list[int]:
        """Numbers of the leaves, ascending."""
        return [node for node in range(self.num_nodes) if node not in self.splits]

    def route(
        self, tables: Mapping[str, LookupTable], features: Mapping[str, Float32Array], num_rows: int
    ) -> NodeArray:
        """Leaf of each row, where all parties' tables are at hand.

        Parameters
        ----------
        tables, features : mapping of source to LookupTable and to (n, p) float32
        num_rows : int
        """
        nodes = np.zeros(num_rows, dtype=np.int32)
        for node in sorted(self.splits):  # a parent's number is below its children's
            split = self.splits[node]
            record = tables[split.source].records[split.record]
            move_down(nodes, node, self.children[node], record.goes_left(features[split.source]))
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

    add(0, 0)
    return "\n".join(lines)
