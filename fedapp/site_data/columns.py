"""What the columns of a table must fulfil before any task looks at them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import pandas as pd

from tasks.site.faults import SiteFault

LONGEST_NAME = 256

# "Unnamed: 0" is what pandas makes of a header without a name, and then writes into the next file.
_UNNAMED = re.compile(r"(Unnamed: \d+(\.\d+)*)?")
_INDEX_LEVEL = re.compile(r"__index_level_\d+__")
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")


def checked_columns(
    names: Sequence[object], *, where: str, header_is_text: bool = False
) -> dict[int, str]:
    """Positions and names of the columns to keep.

    Row labels are dropped: a first column without a name (R and pandas write one) and the index
    levels that pandas stores in Parquet. No configuration could name them, yet they would
    become features where features are "every other column".

    Faults say positions, not names: the header of a file without one is its first row.

    Parameters
    ----------
    names : sequence
        Names as they stand in the table.
    where : str
        What the table is called in a fault, for example ``data-path "/data/a.csv"``.
    header_is_text : bool
        The names are the first line of a text file; names that are numbers then mean that the
        file has no header.

    Returns
    -------
    dict of int to str
        Position (from 0) to name without surrounding white space, in the order of the table.

    Raises
    ------
    SiteFault
        ``bad-columns``, with every reason found.
    """
    text = {at: name.strip() for at, name in enumerate(names) if isinstance(name, str)}
    unlabelled = [at for at, name in text.items() if _UNNAMED.fullmatch(name)]
    dropped = {at for at, name in text.items() if _INDEX_LEVEL.fullmatch(name)}
    dropped.update(at for at in unlabelled if at == 0)
    kept = {at: name for at, name in text.items() if at not in dropped}

    numbers = [at for at, name in kept.items() if header_is_text and _NUMBER.fullmatch(name)]
    if numbers:
        raise SiteFault(
            "bad-columns",
            f"{where}: {len(numbers)} of {len(names)} column names are numbers "
            f"(column {_positions(numbers)}); the first line must hold the column names, "
            "and a name must not be a number",
        )
    repeated = {name for name, count in Counter(kept.values()).items() if count > 1 and name}
    checks = {
        "have a name that is not text": [at for at in range(len(names)) if at not in text],
        "have no name; only a first column of row labels may": [at for at in unlabelled if at],
        "share a name with another column": [at for at in kept if kept[at] in repeated],
        f"have a name that is not printable or longer than {LONGEST_NAME} characters": [
            at for at in kept if len(kept[at]) > LONGEST_NAME or not kept[at].isprintable()
        ],
    }
    reasons = [
        f"{where}: {len(found)} of {len(names)} columns {fault} (column {_positions(found)})"
        for fault, found in checks.items()
        if found
    ]
    if not kept and not reasons:
        reasons.append(f"{where}: no columns")
    if reasons:
        raise SiteFault("bad-columns", *reasons)
    return kept


def checked_frame(frame: pd.DataFrame, *, where: str) -> pd.DataFrame:
    """Copy of a frame with sound column names, rows numbered from 0 and no row labels.

    The index is dropped, named or not: a frame's index is no column.

    Raises
    ------
    TypeError
        If it is no pandas DataFrame.
    SiteFault
        ``bad-columns`` (see `checked_columns`) or ``no-rows``.
    """
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"{where}: must be a pandas DataFrame, not {type(frame).__name__}")
    kept = checked_columns(list(frame.columns), where=where)
    if len(frame) == 0:
        raise SiteFault("no-rows", f"{where}: no rows")
    copy = frame.iloc[:, list(kept)].reset_index(drop=True)
    copy.columns = pd.Index(list(kept.values()))
    return copy


def _positions(found: Sequence[int], most: int = 5) -> str:
    """Positions counted from 1, as a spreadsheet would; the first few of many."""
    listed = ", ".join(str(at + 1) for at in found[:most])
    return listed + (", ..." if len(found) > most else "")
