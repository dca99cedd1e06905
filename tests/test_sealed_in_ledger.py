"""Whatever one site seals for another is in the ledger: recorded at the seal, found in messages."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedapp.simulation import SimulationResult, simulate
from strategies.ledger import Row, content_bytes
from strategies.vertical_result import vertical_disclosures
from tasks.secure import sealed_relay
from tasks.secure.keys import PublicBundle, SiteKeys
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tests.vertical_frames import cut, random_frame
from tests.vertical_runs import Recorded, bytes_of, record

KEYS: dict[str, Any] = {"max_depth": 2, "num_trees": 2, "max_bin": 6, "min_child_weight": 0.1}
NAMES = [f"site-{at}" for at in range(4)]


@dataclass(frozen=True)
class Seal:
    """A sealed part, noted where it is made."""

    sender: str
    receiver: str
    part: bytes


_MADE: list[Seal] = []
_SEAL = sealed_relay.seal


def _noting(sender: SiteKeys, receiver: PublicBundle, **rest: Any) -> bytes:
    part = _SEAL(sender, receiver, **rest)
    _MADE.append(Seal(sender.public.site, receiver.site, part))
    return part


@pytest.fixture
def seals(monkeypatch: pytest.MonkeyPatch) -> list[Seal]:
    """Every part sealed from here on, whichever module seals it."""
    _MADE.clear()
    for module in list(sys.modules.values()):
        if module is sys.modules[__name__]:
            continue
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is _SEAL:
                monkeypatch.setattr(module, name, _noting)
    assert sealed_relay.seal is _noting
    return _MADE


def travelled(recorded: Recorded, seals: list[Seal]) -> Counter[tuple[str, str, str, int]]:
    """Step, sender, receiver and size of every part, searched for in all replies."""
    told = vertical_disclosures(VerticalXGBoostConfig())
    by_part = {made.part: made for made in seals}
    assert len(by_part) == len(seals)
    found: Counter[tuple[str, str, str, int]] = Counter()
    for request, reply in recorded.messages:
        site = f"site-{request.metadata.dst_node_id - 1}"
        for raw in bytes_of(reply).values():
            if raw in by_part:
                made = by_part[raw]
                assert made.sender == site
                step = told[request.metadata.message_type].step
                found[step, made.sender, made.receiver, len(raw)] += 1
    assert sum(found.values()) == len(seals), "a part that does not travel, or was cut up"
    return found


def check(
    rows: list[Row] | list[dict[str, Any]], expected: Counter[tuple[str, str, str, int]]
) -> None:
    """The sealed rows are the parts that travelled, none less and none more."""
    parts: Counter[tuple[object, ...]] = Counter()
    sizes: Counter[tuple[object, ...]] = Counter()
    for (step, sender, receiver, size), count in expected.items():
        parts[step, sender, receiver] += count
        sizes[step, sender, receiver] += count * size
    sealed = [row for row in rows if row["sealed"]]
    told, volumes = Counter[tuple[object, ...]](), Counter[tuple[object, ...]]()
    for row in sealed:
        end = row["step"], row["sender"], row["receiver"]
        told[end] += int(str(row["parts"]))
        volumes[end] += int(str(row["bytes"]))
    assert told == parts, "sealed parts are not those in the ledger"
    assert volumes == sizes


ARRANGEMENTS = [
    ("paillier", "server"),
    ("paillier", "source"),
    ("none", "server"),
    ("none", "source"),
]


@pytest.mark.parametrize(("encryption", "aggregator"), ARRANGEMENTS)
def test_every_sealed_part_of_a_vertical_run_is_in_the_ledger(
    encryption: str, aggregator: str, tmp_path: Path, seals: list[Seal]
) -> None:
    frames = cut(random_frame(4, rows=120), parties=4, labels="even")
    keys = {"encryption": encryption, "aggregator": aggregator, "min_instances": 2, **KEYS}
    recorded = record(tmp_path, frames, **keys)
    result = recorded.result
    assert result.summary["status"] == "ok", result.summary["reason"]
    expected = travelled(recorded, seals)
    steps = {step for step, *_ in expected}
    by_source = {"histograms", "aggregate"} if aggregator == "source" else set()
    assert steps == {"labels", "buckets", "decide", *by_source}
    check(result.ledger, expected)
    for row in result.ledger:
        assert "not declared" not in row["reveals"]
    check_carriers(result, recorded)
    check_protections(result, encryption=encryption, by_source=bool(by_source))
    # The alarm rings at one part without a row, and at a row without a part.
    (first, *_) = [row for row in result.ledger if row["sealed"]]
    for rows in ([row for row in result.ledger if row is not first], [*result.ledger, first]):
        with pytest.raises(AssertionError):
            check(rows, expected)


def check_carriers(result: SimulationResult, recorded: Recorded) -> None:
    """Volumes count messages once; sealed rows lie within the reply of their sender."""
    messages = [row for row in result.ledger if not row["sealed"]]
    size = sum(content_bytes(m.content) for pair in recorded.messages for m in pair)
    assert sum(row["bytes"] for row in messages) == size == result.summary["bytes"]
    for reply in messages:
        if reply["receiver"] != "server":
            continue
        within = [
            row
            for row in result.ledger
            if row["sealed"]
            and (row["exchange"], row["sender"]) == (reply["exchange"], reply["sender"])
        ]
        assert sum(row["parts"] for row in within) == reply["parts"]
        assert sum(row["bytes"] for row in within) <= reply["bytes"]
        assert ("sealed" in reply["protection"]) == bool(within)
        assert {row["receiver"] for row in within} <= set(NAMES)


def check_protections(result: SimulationResult, *, encryption: str, by_source: bool) -> None:
    """Sums are called encrypted, sealed or clear as they are."""
    told: dict[tuple[str, bool], set[str]] = {}
    for row in result.ledger:
        if not row["sealed"]:
            end = row["step"], row["sender"] == "server"
            told.setdefault(end, set()).update(row["protection"].split(" + "))
    sums = {"clear"} if encryption == "none" else {"encrypted", "clear"}
    assert told["hello", False] == {"clear"}
    assert told["labels", False] == {"sealed", "masked", "clear"}
    assert told["histograms", False] == {"masked", "clear"} | ({"sealed"} if by_source else sums)
    assert told["decide", True] == sums
    assert told["decide", False] == {"sealed", "clear"}
    assert told["finish", False] == {"masked", "clear"}
    if by_source:
        assert told["aggregate", True] == {"sealed", "clear"}
        assert told["aggregate", False] == sums | {"sealed"}
        words = {r["reveals"] for r in result.ledger if r["sealed"] and r["step"] == "histograms"}
        assert all(("SUMS OF GRADIENTS" in text) == (encryption == "none") for text in words)


def test_requests_carry_to_a_party_what_was_sealed_for_it(
    tmp_path: Path, seals: list[Seal]
) -> None:
    frames = cut(random_frame(4, rows=120), parties=4, labels="even")
    recorded = record(tmp_path, frames, aggregator="source", **KEYS)
    by_part = {made.part: made for made in seals}
    carried = Counter[str]()
    for request, _ in recorded.messages:
        receiver = f"site-{request.metadata.dst_node_id - 1}"
        for raw in bytes_of(request).values():
            if raw in by_part:
                assert by_part[raw].receiver == receiver
                carried[request.metadata.message_type] += 1
    rows = [row for row in recorded.result.ledger if row["sender"] == "server"]
    assert sum(row["parts"] for row in rows) == sum(carried.values())
    assert len(carried) == 4  # buckets, histograms, aggregate, finish


def test_masked_sums_are_not_called_clear_nor_sealed(tmp_path: Path, seals: list[Seal]) -> None:
    config = {"roc-glm.mode": "fisher", "roc-glm.release": "secure-counts"}
    masked = simulate("roc-glm", config={"run-dir": str(tmp_path), **config})
    assert masked.summary["status"] == "ok", masked.summary["reason"]
    for row in masked.ledger:
        told = row["step"] in ("release", "fisher") and row["receiver"] == "server"
        assert row["protection"] == ("masked" if told else "clear"), row
        assert (row["sealed"], row["parts"]) == (False, 0)
    assert not seals
    assert {"release", "fisher"} <= {row["step"] for row in masked.ledger}
