"""Data whose columns lie at different parties, and the labels of different rows too.

A joined table is dealt for simulation: every party gets all rows, a part of the columns, and the
labels of a part of the rows, which is what parties of the vertical task have.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedapp.site_data import breast_cancer
from tasks.site.faults import SiteFault

ID = "id"
LABEL = "label"

DIABETES_FEATURES = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")

ColumnOrder = Literal["random", "in-order"]
LabelSpread = Literal["even", "skewed", "one"]

# Keep the dealing of columns and of labels apart from other uses of the run's seed.
_COLUMNS, _LABELS = 0x636F6C73, 0x6C61626C


@dataclass(frozen=True)
class Spread:
    """How a joined table is dealt to parties.

    Attributes
    ----------
    id, label : str
        Columns of row ids and of labels.
    columns : {"random", "in-order"}
        Which columns a party gets: nearly equal numbers, drawn by the seed or one after the other.
    labels : {"even", "skewed", "one"}
        Whose the labels are. Rows are drawn by the seed: as many for each party; half of what is
        left for each party in turn (the last ones may get none); or all for the first party.
    number_rows : bool
        Where there is no column `id`, number the rows instead of refusing the table.
    label_owners : tuple of int
        Places of the parties that the labels are dealt to, in this order; ``()`` for all.
    weight : str
        Column of weights, which go with the labels; ``""``: rows have none.
    """

    id: str = ID
    label: str = LABEL
    columns: ColumnOrder = "random"
    labels: LabelSpread = "even"
    number_rows: bool = False
    label_owners: tuple[int, ...] = ()
    weight: str = ""


def party_table(
    joined: pd.DataFrame, spread: Spread, *, site: int, sites: int, seed: int
) -> pd.DataFrame:
    """What one party has of a joined table.

    Parameters
    ----------
    joined : DataFrame
        All columns and labels; left as it is.
    spread : Spread
    site : int
        Place of the party, 0 to `sites` - 1.
    sites : int
        Number of parties.
    seed : int
        At least 0. Given seed and number of parties, every process deals alike.

    Returns
    -------
    DataFrame
        All rows in the order of `joined`: the ids, the party's features in the order of `joined`,
        and label and weight, missing where another party owns them.

    Raises
    ------
    SiteFault
        ``unknown-column``; ``bad-partition`` for fewer columns than parties or a bad seed.
    """
    _check(joined, spread, site=site, sites=sites, seed=seed)
    with_labels = [spread.label, *([spread.weight] if spread.weight else [])]
    features = [name for name in joined.columns if name not in (spread.id, *with_labels)]
    if len(features) < sites:
        raise SiteFault(
            "bad-partition", f"{len(features)} columns of features are too few for {sites} parties"
        )
    own = [features[at] for at in _columns_of(site, len(features), sites, seed, spread.columns)]
    owners = np.array(spread.label_owners or range(sites))
    turn = _owner_of_labels(len(joined), len(owners), seed, spread.labels)
    labelled = owners[turn] == site
    table = joined[own].copy()
    ids = joined[spread.id] if spread.id in joined.columns else np.arange(len(joined))
    table.insert(0, spread.id, ids)
    for name in with_labels:
        table[name] = joined[name].where(labelled)
    return table


def _check(joined: pd.DataFrame, spread: Spread, *, site: int, sites: int, seed: int) -> None:
    needed = {} if spread.number_rows else {"ids": spread.id}
    needed |= {"labels": spread.label} | ({"weights": spread.weight} if spread.weight else {})
    missing = [(of, name) for of, name in needed.items() if name not in joined.columns]
    if missing:
        faults = [f'no column "{name}" in the data (column of {of})' for of, name in missing]
        raise SiteFault("unknown-column", *faults)
    if spread.id == spread.label:
        raise SiteFault("unknown-column", f'id and label are both "{spread.id}"')
    if spread.weight and spread.weight in (spread.id, spread.label):
        raise SiteFault("unknown-column", f'the weight is the column "{spread.weight}", as another')
    faults = [
        f'{what} "{value}" must be one of: {", ".join(allowed)}'
        for what, value, allowed in (
            ("columns", spread.columns, get_args(ColumnOrder)),
            ("labels", spread.labels, get_args(LabelSpread)),
        )
        if value not in allowed
    ]
    owners = spread.label_owners
    if len(set(owners)) < len(owners) or not all(0 <= owner < sites for owner in owners):
        faults.append(f"owners of labels must be different places from 0 to {sites - 1}")
    if not 0 <= site < sites:
        faults.append(f"party {site} must be at least 0 and less than {sites}")
    if seed < 0:
        faults.append(f"seed = {seed} must be at least 0")
    if faults:
        raise SiteFault("bad-partition", *faults)


def _columns_of(
    site: int, count: int, sites: int, seed: int, columns: ColumnOrder
) -> NDArray[np.intp]:
    """Ascending places of a party's features."""
    order = np.arange(count)
    if columns == "random":
        order = np.random.default_rng([_COLUMNS, seed]).permutation(count)
    return np.sort(np.array_split(order, sites)[site])


def _owner_of_labels(rows: int, sites: int, seed: int, labels: LabelSpread) -> NDArray[np.intp]:
    """Place among the owners of labels of the one who gets that of each row, (rows,)."""
    if labels == "one":
        return np.zeros(rows, dtype=np.intp)
    turns = np.arange(1, sites + 1)
    shares = turns / sites if labels == "even" else 1.0 - 0.5**turns
    shares[-1] = 1.0
    order = np.random.default_rng([_LABELS, seed]).permutation(rows)
    owner = np.empty(rows, dtype=np.intp)
    owner[order] = np.searchsorted(np.rint(rows * shares), np.arange(rows), side="right")
    return owner


def load_breast_cancer() -> pd.DataFrame:
    """All 569 breast tumours: ``id``, 30 features, ``label`` (1 malignant, 0 benign)."""
    frame = breast_cancer.load_all().rename(columns={breast_cancer.LABEL: LABEL})
    frame.insert(0, ID, np.arange(len(frame)))
    return frame


def load_diabetes() -> pd.DataFrame:
    """442 patients: ``id``, 10 features in their units, ``label`` (progression after a year)."""
    features = _sklearn_array("diabetes_data_raw.csv.gz", _diabetes_features)
    target = _sklearn_array("diabetes_target.csv.gz", _diabetes_target)
    frame = pd.DataFrame(features, columns=list(DIABETES_FEATURES))
    frame.insert(0, ID, np.arange(len(frame)))
    frame[LABEL] = target
    return frame


def _sklearn_array(file: str, otherwise: Callable[[], NDArray[np.float64]]) -> NDArray[np.float64]:
    """Read a file of the package without importing it, which takes seconds."""
    spec = find_spec("sklearn")
    if spec is None:
        raise SiteFault("missing-package", 'this data set needs the package "scikit-learn"')
    for folder in spec.submodule_search_locations or ():
        path = Path(folder) / "datasets" / "data" / file
        if path.is_file():
            return np.loadtxt(path)
    return otherwise()


def _diabetes_features() -> NDArray[np.float64]:
    loader = importlib.import_module("sklearn.datasets").load_diabetes
    return np.asarray(loader(scaled=False).data, dtype=np.float64)


def _diabetes_target() -> NDArray[np.float64]:
    loader = importlib.import_module("sklearn.datasets").load_diabetes
    return np.asarray(loader(scaled=False).target, dtype=np.float64)
