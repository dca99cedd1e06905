"""A party's table: rows in the order of their ids, features, labels, and which rows evaluate."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.buckets import BoolArray, Float32Array
from tasks.vertical_xgboost.candidates import IntpArray
from tasks.vertical_xgboost.categorical import Categories, TextCodings, is_encodable
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.feature_columns import FeatureColumns, read_columns
from tasks.vertical_xgboost.fixed_point import FloatArray
from tasks.vertical_xgboost.labels import read_labels, read_weights

_LARGEST_EXACT = 2.0**53


@dataclass(frozen=True)
class PartyTable:
    """The rows of a party, in ascending order of id.

    Parameters
    ----------
    ids : tuple of str
        Unique; integers are spelled in decimal.
    feature_names : tuple of str
        In the order of the party's columns, which decides ties.
    features : (n, p) float32
        NaN where missing, never infinite.
    labels : (n,) float64
        NaN where the party does not own the row's label.
    is_evaluation : (n,) bool
        Rows kept for evaluation.
    categories : tuple of Categories
        Of columns of text, which are features as numbers.
    unknown : mapping of str to int
        Rows of each of these columns whose category is none of them, and so missing.
    columns : FeatureColumns or None
        What features were made of, where some are made of text.
    weights : (n,) float64 or None
        0 where the party does not own the row's label; None where rows have no weights.
    """

    ids: tuple[str, ...]
    feature_names: tuple[str, ...]
    features: Float32Array
    labels: FloatArray
    is_evaluation: BoolArray
    categories: tuple[Categories, ...] = ()
    unknown: Mapping[str, int] = field(default_factory=dict)
    columns: FeatureColumns | None = None
    weights: FloatArray | None = None

    @property
    def owns(self) -> BoolArray:
        """Rows whose label the party owns: the set I^c, evaluation rows included; (n,) bool."""
        owned: BoolArray = ~np.isnan(self.labels)
        return owned

    def digest(self) -> bytes:
        """Digest of the ids in order, each with its evaluation flag: equal at aligned parties."""
        digest = hashlib.sha256(b"aligned rows of vertical-xgboost\n")
        for text, flag in zip(self.ids, self.is_evaluation.tolist(), strict=True):
            encoded = text.encode()
            digest.update(len(encoded).to_bytes(4, "big") + encoded + bytes([flag]))
        return digest.digest()

    def restricted(self, places: IntpArray, *, fraction: float, seed: int) -> PartyTable:
        """Some of the rows, with evaluation rows drawn among them.

        Parameters
        ----------
        places : (k,) intp
            Ascending.
        fraction : float
            Of evaluation rows.
        seed : int
            Of the run.
        """
        ids = tuple(self.ids[at] for at in places.tolist())
        is_evaluation = evaluation_rows(ids, fraction=fraction, seed=seed)
        labels = self.labels[places]
        weights = None if self.weights is None else self.weights[places]
        if self.columns is not None:  # categories are those of the training rows, now others
            return _table_of(self.columns.rows(places), ids, labels, weights, is_evaluation)
        return PartyTable(
            ids=ids,
            feature_names=self.feature_names,
            features=self.features[places],
            labels=labels,
            is_evaluation=is_evaluation,
            weights=weights,
        )


def _table_of(
    columns: FeatureColumns,
    ids: tuple[str, ...],
    labels: FloatArray,
    weights: FloatArray | None,
    is_evaluation: BoolArray,
) -> PartyTable:
    features = columns.coded(~is_evaluation)
    return PartyTable(
        ids=ids,
        feature_names=features.names,
        features=features.values,
        labels=labels,
        is_evaluation=is_evaluation,
        categories=features.categories,
        unknown=features.unknown,
        columns=columns if columns.has_text else None,
        weights=weights,
    )


def read_table(
    frame: pd.DataFrame,
    *,
    id_column: str,
    label_column: str,
    config: VerticalXGBoostConfig,
    seed: int,
    codings: TextCodings | None = None,
    categories: tuple[Categories, ...] | None = None,
) -> PartyTable:
    """Read and check the table of a party; all columns but id, label and weight are features.

    Parameters
    ----------
    frame : DataFrame
        One row an id, in any order.
    id_column, label_column : str
        The label column may be absent: the party then has no labels.
    config : VerticalXGBoostConfig
    seed : int
        Of the run, the same at all parties: decides which rows are for evaluation.
    codings : TextCodings, optional
        What the party has declared of its columns of text; else the configuration holds for all.
    categories : tuple of Categories, optional
        Those of a finished training, by which new rows are coded.

    Raises
    ------
    SiteFault
        ``"unknown-column"``, ``"bad-ids"``, ``"bad-labels"``, ``"bad-weights"`` or
        ``"bad-features"``. Columns of features are told by position, since their names are the
        party's own.
    """
    if id_column not in frame.columns:
        raise SiteFault("unknown-column", f'no column "{id_column}" (vertical-xgboost.id)')
    if id_column == label_column:
        raise SiteFault(
            "unknown-column", f'id and label are both "{id_column}": they must be two columns'
        )
    ids = _read_ids(frame[id_column])
    label = frame[label_column] if label_column in frame.columns else None
    labels = read_labels(label, len(frame), config)
    if config.weight and config.weight in (id_column, label_column):
        raise SiteFault("unknown-column", f'the weight is the column "{config.weight}", as another')
    weight = frame[config.weight] if config.weight in frame.columns else None
    weights = read_weights(weight, ~np.isnan(labels), config)
    used = (id_column, label_column, config.weight)
    names = [name for name in frame.columns if name not in used]
    if categories is not None:
        codings = TextCodings.of_categories(categories)
    columns = read_columns(
        frame,
        names,
        codings or TextCodings(config.categorical),
        from_model=categories is not None,
    )
    order = sorted(range(len(ids)), key=ids.__getitem__)
    ordered = tuple(ids[at] for at in order)
    return _table_of(
        columns.rows(np.array(order, dtype=np.intp)),
        ordered,
        labels[order],
        None if weights is None else weights[order],
        evaluation_rows(ordered, fraction=config.test_fraction, seed=seed),
    )


def num_evaluation_rows(num_rows: int, *, fraction: float) -> int:
    """How many rows are kept for evaluation: that share of all, rounded down."""
    return int(num_rows * fraction)


def evaluation_rows(ids: tuple[str, ...], *, fraction: float, seed: int) -> BoolArray:
    """Rows kept for evaluation: the same at every party, without a word about it.

    The rows whose hash of seed and id is smallest; no library's generator is involved, since
    parties may run different versions.

    Parameters
    ----------
    ids : tuple of str
        Ascending.
    fraction : float
        Share of the rows, rounded down.
    seed : int

    Returns
    -------
    (n,) bool
    """
    start = hashlib.sha256(f"evaluation rows, seed {seed}\n".encode())
    hashes = []
    for text in ids:
        digest = start.copy()
        digest.update(text.encode())
        hashes.append(digest.digest())
    flags = np.zeros(len(ids), dtype=np.bool_)
    number = num_evaluation_rows(len(ids), fraction=fraction)
    chosen = sorted(range(len(ids)), key=hashes.__getitem__)[:number]
    flags[chosen] = True
    return flags


def _read_ids(column: pd.Series) -> list[str]:
    values = column.tolist()
    floats = np.array([value for value in values if isinstance(value, float)], dtype=np.float64)
    floats = floats[np.isfinite(floats)]
    faults = []
    if broken := np.count_nonzero(floats != np.floor(floats)):
        faults.append(f"{broken} ids are no whole numbers; allowed are text and whole numbers")
    if wide := np.count_nonzero(np.abs(floats) > _LARGEST_EXACT):
        faults.append(f"{wide} ids are floats above 2^53, of which several are one; give text")
    ids = [_id_text(value) for value in values]
    if strange := sum(not is_encodable(text) for text in ids):
        faults.append(f"{strange} ids are no text of UTF-8")
    missing = sum(text == "" for text in ids)
    repeated = len(ids) - missing - len(set(ids) - {""})
    if missing:
        faults.append(f"{missing} rows have no id")
    if repeated:
        faults.append(f"{repeated} rows repeat the id of another; ids must be unique")
    if not ids:
        faults.append("no rows")
    if faults:
        raise SiteFault("bad-ids", *faults)
    return ids


def _id_text(value: object) -> str:
    if value is None or value is pd.NA:
        return ""
    if isinstance(value, float):
        # A column of whole numbers with a gap is one of floats.
        return str(int(value)) if np.isfinite(value) else ""
    return str(value).strip()
