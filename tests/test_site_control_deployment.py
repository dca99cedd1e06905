"""A site's limits on the deployment runtime: TLS, a process a message, and a disk between runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedapp.deploy.federation_folder import SITES
from fedapp.run_config import Value
from fedapp.run_folder import RunFolder
from fedapp.site_ledger import ledger_document
from tests.deployed_sites import deployed_sites

pytestmark = pytest.mark.slow

RUN_LIMIT = 240.0
EVERY: dict[str, Value] = {
    "task": "roc-glm",
    "report": False,
    "min-sites": 2,
    "timeout": 120.0,
    "roc-glm.release": "noisy-histogram",
}
LIMITS: dict[str, Value] = {
    "columns": "label=y; score=Wert",
    "allowed-tasks": "roc-glm",
    "min-privacy-level": 5,
    "max-epsilon": 1.2,
}
"""Of north, beside the `state-dir` that every site's folder has."""


def roc_rows(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    label = np.arange(80) % 2
    return pd.DataFrame({"label": label, "score": rng.beta(2 + label, 3 - label)})


def test_a_site_keeps_its_limits_over_runs(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    own = roc_rows(0).rename(columns={"label": "y", "score": "Wert"})
    frames = {"north": own, "south": roc_rows(1)}
    state = folder / SITES / "north" / "state"
    with deployed_sites(folder, frames, limits={"north": LIMITS}) as federation:

        def status(**config: Value) -> dict[str, Any]:
            """How a run ended."""
            return (
                RunFolder.open(federation.run({**EVERY, **config}, limit=RUN_LIMIT)).read().status
            )

        first = status()
        assert first["status"] == "ok", first
        document = ledger_document(state)
        assert document["epsilon"] == pytest.approx(1.0, rel=1e-6)
        assert [own["released"] for own in document["runs"]] == [1]
        second = status(seed=1)
        assert second["status"] == "refused"
        assert 'north: node config "max-epsilon" = 1.2' in second["reason"]
        assert "south" not in second["reason"], "it has no limit"
        third = status(**{"roc-glm.privacy-level": 4})
        words = 'roc-glm.privacy-level = 4: node config "min-privacy-level" = 5'
        assert words in third["reason"]
        assert "Wert" not in third["reason"]
        assert federation.dead() == []
    assert ledger_document(state) == document
    assert not (folder / SITES / "south" / "state" / "privacy-ledger.jsonl").exists()
