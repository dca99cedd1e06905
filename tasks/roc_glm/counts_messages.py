"""What travels in the ROC-GLM task once the release is pooled: counts, moments, Fisher scoring.

Sums of Fisher scoring travel in clear as `tasks.roc_glm.fisher_messages.FisherReply`, and under
masks as `tasks.roc_glm.messages.MaskedReply`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from tasks.roc_glm.glm import FisherSums
from tasks.roc_glm.messages import array_record, read_arrays, read_counts, read_floats
from tasks.roc_glm.moments import Moments
from tasks.roc_glm.placement import Survivor
from tasks.roc_glm.survivor import (
    CellSurvivor,
    FloatArray,
    IntArray,
    LinearSurvivor,
    ScoreSurvivor,
)

COUNTS = "query.roc_glm_counts"
ROC_GLM_FISHER = "query.roc_glm_fisher"


def fisher_step(server_round: int) -> str:
    """Name of the step under which the sums of a round are masked."""
    return f"roc-glm-fisher-{server_round}"


# Counts and moments ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CountsRequest:
    """Server to sites, after `noisy-scores`: your positives under the pooled survivor functions.

    Attributes
    ----------
    survivors : tuple of Survivor
        Of the noisy negatives of all sites: as they are, and deconvolved.
    is_probability : bool
        Whether calibration sums are asked for.
    """

    survivors: tuple[Survivor, ...]
    is_probability: bool

    reveals: ClassVar[str] = "the noisy scores of the negatives of all sites, pooled"

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        content = RecordDict(
            {
                "request": ConfigRecord(
                    {
                        "is-probability": self.is_probability,
                        "survivors": len(self.survivors),
                    }
                )
            }
        )
        for at, survivor in enumerate(self.survivors):
            content[f"survivor-{at}"] = survivor_record(survivor)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> CountsRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        settings = content.config_records["request"]
        number = cast(int, settings["survivors"])
        records = [content.array_records[f"survivor-{at}"] for at in range(number)]
        return cls(tuple(map(read_survivor, records)), bool(settings["is-probability"]))


@dataclass(frozen=True, eq=False)
class CountsReply:
    """A site's exact positives as sums, one a survivor function, and its statistics.

    Attributes
    ----------
    threshold_counts : (S, n_T) int64
        w1.
    moments : tuple of Moments
        Of the placement values, mid ties.
    counts, sums : int64 and float64
        Statistics, as in `ReleaseReply`.
    """

    threshold_counts: IntArray
    moments: tuple[Moments, ...]
    counts: IntArray
    sums: FloatArray

    reveals: ClassVar[str] = (
        "exact sums over the site's positives: w1 at the thresholds, count, mean and M2 of their "
        "placement values; confusion counts and calibration sums; no noise covers them"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        moments = np.array([[m.mean, m.squares] for m in self.moments])
        arrays: dict[str, NDArray[np.generic]] = {
            "threshold-counts": self.threshold_counts,
            "number": np.array([m.count for m in self.moments], dtype=np.int64),
            "moments": moments,
            "counts": self.counts,
            "sums": self.sums,
        }
        return RecordDict({"arrays": array_record(arrays)})

    @classmethod
    def from_record(cls, content: RecordDict) -> CountsReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        arrays = read_arrays(content)
        number, moments = read_counts(arrays, "number"), arrays["moments"].astype(np.float64)
        w1 = arrays["threshold-counts"].astype(np.int64)
        if moments.shape != (len(number), 2) or w1.ndim != 2 or len(w1) != len(number):
            raise ValueError("moments and counts of different survivor functions")
        if not np.isfinite(moments).all() or (w1 < 0).any() or (w1 > number[:, None]).any():
            raise ValueError("sums that cannot be")
        return cls(
            w1,
            tuple(
                Moments(int(n), float(mean), float(squares))
                for n, (mean, squares) in zip(number, moments, strict=True)
            ),
            read_counts(arrays, "counts"),
            read_floats(arrays, "sums"),
        )


# Fisher scoring -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RocGlmFisherRequest:
    """Server to sites: score vector, information and deviance at these coefficients.

    Attributes
    ----------
    server_round : int
        From 1.
    coefficients : (2,) float64 or None
        theta; None in the first round.
    survivor : Survivor
        Pooled survivor function of the negatives.
    """

    server_round: int
    coefficients: FloatArray | None
    survivor: Survivor

    reveals: ClassVar[str] = "theta, and the pooled survivor function of the negatives"

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        theta = np.empty(0) if self.coefficients is None else self.coefficients
        return RecordDict(
            {
                "request": ConfigRecord({"round": self.server_round}),
                "arrays": array_record({"coefficients": theta}),
                "survivor": survivor_record(self.survivor),
            }
        )

    @classmethod
    def from_record(cls, content: RecordDict) -> RocGlmFisherRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        theta = read_floats({"c": content.array_records["arrays"]["coefficients"].numpy()}, "c")
        if theta.shape not in ((0,), (2,)):
            raise ValueError("coefficients that are not two")
        return cls(
            server_round=cast(int, content.config_records["request"]["round"]),
            coefficients=theta if len(theta) else None,
            survivor=read_survivor(content.array_records["survivor"]),
        )


_FISHER_LENGTH = 7


def fisher_vector(sums: FisherSums) -> FloatArray:
    """Score (2), upper triangle of the information (3), deviance and rows; (7,) float64.

    The deviance of the first round is infinite, as there is no theta yet; it goes as -1.
    """
    upper = sums.information[np.triu_indices(2)]
    deviance = sums.deviance if np.isfinite(sums.deviance) else -1.0
    return np.concatenate([sums.score, upper, [deviance, float(sums.rows)]])


def read_fisher_vector(vector: FloatArray) -> FisherSums:
    """Read what `fisher_vector` gave, of one site or summed over sites.

    Raises
    ------
    ValueError
        If it has another length.
    """
    if vector.shape != (_FISHER_LENGTH,) or not np.isfinite(vector).all():
        raise ValueError("sums of another form than asked for")
    information = np.array([[vector[2], vector[3]], [vector[3], vector[4]]])
    deviance = float(vector[5]) if vector[5] >= 0 else np.inf
    return FisherSums(vector[:2], information, deviance, int(vector[6]))


def survivor_record(survivor: Survivor) -> ArrayRecord:
    """A survivor function as it travels."""
    if isinstance(survivor, LinearSurvivor):
        return array_record({"probabilities": survivor.probabilities})
    if isinstance(survivor, CellSurvivor):
        return array_record({"cuts": survivor.cuts, "counts": survivor.counts})
    return array_record({"levels": survivor.levels, "counts": survivor.counts})


def read_survivor(record: ArrayRecord) -> Survivor:
    """Read what `survivor_record` wrote; raises ValueError or KeyError if it is malformed."""
    arrays = {name: array.numpy() for name, array in record.items()}
    if "probabilities" in arrays:
        return LinearSurvivor(read_floats(arrays, "probabilities"))
    counts = read_counts(arrays, "counts")
    if counts.sum() < 1:
        raise ValueError("a survivor function of no score")
    if "cuts" in arrays:
        return CellSurvivor(read_floats(arrays, "cuts"), counts)
    return ScoreSurvivor(read_floats(arrays, "levels"), counts)
