"""Every setting reaches what it is for: a run that ignored it would fail here."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message

from fedapp import cli, client_app, flower_run, run_config, server_app, site_data, survival_run
from fedapp.simulation import InProcessGrid, simulate
from strategies.averaging import stated_examples
from strategies.survival import SurvivalFedAvg
from tasks.survival.config import SurvivalConfig
from tasks.survival.messages import from_array_record
from tests.patients import patients

QUICK: dict[str, bool | int | float | str] = {
    "survival.rounds": 2,
    "survival.local-steps": 2,
    "survival.hidden-layers": "4",
    "survival.dp-mechanism": "none",
    "report": False,
}


class Recorder(InProcessGrid):
    """Keeps every request with its reply."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.traffic: list[tuple[Message, Message]] = []

    def _handle(self, message: Message) -> Message:
        reply = super()._handle(message)
        self.traffic.append((message, reply))
        return reply

    def of(self, message_type: str) -> list[tuple[Message, Message]]:
        return [pair for pair in self.traffic if pair[0].metadata.message_type == message_type]


def record(
    tmp_path: Path, frames: list[pd.DataFrame], **settings: bool | int | float | str
) -> tuple[Recorder, Path]:
    values = {**run_config.defaults(), **QUICK, **settings, "run-dir": str(tmp_path)}
    values["num-sites"] = len(frames)  # two nodes are Flower's default and would play more
    keys = [site_data.register_frame(frame) for frame in frames]
    nodes = [
        {"site-name": f"site-{at}", "data-path": f"{site_data.MEMORY_PREFIX}{key}"}
        for at, key in enumerate(keys)
    ]
    grid = Recorder(client_app.app, nodes, values)
    try:
        return grid, server_app.run_task(grid, values, started=0.0)
    finally:
        for key in keys:
            site_data.forget_frame(key)


def updates(grid: Recorder, server_round: int) -> tuple[list[dict[str, np.ndarray]], list[int]]:
    arrays, examples = [], []
    for request, reply in grid.of("train"):
        if request.content.config_records["config"]["server-round"] == server_round:
            arrays.append(from_array_record(reply.content.array_records["arrays"]))
            examples.append(int(reply.content.metric_records["metrics"]["num-examples"]))  # type: ignore[arg-type]
    return arrays, examples


@pytest.mark.parametrize("weighting", ["examples", "equal"])
def test_weighting(tmp_path: Path, weighting: str) -> None:
    frames = [patients(40, seed=1), patients(120, seed=2)]
    grid, _ = record(tmp_path, frames, **{"survival.weighting": weighting})
    arrays, examples = updates(grid, 1)
    weights = np.array(examples if weighting == "examples" else [1, 1], dtype=float)
    sent, _ = grid.of("train")[2]  # the first message of round 2 carries the average
    average = from_array_record(sent.content.array_records["arrays"])
    for name, value in average.items():
        expected = np.average([one[name] for one in arrays], axis=0, weights=weights)
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-8)


def test_sites_draw_batches_of_their_own(tmp_path: Path) -> None:
    """Equal rows at two sites: the same stream of batches would give the same update."""
    frames = [patients(60, seed=1), patients(60, seed=1)]
    settings = {"survival.batch-size": 8, "survival.test-fraction": 0.0}
    grid, _ = record(tmp_path, frames, **settings)
    (first, second), _ = updates(grid, 1)
    assert any((first[name] != second[name]).any() for name in first)


def test_evaluate_every(tmp_path: Path) -> None:
    frames = [patients(60, seed=1), patients(60, seed=2)]
    settings = {"survival.evaluate-every": 2, "survival.rounds": 4}
    _, folder = record(tmp_path, frames, **settings)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = {line["round"] for line in lines if "round" in line and "c-index" in line}
    assert evaluated == {0, 2, 4}


def test_the_grid_ends_behind_the_longest_follow_up_of_any_site(tmp_path: Path) -> None:
    short, long = patients(60, seed=1), patients(60, seed=2)
    long["time"] *= 50
    grid, _ = record(tmp_path, [short, long])
    stated = [
        reply.content.config_records["facts"]["horizon-bound"]
        for _, reply in grid.of("query.hello")
    ]
    (horizon,) = {
        request.content.config_records["config"]["grid-horizon"]
        for request, _ in grid.of("evaluate")
    }
    assert stated[0] < stated[1] == horizon
    asked = {
        request.content.config_records["request"]["grid-horizon"]
        for request, _ in grid.of("query.survival_statistics")
    }
    assert asked == {horizon}


def test_losses_leave_rounded(tmp_path: Path) -> None:
    grid, _ = record(tmp_path, [patients(60, seed=1), patients(60, seed=2)])
    assert len(grid.of("train")) == 4
    for _, reply in grid.of("train"):
        loss = reply.content.metric_records["metrics"]["loss"]
        assert loss == round(float(loss), 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_the_server_reckons_with_the_noise_that_sites_add(mechanism: Any) -> None:
    config = SurvivalConfig(dp_mechanism=mechanism, dp_epsilon=3.0)
    noise = SurvivalFedAvg(config=config).noise(4)
    assert noise is not None
    settings = config.privatization
    assert settings is not None
    assert noise == settings.noise(num_clients=4)
    assert noise.mechanism == mechanism


def test_config_json_marks_what_differs_from_the_defaults(tmp_path: Path) -> None:
    _, folder = record(tmp_path, [patients(60, seed=1), patients(60, seed=2)])
    document = json.loads((folder / "config.json").read_text())
    for key, value in document["defaults"].items():
        assert run_config.defaults()[key] == value
    assert set(document["defaults"]) == set(document["config"]) == set(document["meanings"])
    assert document["config"]["survival.rounds"] == 2 != document["defaults"]["survival.rounds"]


def test_superlink_reaches_flwr_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def note(values: dict[str, Any], **options: Any) -> Path:
        calls.append(options)
        config = {**QUICK, "run-dir": str(tmp_path)}
        frames = [patients(60, seed=1), patients(60, seed=2)]
        return simulate("survival", sites=frames, config=config).run_folder

    monkeypatch.setattr(flower_run, "run_with_flower", note)
    assert cli.main(["run", "survival", "--superlink", "ward", "--set", f"run-dir={tmp_path}"]) == 0
    assert calls[0]["superlink"] == "ward"
    assert calls[0]["num_supernodes"] is None, "how many nodes there are is the federation's"


def test_why_there_is_no_c_index(tmp_path: Path) -> None:
    frames = [patients(60, seed=1), patients(60, seed=2)]
    for frame in frames:
        frame["event"] = 0
        frame.loc[0, "event"] = 1  # the only one is trained on
    result = simulate("survival", sites=frames, config={**QUICK, "run-dir": str(tmp_path)})
    assert "c-index" not in result.summary
    assert result.summary["c-index-reason"] == "no-comparable-pairs"


def test_the_strategy_takes_what_the_averaging_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    rows: list[float] = []

    def by_squares(reply: Message) -> float:
        rows.append(stated_examples(reply.content, "num-examples"))
        return rows[-1] ** 2

    made = functools.partial(
        SurvivalFedAvg, weigh=by_squares, after_round=lambda number, *_: rounds.append(number)
    )
    monkeypatch.setattr(survival_run, "SurvivalFedAvg", made)
    grid, _ = record(tmp_path, [patients(60), patients(200, seed=1)])
    assert rounds == [1, 2]
    assert len(set(rows)) == 2
    models, _ = updates(grid, 1)
    following = grid.of("train")[2][0].content.array_records["arrays"]
    for name, array in from_array_record(following).items():
        expected = np.average(
            [model[name] for model in models], axis=0, weights=np.square(rows[:2])
        )
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-7)
