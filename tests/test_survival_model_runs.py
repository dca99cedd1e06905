"""Whole runs of every survival model, over sites that are well and over sites that are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedapp.prediction import predict_file
from fedapp.simulation import SimulationResult, simulate
from tasks.survival.model_names import BUILT_IN
from tasks.survival.models import CoxTime, build
from tasks.survival.predictor import SurvivalPredictor
from tasks.survival.risk_sets import RiskSetSums, coarsen
from tests.patients import patients

QUICK: dict[str, bool | int | float | str] = {
    "survival.rounds": 6,
    "survival.local-steps": 8,
    "survival.hidden-layers": "16",
    "survival.dropout": 0.0,
    "survival.learning-rate": 0.02,
    "survival.dp-mechanism": "none",
}


def run(frames: list[pd.DataFrame], folder: Path, **settings: Any) -> SimulationResult:
    given = {key.replace("_", "-").replace("--", "."): value for key, value in settings.items()}
    config = {**QUICK, "run-dir": str(folder), **given}
    return simulate("survival", sites=frames, config=config, seed=1)


def sites() -> list[pd.DataFrame]:
    """Four sites; the last has no event."""
    frames = [patients(150, seed=seed) for seed in range(4)]
    frames[3]["event"] = 0
    return frames


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_model_learns_and_predicts(name: str, tmp_path: Path) -> None:
    """With a site without events, and follow-up far beyond the declared horizon."""
    frames = sites()
    assert max(frame["time"].max() for frame in frames) > 24
    result = run(frames, tmp_path, survival__model=name, survival__horizon=12.0)
    summary = result.summary
    assert summary["status"] == "ok", summary
    assert summary["faults"] == []
    assert summary["diagnostics"] == []
    assert summary["c-index-lower"] > 0.6
    assert summary["uno-c-index"] > 0.65
    assert summary["auc-mean"] > 0.65
    assert summary["ibs"] < summary["ibs-kaplan-meier"]
    rounds = [
        json.loads(line)
        for line in (result.run_folder / "metrics.jsonl").read_text().splitlines()
        if '"round":' in line
    ]
    assert [line["round"] for line in rounds] == list(range(7))
    in_rounds = {"c-index" in line for line in rounds[:-1]}
    assert in_rounds == {name != "CoxTime"}, "CoxTime needs the baseline hazard, at the end only"
    assert rounds[-1]["c-index"] == summary["c-index"]

    new = patients(50, seed=99)
    new.to_csv(tmp_path / "new.csv", index=False)
    predicted = predict_file(result.run_folder, tmp_path / "new.csv", times=[0, 2, 5, 12])
    survival = predicted.filter(like="survival").to_numpy()
    assert (survival[:, 0] == 1).all()
    assert (np.diff(survival, axis=1) <= 0).all()
    assert ((survival >= 0) & (survival <= 1)).all()
    assert np.corrcoef(predicted["risk"], new["x0"])[0, 1] > 0.5
    assert np.corrcoef(survival[:, 2], new["x0"])[0, 1] < -0.5

    curves = json.loads((result.run_folder / "curves.json").read_text())
    low, *_, high = curves["groups"]
    middle = len(curves["times"]) // 2
    assert low["predicted"][middle] > high["predicted"][middle] + 0.1
    assert ("baseline" in curves) == (summary["model-kind"] != "discrete")


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("case", ["one event", "ties"])
def test_poor_data_end_in_a_result(name: str, case: str, tmp_path: Path) -> None:
    frames = [patients(40, seed=seed) for seed in range(3)]
    if case == "one event":
        for frame in frames:
            frame["event"] = 0
        frames[0].loc[[3, 4], "event"] = 1  # one of the two may be an evaluation row
    else:
        for frame in frames:
            frame["time"] = np.ceil(frame["time"] / 20) * 20
    result = run(frames, tmp_path, survival__model=name, survival__rounds=2)
    assert result.summary["status"] == "ok", result.summary
    assert result.summary["faults"] == []
    predictor = SurvivalPredictor.load(result.run_folder / "model.npz")
    survival = predictor.survival(frames[0], [predictor.baseline.horizon / 2])
    assert np.isfinite(survival).all()
    numbers = [value for value in result.summary.values() if isinstance(value, float)]
    assert np.isfinite(numbers).all()


def test_cuts_are_those_of_the_pooled_counts(tmp_path: Path) -> None:
    """Of two sites with different follow-up; and the number and scheme are settings."""
    short, long = patients(120, seed=1), patients(120, seed=2)
    long["time"] *= 4
    both = [short, long]
    found = {}
    for scheme in ("quantiles", "equidistant"):
        settings = {"survival__cuts": scheme, "survival__num_durations": 5, "survival__rounds": 1}
        result = run(both, tmp_path, survival__model="DeepHit", **settings)
        predictor = SurvivalPredictor.load(result.run_folder / "model.npz")
        cuts = np.array(predictor.architecture.label_cuts)
        assert cuts[-1] <= predictor.baseline.horizon
        assert len(cuts) == 6
        assert predictor.arrays["net.1.weight"].shape[0] == 5
        found[scheme] = cuts
        # The same survival function, at these cuts, whoever asks for it.
        frame = both[0].head(3)
        at_cuts = predictor.survival(frame, cuts)
        between = predictor.survival(frame, (cuts[1:] + cuts[:-1]) / 2)
        np.testing.assert_allclose(between, (at_cuts[:, 1:] + at_cuts[:, :-1]) / 2, rtol=1e-9)
    np.testing.assert_allclose(np.diff(found["equidistant"]), found["equidistant"][1])
    assert np.diff(found["quantiles"])[0] < np.diff(found["quantiles"])[-1]


def test_an_untrained_discrete_model_begins_near_kaplan_meier(tmp_path: Path) -> None:
    for name in ("LogisticHazard", "PC-Hazard", "DeepHit"):
        cuts = np.array([0.0, 1, 2, 5, 9])
        model = build(name, n_features=2, hidden_layers=(), dropout=0.0, seed=0, cuts=cuts)
        kaplan_meier = np.array([1.0, 0.8, 0.7, 0.7, 0.3])
        model.start_at(kaplan_meier)
        survival = model.survival(np.zeros((1, 2), dtype=np.float32), cuts)
        np.testing.assert_allclose(survival[0], kaplan_meier, atol=1e-4)
        assert model.undecayed == {"net.0.bias"}


def test_weight_decay_leaves_the_level_of_survival_alone(tmp_path: Path) -> None:
    from tasks.survival.training import train

    cuts = np.array([0.0, 1, 2, 5, 9])
    model = build("PC-Hazard", n_features=2, hidden_layers=(), dropout=0.0, seed=0, cuts=cuts)
    model.start_at(np.array([1.0, 0.99, 0.98, 0.97, 0.96]))
    rng = np.random.default_rng(0)
    time = np.full(100, 8.0)
    features = rng.normal(size=(100, 2)).astype(np.float32)
    train(
        model,
        features,
        time,
        np.zeros(100, dtype=bool),
        local_steps=50,
        learning_rate=1e-3,
        weight_decay=100.0,
        batch_size=100,
        rng=rng,
    )
    survival = model.survival(np.zeros((1, 2), dtype=np.float32), cuts)
    assert survival[0, -1] > 0.95  # decay by 1 % a step would pull it to .06
    (weights, _) = model.network.parameters()
    assert weights.abs().max() < 0.1


def test_risk_sets_of_cox_time_are_sums_over_the_rows_at_risk() -> None:
    grid = np.linspace(0, 10, 21)
    rng = np.random.default_rng(2)
    features = rng.normal(size=(60, 3)).astype(np.float32)
    time, event = rng.exponential(5, 60) + 0.01, rng.random(60) < 0.6
    model = build("CoxTime", n_features=3, hidden_layers=(4,), dropout=0.0, seed=0, horizon=10.0)
    assert isinstance(model, CoxTime)
    log_hazard = model.log_hazard(features, grid)
    sums = RiskSetSums.of_time_dependent(time, event, log_hazard, grid=grid, center=0.5)
    for point, at in enumerate(grid):
        own = time > at
        expected = np.exp(log_hazard[own, point] - 0.5).sum()
        assert sums.at_risk_weight[point] == pytest.approx(expected, rel=1e-12)
        assert sums.at_risk_count[point] == own.sum()
    proportional = RiskSetSums.of_time_dependent(
        time, event, np.tile(log_hazard[:, :1], (1, 21)), grid=grid
    )
    plain = RiskSetSums.of(time, event, log_hazard[:, 0], grid=grid)
    np.testing.assert_allclose(proportional.at_risk_weight, plain.at_risk_weight, rtol=1e-12)
    np.testing.assert_array_equal(proportional.events, plain.events)
    merged = coarsen(sums, privacy_level=5)
    assert merged.at_risk_weight[0] == pytest.approx(sums.at_risk_weight[0])
    with pytest.raises(ValueError, match="log hazard has shape"):
        RiskSetSums.of_time_dependent(time, event, log_hazard[:, :-1], grid=grid)


def test_the_c_index_of_discrete_models_is_antolinis(tmp_path: Path) -> None:
    """Of one site's evaluation rows beside another's too few: against pycox."""
    from pycox.evaluation import EvalSurv

    from tasks.survival.client import SurvivalSite
    from tasks.survival.config import SurvivalConfig

    frames = [patients(200, seed=3), patients(12, seed=4)]
    result = run(frames, tmp_path, survival__model="DeepHit", survival__test_fraction=0.25)
    predictor = SurvivalPredictor.load(result.run_folder / "model.npz")
    config = SurvivalConfig.model_validate({"test-fraction": 0.25})
    rows = SurvivalSite.prepare(
        frames[0],
        name="site-0",
        data_set="",
        time="time",
        event="event",
        config=config,
        seed=1,
    ).evaluation
    assert result.summary["evaluated-rows"] == len(rows)
    inside = rows.time[rows.time <= predictor.baseline.horizon]
    times = np.unique(np.append(inside, predictor.baseline.horizon))
    table = pd.DataFrame(rows.features, columns=list(rows.feature_names))
    survival = pd.DataFrame(predictor.survival(table, times).T, index=times)
    peer = EvalSurv(survival, rows.time, rows.event)
    expected = peer.concordance_td("adj_antolini")
    assert result.summary["c-index"] == pytest.approx(expected, abs=1e-10)


def test_a_collapsed_model_is_named_for_every_kind(tmp_path: Path) -> None:
    """Where features say nothing and training is wild: worse than Kaplan-Meier, C at chance."""
    frames = [patients(150, seed=seed) for seed in range(3)]
    rng = np.random.default_rng(0)
    for frame in frames:
        frame[["x0", "x1", "x2"]] = rng.normal(size=(150, 3))
    for name in ("DeepSurv", "CoxTime", "LogisticHazard"):
        result = run(frames, tmp_path, survival__model=name, survival__rounds=8,
                     survival__local_steps=40, survival__weight_decay=0.0)  # fmt: skip
        signs = [line.split(":")[0] for line in result.summary["diagnostics"]]
        assert signs == ["worse_than_kaplan_meier"], name
        assert result.summary["ibs"] > result.summary["ibs-kaplan-meier"]
