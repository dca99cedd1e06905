"""What travels between server and sites in the survival task, message by message.

Every ``reveals`` is the sentence that the disclosure ledger has of a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from tasks.survival.baseline import BaselineHazard
from tasks.survival.concordance import ConcordanceSums
from tasks.survival.curves import GroupCurves
from tasks.survival.risk_sets import RiskSetSums
from tasks.survival.standardization import FeatureMoments, Standardizer

STATISTICS = "query.survival_statistics"
TRAIN = "train"
EVALUATE = "evaluate"
CURVES = "query.survival_curves"

Arrays = dict[str, NDArray[Any]]
Metrics = dict[str, int | float | list[int] | list[float]]

_SUMS = ("a", "b", "aa", "ab", "bb")


@dataclass(frozen=True)
class StatisticsRequest:
    """Server to sites: describe your rows by sums."""

    reveals: ClassVar[str] = "nothing"

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        return RecordDict({"request": ConfigRecord({"statistics": "survival"})})


@dataclass(frozen=True)
class StatisticsReply:
    """A site's rows in sums.

    Attributes
    ----------
    feature_names : tuple of str
        Columns, in the order of the moments.
    moments : FeatureMoments
        Of the training rows.
    n_events : int
        Training rows with an event.
    n_test : int
        Rows kept for evaluation.
    horizon : float
        Round number that fewer than privacy-level of the training times exceed.
    data_set : str
        Name of the bundled data set that the rows are of; ``""``: the site's own.
    """

    feature_names: tuple[str, ...]
    moments: FeatureMoments
    n_events: int
    n_test: int
    horizon: float
    data_set: str

    reveals: ClassVar[str] = (
        "names of the feature columns; count, mean and sum of squares of each over the site's "
        "training rows; number of events and of evaluation rows; a round number that fewer than "
        "privacy-level follow-up times exceed"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        return RecordDict(
            {
                "statistics": ConfigRecord(
                    {
                        "feature-names": list(self.feature_names),
                        "count": self.moments.count,
                        "n-events": self.n_events,
                        "n-test": self.n_test,
                        "horizon": self.horizon,
                        "data-set": self.data_set,
                    }
                ),
                "moments": to_array_record({"mean": self.moments.mean, "m2": self.moments.m2}),
            }
        )

    @classmethod
    def from_record(cls, content: RecordDict) -> StatisticsReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        record = content.config_records["statistics"]
        arrays = from_array_record(content.array_records["moments"])
        names = tuple(cast(list[str], record["feature-names"]))
        moments = FeatureMoments(cast(int, record["count"]), arrays["mean"], arrays["m2"])
        n_events, n_test = cast(int, record["n-events"]), cast(int, record["n-test"])
        horizon = cast(float, record["horizon"])
        if len(names) != moments.mean.size:
            raise ValueError("number of feature names and of moments differ")
        if moments.count < 1 or not 0 <= n_events <= moments.count or n_test < 0:
            raise ValueError("counts of rows or events that cannot be")
        if not np.isfinite(horizon) or horizon <= 0:
            raise ValueError("horizon that is not a positive number")
        return cls(names, moments, n_events, n_test, horizon, cast(str, record["data-set"]))


@dataclass(frozen=True)
class TrainConfig:
    """What a site needs beside the model: how features are standardized, in which round we are,
    and for how many sites the noise is scaled.

    Travels as the ConfigRecord of train and evaluate messages; Flower's FedAvg adds
    ``server-round``, DPFedAvg ``num-clients``.
    """

    standardizer: Standardizer
    server_round: int = 0
    num_clients: int = 1
    grid_horizon: float = 0.0

    reveals: ClassVar[str] = "the global model, and the pooled mean and scale of each feature"

    def to_config(self) -> ConfigRecord:
        """Return the record, without what the strategies add."""
        return ConfigRecord(
            {
                "feature-mean": self.standardizer.mean.tolist(),
                "feature-scale": self.standardizer.scale.tolist(),
                "grid-horizon": self.grid_horizon,
            }
        )

    @classmethod
    def from_config(cls, record: ConfigRecord) -> TrainConfig:
        """Read the record."""
        return cls(
            standardizer=Standardizer(
                np.array(cast(list[float], record["feature-mean"]), dtype=np.float64),
                np.array(cast(list[float], record["feature-scale"]), dtype=np.float64),
            ),
            server_round=cast(int, record["server-round"]),
            num_clients=cast(int, record.get("num-clients", 1)),
            grid_horizon=cast(float, record["grid-horizon"]),
        )


@dataclass(frozen=True)
class EvaluationSums:
    """What a site adds to the evaluation of a model, on its own evaluation rows.

    Attributes
    ----------
    concordance : ConcordanceSums
        Zeros if there are fewer than privacy-level evaluation rows, or none was asked for.
    rows : int
        Evaluation rows behind the sums.
    identical : bool
        Whether all these rows have the same prediction.
    """

    concordance: ConcordanceSums
    rows: int
    identical: bool

    reveals: ClassVar[str] = (
        "five sums over the site's evaluation rows (pair counts) and their number"
    )

    def to_metrics(self) -> Metrics:
        """Return the entries of a MetricRecord."""
        sums = {f"concordance-{name}": float(getattr(self.concordance, name)) for name in _SUMS}
        return {**sums, "evaluated-rows": self.rows, "identical-predictions": int(self.identical)}

    @classmethod
    def from_metrics(cls, metrics: MetricRecord) -> EvaluationSums:
        """Read the entries of a MetricRecord; raises ValueError or KeyError if malformed."""
        sums = {name: float(cast(float, metrics[f"concordance-{name}"])) for name in _SUMS}
        return cls(
            ConcordanceSums(**sums),
            rows=int(cast(int, metrics["evaluated-rows"])),
            identical=bool(metrics["identical-predictions"]),
        )


@dataclass(frozen=True)
class TrainReply:
    """A site's trained (and, where switched on, privatized) model, and its evaluation of the
    model that it received."""

    arrays: Arrays
    num_examples: int
    loss: float
    loss_steps: int
    evaluation: EvaluationSums

    reveals: ClassVar[str] = (
        "the site's model update (clipped and noised where dp-mechanism is on); number of training "
        "rows; mean training loss over steps, to three decimals; " + EvaluationSums.reveals
    )

    def to_record(self) -> RecordDict:
        """Return the message's content: one ArrayRecord and one MetricRecord, as FedAvg asks."""
        metrics: Metrics = {
            "num-examples": self.num_examples,
            "loss": self.loss,
            "loss-steps": self.loss_steps,
            **self.evaluation.to_metrics(),
        }
        return RecordDict(
            {"arrays": to_array_record(self.arrays), "metrics": MetricRecord(metrics)}
        )


@dataclass(frozen=True)
class EvaluateReply:
    """A site's part in the final evaluation and in the baseline hazard."""

    num_examples: int
    evaluation: EvaluationSums
    risk_sets: RiskSetSums
    risk_moments: FeatureMoments

    reveals: ClassVar[str] = (
        EvaluationSums.reveals + "; by cell of the time grid: events, rows at risk and sums of "
        "exp(linear predictor) over training rows, cells merged until privacy-level rows leave in "
        "each; count, mean and sum of squares of the linear predictor"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        metrics: Metrics = {"num-examples": self.num_examples, **self.evaluation.to_metrics()}
        arrays = {
            **{name: getattr(self.risk_sets, name) for name in _RISK_SETS},
            "risk-mean": self.risk_moments.mean,
            "risk-m2": self.risk_moments.m2,
        }
        return RecordDict({"metrics": MetricRecord(metrics), "risk-sets": to_array_record(arrays)})

    @classmethod
    def from_record(cls, content: RecordDict) -> EvaluateReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        metrics = content.metric_records["metrics"]
        arrays = from_array_record(content.array_records["risk-sets"])
        n_rows = int(cast(int, metrics["num-examples"]))
        return cls(
            num_examples=n_rows,
            evaluation=EvaluationSums.from_metrics(metrics),
            risk_sets=RiskSetSums(**{name: arrays[name] for name in _RISK_SETS}),
            risk_moments=FeatureMoments(n_rows, arrays["risk-mean"], arrays["risk-m2"]),
        )


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
        return RecordDict({"arrays": self.arrays, "setting": to_array_record(setting)})

    @classmethod
    def from_record(cls, content: RecordDict) -> CurvesRequest:
        """Read the message's content."""
        setting = from_array_record(content.array_records["setting"])
        return cls(
            arrays=content.array_records["arrays"],
            standardizer=Standardizer(setting["feature-mean"], setting["feature-scale"]),
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
        return cls(GroupCurves(**{name: arrays[name] for name in _GROUP_CURVES}))


_GROUP_CURVES = ("rows", "survival_sum", "at_risk_count", "events")
_RISK_SETS = ("at_risk_weight", "events", "at_risk_count")


def to_array_record(arrays: Arrays) -> ArrayRecord:
    """Return named numpy arrays as Flower's record."""
    return ArrayRecord({name: Array(np.asarray(a, order="C")) for name, a in arrays.items()})


def from_array_record(record: ArrayRecord) -> Arrays:
    """Return Flower's record as named numpy arrays."""
    return {name: array.numpy() for name, array in record.items()}
