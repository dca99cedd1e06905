"""What the server makes of the sites' evaluations of a survival model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add

from flwr.app import MetricRecord, RecordDict

from tasks.site.reply_fields import number
from tasks.survival.concordance import Concordance, ConcordanceSums, collapse, concordance
from tasks.survival.evaluation_plan import FOLLOW_UP_TOO_SHORT, EvaluationPlan
from tasks.survival.messages import EvaluationSums
from tasks.survival.pooled_metrics import SurvivalMetrics, survival_metrics
from tasks.survival.standardization import FeatureMoments
from tasks.survival.survival_metrics import SurvivalMetricsSums

Entries = dict[str, int | float | str]

NO_EVALUATION_ROWS = "no-evaluation-rows"

_ANTOLINI = "antolini-c-index"


def pooled_concordance(parts: Sequence[EvaluationSums], confidence_level: float) -> Concordance:
    """C-index within sites over all that evaluated a model."""
    sums = reduce(add, (part.concordance for part in parts), ConcordanceSums())
    return concordance(sums, confidence_level)


def evaluation_metrics(contents: Sequence[RecordDict], confidence_level: float) -> MetricRecord:
    """C-index over the evaluations that replies tell in their metrics."""
    parts = [EvaluationSums.from_metrics(_metrics_of(content)) for content in contents]
    pooled = pooled_concordance(parts, confidence_level)
    return MetricRecord({**c_index_entries(pooled, rows=sum(part.rows for part in parts))})


def train_metrics(contents: Sequence[RecordDict], confidence_level: float) -> MetricRecord:
    """C-index of the model that was sent, and the mean loss of the steps that followed."""
    pooled = evaluation_metrics(contents, confidence_level)
    metrics = [_metrics_of(content) for content in contents]
    steps = math.fsum(number(metric, "loss-steps") for metric in metrics)
    if steps:
        losses = (number(part, "loss") * number(part, "loss-steps") for part in metrics)
        pooled["train-loss"] = math.fsum(losses) / steps
    return pooled


def c_index_entries(result: Concordance, *, rows: int) -> dict[str, int | float]:
    """C-index with its interval, of those of its numbers that exist."""
    entries = {
        "c-index": result.value,
        "c-index-lower": result.lower,
        "c-index-upper": result.upper,
        "comparable-pairs": result.comparable_pairs or None,
        "evaluated-rows": rows or None,
    }
    return {key: value for key, value in entries.items() if value is not None}


def signs_of_collapse(
    result: Concordance, evaluations: Sequence[EvaluationSums], risk: FeatureMoments
) -> tuple[str, ...]:
    """Signs that the model predicts the same for everybody; none if no site has evaluated it."""
    if not any(part.rows for part in evaluations):
        return ()
    compared = [part for part in evaluations if part.rows > 1]
    return collapse(
        result,
        identical_across_samples=bool(compared) and all(part.identical for part in compared),
        spread=math.sqrt(float(risk.m2[0]) / risk.count),
    )


def pooled_metrics(
    parts: Sequence[SurvivalMetricsSums], plan: EvaluationPlan, confidence_level: float
) -> SurvivalMetrics:
    """Metrics of the final model over all sites that took part in the plan."""
    return survival_metrics(
        reduce(add, parts, SurvivalMetricsSums.zeros(plan)), plan, confidence_level
    )


def metrics_entries(metrics: SurvivalMetrics | None) -> Entries:
    """What the summary says of the metrics; Antolini's concordance is there as the C-index."""
    if metrics is None:
        return {"metrics-reason": FOLLOW_UP_TOO_SHORT}
    found = metrics.summary()
    return {key: value for key, value in found.items() if not key.startswith(_ANTOLINI)}


def _metrics_of(content: RecordDict) -> MetricRecord:
    return next(iter(content.metric_records.values()))
