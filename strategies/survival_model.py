"""The model that a survival run begins with, from what the sites' rows are like together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strategies.survival_statistics import PooledStatistics
from tasks.survival.config import SurvivalConfig
from tasks.survival.label_cuts import label_cuts, survival_at
from tasks.survival.models import SurvivalModel, build_configured
from tasks.survival.risk_sets import time_grid


def pooled_cuts(statistics: PooledStatistics, config: SurvivalConfig) -> NDArray[np.float64]:
    """Borders of the intervals of discrete models, from the pooled counts by time."""
    counts = statistics.counts
    return label_cuts(
        time_grid(statistics.horizon, config.time_bins),
        counts.events,
        counts.at_risk_count,
        config.num_durations,
        config.cuts,
    )


def initial_model(
    statistics: PooledStatistics, config: SurvivalConfig, *, cuts: NDArray[np.float64], seed: int
) -> SurvivalModel:
    """Build the model that training begins with.

    It depends on the seed, the number of inputs and the cuts; one that predicts survival without a
    baseline begins at the pooled Kaplan-Meier estimate.
    """
    model = build_configured(
        config, n_features=statistics.n_inputs, horizon=statistics.horizon, cuts=cuts, seed=seed
    )
    grid, counts = time_grid(statistics.horizon, config.time_bins), statistics.counts
    model.start_at(survival_at(cuts, grid, counts.events, counts.at_risk_count))
    return model
