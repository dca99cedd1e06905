"""From a table, as somebody has it who predicts, to the matrix that an encoding takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tasks.survival.categories import category_codes, category_names, ordinal_numbers
from tasks.survival.encoding import ColumnEncoding, FeatureEncoding
from tasks.survival.feature_columns import NUMBER_TYPES, number_of

FloatArray = NDArray[np.float64]


def feature_matrix(
    frame: pd.DataFrame,
    feature_names: tuple[str, ...],
    encoding: Mapping[str, Mapping[str, float]],
    inputs: FeatureEncoding | None = None,
) -> FloatArray:
    """Return columns of a table as numbers: what `FeatureEncoding` takes.

    Parameters
    ----------
    frame : DataFrame
        Has the columns, in any order; others are ignored.
    feature_names : tuple of str
        Columns, in the order of the result's.
    encoding : mapping of str to mapping of str to float
        Text columns of numbered categories: the number of each.
    inputs : FeatureEncoding or None
        Says which columns are coded as categories, and where values may be missing.

    Returns
    -------
    ndarray, shape (n, columns)

    Raises
    ------
    ValueError
        With all faults of all columns, and no value.
    """
    faults, columns = [], []
    kinds = {column.name: column for column in inputs.columns} if inputs else {}
    counts = frame.columns.value_counts()
    for name in feature_names:
        if counts.get(name, 0) != 1:
            faults.append(f'column "{name}" ' + ("is missing" if name not in counts else "repeats"))
            continue
        kind = kinds.get(name, ColumnEncoding(name))
        if kind.kind == "numeric":
            values, found = _column(frame[name], encoding.get(name), kind.allows_missing)
        else:
            values, found = _categories(frame[name], kind)
        faults += [f'column "{name}": {fault}' for fault in found]
        columns.append(values)
    if faults:
        raise ValueError("; ".join(faults))
    return np.column_stack(columns)


def _categories(column: pd.Series[Any], kind: ColumnEncoding) -> tuple[FloatArray, list[str]]:
    """Places or codes of a column's categories (NaN where it is missing), and its faults."""
    names = category_names(column)
    missing = sum(name is None for name in names)
    unknown = sum(name is not None and name not in kind.categories for name in names)
    values = (
        ordinal_numbers(names, kind.categories) if kind.kind == "ordinal" else category_codes(names)
    )
    counts = (
        (0 if kind.allows_missing else missing, "are missing"),
        (unknown if kind.closed else 0, f"are none of {', '.join(kind.categories)}"),
    )
    return values, [f"{n} of {len(names)} values {fault}" for n, fault in counts if n]


def _column(
    column: pd.Series[Any], categories: Mapping[str, float] | None, allows_missing: bool = False
) -> tuple[FloatArray, list[str]]:
    """Values of a column as numbers (NaN where there is none), and its faults."""
    missing = column.isna().to_numpy()
    numeric = column.dtype.kind in "biuf"
    if numeric:
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        values = np.array([_number(cell, categories or {}) for cell in column], dtype=np.float64)
    if categories is None:
        unknown, words = np.isnan(values) & ~missing, "are not numbers"
    else:
        unknown = ~np.isin(values, list(categories.values())) & ~missing
        words = f"are none of {', '.join(categories)}"
    infinite = np.isinf(values) & ~unknown
    absent = missing & (not allows_missing)
    kinds = ((absent, "are missing"), (unknown, words), (infinite, "are infinite"))
    return values, [
        f"{found.sum()} of {len(column)} values {fault}" for found, fault in kinds if found.any()
    ]


def _number(cell: object, categories: Mapping[str, float]) -> float:
    if isinstance(cell, str):
        return categories.get(cell, np.nan)
    return number_of(cell) if isinstance(cell, NUMBER_TYPES) else np.nan
