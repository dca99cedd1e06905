"""All metrics of one evaluation: what is made of the sums of all sites."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.survival.brier import BrierScores, brier_scores
from tasks.survival.calibration import Calibration, calibration
from tasks.survival.concordance import Concordance, concordance
from tasks.survival.estimate import Estimate
from tasks.survival.evaluation_plan import EvaluationPlan
from tasks.survival.survival_metrics import SurvivalMetricsSums
from tasks.survival.time_dependent_auc import auc_at_times, mean_auc

WORSE_THAN_KAPLAN_MEIER = "worse_than_kaplan_meier"


@dataclass(frozen=True)
class SurvivalMetrics:
    """Pooled metrics with intervals.

    Attributes
    ----------
    tau : float
        Upper limit of time.
    times : tuple of float
        Times of `auc` and of ``brier.at_times``.
    uno : Concordance
        Uno's concordance within sites, up to the upper limit.
    antolini : Concordance or None
        Antolini's concordance within sites; None if it was not asked for.
    auc : tuple of Concordance
        AUC within sites at every time.
    mean_auc : Concordance
        Its mean, weighted by events.
    brier : BrierScores
        Brier scores at the times, integrated, and beside the Kaplan-Meier reference.
    calibration : Calibration
        By bin of predicted probability, at `calibration_time`.
    calibration_time : float
        Horizon of the calibration.
    """

    tau: float
    times: tuple[float, ...]
    uno: Concordance
    antolini: Concordance | None
    auc: tuple[Concordance, ...]
    mean_auc: Concordance
    brier: BrierScores
    calibration: Calibration
    calibration_time: float

    def summary(self) -> dict[str, float | str]:
        """Flat summary; what does not exist is absent, and ``<key>-reason`` says why."""
        values: dict[str, Estimate | Concordance] = {
            "uno-c-index": self.uno,
            "auc-mean": self.mean_auc,
            "ibs": self.brier.integrated,
            "ibs-kaplan-meier": self.brier.reference,
            "ibs-difference": self.brier.difference,
            "calibration-observed": self.calibration.overall.observed,
        }
        if self.antolini is not None:
            values["antolini-c-index"] = self.antolini
        for number, (auc, score) in enumerate(
            zip(self.auc, self.brier.at_times, strict=True), start=1
        ):
            values[f"auc-{number}"] = auc
            values[f"brier-{number}"] = score
        summary: dict[str, float | str] = {
            "metrics-upper-limit": self.tau,
            "calibration-time": self.calibration_time,
            "calibration-rows": self.calibration.overall.rows,
            "calibration-error-rows": sum(one.rows for one in self.calibration.bins),
        }
        summary |= {f"metrics-time-{k}": time for k, time in enumerate(self.times, start=1)}
        for key, estimate in values.items():
            summary |= _entries(key, estimate)
        if self.calibration.overall.predicted is not None:
            summary["calibration-predicted"] = self.calibration.overall.predicted
        if self.calibration.error is not None:
            summary["calibration-error"] = self.calibration.error
        return summary

    def collapse_signs(self, c_index: Concordance) -> tuple[str, ...]:
        """A sign that the model predicts no better than no features, beside those of `collapse`.

        Parameters
        ----------
        c_index : Concordance
            Of the same model.

        Returns
        -------
        tuple of str
            One line that starts with ``worse_than_kaplan_meier`` if the interval of C contains
            .5 and the integrated Brier score exceeds that of the Kaplan-Meier estimate.
        """
        lower, upper, ibs = c_index.lower, c_index.upper, self.brier.integrated.value
        if lower is None or upper is None or not lower <= 0.5 <= upper:
            return ()
        if ibs is None or not self.brier.worse_than_reference:
            return ()
        if f"{ibs:.4f}" == f"{self.brier.reference.value:.4f}":  # which is worse by nothing
            return ()
        return (
            f"{WORSE_THAN_KAPLAN_MEIER}: the integrated Brier score {ibs:.4f} exceeds "
            f"{self.brier.reference.value:.4f} of one Kaplan-Meier curve for all, and the "
            f"interval of C ({lower:.3f} to {upper:.3f}) contains .5",
        )


def survival_metrics(
    sums: SurvivalMetricsSums, plan: EvaluationPlan, confidence_level: float
) -> SurvivalMetrics:
    """Pooled metrics from the sums of all sites.

    Parameters
    ----------
    sums : SurvivalMetricsSums
        Sum of the sites' sums; zeros, if no site has enough rows.
    plan : EvaluationPlan
        The plan that the sites had.
    confidence_level : float
        In (0, 1).

    Raises
    ------
    ValueError
        If the confidence level is out of range.
    """
    return SurvivalMetrics(
        tau=plan.tau,
        times=tuple(plan.times.tolist()),
        uno=concordance(sums.uno, confidence_level),
        antolini=concordance(sums.antolini, confidence_level) if plan.time_dependent else None,
        auc=auc_at_times(sums.auc, confidence_level),
        mean_auc=mean_auc(sums.auc, plan.reference[plan.at], confidence_level),
        brier=brier_scores(sums.brier, confidence_level),
        calibration=calibration(sums.calibration, confidence_level),
        calibration_time=float(plan.grid[plan.calibration_at]),
    )


def _entries(key: str, estimate: Estimate | Concordance) -> dict[str, float | str]:
    entries: dict[str, float | str | None] = {
        key: estimate.value,
        f"{key}-lower": estimate.lower,
        f"{key}-upper": estimate.upper,
        f"{key}-reason": estimate.reason or None,
    }
    return {name: entry for name, entry in entries.items() if entry is not None}
