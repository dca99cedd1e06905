"""What a site releases of its scores under the Gaussian mechanism, and how much noise that needs.

Classes and sites are disjoint and labels are fixed, so by parallel composition each class of each
site gets the whole budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tasks.privacy import gaussian
from tasks.roc_glm.counts import ClassCounts
from tasks.roc_glm.release_names import Mechanism, Release
from tasks.roc_glm.rows import RocRows
from tasks.roc_glm.survivor import FloatArray


@dataclass(frozen=True)
class NoisyScores:
    """Release `noisy-scores`: every score of a class plus its own noise, in ascending order.

    Attributes
    ----------
    negative, positive : (n0,) and (n1,) float64
    """

    negative: FloatArray
    positive: FloatArray


@dataclass(frozen=True)
class NoisyCounts:
    """Releases `noisy-counts` and `noisy-histogram`; adding two sums their noise too.

    Attributes
    ----------
    negative, positive : (M - 1,) float64 of cumulative counts, or (M,) float64 of cell counts
        `noisy-counts`: number of scores above each cut; `noisy-histogram`: in each cell.
    """

    negative: FloatArray
    positive: FloatArray

    def __add__(self, other: NoisyCounts) -> NoisyCounts:
        return NoisyCounts(self.negative + other.negative, self.positive + other.positive)


def cuts_in_window(cuts: FloatArray, width: float) -> int:
    """Largest number of cut points in any half-open window of a length.

    A score that moves from s to s + d passes the cuts in [s, s + d), and changes the cumulative
    counts at these by 1 each. Cuts and width are taken as the decimal numbers that they print as,
    so that cuts at 0.05, 0.10, ... and width 0.2 give 4 whatever the rounding of 0.3 - 0.1.

    Parameters
    ----------
    cuts : (M - 1,) float64
        In ascending order.
    width : float
        Above 0.
    """
    places = [Fraction(repr(float(cut))) for cut in cuts]
    length = Fraction(repr(float(width)))
    most = first = 0
    for last, place in enumerate(places):
        while place - places[first] >= length:
            first += 1
        most = max(most, last - first + 1)
    return most


def release_sensitivity(
    release: Release, *, score_sensitivity: float, cuts: FloatArray | None = None
) -> float:
    """L2 sensitivity of what one class of one site releases.

    Parameters
    ----------
    release : {"noisy-scores", "noisy-counts", "noisy-histogram"}
        Scores move by at most `score_sensitivity` between neighbours; for `noisy-histogram`
        a patient is replaced, whatever the score.
    score_sensitivity : float
        Delta2 of the model, above 0; not used for `noisy-histogram`.
    cuts : (M - 1,) float64, optional
        Needed for `noisy-counts`.

    Raises
    ------
    ValueError
        For a release without noise, or without the cuts that it needs.
    """
    if release == "noisy-scores":
        return score_sensitivity
    if release == "noisy-histogram":
        return math.sqrt(2.0)
    if release == "noisy-counts" and cuts is not None:
        return math.sqrt(cuts_in_window(cuts, score_sensitivity))
    raise ValueError(
        f"release = '{release}': noise is for noisy-scores, noisy-histogram, and noisy-counts "
        "with its cut points"
    )


def noise_scale(
    *, epsilon: float, delta: float, sensitivity: float, mechanism: Mechanism = "analytic"
) -> float:
    """Standard deviation of the noise of a release.

    Parameters
    ----------
    epsilon, delta : float
        Budget of each class of each site.
    sensitivity : float
        From `release_sensitivity`.
    mechanism : {"analytic", "classic"}
        `classic` is the formula of Schalk et al.; refused for epsilon >= 1.

    Raises
    ------
    ValueError
        From `tasks.privacy.gaussian`.
    """
    if mechanism == "classic":
        return gaussian.classic_sigma(epsilon=epsilon, delta=delta, sensitivity=sensitivity)
    return gaussian.sigma(epsilon=epsilon, delta=delta, sensitivity=sensitivity)


def noise_share(sigma: float, sites: int) -> float:
    """Noise of one site when the sum under masks is to carry `sigma` in all.

    Nobody sees a site's own share, so the guarantee is that of the sum, if every site adds its
    part: with c sites that do not, sigma is smaller by sqrt(1 - c / sites).

    Parameters
    ----------
    sigma : float
        Standard deviation wanted in the sum.
    sites : int
        Number of sites that add noise, at least 1.
    """
    return sigma / math.sqrt(sites)


def release_scores(
    rows: RocRows, tau: float, *, generator: np.random.Generator | None = None
) -> NoisyScores:
    """Scores under noise. Drawn once a run: a second draw would spend the budget again.

    Parameters
    ----------
    rows : RocRows
    tau : float
        Standard deviation of the noise.
    generator : numpy.random.Generator, optional
        For simulations only; see `tasks.privacy.gaussian.add_noise`.
    """
    return NoisyScores(
        negative=np.sort(gaussian.add_noise(rows.negative, tau, generator=generator)),
        positive=np.sort(gaussian.add_noise(rows.positive, tau, generator=generator)),
    )


def release_cumulative_counts(
    counts: ClassCounts, sigma: float, *, generator: np.random.Generator | None = None
) -> NoisyCounts:
    """Number of scores above each cut, under noise.

    Parameters
    ----------
    counts : ClassCounts
        In M cells.
    sigma : float
        Standard deviation of the noise on each cumulative count.
    """
    return NoisyCounts(
        *(
            gaussian.add_noise(np.cumsum(cells[:0:-1])[::-1], sigma, generator=generator)
            for cells in (counts.negative, counts.positive)
        )
    )


def release_histogram(
    counts: ClassCounts, sigma: float, *, generator: np.random.Generator | None = None
) -> NoisyCounts:
    """Number of scores in each cell, under noise; parameters as `release_cumulative_counts`."""
    return NoisyCounts(
        *(
            gaussian.add_noise(cells, sigma, generator=generator)
            for cells in (counts.negative, counts.positive)
        )
    )


def needs_unit_interval(release: Release, *, equal_cuts: bool, debias: bool) -> bool:
    """Whether scores must lie in [0, 1] for this release.

    Equal cuts are cuts of [0, 1], and the deconvolution of noisy scores (`debias`) has [0, 1] as
    support; exact scores, cuts of the model and noisy scores as they are need an order only.
    """
    if release == "noisy-scores":
        return debias
    return release != "exact" and equal_cuts


def unit_interval_fault(release: Release) -> str:
    """What to tell a site whose scores do not all lie in [0, 1]."""
    return (
        f"release = '{release}' needs scores in [0, 1], and some are outside; apply the link of "
        "the model first (1 / (1 + exp(-score)) for log-odds), or use release = 'exact', "
        "cut-points = 'quantile' or cut-points = 'model'"
    )
