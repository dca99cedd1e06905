"""What Fisher scoring over sites gives: the fitted model, and the iterations that led to it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from tasks.glm.families import FloatArray
from tasks.glm.scoring import CoefficientRow, GlmFit

COEFFICIENTS = "coefficients"
"""Name of the estimates in a Result's ``arrays``."""


@dataclass(frozen=True)
class Iteration:
    """What one exchange of Fisher scoring gave.

    Attributes
    ----------
    number : int
        From 1.
    evaluated : (p,) float64 or None
        Coefficients at which the sites evaluated; None where they were asked for a start.
    deviance : float
        At `evaluated`; infinite where there is none, or where the likelihood overflows.
    rows : int
        Responses behind the sums.
    halved : bool
        The deviance had risen: the next coefficients are halfway back.
    converged : bool
        This was the last iteration; `evaluated` are the estimates.
    sites : tuple of str
        Whose sums were pooled.
    """

    number: int
    evaluated: FloatArray | None
    deviance: float
    rows: int
    halved: bool
    converged: bool
    sites: tuple[str, ...]

    def metrics(self) -> MetricRecord:
        """Return rows, whether the step was halved, and the deviance if it is finite."""
        metrics = MetricRecord({"rows": int(self.rows), "halved": int(self.halved)})
        if math.isfinite(self.deviance):
            metrics["deviance"] = float(self.deviance)
        return metrics


@dataclass(kw_only=True, repr=False, eq=False)
class FisherResult(Result):
    """A fitted generalized linear model; also Flower's Result, with the estimates as `arrays`.

    Attributes
    ----------
    fit : GlmFit
        Estimates, covariance, dispersion, deviance, number of rows.
    family : str
        Distribution of the response, with its link.
    feature_names : tuple of str
        One a coefficient.
    sites, lost_sites : tuple of str
        Whose rows are behind the estimates; who stopped to answer on the way.
    history : tuple of Iteration
        One an iteration.
    """

    fit: GlmFit
    family: str
    feature_names: tuple[str, ...]
    sites: tuple[str, ...]
    lost_sites: tuple[str, ...]
    history: tuple[Iteration, ...]

    @property
    def coefficients(self) -> FloatArray:
        """The estimates; (p,)."""
        return self.fit.coefficients

    @property
    def covariance(self) -> FloatArray:
        """Covariance matrix of the estimates; (p, p)."""
        return self.fit.covariance

    @property
    def deviance(self) -> float:
        """Deviance at the estimates."""
        return self.fit.deviance

    @property
    def iterations(self) -> int:
        """Iterations made, those before a site was lost included."""
        return len(self.history)

    @property
    def converged(self) -> bool:
        """Whether the rule to stop was met; a run that ends otherwise raises NotEstimable."""
        return self.history[-1].converged

    def table(self, *, alpha: float = 0.05) -> dict[str, CoefficientRow]:
        """Estimate, standard error, z, p and (1 - alpha) interval of each coefficient, by name."""
        return dict(zip(self.feature_names, self.fit.table(alpha=alpha), strict=True))

    def __repr__(self) -> str:
        """Return the coefficient table as text."""
        width = max(map(len, self.feature_names))
        lines = [
            f"{self.family}: {self.fit.rows} rows of {len(self.sites)} sites, "
            f"deviance {self.deviance:.6g}, {self.iterations} iterations",
            f"{'':{width}}   estimate  std.error        z         p    95% interval",
        ]
        lines += [
            f"{name:{width}} {row.estimate:10.4g} {row.standard_error:10.4g} {row.z:8.3f} "
            f"{row.p_value:9.3g}  {row.lower:10.4g} to {row.upper:.4g}"
            for name, row in self.table().items()
        ]
        return "\n".join(lines)
