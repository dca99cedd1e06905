"""The benchmarks measure what they say, tried with tiny settings."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from lifelines import CoxPHFitter

from fedapp.simulation import SimulationResult


def _benchmark(name: str) -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


data_sets = _benchmark("survival_data_sets")
fit_time = _benchmark("survival_fit_time")
privacy_level = _benchmark("survival_privacy_level")


# Time of a fit ----------------------------------------------------------------------------


def test_sdgm1_has_the_hazards_correlation_and_censoring_of_its_definition() -> None:
    frame = fit_time.sdgm1(fit_time.Setting(n_rows=20_000), seed=1)
    features = frame[[f"x{i}" for i in range(1, 6)]]
    correlation = features.corr().to_numpy()
    assert correlation[0, 1] == pytest.approx(0.6, abs=0.03)
    assert correlation[0, 4] == pytest.approx(0.6**4, abs=0.03)
    fitted = CoxPHFitter().fit(frame, "time", "event").params_.to_numpy()
    assert fitted == pytest.approx([0, 0, -0.1, -0.1, -0.1], abs=0.05)
    assert 1 - frame["event"].mean() == pytest.approx(0.3, abs=0.03)


def test_fits_are_timed_beside_the_reference() -> None:
    setting = fit_time.Setting(n_rows=90, rounds=2, local_steps=1)
    fits = fit_time.fit_times(setting, repeats=2)
    assert fits.exchanges == 2 + 4
    for timing in (fits.product, fits.reference):
        assert 0 < timing.best_wall <= timing.median_wall
        assert 0 < timing.best_cpu <= timing.median_cpu
    assert fits.wall_ratio > 0
    assert 0 < fits.unloaded_wall <= fits.product.median_wall
    text = fit_time.report(setting, fits, "no peer here")
    assert "pycox, 6 steps" in text
    assert text.endswith("no peer here")


def test_other_load_is_taken_out_and_waiting_is_not() -> None:
    quiet = [(0.2, 0.2), (0.3, 0.2)]
    assert fit_time.unloaded(quiet, [(0.1, 0.1), (0.1, 0.1)]) == pytest.approx(0.25)
    loaded = [(0.4, 0.2), (0.8, 0.2)]
    assert fit_time.unloaded(loaded, [(0.2, 0.1), (0.4, 0.1)]) == pytest.approx(0.2)


def test_the_reference_makes_as_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    step = fit_time.torch.optim.Adam.step

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps.append(self)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(fit_time.torch.optim.Adam, "step", counted)
    setting = fit_time.Setting()
    fit_time.central_fit(fit_time.sdgm1(setting, seed=0), setting, seed=0)
    assert len(steps) == 3 * 5 * 3


@pytest.mark.parametrize(
    ("status", "exchanges", "words"), [("ok", 10, "10 exchanges"), ("failed", 9, "end well")]
)
def test_a_run_that_is_not_as_it_should_be_is_no_measurement(
    status: str, exchanges: int, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = SimulationResult({"status": status, "n-sites": 3}, [], exchanges, tmp_path)
    monkeypatch.setattr(fit_time, "simulate", lambda *args, **kwargs: result)
    setting = fit_time.Setting()
    with pytest.raises(RuntimeError, match=words):
        fit_time.fit(fit_time.sdgm1(setting, seed=0), setting, seed=0)


def test_a_peer_that_is_not_there_is_said_in_one_line() -> None:
    with pytest.raises(RuntimeError, match=r"did not run in python.*No module named"):
        fit_time.peer_times(Path(sys.executable), fit_time.Setting(), repeats=1)


def test_a_peer_is_timed_in_its_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "federated_survival.py").write_text(
        "import time\n"
        "class FederatedSurvival:\n"
        "    def __init__(self, **settings):\n"
        "        assert settings['global_rounds'] == 5 and settings['n_clients'] == 3\n"
        "    def fit(self, frame, *, duration_col, event_col):\n"
        "        assert len(frame) == 200 and {duration_col, event_col} < set(frame.columns)\n"
        "        time.sleep(.02)\n"
        "        print('a word of its own')\n"
    )
    metadata = tmp_path / "federated_survival-0.8.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: federated-survival\nVersion: 0.8\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    peer = fit_time.peer_times(Path(sys.executable), fit_time.Setting(), repeats=3)
    assert peer.version == "0.8"
    assert 0.02 <= peer.timing.best_wall <= peer.timing.median_wall
    assert peer.timing.best_cpu < peer.timing.best_wall


@pytest.mark.parametrize(("limit", "exit_code"), [(1e6, 0), (0.0, 1)])
def test_the_exit_code_says_whether_a_fit_is_fast_enough(
    limit: float,
    exit_code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(fit_time, "LONGEST_FIT", limit)
    monkeypatch.setattr(fit_time, "Setting", partial(fit_time.Setting, rounds=1, local_steps=1))
    path = tmp_path / "numbers.json"
    arguments = ["--repeats", "1", "--clients", "4", "--json", str(path)]
    assert fit_time.main(arguments) == exit_code
    assert "4 clients of 40 rows" in capsys.readouterr().out
    written = json.loads(path.read_text())
    assert written["holds"] is not bool(exit_code)
    assert written["many_clients"]["exchanges"] == 5
    assert written["many_clients"]["bytes"] > 4 * 5 * 1000  # a model has 5 KB
    assert written["peer"] is None


# Privacy level ----------------------------------------------------------------------------


def test_the_exact_baseline_is_that_of_lifelines() -> None:
    """Breslow's with the linear predictors of a Cox model, which lifelines centers likewise."""
    frame = data_sets.gbsg2()[["time", "event", "age", "pnodes"]]
    cox = CoxPHFitter().fit(frame, "time", "event")
    risk = cox.predict_log_partial_hazard(frame).to_numpy()
    grid = np.linspace(0, 2600, 40)
    exact, at_risk = privacy_level.exact_baseline(grid, frame["time"], frame["event"] == 1, risk)
    theirs = cox.baseline_survival_.iloc[:, 0]
    expected = [theirs[theirs.index <= time].iloc[-1] if time > 0 else 1.0 for time in grid]
    np.testing.assert_allclose(exact, expected, atol=2e-3)
    assert at_risk[0] == len(frame)
    assert (np.diff(at_risk) <= 0).all()


def test_merging_by_the_privacy_level_costs_and_the_grid_alone_does_not() -> None:
    exact = privacy_level.difference(privacy_level=1, n_sites=5, seed=0)
    merged = privacy_level.difference(privacy_level=5, n_sites=5, seed=0)
    assert 0 < exact.body < 0.005
    assert exact.tail < 0.02
    assert merged.body > 2 * exact.body
    assert merged.tail > 2 * exact.tail


# Survival metrics -----------------------------------------------------------------------------


def test_metrics_are_timed_and_a_slow_c_index_fails(tmp_path, monkeypatch, capsys) -> None:
    speed = _benchmark("survival_metrics_speed")
    arguments = ["--rows", "400", "--repeats", "1", "--json", str(tmp_path / "speed.json")]
    assert speed.main(arguments) == 0
    numbers = json.loads((tmp_path / "speed.json").read_text())
    assert [one["rows"] for one in numbers["timings"]] == [400] * 7
    assert "lifelines takes" in capsys.readouterr().out
    monkeypatch.setattr(speed, "LONGEST_CONCORDANCE", 0.0)
    assert speed.main(arguments) == 1


def test_coverage_counts_the_intervals_that_contain_the_truth(monkeypatch, tmp_path) -> None:
    coverage = _benchmark("survival_ci_coverage")
    estimates = [
        coverage.Estimate(0.5, 0.4, 0.6),
        coverage.Estimate(0.7, 0.6, 0.8),
        coverage.Estimate(0.6, 0.5, 0.7),
        coverage.Estimate(1.0, reason="at-boundary"),
    ]
    found = coverage._coverage("x", 0.55, estimates)
    assert (found.coverage, found.intervals) == (pytest.approx(2 / 3), 3)
    monkeypatch.setattr(coverage, "LARGE", 400)
    path = tmp_path / "coverage.json"
    code = coverage.main(["--replications", "8", "--json", str(path)])
    c_index = json.loads(path.read_text())[0]
    assert c_index["metric"] == "c-index"
    assert 0.6 < c_index["mean"] < 0.72
    assert code == int(not 0.92 <= c_index["coverage"] <= 0.97)
