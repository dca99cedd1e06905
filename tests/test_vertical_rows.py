"""A party's table and configuration of vertical XGBoost: what is read, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from fedapp.run_config import defaults
from fedapp.run_config import read as read_config
from fedapp.vertical_party import prepare_vertical_site
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.joined import join
from tasks.vertical_xgboost.rows import PartyTable, evaluation_rows, read_table
from tests.vertical_frames import config_of


def read(frame: pd.DataFrame, *, seed: int = 0, **keys: Any) -> PartyTable:
    """Read a frame with columns id and label."""
    config = config_of(**{"test_fraction": 0.0, **keys})
    return read_table(frame, id_column="id", label_column="label", config=config, seed=seed)


def frame_of(**columns: Any) -> pd.DataFrame:
    """Three rows, any column replaced."""
    return pd.DataFrame({"id": [3, 1, 2], "x": [30.0, 10.0, 20.0], "label": [1, 0, 1], **columns})


def test_rows_are_ordered_by_id() -> None:
    table = read(frame_of())
    assert table.ids == ("1", "2", "3")
    assert table.features[:, 0].tolist() == [10, 20, 30]
    assert table.labels.tolist() == [0, 1, 1]
    assert table.feature_names == ("x",)
    assert table.features.dtype == np.float32


@pytest.mark.parametrize("ids", [["3", "1", "2"], [3.0, 1.0, 2.0], [" 3", "1 ", "2"]], ids=str)
def test_spellings_of_whole_numbers_are_one(ids: list[Any]) -> None:
    assert read(frame_of(id=ids)).digest() == read(frame_of()).digest()


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([1, 1, 2], "1 rows repeat"),
        ([1.0, np.nan, 2.0], "1 rows have no id"),
        (["a", None, ""], "2 rows have no id"),
        ([1.5, 2.0, 3.0], "1 ids are no whole"),
        ([1000.7, "1000", "7"], "1 ids are no whole"),
        ([2.0**60, 1.0, 2.0], r"1 ids are floats above 2\^53"),
        (["a", "\ud800", "b"], "1 ids are no text of UTF-8"),
    ],
)
def test_bad_ids_are_refused_with_the_count(ids: list[Any], reason: str) -> None:
    with pytest.raises(SiteFault, match=reason) as caught:
        read(frame_of(id=ids))
    assert caught.value.code == "bad-ids"


@pytest.mark.parametrize(
    ("labels", "keys"),
    [
        ([1, 0, 1], {}),
        ([1, -1, 1], {"negative_label": "-1"}),
        ([0, 1, 0], {"positive_label": "0"}),
        ([True, False, True], {}),
        ([1.0, 0.0, 1.0], {}),
        (["1", "0", "1"], {}),
        (["yes", "no", "yes"], {"positive_label": "yes", "negative_label": "no"}),
    ],
    ids=str,
)
def test_classes_in_any_spelling(labels: list[Any], keys: dict[str, Any]) -> None:
    assert read(frame_of(label=labels), **keys).labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "labels", [[1, None, np.nan], ["1", "", None], [True, None, None]], ids=str
)
def test_empty_labels_belong_to_others(labels: list[Any]) -> None:
    table = read(frame_of(label=labels))
    assert table.owns.tolist() == [False, False, True]
    assert table.labels[2] == 1


def test_a_party_may_have_no_labels_at_all() -> None:
    for frame in (frame_of().drop(columns="label"), frame_of(label=[None] * 3)):
        for objective in ("binary:logistic", "reg:squarederror"):
            table = read(frame, objective=objective)
            assert not table.owns.any()
            assert table.feature_names == ("x",)


def test_unknown_labels_are_refused_without_being_told() -> None:
    with pytest.raises(SiteFault, match=r"^rows have a label that is neither") as caught:
        read(frame_of(label=["1", "secret", "other"]))
    assert "secret" not in str(caught.value)
    with pytest.raises(SiteFault, match=r"^rows have a label that is neither") as caught:
        read(frame_of(label=["1", "secret", "0"]), negative_label="0")
    assert "secret" not in str(caught.value)
    with pytest.raises(SiteFault, match="not numbers"):
        read(frame_of(label=["1", "secret", "0"]), objective="reg:squarederror")
    with pytest.raises(SiteFault, match=r"^rows have a label above 1e\+30"):
        read(frame_of(label=[np.inf, 1, 2]), objective="reg:squarederror")


@pytest.mark.parametrize(
    ("labels", "keys"),
    [
        (["1", "7", "8"], {}),
        ([1.5, 20.0, -30.0], {"objective": "reg:squarederror", "label_bound": 10.0}),
        ([1.5, 1e31, -np.inf], {"objective": "reg:squarederror"}),
    ],
)
def test_how_many_labels_are_refused_is_not_told(labels: list[Any], keys: dict[str, Any]) -> None:
    """Else a server that declares one class or a small bound hears how many lie beyond it."""
    said = []
    for last in (labels[0], labels[2]):
        with pytest.raises(SiteFault) as caught:
            read(frame_of(label=[*labels[:2], last]), **keys)
        assert caught.value.code == "bad-labels"
        said.append(caught.value.reasons)
    assert said[0] == said[1]


def test_a_negative_class_of_another_spelling_must_be_declared() -> None:
    with pytest.raises(SiteFault, match=r"^rows .* nor negative-label = '0' .*: declare neg"):
        read(frame_of(label=[1, -1, 1]))
    with pytest.raises(SiteFault, match=r"nor negative-label = 'no'$"):
        read(frame_of(label=[1, -1, 1]), negative_label="no")


def test_features_that_are_no_numbers_or_infinite_are_told_by_position() -> None:
    frame = frame_of(secret=["u", "v", "w"], y=[1.0, np.inf, 2.0], z=[1e39, 0.0, 0.0])
    with pytest.raises(SiteFault) as caught:
        read(frame)
    assert caught.value.code == "bad-features"
    assert "(feature 2)" in caught.value.reasons[0]
    assert "(feature 3, 4)" in caught.value.reasons[1]
    assert "secret" not in str(caught.value)


def test_missing_and_nullable_features_are_read() -> None:
    frame = frame_of(
        x=pd.array([1, None, 3], dtype="Int64"), b=[True, False, True], f=[np.nan, 1.5, 2.5]
    )
    table = read(frame)
    assert np.array_equal(
        table.features, np.array([[np.nan, 0, 1.5], [3, 1, 2.5], [1, 1, np.nan]]), equal_nan=True
    )


def test_gaps_do_not_make_another_thing_of_numbers() -> None:
    frame = frame_of(
        b=[True, None, False], none=[None] * 3, mixed=np.array([1, None, 2.5], dtype=object)
    )
    table = read(frame)
    expected = [[np.nan, np.nan, np.nan], [0, np.nan, 2.5], [1, np.nan, 1]]
    assert np.array_equal(table.features[:, 1:], np.array(expected), equal_nan=True)
    with pytest.raises(SiteFault, match=r"1 of 2 features are not numbers \(feature 2\)"):
        read(frame_of(blank=["", "1", "2"]))


@pytest.mark.parametrize("blank", ["", "  ", None, np.nan])
def test_blank_targets_belong_to_others(blank: Any) -> None:
    some = read(frame_of(label=[1.5, blank, blank]), objective="reg:squarederror")
    assert some.labels[2] == 1.5
    assert some.owns.tolist() == [False, False, True]
    assert not read(frame_of(label=[blank] * 3), objective="reg:squarederror").owns.any()
    assert not read(frame_of(label=[blank] * 3)).owns.any()


@pytest.mark.parametrize("text", ["4.5", " +4.5", "45e-1", "4.5E0"])
def test_targets_beside_blanks_may_be_text(text: str) -> None:
    table = read(frame_of(label=["-2.", " ", text]), objective="reg:squarederror")
    assert np.array_equal(table.labels, [np.nan, 4.5, -2.0], equal_nan=True)


@pytest.mark.parametrize(
    "text", ["4,5", "0x1f", "1_000", "inf", "nan", "true", "\u0664", "4 5", "."]
)
def test_other_text_is_no_target(text: str) -> None:
    with pytest.raises(SiteFault, match="not numbers") as caught:
        read(frame_of(label=["1.5", " ", text]), objective="reg:squarederror")
    assert text not in str(caught.value)


def test_true_and_false_are_no_targets() -> None:
    for label in ([True, False, True], [True, None, None]):
        with pytest.raises(SiteFault, match="not numbers"):
            read(frame_of(label=label), objective="reg:squarederror")


def test_missing_columns_are_named() -> None:
    with pytest.raises(SiteFault, match='no column "id"'):
        read(frame_of().drop(columns="id"))


def test_evaluation_rows_depend_on_ids_and_seed_only() -> None:
    ids = tuple(sorted(str(at) for at in range(1000)))
    flags = evaluation_rows(ids, fraction=0.2, seed=4)
    assert flags.sum() == 200
    assert np.array_equal(flags, evaluation_rows(ids, fraction=0.2, seed=4))
    assert (flags != evaluation_rows(ids, fraction=0.2, seed=5)).any()
    assert abs(flags[:500].sum() - 100) < 40


def test_other_rows_or_another_split_change_the_digest() -> None:
    one = read(frame_of())
    assert read(frame_of().iloc[::-1]).digest() == one.digest()
    assert read(frame_of(id=[3, 1, 4])).digest() != one.digest()
    flagged = [read(frame_of(), seed=seed, test_fraction=0.34).digest() for seed in range(20)]
    assert len(set(flagged)) == 3
    assert one.digest() not in flagged
    with pytest.raises(SiteFault) as caught:
        join({"a": one, "b": read(frame_of(id=[3, 1, 4]))})
    assert caught.value.code == "not-aligned"


def test_labels_of_parties_must_cover_the_rows_once() -> None:
    first, second = frame_of(label=[1, None, None]), frame_of(label=[None, 0, None])
    with pytest.raises(SiteFault, match="1 rows have a label at no party"):
        join({"a": read(first), "b": read(second)})
    with pytest.raises(SiteFault, match="1 rows have a label at two"):
        join({"a": read(first), "b": read(frame_of())})
    joined = join({"a": read(first), "b": read(frame_of(label=[None, 0, 1]))})
    assert joined.labels.tolist() == [0, 1, 1]
    assert joined.owner.tolist() == [1, 1, 0]
    assert joined.feature_names == ("a.x", "b.x")


# Files --------------------------------------------------------------------------------------


def read_csv(directory: Path, text: str, **keys: Any) -> PartyTable:
    """A party's file, read as its node reads it."""
    path = directory / f"{abs(hash(text))}.csv"
    path.write_text(text)
    settings = {f"vertical-xgboost.{key}": value for key, value in keys.items()}
    config = read_config({**defaults(), "task": "vertical-xgboost", **settings})
    return prepare_vertical_site({"site-name": "a", "data-path": str(path)}, config).table


@pytest.mark.parametrize(
    "ids",
    [
        ("007", "7"),
        ("007", "008"),
        ("0x1f", "0x20"),
        ("12345678901234567890", "12345678901234567899"),
        ("1.0", "2.0"),
        ("2020-01-01", "2020-01-02"),
        ("true", "false"),
    ],
    ids=str,
)
def test_ids_of_a_csv_file_are_text_as_it_stands(ids: tuple[str, str], tmp_path: Path) -> None:
    table = read_csv(tmp_path, f" id ,x,label\n{ids[0]},1,1\n{ids[1]},2,0\n")
    assert table.ids == tuple(sorted(ids))
    assert table.features[:, 0].tolist() == [1.0 + (at != ids[0]) for at in table.ids]


def test_whole_numbers_of_a_csv_file_are_those_of_a_frame(tmp_path: Path) -> None:
    frame = frame_of()
    assert read_csv(tmp_path, frame.to_csv(index=False)).ids == read(frame).ids
    with pytest.raises(SiteFault, match="1 rows have no id"):
        read_csv(tmp_path, "id,x,label\n,1,1\n2,2,0\n")


def test_blank_targets_of_a_csv_file_belong_to_others(tmp_path: Path) -> None:
    text = "id,x,label\n1,1, \n2,2,4.5\n3,3,\n4,4,-2\n"
    table = read_csv(tmp_path, text, objective="reg:squarederror")
    assert np.array_equal(table.labels, [np.nan, 4.5, np.nan, -2.0], equal_nan=True)


def test_a_joined_file_keeps_the_spelling_of_ids(tmp_path: Path) -> None:
    path = tmp_path / "joined.csv"
    path.write_text("key,a,b,y\n007,1,4,0\n7,2,5,1\n08,3,6,0\n")
    config = read_config(
        {
            **defaults(),
            "task": "vertical-xgboost",
            "vertical-xgboost.data": str(path),
            "vertical-xgboost.id": "key",
            "vertical-xgboost.label": "y",
        }
    )
    for part in range(2):
        node = {"partition-id": part, "num-partitions": 2}
        assert prepare_vertical_site(node, config).table.ids == ("007", "08", "7")


# Configuration ----------------------------------------------------------------------------


def test_keys_are_those_of_xgboost() -> None:
    config = VerticalXGBoostConfig.model_validate({"lambda": 2.0, "max-depth": 3, "gamma": 0.5})
    assert (config.reg_lambda, config.max_depth, config.gamma) == (2.0, 3, 0.5)
    aliases = {info.alias for info in VerticalXGBoostConfig.model_fields.values()}
    assert {"lambda", "min-child-weight", "base-score", "allow-two-parties"} <= aliases
    assert config.given_base_score is None
    assert config_of(base_score="0.25").given_base_score == 0.25


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"base_score": "1"}, "base-score = 1 with"),
        ({"base_score": "1e999", "objective": "reg:squarederror"}, "base-score = 1e999"),
        ({"label_bound": 3.0}, "label-bound = 3.0"),
        ({"key_bits": 1024}, "key-bits = 1024"),
        ({"early_stopping_rounds": 2, "test_fraction": 0.0}, "early-stopping-rounds = 2"),
        ({"negative_label": "1"}, "is the positive label too"),
    ],
)
def test_contradictions_are_refused_by_name_and_value(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        config_of(**keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"max_bin": 256},
        {"max_bin": 1},
        {"eta": 0.0},
        {"base_score": "half"},
        {"fixed_point_bits": 19},
        {"max_depth": -1},
        {"reg_lambda": float("nan")},
        {"unknown": 1},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config_of(**keys)
