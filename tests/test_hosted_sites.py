"""Several simulated sites on one SuperNode are sites like any other."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType

from fedapp import client_app, run_config, server_app
from fedapp.hosted_sites import HostingGrid, each_hosted_site, with_hosted_sites
from fedapp.simulation import InProcessGrid
from strategies.exchange import Exchange
from tasks.survival.predictor import SurvivalPredictor
from tests.fakes import ScriptedGrid

KIND = "query.count"


def parts(num_sites: int) -> list[dict[str, bool | int | float | str]]:
    return [{"partition-id": part, "num-partitions": num_sites} for part in range(num_sites)]


# The same run ------------------------------------------------------------------------------------


def survival_run(nodes: int, tmp_path: Path) -> tuple[SurvivalPredictor, list[Any], list[Any]]:
    """Model, metrics and ledger of a run over 5 sites on so many nodes."""
    values = {
        **run_config.defaults(),
        "run-dir": str(tmp_path),
        "num-sites": 5,
        "report": False,
        "survival.rounds": 2,
        "survival.local-steps": 2,
        "survival.dp-mechanism": "none",
    }
    grid = InProcessGrid(client_app.app, parts(nodes), values)
    folder = server_app.run_task(grid, values, started=time.time())
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    ledger = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    for row in ledger:
        assert row.pop("seconds") >= 0
    return SurvivalPredictor.load(folder / "model.npz"), metrics, ledger


def test_a_run_of_five_sites_on_two_nodes_equals_one_on_five_nodes(tmp_path: Path) -> None:
    hosted, hosted_metrics, hosted_ledger = survival_run(2, tmp_path)
    alone, alone_metrics, alone_ledger = survival_run(5, tmp_path)
    assert hosted_metrics[-1]["status"] == alone_metrics[-1]["status"] == "ok"
    assert hosted.arrays.keys() == alone.arrays.keys()
    for name, array in alone.arrays.items():
        assert hosted.arrays[name].tobytes() == array.tobytes(), name
    assert hosted.baseline.cumulative.tobytes() == alone.baseline.cumulative.tobytes()
    for line in (hosted_metrics[-1], alone_metrics[-1]):
        del line["seconds"]
    assert hosted_metrics == alone_metrics
    # The ledger, too, speaks of sites, with the bytes that concern each of them.
    assert {row["sender"] for row in hosted_ledger} == {"server", *(f"site-{i}" for i in range(5))}
    assert sorted(map(str, hosted_ledger)) == sorted(map(str, alone_ledger))


# What a node does --------------------------------------------------------------------------------

counting = ClientApp(mods=[each_hosted_site])


@counting.query("count")
def count(message: Message, context: Context) -> Message:
    """Answer with the number of calls since the site last forgot, and who is asked."""
    memory = context.state.config_records.get("memory", ConfigRecord({"calls": 0}))
    calls = int(memory["calls"]) + 1  # type: ignore[arg-type]
    said = message.content.config_records["request"]
    answer = {
        "calls": calls,
        "site": context.node_config["partition-id"],
        "sites": context.node_config["num-partitions"],
        "for": said["for"],
        "run-config": context.run_config["key"],
    }
    if said["for"] == said.get("forget-at"):
        del context.state["memory"]
    else:
        context.state["memory"] = ConfigRecord({"calls": calls})
    if said["for"] == said.get("fail-at"):
        return Message(Error(200, f"bad-data: at site {said['for']}"), reply_to=message)
    if said["for"] == said.get("raise-at"):
        raise ValueError("a handler that does not answer its faults")
    return Message(
        RecordDict({"answer": ConfigRecord(answer), "again": ConfigRecord(answer)}),
        reply_to=message,
    )


def hosting(num_sites: int = 5, nodes: int = 2) -> HostingGrid:
    grid = InProcessGrid(counting, parts(nodes), {"key": "value"})
    return HostingGrid(grid, hosts=list(grid.get_node_ids()), num_sites=num_sites)


def ask(grid: Grid, **words: int) -> list[Message]:
    messages = [
        Message(
            RecordDict({"request": ConfigRecord({"for": node - 1, **words})}),
            dst_node_id=node,
            message_type=KIND,
        )
        for node in grid.get_node_ids()
    ]
    ids = list(grid.push_messages(messages))
    replies = {reply.metadata.reply_to_message_id: reply for reply in grid.pull_messages(ids)}
    return [replies[key] for key in ids]


def answers(replies: Iterable[Message], key: str) -> list[object]:
    return [reply.content.config_records["answer"][key] for reply in replies]


def test_every_site_is_asked_once_with_its_own_message_and_partition() -> None:
    replies = ask(hosting(5))
    assert answers(replies, "site") == answers(replies, "for") == [0, 1, 2, 3, 4]
    assert answers(replies, "sites") == [5] * 5
    assert answers(replies, "run-config") == ["value"] * 5
    assert [reply.metadata.src_node_id for reply in replies] == [1, 2, 3, 4, 5]
    assert all(set(reply.content) == {"answer", "again"} for reply in replies)


def test_nodes_are_the_sites_and_not_their_hosts() -> None:
    """A strategy that asks for nodes, as Flower's may, gets those that it can address."""
    grid = hosting(5)
    exchange = Exchange.around(grid)
    exchange.admit({node: f"site-{node - 1}" for node in exchange.get_node_ids()})
    for one in (grid, exchange):
        assert [node.node_id for node in one.get_nodes()] == [1, 2, 3, 4, 5]


def test_sites_of_one_node_have_states_of_their_own() -> None:
    grid = hosting(5)
    ask(grid)
    assert answers(ask_some(grid, [3]), "calls") == [2]
    assert answers(ask(grid), "calls") == [2, 2, 2, 3, 2]


def ask_some(grid: Grid, sites: list[int]) -> list[Message]:
    messages = [
        Message(
            RecordDict({"request": ConfigRecord({"for": site})}),
            dst_node_id=site + 1,
            message_type=KIND,
        )
        for site in sites
    ]
    return list(grid.pull_messages(grid.push_messages(messages)))


def test_what_a_site_forgets_does_not_come_back() -> None:
    grid = hosting(5)
    ask(grid)
    ask(grid, **{"forget-at": 2})
    assert answers(ask(grid), "calls") == [3, 3, 1, 3, 3]


def test_an_error_at_one_site_does_not_hurt_its_neighbours() -> None:
    grid = hosting(5)
    replies = ask(grid, **{"fail-at": 2})
    assert [reply.has_error() for reply in replies] == [False, False, True, False, False]
    assert (replies[2].error.code, replies[2].error.reason) == (200, "bad-data: at site 2")
    assert replies[2].metadata.src_node_id == 3
    # Its state is what its handler has left, as it is for a site on its own.
    assert answers(ask(grid), "calls") == [2, 2, 2, 2, 2]


def test_the_exchange_names_the_site_that_failed() -> None:
    exchange = Exchange.around(hosting(5), timeout=10.0)
    exchange.admit({node: f"site-{node - 1}" for node in exchange.get_node_ids()})
    messages = [
        Message(
            RecordDict({"request": ConfigRecord({"for": node - 1, "fail-at": 4})}),
            dst_node_id=node,
            message_type=KIND,
        )
        for node in exchange.get_node_ids()
    ]
    assert len(exchange.send_and_receive(messages)) == 4
    assert [(fault.site, fault.code) for fault in exchange.faults] == [("site-4", "bad-data")]


def test_when_a_node_fails_all_of_its_sites_do_and_no_others() -> None:
    replies = ask(hosting(5), **{"raise-at": 1})
    failed = [reply.has_error() for reply in replies]
    assert failed == [False, True, False, True, False]


def test_a_message_without_hosted_sites_is_handled_as_it_is() -> None:
    grid = InProcessGrid(counting, parts(3), {"key": "value"})
    assert answers(ask(grid), "sites") == [3, 3, 3]
    assert answers(ask(grid), "calls") == [2, 2, 2]


def test_replies_are_given_out_once() -> None:
    grid = hosting(5)
    messages = [
        Message(RecordDict({"request": ConfigRecord({"for": 0})}), dst_node_id=1, message_type=KIND)
    ]
    ids = list(grid.push_messages(messages))
    assert len(list(grid.pull_messages(ids))) == 1
    assert list(grid.pull_messages(ids)) == []


@pytest.mark.parametrize("dropped", [True, False])
def test_sites_of_a_node_that_could_not_be_addressed_are_not_sent(dropped: bool) -> None:
    grid = ScriptedGrid({11: None, 12: None}, refused={12: ""}, drop_refused=dropped)
    exchange = Exchange.around(HostingGrid(grid, hosts=[11, 12], num_sites=5), timeout=0.01)
    messages = [
        Message(RecordDict(), dst_node_id=node, message_type=KIND)
        for node in exchange.get_node_ids()
    ]
    with pytest.raises(RuntimeError):
        exchange.send_and_receive(messages)
    by_code = {
        code: [f.site for f in exchange.faults if f.code == code] for code in ("late", "not-sent")
    }
    assert by_code == {"late": ["node-1", "node-3", "node-5"], "not-sent": ["node-2", "node-4"]}


# When --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "num_sites", "task_type", "hosts"),
    [
        (2, 5, TaskType.SIMULATION, True),
        (2, 3, TaskType.SIMULATION, True),
        (2, 2, TaskType.SIMULATION, False),
        (1, 5, TaskType.SIMULATION, False),
        (3, 5, TaskType.SIMULATION, False),
        (10, 5, TaskType.SIMULATION, False),
        (2, 5, TaskType.SERVER_APP, False),
        (5, 5, TaskType.SERVER_APP, False),
    ],
)
def test_only_flowers_default_number_of_simulated_nodes_is_divided(
    nodes: int, num_sites: int, task_type: str, hosts: bool
) -> None:
    grid = ScriptedGrid({100 + n: None for n in range(nodes)}, task_type=task_type)
    found = with_hosted_sites(grid, num_sites)
    if hosts:
        assert isinstance(found, HostingGrid)
        assert list(found.get_node_ids()) == list(range(1, num_sites + 1))
        assert found.run is grid.run
    else:
        assert found is grid
