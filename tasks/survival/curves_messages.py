"""What travels when survival curves by risk group are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from tasks.site.reply_fields import MalformedReply, reals
from tasks.site.requests import array_record
from tasks.survival.baseline import BaselineHazard
from tasks.survival.curves import GroupCurves
from tasks.survival.evaluation_plan import EvaluationPlan
from tasks.survival.messages import (
    ROUNDING,
    Arrays,
    encoding_entry,
    from_array_record,
    read_encoding,
    read_standardizer,
    to_array_record,
)
from tasks.survival.risk_sets import time_grid
from tasks.survival.standardization import Standardizer
from tasks.survival.survival_metrics import SurvivalMetricsSums

CURVES = "query.survival_curves"

_GROUP_CURVES = ("rows", "survival_sum", "at_risk_count", "events")


@dataclass(frozen=True)
class CurvesRequest:
    """Server to sites: sum predicted and observed survival by risk group, on training rows."""

    arrays: ArrayRecord
    standardizer: Standardizer
    baseline: BaselineHazard
    cuts: NDArray[np.float64]
    label_cuts: NDArray[np.float64]
    plan: EvaluationPlan | None = None

    reveals: ClassVar[str] = (
        "the final model, its baseline hazard (of a discrete model: the cumulative hazard of all "
        "rows), the cuts of the risk groups, the borders of the intervals of discrete models, and "
        "what evaluation rows are evaluated by: the pooled Kaplan-Meier estimates of survival and "
        "of censoring on the time grid, times of the metrics, and cuts of predicted probability"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        setting = {
            "feature-mean": self.standardizer.mean,
            "feature-scale": self.standardizer.scale,
            "grid": self.baseline.grid,
            "cumulative-hazard": self.baseline.cumulative,
            "center": np.array(self.baseline.center),
            "cuts": self.cuts,
            "label-cuts": self.label_cuts,
        }
        content = RecordDict({"arrays": self.arrays, "setting": to_array_record(setting)})
        if entry := encoding_entry(self.standardizer):
            content["encoding"] = ConfigRecord(dict(entry))
        if self.plan is not None:
            content["plan"] = to_array_record(self.plan.to_arrays())
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> CurvesRequest:
        """Read the message's content; raises MalformedReply if it is malformed."""
        setting = from_array_record(array_record(content, "setting"))
        encoding = content.get("encoding", ConfigRecord())
        if not isinstance(encoding, ConfigRecord):
            raise MalformedReply("encoding: must be a ConfigRecord")
        cuts, label_cuts = (_finite(setting, name) for name in ("cuts", "label-cuts"))
        return cls(
            arrays=array_record(content, "arrays"),
            standardizer=read_standardizer(
                _finite(setting, "feature-mean"),
                _finite(setting, "feature-scale"),
                read_encoding(encoding),
            ),
            baseline=_read_baseline(setting),
            cuts=cuts,
            label_cuts=label_cuts,
            plan=_read_plan(content),
        )


@dataclass(frozen=True)
class CurvesReply:
    """A site's training rows by risk group, and the metrics of its evaluation rows.

    Attributes
    ----------
    curves : GroupCurves
        Of the training rows.
    metrics : SurvivalMetricsSums or None
        Of the evaluation rows, by the plan; None where the request has no plan.
    """

    curves: GroupCurves
    metrics: SurvivalMetricsSums | None = None

    reveals: ClassVar[str] = (
        "training rows by risk group: their number; events, rows at risk and summed predicted "
        "survival by cell, a union of the cells of the evaluate reply in which privacy-level rows "
        "of every group leave; zeros only, if the site has fewer in any group. Sums over "
        "at least privacy-level evaluation rows (else zeros), weighted by merged cells of time in "
        "which as many leave: five of weighted pair counts each of Uno's concordance (if as many "
        "events begin them), of Antolini's (CoxTime, unweighted) and of the AUC at the plan's "
        "times with as many cases and controls; of Brier scores, and of those of the pooled "
        "Kaplan-Meier estimate, and of their squares and products; by bin of predicted probability "
        "with privacy-level rows, and of all smaller bins together: summed predictions, and events "
        "and rows at risk by cell of the time grid, cells merged as those above"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        arrays = {name: getattr(self.curves, name) for name in _GROUP_CURVES}
        content = RecordDict({"curves": to_array_record(arrays)})
        if self.metrics is not None:
            content["metric-sums"] = to_array_record({**self.metrics.to_arrays()})
        return content

    @classmethod
    def from_record(cls, content: RecordDict, plan: EvaluationPlan | None = None) -> CurvesReply:
        """Read the message's content, an answer to a request with this plan.

        Raises ValueError or KeyError if it is malformed.
        """
        arrays = from_array_record(content.array_records["curves"])
        rows = arrays["rows"]
        if rows.dtype != np.int64:
            raise MalformedReply("rows: must be whole numbers")
        sums = {name: reals(arrays, name, ndim=2) for name in _GROUP_CURVES if name != "rows"}
        curves = GroupCurves(rows, **sums)
        most = rows * (1 + ROUNDING)
        for name in ("survival_sum", "at_risk_count"):
            if (sums[name] > most[:, None]).any():
                raise MalformedReply(f"{name}: must be at most the group's rows")
        if (sums["events"].sum(axis=1) > most).any():
            raise MalformedReply("events: must be at most the group's rows")
        return cls(curves, _read_metrics(content, plan))


def _finite(setting: Arrays, name: str) -> NDArray[np.float64]:
    array = reals(setting, name)
    if not np.isfinite(array).all():
        raise MalformedReply(f"{name}: must be finite numbers")
    return array


def _read_baseline(setting: Arrays) -> BaselineHazard:
    """Return the baseline hazard of a request, on a grid of cells of equal width."""
    grid, cumulative = _finite(setting, "grid"), _finite(setting, "cumulative-hazard")
    center = reals(setting, "center", ndim=0)
    try:
        baseline = BaselineHazard(grid, cumulative, float(center))
    except ValueError:
        raise MalformedReply("grid, cumulative-hazard, center: must be a baseline hazard") from None
    # Cells of a server's choice would part single rows from others.
    if not np.allclose(grid, time_grid(baseline.horizon, grid.size - 1), rtol=1e-9, atol=0):
        raise MalformedReply("grid: must be of cells of equal width")
    return baseline


def _read_plan(content: RecordDict) -> EvaluationPlan | None:
    if "plan" not in content:
        return None
    try:
        return EvaluationPlan.from_arrays(from_array_record(array_record(content, "plan")))
    except MalformedReply:
        raise
    except (ValueError, TypeError, LookupError):
        raise MalformedReply("plan: must be a plan of the evaluation") from None


def _read_metrics(content: RecordDict, plan: EvaluationPlan | None) -> SurvivalMetricsSums | None:
    if plan is None:
        return None
    arrays = from_array_record(content.array_records["metric-sums"])
    try:
        return SurvivalMetricsSums.from_arrays({name: reals(arrays, name) for name in arrays}, plan)
    except MalformedReply:
        raise
    except ValueError as error:  # whose text has no number of the reply
        raise MalformedReply(str(error)) from None
