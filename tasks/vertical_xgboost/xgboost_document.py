"""The whole model in XGBoost's own JSON, put together from all parties' parts.

Features are called ``party.column``, party by party and in the order of each party's columns.
Weights are rounded to 32 bits, as XGBoost has them. Covers are sums of Hessians over the training
rows of all parties, and gains are computed anew from covers and weights. Of a round's trees each
becomes one of XGBoost's, class by class. Only from 3.1 on XGBoost knows a base score of each class,
so those of several classes are in the leaves of the first round.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.feature_importance import Importance, distinct
from tasks.vertical_xgboost.model_part import ModelPart, exact_weights
from tasks.vertical_xgboost.part_tree import PartTree
from tasks.vertical_xgboost.poisson import Poisson
from tasks.vertical_xgboost.routing import response

ATTRIBUTE = "fedapp-categories"
"""Attribute of an exported Booster: JSON of `categories_document`."""

_FORBIDDEN = str.maketrans("[]<", "___")
_NO_PARENT = 2**31 - 1
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class _Sums:
    """G and H of a node, over the training rows of all parties."""

    gradient: float
    hessian: float

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(self.gradient + other.gradient, self.hessian + other.hessian)

    def score(self, reg_lambda: float) -> float:
        """G^2 / (H + lambda)."""
        bottom = self.hessian + reg_lambda
        return self.gradient**2 / bottom if bottom > 0.0 else 0.0


def check_whole(parts: Mapping[str, ModelPart]) -> None:
    """Refuse parts that are not all those of one model.

    Raises
    ------
    SiteFault
        ``"no-model-part"`` with the parties whose parts are missing; ``"bad-model-part"``.
    """
    members = {name for part in parts.values() for name in part.names}
    if missing := sorted(members - set(parts)):
        raise SiteFault("no-model-part", f"no part of {', '.join(missing)}")
    if len({part.model_digest for part in parts.values()}) != 1:
        raise SiteFault("bad-model-part", "the parties' parts are of different models")


def feature_names(parts: Mapping[str, ModelPart]) -> list[str]:
    """Names of all features, ``party.column``, or ``party.column=category``.

    What XGBoost does not allow in names, ``[``, ``]`` and ``<``, is ``_``; where that makes two
    names one, the later one ends in ``#`` and its number among all.
    """
    return distinct(
        f"{name}.{feature}".translate(_FORBIDDEN)
        for name in sorted(parts)
        for feature in parts[name].feature_names
    )


def categories_document(parts: Mapping[str, ModelPart]) -> dict[str, Any]:
    """How columns of text become features, by ``party.column``.

    Of each ``coding``, ``categories`` in their order, and ``features``: one that takes the place
    of the category from 0, or one a category that is 1 or 0. All are missing where it is.
    """
    names, at = feature_names(parts), 0
    found = {}
    for party in sorted(parts):
        part = parts[party]
        shown = dict(zip(part.feature_names, names[at:], strict=False))
        at += len(part.feature_names)
        for each in part.categories:
            found[f"{party}.{each.column}"] = {
                "coding": each.coding,
                "categories": list(each.names),
                "features": [shown[name] for name in each.feature_names],
            }
    return found


def importances(parts: Mapping[str, ModelPart]) -> dict[str, Importance]:
    """Importance of each feature that some split uses; parameters as `xgboost_document`."""
    names = feature_names(parts)
    found: dict[str, list[tuple[float, float]]] = {}
    for tree, sums in _trees_with_sums(parts):
        for node, (column, *_) in _splits(tree, parts).items():
            gain = _gain(tree, sums, node, _lambda(parts))
            found.setdefault(names[column], []).append((gain, sums[node].hessian))
    means = {name: np.mean(pairs, axis=0).tolist() for name, pairs in found.items()}
    return {name: Importance(len(found[name]), *means[name]) for name in names if name in found}


def xgboost_document(parts: Mapping[str, ModelPart]) -> dict[str, Any]:
    """The model as ``xgboost.Booster.load_model`` reads it.

    Parameters
    ----------
    parts : mapping of str to ModelPart
        Of all parties.

    Raises
    ------
    SiteFault
        As `check_whole`.
    """
    check_whole(parts)
    any_part = next(iter(parts.values()))
    categories, names = categories_document(parts), feature_names(parts)
    model = _gbtree(parts, num_features=len(names))
    return {
        "learner": {
            "attributes": {ATTRIBUTE: json.dumps(categories)} if categories else {},
            "feature_names": names,
            "feature_types": ["float"] * len(names),
            "gradient_booster": {"model": model, "name": "gbtree"},
            "learner_model_param": {
                "base_score": repr(_base_score(any_part)),
                "boost_from_average": "0",
                "num_class": str(len(any_part.classes)),
                "num_feature": str(len(names)),
                "num_target": "1",
            },
            "objective": {"name": any_part.objective, **_objective_param(any_part)},
        },
        "version": [2, 1, 0],
    }


def _gbtree(parts: Mapping[str, ModelPart], *, num_features: int) -> dict[str, Any]:
    any_part, trees = next(iter(parts.values())), list(_trees_with_sums(parts))
    num_roots = any_part.num_roots
    added = any_part.base_margins if num_roots > 1 else (0.0,)  # in the first round
    return {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": list(range(0, len(trees) + 1, num_roots)),
        "tree_info": [at % num_roots for at in range(len(trees))],
        "trees": [
            _tree(
                number,
                tree,
                sums,
                parts,
                num_features=num_features,
                added=added[number] if number < num_roots else 0.0,
            )
            for number, (tree, sums) in enumerate(trees)
        ],
    }


def _base_score(part: ModelPart) -> float:
    if part.num_roots > 1:
        return 0.0
    return float(response(np.array([part.base_margins]), part.objective)[0, 0])


def _objective_param(part: ModelPart) -> dict[str, Any]:
    if part.num_roots > 1:
        return {"softmax_multiclass_param": {"num_class": str(part.num_roots)}}
    if part.objective == "count:poisson":
        return {"poisson_regression_param": {"max_delta_step": repr(Poisson.max_delta_step)}}
    return {"reg_loss_param": {"scale_pos_weight": "1"}}


def _tree(
    number: int,
    tree: PartTree,
    sums: Mapping[int, _Sums],
    parts: Mapping[str, ModelPart],
    *,
    num_features: int,
    added: float,
) -> dict[str, Any]:
    size, eta = len(sums), next(iter(parts.values())).eta
    nodes, splits = range(size), _splits(tree, parts)
    means = {node: mean + added for node, mean in _means(tree, sums, eta).items()}
    parents = dict.fromkeys(nodes, _NO_PARENT)
    for node, children in tree.children.items():
        parents |= dict.fromkeys(children, node)
    left, right = zip(*(tree.children.get(node, (-1, -1)) for node in nodes), strict=True)
    reg_lambda = _lambda(parts)
    gains = [_gain(tree, sums, n, reg_lambda) if n in splits else 0.0 for n in nodes]
    return {
        "base_weights": [means[node] for node in nodes],
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
        "default_left": [int(splits[node][2]) if node in splits else 0 for node in nodes],
        "id": number,
        "left_children": list(left),
        "loss_changes": gains,
        "parents": [parents[node] for node in nodes],
        "right_children": list(right),
        "split_conditions": [splits[n][1] if n in splits else means[n] for n in nodes],
        "split_indices": [splits[node][0] if node in splits else 0 for node in nodes],
        "split_type": [0] * size,
        "sum_hessian": [sums[node].hessian for node in nodes],
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(num_features),
            "num_nodes": str(size),
            "size_leaf_vector": "1",
        },
    }


def _splits(tree: PartTree, parts: Mapping[str, ModelPart]) -> dict[int, tuple[int, float, bool]]:
    """Column of all, threshold and side of missing values of each split node."""
    first, at = {}, 0
    for name in sorted(parts):
        first[name] = at
        at += len(parts[name].feature_names)
    found = {}
    for node, split in tree.splits.items():
        record = parts[split.source].lookup.records[split.record]
        # XGBoost has no threshold that every value is below; the largest float is above all but
        # itself.
        threshold = min(record.threshold, _LARGEST)
        found[node] = (first[split.source] + record.column, threshold, record.missing_left)
    return found


def _trees_with_sums(parts: Mapping[str, ModelPart]) -> Iterator[tuple[PartTree, dict[int, _Sums]]]:
    """Each tree with the weights that parties have who are not the source above a leaf.

    Of a round that of each class by itself.
    """
    names = sorted(parts)
    any_part, reg_lambda = parts[names[0]], _lambda(parts)
    for at in range(len(any_part.trees)):
        trees = {name: parts[name].trees[at] for name in names}
        shape = trees[names[0]]
        weights, sums = exact_weights(parts, at), {}
        for leaf, weight in weights.items():
            cover = sum(tree.covers[leaf] for tree in trees.values())
            sums[leaf] = _Sums(-weight * (cover + reg_lambda), cover)
        for node in sorted(shape.children, reverse=True):
            left, right = shape.children[node]
            sums[node] = sums[left] + sums[right]
        found = PartTree(shape.splits, weights, {}, shape.num_roots)
        for root in range(shape.num_roots):
            own = [sums[node] for node in sorted(sums) if found.roots[node] == root]
            yield found.below(root), dict(enumerate(own))


def _means(tree: PartTree, sums: Mapping[int, _Sums], eta: float) -> dict[int, float]:
    """What a leaf adds to a row; of other nodes the mean over covers."""
    means = {node: eta * weight for node, weight in tree.weights.items()}
    for node in sorted(tree.children, reverse=True):
        cover = sums[node].hessian
        both = sum(means[child] * sums[child].hessian for child in tree.children[node])
        means[node] = both / cover if cover > 0.0 else 0.0
    return means


def _gain(tree: PartTree, sums: Mapping[int, _Sums], node: int, reg_lambda: float) -> float:
    left, right = (sums[child].score(reg_lambda) for child in tree.children[node])
    return left + right - sums[node].score(reg_lambda)


def _lambda(parts: Mapping[str, ModelPart]) -> float:
    return float(next(iter(parts.values())).settings.get("lambda", 1.0))
