"""The benchmark of the protocol's cost counts and compares what it says."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedapp.site_data import BUNDLED

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("vertical_xgboost")
    for name in ("xgboost", "xgboost_central", "costs", "growth", "naive_phe"):
        sys.modules.pop(f"vertical_{name}", None)


def rows() -> Any:
    frame = BUNDLED["breast-cancer-columns"].load()
    return frame.rename(columns={"id": "row-number", "label": "class"})


def cost_of(module: Any, name: str = "default", **changes: Any) -> Any:
    values: dict[str, Any] = {
        "name": name,
        "seconds": {"encrypt": 2.0, "decrypt": 3.0},
        "ciphertexts": 10,
        "ciphertext_bytes": 5120,
        "bytes": 9000,
        "bytes_by_step": {"decide": 9000},
        "exchanges": 34,
        "wall_seconds": 8.0,
        "quality": 0.9,
    }
    return module.Cost(**{**values, **changes})


def result_of(folder: Path, gain: float = 1.0) -> Any:
    folder.mkdir(parents=True)
    node = {"id": 0, "leaf": False, "owner": "a", "record": 0, "left": 1, "right": 2, "gain": gain}
    leaves = [{"id": at, "leaf": True} for at in (1, 2)]
    document = {"trees": [{"nodes": [node, *leaves]}]}
    (folder / "trees.json").write_text(json.dumps(document))
    return SimpleNamespace(run_folder=folder, summary={})


def test_naive_node_is_counted_and_exact(benchmark_module: Any) -> None:
    config = benchmark_module.VerticalXGBoostConfig(
        id="row-number", label="class", max_bin=4, key_bits=512, allow_weak_key=True
    )
    data = benchmark_module.spread_rows(rows(), config, clients=3, seed=0)
    options = {"base_margin": -0.5, "most_candidates": 2}
    node = benchmark_module.measure_node(data.tables, data.joined, config, **options)
    # 30 features of 4 buckets: 3 borders each; two of each of three sources are measured
    assert (node.candidates, node.measured) == (90, 6)
    # g and h of every candidate: from two owners, and the total
    assert node.ciphertexts == 2 * 90 * 3
    assert node.bytes == node.ciphertexts * 128
    assert node.largest_error < 1e-9
    assert min(node.seconds.values()) > 0


def test_rows_are_spread_as_the_configuration_says(benchmark_module: Any) -> None:
    config = benchmark_module.VerticalXGBoostConfig(id="row-number", label="class")
    data = benchmark_module.spread_rows(rows(), config, clients=10, seed=3)
    assert len(data.frames) == 10
    assert data.names == sorted(data.names) == list(data.tables)
    assert data.joined.features.shape == (569, 30)


def test_open_nodes_are_those_above_the_last_level(benchmark_module: Any) -> None:
    leaf = {"leaf": True}
    split = {"leaf": False, "owner": "a", "record": 0, "gain": 1.0}
    nodes = [
        {"id": 0, **split, "left": 1, "right": 2},
        {"id": 1, **leaf},
        {"id": 2, **split, "left": 3, "right": 4},
        {"id": 3, **leaf},
        {"id": 4, **leaf},
    ]
    count = benchmark_module.open_nodes
    assert [count([{"nodes": nodes}], max_depth=depth) for depth in (1, 2, 3)] == [1, 3, 5]
    assert count([{"nodes": [{"id": 0, **leaf}]}] * 2, max_depth=3) == 2


def test_seconds_come_from_the_summary_or_the_trees(benchmark_module: Any, tmp_path: Path) -> None:
    result = result_of(tmp_path / "a")
    lines = [{"tree": at, "crypto-seconds": {"fold": 1.5, "add": 0.5}} for at in (1, 2)]
    lines.append({"summary": True, "crypto-seconds": {"fold": 99.0}})
    (result.run_folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert benchmark_module.crypto_seconds(result) == {"fold": 3.0, "add": 1.0}
    result.summary["crypto-seconds"] = {"fold": 4}
    assert benchmark_module.crypto_seconds(result) == {"fold": 4.0}


REFERENCE = {"central fit": 0.9, "xgboost": 0.9004}


@pytest.mark.parametrize(
    ("changes", "reference", "words"),
    [
        ({}, REFERENCE, []),
        ({"quality": 0.9001}, REFERENCE, ["0.9001 on test rows, central 0.9"]),
        ({}, {"central fit": 0.9, "xgboost": 0.902}, ["0.002 from XGBoost"]),
        ({"seconds": {"fold": 25.1}}, REFERENCE, ["25.1 s of cryptography, limit 25"]),
        ({"exchanges": 36}, REFERENCE, ["36 exchanges, limit 35"]),
        ({"bytes": 16_000_000}, REFERENCE, ["16000000 bytes, limit 15000000"]),
        ({"ciphertext_bytes": 9_000_000}, REFERENCE, ["9000000 bytes of ciphertexts"]),
        ({"wall_seconds": 61.0}, REFERENCE, ["61 seconds, limit 60"]),
    ],
)
def test_what_must_hold(
    benchmark_module: Any,
    tmp_path: Path,
    changes: dict[str, Any],
    reference: dict[str, float],
    words: list[str],
) -> None:
    results = {"default": result_of(tmp_path / "a")}
    faults = benchmark_module.check(
        [cost_of(benchmark_module, **changes)],
        results,
        reference,
        largest_difference=0.001,
        limits=True,
    )
    assert len(faults) == len(words)
    assert all(word in fault for word, fault in zip(words, faults, strict=True))


def test_other_trees_are_a_fault(benchmark_module: Any, tmp_path: Path) -> None:
    names = ("default", "no encryption")
    results = {
        name: result_of(tmp_path / name, gain)
        for name, gain in zip(names, (1.0, 1.0001), strict=True)
    }
    costs = [cost_of(benchmark_module, name) for name in names]
    options = {"largest_difference": 0.001, "limits": False}
    faults = benchmark_module.check(costs, results, REFERENCE, **options)
    assert faults == ["no encryption: other trees than default"]


@pytest.mark.parametrize(("exchanges", "faults"), [(34, 1), (49, 0)])
def test_the_source_as_aggregator_takes_more_exchanges(
    benchmark_module: Any, tmp_path: Path, exchanges: int, faults: int
) -> None:
    names = ("default", "source adds")
    results = {name: result_of(tmp_path / name) for name in names}
    costs = [
        cost_of(benchmark_module, "default"),
        cost_of(benchmark_module, "source adds", exchanges=exchanges),
    ]
    options = {"largest_difference": 0.001, "limits": False}
    found = benchmark_module.check(costs, results, REFERENCE, **options)
    assert len(found) == faults


@pytest.mark.slow
def test_runs_side_by_side(benchmark_module: Any, tmp_path: Path) -> None:
    rows().drop(columns="row-number").to_csv(tmp_path / "rows.csv", index=False)
    arguments = ["--data", str(tmp_path / "rows.csv"), "--quick", "--bits", "1024", "--variants"]
    arguments += ["default", "not shuffled", "phe, packed, not shuffled", "no encryption"]
    assert benchmark_module.main([*arguments, "--json", str(tmp_path / "out.json")]) == 0
    written = json.loads((tmp_path / "out.json").read_text())
    runs = {run["name"].split(" (")[0]: run for run in written["runs"]}
    assert set(runs) == {
        "default", "not shuffled", "phe, packed, not shuffled", "no encryption", "phe, naive",
    }  # fmt: skip
    assert {run["quality"] for name, run in runs.items() if name != "phe, naive"} == {
        written["test rows"]["central fit"]
    }
    assert runs["no encryption"]["ciphertexts"] == 0
    packed, shuffled = runs["not shuffled"]["ciphertexts"], runs["default"]["ciphertexts"]
    assert 0 < packed < shuffled < runs["phe, naive"]["ciphertexts"]
    for run in runs.values():
        assert sum(run["bytes_by_step"].values()) in (run["bytes"], 0)


def test_growth_is_written_and_drawn(
    benchmark_module: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    growth = sys.modules["vertical_growth"]
    found = list(growth.sweeps(clients=4, quick=False))
    assert [(axis, value) for axis, value, _, _ in found if axis == "clients"] == [
        ("clients", 2),
        ("clients", 4),
        ("clients", 10),
    ]
    assert {changes["max_depth"] for axis, _, _, changes in found if axis == "depth"} == {
        2, 3, 4, 5, 6,
    }  # fmt: skip
    table = [
        {"axis": axis, "value": value, **vars(cost_of(benchmark_module)), "crypto": 5.0 + at}
        for at, (axis, value, _, _) in enumerate(found)
    ]
    growth.write_csv(tmp_path / "growth.csv", table)
    with (tmp_path / "growth.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [(row["axis"], int(row["value"])) for row in read] == [
        (axis, value) for axis, value, _, _ in found
    ]
    assert [float(row["crypto"]) for row in read] == [row["crypto"] for row in table]
    figure = growth.draw_growth(tmp_path / "growth.png", table)
    for axes in figure.axes:
        low, high = axes.get_ylim()
        assert low == 0
        for line in axes.get_lines():
            assert 0 < line.get_ydata().min() <= line.get_ydata().max() < high
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    benchmark_module.print_costs([cost_of(benchmark_module, quality=None)])
    printed = capsys.readouterr().out
    assert "5.00" in printed
    assert "encrypt 2, decrypt 3" in printed
