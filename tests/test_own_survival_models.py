"""Models of one's own that are wrong are named, and what a strategy keeps of a run before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from torch import Tensor, nn

from fedapp import survival_run
from fedapp.simulation import simulate
from strategies.membership import Refused
from strategies.survival import SurvivalFedAvg
from strategies.survival_columns import common_columns
from strategies.survival_evaluation import signs_of_collapse
from strategies.survival_model import initial_model
from strategies.survival_statistics import PooledStatistics
from tasks.survival.baseline import BaselineHazard
from tasks.survival.concordance import Concordance, ConcordanceSums
from tasks.survival.config import SurvivalConfig
from tasks.survival.data import SurvivalData
from tasks.survival.messages import EvaluationSums
from tasks.survival.models import (
    Batch,
    CoxTime,
    Design,
    Kind,
    ProportionalHazards,
    SurvivalModel,
    TimeDependent,
    build,
    register,
    registry,
)
from tasks.survival.risk_sets import RiskSetSums, time_grid
from tasks.survival.set_up_messages import SurvivalFacts
from tasks.survival.site_columns import ColumnFacts
from tasks.survival.site_evaluation import has_identical_predictions, risk_set_sums
from tasks.survival.standardization import FeatureMoments
from tests.fakes import ScriptedGrid
from tests.patients import patients

GRID = time_grid(4.0, 8)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """Registers a builder for the test."""
    monkeypatch.setattr(registry, "_BUILDERS", dict(registry._BUILDERS))

    def add(builder: Any) -> str:
        monkeypatch.setattr(registry.names, "add_name", lambda name: None)
        register("Mine")(builder)
        return "Mine"

    return add


class Weibull(TimeDependent):
    """A relative hazard that crosses: x log t."""

    def loss(self, batch: Batch) -> Tensor:
        return self.network(batch.features).sum()

    def log_hazard(
        self, features: NDArray[np.float32], times: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        return np.outer(features[:, 0], np.log(1 + times))

    def risk(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(features[:, 0], dtype=np.float64)

    def survival(
        self,
        features: NDArray[np.float32],
        times: NDArray[np.float64],
        baseline: BaselineHazard | None = None,
    ) -> NDArray[np.float64]:
        raise NotImplementedError


class Pretender(SurvivalModel):
    kind: ClassVar[Kind] = "time-dependent"
    loss = Weibull.loss
    risk = Weibull.risk
    survival = Weibull.survival


def failing(design: Design) -> SurvivalModel:
    raise KeyError("boom")


@pytest.mark.parametrize(
    ("builder", "words"),
    [
        (lambda design: None, "returns NoneType"),
        (failing, "its builder has failed .KeyError: 'boom'"),
        (lambda design: ProportionalHazards(nn.Linear(design.n_features, 3)), "no risk|shape"),
        (lambda design: ProportionalHazards(nn.Identity()), "nothing to train"),
        (lambda design: Pretender(nn.Linear(2, 1)), "subclass of TimeDependent"),
    ],
)
def test_a_model_that_cannot_run_is_named_before_it_does(
    registered: Callable[[Any], str], builder: Any, words: str
) -> None:
    name = registered(builder)
    with pytest.raises(ValueError, match=f"model 'Mine'.*({words})"):
        build(name, n_features=2, hidden_layers=(), dropout=0.0, seed=0)


def test_risk_sets_of_any_time_dependent_model_are_weighted_by_its_hazard_at_each_time(
    registered: Callable[[Any], str],
) -> None:
    name = registered(lambda design: Weibull(nn.Linear(design.n_features, 1)))
    model = build(name, n_features=2, hidden_layers=(), dropout=0.0, seed=0)
    assert issubclass(CoxTime, TimeDependent)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(30, 2)).astype(np.float32)
    time, event = rng.exponential(2, 30) + 1e-3, rng.random(30) < 0.7
    rows = SurvivalData(inputs.astype(np.float64), time, event, ("a", "b"))
    sums = risk_set_sums(model, inputs, rows, model.risk(inputs), grid=GRID)
    for point, moment in enumerate(GRID):
        at_risk = time > moment
        weight = ((1 + moment) ** inputs[at_risk, 0].astype(np.float64)).sum()
        assert sums.at_risk_weight[point] == pytest.approx(weight)


def test_predictions_are_identical_if_whole_curves_are() -> None:
    """At saturation the risk at one time is equal for all rows, and the curves are not."""
    cuts = np.array([0.0, 1.0, 2.0, 3.0])
    model = build(
        "LogisticHazard",
        n_features=1,
        hidden_layers=(),
        dropout=0.0,
        seed=0,
        horizon=4.0,
        cuts=cuts,
    )
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.fill_(0.0)
            if parameter.ndim == 2:
                parameter[0] = 1.0  # the hazard of the first interval depends on the row
            else:
                parameter[1] = 80.0  # nobody survives the second
    inputs = np.array([[-1.0], [0.0], [1.0]], dtype=np.float32)
    risk = model.risk(inputs)
    assert (risk == risk[0]).all()
    assert not has_identical_predictions(model, inputs, risk, cuts=cuts)
    same = np.zeros((3, 1), dtype=np.float32)
    assert has_identical_predictions(model, same, model.risk(same), cuts=cuts)


def evaluation(rows: int, *, identical: bool) -> EvaluationSums:
    return EvaluationSums(ConcordanceSums(), rows=rows, identical=identical)


def test_all_sites_must_have_identical_predictions_and_one_row_tells_nothing() -> None:
    risk = FeatureMoments(10, np.zeros(1), np.array([10.0]))
    c = Concordance(0.6, 0.5, 0.7, 10.0)
    both = [evaluation(5, identical=True), evaluation(6, identical=True)]
    assert signs_of_collapse(c, both, risk)
    assert not signs_of_collapse(c, [*both, evaluation(5, identical=False)], risk)
    assert not signs_of_collapse(c, [evaluation(1, identical=True)] * 3, risk)
    assert not signs_of_collapse(c, [evaluation(0, identical=False)], risk)


def test_a_discrete_model_begins_at_the_pooled_kaplan_meier_estimate() -> None:
    counts = RiskSetSums(np.arange(9.0)[::-1], np.ones(8), np.arange(9.0)[::-1])
    statistics = PooledStatistics(
        ("a",),
        FeatureMoments.of(np.array([[0.0], [1.0]])).standardizer(),
        4.0,
        counts,
        "",
        [],
    )
    config = SurvivalConfig.model_validate({"model": "LogisticHazard", "time-bins": 8})
    cuts = np.array([0.0, 1.0, 2.0, 3.0])
    model = initial_model(statistics, config, cuts=cuts, seed=0)
    survival = model.survival(np.zeros((1, 1), dtype=np.float32), cuts)[0]
    np.testing.assert_allclose(survival, [1, 0.75, 0.5, 0.25], atol=0.15)


def test_too_many_categories_are_refused_by_the_name_of_who_told_them() -> None:
    def facts(names: list[str]) -> SurvivalFacts:
        return SurvivalFacts(20.0, (ColumnFacts("arm", "text", False, tuple(names)),))

    sites = {"north": facts(["a", "b"]), "south": facts([f"c{i}" for i in range(300)])}
    with pytest.raises(Refused, match=r"302 categories.*300 at south, 2 at north"):
        common_columns(sites, {}, allow_missing=False)


def test_a_second_start_of_a_strategy_is_that_of_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cuts and initial model are of the run, and so is what it found."""
    made: list[SurvivalFedAvg] = []

    def same_again(**arguments: Any) -> SurvivalFedAvg:
        if not made:
            made.append(SurvivalFedAvg(**arguments))
        made[0].sites, made[0].on_round = dict(arguments["sites"]), arguments["on_round"]
        return made[0]

    config = {
        "survival.model": "LogisticHazard",
        "survival.rounds": 1,
        "survival.local-steps": 2,
        "report": False,
        "run-dir": str(tmp_path),
    }

    def result(factor: float) -> dict[str, Any]:
        frames = [patients(60, seed=seed) for seed in range(3)]
        for frame in frames:
            frame["time"] *= factor
        summary: dict[str, Any] = simulate("survival", sites=frames, config=config, seed=1).summary
        own = ("run-id", "started", "seconds", "duration-seconds", "noise-to-signal-median")
        return {
            key: value
            for key, value in summary.items()
            if key in ("status", "c-index", "ibs", "metrics-upper-limit", "diagnostics")
            and key not in own
        }

    alone = result(50.0)
    monkeypatch.setattr(survival_run, "SurvivalFedAvg", same_again)
    result(1.0)
    assert made[0].label_cuts[-1] < 1000
    made[0].diagnostics += ("of the run before",)
    made[0].shortfalls[7] = (1, 2)
    again = result(50.0)
    assert again["metrics-upper-limit"] == alone["metrics-upper-limit"]
    assert made[0].label_cuts[-1] > 100
    assert made[0].shortfalls == {}
    assert "of the run before" not in again["diagnostics"]


def test_no_rounds_are_not_the_default_number() -> None:
    strategy = SurvivalFedAvg(config=SurvivalConfig())
    strategy.__dict__["label_cuts"] = np.array([0.0, 1.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SurvivalFedAvg, "_begin", lambda self: None)
        standardizer = FeatureMoments.of(np.array([[0.0], [1.0]])).standardizer()
        told = SimpleNamespace(standardizer=standardizer, horizon=4.0)
        patch.setattr(SurvivalFedAvg, "gather_statistics", lambda self, exchange: told)
        with pytest.raises(ValueError, match="num_rounds = 0"):
            strategy.start(ScriptedGrid({}), ArrayRecord(), num_rounds=0)
