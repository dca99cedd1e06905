"""All metrics of one evaluation: what a site sums; `tasks.survival.pooled_metrics` pools it.

The five sums of Harrell's concordance, which need neither times nor a baseline hazard, leave with
every round (`tasks.survival.concordance`). What is here is summed once, for the final model, by
the setting of `tasks.survival.evaluation_plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.survival.antolini import antolini_sums
from tasks.survival.brier import BrierSums
from tasks.survival.calibration import CalibrationSums
from tasks.survival.concordance import ConcordanceSums, impossible_sums
from tasks.survival.evaluation_plan import EvaluationPlan
from tasks.survival.risk_sets import FloatArray
from tasks.survival.row_weights import RowWeights
from tasks.survival.time_dependent_auc import AucSums
from tasks.survival.unos_concordance import unos_concordance_sums

_ROUNDED = 1 + 1e-9


@dataclass(frozen=True, eq=False)
class EvaluationRows:
    """Evaluation rows of a site with their predictions.

    Attributes
    ----------
    time, event : ndarray, shape (n,)
        Follow-up times, positive; whether the event was seen.
    survival : ndarray, shape (n, bins + 1)
        Predicted survival at the times of the plan's grid.
    risk : ndarray, shape (n,), or None
        Linear predictor of a model with proportional hazards. None for other models: Uno's
        concordance then ranks rows by the predicted mean survival time up to the upper limit
        (the shorter, the higher the risk), AUC(t) by the predicted survival at t.
    """

    time: FloatArray
    event: npt.NDArray[np.bool_]
    survival: FloatArray
    risk: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class SurvivalMetricsSums:
    """What a site contributes to the metrics of a plan; all zeros if it has too few rows.

    Attributes
    ----------
    uno : ConcordanceSums
        Weighted pairs of Uno's concordance.
    antolini : ConcordanceSums
        Pairs of Antolini's concordance; zeros unless the plan is time-dependent.
    auc : AucSums
        Weighted pairs of cases and controls at the plan's times.
    brier : BrierSums
        Scores at these times and integrated; its `rows` are the evaluation rows.
    calibration : CalibrationSums
        Predictions and counts by bin of predicted probability.
    """

    uno: ConcordanceSums
    antolini: ConcordanceSums
    auc: AucSums
    brier: BrierSums
    calibration: CalibrationSums

    @property
    def rows(self) -> float:
        """Evaluation rows behind the sums."""
        return self.brier.rows

    @classmethod
    def zeros(cls, plan: EvaluationPlan) -> SurvivalMetricsSums:
        """Sums over no rows."""
        return cls(
            ConcordanceSums(),
            ConcordanceSums(),
            AucSums.zeros(plan.at.size),
            BrierSums.zeros(plan.at.size),
            CalibrationSums.zeros(plan.cuts.size + 1, plan.calibration_at),
        )

    @classmethod
    def of(
        cls, rows: EvaluationRows, plan: EvaluationPlan, *, privacy_level: int
    ) -> SurvivalMetricsSums:
        """Sums over the rows of one site.

        Parameters
        ----------
        rows : EvaluationRows
            All evaluation rows of the site.
        plan : EvaluationPlan
            Shared by all sites.
        privacy_level : int
            Fewest rows: with less the sums are zeros. Rows enter by merged cells of time in which
            as many leave (`tasks.survival.merged_times`); pairs of Uno's concordance begin with
            as many events, and AUC(t) has as many cases and controls, at a border of merged cells,
            or its sums are zeros; it holds for each calibration bin, too. With 1 all is exact.

        Raises
        ------
        ValueError
            If lengths differ or a number is out of range.
        """
        if rows.time.size < max(privacy_level, 1):
            return cls.zeros(plan)
        until = plan.grid[: plan.upper + 1]
        survival = rows.survival[:, : plan.upper + 1]
        if rows.risk is None:
            mean_survival_time = ((survival[:, 1:] + survival[:, :-1]) / 2) @ np.diff(until)
            risk, risk_at_times = -mean_survival_time, 1 - survival[:, plan.at]
        else:
            risk, risk_at_times = rows.risk, rows.risk
        time, event = rows.time, rows.event
        weights = RowWeights.of(time, event, survival, plan, privacy_level=privacy_level)
        censoring = weights.rows
        begins = censoring.squared_weights(time[event], tau=plan.tau) > 0
        uno = unos_concordance_sums(risk, time, event, censoring=censoring, tau=plan.tau)
        return cls(
            uno=uno if begins.sum() >= privacy_level else ConcordanceSums(),
            antolini=antolini_sums(time, event, rows.survival, grid=plan.grid)
            if plan.time_dependent
            else ConcordanceSums(),
            auc=AucSums.of(risk_at_times, time, event, times=plan.times, censoring=censoring).only(
                weights.told
            ),
            brier=BrierSums.of(
                time,
                event,
                survival,
                grid=until,
                at=plan.at,
                reference=plan.reference[: plan.upper + 1],
                censoring=censoring,
                model_censoring=weights.model,
            ),
            calibration=CalibrationSums.of(
                time,
                event,
                1 - survival[:, plan.calibration_at],
                cuts=plan.cuts,
                grid=until[: plan.calibration_at + 1],
                privacy_level=privacy_level,
            ),
        )

    def __add__(self, other: SurvivalMetricsSums) -> SurvivalMetricsSums:
        return SurvivalMetricsSums(
            self.uno + other.uno,
            self.antolini + other.antolini,
            self.auc + other.auc,
            self.brier + other.brier,
            self.calibration + other.calibration,
        )

    def to_arrays(self) -> dict[str, FloatArray]:
        """One vector of doubles for each metric."""
        return {
            "uno": self.uno.to_floats(),
            "antolini": self.antolini.to_floats(),
            "auc": self.auc.to_floats(),
            "brier": self.brier.to_floats(),
            "calibration": self.calibration.to_floats(),
        }

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, FloatArray], plan: EvaluationPlan
    ) -> SurvivalMetricsSums:
        """The inverse of `to_arrays`, for sums that came from elsewhere.

        Whether `rows` is the number that the site has stated before is the caller's to check.

        Raises
        ------
        KeyError
            If a metric is missing.
        ValueError
            If a vector has another length than the plan's, or holds what cannot be sums over
            rows with the plan's weights. The text names the metric and no number of the reply.
        """
        times = plan.at.size
        sums = cls(
            ConcordanceSums.from_floats(arrays["uno"]),
            ConcordanceSums.from_floats(arrays["antolini"]),
            AucSums.from_floats(arrays["auc"], times=times),
            BrierSums.from_floats(arrays["brier"], times=times),
            CalibrationSums.from_floats(
                arrays["calibration"], bins=plan.cuts.size + 1, cells=plan.calibration_at
            ),
        )
        sums._refuse_impossible(plan)
        return sums

    def _refuse_impossible(self, plan: EvaluationPlan) -> None:
        rows, weight = self.rows, plan.largest_weight
        faults = []
        if rows != np.floor(rows):
            faults.append("brier: rows must be a whole number")
        most_pairs = rows * max(rows - 1, 0) / 2
        pair_weights = {"uno": weight**2, "antolini": 2.0 if plan.time_dependent else 0.0}
        for name, most_weight in pair_weights.items():
            own: ConcordanceSums = getattr(self, name)
            if own.b > most_weight * most_pairs * _ROUNDED:
                faults.append(f"{name}: more pairs than the rows have")
            elif impossible_sums(own):
                faults.append(f"{name}: squares beyond those of any rows")
        if (self.auc.b > weight * rows**2 / 4 * _ROUNDED).any():
            faults.append("auc: more pairs than the rows have")
        if any(impossible_sums(self.auc.at(k)) for k in range(plan.at.size)):
            faults.append("auc: squares beyond those of any rows")
        brier = self.brier
        if max(brier.score.max(), brier.reference.max()) > weight * rows * _ROUNDED or (
            max(brier.square.max(), brier.reference_square.max()) > weight**2 * rows * _ROUNDED
        ):
            faults.append("brier: scores beyond the largest weight")
        if abs(self.calibration.rows.sum() - rows) > rows * (_ROUNDED - 1):
            faults.append("calibration: other rows than the evaluation rows")
        if faults:
            raise ValueError("; ".join(faults))
