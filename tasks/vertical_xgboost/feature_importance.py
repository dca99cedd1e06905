"""How much the trees of a model use each party's features, from sums that parties may tell.

Of its own splits a party tells which are on one column, by numbers that follow the first use; a
name goes with a number where the party consents. Gains are the server's. Covers are sums of
Hessians over the rows of all label owners, which are added up by feature.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.vertical_xgboost.fixed_point import FloatArray
from tasks.vertical_xgboost.model_part import ModelPart
from tasks.vertical_xgboost.part_tree import PartTree

Groups = Mapping[str, Sequence[int]]
"""By party the feature of each of its records, from 0 in the order of first use."""


@dataclass(frozen=True)
class Importance:
    """How much the trees use a feature, as XGBoost counts it.

    Attributes
    ----------
    weight : int
        Splits.
    gain, cover : float
        Means over these splits: of gains, and of sums of Hessians.
    """

    weight: int
    gain: float
    cover: float


def own_groups(part: ModelPart) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Feature of each own record, numbered by first use, and the columns by number."""
    numbers: dict[int, int] = {}
    groups = tuple(
        numbers.setdefault(record.column, len(numbers)) for record in part.lookup.records
    )
    return groups, tuple(part.feature_names[column] for column in numbers)


def distinct(names: Iterable[str]) -> list[str]:
    """Names in their order, of equal ones the later ending in ``#`` and their place from 0."""
    found: dict[str, None] = {}
    for at, name in enumerate(names):
        number, shown = at, name
        while shown in found:
            shown = f"{name}#{number}"
            number += 1
        found[shown] = None
    return list(found)


def are_groups(groups: Sequence[int]) -> bool:
    """Whether numbers count features by first use."""
    highest = -1
    for number in groups:
        if not 0 <= number <= highest + 1:
            return False
        highest = max(highest, number)
    return True


def features_in(groups: Groups) -> list[tuple[str, int]]:
    """Party and number of every feature, in the order in which covers are summed."""
    return [(name, n) for name in sorted(groups) for n in range(max(groups[name], default=-1) + 1)]


def own_covers(part: ModelPart, groups: Groups) -> FloatArray:
    """Sums over splits of each feature of Hessians over the party's own training rows there.

    Parameters
    ----------
    part : ModelPart
        Of the party that sums, which knows the records of all splits.
    groups : mapping of str to sequence of int
        Of all parties.

    Returns
    -------
    (features,) float64
        In the order of `features_in`.
    """
    places = {feature: at for at, feature in enumerate(features_in(groups))}
    found = np.zeros(len(places))
    for tree in part.trees:
        covers = _covers(tree)
        for node, split in tree.splits.items():
            found[places[split.source, groups[split.source][split.record]]] += covers[node]
    return found


def importances(
    groups: Groups,
    names: Mapping[str, Sequence[str]],
    gains: Mapping[tuple[str, int], float],
    covers: FloatArray,
) -> dict[str, Importance]:
    """Importance of every feature that some split uses.

    Parameters
    ----------
    groups : mapping of str to sequence of int
        Of all parties.
    names : mapping of str to sequence of str
        Columns by number, of parties that tell them.
    gains : mapping of (str, int) to float
        By party and record.
    covers : (features,) float64
        Sums over all parties of `own_covers`.

    Returns
    -------
    dict of str to Importance
        By ``party.column``; ``party.#1`` and so on where names are not told.
    """
    found = {}
    for (name, number), cover in zip(features_in(groups), covers, strict=True):
        records = [at for at, group in enumerate(groups[name]) if group == number]
        column = names[name][number] if name in names else f"#{number + 1}"
        gain = float(np.mean([gains[name, at] for at in records]))
        found[f"{name}.{column}"] = Importance(len(records), gain, float(cover) / len(records))
    return found


def _covers(tree: PartTree) -> dict[int, float]:
    """Own cover of every node: a split's is that of its children."""
    covers = dict(tree.covers)
    for node in sorted(tree.children, reverse=True):
        covers[node] = sum(covers[child] for child in tree.children[node])
    return covers
