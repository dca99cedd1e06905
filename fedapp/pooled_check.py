"""Simulation only: the same numbers from the pooled rows, beside those of the federation.

In a deployment no one has all rows; a simulation's server runs where the sites' rows are. It
reads them as the sites do, after everything else is done, and uses them for nothing but this.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from flwr.supercore.constant import TaskType

from fedapp.hosted_sites import HostingGrid
from fedapp.prepared_sites import prepare_roc_glm_site
from fedapp.run_config import RunConfig, Value
from strategies.exchange import Exchange
from strategies.roc_glm_result import RocGlmResult
from tasks.roc_glm.calibration_slope import grouped_calibration
from tasks.roc_glm.classification import rates
from tasks.roc_glm.counts import DistinctCounts
from tasks.roc_glm.rows import RocRows
from tasks.roc_glm.site_statistics import site_statistics
from tasks.roc_glm.validation import validate_counts
from tasks.site.faults import SiteFault
from tasks.site.not_estimable import NotEstimable


def pooled_check(
    exchange: Exchange,
    config: RunConfig,
    result: RocGlmResult,
    summary: Mapping[str, Any],
    *,
    model: str,
) -> dict[str, dict[str, float]]:
    """Compare with the pooled rows, without cells and noise; empty outside simulation.

    Parameters
    ----------
    exchange : Exchange
        Tells the runtime and its nodes.
    config : RunConfig
    result : RocGlmResult
        Which sites took part.
    summary : mapping
        Numbers of the federation.
    model : str
        The model file; ``""`` if there is none.

    Returns
    -------
    dict of str to dict
        By key of the summary: ``federated``, ``pooled``, ``difference`` (absolute).
    """
    if exchange.run.primary_task_type != TaskType.SIMULATION:
        return {}
    found = {}
    for node in node_configs(exchange):
        try:
            site = prepare_roc_glm_site(node, config, model=model)
        except SiteFault:  # a site that was left out, or rows that are elsewhere
            continue
        found[site.name] = site.rows
    if not set(result.sites) <= set(found):
        return {}
    parts = [found[name] for name in result.sites]
    rows = RocRows(
        negative=np.sort(np.concatenate([part.negative for part in parts])),
        positive=np.sort(np.concatenate([part.positive for part in parts])),
    )
    pooled = _pooled_numbers(rows, config, result)
    return {
        key: {
            "federated": summary[key],
            "pooled": value,
            "difference": abs(summary[key] - value),
        }
        for key, value in pooled.items()
        if key in summary and value is not None
    }


def node_configs(exchange: Exchange) -> list[dict[str, Value]]:
    """Configurations of a simulation's nodes, from which their rows can be read again."""
    from fedapp.simulation import InProcessGrid

    grid = exchange.grid
    if isinstance(grid, InProcessGrid):
        return [dict(context.node_config) for context in grid.contexts.values()]
    number = grid.num_sites if isinstance(grid, HostingGrid) else len(list(grid.get_node_ids()))
    return [{"partition-id": part, "num-partitions": number} for part in range(number)]


def _pooled_numbers(
    rows: RocRows, config: RunConfig, result: RocGlmResult
) -> dict[str, float | None]:
    distinct = DistinctCounts.of(rows)
    validation = validate_counts(distinct.counts, config=config.roc_glm)
    estimate, fit = validation.estimate, validation.fit
    places = result.plan.places
    statistics = site_statistics(
        rows, np.array([places.threshold]), edges=places.edges, privacy_level=1
    )
    calibration = statistics.calibration
    (at_threshold,) = rates(statistics.confusion, np.array([places.threshold]))
    slope = None
    if len(places.edges):
        with suppress(NotEstimable):
            slope = grouped_calibration(distinct.counts, distinct.levels)
    return {
        "auc": estimate.auc,
        "auc-variance": estimate.variance,
        "ci-lower": estimate.interval.lower if estimate.interval else None,
        "ci-upper": estimate.interval.upper if estimate.interval else None,
        "gamma-1": fit.gamma_1 if fit else None,
        "gamma-2": fit.gamma_2 if fit else None,
        "auc-roc-glm": fit.auc if fit else None,
        "deviance": fit.deviance if fit else None,
        "brier": calibration.brier if calibration else None,
        "observed-to-expected": calibration.observed_to_expected if calibration else None,
        "calibration-slope": slope.slope if slope else None,
        "calibration-intercept": slope.intercept_in_the_large if slope else None,
        "sensitivity": at_threshold.sensitivity,
        "specificity": at_threshold.specificity,
    }
