"""Files of a site: what is read, what is refused, and that no refusal quotes a row."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import os
import traceback
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedapp.site_data import encode, files, load_frame, read_file, register_frame, write_site_files
from tasks.site.faults import SiteFault

CANARY = "canary4711"
NUMBER = "90210.125"
HEADER = b"time,event,note\n"
ROW = f"{NUMBER},1,{CANARY}\n".encode()


def refusal(action: Callable[[], object]) -> SiteFault:
    """The fault of an action, after a search for row values in everything that can be printed."""
    with pytest.raises(SiteFault) as caught:
        action()
    fault = caught.value
    assert fault.__cause__ is None
    printed = [str(fault), repr(fault), fault.code, *fault.reasons]
    printed += traceback.format_exception(fault)
    if fault.__context__ is not None:
        printed += [repr(fault.__context__), *traceback.format_exception(fault.__context__)]
    for text in printed:
        assert CANARY not in text
        assert NUMBER not in text
    for reason in fault.reasons:
        assert reason.isprintable()
        assert len(reason) < 500
    return fault


def read(path: Path) -> pd.DataFrame:
    return load_frame({"data-path": str(path)}, data="gbsg2", partition="iid", seed=0)


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, bytes], Path]:
    def write(name: str, content: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


Put = Callable[[str, bytes], Path]


def rows(generator_seed: int = 0, count: int = 200) -> pd.DataFrame:
    generator = np.random.default_rng(generator_seed)
    return pd.DataFrame(
        {
            "time": generator.exponential(100, count),
            "event": generator.integers(0, 2, count),
            "größe": generator.normal(size=count) * 1e6,
            "grade": generator.choice(["I", "II", "III"], count),
        }
    )


# -- what is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "separator", "encoding"),
    [
        ("a.csv", ",", "utf-8"),
        ("a.csv", ",", "utf-8-sig"),
        ("A.CSV", ";", "utf-8"),
        ("a.csv", ";", "utf-8-sig"),
        ("a.csv", "\t", "utf-8"),
        ("a.tsv", "\t", "utf-8-sig"),
        ("a.csv.gz", ",", "utf-8-sig"),
        ("a.csv.gz", ";", "utf-8"),
        ("a.tsv.gz", "\t", "utf-8"),
    ],
)
def test_text_files_come_back_exactly(
    tmp_path: Path, name: str, separator: str, encoding: str
) -> None:
    frame = rows()
    frame.to_csv(tmp_path / name, sep=separator, encoding=encoding, index=False)
    pd.testing.assert_frame_equal(read(tmp_path / name), frame, check_exact=True)


def test_parquet_comes_back_exactly(tmp_path: Path) -> None:
    frame = rows()
    frame.to_parquet(tmp_path / "a.parquet")
    pd.testing.assert_frame_equal(read(tmp_path / "a.parquet"), frame, check_exact=True)


def test_folders_of_a_parquet_file_make_no_columns(tmp_path: Path) -> None:
    folder = tmp_path / "year=2020"
    folder.mkdir()
    rows().to_parquet(folder / "a.parquet")
    assert list(read(folder / "a.parquet").columns) == list(rows().columns)


@pytest.mark.parametrize(
    "content",
    [
        b"time,event\r\n1.5,1\r\n2,0\r\n",
        b"time,event\r1.5,1\r2,0\r",
        b"\n\ntime,event\n1.5,1\n\n2,0\n\n",
        b' time , "event"\n 1.5 ,1\n2, 0\n',
        b'"time","event"\n"1.5","1"\n"2","0"',
    ],
)
def test_line_ends_blank_lines_spaces_and_quotes(put: Put, content: bytes) -> None:
    frame = read(put("a.csv", content))
    assert [str(name).strip('" ') for name in frame.columns] == ["time", "event"]
    assert frame["time"].tolist() == [1.5, 2.0]
    assert frame.iloc[:, 1].tolist() == [1, 0]


def test_quoted_separators_and_line_ends(put: Put) -> None:
    frame = read(put("a.csv", b'"a;b;c",note\n1,"x, y"\n2,"two\nlines"\n3,"say ""so"""\n'))
    assert list(frame.columns) == ["a;b;c", "note"]
    assert frame["note"].tolist() == ["x, y", "two\nlines", 'say "so"']


@pytest.mark.parametrize("separator", [",", ";"])
@pytest.mark.parametrize(
    "cells",
    [
        ["1,5", "2,5"],
        ["1.234,5", "7,0"],
        ["1,000", "2,000"],
        ["1'000", "2'000"],
        ["1 000", "2 000"],
        ["12 %", "3 %"],
        ["<5", "7"],
        ["1", "unknown"],
        ["true", "0"],
        ["2020-01-31", "2021-02-28"],
        ["2020-01-31 10:00", "2021-02-28 11:30"],
        ["10:11", "12:13"],
    ],
)
def test_what_is_no_plain_number_stays_text_as_it_stands(
    tmp_path: Path, cells: list[str], separator: str
) -> None:
    pd.DataFrame({"n": [1, 2], "a": cells}).to_csv(tmp_path / "a.csv", sep=separator, index=False)
    frame = read(tmp_path / "a.csv")
    assert frame["a"].tolist() == cells
    assert frame["n"].dtype == np.int64


def test_one_odd_value_far_down_makes_the_whole_column_text(put: Put) -> None:
    many = b"1,2\n" * 50_000
    frame = read(put("a.csv", b"a,b\n" + many + b"1,x\n" + many))
    assert frame["a"].dtype == np.int64
    assert set(frame["b"]) == {"2", "x"}


def test_missing_values(put: Put) -> None:
    frame = read(put("a.csv", b"a,b,c,d\n1,,NA,\n2,x,,\n,NA,2.5,\n"))
    expected = pd.DataFrame(
        {
            "a": [1.0, 2.0, np.nan],
            "b": [None, "x", None],
            "c": [np.nan, np.nan, 2.5],
            "d": [np.nan] * 3,
        }
    )
    pd.testing.assert_frame_equal(frame, expected)
    assert frame.isna().sum().tolist() == [1, 2, 2, 3]


def test_truth_values_and_infinity(put: Put) -> None:
    frame = read(put("a.csv", b"a,b\ntrue,inf\nFalse,-1\n"))
    assert frame["a"].tolist() == [True, False]
    assert frame["a"].dtype == np.bool_
    assert frame["b"].tolist() == [np.inf, -1.0]


def test_decimals_and_categories_of_parquet(tmp_path: Path) -> None:
    table = pa.table(
        {
            "cost": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
            "arm": pa.array(["a", "b"]).dictionary_encode(),
            "empty": pa.nulls(2),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    frame = read(tmp_path / "a.parquet")
    assert frame["cost"].dtype == np.float64
    assert frame["cost"].tolist()[0] == 1.5
    assert frame["empty"].dtype == np.float64
    assert frame["arm"].astype(object).tolist() == ["a", "b"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_row_labels_are_dropped(tmp_path: Path, kind: str) -> None:
    frame = rows().sample(frac=1, random_state=0)
    path = tmp_path / f"a.{kind}"
    frame.to_csv(path) if kind == "csv" else frame.to_parquet(path)
    expected = frame.reset_index(drop=True)
    pd.testing.assert_frame_equal(read(path), expected, check_exact=True)


def test_row_labels_written_twice_are_refused(put: Put) -> None:
    fault = refusal(lambda: read(put("a.csv", b"Unnamed: 0,Unnamed: 0.1,time\n0,0,5\n")))
    assert fault.code == "bad-columns"
    assert "column 2" in str(fault)


def test_a_named_index_is_a_column_of_the_file(tmp_path: Path) -> None:
    frame = rows().sample(frac=1, random_state=0).rename_axis("patient")
    frame.to_csv(tmp_path / "a.csv")
    frame.to_parquet(tmp_path / "a.parquet")
    assert read(tmp_path / "a.csv").columns[0] == "patient"
    assert "patient" in read(tmp_path / "a.parquet").columns


WORDS = st.text("ab,;\t'\" é\n", max_size=8).map(lambda cell: f"t{cell}t")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    cells=st.integers(1, 4).flatmap(
        lambda width: st.lists(st.lists(WORDS, min_size=width, max_size=width), min_size=1)
    ),
    separator=st.sampled_from(",;\t"),
)
def test_text_cells_come_back_as_a_csv_writer_put_them(
    tmp_path: Path, cells: list[list[str]], separator: str
) -> None:
    if len(cells[0]) == 1:
        separator = ","  # nothing in the header of a single column says another one
    path = tmp_path / ("a.tsv" if separator == "\t" else "a.csv")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow([f"name {at}" for at in range(len(cells[0]))])
        writer.writerows(cells)
    files._read.cache_clear()  # a coarse clock may give two files of one size the same time
    assert read(path).to_numpy().tolist() == cells


# -- what is refused ------------------------------------------------------------------------------


def packed_parquet() -> bytes:
    buffer = io.BytesIO()
    pd.DataFrame({"time": [float(NUMBER)] * 50, "note": [CANARY] * 50}).to_parquet(buffer)
    return buffer.getvalue()


def repeated_parquet() -> bytes:
    buffer = io.BytesIO()
    columns = [pa.array([float(NUMBER)]), pa.array([CANARY])]
    parquet.write_table(pa.Table.from_arrays(columns, names=["x", "x"]), buffer)
    return buffer.getvalue()


PARQUET = packed_parquet()
ZIPPED = gzip.compress(HEADER + ROW * 100)
GARBAGE = np.random.default_rng(0).bytes(5000)

BROKEN = {
    "empty file": ("a.csv", b"", "no-rows", "empty"),
    "blank lines only": ("a.csv", b"\n \n\n", "no-rows", "empty"),
    "byte order mark only": ("a.csv", b"\xef\xbb\xbf", "no-rows", "empty"),
    "header only": ("a.csv", HEADER, "no-rows", "no rows"),
    "header without line end": ("a.csv", HEADER.strip(), "no-rows", "no rows"),
    "row too long": ("a.csv", HEADER + ROW + b"7," + ROW, "unreadable-file", "row 3"),
    "row too short": ("a.csv", HEADER + ROW + b"7,1\n" + ROW, "unreadable-file", "with 2"),
    "all rows too long": ("a.csv", HEADER + (b"7," + ROW) * 2, "unreadable-file", "do not: 2"),
    "footer": ("a.csv", HEADER + ROW + b"(1 row)\n", "unreadable-file", "row 3"),
    "row labels without header": (
        "a.csv",
        HEADER + b"1," + ROW + b"2," + ROW,
        "unreadable-file",
        "must have 3 values",
    ),
    "binary garbage": ("a.csv", GARBAGE, "unreadable-file", "not "),
    "binary rows": ("a.csv", HEADER + GARBAGE, "unreadable-file", "not UTF-8"),
    "zero bytes": ("a.csv", b"\0" * 100, "unreadable-file", "not a text file"),
    "parquet named csv": ("a.csv", PARQUET, "unreadable-file", "not "),
    "gzip named csv": ("a.csv", ZIPPED, "unreadable-file", "not UTF-8"),
    "csv named gzip": ("a.csv.gz", HEADER + ROW, "unreadable-file", "gzip"),
    "truncated gzip": ("a.csv.gz", ZIPPED[:-12], "unreadable-file", "a.csv.gz"),
    "truncated gzip header": ("a.csv.gz", ZIPPED[:7], "unreadable-file", "gzip"),
    "damaged gzip": (
        "a.csv.gz",
        ZIPPED[:40] + b"\xff" * 20 + ZIPPED[60:],
        "unreadable-file",
        "not ",
    ),
    "csv named parquet": ("a.parquet", HEADER + ROW, "unreadable-file", "not a Parquet file"),
    "truncated parquet": ("a.parquet", PARQUET[:-20], "unreadable-file", "damaged"),
    "beginning of parquet": ("a.parquet", PARQUET[:200], "unreadable-file", "damaged"),
    "damaged parquet": (
        "a.parquet",
        PARQUET[:4] + b"\xff" * 60 + PARQUET[64:],
        "unreadable-file",
        "damaged",
    ),
    "repeated parquet columns": ("a.parquet", repeated_parquet(), "bad-columns", "column 1, 2"),
    "latin-1 row": ("a.csv", HEADER + ROW + b"5,1,M\xfcller\n", "unreadable-file", "UTF-8"),
    "latin-1 row far down": (
        "a.csv",
        HEADER + ROW * 5000 + b"5,1,M\xfcller\n",
        "unreadable-file",
        "line 5002",
    ),
    "latin-1 row, too long": (
        "a.csv",
        HEADER + ROW + f"5,1,1,Müller {CANARY}\n".encode("latin-1"),
        "unreadable-file",
        "line 3",
    ),
    "utf-8 cut within a letter": (
        "a.csv",
        HEADER + ROW + b"5,1,M\xc3",
        "unreadable-file",
        "line 3",
    ),
    "latin-1 packed": (
        "a.csv.gz",
        gzip.compress(HEADER + b"5,1,M\xfcller\n"),
        "unreadable-file",
        "line 2",
    ),
    "latin-1 header": ("a.csv", "größe,time\n1,2\n".encode("latin-1"), "unreadable-file", "UTF-8"),
    "utf-16": ("a.csv", (HEADER + ROW).decode().encode("utf-16"), "unreadable-file", "UTF-8"),
    "repeated columns": ("a.csv", b"x,y,x\n1,2,3\n", "bad-columns", "column 1, 3"),
    "repeated after stripping": ("a.csv", b"x, x\n1,2\n", "bad-columns", "column 1, 2"),
    "column without name": ("a.csv", b"x,,y\n1,2,3\n", "bad-columns", "column 2"),
    "separators at line ends": ("a.csv", b"x,y,\n1,2,\n", "bad-columns", "column 3"),
    "no header": ("a.csv", ROW + ROW, "bad-columns", "first line"),
    "no header, decimal comma": (
        "a.csv",
        f'"90210,125";{CANARY}\n"3,5";x\n'.encode(),
        "bad-columns",
        "first line",
    ),
    "control character in a name": ("a.csv", b'x,"a\nb"\n1,2\n', "bad-columns", "printable"),
    "only row labels": ("a.csv", b'""\n1\n2\n', "bad-columns", "no columns"),
    "huge name": ("a.csv", b"x," + b"y" * 300_000 + b"\n1,2\n", "bad-columns", "longer"),
    "quote not closed": (
        "a.csv",
        HEADER + ROW + f'1,0,"{CANARY}\n'.encode() + ROW * 3,
        "unreadable-file",
        "quotation mark",
    ),
    "quote not closed within a row": (
        "a.csv",
        HEADER + ROW + f'1,"{CANARY},0\n'.encode() + ROW * 3,
        "unreadable-file",
        "row 3",
    ),
    "two separators": ("a.csv", b"a,b;c\n1,2;3\n", "unreadable-file", "comma and by semicolon"),
    "comma in tsv": ("a.tsv", b"a\tb\n1,2\n", "unreadable-file", "tab-separated"),
    "spreadsheet": ("a.xlsx", b"PK", "unknown-format", ".parquet"),
    "no suffix": ("rows", HEADER + ROW, "unknown-format", ".csv"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused_without_a_word_of_their_rows(put: Put, case: str) -> None:
    name, content, code, word = BROKEN[case]
    path = put(name, content)
    fault = refusal(lambda: read(path))
    assert fault.code == code
    assert word in str(fault)
    assert f'data-path "{path}"' in str(fault)


def test_huge_fields(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put("a.csv", HEADER + f'1,1,"{CANARY * 100_000}"\n'.encode() + ROW)
    assert read(path)["note"].str.len().tolist() == [len(CANARY) * 100_000, len(CANARY)]

    monkeypatch.setattr(files, "_BLOCK_BYTES", 1 << 12)
    path = put("b.csv", path.read_bytes())
    fault = refusal(lambda: read(path))
    assert fault.code == "unreadable-file"
    assert "cannot be read as a table (ArrowInvalid)" in str(fault)


@pytest.mark.parametrize("cut", range(0, len(PARQUET), 97))
def test_parquet_cut_anywhere_is_refused(put: Put, cut: int) -> None:
    path = put("a.parquet", PARQUET[:cut])
    assert refusal(lambda: read(path)).code in {"unreadable-file", "no-rows"}


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    original=st.sampled_from(
        [("a.parquet", PARQUET), ("a.csv.gz", ZIPPED), ("a.csv", HEADER + ROW)]
    ),
    at=st.floats(0, 1),
    damage=st.binary(min_size=1, max_size=30),
)
def test_damage_anywhere_is_read_or_refused(
    tmp_path: Path, original: tuple[str, bytes], at: float, damage: bytes
) -> None:
    name, content = original
    start = int(at * len(content))
    path = tmp_path / name
    path.write_bytes(content[:start] + damage + content[start + len(damage) :])
    files._read.cache_clear()
    try:
        read(path)
    except SiteFault:
        refusal(lambda: read(path))


def test_line_that_is_not_utf8_across_chunks(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "time,note\n" + "1,größe\n" * 20
    for size in range(1, 12):
        monkeypatch.setattr(files, "_CHUNK_BYTES", size)
        assert len(read(put(f"good{size}.csv", text.encode()))) == 20
        bad = put(f"bad{size}.csv", text.encode() + "1,größe\n".encode("latin-1") + b"1,\xff\n")
        assert "line 22 is not UTF-8" in str(refusal(lambda path=bad: read(path)))


def test_missing_file_folder_and_device(tmp_path: Path) -> None:
    missing = tmp_path / "none.csv"
    fault = refusal(lambda: read(missing))
    assert (fault.code, str(fault)) == ("no-file", f'no file at data-path "{missing}"')

    (tmp_path / "folder.csv").mkdir()
    fault = refusal(lambda: read(tmp_path / "folder.csv"))
    assert fault.code == "no-file"
    assert "is a folder" in str(fault)

    os.mkfifo(tmp_path / "pipe.csv")
    fault = refusal(lambda: read(tmp_path / "pipe.csv"))
    assert "no regular file" in str(fault)

    (tmp_path / "file.csv").write_bytes(HEADER + ROW)
    assert refusal(lambda: read(tmp_path / "file.csv" / "a.csv")).code == "unreadable-file"


def test_paths_that_no_system_takes(tmp_path: Path) -> None:
    for name in ("a\0b.csv", "x" * 5000 + ".csv"):
        with pytest.raises(SiteFault) as caught:
            read_file(tmp_path / name, where="data-path")
        assert caught.value.code == "unreadable-file"


def test_file_without_permission(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put("a.csv", HEADER + ROW)

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "open", forbidden)
    fault = refusal(lambda: read(path))
    assert fault.code == "unreadable-file"
    assert "Permission denied" in str(fault)


@pytest.mark.parametrize("given", ["", "  ", 3, True, 1.5])
def test_data_path_that_is_no_path(given: object) -> None:
    fault = refusal(lambda: load_frame({"data-path": given}, data="gbsg2", partition="iid", seed=0))
    assert fault.code == "no-file"
    assert repr(given) in str(fault)


def test_relative_data_path_is_named_in_full(
    tmp_path: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("a.csv", b"time,event\n1,1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(read(Path("a.csv"))) == 1
    assert len(read(Path("~/a.csv"))) == 1
    assert str(tmp_path / "b.csv") in str(refusal(lambda: read(Path("b.csv"))))


def test_unknown_categories_are_counted_and_not_shown() -> None:
    frame = pd.DataFrame({"grade": ["I", CANARY, CANARY, None], "arm": ["a", "a", "b", CANARY]})
    encoding = {"grade": {"I": 1, "II": 2}, "arm": {"a": 0, "b": 1}}
    fault = refusal(lambda: encode(frame, encoding))
    assert fault.code == "unknown-category"
    assert fault.reasons == (
        'column "grade": 2 of 4 rows are none of I, II',
        'column "arm": 1 of 4 rows are none of a, b',
    )


# -- reading again, and writing -------------------------------------------------------------------


def test_a_file_is_read_once_and_again_when_it_changed(
    put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[Path] = []
    parse = files._csv

    def counted(path: Path, *how: object) -> pa.Table:
        parsed.append(path)
        return parse(path, *how)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "_csv", counted)
    path = put("a.csv", b"time,event\n1,1\n")
    first = read(path)
    first.loc[0, "time"] = 99
    first["event"] = 99
    second = read(path)
    assert second.iloc[0].tolist() == [1, 1]
    assert len(parsed) == 1

    path.write_bytes(b"time,event\n2,1\n")
    os.utime(path, ns=(1, 1))
    assert read(path).iloc[0].tolist() == [2, 1]
    assert len(parsed) == 2

    path.unlink()
    assert refusal(lambda: read(path)).code == "no-file"


def test_a_refusal_is_not_remembered(put: Put) -> None:
    path = put("a.csv", HEADER)
    refusal(lambda: read(path))
    path.write_bytes(HEADER + ROW)
    assert len(read(path)) == 1


def test_site_files_equal_frames_in_memory(tmp_path: Path) -> None:
    mixed = pd.DataFrame(
        {
            "time": [1.25, 2.5, 3.0],
            " age ": pd.array([1, None, 3], dtype="float64"),
            "note": ["a", None, "c"],
            "seen": [True, False, True],
        },
        index=pd.Index([7, 5, 6], name="patient"),
    )
    write_site_files([mixed, rows()], tmp_path / "made" / "here")
    for site, frame in enumerate([mixed, rows()]):
        node = {"partition-id": site, "num-partitions": 2}
        folder = str(tmp_path / "made" / "here")
        filed = load_frame(node, data=folder, partition="iid", seed=0)
        own = {"data-path": f"memory:{register_frame(frame)}"}
        kept = load_frame(own, data="gbsg2", partition="iid", seed=0)
        pd.testing.assert_frame_equal(filed, kept, check_exact=True)


def test_columns_of_mixed_types_are_written_as_text(tmp_path: Path) -> None:
    frame = pd.DataFrame({"time": [1.0, 2.0, 3.0], "x": [1, CANARY, None]})
    write_site_files([frame], tmp_path)
    node = {"partition-id": 0, "num-partitions": 1}
    back = load_frame(node, data=str(tmp_path), partition="iid", seed=0)
    assert back["x"].tolist() == ["1", CANARY, None]
