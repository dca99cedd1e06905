"""A site's limits on the deployment runtime: a process a message, and a disk between runs."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedapp.site_ledger import ledger_document
from tests.runtimes import SuperLink, call, checkout, superlink, supernode

pytestmark = pytest.mark.slow


def roc_rows(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    label = np.arange(80) % 2
    return pd.DataFrame({"label": label, "score": rng.beta(2 + label, 3 - label)})


def status_of_run(link: SuperLink, app: Path, runs: Path, **config: Any) -> dict[str, Any]:
    """Run, and return the status file of the newest run folder."""
    before = set(runs.glob("*/status.json"))
    every = {"task": "roc-glm", "report": False, "run-dir": str(runs), "timeout": 120.0, **config}
    words = " ".join(f"{key}={json.dumps(value)}" for key, value in every.items())
    command = ["flwr", "run", ".", "deployed", "--stream", "--run-config", words]
    done = call(command, link.environment, cwd=app)
    new = set(runs.glob("*/status.json")) - before
    assert len(new) == 1, done.stdout
    return dict(json.loads(new.pop().read_text()))


def test_a_site_keeps_its_limits_over_runs(tmp_path: Path) -> None:
    app, runs, state = checkout(tmp_path / "app"), tmp_path / "runs", tmp_path / "state"
    with ExitStack() as stack:
        link = stack.enter_context(superlink(tmp_path / "flwr", cwd=app, simulation=False))
        for seed, name in enumerate(("north", "south")):
            path = tmp_path / f"{name}.csv"
            table = roc_rows(seed)
            node: dict[str, bool | int | float | str] = {}
            if name == "north":
                table = table.rename(columns={"label": "y", "score": "Wert"})
                node = {
                    "columns": "label=y; score=Wert",
                    "allowed_tasks": "roc-glm",
                    "min_privacy_level": 5,
                    "state_dir": str(state),
                    "max_epsilon": 1.2,
                }
            table.to_csv(path, index=False)
            log = tmp_path / f"{name}.log"
            started = supernode(
                link, log, cwd=tmp_path, site_name=name, data_path=str(path), **node
            )
            stack.enter_context(started)
        noisy = {"roc-glm.release": "noisy-histogram"}
        status = status_of_run(link, app, runs, **noisy)
        assert status["status"] == "ok", status
        document = ledger_document(state)
        assert document["epsilon"] == pytest.approx(1.0, rel=1e-6)
        assert [own["released"] for own in document["runs"]] == [1]
        status = status_of_run(link, app, runs, seed=1, **noisy)
        assert status["status"] == "refused"
        assert 'north: node config "max-epsilon" = 1.2' in status["reason"]
        status = status_of_run(link, app, runs, **noisy, **{"roc-glm.privacy-level": 4})
        assert 'roc-glm.privacy-level = 4: node config "min-privacy-level" = 5' in status["reason"]
        assert "Wert" not in status["reason"]
    assert ledger_document(state) == document
