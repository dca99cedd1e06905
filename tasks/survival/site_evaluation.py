"""What a site sums of a model's predictions: risk sets, concordance and the metrics of a plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks.survival.antolini import antolini_sums
from tasks.survival.baseline import BaselineHazard
from tasks.survival.concordance import ConcordanceSums, identical_predictions
from tasks.survival.data import SurvivalData
from tasks.survival.evaluation_plan import EvaluationPlan
from tasks.survival.label_cuts import subdivided
from tasks.survival.models import SurvivalModel, TimeDependent
from tasks.survival.risk_sets import FloatArray, RiskSetSums
from tasks.survival.survival_metrics import EvaluationRows, SurvivalMetricsSums

Inputs = NDArray[np.float32]


def risk_set_sums(
    model: SurvivalModel, inputs: Inputs, rows: SurvivalData, risk: FloatArray, *, grid: FloatArray
) -> RiskSetSums:
    """Exact risk sets: weighted by the relative hazard; of a model without a baseline by 1.

    Parameters
    ----------
    model : SurvivalModel
    inputs : ndarray, shape (n, p)
        Standardized features of the rows.
    rows : SurvivalData
        Training rows.
    risk : ndarray, shape (n,)
        What the model's `risk` gives for them.
    grid : ndarray, shape (bins + 1,)
        Time grid.
    """
    if isinstance(model, TimeDependent):
        log_hazard = model.log_hazard(inputs, grid)
        return RiskSetSums.of_time_dependent(rows.time, rows.event, log_hazard, grid=grid)
    predictor = np.zeros(len(rows)) if model.kind == "discrete" else risk
    return RiskSetSums.of(rows.time, rows.event, predictor, grid=grid)


def concordance_sums(
    model: SurvivalModel, inputs: Inputs, rows: SurvivalData, risk: FloatArray, *, cuts: FloatArray
) -> ConcordanceSums:
    """Harrell's sums, or Antolini's of a discrete model; arguments as of `risk_set_sums`.

    Of a time-dependent model they are zeros: its survival needs the baseline hazard, which is known
    in the last exchange only.
    """
    if model.kind == "proportional-hazards":
        return ConcordanceSums.of(risk, rows.time, rows.event)
    if model.kind == "time-dependent":
        return ConcordanceSums()
    grid = subdivided(cuts)
    return antolini_sums(rows.time, rows.event, model.survival(inputs, grid), grid=grid)


def has_identical_predictions(
    model: SurvivalModel, inputs: Inputs, risk: FloatArray, *, cuts: FloatArray
) -> bool:
    """Whether all rows have the same prediction; arguments as of `risk_set_sums`.

    One number a row is not all that a model predicts whose curves may cross: its curves, or
    hazards, at the cuts are compared.
    """
    if not identical_predictions(risk):
        return False
    if isinstance(model, TimeDependent):
        values = model.log_hazard(inputs, cuts)
    elif model.kind == "discrete":
        values = model.survival(inputs, cuts)
    else:
        return True
    return bool((values == values[:1]).all())


def metric_sums(
    model: SurvivalModel,
    inputs: Inputs,
    rows: SurvivalData,
    risk: FloatArray,
    *,
    plan: EvaluationPlan,
    baseline: BaselineHazard,
    privacy_level: int,
) -> SurvivalMetricsSums:
    """Sums of the metrics of the plan; arguments as of `risk_set_sums`, of evaluation rows."""
    evaluated = EvaluationRows(
        rows.time,
        rows.event,
        model.survival(inputs, plan.grid, baseline),
        risk if model.kind == "proportional-hazards" else None,
    )
    return SurvivalMetricsSums.of(evaluated, plan, privacy_level=privacy_level)
