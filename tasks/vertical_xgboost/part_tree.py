"""A tree of a party's part of a model: whose splits it has, and the leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tasks.vertical_xgboost.tree import children_of, depths_of, roots_of


@dataclass(frozen=True)
class PartSplit:
    """A split as a part has it: whose record decides, and the side of missing values.

    Candidates are numbered anew in every run; a record is not.
    """

    source: str
    record: int
    missing_left: bool


@dataclass(frozen=True)
class PartTree:
    """A tree of a part.

    Parameters
    ----------
    splits : mapping of int to PartSplit
        By node, in the order in which they were made.
    weights : mapping of int to float
        By leaf, not times eta.
    covers : mapping of int to float
        By leaf: sum of Hessians over the party's own training rows there.
    num_roots : int
    """

    splits: Mapping[int, PartSplit]
    weights: Mapping[int, float]
    covers: Mapping[int, float]
    num_roots: int = 1

    @cached_property
    def children(self) -> dict[int, tuple[int, int]]:
        """Left and right child of each split node."""
        return children_of(self.splits, self.num_roots)

    @cached_property
    def roots(self) -> dict[int, int]:
        """Root above each node."""
        return roots_of(self.children, self.num_roots)

    @cached_property
    def depths(self) -> dict[int, int]:
        """Depth of each node; a root's is 0."""
        return depths_of(self.children, self.num_roots)

    @cached_property
    def sources(self) -> dict[int, str]:
        """Whose split is above each node; a root has none."""
        found = self.children.items()
        return {child: self.splits[node].source for node, both in found for child in both}

    def below(self, root: int) -> PartTree:
        """The tree below one root, its nodes numbered anew from 0."""
        if self.num_roots == 1:
            return self
        nodes = sorted({*self.splits, *self.weights})
        own = [node for node in nodes if self.roots[node] == root]
        number = {node: at for at, node in enumerate(own)}
        return PartTree(
            {number[node]: split for node, split in self.splits.items() if node in number},
            {number[node]: weight for node, weight in self.weights.items() if node in number},
            {number[node]: cover for node, cover in self.covers.items() if node in number},
        )
