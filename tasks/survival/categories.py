"""Categories of text columns: how they are declared, read and coded.

A site holds a category as a number that follows from its name alone, so that the columns of all
sites are coded alike before anyone knows which categories there are. These numbers never leave.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

LONGEST_CATEGORY = 100
"""Most characters of a category's name."""

MOST_CATEGORIES = 256
"""Most categories of one column."""


@dataclass(frozen=True)
class DeclaredCategories:
    """Categories of a column as the configuration lists them.

    Attributes
    ----------
    names : tuple of str
        At least two, different.
    ordered : bool
        True: one input with the numbers 1, 2, ... in this order; False: one input a category.
    """

    names: tuple[str, ...]
    ordered: bool


def parse_categories(text: str) -> dict[str, DeclaredCategories]:
    """Read declared categories, ``"grade=I<II<III; hormone=yes,no"``.

    Columns are separated by ``;``, their name and categories by the first ``=``, and categories
    by ``<`` (in ascending order) or ``,`` (without order). White space around names is dropped.

    Raises
    ------
    ValueError
        With all that is wrong.
    """
    faults: list[str] = []
    declared: dict[str, DeclaredCategories] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        column, separator, listed = part.partition("=")
        column = column.strip()
        ordered = "<" in listed
        names = tuple(name.strip() for name in listed.split("<" if ordered else ","))
        found = []
        if not separator or not column:
            found.append('must be "column=category,category" or "column=category<category"')
        elif ordered and "," in listed:
            found.append('must have either "<" or "," between its categories')
        elif len(names) < 2 or not all(names):
            found.append("must have two categories or more, none of them empty")
        elif "=" in listed:
            found.append("must have categories without '=' in their names")
        elif repeated := sorted(name for name, n in Counter(names).items() if n > 1):
            found.append(f"must name each category once: {', '.join(repeated)}")
        elif len(names) > MOST_CATEGORIES or max(map(len, names)) > LONGEST_CATEGORY:
            found.append(
                f"must have at most {MOST_CATEGORIES} categories of {LONGEST_CATEGORY} characters"
            )
        if column in declared:
            found.append("is declared more than once")
        faults += [f"{column or part!r} {fault}" for fault in found]
        declared[column] = DeclaredCategories(names, ordered)
    if faults:
        raise ValueError("; ".join(faults))
    return declared


def category_names(column: pd.Series[Any]) -> list[str | None]:
    """Category of each cell; None if it is missing.

    Text without surrounding white space, empty text being missing; of a number its shortest
    form, so that 1, 1.0 and "1" are one category; of anything else what `str` gives.
    """
    cells = column.astype(object)
    return [
        None if absent else _category_name(cell)
        for cell, absent in zip(cells, column.isna(), strict=True)
    ]


def _category_name(cell: object) -> str | None:
    if isinstance(cell, Real) and not isinstance(cell, bool | np.bool_):
        number = float(cell)
        if number.is_integer():
            return str(int(number))
        return None if math.isnan(number) else repr(number)
    return str(cell).strip() or None


def category_code(name: str) -> float:
    """Number that stands for a category at all sites: 52 bits of its name's SHA-256."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return float(int.from_bytes(digest[:8], "big") >> 12)


def category_codes(names: Sequence[str | None]) -> NDArray[np.float64]:
    """Codes of a column's cells, shape (n,); NaN where missing."""
    known = {name: category_code(name) for name in set(names) if name is not None}
    return np.array([math.nan if n is None else known[n] for n in names], dtype=np.float64)


def ordinal_numbers(names: Sequence[str | None], order: Sequence[str]) -> NDArray[np.float64]:
    """Places 1, 2, ... of a column's cells in a declared order; NaN where missing or unknown."""
    places = {name: float(place) for place, name in enumerate(order, start=1)}
    return np.array([places.get(n, math.nan) if n else math.nan for n in names], dtype=np.float64)
