"""What all sites evaluate a survival model by: times, censoring weights, and a reference.

It is made once, at the server, from the pooled counts of training rows by time, and sent to every
site. This is the one place where the limits of time are set:

- **upper limit** tau: the last point of the time grid at which the censoring estimate G is at
  least `LEAST_CENSORING_SURVIVAL` and at least `LEAST_AT_RISK` rows and `LEAST_SHARE_AT_RISK` of
  all rows are at risk, and twice the privacy level for every site: a site tells of its last rows
  in one cell, which has up to about that many, and within it the counts are a straight line.
  Brier scores are integrated from 0 to tau over the points of the grid, and pairs of Uno's
  concordance begin before tau.
- **times** of AUC(t) and the Brier score: the points of the grid nearest to a quarter, half and
  three quarters of tau; **calibration** is at the middle one.

So a weight is at most ``1 / LEAST_CENSORING_SURVIVAL`` (its square for Uno's concordance), which
a site checks: a single row cannot be made to stand out by its weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.survival.calibration import MOST_BINS, calibration_cuts
from tasks.survival.censoring import CensoringEstimate, censoring_estimate
from tasks.survival.curves import kaplan_meier
from tasks.survival.risk_sets import FloatArray, IntArray, RiskSetSums

LEAST_CENSORING_SURVIVAL = 0.1
LEAST_AT_RISK = 10
LEAST_SHARE_AT_RISK = 0.05
MOST_TIMES = 5
"""Most times of AUC(t) and the Brier score: a site's sums are equations about its rows."""

FOLLOW_UP_TOO_SHORT = "follow-up-too-short"

_SHARES_OF_UPPER_LIMIT = (0.25, 0.5, 0.75)


@dataclass(frozen=True, eq=False)
class EvaluationPlan:
    """Public setting of an evaluation.

    Attributes
    ----------
    censoring : CensoringEstimate
        G on the time grid.
    reference : ndarray, shape (bins + 1,)
        Kaplan-Meier estimate of the pooled training rows at the times of the grid.
    upper : int
        Grid point of the upper limit.
    at : ndarray of int, shape (K,)
        Grid points of AUC(t) and the Brier score, ascending.
    calibration_at : int
        Grid point at which predictions are calibrated.
    cuts : ndarray, shape (groups - 1,)
        Cuts of predicted event probability at that time.
    time_dependent : bool
        Whether predicted curves may cross: sites then sum Antolini's concordance, too.

    Raises
    ------
    ValueError
        If the parts do not fit together or a limit is not kept; all faults in one message.
    """

    censoring: CensoringEstimate
    reference: FloatArray
    upper: int
    at: IntArray
    calibration_at: int
    cuts: FloatArray
    time_dependent: bool = False

    def __post_init__(self) -> None:
        faults = []
        bins = self.grid.size - 1
        if (
            self.reference.shape != self.grid.shape
            or not ((self.reference >= 0) & (self.reference <= 1)).all()
        ):
            faults.append(f"the reference must be {bins + 1} probabilities")
        if not 1 <= self.upper <= bins:
            faults.append(f"the upper limit must be one of the grid points 1 to {bins}")
        elif self.censoring.survival[self.upper] < LEAST_CENSORING_SURVIVAL:
            faults.append(
                "the probability of not being censored must be at least "
                f"{LEAST_CENSORING_SURVIVAL} up to the upper limit"
            )
        chosen = np.append(self.at, self.calibration_at)
        if not 1 <= self.at.size <= MOST_TIMES or (np.diff(self.at) <= 0).any():
            faults.append(f"there must be 1 to {MOST_TIMES} times, ascending")
        if not ((chosen >= 1) & (chosen <= self.upper)).all():
            faults.append("times must be grid points up to the upper limit")
        if (
            self.cuts.ndim != 1
            or self.cuts.size >= MOST_BINS
            or not ((self.cuts > 0) & (self.cuts < 1)).all()
            or (np.diff(self.cuts) <= 0).any()
        ):
            faults.append(f"cuts must be at most {MOST_BINS - 1} probabilities that ascend")
        if faults:
            raise ValueError("evaluation plan: " + "; ".join(faults))

    @property
    def grid(self) -> FloatArray:
        """Time grid, shape (bins + 1,): sites predict survival at these times."""
        return self.censoring.grid

    @property
    def tau(self) -> float:
        """Upper limit of all metrics."""
        return float(self.grid[self.upper])

    @property
    def times(self) -> FloatArray:
        """Times of AUC(t) and the Brier score, shape (K,)."""
        return self.grid[self.at]

    @property
    def largest_weight(self) -> float:
        """Largest inverse probability of censoring weight up to the upper limit."""
        return 1 / float(self.censoring.survival[self.upper])

    def to_arrays(self) -> dict[str, npt.NDArray[np.float64] | IntArray]:
        """Everything as arrays, by kebab-case names."""
        flags = [self.upper, self.calibration_at, self.time_dependent, self.censoring.continuous]
        return {
            "grid": self.grid,
            "censoring-survival": self.censoring.survival,
            "reference-survival": self.reference,
            "evaluation-points": np.asarray(self.at, dtype=np.int64),
            "calibration-cuts": self.cuts,
            "plan": np.array(flags, dtype=np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[np.generic]]) -> EvaluationPlan:
        """The inverse of `to_arrays`; raises KeyError or ValueError if it is none."""
        flags = np.asarray(arrays["plan"], dtype=np.int64)
        if flags.shape != (4,):
            raise ValueError(f"plan: has shape {flags.shape}; allowed: (4,)")
        upper, calibration_at, time_dependent, continuous = flags.tolist()

        def reals(name: str) -> FloatArray:
            return np.asarray(arrays[name], dtype=np.float64)

        return cls(
            CensoringEstimate(
                reals("grid"), reals("censoring-survival"), continuous=bool(continuous)
            ),
            reals("reference-survival"),
            upper=upper,
            at=np.asarray(arrays["evaluation-points"], dtype=np.int64).reshape(-1),
            calibration_at=calibration_at,
            cuts=reals("calibration-cuts"),
            time_dependent=bool(time_dependent),
        )


def evaluation_plan(
    counts: RiskSetSums,
    grid: FloatArray,
    *,
    sites: int,
    privacy_level: int,
    time_dependent: bool = False,
    actuarial: bool = True,
) -> EvaluationPlan | None:
    """Plan from pooled counts by time, or None if the follow-up is too short for any.

    Parameters
    ----------
    counts : RiskSetSums
        Events and rows at risk of all sites; weights are not used.
    grid : ndarray, shape (bins + 1,)
        The time grid of the counts.
    sites : int
        Sites behind the counts.
    privacy_level : int
        Level up to which each merged its cells; with 1, counts are exact.
    time_dependent : bool
        Whether predicted curves may cross (every model but those with proportional hazards).
    actuarial : bool
        See `censoring_estimate`; every run has True. False gives Kaplan-Meier's estimate where each
        time is a border of the grid, which is what other packages have.

    Raises
    ------
    ValueError
        If the counts are not of this grid.
    """
    censoring = censoring_estimate(counts, grid, actuarial=actuarial)
    merged = 2 * privacy_level * sites if privacy_level > 1 else 0
    least = max(LEAST_AT_RISK, LEAST_SHARE_AT_RISK * counts.at_risk_count[0], merged)
    allowed = (censoring.survival >= LEAST_CENSORING_SURVIVAL) & (counts.at_risk_count >= least)
    upper = int(np.flatnonzero(allowed)[-1]) if allowed.any() else 0
    if upper == 0:
        return None
    # Survival of the life table; rounding of spread counts may leave it a hair below 0.
    reference = np.clip(kaplan_meier(counts.at_risk_count, counts.events), 0.0, 1.0)
    aims = grid[upper] * np.array(_SHARES_OF_UPPER_LIMIT)
    nearest = np.abs(grid[: upper + 1, None] - aims).argmin(axis=0)
    at = np.unique(np.maximum(nearest, 1))
    middle = int(at[at.size // 2])
    return EvaluationPlan(
        censoring,
        reference,
        upper=upper,
        at=at,
        calibration_at=middle,
        cuts=calibration_cuts(1 - float(reference[middle])),
        time_dependent=time_dependent,
    )
