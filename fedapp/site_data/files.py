"""CSV and Parquet files of a site.

Arrow reads both. Against pandas' own CSV reader it refuses rows that are too short (pandas
fills them up), keeps repeated column names apart (pandas renames them), decides the type of a
column over the whole file, and rounds decimal numbers correctly (pandas' default is off by one
unit in the last place for a third of random values).
"""

from __future__ import annotations

import codecs
import gzip
import io
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.csv as arrow_csv

from fedapp.site_data.columns import checked_columns, checked_frame
from tasks.site.faults import SiteFault

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}

# A row must fit into a block, and a header into a line: room for a million columns.
_BLOCK_BYTES = 1 << 24
_CHUNK_BYTES = 1 << 20
_CACHED_FILES = 16

_SITE_FILE = re.compile(r"site-(0|[1-9][0-9]{0,8})\.(parquet|csv)")

_T = TypeVar("_T")


def read_file(path: Path, *, where: str, text: Sequence[str] = ()) -> pd.DataFrame:
    """Rows of a CSV or Parquet file.

    CSV: UTF-8 with or without a byte order mark, separated by comma, semicolon or tab (whichever
    splits the header), quoted by ``"``, first line the column names. A column becomes numbers or
    booleans only if all its values are such, with a decimal point and without thousands
    separators (whole numbers may be hexadecimal, ``0x1f``); everything else, dates too, stays
    text as it stands. Empty values and the usual marks (``NA``, ``NaN``, ``NULL``, ...) are
    missing values.

    A file that did not change is read once a process.

    Parameters
    ----------
    path : Path
        File with one of `SUFFIXES`, in capitals or not.
    where : str
        What the file is called in a fault, for example ``data-path "/data/a.csv"``.
    text : sequence of str
        Columns of a CSV file that stay text as it stands, if they are there: of ids, ``007`` is
        not ``7``.

    Returns
    -------
    DataFrame
        The caller's own copy, at least one row and one column, rows numbered from 0.

    Raises
    ------
    SiteFault
        ``no-file``, ``unknown-format``, ``unreadable-file``, ``bad-columns`` or ``no-rows``.
    """
    _suffix(path, where)
    try:
        state = path.stat()
        regular = stat.S_ISREG(state.st_mode)
        if regular:
            path.open("rb").close()
    except FileNotFoundError:
        raise SiteFault("no-file", f"no file at {where}") from None
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or type(error).__name__
        raise SiteFault("unreadable-file", f"{where}: {words}") from None
    if not regular:
        kind = "a folder" if path.is_dir() else "no regular file"
        raise SiteFault("no-file", f"{where} is {kind}; it must be a file")
    if state.st_size == 0:
        raise SiteFault("no-rows", f"{where}: the file is empty")
    stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
    return _read(path, where, tuple(text), *stamp).copy()


def write_site_files(frames: Iterable[pd.DataFrame], folder: Path) -> None:
    """Write one file a site, as `load_frame` takes them from a folder.

    A frame read back equals the one that a node of this process would get: the index is left
    out, and a column of mixed types becomes text.

    Parameters
    ----------
    frames : iterable of DataFrame
        One a site; site ``i`` gets ``site-<i>.parquet``.
    folder : Path
        Made if need be. Files of other sites in it would be refused when read.

    Raises
    ------
    TypeError, SiteFault
        As `checked_frame`.
    """
    checked = [checked_frame(frame, where=f"site {at}") for at, frame in enumerate(frames)]
    folder.mkdir(parents=True, exist_ok=True)
    for at, frame in enumerate(checked):
        write_parquet(frame, site_file(folder, at))


def write_parquet(frame: pd.DataFrame, path: Path) -> None:
    """Write a checked frame; the index is left out, a column of mixed types becomes text."""
    import pyarrow.parquet as parquet

    columns = {name: _arrow_column(frame[name]) for name in frame.columns}
    parquet.write_table(pa.table(columns), path)


def site_file(folder: Path, site: int) -> Path:
    """File of site number `site` in a folder of site files."""
    return folder / f"site-{site}.parquet"


def found_site_files(folder: Path, *, where: str) -> dict[int, Path]:
    """Return the files ``site-<number>.parquet`` and ``site-<number>.csv`` of a folder.

    Parameters
    ----------
    folder : Path
    where : str
        What the folder is called in a fault.

    Raises
    ------
    SiteFault
        ``bad-partition`` if a site has two.
    """
    found: dict[int, Path] = {}
    twins = []
    for path in sorted(folder.glob("site-*")):
        named = _SITE_FILE.fullmatch(path.name)
        if named is None:
            continue
        site = int(named[1])
        twins += [f"site-{site}"] if site in found else []
        found[site] = path
    if twins:
        raise SiteFault("bad-partition", f"{where} holds two files of {', '.join(twins)}")
    return found


@lru_cache(maxsize=_CACHED_FILES)
def _read(path: Path, where: str, text: tuple[str, ...], *_state: int) -> pd.DataFrame:
    """Read a file; the arguments that nobody reads are the cache's: they change with the file."""
    suffix = _suffix(path, where)
    if suffix == ".parquet":
        table = _attempt(lambda: _parquet(path), where, "not a Parquet file, or damaged")
    else:
        table = _csv(path, where, suffix, text)
    kept = checked_columns(table.column_names, where=where, header_is_text=suffix != ".parquet")
    if table.num_rows == 0:
        raise SiteFault("no-rows", f"{where}: no rows")
    table = table.select(list(kept)).rename_columns(list(kept.values()))
    return _attempt(lambda: _to_pandas(table), where, "holds values that pandas cannot hold")


def _suffix(path: Path, where: str) -> str:
    name = path.name.lower()
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return suffix
    raise SiteFault("unknown-format", f"{where}: the name must end in one of {', '.join(SUFFIXES)}")


def _attempt(action: Callable[[], _T], where: str, words: str) -> _T:
    """Run a library call; what it says of a fault is dropped, for it may quote the row."""
    try:
        return action()
    except SiteFault:
        raise
    except Exception as error:
        kind = type(error).__name__
    raise SiteFault("unreadable-file", f"{where}: {words} ({kind})")


def _parquet(path: Path) -> pa.Table:
    # It takes 50 ms to import. ParquetFile and not read_table: that one makes columns out of
    # folder names such as "year=2020".
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(path) as file:
        return file.read()


def _csv(path: Path, where: str, suffix: str, text: tuple[str, ...]) -> pa.Table:
    packed = suffix.endswith(".gz")
    damaged = "not a gzip file, or damaged" if packed else "cannot be read"
    other = _attempt(lambda: _line_not_utf8(path, packed=packed), where, damaged)
    if other is not None:
        raise SiteFault(
            "unreadable-file", f"{where}: line {other} is not UTF-8; save the file as UTF-8"
        )
    header = _attempt(lambda: _header(path, packed=packed, where=where), where, damaged)
    separator = "\t" if suffix.startswith(".tsv") else _separator(header, where)

    def parse(text: Sequence[str] = ()) -> pa.Table:
        return _parse(path, where, packed=packed, separator=separator, text=text)

    table = _attempt(parse, where, "cannot be read as a table")
    if _ends_in_open_quote(path, table, packed=packed):
        raise SiteFault("unreadable-file", f"{where}: a quotation mark is never closed")
    as_text = [
        field.name
        for field in table.schema
        if pa.types.is_temporal(field.type)
        or (field.name.strip() in text and not pa.types.is_string(field.type))
    ]
    if as_text:
        table = _attempt(lambda: parse(as_text), where, "cannot be read as a table")
    return table


def _line_not_utf8(path: Path, *, packed: bool) -> int | None:
    """Number of the first line that is not UTF-8.

    Before Arrow sees the file: it makes a column of bytes of such text, and prints a row that is
    both too long and not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    with (gzip.open if packed else open)(path, "rb") as raw:
        while True:
            chunk = raw.read(_CHUNK_BYTES)
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                return line + error.object[: error.start].count(b"\n")
            if not chunk:
                return None
            line += chunk.count(b"\n")


def _header(path: Path, *, packed: bool, where: str) -> str:
    """First line that is not blank, if there is another one."""
    opened = gzip.open if packed else open
    with opened(path, "rb") as raw, io.TextIOWrapper(raw, encoding="utf-8-sig") as lines:
        header = _next_line(lines)
        row = _next_line(lines)
    if not header:
        raise SiteFault("no-rows", f"{where}: the file is empty")
    if not header.strip().replace("\t", " ").isprintable():
        raise SiteFault("unreadable-file", f"{where}: not a text file")
    if not row:
        raise SiteFault("no-rows", f"{where}: no rows")
    return header


def _next_line(lines: io.TextIOWrapper) -> str:
    """Next line that is not blank; empty at the end of the file."""
    while line := lines.readline(_BLOCK_BYTES):
        if line.strip():
            break
    return line


def _separator(header: str, where: str) -> str:
    unquoted = re.sub(r'"[^"]*"?', "", header)
    counts = {mark: unquoted.count(mark) + 1 for mark in SEPARATORS}
    best = max(counts.values())
    found = [mark for mark, count in counts.items() if count == best]
    if best > 1 and len(found) > 1:
        words = " and by ".join(SEPARATORS[mark] for mark in found)
        raise SiteFault(
            "unreadable-file", f"{where}: the header splits into {best} names by {words}; use one"
        )
    return found[0]


def _parse(
    path: Path, where: str, *, packed: bool, separator: str, text: Sequence[str]
) -> pa.Table:
    """Parse strictly: a row with another number of values than the header refuses the file."""
    ragged: list[tuple[int, int]] = []

    def note(row: arrow_csv.InvalidRow) -> str:
        ragged.append((row.number, row.actual_columns))
        return "skip"

    with pa.input_stream(str(path), compression="gzip" if packed else None) as stream:
        table = arrow_csv.read_csv(
            stream,
            # One thread costs little here and lets Arrow count rows.
            read_options=arrow_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            parse_options=arrow_csv.ParseOptions(
                delimiter=separator, newlines_in_values=True, invalid_row_handler=note
            ),
            convert_options=arrow_csv.ConvertOptions(
                strings_can_be_null=True,
                # Without 1 and 0, which would make booleans of a column of "true" and "0".
                true_values=["True", "TRUE", "true"],
                false_values=["False", "FALSE", "false"],
                column_types=dict.fromkeys(text, pa.string()),
            ),
        )
    if ragged:
        number, values = ragged[0]
        raise SiteFault(
            "unreadable-file",
            f"{where}: every row must have {table.num_columns} values, as many as the header "
            f"({SEPARATORS[separator]}-separated); rows that do not: {len(ragged)}, the first of "
            f"them row {number} (the header is row 1) with {values}",
        )
    return table


def _ends_in_open_quote(path: Path, table: pa.Table, *, packed: bool) -> bool:
    """Whether a quotation mark that is never closed swallowed the rows that follow it.

    Arrow says nothing then. What was swallowed is the last value of the last row, line ends
    included; a value that may have line ends is closed, and so ends the file, by a mark.
    """
    if table.num_rows == 0 or not pa.types.is_string(table.schema.types[-1]):
        return False
    last = table.column(table.num_columns - 1)[-1].as_py()
    if last is None or not ("\n" in last or "\r" in last):
        return False
    end = b""
    with (gzip.open if packed else open)(path, "rb") as lines:
        for line in lines:
            end = line.rstrip() or end
    return not end.endswith(b'"')


def _to_pandas(table: pa.Table) -> pd.DataFrame:
    for at, field in enumerate(table.schema):
        # Columns without any value, and the decimals of data bases, are numbers for us.
        if pa.types.is_null(field.type) or pa.types.is_decimal(field.type):
            numbers = table.column(at).cast(pa.float64())
            table = table.set_column(at, field.name, numbers)
    return table.to_pandas(ignore_metadata=True)


def _arrow_column(column: pd.Series) -> pa.Array:
    try:
        return pa.array(column, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        words = column.astype(object).map(str, na_action="ignore")
        return pa.array(words, type=pa.string(), from_pandas=True)
