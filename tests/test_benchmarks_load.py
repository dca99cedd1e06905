"""The benchmarks of load and exchanges measure what they say, tried with tiny settings."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from fedapp import simulation

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def _benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


deployed = _benchmark("deployed")
exchange_cost = _benchmark("exchange_cost")
load = _benchmark("load")


ROC_GLM = load.CONFIGS["roc-glm"]


def test_a_run_tells_its_bytes_by_node_and_exchange_and_its_time_by_end() -> None:
    load.warm_up("roc-glm", ROC_GLM)
    three, six = (
        load.run_in_process("roc-glm", nodes=nodes, rows=60, settings=ROC_GLM) for nodes in (3, 6)
    )
    assert (three.nodes, three.exchanges) == (3, 2)
    assert set(three.bytes_by_step) == {"hello", "release"}
    assert three.bytes == pytest.approx(3 * sum(three.bytes_by_step.values()))
    assert three.spent.site_cpu > 0
    assert three.spent.server_cpu > 0
    # Everybody gets everybody's keys: a bundle a site more, for each site.
    more = load.slopes(three, six)
    assert 150 < more["bytes-per-node.release"] < 350
    assert abs(more["bytes-per-node.hello"]) < 5
    assert 1 < more["bytes-power"] < 2
    assert "3 nodes x 60 rows; 2 exchanges" in load.report(three)


def test_sites_apart_leave_the_same_run_and_no_memory_in_the_server() -> None:
    """What a handler keeps is in the sites' process, and what it costs is not the server's."""
    kept: list[bytearray] = []
    usual = simulation.InProcessGrid._handle

    def wasteful(grid: simulation.InProcessGrid, message: object) -> object:
        kept.append(bytearray(b"x" * 40_000_000))
        return usual(grid, message)

    frames = load.site_frames("roc-glm", nodes=3, rows=60)
    config = {**ROC_GLM, "seed": 1}
    here = simulation.simulate("roc-glm", sites=frames, config={**ROC_GLM}, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation.InProcessGrid, "_handle", wasteful)
        with load.sites_apart() as spent:
            apart = simulation.simulate("roc-glm", sites=frames, config=config, seed=1)
    assert apart.summary["auc"] == here.summary["auc"]
    assert kept == []
    assert 0 <= spent.server_memory < 30e6
    assert spent.site_cpu > 0
    assert simulation.InProcessGrid._handle is usual


def test_powers_tell_linear_from_square() -> None:
    def at(nodes: int) -> object:
        spent = load.Spent(server_cpu=0.1 * nodes, site_cpu=1e-3 * nodes**2, server_memory=nodes)
        return load.Load(
            task="t",
            runtime="in-process",
            nodes=nodes,
            rows=1,
            settings={},
            exchanges=2,
            wall=1.0,
            seconds=1.0,
            bytes_by_step={"hello": 7.0},
            bytes=7 * nodes,
            spent=spent,
        )

    found = load.slopes(at(10), at(40))
    powers = {name: round(value, 6) for name, value in found.items() if name.endswith("power")}
    assert powers == {"server-power": 1, "site-power": 2, "memory-power": 1, "bytes-power": 1}
    assert found["server-ms"] == pytest.approx(50)
    assert found["bytes-per-node.hello"] == 0


def test_settings_are_typed_as_in_toml() -> None:
    texts = ["survival.rounds=3", "roc-glm.secure=true", "roc-glm.release=binned"]
    assert dict(map(load.setting, texts)) == {
        "survival.rounds": 3,
        "roc-glm.secure": True,
        "roc-glm.release": "binned",
    }


def test_labels_of_vertical_sites_are_each_at_one_party() -> None:
    frames = load.site_frames("vertical-xgboost", nodes=3, rows=30)
    owned = sum(frame["label"].notna().to_numpy().astype(int) for frame in frames)
    assert (owned == 1).all()
    assert len({name for frame in frames for name in frame.columns}) == 2 + 3 * 5


def test_memory_is_that_of_processes_started_here() -> None:
    code = "import time; block = bytearray(80_000_000); print('there', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", code]
    with (
        deployed.Watch(kinds=("block",), pause=0.02) as memory,
        subprocess.Popen(command, stdout=subprocess.PIPE) as child,
    ):
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in deployed.descendants(os.getpid())
        for _ in range(200):
            if memory.largest("block") >= 80e6:  # not while it starts
                break
            memory._stop.wait(0.02)
        child.kill()
    assert 80e6 < memory.largest("block") < 400e6
    assert memory.total >= 80e6
    assert memory.largest("another") == 0
    costs = memory.by_kind()["block"]
    assert costs["processes"] == 1
    assert costs["peak-bytes"] == memory.largest("block")
    assert 0 <= costs["cpu-seconds"] < 60


def test_the_bare_app_is_one_that_flower_takes(tmp_path: Path) -> None:
    folder = deployed.write_bare_app(tmp_path / "bare")
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["components"]["serverapp"] == "bare.server_app:app"
    for name in ("server_app", "client_app"):
        compile((folder / "bare" / f"{name}.py").read_text(), name, "exec")


def test_ratios_are_of_mean_seconds() -> None:
    found = exchange_cost.Measured(
        3, bare=[6.0, 6.0], bare_polled=[5.0], ours=[6.0, 9.0], steps=["hello"], load=(1.0,)
    )
    assert found.ratio == pytest.approx(1.25)
    assert found.polled_ratio == pytest.approx(1.5)
    assert "ratio 1.25 (at most 1.3)" in exchange_cost.report(found)
