"""Survival data of one site: checked when read, then plain arrays."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tasks.site.faults import SiteFault
from tasks.survival.categories import DeclaredCategories
from tasks.survival.feature_columns import NUMBER_TYPES, number_of, numbers_of, read_features
from tasks.survival.risk_sets import LONGEST_TIME, SHORTEST_TIME


@dataclass(frozen=True, eq=False)
class SurvivalData:
    """Right-censored survival data.

    Attributes
    ----------
    features : ndarray of float64, shape (n, p)
        One column a feature: numbers, places of declared ordered categories, or codes of other
        categories (`tasks.survival.categories`); NaN where a value is missing.
    time : ndarray of float64, shape (n,)
        Follow-up times from ``SHORTEST_TIME`` to ``LONGEST_TIME``, in the unit of the source.
    event : ndarray of bool, shape (n,)
        True if the event was seen at that time, False if the row is censored then.
    feature_names : tuple of str, length p
        Names of the columns.
    texts : mapping of str to mapping of float to str
        Columns whose categories are not declared: the category of each code. They are values of
        rows.
    """

    features: NDArray[np.float64]
    time: NDArray[np.float64]
    event: NDArray[np.bool_]
    feature_names: tuple[str, ...]
    texts: Mapping[str, Mapping[float, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shapes = (self.features.shape, self.time.shape, self.event.shape)
        n_rows, n_columns = len(self.time), len(self.feature_names)
        if shapes != ((n_rows, n_columns), (n_rows,), (n_rows,)):
            raise ValueError(
                f"features, time and event have shapes {shapes} with {n_columns} feature names; "
                "allowed: (n, p), (n,), (n,) with p names"
            )

    def __len__(self) -> int:
        return len(self.time)

    @property
    def n_events(self) -> int:
        """Number of rows with an event."""
        return int(self.event.sum())

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> SurvivalData:
        """The rows at these positions (or where the mask is True), in the order given."""
        return SurvivalData(
            self.features[rows],
            self.time[rows],
            self.event[rows],
            self.feature_names,
            self.texts,
        )


def read_survival_data(
    frame: pd.DataFrame,
    *,
    time: str,
    event: str,
    features: Sequence[str] | None,
    event_value: str,
    censored_value: str,
    categories: Mapping[str, DeclaredCategories] | None = None,
    allow_missing: bool = False,
) -> SurvivalData:
    """Check a table and take time, event and features from it.

    Parameters
    ----------
    frame : pandas.DataFrame
        One row a person. Features may be of any numeric or boolean type, or text.
    time, event : str
        Names of the columns of follow-up times and of event indicators.
    features : sequence of str or None
        Names of the feature columns, in the order wanted; None takes all other columns.
    event_value, censored_value : str
        What the event column holds for an event and for censoring. Numbers are compared as
        numbers and booleans as 1 and 0: ``"1"`` stands for 1, 1.0, True and the text "1".
    categories : mapping of str to DeclaredCategories, optional
        Categories of columns, of text or numbers, by name.
    allow_missing : bool
        Whether features may be missing.

    Returns
    -------
    SurvivalData
        It may have no event at all.

    Raises
    ------
    SiteFault
        ``bad-data``, with everything that is wrong: names, counts and declared values, never
        a value of a row.
    """
    frame = frame.set_axis([str(name) for name in frame.columns], axis="columns")
    declared = (event_value, censored_value)
    if features is None:
        features = [name for name in dict.fromkeys(frame.columns) if name not in (time, event)]
    faults = _column_faults(frame, time=time, event=event, features=features)
    if len(frame) == 0:
        faults.append("the table has no rows")
    counts = Counter(frame.columns)
    usable = {name for name, count in counts.items() if count == 1}

    times, seen = np.empty(0), np.empty(0, dtype=bool)
    if time in usable:
        times, found = _read_times(frame[time])
        faults += found
    faults += _declaration_faults(declared)
    if event in usable:
        seen, found = _read_events(frame[event], *declared)
        faults += found
    categories = categories or {}
    faults += [
        f"survival.categories: {name!r} is no feature column"
        for name in categories
        if name not in features
    ]
    columns, texts, found = read_features(
        frame,
        [name for name in features if name in usable],
        categories=categories,
        allow_missing=allow_missing,
    )
    faults += found
    if faults:
        raise SiteFault("bad-data", *faults)
    return SurvivalData(columns, times, seen, tuple(features), texts)


def split(
    data: SurvivalData, *, test_fraction: float, rng: np.random.Generator
) -> tuple[SurvivalData, SurvivalData]:
    """Split rows at random into training and test data with the same share of events.

    Rows keep their order. Of the rows with an event, and of those without, at least one
    stays in the training data.

    Parameters
    ----------
    data : SurvivalData
    test_fraction : float
        Share of the rows for testing, in [0, 1); 0 gives test data without rows.
    rng : numpy.random.Generator
        The same state of it gives the same split.

    Returns
    -------
    train, test : SurvivalData

    Raises
    ------
    ValueError
        If `test_fraction` is out of range.
    """
    if not 0 <= test_fraction < 1:
        raise ValueError(f"test_fraction is {test_fraction}; allowed: 0 or more, less than 1")
    n_test_events = round(test_fraction * data.n_events)
    n_test_censored = round(test_fraction * len(data)) - n_test_events
    is_test = np.zeros(len(data), dtype=bool)
    for stratum, wanted in ((data.event, n_test_events), (~data.event, n_test_censored)):
        rows = rng.permutation(np.flatnonzero(stratum))
        is_test[rows[: min(wanted, max(len(rows) - 1, 0))]] = True
    return data.take(~is_test), data.take(is_test)


def _column_faults(
    frame: pd.DataFrame, *, time: str, event: str, features: Sequence[str]
) -> list[str]:
    faults = []
    roles = [("time", time), ("event", event), *(("feature", name) for name in features)]
    for role, name in roles:
        if name not in frame.columns:
            near = difflib.get_close_matches(name, list(frame.columns), n=1)
            hint = f"; the nearest is {near[0]!r}" if near else ""
            faults.append(f"{role} column {name!r} does not exist{hint}")
    used = {name for _, name in roles}
    repeated = [name for name, count in Counter(frame.columns).items() if count > 1]
    faults += [f"column {name!r} exists more than once" for name in repeated if name in used]
    if time == event:
        faults.append(f"column {time!r} is declared both as time and as event")
    faults += [
        f"column {name!r} is declared both as {role} and as feature"
        for role, name in (("time", time), ("event", event))
        if name in features
    ]
    named_twice = [name for name, count in Counter(features).items() if count > 1]
    faults += [f"feature column {name!r} is named more than once" for name in named_twice]
    if not features:
        faults.append("there are no feature columns")
    return faults


def _read_times(column: pd.Series[Any]) -> tuple[NDArray[np.float64], list[str]]:
    """Times, and what is wrong with them."""
    label, n_rows, dtype = f"time column {column.name!r}", len(column), column.dtype
    is_date = pd.api.types.is_datetime64_any_dtype(dtype) or isinstance(dtype, pd.PeriodDtype)
    if is_date or pd.api.types.is_timedelta64_dtype(dtype) or pd.api.types.is_bool_dtype(dtype):
        return np.empty(0), [f"{label} is of type {dtype}; allowed: numbers, for example of days"]
    missing = column.isna().to_numpy()
    times = numbers_of(column)
    if times is None:  # one bad cell makes text of a whole column: count the cells that are bad
        cells = column.to_numpy(dtype=object)
        times = np.array([number_of(cell) for cell in cells], dtype=np.float64)
    wrong = {
        "not numbers": np.isnan(times) & ~missing,
        "missing (NaN)": missing,
        "infinite": np.isinf(times) & ~missing,
        "negative": (times < 0) & np.isfinite(times),
        "zero": times == 0,
        f"above {LONGEST_TIME:g}": (times > LONGEST_TIME) & np.isfinite(times),
        f"below {SHORTEST_TIME:g}": (times < SHORTEST_TIME) & (times > 0),
    }
    allowed = f"finite numbers above 0, from {SHORTEST_TIME:g} to {LONGEST_TIME:g}"
    return times, [
        f"{label}: {rows.sum()} of {n_rows} times are {what}; allowed: {allowed}"
        for what, rows in wrong.items()
        if rows.any()
    ]


def _event_key(cell: Any) -> float | str | None:
    """What a cell is compared by: a number where it can be read as one, None if missing."""
    if isinstance(cell, str):
        text = cell.strip()
        if text.lower() in ("true", "false"):
            return float(text.lower() == "true")
        number = number_of(text)
        return text if math.isnan(number) else number
    if isinstance(cell, NUMBER_TYPES):
        return number_of(cell)
    return None if pd.api.types.is_scalar(cell) and pd.isna(cell) else str(cell)


def _declaration_faults(declared: tuple[str, str]) -> list[str]:
    keys = [_event_key(value) for value in declared]
    if keys[0] == keys[1]:
        return [f"event value {declared[0]!r} and censored value {declared[1]!r} are the same"]
    return []


def _read_events(
    column: pd.Series[Any], event_value: str, censored_value: str
) -> tuple[NDArray[np.bool_], list[str]]:
    """Event indicators, and what is wrong with them."""
    numbers = numbers_of(column)
    cells = column.to_numpy(dtype=object) if numbers is None else numbers.tolist()
    keys = [_event_key(cell) for cell in cells]
    seen, censored = _event_key(event_value), _event_key(censored_value)
    n_other = sum(key not in (seen, censored) for key in keys)
    faults = []
    if n_other:
        faults.append(
            f"event column {column.name!r}: {n_other} of {len(keys)} rows hold neither "
            f"{event_value!r} (event) nor {censored_value!r} (censored)"
        )
    return np.array([key == seen for key in keys], dtype=bool), faults
