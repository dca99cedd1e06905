"""The deployment runtime as on real hosts: TLS, registered SuperNodes, own files, pinned keys.

One federation of three sites serves all tests: nodes read their data files and keys anew in every
process, so a test gives the sites other ones and runs. Vertical models: test_vertical_deployment.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedapp.deploy.certificates import make_authority
from fedapp.deploy.federation_folder import SITES, write_federation
from fedapp.deploy.plan import Plan
from fedapp.deploy.processes import free_ports, own_environment, service
from fedapp.deploy.rehearsal import (
    DATA_FILE,
    Federation,
    online_nodes,
    running_federation,
)
from fedapp.deploy.site_keys import make_site_keys
from fedapp.entry import STOPPED
from fedapp.run_config import Value
from fedapp.run_folder import RunFolder
from fedapp.simulation import SimulationResult, read_result, simulate
from fedapp.site_data.dealt_files import write_frame
from tasks.secure.identity import create_identity
from tests.runtimes import ROOT

pytestmark = pytest.mark.slow

NAMES = ("north", "south", "west")
RUN_LIMIT = 600.0
SHORT: dict[str, Value] = {"report": False, "min-sites": 3, "timeout": 120.0}
SURVIVAL: dict[str, Value] = {
    "survival.rounds": 2,
    "survival.local-steps": 2,
    "survival.dp-mechanism": "none",
}
ROC_GLM: dict[str, Value] = {"roc-glm.label": "label", "roc-glm.score": "score"}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("deployed") / "federation"
    (port,) = free_ports(1)
    plan = Plan(sites=NAMES, host="127.0.0.1", port=port, name="rehearsal")
    write_federation(plan, folder, data_path=DATA_FILE)
    with running_federation(plan, folder) as running:
        yield running
        assert running.dead() == []


def run(
    federation: Federation, task: str, frames: Sequence[pd.DataFrame], config: dict[str, Value]
) -> SimulationResult:
    """Give every site its rows and run; a site without any loses its file."""
    for name, frame in zip(NAMES, frames, strict=True):
        path = federation.folder / SITES / name / DATA_FILE
        path.unlink(missing_ok=True)
        if len(frame):
            write_frame(frame, path)
    folder = federation.run({"task": task, **SHORT, **config}, limit=RUN_LIMIT)
    return read_result(folder)


def here(
    tmp_path: Path, task: str, frames: list[pd.DataFrame], config: dict[str, Value]
) -> SimulationResult:
    settings = {**SHORT, **config, "run-dir": str(tmp_path / "here")}
    return simulate(task, sites=frames, site_names=list(NAMES), config=settings)


def scored(seed: int) -> list[pd.DataFrame]:
    rng = np.random.default_rng(seed)
    return [
        pd.DataFrame({"label": np.tile([0, 0, 1], 20), "score": rng.uniform(size=60).round(3)})
        for _ in NAMES
    ]


def patients(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, 60))
    time = rng.exponential(np.exp(-x)) + 0.01
    return pd.DataFrame({"time": time, "event": rng.integers(0, 2, 60), "x": x, "y": y})


def test_survival_equals_the_in_process_run(federation: Federation, tmp_path: Path) -> None:
    frames = [patients(seed) for seed in (1, 2, 3)]
    deployed = run(federation, "survival", frames, SURVIVAL)
    assert deployed.summary["status"] == "ok"
    assert deployed.exchanges == 2 + 4
    mine = here(tmp_path, "survival", frames, SURVIVAL)
    assert deployed.summary["c-index"] == mine.summary["c-index"]
    with (
        np.load(deployed.run_folder / "model.npz") as theirs,
        np.load(mine.run_folder / "model.npz") as ours,
    ):
        arrays = [name for name in ours.files if name != "header"]
        assert arrays
        assert all(theirs[name].tobytes() == ours[name].tobytes() for name in arrays)


def test_a_site_with_another_key_than_the_pinned_one_is_named(federation: Federation) -> None:
    identity = federation.folder / SITES / "west" / "keys" / "identity.pem"
    kept = identity.rename(identity.with_name("kept"))
    try:
        create_identity(identity)
        refused = run(federation, "roc-glm", scored(3), ROC_GLM)
    finally:
        kept.replace(identity)
    status = RunFolder.open(refused.run_folder).read().status
    assert status["status"] == "refused"
    assert "north, south: west: its key has the fingerprint" in status["reason"]
    assert ", pinned is " in status["reason"]
    assert "auc" not in refused.summary


def test_a_site_without_its_file_is_named_before_training(federation: Federation) -> None:
    frames = [patients(1), patients(2).head(0), patients(3)]
    refused = run(federation, "survival", frames, SURVIVAL)
    status = RunFolder.open(refused.run_folder).read().status
    assert status["status"] == "refused"
    assert "south: no file at data-path" in status["reason"]
    assert "north" not in status["reason"]
    assert not (refused.run_folder / "model.npz").exists()


def test_who_may_not_connect_is_refused(federation: Federation, tmp_path: Path) -> None:
    """A SuperNode that nobody registered, one without a key, one that trusts another authority."""
    west = federation.folder / SITES / "west"
    kinds = ("stranger", "keyless", "misled")
    with ExitStack() as stack:
        started = {}
        for kind, port in zip(kinds, free_ports(3), strict=True):
            prepare(kind, west, tmp_path / kind)
            started[kind] = stack.enter_context(
                service(
                    kind,
                    ["/bin/sh", str(tmp_path / kind / "start.sh")],
                    environment=own_environment(tmp_path / kind, SUPERNODE_PORT=str(port)),
                    cwd=tmp_path,
                    log=tmp_path / f"{kind}.log",
                )
            )
        for one in started.values():
            assert one.process.wait(timeout=240) != 0
    said = {kind: one.log.read_text() for kind, one in started.items()}
    assert "Failed to activate SuperNode" in said["stranger"]
    assert "must be registered" in said["keyless"]
    assert "CERTIFICATE_VERIFY_FAILED" in said["misled"]
    assert online_nodes(federation.plan, federation.environment) == 3


def prepare(kind: str, west: Path, own: Path) -> None:
    """Copy a registered site's folder and spoil it."""
    shutil.copytree(west, own, ignore=shutil.ignore_patterns("flower"))
    script = own / "start.sh"
    if kind == "stranger":
        shutil.rmtree(own / "keys")
        make_site_keys("west", own / "keys")
    elif kind == "keyless":
        words = script.read_text()
        script.write_text(words.replace("--auth-supernode-private-key keys/supernode", ""))
    else:
        (own / "ca.crt").write_bytes(make_authority("other").certificate)


def rehearsal(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedapp.cli", "deploy", "rehearse", "--out", str(folder)]
    return subprocess.Popen(
        [*command, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_a_rehearsal_of_roc_glm_equals_the_in_process_run(tmp_path: Path) -> None:
    folder = tmp_path / "rehearsal"
    process = rehearsal(folder, "--task", "roc-glm", "--set", "report=false", "seed=4")
    output, _ = process.communicate(timeout=RUN_LIMIT)
    assert process.returncode == 0, output
    assert no_process_knows(folder)
    (run_folder,) = (folder / "runs").iterdir()
    assert output.splitlines()[-1] == f"run folder: {run_folder}"
    deployed = read_result(run_folder)
    assert deployed.exchanges <= 5
    settings = {"report": False, "run-dir": str(tmp_path / "here")}
    mine = simulate("roc-glm", config=settings, num_sites=3, seed=4)
    for key in ("auc", "auc-variance", "gamma-1", "deviance", "brier"):
        assert deployed.summary[key] == mine.summary[key], key
    assert {path.name for path in (folder / "logs").iterdir()} == {
        "register.log",
        "superlink.log",
        *(f"supernode-site-{place}.log" for place in range(3)),
    }


def test_ctrl_c_ends_a_rehearsal_and_is_told_in_the_run_folder(tmp_path: Path) -> None:
    """The ServerApp is then in the main thread of its process, unlike in a simulation."""
    folder = tmp_path / "rehearsal"
    process = rehearsal(folder, "--sites", "2", "--set", "survival.rounds=100000", "report=false")
    runs = folder / "runs"
    try:
        wait_for(lambda: any('"exchange": 2' in p.read_text() for p in runs.glob("*/ledger.jsonl")))
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == STOPPED, output
    assert "has been stopped (flwr stop" in output
    assert no_process_knows(folder)
    (run_folder,) = runs.iterdir()
    record = RunFolder.open(run_folder).read()
    assert record.status["status"] == "failed"
    assert "stopped from outside after" in record.status["reason"]
    assert record.ledger


def no_process_knows(folder: Path, *, seconds: float = 20.0) -> bool:
    """Whether soon no process is left that was started with this folder in its environment."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in words:
                found.append(process.name)
        if not found:
            return True
        time.sleep(0.2)
    return False


def wait_for(happened: Callable[[], bool], *, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it has not happened in time"
        time.sleep(0.2)
