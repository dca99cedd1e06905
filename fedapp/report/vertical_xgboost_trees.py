"""A tree of ``trees.json``, checked and laid out for a drawing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MOST_NODES = 40

Node = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """A node of a drawing: its level, its row (0 is on top), and the row of its parent.

    ``below`` is the number of nodes under it that are not drawn.
    """

    node: Node
    level: int
    row: int
    parent_row: int | None
    below: int


@dataclass(frozen=True)
class DrawnTree:
    """A tree laid out, every node in a row of its own.

    Attributes
    ----------
    places : tuple of Place
        Nodes that are drawn.
    splits, leaves : int
        Of the whole tree.
    hidden : int
        Nodes too deep to be drawn.
    """

    places: tuple[Place, ...]
    splits: int
    leaves: int
    hidden: int

    @property
    def owners(self) -> list[str]:
        """Owners of the splits that are drawn, in order of name."""
        owners = {str(place.node.get("owner", "")) for place in self.places if is_split(place.node)}
        return sorted(owners)


def is_split(node: Node) -> bool:
    """Whether a node is a split and no leaf."""
    return not node.get("leaf", "left" not in node)


def first_tree(document: Mapping[str, Any] | None) -> tuple[DrawnTree | None, str]:
    """Lay out the first tree; of several that grew together the one below root 0.

    Returns
    -------
    DrawnTree or None
    str
        What is wrong if there is none; empty without a document.
    """
    trees = (document or {}).get("trees")
    if not trees:
        return None, "there is no tree" if document is not None else ""
    nodes = {node["id"]: node for node in trees[0].get("nodes") or [] if "id" in node}
    fault = _fault(nodes, roots=(document or {}).get("roots", 1))
    if fault:
        return None, fault
    first = {at: nodes[at] for at, _, _ in _walk(nodes, 0, 0, None)}
    return _laid_out(first), ""


def _fault(nodes: Mapping[int, Node], *, roots: object) -> str:
    """Say why nodes are no tree with so many roots, from 0; empty if they are one."""
    if not isinstance(roots, int) or roots < 1:
        return "the number of roots is none"
    if missing := [root for root in range(roots) if root not in nodes]:
        return f"the first tree has no node {missing[0]}"
    seen: set[int] = set()
    waiting = list(range(roots))
    while waiting:
        at = waiting.pop()
        if at in seen:
            return f"node {at} of the first tree has two parents"
        seen.add(at)
        if is_split(nodes[at]):
            children = [nodes[at].get("left"), nodes[at].get("right")]
            if any(child not in nodes for child in children):
                return f"node {at} of the first tree lacks a child"
            waiting += [child for child in children if child is not None]
    return "" if len(seen) == len(nodes) else "the first tree has nodes without a parent"


def _laid_out(nodes: Mapping[int, Node]) -> DrawnTree:
    levels = {at: level for at, level, _ in _walk(nodes, 0, 0, None)}
    depth = max(levels.values())
    while depth > 1 and sum(level <= depth for level in levels.values()) > MOST_NODES:
        depth -= 1
    drawn = [found for found in _walk(nodes, 0, 0, None) if found[1] <= depth]
    rows = {at: row for row, (at, _, _) in enumerate(drawn)}
    places = [
        Place(
            node=nodes[at],
            level=level,
            row=rows[at],
            parent_row=None if parent is None else rows[parent],
            below=sum(1 for _ in _walk(nodes, at, 0, None)) - 1 if level == depth else 0,
        )
        for at, level, parent in drawn
    ]
    splits = sum(is_split(node) for node in nodes.values())
    return DrawnTree(tuple(places), splits, len(nodes) - splits, len(nodes) - len(drawn))


def _walk(
    nodes: Mapping[int, Node], at: int, level: int, parent: int | None
) -> Iterator[tuple[int, int, int | None]]:
    """Node, level and parent: the left branch, then the node, then the right branch."""
    if is_split(nodes[at]):
        yield from _walk(nodes, nodes[at]["left"], level + 1, at)
    yield at, level, parent
    if is_split(nodes[at]):
        yield from _walk(nodes, nodes[at]["right"], level + 1, at)
