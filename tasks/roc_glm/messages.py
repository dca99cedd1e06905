"""What travels between server and sites in the ROC-GLM task, message by message.

Every ``reveals`` is the sentence that the disclosure ledger has of a message. What a site may
send depends on ``roc-glm.release``; `release_reveals` has the sentence of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.release_names import Release
from tasks.roc_glm.rows import LabelCoding
from tasks.roc_glm.sensitivity import SensitivityEstimate
from tasks.roc_glm.survivor import FloatArray, IntArray
from tasks.secure.secure_sums import MaskedVector
from tasks.site.messages import Facts

RELEASE = "query.roc_glm_release"

RELEASE_STEP = "roc-glm-release"
"""Name of the step under which the release is masked."""

MOST_ROWS = 2**40
"""Rows that no site has: products of two such numbers and sums of many are still whole."""

Arrays = Mapping[str, NDArray[np.generic]]
_Field = TypeVar("_Field", bool, int, float, str, bytes)


SUMS_OVER_SITES = (
    "sums over all sites that have the class only (where one site alone has it, that site's)"
)
"""What can be read of masked values."""


def release_reveals(release: Release, *, secure: bool) -> str:
    """What a site's reply to the release request reveals to the server."""
    if secure and release == "secure-counts":
        return (
            "counts of each class in the cells, confusion counts and calibration sums under masks, "
            f"of which the server reads {SUMS_OVER_SITES}"
        )
    if secure:
        return f"noisy counts under masks, of which the server reads {SUMS_OVER_SITES}"
    beside = "; confusion counts at the threshold and calibration sums, likewise"
    return {
        "binned": "counts of each class in the cells, in clear" + beside,
        "exact": "every distinct score with the number of rows of each class" + beside,
        "noisy-scores": "every score of each class plus noise",
        "noisy-counts": "cumulative counts of each class at the cut points, plus noise (and, on a "
        "budget of their own, statistics plus noise)",
        "noisy-histogram": "counts of each class in the cells, plus noise (and, on a budget of "
        "their own, statistics plus noise)",
    }[release]


# The first exchange ---------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteFacts:
    """What a site adds to its introduction. It has passed A1: one that fails sends a fault.

    Attributes
    ----------
    coding : LabelCoding
        How it spells the two classes.
    in_unit_interval : bool
        Whether all its scores lie in [0, 1].
    dropped : int
        Rows left out because label or score was missing.
    num_negative, num_positive : int or None
        Class sizes; None under `secure-counts`.
    kept_cuts : tuple of bool
        Cut points that keep q rows in every cell, where ``privacy-level-of = "cell"``.
    sensitivity : SensitivityEstimate or None
        Where the sensitivity is to be estimated.
    """

    coding: LabelCoding
    in_unit_interval: bool
    dropped: int
    num_negative: int | None = None
    num_positive: int | None = None
    kept_cuts: tuple[bool, ...] = ()
    sensitivity: SensitivityEstimate | None = None

    reveals: ClassVar[str] = (
        "spelling of the two labels, whether all scores lie in [0, 1], number of rows left out, "
        "public keys where sums are masked; class sizes unless release = secure-counts"
    )

    @classmethod
    def reveals_under(cls, config: RocGlmConfig) -> str:
        """What the facts of a site reveal in a run with these settings."""
        words = cls.reveals
        if config.merges_cells:
            words += "; which of the cut points keep q rows or none in every cell of the site"
        if config.estimates_sensitivity:
            words += (
                "; the sensitivity estimated from the site's rows (the largest difference of two "
                "scores), with distance and number of the neighbouring pairs, exact"
            )
        return words

    def to_facts(self) -> Facts:
        """Return the facts for the introduction."""
        facts: dict[str, bool | int | float | str | list[bool]] = {
            "positive-label": self.coding.positive,
            "in-unit-interval": self.in_unit_interval,
            "dropped": self.dropped,
        }
        if self.coding.negative is not None:
            facts["negative-label"] = self.coding.negative
        if self.num_negative is not None and self.num_positive is not None:
            facts |= {"n-negative": self.num_negative, "n-positive": self.num_positive}
        if self.kept_cuts:
            facts["kept-cuts"] = list(self.kept_cuts)
        if self.sensitivity is not None:
            facts |= {
                "sensitivity": self.sensitivity.sensitivity,
                "sensitivity-distance": self.sensitivity.distance,
                "sensitivity-pairs": self.sensitivity.pairs,
            }
        return facts

    @classmethod
    def from_facts(cls, facts: Facts) -> SiteFacts:
        """Read the facts; raises ValueError or KeyError if they are malformed."""
        sizes = [facts.get(key) for key in ("n-negative", "n-positive")]
        numbers = [size for size in sizes if size is not None]
        for number in (facts["dropped"], *numbers):
            if type(number) is not int or not 0 <= number <= MOST_ROWS:
                raise ValueError("numbers of rows that cannot be")
        if len(numbers) == 1:
            raise ValueError("the size of one class only")
        kept = facts.get("kept-cuts", [])
        if not (isinstance(kept, list) and all(type(bit) is bool for bit in kept)):
            raise ValueError("kept-cuts that are no flags")
        negative = None
        if "negative-label" in facts:
            negative = read_field(facts, "negative-label", str)
        estimate = None
        if "sensitivity" in facts:
            estimate = SensitivityEstimate(
                sensitivity=read_field(facts, "sensitivity", float),
                distance=read_field(facts, "sensitivity-distance", int),
                pairs=read_field(facts, "sensitivity-pairs", int),
            )
            if not 0 < estimate.sensitivity < np.inf:
                raise ValueError("sensitivity that is not a positive number")
            if min(estimate.distance, estimate.pairs) < 1:
                raise ValueError("neighbours that cannot be")
        return cls(
            coding=LabelCoding(read_field(facts, "positive-label", str), negative),
            in_unit_interval=read_field(facts, "in-unit-interval", bool),
            dropped=cast(int, facts["dropped"]),
            num_negative=cast("int | None", sizes[0]),
            num_positive=cast("int | None", sizes[1]),
            kept_cuts=tuple(cast(list[bool], kept)),
            sensitivity=estimate,
        )


# The release ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ReleaseRequest:
    """Server to sites: release what the configuration says.

    Attributes
    ----------
    cuts : (M - 1,) float64
        Cut points of the cells, ascending; empty where there are none.
    is_probability : bool
        Whether the scores of all sites lie in [0, 1].
    sensitivity : float
        Largest move of a score between neighbours.
    roster : bytes
        Public keys of all sites, where sums are masked.
    """

    cuts: FloatArray
    is_probability: bool
    sensitivity: float
    roster: bytes = b""

    reveals: ClassVar[str] = (
        "the cut points, whether all scores of all sites lie in [0, 1], the sensitivity, and "
        "public keys of all sites where sums are masked"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        settings = ConfigRecord(
            {
                "is-probability": self.is_probability,
                "sensitivity": self.sensitivity,
                "roster": self.roster,
            }
        )
        return RecordDict({"release": settings, "arrays": array_record({"cuts": self.cuts})})

    @classmethod
    def from_record(cls, content: RecordDict) -> ReleaseRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        settings = content.config_records["release"]
        cuts = read_floats(read_arrays(content), "cuts")
        if not (np.isfinite(cuts).all() and (np.diff(cuts) > 0).all()):
            raise ValueError("cut points that are not finite and ascending")
        return cls(
            cuts=cuts,
            is_probability=read_field(settings, "is-probability", bool),
            sensitivity=read_field(settings, "sensitivity", float),
            roster=read_field(settings, "roster", bytes),
        )


@dataclass(frozen=True, eq=False)
class ReleaseReply:
    """What a site releases in clear.

    Attributes
    ----------
    negative, positive : ndarray
        By release: counts in cells or at `levels` (int64), noisy scores, or noisy counts.
    levels : (L,) float64
        Distinct scores, of `exact`; empty otherwise.
    counts : int64
        Whole numbers of the site's statistics (`tasks.roc_glm.site_statistics`).
    sums : float64
        Their reals; under `noisy-counts` and `noisy-histogram` the noisy statistics of both
        classes (`noisy_vector` there).
    """

    negative: NDArray[np.generic]
    positive: NDArray[np.generic]
    levels: FloatArray = field(default_factory=lambda: np.empty(0))
    counts: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    sums: FloatArray = field(default_factory=lambda: np.empty(0))

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        arrays = {
            "negative": self.negative,
            "positive": self.positive,
            "levels": self.levels,
            "counts": self.counts,
            "sums": self.sums,
        }
        return RecordDict({"arrays": array_record(arrays)})

    @classmethod
    def from_record(cls, content: RecordDict) -> ReleaseReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        arrays = read_arrays(content)
        return cls(
            negative=read_numbers(arrays, "negative"),
            positive=read_numbers(arrays, "positive"),
            levels=read_floats(arrays, "levels"),
            counts=read_counts(arrays, "counts"),
            sums=read_floats(arrays, "sums"),
        )


@dataclass(frozen=True, eq=False)
class MaskedReply:
    """A site's answer under masks, at any step."""

    masked: MaskedVector

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        own = self.masked
        settings = ConfigRecord(
            {"site": own.site, "run": own.run, "step": own.step, "roster-digest": own.roster_digest}
        )
        return RecordDict({"masked": settings, "masked-words": array_record({"words": own.words})})

    @classmethod
    def from_record(cls, content: RecordDict) -> MaskedReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        settings = content.config_records["masked"]
        words = content.array_records["masked-words"]["words"].numpy()
        if words.dtype.kind != "u" or words.ndim != 1:
            raise ValueError("masked values that are not words")
        return cls(
            MaskedVector(
                site=read_field(settings, "site", str),
                run=read_field(settings, "run", str),
                step=read_field(settings, "step", str),
                roster_digest=read_field(settings, "roster-digest", bytes),
                words=words.astype(np.uint64),
            )
        )


# Fields ---------------------------------------------------------------------------------------


def read_field(record: Mapping[str, Any], name: str, kind: type[_Field]) -> _Field:
    """A value of just this type (no bool for an int); ValueError or KeyError if it is not."""
    value = record[name]
    if type(value) is not kind:
        raise ValueError(f"{name}: must be of type {kind.__name__}")
    return value


def array_record(arrays: Arrays) -> ArrayRecord:
    """Arrays as they travel."""
    return ArrayRecord({name: Array(np.ascontiguousarray(a)) for name, a in arrays.items()})


def read_arrays(content: RecordDict) -> dict[str, NDArray[np.generic]]:
    """Arrays of a message under "arrays"."""
    return {name: array.numpy() for name, array in content.array_records["arrays"].items()}


def read_numbers(arrays: Arrays, name: str) -> NDArray[np.generic]:
    """Finite integers or reals (n,) of a message; ValueError or KeyError if they are not."""
    array = arrays[name]
    if array.ndim != 1 or array.dtype.kind not in "if" or not np.isfinite(array).all():
        raise ValueError(f"{name}: not finite numbers in one dimension")
    return array


def read_floats(arrays: Arrays, name: str) -> FloatArray:
    """Finite numbers (n,) of a message; ValueError or KeyError if they are not."""
    return np.asarray(read_numbers(arrays, name), dtype=np.float64)


def read_counts(arrays: Arrays, name: str) -> IntArray:
    """Whole numbers (n,) from 0 of a message; ValueError or KeyError if they are not."""
    array = read_numbers(arrays, name)
    if array.dtype.kind != "i" or ((array < 0) | (array > MOST_ROWS)).any():  # type: ignore[operator]
        raise ValueError(f"{name}: not counts")
    return array.astype(np.int64)
