"""A trained survival model in one file: from rows of a table to risks and survival curves.

The file is a NumPy ``.npz`` archive: arrays, and one of bytes that holds the rest as JSON text.
It is read without pickle, so a file from elsewhere cannot run code.
"""

from __future__ import annotations

import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

from tasks.survival.baseline import BaselineHazard
from tasks.survival.categories import category_codes, category_names, ordinal_numbers
from tasks.survival.encoding import ColumnEncoding, FeatureEncoding
from tasks.survival.feature_columns import NUMBER_TYPES, number_of
from tasks.survival.standardization import Standardizer

if TYPE_CHECKING:
    from tasks.survival.models import SurvivalModel

FloatArray = npt.NDArray[np.float64]

FORMAT = "survival-predictor"
FORMAT_VERSION = 2

_HEADER = "header"
_OWN_ARRAYS = ("standardizer/mean", "standardizer/scale", "baseline/grid", "baseline/cumulative")
_NETWORK = "network/"


@dataclass(frozen=True)
class Architecture:
    """What `tasks.survival.models.build` needs to make the network.

    Attributes
    ----------
    model : str
        Name of the model.
    hidden_layers : tuple of int
        Units of the hidden layers.
    dropout : float
        Dropout rate, in [0, 1).
    label_cuts : tuple of float
        Borders of the intervals of discrete models, ascending from 0; CoxTime's risk is that at
        the middle one.
    """

    model: str
    hidden_layers: tuple[int, ...]
    dropout: float
    label_cuts: tuple[float, ...] = (0.0, 1.0)


@dataclass(frozen=True, eq=False)
class SurvivalPredictor:
    """A trained survival model that predicts from raw rows.

    Attributes
    ----------
    feature_names : tuple of str
        Columns that a table must have, in the order of the standardizer's.
    encoding : mapping of str to mapping of str to float
        Text columns of numbered categories: the number of each. May be empty.
    standardizer : Standardizer
        From the columns to the network's inputs: other text columns, what stands for missing
        values, means and scales.
    architecture : Architecture
        How the network is built.
    arrays : mapping of str to ndarray
        The network's parameters by name.
    baseline : BaselineHazard
        Cumulative hazard that the survival curves are made of; its grid says up to which time.
        Of a discrete model, whose curves need none, it is that of all rows together.
    metadata : mapping
        Anything that JSON can hold, such as the run's configuration; predictions ignore it.

    Raises
    ------
    ValueError
        If the parts do not fit together or a parameter is not finite; all faults in one message.
    """

    feature_names: tuple[str, ...]
    encoding: Mapping[str, Mapping[str, float]]
    standardizer: Standardizer
    architecture: Architecture
    arrays: Mapping[str, npt.NDArray[Any]]
    baseline: BaselineHazard
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        faults = []
        if not self.feature_names:
            faults.append("no feature names")
        if len(set(self.feature_names)) < len(self.feature_names):
            faults.append("a feature name appears twice")
        columns = self.standardizer.encoding
        if columns is not None:
            if columns.column_names != self.feature_names:
                faults.append("feature names are not the columns that are encoded")
        elif len(self.feature_names) != self.standardizer.mean.size:
            faults.append(
                f"{len(self.feature_names)} feature names, but means and scales of "
                f"{self.standardizer.mean.size} columns"
            )
        strangers = [name for name in self.encoding if name not in self.feature_names]
        if strangers:
            faults.append(f"encoded columns that are no features: {', '.join(strangers)}")
        for name, numbers in self.encoding.items():
            if not numbers or not all(np.isfinite(number) for number in numbers.values()):
                faults.append(f'column "{name}" needs categories with finite numbers')
        if not self.arrays:
            faults.append("no network arrays")
        faults += _array_faults(self.arrays)
        if faults:
            raise ValueError("; ".join(faults))

    def risk(self, frame: pd.DataFrame) -> FloatArray:
        """Risk of each row; higher means an earlier event.

        The linear predictor (log hazard ratio) of proportional hazards; the log cumulative hazard
        up to the middle cut of discrete models; the log relative hazard at that time of CoxTime.

        Parameters
        ----------
        frame : DataFrame
            Has all of `feature_names` as columns, in any order; others are ignored. Text
            columns hold declared categories, or already their numbers. Values may be missing
            where the model was trained with missing values of that column.

        Returns
        -------
        ndarray, shape (n,)

        Raises
        ------
        ValueError
            With every column that is missing, holds missing or infinite values, text where
            numbers are expected, or a category that was not declared.
        """
        features = feature_matrix(
            frame, self.feature_names, self.encoding, self.standardizer.encoding
        )
        return self._model.risk(self.standardizer.apply(features))

    def survival(self, frame: pd.DataFrame, times: npt.ArrayLike) -> FloatArray:
        """Probability that each row has no event up to each time.

        Parameters
        ----------
        frame : DataFrame
            As for `risk`.
        times : array_like, shape (m,)
            From 0 to ``baseline.horizon``.

        Returns
        -------
        ndarray, shape (n, m)
            Rows as in the frame: ``DataFrame(result, index=frame.index, columns=times)``.

        Raises
        ------
        ValueError
            As for `risk`, or if a time is out of range.
        """
        times = np.atleast_1d(np.asarray(times, dtype=np.float64))
        self.baseline.refuse_outside(times)
        features = feature_matrix(
            frame, self.feature_names, self.encoding, self.standardizer.encoding
        )
        return self._model.survival(self.standardizer.apply(features), times, self.baseline)

    @cached_property
    def _model(self) -> SurvivalModel:
        # Importing torch takes seconds: only who predicts pays.
        from tasks.survival.models import build, load_arrays

        model = build(
            self.architecture.model,
            n_features=self.standardizer.mean.size,
            hidden_layers=self.architecture.hidden_layers,
            dropout=self.architecture.dropout,
            seed=0,  # overwritten
            horizon=self.baseline.horizon,
            cuts=np.array(self.architecture.label_cuts),
        )
        load_arrays(model.network, self.arrays)
        return model

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; who reads `path` meanwhile finds the former file or the whole new one.

        Raises
        ------
        ValueError
            If the metadata is not JSON (a NaN or infinite number is not).
        OSError
            If the file cannot be written.
        """
        path = Path(path)
        arrays: dict[str, npt.NDArray[Any]] = {
            _HEADER: np.frombuffer(self._header().encode(), dtype=np.uint8),
            "standardizer/mean": self.standardizer.mean,
            "standardizer/scale": self.standardizer.scale,
            "baseline/grid": self.baseline.grid,
            "baseline/cumulative": self.baseline.cumulative,
            **{_NETWORK + name: array for name, array in self.arrays.items()},
        }
        draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        try:
            with draft.open("xb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def _header(self) -> str:
        columns = self.standardizer.encoding
        header = _Header(
            feature_names=self.feature_names,
            encoding={name: dict(numbers) for name, numbers in self.encoding.items()},
            feature_encoding=columns.to_json() if columns else "",
            model=self.architecture.model,
            hidden_layers=self.architecture.hidden_layers,
            dropout=self.architecture.dropout,
            label_cuts=self.architecture.label_cuts,
            baseline_center=self.baseline.center,
            network_arrays=tuple(self.arrays),
            metadata=dict(self.metadata),
        )
        try:
            return json.dumps(header.model_dump(by_alias=True), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"metadata is not JSON: {error}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SurvivalPredictor:
        """Read a file that `save` wrote.

        Raises
        ------
        ValueError
            If it is no such file, damaged, of a newer format, or lacks something; the message
            names the file and everything found.
        OSError
            If there is no file or it cannot be read.
        """
        path = Path(path)
        try:
            members = _read_archive(path)
            header = _checked_header(members)
            return cls(
                feature_names=header.feature_names,
                encoding=header.encoding,
                standardizer=Standardizer(
                    mean=members["standardizer/mean"],
                    scale=members["standardizer/scale"],
                    encoding=FeatureEncoding.from_json(header.feature_encoding)
                    if header.feature_encoding
                    else None,
                ),
                architecture=Architecture(
                    header.model, header.hidden_layers, header.dropout, header.label_cuts
                ),
                arrays={name: members[_NETWORK + name] for name in header.network_arrays},
                baseline=BaselineHazard(
                    members["baseline/grid"],
                    members["baseline/cumulative"],
                    header.baseline_center,
                ),
                metadata=header.metadata,
            )
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def feature_matrix(
    frame: pd.DataFrame,
    feature_names: tuple[str, ...],
    encoding: Mapping[str, Mapping[str, float]],
    inputs: FeatureEncoding | None = None,
) -> FloatArray:
    """Columns of a table as numbers, shape (n, columns); raises ValueError with all faults.

    `inputs` says which columns are coded as categories, and where values may be missing.
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


def _read_archive(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an .npz file."""
    try:
        # Opened here: np.load leaves a file open if it turns out to be no archive.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    except (ValueError, EOFError, AttributeError, TypeError, KeyError, NotImplementedError):
        # numpy's own words depend on what it took the file for.
        raise ValueError("this is no survival model file") from None
    except (zipfile.BadZipFile, zlib.error):
        raise ValueError("this is no survival model file, or a damaged one") from None


class _Header(BaseModel):
    """What the file holds beside arrays."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
        protected_namespaces=(),
    )

    format: str = FORMAT
    version: int = FORMAT_VERSION
    feature_names: tuple[str, ...]
    encoding: dict[str, dict[str, FiniteFloat]]
    feature_encoding: str = ""
    model: str
    hidden_layers: tuple[int, ...]
    dropout: FiniteFloat
    label_cuts: tuple[FiniteFloat, ...] = (0.0, 1.0)  # files of version 1 have none
    baseline_center: FiniteFloat
    network_arrays: tuple[str, ...]
    metadata: dict[str, Any]


def _checked_header(members: Mapping[str, npt.NDArray[Any]]) -> _Header:
    """Decoded header, after a look at what the file must hold beside it."""
    try:
        text = members[_HEADER].tobytes().decode()
        plain = json.loads(text)
        ours, version = plain["format"] == FORMAT, int(plain["version"])
    except (KeyError, TypeError, ValueError):
        raise ValueError("this is no survival model file") from None
    if not ours:
        raise ValueError("this is no survival model file")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"format version {version} is newer than this program, which reads up to "
            f"{FORMAT_VERSION}; update it"
        )
    try:
        header = _Header.model_validate_json(text)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise ValueError(
            "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found)
        ) from None
    expected = [*_OWN_ARRAYS, *(_NETWORK + name for name in header.network_arrays)]
    faults = [f"array {name} is missing" for name in expected if name not in members]
    faults += _array_faults({name: members[name] for name in expected if name in members})
    if faults:
        raise ValueError("; ".join(faults))
    return header


def _array_faults(arrays: Mapping[str, npt.NDArray[Any]]) -> list[str]:
    """Arrays that are not of numbers, or not finite."""
    faults = []
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            faults.append(f"array {name} holds no numbers")
        elif not np.isfinite(array).all():
            faults.append(f"array {name} holds values that are not finite")
    return faults
