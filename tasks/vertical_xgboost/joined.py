"""The joined table that no party has: for the reference learner and for simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.buckets import BoolArray, Float32Array
from tasks.vertical_xgboost.candidates import IntpArray
from tasks.vertical_xgboost.fixed_point import FloatArray
from tasks.vertical_xgboost.labels import check_ownership
from tasks.vertical_xgboost.rows import PartyTable


@dataclass(frozen=True)
class JoinedTable:
    """All columns and labels of aligned parties.

    Parameters
    ----------
    feature_names : tuple of str
        ``party.column`` in canonical order: party by party, columns in the party's order.
    features : (n, p) float32
    labels : (n,) float64
        No NaN.
    owner : (n,) intp
        Place of the party that owns the row's label.
    is_evaluation : (n,) bool
    weights : (n,) float64 or None
        None where rows have none.
    """

    feature_names: tuple[str, ...]
    features: Float32Array
    labels: FloatArray
    owner: IntpArray
    is_evaluation: BoolArray
    weights: FloatArray | None = None


def join(tables: Mapping[str, PartyTable]) -> JoinedTable:
    """Join aligned tables of parties, in the order given (that of their names in a run).

    Raises
    ------
    SiteFault
        ``"not-aligned"`` or ``"bad-labels"``: rows with labels at two parties, or at none.
    """
    parties = list(tables.values())
    if len({table.digest() for table in parties}) != 1:
        raise SiteFault("not-aligned", "the parties' row ids or evaluation rows differ")
    owns = np.stack([table.owns for table in parties])
    check_ownership(owns.sum(axis=0))
    owner = np.argmax(owns, axis=0)
    labels = np.stack([table.labels for table in parties])[owner, np.arange(owns.shape[1])]
    names = [f"{name}.{column}" for name, table in tables.items() for column in table.feature_names]
    return JoinedTable(
        feature_names=tuple(names),
        features=np.concatenate([table.features for table in parties], axis=1),
        labels=labels,
        owner=owner,
        is_evaluation=parties[0].is_evaluation,
        weights=_weights(parties),
    )


def _weights(parties: Sequence[PartyTable]) -> FloatArray | None:
    """Of all rows: 0 at all parties but the owner of the label."""
    found = [table.weights for table in parties if table.weights is not None]
    return np.sum(found, axis=0) if found else None
