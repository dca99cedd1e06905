"""Runs whose parties have other rows: trained on the common ones, as if aligned by hand before."""

from __future__ import annotations

import copy
import hashlib
import itertools
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord, Message

from fedapp import client_app, prepared_sites, server_app, simulation
from fedapp.report import vertical_xgboost as report
from fedapp.report.vertical_xgboost_words import alignment_words, trust_words
from fedapp.run_config import defaults
from fedapp.run_folder import RunFolder
from fedapp.simulation import InProcessGrid, SimulationResult
from tasks.secure.transcript import encode
from tasks.site.messages import HELLO
from tasks.vertical_xgboost import alignment_client, private_sets
from tasks.vertical_xgboost.alignment import HashedIds
from tasks.vertical_xgboost.alignment_messages import ALIGN, COMMON, INVITE, MATCH
from tasks.vertical_xgboost.end_messages import STOP, StopRequest
from tasks.vertical_xgboost.messages import LABELS
from tests.vertical_frames import cut, random_frame
from tests.vertical_runs import Recorded, bytes_of, record, run

SMALL: dict[str, Any] = {"max_depth": 2, "num_trees": 2, "max_bin": 6}
REGRESSION = "reg:squarederror"


needs_psi = pytest.mark.skipif(
    find_spec("private_set_intersection") is None, reason="needs the extra psi"
)
MODES = ["hashed", pytest.param("psi", marks=needs_psi)]


def frames_of(
    parties: int = 3, *, rows: int = 140, common: int = 90, objective: str = "binary:logistic"
) -> list[pd.DataFrame]:
    """Parties that share some rows; of the others each has about half, in an order of its own."""
    frame = random_frame(5, rows=rows, objective=objective)
    frame["id"] = [f"patient-{number}-of-the-register" for number in frame["id"]]
    random = np.random.default_rng(3)
    shared = set(random.choice(frame["id"], size=common, replace=False))
    parts = cut(frame, parties=parties, labels="even")
    return [part[part["id"].isin(shared) | (random.random(len(part)) < 0.5)] for part in parts]


def by_hand(frames: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """What pandas aligns."""
    common = pd.Index(frames[0]["id"])
    for frame in frames[1:]:
        common = common.intersection(pd.Index(frame["id"]))
    return [frame[frame["id"].isin(common)] for frame in frames]


def skeleton(folder: RunFolder) -> dict[str, Any]:
    """All of ``trees.json`` but the name of the run."""
    document = folder.read_json("trees.json")
    assert document is not None
    return {key: value for key, value in document.items() if key != "run"}


def assert_same_run(one: SimulationResult, two: SimulationResult) -> None:
    """Trees, gains, metrics and predictions, to the last bit."""
    assert one.summary["status"] == two.summary["status"] == "ok", one.summary.get("reason")
    assert one.summary["central"]["same-trees"] is True
    folders = [RunFolder.open(result.run_folder) for result in (one, two)]
    assert skeleton(folders[0]) == skeleton(folders[1])
    assert one.predictions is not None
    assert two.predictions is not None
    pd.testing.assert_frame_equal(one.predictions, two.predictions, check_exact=True)
    for key in ("train-loss", "test-loss", "base-score", "n-rows", "n-evaluation"):
        assert one.summary[key] == two.summary[key]


class AlteringGrid(InProcessGrid):
    """A server, or a party, that does otherwise; and what parties hear at the end."""

    alter_request: Callable[[Message], None] | None = None
    alter_reply: Callable[[Message, Message], None] | None = None
    heard: list[str]

    def _handle(self, message: Message) -> Message:
        if message.metadata.message_type == STOP:
            type(self).heard.append(StopRequest.from_record(copy.deepcopy(message).content).reason)
        if (change := type(self).alter_request) is not None:
            change(message)
        request = copy.deepcopy(message)
        reply = super()._handle(message)
        if (change_reply := type(self).alter_reply) is not None:
            change_reply(request, reply)
        return reply


def refusal(
    directory: Path,
    frames: Sequence[pd.DataFrame],
    patch: pytest.MonkeyPatch,
    *,
    request: Any = None,
    reply: Any = None,
    status: str = "refused",
    **keys: Any,
) -> str:
    """Reason of a run that ends without a model, which all parties heard."""
    patch.setattr(AlteringGrid, "alter_request", staticmethod(request) if request else None)
    patch.setattr(AlteringGrid, "alter_reply", staticmethod(reply) if reply else None)
    patch.setattr(AlteringGrid, "heard", [], raising=False)
    patch.setattr(simulation, "InProcessGrid", AlteringGrid)
    result = run(directory, frames, **{"alignment": "hashed", **SMALL, **keys})
    assert result.summary["status"] == status, result.summary.get("reason")
    reason = str(result.summary["reason"])
    assert AlteringGrid.heard == [reason] * len(frames)
    assert "patient-" not in reason
    return reason


# The same as by hand ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("objective", ["binary:logistic", REGRESSION])
def test_trees_are_those_of_rows_aligned_by_hand(mode: str, objective: str, tmp_path: Path) -> None:
    frames = frames_of(objective=objective)
    if objective == REGRESSION:  # out of the common rows, and larger than all labels of these
        own = frames[1][~frames[1]["id"].isin(frames[0]["id"])].index[0]
        frames[1].loc[own, "label"] = 1e9
    aligned = run(tmp_path, frames, alignment=mode, objective=objective, **SMALL)
    assert_same_run(aligned, run(tmp_path, by_hand(frames), objective=objective, **SMALL))
    plain = 4 + 2 * 2 * 2
    added = {"hashed": 2, "psi": 3}[mode] + (objective == REGRESSION)
    assert aligned.exchanges == plain + added


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("parties", [2, 4])
def test_any_number_of_parties_and_any_hub(mode: str, parties: int, tmp_path: Path) -> None:
    frames = frames_of(parties)
    keys = {"alignment_hub": f"site-{parties - 1}", "aggregator": "source", **SMALL}
    aligned = run(tmp_path, frames, alignment=mode, **keys)
    del keys["alignment_hub"]
    assert_same_run(aligned, run(tmp_path, by_hand(frames), **keys))


def test_early_stopping_keeps_the_trees_of_common_rows(tmp_path: Path) -> None:
    keys = {"early_stopping_rounds": 1, "num_trees": 6, "max_depth": 3, "eta": 1.0}
    frames = frames_of()
    aligned = run(tmp_path, frames, alignment="hashed", **keys)
    assert_same_run(aligned, run(tmp_path, by_hand(frames), **keys))
    assert aligned.summary["trees-kept"] < aligned.summary["trees"]


def run_over_files(directory: Path, frames: Sequence[pd.DataFrame], **keys: Any) -> Any:
    """A run whose nodes have a CSV file each, named by ``data-path``."""
    nodes: list[dict[str, Any]] = []
    for at, frame in enumerate(frames):
        path = directory / f"party-{at}.csv"
        frame.to_csv(path, index=False)
        own = str(directory / f"model-{at}")
        nodes.append({"site-name": f"site-{at}", "data-path": str(path), "model-dir": own})
    settings = {"encryption": "none", **SMALL, **keys}
    values: dict[str, Any] = {**defaults(), "task": "vertical-xgboost", "report": False}
    values |= {"run-dir": str(directory), "num-sites": len(frames)}
    values |= {f"vertical-xgboost.{key.replace('_', '-')}": v for key, v in settings.items()}
    grid = InProcessGrid(client_app.app, nodes, values)
    folder = server_app.run_task(grid, values, started=time.time())
    prepared_sites.forget_sites()
    return simulation.read_result(folder)


@pytest.mark.parametrize("form", ["{}", "{:07d}", "p{}"])
def test_own_files_with_ids_of_any_type(form: str, tmp_path: Path) -> None:
    frames = frames_of()
    for frame in frames:
        numbers = frame["id"].str.extract(r"(\d+)", expand=False).astype(int)
        frame["id"] = numbers.map(form.format)
    aligned = run_over_files(tmp_path, frames, alignment="hashed")
    other = run(tmp_path, by_hand(frames), **SMALL)
    assert aligned.summary["status"] == "ok", aligned.summary["reason"]
    folders = [RunFolder.open(result.run_folder) for result in (aligned, other)]
    assert skeleton(folders[0]) == skeleton(folders[1])
    for key in ("train-loss", "test-loss", "base-score", "n-rows", "n-evaluation"):
        assert aligned.summary[key] == other.summary[key]


def test_own_files_with_and_without_leading_zeros(tmp_path: Path) -> None:
    frames = frames_of()
    for at, frame in enumerate(frames):
        numbers = frame["id"].str.extract(r"(\d+)", expand=False).astype(int)
        frame["id"] = numbers.map("{:07d}".format) if at == 1 else numbers
    result = run_over_files(tmp_path, frames, alignment="hashed")
    assert result.summary["status"] == "refused"
    words = "whole numbers at site-0, site-2; digits with leading zeros at site-1"
    assert words in result.summary["reason"]


def test_the_same_rows_everywhere_are_all_common(tmp_path: Path) -> None:
    frames = by_hand(frames_of())
    aligned = run(tmp_path, frames, alignment="hashed", **SMALL)
    assert_same_run(aligned, run(tmp_path, frames, **SMALL))
    assert set(aligned.summary["rows-before"].values()) == {aligned.summary["n-rows"]}


def test_the_outcome_is_counts(tmp_path: Path) -> None:
    frames = frames_of()
    result = run(tmp_path, frames, alignment="hashed", **SMALL)
    before = {f"site-{at}": len(frame) for at, frame in enumerate(frames)}
    assert result.summary["alignment"] == "hashed"
    assert result.summary["rows-before"] == before
    assert result.summary["n-rows"] == len(by_hand(frames)[0]) < min(before.values())
    read = RunFolder.open(result.run_folder).read()
    (words,) = alignment_words(read)
    assert words.startswith(f"Aligned rows: {result.summary['n-rows']} are common to all parties")
    cells = report.site_columns(read)["rows before alignment"]
    assert cells == {name: str(rows) for name, rows in before.items()}
    assert any("hub (site-0)" in text for text in trust_words(read))
    assert "hash" in result.summary["crypto-seconds"]


# What travels -------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=MODES)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    frames = frames_of(objective=REGRESSION)
    keys = {"alignment": request.param, "objective": REGRESSION, "encryption": "paillier", **SMALL}
    found = record(tmp_path_factory.mktemp("aligned"), frames, **keys)
    assert found.result.summary["status"] == "ok", found.result.summary.get("reason")
    return found


def test_no_id_and_no_hash_that_the_server_can_compute_is_in_a_message(recorded: Recorded) -> None:
    ids = {text for frame in frames_of() for text in frame["id"]}
    known = {text.encode() for text in ids}
    known |= {hashlib.sha256(text.encode()).digest() for text in ids}
    everything = b"".join(
        raw for pair in recorded.messages for each in pair for raw in bytes_of(each).values()
    )
    assert not [value for value in known if value in everything]
    # Nor a digest of a whole set of ids, to which the server could hold a guess.
    for _, _, reply in recorded.of_type(HELLO):
        assert reply.content.config_records["facts"]["digest"] == b""
        assert reply.content.config_records["facts"]["label-exponent"] == 0


def test_alignment_replies_are_sealed_but_for_counts(recorded: Recorded) -> None:
    in_clear = {
        INVITE: ({"sealed", "seconds"}, {"site-0": {"site-1", "site-2"}}),
        ALIGN: ({"sealed", "seconds"}, {"site-1": {"site-0"}, "site-2": {"site-0"}}),
        MATCH: ({"sealed", "match", "seconds"}, {"site-0": {"site-1", "site-2"}}),
    }
    seen = set()
    for kind, (records, receivers) in in_clear.items():
        for party, _, reply in recorded.of_type(kind):
            assert set(reply.content) == records
            assert set(reply.content.config_records["sealed"]) == receivers[party]
            seen.add(kind)
    assert seen >= {ALIGN, MATCH}
    for _, _, reply in recorded.of_type(COMMON):
        assert set(reply.content) == {"common", "seconds"}
        assert set(reply.content.config_records["common"]) == {"label-exponent", "weight-exponent"}
    ((_, _, reply),) = recorded.of_type(MATCH)
    told = reply.content.config_records["match"]
    assert dict(told) == {"num-rows": recorded.result.summary["n-rows"]}


def test_the_ledger_says_what_is_revealed(recorded: Recorded) -> None:
    rows = [
        r for r in recorded.result.ledger if r["step"] in ("invite", "align", "match", "common")
    ]
    assert all("not declared" not in str(row["reveals"]) for row in rows)
    sealed = {(r["step"], r["sender"], r["receiver"]) for r in rows if r["sealed"]}
    for spoke in ("site-1", "site-2"):
        assert ("align", spoke, "site-0") in sealed
        assert ("match", "site-0", spoke) in sealed
    assert all(row["protection"] != "sealed + clear" for row in rows if row["sealed"])
    hello = {str(r["reveals"]) for r in recorded.result.ledger if r["step"] == "hello"}
    assert any("digits with leading zeros" in words for words in hello)
    assert not any("digest of all ids" in words for words in hello)


def test_a_party_that_is_not_the_hub_sees_common_ids_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[HashedIds] = []
    honest = HashedIds.from_bytes

    def read(data: bytes, *, sender: str) -> HashedIds:
        found = honest(data, sender=sender)
        if sender == "site-0":
            opened.append(found)
        return found

    monkeypatch.setattr(HashedIds, "from_bytes", staticmethod(read))
    frames = frames_of()
    result = run(tmp_path, frames, alignment="hashed", **SMALL)
    common = set(by_hand(frames)[0]["id"])
    assert result.summary["n-rows"] == len(common)
    assert len(opened) == 2
    everywhere = sorted(set(itertools.chain.from_iterable(frame["id"] for frame in frames)))
    for answer in opened:
        assert {everywhere[at] for at in answer.places_in(everywhere)} == common


# Refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_ids_of_different_types_are_refused_by_name(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = frames_of()
    numbers = [frame["id"].str.extract(r"(\d+)", expand=False).astype(int) for frame in frames]
    for frame, own in zip(frames, numbers, strict=True):
        frame["id"] = own
    frames[1]["id"] = frames[1]["id"].map("{:07d}".format)
    assert refusal(tmp_path, frames, monkeypatch, alignment=mode) == (
        "the parties' ids are of different types: whole numbers at site-0, site-2; digits with "
        'leading zeros at site-1. "007" is not 7: write them alike everywhere (a letter in front '
        "makes all of them text)"
    )


def test_repeated_ids_are_refused_with_the_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = frames_of()
    frames[1] = pd.concat([frames[1], frames[1].iloc[:3]])
    reason = refusal(tmp_path, frames, monkeypatch)
    assert reason == "site-1: 3 rows repeat the id of another; ids must be unique"


@pytest.mark.parametrize("mode", MODES)
def test_no_common_row(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = frames_of()
    frames[2]["id"] = "other-" + frames[2]["id"]
    rows = [len(frame) for frame in frames]
    assert refusal(tmp_path, frames, monkeypatch, alignment=mode) == (
        "no-common-rows: no row id is common to all parties (rows: "
        f"{rows[0]} at site-0, {rows[1]} at site-1, {rows[2]} at site-2)"
    )


def test_common_rows_without_a_label_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = frames_of()
    common = by_hand(frames)[0]["id"].iloc[:4]
    for frame in frames:
        frame.loc[frame["id"].isin(common), "label"] = np.nan
    reason = refusal(tmp_path, frames, monkeypatch)
    assert reason == "site-0, site-1, site-2: 4 rows have a label at no party"
    for frame in frames:  # rows that are not common may have none
        frame.loc[frame["id"].isin(common), "id"] += f"-{len(frame)}"
    assert run(tmp_path, frames, alignment="hashed", **SMALL).summary["status"] == "ok"


def test_a_hub_that_is_no_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = refusal(tmp_path, frames_of(), monkeypatch, alignment_hub="site-9")
    words = 'alignment-hub = "site-9": allowed are the parties site-0, site-1, site-2'
    assert reason == words


def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "private_set_intersection.python", None)
    reason = refusal(tmp_path, frames_of(), monkeypatch, alignment="psi")
    assert reason.startswith(
        'site-0, site-1, site-2: alignment = "psi" needs the package openmined'
    )
    assert "pip install '.[psi]'" in reason


# Parties and servers that do otherwise ------------------------------------------------------------


def seal_instead(patch: pytest.MonkeyPatch, party: str, change: Callable[[bytes], bytes]) -> None:
    """Let a party seal something else in a step of the alignment."""
    honest = alignment_client.Secrets.seal

    def seal(self: Any, peers: Any, to: str, payload: bytes, *, step: str) -> bytes:
        if self.keys.site == party and step in ("vertical-align", "vertical-match"):
            payload = change(payload)
        return honest(self, peers, to, payload, step=step)

    patch.setattr(alignment_client.Secrets, "seal", seal)


@pytest.mark.parametrize("party", ["site-1", "site-0"])
def test_a_key_of_another_length(
    party: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = encode("fedapp/hashed-ids/1", b"k" * 16, b"h" * 32)
    seal_instead(monkeypatch, party, lambda _: short)
    words = f"{party}: hashes ids under a key of 16 bytes; must be 32"
    assert words in refusal(tmp_path, frames_of(), monkeypatch)


def test_a_hub_that_tells_a_party_other_rows_than_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = frames_of()
    fewer = sorted(by_hand(frames)[0]["id"])[1:]
    seal_instead(monkeypatch, "site-0", lambda _: HashedIds.draw(fewer).to_bytes())
    reason = refusal(tmp_path, frames, monkeypatch)
    told = f"{len(fewer)} common rows; the server was told {len(fewer) + 1}"
    assert reason == f"site-1, site-2: site-0: {told}"


def test_a_hub_that_tells_parties_different_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many everywhere, so that no count shows it."""
    frames = frames_of()
    common = by_hand(frames)[0]["id"].tolist()
    extra = frames[1]["id"][~frames[1]["id"].isin(common)].iloc[0]
    answers = iter([[*common[1:], extra], common])  # of site-1, of site-2
    seal_instead(monkeypatch, "site-0", lambda _: HashedIds.draw(next(answers)).to_bytes())
    reason = refusal(tmp_path, frames, monkeypatch)
    assert "site-0, site-2: other common rows than here at site-1" in reason


def test_a_hub_that_tells_the_server_too_many_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = frames_of()

    def tell(request: Message, reply: Message) -> None:
        if request.metadata.message_type == MATCH:
            reply.content.config_records["match"]["num-rows"] = 10_000

    reason = refusal(tmp_path, frames, monkeypatch, reply=tell, status="failed")
    most = min(map(len, frames))
    assert "match: no usable answer of site-0" in reason
    assert f"num-rows: must be 0 to {most}, the rows of the smallest party" in reason


def test_a_hub_that_names_rows_of_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seal_instead(monkeypatch, "site-0", lambda _: HashedIds.draw(["x", "y"]).to_bytes())
    reason = refusal(tmp_path, frames_of(), monkeypatch)
    assert reason == "site-1, site-2: site-0: 2 common rows are not this party's"


@needs_psi
def test_garbage_in_place_of_blinded_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seal_instead(monkeypatch, "site-2", lambda _: b"garbage")
    reason = refusal(tmp_path, frames_of(), monkeypatch, alignment="psi")
    assert reason == "site-0: site-2: no answer of a private intersection"


@needs_psi
def test_an_answer_to_fewer_blinded_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = private_sets.answer

    def answer(request: bytes, ids: Sequence[str], *, hub: str) -> bytes:
        asked = private_sets.library().Request()
        asked.ParseFromString(request)
        del asked.encrypted_elements[5:]
        return honest(asked.SerializeToString(), ids, hub=hub)

    monkeypatch.setattr(private_sets, "answer", answer)
    reason = refusal(tmp_path, frames_of(), monkeypatch, alignment="psi")
    assert "site-1: no answer of a private intersection" in reason


def test_a_server_that_hands_on_the_part_of_another_party(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap(request: Message) -> None:
        if request.metadata.message_type == MATCH:
            sealed = request.content.config_records["sealed"]
            sealed["site-2"] = sealed["site-1"]

    reason = refusal(tmp_path, frames_of(), monkeypatch, request=swap)
    assert reason.startswith("site-0: message of site-2 for step vertical-align: it was altered")


def test_a_server_that_repeats_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sealed for ``match`` comes again in place of whose labels are whose."""
    kept: dict[int, bytes] = {}

    def repeat(request: Message) -> None:
        node, content = request.metadata.dst_node_id, request.content
        if request.metadata.message_type == LABELS and "sealed-common" in content:
            kept[node] = content.config_records["sealed-common"]["hub"]  # type: ignore[assignment]
        if request.metadata.message_type == "query.vertical_buckets" and node in kept:
            content.config_records["sealed"]["site-0"] = kept[node]

    reason = refusal(tmp_path, frames_of(), monkeypatch, request=repeat)
    assert "message of site-0 for step vertical-labels: it was altered" in reason


@pytest.mark.parametrize(
    ("node", "kind", "words"),
    [
        (1, ALIGN, "site-0: align: the hub of the alignment is site-0"),
        (2, MATCH, "site-1: match: the hub of the alignment is site-0"),
        (2, ALIGN, "site-1: step align: expected labels"),  # that it has answered
        (2, INVITE, "site-1: step invite: expected labels"),
    ],
)
def test_a_step_is_answered_once_and_by_its_party(
    node: int, kind: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that asks for more gets nothing, and that party answers no more."""
    said: list[tuple[str, bool]] = []

    class CuriousGrid(InProcessGrid):
        def _handle(self, message: Message) -> Message:
            answer = None
            is_late = words.endswith("expected labels")
            if message.metadata.message_type == ALIGN and not said:
                answer = super()._handle(copy.deepcopy(message)) if is_late else None
                other = copy.deepcopy(message)
                other = Message(other.content, dst_node_id=node, message_type=kind)
                other.metadata.__dict__["_message_id"] = message.metadata.message_id
                reply = super()._handle(other)
                said.append((str(reply.error.reason), reply.has_content()))
            return answer or super()._handle(message)

    monkeypatch.setattr(simulation, "InProcessGrid", CuriousGrid)
    result = run(tmp_path, frames_of(), alignment="hashed", **SMALL)
    ((reason, has_content),) = said
    assert words.partition(": ")[2] in reason
    assert not has_content
    assert result.summary["status"] == "refused"
    assert "part of the run has ended" in result.summary["reason"]


def test_other_keys_in_a_later_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that shows other keys after the alignment is found out by comparing them."""
    kept: list[bytes] = []

    def swap(request: Message) -> None:
        if request.metadata.message_type == ALIGN:
            kept.append(bytes(request.content.config_records["align"]["roster"]))  # type: ignore[arg-type]
        if request.metadata.message_type == LABELS and request.metadata.dst_node_id == 2:
            labels = dict(request.content.config_records["labels"])
            labels["roster"] = kept[0][:-1] + bytes([kept[0][-1] ^ 1])
            request.content["labels"] = ConfigRecord(labels)

    reason = refusal(tmp_path, frames_of(), monkeypatch, request=swap)
    assert reason == "site-1: the keys of the parties are others than before"
