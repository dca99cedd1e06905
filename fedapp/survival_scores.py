"""Score a trained survival model on tables that are at hand, by the metrics of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tasks.site.faults import SiteFault
from tasks.survival.antolini import antolini_sums
from tasks.survival.concordance import (
    Concordance,
    ConcordanceSums,
    collapse,
    concordance,
    identical_predictions,
)
from tasks.survival.data import SurvivalData, read_survival_data
from tasks.survival.evaluation_plan import FOLLOW_UP_TOO_SHORT, evaluation_plan
from tasks.survival.label_cuts import subdivided
from tasks.survival.pooled_metrics import SurvivalMetrics, survival_metrics
from tasks.survival.predictor import SurvivalPredictor
from tasks.survival.risk_sets import FloatArray, RiskSetSums
from tasks.survival.survival_metrics import EvaluationRows, SurvivalMetricsSums

PROPORTIONAL_HAZARDS, DISCRETE = "proportional-hazards", "discrete"
HARRELL, ANTOLINI = "harrell", "antolini"

_STAND_IN = "features of the model"


def score_tables(
    predictor: SurvivalPredictor,
    tables: Sequence[pd.DataFrame],
    *,
    time: str,
    event: str,
    event_value: str = "1",
    censored_value: str = "0",
    kind: str,
    confidence_level: float,
) -> dict[str, Any]:
    """Concordance, integrated Brier score and the other metrics of a run, with intervals.

    Rows of one table are compared with one another, and never rows of two: with one table the
    C-index is that of its rows, with several it is that within sites. Brier scores are means over
    the rows of all tables. The censoring distribution that weights rows is estimated from the
    same rows, on the model's time grid.

    Parameters
    ----------
    predictor : SurvivalPredictor
        The model.
    tables : sequence of DataFrame
        Features, times and events; see `read_survival_data` for the values of events.
    time, event : str
        Columns of times and events.
    event_value, censored_value : str
        What the event column holds.
    kind : {"proportional-hazards", "time-dependent", "discrete"}
        Of the model: rows are ranked by the linear predictor (Harrell's C-index) under proportional
        hazards, else by curves that may cross (Antolini's).
    confidence_level : float
        In (0, 1).

    Returns
    -------
    dict
        ``c_index`` and its bounds, ``c_index_definition`` (``"harrell"`` or ``"antolini"``),
        ``ibs``, ``ibs_kaplan_meier`` and the metrics of a run's summary, ``rows``, ``events``,
        and ``prediction_diagnostics`` with ``identical_across_samples`` and ``signs`` of a
        collapsed model. What does not exist is absent, and ``<name>_reason`` says why.

    Raises
    ------
    ValueError
        With everything that is wrong with the tables.
    """
    parts, risks = _read(predictor, tables, time, event, (event_value, censored_value))
    grid = predictor.baseline.grid
    curves = [predictor.survival(table, grid) for table in tables]
    proportional = kind == PROPORTIONAL_HAZARDS
    if proportional:
        sums = _harrell_sums(parts, risks)
    elif kind == DISCRETE:
        fine = subdivided(np.array(predictor.architecture.label_cuts))
        at_cuts = [predictor.survival(table, fine) for table in tables]
        sums = _antolini_sums(parts, at_cuts, fine)
    else:
        sums = _antolini_sums(parts, curves, grid)
    c_index = concordance(sums, confidence_level)
    metrics = _metrics(parts, risks if proportional else None, curves, grid, confidence_level)
    rows = sum(len(part) for part in parts)
    identical = rows > 1 and identical_predictions(np.concatenate(risks))
    if identical and not proportional:  # one number a row is not all of a curve
        every = np.concatenate(curves)
        identical = bool((every == every[0]).all())
    signs = collapse(
        c_index,
        identical_across_samples=identical,
        spread=float(np.std(np.concatenate(risks))),
    )
    scores: dict[str, Any] = {"c_index": c_index.value, **_bounds(c_index)}
    scores["c_index_definition"] = HARRELL if proportional else ANTOLINI
    if metrics is None:
        scores["ibs_reason"] = FOLLOW_UP_TOO_SHORT
    else:
        summary = metrics.summary()
        scores |= {name.replace("-", "_"): value for name, value in summary.items()}
        signs += metrics.collapse_signs(c_index)
    scores["rows"] = rows
    scores["events"] = sum(int(part.event.sum()) for part in parts)
    scores = {name: value for name, value in scores.items() if value is not None}
    scores["prediction_diagnostics"] = {
        "identical_across_samples": identical,
        "signs": list(signs),
    }
    return scores


def _read(
    predictor: SurvivalPredictor,
    tables: Sequence[pd.DataFrame],
    time: str,
    event: str,
    values: tuple[str, str],
) -> tuple[list[SurvivalData], list[FloatArray]]:
    """Times and events of the tables, and the risks of their rows."""
    parts, risks = [], []
    faults = [] if tables else ["no table to evaluate on"]
    for number, table in enumerate(tables):
        where = f"table {number}: " if len(tables) > 1 else ""
        # Features are the model's to read: text is a category there. A column of zeros stands in.
        labels = {name: table[name] for name in {time, event} if name in table}
        try:
            part = read_survival_data(
                pd.DataFrame({**labels, _STAND_IN: 0.0}, index=table.index),
                time=time,
                event=event,
                features=[_STAND_IN],
                event_value=values[0],
                censored_value=values[1],
            )
            parts.append(part)
        except SiteFault as fault:
            faults += [f"{where}{reason}" for reason in fault.reasons]
        try:
            risks.append(predictor.risk(table))
        except ValueError as error:
            faults.append(f"{where}{error}")
    if faults:
        raise ValueError("; ".join(faults))
    return parts, risks


def _harrell_sums(parts: Sequence[SurvivalData], risks: Sequence[FloatArray]) -> ConcordanceSums:
    sums = ConcordanceSums()
    for part, risk in zip(parts, risks, strict=True):
        sums += ConcordanceSums.of(risk, part.time, part.event)
    return sums


def _antolini_sums(
    parts: Sequence[SurvivalData], curves: Sequence[FloatArray], grid: FloatArray
) -> ConcordanceSums:
    sums = ConcordanceSums()
    for part, curve in zip(parts, curves, strict=True):
        sums += antolini_sums(part.time, part.event, curve, grid=grid)
    return sums


def _metrics(
    parts: Sequence[SurvivalData],
    risks: Sequence[FloatArray] | None,
    curves: Sequence[FloatArray],
    grid: FloatArray,
    confidence_level: float,
) -> SurvivalMetrics | None:
    counts = [RiskSetSums.of(p.time, p.event, np.zeros(len(p)), grid=grid) for p in parts]
    pooled = counts[0]
    for more in counts[1:]:
        pooled += more
    plan = evaluation_plan(pooled, grid, sites=len(parts), privacy_level=1)  # counts are exact
    if plan is None:
        return None
    sums = SurvivalMetricsSums.zeros(plan)
    for number, (part, curve) in enumerate(zip(parts, curves, strict=True)):
        risk = None if risks is None else risks[number]
        rows = EvaluationRows(part.time, part.event, curve, risk)
        sums += SurvivalMetricsSums.of(rows, plan, privacy_level=1)
    return survival_metrics(sums, plan, confidence_level)


def _bounds(estimate: Concordance) -> dict[str, Any]:
    return {
        "c_index_lower": estimate.lower,
        "c_index_upper": estimate.upper,
        "c_index_reason": estimate.reason or None,
        "comparable_pairs": estimate.comparable_pairs or None,
    }
