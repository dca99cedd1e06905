"""One exchange: polled, counted, checked and written down."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.supercore.constant import TaskType

from strategies import exchange as exchange_module
from strategies.all_parties import AllParties
from strategies.exchange import (
    Disclosure,
    Exchange,
    Fault,
    TooFewSites,
    content_bytes,
    duplicates,
)
from strategies.patience import SilentRuntime, answered_within
from tasks.site.reply_fields import count
from tests.fakes import Answer, Clock, ScriptedGrid

KIND = "query.sums"
DISCLOSURES = {KIND: Disclosure("sums", "what is asked", "what is told")}
NAMES = {11: "charlie", 12: "alpha", 13: "bravo"}


def told(value: int) -> RecordDict:
    return RecordDict({"reply": ConfigRecord({"value": value})})


def requests(exchange: Exchange, kind: str = KIND) -> list[Message]:
    content = RecordDict({"request": ConfigRecord({"please": True})})
    return [Message(content, dst_node_id=n, message_type=kind) for n in exchange.get_node_ids()]


def around(
    grid: ScriptedGrid,
    *,
    timeout: float | None = 30.0,
    min_sites: int = 1,
    names: dict[int, str] | None = None,
) -> Exchange:
    exchange = Exchange.around(grid, timeout=timeout, min_sites=min_sites, disclosures=DISCLOSURES)
    exchange.admit(NAMES if names is None else names)
    return exchange


def values(replies: list[Message]) -> list[object]:
    return [reply.content.config_records["reply"]["value"] for reply in replies]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock.installed(monkeypatch)


# Counted and written down ------------------------------------------------------------------------


def test_replies_come_in_the_order_of_site_names_whatever_the_order_of_arrival(
    clock: Clock,
) -> None:
    grid = ScriptedGrid(
        {11: told(3), 12: Answer(told(1), after=5), 13: Answer(told(2), after=2)}, clock
    )
    exchange = around(grid)
    assert list(exchange.get_node_ids()) == [12, 13, 11]
    assert values(exchange.send_and_receive(requests(exchange))) == [1, 2, 3]
    assert exchange.count == 1
    assert not exchange.faults


def test_ledger_has_every_message_in_both_directions(clock: Clock) -> None:
    exchange = around(ScriptedGrid({11: told(3), 12: told(1), 13: told(2)}))
    exchange.send_and_receive(requests(exchange))
    exchange.send_and_receive(requests(exchange)[:1])
    clear = {"sealed": False, "protection": "clear", "parts": 0, "seconds": 0.0}
    there = {"step": "sums", "sender": "server", "reveals": "what is asked", **clear}
    back = {"step": "sums", "receiver": "server", "reveals": "what is told", **clear}
    size = len(ConfigRecord({"please": True}).deflate())
    told_size = len(ConfigRecord({"value": 1}).deflate())
    first = [
        *(
            {"exchange": 1, "receiver": name, "bytes": size, **there}
            for name in sorted(NAMES.values())
        ),
        *({"exchange": 1, "sender": name, "bytes": told_size, **back} for name in NAMES.values()),
    ]
    second = [
        {"exchange": 2, "receiver": "alpha", "bytes": size, **there},
        {"exchange": 2, "sender": "alpha", "bytes": told_size, **back},
    ]

    def key(row: dict[str, object]) -> list[str]:
        return [str(row[name]) for name in ("exchange", "sender", "receiver")]

    assert sorted(exchange.ledger, key=key) == sorted([*first, *second], key=key)
    assert exchange.bytes_sent() == 4 * (size + told_size)


def test_seconds_of_a_reply_until_it_is_there_and_of_a_request_until_all_is_over(
    clock: Clock,
) -> None:
    answers = {11: told(3), 12: Answer(told(1), after=5), 13: Answer(None)}
    exchange = around(ScriptedGrid(answers, clock), timeout=8.0)
    exchange.send_and_receive(requests(exchange))
    rows = [row for row in exchange.ledger if row["exchange"] == 1]
    replies = {row["sender"]: row["seconds"] for row in rows if row["sender"] != "server"}
    assert replies["charlie"] == 0
    assert 5 <= float(str(replies["alpha"])) < 6 + 1e-9  # polls are at most a second apart
    assert "bravo" not in replies
    asked = [row["seconds"] for row in rows if row["sender"] == "server"]
    assert asked == [pytest.approx(8.0)] * 3
    # The next exchange has a time of its own.
    clock.now += 100
    exchange.grid = ScriptedGrid({11: told(3), 12: told(1)}, clock)
    exchange.send_and_receive(requests(exchange)[::2])
    assert {row["seconds"] for row in exchange.ledger if row["exchange"] == 2} == {0.0}


def test_polls_for_many_sites_are_not_made_at_every_arrival(clock: Clock) -> None:
    """Each names all that is waited for: a poll a reply would be quadratic in the sites."""
    late = {node: Answer(told(1), after=node * 0.001) for node in range(1, 2001)}
    grid = ScriptedGrid(late, clock)
    exchange = Exchange.around(grid, timeout=60.0, disclosures=DISCLOSURES)
    assert len(exchange.send_and_receive(requests(exchange))) == 2000
    assert grid.pulls < 60


def test_seconds_are_there_of_an_exchange_that_fails(clock: Clock) -> None:
    exchange = around(ScriptedGrid({11: Answer(None)}, clock), names={11: "a"}, timeout=3.0)
    exchange.learn_names({11: "a"})
    delivered: list[dict[str, object]] = []
    exchange.after_exchange = lambda rows: delivered.extend(dict(row) for row in rows)
    with pytest.raises(TooFewSites):
        exchange.send_and_receive(requests(exchange))
    assert [row["seconds"] for row in delivered] == [pytest.approx(3.0)]


@pytest.mark.parametrize(
    ("told_of", "expected"),
    [
        ({"seal": 0.5, "open": 0.25}, 0.75),
        ({"seal": 0.5, "open": float("nan")}, 0.5),
        ({"seal": float("inf"), "open": -3.0}, 0.0),
        ({"seal": 1e300, "words": "0.5", "whole": 7, "raw": b"1"}, 0.0),
        ({}, 0.0),
    ],
)
def test_what_a_site_tells_of_its_time_is_in_the_ledger_if_it_is_one(
    told_of: dict[str, float | str | int | bytes], expected: float
) -> None:
    content = carrying(sealed=ConfigRecord({"alpha": SEALED_PART}))
    content["seconds"] = ConfigRecord(dict(told_of))
    exchange = around(ScriptedGrid({11: content, 12: told(1), 13: told(2)}))
    exchange.send_and_receive(requests(exchange))
    own = [row.get("site-seconds") for row in exchange.ledger if row["sender"] == "charlie"]
    assert own == [expected, None]  # of the message, not again of what it carries sealed
    others = [row for row in exchange.ledger if row["sender"] != "charlie"]
    assert not any("site-seconds" in row for row in others)


def carrying(**records: ConfigRecord) -> RecordDict:
    content = RecordDict({name.replace("_", "-"): record for name, record in records.items()})
    content["seconds"] = ConfigRecord({"seal": 0.5})
    return content


SEALED_PART = bytes([1]) + bytes(range(130))


def test_what_a_site_seals_for_another_is_in_the_ledger() -> None:
    content = carrying(
        sealed_words=ConfigRecord({"alpha": SEALED_PART, "bravo": [SEALED_PART, SEALED_PART]}),
        masked_sums=ConfigRecord({"words": b"word"}),
    )
    content["sealed-other/x"] = ConfigRecord({"alpha": SEALED_PART})
    exchange = around(ScriptedGrid({11: content, 12: told(1), 13: told(2)}))
    words = {"sealed-words": "what the other site reads"}
    exchange.record.disclosures = {KIND: Disclosure("sums", "asked", "told", words)}
    exchange.send_and_receive(requests(exchange))
    carrier, *rows = [row for row in exchange.ledger if row["sender"] == "charlie"]
    assert (carrier["protection"], carrier["parts"]) == ("sealed + masked + clear", 4)
    assert carrier["bytes"] == content_bytes(content)
    assert [(row["receiver"], row["bytes"], row["parts"], row["reveals"]) for row in rows] == [
        ("alpha", 131, 1, "what the other site reads"),
        ("bravo", 262, 2, "what the other site reads"),
        ("alpha", 131, 1, "not declared by this strategy"),
    ]
    for row in rows:
        assert (row["exchange"], row["step"], row["sender"]) == (1, "sums", "charlie")
        assert (row["sealed"], row["protection"]) == (True, "sealed")
    messages = [int(str(row["bytes"])) for row in exchange.ledger if not row["sealed"]]
    assert len(messages) == 6
    assert exchange.bytes_sent() == sum(messages)


def test_a_site_cannot_fill_the_ledger_with_names_of_receivers() -> None:
    sealed = ConfigRecord({f"nobody-{at}": SEALED_PART for at in range(100)})
    exchange = around(ScriptedGrid({11: carrying(sealed=sealed), 12: told(1), 13: told(2)}))
    exchange.send_and_receive(requests(exchange))
    (row,) = [row for row in exchange.ledger if row["sealed"]]
    assert (row["receiver"], row["parts"]) == ("no site of the run", 100)


@pytest.mark.parametrize("value", [b"short", b"\0" * 200, 7, "text", [1.5]])
def test_what_is_not_sealed_is_not_called_so(value: bytes | int | str | list[float]) -> None:
    content = RecordDict({"sealed": ConfigRecord({"alpha": value})})
    exchange = around(ScriptedGrid({11: content, 12: told(1), 13: told(2)}))
    exchange.send_and_receive(requests(exchange))
    (row,) = [row for row in exchange.ledger if row["sender"] == "charlie"]
    assert (row["protection"], row["parts"], row["sealed"]) == ("clear", 0, False)


def test_names_are_put_into_what_was_written_down_before_they_were_known() -> None:
    exchange = Exchange.around(ScriptedGrid({11: told(3), 12: told(1), 13: told(2)}))
    assert exchange.name_of(11) == "node-11"
    exchange.send_and_receive(requests(exchange))
    assert {row["receiver"] for row in exchange.ledger} == {
        "node-11",
        "node-12",
        "node-13",
        "server",
    }
    exchange.admit(NAMES)
    assert {row["receiver"] for row in exchange.ledger} == {*NAMES.values(), "server"}
    assert {row["sender"] for row in exchange.ledger} == {*NAMES.values(), "server"}
    assert exchange.name_of(11) == "charlie"


def test_rows_of_the_ledger_are_handed_on_after_each_exchange_once_sites_have_names() -> None:
    exchange = Exchange.around(
        ScriptedGrid({11: told(3), 12: told(1)}), min_sites=2, disclosures=DISCLOSURES
    )
    delivered: list[list[dict[str, object]]] = []
    exchange.after_exchange = lambda rows: delivered.append([dict(row) for row in rows])
    exchange.send_and_receive(requests(exchange))
    assert delivered == []
    exchange.learn_names({11: "a", 12: "b"})
    assert [row["exchange"] for row in delivered[0]] == [1] * 4
    assert {row["sender"] for row in delivered[0]} == {"a", "b", "server"}
    exchange.grid = ScriptedGrid({11: told(3), 12: Error(200, "bad")})
    with pytest.raises(TooFewSites):
        exchange.send_and_receive(requests(exchange))
    assert [row["exchange"] for row in delivered[1]] == [2] * 4
    assert [*delivered[0], *delivered[1]] == exchange.ledger


def test_a_message_type_without_words_is_marked_in_the_ledger() -> None:
    exchange = around(ScriptedGrid({11: told(3)}), names={11: "a"})
    exchange.send_and_receive(requests(exchange, kind="query.other"))
    assert [row["step"] for row in exchange.ledger] == ["query.other"] * 2
    assert all("not declared" in str(row["reveals"]) for row in exchange.ledger)


def test_no_messages_cost_and_count_nothing() -> None:
    grid = ScriptedGrid({11: told(1)})
    exchange = around(grid, min_sites=1)
    assert exchange.send_and_receive([]) == []
    assert exchange.send_and_receive(iter([])) == []
    assert (exchange.count, exchange.ledger, grid.pulls) == (0, [], 0)


def test_size_of_a_message_is_that_of_its_arrays_and_serialized_records() -> None:
    small = ArrayRecord({"w": Array(np.zeros(10, dtype=np.float32))})
    large = ArrayRecord({"w": Array(np.zeros(1010, dtype=np.float32))})
    metrics = MetricRecord({"loss": 1.5})
    assert content_bytes(RecordDict({"a": large})) - content_bytes(RecordDict({"a": small})) == 4000
    both = RecordDict({"a": small, "m": metrics})
    assert content_bytes(both) == content_bytes(RecordDict({"a": small})) + len(metrics.deflate())
    assert content_bytes(RecordDict()) == 0


# Polling -----------------------------------------------------------------------------------------


def test_polls_soon_first_and_less_often_later(clock: Clock) -> None:
    grid = ScriptedGrid({11: Answer(told(1), after=60.0)}, clock)
    exchange = around(grid, timeout=100.0, names={11: "a"})
    began = clock.now
    assert values(exchange.send_and_receive(requests(exchange))) == [1]
    assert grid.pulled_at[0] == began  # the first look costs no pause
    assert clock.naps[0] <= 0.05
    assert min(clock.naps) > 0
    assert max(clock.naps) <= 1.0
    assert all(later >= earlier for earlier, later in zip(clock.naps, clock.naps[1:], strict=False))
    assert clock.now - began < 61.0  # noticed within a second
    assert grid.pulls < 100


def test_polls_soon_again_after_something_arrived(clock: Clock) -> None:
    grid = ScriptedGrid({11: Answer(told(1), after=20.0), 12: Answer(told(2), after=25.0)}, clock)
    exchange = around(grid, names={11: "a", 12: "b"})
    exchange.send_and_receive(requests(exchange))
    first_arrival = next(at for at in grid.pulled_at if at >= 1020.0)
    after = [at for at in grid.pulled_at if at >= first_arrival]
    assert after[1] - after[0] <= 0.05


def test_really_sleeps_between_polls() -> None:
    """Without a fake clock: a reply that never comes is not asked for in a busy loop."""
    grid = ScriptedGrid({11: None})
    exchange = around(grid, timeout=0.3, names={11: "a"})
    with pytest.raises(TooFewSites):
        exchange.send_and_receive(requests(exchange))
    assert 3 <= grid.pulls <= 15


# Replies that do not count -----------------------------------------------------------------------


def test_a_late_site_is_named_and_the_others_are_kept(clock: Clock) -> None:
    grid = ScriptedGrid({11: told(3), 12: Answer(told(1), after=50), 13: told(2)}, clock)
    exchange = around(grid, timeout=30.0, min_sites=2)
    began = clock.now
    assert values(exchange.send_and_receive(requests(exchange))) == [2, 3]
    assert clock.now - began == pytest.approx(30.0)
    assert exchange.faults == [Fault("alpha", "sums", "late", "no reply within 30 s")]
    assert str(exchange.faults[0]) == "alpha: sums: no reply within 30 s"
    assert [row["receiver"] for row in exchange.ledger].count("server") == 2


@pytest.mark.parametrize(("own", "asked"), [(5.0, 100.0), (100.0, 5.0), (None, 5.0), (5.0, None)])
def test_the_shorter_timeout_holds(clock: Clock, own: float | None, asked: float | None) -> None:
    exchange = around(ScriptedGrid({11: None}, clock), timeout=own, names={11: "a"})
    began = clock.now
    with pytest.raises(TooFewSites, match="a: sums: no reply within 5 s"):
        exchange.send_and_receive(requests(exchange), timeout=asked)
    assert clock.now - began == pytest.approx(5.0)


def test_a_reply_that_missed_its_exchange_is_not_taken_in_the_next(clock: Clock) -> None:
    grid = ScriptedGrid({11: Answer(told(1), after=6.0), 12: told(2)}, clock)
    exchange = around(grid, timeout=5.0, names={11: "a", 12: "b"})
    exchange.send_and_receive(requests(exchange))
    grid.answers = {11: told(10), 12: Answer(told(20), after=3.0)}
    assert values(exchange.send_and_receive(requests(exchange))) == [10, 20]
    assert [fault.site for fault in exchange.faults] == ["a"]


@pytest.mark.parametrize(
    ("reason", "code", "words"),
    [
        ("unknown-column: there is no column", "unknown-column", "there is no column"),
        ("no colon", "error", "no colon"),
        ("two words: and a colon", "error", "two words: and a colon"),
        ("a: b\nTraceback: row 123.456", "a", "b"),
        ("\n  first line\nsecond: 123.456", "error", "first line"),
        ("", "error", "error code 200"),
        ("Error: of a library", "error", "Error: of a library"),
    ],
)
def test_an_error_reply_is_a_fault_of_its_site(reason: str, code: str, words: str) -> None:
    grid = ScriptedGrid({11: Error(200, reason), 12: told(1)})
    exchange = around(grid, names={11: "a", 12: "b"})
    assert values(exchange.send_and_receive(requests(exchange))) == [1]
    assert exchange.faults == [Fault("a", "sums", code, words)]


@pytest.mark.parametrize("code", [3, 4, 5])
def test_what_the_runtime_says_of_a_node_that_is_gone_counts_as_late(code: int) -> None:
    """Flower's words: no heartbeat came, or no message is there any more."""
    grid = ScriptedGrid({11: Error(code, "Error: Node Unavailable, no heartbeat"), 12: told(1)})
    exchange = around(grid, names={11: "a", 12: "b"})
    assert values(exchange.send_and_receive(requests(exchange))) == [1]
    assert exchange.faults == [Fault("a", "sums", "late", "Node Unavailable, no heartbeat")]


CALLS = ["push_messages", "pull_messages", "get_node_ids", "get_nodes"]


@pytest.mark.parametrize("call", CALLS)
def test_a_superlink_that_does_not_answer_is_not_waited_for(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_module, "_LONGEST_CALL", 0.1)
    grid = ScriptedGrid({11: told(1), 12: told(2)})
    exchange = around(grid, timeout=0.1)
    messages, released = requests(exchange), threading.Event()
    calls: list[str] = []

    def silent(*_: object) -> object:
        calls.append(call)
        return released.wait(30.0)

    monkeypatch.setattr(grid, call, silent)
    uses: dict[str, list[Callable[[], object]]] = {
        "get_node_ids": [exchange.get_node_ids, lambda: exchange.wait_for_nodes(2)],
        "get_nodes": [exchange.get_nodes],
    }
    began = time.monotonic()
    for use in uses.get(call, [lambda: exchange.send_and_receive(messages)]):
        with pytest.raises(SilentRuntime, match=r"has not answered for 0\.2 s"):
            use()
    assert time.monotonic() - began < 10.0
    before = len(calls)
    AllParties(exchange).tell(RecordDict(), KIND)
    assert len(calls) == before, "nobody would hear it, and it would be waited for once more"
    released.set()


def test_a_stop_that_a_thread_raises_is_heard_while_the_runtime_is_silent() -> None:
    """As Flower stops a ServerApp: by a signal, raised in the thread of its heartbeats."""
    released = threading.Event()

    def stop() -> None:
        time.sleep(0.2)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=stop, daemon=True).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        answered_within(30.0, lambda: released.wait(30.0))
    assert time.monotonic() - began < 10.0
    released.set()


def test_a_run_that_is_stopped_while_it_sends_counts_as_its_ledger_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What may have been sent is written down; nobody knows what of it was."""

    def stop(*_: object) -> list[str]:
        raise KeyboardInterrupt

    grid = ScriptedGrid({11: told(1), 22: told(2)})
    exchange = around(grid, names={11: "a", 22: "b"})
    exchange.send_and_receive(requests(exchange))
    messages = requests(exchange)
    monkeypatch.setattr(grid, "push_messages", stop)
    with pytest.raises(KeyboardInterrupt):
        exchange.send_and_receive(messages)
    assert exchange.count == 2
    assert [row["sender"] for row in exchange.ledger if row["exchange"] == 2] == ["server"] * 2


def test_messages_that_nobody_took_are_no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = ScriptedGrid({11: told(1)})
    exchange = around(grid, names={11: "a"})
    messages = requests(exchange)
    monkeypatch.setattr(grid, "push_messages", lambda messages: [""])
    with pytest.raises(TooFewSites, match="0 of 1 sites gave a usable reply"):
        exchange.send_and_receive(messages)
    assert exchange.count == 0
    assert exchange.ledger == []
    assert "not-sent" in str(exchange.faults[0].code)


def test_what_a_call_of_the_runtime_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[str]:
        raise ConnectionError("refused")

    grid = ScriptedGrid({11: told(1)})
    exchange = around(grid, names={11: "a"})
    messages = requests(exchange)
    monkeypatch.setattr(grid, "push_messages", refuse)
    with pytest.raises(ConnectionError, match="refused"):
        exchange.send_and_receive(messages)


def test_a_reply_of_another_run_is_not_used() -> None:
    grid = ScriptedGrid({11: Answer(told(1), run_id=8), 12: told(2)})
    exchange = around(grid, names={11: "a", 12: "b"})
    assert values(exchange.send_and_receive(requests(exchange))) == [2]
    assert exchange.faults == [Fault("a", "sums", "misrouted", "the reply is of another run")]


def test_what_an_error_reply_told_is_in_the_ledger() -> None:
    exchange = around(ScriptedGrid({11: Error(200, "code: wörds"), 12: told(1)}))
    exchange.send_and_receive(requests(exchange))
    (row,) = [row for row in exchange.ledger if row["sender"] == "charlie"]
    assert (row["receiver"], row["step"]) == ("server", "sums")
    assert row["bytes"] == len("code: wörds".encode())
    assert "fault" in str(row["reveals"])


def test_words_of_a_node_are_made_fit_for_a_log_and_cut() -> None:
    noise = "bad\x1b[2Jscreen\N{LEFT-TO-RIGHT OVERRIDE} " + "x" * 100_000
    exchange = around(ScriptedGrid({11: Error(0, noise), 12: told(1)}))
    exchange.send_and_receive(requests(exchange))
    exchange.report_fault(12, "c\x07" * 100, "two\nlines", step="s\rt")
    exchange.learn_names({13: "evil\x1b[31m" + "y" * 1000})
    for text in [*map(str, exchange.faults), exchange.name_of(13)]:
        assert text.isprintable()
        assert len(text) < 1300
    assert "bad\N{REPLACEMENT CHARACTER}[2Jscreen" in exchange.faults[0].reason


def test_a_malformed_field_is_named() -> None:
    def parse(content: RecordDict) -> int:
        return count(content.config_records["reply"], "value", least=2)

    exchange = around(ScriptedGrid({11: told(3), 12: told(1)}), names={11: "a", 12: "b"})
    assert exchange.read(exchange.send_and_receive(requests(exchange)), parse) == [("a", 3)]
    (fault,) = exchange.faults
    assert "value: must be a whole number, at least 2" in fault.reason


@pytest.mark.parametrize("sender", [12, 99])
def test_a_reply_of_another_node_does_not_count(sender: int) -> None:
    grid = ScriptedGrid({11: Answer(told(1), sender=sender), 12: told(2)})
    exchange = around(grid, names={11: "a", 12: "b"})
    assert values(exchange.send_and_receive(requests(exchange))) == [2]
    assert [(fault.site, fault.code) for fault in exchange.faults] == [("a", "misrouted")]


def test_a_second_reply_to_one_message_does_not_count() -> None:
    grid = ScriptedGrid({11: Answer(told(1), copies=2), 12: told(2)})
    exchange = around(grid, names={11: "a", 12: "b"})
    assert values(exchange.send_and_receive(requests(exchange))) == [1, 2]


@pytest.mark.parametrize(
    ("instead", "dropped"),
    [("", False), (None, False), ("", True)],
    ids=["empty", "none", "dropped"],
)
def test_a_message_that_the_runtime_did_not_take_is_named_without_waiting(
    clock: Clock, instead: str | None, dropped: bool
) -> None:
    grid = ScriptedGrid(
        {11: told(3), 12: told(1), 13: told(2)}, clock, refused={12: instead}, drop_refused=dropped
    )
    exchange = around(grid)
    assert values(exchange.send_and_receive(requests(exchange))) == [2, 3]
    assert [(fault.site, fault.code) for fault in exchange.faults] == [("alpha", "not-sent")]
    assert clock.slept == 0
    # What was not sent revealed nothing.
    assert [row["receiver"] for row in exchange.ledger if row["sender"] == "server"] == [
        "bravo",
        "charlie",
    ]


def test_nothing_was_sent_at_all(clock: Clock) -> None:
    grid = ScriptedGrid({11: told(3)}, clock, refused={11: ""}, drop_refused=True)
    exchange = around(grid, names={11: "a"})
    with pytest.raises(TooFewSites, match=r"0 of 1 sites .* a: sums: the runtime did not take"):
        exchange.send_and_receive(requests(exchange))
    assert clock.slept == 0


def test_a_malformed_reply_is_named_when_read() -> None:
    exchange = around(ScriptedGrid({11: told(3), 12: RecordDict(), 13: told(2)}), min_sites=2)
    replies = exchange.send_and_receive(requests(exchange))

    def parse(content: RecordDict) -> int:
        value = content.config_records["reply"]["value"]
        assert isinstance(value, int)
        return value

    assert exchange.read(replies, parse) == [("bravo", 2), ("charlie", 3)]
    assert [(f.site, f.step, f.code) for f in exchange.faults] == [("alpha", "sums", "malformed")]


def test_arrays_that_cannot_be_read_are_a_malformed_reply() -> None:
    def arrays(data: bytes) -> RecordDict:
        whole = Array(np.ones(3))
        return RecordDict(
            {"reply": ArrayRecord({"x": Array(whole.dtype, whole.shape, whole.stype, data)})}
        )

    whole = Array(np.ones(3)).data
    broken = [b"", whole[:5], whole[:-3], b"\x93NUMPY" + b"\xff" * 40, b"garbage"]
    answers: dict[int, RecordDict] = {n: arrays(data) for n, data in enumerate([whole, *broken])}
    exchange = around(
        ScriptedGrid(answers),
        names={n: f"site-{n}" for n in answers},  # type: ignore[arg-type]
    )
    replies = exchange.send_and_receive(requests(exchange))
    read = exchange.read(replies, lambda content: content.array_records["reply"]["x"].numpy().sum())
    assert read == [("site-0", 3.0)]
    assert [fault.code for fault in exchange.faults] == ["malformed"] * len(broken)


@pytest.mark.parametrize("kind", [ValueError, KeyError, TypeError, StopIteration, OverflowError])
def test_what_a_malformed_reply_holds_is_not_repeated(kind: type[Exception]) -> None:
    exchange = around(ScriptedGrid({11: told(3), 12: told(1)}), names={11: "a", 12: "b"})
    replies = exchange.send_and_receive(requests(exchange))

    def parse(content: RecordDict) -> int:
        if content.config_records["reply"]["value"] == 3:
            raise kind("secret 123.456")
        return 1

    assert exchange.read(replies, parse) == [("b", 1)]
    assert "123.456" not in str(exchange.faults[0])
    assert kind.__name__ in str(exchange.faults[0])


def test_a_fault_of_the_reader_itself_is_not_taken_for_one_of_the_site() -> None:
    exchange = around(ScriptedGrid({11: told(3)}), names={11: "a"})
    replies = exchange.send_and_receive(requests(exchange))
    with pytest.raises(ZeroDivisionError):
        exchange.read(replies, lambda content: 1 // 0)


# Too few sites -----------------------------------------------------------------------------------


def test_too_few_usable_replies_end_the_run_with_all_faults(clock: Clock) -> None:
    grid = ScriptedGrid({11: Error(200, "bad-data: no rows"), 12: None, 13: told(2)}, clock)
    exchange = around(grid, timeout=2.0, min_sites=2)
    with pytest.raises(TooFewSites) as caught:
        exchange.send_and_receive(requests(exchange))
    assert caught.value.faults == exchange.faults
    assert {fault.site for fault in caught.value.faults} == {"alpha", "charlie"}
    text = str(caught.value)
    assert text.startswith("sums: 1 of 3 sites gave a usable reply, 2 needed")
    assert "charlie: sums: no rows" in text
    assert "alpha: sums: no reply within 2 s" in text


def test_only_the_faults_of_this_exchange_are_told(clock: Clock) -> None:
    grid = ScriptedGrid({11: Error(200, "old: fault"), 12: told(1), 13: told(2)}, clock)
    exchange = around(grid, min_sites=2)
    exchange.send_and_receive(requests(exchange))
    grid.answers = {11: told(3), 12: Error(200, "new: a"), 13: Error(200, "new: b")}
    with pytest.raises(TooFewSites) as caught:
        exchange.send_and_receive(requests(exchange))
    assert [fault.code for fault in caught.value.faults] == ["new", "new"]
    assert [fault.code for fault in exchange.faults] == ["old", "new", "new"]


def test_fewer_sites_than_needed_may_be_addressed_on_purpose() -> None:
    exchange = around(ScriptedGrid({11: told(3), 12: told(1), 13: told(2)}), min_sites=3)
    assert values(exchange.send_and_receive(requests(exchange)[:1])) == [1]


def test_too_few_readable_replies_end_the_run() -> None:
    exchange = around(ScriptedGrid({11: told(3), 12: RecordDict(), 13: told(2)}), min_sites=3)
    replies = exchange.send_and_receive(requests(exchange))
    with pytest.raises(
        TooFewSites, match="2 of 3 replies can be read, 3 needed; alpha: sums"
    ) as end:
        exchange.read(replies, lambda content: content.config_records["reply"]["value"])
    assert [fault.code for fault in end.value.faults] == ["malformed"]


# Who takes part ----------------------------------------------------------------------------------


class Arriving(ScriptedGrid):
    """Nodes connect one after the other, one every two seconds."""

    def get_node_ids(self) -> list[int]:
        assert self.clock is not None
        return self.connected[: int((self.clock.now - 1000.0) / 2)]


def test_waits_for_nodes(clock: Clock) -> None:
    exchange = Exchange.around(Arriving({11: None, 12: None, 13: None}, clock), timeout=60.0)
    assert exchange.wait_for_nodes(2) == [11, 12]
    assert 4.0 <= clock.now - 1000.0 <= 5.0
    assert min(clock.naps) > 0
    exchange.wait_for_nodes(2)
    assert clock.now - 1000.0 <= 5.0  # no need to wait again


def test_waits_for_nodes_no_longer_than_the_timeout(clock: Clock) -> None:
    exchange = Exchange.around(Arriving({11: None, 12: None}, clock), timeout=20.0)
    with pytest.raises(TooFewSites, match=r"2 nodes connected, 3 needed"):
        exchange.wait_for_nodes(3)
    assert 20.0 <= clock.now - 1000.0 <= 21.5


def test_in_simulation_no_node_is_waited_for_long(clock: Clock) -> None:
    """Simulated nodes are all there from the start: who is missing then will not come."""
    grid = ScriptedGrid({11: None}, clock, task_type=TaskType.SIMULATION)
    exchange = Exchange.around(grid, timeout=600.0)
    with pytest.raises(TooFewSites, match=r"1 node connected, 2 needed"):
        exchange.wait_for_nodes(2)
    assert clock.slept < 12.0


def test_only_admitted_nodes_take_part() -> None:
    exchange = around(
        ScriptedGrid({11: told(3), 12: told(1), 13: told(2)}), names={13: "z", 11: "y"}
    )
    assert list(exchange.get_node_ids()) == [11, 13]
    assert sorted(node.node_id for node in exchange.get_nodes()) == [11, 13]
    exchange.exclude([11])
    assert list(exchange.get_node_ids()) == [13]
    exchange.exclude([13])
    assert list(exchange.get_node_ids()) == []


def test_a_node_can_be_left_out_before_any_is_named() -> None:
    exchange = Exchange.around(ScriptedGrid({11: told(3), 12: told(1), 13: told(2)}))
    exchange.exclude([12])
    assert list(exchange.get_node_ids()) == [11, 13]


def test_an_admitted_node_that_is_gone_is_not_addressed() -> None:
    grid = ScriptedGrid({11: told(3), 12: told(1), 13: told(2)})
    exchange = around(grid)
    grid.connected = [11, 13]
    assert list(exchange.get_node_ids()) == [13, 11]


# A Grid like any other ---------------------------------------------------------------------------


def test_an_exchange_is_not_wrapped_again() -> None:
    exchange = around(ScriptedGrid({11: told(3)}))
    assert Exchange.around(exchange, timeout=1.0, min_sites=9) is exchange
    assert (exchange.timeout, exchange.min_sites) == (30.0, 1)


def test_what_else_a_grid_does_is_passed_on() -> None:
    grid = ScriptedGrid({11: told(3)})
    exchange = around(grid, names={11: "a"})
    assert exchange.run is grid.run
    other = type(grid.run).create_empty(8)
    exchange.set_run(other)
    assert grid.run is other
    message = exchange.create_message(told(1), KIND, 11, "group")
    assert (message.metadata.dst_node_id, message.metadata.group_id) == (11, "group")
    ids = list(exchange.push_messages([message]))
    assert values(list(exchange.pull_messages(ids))) == [3]
    assert (exchange.count, exchange.ledger) == (0, [])


def test_names_that_occur_twice() -> None:
    assert duplicates(["b", "a", "b", "c", "a"]) == ["a", "b"]
    assert duplicates([]) == []
