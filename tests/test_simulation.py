"""A task run in this process: what comes back, and how bad input is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.supercore.constant import TaskType

from fedapp import client_app, prepared_sites, run_config, server_app, simulation
from fedapp.run_config import ConfigError
from fedapp.run_folder import RunFolder
from fedapp.simulation import InProcessGrid, SimulationResult, simulate
from fedapp.site_data import source
from strategies.survival import SurvivalFedAvg
from tasks.site.client import answering_faults
from tasks.site.faults import SiteFault
from tasks.survival.client import SurvivalSite
from tasks.survival.messages import Arrays, from_array_record, to_array_record
from tasks.survival.predictor import SurvivalPredictor
from tests.patients import patients, with_cell

Config = Mapping[str, bool | int | float | str]

QUICK: dict[str, bool | int | float | str] = {
    "survival.rounds": 2,
    "survival.local-steps": 2,
    "survival.hidden-layers": "4",
    "seeded-noise": True,  # or a test may fail once in a thousand runs
}
NO_NOISE: dict[str, bool | int | float | str] = {"survival.dp-mechanism": "none"}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(
    sites: Sequence[pd.DataFrame] | None = None,
    config: Config | None = None,
    **arguments: Any,
) -> SimulationResult:
    """Run the survival task quickly."""
    if sites is None:
        arguments.setdefault("num_sites", 3)
    return simulate("survival", sites=sites, config={**QUICK, **(config or {})}, **arguments)


def three(rows: int = 30) -> list[pd.DataFrame]:
    return [patients(rows, seed=seed) for seed in range(3)]


def model_of(result: SimulationResult) -> SurvivalPredictor:
    return SurvivalPredictor.load(result.run_folder / "model.npz")


def bits_of(result: SimulationResult) -> dict[str, bytes]:
    """The model and its baseline hazard, to the last bit."""
    model = model_of(result)
    arrays = {
        **model.arrays,
        "grid": model.baseline.grid,
        "baseline": model.baseline.cumulative,
        "mean": model.standardizer.mean,
        "scale": model.standardizer.scale,
    }
    return {name: array.tobytes() for name, array in arrays.items()}


def lines_of(result: SimulationResult, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Lines of a file, as strict JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text = (result.run_folder / name).read_text(encoding="utf-8")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


# What comes back ---------------------------------------------------------------------------------


def test_bundled_data(tmp_path: Path) -> None:
    result = run(num_sites=4, config={"survival.dp-clip-norm": 0.02})
    summary = result.summary
    assert summary["status"] == "ok"
    assert "reason" not in summary
    assert 0 < summary["c-index-lower"] < summary["c-index"] < summary["c-index-upper"] < 1
    assert [site["site"] for site in summary["sites"]] == ["site-0", "site-1", "site-2", "site-3"]
    rows = sum(site["training-rows"] + site["evaluation-rows"] for site in summary["sites"])
    assert rows == 686
    assert (summary["n-sites"], summary["rounds"], summary["model"]) == (4, 2, "DeepSurv")
    assert summary["noise-driver"] == "dp-noise-multiplier"
    assert summary["noise-to-signal-max"] >= summary["noise-to-signal-median"] > 0
    assert "no formal" in summary["privacy"].lower()
    assert result.run_folder.is_absolute()
    assert result.run_folder.parent == tmp_path / "runs"


def test_own_frames() -> None:
    frames = three()
    before = [frame.copy() for frame in frames]
    result = run(frames, site_names=["north", "south", "west"])
    assert result.summary["status"] == "ok"
    assert [site["site"] for site in result.summary["sites"]] == ["north", "south", "west"]
    events = [site["training-events"] for site in result.summary["sites"]]
    rows = [site["training-rows"] + site["evaluation-rows"] for site in result.summary["sites"]]
    assert rows == [30, 30, 30]
    assert all(0 < seen <= 30 for seen in events)
    assert model_of(result).feature_names == ("x0", "x1", "x2")
    for frame, same in zip(frames, before, strict=True):
        pd.testing.assert_frame_equal(frame, same)


@pytest.mark.parametrize("count", [2, 3])
def test_there_are_as_many_sites_as_frames(count: int) -> None:
    """Two is Flower's default number of nodes, which stands for more sites under flwr run."""
    result = run([patients(30, seed=seed) for seed in range(count)])
    assert result.summary["status"] == "ok", result.summary.get("reason")
    assert result.summary["n-sites"] == count
    config = json.loads((result.run_folder / "config.json").read_text())
    assert config["config"]["num-sites"] == count


def test_the_run_folder_has_what_the_result_says() -> None:
    result = run(three())
    lines = lines_of(result)
    assert lines[-1] == result.summary
    assert [line["round"] for line in lines[:-1]] == [0, 1, 2]
    assert lines_of(result, "ledger.jsonl") == result.ledger
    status = json.loads((result.run_folder / "status.json").read_text())
    assert status["status"] == "ok"
    assert status["run-folder"] == str(result.run_folder)
    config = json.loads((result.run_folder / "config.json").read_text())
    assert config["runtime"] == "in-process"
    assert config["config"]["survival.rounds"] == 2
    assert model_of(result).survival(three()[0].head(2), [1.0]).shape == (2, 1)


def test_the_summary_is_that_of_the_final_model() -> None:
    result = run(three())
    final = lines_of(result)[-2]
    assert final["round"] == 2
    for key in ("c-index", "c-index-lower", "c-index-upper", "comparable-pairs"):
        assert result.summary[key] == final[key]


@pytest.mark.parametrize("rounds", [1, 3])
def test_exchanges_are_rounds_and_four(rounds: int) -> None:
    result = run(three(), {"survival.rounds": rounds})
    assert result.exchanges == result.summary["exchanges"] == rounds + 4
    steps = [row["step"] for row in result.ledger if row["receiver"] == "site-1"]
    assert steps == ["hello", "statistics", *["train"] * rounds, "evaluate", "curves"]
    assert result.summary["bytes"] == sum(row["bytes"] for row in result.ledger)


def test_nothing_is_left_in_the_process() -> None:
    before = set(source._frames)
    run(three())
    assert set(source._frames) == before
    assert prepared_sites._read_survival_site.cache_info().currsize == 0


def test_rows_and_settings_of_very_many_sites_are_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sites are asked in turn: a memory of fewer would be one of none."""
    prepared, checked = [], []
    settings = tuple(sorted({**run_config.defaults(), "task": "survival"}.items()))
    read = run_config.read
    monkeypatch.setattr(
        prepared_sites, "prepare_survival_site", lambda node, *_, **__: prepared.append(node)
    )
    monkeypatch.setattr(run_config, "read", lambda values: (checked.append(1), read(values))[1])
    prepared_sites.forget_sites()
    try:
        for _ in range(3):
            for part in range(2000):
                node = (("num-partitions", 2000), ("partition-id", part))
                prepared_sites._read_survival_site(7, node, settings)
    finally:
        prepared_sites.forget_sites()
    assert len(prepared) == 2000
    assert len(checked) == 1


def test_a_report_is_made_where_it_is_asked_for() -> None:
    assert not (run(three()).run_folder / "report.html").exists()
    result = run(three(), {"report": True})
    assert (result.run_folder / "report.html").stat().st_size > 1000


# Randomness --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "privacy",
    [
        NO_NOISE,
        {"seeded-noise": True},
        {"seeded-noise": True, "survival.dp-mechanism": "laplace", "survival.dp-epsilon": 20.0},
    ],
    ids=["no noise", "seeded gaussian noise", "seeded laplace noise"],
)
def test_the_same_seed_gives_the_same_model_to_the_last_bit(privacy: Config) -> None:
    first, second = run(config=privacy, seed=3), run(config=privacy, seed=3)
    assert bits_of(first) == bits_of(second)
    for result in (first, second):
        del result.summary["seconds"]
    assert first.summary == second.summary
    assert without_times(first.ledger) == without_times(second.ledger)


def without_times(ledger: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{key: row[key] for key in row if "seconds" not in key} for row in ledger]


@pytest.mark.parametrize("privacy", [NO_NOISE, {"seeded-noise": True}])
def test_another_seed_gives_another_model(privacy: Config) -> None:
    first, second = run(config=privacy, seed=3), run(config=privacy, seed=4)
    assert first.summary["c-index"] != second.summary["c-index"]
    for name, bits in bits_of(first).items():
        if name not in ("grid",):
            assert bits != bits_of(second)[name], name


def test_protecting_noise_does_not_come_from_the_seed() -> None:
    first, second = (run(config={"seeded-noise": False}, seed=3) for _ in range(2))
    assert lines_of(first)[0] == lines_of(second)[0]  # the initial model is the same
    for name, array in model_of(first).arrays.items():
        other = model_of(second).arrays[name]
        assert (array != other).all(), name


def test_seeded_noise_differs_between_sites_and_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the difference of two updates would have no noise at all."""
    drawn: list[bytes] = []
    seeded = SurvivalSite.noise_rng

    def recorded(site: SurvivalSite, server_round: int) -> np.random.Generator | None:
        same = seeded(site, server_round)
        assert same is not None
        drawn.append(same.bytes(16))
        return seeded(site, server_round)

    monkeypatch.setattr(SurvivalSite, "noise_rng", recorded)
    run(three(), {"seeded-noise": True})
    assert len(drawn) == len(set(drawn)) == 3 * 2


def test_seeded_noise_is_refused_outside_simulation() -> None:
    values = {**run_config.defaults(), **QUICK, "seeded-noise": True, "report": False}
    nodes: list[Any] = [{"partition-id": part, "num-partitions": 3} for part in range(3)]
    grid = InProcessGrid(client_app.app, nodes, values)
    grid.run.primary_task_type = TaskType.SERVER_APP
    result = simulation.read_result(server_app.run_task(grid, values, started=time.time()))
    assert result.summary["status"] == "refused"
    assert "seeded-noise" in result.summary["reason"]
    assert result.exchanges == 0


# Arguments ---------------------------------------------------------------------------------------


def test_all_faults_of_the_configuration_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        run(config={"survival.round": 3, "survival.dropout": 2.0, "timeout": "long"})
    text = str(caught.value)
    assert "survival.round: unknown key; did you mean survival.rounds?" in text
    assert "survival.dropout = 2.0: must be number >= 0 and < 1" in text
    assert "timeout = 'long': must be number" in text
    assert not Path("runs").exists()


def test_a_task_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"task = 'surival': must be"):
        simulate("surival")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"seed": -1}, "seed = -1"),
        ({"seed": 1.5}, "seed = 1.5"),
        ({"num_sites": 0}, "num-sites = 0"),
        ({"num_sites": -3}, "num-sites = -3"),
        ({"num_sites": True}, "num-sites = True"),
    ],
)
def test_arguments_are_checked_as_the_configuration_is(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        run(**arguments)


def test_arguments_that_do_not_fit_together_are_refused() -> None:
    frames = three()
    with pytest.raises(ValueError, match="sites: empty"):
        run([])
    with pytest.raises(ValueError, match=r"num_sites = 5: .* 3 DataFrames"):
        run(frames, num_sites=5)
    with pytest.raises(ValueError, match=r"site_names = .* 3 sites"):
        run(frames, site_names=["a", "b"])
    with pytest.raises(ValueError, match=r"site_names"):
        run(frames, site_names="abc")
    with pytest.raises(ValueError, match=r"site_names"):
        run(num_sites=3, site_names=["a", "b", "c"])
    with pytest.raises(ValueError, match=r"config\['seed'\] = 7: .* seed is 0"):
        run(frames, {"seed": 7})
    with pytest.raises(ValueError, match="backend = 'cloud'"):
        run(frames, backend="cloud")
    with pytest.raises(TypeError, match="DataFrame"):
        run([frames[0].to_numpy(), frames[1]])  # type: ignore[list-item]
    assert not Path("runs").exists()


def test_the_seed_may_be_named_twice_if_it_is_one() -> None:
    assert run(three(), {"seed": 7, "task": "survival"}, seed=7).summary["status"] == "ok"


def test_numbers_of_numpy_are_numbers() -> None:
    seeds = np.arange(3)
    first = run(three(), {**NO_NOISE, "survival.dropout": np.float64(0.25)}, seed=seeds[2])
    second = run(three(), {**NO_NOISE, "survival.dropout": 0.25}, seed=2)
    assert bits_of(first) == bits_of(second)


# Runs that are refused ---------------------------------------------------------------------------


def refused(
    sites: Sequence[pd.DataFrame] | None,
    config: Config | None = None,
    **arguments: Any,
) -> str:
    """Reason of a run that must be refused before anything is trained."""
    result = run(sites, config, **arguments)
    assert result.summary["status"] == "refused", result.summary
    reason = str(result.summary["reason"])
    assert "\n" not in reason
    assert "Traceback" not in reason
    assert "train" not in {row["step"] for row in result.ledger}
    assert not (result.run_folder / "model.npz").exists()
    assert json.loads((result.run_folder / "status.json").read_text())["reason"] == reason
    assert lines_of(result)[-1] == result.summary
    assert "c-index" not in result.summary
    return reason


SECRET = 123.4567


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("time", -SECRET, "1 of 30 times are negative"),
        ("time", 0.0, "1 of 30 times are zero"),
        ("time", np.nan, "1 of 30 times are missing"),
        ("time", np.inf, "1 of 30 times are infinite"),
        ("time", str(SECRET) + " days", "1 of 30 times are not numbers"),
        ("event", 2, "1 of 30 rows hold neither '1' (event) nor '0' (censored)"),
        ("event", SECRET, "1 of 30 rows hold neither"),
        ("event", np.nan, "1 of 30 rows hold neither"),
        ("x1", np.nan, "'x1': 1 of 30 rows are missing"),
        ("x1", -np.inf, "'x1': 1 of 30 rows are infinite"),
        ("x1", str(SECRET) + "!", "'x1'"),
        ("x1", 1e200, "'x1': 1 of 30 rows are beyond"),
    ],
)
def test_a_bad_value_is_refused_by_site_column_and_count(
    column: str, value: Any, words: str
) -> None:
    frames = three()
    frames[1] = frames[1].astype({"event": float})
    frames[1] = with_cell(frames[1], column, value)
    reason = refused(frames)
    assert reason.startswith("site-1: ")
    assert column in reason
    assert words in reason
    assert "site-0" not in reason
    assert str(SECRET) not in reason


def test_every_fault_of_every_site_is_told_at_once() -> None:
    frames = three()
    frames[0] = with_cell(with_cell(frames[0], "time", -1.0), "x0", np.nan, row=5)
    frames[2] = frames[2].assign(x1=pd.Timestamp("1971-02-03"))
    reason = refused(frames, site_names=["north", "south", "west"])
    assert "north: time column 'time': 1 of 30 times are negative" in reason
    assert "north: feature column 'x0': 1 of 30 rows are missing" in reason
    assert "west: feature columns of neither numbers nor categories: 'x1'" in reason
    assert "south" not in reason


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"survival.time": "tiem"}, "time column 'tiem' does not exist; the nearest is 'time'"),
        ({"survival.event": "dead"}, "event column 'dead' does not exist"),
        ({"survival.features": "x0, x9"}, "feature column 'x9' does not exist"),
        ({"survival.features": "x0,time"}, "'time' is declared both as time and as feature"),
        ({"survival.time": "event"}, "'event' is declared both as time and as event"),
    ],
)
def test_columns_that_the_configuration_names_wrongly(config: Config, words: str) -> None:
    reason = refused(three(), config)
    assert words in reason
    assert all(f"site-{number}" in reason for number in range(3))
    assert reason.count(words) == 1  # what is wrong everywhere is told once


def test_status_codes_other_than_the_declared_ones() -> None:
    """As lung of lifelines has them: 1 censored, 2 dead."""
    frames = [frame.assign(event=frame["event"] + 1) for frame in three()]
    reason = refused(frames)
    assert all(f"site-{number}" in reason for number in range(3))
    assert "event column 'event'" in reason
    declared = run(
        frames, {**NO_NOISE, "survival.event-value": "2", "survival.censored-value": "1"}
    )
    assert bits_of(declared) == bits_of(run(three(), NO_NOISE))


def test_sites_with_different_columns_are_named() -> None:
    frames = three()
    frames[1] = frames[1].rename(columns={"x2": "bmi"})
    reason = refused(frames)
    assert "site-1: its feature columns are not those of site-0" in reason
    assert "missing: x2" in reason
    assert "further: bmi" in reason
    assert "site-2:" not in reason


def test_two_sites_of_one_name() -> None:
    reason = refused(three(), site_names=["north", "south", "north"])
    assert reason.startswith("north: ")
    assert "names must differ" in reason


@pytest.mark.parametrize("name", ["", "../north", "a" * 65, "server"])
def test_a_site_name_that_cannot_be_used(name: str) -> None:
    assert "name" in refused(three(), site_names=["a", name, "c"])


def test_white_space_around_a_site_name_is_dropped() -> None:
    result = run(three(), site_names=["c", " a\n", "b "])
    assert [site["site"] for site in result.summary["sites"]] == ["a", "b", "c"]


@pytest.mark.parametrize("frames", [None, [patients(30)]], ids=["bundled", "frame"])
def test_one_site_is_too_few_and_nobody_is_waited_for(frames: list[pd.DataFrame] | None) -> None:
    began = time.monotonic()
    arguments = {"num_sites": 1} if frames is None else {}
    reason = refused(frames, **arguments)
    assert time.monotonic() - began < 3
    assert "num-sites = 1" in reason
    assert "min-sites = 2" in reason


def test_frames_without_rows_or_sound_columns_are_named() -> None:
    frames = three()
    frames[0] = frames[0].iloc[:0]
    frames[2].columns = pd.Index(["time", "event", "x0", "x0", "x2"])
    reason = refused(frames, site_names=["north", "south", "west"])
    assert "north: " in reason
    assert "no rows" in reason
    assert "west: " in reason
    assert "share a name" in reason
    assert "south" not in reason


def test_a_site_with_fewer_rows_than_the_privacy_level() -> None:
    frames = [*three(), patients(5, seed=9)]
    reason = refused(frames, {"survival.privacy-level": 5})
    assert reason == "site-3: fewer than survival.privacy-level = 5 training rows"

    without = run(frames, {**NO_NOISE, "survival.on-small-site": "exclude"})
    assert without.summary["status"] == "ok"
    assert without.summary["excluded"] == ["site-3"]
    assert [site["site"] for site in without.summary["sites"]] == ["site-0", "site-1", "site-2"]
    assert bits_of(without) == bits_of(run(three(), NO_NOISE))
    assert {row["step"] for row in without.ledger if row["sender"] == "site-3"} == {"hello"}

    larger = run(frames, {"survival.privacy-level": 4})
    assert larger.summary["n-sites"] == 4


def test_too_few_sites_are_left_when_small_ones_are_excluded() -> None:
    frames = [patients(30), patients(3, seed=1), patients(3, seed=2)]
    reason = refused(frames, {"survival.on-small-site": "exclude"})
    assert "min-sites is 2" in reason
    assert "site-1" in reason
    assert "site-2" in reason


# Hard data ---------------------------------------------------------------------------------------


def test_all_rows_censored_everywhere_is_not_estimable() -> None:
    result = run([frame.assign(event=0) for frame in three()])
    assert result.summary["status"] == "not-estimable"
    assert result.summary["reason"] == "no-events"
    assert "c-index" not in result.summary
    assert "train" not in {row["step"] for row in result.ledger}
    assert not (result.run_folder / "model.npz").exists()


def test_a_site_without_any_event_takes_part() -> None:
    frames = three()
    frames[1] = frames[1].assign(event=0)
    result = run(frames)
    assert result.summary["status"] == "ok"
    assert result.summary["sites"][1]["training-events"] == 0
    assert 0 < result.summary["c-index"] < 1


def test_one_event_in_all() -> None:
    frames = [frame.assign(event=0) for frame in three()]
    frames[2].loc[7, "event"] = 1
    result = run(frames)
    assert result.summary["status"] == "ok"
    assert sum(site["training-events"] for site in result.summary["sites"]) == 1
    assert "c-index" not in result.summary  # the one event is a training row
    assert model_of(result).baseline.has_events


def test_ties_everywhere() -> None:
    tied = [frame.assign(time=7.0) for frame in three()]
    result = run(tied)
    assert result.summary["status"] == "ok"
    assert 0 <= result.summary["c-index"] <= 1  # an event comes before a censoring of its time
    all_seen = run([frame.assign(event=1) for frame in tied])
    assert all_seen.summary["status"] == "ok"
    assert "c-index" not in all_seen.summary  # no pair of rows can be compared


def test_the_same_predictors_for_everybody() -> None:
    result = run([frame.assign(x0=1.0, x1=0.0, x2=-5.0) for frame in three()], NO_NOISE)
    assert result.summary["status"] == "ok"
    assert result.summary["c-index"] == 0.5
    assert any("identical_across_samples" in sign for sign in result.summary["diagnostics"])


@pytest.mark.parametrize(("scale", "shift"), [(1e6, 0.0), (1.0, 1e6), (1e-6, 0.0)])
def test_the_scale_of_features_is_of_no_account(scale: float, shift: float) -> None:
    plain = run(three(), NO_NOISE)
    frames = [frame.assign(x0=frame["x0"] * scale + shift) for frame in three()]
    scaled = run(frames, NO_NOISE)
    assert scaled.summary["status"] == "ok"
    assert scaled.summary["c-index"] == pytest.approx(plain.summary["c-index"], abs=0.01)


def test_follow_up_beyond_a_given_horizon() -> None:
    frames = three(60)
    assert max(frame["time"].max() for frame in frames) > 20
    result = run(frames, {"survival.horizon": 4.0})
    assert result.summary["status"] == "ok"
    model = model_of(result)
    assert model.baseline.grid[-1] == 4.0
    assert model.baseline.has_events


def test_a_horizon_beyond_all_follow_up() -> None:
    result = run(three(), {"survival.horizon": 1e6})
    assert result.summary["status"] == "ok"
    assert model_of(result).baseline.grid[-1] == 1e6


def test_no_rows_for_evaluation() -> None:
    result = run(three(), {"survival.test-fraction": 0.0})
    assert result.summary["status"] == "ok"
    assert [key for key in result.summary if key.startswith("c-index")] == ["c-index-reason"]
    assert result.summary["c-index-reason"] == "no-evaluation-rows"
    assert [site["evaluation-rows"] for site in result.summary["sites"]] == [0, 0, 0]
    assert [site["training-rows"] for site in result.summary["sites"]] == [30, 30, 30]
    survival = model_of(result).survival(three()[0], [1.0, 2.0])
    assert survival.shape == (30, 2)
    assert (np.diff(survival, axis=1) <= 0).all()
    assert result.exchanges == 2 + 4


def test_the_order_of_columns_is_of_no_account() -> None:
    frames = three()
    shuffled = [frames[0], frames[1][frames[1].columns[::-1]], frames[2]]
    assert bits_of(run(frames, NO_NOISE)) == bits_of(run(shuffled, NO_NOISE))


def test_the_index_of_a_frame_is_of_no_account() -> None:
    frames = three()
    strange = [frame.set_index(frame.index * 7 + 3) for frame in frames]
    strange[0].index = pd.Index(["same"] * 30, name="patient")
    assert bits_of(run(frames, NO_NOISE)) == bits_of(run(strange, NO_NOISE))


def test_the_order_of_sites_is_of_no_account() -> None:
    """Sums and averages go in the order of names."""
    frames = three()
    names = ["a", "b", "c"]
    forward = run(frames, NO_NOISE, site_names=names)
    backward = run(frames[::-1], NO_NOISE, site_names=names[::-1])
    assert bits_of(forward) == bits_of(backward)


@pytest.mark.parametrize("rows", [7, 8])
def test_thirty_small_sites(rows: int) -> None:
    """Batches of one row, sites without an event and none that evaluates are among them."""
    frames = [patients(rows, seed=seed) for seed in range(30)]
    result = run(frames, {"survival.rounds": 1, "survival.batch-size": 2})
    assert result.summary["status"] == "ok"
    assert result.summary["n-sites"] == 30
    assert result.exchanges == 5


def test_a_hundred_sites() -> None:
    result = run(num_sites=100, config={"survival.rounds": 1, "survival.test-fraction": 0.0})
    assert result.summary["status"] == "ok"
    assert result.summary["n-sites"] == 100
    assert len(result.ledger) == 2 * 100 * result.exchanges


def test_training_that_diverges_is_named() -> None:
    result = run(three(), {**NO_NOISE, "survival.learning-rate": 10.0, "survival.local-steps": 40})
    assert result.summary["status"] == "failed"
    assert "site-0, " in result.summary["reason"]
    assert ": train: training diverged" in result.summary["reason"]
    assert "lower the learning rate (10)" in result.summary["reason"]


# Sites that answer wrongly -----------------------------------------------------------------------

Spoil = Callable[[RecordDict], RecordDict | Error]


def spoiled_run(
    monkeypatch: pytest.MonkeyPatch, message_type: str, spoil: Spoil
) -> SimulationResult:
    """A run in which what site-1 replies to messages of a type is something else."""

    class SpoilingGrid(InProcessGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            for reply in super().pull_messages(message_ids):
                of_site = reply.metadata.src_node_id == 2
                if of_site and reply.metadata.message_type == message_type:
                    what = spoil(reply.content)
                    ours = Message(what, reply_to=Message(RecordDict(), 2, message_type))
                    ours.metadata.__dict__["_reply_to_message_id"] = (
                        reply.metadata.reply_to_message_id
                    )
                    yield ours
                else:
                    yield reply

    monkeypatch.setattr(simulation, "InProcessGrid", SpoilingGrid)
    return run(three())


def without(record: str) -> Spoil:
    def spoil(content: RecordDict) -> RecordDict:
        return RecordDict({key: value for key, value in content.items() if key != record})

    return spoil


def with_metric(key: str, value: float | None) -> Spoil:
    def spoil(content: RecordDict) -> RecordDict:
        metrics = {k: v for k, v in content.metric_records["metrics"].items() if k != key}
        if value is not None:
            metrics[key] = value
        content["metrics"] = MetricRecord(metrics)
        return content

    return spoil


def with_arrays(record: str, change: Callable[[Arrays], Arrays]) -> Spoil:
    def spoil(content: RecordDict) -> RecordDict:
        content[record] = to_array_record(change(from_array_record(content.array_records[record])))
        return content

    return spoil


def shorter(arrays: Arrays) -> Arrays:
    return {name: array[..., :-1] for name, array in arrays.items()}


def not_finite(arrays: Arrays) -> Arrays:
    return {
        name: np.full_like(array, np.nan) if array.dtype.kind == "f" else array
        for name, array in arrays.items()
    }


@pytest.mark.parametrize(
    ("message_type", "spoil"),
    [
        ("query.survival_statistics", without("statistics")),
        ("query.survival_statistics", without("moments")),
        ("query.survival_statistics", with_arrays("moments", shorter)),
        ("query.survival_statistics", with_arrays("moments", not_finite)),
        ("train", without("arrays")),
        ("train", without("metrics")),
        ("train", with_arrays("arrays", shorter)),
        ("train", with_arrays("arrays", not_finite)),
        ("train", with_metric("concordance-ab", None)),
        ("train", with_metric("concordance-a", -1.0)),
        ("train", with_metric("num-examples", -5)),
        ("train", with_metric("loss-steps", None)),
        ("evaluate", without("metrics")),
        ("evaluate", without("risk-sets")),
        ("evaluate", with_arrays("risk-sets", shorter)),
        ("evaluate", with_arrays("risk-sets", not_finite)),
        ("evaluate", with_metric("concordance-b", float("nan"))),
        ("evaluate", with_metric("num-examples", float("inf"))),
        ("query.survival_curves", without("curves")),
        ("query.survival_curves", with_arrays("curves", shorter)),
        ("query.survival_curves", with_arrays("curves", not_finite)),
        ("train", lambda content: Error(200, "bad-data: the disk is gone")),
        ("evaluate", lambda content: Error(200, "bad-data: the disk is gone")),
        ("query.survival_curves", lambda content: Error(200, "bad-data: the disk is gone")),
    ],
)
def test_a_site_that_answers_wrongly_is_named_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, message_type: str, spoil: Spoil
) -> None:
    result = spoiled_run(monkeypatch, message_type, spoil)
    assert result.summary["status"] == "ok", result.summary["reason"]
    assert result.summary["faults"]
    assert all(fault.startswith("site-1: ") for fault in result.summary["faults"])
    # Two rounds of training; a malformed set-up, and that the site is left out because of it.
    twice = message_type in ("train", "query.survival_statistics")
    assert len(result.summary["faults"]) == (2 if twice else 1)
    assert 0 < result.summary["c-index"] < 1


def test_a_run_that_loses_too_many_sites_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(message: Message, site: Any) -> Message:
        raise SiteFault("bad-data", "the disk is gone")

    monkeypatch.setattr("tasks.survival.client.train", train)
    result = run(three())
    assert result.summary["status"] == "failed"
    assert "site-0, site-1, site-2: train: the disk is gone" in result.summary["reason"]
    assert result.exchanges == 3
    assert not (result.run_folder / "model.npz").exists()


# The Grid of this process ------------------------------------------------------------------------

remembering = ClientApp()


def ending(context: Context, how: str, message: Message) -> Message:
    calls = context.state.config_records.get("memory", ConfigRecord({"calls": 0}))
    calls["calls"] = int(calls["calls"]) + 1  # type: ignore[arg-type]  # a number, in place
    context.state["memory"] = calls
    context.state["newest"] = ArrayRecord([np.arange(3)])
    if how == "raise":
        raise ValueError("after the state was changed")
    if how == "fault":
        raise SiteFault("bad-data", "after the state was changed")
    if how == "error":
        return Message(Error(200, "after the state was changed"), reply_to=message)
    message.content["request"] = ConfigRecord({"how": "changed by the node"})
    return Message(RecordDict({"reply": ConfigRecord({"calls": calls["calls"]})}), reply_to=message)


@remembering.query("plain")
def plain(message: Message, context: Context) -> Message:
    return ending(context, str(message.content.config_records["request"]["how"]), message)


@remembering.query("answering")
@answering_faults
def answering(message: Message, context: Context) -> Message:
    return ending(context, str(message.content.config_records["request"]["how"]), message)


def ask(grid: InProcessGrid, how: str, *, node: int = 1, kind: str = "plain") -> Message:
    content = RecordDict({"request": ConfigRecord({"how": how})})
    message = Message(content, dst_node_id=node, message_type=f"query.{kind}")
    ids = list(grid.push_messages([message]))
    (reply,) = grid.pull_messages(ids)
    assert list(grid.pull_messages(ids)) == []  # given out once
    assert content.config_records["request"]["how"] == how  # the node had a copy
    assert reply.metadata.reply_to_message_id == ids[0]
    return reply


@pytest.mark.parametrize(
    ("kind", "how"),
    [("plain", "raise"), ("plain", "error"), ("answering", "fault"), ("answering", "raise")],
)
def test_state_of_a_node_is_what_its_handler_left(kind: str, how: str) -> None:
    """Errors included, as in Flower's runtimes: only `answering_faults` puts it back."""
    grid = InProcessGrid(remembering, [{}, {}], {})
    assert ask(grid, "answer").content.config_records["reply"]["calls"] == 1
    assert ask(grid, how, kind=kind).has_error()
    expected = 2 if kind == "answering" else 3
    assert ask(grid, "answer").content.config_records["reply"]["calls"] == expected
    assert ask(grid, "answer", node=2).content.config_records["reply"]["calls"] == 1


def test_a_node_that_does_not_exist_is_an_error() -> None:
    grid = InProcessGrid(remembering, [{}], {})
    reply = ask(grid, "answer", node=9)
    assert reply.has_error()
    assert reply.metadata.src_node_id == 9


def test_nodes_of_the_grid() -> None:
    grid = InProcessGrid(remembering, [{"site-name": "a"}, {"site-name": "b"}], {"key": 1})
    assert list(grid.get_node_ids()) == [1, 2]
    assert [node.node_id for node in grid.get_nodes()] == [1, 2]
    assert grid.run.primary_task_type == TaskType.SIMULATION
    assert [context.node_config["site-name"] for context in grid.contexts.values()] == ["a", "b"]
    assert all(context.run_config == {"key": 1} for context in grid.contexts.values())
    message = grid.create_message(
        RecordDict({"request": ConfigRecord({"how": "answer"})}), "query.plain", 2, "group"
    )
    (reply,) = grid.send_and_receive([message])
    assert reply.metadata.src_node_id == 2


def test_a_run_that_is_stopped_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status must not stay "running", and what was disclosed is in the ledger."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SurvivalFedAvg, "draw_curves", stop)
    with pytest.raises(KeyboardInterrupt):
        simulate("survival", config={**QUICK, "run-dir": str(tmp_path)})
    (folder,) = tmp_path.iterdir()
    record = RunFolder.open(folder).read()
    assert record.status["status"] == "failed"
    assert "stopped (KeyboardInterrupt) after 5 exchanges" in record.status["reason"]
    assert max(row["exchange"] for row in record.ledger) == 5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda frame: frame, "sites: must be a list of DataFrames, one a site, not a DataFrame"),
        (lambda frame: {"a": frame, "b": frame}, "one a site, not a dict"),
        (lambda frame: (frame for _ in range(2)), "one a site, not a generator"),
        (lambda frame: [frame, 5], "it holds int"),
        (lambda frame: "frames", "not a str"),
    ],
)
def test_sites_that_are_no_frames_are_named(given: Any, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        simulate("survival", sites=given(pd.DataFrame({"time": [1.0], "event": [1]})))
    assert words in str(caught.value)


@pytest.mark.parametrize("config", [[1], "survival.rounds=2", 5])
def test_a_configuration_that_is_no_mapping_is_named(config: Any) -> None:
    with pytest.raises(TypeError, match="config: must be a mapping of keys to values"):
        simulate("survival", config=config)


@pytest.mark.parametrize("task", ["survival", "roc-glm"])
def test_data_and_sites_exclude_each_other(task: str) -> None:
    frame = pd.DataFrame({"time": [1.0], "event": [1]})
    with pytest.raises(ValueError, match=rf"config\['{task}.data'\]: the argument sites is given"):
        simulate(task, sites=[frame, frame], config={f"{task}.data": "gbsg2"})


def test_own_frames_are_not_called_by_the_name_of_bundled_data(tmp_path: Path) -> None:
    result = simulate("survival", sites=three(), config={**QUICK, "run-dir": str(tmp_path)})
    record = RunFolder.open(result.run_folder).read()
    assert record.setting("survival.data") == "(frames given to simulate)"
    bundled = simulate("survival", config={**QUICK, "run-dir": str(tmp_path)})
    assert RunFolder.open(bundled.run_folder).read().setting("survival.data") == "gbsg2"


def test_a_wrong_type_stays_an_error_in_python() -> None:
    with pytest.raises(ConfigError, match=r"survival.hidden-layers = 16: must be text"):
        simulate("survival", config={"survival.hidden-layers": 16})


@pytest.mark.parametrize(
    "node", [{"site-name": "north", "data-path": "rows.csv"}, {"data-path": "rows.csv"}]
)
def test_a_deployed_site_refuses_seeded_noise(node: dict[str, Any]) -> None:
    """The server refuses too, but a site need not trust it."""
    config = run_config.read({"seeded-noise": True})
    with pytest.raises(SiteFault) as caught:
        prepared_sites.prepare_survival_site(node, config)
    assert caught.value.code == "seeded-noise"


def test_a_simulated_site_takes_seeded_noise() -> None:
    config = run_config.read({"seeded-noise": True})
    site = prepared_sites.prepare_survival_site({"partition-id": 0, "num-partitions": 5}, config)
    assert site.name == "site-0"


def test_a_privacy_level_of_1_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    words = "survival.privacy-level = 1: sums over a single row may leave a site"
    simulate("survival", config={**QUICK, "run-dir": str(tmp_path)})
    assert words not in caplog.text
    simulate("survival", config={**QUICK, "run-dir": str(tmp_path), "survival.privacy-level": 1})
    assert words in caplog.text


def test_faults_of_many_frames_are_one_line(tmp_path: Path) -> None:
    bad = pd.DataFrame([[1.0, 1]], columns=["x", "x"])
    result = simulate("survival", sites=[bad] * 50, config={**QUICK, "run-dir": str(tmp_path)})
    assert result.summary["status"] == "refused"
    assert result.summary["reason"].startswith("site-0, site-1, site-2 and 47 more: ")
