"""The first exchange: who takes part, and everything that forbids it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedapp.simulation import InProcessGrid
from strategies.exchange import Exchange
from strategies.membership import HELLO_DISCLOSURE, Refused, introduce_sites
from tasks.site.client import introduce
from tasks.site.faults import SiteFault
from tasks.site.messages import HELLO, HelloReply, HelloRequest
from tests.fakes import Answer, Clock, ScriptedGrid

OURS = "0.1.0+aaaaaaaaaaaa"
THEIRS = "0.1.0+bbbbbbbbbbbb"


def hello(
    site: str, *, fingerprint: str = OURS, fault: str = "", reasons: list[str] | None = None
) -> RecordDict:
    return HelloReply(site, fingerprint, fault, reasons or []).to_record()


def introduced(
    answers: Mapping[int, Answer | RecordDict | Error | None],
    *,
    min_sites: int = 2,
    exclude: frozenset[str] = frozenset(),
    timeout: float = 10.0,
    clock: Clock | None = None,
) -> tuple[Exchange, list[str]]:
    grid = ScriptedGrid(answers, clock)
    exchange = Exchange.around(
        grid, timeout=timeout, min_sites=min_sites, disclosures=HELLO_DISCLOSURE
    )
    try:
        names = introduce_sites(
            exchange, fingerprint=OURS, min_sites=min_sites, exclude_codes=exclude
        )
    finally:
        assert exchange.count == 1
        assert all(row["reveals"] and row["step"] == "hello" for row in exchange.ledger)
    return exchange, names


def refusal(
    answers: Mapping[int, Answer | RecordDict | Error | None], **settings: object
) -> list[str]:
    with pytest.raises(Refused) as caught:
        introduced(answers, **settings)  # type: ignore[arg-type]
    for fault in caught.value.faults:
        assert fault in str(caught.value)
    return caught.value.faults


def test_sites_are_admitted_under_their_names_in_order() -> None:
    exchange, names = introduced({5: hello("c"), 6: hello("a"), 7: hello("b")})
    assert names == ["a", "b", "c"]
    assert list(exchange.get_node_ids()) == [6, 7, 5]
    assert [exchange.name_of(node) for node in (5, 6, 7)] == ["c", "a", "b"]
    assert {str(row["sender"]) for row in exchange.ledger} == {"server", "a", "b", "c"}


def test_every_node_gets_the_fingerprint_of_the_server() -> None:
    grid = ScriptedGrid({5: hello("a"), 6: hello("b")})
    introduce_sites(Exchange.around(grid), fingerprint=OURS, min_sites=2)
    assert {message.metadata.message_type for message in grid.sent} == {HELLO}
    assert [HelloRequest.from_record(m.content).fingerprint for m in grid.sent] == [OURS, OURS]


def test_a_node_with_other_code_is_named_and_refused() -> None:
    (fault,) = refusal({5: hello("a"), 6: hello("b", fingerprint=THEIRS), 7: hello("c")})
    assert f"b ({THEIRS})" in fault
    assert OURS in fault
    assert "other code" in fault
    assert "FLWR_HOME" in fault


def test_nodes_with_other_code_are_told_together() -> None:
    """In a simulation it is all of them: a line each would bury the reason."""
    names = ["c", "a", "b"]
    (fault,) = refusal({n: hello(name, fingerprint=THEIRS) for n, name in enumerate(names)})
    assert all(f"{name} ({THEIRS})" in fault for name in names)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"hello": ConfigRecord({"who": "me"})}),
        RecordDict({"hello": ConfigRecord({"site": "b", "fingerprint": OURS, "fault-code": ""})}),
        RecordDict({"other": ConfigRecord({"site": "b", "fingerprint": OURS})}),
    ],
    ids=["nothing", "other keys", "a key too few", "other record"],
)
def test_a_node_that_answers_something_else_is_refused(content: RecordDict) -> None:
    (fault,) = refusal({5: hello("a"), 6: content, 7: hello("c")})
    assert "other code" in fault
    assert "node-6" in fault
    assert "node-5" not in fault


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("site", 5),
        ("site", ["a", "b"]),
        ("site", ""),
        ("site", "A" * 100_000),
        ("site", "../../etc/passwd"),
        ("site", "b\nrun folder: /tmp/evil\x1b[31m<b>"),
        ("site", " b "),
        ("fingerprint", 5),
        ("fingerprint", "f" * 100_000),
        ("fault-code", 3),
        ("fault-code", "x"),  # without a reason
        ("fault-code", "Two Words\x1b[2J"),
        ("fault-reasons", 5),
        ("fault-reasons", [1, 2]),
        ("fault-reasons", ["without a code"]),
    ],
)
def test_an_introduction_that_no_site_would_send_is_malformed(field: str, value: object) -> None:
    content = hello("b")
    content.config_records["hello"][field] = value  # type: ignore[assignment]
    exchange, names = introduced({5: hello("a"), 6: content, 7: hello("c")})
    assert names == ["a", "c"]  # the others go on
    (fault,) = map(str, exchange.faults)
    assert fault.startswith("node-6: hello: malformed reply: ")
    few, again = refusal({5: hello("a"), 6: content, 7: hello("c")}, min_sites=3)
    assert few == "2 sites can take part, min-sites is 3"
    assert again == fault
    assert field in fault
    assert "other code" not in fault
    assert fault.isprintable()
    assert len(fault) < 300


def test_keys_that_are_no_bytes_are_malformed() -> None:
    content = hello("b")
    content["keys"] = ConfigRecord({"bundle": "text"})
    exchange, _ = introduced({5: hello("a"), 6: content, 7: hello("c")})
    assert list(map(str, exchange.faults)) == [
        "node-6: hello: malformed reply: keys: must be bytes"
    ]


def test_what_a_site_says_of_its_fault_cannot_reach_into_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = [
        "first\x1b[2J\nrun folder: /tmp/evil",
        "right\N{RIGHT-TO-LEFT OVERRIDE}left",
        "x" * 9999,
    ]
    faults = refusal({5: hello("a"), 6: hello("b", fault="bad-data", reasons=said)})
    exchange, _ = introduced(
        {5: hello("a"), 6: hello("b", fault="bad-data", reasons=said), 7: hello("c")},
        exclude=frozenset({"bad-data"}),
    )
    for line in [*faults, *map(str, exchange.faults), *caplog.messages]:
        assert line.isprintable()
        assert len(line) <= 1100
    assert "first\N{REPLACEMENT CHARACTER}[2J" in faults[0]


def test_the_version_of_other_code_is_repeated_in_safe_words() -> None:
    (fault,) = refusal({5: hello("a"), 6: hello("b", fingerprint="0.1\x1b[31m\nx")})
    assert fault.isprintable()
    assert "b (0.1\N{REPLACEMENT CHARACTER}[31m" in fault


def test_a_node_that_answers_with_an_error_is_refused() -> None:
    """It is set up wrongly, for example with an app that does not know the message."""
    (fault,) = refusal({5: hello("a"), 6: Error(2, "no such function\nTraceback"), 7: hello("c")})
    assert fault == "node-6: hello: no such function"


def test_two_nodes_of_one_name_are_refused() -> None:
    (fault,) = refusal({5: hello("a"), 6: hello("b"), 7: hello("a")})
    assert fault.startswith("a: ")
    assert "names must differ" in fault


def test_a_site_may_not_be_called_as_the_server_is_in_the_ledger() -> None:
    (fault,) = refusal({5: hello("a"), 6: hello("server"), 7: hello("b")})
    assert fault.startswith("server: ")


def test_data_that_cannot_be_used_end_the_run_with_all_reasons() -> None:
    bad = hello("b", fault="bad-data", reasons=["no column 'x'", "3 of 9 times are negative"])
    nameless = hello("", fault="bad-site-name", reasons=["site-name must be text"])
    assert refusal({5: hello("a"), 6: bad, 7: nameless}) == [
        "b: no column 'x'",
        "b: 3 of 9 times are negative",
        "node-7: site-name must be text",
    ]


def test_all_faults_are_told_at_once() -> None:
    faults = refusal(
        {
            1: hello("a"),
            2: hello("a"),
            3: hello("b", fingerprint=THEIRS),
            4: RecordDict(),
            5: Error(200, "internal: KeyError at the site; its log says more"),
            6: hello("c", fault="bad-data", reasons=["no column 'x'"]),
        }
    )
    assert len(faults) == 4
    text = "\n".join(faults)
    for words in ("a: more than one", f"b ({THEIRS})", "node-4 (", "node-5: hello: KeyError"):
        assert words in text
    assert "c: no column 'x'" in faults


def test_a_small_site_is_left_out_where_that_is_wanted() -> None:
    small = hello("b", fault="small-site", reasons=["fewer than 5 rows"])
    answers = {5: hello("a"), 6: small, 7: hello("c")}
    assert refusal(answers) == ["b: fewer than 5 rows"]
    exchange, names = introduced(answers, exclude=frozenset({"small-site"}))
    assert names == ["a", "c"]
    assert list(exchange.get_node_ids()) == [5, 7]
    (fault,) = exchange.faults
    assert (fault.site, fault.code) == ("b", "small-site")
    assert str(fault) == "b: hello: fewer than 5 rows; left out"
    # It did say something: the ledger names it too.
    assert {str(row["sender"]) for row in exchange.ledger} == {"server", "a", "b", "c"}


def test_leaving_small_sites_out_forgives_nothing_else() -> None:
    bad = hello("b", fault="bad-data", reasons=["no column 'x'"])
    answers = {5: hello("a"), 6: bad, 7: hello("c")}
    assert refusal(answers, exclude=frozenset({"small-site"})) == ["b: no column 'x'"]


def test_too_few_sites_are_left() -> None:
    small = [hello(name, fault="small-site", reasons=["fewer than 5 rows"]) for name in "bc"]
    faults = refusal({5: hello("a"), 6: small[0], 7: small[1]}, exclude=frozenset({"small-site"}))
    assert "min-sites is 2" in faults[0]
    assert faults[0].startswith("1 site ")
    assert [fault.split(":")[0] for fault in faults[1:]] == ["b", "c"]


def test_names_of_a_refused_run_are_in_its_ledger() -> None:
    grid = ScriptedGrid({5: hello("a"), 6: hello("b", fault="bad-data", reasons=["no rows"])})
    exchange = Exchange.around(grid, disclosures=HELLO_DISCLOSURE)
    with pytest.raises(Refused):
        introduce_sites(exchange, fingerprint=OURS, min_sites=2)
    assert {str(row["sender"]) for row in exchange.ledger} == {"server", "a", "b"}


def test_a_late_node_is_missed_but_named(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock.installed(monkeypatch)
    exchange, names = introduced({5: hello("a"), 6: None, 7: hello("c")}, clock=clock)
    assert names == ["a", "c"]
    assert list(exchange.get_node_ids()) == [5, 7]
    assert [(fault.site, fault.code) for fault in exchange.faults] == [("node-6", "late")]


def test_a_node_that_could_not_be_addressed_ends_the_run() -> None:
    grid = ScriptedGrid({5: hello("a"), 6: hello("b"), 7: hello("c")}, refused={6: ""})
    with pytest.raises(Refused, match="node-6: hello: the runtime did not take the message"):
        introduce_sites(
            Exchange.around(grid, disclosures=HELLO_DISCLOSURE), fingerprint=OURS, min_sites=2
        )


# The node's half ---------------------------------------------------------------------------------


def answer_of(*, site_name: object, check_data: object) -> HelloReply:
    app = ClientApp()

    @app.query("hello")
    def handle(message: Message, context: Context) -> Message:
        return introduce(
            message,
            context,
            fingerprint=OURS,
            site_name=lambda: _do(site_name),
            check_data=lambda: _do(check_data),
        )

    grid = InProcessGrid(app, [{}], {})
    content = HelloRequest(OURS).to_record()
    message = Message(content, dst_node_id=1, message_type=HELLO)
    (reply,) = grid.pull_messages(grid.push_messages([message]))
    assert "123.456" not in str(reply)
    return HelloReply.from_record(reply.content)


def _do(what: object) -> str:
    if isinstance(what, Exception):
        raise what
    return str(what)


def test_a_node_says_who_it_is() -> None:
    assert answer_of(site_name="a", check_data=None) == HelloReply("a", OURS)


def test_a_node_says_what_is_wrong_with_its_data() -> None:
    fault = SiteFault("bad-data", "no column 'x'", "no rows")
    expected = HelloReply("a", OURS, "bad-data", ["no column 'x'", "no rows"])
    assert answer_of(site_name="a", check_data=fault) == expected


def test_a_node_without_a_name_says_so() -> None:
    fault = SiteFault("bad-site-name", "site-name must be text")
    expected = HelloReply("", OURS, "bad-site-name", ["site-name must be text"])
    assert answer_of(site_name=fault, check_data=None) == expected


def test_a_node_keeps_to_itself_what_an_exception_says() -> None:
    reply = answer_of(site_name="a", check_data=ValueError("cannot convert 123.456"))
    assert (reply.site, reply.fault_code) == ("a", "internal")
    assert "ValueError" in reply.fault_reasons[0]
