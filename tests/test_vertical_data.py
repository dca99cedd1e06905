"""Columns and labels of a joined table dealt to parties."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import datasets

from fedapp.site_data import BUNDLED, Spread, load_frame, party_table
from tasks.site.faults import SiteFault

SETS = {"breast-cancer-columns": (569, 30), "diabetes": (442, 10)}


def parties(data: str, sites: int, *, seed: int = 0, spread: Spread | None = None) -> list:
    return [
        load_frame(
            {"partition-id": site, "num-partitions": sites}, data=data, seed=seed, spread=spread
        )
        for site in range(sites)
    ]


def joined(tables: list[pd.DataFrame]) -> tuple[pd.DataFrame, pd.Series]:
    """Features and labels put together again, checking that every label has one owner."""
    features = pd.concat([table.drop(columns=["id", "label"]) for table in tables], axis=1)
    labels = pd.concat([table["label"] for table in tables], axis=1)
    assert (labels.notna().sum(axis=1) == 1).all()
    owner = labels.notna().to_numpy().argmax(axis=1)
    found = [labels.iat[row, column] for row, column in enumerate(owner)]
    return features, pd.Series(found)


@pytest.mark.parametrize("data", SETS)
@pytest.mark.parametrize("sites", [1, 2, 4, 10])
@pytest.mark.parametrize("labels", ["even", "skewed", "one"])
def test_parties_together_have_the_source(data: str, sites: int, labels: str) -> None:
    tables = parties(data, sites, spread=Spread(labels=labels))
    source = (
        datasets.load_breast_cancer(as_frame=True)
        if data == "breast-cancer-columns"
        else datasets.load_diabetes(as_frame=True, scaled=False)
    )
    features, found = joined(tables)
    assert features.shape == SETS[data] == source.data.shape
    assert all((table["id"] == np.arange(len(table))).all() for table in tables)
    pd.testing.assert_frame_equal(
        features[list(source.data.columns)], source.data, check_dtype=False
    )
    target = 1 - source.target if data == "breast-cancer-columns" else source.target
    np.testing.assert_array_equal(found, target)
    widths = [table.shape[1] for table in tables]
    assert max(widths) - min(widths) <= 1


def counts(labels: str, sites: int = 4) -> list[int]:
    tables = parties("breast-cancer-columns", sites, spread=Spread(labels=labels))
    return [int(table["label"].notna().sum()) for table in tables]


def test_how_labels_are_spread() -> None:
    even, skewed = counts("even"), counts("skewed")
    assert sum(even) == sum(skewed) == 569
    assert max(even) - min(even) <= 1
    assert skewed == [284, 143, 71, 71]
    assert counts("one") == [569, 0, 0, 0]


def test_rows_of_labels_are_drawn_at_random() -> None:
    owned = parties("breast-cancer-columns", 2)[0]["label"].notna().to_numpy()
    # A run of rows would have one change of owner; a random half has about 284 +- 12.
    assert 230 < np.count_nonzero(owned[1:] != owned[:-1]) < 340


def test_seed_decides_columns_and_labels() -> None:
    first, again, other = (parties("diabetes", 3, seed=seed)[0] for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first, again)
    assert list(first.columns) != list(other.columns)
    assert (first["label"].notna() != other["label"].notna()).any()


def test_columns_in_order() -> None:
    tables = parties("diabetes", 3, spread=Spread(columns="in-order"))
    assert [list(table.columns[1:-1]) for table in tables] == [
        ["age", "sex", "bmi", "bp"],
        ["s1", "s2", "s3"],
        ["s4", "s5", "s6"],
    ]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    sites=st.integers(1, 8),
    seed=st.integers(0, 2**63 - 1),
    columns=st.sampled_from(["random", "in-order"]),
    labels=st.sampled_from(["even", "skewed", "one"]),
)
def test_every_cell_has_one_party(
    rows: int, sites: int, seed: int, columns: str, labels: str
) -> None:
    frame = pd.DataFrame(np.arange(rows * 8).reshape(rows, 8), columns=list("abcdefgh"))
    frame["label"] = [f"L{row}" for row in range(rows)]
    spread = Spread(columns=columns, labels=labels, number_rows=True)
    tables = [
        party_table(frame, spread, site=site, sites=sites, seed=seed) for site in range(sites)
    ]
    features, found = joined(tables)
    pd.testing.assert_frame_equal(features[list("abcdefgh")], frame[list("abcdefgh")])
    assert found.tolist() == frame["label"].tolist()


def test_one_file_is_dealt_by_columns_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    pd.DataFrame({"key": [7, 8, 9], "a": [1.0, 2.0, 3.0], "b": [4, 5, 6], "y": [0, 1, 0]}).to_csv(
        path, index=False
    )
    tables = parties(str(path), 2, spread=Spread(id="key", label="y", columns="in-order"))
    assert [list(table.columns) for table in tables] == [["key", "a", "y"], ["key", "b", "y"]]
    assert all(table["key"].tolist() == ["7", "8", "9"] for table in tables)
    assert len(parties(str(path), 3)[0]) == 1  # without being asked: rows are dealt


@pytest.mark.parametrize(
    ("spread", "sites", "words"),
    [
        (Spread(), 2, 'no column "id"'),
        (Spread(id="a", label="nothing"), 2, 'no column "nothing"'),
        (Spread(id="a", label="a"), 2, 'id and label are both "a"'),
        (Spread(number_rows=True), 4, "2 columns of features are too few for 4 parties"),
        (Spread(number_rows=True, labels="some"), 2, 'labels "some" must be one of: even'),
        (Spread(number_rows=True, columns="some"), 2, 'columns "some" must be one of: random'),
    ],
)
def test_refused(spread: Spread, sites: int, words: str) -> None:
    frame = pd.DataFrame({"a": [1.0], "b": [2.0], "label": [1]})
    with pytest.raises(SiteFault, match=words):
        party_table(frame, spread, site=0, sites=sites, seed=0)


def test_more_parties_than_columns_of_a_bundled_set() -> None:
    with pytest.raises(SiteFault, match="10 columns of features are too few for 11 parties"):
        parties("diabetes", 11)


def test_bundled_sets_name_their_columns_and_licence() -> None:
    for name in SETS:
        bundled = BUNDLED[name]
        assert bundled.task == "vertical-xgboost"
        assert {bundled.id, bundled.label} <= set(bundled.load().columns)
        assert bundled.source
        assert bundled.licence


def test_scikit_learn_is_not_imported() -> None:
    code = (
        "import sys; from fedapp.site_data import load_frame; "
        "[load_frame({'partition-id': 0, 'num-partitions': 2}, data=name, seed=0) "
        "for name in ('breast-cancer-columns', 'diabetes')]; assert 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


def test_weights_go_with_the_labels() -> None:
    joined = pd.DataFrame({"id": range(6), "a": range(6), "w": np.arange(6.0), "label": [0, 1] * 3})
    spread = Spread(weight="w")
    tables = [party_table(joined.assign(b=1.0), spread, site=at, sites=2, seed=0) for at in (0, 1)]
    for table in tables:
        assert (table["w"].notna() == table["label"].notna()).all()
        assert (table["w"].dropna() == joined["w"][table["w"].notna()]).all()
    assert sum(int(table["w"].notna().sum()) for table in tables) == 6
    with pytest.raises(SiteFault, match='no column "v"'):
        party_table(joined, Spread(weight="v"), site=0, sites=1, seed=0)
    with pytest.raises(SiteFault, match='the weight is the column "label", as another'):
        party_table(joined, Spread(weight="label"), site=0, sites=1, seed=0)


def test_a_joined_file_with_weights_is_trained_on(tmp_path: Path) -> None:
    from fedapp.simulation import simulate

    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(60, 4)), columns=list("abcd"))
    frame["w"], frame["label"] = random.gamma(1.0, 1.0, 60), (frame["a"] > 0).astype(int)
    frame.insert(0, "id", range(60))
    frame.to_csv(tmp_path / "joined.csv", index=False)
    keys: dict[str, bool | int | float | str] = {
        "data": str(tmp_path / "joined.csv"),
        "weight": "w",
        "num-trees": 1,
        "max-depth": 2,
        "encryption": "none",
    }
    config = {f"vertical-xgboost.{name}": value for name, value in keys.items()}
    result = simulate(
        "vertical-xgboost", config={**config, "num-sites": 3, "run-dir": str(tmp_path)}
    )
    assert result.summary["status"] == "ok", result.summary.get("reason")
    assert result.summary["central"]["same-trees"] is True
