"""What travels between server and sites in distributed Fisher scoring.

Every ``reveals`` is the sentence that the disclosure ledger has of a message.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from tasks.glm.families import FisherSums, FloatArray

FISHER = "query.fisher_scoring"
"""Message type of an iteration; the ClientApp answers it under ``@app.query("fisher_scoring")``."""


@dataclass(frozen=True)
class FisherRequest:
    """Server to sites: your sums at these coefficients.

    Attributes
    ----------
    family : str
        Distribution of the response, with its link.
    server_round : int
        From 1.
    coefficients : (p,) float64 or None
        Where to evaluate; None asks for :func:`tasks.glm.families.starting_sums`, or for the sums
        at 0, which serve as a start as well.
    """

    family: str
    server_round: int
    coefficients: FloatArray | None

    reveals: ClassVar[str] = "the family, and the pooled coefficients of the iteration"

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        config = ConfigRecord({"family": self.family, "server-round": self.server_round})
        content = RecordDict({"fisher": config})
        if self.coefficients is not None:
            content["coefficients"] = ArrayRecord({"coefficients": _array(self.coefficients)})
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> FisherRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        record = content.config_records["fisher"]
        coefficients = None
        if "coefficients" in content.array_records:
            array = content.array_records["coefficients"]["coefficients"].numpy()
            if array.ndim != 1 or array.dtype != np.float64 or not np.isfinite(array).all():
                raise ValueError("coefficients that are not a vector of finite doubles")
            coefficients = array
        if not isinstance(family := record["family"], str):
            raise ValueError("a family that is not text")
        return cls(
            family=family,
            server_round=cast(int, record["server-round"]),
            coefficients=coefficients,
        )


@dataclass(frozen=True, kw_only=True)
class SiteReply:
    """What every reply may say beside its sums.

    Attributes
    ----------
    site : str
        The site's name; ``""``: the server knows it, or does without.
    feature_names : tuple of str
        One a coefficient; ``()``: the server knows them, or does without.
    """

    site: str = ""
    feature_names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FisherReply(SiteReply):
    """A site's score vector, information and deviance.

    Attributes
    ----------
    sums : FisherSums
        Over the site's rows. They may be infinite or NaN only together with an infinite deviance:
        the likelihood overflows at the coefficients, and the server halves the step.
    """

    sums: FisherSums

    reveals: ClassVar[str] = (
        "score vector, information matrix, deviance, number of responses and, for a family with a "
        "dispersion, Pearson statistic of the site at the coefficients, exact and in clear; over "
        "several iterations these can determine the rows behind them; names of the site and of "
        "its columns"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        said = ConfigRecord(
            {
                "site": self.site,
                "feature-names": list(self.feature_names),
                "deviance": float(self.sums.deviance),
                "rows": int(self.sums.rows),
            }
        )
        if not math.isnan(self.sums.pearson):
            said["pearson"] = float(self.sums.pearson)
        return RecordDict(
            {
                "fisher": said,
                "sums": ArrayRecord(
                    {
                        "score": _array(self.sums.score),
                        "information": _array(self.sums.information),
                    }
                ),
            }
        )

    @classmethod
    def from_record(cls, content: RecordDict) -> FisherReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        record, arrays = content.config_records["fisher"], content.array_records["sums"]
        sums = FisherSums(
            score=arrays["score"].numpy(),
            information=arrays["information"].numpy(),
            deviance=float(cast(float, record["deviance"])),
            rows=cast(int, record["rows"]),
            pearson=float(cast(float, record.get("pearson", math.nan))),
        )
        names = tuple(cast(list[str], record["feature-names"]))
        site = record["site"]
        if not isinstance(site, str) or not all(isinstance(name, str) for name in names):
            raise ValueError("names that are not text")
        _check_sums(sums)
        if names and (len(names) != sums.score.size or len(set(names)) != len(names)):
            raise ValueError("feature names that are not one for each coefficient")
        return cls(site=site, feature_names=names, sums=sums)


def _check_sums(sums: FisherSums) -> None:
    score, information = sums.score, sums.information
    if score.dtype != np.float64 or information.dtype != np.float64:
        raise ValueError("sums that are not doubles")
    if score.ndim != 1 or not score.size or information.shape != (score.size, score.size):
        raise ValueError("score vector and information matrix of shapes that do not fit")
    if type(sums.rows) is not int or sums.rows < 0:
        raise ValueError("a number of responses that cannot be")
    if math.isnan(sums.deviance) or sums.deviance == -math.inf:
        raise ValueError("a deviance that is no number")
    if sums.pearson < 0 or (sums.pearson == math.inf and sums.deviance != math.inf):
        raise ValueError("a Pearson statistic that cannot be")
    if is_finite(sums):
        if (np.diag(information) < 0).any() or not _is_symmetric(information):
            raise ValueError("an information matrix that is not one")
    elif sums.deviance != math.inf:
        raise ValueError("a finite deviance beside a score or information that is not")


def is_finite(sums: FisherSums) -> bool:
    """Whether score vector and information are finite; the deviance may be infinite."""
    return bool(np.isfinite(sums.score).all() and np.isfinite(sums.information).all())


def _is_symmetric(matrix: FloatArray) -> bool:
    return float(np.abs(matrix - matrix.T).max()) <= 1e-8 * float(np.abs(matrix).max())


def _array(values: FloatArray) -> Array:
    return Array(np.ascontiguousarray(values, dtype=np.float64))
