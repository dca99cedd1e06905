"""What travels between server and sites in the survival task, from the first round on.

Every ``reveals`` is the sentence that the disclosure ledger has of a message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from tasks.site.reply_fields import MalformedReply, count, number, numbers, reals
from tasks.site.requests import array_record, config_record
from tasks.survival.concordance import ConcordanceSums, impossible_sums
from tasks.survival.encoding import FeatureEncoding
from tasks.survival.risk_sets import LINEAR_PREDICTOR_BOUND, RiskSetSums
from tasks.survival.standardization import FeatureMoments, Standardizer

TRAIN = "train"
EVALUATE = "evaluate"

Arrays = dict[str, NDArray[Any]]
Metrics = dict[str, int | float | list[int] | list[float]]

ROUNDING = 1e-9
"""Relative error of sums that sites interpolate and add up."""

_SUMS = ("a", "b", "aa", "ab", "bb")


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
    grid_horizon: float = 1.0
    label_cuts: NDArray[np.float64] = field(default_factory=lambda: np.array([0.0, 1.0]))

    reveals: ClassVar[str] = (
        "the global model; the pooled mean and scale of each feature; categories of text that at "
        "least privacy-level rows of some site have; medians of columns with missing values; the "
        "end of the time grid, "
        "which is survival.horizon or the largest of the sites' round numbers; the borders of the "
        "intervals of discrete models, which are points of that grid chosen by the pooled counts"
    )

    def to_config(self) -> ConfigRecord:
        """Return the record, without what the strategies add."""
        return ConfigRecord(
            {
                "feature-mean": self.standardizer.mean.tolist(),
                "feature-scale": self.standardizer.scale.tolist(),
                "grid-horizon": self.grid_horizon,
                **encoding_entry(self.standardizer),
                "label-cuts": self.label_cuts.tolist(),
            }
        )

    @classmethod
    def of_message(cls, content: RecordDict) -> TrainConfig:
        """Read the record of a train or evaluate message; raises as `from_config`."""
        return cls.from_config(config_record(content, "config"))

    @classmethod
    def from_config(cls, record: ConfigRecord) -> TrainConfig:
        """Read the record; raises MalformedReply, which names the field, if it is malformed."""
        mean, scale = numbers(record, "feature-mean"), numbers(record, "feature-scale")
        clients = record.get("num-clients", 1)
        if type(clients) is not int:  # which numbers are believed is the site's matter
            raise MalformedReply("num-clients: must be a whole number")
        return cls(
            standardizer=read_standardizer(mean, scale, read_encoding(record)),
            server_round=count(record, "server-round"),
            num_clients=clients,
            grid_horizon=read_horizon(record),
            label_cuts=numbers(record, "label-cuts"),
        )


def read_standardizer(
    mean: NDArray[Any], scale: NDArray[Any], encoding: FeatureEncoding | None
) -> Standardizer:
    """Return the standardizer of a request; MalformedReply names the fields where it is none."""
    try:
        return Standardizer(mean, scale, encoding)
    except (ValueError, TypeError):
        raise MalformedReply(
            "feature-mean, feature-scale: must be a finite mean and a positive scale for each input"
        ) from None


def read_horizon(record: Mapping[str, Any]) -> float:
    """Return the end of the time grid of a request; raises MalformedReply if it is none."""
    horizon = number(record, "grid-horizon")
    if horizon <= 0:
        raise MalformedReply("grid-horizon: must be above 0")
    return horizon


_ENCODING = "feature-encoding"


def encoding_entry(standardizer: Standardizer) -> dict[str, str]:
    """Return the record's entry of how columns become inputs; none where each is its input."""
    encoding = standardizer.encoding
    return {} if encoding is None else {_ENCODING: encoding.to_json()}


def read_encoding(record: Mapping[str, Any]) -> FeatureEncoding | None:
    """Read what `encoding_entry` returned; raises MalformedReply if it is none."""
    encoding = record.get(_ENCODING)
    if encoding is None:
        return None
    try:
        return FeatureEncoding.from_json(encoding)
    except (ValueError, TypeError, AttributeError):
        raise MalformedReply(f"{_ENCODING}: must be an encoding of features") from None


@dataclass(frozen=True)
class EvaluationSums:
    """What a site adds to the evaluation of a model, on its own evaluation rows.

    Attributes
    ----------
    concordance : ConcordanceSums
        Zeros if there are fewer than privacy-level evaluation rows, none was asked for, or it
        needs the baseline hazard, which is not there yet (CoxTime before the end).
    rows : int
        Evaluation rows behind the sums.
    identical : bool
        Whether all these rows have the same prediction.
    """

    concordance: ConcordanceSums
    rows: int
    identical: bool

    reveals: ClassVar[str] = (
        "five sums over the site's evaluation rows (pair counts), their number, and whether all "
        "of them have the same prediction"
    )

    def to_metrics(self) -> Metrics:
        """Return the entries of a MetricRecord."""
        sums = {f"concordance-{name}": float(getattr(self.concordance, name)) for name in _SUMS}
        return {**sums, "evaluated-rows": self.rows, "identical-predictions": int(self.identical)}

    @classmethod
    def from_metrics(cls, metrics: MetricRecord, *, tied_twice: bool = True) -> EvaluationSums:
        """Read the entries of a MetricRecord; raises ValueError or KeyError if malformed.

        With `tied_twice` pairs at one time count twice, as Antolini's do.
        """
        sums = {name: number(metrics, f"concordance-{name}") for name in _SUMS}
        if count(metrics, "identical-predictions") > 1:
            raise MalformedReply("identical-predictions: must be 0 or 1")
        rows = count(metrics, "evaluated-rows")
        if sums["b"] > rows * (rows - 1) / (1 if tied_twice else 2):
            most = "twice the pairs" if tied_twice else "the pairs"
            raise MalformedReply(f"concordance-b: must be at most {most} of evaluated-rows")
        concordance = ConcordanceSums(**sums)
        if impossible_sums(concordance, rows=rows):
            raise MalformedReply("concordance-aa, -ab, -bb: must be sums of squares of pair counts")
        return cls(concordance, rows, bool(metrics["identical-predictions"]))


@dataclass(frozen=True)
class TrainReply:
    """A site's trained (and, where switched on, privatized) model, and its evaluation of the
    model that it received.

    Attributes
    ----------
    arrays : dict of str to ndarray
        The model.
    num_examples : int
        Training rows.
    loss : float
        Mean over optimizer steps.
    loss_steps : int
        Steps behind it.
    evaluation : EvaluationSums
        Of the received model.
    """

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

    @staticmethod
    def read_metrics(
        metrics: MetricRecord, *, tied_twice: bool = True
    ) -> tuple[int, float, int, EvaluationSums]:
        """Return rows, loss, steps and evaluation; raises ValueError if they are malformed.

        The model itself is checked against the one that was sent:
        :func:`strategies.averaging.matching_arrays`.
        """
        return (
            count(metrics, "num-examples", least=1),
            number(metrics, "loss"),
            count(metrics, "loss-steps"),
            EvaluationSums.from_metrics(metrics, tied_twice=tied_twice),
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
        "exp(log relative hazard) over training rows (of 1 for discrete models), cells merged "
        "until privacy-level rows leave in each; count, mean and sum of squares of the risk"
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
    def from_record(
        cls, content: RecordDict, *, time_dependent: bool = False, tied_twice: bool = True
    ) -> EvaluateReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed.

        For `tied_twice` see `EvaluationSums.from_metrics`. Where the relative hazard is
        `time_dependent`, the weights at risk may grow with time.
        """
        metrics = content.metric_records["metrics"]
        arrays = from_array_record(content.array_records["risk-sets"])
        n_rows = count(metrics, "num-examples", least=1)
        risk_sets = RiskSetSums(**{name: reals(arrays, name) for name in _RISK_SETS})
        _refuse_impossible_risk_sets(risk_sets, n_rows, time_dependent=time_dependent)
        return cls(
            num_examples=n_rows,
            evaluation=EvaluationSums.from_metrics(metrics, tied_twice=tied_twice),
            risk_sets=risk_sets,
            risk_moments=FeatureMoments(
                n_rows, reals(arrays, "risk-mean"), reals(arrays, "risk-m2")
            ),
        )


def _refuse_impossible_risk_sets(
    sums: RiskSetSums, rows: int, *, time_dependent: bool = False
) -> None:
    """Refuse sums that no rows have, up to rounding."""
    weight, at_risk, most = sums.at_risk_weight, sums.at_risk_count, rows * (1 + ROUNDING)
    falling = {"at_risk_count": at_risk}
    if not time_dependent:
        falling = {"at_risk_weight": weight, **falling}
    for name, values in falling.items():
        if (values[1:] > values[:-1] * (1 + ROUNDING)).any():
            raise MalformedReply(f"{name}: must not grow with time")
    if abs(at_risk[0] - rows) > rows * ROUNDING or sums.events.sum() > most:
        raise MalformedReply("at_risk_count, events: must be those of num-examples rows")
    if weight.max() > most * math.exp(LINEAR_PREDICTOR_BOUND):
        raise MalformedReply("at_risk_weight: must be a sum of bounded hazard ratios")


_RISK_SETS = ("at_risk_weight", "events", "at_risk_count")


def to_array_record(arrays: Arrays) -> ArrayRecord:
    """Return named numpy arrays as Flower's record."""
    return ArrayRecord({name: Array(np.asarray(a, order="C")) for name, a in arrays.items()})


def model_arrays(content: RecordDict) -> Arrays:
    """Return the model of a request; raises MalformedReply if there is none."""
    record = array_record(content, "arrays")
    try:
        return from_array_record(record)
    except (ValueError, TypeError, LookupError, EOFError, OSError):
        raise MalformedReply("arrays: must be arrays of numbers") from None


def from_array_record(record: ArrayRecord) -> Arrays:
    """Return Flower's record as named numpy arrays."""
    return {name: array.numpy() for name, array in record.items()}
