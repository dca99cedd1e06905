"""What a ROC-GLM run gives, and the ledger words of its messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from flwr.serverapp.strategy import Result

from strategies.exchange import Disclosure
from strategies.roc_glm_pooling import PooledRelease
from strategies.roc_glm_release import ReleasePlan
from tasks.glm.messages import SiteReply
from tasks.roc_glm.calibration_slope import CalibrationFit
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.counts_messages import (
    COUNTS,
    ROC_GLM_FISHER,
    CountsReply,
    CountsRequest,
    RocGlmFisherReply,
    RocGlmFisherRequest,
)
from tasks.roc_glm.messages import (
    RELEASE,
    SUMS_OVER_SITES,
    ReleaseRequest,
    release_reveals,
)
from tasks.roc_glm.moments import Moments, pool_moments
from tasks.roc_glm.probit import RocGlmFit
from tasks.roc_glm.site_statistics import SiteStatistics, StatisticsShape, pool_statistics
from tasks.roc_glm.survivor import IntArray
from tasks.roc_glm.validation import Validation
from tasks.secure.roster import Roster
from tasks.secure.secure_sums import MaskedVector
from tasks.site.not_estimable import NotEstimable


def roc_glm_disclosures(config: RocGlmConfig) -> dict[str, Disclosure]:
    """Ledger words of a run's messages, by message type."""
    return {
        RELEASE: Disclosure(
            "release",
            ReleaseRequest.reveals,
            release_reveals(config.release, secure=config.masks_sums),
        ),
        COUNTS: Disclosure("counts", CountsRequest.reveals, CountsReply.reveals),
        ROC_GLM_FISHER: Disclosure(
            "fisher",
            RocGlmFisherRequest.reveals,
            "score vector, information and deviance of the site under masks, of which the server "
            f"reads {SUMS_OVER_SITES}"
            if config.masks_sums
            else RocGlmFisherReply.reveals,
        ),
    }


@dataclass(frozen=True, kw_only=True)
class MaskedSums(SiteReply):
    """A site's sums of Fisher scoring under masks."""

    masked: MaskedVector


@dataclass(frozen=True, kw_only=True)
class RoundsFit:
    """What Fisher scoring over exchanges gave.

    Attributes
    ----------
    fit : RocGlmFit or None
    no_fit : NotEstimable or None
        Why there is none.
    calibration : CalibrationFit or None
        Where it was asked for and exists.
    iterations : int
        Exchanges made.
    """

    fit: RocGlmFit | None = None
    no_fit: NotEstimable | None = None
    calibration: CalibrationFit | None = None
    iterations: int = 0


@dataclass(frozen=True, kw_only=True)
class PositiveSums:
    """Exact sums over the positives of all sites, after noisy scores.

    Attributes
    ----------
    threshold_counts : tuple of (n_T,) int64
        w1, one a survivor function that the sites were told.
    moments : tuple of Moments
        Of the placement values under each of these.
    statistics : SiteStatistics
    """

    threshold_counts: tuple[IntArray, ...]
    moments: tuple[Moments, ...]
    statistics: SiteStatistics

    @classmethod
    def of(cls, replies: Sequence[CountsReply], shape: StatisticsShape) -> PositiveSums:
        """Pool the replies of all sites, at least one, in the order of their names."""
        at_each = range(len(replies[0].moments))
        return cls(
            threshold_counts=tuple(
                np.sum([reply.threshold_counts[at] for reply in replies], axis=0) for at in at_each
            ),
            moments=tuple(pool_moments(reply.moments[at] for reply in replies) for at in at_each),
            statistics=pool_statistics(
                SiteStatistics.from_vectors(reply.counts, reply.sums, shape) for reply in replies
            ),
        )


@dataclass(kw_only=True)
class RocGlmResult(Result):
    """A validation; also Flower's Result, with the coefficients of the ROC-GLM as `arrays`.

    Attributes
    ----------
    validation : Validation
        AUC, interval, test, ROC-GLM, curve.
    plan : ReleasePlan
        Cut points and noise.
    pooled : PooledRelease
        What the sites released, together.
    statistics : SiteStatistics or None
        Confusion counts and calibration sums, pooled.
    sites : tuple of str
        Whose rows are behind it.
    lost_sites : tuple of str
        Who stopped to answer before the release.
    iterations : int
        Exchanges of Fisher scoring.
    roster : Roster or None
        Public keys behind masked sums.
    calibration : CalibrationFit or None
        By Fisher scoring over exchanges, where it was asked for and exists.
    """

    validation: Validation
    plan: ReleasePlan
    pooled: PooledRelease
    statistics: SiteStatistics | None
    sites: tuple[str, ...]
    lost_sites: tuple[str, ...]
    iterations: int
    roster: Roster | None
    calibration: CalibrationFit | None
