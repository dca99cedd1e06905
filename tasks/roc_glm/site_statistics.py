"""What a site sends beside its survivor functions: confusion counts and calibration sums.

As two vectors, one of whole numbers and one of reals, so that they travel under masks too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tasks.roc_glm.calibration import CalibrationSums, calibration_sums
from tasks.roc_glm.classification import ConfusionCounts, confusion_counts
from tasks.roc_glm.noisy_statistics import ClassStatistics
from tasks.roc_glm.rows import RocRows
from tasks.roc_glm.survivor import FloatArray, IntArray

_TABLE = 4  # true and false positives and negatives


@dataclass(frozen=True)
class StatisticsShape:
    """Lengths of the vectors of `SiteStatistics`.

    Attributes
    ----------
    thresholds : int
        T, thresholds of the confusion counts.
    bins : int
        B, bins of the calibration curve; 0 where scores are no probabilities.
    """

    thresholds: int
    bins: int

    @property
    def num_counts(self) -> int:
        """Whole numbers: 4 a threshold; rows, positives, rows left out of bins, and 2 a bin."""
        return _TABLE * self.thresholds + (3 + 2 * self.bins if self.bins else 0)

    @property
    def num_sums(self) -> int:
        """Reals: sum of scores and of squared errors, and 1 a bin."""
        return 2 + self.bins if self.bins else 0


@dataclass(frozen=True)
class SiteStatistics:
    """Confusion counts and calibration sums of a site; adding two is pooling them.

    Attributes
    ----------
    confusion : ConfusionCounts
    calibration : CalibrationSums or None
        None where scores are no probabilities.
    """

    confusion: ConfusionCounts
    calibration: CalibrationSums | None

    def __add__(self, other: SiteStatistics) -> SiteStatistics:
        both = self.calibration is not None and other.calibration is not None
        return SiteStatistics(
            self.confusion + other.confusion,
            self.calibration + other.calibration  # type: ignore[operator]  # neither is None
            if both
            else None,
        )

    def counts(self) -> IntArray:
        """The whole numbers, in the order that `from_vectors` reads."""
        table = self.confusion
        parts = [
            table.true_positive,
            table.false_negative,
            table.false_positive,
            table.true_negative,
        ]
        if self.calibration is not None:
            own = self.calibration
            parts += [
                np.array([own.rows, own.positives, own.suppressed]),
                own.bin_rows,
                own.bin_positives,
            ]
        return np.concatenate(parts).astype(np.int64)

    def sums(self) -> FloatArray:
        """The reals, in the order that `from_vectors` reads."""
        if self.calibration is None:
            return np.empty(0)
        own = self.calibration
        return np.concatenate([[own.scores, own.squares], own.bin_scores])

    @classmethod
    def from_vectors(
        cls, counts: IntArray, sums: FloatArray, shape: StatisticsShape
    ) -> SiteStatistics:
        """Read what `counts` and `sums` gave.

        Raises
        ------
        ValueError
            If they are of other lengths.
        """
        if counts.shape != (shape.num_counts,) or sums.shape != (shape.num_sums,):
            raise ValueError("statistics of another shape than asked for")
        number = _TABLE * shape.thresholds
        table = counts[:number].reshape(_TABLE, shape.thresholds)
        confusion = ConfusionCounts(*table.astype(np.float64))
        if not shape.bins:
            return cls(confusion, None)
        rows, positives, suppressed = (int(count) for count in counts[number : number + 3])
        bins = counts[number + 3 :].reshape(2, shape.bins)
        return cls(
            confusion,
            CalibrationSums(
                rows=rows,
                positives=positives,
                scores=float(sums[0]),
                squares=float(sums[1]),
                bin_rows=bins[0].astype(np.float64),
                bin_positives=bins[1].astype(np.float64),
                bin_scores=sums[2:],
                suppressed=suppressed,
            ),
        )


def site_statistics(
    rows: RocRows,
    thresholds: FloatArray,
    *,
    edges: FloatArray,
    privacy_level: int,
) -> SiteStatistics:
    """The statistics of a site.

    Parameters
    ----------
    rows : RocRows
    thresholds : (T,) float64
    edges : (B + 1,) float64
        Of the bins of the calibration curve; empty where scores are no probabilities.
    privacy_level : int
        q, for the bins.
    """
    return SiteStatistics(
        confusion_counts(rows, thresholds),
        calibration_sums(rows, privacy_level=privacy_level, edges=edges) if len(edges) else None,
    )


def pool_statistics(sites: Iterable[SiteStatistics]) -> SiteStatistics:
    """Sum over sites (give them in the order of site names); at least one."""
    first, *others = sites
    return sum(others, first)


def noisy_vector(negative: ClassStatistics, positive: ClassStatistics) -> FloatArray:
    """Noisy statistics of both classes as one vector, of length 2 (1 + 2 B + T)."""
    return np.concatenate(
        [
            np.concatenate([[part.squares], part.bin_rows, part.bin_scores, part.above])
            for part in (negative, positive)
        ]
    )


def read_noisy_vector(
    vector: FloatArray, shape: StatisticsShape
) -> tuple[ClassStatistics, ClassStatistics]:
    """Read what `noisy_vector` gave, of one site or summed over sites.

    Raises
    ------
    ValueError
        If it is of another length.
    """
    bins, length = shape.bins, 1 + 2 * shape.bins + shape.thresholds
    if vector.shape != (2 * length,):
        raise ValueError("noisy statistics of another shape than asked for")
    negative, positive = (
        ClassStatistics(
            squares=float(part[0]),
            bin_rows=part[1 : 1 + bins],
            bin_scores=part[1 + bins : 1 + 2 * bins],
            above=part[1 + 2 * bins :],
        )
        for part in np.split(vector, 2)
    )
    return negative, positive
