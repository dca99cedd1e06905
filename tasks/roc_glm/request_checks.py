"""What a site refuses of a request: the server asks, and the site decides what leaves it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from tasks.roc_glm.deconvolution import NoiseBlur
from tasks.roc_glm.messages import ReleaseRequest
from tasks.roc_glm.placement import Survivor
from tasks.roc_glm.roc_site import RocGlmSite
from tasks.roc_glm.survivor import CellSurvivor, FloatArray, LinearSurvivor, ScoreSurvivor
from tasks.site.faults import SiteFault

_Request = TypeVar("_Request")

_ROUNDING = 1e-6
"""Of 150 rounds of EM on two machines; the pool itself is compared exactly."""


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
    if not _is_whole(survivor):
        raise SiteFault("bad-request", "a survivor function whose parts do not belong together")


def _is_whole(survivor: Survivor) -> bool:
    if isinstance(survivor, CellSurvivor):
        return len(survivor.counts) == len(survivor.cuts) + 1
    if isinstance(survivor, ScoreSurvivor):
        return len(survivor.counts) == len(survivor.levels)
    probabilities = survivor.probabilities
    return bool((probabilities >= 0).all() and probabilities.sum() > 0)


def refuse_pool(
    survivors: Sequence[Survivor], *, own: FloatArray, tau: float, debias: bool
) -> None:
    """Refuse survivor functions that no pool with the site's noisy negatives in it has.

    A survivor function of a server's making is a question about single patients: one step, and
    the sums say how many positives lie above it. What the server invents for other sites, no site
    can know; its own part can.

    Parameters
    ----------
    survivors : sequence of Survivor
        Asked for: of all noisy negatives, and of the same deconvolved.
    own : (n,) float64
        Noisy negatives that the site has released.
    tau : float
        Standard deviation of the noise.
    debias : bool
        Whether the deconvolved one belongs to the request.
    """
    kinds = (ScoreSurvivor, LinearSurvivor) if debias else (ScoreSurvivor,)
    if len(survivors) != len(kinds) or not all(map(isinstance, survivors, kinds)):
        raise SiteFault("bad-request", "survivor functions that release = 'noisy-scores' has not")
    pool = survivors[0]
    assert isinstance(pool, ScoreSurvivor)
    levels, number = np.unique(own, return_counts=True)
    place = np.searchsorted(pool.levels, levels)
    inside = place < len(pool.levels)
    ascends = bool((np.diff(pool.levels) > 0).all()) and len(pool.levels) == len(pool.counts)
    if (
        not ascends
        or not inside.all()
        or not np.array_equal(pool.levels[place], levels)
        or (pool.counts[place] < number).any()
    ):
        raise SiteFault(
            "bad-request",
            "a survivor function of a pool without the noisy negatives that the site has released",
        )
    if not debias:
        return
    asked = survivors[1]
    assert isinstance(asked, LinearSurvivor)
    blur = NoiseBlur(tau)
    expected = blur.deconvolve(blur.bin_counts(pool.levels, weights=pool.counts))
    near = asked.probabilities.shape == expected.shape
    if not near or np.abs(asked.probabilities - expected).max() > _ROUNDING:
        raise SiteFault("bad-request", "a deconvolved survivor function that is not of the pool")


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
