"""Which cut points a run's configuration means, alike at every site and at the server."""

from __future__ import annotations

import numpy as np

from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.counts import equal_cuts, quantile_cuts
from tasks.roc_glm.score_model import ScoreModel
from tasks.roc_glm.survivor import FloatArray
from tasks.site.faults import SiteFault


def planned_cuts(config: RocGlmConfig, model: ScoreModel | None) -> FloatArray:
    """Cut points of the cells, before any are merged; (M - 1,), empty for releases without cells.

    Parameters
    ----------
    config : RocGlmConfig
    model : ScoreModel or None
        The model whose training quantiles are the cut points where the configuration says so.

    Raises
    ------
    SiteFault
        ``"no-quantiles"`` if there is no model that ships them.
    """
    if config.release in ("exact", "noisy-scores"):
        return np.empty(0)
    if config.cut_points == "equal":
        return equal_cuts(config.num_cells)
    if model is None:
        raise SiteFault(
            "no-quantiles",
            "cut-points = 'quantile' needs roc-glm.model, a model file with the quantiles of its "
            "training scores; without one, allowed is cut-points = 'equal'",
        )
    return quantile_cuts(model.quantiles_at(config.num_cells))
