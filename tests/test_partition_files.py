"""`fedapp partition`: what every site gets as a file is what a simulation deals it."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from fedapp.cli import main
from fedapp.site_data import Partition, Spread, load_frame, read_file

NAMES = ("north", "south", "west")


@pytest.fixture
def table(tmp_path: Path) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 5)), columns=list("abcde"))
    frame.insert(0, "id", [f"{row:03d}" for row in range(60)])
    frame["hospital"] = rng.choice(["A", "B"], 60)
    frame["label"] = rng.integers(0, 2, 60)
    frame.to_csv(tmp_path / "all.csv", index=False)
    return frame


def deal(tmp_path: Path, *words: str) -> int:
    return main(["partition", str(tmp_path / "all.csv"), "--out", str(tmp_path / "out"), *words])


def files(tmp_path: Path, *, form: str = "csv") -> dict[str, pd.DataFrame]:
    return {
        path.stem: read_file(path, where=path.name, text=("id",))
        for path in sorted((tmp_path / "out").glob(f"*.{form}"))
    }


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_rows_are_those_of_a_simulation_to_the_last_bit(form: str, tmp_path: Path) -> None:
    assert deal(tmp_path, "--sites", ",".join(NAMES), "--seed", "5", "--format", form) == 0
    found = files(tmp_path, form=form)
    assert tuple(found) == NAMES
    for place, name in enumerate(NAMES):
        node = {"partition-id": place, "num-partitions": 3}
        dealt = load_frame(node, data=str(tmp_path / "all.csv"), seed=5, text=("id",))
        assert_frame_equal(found[name], dealt, check_exact=True)


def test_every_row_goes_to_one_site(table: pd.DataFrame, tmp_path: Path) -> None:
    assert deal(tmp_path, "--sites", "3") == 0
    found = files(tmp_path)
    assert list(found) == ["site-0", "site-1", "site-2"]
    assert [len(frame) for frame in found.values()] == [20, 20, 20]
    assert sorted(pd.concat(found.values())["id"]) == list(table["id"])


@pytest.mark.parametrize("sites", [(), ("--sites", "site-0,site-1")])
def test_a_column_says_which_site(
    sites: tuple[str, ...], table: pd.DataFrame, tmp_path: Path
) -> None:
    assert deal(tmp_path, "--by", "hospital", *sites) == 0
    found = files(tmp_path)
    for value, name in (("A", "site-0"), ("B", "site-1")):
        assert list(found[name]["id"]) == list(table["id"][table["hospital"] == value])
        assert "hospital" not in found[name]


def test_columns_and_labels_are_spread_over_parties(table: pd.DataFrame, tmp_path: Path) -> None:
    assert deal(tmp_path, "--sites", ",".join(NAMES), "--vertical", "--seed", "2") == 0
    found = files(tmp_path)
    features = [set(frame.columns) - {"id", "label"} for frame in found.values()]
    assert sorted(name for own in features for name in own) == sorted([*"abcde", "hospital"])
    for frame in found.values():
        assert list(frame["id"]) == list(table["id"])
    labels = pd.concat([frame["label"] for frame in found.values()], axis=1)
    assert (labels.notna().sum(axis=1) == 1).all()
    assert (labels.max(axis=1) == table["label"]).all()
    joined = load_frame(
        {"partition-id": 1, "num-partitions": 3},
        data=str(tmp_path / "all.csv"),
        seed=2,
        spread=Spread(),
    )
    assert_frame_equal(found["south"], joined, check_exact=True)


def test_labels_at_some_sites(table: pd.DataFrame, tmp_path: Path) -> None:
    words = ("--labels-at", "west,north", "--columns", "in-order")
    assert deal(tmp_path, "--sites", ",".join(NAMES), "--vertical", *words) == 0
    found = files(tmp_path)
    counts = {name: int(frame["label"].notna().sum()) for name, frame in found.items()}
    assert counts == {"north": 30, "south": 0, "west": 30}
    assert list(found["north"].columns) == ["id", "a", "b", "label"]
    labels = found["north"]["label"].fillna(found["west"]["label"])
    assert list(labels) == list(table["label"])


@pytest.mark.usefixtures("table")
def test_only_the_owner_reads_them(tmp_path: Path) -> None:
    deal(tmp_path, "--sites", "2")
    for path in (tmp_path / "out").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.usefixtures("table")
def test_nothing_is_written_over_unless_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "site-1.csv").write_text("mine")
    assert deal(tmp_path, "--sites", "2") == 2
    assert "site-1.csv: there already; nothing was written" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["site-1.csv"]
    assert (out / "site-1.csv").read_text() == "mine"
    assert deal(tmp_path, "--sites", "2", "--force") == 0
    assert len(files(tmp_path)["site-1"]) == 30


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--sites: give their number or names"),
        (("--sites", "0"), "--sites 0: must be from 1"),
        (("--sites", "a,A"), "sites need different names: 'A', 'a'"),
        (("--sites", "a,../b"), "site '../b' must be 1 to 64 letters"),
        (("--sites", "a,,b"), "site '' must be"),
        (("--sites", "2", "--label", "id"), "--label: only with --vertical"),
        (("--sites", "2", "--vertical", "--by", "hospital"), "--by: not with --vertical"),
        (("--sites", "2", "--by", "hospital", "--kind", "iid"), "not with --kind iid"),
        (("--sites", "3", "--by", "hospital"), "has 2 values, but there are 3 sites"),
        (("--by", "ward"), 'column "ward", by which rows are dealt, is missing'),
        (("--sites", "2", "--vertical", "--id", "nr"), '"nr" in the data (column of ids)'),
        (("--sites", "9", "--vertical"), "too few for 9 parties"),
        (("--sites", "a,b", "--vertical", "--labels-at", "c"), "no site c; the sites are a, b"),
        (("--sites", "a,b", "--vertical", "--labels-at", "b,b"), "--labels-at: b more than once"),
        (
            ("--sites", "2", "--vertical", "--id", "hospital"),
            'column "hospital": 60 of 60 rows have an id that another row has, too',
        ),
        (("--sites", "2", "--seed", "-1"), "seed = -1 must be at least 0"),
        (("--sites", "2", "--kind", "time-non-iid", "--time", "t"), 'column "t"'),
        (("--sites", "99"), "this site has none"),
    ],
)
def test_what_cannot_be_dealt_is_named(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deal(tmp_path, *words) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_bundled_data_are_dealt_too(tmp_path: Path) -> None:
    assert main(["partition", "lung", "--sites", "2", "--out", str(tmp_path / "out")]) == 0
    node = {"partition-id": 1, "num-partitions": 2}
    dealt = load_frame(node, data="lung", seed=0, partition=Partition())
    found = files(tmp_path)["site-1"]
    assert list(found.columns) == list(dealt.columns)
    np.testing.assert_array_equal(found.to_numpy(float), dealt.to_numpy(float))


def test_a_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deal(tmp_path, "--sites", "2") == 2
    assert "no file at data" in capsys.readouterr().err


def test_digits_after_a_leading_zero_stay_as_they_stand(tmp_path: Path) -> None:
    """Of postal codes, say; numbers stay what they are, and so does what the dealing looks at."""
    lines = ["id,code,n,share,time", "01,0407,7,0.5,07", "02,4410,8,,3", "03,,9,1.0,2"]
    (tmp_path / "all.csv").write_text("\n".join(lines) + "\n")
    assert deal(tmp_path, "--sites", "1") == 0
    whole = (tmp_path / "out" / "site-0.csv").read_text().splitlines()
    assert whole == ["id,code,n,share,time", "01,0407,7,0.5,07", "02,4410,8,,3", "03,,9,1.0,2"]
    words = ("--kind", "time-non-iid", "--time", "time", "--sites", "1", "--force")
    assert deal(tmp_path, *words) == 0
    assert sorted(read_file(tmp_path / "out" / "site-0.csv", where="")["time"]) == [2, 3, 7]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_folder_that_was_dealt_is_the_data_of_a_simulation(form: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {"id": [f"{n:03d}" for n in range(30)], "x": rng.normal(size=30)}
    pd.DataFrame(columns).to_csv(tmp_path / "all.csv", index=False)
    assert deal(tmp_path, "--sites", "3", "--format", form, "--seed", "2") == 0
    for place in range(3):
        node = {"partition-id": place, "num-partitions": 3}
        dealt = load_frame(node, data=str(tmp_path / "all.csv"), seed=2, text=("id",))
        found = load_frame(node, data=str(tmp_path / "out"), seed=2, text=("id",))
        assert_frame_equal(found, dealt, check_exact=True)
