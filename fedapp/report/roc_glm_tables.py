"""Tables of the report on a ROC-GLM run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedapp.report.page import Table

_RATES = (
    ("sensitivity", "sensitivity", "positives with a score above the threshold"),
    ("specificity", "specificity", "negatives with a score not above it"),
    ("PPV", "ppv", "positives among scores above it"),
    ("NPV", "npv", "negatives among scores not above it"),
    ("accuracy", "accuracy", "rows on the right side of it"),
)


def number(value: float) -> str:
    """Write a count: thousands apart, decimals only where noise made it no whole number."""
    whole = abs(value - round(value)) < 1e-9
    return (f"{round(value):,}" if whole else f"{value:,.1f}").replace(",", "\u202f")


def estimates_table(summary: Mapping[str, Any], *, level: float) -> list[Table]:
    """All estimates with their digits; no table where there is none."""
    rows = [
        [name, f"{summary[key]:.6g}", meaning]
        for name, key, meaning in _estimates(level)
        if isinstance(summary.get(key), int | float)
    ]
    columns = {"estimate": "short", "value": "number", "what it is": "text"}
    return [Table(columns, rows, caption="Estimates")] if rows else []


def _estimates(level: float) -> list[tuple[str, str, str]]:
    return [
        ("AUC", "auc", "from counts: what the interval and the test are about"),
        ("AUC with the noise in it", "auc-undebiased", "before the noise was taken out"),
        ("lower bound", "ci-lower", f"of the {100 * level:g} % confidence interval"),
        ("upper bound", "ci-upper", f"of the {100 * level:g} % confidence interval"),
        ("variance of the AUC", "auc-variance", "DeLong, and that of the noise where there is any"),
        ("AUC of the ROC-GLM", "auc-roc-glm", "area under the fitted curve, Φ(γ1 / √(1 + γ2²))"),
        ("with the noise in it", "auc-roc-glm-undebiased", "AUC of the ROC-GLM on noisy scores"),
        ("γ1", "gamma-1", "ROC(t) = Φ(γ1 + γ2 Φ⁻¹(t)); no standard errors, see the guide"),
        ("γ2", "gamma-2", "1: both classes spread alike"),
        ("deviance", "deviance", "of the ROC-GLM, over all responses"),
        ("Brier score", "brier", "mean squared difference of score and label"),
    ]


def confusion_table(content: Mapping[str, Any]) -> list[Table]:
    """Rows by class and prediction."""
    cells = [
        ["score above", "true-positive", "false-positive"],
        ["score not above", "false-negative", "true-negative"],
    ]
    keys = [key for row in cells for key in row[1:]]
    if any(content.get(key) is None for key in keys):
        return []
    rows = [
        [head, *(number(content[key]) for key in row), number(sum(content[key] for key in row))]
        for head, *row in cells
    ]
    sums = [content[a] + content[b] for a, b in zip(cells[0][1:], cells[1][1:], strict=True)]
    rows.append(["together", *(number(value) for value in sums), number(sum(sums))])
    columns = {"": "short", "positive": "number", "negative": "number", "together": "number"}
    return [Table(columns, rows, caption="Confusion table: patients by class and by prediction")]


def rates_table(content: Mapping[str, Any]) -> list[Table]:
    """Rates at the threshold."""
    rows = [
        [name, f"{content[key]:.3f}", meaning]
        for name, key, meaning in _RATES
        if content.get(key) is not None
    ]
    columns = {"rate": "short", "value": "number", "share of": "text"}
    return [Table(columns, rows, caption="Rates")] if rows else []


def pooled_table(content: Mapping[str, Mapping[str, float]]) -> Table:
    """Federated and pooled values side by side."""
    rows = [
        [name, *(_digits(entry.get(key)) for key in ("federated", "pooled")), _difference(entry)]
        for name, entry in content.items()
    ]
    columns = dict.fromkeys(("federated", "pooled", "difference"), "number")
    return Table({"quantity": "short", **columns}, rows, caption="The same run, rows together")


def _digits(value: float | None) -> str:
    return "–" if value is None else f"{value:.8g}"


def _difference(entry: Mapping[str, float]) -> str:
    value = entry.get("difference")
    if value is None:
        return "–"
    return "0" if value == 0 else f"{value:.1e}"
