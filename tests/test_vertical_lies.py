"""A party that answers otherwise than the protocol has it ends the run in its own name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from tasks.site.messages import HELLO
from tasks.vertical_xgboost.aggregate_messages import AGGREGATE
from tasks.vertical_xgboost.decide_messages import DECIDE
from tasks.vertical_xgboost.end_messages import FINISH
from tasks.vertical_xgboost.level_messages import HISTOGRAMS
from tasks.vertical_xgboost.messages import BUCKETS, LABELS
from tasks.vertical_xgboost.site_state import Secrets
from tests.vertical_attacks import Attacked, attack, frames_of
from tests.vertical_runs import MARK_OF_THE_END

SQUARED: dict[str, Any] = {"objective": "reg:squarederror"}
FORM = "reply of another form than expected ("


def tell(directory: Path, kind: str, alter: Any, **keys: Any) -> tuple[Attacked, str]:
    """Change the first reply of a type; how the run ended, and whose it was."""
    liar: list[str] = []

    def after(party: str, told: str, content: RecordDict) -> None:
        if told == kind and not liar:
            alter(content)
            liar.append(party)

    objective = {key: value for key, value in keys.items() if key == "objective"}
    attacked = attack(directory, frames=frames_of(**objective), after=after, **keys)
    assert liar
    assert attacked.summary["status"] != "ok"
    assert attacked.heard == [attacked.reason] * 3
    for context in attacked.contexts.values():
        assert list(context.state) == MARK_OF_THE_END
    return attacked, liar[0]


def facts(key: str, value: Any) -> Any:
    def alter(content: RecordDict) -> None:
        if value is None:
            del content.config_records["facts"][key]
        else:
            content.config_records["facts"][key] = value

    return alter


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("digest", "x", "digest: must be 32 bytes"),
        ("digest", b"x", "digest: must be 32 bytes"),
        ("digest", None, "digest: must be 32 bytes"),
        ("paillier", "x", "paillier: must be bytes"),
        ("num-rows", -1, "num-rows: must be a whole number of 0 or more"),
        ("num-rows", 120.0, "num-rows: must be"),
        ("num-evaluation", -1, "num-evaluation: must be"),
        ("label-exponent", 104, "label-exponent: must be a whole number from -128 to 103"),
        ("label-exponent", 10**6, "label-exponent: must be"),
        ("label-exponent", 2**63 - 1, "label-exponent: must be"),
        ("label-exponent", -129, "label-exponent: must be"),
    ],
)
def test_an_introduction_of_another_form(key: str, value: Any, words: str, tmp_path: Path) -> None:
    attacked, liar = tell(tmp_path, HELLO, facts(key, value))
    assert attacked.reason.startswith(f"{liar}: introduces itself in another form than expected")
    assert words in attacked.reason


@pytest.mark.parametrize("number", [119, 500, 0, 23])
def test_another_number_of_rows_for_evaluation(number: int, tmp_path: Path) -> None:
    attacked, liar = tell(tmp_path, HELLO, facts("num-evaluation", number))
    assert attacked.reason == (
        f"{liar}: {number} rows for evaluation; of 120 they must be 24 (test-fraction)"
    )


def setting(record: str, key: str, value: Any) -> Any:
    def alter(content: RecordDict) -> None:
        content.config_records[record][key] = value

    return alter


def arrays(record: str, prefix: str, change: Any) -> Any:
    def alter(content: RecordDict) -> None:
        found = {name: array.numpy() for name, array in content.array_records[record].items()}
        changed = {n: change(a) if n.startswith(prefix) else a for n, a in found.items()}
        content[record] = ArrayRecord({name: Array(array) for name, array in changed.items()})

    return alter


def refusals(change: Any) -> Any:
    def alter(content: RecordDict) -> None:
        masks = content.array_records["refused"]
        for name in list(masks):
            masks[name] = Array(change(masks[name].numpy()))

    return alter


def invent_refusals(content: RecordDict) -> None:
    names = content.config_records["shares"]
    masks = {name: Array(np.zeros((4, 1), dtype=np.bool_)) for name in names}
    content["refused"] = ArrayRecord(masks)


def refuse_the_node(mask: np.ndarray) -> np.ndarray:
    mask = mask.copy()
    mask[0] = True
    return mask


SOURCE: dict[str, Any] = {"aggregator": "source"}
REFUSING: dict[str, Any] = {"min_instances": 2}


@pytest.mark.parametrize(
    ("kind", "alter", "words", "keys"),
    [
        (
            BUCKETS,
            setting("buckets", "gradient-exponent", 1024),
            "gradient-exponent: must",
            SQUARED,
        ),
        (BUCKETS, setting("buckets", "gradient-exponent", 10**6), "gradient-exponent: must", {}),
        (BUCKETS, arrays("arrays", "num-buckets", lambda a: a + 0.5), "num-buckets: must", {}),
        (BUCKETS, arrays("arrays", "ranks", lambda a: a + 0.5), "ranks: must be whole", {}),
        (BUCKETS, arrays("arrays", "ranks", lambda a: a.astype(np.uint8)), "ranks: must be", {}),
        (BUCKETS, arrays("arrays", "has-missing", lambda a: a.astype(float)), "has-missing", {}),
        (BUCKETS, arrays("order", "order", lambda a: a + 0.25), "order: must be whole", SOURCE),
        (HISTOGRAMS, invent_refusals, "refused: must be absent where min-instances", {}),
        (HISTOGRAMS, refusals(refuse_the_node), "not the sums of a whole node", REFUSING),
        (HISTOGRAMS, refusals(lambda a: a.astype(int)), "refused: must be true or", REFUSING),
        (HISTOGRAMS, refusals(lambda a: a * np.nan), "refused: must be true or", REFUSING),
        (HISTOGRAMS, refusals(lambda a: a[:-1]), "refused: must be one flag a", REFUSING),
        (
            HISTOGRAMS,
            lambda content: content.__setitem__("refused", ArrayRecord()),
            "refused: must be of each source",
            REFUSING,
        ),
        (
            AGGREGATE,
            lambda content: content.__setitem__(
                "refused", ArrayRecord({"refused": Array(np.zeros((1, 1), dtype=np.bool_))})
            ),
            "refused: must be absent",
            SOURCE,
        ),
        (AGGREGATE, refusals(refuse_the_node), "not the sums of a whole node", SOURCE | REFUSING),
        (DECIDE, arrays("arrays", "gains", lambda a: a * 0 + 1e-5), "gains: must be gamma", {}),
        (HISTOGRAMS, setting("seconds", "encrypt", -5.0), "seconds: must be numbers from 0", {}),
        (LABELS, setting("seconds", "mask", 1e308), "seconds: must be numbers from 0", {}),
        (DECIDE, setting("seconds", "seal", float("nan")), "seconds: must be numbers", {}),
        (FINISH, setting("seconds", "<b>", 1.0), "seconds: must be of operations", {}),
    ],
)
def test_a_reply_of_another_form(
    kind: str, alter: Any, words: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    attacked, liar = tell(tmp_path, kind, alter, **{"gamma": 0.5, **keys})
    assert f"{liar}: " in attacked.reason
    assert FORM in attacked.reason
    assert words in attacked.reason


@pytest.mark.parametrize("kind", [LABELS, FINISH])
def test_sums_in_another_s_name(kind: str, tmp_path: Path) -> None:
    attacked, liar = tell(tmp_path, kind, setting("masked", "site", "site-2"))
    assert attacked.reason == f"{liar}: its sums under masks are in another party's name"


@pytest.mark.parametrize(
    ("kind", "record", "change"),
    [
        (LABELS, "sealed", "less"),
        (LABELS, "sealed", "more"),
        (BUCKETS, "sealed", "less"),
        (BUCKETS, "sealed-orders", "less"),
        (AGGREGATE, "sealed-orders", "less"),
        (AGGREGATE, "sealed-orders", "more"),
    ],
)
def test_parts_that_are_not_sealed_for_those_who_get_them(
    kind: str, record: str, change: str, tmp_path: Path
) -> None:
    def alter(content: RecordDict) -> None:
        parts = content.config_records[record]
        if change == "less":
            parts.popitem()
        else:
            for at in range(3):
                parts[f"site-{at}"] = b"more"

    attacked, liar = tell(tmp_path, kind, alter, **SOURCE)
    assert attacked.reason.startswith(f"{liar}: must seal one part for each of ")


# What is sealed, which the server cannot see ----------------------------------------------------


def seal_otherwise(
    directory: Path, monkeypatch: pytest.MonkeyPatch, step: str, change: Any, **keys: Any
) -> str:
    """Let site-1 seal something else at a step; the reason why the run ended."""
    really, did = Secrets.seal, []

    def seal(self: Secrets, peers: Any, receiver: str, payload: bytes, **how: Any) -> bytes:
        if self.keys.site == "site-1" and how["step"].startswith(step):
            did.append(step)
            payload = change(payload)
        return really(self, peers, receiver, payload, **how)

    monkeypatch.setattr(Secrets, "seal", seal)
    attacked = attack(directory, **keys)
    assert did
    assert attacked.summary["status"] == "refused"
    assert attacked.heard == [attacked.reason] * 3
    return attacked.reason


NAN = np.full(2, np.nan).tobytes()


@pytest.mark.parametrize(
    "change",
    [lambda p: p[:-1], lambda p: b"", lambda p: p + bytes(8), lambda p: NAN[: len(p)]],
    ids=["short", "empty", "long", "nan"],
)
def test_leaf_weights_that_are_none_are_told_in_the_name_of_their_sender(
    change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "strategies.vertical_xgboost.draw_split_clients",
        lambda names: dict(zip(names, ("site-1", "site-0", "site-1"), strict=True)),
    )
    reason = seal_otherwise(tmp_path, monkeypatch, "leaves", change, max_depth=1, gamma=1e9)
    said = reason.partition(": ")[2]
    assert said.startswith("site-1: the weights that it sealed for leaves are none")


@pytest.mark.parametrize("tree", ["shallow", "deep", "pruned"])
def test_absurd_leaf_weights_are_told_in_the_name_of_their_sender(
    tree: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "strategies.vertical_xgboost.draw_split_clients",
        lambda names: dict(zip(names, ("site-1", "site-2", "site-1"), strict=True)),
    )
    depth: dict[str, Any] = {
        "shallow": {"max_depth": 1},
        "deep": {"max_depth": 3},
        "pruned": {"max_depth": 1, "gamma": 1e9},  # the root is a leaf
    }[tree]
    reason = seal_otherwise(
        *(tmp_path, monkeypatch, "leaves", lambda p: np.full(len(p) // 8, 1e6).tobytes()),
        **{**SQUARED, **depth, "frames": frames_of(**SQUARED)},
    )
    told_by, liar, words = reason.split(": ")
    assert (liar, set(told_by.split(", "))) == ("site-1", {"site-0", "site-1", "site-2"})
    assert words.startswith("weights that it sealed for leaves exceed ")
    assert "label-bound" not in reason


@pytest.mark.parametrize(
    "change",
    [lambda p: p[:-1], lambda p: b"", lambda p: bytes(len(p)), lambda p: p + bytes(4)],
    ids=["short", "empty", "zeros", "long"],
)
def test_an_order_that_is_none_is_told_in_the_name_of_its_source(
    change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = seal_otherwise(tmp_path, monkeypatch, "order", change, **SOURCE)
    assert reason.endswith("site-1: the order told of its candidates is none")


@pytest.mark.parametrize("encryption", ["none", "paillier"])
def test_a_source_s_total_that_is_none_is_told_in_its_name(encryption: str, tmp_path: Path) -> None:
    name = "total" if encryption == "none" else "encrypted-total"
    attacked, liar = tell(
        tmp_path, AGGREGATE, setting(name, "total", b"x" * 40), encryption=encryption, **SOURCE
    )
    assert liar in attacked.reason.partition(": ")[2]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("vertical-labels", "tells labels of another"),
        ("vertical-buckets", "a bucket map of another form"),
        ("share", "a share of another form"),
    ],
)
def test_sealed_parts_of_another_size(
    step: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = seal_otherwise(tmp_path, monkeypatch, step, lambda p: p + b"\0", **SOURCE)
    assert f"site-1: {words}" in reason


def test_buckets_that_the_source_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = "vertical-buckets"
    reason = seal_otherwise(tmp_path, monkeypatch, step, lambda p: p[:-8] + b"\xff" * 8)
    assert "site-1: a bucket map with unknown buckets" in reason
