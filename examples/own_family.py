"""A family of one's own: length of stay in three hospitals, a Gamma GLM with the log link.

A family is a value that server and sites share: what a row adds to the sums, and which responses
there are. Checks of rows and messages, the privacy level, step halving and the coefficient table
come with the package. Estimates, standard errors and deviance are those of the pooled rows::

    python examples/own_family.py
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedapp.simulation import InProcessGrid
from strategies.fisher_scoring import FisherScoring
from tasks.glm.client import answer
from tasks.glm.families import FAMILIES, Family, RowTerms
from tasks.site.client import answering_faults

HOSPITALS = {"north": 180, "south": 90, "west": 240}  # and their patients


def gamma_terms(predictor: Any, days: Any, _: Any) -> RowTerms:
    """Variance mean^2 and mean exp(predictor), so the mean's derivative cancels its root."""
    relative = days * np.exp(-predictor)
    return RowTerms(
        slope=relative - 1.0,
        weight=np.ones_like(predictor),
        deviance=2.0 * (relative - 1.0 - np.log(days) + predictor),
    )


GAMMA = Family(
    terms=gamma_terms,
    start=lambda days, _: np.log(days),
    allowed="a finite number above 0",
    least=math.ulp(0.0),
    has_dispersion=True,
)


class WithGamma(FisherScoring):
    """Fisher scoring that knows the family by name."""

    families = {**FAMILIES, "gamma": GAMMA}  # noqa: RUF012


def patients(site: str) -> tuple[pd.DataFrame, Any]:
    """Draw the rows of a hospital: age in decades, an emergency or not; days of stay."""
    rng = np.random.default_rng(list(HOSPITALS).index(site))
    number = HOSPITALS[site]
    rows = pd.DataFrame(
        {"age": rng.normal(6.0, 1.5, number), "emergency": rng.integers(0, 2, number)}
    )
    mean = np.exp(0.4 + 0.15 * rows["age"] + 0.5 * rows["emergency"])
    return rows, rng.gamma(2.5, mean / 2.5)


app = ClientApp()


@app.query("fisher_scoring")
@answering_faults
def fisher_scoring(message: Message, context: Context) -> Message:
    """Answer an iteration with sums over this hospital's rows."""
    site = str(context.node_config["site-name"])
    rows, days = patients(site)
    return answer(message, rows, days, intercept=True, site=site, families=WithGamma.families)


def main() -> None:
    """Fit the model and print the coefficient table."""
    grid = InProcessGrid(app, [{"site-name": name} for name in HOSPITALS], {})
    strategy = WithGamma(family="gamma", criterion="step", min_sites=len(HOSPITALS))
    result = strategy.start(grid=grid)
    print(result)
    print(f"dispersion {result.fit.dispersion:.6g}")


if __name__ == "__main__":
    main()
