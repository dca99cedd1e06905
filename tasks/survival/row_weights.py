"""How the evaluation rows of a site are weighted for censoring, and what it may tell of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.survival.censoring import CensoringWeights
from tasks.survival.evaluation_plan import EvaluationPlan
from tasks.survival.merged_times import MergedCensoring, evaluation_borders
from tasks.survival.risk_sets import FloatArray

_PREDICTION_DECIMALS = 3


@dataclass(frozen=True, eq=False)
class RowWeights:
    """What weighs the rows of a site, and what it may tell.

    Attributes
    ----------
    rows : CensoringWeights
        By merged cells of time.
    model : CensoringWeights
        Of the model's Brier scores, which are of predictions, too: those only the site knows, so
        that the row's own cell of the grid may count, unless most rows have the same prediction.
    told : ndarray of bool, shape (K,)
        Times whose AUC has enough cases and controls.
    """

    rows: CensoringWeights
    model: CensoringWeights
    told: npt.NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        time: FloatArray,
        event: npt.NDArray[np.bool_],
        survival: FloatArray,
        plan: EvaluationPlan,
        *,
        privacy_level: int,
    ) -> RowWeights:
        """Weights of evaluation rows; exact ones with a privacy level of 1.

        Parameters
        ----------
        time, event : ndarray, shape (n,)
            Follow-up times; whether the event was seen.
        survival : ndarray, shape (n, upper + 1)
            Predicted survival at the points of the grid up to the plan's upper limit.
        plan : EvaluationPlan
            Shared by all sites.
        privacy_level : int
            At most n.
        """
        if privacy_level <= 1:
            everywhere = np.ones(plan.at.size, dtype=np.bool_)
            return cls(plan.censoring, plan.censoring, everywhere)
        borders = evaluation_borders(
            time, plan.grid, wanted=[*plan.at.tolist(), plan.upper], least=privacy_level
        )
        gone = time[:, None] <= plan.times
        cases, controls = (gone & event[:, None]).sum(axis=0), (~gone).sum(axis=0)
        told = np.isin(plan.at, borders) & (np.minimum(cases, controls) >= privacy_level)
        predictions = np.unique(np.round(survival.mean(axis=1), _PREDICTION_DECIMALS)).size
        leaving = int((time <= plan.tau).sum())

        def merged(*, by_cell: bool) -> MergedCensoring:
            return MergedCensoring(
                plan.censoring, plan.reference, borders=borders, upper=plan.upper, by_cell=by_cell
            )

        unknown = min(predictions, leaving) >= privacy_level
        return cls(merged(by_cell=False), merged(by_cell=unknown), told)
