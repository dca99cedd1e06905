"""What a ROC-GLM run gives, and the ledger words of its messages."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.serverapp.strategy import Result

from strategies.exchange import Disclosure
from strategies.roc_glm_release import PooledRelease, ReleasePlan
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
from tasks.roc_glm.site_statistics import SiteStatistics
from tasks.roc_glm.validation import Validation
from tasks.secure.roster import Roster
from tasks.secure.secure_sums import MaskedVector


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
