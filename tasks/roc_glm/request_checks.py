"""What a site refuses of a request: the server asks, and the site decides what leaves it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from tasks.roc_glm.messages import ReleaseRequest
from tasks.roc_glm.placement import Survivor
from tasks.roc_glm.roc_site import RocGlmSite
from tasks.roc_glm.survivor import CellSurvivor, LinearSurvivor, ScoreSurvivor
from tasks.site.faults import SiteFault

_Request = TypeVar("_Request")


def read_request(content: RecordDict, read: Callable[[RecordDict], _Request]) -> _Request:
    """Read a request with `from_record` of its kind; ``"bad-request"`` if it is malformed."""
    try:
        return read(content)
    except (ValueError, LookupError, TypeError, AttributeError, EOFError) as why:
        raise SiteFault(
            "bad-request", f"a request of another form than expected ({type(why).__name__})"
        ) from None


def refuse_cuts(cuts: NDArray[np.float64], site: RocGlmSite) -> None:
    """Refuse cut points other than the configuration's, or that the site's cells do not allow."""
    merges = site.config.merges_cells
    if not merges and not np.array_equal(cuts, site.cuts):
        raise SiteFault("bad-request", "cut points that are not those of the configuration")
    if not set(cuts.tolist()) <= site.allowed_cuts:
        raise SiteFault(
            "bad-request", "cut points of which the site cannot keep every one: its cells need rows"
        )


def refuse_survivor(survivor: Survivor, site: RocGlmSite) -> None:
    """Refuse a survivor function of another form than the release gives."""
    release = site.config.release
    if release == "noisy-scores":
        fits = isinstance(survivor, ScoreSurvivor | LinearSurvivor)
    elif release == "exact":
        fits = isinstance(survivor, ScoreSurvivor)
    else:
        fits = isinstance(survivor, CellSurvivor)
    if not fits:
        raise SiteFault("bad-request", f"a survivor function that release = '{release}' has not")
    if isinstance(survivor, CellSurvivor):
        refuse_cuts(survivor.cuts, site)


def accepted_sensitivity(request: ReleaseRequest, site: RocGlmSite) -> float:
    """What scales the noise: configured, or of all sites and then no less than the site's own."""
    if not site.config.estimate_sensitivity:
        return site.config.sensitivity
    own, asked = site.sensitivity, request.sensitivity
    least = own.sensitivity if own is not None else math.inf
    if not (isinstance(asked, float) and math.isfinite(asked) and asked > 0 and asked >= least):
        raise SiteFault(
            "bad-request",
            "a sensitivity that is not a finite number of at least the site's own estimate: the "
            "noise would be too small",
        )
    return asked


def not_asked(site: RocGlmSite, what: str) -> SiteFault:
    """The fault of a request for sums that release and mode do not let leave."""
    config = site.config
    return SiteFault(
        "bad-request",
        f"{what} do not leave with release = '{config.release}' and mode = '{config.mode}'",
    )
