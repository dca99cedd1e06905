"""The tables of sites, from any form in which `fedapp.survival` takes data.

====================================  ============================================================
form                                  sites
====================================  ============================================================
one table                             its rows are dealt, or a site is a value of a column
features, times, events               the same, from arrays; features are named x1, x2, ...
pair of features and labels           the same
list of tables                        one a site
mapping of names to tables            one a site, with its name
anything with ``clients_set``         that mapping; ``test_data`` and ``test_label`` are rows that
                                      no site has, to evaluate the model on
====================================  ============================================================

A table is a DataFrame, or a pair of features (n, p) and labels (n, 2): times, then events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedapp.fsa_config import FSAConfig
from fedapp.site_data import Partition, deal, natural_sites
from tasks.site.faults import SiteFault

TIME, EVENT, OTHER_EVENT = "time", "event", "status"

_FORMS = (
    "must be a DataFrame, arrays of features, durations and events, a list of tables (one a "
    "site), a mapping of site names to tables, or a partition with clients_set"
)

_TO_SCORE = "must be a DataFrame, a pair of features and labels, or a list or mapping of them"


@dataclass(frozen=True, eq=False)
class SiteTables:
    """Tables of all sites.

    Attributes
    ----------
    frames : list of DataFrame
        One a site.
    time, event : str
        Their columns of follow-up times and of events.
    names : list of str, optional
        Names of the sites; None: ``site-0``, ``site-1``, ...
    held_out : DataFrame, optional
        Rows that no site has.
    """

    frames: list[pd.DataFrame]
    time: str
    event: str
    names: list[str] | None = None
    held_out: pd.DataFrame | None = None

    @property
    def features(self) -> list[str]:
        """Columns but those of times and events, in the order of the first table."""
        labels = (self.time, self.event)
        return [str(name) for name in self.frames[0].columns if name not in labels]


def tables_of_sites(
    data: Any,
    durations: Any = None,
    events: Any = None,
    *,
    config: FSAConfig,
    seed: int,
    duration_col: str | None = None,
    event_col: str | None = None,
    client_col: str | None = None,
) -> SiteTables:
    """Tables of the sites that `data` describes.

    Parameters
    ----------
    data : object
        See the module.
    durations, events : array_like, shape (n,), optional
        With features as an array.
    config : FSAConfig
        Number of sites and partition, where one table is dealt.
    seed : int
        Seed of the dealing.
    duration_col, event_col : str, optional
        Columns of times and events; default those of the configuration, then ``time`` and
        ``event``, or ``status`` where there is no ``event``.
    client_col : str, optional
        Column of one table whose values are the sites; it is no feature.

    Raises
    ------
    TypeError
        If `data` has none of the forms.
    ValueError
        If the parts do not fit together.
    """
    held_out = None
    if hasattr(data, "clients_set"):
        held_out = _held_out(data)
        data = data.clients_set
    elif _is_pair(data):
        data = _table(data, "data")
    together = durations is not None or events is not None
    single = isinstance(data, pd.DataFrame) or (together and not isinstance(data, Mapping))
    if together and isinstance(data, pd.DataFrame | Mapping):
        raise TypeError("durations, events: only with features as an array")
    if client_col is not None and not single:
        raise ValueError("client_col: only with one table; here each table is a site")
    columns = {"duration_col": duration_col, "event_col": event_col}
    if single:
        frame = data if isinstance(data, pd.DataFrame) else _from_arrays(data, durations, events)
        time, event = _label_columns([frame], config, **columns)
        dealt = _dealt(frame, config, seed=seed, time=time, event=event, client_col=client_col)
        return SiteTables(dealt, time, event)
    frames, names = _given_apart(data)
    time, event = _label_columns(frames, config, **columns)
    return SiteTables(frames, time, event, names, held_out)


def tables_to_score(
    data: Any,
    durations: Any = None,
    events: Any = None,
    *,
    features: Sequence[str],
    time: str,
    event: str,
) -> list[pd.DataFrame]:
    """Tables with times and events, to evaluate a model on.

    Parameters
    ----------
    data : object
        One table, a list or a mapping of them; or features alone.
    durations, events : array_like, shape (n,), optional
        Times and events of features alone.
    features : sequence of str
        Names of an array's columns.
    time, event : str
        Columns that times and events which are given apart become.

    Raises
    ------
    TypeError
        If `data` has none of the forms.
    ValueError
        If lengths or shapes do not fit.
    """

    def labelled(rows: Any, times: Any, seen: Any) -> pd.DataFrame:
        frame = feature_frame(rows, features)
        times, seen = _vectors(len(frame), times, seen)
        return frame.assign(**{time: times, event: seen})

    if durations is not None or events is not None:
        return [labelled(data, durations, events)]
    if isinstance(data, pd.DataFrame) or _is_pair(data):
        data = [data]
    elif isinstance(data, Mapping):
        data = list(data.values())
    elif not isinstance(data, list | tuple):
        raise TypeError(f"data: {_TO_SCORE}, not a {type(data).__name__}")
    tables = []
    for place, table in enumerate(data):
        if isinstance(table, pd.DataFrame):
            tables.append(table)
        else:
            rows, labels = _pair(table, f"data[{place}]")
            tables.append(labelled(rows, labels[:, 0], labels[:, 1]))
    return tables


def feature_frame(features: Any, names: Sequence[str]) -> pd.DataFrame:
    """Rows to predict: a DataFrame as it is, or an array whose columns are `names`.

    Raises
    ------
    ValueError
        If an array is not of as many columns.
    """
    if isinstance(features, pd.DataFrame):
        return features
    array = np.asarray(features)
    if array.ndim != 2 or array.shape[1] != len(names):
        columns = ", ".join(names)
        raise ValueError(
            f"features of shape {array.shape}: must have the {len(names)} columns {columns}"
        )
    return pd.DataFrame(array, columns=list(names))


def _dealt(
    frame: pd.DataFrame,
    config: FSAConfig,
    *,
    seed: int,
    time: str,
    event: str,
    client_col: str | None,
) -> list[pd.DataFrame]:
    options = config.options
    partition = Partition(
        kind="natural" if client_col is not None else config.partition,
        alpha=float(options.get("dirichlet_alpha", 1.0)),
        column=str(options.get("partition_column", "") if client_col is None else client_col),
        time=time,
        event=event,
        event_value=str(options.get("event_value", "1")),
    )
    try:
        natural = partition.kind == "natural"
        sites = natural_sites(frame, partition.column) if natural else config.n_clients
        rows = deal(frame, partition, sites=sites, seed=seed)
    except SiteFault as fault:
        raise ValueError("; ".join(fault.reasons)) from None
    drop = [partition.column] if natural else []
    return [frame.iloc[part].reset_index(drop=True).drop(columns=drop) for part in rows]


def _given_apart(data: Any) -> tuple[list[pd.DataFrame], list[str] | None]:
    if isinstance(data, Mapping):
        names = [str(name) for name in data]
        return [
            _table(table, name) for name, table in zip(names, data.values(), strict=True)
        ], names
    if not isinstance(data, list | tuple):
        raise TypeError(f"data: {_FORMS}, not a {type(data).__name__}")
    return [_table(table, f"data[{place}]") for place, table in enumerate(data)], None


def _table(table: Any, where: str) -> pd.DataFrame:
    if isinstance(table, pd.DataFrame):
        return table
    rows, labels = _pair(table, where)
    return _from_arrays(rows, labels[:, 0], labels[:, 1])


def _is_pair(data: Any) -> bool:
    """Whether this is features and labels of one table, and not two tables."""
    if not isinstance(data, tuple) or len(data) != 2:
        return False
    return not any(isinstance(part, pd.DataFrame | tuple | list) for part in data)


def _pair(table: Any, where: str) -> tuple[Any, Any]:
    if not isinstance(table, tuple | list) or len(table) != 2:
        words = "must be a DataFrame, or a pair of features (n, p) and labels (n, 2)"
        raise TypeError(f"{where}: {words}, not a {type(table).__name__}")
    labels = np.asarray(table[1])
    if labels.ndim != 2 or labels.shape[1] != 2:
        raise ValueError(
            f"{where}: labels of shape {labels.shape}: must be (n, 2), times and events"
        )
    return table[0], labels


def _from_arrays(features: Any, durations: Any, events: Any) -> pd.DataFrame:
    array = np.asarray(features)
    if array.ndim != 2 or array.shape[1] < 1:
        raise ValueError(f"features of shape {array.shape}: must be (n, p) with p at least 1")
    times, seen = _vectors(len(array), durations, events)
    names = [f"x{number}" for number in range(1, array.shape[1] + 1)]
    return pd.DataFrame(array, columns=names).assign(**{TIME: times, EVENT: seen})


def _vectors(rows: int, durations: Any, events: Any) -> tuple[Any, Any]:
    if durations is None or events is None:
        raise ValueError("durations, events: give both, one number a row each")
    vectors = {"durations": np.asarray(durations), "events": np.asarray(events)}
    vectors = {
        name: vector[:, 0] if vector.ndim == 2 and vector.shape[1] == 1 else vector
        for name, vector in vectors.items()
    }
    faults = [
        f"{name} of shape {vector.shape}: must be ({rows},), one number a row"
        for name, vector in vectors.items()
        if vector.shape != (rows,)
    ]
    if faults:
        raise ValueError("; ".join(faults))
    return vectors["durations"], vectors["events"]


def _label_columns(
    frames: Sequence[pd.DataFrame],
    config: FSAConfig,
    *,
    duration_col: str | None,
    event_col: str | None,
) -> tuple[str, str]:
    time = duration_col or str(config.options.get("time", "")) or TIME
    event = event_col or str(config.options.get("event", ""))
    if not event:
        other = all(EVENT not in frame and OTHER_EVENT in frame for frame in frames)
        event = OTHER_EVENT if frames and other else EVENT
    return time, event


def _held_out(partition: Any) -> pd.DataFrame | None:
    """Rows that a partition keeps from all sites, if it does."""
    rows = getattr(partition, "test_data", None)
    labels = getattr(partition, "test_label", None)
    if rows is None or labels is None or len(rows) == 0:
        return None
    return _table((rows, labels), "test_data, test_label")
