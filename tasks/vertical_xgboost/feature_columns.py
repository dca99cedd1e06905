"""A party's columns as its file has them, and the features that are made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.buckets import BoolArray, Float32Array
from tasks.vertical_xgboost.candidates import IntpArray
from tasks.vertical_xgboost.categorical import (
    MOST_CATEGORIES,
    Categories,
    CodeArray,
    Coding,
    TextCodings,
    category_names,
    places_of,
)
from tasks.vertical_xgboost.number_columns import numbers_of


@dataclass(frozen=True, eq=False)
class Features:
    """What is trained on.

    Parameters
    ----------
    names : tuple of str
    values : (n, p) float32
        NaN where missing.
    categories : tuple of Categories
        Of columns that were coded.
    unknown : dict of str to int
        Rows of each of these columns whose category is none of them.
    """

    names: tuple[str, ...]
    values: Float32Array
    categories: tuple[Categories, ...] = ()
    unknown: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Column:
    """A column: numbers, or categories.

    Parameters
    ----------
    name : str
    values : (n,) float32
        Of numbers; of categories their places among `spellings`, -1 where missing.
    spellings : tuple of str or None
        All that some row has, sorted; None: numbers.
    """

    name: str
    values: Float32Array
    spellings: tuple[str, ...] | None = None

    @property
    def codes(self) -> CodeArray:
        """Places of categories."""
        return self.values.astype(np.int32)


@dataclass(frozen=True, eq=False)
class FeatureColumns:
    """A party's columns, not yet coded.

    Parameters
    ----------
    columns : tuple of Column
    codings : TextCodings
    from_model : bool
        Codings are those of a finished training: unknown categories are missing ones. In a
        training a declaration that lacks some is a mistake.
    """

    columns: tuple[Column, ...]
    codings: TextCodings
    from_model: bool = False

    @property
    def has_text(self) -> bool:
        """Whether some column is coded."""
        return any(column.spellings is not None for column in self.columns)

    def rows(self, places: IntpArray) -> FeatureColumns:
        """Some of the rows, in any order."""
        columns = tuple(replace(each, values=each.values[places]) for each in self.columns)
        return replace(self, columns=columns)

    def coded(self, is_training: BoolArray) -> Features:
        """Features of all rows, with categories of the training rows.

        Parameters
        ----------
        is_training : (n,) bool

        Raises
        ------
        SiteFault
            ``"bad-features"``: columns with too many categories, or some that their declaration
            lacks. Columns are told by position, and how many; never a category.
        """
        names: list[str] = []
        blocks: list[Float32Array] = []
        found: list[Categories] = []
        unknown: dict[str, int] = {}
        faults: list[str] = []
        for at, column in enumerate(self.columns, start=1):
            if column.spellings is None:
                names.append(column.name)
                blocks.append(column.values[:, np.newaxis])
                continue
            categories, codes, fault = self._categories(column, is_training)
            faults += [f"feature {at}: {fault}"] if fault else []
            names += categories.feature_names
            blocks.append(categories.features(codes))
            found.append(categories)
            unknown[column.name] = int(np.count_nonzero((codes < 0) & (column.codes >= 0)))
        if max(Counter(names).values(), default=0) > 1:
            faults.append("two features have the same name, one of them made of column=category")
        if faults:
            raise SiteFault("bad-features", *faults)
        values = np.concatenate(
            [*blocks, np.empty((len(is_training), 0), dtype=np.float32)], axis=1
        )
        return Features(tuple(names), values, tuple(found), unknown)

    def _categories(
        self, column: Column, is_training: BoolArray
    ) -> tuple[Categories, CodeArray, str]:
        """Categories of a column, the place of each row's among them, and what is wrong."""
        assert column.spellings is not None
        declared, codes = self.codings.of(column.name), column.codes
        coding: Coding = "one-hot" if declared.coding == "one-hot" else "sorted"
        present = codes[is_training & (codes >= 0)]
        names = declared.names
        is_known = bool(names) or (self.from_model and column.name in self.codings.columns)
        if not is_known:
            names = tuple(column.spellings[place] for place in np.unique(present))
        places = places_of(column.spellings, names)
        found = np.append(places, np.int32(-1))[codes]  # -1, missing, is the place appended
        fault = ""
        if not is_known and len(names) > MOST_CATEGORIES[coding]:
            fault = (
                f"{len(names)} different values; categorical = {coding!r} allows "
                f"{MOST_CATEGORIES[coding]}"
            )
            names = names[:1]
        elif is_known and not self.from_model:
            lacking = int(np.count_nonzero((found < 0) & (codes >= 0)))
            fault = f"{lacking} rows have a value that is not declared" if lacking else ""
        return Categories(column.name, coding, names), found, fault


def read_columns(
    frame: pd.DataFrame, names: Sequence[str], codings: TextCodings, *, from_model: bool = False
) -> FeatureColumns:
    """Read columns of numbers, and of text where it is to be coded.

    Parameters
    ----------
    frame : DataFrame
    names : sequence of str
        Columns that are features.
    codings : TextCodings
    from_model : bool
        As `FeatureColumns` has it.

    Raises
    ------
    SiteFault
        ``"bad-features"``: columns are told by position, since names are the party's own.
    """
    columns: list[Column] = []
    not_numbers, infinite = [], []
    for at, name in enumerate(names, start=1):
        column = _column(frame[name], str(name), codings)
        if column is None:
            not_numbers.append(at)
        elif np.isinf(column.values).any():
            infinite.append(at)
        else:
            columns.append(column)
    faults = []
    if not_numbers:
        faults.append(
            f"{len(not_numbers)} of {len(names)} features are not numbers "
            f"(feature {_listed(not_numbers)}); encode them, leave them out, or let text be coded "
            "(vertical-xgboost.categorical)"
        )
    if infinite:
        faults.append(
            f"{len(infinite)} of {len(names)} features have values that are infinite as 32-bit "
            f"floats (feature {_listed(infinite)}); leave missing values empty"
        )
    if not from_model and (strangers := set(codings.columns) - set(map(str, names))):
        faults.append(
            f"node config categorical: {len(strangers)} of {len(codings.columns)} columns that it "
            "names are no features of these rows"
        )
    if faults:
        raise SiteFault("bad-features", *faults)
    return FeatureColumns(tuple(columns), codings, from_model)


def _column(column: pd.Series, name: str, codings: TextCodings) -> Column | None:
    coding = codings.of(name)
    if not (name in codings.columns and coding.holds_for_numbers):
        values = numbers_of(column)
        if values is not None:
            with np.errstate(over="ignore"):  # what 32 bits cannot hold is infinite, and refused
                return Column(name, values.astype(np.float32))
    spelled = category_names(column) if coding.coding != "refuse" else None
    if spelled is None:
        return None
    spellings = tuple(sorted(set(spelled) - {""}))
    if len(spellings) >= 1 << 24:  # places are kept as 32-bit floats
        return None
    return Column(name, places_of(spelled, spellings).astype(np.float32), spellings)


def _listed(found: list[int], most: int = 5) -> str:
    return ", ".join(map(str, found[:most])) + (", ..." if len(found) > most else "")
