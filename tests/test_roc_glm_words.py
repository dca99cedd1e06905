"""What a ROC-GLM run says of itself: ledger, privacy statement, cautions about noise, names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedapp.report import roc_glm as report
from fedapp.report import roc_glm_words
from fedapp.roc_glm_run import model_text
from fedapp.run_folder import RunFolder
from fedapp.run_record import RunRecord
from fedapp.simulation import SimulationResult, simulate
from strategies.membership import Refused
from tasks.roc_glm.calibration import bin_edges
from tasks.roc_glm.noisy_statistics import ClassStatistics, calibration_of
from tasks.roc_glm.rows import LabelCoding, coding_faults, read_rows
from tasks.site.faults import SiteFault
from tests.test_roc_glm_disclosure import NAMES, Value, cohort
from tests.test_roc_glm_oracles import cells_of_many_rows, with_features


def run(directory: Path, **settings: Value) -> SimulationResult:
    config: dict[str, Value] = {"run-dir": str(directory), "report": False}
    config |= {f"roc-glm.{key.replace('_', '-')}": value for key, value in settings.items()}
    frames = with_features() if settings.get("estimate_sensitivity") else cohort()
    if settings.get("privacy_level_of"):
        frames = cells_of_many_rows()
    return simulate("roc-glm", sites=frames, config=config, site_names=NAMES)


def record_of(result: SimulationResult) -> RunRecord:
    return RunFolder(result.run_folder).read()


def introductions(result: SimulationResult) -> str:
    said = {
        row["reveals"]
        for row in result.ledger
        if row["step"] == "hello" and row["sender"] != "server"
    }
    (words,) = said
    return str(words)


# The ledger and the statement --------------------------------------------------------------------


def test_the_ledger_names_every_fact_of_the_introduction_where_it_travels(tmp_path: Path) -> None:
    plain = introductions(run(tmp_path, release="binned"))
    assert "cut points" not in plain
    assert "sensitivity" not in plain
    by_cell = run(tmp_path, release="binned", privacy_level_of="cell")
    assert "which of the cut points keep q rows" in introductions(by_cell)
    estimated = run(tmp_path, release="noisy-counts", estimate_sensitivity=True)
    words = introductions(estimated)
    assert all(word in words for word in ("sensitivity", "distance", "pairs"))
    assert "which cut points leave it so is told in clear" in by_cell.summary["privacy"]
    used = estimated.summary["sensitivity-used"]
    assert f"sensitivity = {used!r}" in estimated.summary["privacy"]


def test_a_sum_is_not_said_to_hide_what_one_site_alone_has(tmp_path: Path) -> None:
    result = run(tmp_path, mode="fisher")
    masked = [row for row in result.ledger if row["step"] in ("release", "fisher")]
    words = {str(row["reveals"]) for row in masked if row["sender"] != "server"}
    assert len(words) == 2
    for said in (*words, result.summary["privacy"]):
        assert "nothing of" not in said
        assert "where one site alone has" in said


# Noise -------------------------------------------------------------------------------------------


def test_too_much_noise_and_noise_left_in_are_flagged(tmp_path: Path) -> None:
    large = run(tmp_path, release="noisy-scores")
    assert large.summary["noise-scale"] > 0.25
    assert large.summary["noise-too-large"] is True
    biased = run(tmp_path, release="noisy-scores", debias=False, sensitivity=0.01)
    assert biased.summary["biased"] is True
    assert "noise-too-large" not in biased.summary
    fine = run(tmp_path, release="noisy-scores", sensitivity=0.01)
    assert not {"noise-too-large", "biased"} & set(fine.summary)
    for result, caution in ((large, "beyond what noisy scores can bear"), (biased, "biased")):
        record = record_of(result)
        assert caution in str(report.notices(record))
        (words,) = roc_glm_words.test_words(record)
        assert words.startswith("No test of the AUC: ")
        assert not {"p-value", "rejected"} & set(result.summary)
        assert caution in words
        assert roc_glm_words.spent_words(record).endswith("exact sums not covered")
    record = record_of(fine)
    assert report.notices(record) == []
    assert roc_glm_words.test_words(record)[0].startswith("Test of H0")


@pytest.mark.parametrize("release", ["noisy-counts", "noisy-histogram"])
def test_noise_far_above_the_rows_is_flagged(release: str, tmp_path: Path) -> None:
    large = run(tmp_path, release=release, epsilon=1e-3)
    assert large.summary["noise-too-large"] is True
    assert large.summary["no-test"].startswith("noise-too-large: ")
    assert "rejected" not in large.summary
    fine = run(tmp_path, release=release, epsilon=5.0)
    assert "noise-too-large" not in fine.summary
    assert "p-value" in fine.summary


@pytest.mark.parametrize("release", ["noisy-scores", "noisy-counts", "noisy-histogram"])
def test_there_is_no_calibration_slope_under_noise(release: str, tmp_path: Path) -> None:
    result = run(tmp_path, release=release, sensitivity=0.05)
    assert not {"calibration-slope", "calibration-slope-error"} & set(result.summary)
    assert (
        "No calibration slope under noise" in roc_glm_words.calibration_words(record_of(result))[-1]
    )


def test_the_calibration_under_noise_is_marked_and_within_its_bins(tmp_path: Path) -> None:
    result = run(tmp_path, release="noisy-counts", statistics_epsilon=0.5)
    calibration = json.loads((result.run_folder / "roc.json").read_text())["calibration"]
    assert calibration["noisy"] is True
    for part in calibration["bins"]:
        if part["n"]:
            assert part["lower"] - 1e-12 <= part["mean-predicted"] <= part["upper"] + 1e-12
    clear = run(tmp_path, release="binned")
    calibration = json.loads((clear.run_folder / "roc.json").read_text())["calibration"]
    assert "noisy" not in calibration


def test_noisy_bin_means_are_held_in_their_bins() -> None:
    generator = np.random.default_rng(0)
    one, other = (
        ClassStatistics(3.0, generator.normal(5, 5, 10), generator.normal(5, 20, 10), np.array([4]))
        for _ in range(2)
    )
    sums = calibration_of(one, other, num_negative=50, num_positive=50)
    edges = bin_edges(10)
    filled = sums.bin_rows > 0
    means = sums.bin_scores[filled] / sums.bin_rows[filled]
    assert (means >= edges[:-1][filled] - 1e-12).all()
    assert (means <= edges[1:][filled] + 1e-12).all()


# Inputs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["array", "list"])
def test_complex_scores_are_refused(kind: str) -> None:
    scores = np.array([0.1 + 0.7j, 0.4])
    with pytest.raises(SiteFault, match="complex numbers"):
        read_rows([0, 1], scores if kind == "array" else scores.tolist(), positive_label="1")


@pytest.mark.parametrize("content", ["", " \n"])
def test_an_empty_model_file_is_a_fault_of_the_file(content: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(content)
    with pytest.raises(Refused, match="the file is empty"):
        model_text(str(path))


def test_many_sites_are_not_all_named() -> None:
    codings = {f"site-{at}": LabelCoding("1", "no" if at % 2 else "0") for at in range(200)}
    (fault,) = coding_faults(codings)
    assert "site-0, site-2, site-4 and 97 more / site-1, site-3, site-5 and 97 more" in fault
    assert len(fault) < 200
    each = {f"site-{at}": LabelCoding("1", f"other-{at}") for at in range(200)}
    assert "195 more spellings" in coding_faults(each)[0]
