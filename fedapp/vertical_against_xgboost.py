"""XGBoost itself on the joined table and the same buckets: simulations and benchmarks only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tasks.vertical_xgboost.buckets import bucket_columns
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.fixed_point import FloatArray
from tasks.vertical_xgboost.joined import JoinedTable
from tasks.vertical_xgboost.leaves import base_layer
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.row_metrics import metrics_of_rows


def xgboost_margins(
    table: JoinedTable,
    config: VerticalXGBoostConfig,
    *,
    base_scores: Sequence[float],
    num_trees: int,
    margins: FloatArray | None = None,
) -> FloatArray:
    """Margins of all rows by XGBoost's ``hist`` on bucket numbers, (roots, n).

    Parameters
    ----------
    table : JoinedTable
    config : VerticalXGBoostConfig
        Of depth 1 and more: 0 is no limit to XGBoost.
    base_scores : sequence of float
        One a root.
    num_trees : int
    margins : (roots, n) float64, optional
        Of the rows in front of the first tree, instead of that of the base score.
    """
    import xgboost

    training, num_roots = ~table.is_evaluation, len(base_scores)
    buckets, numbers = bucket_columns(table.features, training, max_bin=config.max_bin)
    inputs = numbers.T.astype(np.float32)
    inputs[inputs == np.array([feature.num_buckets for feature in buckets])] = np.nan
    parameters = {
        "objective": config.objective,
        "tree_method": "hist",
        "max_bin": 256,
        "eta": config.eta,
        "lambda": config.reg_lambda,
        "gamma": config.gamma,
        "min_child_weight": config.min_child_weight,
        "max_depth": config.max_depth,
        "base_score": base_scores[0],
        "nthread": 1,
    }
    weights = None if table.weights is None else table.weights[training]
    if num_roots > 1:  # a base score for each class is unknown to XGBoost before 3.1
        parameters |= {"num_class": num_roots, "base_score": 0.0}
        margins = base_layer(base_scores, len(inputs)) if margins is None else margins
    start = None if margins is None else np.ascontiguousarray(margins.T)
    if start is not None and num_roots == 1:
        start = start[:, 0]
    data = xgboost.DMatrix(
        inputs[training],
        label=table.labels[training],
        weight=weights,
        base_margin=None if start is None else start[training],
    )
    booster = xgboost.train(parameters, data, num_boost_round=num_trees)
    rows = xgboost.DMatrix(inputs, base_margin=start)
    predicted = booster.predict(rows, output_margin=True)
    return np.asarray(predicted, dtype=np.float64).reshape(len(table.labels), -1).T


def xgboost_quality(
    table: JoinedTable,
    config: VerticalXGBoostConfig,
    *,
    base_scores: Sequence[float],
    num_trees: int,
    margins: FloatArray | None = None,
) -> dict[str, float]:
    """Losses and metrics of XGBoost, keys as in a run's summary after ``xgboost-``.

    Empty where the settings have no counterpart there: depth 0, label owners that refuse
    candidates (``min-instances``), and draws of rows or columns, which XGBoost makes otherwise; and
    without columns. Parameters as `xgboost_margins`.
    """
    if config.subsample < 1.0 or config.samples_columns:
        return {}
    if not config.max_depth or config.min_instances >= 2 or not table.features.shape[1]:
        return {}
    margins = xgboost_margins(
        table, config, base_scores=base_scores, num_trees=num_trees, margins=margins
    )
    objective, found = objective_of(config), {}
    for name, rows in (("train", ~table.is_evaluation), ("test", table.is_evaluation)):
        if not rows.any():
            continue
        weights = None if table.weights is None else table.weights[rows]
        metrics = metrics_of_rows(objective, margins[:, rows], table.labels[rows], weights)
        found[f"xgboost-{name}-loss"] = metrics.loss
        found[f"xgboost-{name}-{objective.quality_name}"] = metrics.quality
    return found
