"""Reading a site's table: what is accepted, what is refused, and that no value is told."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.site.faults import SiteFault
from tasks.survival.data import SurvivalData, read_survival_data, split


def table(**columns: Any) -> pd.DataFrame:
    """Four good rows, with columns replaced or added."""
    good = {"time": [5.0, 3.0, 8.0, 1.0], "event": [1, 0, 1, 0], "age": [50, 61, 47, 70]}
    return pd.DataFrame({**good, **columns})


def read(
    frame: pd.DataFrame,
    *,
    features: Sequence[str] | None = None,
    event_value: str = "1",
    censored_value: str = "0",
    event: str = "event",
) -> SurvivalData:
    return read_survival_data(
        frame,
        time="time",
        event=event,
        features=features,
        event_value=event_value,
        censored_value=censored_value,
    )


def reasons(frame: pd.DataFrame, **declared: Any) -> tuple[str, ...]:
    with pytest.raises(SiteFault) as caught:
        read(frame, **declared)
    assert caught.value.code == "bad-data"
    return caught.value.reasons


def test_good_table() -> None:
    data = read(table(dose=[0.5, 1.5, 2.5, 3.5]))
    assert data.feature_names == ("age", "dose")
    np.testing.assert_array_equal(data.features, [[50, 0.5], [61, 1.5], [47, 2.5], [70, 3.5]])
    np.testing.assert_array_equal(data.time, [5, 3, 8, 1])
    np.testing.assert_array_equal(data.event, [True, False, True, False])
    assert [array.dtype for array in (data.features, data.time)] == [np.float64] * 2
    assert data.event.dtype == np.bool_
    assert (len(data), data.n_events) == (4, 2)


def test_features_come_in_the_order_named() -> None:
    data = read(table(dose=[1, 2, 3, 4], other=["a", "b", "c", "d"]), features=["dose", "age"])
    assert data.feature_names == ("dose", "age")
    np.testing.assert_array_equal(data.features[0], [1, 50])


def test_take_by_position_and_by_mask() -> None:
    data = read(table())
    assert data.take(np.array([2, 0])).time.tolist() == [8, 5]
    assert data.take(data.event).features.tolist() == [[50], [47]]


@pytest.mark.parametrize(
    "dtype",
    ["int8", "uint16", "float16", "float32", "Int64", "Float64", "int64[pyarrow]", "object"],
)
def test_numeric_types(dtype: str) -> None:
    frame = table().astype({"time": dtype, "event": dtype, "age": dtype})
    data = read(frame)
    assert data.features.dtype == float
    assert data.features[:, 0].tolist() == [50, 61, 47, 70]
    assert data.time.tolist() == [5, 3, 8, 1]
    assert data.event.tolist() == [True, False, True, False]


@pytest.mark.parametrize("dtype", ["bool", "boolean", "bool[pyarrow]", "object"])
def test_boolean_features(dtype: str) -> None:
    data = read(table(treated=pd.Series([True, False, False, True]).astype(dtype)))
    assert data.features[:, 1].tolist() == [1, 0, 0, 1]


def test_decimal_and_sparse_features() -> None:
    sparse = pd.arrays.SparseArray([0.0, 0.0, 3.0, 0.0])
    data = read(table(dose=[Decimal("1.5")] * 4, rare=sparse))
    assert data.features[:, 1:].tolist() == [[1.5, 0], [1.5, 0], [1.5, 3], [1.5, 0]]


@pytest.mark.parametrize(
    ("cells", "dtype"),
    [
        ([1, 0, 1, 0], "int64"),
        ([1.0, 0.0, 1.0, 0.0], "float64"),
        ([True, False, True, False], "bool"),
        (["1", "0", "1", "0"], "object"),
        (["1.0", " 0", "1", "0.0"], "string"),
        (["True", "false", "TRUE", "0"], "object"),
        ([1, "0", True, 0.0], "object"),
        ([1, 0, 1, 0], "category"),
        ([1, 0, 1, 0], "Int64"),
        ([True, False, True, False], "boolean"),
        ([np.bool_(True), np.bool_(False), np.int8(1), np.float32(0)], "object"),
    ],
)
@pytest.mark.parametrize("declared", [("1", "0"), ("1.0", "0"), ("True", "False")])
def test_forms_of_one_event_value(cells: list[Any], dtype: str, declared: tuple[str, str]) -> None:
    frame = table(event=pd.Series(cells, dtype=dtype))
    data = read(frame, event_value=declared[0], censored_value=declared[1])
    assert data.event.tolist() == [True, False, True, False]


def test_other_event_values() -> None:
    frame = table(event=["dead", "alive", "dead", "alive"])
    assert read(frame, event_value="dead", censored_value="alive").n_events == 2
    frame = table(event=[2, 1, 2, 1])
    assert read(frame, event_value="2", censored_value="1").event.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("cells", "wrong"),
    [
        ([1, 2, 1, 0], 1),
        ([1, 2, 2, -1], 3),
        ([1.0, 0.5, np.nan, 0.0], 2),
        (["1", "no", None, "0"], 2),
        (pd.array([1, 0, pd.NA, 0], dtype="Int64"), 1),
        ([pd.Timestamp("2020-01-01")] * 4, 4),
        ([[1], (0,), {}, 1j], 4),
    ],
)
def test_other_cells_in_the_event_column(cells: Any, wrong: int) -> None:
    assert reasons(table(event=cells)) == (
        f"event column 'event': {wrong} of 4 rows hold neither '1' (event) nor '0' (censored)",
    )


def test_event_values_that_are_the_same() -> None:
    assert "are the same" in reasons(table(), event_value="1", censored_value="True")[0]


def test_all_censored_is_allowed() -> None:
    assert read(table(event=[0, 0, 0, 0])).n_events == 0


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([5.0, -731.5, 8.0, -2.0], "2 of 4 times are negative"),
        ([5, 0, 8, 1], "1 of 4 times are zero"),
        ([5, np.nan, 8, None], "2 of 4 times are missing"),
        (pd.array([5, pd.NA, 8, 1], dtype="Int64"), "1 of 4 times are missing"),
        ([5, np.inf, -np.inf, 1], "2 of 4 times are infinite"),
        ([5, 1.7e308, 1e31, 1], "2 of 4 times are above 1e+30"),
        ([5, 5e-324, 1e-31, 1], "2 of 4 times are below 1e-30"),
        ([5, "4 weeks", "n/a", "731.5"], "2 of 4 times are not numbers"),
        (["a", "b", "c", "d"], "4 of 4 times are not numbers"),
        (np.array([5, 10**400, 8, 1], dtype=object), "1 of 4 times are infinite"),
        ([1 + 1j, 2, 3, 4], "not numbers"),
        (pd.to_datetime(["2020-01-01"] * 4), "type datetime64[ns]"),
        (pd.to_timedelta([1, 2, 3, 4], unit="D"), "type timedelta64[ns]"),
        ([True] * 4, "type bool"),
    ],
)
def test_bad_times(cells: Any, said: str) -> None:
    (reason,) = reasons(table(time=cells))
    assert reason.startswith("time column 'time'")
    assert said in reason
    assert "731" not in reason
    assert "weeks" not in reason


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([1.0, np.nan, 731.5, None], "2 of 4 rows are missing (NaN)"),
        (pd.array([1, pd.NA, 2, 3], dtype="Int64"), "1 of 4 rows are missing (NaN)"),
        (pd.array([True, pd.NA, False, True], dtype="boolean"), "1 of 4 rows are missing (NaN)"),
        ([1.0, np.inf, -np.inf, 2.0], "2 of 4 rows are infinite"),
        ([1.0, 1e200, 0.0, 2.0], "1 of 4 rows are beyond ±1e+100"),
        (pd.Series([10**400, 1, 2, 3], dtype=object), "1 of 4 rows are infinite"),
    ],
)
def test_bad_features(cells: Any, said: str) -> None:
    (reason,) = reasons(table(dose=cells))
    filled = ', which survival.missing = "median" would fill in' if "missing" in said else ""
    assert reason == f"feature column 'dose': {said}{filled}"


@pytest.mark.parametrize(
    "cells",
    [
        ["1", "2", "3", "4"],
        pd.Categorical([1, 2, 3, 1]),
        ["I", 2, "III", "I"],
        pd.to_datetime(["2020-01-01"] * 4),
        [1, 2, "?", 4],
        [1 + 1j, 2, 3, 4],
    ],
)
def test_features_that_are_neither_numbers_nor_categories(cells: Any) -> None:
    (reason,) = reasons(table(grade=cells, arm=["yes", "no", "3", "yes"]))
    assert "neither numbers nor categories: 'grade', 'arm'" in reason
    assert "coded as numbers before" in reason
    assert "II" not in reason


def test_missing_columns_name_the_nearest() -> None:
    frame = table().rename(columns={"time": "Time", "event": "status"})
    assert reasons(frame, features=["aeg"]) == (
        "time column 'time' does not exist; the nearest is 'Time'",
        "event column 'event' does not exist",
        "feature column 'aeg' does not exist; the nearest is 'age'",
    )


def test_columns_that_exist_twice() -> None:
    frame = pd.concat([table(), table()[["age", "time"]]], axis=1)
    assert reasons(frame) == (
        "column 'time' exists more than once",
        "column 'age' exists more than once",
    )
    unused = pd.concat([table(), table(x=1)[["x"]], table(x=2)[["x"]]], axis=1)
    assert read(unused, features=["age"]).feature_names == ("age",)


def test_columns_with_two_roles() -> None:
    assert "both as time and as event" in reasons(table(), event="time")[0]
    both = reasons(table(), features=["age", "time", "age"])
    assert both == (
        "column 'time' is declared both as time and as feature",
        "feature column 'age' is named more than once",
    )


@pytest.mark.parametrize("features", [None, []])
def test_no_feature_columns(features: list[str] | None) -> None:
    frame = table()[["time", "event"]]
    assert reasons(frame, features=features) == ("there are no feature columns",)


def test_empty_tables() -> None:
    assert reasons(table().head(0)) == ("the table has no rows",)
    assert len(reasons(pd.DataFrame())) == 4  # no time, event, features, rows


def test_columns_whose_names_are_no_text() -> None:
    frame = table().rename(columns={"age": 7})
    assert read(frame).feature_names == ("7",)


def test_all_faults_at_once_and_no_value_of_a_row() -> None:
    frame = pd.DataFrame(
        {
            "time": [-4711.25, 0.0, np.nan, 1.0],
            "event": [4712, 0, 1, 1],
            "age": [4713.5, np.inf, np.nan, 1.0],
            "grade": ["secret", "x", "y", "z"],
        }
    )
    found = reasons(frame, features=["age", "grade", "gone"])
    assert len(found) == 7
    text = " ".join(found)
    for value in ("471", "secret"):
        assert value not in text


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="allowed"):
        SurvivalData(np.zeros((3, 2)), np.ones(3), np.zeros(3, dtype=bool), ("a",))


def simulated(n_events: int, n_censored: int) -> SurvivalData:
    n_rows = n_events + n_censored
    event = np.random.default_rng(0).permutation(np.arange(n_rows) < n_events)
    rows = np.arange(n_rows, dtype=float)
    return SurvivalData(rows[:, None], rows + 1, event, ("row",))


@given(
    n_events=st.integers(0, 40),
    n_censored=st.integers(0, 40),
    test_fraction=st.floats(0, 0.9),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_split_is_a_stratified_partition(
    n_events: int, n_censored: int, test_fraction: float, seed: int
) -> None:
    data = simulated(n_events, n_censored)
    train, test = split(data, test_fraction=test_fraction, rng=np.random.default_rng(seed))
    parts = np.concatenate([train.features[:, 0], test.features[:, 0]])
    assert sorted(parts) == list(range(len(data)))
    assert (np.diff(train.features[:, 0]) > 0).all()
    assert abs(len(test) - test_fraction * len(data)) <= 2.5
    assert abs(test.n_events - test_fraction * n_events) <= 1
    assert (train.n_events > 0) == (n_events > 0)
    assert (len(train) > train.n_events) == (n_censored > 0)


def test_split_follows_its_generator() -> None:
    data = simulated(40, 60)
    first, again, other = (
        split(data, test_fraction=0.2, rng=np.random.default_rng(seed))[1].time.tolist()
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len(first) == 20


def test_split_of_nothing_and_of_one_row() -> None:
    rng = np.random.default_rng(0)
    train, test = split(simulated(3, 4), test_fraction=0, rng=rng)
    assert (len(train), len(test), test.features.shape) == (7, 0, (0, 1))
    train, test = split(simulated(1, 0), test_fraction=0.9, rng=rng)
    assert (len(train), len(test)) == (1, 0)
    with pytest.raises(ValueError, match="test_fraction is 1"):
        split(simulated(3, 4), test_fraction=1, rng=rng)
