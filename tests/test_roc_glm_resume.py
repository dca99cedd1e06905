"""ROC-GLM runs that were interrupted between rounds of Fisher scoring, and those that have none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedapp import run_config
from fedapp.checkpoint import CHECKPOINT, read_checkpoint
from fedapp.run_folder import RunFolder
from fedapp.simulation import SimulationResult, simulate
from strategies.roc_glm_fisher import RocGlmFisher
from tasks.roc_glm import client
from tasks.roc_glm.counts_messages import RocGlmFisherRequest

CONFIG: dict[str, Any] = {"roc-glm.mode": "fisher", "roc-glm.cells": 20}


class Killed(BaseException):
    """Stands for a process that ends."""


def rows(seed: int, number: int = 90) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, number)
    score = 1 / (1 + np.exp(-rng.normal(label - 0.5, 1)))
    return pd.DataFrame({"label": label, "score": score})


SITES = [rows(seed) for seed in range(4)]


def run(base: Path, *, sites: list[pd.DataFrame] | None = None, **more: Any) -> SimulationResult:
    config = {**CONFIG, "run-dir": str(base), **more}
    return simulate("roc-glm", sites=SITES if sites is None else sites, config=config, seed=3)


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    def before(base: Path, number: int, **more: Any) -> Path:
        """Run until round `number` has been answered, and stop before it counts."""
        aggregate = RocGlmFisher.aggregate_train

        def stop(self: RocGlmFisher, server_round: int, replies: Any) -> Any:
            if server_round == number:
                raise Killed
            return aggregate(self, server_round, replies)

        with monkeypatch.context() as patch:
            patch.setattr(RocGlmFisher, "aggregate_train", stop)
            with pytest.raises(Killed):
                run(base, **more)
        return max(base.iterdir(), key=lambda path: (path / "figures").stat().st_mtime_ns)

    return before


def assert_equal_runs(ours: SimulationResult, theirs: SimulationResult) -> None:
    own = {"seconds", "exchanges", "bytes", "roster-fingerprint"}
    assert ours.summary["status"] == "ok", ours.summary["reason"]
    for key in theirs.summary.keys() - own:
        assert ours.summary[key] == theirs.summary[key], key
    curves = [(each.run_folder / "roc.json").read_text() for each in (ours, theirs)]
    assert curves[0] == curves[1]


@pytest.mark.parametrize("release", ["secure-counts", "binned"])
@pytest.mark.parametrize("number", [2, 0])
def test_a_resumed_run_is_equal_to_an_uninterrupted_one(
    tmp_path: Path, interrupt: Callable[..., Path], release: str, number: int
) -> None:
    """Also under masks, whose keys are others in every run."""
    more = {"roc-glm.release": release}
    whole = run(tmp_path, **more)
    number = number or whole.summary["iterations"]  # 0: the last
    folder = interrupt(tmp_path, number, **more)
    assert read_checkpoint(folder).round == number - 1
    result = run(tmp_path, resume=str(folder), **more)
    assert_equal_runs(result, whole)
    assert "calibration-slope" in result.summary, "its rounds go on, too"
    # hello, release, and the rounds that were left
    assert result.exchanges == 2 + whole.summary["iterations"] - (number - 1)
    assert result.summary["resumed-after-round"] == number - 1
    assert result.summary["exchanges-before"] == 2 + number
    assert not (result.run_folder / CHECKPOINT).exists()


def test_a_site_that_was_lost_in_mid_run_can_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without resume the run would have to begin anew: the site's rows are in the release."""
    whole = run(tmp_path)
    answer = client.fisher

    def gone(message: Any, site: Any, context: Any) -> Any:
        number = RocGlmFisherRequest.from_record(message.content).server_round
        if site.name == "site-2" and number == 3:
            raise RuntimeError
        return answer(message, site, context)

    with monkeypatch.context() as patch:
        patch.setattr(client, "fisher", gone)
        broken = run(tmp_path)
    assert broken.summary["status"] == "failed"
    result = run(tmp_path, resume=str(broken.run_folder))
    assert_equal_runs(result, whole)


def test_other_rows_and_missing_sites_are_refused(
    tmp_path: Path, interrupt: Callable[..., Path]
) -> None:
    folder = interrupt(tmp_path, 3)
    changed = SITES[1].copy()
    changed.loc[changed.label == 1, "score"] **= 2
    told = run(tmp_path, sites=[SITES[0], changed, *SITES[2:]], resume=str(folder)).summary
    assert told["status"] == "refused"
    assert "the sites do not release what they released" in told["reason"]
    told = run(tmp_path, sites=SITES[:3], resume=str(folder), **{"num-sites": 4}).summary
    assert told["status"] == "refused"
    assert not (folder / "continued.json").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"roc-glm.mode": "one-shot"}, "'one-shot' is one exchange after the introduction"),
        (
            {"roc-glm.release": "noisy-scores"},
            "noise would be drawn and its budget spent again",
        ),
        ({"roc-glm.release": "noisy-counts"}, "is made once in a run"),
    ],
)
def test_what_has_no_step_to_go_on_from_is_refused_in_clear_words(
    tmp_path: Path, more: dict[str, Any], words: str
) -> None:
    folder = RunFolder.create(tmp_path, task="roc-glm")
    folder.write_config(
        run_config.read({"task": "roc-glm", **CONFIG, **more}).flat(), seed=0, runtime="in-process"
    )
    folder.finish("failed", "stopped")
    told = run(tmp_path, resume=str(folder.path), **more).summary
    assert told["status"] == "refused"
    assert words in told["reason"]
    assert "exchanges" not in told, "nobody was asked for anything"


def test_no_checkpoint_is_left_by_a_release_with_noise(tmp_path: Path) -> None:
    result = run(tmp_path, **{"roc-glm.release": "noisy-scores"})
    assert result.summary["iterations"] > 1
    assert not (result.run_folder / CHECKPOINT).exists()
