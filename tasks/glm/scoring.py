"""The server's half of Fisher scoring: from pooled sums to the next theta, and to a fit.

``theta <- theta + I(theta)^-1 V(theta)``. `FisherIteration` holds what is known between two
exchanges: the strategy sends `coefficients` to the sites, pools their `FisherSums`, calls
`advance`, and goes on until `finished`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr, ndtri

from tasks.glm.families import FAMILIES, Family, FisherSums, FloatArray
from tasks.site.not_estimable import NotEstimable

Criterion = Literal["deviance", "step"]

# Smallest eigenvalue of the information scaled to a unit diagonal that counts as regular.
_SINGULAR = 1e-12
# A step of this size relative to the coefficients that does not shrink either diverges: it is 1/m
# after m rounds for a separated logit, 1/(2 m) for a separated probit, and at most 1e-5 where a
# regular fit stops.
_DIVERGING_STEP = 1e-3
_SHRINKING = 0.5
# Rounds in which a start that was given can turn out to be a bad one, and halvings that show it.
_FIRST_ROUNDS = 5
_HALVINGS = 3


@dataclass(frozen=True)
class GlmFit:
    """Maximum-likelihood fit of a GLM.

    Attributes
    ----------
    coefficients : (p,) float64
    covariance : (p, p) float64
        Inverse of the expected information, times the dispersion.
    dispersion : float
        1, or where the family has one the Pearson statistic over the residual degrees of freedom:
        for the Gaussian family the residual variance.
    deviance : float
        At `coefficients`.
    rows, rounds : int
        Responses behind the fit; exchanges that it took.
    """

    coefficients: FloatArray
    covariance: FloatArray
    dispersion: float
    deviance: float
    rows: int
    rounds: int

    @property
    def standard_errors(self) -> FloatArray:
        """Standard errors of the coefficients; (p,)."""
        return np.sqrt(np.diag(self.covariance))

    def table(self, *, alpha: float = 0.05) -> list[CoefficientRow]:
        """One row a coefficient: estimate, standard error, Wald z, p, and interval."""
        half = float(-ndtri(alpha / 2.0))
        rows = []
        for estimate, error in zip(
            self.coefficients.tolist(), self.standard_errors.tolist(), strict=True
        ):
            # 0 for an estimate of 0 without error, as of constant responses.
            z = estimate / error if error else estimate and math.copysign(math.inf, estimate)
            rows.append(
                CoefficientRow(
                    estimate=estimate,
                    standard_error=error,
                    z=z,
                    p_value=float(2.0 * ndtr(-abs(z))),
                    lower=estimate - half * error,
                    upper=estimate + half * error,
                )
            )
        return rows


@dataclass(frozen=True)
class CoefficientRow:
    """A line of the coefficient table; the interval has level 1 - alpha."""

    estimate: float
    standard_error: float
    z: float
    p_value: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Iterate:
    """Coefficients that Fisher scoring accepted, and where it would go from there.

    Attributes
    ----------
    round : int
        Round in which the sums came.
    coefficients : (p,) float64
    sums : FisherSums
        At `coefficients`.
    step : (p,) float64
        I^-1 V: the next coefficients are `coefficients` + `step`.
    """

    round: int
    coefficients: FloatArray
    sums: FisherSums
    step: FloatArray


HasConverged = Callable[[Iterate | None, Iterate], bool]
"""Takes the iterate before (None: there is none) and the one now."""


class FisherIteration:
    """Fisher scoring between two exchanges.

    Parameters
    ----------
    family : str
        One of `families`. Where it has a dispersion, that is estimated at the end; otherwise
        divergence is separation.
    criterion : {"deviance", "step"}
        Stop at a relative deviance change below `tolerance` as R's glm does (which leaves about
        4e-6 in the coefficients at 1e-8), or at a step whose largest entry is below it.
    tolerance : float
        Above 0.
    rounding : float
        Relative error of the deviance, from 0: changes within it always count as none. Larger
        where sums come in fixed point.
    max_rounds : int
        Rounds (calls of `advance`) after which the fit has failed; at least 2.
    start : (p,) float64, optional
        Where to begin. Without it the first round asks the sites for `starting_sums`, and so does
        a later one if `start` leads nowhere: the likelihood overflows, the information is singular
        there, three halvings of the first step do not lower the deviance, or steps do not shrink.
    has_converged : callable, optional
        Another rule for when to stop, instead of `criterion`; see `meets_criterion`.
    families : mapping of str to Family
        Those to choose from.

    Attributes
    ----------
    coefficients : (p,) float64 or None
        Where the sites are to evaluate next; None asks for `starting_sums`.
    finished : bool
        Whether `fit` can be called.
    rounds : int
        Calls of `advance` so far; an iteration that goes on from another one can be set to its.
    halved : bool
        Whether the deviance had risen in the last round, and the step was halved.
    """

    def __init__(
        self,
        family: str,
        *,
        criterion: Criterion = "deviance",
        tolerance: float = 1e-8,
        rounding: float = 1e-13,
        max_rounds: int = 25,
        start: FloatArray | None = None,
        has_converged: HasConverged | None = None,
        families: Mapping[str, Family] = FAMILIES,
    ) -> None:
        self.has_dispersion = families[family].has_dispersion
        self.criterion = criterion
        self.tolerance = tolerance
        self.rounding = rounding
        self.max_rounds = max_rounds
        self.coefficients = start
        self.finished = False
        self.rounds = 0
        self.halved = False
        self._has_converged = has_converged or self.meets_criterion
        self._last: Iterate | None = None
        self._at = np.zeros(0)  # where a halved step goes back to
        self._scale: FloatArray | None = None  # makes the columns' units comparable
        self._diverging = False
        self._given = start is not None
        self._halvings = self._accepted = 0

    def advance(self, sums: FisherSums) -> None:
        """Take in the pooled sums at `coefficients`; set the next ones or finish.

        Parameters
        ----------
        sums : FisherSums
            Over all sites.

        Raises
        ------
        NotEstimable
            ``"collinear"``, ``"separated"`` or ``"not-converged"``.
        """
        self.rounds += 1
        self.halved = False
        if self.coefficients is None:
            self._begin(sums)
            return
        self.halved = self._has_risen(sums)
        if self.halved:
            self._halvings += 1
            from_start = self._given and self._accepted <= 1
            if not self._at.size or (from_start and self._halvings >= _HALVINGS):
                self._begin_anew()  # the sites know a better start
            else:
                self.coefficients = 0.5 * (self.coefficients + self._at)
        else:
            try:
                self._accept(self.coefficients, sums)
            except NotEstimable:
                if not (self._given and self.rounds <= _FIRST_ROUNDS):
                    raise
                self._begin_anew()
            if self._given and self._diverging and self.rounds > _FIRST_ROUNDS:
                self._begin_anew()
        if self.rounds >= self.max_rounds and not self.finished:
            raise self._failure()

    def fit(self) -> GlmFit:
        """The fit.

        Raises
        ------
        RuntimeError
            If the iteration has not finished.
        NotEstimable
            ``"collinear"``: no row is left over to estimate the dispersion from.
        ValueError
            If the family has a dispersion and the sums came without a Pearson statistic.
        """
        if not self.finished or self._last is None:
            raise RuntimeError("the iteration has not finished")
        sums, coefficients = self._last.sums, self._last.coefficients
        dispersion = 1.0
        if self.has_dispersion:
            freedom = sums.rows - len(coefficients)
            if freedom < 1:
                raise NotEstimable("collinear", "as many coefficients as rows: no residual")
            if math.isnan(sums.pearson):
                raise ValueError("the sums have no Pearson statistic to estimate a dispersion from")
            dispersion = sums.pearson / freedom
        return GlmFit(
            coefficients=coefficients,
            covariance=np.asarray(np.linalg.inv(sums.information) * dispersion, dtype=np.float64),
            dispersion=dispersion,
            deviance=sums.deviance,
            rows=sums.rows,
            rounds=self.rounds,
        )

    def meets_criterion(self, before: Iterate | None, now: Iterate) -> bool:
        """Whether `criterion` holds: `now` can be the last."""
        if self.criterion == "step":
            return float(np.max(np.abs(now.step))) < self.tolerance
        if before is None:
            return False
        deviance = now.sums.deviance
        change = abs(deviance - before.sums.deviance) / (abs(deviance) + 0.1)
        return change < max(self.tolerance, self.rounding)

    def _begin_anew(self) -> None:
        self.coefficients = self._last = self._scale = None
        self._at = np.zeros(0)
        self._given = self._diverging = False
        self._halvings = self._accepted = 0

    def _begin(self, sums: FisherSums) -> None:
        self._at = np.zeros(len(sums.score))
        self.coefficients = self._step(sums)

    def _has_risen(self, sums: FisherSums) -> bool:
        if not (math.isfinite(sums.deviance) and np.isfinite(sums.score).all()):
            return True
        if self._last is None:
            return False
        before = self._last.sums.deviance
        return sums.deviance > before + self.rounding * (abs(before) + 0.1)

    def _accept(self, at: FloatArray, sums: FisherSums) -> None:
        before = self._last
        self._accepted += 1
        now = Iterate(self.rounds, at, sums, self._step(sums))
        self._last, self._at = now, at
        self._diverging = self._is_diverging(before, now)
        if self._has_converged(before, now):
            if self._diverging and not self.has_dispersion:
                raise self._failure()
            self.finished = True
            return
        self.coefficients = at + now.step

    def _is_diverging(self, before: Iterate | None, now: Iterate) -> bool:
        if before is None or self._scale is None:
            return False
        size = np.max(np.abs(now.step) * self._scale)
        is_large = size > _DIVERGING_STEP * np.max(np.abs(now.coefficients) * self._scale)
        return bool(is_large and size > _SHRINKING * np.max(np.abs(before.step) * self._scale))

    def _step(self, sums: FisherSums) -> FloatArray:
        """I^-1 V, solved at a unit diagonal so that the columns' units do not matter."""
        diagonal = np.diag(sums.information)
        if not (np.isfinite(sums.information).all() and (diagonal > 0).all()):
            raise self._singular()
        root = np.sqrt(diagonal)
        scaled = sums.information / np.outer(root, root)
        if np.linalg.eigvalsh(scaled)[0] < _SINGULAR:
            raise self._singular()
        if self._scale is None:
            self._scale = root
        return np.asarray(np.linalg.solve(scaled, sums.score / root) / root)

    def _singular(self) -> NotEstimable:
        if self._scale is not None and not self.has_dispersion:  # it was regular before
            return self._separated()
        return NotEstimable(
            "collinear", "the information matrix is singular: columns depend on each other"
        )

    def _failure(self) -> NotEstimable:
        if self._diverging and not self.has_dispersion:
            return self._separated()
        return NotEstimable(
            "not-converged", f"no convergence within max-rounds = {self.max_rounds} rounds"
        )

    @staticmethod
    def _separated() -> NotEstimable:
        return NotEstimable(
            "separated",
            "a linear predictor separates the responses: the coefficients grow without bound",
        )
