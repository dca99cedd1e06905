"""Data sets of the ROC-GLM simulation, and the estimates of every release on a stack of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.roc_glm import cell_estimates as cells
from tasks.roc_glm.counts import ClassCounts, DistinctCounts, count_in_cells, equal_cuts
from tasks.roc_glm.deconvolution import NoiseBlur
from tasks.roc_glm.estimates import delong_variance
from tasks.roc_glm.moments import Moments
from tasks.roc_glm.probit import fit_roc_glm_batch
from tasks.roc_glm.release_names import Mechanism, Release
from tasks.roc_glm.releases import noise_scale, release_sensitivity
from tasks.roc_glm.rows import RocRows
from tasks.roc_glm.survivor import LinearSurvivor, ScoreSurvivor, threshold_counts

FloatArray = NDArray[np.float64]

SITES = 5
THRESHOLDS = 28
NOISY = ("noisy-scores (document)", "noisy-scores", "noisy-counts", "noisy-histogram")


@dataclass(frozen=True)
class Estimates:
    """Estimates of D data sets; NaN where there is none."""

    auc: FloatArray
    auc_roc_glm: FloatArray
    variance: FloatArray


@dataclass(frozen=True)
class Study:
    """D data sets with their pooled counts."""

    rows: list[RocRows]
    pooled: list[ClassCounts]

    @property
    def num_negative(self) -> FloatArray:
        return np.array([row.num_negative for row in self.rows], dtype=np.float64)

    @property
    def num_positive(self) -> FloatArray:
        return np.array([row.num_positive for row in self.rows], dtype=np.float64)

    def counts(self, cuts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Cell counts (D, M) of the negatives and of the positives."""
        binned = [count_in_cells(row, cuts) for row in self.rows]
        return (
            np.array([c.negative for c in binned], dtype=np.float64),
            np.array([c.positive for c in binned], dtype=np.float64),
        )


def study_of(rows: list[RocRows]) -> Study:
    return Study(rows, [DistinctCounts.of(row).counts for row in rows])


def draw_document(number: int, generator: np.random.Generator) -> Study:
    """Data sets of the simulation of Schalk et al.."""
    rows: list[RocRows] = []
    while len(rows) < number:
        n = int(generator.integers(100, 2501))
        scores = generator.random(n)
        positive = scores > 0.5
        flipped = generator.choice(n, int(generator.random() * n), replace=False)
        positive[flipped] = generator.random(len(flipped)) < 0.5
        if 0.1 <= positive.mean() <= 0.9:
            rows.append(RocRows(np.sort(scores[~positive]), np.sort(scores[positive])))
    return study_of(rows)


def draw_fixed_auc(number: int, n: int, auc: float, generator: np.random.Generator) -> Study:
    """Independent rows of the same scheme at one true AUC, which is 1 - gamma / 2."""
    rows = []
    for _ in range(number):
        scores = generator.random(n)
        flipped = generator.random(n) < 2.0 * (1.0 - auc)
        positive = np.where(flipped, generator.random(n) < 0.5, scores > 0.5)
        rows.append(RocRows(np.sort(scores[~positive]), np.sort(scores[positive])))
    return study_of(rows)


def fit_aucs(w1: FloatArray | NDArray[np.int64], study: Study) -> FloatArray:
    return fit_roc_glm_batch(w1, study.num_positive).auc


def without_noise(study: Study) -> Estimates:
    """Pooled AUC and DeLong variance, and the ROC-GLM on exact placement values."""
    moments = [c.placement_moments() for c in study.pooled]
    return Estimates(
        auc=np.array([float(c.auc()) for c in study.pooled]),
        auc_roc_glm=fit_aucs(
            np.array([c.threshold_counts(THRESHOLDS) for c in study.pooled]), study
        ),
        variance=np.array([delong_variance(of_negatives=a, of_positives=b) for a, b in moments]),
    )


def secure_counts(study: Study, number_of_cells: int = 50) -> Estimates:
    """Release `secure-counts` (and `binned`): exact counts in cells."""
    cuts = equal_cuts(number_of_cells)
    return without_noise(Study(study.rows, [count_in_cells(row, cuts) for row in study.rows]))


def noisy_scores_document(study: Study, tau: float, generator: np.random.Generator) -> Estimates:
    """Release `noisy-scores` as Schalk et al. have it: ROC-GLM on the noisy S0, no debiasing."""
    w1, aucs, variances = [], [], []
    for row in study.rows:
        negative = row.negative + generator.normal(0.0, tau, row.num_negative)
        positive = row.positive + generator.normal(0.0, tau, row.num_positive)
        s0, s1 = ScoreSurvivor.of(negative), ScoreSurvivor.of(positive)
        at_positives = s0.numerators(row.positive)
        of_positives = Moments.of(at_positives / (2.0 * s0.total))
        of_negatives = Moments.of(s1.numerators(s0.levels) / (2.0 * s1.total))
        w1.append(threshold_counts(at_positives, total=s0.total, num_thresholds=THRESHOLDS))
        aucs.append(1.0 - of_positives.mean)
        variances.append(delong_variance(of_negatives=of_negatives, of_positives=of_positives))
    roc_glm = fit_aucs(np.array(w1), study)
    return Estimates(auc=np.array(aucs), auc_roc_glm=roc_glm, variance=np.array(variances))


def noisy_scores(
    study: Study, tau: float, generator: np.random.Generator, *, intervals_of: NDArray[np.int64]
) -> Estimates:
    """Release `noisy-scores` with debiasing; variances (50 redraws) for some data sets only."""
    blur = NoiseBlur(tau)
    noisy = [
        np.array(
            [
                blur.bin_counts(scores + generator.normal(0.0, tau, len(scores)))
                for scores in of_class
            ]
        )
        for of_class in ([r.negative for r in study.rows], [r.positive for r in study.rows])
    ]
    p0, p1 = blur.deconvolve(noisy[0]), blur.deconvolve(noisy[1])
    moments = [
        Moments.of(LinearSurvivor(p).values(r.positive))
        for p, r in zip(p0, study.rows, strict=True)
    ]
    half = cells.placement_mean_variance(p0, p1, study.num_negative)
    variance = np.full(len(study.rows), np.nan)
    for d in intervals_of:
        added = blur.noise_variance(
            p0[d],
            noisy[1][d],
            num_negative=study.rows[d].num_negative,
            generator=generator,
            redraws=50,
        )
        variance[d] = half[d] + moments[d].variance / moments[d].count + added
    w1 = cells.cell_threshold_counts(
        p0, p1, num_positive=study.num_positive, num_thresholds=THRESHOLDS
    )
    auc = np.array([1.0 - m.mean for m in moments])
    return Estimates(auc=auc, auc_roc_glm=fit_aucs(w1, study), variance=variance)


def noisy_cells(
    release: Release,
    study: Study,
    sigma: float,
    number_of_cells: int,
    generator: np.random.Generator,
) -> Estimates:
    """Releases `noisy-counts` and `noisy-histogram` from five sites, each with its own noise."""
    n0, n1 = study.num_negative, study.num_positive
    fitted = []
    for counts, total in zip(study.counts(equal_cuts(number_of_cells)), (n0, n1), strict=True):
        if release == "noisy-counts":
            counts = np.cumsum(counts[:, :0:-1], axis=1)[:, ::-1]
        noise = generator.normal(0.0, sigma, (SITES, *counts.shape)).sum(axis=0)
        fit = cells.fit_cumulative_counts if release == "noisy-counts" else cells.fit_histogram
        fitted.append(fit(counts + noise, total))
    p0, p1 = fitted
    sizes = {"num_negative": n0, "num_positive": n1}
    kind = "noisy-counts" if release == "noisy-counts" else "noisy-histogram"
    w1 = cells.cell_threshold_counts(p0, p1, num_positive=n1, num_thresholds=THRESHOLDS)
    return Estimates(
        auc=cells.cell_auc(p0, p1),
        auc_roc_glm=fit_aucs(w1, study),
        variance=cells.cell_delong_variance(p0, p1, **sizes)
        + cells.noise_variance(kind, p0, p1, sigma=sigma, noises=SITES, **sizes),
    )


def run_noisy(
    name: str,
    study: Study,
    *,
    sensitivity: float,
    epsilon: float,
    delta: float,
    generator: np.random.Generator,
    intervals_of: NDArray[np.int64],
) -> tuple[float, Estimates]:
    """Noise and estimates of one release in one cell of the grid."""
    release: Release = "noisy-scores"
    if name == "noisy-counts":
        release = "noisy-counts"
    elif name == "noisy-histogram":
        release = "noisy-histogram"
    mechanism: Mechanism = "classic" if "document" in name else "analytic"
    scale = noise_scale(
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        sensitivity=release_sensitivity(
            release, score_sensitivity=sensitivity, cuts=equal_cuts(20)
        ),
    )
    if "document" in name:
        return scale, noisy_scores_document(study, scale, generator)
    if release == "noisy-scores":
        return scale, noisy_scores(study, scale, generator, intervals_of=intervals_of)
    number = 20 if release == "noisy-counts" else 10
    return scale, noisy_cells(release, study, scale, number, generator)
