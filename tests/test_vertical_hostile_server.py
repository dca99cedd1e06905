"""A server that asks for what the protocol does not have: refused once, and then no more."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from gmpy2 import mpz

from fedapp import simulation
from fedapp.simulation import InProcessGrid
from tasks.site.faults import SiteFault
from tasks.site.messages import HELLO, HelloReply, HelloRequest
from tasks.vertical_xgboost.client import introduction
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.decide_messages import DECIDE, DecideRequest
from tasks.vertical_xgboost.end_messages import FINISH, STOP, StopRequest
from tasks.vertical_xgboost.level_messages import HISTOGRAMS
from tasks.vertical_xgboost.messages import BUCKETS, LABELS
from tasks.vertical_xgboost.paillier.ciphertexts import Ciphertexts
from tasks.vertical_xgboost.paillier.engine import engine_named
from tasks.vertical_xgboost.paillier.packing import SlotLayout
from tasks.vertical_xgboost.rows import read_table
from tasks.vertical_xgboost.site import VerticalSite
from tests.paillier_keys import weak_key
from tests.vertical_attacks import SMALL, Attacked, Send, attack, frames_of
from tests.vertical_runs import MARK_OF_THE_END, draw_known_keys, run

PLAIN = VerticalXGBoostConfig(encryption="none")
SQUARED: dict[str, Any] = {"objective": "reg:squarederror"}


def ended(attacked: Attacked) -> bool:
    """Whether no party keeps anything of the run."""
    return all(list(c.state) == MARK_OF_THE_END for c in attacked.contexts.values())


# What refusals tell ----------------------------------------------------------------------------


def _ask_about_one_share(directory: Path, slots: dict[int, int]) -> list[str]:
    """Before the first ``decide``: one owner's share plus numbers of the server's own, twice."""
    engine, layout = engine_named("gmpy2"), SlotLayout(rows=96, row_bound=1 << 32, key_bits=1024)
    shares: dict[str, dict[str, bytes]] = {}
    told: list[str] = []

    def after(party: str, kind: str, content: RecordDict) -> None:
        if kind == HISTOGRAMS and not told:
            found = content.config_records["encrypted-shares"]
            shares[party] = {name: bytes(v) for name, v in found.items()}  # type: ignore[arg-type]

    def before(party: str, kind: str, content: RecordDict, send: Send) -> None:
        if kind != DECIDE or told:
            return
        request = DecideRequest.from_record(content, protection="encrypted")
        owner = next(name for name in sorted(shares) if name != party)
        totals = {}
        for source in request.totals:
            data = shares[owner][source]
            key = next(
                weak_key(at).public for at in range(10) if weak_key(at).public.key_id == data[:16]
            )
            count = (len(data) - 16) // key.ciphertext_bytes
            own = [mpz(0)] * count
            own[0] = sum((mpz(v) << (layout.slot_bits * at) for at, v in slots.items()), mpz(0))
            share = Ciphertexts.from_bytes(data, key=key, count=count)
            totals[source] = engine.add(share, engine.encrypt(key, own)).to_bytes()
        other = DecideRequest(request.tree, request.level, totals, {}, "encrypted").to_record()
        for asked in (other, other, content):
            reply = send(asked, None)
            told.append(reply.error.reason if reply.has_error() else "answered")

    attacked = attack(directory, before=before, after=after, encryption="paillier")
    assert attacked.summary["status"] != "ok"
    assert ended(attacked)
    return told


def test_a_split_client_answers_no_second_question_about_its_sums(tmp_path: Path) -> None:
    """Too large a sum and a negative one are told in the same words, and once."""
    bound = SlotLayout(rows=96, row_bound=1 << 32, key_bits=1024).sum_bound
    too_large = _ask_about_one_share(tmp_path, {0: 2 * bound})
    negative = _ask_about_one_share(tmp_path, {3: -bound})
    assert too_large == negative
    assert too_large[0] == "bad-sums: decrypted sums that no rows of this run can give"
    assert all(reason.startswith("stopped: ") for reason in too_large[1:])
    assert len(too_large) == 3


@pytest.mark.parametrize("exponent", [-5, 1, 103, 104, 1024, 2**62, -129])
def test_a_bound_of_labels_that_is_none_is_refused_without_a_count(
    exponent: int, tmp_path: Path
) -> None:
    told: list[str] = []

    def before(party: str, kind: str, content: RecordDict, send: Send) -> None:
        if kind == LABELS and party == "site-1":
            other = copy.deepcopy(content)
            other.config_records["labels"]["label-exponent"] = exponent
            told.extend(send(asked, None).error.reason for asked in (other, other, content))

    attacked = attack(tmp_path, before=before)
    assert told[0].startswith("bad-request: ")
    assert "values" not in told[0]
    assert [reason.partition(":")[0] for reason in told[1:]] == ["stopped", "stopped"]
    assert attacked.summary["status"] == "refused"
    assert ended(attacked)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        (HISTOGRAMS, "encryption", "none"),
        (HISTOGRAMS, "subsample", 1e-9),
        (DECIDE, "min-instances", 5),
        (BUCKETS, "max-bin", 255),
    ],
)
def test_another_configuration_in_the_middle_is_refused(
    kind: str, key: str, value: Any, tmp_path: Path
) -> None:
    class SwappingGrid(InProcessGrid):
        def _handle(self, message: Message) -> Message:
            if message.metadata.message_type == kind:
                for context in self.contexts.values():
                    context.run_config = {**context.run_config, f"vertical-xgboost.{key}": value}
            return super()._handle(message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "InProcessGrid", SwappingGrid)
        draw_known_keys(patch)
        result = run(tmp_path, frames_of(), encryption="paillier", **SMALL)
    assert result.summary["status"] == "refused"
    assert "the run configuration is another" in str(result.summary["reason"])


@pytest.mark.parametrize("exponent", [0, 4, 1024])
def test_a_bound_of_gradients_below_the_party_s_own_is_refused(
    exponent: int, tmp_path: Path
) -> None:
    told: list[str] = []

    def before(party: str, kind: str, content: RecordDict, send: Send) -> None:
        if kind == HISTOGRAMS and party == "site-1":
            other = copy.deepcopy(content)
            other.config_records["start"]["gradient-exponent"] = exponent
            told.extend(send(asked, None).error.reason for asked in (other, content))

    attacked = attack(tmp_path, frames=frames_of(**SQUARED), before=before, **SQUARED)
    assert told[0].startswith("bad-request: ")
    assert not any(mark.isdigit() for mark in told[0].replace("-128 to 103", ""))
    assert told[1].startswith("stopped: ")
    assert ended(attacked)


@pytest.mark.parametrize(
    ("margin", "keys"),
    [
        (float("inf"), {}),
        (1e300, {}),
        (6.0, {}),
        (0.1, {"base_score": "0.5"}),
        (1e6, SQUARED),
        (float("nan"), SQUARED),
    ],
    ids=str,
)
def test_a_base_margin_of_no_base_score_is_refused(
    margin: float, keys: dict[str, Any], tmp_path: Path
) -> None:
    def before(party: str, kind: str, content: RecordDict, send: Send) -> None:
        if kind == BUCKETS and party == "site-2":
            content.config_records["buckets"]["base-margins"] = [margin]

    objective = {key: value for key, value in keys.items() if key == "objective"}
    attacked = attack(tmp_path, frames=frames_of(**objective), before=before, **keys)
    assert attacked.reason.startswith("site-2: ")
    assert "base-margins" in attacked.reason
    assert ended(attacked)


def test_keys_are_not_drawn_anew_after_the_end(tmp_path: Path) -> None:
    """Neither after ``stop`` nor after ``finish``: the run's masks and sums are spent."""
    replies: list[HelloReply] = []
    first = HelloRequest("").to_record()

    def before(party: str, kind: str, content: RecordDict, send: Send) -> None:
        if party == "site-1" and kind == HISTOGRAMS and not replies:
            send(StopRequest("enough").to_record(), STOP)
            replies.append(HelloReply.from_record(send(first, HELLO).content))

    attacked = attack(tmp_path, before=before)
    assert replies[0].fault_code == "stopped"
    assert not replies[0].task.key_bundle
    assert ended(attacked)


def test_a_finished_run_is_not_begun_again(tmp_path: Path) -> None:
    attacked = attack(tmp_path)
    assert attacked.summary["status"] == "ok"
    assert ended(attacked)
    site = VerticalSite(
        "site-0",
        read_table(frames_of()[0], id_column="id", label_column="label", config=PLAIN, seed=0),
        PLAIN,
        simulated=True,
    )
    with pytest.raises(SiteFault, match="has ended") as caught:
        introduction(site, attacked.contexts[1])
    assert caught.value.code == "stopped"


def test_an_introduction_in_the_middle_starts_nothing_again(tmp_path: Path) -> None:
    told: list[Any] = []

    def before(party: str, kind: str, content: RecordDict, send: Send) -> None:
        if party == "site-1" and kind == HELLO:
            told.append(copy.deepcopy(content))
        if party == "site-1" and kind == LABELS:
            told.append(copy.deepcopy(content))
        if party == "site-1" and kind == HISTOGRAMS and len(told) == 2:
            told.append(HelloReply.from_record(send(told[0], HELLO).content))
            told.append(send(told[1], LABELS))

    attacked = attack(tmp_path, before=before)
    assert not told[2].fault_code
    assert told[3].error.reason.startswith("out-of-order: ")
    assert attacked.reason.startswith("site-1: this party's part of the run has ended")


# Requests of another form ----------------------------------------------------------------------


def _decisions(row: tuple[int, int, int] | None = None, dtype: Any = np.int32) -> Any:
    def alter(content: RecordDict) -> None:
        found = content.array_records["decisions"]["decisions"].numpy().astype(dtype)
        if row is not None:
            found[0] = row
        content["decisions"] = ArrayRecord({"decisions": Array(found)})

    return alter


def _orders(change: Any) -> Any:
    def alter(content: RecordDict) -> None:
        found = {name: change(a.numpy()) for name, a in content.array_records["orders"].items()}
        content["orders"] = ArrayRecord({name: Array(a) for name, a in found.items()})

    return alter


def _without(record: str, key: str | None = None) -> Any:
    def alter(content: RecordDict) -> None:
        if key is None:
            del content[record]
        else:
            del content.config_records[record][key]

    return alter


def _with(record: str, key: str, value: Any) -> Any:
    def alter(content: RecordDict) -> None:
        content.config_records[record][key] = value

    return alter


@pytest.mark.parametrize(
    ("kind", "alter"),
    [
        (LABELS, _with("labels", "split-clients", [1.0, 2.0, 0.0])),
        (LABELS, _with("labels", "split-clients", [1, 2])),
        (LABELS, _with("labels", "split-clients", [0, 2, 1])),
        (LABELS, _with("labels", "paillier", [1, 2, 3])),
        (LABELS, _without("labels", "roster")),
        (BUCKETS, _with("sealed", "site-0", 7)),
        (BUCKETS, lambda content: content.config_records["sealed"].popitem()),
        (HISTOGRAMS, _without("start")),
        (HISTOGRAMS, _decisions((99, 0, 0))),
        (HISTOGRAMS, _decisions((-1, 0, 0))),
        (HISTOGRAMS, _decisions((0, 10**6, 0))),
        (HISTOGRAMS, _decisions((0, -2, -1))),
        (HISTOGRAMS, _decisions(dtype=np.float64)),
        (HISTOGRAMS, _decisions(dtype=np.uint8)),
        (HISTOGRAMS, _orders(lambda order: order + 0.25)),
        (HISTOGRAMS, _orders(lambda order: order * 0)),
        (HISTOGRAMS, lambda content: content.__setitem__("orders", ArrayRecord())),
        (DECIDE, _with("totals", "nobody", b"")),
        (DECIDE, _with("decide", "level", 0.0)),
        (FINISH, _with("finish", "trees-to-keep", 99)),
        (FINISH, _without("finish", "folder")),
    ],
)
def test_a_request_of_another_form_is_called_one(kind: str, alter: Any, tmp_path: Path) -> None:
    changed: list[str] = []

    def before(party: str, asked: str, content: RecordDict, send: Send) -> None:
        is_first = "start" in content
        late = alter.__qualname__.startswith("_decisions")
        if asked == kind and not changed and not (late and is_first):
            alter(content)
            changed.append(party)

    attacked = attack(tmp_path, before=before, max_depth=2)
    assert attacked.summary["status"] == "refused"
    assert attacked.reason.startswith(f"{changed[0]}: ")
    assert "Error" not in attacked.reason.replace("KeyError", "").replace("ValueError", "")
    assert attacked.heard == [attacked.reason] * 3
    assert ended(attacked)
