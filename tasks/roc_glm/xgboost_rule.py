"""XGBoost models as JSON: checked node by node before XGBoost's own reader sees them.

XGBoost's reader is C++ and trusts the indices of a file. What is given to it here is put together
anew from the parts that were checked, so that a damaged or hostile file ends in a line of text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.roc_glm.survivor import FloatArray
from tasks.site.faults import SiteFault

OBJECTIVE = "binary:logistic"
MOST_NODES = 5_000_000
LARGEST_LEAF = 1e30
"""Of a leaf's value; so many nodes of it are finite in float32."""

_INTEGERS = ("left_children", "right_children", "split_indices", "default_left")
_REALS = ("split_conditions", "base_weights", "loss_changes", "sum_hessian")
_WRITTEN = [2, 0, 0]  # oldest XGBoost that is supported
_NUMERIC_TYPES = ("float", "int", "i", "q")


@dataclass(frozen=True)
class XGBoostRule:
    """A boosted binary classifier of numeric features.

    Attributes
    ----------
    features : tuple of str
        Names of the columns, in the model's order.
    text : str
        The checked parts as XGBoost's JSON, without attributes.
    """

    features: tuple[str, ...]
    text: str

    def scores(self, values: FloatArray) -> FloatArray:
        """Probabilities of the positive class.

        Parameters
        ----------
        values : (n, p) float64
            Features; NaN takes the way of missing values, as in training.

        Returns
        -------
        (n,) float64
            In [0, 1]; of float32 accuracy. NaN where a feature is infinite (in float32).
        """
        booster = self._booster()
        import xgboost

        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
        unusable = np.isinf(single).any(axis=1)
        single[unusable] = np.nan
        scores = booster.predict(
            xgboost.DMatrix(single, feature_names=list(self.features), nthread=1)
        ).astype(np.float64)
        scores[unusable] = np.nan
        return np.asarray(scores)

    def document(self) -> dict[str, Any]:
        """The model as a JSON object."""
        parsed: dict[str, Any] = json.loads(self.text)
        return parsed

    def _booster(self) -> Any:
        try:
            import xgboost
        except ImportError:
            raise SiteFault(
                "missing-package", 'this score model needs the package "xgboost"'
            ) from None
        booster = xgboost.Booster({"nthread": 1})
        try:
            booster.load_model(bytearray(self.text.encode()))
        except xgboost.core.XGBoostError:
            raise SiteFault(
                "bad-score-model",
                f"xgboost {xgboost.__version__} of this site cannot read the score model",
            ) from None
        return booster


def read_rule(document: Mapping[str, Any]) -> tuple[XGBoostRule, dict[str, str]]:
    """Check an XGBoost model.

    After early stopping the trees up to the best round are taken, as `predict_proba` takes them.

    Parameters
    ----------
    document : mapping
        What ``Booster.save_model("model.json")`` wrote, parsed.

    Returns
    -------
    rule : XGBoostRule
    attributes : dict
        The attributes that the model carries (``Booster.set_attr``).

    Raises
    ------
    SiteFault
        ``"bad-score-model"``: all faults at once.
    """
    learner = _part(document, "learner")
    booster = _part(learner, "gradient_booster")
    model = _part(booster, "model")
    parameters = _part(learner, "learner_model_param")
    objective = _part(learner, "objective")
    features, faults = _features(learner, parameters)
    faults += _kind_faults(booster, objective, parameters)
    trees = model.get("trees")
    if not isinstance(trees, list) or not trees:
        faults.append("learner.gradient_booster.model.trees: must be a list of at least one tree")
    elif not faults:
        faults += _forest_faults(trees, num_features=len(features))
    parallel = _whole(_part(model, "gbtree_model_param").get("num_parallel_tree", "1"))
    if isinstance(trees, list) and trees and (not parallel or len(trees) % parallel):
        faults.append("num_parallel_tree: must divide the number of trees")
    attributes = {
        name: value
        for name, value in _part(learner, "attributes").items()
        if isinstance(value, str)
    }
    rounds = len(trees) // parallel if isinstance(trees, list) and parallel else 0
    best = _whole(attributes.get("best_iteration", str(max(rounds - 1, 0))))
    if best is None or (rounds and best >= rounds):
        faults.append("learner.attributes.best_iteration: must be one of the model's rounds")
    stated = document.get("version")
    if isinstance(stated, list) and stated and stated[0] not in (1, 2, 3):
        faults.append("version: must be of XGBoost 1, 2 or 3")
    base_score = _base_score(parameters.get("base_score"))
    if base_score is None:
        faults.append("learner_model_param.base_score: must be a probability in (0, 1)")
    if faults:
        raise SiteFault("bad-score-model", *faults)
    assert isinstance(trees, list)
    assert parallel is not None
    assert best is not None
    trees = trees[: (best + 1) * parallel]
    checked = {
        "learner": {
            "attributes": {},
            "feature_names": list(features),
            "feature_types": ["float"] * len(features),
            "gradient_booster": {
                "model": _rebuilt_forest(trees, parallel=parallel, num_features=len(features)),
                "name": "gbtree",
            },
            "learner_model_param": {
                "base_score": parameters["base_score"],
                "boost_from_average": "1",
                "num_class": "0",
                "num_feature": str(len(features)),
                "num_target": "1",
            },
            "objective": {"name": OBJECTIVE, "reg_loss_param": {"scale_pos_weight": "1"}},
        },
        "version": _WRITTEN,  # whatever wrote the file: these parts are put together here
    }
    return XGBoostRule(features, json.dumps(checked)), attributes


def _part(mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = mapping.get(key)
    return part if isinstance(part, Mapping) else {}


def _features(
    learner: Mapping[str, Any], parameters: Mapping[str, Any]
) -> tuple[tuple[str, ...], list[str]]:
    """Feature names, and what is wrong with them."""
    names = learner.get("feature_names")
    if not isinstance(names, list) or not names:
        return (), [
            "learner.feature_names: the model must name its features (train it on a data frame)"
        ]
    faults = []
    if not all(isinstance(name, str) and name for name in names):
        faults.append("learner.feature_names: every name must be text")
    elif len(set(names)) < len(names):
        faults.append("learner.feature_names: every name must be there once")
    if _whole(parameters.get("num_feature")) != len(names):
        faults.append(f"learner_model_param.num_feature: must be the {len(names)} names given")
    types = learner.get("feature_types") or []
    if not isinstance(types, list) or not all(kind in _NUMERIC_TYPES for kind in types):
        faults.append("learner.feature_types: only numeric features are supported")
    return tuple(str(name) for name in names), faults


def _kind_faults(
    booster: Mapping[str, Any], objective: Mapping[str, Any], parameters: Mapping[str, Any]
) -> list[str]:
    faults = []
    if booster.get("name") != "gbtree":
        faults.append("learner.gradient_booster.name: must be 'gbtree'")
    if objective.get("name") != OBJECTIVE:
        faults.append(f"learner.objective.name: must be '{OBJECTIVE}'")
    if _whole(parameters.get("num_target", "1")) != 1:
        faults.append("learner_model_param.num_target: must be 1")
    return faults


def _forest_faults(trees: Sequence[Any], *, num_features: int) -> list[str]:
    """One line a kind of fault, with the first tree that has it."""
    first: dict[str, int] = {}
    nodes = 0
    for number, tree in enumerate(trees):
        found = _tree_fault(tree, num_features=num_features)
        if found:
            first.setdefault(found, number)
        else:
            nodes += len(tree["left_children"])
    if nodes > MOST_NODES:
        return [f"{nodes} nodes: at most {MOST_NODES} are read"]
    return [f"tree {number}: {fault}" for fault, number in first.items()]


def _tree_fault(tree: Any, *, num_features: int) -> str:
    """What is wrong with a tree; empty if nothing."""
    if not isinstance(tree, Mapping):
        return "must be a JSON object"
    size = len(tree["left_children"]) if isinstance(tree.get("left_children"), list) else 0
    for key in (*_INTEGERS, *_REALS):
        values = tree.get(key)
        if not isinstance(values, list) or len(values) != size or not size:
            return f"{key} must be a list with one entry a node"
        kinds: tuple[type, ...] = (int,) if key in _INTEGERS else (int, float)
        if key == "default_left":
            kinds = (int, bool)  # as XGBoost 1 wrote it
        if not all(type(value) in kinds and _in_range(value) for value in values):
            return f"{key} must hold numbers in range"
    if tree.get("categories") or any(tree.get("split_type") or ()):
        return "splits on categories are not supported"
    parameters = _part(tree, "tree_param")
    if _whole(parameters.get("num_nodes")) != size:
        return "tree_param.num_nodes must be the number of nodes"
    if _whole(parameters.get("size_leaf_vector", "1")) not in (0, 1):
        return "tree_param.size_leaf_vector must be 1"
    return _shape_fault(tree, size=size, num_features=num_features)


def _shape_fault(tree: Mapping[str, Any], *, size: int, num_features: int) -> str:
    """Follow the tree from its root: every child inside, met once, splits on a known feature."""
    left, right, split = tree["left_children"], tree["right_children"], tree["split_indices"]
    met = np.zeros(size, dtype=bool)
    open_nodes = [0]
    while open_nodes:
        node = open_nodes.pop()
        if met[node]:
            return "a node is the child of two others"
        met[node] = True
        if left[node] == -1 and right[node] == -1:
            # Sums of leaves are float32: two infinite ones would be a row without a score.
            if abs(tree["split_conditions"][node]) > LARGEST_LEAF:
                return f"a leaf is beyond {LARGEST_LEAF:g}"
            continue
        if not (0 < left[node] < size and 0 < right[node] < size):
            return "a child is no node of the tree"
        if not 0 <= split[node] < num_features:
            return "a split is on a feature that the model does not have"
        open_nodes += [left[node], right[node]]
    return ""


def _rebuilt_forest(trees: Sequence[Any], *, parallel: int, num_features: int) -> dict[str, Any]:
    return {
        "gbtree_model_param": {
            "num_parallel_tree": str(parallel),
            "num_trees": str(len(trees)),
        },
        "iteration_indptr": list(range(0, len(trees) + 1, parallel)),
        "tree_info": [0] * len(trees),
        "trees": [
            _rebuilt_tree(tree, number=number, num_features=num_features)
            for number, tree in enumerate(trees)
        ],
    }


def _rebuilt_tree(tree: Mapping[str, Any], *, number: int, num_features: int) -> dict[str, Any]:
    """The reachable nodes of a checked tree, in the order of a walk (pruned ones left out)."""
    order: list[int] = []
    place: dict[int, int] = {}
    open_nodes = [0]
    while open_nodes:
        node = open_nodes.pop()
        place[node] = len(order)
        order.append(node)
        if tree["left_children"][node] != -1:
            open_nodes += [tree["right_children"][node], tree["left_children"][node]]
    parents = [2**31 - 1] * len(order)
    children: dict[str, list[int]] = {"left_children": [], "right_children": []}
    for at, node in enumerate(order):
        for key, places in children.items():
            child = place.get(tree[key][node], -1)
            places.append(child)
            if child != -1:
                parents[child] = at
    is_leaf = [child == -1 for child in children["left_children"]]
    splits = [
        0 if leaf else tree["split_indices"][node]
        for node, leaf in zip(order, is_leaf, strict=True)
    ]
    return {
        **children,
        "parents": parents,
        "split_indices": splits,
        "default_left": [int(bool(tree["default_left"][node])) for node in order],
        **{key: [float(tree[key][node]) for node in order] for key in _REALS},
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
        "split_type": [0] * len(order),
        "id": number,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(num_features),
            "num_nodes": str(len(order)),
            "size_leaf_vector": "1",
        },
    }


def _in_range(value: float) -> bool:
    return -1e39 < value < 1e39  # NaN is not


def _whole(value: Any) -> int | None:
    """Number of a parameter, which XGBoost writes as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    return None


def _base_score(value: Any) -> float | None:
    if not isinstance(value, str) or len(value) > 64:
        return None
    try:
        number = float(value.strip().removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return number if math.isfinite(number) and 0.0 < number < 1.0 else None
