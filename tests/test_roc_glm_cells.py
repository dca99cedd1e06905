"""With ``privacy-level-of = "cell"`` no two numbers of a site differ by fewer than q rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from fedapp.run_config import ConfigError
from fedapp.simulation import simulate
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.counts import equal_cuts
from tasks.roc_glm.cut_points import StatisticsPlaces
from tasks.roc_glm.messages import RELEASE, ReleaseReply, ReleaseRequest
from tasks.roc_glm.site_statistics import SiteStatistics, StatisticsShape
from tests import test_roc_glm_disclosure as recorded
from tests.test_roc_glm_disclosure import NAMES, Value, record, request_of

Q = 5


def crowded() -> list[pd.DataFrame]:
    """Sites with one positive between .5 and .51, and fewer than q in many a tenth."""
    positive = np.concatenate([np.linspace(0.05, 0.45, 20), [0.505], np.linspace(0.55, 0.95, 19)])
    negative = np.linspace(0.03, 0.97, 60)
    frame = pd.DataFrame(
        {"label": [1] * 40 + [0] * 60, "score": np.concatenate([positive, negative])}
    )
    return [frame] * len(NAMES)


def skewed() -> list[pd.DataFrame]:
    generator = np.random.default_rng(3)
    frames = []
    for number in (90, 150, 220, 400):
        score = generator.beta(1.5, 2.0, number)
        label = (generator.random(number) < score).astype(int)
        frames.append(pd.DataFrame({"label": label, "score": score}))
    return frames


SETTINGS: list[dict[str, Value]] = [
    {"roc-glm.cells": 10, "roc-glm.threshold": 0.51},
    {"roc-glm.cells": 50, "roc-glm.threshold": 0.33, "roc-glm.calibration-bins": 20},
    {"roc-glm.cells": 64, "roc-glm.threshold": 7.0},
]


def cumulative(statistics: SiteStatistics, counts: ReleaseReply) -> list[NDArray[Any]]:
    """Of each class, every number of rows up to some place that the reply tells."""
    table, calibration = statistics.confusion, statistics.calibration
    assert calibration is not None
    in_bins = [calibration.bin_rows - calibration.bin_positives, calibration.bin_positives]
    told = []
    for cells, bins, below in (
        (counts.negative, in_bins[0], table.true_negative),
        (counts.positive, in_bins[1], table.false_negative),
    ):
        told.append(np.concatenate([[0], np.cumsum(cells), np.cumsum(bins), below]))
    return told


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("frames", [crowded, skewed])
def test_every_difference_of_two_numbers_is_of_enough_rows_or_none(
    frames: Any, settings: dict[str, Value], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "cohort", frames)
    config = {"roc-glm.release": "binned", "roc-glm.privacy-level-of": "cell", **settings}
    run = record(tmp_path, config)
    assert run.result.summary["status"] == "ok"
    assert "at least privacy-level rows of it, or none" in run.result.summary["privacy"]
    cuts = ReleaseRequest.from_record(request_of(run, RELEASE).content).cuts
    full = RocGlmConfig.model_validate(
        {key.removeprefix("roc-glm."): value for key, value in config.items()}
    )
    places = StatisticsPlaces.of(full, cuts, is_probability=True)
    shape = StatisticsShape(1, len(places.edges) - 1)
    for _, reply in run.replies(RELEASE):
        said = ReleaseReply.from_record(reply.content)
        statistics = SiteStatistics.from_vectors(said.counts, said.sums, shape)
        assert statistics.calibration is not None
        assert statistics.calibration.suppressed == 0
        for told in cumulative(statistics, said):
            steps = np.diff(np.unique(told))
            assert len(steps)
            assert steps.min() >= Q


def test_the_alarm_rings_where_only_classes_have_enough_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "cohort", crowded)
    config: dict[str, Value] = {"roc-glm.release": "binned", **SETTINGS[0]}
    run = record(tmp_path, config)
    said = ReleaseReply.from_record(next(reply for _, reply in run.replies(RELEASE)).content)
    statistics = SiteStatistics.from_vectors(said.counts, said.sums, StatisticsShape(1, 10))
    smallest = [np.diff(np.unique(told)).min() for told in cumulative(statistics, said)]
    assert min(smallest) < Q


def test_threshold_and_bins_move_to_the_closest_cut_points_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorded, "cohort", crowded)
    config: dict[str, Value] = {"roc-glm.privacy-level-of": "cell", **SETTINGS[0]}
    with caplog.at_level("INFO", logger="flwr"):
        summary = record(tmp_path, config).result.summary
    assert summary["threshold"] == 0.5
    assert "0.5, the cut point closest to roc-glm.threshold = 0.51" in caplog.text
    everyone = pd.concat(crowded())
    above = everyone["score"] > 0.5
    assert summary["sensitivity"] == pytest.approx(above[everyone["label"] == 1].mean())


def test_places_without_merging_are_those_of_the_configuration() -> None:
    config = RocGlmConfig(threshold=0.51, calibration_bins=4)
    places = StatisticsPlaces.of(config, equal_cuts(3), is_probability=True)
    assert places.threshold == 0.51
    assert places.edges.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert not len(StatisticsPlaces.of(config, equal_cuts(3), is_probability=False).edges)


@pytest.mark.parametrize("release", ["noisy-scores", "noisy-counts", "noisy-histogram"])
def test_a_release_with_noise_has_no_cells_to_merge(release: str, tmp_path: Path) -> None:
    config: dict[str, Value] = {"roc-glm.release": release, "roc-glm.privacy-level-of": "cell"}
    with pytest.raises(ConfigError, match="privacy-level-of = 'cell' with release"):
        simulate("roc-glm", sites=skewed(), config={"run-dir": str(tmp_path), **config})
