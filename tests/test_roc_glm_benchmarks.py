"""The ROC-GLM benchmarks: exit codes, files, and which numbers the figure shows."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("roc_glm_simulation")


def test_a_missed_row_is_an_exit_code(
    simulation: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cells = [(0.05, 0.5, 0.5), (0.09, 0.1, 0.1)]
    study = simulation.draw_document(12, simulation.np.random.default_rng(0))
    exact = simulation.without_noise(study)
    rows = simulation.by_auc_bin({"release": "no noise"}, exact, exact)
    for cell in cells:
        rows += simulation.grid_cell(study, exact, cell, 0)
    monkeypatch.setattr(simulation, "run_grid", lambda **_: rows)
    for met, code in (("True", 0), ("False", 1)):
        table = [{"setting": "MAE", "reached": 0.5, "required": "<= 0.01", "met": met}]
        monkeypatch.setattr(simulation, "accuracy_table", lambda table=table, **_: table)
        path = tmp_path / "numbers.json"
        assert simulation.main(["--quick", "--out", str(tmp_path), "--json", str(path)]) == code
        written = json.loads(path.read_text())
        assert written["accuracy"] == table
        assert len(written["grid"]) == len(rows)
        assert {"auc-bias", "interval-error"} <= set(written["grid"][-1])
    assert (tmp_path / "grid.png").stat().st_size > 10_000
    assert (tmp_path / "accuracy.csv").read_text().splitlines()[1].endswith("False")


def test_the_figure_shows_bias_and_error_of_the_interval(
    simulation: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown: list[str] = []
    image = simulation.error_image

    def watch(rows: list[Any], metric: str) -> Any:
        shown.append(metric)
        return image(rows, metric)

    monkeypatch.setattr(simulation, "error_image", watch)
    study = simulation.draw_document(6, simulation.np.random.default_rng(1))
    exact = simulation.without_noise(study)
    simulation.draw_grid(
        simulation.grid_cell(study, exact, (0.05, 0.5, 0.5), 0), tmp_path / "grid.png"
    )
    assert shown == [
        *("roc-glm-bias", "auc-bias", "auc-bias", "auc-bias"),
        *("roc-glm-mae", "auc-mae", "auc-mae", "auc-mae"),
        *("interval-error", "interval-error", "interval-error", "interval-error"),
    ]


def test_the_bias_is_that_of_the_estimates(simulation: Any) -> None:
    np = simulation.np
    study = simulation.draw_document(6, np.random.default_rng(2))
    exact = simulation.without_noise(study)
    shifted = simulation.Estimates(exact.auc - 0.02, exact.auc_roc_glm + 0.01, exact.variance)
    rows = simulation.by_auc_bin({"release": "shifted"}, shifted, exact)
    assert [row["auc-bias"] for row in rows] == pytest.approx([-0.02] * len(rows))
    assert sum(row["datasets"] for row in rows) == 6


def test_speed_writes_its_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    speed = importlib.import_module("roc_glm_speed")
    monkeypatch.setattr(speed, "MIN_SPEEDUP", 1e9)
    path = tmp_path / "speed.json"
    assert speed.main(["--rows", "2000", "--json", str(path)]) == 1
    written = json.loads(path.read_text())
    assert (written["rows"], written["met"]) == (2000, False)
    assert written["gamma-difference"] < 1e-4
