"""Which cut points a run's configuration means, alike at every site and at the server."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.roc_glm.calibration import bin_edges
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.counts import equal_cuts, quantile_cuts
from tasks.roc_glm.score_model import ScoreModel
from tasks.roc_glm.survivor import FloatArray
from tasks.site.faults import SiteFault

_SHIPPED = {
    "quantile": "the quantiles of its training scores",
    "model": "cut points of its own",
}


@dataclass(frozen=True)
class StatisticsPlaces:
    """At which scores confusion counts and calibration sums are cut.

    Attributes
    ----------
    threshold : float
        A score above it predicts positive.
    edges : (B + 1,) float64
        Of the calibration bins, from 0 to 1; empty where scores are no probabilities.
    """

    threshold: float
    edges: FloatArray

    @classmethod
    def of(
        cls, config: RocGlmConfig, cuts: FloatArray, *, is_probability: bool
    ) -> StatisticsPlaces:
        """The configured places, or, where every cell must have q rows, the closest cut points.

        Differences of tables that are cut at the same places are sums over cells again. Cut
        elsewhere, they would be fewer rows than a cell.

        Parameters
        ----------
        config : RocGlmConfig
        cuts : (M - 1,) float64
            Cut points of the release, after merging.
        is_probability : bool
            Whether all scores of all sites lie in [0, 1].
        """
        edges = bin_edges(config.calibration_bins) if is_probability else np.empty(0)
        if not config.merges_cells:
            return cls(config.threshold, edges)
        threshold = float(_closest(np.array([config.threshold]), cuts)[0])
        if is_probability:
            inner = np.unique(_closest(edges[1:-1], cuts))
            edges = np.concatenate([[0.0], inner[(inner > 0.0) & (inner < 1.0)], [1.0]])
        return cls(threshold, edges)


def planned_cuts(config: RocGlmConfig, model: ScoreModel | None) -> FloatArray:
    """Cut points of the cells, before any are merged; (M - 1,), empty for releases without cells.

    Parameters
    ----------
    config : RocGlmConfig
    model : ScoreModel or None
        The model whose training quantiles, or whose own cut points, are the cut points where the
        configuration says so.

    Raises
    ------
    SiteFault
        ``"no-quantiles"`` or ``"no-cut-points"`` if there is no model that ships them.
    """
    if config.release in ("exact", "noisy-scores"):
        return np.empty(0)
    if config.cut_points == "equal":
        return equal_cuts(config.num_cells)
    if model is None:
        raise SiteFault(
            "no-quantiles" if config.cut_points == "quantile" else "no-cut-points",
            f"cut-points = '{config.cut_points}' needs roc-glm.model, a model file with "
            f"{_SHIPPED[config.cut_points]}; without one, allowed is cut-points = 'equal'",
        )
    if config.cut_points == "model":
        if not len(model.cut_points):
            raise SiteFault(
                "no-cut-points",
                "the score model has no cut-points, which cut-points = 'model' needs",
            )
        return model.cut_points
    return quantile_cuts(model.quantiles_at(config.num_cells))


def _closest(wanted: FloatArray, cuts: FloatArray) -> FloatArray:
    return np.asarray(cuts[np.abs(wanted[:, None] - cuts).argmin(axis=1)])
