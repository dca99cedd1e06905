"""Loss and quality over rows: sums of whole numbers that parties add up, and means of them."""

from __future__ import annotations

import numpy as np

from tasks.vertical_xgboost.fixed_point import FloatArray, GradientScales
from tasks.vertical_xgboost.objective import Metrics, Objective


def weighted(values: FloatArray, weights: FloatArray | None) -> FloatArray:
    """Values of rows times their weights, (..., n); as they are where rows have none."""
    return values if weights is None else values * weights


def weight_of(weights: FloatArray | None, scales: GradientScales, num_rows: int) -> float:
    """Sum of the weights of rows as parties add them up, or how many rows there are."""
    if weights is None:
        return float(num_rows)
    return float(scales.weight.decode(int(scales.weight.encode(weights).sum())))


def metric_sums(
    objective: Objective,
    scales: GradientScales,
    margins: FloatArray,
    labels: FloatArray,
    weights: FloatArray | None,
) -> tuple[int, int]:
    """Sums of loss and quality over rows, in the scales of the objective.

    Parameters
    ----------
    objective : Objective
    scales : GradientScales
    margins : (roots, n) float64
    labels : (n,) float64
    weights : (n,) float64 or None

    Raises
    ------
    SiteFault
        ``"outside-bound"``.
    """
    losses = weighted(objective.losses(margins, labels), weights)
    qualities = weighted(objective.qualities(margins, labels), weights)
    return (
        int(objective.loss_scale(scales).encode(losses).sum()),
        int(objective.quality_scale(scales).encode(qualities).sum()),
    )


def metrics_of_sums(
    objective: Objective, scales: GradientScales, sums: tuple[int, int], weight: float
) -> Metrics:
    """Metrics from the sums over all owners, and the weight of all rows."""
    loss, quality = sums
    return objective.metrics(
        float(objective.loss_scale(scales).decode(loss)) / weight,
        float(objective.quality_scale(scales).decode(quality)) / weight,
    )


def metrics_of_rows(
    objective: Objective, margins: FloatArray, labels: FloatArray, weights: FloatArray | None
) -> Metrics:
    """Metrics of rows that are all here, not rounded to fixed point; parameters as `metric_sums`.

    Raises
    ------
    ZeroDivisionError
        Without rows, or where all weights are 0.
    """
    losses, qualities = objective.losses(margins, labels), objective.qualities(margins, labels)
    return objective.metrics(
        float(np.average(losses.reshape(-1), weights=weights)),
        float(np.average(qualities.reshape(-1), weights=weights)),
    )
