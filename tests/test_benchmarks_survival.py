"""The survival benchmarks measure what they say, tried with tiny settings."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lifelines import CoxPHFitter
from lifelines.utils import concordance_index
from scipy import stats
from sklearn.model_selection import train_test_split


def _benchmark(name: str) -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# In this order: later ones import earlier ones by these names, as scripts in one folder do.
intervals = _benchmark("seed_intervals")
data_sets = _benchmark("survival_data_sets")
peer = _benchmark("survival_peer")
results = _benchmark("survival_real_results")
figure = _benchmark("survival_real_figure")
real = _benchmark("survival_real")
speed = _benchmark("survival_speed")
dp_table = _benchmark("survival_dp_table")


def _model_result(
    data_set: str, model: str, differences: list[float], *, by: str = "fedapp", central: float = 0.6
) -> Any:
    found = [
        results.SeedResult(seed, central + one, central) for seed, one in enumerate(differences)
    ]
    return results.ModelResult(data_set, model, by, tuple(found))


# Data sets and seeds ----------------------------------------------------------------------


def test_text_columns_become_numbers_in_their_declared_order() -> None:
    frame = data_sets.gbsg2()
    assert frame.shape == (686, 10)
    assert all(kind.kind in "iuf" for kind in frame.dtypes)
    assert frame["tgrade"].value_counts().to_dict() == {1: 444, 2: 161, 0: 81}
    assert frame["horTh"].sum() == 246
    assert frame["menostat"].sum() == 396


def test_files_are_read_from_zip_and_folder_and_zeros_keep_their_order(tmp_path: Path) -> None:
    text = "x0,duration,event\n1,0,1\n2,3.0,0\n3,2.0,1\n"
    (tmp_path / "metabric.csv").write_text(text)
    archive = tmp_path / "survival.zip"
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("metabric.csv", text)
    for place in (tmp_path, archive):
        frame = data_sets.read("metabric", place)
        assert frame["time"].to_list() == [1.0, 3.0, 2.0]
        assert frame["event"].to_list() == [1, 0, 1]
        with pytest.raises(ValueError, match=r"no support\.csv could be read"):
            data_sets.read("support", place)
    with pytest.raises(ValueError, match="--data must name"):
        data_sets.read("metabric", None)
    with pytest.raises(ValueError, match=r"'lung' is unknown; allowed: gbsg2"):
        data_sets.read("lung", None)


def test_every_row_is_dealt_to_one_site() -> None:
    sites = data_sets.deal(data_sets.gbsg2(), n_sites=5, seed=3)
    assert sorted(map(len, sites)) == [137, 137, 137, 137, 138]
    assert sorted(pd.concat(sites).index) == list(range(686))
    others = data_sets.deal(data_sets.gbsg2(), n_sites=5, seed=4)
    assert sorted(sites[0].index) != sorted(others[0].index)


def test_the_interval_is_that_of_student() -> None:
    values = np.random.default_rng(0).normal(0.01, 0.02, size=12)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    interval = intervals.Interval.of(list(values))
    assert interval.mean == pytest.approx(values.mean())
    assert (interval.lower, interval.upper) == pytest.approx((expected.low, expected.high))
    assert interval.half_width == pytest.approx((expected.high - expected.low) / 2)


def test_seeds_are_numbers_and_ranges() -> None:
    assert intervals.seeds("0-11") == list(range(12))
    assert intervals.seeds("0,3,7-9") == [0, 3, 7, 8, 9]
    for text in ("4", "", "3-1", "1-", "a-b", "1,1", "0-3,2"):
        with pytest.raises(argparse.ArgumentTypeError):
            intervals.seeds(text)


# Real data --------------------------------------------------------------------------------


@pytest.mark.parametrize("private", [False, True])
def test_both_models_are_evaluated_on_the_test_rows_of_the_same_split(private: bool) -> None:
    frame = data_sets.gbsg2()
    setting = real.Setting(n_sites=3, rounds=4, local_steps=5, private=private)
    train, test = train_test_split(frame, test_size=0.2, stratify=frame["event"], random_state=5)
    cox = CoxPHFitter().fit(train, "time", "event")
    score = cox.score(test, scoring_method="concordance_index")
    assert real.central_cox(frame, 5) == pytest.approx(score, abs=1e-12)
    result = real.federated(frame, "DeepSurv", 5, setting, central=0.6)
    assert 0.55 < result.c < 0.8  # the opposite orientation would be below .45
    assert (result.largest_noise_to_signal is not None) == private


def test_curves_of_discrete_models_are_evaluated_between_their_cuts() -> None:
    frame = data_sets.gbsg2()
    setting = real.Setting(n_sites=3, rounds=6, local_steps=5)
    result = real.federated(frame, "LogisticHazard", 5, setting, central=0.6)
    assert 0.55 < result.c < 0.8


def test_antolini_is_harrells_for_proportional_hazards_and_later_curves_are_flat() -> None:
    rng = np.random.default_rng(1)
    rows = pd.DataFrame({"time": rng.permutation(60) + 1.0, "event": rng.integers(0, 2, 60)})
    risk = rng.normal(size=60)

    def survival(times: Any) -> Any:
        assert times.max() <= 45.0
        return np.exp(-0.05 * np.outer(np.exp(risk), times))

    expected = concordance_index(rows["time"], -risk, rows["event"])
    assert real.harrell(rows, risk) == expected
    assert real.antolini(rows, survival, until=45.0) == pytest.approx(expected, abs=1e-12)


def test_risks_are_ordered_as_harrell_defines_it() -> None:
    rows = pd.DataFrame({"time": [1.0, 2.0, 3.0], "event": [1, 1, 0]})
    assert real.harrell(rows, np.array([3.0, 2.0, 1.0])) == 1
    assert real.harrell(rows, np.array([1.0, 2.0, 3.0])) == 0


def test_bounds_are_those_of_their_data_set_and_model() -> None:
    spread = [-0.001, 0.0, 0.001]

    def short(data_set: str, model: str, difference: float, central: float = 0.7) -> list[str]:
        differences = [difference + one for one in spread]
        one = _model_result(data_set, model, differences, central=central)
        return list(results.falls_short([one]))

    for model in ("CoxPH", "DeepSurv"):
        assert not short("gbsg2", model, -0.0049)
        assert "does NOT hold" in short("gbsg2", model, -0.0051)[0]
    assert not short("gbsg2", "CoxTime", -0.2)
    assert not short("support", "DeepSurv", -0.2)
    # .656 and .646 less .645 less .005
    assert not short("metabric", "DeepSurv", 0.0061)
    assert short("metabric", "DeepSurv", 0.0059)
    assert not short("metabric", "LogisticHazard", -0.0039)
    assert short("metabric", "LogisticHazard", -0.0041)
    # the figures themselves, on the seeds they are of
    (line,) = short("metabric", "DeepSurv", 0.02, central=0.6305)
    assert "C 0.6505 on seeds 0-2, must be >= 0.651" in line


def test_the_peer_on_the_same_splits_is_a_bound_too() -> None:
    ours = _model_result("metabric", "DeepSurv", [0.02, 0.03, 0.02, 0.03], central=0.7)
    near = replace(
        ours, by="peer", results=tuple(replace(one, c=one.c + 0.004) for one in ours.results)
    )
    assert results.over_peer([ours, near])["metabric", "DeepSurv"].mean == pytest.approx(-0.004)
    assert not results.falls_short([ours, near])
    better = replace(
        ours, by="peer", results=tuple(replace(one, c=one.c + 0.006) for one in ours.results)
    )
    assert "difference from the peer -0.0060" in results.falls_short([ours, better])[0]
    assert "product less peer -0.0060" in results.table([ours, better])


@pytest.mark.parametrize(("difference", "exit_code"), [(-0.004, 0), (-0.006, 1)])
def test_the_exit_code_says_whether_the_bound_holds(
    difference: float,
    exit_code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def federated(frame: Any, model: str, seed: int, setting: Any, *, central: float) -> Any:
        assert setting == real.Setting(private=True)
        c = central + difference + (-0.001 if seed % 2 else 0.001)
        return results.SeedResult(seed, c, central, math.inf, 1.0)

    monkeypatch.setattr(real, "federated", federated)
    monkeypatch.setattr(real, "central_cox", lambda frame, seed: 0.65)
    numbers, picture = tmp_path / "numbers.json", tmp_path / "figure.png"
    arguments = ["--private", "--seeds", "0-3", "--json", str(numbers), "--figure", str(picture)]
    assert real.main(arguments) == exit_code
    printed = capsys.readouterr().out
    assert ("does NOT hold" in printed) == bool(exit_code)
    assert f"{difference:+.4f}" in printed
    written = json.loads(numbers.read_text())
    assert written["holds"] is not bool(exit_code)
    assert [one["model"] for one in written["models"]] == ["CoxPH", "DeepSurv"]
    for one in written["models"]:
        assert one["difference"]["mean"] == pytest.approx(difference)
        assert [row["seed"] for row in one["seeds"]] == [0, 1, 2, 3]
        assert {row["largest_noise_to_signal"] for row in one["seeds"]} == {"unbounded"}
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_figure_shows_means_intervals_central_cox_and_the_peer(tmp_path: Path) -> None:
    found = [
        _model_result("gbsg2", "CoxPH", [0.01, 0.02, 0.0]),
        _model_result("metabric", "DeepSurv", [0.01, 0.02, 0.0]),
        _model_result("metabric", "LogisticHazard", [0.03, 0.02, 0.0]),
        _model_result("metabric", "DeepSurv", [0.0, 0.01, 0.0], by="federated-survival 0.8"),
    ]
    figure.plot(found, tmp_path / "figure.png")
    from matplotlib.image import imread

    picture = imread(tmp_path / "figure.png")
    height, width, _ = picture.shape
    assert width > height > 200
    pixels = np.round(255 * picture[..., :3]).astype(int)
    for hexadecimal in (figure.OURS, figure.PEERS, figure.COX):
        colour = [int(hexadecimal[i : i + 2], 16) for i in (1, 3, 5)]
        assert (pixels == colour).all(axis=2).sum() > 20


def test_wrong_arguments_are_refused_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--models", "Cox"], "Cox: must be of"),
        (["--data-sets", "metabric"], "--data must name the ZIP file"),
        (["--data-sets", "lung"], "lung: must be of gbsg2, metabric, support, or all"),
    ):
        with pytest.raises(SystemExit) as ended:
            real.main(arguments)
        assert ended.value.code == 2
        assert words in capsys.readouterr().err


_FAKE_PEER = """
import numpy as np, pandas as pd
class FederatedSurvival:
    def __init__(self, model, *, n_clients, global_rounds, local_steps, random_state, **settings):
        assert (global_rounds, local_steps) == (5, 3) or model == "LogisticHazard"
        self.n_clients = n_clients
    def fit(self, data, **columns):
        if columns:
            assert set(columns.values()) < set(data.columns)
        else:
            assert len(data.clients_set) == self.n_clients == 3
            sites = [x for x, _ in data.clients_set.values()]
            assert sum(map(len, sites)) == len(data.train_data) == 548
            np.testing.assert_allclose(np.concatenate(sites).mean(axis=0), 0, atol=1e-4)
            assert data.test_label.shape == (138, 2)
        print("a word of its own")
        return self
    def predict_survival(self, x):
        times = np.array([500.0, 1000.0, 2000.0])
        fall = np.exp(.4 * x[:, NODES])
        return pd.DataFrame(np.exp(-np.outer(times, fall) / 2000), index=times)
"""


def _fake_peer(folder: Path) -> Path:
    """A Python that has a package of the peer's name; the programs drop PYTHONPATH."""
    nodes = [name for name in data_sets.gbsg2() if name not in ("time", "event")].index("pnodes")
    package = folder / "federated_survival" / "data"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text(_FAKE_PEER.replace("NODES", str(nodes)))
    (package / "__init__.py").write_text("")
    (package / "workflow.py").write_text(
        "class DataSet:\n    def __init__(self, **parts):\n        self.__dict__.update(parts)\n"
    )
    metadata = folder / "federated_survival-0.8.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: federated-survival\nVersion: 0.8\n")
    (folder / "python").write_text(
        f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n'
    )
    (folder / "python").chmod(0o755)
    return folder / "python"


def test_the_peer_trains_on_the_same_sites_and_is_measured_likewise(tmp_path: Path) -> None:
    python = _fake_peer(tmp_path)
    frame, setting = data_sets.gbsg2(), real.Setting(n_sites=3, rounds=2, local_steps=1)
    (found,) = real.by_peer(
        python, "gbsg2", frame, ["LogisticHazard"], setting, central={0: 0.6, 1: 0.65}
    )
    assert found.by == "federated-survival 0.8"
    for one in found.results:
        _, test = data_sets.split(frame, seed=one.seed)
        # Curves that fall by positive nodes alone, never cross, and are flat after 2000 days.
        expected = real.harrell(test, test["pnodes"].to_numpy())
        assert one.c == pytest.approx(expected, abs=1e-3)
        assert one.central == (0.65 if one.seed else 0.6)


def test_a_peer_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"did not run in python.*federated-survival"):
        peer.run_peer(Path(sys.executable), peer.SPEED, {"sizes": []})
    with pytest.raises(RuntimeError, match=r"did not run: .*No such file"):
        peer.run_peer(tmp_path / "python", peer.SPEED, {"sizes": []})


# Speed ------------------------------------------------------------------------------------


def test_sizes_are_rows_by_clients() -> None:
    assert speed.sizes("200x3,20000x10") == [speed.Size(200, 3), speed.Size(20_000, 10)]
    assert [one.bounded for one in speed.sizes("200x3,20000x10")] == [False, True]
    for text in ("200", "x3", "200x0", "200x3,"):
        with pytest.raises(argparse.ArgumentTypeError):
            speed.sizes(text)


def test_a_simulation_is_timed_beside_the_peer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    python = _fake_peer(tmp_path)
    monkeypatch.setattr(speed, "BOUNDED", (120, 3))
    monkeypatch.setattr(speed, "MOST_CPU_SECONDS", 0.0)
    path = tmp_path / "numbers.json"
    arguments = ["--sizes", "120x3", "--repeats", "1", "--json", str(path)]
    assert speed.main([*arguments, "--peer-python", str(python)]) == 1
    printed = capsys.readouterr().out
    assert "peer: federated-survival 0.8" in printed
    assert "does NOT hold" in printed
    written = json.loads(path.read_text())
    (cost,), (of_peer,) = written["costs"], written["peer_costs"]
    assert written["holds"] is False
    assert cost["exchanges"] == speed.ROUNDS + 4
    assert cost["cpu"] > 0
    assert 0 < cost["c_index"] < 1
    assert of_peer["size"] == cost["size"] == {"n_rows": 120, "n_clients": 3}


def test_a_peer_that_is_too_near_fails_and_one_that_is_absent_does_not() -> None:
    size = speed.Size(20_000, 10)
    ours = [speed.Cost(size, 5.0, 6.0, 9, 0.55)]
    assert speed.holds(ours, [])
    assert speed.holds(ours, [speed.PeerCost(size, 85.0, 90.0)])
    assert not speed.holds(ours, [speed.PeerCost(size, 84.0, 90.0)])
    assert not speed.holds([replace(ours[0], cpu=6.1)], [])


# Table by noise ---------------------------------------------------------------------------


def test_rows_of_a_seed_are_split_and_fresh_ones_are_others() -> None:
    data = dp_table.draw(3, test_rows=500)
    assert (len(data.train), len(data.test), len(data.fresh)) == (160, 40, 500)
    assert not set(data.train.index) & set(data.test.index)
    assert not set(data.fresh["x1"]) & set(pd.concat([data.train, data.test])["x1"])
    # The true risk of SDGM1 is -.1 times the sum of the second half of the features.
    expected = -0.1 * data.test[["x3", "x4", "x5"]].sum(axis=1)
    np.testing.assert_allclose(data.test_risk, expected, atol=1e-12)


def test_both_tables_are_printed_and_bounded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = tuple(row for row in dp_table.ROWS if row.multiplier in (None, 1.0))
    monkeypatch.setattr(dp_table, "ROWS", rows)
    path = tmp_path / "numbers.json"
    arguments = ["--seeds", "0-2", "--test-rows", "300", "--json", str(path)]
    code = dp_table.main(arguments)
    printed = capsys.readouterr().out
    assert "40 test rows, seeds 0, 1, 2" in printed
    assert "300 fresh test rows, 3 seeds" in printed
    written = json.loads(path.read_text())
    assert list(written["fresh"]) == ["true risk", "DP off", "1, clip 1"]
    assert len(written["cells"]) == 9
    assert code == (0 if written["holds"] else 1)


def test_the_model_without_noise_is_bounded_by_the_peers_interval() -> None:
    for least, outcome in ((0.511, True), (0.509, False)):
        cells = [dp_table.Cell("DP off", seed, 0.5, least + 0.01 * seed) for seed in range(3)]
        noisy = [dp_table.Cell("1, clip 1", seed, 0.5, 0.4, math.inf) for seed in range(3)]
        assert dp_table.holds(cells + noisy) is outcome


def test_the_rows_are_those_of_the_page_and_quick_is_smaller(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [(row.multiplier, row.clip_norm, row.page) for row in dp_table.ROWS]
    assert named[0] == (None, None, 0.5454)
    assert named[-1] == (0.5, 0.01, 0.504)
    assert len(named) == 11
    asked = []

    def measure(row: Any, data: Any, seed: int) -> Any:
        asked.append((len(data.fresh), seed))
        return dp_table.Cell(row.name, seed, 0.5, 0.53 + 0.01 * seed, 0.4)

    monkeypatch.setattr(dp_table, "measure", measure)
    assert dp_table.main(["--quick"]) == 0
    assert set(asked) == {(1000, seed) for seed in range(4)}
    assert "true risk" in capsys.readouterr().out
