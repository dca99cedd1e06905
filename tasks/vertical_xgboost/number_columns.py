"""A column of a table as real numbers, whatever type its gaps have given it."""

from __future__ import annotations

import re
from numbers import Real

import numpy as np
import pandas as pd

from tasks.vertical_xgboost.fixed_point import FloatArray

_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def numbers_of(column: pd.Series, *, truth: bool = True, blanks: bool = False) -> FloatArray | None:
    """A column as numbers, NaN where it has gaps; None if it holds anything else.

    A column of true and false with gaps, or one without any value, has no type of numbers in
    pandas. Text is not read as a number (which spelling would hold?), unless blanks are gaps: one
    blank in a CSV file makes text of all numbers of its column.

    Parameters
    ----------
    column : Series
    truth : bool
        True and false are 1 and 0; else no numbers.
    blanks : bool
        Empty and blank text is a gap too, and decimal numbers as text are numbers.

    Returns
    -------
    (n,) float64 or None
    """
    if pd.api.types.is_numeric_dtype(column.dtype):
        if column.dtype.kind == "c" or (column.dtype.kind == "b" and not truth):
            return None
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    is_gap = column.isna().to_numpy(dtype=np.bool_)
    values = np.full(len(column), np.nan)
    for at in np.flatnonzero(~is_gap):
        value = column.iat[at]
        if blanks and isinstance(value, str):
            text = value.strip()
            if text and _DECIMAL.fullmatch(text) is None:
                return None
            values[at] = float(text or "nan")
            continue
        is_truth = isinstance(value, bool | np.bool_)
        if not (is_truth or isinstance(value, Real)) or (is_truth and not truth):
            return None
        try:
            values[at] = float(value)
        except OverflowError:
            values[at] = np.inf
    return values
