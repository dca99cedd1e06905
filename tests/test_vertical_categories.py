"""Columns of text: how they become features, at whom their categories stay, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost

from fedapp.cli import main
from fedapp.run_config import defaults
from fedapp.run_config import read as read_config
from fedapp.run_folder import RunFolder
from fedapp.simulation import SimulationResult, simulate
from fedapp.vertical_party import prepare_vertical_site
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.categorical import ColumnCoding, TextCodings, parse_codings
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.model_part import ModelPart
from tasks.vertical_xgboost.rows import PartyTable, read_table
from tests.vertical_frames import cut, random_frame
from tests.vertical_runs import TASK, assert_same, bytes_of, central_fit, record, run

SMALL: dict[str, Any] = {"max_depth": 3, "num_trees": 3, "max_bin": 16}
GRADES = ["poor", "fair", "good", "splendid"]


def text_frame(rows: int = 200) -> pd.DataFrame:
    """Columns of text that matter, with gaps, and labels by them."""
    frame = random_frame(8, rows=rows).drop(columns=["equal", "mirrored"])
    random = np.random.default_rng(4)
    grade, job = random.integers(0, 4, rows), random.integers(0, 3, rows)
    frame["grade"] = np.array(GRADES, dtype=object)[grade]
    frame["job"] = np.array(["clerk", "admin", "nurse [night] <x"], dtype=object)[job]
    frame.loc[random.random(rows) < 0.15, "job"] = None
    signal = frame["a"] + (grade == 2) * 2.0 - (job == 1) * 1.5
    frame["label"] = (signal > signal.median()).astype(int)
    return frame


def frames_of(rows: int = 200) -> list[pd.DataFrame]:
    return cut(text_frame(rows), parties=3, labels="even", interleaved=True)


def table_of(codings: TextCodings | None = None, **columns: Sequence[Any]) -> PartyTable:
    rows = len(next(iter(columns.values())))
    frame = pd.DataFrame({"id": range(rows), **columns, "label": [0, 1] * (rows // 2)})
    config = VerticalXGBoostConfig(test_fraction=0.0)
    return read_table(
        frame, id_column="id", label_column="label", config=config, seed=0, codings=codings
    )


# Declarations ---------------------------------------------------------------------------------


def test_declarations_are_read() -> None:
    read = parse_codings(" grade = I<II< III; arm=one-hot;b=x, y ; sorted", default="refuse")
    assert read.default == "sorted"
    assert read.of("grade") == ColumnCoding("sorted", ("I", "II", "III"))
    assert read.of("arm") == ColumnCoding("one-hot")
    assert read.of("b") == ColumnCoding("one-hot", ("x", "y"))
    assert read.of("other") == ColumnCoding("sorted")
    assert parse_codings("", default="one-hot").of("any") == ColumnCoding("one-hot")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ordered", "entry 1: must be refuse, sorted, one-hot"),
        ("sorted; =a<b", "entry 2: must be"),
        ("x=a", "entry 1: must be refuse, sorted, one-hot, or two categories"),
        ("x=a<b,c", 'either "<" or ","'),
        ("x=a<b<a", "name each category once"),
        ("x=a<b; x=one-hot", "entry 2: declares a column again"),
        ("x=" + ",".join(map(str, range(65))), "65 categories; allowed are 64"),
    ],
)
def test_bad_declarations_are_told_by_position(text: str, words: str) -> None:
    with pytest.raises(ValueError, match="entry") as caught:
        parse_codings(text, default="refuse")
    assert words in str(caught.value)


# Features -------------------------------------------------------------------------------------


def test_sorted_text_is_its_place_and_gaps_are_missing() -> None:
    table = table_of(TextCodings("sorted"), x=["b", " a", None, "c "], y=[1, 2, 3, 4])
    assert table.feature_names == ("x", "y")
    assert table.features[:, 0].tolist()[:2] == [1.0, 0.0]
    assert np.isnan(table.features[2, 0])
    assert table.features[3, 0] == 2.0
    assert table.categories[0].names == ("a", "b", "c")


def test_one_hot_text_is_a_feature_a_category() -> None:
    table = table_of(TextCodings("one-hot"), x=["b", "a", "", "b"], y=[1, 2, 3, 4])
    assert table.feature_names == ("x=a", "x=b", "y")
    expected = [[0, 1], [1, 0], [np.nan, np.nan], [0, 1]]
    assert np.array_equal(table.features[:, :2], expected, equal_nan=True)


def test_a_declared_order_wins_and_holds_for_numbers_too() -> None:
    codings = parse_codings("x=low<mid<high; n=3<1<2; k=one-hot; s=sorted", default="one-hot")
    table = table_of(codings, x=["high", "low"], n=[1.0, 3], k=[7, 8], s=[20, 3])
    assert table.feature_names == ("x", "n", "k=7", "k=8", "s")
    assert table.features.tolist() == [[2, 1, 1, 0, 20], [0, 0, 0, 1, 3]]


def test_a_category_of_evaluation_rows_alone_is_missing() -> None:
    frame = pd.DataFrame({"id": range(20), "x": ["a", "b"] * 10, "label": [0, 1] * 10})
    config = VerticalXGBoostConfig(test_fraction=0.1, categorical="sorted")
    how: dict[str, Any] = {"id_column": "id", "label_column": "label", "config": config}
    flags = read_table(frame, seed=0, **how).is_evaluation
    ids = np.array(read_table(frame, seed=0, **how).ids, dtype=int)
    frame.loc[ids[flags][0], "x"] = "only here"
    table = read_table(frame, seed=0, **how)
    assert table.categories[0].names == ("a", "b")
    assert table.unknown == {"x": 1}
    assert np.isnan(table.features[:, 0]).tolist() == [
        bool(flag) and number == ids[flags][0] for flag, number in zip(flags, ids, strict=True)
    ]


@pytest.mark.parametrize(
    ("codings", "column", "words"),
    [
        (TextCodings(), ["a secret", "b"], "1 of 1 features are not numbers (feature 1)"),
        (TextCodings("sorted"), [["a"], "secret"], "1 of 1 features are not numbers"),
        (TextCodings("sorted"), ["\ud800 secret", "b"], "1 of 1 features are not numbers"),
        (TextCodings("one-hot"), ["secret", 10**400], "1 of 1 features are not numbers"),
        (TextCodings("sorted"), [f"secret{n}" for n in range(256)], "256 different values"),
        (TextCodings("one-hot"), [f"secret{n}" for n in range(66)], "'one-hot' allows 64"),
        (
            TextCodings("refuse", {"x": ColumnCoding("sorted", ("a", "b"))}),
            ["a", "secret"],
            "feature 1: 1 rows have a value that is not declared",
        ),
        (
            TextCodings("sorted", {"secret": ColumnCoding("one-hot")}),
            ["a", "b"],
            "1 of 1 columns that it names are no features",
        ),
    ],
)
def test_what_cannot_be_coded_is_refused_without_a_value(
    codings: TextCodings, column: list[Any], words: str
) -> None:
    with pytest.raises(SiteFault) as caught:
        table_of(codings, x=column)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_feature_named_as_a_category_is_refused() -> None:
    with pytest.raises(SiteFault, match="two features have the same name"):
        table_of(TextCodings("one-hot"), **{"x": ["a", "b"], "x=a": [1, 2]})


# Runs -----------------------------------------------------------------------------------------


def by_pandas(frame: pd.DataFrame, coding: str, evaluates: set[str]) -> pd.DataFrame:
    """The same features by pandas, categories of training rows alone."""
    found = frame[["id"]].copy()
    training = ~frame["id"].astype(str).isin(evaluates)
    for name in frame.columns[1:]:
        if name not in ("grade", "job"):
            found[name] = frame[name]
            continue
        cells = pd.Categorical(frame[name], categories=sorted(set(frame[name][training].dropna())))
        gaps = cells.isna()
        if coding == "sorted":
            found[name] = np.where(gaps, np.nan, cells.codes)
        else:
            dummies = pd.get_dummies(pd.Series(cells), prefix=name, prefix_sep="=", dtype=float)
            dummies[gaps] = np.nan
            found = found.join(dummies.set_axis(found.index))
    return found


@pytest.mark.parametrize("coding", ["sorted", "one-hot"])
@pytest.mark.parametrize("aggregator", ["server", "source"])
def test_trees_are_those_of_a_table_coded_by_hand(
    coding: str, aggregator: str, tmp_path: Path
) -> None:
    frames = frames_of()
    keys: dict[str, Any] = {**SMALL, "aggregator": aggregator}
    result = run(tmp_path, frames, categorical=coding, **keys)
    central = central_fit(frames, categorical=coding, **keys)
    assert_same(result, central)
    table = central.tables["site-0"]
    ids = np.array(table.ids)
    coded = [by_pandas(frame, coding, set(ids[table.is_evaluation])) for frame in frames]
    assert_same(result, central_fit(coded, **keys))
    used = {
        part.feature_names[record.column].partition("=")[0]
        for part in (
            ModelPart.load(result.run_folder / "parties" / f"site-{at}.json") for at in range(3)
        )
        for record in part.lookup.records
    }
    assert {"grade", "job"} <= used


def test_aligned_rows_have_categories_of_their_own(tmp_path: Path) -> None:
    """As if the tables had been cut by hand: no category of a row that is not common."""
    frames = frames_of()
    owner = next(at for at, frame in enumerate(frames) if "grade" in frame.columns)
    extra = frames[owner].iloc[:3].assign(id=[1, 2, 3], grade="nowhere else", label=np.nan)
    longer = [*frames]
    longer[owner] = pd.concat([frames[owner], extra], ignore_index=True)
    keys: dict[str, Any] = {**SMALL, "categorical": "one-hot"}
    result = run(tmp_path, longer, alignment="hashed", **keys)
    assert_same(result, central_fit(frames, **keys))
    part = ModelPart.load(result.run_folder / "parties" / f"site-{owner}.json")
    assert "grade=nowhere else" not in part.feature_names


def test_categories_stay_at_the_party(tmp_path: Path) -> None:
    """No name of a column and no category in any message, nor in anything sealed."""
    made = record(tmp_path, frames_of(), categorical="one-hot", **SMALL)
    assert made.result.summary["status"] == "ok"
    sent = [b"\n".join(bytes_of(each).values()) for pair in made.messages for each in pair]
    sent += [payload for *_, payload in made.sealed]
    for secret in (b"grade", b"splendid", b"nurse"):
        assert not any(secret in each for each in sent)


def test_refused_by_default(tmp_path: Path) -> None:
    result = run(tmp_path, frames_of(), **SMALL)
    assert result.summary["status"] == "refused"
    assert "vertical-xgboost.categorical" in str(result.summary["reason"])
    assert "splendid" not in str(result.summary["reason"])


# New rows -------------------------------------------------------------------------------------


def predict(directory: Path, trained: SimulationResult, frames: list[Any]) -> pd.DataFrame:
    config: dict[str, Any] = {
        "run-dir": str(directory),
        f"{TASK}.mode": "predict",
        f"{TASK}.model": str(trained.run_folder),
        f"{TASK}.prediction": "routed",
        f"{TASK}.asker": "site-1",
    }
    result = simulate(TASK, sites=frames, config=config)
    assert result.predictions is not None, result.summary.get("reason")
    return result.predictions


@pytest.mark.parametrize("coding", ["sorted", "one-hot"])
def test_new_rows_are_coded_as_in_the_training_and_unknown_text_is_missing(
    coding: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frames = frames_of()
    trained = run(tmp_path, frames, categorical=coding, **SMALL)
    assert trained.predictions is not None
    few = [frame.sort_values("id").iloc[:40] for frame in frames]
    again = predict(tmp_path, trained, few)
    known = trained.predictions.set_index("id")["margin"]
    assert again["margin"].to_numpy() == pytest.approx(known[again["id"]].to_numpy(), abs=1e-9)
    odd = [frame.copy() for frame in few]
    gone = [frame.copy() for frame in few]
    at = next(at for at, frame in enumerate(frames) if "grade" in frame.columns)
    odd[at].iloc[:30, list(odd[at].columns).index("grade")] = "of another world"
    gone[at].iloc[:30, list(gone[at].columns).index("grade")] = None
    caplog.clear()
    strange = predict(tmp_path, trained, odd)
    assert 'column "grade": 30 rows' in caplog.text
    assert "of another world" not in caplog.text
    assert strange["margin"].equals(predict(tmp_path, trained, gone)["margin"])
    assert not strange["margin"].equals(again["margin"])


@pytest.mark.parametrize("coding", ["sorted", "one-hot"])
def test_the_exported_model_says_how_text_becomes_features(coding: str, tmp_path: Path) -> None:
    """The Booster is fed by what its own attribute says, from the raw tables."""
    frames = frames_of()
    trained = run(tmp_path, frames, categorical=coding, export_consent=True, **SMALL)
    path = tmp_path / "model.json"
    assert main(["export-model", str(trained.run_folder), "--out", str(path)]) == 0
    booster = xgboost.Booster()
    booster.load_model(path)
    said = json.loads(booster.attr("fedapp-categories") or "")
    raw = pd.concat(
        [
            frame.set_index("id").drop(columns="label").add_prefix(f"site-{at}.")
            for at, frame in enumerate(frames)
        ],
        axis=1,
    )
    inputs = pd.DataFrame(index=raw.index)
    for name in raw.columns:
        if name not in said:
            inputs[name] = raw[name]
            continue
        one = said[name]
        codes = pd.Categorical(raw[name], categories=one["categories"]).codes
        places = [codes] if one["coding"] == "sorted" else [codes == k for k in range(99)]
        for feature, values in zip(one["features"], places, strict=False):
            inputs[feature] = np.where(codes < 0, np.nan, values)
    assert coding == "sorted" or any(name.endswith(".job=admin") for name in inputs.columns)
    names = booster.feature_names
    assert names is not None
    assert not any(char in name for name in names for char in "[]<")
    theirs = booster.predict(xgboost.DMatrix(inputs[names]), output_margin=True)
    assert trained.predictions is not None
    margins = trained.predictions.set_index("id")["margin"]
    assert np.abs(theirs - margins[inputs.index.astype(str)].to_numpy()).max() < 1e-6


def test_a_party_declares_its_own_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,grade,arm,label\n1,good,x,1\n2,poor,y,0\n3,fair,,1\n4,,x,0\n")
    config = read_config(
        {**defaults(), "task": TASK, f"{TASK}.categorical": "sorted", f"{TASK}.test-fraction": 0.0}
    )
    node: dict[str, Any] = {"site-name": "a", "data-path": str(path)}
    table = prepare_vertical_site(node, config).table
    assert table.categories[0].names == ("fair", "good", "poor")
    node["categorical"] = "grade=poor<fair<good; one-hot"
    table = prepare_vertical_site(node, config).table
    assert table.categories[0].names == ("poor", "fair", "good")
    assert table.feature_names == ("grade", "arm=x", "arm=y")
    for wrong, words in (("grade=good", "entry 1"), (True, "must be text")):
        with pytest.raises(SiteFault, match=words) as caught:
            prepare_vertical_site({**node, "categorical": wrong}, config)
        assert "good" not in str(caught.value)


def test_a_part_keeps_its_categories(tmp_path: Path) -> None:
    trained = run(tmp_path, frames_of(), categorical="one-hot", **SMALL)
    folder = RunFolder.open(trained.run_folder).path / "parties"
    parts = [ModelPart.load(folder / f"site-{at}.json") for at in range(3)]
    kept = {each.column: each for part in parts for each in part.categories}
    assert kept["grade"].names == tuple(sorted(GRADES))
    owner = next(part for part in parts if any(c.column == "job" for c in part.categories))
    assert "job" in owner.columns
    assert not any(name.startswith("job=") for name in owner.columns)
    document = json.loads((folder / f"{owner.name}.json").read_text())["part"]
    document["categories"][0]["names"].append("not a feature")
    from tasks.vertical_xgboost.part_document import PartForm

    with pytest.raises(ValueError, match="categories"):
        PartForm.model_validate(document).check()
