"""The benchmarks of partial differential privacy and of attacks measure what they say."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.vertical_frames import random_frame


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent.parent / "benchmarks"), *sys.path])
    return (
        importlib.import_module("vertical_partial_dp"),
        importlib.import_module("vertical_attack"),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    frame = random_frame(0, rows=300).rename(columns={"id": "ID", "label": "class"})
    frame["text"] = np.where(frame["a"] > 0, "b", "a")
    frame.to_csv(tmp_path / "credit-default.zip", index=False)
    return tmp_path


def test_both_train_attack_and_write_what_they_find(
    modules: tuple[ModuleType, ModuleType], folder: Path
) -> None:
    shared = ["--data-dir", str(folder), "--data", "credit", "--quick", "--depth", "2"]
    shared += ["--trees", "2", "--json", str(folder / "out.json")]
    partial, attack = modules
    partial.main(shared)
    written = json.loads((folder / "out.json").read_text())
    without, noisy = written["runs"]
    assert (without["epsilon"], noisy["epsilon"]) == (0.0, 10.0)
    assert without["sigma"] == 0.0
    assert noisy["sigma"] > 0.1
    assert without["quality"] == pytest.approx(without["in_training"])
    assert without["quality"] > 0.55
    assert attack.main(shared) == 0
    written = json.loads((folder / "out.json").read_text())
    auc = {(row["epsilon"], row["attack"]): row["auc"] for row in written["table"]}
    assert auc[0.0, "own-data"] == auc[4.0, "own-data"]
    assert auc[0.0, "mean-leaf-weights"] > 0.55


def test_a_loss_above_the_bound_fails(modules: tuple[ModuleType, ModuleType]) -> None:
    partial, attack = modules

    def outcomes(data: str, without: float, noisy: float) -> list[object]:
        return [
            partial.Outcome(data, 0, epsilon, value, value, 0.1, 2.0)
            for epsilon, value in ((0.0, without), (2.0, noisy))
        ]

    for data, without, noisy, holds in (
        ("credit", 0.82, 0.811, True),
        ("credit", 0.82, 0.809, False),
        ("bank", 0.82, 0.84, True),
        ("energy", 100.0, 101.9, True),
        ("energy", 100.0, 102.1, False),
    ):
        assert (not partial.faults(partial.table(outcomes(data, without, noisy)))) == holds
    rows = [
        {"data": "credit", "epsilon": epsilon, "attack": "leaf-weights", "auc": auc}
        for epsilon, auc in ((0.0, 0.7), (4.0, 0.45), (10.0, 0.2))
    ]
    assert attack.faults(rows) == ["credit, epsilon 10: AUC 0.200, and 0.700 without noise"]


def test_an_attack_that_the_first_run_does_not_allow_is_in_the_table(
    modules: tuple[ModuleType, ModuleType],
) -> None:
    _, attack = modules

    def run(seed: int, **auc: float) -> dict[str, object]:
        attacks = {
            name.replace("_", "-"): {"mean": {**dict.fromkeys(attack.FIGURES, 0.25), "auc": value}}
            for name, value in auc.items()
        }
        return {"data": "bank", "seed": seed, "epsilon": 4.0, "attacks": attacks}

    runs = [
        run(0, structure=0.6),
        run(1, structure=0.7, leaf_weights=0.5),
        run(2, structure=0.8, leaf_weights=0.6),
    ]
    rows = {row["attack"]: row for row in attack.table(runs)}
    assert {name: row["runs"] for name, row in rows.items()} == {"structure": 3, "leaf-weights": 2}
    assert rows["leaf-weights"]["auc"] == pytest.approx(0.55)
    assert rows["leaf-weights"]["accuracy"] == 0.25
