"""Counts (``count:poisson``): as XGBoost grows trees of them, with its max_delta_step of 0.7."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost
from pydantic import ValidationError
from scipy import optimize, stats

from fedapp.cli import main
from fedapp.simulation import simulate
from fedapp.vertical_against_xgboost import xgboost_margins
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.gains import SplitRule, split_gains
from tasks.vertical_xgboost.leaves import leaf_weights
from tasks.vertical_xgboost.objectives import label_scale, objective_of
from tasks.vertical_xgboost.row_metrics import metric_sums, metrics_of_sums
from tasks.vertical_xgboost.rows import read_table
from tasks.vertical_xgboost.told_numbers import check_base_margins
from tests.vertical_frames import cut, random_frame
from tests.vertical_runs import TASK, assert_same, central_fit, record, run

POISSON = "count:poisson"
SMALL: dict[str, Any] = {"objective": POISSON, "max_depth": 2, "num_trees": 3, "max_bin": 8}


def count_frame(rows: int = 150, *, seed: int = 3) -> pd.DataFrame:
    """Counts whose rate depends on the columns, by more than a factor of 2.4 from their mean."""
    frame = random_frame(seed, rows=rows)
    rate = np.exp(0.8 * frame["a"] + 0.5 * frame["few"] + frame["b"].isna() - 0.5)
    frame["label"] = np.random.default_rng(seed).poisson(rate)
    return frame


def frames_of(parties: int = 3, rows: int = 150, **how: Any) -> list[pd.DataFrame]:
    return cut(count_frame(rows, **how), parties=parties, labels="even", interleaved=True)


def objective() -> Any:
    return objective_of(VerticalXGBoostConfig(objective=POISSON))


# The loss -------------------------------------------------------------------------------------


def test_gradients_are_derivatives_and_hessians_longer_ones() -> None:
    poisson, margins = objective(), np.linspace(-3, 3, 13)
    for label in (0.0, 2.0, 0.5):
        g, h = poisson.gradients(margins, np.full(13, label))
        for at, margin in enumerate(margins):
            slope = optimize.approx_fprime(
                [margin], lambda m, y=label: float(poisson.losses(m, np.array([y]))[0])
            )
            assert g[at] == pytest.approx(slope[0], abs=1e-5)
        assert h == pytest.approx(np.exp(margins + 0.7), rel=1e-14)


def test_metrics_are_likelihood_and_rmse() -> None:
    random = np.random.default_rng(0)
    margins, labels = random.normal(size=(1, 50)), random.poisson(2.0, 50).astype(float)
    weights, poisson = random.gamma(1.0, 3.0, 50), objective()
    told = [poisson.gradient_exponent(labels, base_margins=[0.5], label_bound=0.0)]
    scales = poisson.scales(poisson.bound_exponent(told), bits=32, weight_exponent=5)
    sums = metric_sums(poisson, scales, margins, labels, weights)
    found = metrics_of_sums(poisson, scales, sums, weights.sum())
    rates = np.exp(margins[0])
    theirs = np.average(-stats.poisson.logpmf(labels, rates), weights=weights)
    assert found.loss == pytest.approx(theirs, rel=1e-6)
    rmse = math.sqrt(np.average((rates - labels) ** 2, weights=weights))
    assert found.quality == pytest.approx(rmse, rel=1e-6)


@pytest.mark.parametrize("exponent", [-128, -60, -30, -3, 0, 5, 40, 105])
def test_no_loss_of_bounded_rates_and_labels_exceeds_its_bound(exponent: int) -> None:
    poisson = objective()
    scales = poisson.scales(exponent, bits=32)
    largest = math.ldexp(1.0, exponent)
    for margin in (-800.0, math.log(1e-16), 0.0, math.log(largest) - 1e-9):
        if math.exp(margin) > largest:
            continue
        for label in (0.0, largest / 2, largest):
            at = np.array([[margin]]), np.array([label])
            poisson.loss_scale(scales).encode(poisson.losses(*at))
            poisson.quality_scale(scales).encode(poisson.qualities(*at))
            scales.encode(*poisson.gradients(*at))


@pytest.mark.parametrize("margin", [6.0, 709.0, 709.7, 800.0])
def test_rates_beyond_the_bound_are_refused_not_wrapped(margin: float) -> None:
    poisson = objective()
    scales = poisson.scales(5, bits=32)
    at = np.array([[margin]]), np.array([1.0])
    with pytest.raises(SiteFault, match="a larger label-bound"):
        scales.encode(*poisson.gradients(*at))
    with pytest.raises(SiteFault, match="a larger label-bound"):
        metric_sums(poisson, scales, *at, None)


def test_gains_and_leaves_are_those_of_xgboosts_formulas() -> None:
    """CalcWeight, and CalcGainGivenWeight, -(2 G w + (H + lambda) w^2)."""
    scales = objective().scales(5, bits=32)
    rule = SplitRule.of(VerticalXGBoostConfig(objective=POISSON), scales)
    assert rule.max_delta_step == 0.7
    sums = [(-9.0, 4.0), (3.0, 5.0), (8.0, 3.0)]  # clipped, not, clipped
    whole = np.array(
        [[scales.gradient.encode(g), scales.hessian.encode(h)] for g, h in sums], dtype=np.int64
    )
    weights = [0.7, -0.5, -0.7]
    assert leaf_weights(whole, rule).tolist() == pytest.approx(weights, rel=1e-7)
    one, other, total = whole[0], whole[1], whole[0] + whole[1]
    gain = split_gains(one[np.newaxis], total, rule)[0]

    def score(g: float, h: float, w: float) -> float:
        return -(2 * g * w + (h + 1) * w * w)

    node = score(-6.0, 9.0, 0.6)
    assert gain == pytest.approx(score(-9, 4, 0.7) + score(3, 5, -0.5) - node, rel=1e-7)
    assert other.tolist() != total.tolist()


def test_exponentials_do_not_depend_on_the_array_they_stand_in() -> None:
    margins = np.random.default_rng(0).normal(size=1001) * 3
    poisson, labels = objective(), np.ones(1001)
    whole = np.stack(poisson.gradients(margins, labels))
    assert np.array_equal(whole[:, ::3], np.stack(poisson.gradients(margins[::3], labels[::3])))


# Runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parties", "keys"),
    [
        (3, {}),
        (3, {"aggregator": "source", "subsample": 0.6, "colsample_bytree": 0.5}),
        (3, {"label_bound": 500.0, "base_score": "1.5", "early_stopping_rounds": 1}),
        (2, {"max_depth": 0, "test_fraction": 0.0, "eta": 1.0}),
    ],
    ids=str,
)
def test_trees_are_those_of_one_party_with_everything(
    parties: int, keys: dict[str, Any], tmp_path: Path
) -> None:
    frames, settings = frames_of(parties), {**SMALL, **keys}
    assert_same(run(tmp_path, frames, **settings), central_fit(frames, **settings))


@pytest.mark.parametrize("alignment", ["same", "hashed"])
@pytest.mark.parametrize("base", ["mean", "0.01"])
def test_parties_may_have_counts_of_other_sizes(base: str, alignment: str, tmp_path: Path) -> None:
    frames = frames_of(rows=60)
    for frame, largest in zip(frames, (0.0, 3.0, 900.0), strict=True):
        frame["label"] = frame["label"].where(frame["label"].isna(), frame["id"] % (largest + 1))
    keys = {**SMALL, "num_trees": 2, "base_score": base, "alignment": alignment}
    assert_same(run(tmp_path, frames, **keys), central_fit(frames, **keys))


def test_encrypted_counts_aligned_by_hashes(tmp_path: Path) -> None:
    frames = frames_of(rows=60)
    keys: dict[str, Any] = {**SMALL, "max_depth": 1, "num_trees": 2, "max_bin": 4}
    made = record(tmp_path, frames, encryption="paillier", alignment="hashed", **keys)
    assert_same(made.result, central_fit(frames, **keys))


@pytest.mark.parametrize("weight", ["", "w"])
def test_trees_are_those_of_xgboost(weight: str) -> None:
    frame = count_frame(400)
    frames = cut(frame, parties=3, labels="even", interleaved=True)
    for each in frames:
        each["w"] = np.where(each["id"] % 3 == 0, 2.5, 1.0)
    if not weight:
        frames = [each.drop(columns="w") for each in frames]
    keys: dict[str, Any] = {"objective": POISSON, "max_depth": 3, "num_trees": 6, "max_bin": 16}
    central = central_fit(frames, weight=weight, **keys)
    clipped = [abs(w) == 0.7 for tree in central.model.trees for w in tree.weights.values()]
    assert any(clipped)
    assert not all(clipped)
    theirs = xgboost_margins(
        central.joined, VerticalXGBoostConfig(weight=weight, **keys),
        base_scores=central.model.base_scores, num_trees=6,
    )  # fmt: skip
    ours = central.model.margins(central.joined.features)
    assert np.abs(ours - theirs).max() < 1e-5
    table, model = central.joined, central.model
    rows = ~table.is_evaluation
    own = None if table.weights is None else table.weights[rows]
    data = xgboost.DMatrix(table.features[rows], label=table.labels[rows], weight=own)
    data.set_base_margin(ours[0, rows])
    zero = {"objective": POISSON, "eval_metric": ["poisson-nloglik", "rmse"], "eta": 0.0}
    said = xgboost.train(zero, data, num_boost_round=1).eval(data)
    loss, rmse = (float(part.rsplit(":", 1)[1]) for part in said.split("\t")[1:])
    last = model.metrics[-1].train
    assert (last.loss, last.quality) == pytest.approx((loss, rmse), rel=1e-5)
    mean = np.average(table.labels[rows], weights=own)
    assert model.base_scores[0] == pytest.approx(mean, rel=1e-8)


def test_predictions_and_export_are_rates(tmp_path: Path) -> None:
    frames = frames_of()
    trained = run(tmp_path, frames, export_consent=True, **SMALL)
    assert trained.summary["central"]["xgboost-test-rmse"] == pytest.approx(
        trained.summary["test-rmse"], rel=1e-5
    )
    path = tmp_path / "model.json"
    assert main(["export-model", str(trained.run_folder), "--out", str(path)]) == 0
    booster = xgboost.Booster()
    booster.load_model(path)
    assert json.loads(booster.save_config())["learner"]["objective"]["name"] == POISSON
    config: dict[str, Any] = {
        "run-dir": str(tmp_path),
        f"{TASK}.mode": "predict",
        f"{TASK}.model": str(trained.run_folder),
        f"{TASK}.asker": "site-0",
    }
    predicted = simulate(TASK, sites=frames, config=config).predictions
    assert predicted is not None
    assert predicted["prediction"].to_numpy() == pytest.approx(np.exp(predicted["margin"]))
    joined = central_fit(frames, **SMALL).joined
    data = xgboost.DMatrix(joined.features, feature_names=booster.feature_names)
    assert booster.predict(data) == pytest.approx(predicted["prediction"].to_numpy(), rel=1e-6)


def test_partial_dp_of_counts_says_what_it_gives(tmp_path: Path) -> None:
    keys = {**SMALL, "num_trees": 1, "dp_epsilon": 10.0, "dp_clip": 0.1}
    result = run(tmp_path, frames_of(), **keys)
    assert result.summary["status"] == "ok"
    assert result.summary["dp-epsilon"] == pytest.approx(10.0, rel=0.01)
    assert "exact-leaves-test-rmse" in result.summary


def test_noise_that_takes_rates_beyond_their_bound_accuses_nobody(tmp_path: Path) -> None:
    result = run(tmp_path, frames_of(), seeded_noise=True, dp_epsilon=0.01, **SMALL)
    assert result.summary["status"] == "refused"
    reason = str(result.summary["reason"])
    assert "noise of dp-epsilon = 0.01 in leaf weights may be too large" in reason
    assert "that it sealed" not in reason


# Refused --------------------------------------------------------------------------------------


def test_labels_below_zero_are_refused_without_being_told() -> None:
    frame = pd.DataFrame({"id": [1, 2], "x": [1, 2], "label": [-17.25, 3]})
    config = VerticalXGBoostConfig(objective=POISSON)
    with pytest.raises(SiteFault, match="a label below 0; allowed with count:poisson") as caught:
        read_table(frame, id_column="id", label_column="label", config=config, seed=0)
    assert "17" not in str(caught.value)


def test_labels_that_are_all_zero_have_no_base_score(tmp_path: Path) -> None:
    frames = frames_of()
    for frame in frames:
        frame["label"] = frame["label"].where(frame["label"].isna(), 0.0)
    result = run(tmp_path, frames, **SMALL)
    assert result.summary["status"] == "refused"
    assert "training labels are all 0" in str(result.summary["reason"])
    assert run(tmp_path, frames, base_score="0.5", **SMALL).summary["status"] == "ok"


@pytest.mark.parametrize("base", ["0", "-1", "1e31"])
def test_a_base_score_that_is_no_rate_is_refused(base: str) -> None:
    with pytest.raises(ValidationError, match="allowed is a rate above 0"):
        VerticalXGBoostConfig(objective=POISSON, base_score=base)


def test_the_audit_is_for_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pd.DataFrame({"id": range(60), "a": range(60), "b": range(60), "c": range(60)})
    table["label"] = table["a"] % 4
    path = tmp_path / "joined.csv"
    table.to_csv(path, index=False)
    config = {"run-dir": str(tmp_path), f"{TASK}.data": str(path), f"{TASK}.encryption": "none"}
    small = {f"{TASK}.{key.replace('_', '-')}": value for key, value in SMALL.items()}
    result = simulate(TASK, sites=None, num_sites=3, config={**config, **small})
    assert main(["audit", str(result.run_folder)]) != 0
    assert "the audit guesses classes" in capsys.readouterr().err


def test_margins_of_impossible_means_are_refused() -> None:
    config = VerticalXGBoostConfig(objective=POISSON)
    how: dict[str, Any] = {"label_exponent": 3, "num_training": 100}
    scale = label_scale([3], config)
    for possible in (math.log(8.0), math.log(float(scale.decode(1)) / 100)):
        check_base_margins([possible], config, **how)
    for impossible in (2.2, -30.0, math.inf):
        with pytest.raises(SiteFault, match="of no base score"):
            check_base_margins([impossible], config, **how)
