"""A site that says what cannot be is named and left out; no such number enters an estimate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Message
from numpy.typing import NDArray

from fedapp import simulation
from fedapp.simulation import InProcessGrid, SimulationResult, simulate
from tasks.roc_glm.counts_messages import COUNTS, ROC_GLM_FISHER
from tasks.roc_glm.messages import RELEASE
from tasks.site.messages import HELLO
from tests.test_roc_glm_disclosure import NAMES, Value, cohort

MALFORMED = "reply of another form than expected"

Spoil = Callable[[Message], None]
Change = Callable[[NDArray[Any]], NDArray[Any]]


def run_with(directory: Path, kind: str, spoil: Spoil, **settings: Value) -> SimulationResult:
    """A run in which the answer of "north" to this message type is spoilt."""

    class SpoilingGrid(InProcessGrid):
        def _handle(self, message: Message) -> Message:
            reply = super()._handle(message)
            if message.metadata.message_type == kind and message.metadata.dst_node_id == 2:
                spoil(reply)
            return reply

    config: dict[str, Value] = {"run-dir": str(directory), "roc-glm.allow-score-disclosure": True}
    config |= {f"roc-glm.{key.replace('_', '-')}": value for key, value in settings.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "InProcessGrid", SpoilingGrid)
        return simulate("roc-glm", sites=cohort(), config=config, site_names=NAMES)


def array(name: str, change: Change, *, record: str = "arrays") -> Spoil:
    def spoil(reply: Message) -> None:
        arrays = reply.content.array_records[record]
        arrays[name] = Array(np.ascontiguousarray(change(arrays[name].numpy().copy())))

    return spoil


def fact(name: str, value: Any) -> Spoil:
    def spoil(reply: Message) -> None:
        reply.content.config_records["facts"][name] = value

    return spoil


def put(at: int, value: float) -> Change:
    def change(values: NDArray[Any]) -> NDArray[Any]:
        values.ravel()[at] = value
        return values

    return change


def add(at: int, value: float) -> Change:
    def change(values: NDArray[Any]) -> NDArray[Any]:
        values.ravel()[at] += value
        return values

    return change


RELEASES = [
    ("binned", "positive", lambda a: a * 1000),
    ("binned", "positive", lambda a: -a),
    ("binned", "negative", put(0, 2**62)),
    ("binned", "negative", lambda a: np.full_like(a, 2**62)),
    ("exact", "positive", put(0, 2**62)),
    ("exact", "levels", lambda a: a + 5.0),
    ("binned", "counts", lambda a: a * 100),
    ("binned", "counts", add(0, 1)),
    ("binned", "sums", lambda a: a * -3.0),
    ("binned", "sums", lambda a: a * 1e300),
    ("binned", "sums", add(5, 30.0)),
    ("noisy-scores", "positive", lambda a: a[:-1]),
    ("noisy-scores", "positive", put(0, 1e300)),
    ("noisy-scores", "negative", put(0, -1e5)),
    ("noisy-counts", "positive", put(3, 1e300)),
    ("noisy-histogram", "negative", put(3, -1e9)),
]


@pytest.mark.parametrize(("release", "name", "change"), RELEASES)
def test_an_impossible_release_is_the_fault_of_its_site(
    release: str, name: str, change: Change, tmp_path: Path
) -> None:
    result = run_with(tmp_path, RELEASE, array(name, change), release=release)
    summary = result.summary
    assert summary["status"] == "ok"
    assert summary["lost"] == ["north"]
    assert [fault.startswith(f"north: release: {MALFORMED}") for fault in summary["faults"]] == [
        True
    ]
    assert 0.0 <= summary["auc"] <= 1.0
    others = [part for name_, part in zip(NAMES, cohort(), strict=True) if name_ != "north"]
    assert summary["n-positive"] == sum(int(part["label"].sum()) for part in others)


SUMS = [
    ("moments", lambda a: np.tile([[-5.0, 0.0]], (len(a), 1))),
    ("moments", lambda a: a * -5.0),
    ("moments", lambda a: a * [[1.0, 1e6]]),
    ("number", lambda a: a + 7),
    ("threshold-counts", lambda a: a[:, ::-1]),
    ("threshold-counts", lambda a: a.astype(float) + 0.5),
    ("counts", lambda a: a * 2),
    ("sums", lambda a: -a),
]


@pytest.mark.parametrize(("name", "change"), SUMS)
def test_impossible_sums_of_positives_end_the_run(
    name: str, change: Change, tmp_path: Path
) -> None:
    result = run_with(tmp_path, COUNTS, array(name, change), release="noisy-scores")
    assert result.summary["status"] == "failed"
    assert "auc" not in result.summary
    assert "counts: no usable answer of north" in result.summary["reason"]
    assert f"north: counts: {MALFORMED}" in str(result.summary["faults"])


@pytest.mark.parametrize(
    "change", [lambda a: a * 1e200, lambda a: -a, put(-1, -3.0), put(3, 1e9), put(0, 1e120)]
)
def test_impossible_sums_of_fisher_scoring_end_the_run(change: Change, tmp_path: Path) -> None:
    spoil = array("sums", change)
    result = run_with(tmp_path, ROC_GLM_FISHER, spoil, release="binned", mode="fisher")
    assert result.summary["status"] == "failed"
    assert "no usable answer of north" in result.summary["reason"]
    assert f"north: fisher: {MALFORMED}" in str(result.summary["faults"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("n-positive", 2**60), ("n-positive", -1), ("dropped", 2**62), ("dropped", 0.5)],
)
def test_an_impossible_introduction_is_refused_by_name(
    name: str, value: float, tmp_path: Path
) -> None:
    result = run_with(tmp_path, HELLO, fact(name, value), release="noisy-counts")
    assert result.summary["status"] == "refused"
    assert "north: malformed: an introduction that cannot be" in str(result.summary)


@pytest.mark.parametrize("release", ["binned", "exact", "noisy-scores"])
def test_other_class_sizes_than_those_of_the_introduction(release: str, tmp_path: Path) -> None:
    result = run_with(tmp_path, HELLO, fact("n-positive", 10**6), release=release)
    assert result.summary["lost"] == ["north"]
    assert f"north: release: {MALFORMED}" in str(result.summary["faults"])


def test_a_masked_sum_that_cannot_be_is_said_to_be_false(tmp_path: Path) -> None:
    def one_more(words: NDArray[Any]) -> NDArray[Any]:
        words[5:6] += np.uint64(2**62)  # of an array: words wrap around
        return words

    shared: dict[str, Value] = {"release": "noisy-counts", "secure": True}
    plain: dict[str, Value] = {}
    for settings in (plain, shared):
        result = run_with(
            tmp_path, RELEASE, array("words", one_more, record="masked-words"), **settings
        )
        assert result.summary["status"] == "refused"
        assert "a site answered falsely, and masks hide which" in str(result.summary)
        assert "auc" not in result.summary


def test_a_masked_sum_of_a_round_that_cannot_be_is_said_to_be_false(tmp_path: Path) -> None:
    """Honest sites are not blamed for coefficients that a false sum would lead to."""

    def one_more(words: NDArray[Any]) -> NDArray[Any]:
        words[0:1] += np.uint64(2**62)
        return words

    spoil = array("words", one_more, record="masked-words")
    result = run_with(tmp_path, ROC_GLM_FISHER, spoil, mode="fisher")
    assert result.summary["status"] == "refused"
    assert "fisher: the sum of east, north, south, west cannot be" in str(result.summary)
    assert "a site answered falsely, and masks hide which" in str(result.summary)
    assert result.summary.get("faults", []) == []


def masked_field(name: str, value: Any) -> Spoil:
    def spoil(reply: Message) -> None:
        reply.content.config_records["masked"][name] = value

    return spoil


@pytest.mark.parametrize("kind", [RELEASE, ROC_GLM_FISHER])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("site", ["a", "b"]),
        ("site", "east"),
        ("site", "ghost"),
        ("run", "run-1"),
        ("step", "another"),
        ("roster-digest", b"x" * 32),
        ("roster-digest", "text"),
    ],
)
def test_a_masked_answer_that_is_not_the_one_asked_for_is_that_of_its_site(
    kind: str, name: str, value: Any, tmp_path: Path
) -> None:
    result = run_with(tmp_path, kind, masked_field(name, value), mode="fisher")
    assert result.summary["status"] in ("failed", "refused")
    said = str([result.summary["reason"], result.summary.get("faults")])
    assert "north: " in said
    assert "ghost" not in said
    assert "TypeError" not in said


UNASKED = [
    ("noisy-counts", {"sensitivity": 0.9, "sensitivity-distance": 1, "sensitivity-pairs": 1}),
    ("noisy-scores", {"sensitivity": 0.001, "sensitivity-distance": 1, "sensitivity-pairs": 1}),
    ("binned", {"sensitivity": 0.9, "sensitivity-distance": 1, "sensitivity-pairs": 1}),
    ("secure-counts", {"n-negative": 30, "n-positive": 40}),
    ("binned", {"kept-cuts": [True] * 49}),
    ("binned", {"positive-label": "7"}),
    ("binned", {"in-unit-interval": "yes"}),
    ("binned", {"positive-label": 1}),
]


@pytest.mark.parametrize(("release", "facts"), UNASKED)
def test_a_fact_that_was_not_asked_for_is_not_believed(
    release: str, facts: dict[str, Any], tmp_path: Path
) -> None:
    def spoil(reply: Message) -> None:
        for name, value in facts.items():
            reply.content.config_records["facts"][name] = value

    result = run_with(tmp_path, HELLO, spoil, release=release, sensitivity=0.2)
    assert result.summary["status"] == "refused"
    assert "north: malformed: an introduction that cannot be" in result.summary["reason"]


MISSING = [
    ({"release": "noisy-counts", "secure": True}, ["n-negative", "n-positive"]),
    ({"release": "binned", "privacy_level_of": "cell"}, ["kept-cuts"]),
]


@pytest.mark.parametrize(("settings", "names"), MISSING)
def test_a_fact_that_is_left_out_is_missed(
    settings: dict[str, Value], names: list[str], tmp_path: Path
) -> None:
    def spoil(reply: Message) -> None:
        for name in names:
            del reply.content.config_records["facts"][name]

    result = run_with(tmp_path, HELLO, spoil, **settings)
    assert result.summary["status"] == "refused"
    assert "north: malformed: an introduction that cannot be" in result.summary["reason"]
