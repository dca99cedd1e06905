"""Columns of text as numbers: how they are declared, and the categories of one column.

A party codes its own columns by its own training rows. Categories stay with it: others see
features of numbers, as of any column. A category that the training rows lack counts as missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tasks.vertical_xgboost.buckets import Float32Array
from tasks.vertical_xgboost.config import TextCoding

Coding = Literal["sorted", "one-hot"]
CodeArray = NDArray[np.int32]

MOST_CATEGORIES: Mapping[Coding, int] = {"sorted": 255, "one-hot": 64}
"""Different values of one column: a bucket each, or a feature each. More is free text, or an id."""

_WORDS = ", ".join(get_args(TextCoding))


@dataclass(frozen=True)
class Categories:
    """The categories of a column, as its features were made in the training.

    Parameters
    ----------
    column : str
        In the party's rows.
    coding : {"sorted", "one-hot"}
        One feature, the place of the category counted from 0; or a feature a category, 1 where
        a row has it and 0 where it has another.
    names : tuple of str
        In the order of their places.
    """

    column: str
    coding: Coding
    names: tuple[str, ...]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The column's own name, or ``column=category`` of each."""
        if self.coding == "sorted":
            return (self.column,)
        return tuple(f"{self.column}={name}" for name in self.names)

    def features(self, codes: CodeArray) -> Float32Array:
        """Features of rows.

        Parameters
        ----------
        codes : (n,) int32
            Place of each row's category, -1 where it is missing.

        Returns
        -------
        (n, p) float32
            NaN in all of them where the category is missing.
        """
        if self.coding == "sorted":
            found = codes[:, np.newaxis].astype(np.float32)
        else:
            places = np.arange(len(self.names), dtype=np.int32)
            found = (codes[:, np.newaxis] == places).astype(np.float32)
        found[codes < 0] = np.nan
        return found


@dataclass(frozen=True)
class ColumnCoding:
    """What a party declares of one of its columns.

    Parameters
    ----------
    coding : {"refuse", "sorted", "one-hot"}
    names : tuple of str
        All categories in their order; empty: those of the training rows, sorted.
    """

    coding: TextCoding
    names: tuple[str, ...] = ()

    @property
    def holds_for_numbers(self) -> bool:
        """Whether a column of numbers is coded too; sorted ones would be as they are."""
        return bool(self.names) or self.coding == "one-hot"


@dataclass(frozen=True)
class TextCodings:
    """How a party's columns of text become features.

    Parameters
    ----------
    default : {"refuse", "sorted", "one-hot"}
        Of columns that are not declared.
    columns : mapping of str to ColumnCoding
    """

    default: TextCoding = "refuse"
    columns: Mapping[str, ColumnCoding] = field(default_factory=dict)

    def of(self, column: str) -> ColumnCoding:
        """What holds for a column."""
        return self.columns.get(column) or ColumnCoding(self.default)

    @classmethod
    def of_categories(cls, categories: Iterable[Categories]) -> TextCodings:
        """Codings of a training, for new rows; other text is refused, as it was no feature."""
        return cls("refuse", {c.column: ColumnCoding(c.coding, c.names) for c in categories})


def parse_codings(text: str, *, default: TextCoding) -> TextCodings:
    """Read ``categorical`` of a node configuration.

    One of ``refuse``, ``sorted`` and ``one-hot`` for all columns of text; or entries separated
    by ``;``: such a word, ``column=`` such a word, ``column=I<II<III`` (an order) or
    ``column=a,b,c`` (one-hot). White space around names is dropped.

    Parameters
    ----------
    text : str
    default : {"refuse", "sorted", "one-hot"}
        Of the run; holds where the text says nothing else.

    Raises
    ------
    ValueError
        With all that is wrong; entries are told by position, since columns are the party's own.
    """
    faults: list[str] = []
    columns: dict[str, ColumnCoding] = {}
    words: Mapping[str, TextCoding] = {word: word for word in get_args(TextCoding)}
    for at, entry in enumerate(filter(None, map(str.strip, text.split(";"))), start=1):
        if entry in words:
            default = words[entry]
            continue
        column, _, listed = (part.strip() for part in entry.partition("="))
        if not column or not listed:
            faults.append(f"entry {at}: must be {_WORDS}, or column=..., column=a<b<c, column=a,b")
            continue
        if column in columns:
            faults.append(f"entry {at}: declares a column again")
        coding = ColumnCoding(words[listed]) if listed in words else _declared(listed)
        if isinstance(coding, str):
            faults.append(f"entry {at}: {coding}")
        else:
            columns[column] = coding
    if faults:
        raise ValueError("; ".join(faults))
    return TextCodings(default, columns)


def _declared(listed: str) -> ColumnCoding | str:
    """Categories as they are listed, or what is wrong with them."""
    ordered = "<" in listed
    if ordered and "," in listed:
        return 'must have either "<" or "," between categories'
    names = tuple(name.strip() for name in listed.split("<" if ordered else ","))
    coding: Coding = "sorted" if ordered else "one-hot"
    if len(names) < 2 or not all(names):
        return f"must be {_WORDS}, or two categories or more, none of them empty"
    if max(Counter(names).values()) > 1:
        return "must name each category once"
    if len(names) > MOST_CATEGORIES[coding]:
        return f"{len(names)} categories; allowed are {MOST_CATEGORIES[coding]}"
    return ColumnCoding(coding, names)


def category_names(column: pd.Series) -> list[str] | None:
    """Category of each cell, "" if it is missing; None if cells are neither text nor numbers.

    Text without surrounding white space; of a number its shortest form, so that 1, 1.0 and "1"
    are one category. Text that UTF-8 has not, and whole numbers beyond doubles, are none: no file
    of a model could hold them.
    """
    cells, gaps = column.astype(object).tolist(), column.isna().tolist()
    names = ["" if gap else _category_name(cell) for cell, gap in zip(cells, gaps, strict=True)]
    return None if any(name is None for name in names) else [name or "" for name in names]


def _category_name(cell: object) -> str | None:
    if isinstance(cell, str):
        return cell.strip() if is_encodable(cell) else None
    if isinstance(cell, bool | np.bool_):
        return str(bool(cell)).lower()
    if isinstance(cell, Real):
        try:
            number = float(cell)
        except OverflowError:
            return None
        return str(int(number)) if number.is_integer() else repr(number)
    return None


def is_encodable(text: str) -> bool:
    """Whether UTF-8 has the text: half of a surrogate pair is none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def places_of(names: Sequence[str], known: Sequence[str]) -> CodeArray:
    """Place of each category among the known ones, (n,); -1 if it is missing or none of them."""
    places = {name: place for place, name in enumerate(known)}
    return np.array([places.get(name, -1) for name in names], dtype=np.int32)
