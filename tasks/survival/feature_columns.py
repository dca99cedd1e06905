"""Feature columns of a site's table: read as numbers, checked without saying what a row holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tasks.survival.categories import (
    DeclaredCategories,
    category_code,
    category_codes,
    category_names,
    ordinal_numbers,
)
from tasks.survival.standardization import LARGEST_MAGNITUDE

NUMBER_TYPES = (Real, Decimal, np.bool_)

Texts = Mapping[float, str]

_FILLED = 'which survival.missing = "median" would fill in'


def numbers_of(column: pd.Series[Any]) -> NDArray[np.float64] | None:
    """The column as float64 with NaN where a value is missing; None if it holds no numbers."""
    dtype = column.dtype
    if pd.api.types.is_complex_dtype(dtype):
        return None
    if pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_bool_dtype(dtype):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    if pd.api.types.is_object_dtype(dtype):
        missing = column.isna().to_numpy()
        cells = np.where(missing, np.nan, column.to_numpy(dtype=object))
        if all(isinstance(cell, NUMBER_TYPES) for cell in cells):
            return np.array([number_of(cell) for cell in cells], dtype=np.float64)
    return None


def number_of(cell: Any) -> float:
    """The cell as a float: NaN if it cannot be read as one, infinite if it is too large."""
    try:
        return float(cell)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return math.nan


def read_features(
    frame: pd.DataFrame,
    names: Sequence[str],
    *,
    categories: Mapping[str, DeclaredCategories],
    allow_missing: bool,
) -> tuple[NDArray[np.float64], dict[str, Texts], list[str]]:
    """Feature matrix, categories of its columns of text, and what is wrong with it.

    Parameters
    ----------
    frame : DataFrame
        Its columns `names` exist once.
    names : sequence of str
        Columns, in the order wanted.
    categories : mapping of str to DeclaredCategories
        Declared ones, by column.
    allow_missing : bool
        Whether values may be missing.

    Returns
    -------
    features : ndarray, shape (n, p)
        See `tasks.survival.data.SurvivalData`; of no use if anything is wrong.
    texts : dict of str to mapping of float to str
        Category by code, for the columns of text without declared categories.
    faults : list of str
    """
    columns, strange, faults = [], [], []
    texts: dict[str, Texts] = {}
    for name in names:
        found: list[str] = []
        values = numbers_of(frame[name])
        if name in categories:
            values, found = _declared(frame[name], categories[name])
        elif values is None:
            values = _codes(frame[name])
            if values is None:
                strange.append(repr(name))
                continue
            texts[name] = {category_code(n): n for n in category_names(frame[name]) if n}
        else:
            found = _number_faults(values)
        if not allow_missing and (n_missing := int(np.isnan(values).sum())):
            found.insert(0, f"{n_missing} of {len(values)} rows are missing (NaN), {_FILLED}")
        faults += [f"feature column {name!r}: {fault}" for fault in found]
        columns.append(values)
    if strange:
        faults.append(
            f"feature columns of neither numbers nor categories: {', '.join(strange)}; dates and "
            "numbers among text must be coded as numbers before or left out of the features, "
            "numbers that stand for categories declared in survival.categories"
        )
    empty = np.empty((len(frame), 0))
    return (np.column_stack(columns) if columns else empty), texts, faults


def _declared(
    column: pd.Series[Any], declared: DeclaredCategories
) -> tuple[NDArray[np.float64], list[str]]:
    names = category_names(column)
    unknown = sum(name is not None and name not in declared.names for name in names)
    values = (
        ordinal_numbers(names, declared.names)
        if declared.ordered
        else category_codes([name if name in declared.names else None for name in names])
    )
    if not unknown:
        return values, []
    listed = ", ".join(declared.names)
    # What is unknown is NaN, too: it would be counted as missing.
    absent = np.array([name is None for name in names])
    values = np.where(np.isnan(values) & ~absent, 0.0, values)
    return values, [f"{unknown} of {len(names)} rows are none of {listed} (survival.categories)"]


def _codes(column: pd.Series[Any]) -> NDArray[np.float64] | None:
    """Codes of a column of text; None if it holds anything else, or numbers among it."""
    cells = column.astype(object)[column.notna().to_numpy()]
    is_text = all(isinstance(cell, str) and math.isnan(number_of(cell)) for cell in cells)
    return category_codes(category_names(column)) if is_text else None


def _number_faults(values: NDArray[np.float64]) -> list[str]:
    n_infinite = int(np.isinf(values).sum())
    n_huge = int((np.abs(values) > LARGEST_MAGNITUDE).sum()) - n_infinite
    counts = ((n_infinite, "infinite"), (n_huge, f"beyond ±{LARGEST_MAGNITUDE:g}"))
    return [f"{count} of {len(values)} rows are {what}" for count, what in counts if count]
