"""From the columns of a table to the inputs of a model, the same way at all sites.

A column of numbers is one input. So is one of ordered categories, which are numbered 1, 2, ....
Other categories have an input each, which is 1 for their rows and 0 for others: none is dropped,
since the models here are penalized, and a category that the list does not have (where the list is
the union of what sites told) is then told from all others, its inputs being all 0. Missing numbers
are filled in by a federated median; missing categories have an input of their own.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tasks.survival.categories import category_code

ColumnKind = Literal["numeric", "ordinal", "one-hot"]


@dataclass(frozen=True)
class ColumnEncoding:
    """How one column becomes inputs.

    Attributes
    ----------
    name : str
        The column's.
    kind : {"numeric", "ordinal", "one-hot"}
    categories : tuple of str
        In the order of their numbers or inputs; empty for numbers.
    closed : bool
        Whether a category outside the list is refused (declared lists); otherwise it is all 0.
    fill : float or None
        What stands for a missing number; None: none may be missing.
    indicator : bool
        Whether missing categories have an input; otherwise none may be missing.
    """

    name: str
    kind: ColumnKind = "numeric"
    categories: tuple[str, ...] = ()
    closed: bool = True
    fill: float | None = None
    indicator: bool = False

    @property
    def allows_missing(self) -> bool:
        """Whether values may be missing."""
        return self.indicator if self.kind == "one-hot" else self.fill is not None

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs: the column's, or ``column=category`` for each."""
        if self.kind != "one-hot":
            return (self.name,)
        missing = (f"{self.name} is missing",) if self.indicator else ()
        return (*(f"{self.name}={category}" for category in self.categories), *missing)

    def apply(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Inputs of a column, shape (n, inputs), from its numbers or codes, shape (n,)."""
        if self.kind != "one-hot":
            filled = values[:, None].copy()
            if self.fill is not None:
                filled[np.isnan(filled)] = self.fill
            return filled
        codes = np.array([category_code(name) for name in self.categories])
        hits = values[:, None] == codes
        if self.indicator:
            hits = np.column_stack([hits, np.isnan(values)])
        return np.asarray(hits, dtype=np.float64)


@dataclass(frozen=True)
class FeatureEncoding:
    """How all columns become inputs.

    Attributes
    ----------
    columns : tuple of ColumnEncoding
        In the order of the table's feature columns; of different names.

    Raises
    ------
    ValueError
        If two inputs have one name, or there is none.
    """

    columns: tuple[ColumnEncoding, ...]

    def __post_init__(self) -> None:
        counts = Counter(self.input_names)
        repeated = sorted(name for name, count in counts.items() if count > 1)
        if repeated:
            raise ValueError(f"two inputs of the model would be named {', '.join(repeated)}")
        if not counts:
            raise ValueError("the model would have no input")

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the model's inputs."""
        return tuple(name for column in self.columns for name in column.input_names)

    @property
    def is_plain(self) -> bool:
        """Whether every column is its input as it is."""
        return all(column.kind == "numeric" and column.fill is None for column in self.columns)

    def apply(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Inputs, shape (n, p), from numbers and codes, shape (n, columns).

        Raises
        ------
        ValueError
            If there are other columns, or a value is missing where none may be.
        """
        if features.ndim != 2 or features.shape[1] != len(self.columns):
            raise ValueError(
                f"features have shape {features.shape}; allowed: (n, {len(self.columns)})"
            )
        missing = [
            column.name
            for column, values in zip(self.columns, features.T, strict=True)
            if not column.allows_missing and np.isnan(values).any()
        ]
        if missing:
            raise ValueError(f"values are missing in {', '.join(missing)}")
        parts = [
            column.apply(values) for column, values in zip(self.columns, features.T, strict=True)
        ]
        return np.column_stack(parts)

    def to_json(self) -> str:
        """Return the encoding as text."""
        return json.dumps([asdict(column) for column in self.columns], allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> FeatureEncoding:
        """Read what `to_json` wrote; raises ValueError if it is of another form."""
        try:
            return cls(tuple(_column_of(entry) for entry in json.loads(text)))
        except (TypeError, KeyError) as error:
            raise ValueError(f"no encoding of features ({type(error).__name__})") from None


def _column_of(entry: dict[str, Any]) -> ColumnEncoding:
    fill = entry["fill"]
    if entry["kind"] not in get_args(ColumnKind):
        raise ValueError("no encoding of features (another kind of column)")
    if fill is not None and not np.isfinite(fill):
        raise ValueError("no encoding of features (a fill that is no finite number)")
    return ColumnEncoding(
        name=str(entry["name"]),
        kind=entry["kind"],
        categories=tuple(map(str, entry["categories"])),
        closed=bool(entry["closed"]),
        fill=None if fill is None else float(fill),
        indicator=bool(entry["indicator"]),
    )
