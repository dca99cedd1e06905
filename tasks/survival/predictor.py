"""A trained survival model in one file: from rows of a table to risks and survival curves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tasks.survival import model_file
from tasks.survival.baseline import BaselineHazard
from tasks.survival.encoding import FeatureEncoding
from tasks.survival.feature_matrix import feature_matrix
from tasks.survival.model_file import NETWORK, Header, array_faults
from tasks.survival.standardization import Standardizer

if TYPE_CHECKING:
    from tasks.survival.config import SurvivalConfig
    from tasks.survival.models import SurvivalModel

FloatArray = npt.NDArray[np.float64]


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
    deephit_alpha, deephit_sigma : float
        Of DeepHit's loss.
    controls : int
        Controls of each case of CoxCC and CoxTime.
    """

    model: str
    hidden_layers: tuple[int, ...]
    dropout: float
    label_cuts: tuple[float, ...] = (0.0, 1.0)
    deephit_alpha: float = 0.2
    deephit_sigma: float = 0.1
    controls: int = 1

    @classmethod
    def of(cls, config: SurvivalConfig, label_cuts: npt.NDArray[np.float64]) -> Architecture:
        """Return what the model of a run was built from."""
        return cls(
            model=config.model,
            hidden_layers=config.hidden_units,
            dropout=config.dropout,
            label_cuts=tuple(label_cuts.tolist()),
            deephit_alpha=config.deephit_alpha,
            deephit_sigma=config.deephit_sigma,
            controls=config.controls,
        )


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
        faults += array_faults(self.arrays)
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
            deephit_alpha=self.architecture.deephit_alpha,
            deephit_sigma=self.architecture.deephit_sigma,
            controls=self.architecture.controls,
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
        arrays = {
            "standardizer/mean": self.standardizer.mean,
            "standardizer/scale": self.standardizer.scale,
            "baseline/grid": self.baseline.grid,
            "baseline/cumulative": self.baseline.cumulative,
            **{NETWORK + name: array for name, array in self.arrays.items()},
        }
        model_file.write(Path(path), self._header(), arrays)

    def _header(self) -> Header:
        columns = self.standardizer.encoding
        return Header(
            feature_names=self.feature_names,
            encoding={name: dict(numbers) for name, numbers in self.encoding.items()},
            feature_encoding=columns.to_json() if columns else "",
            **asdict(self.architecture),
            baseline_center=self.baseline.center,
            network_arrays=tuple(self.arrays),
            metadata=dict(self.metadata),
        )

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
            header, members = model_file.read(path)
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
                    **{one.name: getattr(header, one.name) for one in fields(Architecture)}
                ),
                arrays={name: members[NETWORK + name] for name in header.network_arrays},
                baseline=BaselineHazard(
                    members["baseline/grid"],
                    members["baseline/cumulative"],
                    header.baseline_center,
                ),
                metadata=header.metadata,
            )
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
