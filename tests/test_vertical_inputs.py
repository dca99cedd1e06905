"""Rows that do not fit, odd rows that do: each is used or refused in words that hold no value."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedapp import simulation
from fedapp.run_config import ConfigError, defaults
from fedapp.run_config import read as read_config
from fedapp.run_folder import RunFolder
from fedapp.simulation import InProcessGrid, SimulationResult
from tasks.site.faults import SiteFault
from tasks.site.messages import HELLO
from tasks.vertical_xgboost.decide_messages import DECIDE
from tasks.vertical_xgboost.end_messages import STOP, StopRequest
from tasks.vertical_xgboost.level_messages import HISTOGRAMS
from tasks.vertical_xgboost.message_parts import array_record
from tasks.vertical_xgboost.paillier.engine import engine_named
from tasks.vertical_xgboost.paillier.packing import SlotLayout
from tasks.vertical_xgboost.protected_sums import LevelShape, PaillierSums
from tasks.vertical_xgboost.stopwatch import Stopwatch
from tests.paillier_keys import weak_key
from tests.vertical_frames import cut, random_frame
from tests.vertical_runs import MARK_OF_THE_END, assert_same, central_fit, run

SMALL: dict[str, Any] = {"max_depth": 2, "num_trees": 1, "max_bin": 4}


def frames_of(parties: int = 3, rows: int = 120, **how: Any) -> list[pd.DataFrame]:
    frame = random_frame(5, rows=rows, **how)
    frames = cut(frame, parties=parties, labels="even")
    return [part.sort_values("id").reset_index(drop=True) for part in frames]


def refusal(
    directory: Path, frames: list[pd.DataFrame], monkeypatch: pytest.MonkeyPatch, **keys: Any
) -> str:
    """Reason of a refused run, which every party heard in the same words, and forgot its keys."""
    heard: list[str] = []
    grids: list[InProcessGrid] = []

    class ListeningGrid(InProcessGrid):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            grids.append(self)

        def _handle(self, message: Message) -> Message:
            if message.metadata.message_type == STOP:
                heard.append(StopRequest.from_record(copy.deepcopy(message).content).reason)
            return super()._handle(message)

    monkeypatch.setattr(simulation, "InProcessGrid", ListeningGrid)
    result = run(directory, frames, **{**SMALL, **keys})
    assert result.summary["status"] == "refused"
    reason = str(result.summary["reason"])
    assert heard == [reason] * len(frames)
    assert RunFolder.open(result.run_folder).read().status["reason"] == reason
    for context in grids[0].contexts.values():
        assert list(context.state) == MARK_OF_THE_END
    return reason


def equal_to_central(directory: Path, frames: list[pd.DataFrame], **keys: Any) -> SimulationResult:
    settings = {**SMALL, **keys}
    result = run(directory, frames, **settings)
    assert_same(result, central_fit(frames, **settings))
    return result


# Refused ---------------------------------------------------------------------------------------


def test_rows_with_two_owners_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = frames_of()
    mine = frames[0]["label"].notna()
    frames[1].loc[mine[mine].index[:3], "label"] = 1.0
    frames[2].loc[frames[2]["label"].notna().idxmax(), "label"] = np.nan
    assert refusal(tmp_path, frames, monkeypatch) == (
        "site-0, site-1, site-2: 3 rows have a label at two or more parties; allowed is one owner; "
        "1 rows have a label at no party"
    )


@pytest.mark.parametrize("missing", [np.nan, None, ""])
def test_a_missing_label_is_a_row_without_owner(
    missing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = frames_of()
    frames[1]["label"] = frames[1]["label"].astype(object)
    frames[1].loc[frames[1]["label"].notna().idxmax(), "label"] = missing
    reason = refusal(tmp_path, frames, monkeypatch)
    assert reason == "site-0, site-1, site-2: 1 rows have a label at no party"


def test_one_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = frames_of()
    for frame in frames:
        frame["label"] = frame["label"].where(frame["label"].isna(), 1.0)
    reason = refusal(tmp_path, frames, monkeypatch)
    assert reason.startswith("training labels are of one class only")
    result = run(tmp_path, frames, **SMALL, base_score="0.5")  # then there is a margin
    assert result.summary["status"] == "ok"
    assert result.summary["central"]["same-trees"] is True


def test_counts_of_labels_that_are_not_those_of_the_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows have one owner, but a party's masked count is one more: the mean would be wrong."""
    from tasks.vertical_xgboost import set_up

    honest, counted = set_up.label_sums, []

    def label_sums(*arguments: Any, **options: Any) -> Any:
        counted.append(honest(*arguments, **options))
        return counted[-1] + np.array([0, 1, 1]) * (len(counted) == 2)

    monkeypatch.setattr(set_up, "label_sums", label_sums)
    assert refusal(tmp_path, frames_of(), monkeypatch) == (
        "the numbers of labels under masks are not those of the parties' labels"
    )


def test_an_introduction_of_another_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class AlteringGrid(InProcessGrid):
        def _handle(self, message: Message) -> Message:
            reply = super()._handle(message)
            if message.metadata.message_type == HELLO and message.metadata.dst_node_id == 2:
                reply.content.config_records["facts"]["num-rows"] = "the value 123.456"
            return reply

    monkeypatch.setattr(simulation, "InProcessGrid", AlteringGrid)
    result = run(tmp_path, frames_of(), **SMALL)
    assert result.summary["status"] == "refused"
    words = "site-1: introduces itself in another form than expected"
    assert str(result.summary["reason"]).startswith(words)
    assert "123.456" not in str(result.summary["reason"])


def test_a_party_that_is_late_at_the_introduction_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three are enough to begin with, but the model would lack the fourth one's columns."""
    heard: list[str] = []

    class SlowGrid(InProcessGrid):
        def _handle(self, message: Message) -> Message:
            if message.metadata.message_type == STOP:
                heard.append(StopRequest.from_record(copy.deepcopy(message).content).reason)
            return super()._handle(message)

        def pull_messages(self, message_ids: Any) -> Any:
            replies = super().pull_messages(message_ids)
            return [reply for reply in replies if reply.metadata.src_node_id != 4]

    monkeypatch.setattr(simulation, "InProcessGrid", SlowGrid)
    config = {"run-dir": str(tmp_path), "timeout": 0.3, "vertical-xgboost.encryption": "none"}
    result = simulation.simulate("vertical-xgboost", sites=frames_of(4), config=config)
    assert result.summary["status"] == "refused"
    reason = str(result.summary["reason"])
    assert "no reply within 0.3 s" in reason
    assert "no party may be missing" in reason
    assert heard == [reason] * 3


def test_other_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = frames_of(rows=120)
    short = [frames[0], frames[1].iloc[:90], frames[2]]
    assert refusal(tmp_path, short, monkeypatch) == (
        "the parties have different numbers of rows: 120 at site-0, site-2; 90 at site-1"
    )
    other = [frame.copy() for frame in frames]
    other[2]["id"] += 1
    reason = refusal(tmp_path, other, monkeypatch)
    assert reason.startswith("the parties' row ids differ (site-0, site-1 / site-2)")


def test_repeated_and_missing_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = frames_of()
    frames[1]["id"] = frames[1]["id"].astype(float)
    frames[1].loc[3, "id"] = frames[1].loc[4, "id"]
    frames[1].loc[9, "id"] = np.nan
    reason = refusal(tmp_path, frames, monkeypatch)
    assert "site-1: 1 rows have no id" in reason
    assert "site-1: 1 rows repeat the id of another; ids must be unique" in reason


@pytest.mark.parametrize("labels", ["unknown", "spelled otherwise"])
def test_labels_of_other_spellings(
    labels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = frames_of()
    column = frames[1]["label"].map({1.0: "1", 0.0: "no"}).astype(object)
    if labels == "unknown":
        column[frames[1]["label"].notna().idxmax()] = "perhaps"
    frames[1]["label"] = column
    reason = refusal(tmp_path, frames, monkeypatch)
    assert "perhaps" not in reason
    assert "site-1: " in reason
    assert "nor negative-label = '0' (the default: declare negative-label)" in reason


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.inf, "1 of 3 features have values that are infinite"),
        ("text", "1 of 3 features are not numbers (feature 1)"),
    ],
)
def test_features_that_are_no_numbers(
    value: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = frames_of()
    column = frames[0].columns[1]
    frames[0][column] = frames[0][column].astype(object)
    frames[0].loc[0, column] = value
    if value is np.inf:
        frames[0][column] = frames[0][column].astype(float)
    reason = refusal(tmp_path, frames, monkeypatch)
    assert reason.startswith("site-0: ")
    assert words in reason


def test_two_parties_need_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = frames_of(2)
    reason = refusal(tmp_path, frames, monkeypatch, allow_two_parties=False)
    assert reason.startswith("2 parties: allowed are 3 and more")
    assert "allow-two-parties" in reason


def test_no_rows_for_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = frames_of()
    missing = [frame.drop(columns="id") for frame in frames]
    reason = refusal(tmp_path, missing, monkeypatch)
    assert 'site-0, site-1, site-2: no column "id" (vertical-xgboost.id)' in reason


def test_a_label_beyond_the_declared_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = frames_of(objective="reg:squarederror")
    keys = {"objective": "reg:squarederror", "label_bound": 10.0}
    reason = refusal(tmp_path, frames, monkeypatch, **keys)
    assert "rows have a label above 10 in absolute value (label-bound)" in reason


# Used ------------------------------------------------------------------------------------------


def test_rows_in_another_order_are_ordered_by_id(tmp_path: Path) -> None:
    frames = frames_of()
    shuffled = [frames[0], frames[1].sample(frac=1, random_state=1), frames[2].iloc[::-1]]
    one = equal_to_central(tmp_path, frames)
    two = equal_to_central(tmp_path, shuffled)
    assert one.predictions is not None
    pd.testing.assert_frame_equal(one.predictions, two.predictions)


def test_text_ids_and_labels_of_many_spellings(tmp_path: Path) -> None:
    frames = frames_of()
    for frame in frames:
        frame["id"] = "patient " + frame["id"].astype(str)
    plain = equal_to_central(tmp_path, frames)
    frames[0]["label"] = frames[0]["label"].map({1.0: "1", 0.0: "0"})
    frames[1]["label"] = frames[1]["label"].map({1.0: True, 0.0: False})
    again = equal_to_central(tmp_path, frames)
    assert plain.predictions is not None
    pd.testing.assert_frame_equal(plain.predictions, again.predictions)


def test_a_party_without_labels_is_a_source(tmp_path: Path) -> None:
    frames = cut(random_frame(3, rows=120), parties=3, labels="one")
    assert "label" not in frames[0].columns
    result = equal_to_central(tmp_path, frames, max_depth=3)
    document = RunFolder.open(result.run_folder).read_json("trees.json")
    assert document is not None
    owners = {node.get("owner") for tree in document["trees"] for node in tree["nodes"]}
    assert owners & {"site-0", "site-1"}


def test_a_party_without_columns_owns_labels(tmp_path: Path) -> None:
    frames = frames_of()
    frames[2] = frames[2][["id", "label"]]
    equal_to_central(tmp_path, frames, max_depth=3)


def test_targets_of_a_thousand_million(tmp_path: Path) -> None:
    frames = frames_of(objective="reg:squarederror")
    for frame in frames:
        frame["label"] = frame["label"] * 1e7
    assert max(frame["label"].abs().max() for frame in frames) > 1e9
    keys = {"objective": "reg:squarederror", "num_trees": 3}
    result = equal_to_central(tmp_path, frames, **keys)
    summary = result.summary
    assert summary["train-rmse"] < 0.8 * float(np.std([*frames[0]["label"].dropna()]))


def test_equal_columns_at_two_parties_go_to_the_first(tmp_path: Path) -> None:
    frames = frames_of()
    label = pd.concat([frame["label"] for frame in frames]).dropna().sort_index()
    for frame in frames:
        frame["tell"] = label.to_numpy()
    result = equal_to_central(tmp_path, frames)
    document = RunFolder.open(result.run_folder).read_json("trees.json")
    assert document is not None
    assert document["trees"][0]["nodes"][0]["owner"] == "site-0"


def test_no_gain_above_gamma_is_a_single_leaf(tmp_path: Path) -> None:
    result = equal_to_central(tmp_path, frames_of(), gamma=1e9, max_depth=4, num_trees=3)
    document = RunFolder.open(result.run_folder).read_json("trees.json")
    assert document is not None
    assert [tree["nodes"] for tree in document["trees"]] == [[{"id": 0, "leaf": True}]] * 3
    assert result.exchanges == 4 + 2 * 3  # levels that close early cost nothing


def test_constant_and_missing_columns(tmp_path: Path) -> None:
    frames = frames_of()
    frames[0]["nothing"] = np.nan
    frames[1]["constant"] = 7
    frames[2]["few"] = np.where(np.arange(len(frames[2])) % 2, np.nan, 1.0)
    equal_to_central(tmp_path, frames, max_depth=3)


def test_one_row_a_leaf(tmp_path: Path) -> None:
    keys = {"max_depth": 6, "min_child_weight": 0.0, "max_bin": 64, "reg_lambda": 0.0}
    equal_to_central(tmp_path, frames_of(rows=40), **keys)


# Lost parties ----------------------------------------------------------------------------------


def test_a_party_that_fails_in_the_middle_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.vertical_xgboost import client, level_client

    heard: list[str] = []
    really, stop, asked = level_client.decide, client.stop, []

    def decide(message: Any, site: Any, context: Any) -> Message:
        asked.append(site.name)
        if len(asked) == 4:
            raise ValueError("the value 123.456")
        return really(message, site, context)

    def listen(message: Message, context: Any) -> Message:
        heard.append(StopRequest.from_record(message.content).reason)
        return stop(message, context)

    monkeypatch.setattr(level_client, "decide", decide)
    monkeypatch.setattr(client, "stop", listen)
    result = run(tmp_path, frames_of(4), max_depth=3, num_trees=2)
    assert result.summary["status"] == "failed"
    assert f"decide: no usable answer of {asked[3]}" in result.summary["reason"]
    assert "123.456" not in result.summary["reason"]
    assert heard == [result.summary["reason"]] * 4


# Malformed answers -----------------------------------------------------------------------------


def _drop(record: str) -> Any:
    def alter(content: RecordDict) -> None:
        del content.config_records[record][min(content.config_records[record])]

    return alter


def _forget_leaves(content: RecordDict) -> None:
    (found, *_) = [name for name in content.config_records if name.startswith("sealed-leaves/")]
    del content[found]


def _leaves_of(content: RecordDict) -> list[ConfigRecord]:
    records = content.config_records.items()
    return [record for name, record in records if name.startswith("sealed-leaves/")]


def _drop_leaves(content: RecordDict) -> None:
    del next(filter(None, _leaves_of(content)))["site-1"]


def _seal_one_less(content: RecordDict) -> None:
    record = next(filter(None, _leaves_of(content)))
    parts = record["site-2"]
    assert isinstance(parts, list)
    record["site-2"] = parts[:-1]


def _garble_share(content: RecordDict) -> None:
    shares = content.config_records["shares"]
    shares[min(shares)] = b"garbage"


def _numbers(kind: str, change: Any) -> Any:
    def alter(content: RecordDict) -> None:
        arrays = {name: a.numpy() for name, a in content.array_records["arrays"].items()}
        found = {n: change(a) if n.startswith(kind) else a for n, a in arrays.items()}
        content["arrays"] = array_record(found)

    return alter


def _repeat_a_place(content: RecordDict) -> None:
    arrays = {name: a.numpy().copy() for name, a in content.array_records["arrays"].items()}
    for name in [name for name in arrays if name.startswith("counts")]:
        places = name.replace("counts", "places")
        assert arrays[name][0] > 0
        arrays[name][0] += 1
        arrays[places] = np.concatenate([arrays[places][:1], arrays[places]])
    content["arrays"] = array_record(arrays)


FORM = "reply of another form than expected ("


@pytest.mark.parametrize(
    ("kind", "alter", "words"),
    [
        (HISTOGRAMS, _drop("shares"), FORM + "shares: must be one for each source)"),
        (HISTOGRAMS, _garble_share, ": 7 bytes of sums; expected: "),
        (DECIDE, _drop_leaves, FORM + "leaves: must be sealed for every party"),
        (DECIDE, _forget_leaves, FORM + "leaves: must be of each source"),
        (DECIDE, _seal_one_less, FORM + "leaves: must be sealed for every party"),
        (DECIDE, _numbers("gains", lambda a: a * np.nan), FORM + "gains: must be finite"),
        (DECIDE, _numbers("gains", lambda a: a * 0 - 5.0), FORM + "gains: must be finite"),
        (DECIDE, _numbers("gains", lambda a: a * 0), FORM + "gains: must be finite"),
        (DECIDE, _numbers("gains", lambda a: a[:0]), FORM + "gains, counts: must be one"),
        (DECIDE, _numbers("places", lambda a: a + 10**6), FORM + "places: must be below"),
        (DECIDE, _repeat_a_place, FORM + "places: must differ"),
    ],
)
def test_a_malformed_answer_is_told_by_the_name_of_its_party(
    kind: str, alter: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    altered: list[str] = []

    class AlteringGrid(InProcessGrid):
        def _handle(self, message: Message) -> Message:
            if message.metadata.message_type == STOP:
                heard.append(StopRequest.from_record(copy.deepcopy(message).content).reason)
            node = message.metadata.dst_node_id
            reply = super()._handle(message)
            leaves = alter in (_drop_leaves, _seal_one_less)  # which the first level has none of
            if message.metadata.message_type == kind and not altered:
                if leaves and not any(_leaves_of(reply.content)):
                    return reply
                alter(reply.content)
                altered.append(f"site-{node - 1}")
            return reply

    monkeypatch.setattr(simulation, "InProcessGrid", AlteringGrid)
    result = run(tmp_path, frames_of(), **{**SMALL, "max_depth": 3})
    reason = str(result.summary["reason"])
    assert result.summary["status"] == "failed"
    assert altered[0] in reason
    assert words in reason
    assert heard == [reason] * 3


def test_garbage_in_place_of_ciphertexts_is_told_by_the_name_of_its_party() -> None:
    sums = PaillierSums(
        SlotLayout(rows=10, row_bound=1 << 32, key_bits=1024), engine_named("gmpy2"), Stopwatch()
    )
    shape, key = LevelShape(2, 1), weak_key(0)
    zeros = np.zeros(shape.sums, dtype=np.int64)
    good = sums.share(zeros, rows=5, key=key.public, single=False)
    for bad in (b"garbage", good[:-1], good[:16] + b"\0" * (len(good) - 16)):
        with pytest.raises(SiteFault, match=r"ciphertexts of bank"):
            sums.total(
                {0: good, 1: bad},
                shape,
                names=("shop", "bank"),
                key=key.public,
                single=None,
                order=np.arange(2),
            )


@pytest.mark.parametrize("value", ["nan", 0.3])
def test_a_base_score_that_is_no_number_in_quotes(value: str | float) -> None:
    key = "vertical-xgboost.base-score"
    with pytest.raises(ConfigError) as caught:
        read_config({**defaults(), key: value})
    words = 'must be text: "mean" or a finite number in quotes, as "0.3"'
    assert caught.value.faults == [f"{key} = {value!r}: {words}"]
