"""The benchmark of the central learner measures what it says, tried with few rows."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.vertical_frames import random_frame


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "vertical_xgboost_central.py"
    spec = importlib.util.spec_from_file_location("vertical_xgboost_central", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror"])
def test_both_learners_agree_and_the_exit_code_says_so(
    objective: str, benchmark_module: ModuleType, tmp_path: Path
) -> None:
    frame = random_frame(0, rows=400, objective=objective)
    frame["text"] = ["b" if value > 0 else "a" for value in frame["a"]]
    frame.to_csv(tmp_path / "data.csv", index=False)
    arguments = ["--data", str(tmp_path / "data.csv"), "--label", "label", "--drop", "id"]
    arguments += ["--objective", objective, "--seeds", "2", "--json", str(tmp_path / "out.json")]
    assert benchmark_module.main(arguments) == 0
    written = json.loads((tmp_path / "out.json").read_text())
    assert [row["seed"] for row in written["seeds"]] == [0, 1]
    for row in written["seeds"]:
        assert row["ours"] == pytest.approx(row["xgboost"], abs=1e-4)
        assert row["largest_margin_difference"] < 1e-4
        assert row["ours"] > 0.6


def test_a_slow_or_different_fit_fails(benchmark_module: ModuleType) -> None:
    config = benchmark_module.VerticalXGBoostConfig()
    for result, code in (
        (benchmark_module.SeedResult(0, 0.8, 0.8005, 0.0, 1.0), 0),
        (benchmark_module.SeedResult(0, 0.8, 0.8015, 0.0, 1.0), 1),
        (benchmark_module.SeedResult(0, 0.8, 0.8, 0.0, 1.6), 1),
    ):
        assert benchmark_module.report([result], config, None) == code
