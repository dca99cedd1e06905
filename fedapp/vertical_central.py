"""Simulation only: predictions for all rows, and the central fit beside the federation's trees.

In a deployment no one has all columns and labels; a simulation's server runs where the parties'
rows and parts of the model are. It reads them after everything else is done.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedapp.pooled_check import node_configs
from fedapp.run_config import RunConfig
from fedapp.run_folder import RunFolder
from fedapp.vertical_against_xgboost import xgboost_quality
from fedapp.vertical_party import prepare_vertical_site
from strategies.exchange import Exchange
from strategies.vertical_result import VerticalResult
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.alignment import aligned_tables
from tasks.vertical_xgboost.central import CentralModel, CentralTree, fit_central
from tasks.vertical_xgboost.classes import class_names
from tasks.vertical_xgboost.fixed_point import FloatArray
from tasks.vertical_xgboost.joined import JoinedTable, join
from tasks.vertical_xgboost.leaves import add_leaves, base_layer
from tasks.vertical_xgboost.model_part import ModelPart, exact_weights, part_path
from tasks.vertical_xgboost.objective import Metrics
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.prediction_files import margin_columns
from tasks.vertical_xgboost.row_metrics import metrics_of_rows
from tasks.vertical_xgboost.rows import PartyTable

PREDICTIONS = "predictions.parquet"


@dataclass(frozen=True, eq=False)
class Joined:
    """The parties' tables, by name, and joined."""

    tables: Mapping[str, PartyTable]
    table: JoinedTable


def read_joined(exchange: Exchange, config: RunConfig, parties: Sequence[str]) -> Joined | None:
    """Read the rows of all parties, as the parties do; None where they are elsewhere."""
    try:
        sites = [prepare_vertical_site(node, config) for node in node_configs(exchange)]
    except SiteFault:
        return None
    found = {site.name: site.table for site in sites}
    if not set(parties) <= set(found):
        return None
    tables = {name: found[name] for name in parties}
    settings = config.vertical_xgboost
    if settings.alignment != "same":
        tables = aligned_tables(tables, fraction=settings.test_fraction, seed=config.general.seed)
    return Joined(tables, join(tables))


def compare(
    joined: Joined, config: RunConfig, result: VerticalResult, folder: RunFolder, *, parts: Path
) -> dict[str, Any]:
    """Write predictions of all rows; fit centrally and say whether the trees are the same.

    XGBoost itself is fitted too, on the same buckets.

    Parameters
    ----------
    joined : Joined
    config : RunConfig
    result : VerticalResult
    folder : RunFolder
        Gets ``predictions.parquet``: columns ``id``, ``margin``; ``margin-NAME`` of each class
        where there are several.
    parts : Path
        Folder of the parties' parts of the model.

    Returns
    -------
    dict
        What belongs into the summary.
    """
    try:
        found = {name: ModelPart.load(part_path(parts, name)) for name in result.parties}
    except SiteFault:  # parties on other machines
        return {}
    margins = predict(joined.tables, result, found)
    ids = next(iter(joined.tables.values())).ids
    buffer = io.BytesIO()
    columns = margin_columns(class_names(config.vertical_xgboost.classes))
    frame = pd.DataFrame({"id": list(ids), **dict(zip(columns, margins, strict=True))})
    frame.to_parquet(buffer, index=False)
    folder.write_bytes(PREDICTIONS, buffer.getvalue())
    earlier = earlier_model(joined.tables, result, found)
    model = fit_central(
        joined.table, config.vertical_xgboost, seed=config.general.seed, warm_start=earlier
    )
    num_kept = len(model.trees) - len(result.trees_before)
    last = model.metrics[num_kept - 1]
    central = metric_values(last.train, last.evaluation, config)
    noisy = config.vertical_xgboost.dp_epsilon > 0
    exact = exact_leaves_quality(joined.table, margins, config) if noisy else {}
    same = same_trees(joined.tables, result, found, model)
    same = same and np.array_equal(margins, model.margins(joined.table.features))
    theirs = xgboost_quality(
        joined.table,
        config.vertical_xgboost,
        base_scores=model.base_scores,
        num_trees=num_kept,
        margins=None if earlier is None else earlier.margins(joined.table.features),
    )
    # With noise in some gradients other trees are meant to come out.
    verdict = {} if noisy else {"same-trees": bool(same)}
    return {"central": {**central, **theirs, **verdict}, **exact}


def exact_leaves_quality(
    table: JoinedTable, margins: FloatArray, config: RunConfig
) -> dict[str, float]:
    """Metrics on evaluation rows as the finished model predicts them, with exact leaves alone.

    Those that parties add up in training have noisy leaves in the rows of sources.
    """
    rows = table.is_evaluation
    if not rows.any():
        return {}
    objective = objective_of(config.vertical_xgboost)
    weights = None if table.weights is None else table.weights[rows]
    metrics = metrics_of_rows(objective, margins[:, rows], table.labels[rows], weights)
    return {f"exact-leaves-test-{objective.quality_name}": metrics.quality}


def predict(
    tables: Mapping[str, PartyTable], result: VerticalResult, parts: Mapping[str, ModelPart]
) -> FloatArray:
    """Margins of all rows: shape from the server, thresholds from their owners, (roots, n)."""
    features = {name: table.features for name, table in tables.items()}
    lookups = {name: part.lookup for name, part in parts.items()}
    any_part = next(iter(parts.values()))
    num_rows = len(next(iter(features.values())))
    margins = base_layer(any_part.base_margins, num_rows)
    for at, tree in enumerate(result.model_trees):
        nodes = tree.route(lookups, features, num_rows)
        add_leaves(margins, nodes, exact_weights(parts, at), eta=any_part.eta)
    return margins


def same_trees(
    tables: Mapping[str, PartyTable],
    result: VerticalResult,
    parts: Mapping[str, ModelPart],
    model: CentralModel,
) -> bool:
    """Whether splits, thresholds, sides and leaves are the central ones, to the last bit."""
    first = first_columns(tables)
    kept = result.model_trees
    if len(kept) != len(model.trees):
        return False
    for number, (tree, central) in enumerate(zip(kept, model.trees, strict=True)):
        if dict(tree.children) != dict(central.children):
            return False
        if any(part.trees[number].weights != dict(central.weights) for part in parts.values()):
            return False
        for node, split in tree.splits.items():
            own, theirs = parts[split.source].lookup.records[split.record], central.records[node]
            here = first[split.source] + own.column, own.threshold, own.missing_left
            if here != (theirs.column, theirs.threshold, theirs.missing_left):
                return False
    return True


def first_columns(tables: Mapping[str, PartyTable]) -> dict[str, int]:
    """Place of each party's first column in the joined table."""
    first, at = {}, 0
    for name, table in tables.items():
        first[name] = at
        at += len(table.feature_names)
    return first


def earlier_model(
    tables: Mapping[str, PartyTable], result: VerticalResult, parts: Mapping[str, ModelPart]
) -> CentralModel | None:
    """The model that the training went on from with everything in clear; None if there is none."""
    if result.earlier is None:
        return None
    first, trees = first_columns(tables), []
    for number, each in enumerate(result.earlier.trees):
        records = {}
        for node, split in each.tree.splits.items():
            own = parts[split.source].lookup.records[split.record]
            records[node] = replace(own, column=first[split.source] + own.column)
        weights = exact_weights(parts, number)
        tree = CentralTree({}, records, dict(each.tree.children), weights, each.tree.num_roots)
        trees.append(tree)
    return CentralModel(
        base_scores=result.base_scores,
        base_margins=result.base_margins,
        eta=result.earlier.eta,
        trees=tuple(trees),
        metrics=(),
    )


def metric_values(
    train: Metrics, evaluation: Metrics | None, config: RunConfig
) -> dict[str, float]:
    """Metrics after a tree under the keys of a summary; those of evaluation rows if there are."""
    quality = objective_of(config.vertical_xgboost).quality_name
    found = {"train-loss": train.loss, f"train-{quality}": train.quality}
    if evaluation is not None:
        found |= {"test-loss": evaluation.loss, f"test-{quality}": evaluation.quality}
    return found
