"""A request that a site refuses leaves nothing behind at the site, whatever came first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedapp.hosted_sites import HostingGrid, each_hosted_site
from fedapp.simulation import InProcessGrid
from tasks.site.client import answering_faults, introduce
from tasks.site.faults import SiteFault
from tasks.site.messages import HELLO, HelloReply, HelloRequest, TaskPart

KIND = "query.change"


def remember(context: Context) -> None:
    context.state["words"] = ConfigRecord({"said": "once", "list": [1, 2]})
    context.state["numbers"] = MetricRecord({"count": 3})
    context.state["arrays"] = ArrayRecord({"own": Array(np.arange(4.0))})


def change_everything(context: Context) -> None:
    context.state.config_records["words"]["said"] = "twice"
    context.state.config_records["words"]["list"].append(3)  # type: ignore[union-attr]
    context.state.metric_records["numbers"]["count"] = 4
    context.state.array_records["arrays"]["own"] = Array(np.zeros(2))
    del context.state["numbers"]
    context.state["new"] = ConfigRecord({"roster": b"another"})


@answering_faults
def handle(message: Message, context: Context) -> Message:
    if not context.state:
        remember(context)
        return Message(RecordDict(), reply_to=message)
    change_everything(context)
    if message.content.config_records["request"]["safe"]:
        raise SiteFault("second-request", "asked before")
    raise RuntimeError("a library's words")


app = ClientApp(mods=[each_hosted_site])
app.query("change")(handle)


def ask(grid: InProcessGrid | HostingGrid, *, safe: bool) -> Message:
    content = RecordDict({"request": ConfigRecord({"safe": safe})})
    message = Message(content, dst_node_id=1, message_type=KIND)
    (reply,) = grid.pull_messages(grid.push_messages([message]))
    return reply


def untouched(state: RecordDict, prefix: str = "") -> bool:
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    remember(context)
    expected = context.state
    return {prefix + key for key in expected} == set(state) and all(
        dict(state[prefix + key]) == dict(record)
        if not isinstance(record, ArrayRecord)
        else np.array_equal(state.array_records[prefix + key]["own"].numpy(), record["own"].numpy())
        for key, record in expected.items()
    )


@pytest.mark.parametrize("safe", [True, False])
def test_the_state_is_what_it_was(safe: bool) -> None:
    grid = InProcessGrid(app, [{}], {})
    assert not ask(grid, safe=safe).has_error()
    assert untouched(grid.contexts[1].state)
    assert ask(grid, safe=safe).has_error()
    assert untouched(grid.contexts[1].state)


def test_the_state_of_a_hosted_site_is_what_it_was() -> None:
    simulated = [{"partition-id": at, "num-partitions": 2} for at in range(2)]
    nodes = InProcessGrid(app, simulated, {})
    grid = HostingGrid(nodes, hosts=[1, 2], num_sites=5)
    assert not ask(grid, safe=True).has_error()
    assert ask(grid, safe=True).has_error()
    assert untouched(nodes.contexts[1].state, prefix="0/")


def test_the_grid_keeps_what_a_handler_leaves_beside_an_error() -> None:
    """As both of Flower's runtimes do: otherwise no test would see what a fault leaves behind."""
    bare = ClientApp()
    bare.query("change")(handle.__wrapped__)  # type: ignore[attr-defined]
    grid = InProcessGrid(bare, [{}], {})
    assert not ask(grid, safe=True).has_error()
    assert ask(grid, safe=True).has_error()
    assert "new" in grid.contexts[1].state


def refuse() -> TaskPart:
    raise SiteFault("small-site", "too few rows")


def fail() -> TaskPart:
    raise KeyError("a value")


@pytest.mark.parametrize("fault", [refuse, fail])
def test_an_introduction_with_a_fault_leaves_nothing(fault: Callable[[], TaskPart]) -> None:
    asking = ClientApp()

    @asking.query("hello")
    @answering_faults
    def hello(message: Message, context: Context) -> Message:
        def check() -> None:
            context.state["model"] = ConfigRecord({"model": "of the server's making"})

        return introduce(
            message,
            context,
            fingerprint="ours",
            site_name=lambda: "north",
            check_data=check,
            task_part=fault,
        )

    grid = InProcessGrid(asking, [{}], {})
    message = Message(HelloRequest("ours").to_record(), dst_node_id=1, message_type=HELLO)
    (reply,) = grid.pull_messages(grid.push_messages([message]))
    assert HelloReply.from_record(reply.content).fault_code
    assert not grid.contexts[1].state
