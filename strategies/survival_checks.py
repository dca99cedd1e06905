"""What a site may answer in a survival run: rows that it stated, grids that were asked for, steps
that training can make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from strategies.averaging import IMPLAUSIBLE
from tasks.site.faults import SiteFault
from tasks.site.reply_fields import MalformedReply
from tasks.survival.curves_messages import CurvesReply, CurvesRequest
from tasks.survival.messages import Arrays, EvaluateReply, TrainReply
from tasks.survival.models import Kind

StatedRows = tuple[int, int] | None
"""Training and evaluation rows that a site stated in set-up; None: it took no part in that."""

FARTHEST_STEP = 1e4
"""Most that training may move an element of a model without privatization in one round. An
element of a network on standardized features is of the order of 1."""


def check_train_metrics(content: RecordDict, *, kind: Kind, stated: StatedRows) -> None:
    """Refuse a training reply whose metrics are malformed, or not those of the site's rows.

    Raises
    ------
    MalformedReply
        Naming the metric.
    """
    metrics = next(iter(content.metric_records.values()))
    rows, _, _, evaluation = TrainReply.read_metrics(metrics, tied_twice=_has_ties_twice(kind))
    _refuse_other_rows(rows, evaluation.rows, stated=stated)


def read_evaluation(
    content: RecordDict, *, kind: Kind, time_bins: int, stated: StatedRows
) -> EvaluateReply:
    """Read a site's evaluation of the final model, on the grid that was asked for.

    Raises
    ------
    ValueError, KeyError
        If it is malformed, of other rows or on another grid.
    """
    reply = EvaluateReply.from_record(
        content,
        time_dependent=kind == "time-dependent",
        tied_twice=_has_ties_twice(kind),
    )
    _refuse_other_rows(reply.num_examples, reply.evaluation.rows, stated=stated)
    cells, predictors = reply.risk_sets.events.size, reply.risk_moments.mean.size
    if (cells, predictors) != (time_bins, 1):
        raise ValueError("sums on another grid than asked for")
    return reply


def read_curves(content: RecordDict, request: CurvesRequest, *, stated: StatedRows) -> CurvesReply:
    """Read a site's answer to a request for curves and metrics.

    Raises
    ------
    ValueError, KeyError
        If it is malformed, of other rows, or of other groups or another grid.
    """
    reply = CurvesReply.from_record(content, request.plan)
    asked = (request.cuts.size + 1, request.baseline.grid.size - 1)
    if reply.curves.events.shape != asked:
        raise ValueError("sums of other groups or another grid than asked for")
    if reply.metrics is not None and (stated is None or reply.metrics.rows not in (0, stated[1])):
        raise MalformedReply("brier: rows must be as many as the site stated first")
    return reply


def refuse_far_steps(arrays: Arrays, sent: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a model that is farther from the one sent than training can take it.

    Raises
    ------
    SiteFault
        If an element moved by more than `FARTHEST_STEP`.
    """
    with np.errstate(over="ignore"):
        far = [n for n, array in arrays.items() if (abs(array - sent[n]) > FARTHEST_STEP).any()]
    if far:
        raise SiteFault(
            IMPLAUSIBLE, f"array {far[0]!r}: an element moved by more than {FARTHEST_STEP:g}"
        )


def _has_ties_twice(kind: Kind) -> bool:
    return kind != "proportional-hazards"


def _refuse_other_rows(rows: int, evaluated: float, *, stated: StatedRows) -> None:
    if stated is None or rows != stated[0] or evaluated not in (0, stated[1]):
        raise MalformedReply(
            "num-examples, evaluated-rows: must be those that the site stated first"
        )
