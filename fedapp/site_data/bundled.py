"""Data sets that come with the dependencies or are simulated, and the encoding of text columns."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pandas as pd

from fedapp.site_data import breast_cancer, vertical
from fedapp.site_data.files import read_file
from fedapp.site_data.generated import EVENT, TIME, generated_frame
from tasks.site.faults import SiteFault
from tasks.survival.generators import GENERATORS, Design

if TYPE_CHECKING:
    from tasks.roc_glm.score_model import ScoreModel

Encoding: TypeAlias = Mapping[str, Mapping[str, float]]
"""Column name to its declared categories and their numbers; plain JSON."""


@dataclass(frozen=True, eq=False)
class BundledData:
    """A named data set.

    Attributes
    ----------
    name : str
        What the ``data`` key of the run configuration says.
    task : str
        Task that it is meant for.
    source, licence : str
        Words for the report.
    load : callable
        Gives the data as their source has them, text columns as text.
    time, event : str
        Columns of a survival data set; ``""`` for other tasks.
    label, score, positive_label : str
        Columns of a data set to validate a classifier with, and the label of its positive class;
        ``""`` for other tasks.
    id : str
        Column of row ids of a data set whose columns are dealt to the parties, with ``label`` for
        its labels (see `fedapp.site_data.vertical`); ``""`` where rows are dealt.
    site_column : str
        Column that says at which real site a row was taken: no feature, but what the partition
        ``natural`` deals by; ``""`` where there is none.
    classifier : callable or None
        Gives the model that ``score`` comes from.
    encoding : Encoding
        Declared categories of text columns; `encode` applies it.
    """

    name: str
    task: str
    source: str
    licence: str
    load: Callable[[], pd.DataFrame]
    time: str = ""
    event: str = ""
    label: str = ""
    score: str = ""
    positive_label: str = ""
    id: str = ""
    site_column: str = ""
    classifier: Callable[[], ScoreModel] | None = None
    encoding: Encoding = field(default_factory=dict)


def encode(frame: pd.DataFrame, encoding: Encoding) -> pd.DataFrame:
    """Replace declared categories by their numbers.

    Missing values stay missing, columns that the frame does not have are passed over, and a
    column of numbers is taken as encoded already if it holds declared numbers only. So encoding
    twice is encoding once.

    Parameters
    ----------
    frame : DataFrame
        Left as it is. Its column names are unique (see `checked_frame`).
    encoding : Encoding
        Categories and numbers of a column.

    Returns
    -------
    DataFrame
        A new frame; encoded columns are float64.

    Raises
    ------
    SiteFault
        ``unknown-category``: one reason a column, with the number of rows.
    """
    encoded: dict[str, np.ndarray] = {}
    reasons: list[str] = []
    for name, numbers in encoding.items():
        if name not in frame.columns:
            continue
        encoded[name], unknown = _encode_column(frame[name], numbers)
        if unknown:
            declared = ", ".join(numbers)
            reasons.append(
                f'column "{name}": {unknown} of {len(frame)} rows are none of {declared}'
            )
    if reasons:
        raise SiteFault("unknown-category", *reasons)
    return frame.assign(**encoded)


def decode(frame: pd.DataFrame, encoding: Encoding, *, columns: Iterable[str]) -> pd.DataFrame:
    """Give encoded columns their categories back: those whose encoding a run declares anew.

    Parameters
    ----------
    frame : DataFrame
        What `encode` made; left as it is.
    encoding : Encoding
    columns : iterable of str
        Others, and columns without an encoding, stay.

    Returns
    -------
    DataFrame
        A new frame.
    """
    known = [name for name in columns if name in encoding and name in frame.columns]
    names = {name: {float(n): text for text, n in encoding[name].items()} for name in known}
    return frame.assign(**{name: frame[name].map(names[name]) for name in known})


def _encode_column(column: pd.Series, numbers: Mapping[str, float]) -> tuple[np.ndarray, int]:
    """Encoded values, float64 (rows,), and how many rows hold no declared category."""
    if column.dtype.kind in "iuf":
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        known = np.isin(values, list(numbers.values()))
    else:
        cells = column.astype(object)
        values = np.array(
            [numbers.get(cell, np.nan) if isinstance(cell, str) else np.nan for cell in cells],
            dtype=np.float64,
        )
        known = ~np.isnan(values)
    return values, int(np.count_nonzero(~known & ~column.isna().to_numpy()))


def _from_lifelines(file: str, loader: str) -> pd.DataFrame:
    """Read a file of the package without importing it, which takes seconds."""
    spec = find_spec("lifelines")
    if spec is None:
        raise SiteFault("missing-package", 'this data set needs the package "lifelines"')
    for folder in spec.submodule_search_locations or ():
        path = Path(folder) / "datasets" / file
        if path.is_file():
            return read_file(path, where=f'"{file}" of lifelines')
    frame: pd.DataFrame = getattr(importlib.import_module("lifelines.datasets"), loader)()
    return frame


_GBSG2 = BundledData(
    name="gbsg2",
    task="survival",
    source="German Breast Cancer Study Group 2: 686 women with node-positive breast cancer, time "
    "in days to recurrence or death (Schumacher et al., J Clin Oncol 12:2086-2093, 1994)",
    licence="as distributed with lifelines (MIT)",
    load=partial(_from_lifelines, "gbsg2.csv", "load_gbsg2"),
    time="time",
    event="cens",
    encoding={
        "horTh": {"no": 0, "yes": 1},
        "menostat": {"Pre": 0, "Post": 1},
        "tgrade": {"I": 1, "II": 2, "III": 3},
    },
)


def _load_lung() -> pd.DataFrame:
    """The one patient without an institution belongs to no site and is left out."""
    frame = _from_lifelines("lung.csv", "load_lung").dropna(subset=["inst"])
    return frame.assign(inst=frame["inst"].astype(np.int64))


_LUNG = BundledData(
    name="lung",
    task="survival",
    source="North Central Cancer Treatment Group: 227 patients with advanced lung cancer at 18 "
    "institutions of 2 to 36 patients, time in days to death (Loprinzi et al., J Clin Oncol "
    "12:601-607, 1994)",
    licence="as distributed with lifelines (MIT)",
    load=_load_lung,
    time="time",
    event="status",
    site_column="inst",
)

_ROSSI = BundledData(
    name="rossi",
    task="survival",
    source="432 men released from prison in Maryland, time in weeks to the first arrest, at most "
    "52 (Rossi, Berk and Lenihan, Money, Work, and Crime, 1980)",
    licence="as distributed with lifelines (MIT)",
    load=partial(_from_lifelines, "rossi.csv", "load_rossi"),
    time="week",
    event="arrest",
)

_KIDNEY_TRANSPLANT = BundledData(
    name="kidney-transplant",
    task="survival",
    source="863 patients with a kidney transplant, time in days to death (Klein and Moeschberger, "
    "Survival Analysis, 2003, section 1.7)",
    licence="as distributed with lifelines (MIT)",
    load=partial(_from_lifelines, "kidney_transplant.csv", "load_kidney_transplant"),
    time="time",
    event="death",
)

_LARYNX = BundledData(
    name="larynx",
    task="survival",
    source="90 men with cancer of the larynx, time in years to death (Kardaun, Statistica "
    "Neerlandica 37:103-125, 1983)",
    licence="as distributed with lifelines (MIT)",
    load=partial(_from_lifelines, "larynx.csv", "load_larynx"),
    time="time",
    event="death",
)

_BREAST_CANCER = BundledData(
    name="breast-cancer",
    task="roc-glm",
    source="Wisconsin Diagnostic Breast Cancer: 569 breast tumours, 212 of them malignant, with 30 "
    "measures of cell nuclei (Street, Wolberg and Mangasarian, SPIE 1905:861-870, 1993); the 400 "
    "rows that the bundled classifier was not trained on",
    licence="UCI Machine Learning Repository (CC BY 4.0), as distributed with scikit-learn",
    load=breast_cancer.load_validation,
    label=breast_cancer.LABEL,
    score=breast_cancer.SCORE,
    positive_label="1",
    classifier=breast_cancer.classifier,
)

_BREAST_CANCER_COLUMNS = BundledData(
    name="breast-cancer-columns",
    task="vertical-xgboost",
    source="Wisconsin Diagnostic Breast Cancer: 569 breast tumours, 212 of them malignant, with 30 "
    "measures of cell nuclei (Street, Wolberg and Mangasarian, SPIE 1905:861-870, 1993); columns "
    "and labels dealt to the parties",
    licence="UCI Machine Learning Repository (CC BY 4.0), as distributed with scikit-learn",
    load=vertical.load_breast_cancer,
    id=vertical.ID,
    label=vertical.LABEL,
    positive_label="1",
)

_DIABETES = BundledData(
    name="diabetes",
    task="vertical-xgboost",
    source="442 diabetes patients with 10 measures at baseline and the progression of the disease "
    "a year later (Efron, Hastie, Johnstone and Tibshirani, Ann Statist 32:407-499, 2004); columns "
    "and labels dealt to the parties",
    licence="as distributed with scikit-learn (BSD-3-Clause)",
    load=vertical.load_diabetes,
    id=vertical.ID,
    label=vertical.LABEL,
)

_SIMULATED = tuple(
    BundledData(
        name=name,
        task="survival",
        source=f"simulated by the generator {name} (tasks.survival.generators) from the run's seed",
        licence="made by this program",
        load=partial(generated_frame, name, Design(), seed=0),
        time=TIME,
        event=EVENT,
    )
    for name in GENERATORS
)

BUNDLED: dict[str, BundledData] = {
    data.name: data
    for data in (
        _GBSG2,
        _LUNG,
        _ROSSI,
        _KIDNEY_TRANSPLANT,
        _LARYNX,
        *_SIMULATED,
        _BREAST_CANCER,
        _BREAST_CANCER_COLUMNS,
        _DIABETES,
    )
}
"""Every bundled data set by its name."""
