"""What travels in the ROC-GLM task once the release is pooled: counts, moments, Fisher scoring.

Under masks the sums of Fisher scoring travel as `tasks.roc_glm.messages.MaskedReply`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from tasks.glm.families import FisherSums
from tasks.glm.messages import SiteReply
from tasks.roc_glm.messages import (
    array_record,
    read_arrays,
    read_counts,
    read_field,
    read_floats,
)
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
        number = read_field(settings, "survivors", int)
        records = [content.array_records[f"survivor-{at}"] for at in range(number)]
        return cls(tuple(map(read_survivor, records)), read_field(settings, "is-probability", bool))


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
        "placement values; confusion counts and calibration sums; no noise covers them, and a "
        "server that invents other sites' noisy scores chooses, once, between which values "
        "positives are counted"
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
        if arrays["threshold-counts"].dtype.kind != "i":
            raise ValueError("counts that are no whole numbers")
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
        theta of the ROC-GLM; None in the first round.
    survivor : Survivor
        Pooled survivor function of the negatives.
    calibrations : tuple of (p,) float64 or None
        Coefficients of further fits, whose sums are asked for in the same exchange: calibration
        (intercept, slope), and calibration in the large (intercept); empty: not asked for.
    """

    server_round: int
    coefficients: FloatArray | None
    survivor: Survivor
    calibrations: tuple[FloatArray | None, ...] = ()

    reveals: ClassVar[str] = (
        "theta of the ROC-GLM and of the calibration, and the pooled survivor function of the "
        "negatives"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        every = (self.coefficients, *self.calibrations)
        arrays = {
            f"coefficients-{at}": np.empty(0) if theta is None else theta
            for at, theta in enumerate(every)
        }
        return RecordDict(
            {
                "request": ConfigRecord({"round": self.server_round, "fits": len(every)}),
                "arrays": array_record(arrays),
                "survivor": survivor_record(self.survivor),
            }
        )

    @classmethod
    def from_record(cls, content: RecordDict) -> RocGlmFisherRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        settings, arrays = content.config_records["request"], read_arrays(content)
        fits = read_field(settings, "fits", int)
        if fits not in (1, len(FIT_SIZES)):
            raise ValueError("fits that are not those of this task")
        every = [read_floats(arrays, f"coefficients-{at}") for at in range(fits)]
        if any(len(theta) not in (0, size) for theta, size in zip(every, FIT_SIZES, strict=False)):
            raise ValueError("coefficients of another number")
        theta, *calibrations = [theta if len(theta) else None for theta in every]
        return cls(
            server_round=read_field(settings, "round", int),
            coefficients=theta,
            survivor=read_survivor(content.array_records["survivor"]),
            calibrations=tuple(calibrations),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class RocGlmFisherReply(SiteReply):
    """A site's sums of one round, in clear; under masks they travel as `MaskedReply`.

    Attributes
    ----------
    vector : (n,) float64
        Of `fisher_vector`.
    """

    vector: FloatArray

    reveals: ClassVar[str] = (
        "score vector, information and deviance of the site's positives (and, for the "
        "calibration, of its rows) in this round, exact; those of several rounds together do not "
        "hide the counts behind them"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        return RecordDict({"arrays": array_record({"sums": self.vector})})

    @classmethod
    def from_record(cls, content: RecordDict) -> RocGlmFisherReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        return cls(vector=read_floats(read_arrays(content), "sums"))


FIT_SIZES = (2, 2, 1)
"""Coefficients of the ROC-GLM, of calibration with slope, and of calibration in the large."""


def fisher_vector(fits: Sequence[FisherSums]) -> FloatArray:
    """Sums of several fits as one vector: score, upper triangle of the information, and a tail.

    The tail is deviance, 1 where that is infinite (it then goes as 0; in the first round there is
    no theta yet), and rows. Sums of such vectors over sites are read alike.
    """
    parts = []
    for sums in fits:
        upper = sums.information[np.triu_indices(len(sums.score))]
        is_finite = bool(np.isfinite(sums.deviance))
        tail = [sums.deviance if is_finite else 0.0, float(not is_finite), float(sums.rows)]
        parts += [sums.score, upper, np.array(tail)]
    return np.concatenate(parts)


def read_fisher_vector(vector: FloatArray, fits: int) -> list[FisherSums]:
    """Read what `fisher_vector` gave of so many fits, of one site or summed over sites.

    Raises
    ------
    ValueError
        If it has another length.
    """
    lengths = [size + size * (size + 1) // 2 + 3 for size in FIT_SIZES[:fits]]
    if vector.shape != (sum(lengths),):
        raise ValueError("sums of another form than asked for")
    found = []
    for size, part in zip(FIT_SIZES, np.split(vector, np.cumsum(lengths)[:-1]), strict=False):
        information = np.zeros((size, size))
        information[np.triu_indices(size)] = part[size:-3]
        information = information + np.triu(information, 1).T
        deviance = np.inf if part[-2] > 0 else float(part[-3])
        found.append(FisherSums(part[:size], information, deviance, int(part[-1])))
    return found


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
