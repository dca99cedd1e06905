"""Tables of the report on a survival run, and the words beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedapp.report.page import Table

_REASONS = {
    "follow-up-too-short": "too few rows are followed for long enough",
    "no-rows": "no site has enough evaluation rows",
}


def metrics_table(summary: Mapping[str, Any], *, confidence: str) -> list[Table]:
    """All metrics of the final model with their intervals; no table where there is none."""
    rows = [
        [name, f"{summary[key]:.4f}", _interval(summary, key), meaning]
        for name, key, meaning in _metrics(summary)
        if isinstance(summary.get(key), int | float)
    ]
    columns = {"metric": "short", "value": "number", confidence: "short", "what it is": "text"}
    return [Table(columns, rows, caption="Metrics of the final model")] if rows else []


def metrics_words(summary: Mapping[str, Any]) -> list[str]:
    """What the table rests on, or why there are none of the metrics that need censoring."""
    reason = str(summary.get("metrics-reason", ""))
    if reason:
        why = _REASONS.get(reason, reason)
        return [f"There is no Brier score, AUC, Uno's concordance or calibration: {why}."]
    if "ibs" not in summary:
        return []
    words = (
        "On the evaluation rows of all sites, up to time "
        f"{summary['metrics-upper-limit']:g}. Rows are weighted by the inverse probability of not "
        "being censored, one Kaplan-Meier estimate from the counts of all sites. Brier scores are "
        "those of all rows in one place; concordances and AUC compare rows within sites."
    )
    if "ibs-difference" in summary:
        better = "lower (better)" if summary["ibs-difference"] < 0 else "not lower"
        words += (
            f" The integrated Brier score is {better} than that of one Kaplan-Meier curve for "
            "everybody."
        )
    return [words]


def c_index_name(summary: Mapping[str, Any]) -> str:
    """Whose concordance the C-index of this model is."""
    return "Harrell's" if _is_proportional(summary) else "Antolini's"


def c_index_words(summary: Mapping[str, Any]) -> str:
    """Which pairs count as concordant."""
    if _is_proportional(summary):
        return (
            "in which the model gives the row with the earlier event the higher risk (equal risks "
            "count half)"
        )
    return (
        "in which the row with the earlier event has the lower predicted survival at the time of "
        "that event (equal survival counts half)"
    )


def model_words(summary: Mapping[str, Any]) -> list[str]:
    """What predicted survival is made of, and by what rows are put into risk groups."""
    kind = summary.get("model-kind")
    name = summary.get("model", "The model")
    if kind == "discrete":
        return [
            f"{name} predicts survival at cuts of time by itself, without a baseline hazard; "
            "between them it is interpolated. Risk groups are thirds of the log cumulative hazard "
            "up to the middle cut."
        ]
    if kind == "time-dependent":
        return [
            f"{name} predicts a relative hazard that changes with time, and survival by a baseline "
            "hazard. Its C-index needs the baseline, so it is computed for the final model only. "
            "Risk groups are thirds of the log relative hazard at the middle cut of time."
        ]
    return []


def _is_proportional(summary: Mapping[str, Any]) -> bool:
    return bool(summary.get("model-kind", "proportional-hazards") == "proportional-hazards")


def _interval(summary: Mapping[str, Any], key: str) -> str:
    lower, upper = summary.get(f"{key}-lower"), summary.get(f"{key}-upper")
    return f"{lower:.4f} – {upper:.4f}" if lower is not None and upper is not None else ""


def _metrics(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    def at(key: str) -> str:
        time = summary.get(key)
        return f"at time {time:g}" if isinstance(time, int | float) else ""

    by_time = [
        (name, f"{key}-{number}", f"{meaning} {at(f'metrics-time-{number}')}")
        for name, key, meaning in (
            ("AUC(t)", "auc", "events up to t against rows beyond it, within sites,"),
            ("Brier score", "brier", "mean squared error of predicted survival"),
        )
        for number in (1, 2, 3, 4, 5)
    ]
    calibrated = at("calibration-time")
    return [
        ("C-index", "c-index", f"{c_index_name(summary)} concordance within sites"),
        ("Uno's C", "uno-c-index", "concordance within sites, weighted for censoring"),
        ("mean AUC", "auc-mean", "of AUC(t), weighted by events"),
        *by_time[:5],
        ("integrated Brier score", "ibs", "mean of the Brier score over time; 0 is perfect"),
        ("of Kaplan-Meier", "ibs-kaplan-meier", "the same of one curve for everybody"),
        ("difference", "ibs-difference", "of the two; below 0 the model is better"),
        *by_time[5:],
        ("predicted events", "calibration-predicted", f"mean predicted probability {calibrated}"),
        ("observed events", "calibration-observed", f"1 less Kaplan-Meier {calibrated}"),
        ("calibration error", "calibration-error", "mean distance of the two by bin of prediction"),
    ]
