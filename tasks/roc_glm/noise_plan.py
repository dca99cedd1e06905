"""How much noise a run's release carries: worked out alike at every site and at the server."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tasks.privacy import gaussian
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.noisy_statistics import StatisticsNoise, statistics_noise
from tasks.roc_glm.releases import noise_scale, noise_share, release_sensitivity
from tasks.roc_glm.survivor import FloatArray


@dataclass(frozen=True)
class NoisePlan:
    """Noise of one class of a run.

    Attributes
    ----------
    scale : float
        Standard deviation of the release's noise, in the sum where the noise is shared.
    ratio : float
        Sensitivity of the release over `scale`.
    statistics : StatisticsNoise or None
        Noise of Brier score, calibration and rates; None where they have no budget.
    statistics_ratio : float
        What the statistics amount to, all together; 0 without them.
    """

    scale: float
    ratio: float
    statistics: StatisticsNoise | None
    statistics_ratio: float

    @property
    def ratios(self) -> list[float]:
        """Of everything that is released of a class, for composition."""
        return [self.ratio, self.statistics_ratio] if self.statistics_ratio else [self.ratio]

    def share(self, sites: int) -> NoisePlan:
        """The part of one site where `sites` sites share the noise under masks."""
        part = self.statistics
        if part is not None:
            part = StatisticsNoise(
                squares=noise_share(part.squares, sites),
                bin_rows=noise_share(part.bin_rows, sites),
                bin_scores=noise_share(part.bin_scores, sites),
                above=noise_share(part.above, sites),
            )
        return replace(self, scale=noise_share(self.scale, sites), statistics=part)


def noise_plan(
    config: RocGlmConfig, *, score_sensitivity: float, cuts: FloatArray, is_probability: bool
) -> NoisePlan:
    """Noise of a release with noise.

    Parameters
    ----------
    config : RocGlmConfig
    score_sensitivity : float
        Configured, or estimated over all sites.
    cuts : (M - 1,) float64
        Cut points of the cells.
    is_probability : bool
        Whether all scores of all sites lie in [0, 1].
    """
    sensitivity = release_sensitivity(
        config.release, score_sensitivity=score_sensitivity, cuts=cuts
    )
    scale = noise_scale(
        epsilon=config.epsilon,
        delta=config.delta,
        sensitivity=sensitivity,
        mechanism=config.mechanism,
    )
    statistics, ratio = None, 0.0
    if config.release != "noisy-scores" and config.statistics_epsilon > 0 and is_probability:
        statistics = statistics_noise(
            epsilon=config.statistics_epsilon,
            delta=config.statistics_delta,
            score_sensitivity=score_sensitivity if config.release == "noisy-counts" else 1.0,
            thresholds=np.array([config.threshold]),
        )
        ratio = 1.0 / gaussian.sigma(
            epsilon=config.statistics_epsilon, delta=config.statistics_delta, sensitivity=1.0
        )
    return NoisePlan(scale, sensitivity / scale, statistics, ratio)
