"""What sites are asked for once a survival model is trained: curves and metrics, by which plan."""

from __future__ import annotations

import math

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from strategies.survival_statistics import PooledStatistics
from tasks.survival.baseline import BaselineHazard
from tasks.survival.config import SurvivalConfig
from tasks.survival.curves import risk_cuts
from tasks.survival.curves_messages import CurvesRequest
from tasks.survival.evaluation_plan import evaluation_plan
from tasks.survival.models import Kind
from tasks.survival.standardization import FeatureMoments


def curves_request(
    arrays: ArrayRecord,
    statistics: PooledStatistics,
    baseline: BaselineHazard,
    risk: FeatureMoments,
    *,
    config: SurvivalConfig,
    kind: Kind,
    label_cuts: NDArray[np.float64],
) -> CurvesRequest:
    """Return the request for survival by risk group, and for metrics if follow-up is long enough.

    Parameters
    ----------
    arrays : ArrayRecord
        The final model.
    statistics : PooledStatistics
        Of the set-up.
    baseline : BaselineHazard
        Of the final model.
    risk : FeatureMoments
        Of its predictor over all sites, by which the groups are cut.
    config : SurvivalConfig
    kind : Kind
        Of the model.
    label_cuts : ndarray
        Borders of the intervals of discrete models.
    """
    return CurvesRequest(
        arrays=arrays,
        standardizer=statistics.standardizer,
        baseline=baseline,
        cuts=risk_cuts(float(risk.mean[0]), math.sqrt(float(risk.m2[0]) / risk.count)),
        label_cuts=label_cuts,
        plan=evaluation_plan(
            statistics.counts,
            baseline.grid,
            sites=len(statistics.sites),
            privacy_level=config.privacy_level,
            time_dependent=kind == "time-dependent",
        ),
    )
