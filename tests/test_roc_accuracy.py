"""The accuracy table on the simulation of Schalk et al., smaller than in the benchmark."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from roc_glm_simulation import (
    accuracy_table,
    by_auc_bin,
    draw_grid,
    grid_cell,
    write_table,
)
from roc_glm_study import (
    NOISY,
    draw_document,
    draw_fixed_auc,
    secure_counts,
    without_noise,
)


def test_every_row_of_the_accuracy_table_is_met() -> None:
    table = accuracy_table(datasets=800, runs=250, seed=0)
    assert len(table) == 11
    missed = [row for row in table if row["met"] != "True"]
    assert missed == []


def test_data_are_those_of_the_document() -> None:
    study = draw_document(200, np.random.default_rng(0))
    number = study.num_negative + study.num_positive
    assert number.min() >= 100
    assert number.max() <= 2500
    share = study.num_positive / number
    assert ((share >= 0.1) & (share <= 0.9)).all()
    auc = without_noise(study).auc
    assert auc.min() < 0.55
    assert auc.max() > 0.95


def test_true_auc_of_the_fixed_scheme() -> None:
    study = draw_fixed_auc(400, 1000, 0.8, np.random.default_rng(0))
    auc = without_noise(study).auc
    assert auc.mean() == pytest.approx(0.8, abs=4 * auc.std() / 20)


def test_grid_cell_table_and_figure(tmp_path: Path) -> None:
    study = draw_document(40, np.random.default_rng(1))
    exact = without_noise(study)
    rows = by_auc_bin({"release": "secure-counts"}, secure_counts(study), exact)
    rows += grid_cell(study, exact, (0.05, 0.3, 0.1), 0)
    rows += grid_cell(study, exact, (0.09, 0.3, 0.1), 0)
    for name in (*NOISY, "secure-counts"):
        counted = [row["datasets"] for row in rows if row["release"] == name]
        expected = (exact.auc >= 0.5).sum() * (1 if name == "secure-counts" else 2)
        assert sum(counted) == expected
    write_table(rows, tmp_path / "grid.csv")
    with (tmp_path / "grid.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    draw_grid(rows, tmp_path / "grid.png")
    assert (tmp_path / "grid.png").stat().st_size > 10_000
