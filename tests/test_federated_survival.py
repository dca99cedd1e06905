"""Survival runs from Python by the names of federated-survival: data in, model and metrics out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from lifelines.utils import concordance_index

from fedapp import flower_run, run_config, simulation
from fedapp.simulation import SimulationResult, simulate
from fedapp.survival import FederatedSurvival, FitError, FSAConfig, FSARunner
from tasks.survival import models
from tasks.survival.client import SurvivalSite
from tasks.survival.predictor import SurvivalPredictor
from tests.patients import patients, with_cell
from tests.runtimes import superlink

QUICK: dict[str, Any] = {
    "n_clients": 3,
    "global_rounds": 2,
    "local_steps": 2,
    "hidden_layers": (4,),
    "seeded_noise": True,
}
QUICK_KEYS: dict[str, Any] = {
    "survival.rounds": 2,
    "survival.local-steps": 2,
    "survival.hidden-layers": "4",
    "seeded-noise": True,
}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class DataSet(NamedTuple):
    """A partition as other code has it."""

    clients_set: dict[str, tuple[np.ndarray, np.ndarray]]
    train_data: np.ndarray
    train_label: np.ndarray
    test_data: np.ndarray
    test_label: np.ndarray
    raw_aug_clients_set: dict[str, Any]


def table(rows: int = 90, **arguments: Any) -> pd.DataFrame:
    """A table with columns x1, x2, x3, time and status, in this order."""
    frame = patients(rows, **arguments)
    features = {name: f"x{int(name[1:]) + 1}" for name in frame if name[0] == "x"}
    return frame.rename(columns={**features, "event": "status"})[
        [*features.values(), "time", "status"]
    ]


def arrays(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of a table, in single precision."""
    rows = frame.to_numpy(dtype=np.float32)
    return rows[:, :-2], rows[:, -2:]


def quick(**settings: Any) -> FederatedSurvival:
    return FederatedSurvival(**{**QUICK, **settings})


def result_of(model: FederatedSurvival) -> SimulationResult:
    assert model.runner_ is not None
    return model.runner_.result


def bits_of(result: SimulationResult) -> dict[str, bytes]:
    model = SurvivalPredictor.load(result.run_folder / "model.npz")
    arrays = {**model.arrays, "baseline": model.baseline.cumulative, "grid": model.baseline.grid}
    return {name: array.tobytes() for name, array in arrays.items()}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> FederatedSurvival:
    runs = tmp_path_factory.mktemp("runs")
    settings = {"global_rounds": 6, "local_steps": 5, "learning_rate": 0.05, "run_dir": runs}
    return quick(**settings, dp_noise_multiplier=0.001, dp_clip_norm=5.0).fit(table(300))


# The same run as by `simulate` ------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"use_differential_privacy": False}])
def test_one_table_is_dealt_as_a_file_is(tmp_path: Path, settings: dict[str, Any]) -> None:
    frame = table(80)
    frame.to_parquet(tmp_path / "rows.parquet")
    keys = {"survival.dp-mechanism": "none"} if settings else {}
    expected = simulate(
        "survival",
        config={
            **QUICK_KEYS,
            **keys,
            "survival.data": str(tmp_path / "rows.parquet"),
            "survival.event": "status",
        },
        seed=5,
        num_sites=3,
    )
    model = quick(random_state=5, **settings).fit(frame)
    assert bits_of(result_of(model)) == bits_of(expected)
    assert result_of(model).summary["c-index"] == expected.summary["c-index"]
    assert bits_of(result_of(quick(random_state=6, **settings).fit(frame))) != bits_of(expected)


def test_tables_apart_are_a_site_each() -> None:
    frames = [patients(rows, seed=rows) for rows in (30, 40)]
    expected = simulate("survival", sites=frames, config=QUICK_KEYS, seed=1)
    model = quick(random_state=1).fit(frames)
    assert bits_of(result_of(model)) == bits_of(expected)
    assert result_of(model).summary["n-sites"] == 2


def test_named_tables() -> None:
    model = quick().fit({"north": patients(30), "south": patients(30, seed=1)})
    names = [site["site"] for site in result_of(model).summary["sites"]]
    assert names == ["north", "south"]


def test_sites_of_a_column() -> None:
    frame = table(90)
    frame["hospital"] = np.tile(["C", "A", "B"], 30)
    model = quick(n_clients=99).fit(frame, client_col="hospital")
    by_hand = [rows.drop(columns="hospital") for _, rows in frame.groupby("hospital")]
    assert result_of(model).summary["n-sites"] == 3
    assert model.runner_ is not None
    assert model.runner_.feature_names == ("x1", "x2", "x3")
    assert bits_of(result_of(model)) == bits_of(result_of(quick().fit(by_hand)))
    named = quick(partition="natural", partition_column="hospital").fit(frame)
    assert bits_of(result_of(named)) == bits_of(result_of(model))


def test_arrays() -> None:
    frame = table(60)
    features = frame[["x1", "x2", "x3"]].to_numpy()
    model = quick().fit(features, frame["time"].to_numpy(), frame["status"].to_numpy())
    assert bits_of(result_of(model)) == bits_of(result_of(quick().fit(frame)))
    assert model.predict_survival(features[:4]).shape[1] == 4
    pair = (features, frame[["time", "status"]].to_numpy())
    assert bits_of(result_of(quick().fit(pair))) == bits_of(result_of(model))


def test_columns_of_other_names() -> None:
    frame = table(60)
    renamed = frame.rename(columns={"time": "days", "status": "death"})
    by_argument = quick().fit(renamed, duration_col="days", event_col="death")
    by_setting = quick(time="days", event="death").fit(renamed)
    expected = bits_of(result_of(quick().fit(frame)))
    assert bits_of(result_of(by_argument)) == bits_of(result_of(by_setting)) == expected
    assert by_argument.evaluate(renamed)["rows"] == 60


def test_the_partition_counts() -> None:
    model = quick(partition="time-non-iid", use_differential_privacy=False).fit(table(90))
    other = quick(use_differential_privacy=False).fit(table(90))
    assert bits_of(result_of(model)) != bits_of(result_of(other))


def test_data_of_the_configuration() -> None:
    model = quick(data="SDGM1", n_rows=120, n_features=4).fit()
    assert model.get_run_summary()["n_features"] == 4


def test_without_a_seed_every_fit_is_another() -> None:
    frame = table(60)
    model = quick(random_state=None, use_differential_privacy=False)
    assert bits_of(result_of(model.fit(frame))) != bits_of(result_of(model.fit(frame)))


@pytest.mark.parametrize("name", models.model_names())
def test_every_model(name: str) -> None:
    model = quick(model=name).fit(table(90))
    curves = model.predict_survival(table(5)).to_numpy()
    assert curves[0] == pytest.approx(1.0)
    assert (np.diff(curves, axis=0) <= 1e-12).all()
    assert 0 <= model.evaluate(table(60, seed=7))["c_index"] <= 1


@pytest.mark.parametrize("name", ["DeepSurv", "CoxTime", "LogisticHazard"])
def test_scores_are_those_of_the_run_on_the_rows_of_the_sites(name: str) -> None:
    frames = [patients(60, seed=3), patients(70, seed=4)]
    model = quick(model=name, random_state=2, local_steps=8).fit(frames)
    keys = model.config.to_run_config()
    held_out = []
    for number, frame in enumerate(frames):
        site = SurvivalSite.prepare(
            frame,
            name=f"site-{number}",
            data_set="",
            time="time",
            event="event",
            config=run_config.read(keys).survival,
            seed=2,
        )
        rows = site.evaluation
        table_of_site = pd.DataFrame(rows.features, columns=list(rows.feature_names))
        held_out.append(table_of_site.assign(time=rows.time, event=rows.event.astype(int)))
    scores, summary = model.evaluate(held_out), result_of(model).summary
    assert scores["rows"] == summary["evaluated-rows"]
    assert scores["comparable_pairs"] == summary["comparable-pairs"]
    for key in ("c-index", "c-index-lower", "c-index-upper"):
        assert scores[key.replace("-", "_")] == pytest.approx(summary[key], abs=1e-12)
    assert scores["c_index_definition"] == ("harrell" if name == "DeepSurv" else "antolini")


def test_text_and_missing_values() -> None:
    frame = table(90)
    frame["grade"] = np.tile(["I", "II", "III"], 30)
    frame.loc[::9, "x2"] = np.nan
    model = quick(missing="median", categories="grade=I<II<III").fit(frame)
    assert model.predict_survival(frame.head(4), times=1.0).shape == (1, 4)
    assert 0 < model.evaluate(frame)["c_index"] < 1
    assert model.get_run_summary()["n_features"] == 4


# A script for the other package -----------------------------------------------------------------


def test_a_script_for_the_other_package() -> None:
    frame = table(120)
    estimator = FederatedSurvival(
        model="DeepSurv",
        n_clients=3,
        global_rounds=2,
        local_steps=1,
        random_state=7,
        use_differential_privacy=True,
        dp_mechanism="gaussian",
        dp_epsilon=1.0,
        dp_delta=1e-5,
        dp_sensitivity=1.0,
        dp_noise_multiplier=0.05,
        dp_clip_norm=1.0,
    ).fit(frame)
    survival = estimator.predict_survival(frame.iloc[:5, :3])
    assert survival.shape[1] == 5
    assert np.isfinite(survival.to_numpy()).all()
    scores = estimator.evaluate(frame.iloc[:, :3], frame["time"], frame["status"])
    assert {"c_index", "ibs", "prediction_diagnostics"} <= set(scores)
    assert scores["prediction_diagnostics"]["identical_across_samples"] is False
    info = estimator.get_privacy_info()
    assert (info["enabled"], info["mechanism"]) == (True, "gaussian")
    assert info["configured_noise_multiplier"] == 0.05
    assert info["formal_accounting_available"] is False
    summary = estimator.get_run_summary()
    assert (summary["model"], summary["protocol"], summary["n_clients"]) == (
        "DeepSurv",
        "FedAvg",
        3,
    )
    assert 0 <= summary["final_metrics"]["test_Cindex"] <= 1


def test_a_partition_made_elsewhere() -> None:
    frame = table(150)
    features, labels = arrays(frame)
    cuts = {f"client{part}": slice(40 * part, 40 * part + 40) for part in range(3)}
    data = DataSet(
        {name: (features[rows], labels[rows]) for name, rows in cuts.items()},
        features[:120],
        labels[:120],
        features[120:],
        labels[120:],
        {},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what verbose and censor_rate do not do
        config = FSAConfig(
            num_clients=3,
            n_features=3,
            n_samples=150,
            censor_rate=0.2,
            model_type="DeepSurv",
            local_epochs=2,
            global_epochs=3,
            learning_rate=0.01,
            batch_size=32,
            random_seed=42,
            client_sample_ratio=1.0,
            early_stopping=False,
            verbose=True,
        )
    runner = FSARunner(config)
    assert runner.get_privacy_info()["noise_driver"] == "dp_noise_multiplier"
    results = runner.run(data, type="raw")
    for name in ("train_Cindex", "test_Cindex", "train_IBS", "test_IBS"):
        (value,) = results[name]
        assert 0 <= value <= 1
    risk = runner.predictor.risk(frame.iloc[120:].astype(np.float32))
    assert results["test_Cindex"][-1] == pytest.approx(
        concordance_index(labels[120:, 0], -risk, labels[120:, 1])
    )
    assert len(results["train_loss"]) == 3
    rows = [site["training-rows"] for site in runner.result.summary["sites"]]
    assert rows == [40, 40, 40]  # all rows of a site, since the test rows are apart
    with pytest.raises(ValueError, match="must be 'raw'"):
        runner.run(data, type="raw_aug")


# What is predicted and measured -----------------------------------------------------------------


def test_predictions_are_the_models(fitted: FederatedSurvival) -> None:
    frame = table(7, seed=3).set_index(pd.Index(list("abcdefg")))
    model = SurvivalPredictor.load(result_of(fitted).run_folder / "model.npz")
    curves = fitted.predict_survival(frame)
    assert list(curves.columns) == list("abcdefg")
    assert curves.index.to_numpy() == pytest.approx(model.baseline.grid)
    assert curves.to_numpy() == pytest.approx(model.survival(frame, model.baseline.grid).T)
    some = fitted.predict_survival(frame, times=[1.0, 3.5])
    assert some.to_numpy() == pytest.approx(model.survival(frame, [1.0, 3.5]).T)
    by_position = fitted.predict_survival(frame[["x1", "x2", "x3"]].to_numpy(), times=2.0)
    shuffled = fitted.predict_survival(frame[["x3", "time", "x1", "x2"]], times=2.0)
    assert by_position.to_numpy() == pytest.approx(shuffled.to_numpy())


def test_many_columns_of_an_array_keep_their_order() -> None:
    frame = table(120, features=11)
    model = quick(use_differential_privacy=False, learning_rate=0.05).fit(*_in_parts(frame))
    rows = table(6, seed=4, features=11)
    by_name = model.predict_survival(rows)
    by_position = model.predict_survival(rows.to_numpy()[:, :-2])
    assert by_position.to_numpy() == pytest.approx(by_name.to_numpy())


def _in_parts(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = frame.to_numpy()
    return rows[:, :-2], rows[:, -2], rows[:, -1]


def test_scores_of_one_table_are_of_all_its_pairs(fitted: FederatedSurvival) -> None:
    frame = table(200, seed=5)
    assert fitted.runner_ is not None
    risk = fitted.runner_.predictor.risk(frame)
    scores = fitted.evaluate(frame)
    expected = concordance_index(frame["time"], -risk, frame["status"])
    assert scores["c_index"] == pytest.approx(expected, abs=1e-12)
    assert expected > 0.6  # it has learned something
    assert scores["c_index_lower"] < expected < scores["c_index_upper"]
    assert scores["c_index_definition"] == "harrell"
    assert (scores["rows"], scores["events"]) == (200, frame["status"].sum())
    assert scores["ibs_lower"] < scores["ibs"] < scores["ibs_upper"]
    assert scores["ibs"] < scores["ibs_kaplan_meier"]
    assert scores["prediction_diagnostics"] == {"identical_across_samples": False, "signs": []}


def test_scores_of_several_tables_are_within_them(fitted: FederatedSurvival) -> None:
    tables = [table(60, seed=6), table(90, seed=7)]
    scores = fitted.evaluate(tables)
    parts = [fitted.evaluate(one) for one in tables]
    pairs = [part["comparable_pairs"] for part in parts]
    pooled = sum(part["c_index"] * n for part, n in zip(parts, pairs, strict=True)) / sum(pairs)
    assert scores["c_index"] == pytest.approx(pooled, abs=1e-12)
    assert scores["c_index"] != fitted.evaluate(pd.concat(tables))["c_index"]
    assert scores["rows"] == 150
    whole = fitted.evaluate(pd.concat(tables))
    assert scores["ibs"] == pytest.approx(whole["ibs"], abs=1e-12)
    assert fitted.evaluate({"a": tables[0], "b": tables[1]}) == scores


def test_forms_of_rows_to_score(fitted: FederatedSurvival) -> None:
    frame = table(80, seed=8)
    rows = frame.to_numpy()
    expected = fitted.evaluate(frame)
    assert fitted.evaluate((rows[:, :3], rows[:, 3:])) == expected
    assert fitted.evaluate([(rows[:, :3], rows[:, 3:])]) == expected
    assert fitted.evaluate(rows[:, :3], rows[:, 3], rows[:, 4:]) == expected
    assert fitted.evaluate(frame.rename(columns={"status": "event"})) == expected
    renamed = frame.rename(columns={"time": "days", "status": "death"})
    assert fitted.evaluate(renamed, duration_col="days", event_col="death") == expected
    assert fitted.evaluate(frame[["x1", "x2", "x3"]], frame["time"], frame["status"]) == expected


def test_a_collapsed_model_is_named() -> None:
    model = quick(use_differential_privacy=False, learning_rate=1e-12).fit(table(60))
    assert model.runner_ is not None
    frame = table(60)
    frame[["x1", "x2", "x3"]] = 0.5
    diagnostics = model.evaluate(frame)["prediction_diagnostics"]
    assert diagnostics["identical_across_samples"] is True
    names = [sign.partition(":")[0] for sign in diagnostics["signs"]]
    assert names[:2] == ["identical_across_samples", "c_index_exactly_half"]


def test_what_does_not_exist_is_absent(fitted: FederatedSurvival) -> None:
    frame = table(8)
    frame["status"] = 0
    scores = fitted.evaluate(frame)
    assert "c_index" not in scores
    assert scores["c_index_reason"] == "no-comparable-pairs"
    assert "ibs" not in scores
    assert scores["ibs_reason"] == "follow-up-too-short"
    assert scores["events"] == 0
    one = fitted.evaluate(frame.head(1))
    assert one["prediction_diagnostics"] == {"identical_across_samples": False, "signs": []}


def test_history_is_that_of_the_rounds(fitted: FederatedSurvival) -> None:
    history = fitted.history_
    assert history is not None
    assert len(history["test_Cindex"]) == len(history["noise_to_signal"]) == 6
    assert len(history["train_loss"]) == 6
    assert history["test_Cindex"][-1] == result_of(fitted).summary["c-index"]
    assert [one["round"] for one in history["rounds"]] == list(range(7))


def test_privacy_info_after_a_fit_has_what_was_measured(fitted: FederatedSurvival) -> None:
    info, summary = fitted.get_privacy_info(), result_of(fitted).summary
    measured = info.pop("measured")
    assert measured["noise_to_signal_median"] == summary["noise-to-signal-median"]
    assert measured["noise_to_signal_max"] == summary["noise-to-signal-max"]
    before = FSARunner(fitted.config).get_privacy_info()
    assert before.pop("measured") is None
    assert info == before
    off = quick(use_differential_privacy=False).fit(table(60))
    assert off.get_privacy_info()["measured"] == {}


# Before a fit, and after one that failed --------------------------------------------------------


def test_before_a_fit() -> None:
    model = quick()
    for call in (
        lambda: model.predict_survival(table(3)),
        lambda: model.evaluate(table(9)),
        model.get_run_summary,
    ):
        with pytest.raises(RuntimeError, match="fit must be called"):
            call()


def test_a_refused_run_says_why() -> None:
    model = quick()
    with pytest.raises(FitError, match=r"^refused: site-1: time column") as caught:
        model.fit([table(30), with_cell(table(30), "time", -12345.5)])
    assert "12345" not in str(caught.value)
    assert caught.value.result.summary["status"] == "refused"
    with pytest.raises(RuntimeError, match="fit must be called"):
        model.predict_survival(table(3))
    with pytest.raises(FitError, match=r"^not-estimable: no-events$"):
        model.fit([table(30).assign(status=0), table(30).assign(status=0)])


def test_one_site_is_refused() -> None:
    with pytest.raises(ValueError, match="min-sites"):
        quick(n_clients=1).fit(table(60))


@pytest.mark.parametrize(
    ("data", "arguments", "error", "words"),
    [
        ("rows.csv", {}, TypeError, "data: must be a DataFrame.*not a str"),
        (42, {}, TypeError, "data: must be a DataFrame.*not a int"),
        ([table(30), 3], {}, TypeError, r"data\[1\]: must be a DataFrame, or a pair.*not a int"),
        ({"a": "b"}, {}, TypeError, "a: must be a DataFrame, or a pair.*not a str"),
        (np.ones((4, 2)), {"durations": [1, 2, 3, 4]}, ValueError, "durations, events: give both"),
        (
            np.ones((4, 2)),
            {"durations": [1, 2], "events": [1] * 3},
            ValueError,
            r"durations of shape \(2,\): must be \(4,\).*; events of shape \(3,\)",
        ),
        (np.ones(4), {"durations": [1] * 4, "events": [1] * 4}, ValueError, r"must be \(n, p\)"),
        (table(30), {"durations": [1] * 30}, TypeError, "only with features as an array"),
        ([table(30)] * 2, {"client_col": "x1"}, ValueError, "client_col: only with one table"),
        (table(30), {"client_col": "hospital"}, ValueError, "hospital"),
        ([(np.ones((3, 2)), np.ones(3))], {}, ValueError, r"labels of shape \(3,\)"),
        ([], {}, ValueError, "sites: empty"),
        (table(30), {"backend": "dask"}, ValueError, "backend = 'dask'"),
    ],
)
def test_bad_data(data: Any, arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        quick().fit(data, **arguments)


def test_bad_rows_to_predict_and_score(fitted: FederatedSurvival) -> None:
    with pytest.raises(ValueError, match='column "x2" is missing'):
        fitted.predict_survival(table(3).drop(columns="x2"))
    with pytest.raises(ValueError, match=r"of shape \(3, 2\): must have the 3 columns x1, x2, x3"):
        fitted.predict_survival(np.ones((3, 2)))
    with pytest.raises(ValueError, match="outside 0"):
        fitted.predict_survival(table(3), times=[-1.0])
    with pytest.raises(TypeError, match="not a str"):
        fitted.evaluate("rows.csv")
    with pytest.raises(ValueError, match="no table"):
        fitted.evaluate([])
    wrong = with_cell(with_cell(table(9), "time", -5.25), "x1", np.nan)
    with pytest.raises(ValueError, match=r"1 of 9 times are negative.*\"x1\"") as caught:
        fitted.evaluate(wrong)
    assert "5.25" not in str(caught.value)
    with pytest.raises(ValueError, match=r"table 1: .*'time' does not exist"):
        fitted.evaluate([table(9), table(9).drop(columns="time")])


# Elsewhere than in this process -----------------------------------------------------------------


def test_ray_gets_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def instead(values: dict[str, Any], **arguments: Any) -> Path:
        seen.update(values=values, **arguments)
        return simulation._run_in_process(
            values,
            simulation.run_config.read(values).general,
            arguments["sites"],
            ["a", "b", "c"],
        )

    monkeypatch.setattr(flower_run, "simulate_with_ray", instead)
    quick(random_state=4).fit(table(60), backend="ray")
    assert [len(frame) for frame in seen["sites"]] == [20, 20, 20]
    assert seen["values"]["seed"] == 4
    assert seen["values"]["survival.event"] == "status"


def test_a_superlink_runs_with_the_data_of_its_sites(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = simulate("survival", config=QUICK_KEYS, num_sites=3)
    seen: dict[str, Any] = {}

    def instead(values: dict[str, Any], **arguments: Any) -> Path:
        seen.update(values=values, **arguments)
        return done.run_folder

    monkeypatch.setattr(flower_run, "run_with_flower", instead)
    model = quick(random_state=4, seeded_noise=False).fit(superlink="remote")
    assert (seen["superlink"], seen["num_supernodes"]) == ("remote", None)
    assert seen["values"]["run-dir"] == str(tmp_path / "runs")
    assert (seen["values"]["seed"], seen["values"]["task"]) == (4, "survival")
    assert bits_of(result_of(model)) == bits_of(done)
    monkeypatch.setattr(flower_run, "run_with_flower", lambda values, **_: Path("/not/here"))
    with pytest.raises(RuntimeError, match="/not/here: no such folder here"):
        quick(seeded_noise=False).fit(superlink="remote")
    with pytest.raises(ValueError, match="superlink = 'remote': data are at its sites"):
        quick().fit(table(60), superlink="remote")


@pytest.mark.slow
def test_ray_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table(80)
    settings: dict[str, Any] = {"use_differential_privacy": False, "random_state": 2}
    with superlink(tmp_path / "flwr", cwd=tmp_path, simulation=True) as link:
        for name in ("FLWR_HOME", "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"):
            monkeypatch.setenv(name, link.environment[name])
        ray = quick(**settings).fit(frame, backend="ray")
    assert bits_of(result_of(ray)) == bits_of(result_of(quick(**settings).fit(frame)))
