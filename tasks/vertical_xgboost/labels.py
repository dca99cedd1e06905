"""The label column of a party: which rows have one, and as which number."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.buckets import BoolArray
from tasks.vertical_xgboost.classes import class_names, spelling
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.fixed_point import FloatArray
from tasks.vertical_xgboost.number_columns import numbers_of

LARGEST_LABEL = 1e30
LARGEST_WEIGHT = 1e30


def read_labels(
    column: pd.Series | None, num_rows: int, config: VerticalXGBoostConfig
) -> FloatArray:
    """Read a column of labels.

    ``1``, ``1.0``, ``"1"``, ``True`` and ``"true"`` are one spelling. None, NaN and empty or
    blank text say that the party has no label of that row. Both spellings come from the
    configuration: one found in the rows would have to be compared, and tell who has labels of one
    class only.

    Parameters
    ----------
    column : Series or None
        None: the party has no labels at all.
    num_rows : int
    config : VerticalXGBoostConfig

    Returns
    -------
    (n,) float64
        0 or 1 for a classifier of two classes, the number of the class for one of more, the target
        for a regression; NaN where the party has no label.

    Raises
    ------
    SiteFault
        ``"bad-labels"``: names the rule, never a label of a row or how many labels break it.
    """
    if column is None:
        return np.full(num_rows, np.nan)
    if config.objective == "binary:logistic":
        return _two_classes(column, config)
    if config.objective == "multi:softprob":
        return _many_classes(column, config)
    return _targets(column, config)


def read_weights(
    column: pd.Series | None, owns: BoolArray, config: VerticalXGBoostConfig
) -> FloatArray | None:
    """Read a column of row weights.

    Parameters
    ----------
    column : Series or None
        None: there is no such column here.
    owns : (n,) bool
        Rows whose label the party owns; of others no weight is looked at.
    config : VerticalXGBoostConfig

    Returns
    -------
    (n,) float64 or None
        0 where the party does not own the label; None where the run has no weights.

    Raises
    ------
    SiteFault
        ``"bad-weights"`` with the column and the count.
    """
    if not config.weight:
        return None
    if column is None:
        if owns.any():
            raise SiteFault("bad-weights", f'no column "{config.weight}" (vertical-xgboost.weight)')
        return np.zeros(len(owns))
    values = numbers_of(column[owns], truth=False, blanks=True)
    if values is None:
        raise SiteFault("bad-weights", f'weights in column "{config.weight}" are not numbers')
    with np.errstate(invalid="ignore"):
        wrong = int(np.count_nonzero(~((values >= 0.0) & (values <= LARGEST_WEIGHT))))
    if wrong:
        raise SiteFault(
            "bad-weights",
            f"{wrong} rows with a label have no weight of 0 to {LARGEST_WEIGHT:g} in column "
            f'"{config.weight}"',
        )
    weights = np.zeros(len(owns))
    weights[owns] = values
    return weights


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


def _spelled(column: pd.Series) -> NDArray[np.str_]:
    """Canonical spelling of each row's label, "" where there is none."""
    codes, different = pd.factorize(column, use_na_sentinel=True)
    spelled: NDArray[np.str_] = np.array([spelling(v) for v in different.tolist()] + [""])[codes]
    return spelled


def _two_classes(column: pd.Series, config: VerticalXGBoostConfig) -> FloatArray:
    spelled = _spelled(column)
    positive, negative = spelling(config.positive_label), spelling(config.known_negative_label)
    present = spelled != ""
    if np.any(present & (spelled != positive) & (spelled != negative)):
        declare = "" if config.negative_label else " (the default: declare negative-label)"
        raise SiteFault(
            "bad-labels",
            f"rows have a label that is neither positive-label = '{config.positive_label}' nor "
            f"negative-label = '{config.known_negative_label}'{declare}",
        )
    return np.where(present, (spelled == positive).astype(np.float64), np.nan)


def _many_classes(column: pd.Series, config: VerticalXGBoostConfig) -> FloatArray:
    spelled = _spelled(column)
    labels = np.full(len(spelled), np.nan)
    for number, name in enumerate(class_names(config.classes)):
        labels[spelled == spelling(name)] = number
    if np.any(np.isnan(labels) & (spelled != "")):
        raise SiteFault(
            "bad-labels", f"rows have a label that is none of classes = '{config.classes}'"
        )
    return labels


def _targets(column: pd.Series, config: VerticalXGBoostConfig) -> FloatArray:
    values = numbers_of(column, truth=False, blanks=True)
    if values is None:
        raise SiteFault("bad-labels", f"labels of {config.objective} are not numbers")
    if config.objective == "count:poisson" and np.any(values < 0.0):
        raise SiteFault(
            "bad-labels", "rows have a label below 0; allowed with count:poisson is 0 and more"
        )
    bound = config.label_bound or LARGEST_LABEL
    if np.any(np.abs(values) > bound):
        raise SiteFault(
            "bad-labels",
            f"rows have a label above {bound:g} in absolute value"
            + (" (label-bound)" if config.label_bound else ""),
        )
    return values
