"""What travels when survival curves by risk group are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from tasks.site.reply_fields import MalformedReply, reals
from tasks.survival.baseline import BaselineHazard
from tasks.survival.curves import GroupCurves
from tasks.survival.messages import (
    ROUNDING,
    encoding_entry,
    from_array_record,
    read_encoding,
    to_array_record,
)
from tasks.survival.standardization import Standardizer

CURVES = "query.survival_curves"

_GROUP_CURVES = ("rows", "survival_sum", "at_risk_count", "events")


@dataclass(frozen=True)
class CurvesRequest:
    """Server to sites: sum predicted and observed survival by risk group, on training rows."""

    arrays: ArrayRecord
    standardizer: Standardizer
    baseline: BaselineHazard
    cuts: NDArray[np.float64]

    reveals: ClassVar[str] = "the final model, its baseline hazard, and the cuts of the risk groups"

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        setting = {
            "feature-mean": self.standardizer.mean,
            "feature-scale": self.standardizer.scale,
            "grid": self.baseline.grid,
            "cumulative-hazard": self.baseline.cumulative,
            "center": np.array(self.baseline.center),
            "cuts": self.cuts,
        }
        content = RecordDict({"arrays": self.arrays, "setting": to_array_record(setting)})
        if entry := encoding_entry(self.standardizer):
            content["encoding"] = ConfigRecord(dict(entry))
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> CurvesRequest:
        """Read the message's content."""
        setting = from_array_record(content.array_records["setting"])
        return cls(
            arrays=content.array_records["arrays"],
            standardizer=Standardizer(
                setting["feature-mean"],
                setting["feature-scale"],
                read_encoding(content.config_records.get("encoding", ConfigRecord())),
            ),
            baseline=BaselineHazard(
                setting["grid"], setting["cumulative-hazard"], float(setting["center"])
            ),
            cuts=setting["cuts"],
        )


@dataclass(frozen=True)
class CurvesReply:
    """A site's training rows by risk group."""

    curves: GroupCurves

    reveals: ClassVar[str] = (
        "training rows by risk group: their number; events, rows at risk and summed predicted "
        "survival by cell, a union of the cells of the evaluate reply in which privacy-level rows "
        "of every group leave; zeros only, if the site has fewer in any group"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        arrays = {name: getattr(self.curves, name) for name in _GROUP_CURVES}
        return RecordDict({"curves": to_array_record(arrays)})

    @classmethod
    def from_record(cls, content: RecordDict) -> CurvesReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
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
        return cls(curves)
