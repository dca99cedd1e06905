"""The label column of a party: which rows have one, and as which number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.fixed_point import FloatArray

LARGEST_LABEL = 1e30


@dataclass(frozen=True)
class PartyLabels:
    """Labels of a party's rows.

    Parameters
    ----------
    values : (n,) float64
        0 or 1 for a classifier, the target for a regression; NaN where the party has no label.
    negative_label : str or None
        How the party spells the negative class; None if it has no such row and none was declared,
        or for a regression. The parties have to agree (`negative_label_fault`).
    """

    values: FloatArray
    negative_label: str | None = None


def read_labels(
    column: pd.Series | None, num_rows: int, config: VerticalXGBoostConfig
) -> PartyLabels:
    """Read a column of labels.

    ``1``, ``1.0``, ``"1"``, ``True`` and ``"true"`` are one spelling. None, NaN and an empty string
    say that the party has no label of that row.

    Parameters
    ----------
    column : Series or None
        None: the party has no labels at all.
    num_rows : int
    config : VerticalXGBoostConfig

    Raises
    ------
    SiteFault
        ``"bad-labels"``, with counts and never with a label of a row.
    """
    if column is None:
        return PartyLabels(np.full(num_rows, np.nan))
    if config.objective == "binary:logistic":
        return _classes(column, config)
    return PartyLabels(_targets(column, config))


def negative_label_fault(labels: dict[str, str | None]) -> str | None:
    """What is wrong where parties do not mean the same negative class; None if nothing.

    Parameters
    ----------
    labels : dict of party name to `PartyLabels.negative_label`
    """
    by_spelling: dict[str, list[str]] = {}
    for party, spelling in sorted(labels.items()):
        if spelling is not None:
            by_spelling.setdefault(spelling, []).append(party)
    if len(by_spelling) < 2:
        return None
    groups = " / ".join(", ".join(parties) for parties in by_spelling.values())
    return f"parties spell the negative label differently: {groups}; declare negative-label"


def check_ownership(owners: NDArray[np.integer]) -> None:
    """Refuse rows with labels at two parties, or at none.

    Parameters
    ----------
    owners : (n,) integer
        Parties that own the label of each row.

    Raises
    ------
    SiteFault
        ``"bad-labels"`` with the counts.
    """
    twice, never = int(np.count_nonzero(owners > 1)), int(np.count_nonzero(owners == 0))
    faults = []
    if twice:
        faults.append(f"{twice} rows have a label at two or more parties; allowed is one owner")
    if never:
        faults.append(f"{never} rows have a label at no party")
    if faults:
        raise SiteFault("bad-labels", *faults)


def _classes(column: pd.Series, config: VerticalXGBoostConfig) -> PartyLabels:
    codes, different = pd.factorize(column, use_na_sentinel=True)
    spelled = np.array([spelling(value) for value in different.tolist()] + [""])[codes]
    positive, negative = spelling(config.positive_label), spelling(config.negative_label)
    present = spelled != ""
    other = np.unique(spelled[present & (spelled != positive)])
    if negative:
        unknown = int(np.count_nonzero(present & (spelled != positive) & (spelled != negative)))
        if unknown:
            raise SiteFault(
                "bad-labels",
                f"{unknown} rows have a label that is neither positive-label = "
                f"'{config.positive_label}' nor negative-label = '{config.negative_label}'",
            )
    elif len(other) > 1:
        raise SiteFault(
            "bad-labels",
            f"{len(other)} different labels beside positive-label = '{config.positive_label}'; "
            "allowed is 1: declare negative-label",
        )
    elif len(other):
        negative = str(other[0])
    values = np.where(present, (spelled == positive).astype(np.float64), np.nan)
    return PartyLabels(values, negative or None)


def _targets(column: pd.Series, config: VerticalXGBoostConfig) -> FloatArray:
    if not pd.api.types.is_numeric_dtype(column.dtype) or column.dtype.kind in "bc":
        # A column without any label is of no type in particular.
        if column.isna().all():
            return np.full(len(column), np.nan)
        raise SiteFault("bad-labels", "labels of reg:squarederror are not numbers")
    values = np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    bound = config.label_bound or LARGEST_LABEL
    outside = int(np.count_nonzero(np.abs(values) > bound))
    if outside:
        raise SiteFault(
            "bad-labels",
            f"{outside} rows have a label above {bound:g} in absolute value"
            + (" (label-bound)" if config.label_bound else ""),
        )
    return values


def spelling(label: Any) -> str:
    """Canonical spelling of a label; "" for a missing one."""
    if label is None or label is pd.NA:
        return ""
    text = str(label).strip()
    if isinstance(label, bool) or text.lower() in ("true", "false"):
        return "1" if text.lower() == "true" else "0"
    if not isinstance(label, str) and text.lower() in ("nan", "<na>", "nat"):
        return ""
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if math.isfinite(number) and number == int(number) else repr(number)
