"""The benchmark of the PIVODL paper's figures measures, keeps, goes on and draws; tiny data."""

from __future__ import annotations

import csv
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.vertical_frames import random_frame

Main = Callable[..., int]


@pytest.fixture(scope="module")
def paper() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        folder = Path(__file__).parent.parent / "benchmarks"
        patch.setattr(sys, "path", [str(folder), *sys.path])
        yield importlib.import_module("pivodl_paper")


@pytest.fixture(scope="module")
def run(paper: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Main:
    """Run the benchmark into a folder, with one point a figure."""
    folder = tmp_path_factory.mktemp("data")
    for file, label, objective in (
        ("credit-default.zip", "class", "binary:logistic"),
        ("appliances-energy.zip", "Appliances", "reg:squarederror"),
    ):
        frame = random_frame(0, rows=150, objective=objective)
        frame = frame.rename(columns={"id": "ID", "label": label})
        if label != "class":
            frame = frame.drop(columns="ID")
        frame.to_csv(folder / file, index=False)
    plan = replace(
        paper.QUICK,
        data=("credit",),
        values={"clients": (2,), "depth": (1,), "trees": (1,), "epsilon": (10.0,)},
        clients=3,
        depth=1,
        trees=1,
        seeds=1,
        rows=0,
    )

    def main(out: Path, *more: str, **changes: Any) -> int:
        shared = ["--data-dir", str(folder), "--out", str(out), "--jobs", "1", "--quick"]
        return int(paper.main([*shared, *more], plan=replace(plan, **changes)))

    return main


@pytest.fixture(scope="module")
def made(run: Main, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All figures, made once; not to be written to."""
    out = tmp_path_factory.mktemp("made")
    assert run(out) == 0
    return out


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    """What was measured, to go on from."""
    shutil.copy(made / "results.jsonl", tmp_path)
    return tmp_path


def read_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_figure_and_the_table_are_written(paper: ModuleType, made: Path) -> None:
    for name in paper.NAMES:
        assert (made / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    central = {"central XGBoost", "trivial baseline"}
    for figure in paper.FIGURES:
        rows = read_csv(made / f"{figure.name}.csv")
        assert tuple(rows[0]) == paper.COLUMNS
        ours = {"no encryption", "Paillier"}
        if figure.measure == "quality":
            ours = {"no noise", "partial DP"}
        assert {row["series"] for row in rows} == ours | central
        assert {row["axis"] for row in rows} == {figure.axis}
    guesses = read_csv(made / "table-3.csv")
    assert tuple(guesses[0]) == paper.TABLE_COLUMNS
    expected = {("none", 0.0), ("exact", 10.0), ("paper", 10.0)}
    assert {(row["noise"], float(row["epsilon"])) for row in guesses} == expected
    assert len(read_csv(made / "runs.csv")) == len(read_lines(made))


def test_numbers_are_of_the_runs_that_they_are_said_to_be_of(made: Path) -> None:
    found = {
        (row["series"], row["measure"]): row
        for name in ("figure-10", "figure-13")
        for row in read_csv(made / f"{name}.csv")
    }
    lines = [line for line in read_lines(made) if line["settings"].get("clients") == 2]
    plain, encrypted = (
        next(line for line in lines if line["settings"]["encryption"] == name)
        for name in ("none", "paillier")
    )
    assert plain["settings"]["epsilon"] == 0
    assert plain["quality"] == encrypted["quality"] > 0.5
    assert plain["same-trees"]
    assert (plain["ciphertexts"], encrypted["ciphertexts"] > 0) == (0, True)
    for series, line in (("no encryption", plain), ("Paillier", encrypted)):
        megabytes = float(found[series, "megabytes"]["mean"])
        assert megabytes == pytest.approx(line["bytes"] / 1e6)
        assert float(found[series, "exchanges"]["mean"]) == line["exchanges"]
        assert float(found[series, "cpu-seconds"]["mean"]) == line["cpu-seconds"]
        assert line["cpu-seconds"] > line["crypto-seconds"]
    assert found["Paillier", "cpu-seconds"]["key-bits"] == "1024"
    assert encrypted["bytes"] > plain["bytes"]


def test_a_rerun_measures_nothing(run: Main, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(importlib.import_module("pivodl_runs"), "measure", refuse)
    before = (out / "results.jsonl").read_text()
    assert run(out, "--only", "figure-6,table-3") == 0
    assert (out / "figure-6.png").is_file()
    assert not (out / "figure-7.png").exists()
    assert (out / "results.jsonl").read_text() == before
    with pytest.raises(AssertionError, match="measured again"):
        run(out, "--only", "figure-6", depth=2)


def test_a_line_that_was_cut_off_is_measured_again(run: Main, out: Path) -> None:
    path = out / "results.jsonl"
    *others, line = [line for line in read_lines(out) if line["settings"].get("epsilon")]
    kept = [json.dumps(each) + "\n" for each in read_lines(out) if each != line]
    path.write_text("".join(kept) + json.dumps(line)[:-20])
    assert run(out, "--only", "table-3") == 0
    again = read_lines(out)
    assert len(again) == len(kept) + 1
    assert others[-1]["key"] != again[-1]["key"] == line["key"]
    assert again[-1]["quality"] == line["quality"]  # noise is drawn from the seed
    assert again[-1]["attacks"] == line["attacks"]


def test_what_must_hold_is_checked(
    run: Main, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = read_lines(out)
    for line in lines:
        if line["settings"].get("encryption") == "none":
            line["same-trees"] = False
            line["quality"] -= 0.01
    (out / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run(out, "--only", "figure-10") == 1
    said = capsys.readouterr().out
    for fault in ("other trees than the central fit", "from XGBoost on test rows", " plain"):
        assert fault in said


def test_a_regression_has_no_labels_to_guess(run: Main, tmp_path: Path) -> None:
    assert run(tmp_path, "--only", "figure-9,table-3", data=("energy",)) == 0
    rows = read_csv(tmp_path / "figure-9.csv")
    rmse = {row["series"]: float(row["mean"]) for row in rows}
    assert {row["measure"] for row in rows} == {"rmse"}
    assert rmse["no noise"] == pytest.approx(rmse["central XGBoost"], abs=0.1)
    assert rmse["no noise"] < rmse["trivial baseline"]
    assert not (tmp_path / "table-3.csv").exists()


def test_the_whole_asks_for_what_the_paper_varies(paper: ModuleType) -> None:
    works = paper.work_of(paper.NAMES, paper.Plan())
    runs = [work for work in works if isinstance(work, paper.Run)]
    assert len(set(works)) == len(works)
    for data in ("credit", "bank", "energy"):
        for seed in range(5):
            chosen = [each for each in runs if (each.data, each.seed) == (data, seed)]
            assert {each.clients for each in chosen} == {2, 4, 6, 8, 10}
            assert {each.depth for each in chosen} == {each.trees for each in chosen}
            assert {each.depth for each in chosen} == {2, 3, 4, 5, 6}
            assert {each.epsilon for each in chosen} == {0, 2, 4, 6, 8, 10}
            encrypted = [each for each in chosen if each.encryption == "paillier"]
            assert len(encrypted) == (13 if seed == 0 else 0)


def test_figures_that_do_not_exist_are_refused(
    paper: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = ["--data-dir", str(tmp_path), "--out", str(tmp_path)]
    for wrong, said in (
        (["--only", "figure-5,table-3"], "figure-5: allowed are figure-6"),
        (["--jobs", "0"], "--jobs 0: must be at least 1"),
    ):
        with pytest.raises(SystemExit):
            paper.main([*shared, *wrong])
        assert said in capsys.readouterr().err
