"""Rows of generalized linear models, sites that hold them, and statsmodels on all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedapp.simulation import InProcessGrid
from strategies.fisher_result import FisherResult
from tasks.glm.client import answer
from tasks.site.client import answering_faults

FAMILIES: dict[str, Any] = {
    "probit": lambda: sm.families.Binomial(link=sm.families.links.Probit()),
    "logit": sm.families.Binomial,
    "poisson": sm.families.Poisson,
    "gaussian": sm.families.Gaussian,
}
PRECISE: dict[str, Any] = {"criterion": "step", "tolerance": 1e-11}
NAMES = ("(intercept)", "age", "bmi")

Rows = tuple[Any, Any]
Handler = Callable[[Message, str], Message]


def draw(family: str, seed: int, number: int = 300) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(seed)
    x = pd.DataFrame({"age": rng.normal(0, 1, number), "bmi": rng.random(number)})
    predictor = 0.3 - 0.7 * x["age"].to_numpy() + 1.1 * x["bmi"].to_numpy()
    if family == "poisson":
        return x, rng.poisson(np.exp(predictor + 1)).astype(float)
    if family == "gaussian":
        return x, predictor + rng.normal(0, 2, number)
    return x, (predictor + rng.normal(0, 1.5, number) > 0).astype(float)


def deal(x: pd.DataFrame, y: Any, place: Any, count: int) -> dict[str, Rows]:
    return {f"site-{k}": (x[place == k], y[place == k]) for k in range(count)}


def thirds(x: pd.DataFrame, y: Any) -> dict[str, Rows]:
    return deal(x, y, np.arange(len(y)) % 3, 3)


def grid_of(names: list[str], handler: Handler) -> InProcessGrid:
    """Return a Grid whose sites answer an iteration by `handler`, which gets the site's name."""
    app = ClientApp()

    @app.query("fisher_scoring")
    @answering_faults
    def fisher_scoring(message: Message, context: Context) -> Message:
        return handler(message, str(context.node_config["site-name"]))

    return InProcessGrid(app, [{"site-name": name} for name in names], {})


def grid_with(sites: Mapping[str, Rows], **options: Any) -> InProcessGrid:
    def handler(message: Message, site: str) -> Message:
        x, y = sites[site]
        return answer(message, x, y, intercept=True, site=site, **options)

    return grid_of(list(sites), handler)


def pooled(family: str, x: pd.DataFrame, y: Any, **options: Any) -> Any:
    design = np.column_stack([np.ones(len(x)), x])
    return sm.GLM(y, design, family=FAMILIES[family](), **options).fit(
        tol=1e-13, tol_criterion="params", maxiter=100
    )


def assert_equal_fits(ours: FisherResult, theirs: Any) -> None:
    assert ours.coefficients == pytest.approx(theirs.params, rel=1e-8, abs=1e-10)
    assert ours.fit.standard_errors == pytest.approx(theirs.bse, rel=1e-8)
    assert ours.deviance == pytest.approx(theirs.deviance, rel=1e-8)
    covariance = theirs.cov_params()
    assert ours.covariance == pytest.approx(covariance, abs=1e-8 * np.abs(covariance).max())
