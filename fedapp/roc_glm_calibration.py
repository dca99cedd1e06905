"""Calibration slope and intercepts of a validation: exact where they can be, else from cells."""

from __future__ import annotations

from typing import Any

from strategies.roc_glm_result import RocGlmResult
from tasks.roc_glm.calibration_slope import (
    CalibrationFit,
    cell_scores,
    grouped_calibration,
    too_coarse,
)
from tasks.site.not_estimable import NotEstimable

NO_SLOPE = "no calibration slope under noise: its standard error would leave the noise out"
TOO_COARSE = "cells are too wide for a calibration slope: mode = 'fisher' gives it exactly"


def calibration_fit(result: RocGlmResult) -> CalibrationFit | None:
    """Calibration slope and intercepts.

    By Fisher scoring over exchanges, which is exact, or else from pooled counts: of `exact` at the
    scores themselves, otherwise of cells, which is close. None where cells are too wide, and under
    noise: a standard error from noisy counts would leave the noise out, which is most of it.
    """
    if result.calibration is not None:
        return result.calibration
    counts, scores, plan = result.pooled.counts, result.pooled.levels, result.plan
    sums = result.statistics.calibration if result.statistics is not None else None
    if counts is None or sums is None or plan.noise is not None:
        return None
    if not len(scores):
        if too_coarse(counts):
            return None
        scores = cell_scores(plan.cuts, counts, edges=plan.places.edges, sums=sums)
    try:
        return grouped_calibration(counts, scores)
    except NotEstimable:
        return None


def calibration_numbers(result: RocGlmResult) -> dict[str, Any]:
    """What the summary has of slope and intercept, or why there is none."""
    plan, counts = result.plan, result.pooled.counts
    from_cells = counts is not None and not len(result.pooled.levels) and not result.calibration
    if (fit := calibration_fit(result)) is not None:
        return {
            "calibration-slope": fit.slope,
            "calibration-slope-error": fit.slope_error,
            "calibration-intercept": fit.intercept_in_the_large,
            "calibration-intercept-error": fit.intercept_in_the_large_error,
            **({"calibration-slope-from-cells": True} if from_cells else {}),
        }
    if not plan.is_probability:
        return {}
    if plan.noise is not None:
        return {"no-calibration-slope": NO_SLOPE}
    if from_cells and counts is not None and too_coarse(counts):
        return {"no-calibration-slope": TOO_COARSE}
    return {}
