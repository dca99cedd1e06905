"""The model that a vertical training goes on from, as the server knows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strategies.membership import Refused
from tasks.vertical_xgboost.model_part import model_digest
from tasks.vertical_xgboost.origin import Releases
from tasks.vertical_xgboost.party_facts import PartyFacts
from tasks.vertical_xgboost.tree import OwnedSplit, OwnedTree


@dataclass(frozen=True)
class EarlierTree:
    """A tree of an earlier training.

    Parameters
    ----------
    tree : OwnedTree
    gains : mapping of int to float
        Of each split node.
    """

    tree: OwnedTree
    gains: Mapping[int, float]


@dataclass(frozen=True)
class EarlierModel:
    """A model whose trees come first.

    Parameters
    ----------
    run : str
        Training that left it, as ``run-123``.
    parties : tuple of str
    objective : str
    eta : float
    base_scores, base_margins : tuple of float
        Prediction before the first tree, one a root.
    trees : tuple of EarlierTree
        Those that were kept.
    releases : tuple of Releases
        Noisy weights that sources have received, with partial differential privacy.
    """

    run: str
    parties: tuple[str, ...]
    objective: str
    eta: float
    base_scores: tuple[float, ...]
    base_margins: tuple[float, ...]
    trees: tuple[EarlierTree, ...]
    releases: tuple[Releases, ...] = ()

    @property
    def digest(self) -> bytes:
        """What the parties' parts of the model must have too, 32 bytes."""
        trees = [
            [
                (node, each.tree.splits[node].source, each.tree.splits[node].record)
                for node in in_order(each.tree)
            ]
            for each in self.trees
        ]
        return model_digest(
            self.run,
            self.parties,
            objective=self.objective,
            base_margins=self.base_margins,
            eta=self.eta,
            trees=trees,
        )

    def first(self, num_trees: int) -> EarlierModel:
        """The model of its first trees."""
        return replace(self, trees=self.trees[:num_trees])

    def num_records(self, owner: str) -> int:
        """Splits of a party."""
        splits = (split for each in self.trees for split in each.tree.splits.values())
        return sum(split.source == owner for split in splits)


def model_document(model: EarlierModel) -> dict[str, Any]:
    """A model as what JSON can hold."""
    return {
        "run": model.run,
        "parties": list(model.parties),
        "objective": model.objective,
        "base-score": one_or_all(model.base_scores),
        "base-margin": one_or_all(model.base_margins),
        "eta": model.eta,
        "roots": len(model.base_margins),
        "releases": [{"ratio": each.ratio, "count": each.count} for each in model.releases],
        "trees": [_tree_document(each) for each in model.trees],
    }


def model_of_document(document: Mapping[str, Any]) -> EarlierModel:
    """The reverse of `model_document`; KeyError, TypeError or ValueError for something else."""
    starts = _all(document["base-margin"])
    return EarlierModel(
        run=str(document["run"]),
        parties=tuple(map(str, document["parties"])),
        objective=str(document["objective"]),
        eta=float(document["eta"]),
        base_scores=_all(document["base-score"]),
        base_margins=starts,
        trees=tuple(_tree_of(each["nodes"], len(starts)) for each in document["trees"]),
        releases=tuple(
            Releases(float(each["ratio"]), int(each["count"]))
            for each in document.get("releases", [])
        ),
    )


def _tree_document(each: EarlierTree) -> dict[str, Any]:
    tree = each.tree
    nodes: list[dict[str, Any]] = []
    for node in range(tree.num_nodes):
        if node not in tree.splits:
            nodes.append({"id": node, "leaf": True})
            continue
        left, right = tree.children[node]
        split = tree.splits[node]
        nodes.append(
            {
                "id": node,
                "leaf": False,
                "owner": split.source,
                "record": split.record,
                "left": left,
                "right": right,
                "gain": each.gains[node],
            }
        )
    return {"nodes": nodes}


def one_or_all(values: Sequence[float]) -> float | list[float]:
    """The number of a model with one margin a row; of more, all of them."""
    return values[0] if len(values) == 1 else list(values)


def _all(values: float | list[float]) -> tuple[float, ...]:
    return tuple(map(float, values if isinstance(values, list) else [values]))


def _tree_of(nodes: Sequence[Mapping[str, Any]], num_roots: int) -> EarlierTree:
    splits, children, gains = {}, {}, {}
    for node in nodes:
        at = int(node["id"])
        if node["leaf"]:
            continue
        splits[at] = OwnedSplit(str(node["owner"]), int(node["record"]))
        children[at] = (int(node["left"]), int(node["right"]))
        gains[at] = float(node["gain"])
    return EarlierTree(OwnedTree(splits, children, num_roots), gains)


def in_order(tree: OwnedTree) -> list[int]:
    """Split nodes in the order in which they were split: children are numbered in it."""
    return sorted(tree.splits, key=lambda node: tree.children[node])


def check_earlier(earlier: EarlierModel | None, facts: Mapping[str, PartyFacts]) -> None:
    """Refuse parties whose parts are of another model than the server's.

    Raises
    ------
    Refused
        With the names of all whose part does not fit.
    """
    if earlier is None:
        # A party that goes on from a model while the server does not reads another configuration.
        strangers = sorted(name for name, fact in facts.items() if fact.model)
        if strangers:
            raise Refused([f"{', '.join(strangers)}: goes on from a model that nobody asked for"])
        return
    if tuple(facts) != earlier.parties:
        raise Refused([other_parties(earlier, facts)])
    without = [name for name, fact in facts.items() if fact.model != earlier.digest]
    if without:
        raise Refused(
            [
                f"{', '.join(without)}: the part of {earlier.run} there is not of the model that "
                "the server keeps of it (trees.json: other trees, parties or settings)"
            ]
        )


def other_parties(model: EarlierModel, names: Iterable[str]) -> str:
    """What is wrong with parties that are not those of a model, in one sentence."""
    told = []
    if missing := sorted(set(model.parties) - set(names)):
        told.append(f"missing: {', '.join(missing)}")
    if new := sorted(set(names) - set(model.parties)):
        told.append(f"not in it: {', '.join(new)}")
    return f"the parties are not those of the model of {model.run} ({'; '.join(told)})"
