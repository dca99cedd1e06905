"""The real ``flwr run`` in simulation: what a fresh checkout does, and two of them at once."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedapp.entry import STOPPED
from fedapp.run_folder import RunFolder
from fedapp.simulation import read_result, simulate
from tests.runtimes import SuperLink, call, checkout, superlink

pytestmark = pytest.mark.slow

SMALL = {"survival.rounds": 3, "survival.local-steps": 2, "survival.dp-mechanism": "none"}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("checkout") / "app")


@pytest.fixture(scope="module")
def link(app: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuperLink]:
    with superlink(tmp_path_factory.mktemp("flwr"), cwd=app, simulation=True) as running:
        yield running


def settings(**values: object) -> list[str]:
    words = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
    return ["--run-config", words]


def test_plain_flwr_run_leaves_everything(app: Path, link: SuperLink, tmp_path: Path) -> None:
    done = call(
        ["flwr", "run", ".", "--stream", *settings(**{"run-dir": str(tmp_path)})],
        link.environment,
        cwd=app,
    )
    assert done.returncode == 0, done.stdout
    (folder,) = tmp_path.iterdir()
    assert f"run folder: {folder}" in done.stdout
    assert "C-index within sites" in done.stdout
    assert "No formal (epsilon, delta) guarantee is claimed" in done.stdout
    result = read_result(folder)
    assert result.summary["status"] == "ok"
    assert [site["site"] for site in result.summary["sites"]] == [f"site-{k}" for k in range(5)]
    assert result.exchanges == 30 + 4
    assert 0 < result.summary["noise-to-signal-median"] < 1
    assert result.summary["c-index-lower"] > 0.5
    for name in ("config.json", "model.npz", "report.html", "figures/convergence.png"):
        assert (folder / name).stat().st_size > 1000
    runtime = json.loads((folder / "config.json").read_text())["runtime"]
    assert runtime == "flwr-simulation"


@pytest.mark.parametrize("nodes", [3, 2])
def test_equals_the_in_process_run_to_the_last_bit(
    app: Path, link: SuperLink, tmp_path: Path, nodes: int
) -> None:
    """3 SuperNodes are 3 sites; 2, Flower's default, play ``num-sites`` of them."""
    config = {**SMALL, "run-dir": str(tmp_path / "ray"), "num-sites": 3, "report": False}
    federation = ["--federation-config", f"num-supernodes={nodes}"]
    done = call(
        ["flwr", "run", ".", "--stream", *settings(**config), *federation],
        link.environment,
        cwd=app,
    )
    (folder,) = (tmp_path / "ray").iterdir()
    ray = read_result(folder)
    assert ray.summary["status"] == "ok", done.stdout
    here = simulate("survival", config={**SMALL, "run-dir": str(tmp_path / "here")}, num_sites=3)
    assert ray.exchanges == here.exchanges
    assert ray.summary["c-index"] == here.summary["c-index"]
    with (
        np.load(ray.run_folder / "model.npz") as theirs,
        np.load(here.run_folder / "model.npz") as ours,
    ):
        arrays = [name for name in ours.files if name != "header"]
        assert sorted(theirs.files) == sorted(ours.files)
        assert all(theirs[name].tobytes() == ours[name].tobytes() for name in arrays)


def test_roc_glm_equals_the_in_process_run(app: Path, link: SuperLink, tmp_path: Path) -> None:
    config = {"task": "roc-glm", "run-dir": str(tmp_path / "ray"), "report": False}
    done = call(["flwr", "run", ".", "--stream", *settings(**config)], link.environment, cwd=app)
    (folder,) = (tmp_path / "ray").iterdir()
    ray = read_result(folder)
    assert ray.summary["status"] == "ok", done.stdout
    assert ray.exchanges <= 4
    here = simulate("roc-glm", config={"run-dir": str(tmp_path / "here")})
    for key in ("auc", "auc-variance", "gamma-1", "gamma-2", "deviance", "brier"):
        assert ray.summary[key] == here.summary[key], key


def test_vertical_xgboost_equals_the_in_process_run(
    app: Path, link: SuperLink, tmp_path: Path
) -> None:
    """Keys, bucket maps and trees of a party live in the state that Flower keeps."""
    key = "vertical-xgboost"
    small = {f"{key}.num-trees": 1, f"{key}.max-depth": 1, f"{key}.max-bin": 8}
    small |= {f"{key}.key-bits": 1024, f"{key}.allow-weak-key": True, "report": False}
    config = {"task": key, "run-dir": str(tmp_path / "ray"), **small}
    federation = ["--federation-config", "num-supernodes=3"]
    done = call(
        ["flwr", "run", ".", "--stream", *settings(**config), *federation],
        link.environment,
        cwd=app,
    )
    (folder,) = (tmp_path / "ray").iterdir()
    ray = read_result(folder)
    assert ray.summary["status"] == "ok", done.stdout
    assert ray.exchanges == 4 + 2
    assert ray.summary["central"]["same-trees"] is True
    assert ray.summary["ciphertexts"] > 0
    here = simulate(key, config={**small, "run-dir": str(tmp_path / "here")}, num_sites=3)
    assert ray.predictions is not None
    assert ray.predictions.equals(here.predictions)
    assert ray.summary["test-loss"] == here.summary["test-loss"]


def test_a_second_checkout_is_not_mixed_up_with_the_first(link: SuperLink, tmp_path: Path) -> None:
    """The SuperLink's workers import from the folder in which it was started."""
    other = checkout(tmp_path / "other")
    client = other / "tasks" / "survival" / "client.py"
    client.write_text(client.read_text() + "\n# another checkout\n")
    done = call(
        ["fedapp", "run", "survival", "--clients", "3", "--set", f"run-dir={tmp_path / 'runs'}"],
        {**link.environment, "PYTHONPATH": str(other)},
        cwd=other,
    )
    assert done.returncode == 3, done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    status = json.loads((folder / "status.json").read_text())
    assert status["status"] == "refused"
    for site in ("site-0", "site-1", "site-2"):
        assert site in status["reason"]
    assert "other code" in status["reason"]


def test_fedapp_run_says_by_its_exit_code_what_happened(
    app: Path, link: SuperLink, tmp_path: Path
) -> None:
    # Buffered as it is by default: lines have to come in their order nevertheless.
    environment = {**link.environment, "PYTHONPATH": str(app), "PYTHONUNBUFFERED": ""}
    run_dir = ["--set", f"run-dir={tmp_path}"]
    data = tmp_path / "all-censored.csv"
    data.write_text("time,event,x\n" + "".join(f"{k + 1},0,{k % 7}\n" for k in range(60)))
    done = call(
        ["fedapp", "run", "survival", "--clients", "2", "--data", str(data), *run_dir],
        environment,
        cwd=app,
    )
    assert done.returncode == 4, done.stdout
    assert "not-estimable: no-events" in done.stdout.splitlines()[-2]
    typo = call(["fedapp", "run", "--set", "survival.round=3", *run_dir], environment, cwd=app)
    assert typo.returncode == 2
    assert "did you mean survival.rounds?" in typo.stdout


def test_flwr_stop_is_told_in_the_run_folder(app: Path, link: SuperLink, tmp_path: Path) -> None:
    """And so is Ctrl-C on `fedapp run`, which calls it."""
    endless = ["survival.rounds=100000", f"run-dir={tmp_path}"]
    environment = {**link.environment, "PYTHONPATH": str(app)}
    command = ["fedapp", "run", "survival", "--clients", "2", "--set", *endless]
    with (tmp_path.parent / "output").open("w+") as output:
        with subprocess.Popen(
            command, env=environment, cwd=app, stdout=output, stderr=subprocess.STDOUT
        ) as child:
            try:
                wait_for(lambda: any('"exchange": 4' in text for text in ledgers(tmp_path)))
                child.send_signal(signal.SIGINT)
                child.wait(timeout=60)
            finally:
                child.kill()
        output.seek(0)
        said = output.read()
    assert child.returncode == STOPPED, said
    assert "has been stopped (flwr stop" in said
    (folder,) = tmp_path.iterdir()
    wait_for(lambda: "running" not in (folder / "status.json").read_text())
    record = RunFolder.open(folder).read()
    assert record.status["status"] == "failed"
    assert "stopped" in record.status["reason"]
    assert max(row["exchange"] for row in record.ledger) >= 4


def ledgers(run_dir: Path) -> list[str]:
    return [path.read_text() for path in run_dir.glob("*/ledger.jsonl")]


def wait_for(happened: Callable[[], bool], *, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it has not happened in time"
        time.sleep(0.2)


def test_backend_ray_runs_frames(
    app: Path, link: SuperLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pandas as pd

    rng = np.random.default_rng(0)
    frames = [
        pd.DataFrame({"time": rng.exponential(size=40) + 0.1, "event": 1, "x": rng.normal(size=40)})
        for _ in range(2)
    ]
    for key in ("FLWR_HOME", "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"):
        monkeypatch.setenv(key, link.environment[key])
    monkeypatch.chdir(app)
    config = {**SMALL, "run-dir": str(tmp_path), "num-sites": 2}
    ray = simulate("survival", sites=frames, config=config, backend="ray")
    here = simulate("survival", sites=frames, config=config)
    assert ray.summary["c-index"] == here.summary["c-index"]
