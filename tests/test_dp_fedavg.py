"""DPFedAvg keeps its protocol: exchanges, K, weights, what may enter the average, and faults."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from strategies.averaging import Update, mean_of_common_metrics
from strategies.dp_fedavg import DPFedAvg
from strategies.exchange import Exchange, TooFewSites
from strategies.update_intake import NoUsableReplies, UpdateIntake
from tasks.privacy.client import NUM_CLIENTS, UpdatePrivatization

Arrays = dict[str, NDArray[Any]]
INITIAL: Arrays = {
    "w": np.zeros(4, np.float32),
    "b": np.zeros((), np.float64),
    "h": np.zeros((2, 0), np.float16),
    "steps": np.array([11], np.int64),
}


def record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def numpy(arrays: ArrayRecord) -> Arrays:
    return {name: array.numpy() for name, array in arrays.items()}


class FakeGrid(Grid):
    """Nodes as functions of a message; counts the exchanges in which anything was sent."""

    def __init__(self, nodes: dict[int, Callable[[Message], Message | None]]) -> None:
        self.nodes = nodes
        self.sent: list[list[Message]] = []
        self._run = Run.create_empty(1)
        self._ids = itertools.count()
        self._replies: dict[str, Message] = {}
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 0, 0

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.sent.append(list(messages))
        ids = []
        for message in self.sent[-1]:
            ids.append(f"m{next(self._ids)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            reply = self.nodes[message.metadata.dst_node_id](message)
            if reply is not None:
                self._replies[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        # In the reverse order of sending: nothing may depend on the order of arrival.
        return [self._replies.pop(m) for m in reversed(list(message_ids)) if m in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def answer(message: Message, arrays: Arrays | None, **metrics: Any) -> Message:
    content = RecordDict({"metrics": MetricRecord(metrics)} if metrics else {})
    if arrays is not None:
        content["arrays"] = record(arrays)
    return Message(content, reply_to=message)


def steady(step: float, examples: int = 1) -> Callable[[Message], Message]:
    """A node that adds `step` to every element, integer buffers included."""

    def node(message: Message) -> Message:
        received = numpy(message.content.array_records["arrays"])
        trained = {n: np.asarray(a + np.asarray(step).astype(a.dtype)) for n, a in received.items()}
        metrics = {"num-examples": examples, "level": float(received["b"])}
        return answer(message, trained, **metrics)

    return node


def run(grid: Grid, strategy: DPFedAvg, num_rounds: int = 3, **kwargs: Any) -> tuple[Arrays, Any]:
    kwargs.setdefault("timeout", 5)
    result = strategy.start(grid, record(INITIAL), num_rounds=num_rounds, **kwargs)
    return numpy(result.arrays), result


# The protocol -----------------------------------------------------------------------------------


def test_a_round_is_one_exchange_and_the_last_model_is_evaluated() -> None:
    grid = FakeGrid({1: steady(1.0, 3), 2: steady(2.0, 1)})
    arrays, result = run(grid, DPFedAvg(), num_rounds=4)
    kinds = [{m.metadata.message_type for m in messages} for messages in grid.sent]
    assert kinds == [{"train"}] * 4 + [{"evaluate"}]
    assert all(len(messages) == 2 for messages in grid.sent)
    np.testing.assert_allclose(arrays["w"], 4 * (3 * 1 + 2) / 4)
    # Metrics of a round are those of the model it received; the last exchange's are the final's.
    levels = [result.train_metrics_clientapp[r]["level"] for r in range(1, 5)]
    assert levels == pytest.approx([0, 1.25, 2.5, 3.75])
    assert list(result.evaluate_metrics_clientapp) == [4]
    assert result.evaluate_metrics_clientapp[4]["level"] == pytest.approx(5.0)


def test_it_counts_through_the_exchange_it_is_given() -> None:
    exchange = Exchange.around(FakeGrid({1: steady(1), 2: steady(2)}), timeout=5)
    exchange.admit({1: "north", 2: "east"})
    strategy = DPFedAvg(clip_norm=10.0, noise_multiplier=0.01)
    run(exchange, strategy, num_rounds=3)
    assert exchange.count == 4
    assert list(strategy.noise_to_signal[1]) == ["east", "north"]


def test_the_message_says_round_and_number_of_clients_and_the_callers_record_stays() -> None:
    grid = FakeGrid({node: steady(1.0) for node in (4, 5, 6)})
    config = ConfigRecord({"lr": 0.1, "server-round": 77})
    run(grid, DPFedAvg(), num_rounds=2, train_config=config, evaluate_config=config)
    assert dict(config) == {"lr": 0.1, "server-round": 77}
    for server_round, messages in zip((1, 2, 2), grid.sent, strict=True):
        for message in messages:
            assert dict(message.content.config_records["config"]) == {
                "lr": 0.1,
                "server-round": server_round,
                NUM_CLIENTS: 3,
            }


def test_evaluation_can_be_switched_off() -> None:
    grid = FakeGrid({1: steady(1.0), 2: steady(1.0)})
    run(grid, DPFedAvg(fraction_evaluate=0.0), num_rounds=2)
    assert len(grid.sent) == 2


def test_nothing_is_trained_where_training_is_switched_off() -> None:
    grid = FakeGrid({1: steady(1.0), 2: steady(1.0)})
    _, result = run(grid, DPFedAvg(fraction_train=0.0), num_rounds=2)
    assert [m.metadata.message_type for messages in grid.sent for m in messages] == ["evaluate"] * 2
    assert not result.train_metrics_clientapp


def test_central_evaluation_runs_as_in_flower() -> None:
    seen: list[tuple[int, float]] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append((server_round, float(arrays["b"].numpy())))
        return MetricRecord({"x": 1.0})

    _, result = run(FakeGrid({1: steady(2.0), 2: steady(2.0)}), DPFedAvg(), 2, evaluate_fn=evaluate)
    assert seen == [(0, 0.0), (1, 2.0), (2, 4.0)]
    assert list(result.evaluate_metrics_serverapp) == [0, 1, 2]


def test_partial_participation_says_how_many_are_addressed_and_is_repeatable() -> None:
    def chosen(seed: int) -> list[list[int]]:
        grid = FakeGrid({node: steady(1.0) for node in range(10, 20)})
        strategy = DPFedAvg(fraction_train=0.35, rng=np.random.default_rng(seed))
        run(grid, strategy, num_rounds=6)
        for messages in grid.sent[:-1]:
            told = {m.content.config_records["config"][NUM_CLIENTS] for m in messages}
            assert told == {3}
        assert len(grid.sent[-1]) == 10
        return [[m.metadata.dst_node_id for m in messages] for messages in grid.sent[:-1]]

    first = chosen(5)
    assert first == chosen(5)
    assert first != chosen(6)
    assert all(len(set(nodes)) == 3 for nodes in first)
    assert len({tuple(nodes) for nodes in first}) > 1


def test_waiting_for_nodes_ends_with_the_timeout() -> None:
    grid = FakeGrid({1: steady(1.0)})
    with pytest.raises(TooFewSites, match=r"1 nodes? connected, 2 needed"):
        run(grid, DPFedAvg(), timeout=0.05)
    assert not grid.sent


def test_nodes_that_connect_late_are_waited_for() -> None:
    grid = FakeGrid({1: steady(1.0)})
    calls = itertools.count()

    def ids() -> list[int]:
        if next(calls) > 3:
            grid.nodes[2] = steady(3.0)
        return list(grid.nodes)

    grid.get_node_ids = ids  # type: ignore[method-assign]
    arrays, _ = run(grid, DPFedAvg(), num_rounds=1)
    np.testing.assert_allclose(arrays["w"], 2.0)


# The average ------------------------------------------------------------------------------------


def test_weights_are_examples_or_equal_or_whatever_is_asked_for() -> None:
    nodes = {1: steady(1.0, 1), 2: steady(4.0, 9)}

    class Root(DPFedAvg):
        def weigh(self, reply: Message) -> float:
            return math.sqrt(super().weigh(reply))

    for strategy, expected in (
        (DPFedAvg(), (1 + 36) / 10),
        (DPFedAvg(weighting="equal"), 2.5),
        (DPFedAvg(weigh=lambda reply: 1e308), 2.5),
        (Root(), (1 + 12) / 4),
    ):
        arrays, _ = run(FakeGrid(nodes), strategy, num_rounds=1)
        np.testing.assert_allclose(arrays["w"], expected, rtol=1e-6)


def test_the_average_keeps_types_shapes_order_and_integer_buffers() -> None:
    arrays, _ = run(FakeGrid({1: steady(1.0), 2: steady(2.0)}), DPFedAvg(), num_rounds=2)
    assert list(arrays) == list(INITIAL)
    for name, array in INITIAL.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
    assert arrays["steps"].tolist() == [11]


def test_the_average_is_made_in_double_precision() -> None:
    """In half precision 2049 of the 4096 sites would be lost."""
    rng = np.random.default_rng(2)
    values = rng.normal(size=(300, 5)).astype(np.float16)

    def node(row: int) -> Callable[[Message], Message]:
        return lambda message: answer(message, {"x": values[row]}, **{"num-examples": row + 1})

    grid = FakeGrid({row: node(row) for row in range(300)})
    start = record({"x": np.zeros(5, np.float16)})
    result = DPFedAvg(fraction_evaluate=0.0).start(grid, start, num_rounds=1, timeout=5)
    exact = np.average(values.astype(np.float64), axis=0, weights=np.arange(1, 301))
    assert np.array_equal(result.arrays["x"].numpy(), exact.astype(np.float16))


def test_names_in_another_order_are_averaged_by_name() -> None:
    def turned(message: Message) -> Message:
        received = numpy(message.content.array_records["arrays"])
        return answer(message, dict(reversed(list(received.items()))), **{"num-examples": 1})

    arrays, _ = run(FakeGrid({1: turned, 2: steady(1.0)}), DPFedAvg(), num_rounds=1)
    np.testing.assert_allclose(arrays["w"], 0.5)
    assert float(arrays["b"]) == 0.5


def test_the_result_does_not_depend_on_the_order_of_arrival() -> None:
    values = [1e16, 1.0, -1e16, 3.0, 1e-3]  # whose sum depends on the order of its terms
    assert sum(values) != sum(reversed(values))

    def node(value: float) -> Callable[[Message], Message]:
        return lambda m: answer(m, {"x": np.array([value])}, **{"num-examples": 1})

    grid = FakeGrid({index: node(value) for index, value in enumerate(values)})
    strategy = DPFedAvg()
    start = record({"x": np.zeros(1)})
    messages = list(strategy.configure_train(1, start, ConfigRecord(), grid))
    replies = [grid.nodes[m.metadata.dst_node_id](m) for m in messages]
    results = [
        strategy.aggregate_train(1, arrived)[0] for arrived in (replies, iter(replies[::-1]))
    ]
    forth, back = (float(arrays["x"].numpy()[0]) for arrays in results if arrays is not None)
    assert forth == back


# Faults -----------------------------------------------------------------------------------------


def changed(**arrays: Any) -> Callable[[Message], Message]:
    def node(message: Message) -> Message:
        received = numpy(message.content.array_records["arrays"])
        kept = {n: a for n, a in {**received, **arrays}.items() if a is not None}
        return answer(message, kept, **{"num-examples": 1})

    return node


def stating(**metrics: Any) -> Callable[[Message], Message]:
    return lambda m: answer(m, numpy(m.content.array_records["arrays"]), **metrics)


def unreadable(message: Message) -> Message:
    arrays = dict(message.content.array_records["arrays"])
    arrays["w"] = Array("float32", (4,), "numpy.ndarray", b"no array")
    content = RecordDict(
        {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
    )
    return Message(content, reply_to=message)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (changed(w=None), "array 'w' is missing"),
        (changed(extra=np.zeros(2)), "1 arrays that were not sent"),
        (changed(w=np.zeros(5, np.float32)), r"array 'w': shape \(5,\)"),
        (changed(w=np.zeros(4)), "array 'w': .* type float64; sent were .* float32"),
        (changed(w=np.float32([0, np.nan, 0, 0])), "array 'w': has NaN or infinite elements"),
        (changed(b=np.array(np.inf)), "array 'b': has NaN or infinite elements"),
        (unreadable, "an array cannot be read"),
        (lambda m: answer(m, None, **{"num-examples": 1}), "0 ArrayRecords"),
        (lambda m: answer(m, INITIAL), "0 MetricRecords"),
        (stating(loss=1.0), "num-examples: must be there, finite and > 0"),
        (stating(**{"num-examples": 0}), "num-examples: must be"),
        (stating(**{"num-examples": -3}), "num-examples: must be"),
        (stating(**{"num-examples": math.nan}), "num-examples: must be"),
        (stating(**{"num-examples": math.inf}), "num-examples: must be"),
        (stating(**{"num-examples": [3, 4]}), "num-examples: must be"),
        (lambda m: Message(Error(200, "small-site: too few rows"), reply_to=m), "too few rows"),
        (lambda m: None, "no reply within"),
    ],
)
def test_a_reply_that_cannot_be_used_is_named_and_left_out(
    bad: Callable[[Message], Message], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid = FakeGrid({1: steady(2.0), 2: bad, 3: steady(4.0)})
    exchange = Exchange.around(grid, timeout=0.05)
    exchange.admit({1: "a", 2: "broken", 3: "c"})
    strategy = DPFedAvg(fraction_evaluate=0.0)
    arrays, _ = run(exchange, strategy, num_rounds=1)
    np.testing.assert_allclose(arrays["w"], 3.0)
    assert [fault.site for fault in exchange.faults] == ["broken"]
    assert re.search(reason, exchange.faults[0].reason)
    assert any(line.startswith("broken: ") for line in caplog.messages)
    assert strategy.shortfalls == {1: (2, 3)}
    assert any("round 1: 2 of 3 updates usable" in line for line in caplog.messages)


def test_equal_weights_do_without_the_number_of_examples() -> None:
    nodes = {1: lambda m: answer(m, INITIAL), 2: steady(1.0), 3: stating(loss=1.0)}
    strategy = DPFedAvg(weighting="equal", fraction_evaluate=0.0)
    arrays, result = run(FakeGrid(nodes), strategy, num_rounds=1)
    np.testing.assert_allclose(arrays["w"], 1 / 3, rtol=1e-6)
    assert not result.train_metrics_clientapp.get(1)


@pytest.mark.parametrize("step", [3.5, 1e6, 3e38])
def test_an_update_that_clipping_and_noise_cannot_make_is_set_aside_by_name(step: float) -> None:
    def node(message: Message) -> Message:
        received = numpy(message.content.array_records["arrays"])
        far = {n: np.asarray(a.astype(np.float64) + step) for n, a in received.items()}
        far = {
            n: received[n] if n == "steps" else a.astype(received[n].dtype) for n, a in far.items()
        }
        return answer(message, far, **{"num-examples": 1})

    exchange = Exchange.around(FakeGrid({1: steady(0.4), 2: node, 3: steady(0.4)}), timeout=5)
    exchange.admit({1: "a", 2: "b", 3: "c"})
    strategy = DPFedAvg(clip_norm=1.0, noise_multiplier=0.01, fraction_evaluate=0.0)
    arrays, _ = run(exchange, strategy, num_rounds=2)
    assert [(f.site, f.code) for f in exchange.faults] == [("b", "implausible-update")] * 2
    assert "clip-norm 1 " in exchange.faults[0].reason
    np.testing.assert_allclose(arrays["w"], 0.8, rtol=1e-6)


def test_honest_updates_that_are_mostly_noise_are_not_set_aside() -> None:
    for multiplier in (0.0, 1.0, 100.0):
        exchange = Exchange.around(private_grid(4, multiplier), timeout=5)
        strategy = DPFedAvg(clip_norm=1.0, noise_multiplier=multiplier, fraction_evaluate=0.0)
        strategy.start(exchange, record({"x": np.zeros(SIZE)}), num_rounds=5, timeout=5)
        assert exchange.faults == []


def test_the_ratio_of_a_drowned_update_is_at_least_what_the_clip_norm_allows() -> None:
    strategy = DPFedAvg(clip_norm=1.0, noise_multiplier=10.0, fraction_evaluate=0.0)
    train_privately(private_grid(4, 10.0), strategy, num_rounds=8)
    ratios = [ratio for by_site in strategy.noise_to_signal.values() for ratio in by_site.values()]
    assert min(ratios) >= 10.0 / math.sqrt(4) * math.sqrt(SIZE) * (1 - 1e-9)
    assert any(math.isfinite(ratio) for ratio in ratios)


def late_exchange() -> tuple[Exchange, FakeGrid]:
    grid = FakeGrid({1: steady(1.0), 2: steady(1.0), 3: lambda message: None})
    exchange = Exchange.around(grid, timeout=0.05)
    exchange.admit({1: "a", 2: "b", 3: "c"})
    return exchange, grid


def test_a_site_that_is_late_twice_in_a_row_is_left_out_of_what_follows() -> None:
    exchange, grid = late_exchange()
    run(exchange, DPFedAvg(), num_rounds=4)
    assert [len(messages) for messages in grid.sent] == [3, 3, 2, 2, 2]
    codes = [(fault.site, fault.code) for fault in exchange.faults]
    assert codes == [("c", "late"), ("c", "late"), ("c", "left-out")]
    assert exchange.faults[-1].reason == "left out after 2 late replies in a row"


def test_the_runtime_is_asked_for_its_nodes_as_often_whoever_is_left_out() -> None:
    """In a deployment each time is a request with all nodes in its answer."""
    asked = []
    for late in (1, 20):
        silent = range(3, 3 + late)
        grid = FakeGrid({1: steady(1.0), 2: steady(1.0)} | dict.fromkeys(silent, lambda m: None))
        ask, times = grid.get_node_ids, itertools.count(1)
        grid.get_node_ids = lambda ask=ask, times=times: (next(times), ask())[1]  # type: ignore
        exchange = Exchange.around(grid, timeout=0.05)
        exchange.admit({node: f"site-{node}" for node in grid.nodes})
        run(exchange, DPFedAvg(fraction_evaluate=0.0), num_rounds=3)
        assert sum(fault.code == "left-out" for fault in exchange.faults) == late
        asked.append(next(times))
    assert asked[0] == asked[1]


def test_a_late_site_stays_where_sites_are_too_few_without_it() -> None:
    exchange, grid = late_exchange()
    run(exchange, DPFedAvg(fraction_evaluate=0.0, min_available_nodes=3), num_rounds=4)
    assert [len(messages) for messages in grid.sent] == [3] * 4
    assert {fault.code for fault in exchange.faults} == {"late"}


def test_a_site_that_answers_in_between_is_not_left_out() -> None:
    exchange, grid = late_exchange()
    turns = itertools.count()
    grid.nodes[3] = lambda message: steady(1.0)(message) if next(turns) % 2 else None
    run(exchange, DPFedAvg(fraction_evaluate=0.0), num_rounds=5)
    assert [len(messages) for messages in grid.sent] == [3] * 5
    assert [fault.code for fault in exchange.faults] == ["late"] * 3


def test_a_reply_is_compared_with_one_node_and_not_with_all() -> None:
    compared = itertools.count()

    class Node(int):
        def __eq__(self, other: object) -> bool:
            next(compared)
            return int(self) == other

        __hash__ = int.__hash__

    nodes = [Node(number) for number in range(1, 201)]
    grid = FakeGrid(dict.fromkeys(map(int, nodes), steady(1.0)))
    requests = [
        Message(RecordDict(), dst_node_id=int(node), message_type="train") for node in nodes
    ]
    replies = [Message(RecordDict(), reply_to=request) for request in requests]
    found = UpdateIntake(Exchange.around(grid), nodes).good_replies(replies)
    assert found == replies
    assert next(compared) < 10 * len(nodes)


def test_replies_that_nobody_asked_for_and_second_ones_are_left_out() -> None:
    grid = FakeGrid({1: steady(1.0), 2: steady(2.0)})
    strategy = DPFedAvg()
    one, two = strategy.configure_train(1, record(INITIAL), ConfigRecord(), grid)
    stranger = Message(RecordDict(), dst_node_id=9, message_type="train")
    replies = [
        steady(1.0)(one),
        steady(50.0)(one),
        answer(stranger, {n: np.asarray(a + 9).astype(a.dtype) for n, a in INITIAL.items()}),
        steady(2.0)(two),
    ]
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    np.testing.assert_allclose(arrays["w"].numpy(), 1.5)


def test_a_weight_that_cannot_be_is_a_fault_of_the_reply() -> None:
    weights = {1: 1.0, 2: math.nan, 3: 0.0, 4: 1.0}

    def weigh(reply: Message) -> float:
        return weights[reply.metadata.src_node_id]  # of node 5: KeyError

    grid = FakeGrid({node: steady(float(node)) for node in range(1, 6)})
    strategy = DPFedAvg(weigh=weigh, fraction_evaluate=0.0)
    arrays, _ = run(grid, strategy, num_rounds=1)
    np.testing.assert_allclose(arrays["w"], 2.5)
    assert strategy.shortfalls == {1: (2, 5)}


def test_no_usable_reply_ends_the_run_by_name() -> None:
    grid = FakeGrid({1: changed(w=np.full(4, np.nan, np.float32)), 2: changed(w=None)})
    with pytest.raises(
        NoUsableReplies, match=r"round 1: 0 of 2 updates usable, 1 needed"
    ) as caught:
        run(grid, DPFedAvg())
    assert len(caught.value.faults) == 2
    assert "node-1" in str(caught.value)
    assert "array 'w' is missing" in str(caught.value)
    silent = FakeGrid({1: lambda m: None, 2: lambda m: None})
    with pytest.raises(TooFewSites, match="0 of 2"):
        run(silent, DPFedAvg(), timeout=0.05)


def test_fewer_usable_replies_than_the_exchange_asks_for_end_the_run() -> None:
    grid = FakeGrid({1: steady(1.0), 2: steady(1.0), 3: changed(w=None)})
    exchange = Exchange.around(grid, timeout=5, min_sites=3)
    with pytest.raises(NoUsableReplies, match=r"2 of 3 updates usable, 3 needed"):
        run(exchange, DPFedAvg())


def test_evaluation_without_usable_metrics_does_not_lose_the_model() -> None:
    def no_metrics_at_the_end(message: Message) -> Message:
        if message.metadata.message_type == "evaluate":
            return answer(message, None, loss=0.5)
        return steady(1.0)(message)

    grid = FakeGrid({1: no_metrics_at_the_end, 2: no_metrics_at_the_end})
    arrays, result = run(grid, DPFedAvg(), num_rounds=2)
    np.testing.assert_allclose(arrays["w"], 2.0)
    assert not result.evaluate_metrics_clientapp


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="weighting = 'median'"):
        DPFedAvg(weighting="median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"clip_norm = -1\.0.*; noise_multiplier = None"):
        DPFedAvg(clip_norm=-1.0)
    with pytest.raises(ValueError, match="num_rounds = 0"):
        run(FakeGrid({1: steady(1.0)}), DPFedAvg(), num_rounds=0)


# Metrics, hooks, noise --------------------------------------------------------------------------


def test_metrics_that_not_every_site_has_are_left_out_of_the_mean() -> None:
    contents = [
        RecordDict({"m": MetricRecord({"num-examples": 1, "loss": 1.0, "v": [1.0, 2.0]})}),
        RecordDict({"m": MetricRecord({"num-examples": 3, "loss": 5.0, "v": [1.0], "c": 1})}),
    ]
    assert dict(mean_of_common_metrics(contents, "num-examples")) == {"loss": 4.0}
    assert dict(mean_of_common_metrics([], "num-examples")) == {}


def test_a_subclass_may_pool_metrics_itself() -> None:
    def total(contents: list[RecordDict], key: str) -> MetricRecord:
        numbers = [int(c.metric_records["metrics"][key]) for c in contents]  # type: ignore[arg-type]
        return MetricRecord({"rows": sum(numbers)})

    strategy = DPFedAvg(train_metrics_aggr_fn=total)
    _, result = run(FakeGrid({1: steady(1.0, 5), 2: steady(1.0, 8)}), strategy, num_rounds=1)
    assert dict(result.train_metrics_clientapp[1]) == {"rows": 13}


def test_the_hook_after_a_round_sees_the_new_model_and_the_old_ones_metrics() -> None:
    seen: list[tuple[int, float, float]] = []

    def after(server_round: int, arrays: ArrayRecord, metrics: MetricRecord | None) -> None:
        assert metrics is not None
        seen.append((server_round, float(arrays["b"].numpy()), metrics["level"]))  # type: ignore[arg-type]

    run(FakeGrid({1: steady(1.0), 2: steady(3.0)}), DPFedAvg(after_round=after), num_rounds=3)
    assert seen == [(1, 2.0, 0.0), (2, 4.0, 2.0), (3, 6.0, 4.0)]


def test_a_subclass_may_check_updates_itself() -> None:
    class NoBigSteps(DPFedAvg):
        def check_update(self, reply: Message, sent: Any) -> Arrays:
            arrays = super().check_update(reply, sent)
            if np.abs(arrays["w"] - sent["w"]).max() > 10:
                raise ValueError("a big step")
            return arrays

    grid = FakeGrid({1: steady(1.0), 2: steady(1e4), 3: steady(3.0)})
    arrays, _ = run(grid, NoBigSteps(fraction_evaluate=0.0), num_rounds=1)
    np.testing.assert_allclose(arrays["w"], 2.0)


def test_a_subclass_may_combine_updates_itself() -> None:
    """A server's momentum, as of FedAvgM (Hsu et al. 2019)."""

    class Momentum(DPFedAvg):
        velocity: float | NDArray[Any] = 0.0

        def combine(self, sent: Any, updates: Sequence[Update]) -> ArrayRecord:
            assert [update.weight for update in updates] == [5.0, 15.0]
            mean = numpy(super().combine(sent, updates))
            self.velocity = 0.5 * self.velocity + (mean["b"] - sent["b"])
            return record({**mean, "b": np.asarray(sent["b"] + self.velocity)})

    grid = FakeGrid({1: steady(1.0, 5), 2: steady(5.0, 15)})
    arrays, _ = run(grid, Momentum(fraction_evaluate=0.0), num_rounds=3)
    assert arrays["b"] == pytest.approx(4 + 6 + 7)
    np.testing.assert_allclose(arrays["w"], 12.0)


SIZE = 5000


def private_grid(num_sites: int, multiplier: float, seed: int | None = 3) -> FakeGrid:
    """Sites whose ClientApp privatizes by the mod; steps of norm well above the bound."""

    def site(node: int) -> Callable[[Message], Message]:
        rng = None if seed is None else np.random.default_rng([seed, node])
        mod = UpdatePrivatization(clip_norm=1.0, noise_multiplier=multiplier, rng=rng)
        app = ClientApp(mods=[mod])

        @app.train()
        def train(message: Message, _: Context) -> Message:
            received = numpy(message.content.array_records["arrays"])
            return answer(message, {"x": received["x"] + 1.0}, **{"num-examples": node})

        context = Context(1, node, {}, RecordDict(), {})
        return lambda message: app(message, context)

    return FakeGrid({node: site(node) for node in range(1, num_sites + 1)})


def train_privately(grid: FakeGrid, strategy: DPFedAvg, num_rounds: int = 2) -> NDArray[Any]:
    start = record({"x": np.zeros(SIZE)})
    result = strategy.start(grid, start, num_rounds=num_rounds, timeout=5)
    return result.arrays["x"].numpy()


def test_noise_to_signal_is_estimated_by_site_and_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for multiplier, loud in ((0.01, False), (0.1, True)):
        caplog.clear()
        strategy = DPFedAvg(
            clip_norm=1.0, noise_multiplier=multiplier, weighting="equal", fraction_evaluate=0.0
        )
        train_privately(private_grid(4, multiplier), strategy)
        true = multiplier / math.sqrt(4) * math.sqrt(SIZE) / 1.0
        for server_round in (1, 2):
            ratios = strategy.noise_to_signal[server_round]
            assert list(ratios) == [f"node-{i}" for i in range(1, 5)]
            assert list(ratios.values()) == pytest.approx([true] * 4, rel=0.25)
        warned = [line for line in caplog.messages if "more noise than signal" in line]
        assert len(warned) == (2 if loud else 0)


@pytest.mark.parametrize("settings", [{}, {"mechanism": "none", "clip_norm": 1.0}])
def test_nothing_is_estimated_where_the_noise_is_not_known(settings: dict[str, Any]) -> None:
    strategy = DPFedAvg(fraction_evaluate=0.0, **settings)
    train_privately(private_grid(2, 0.1), strategy)
    assert strategy.noise_to_signal == {}


def test_the_noise_of_a_run_is_that_of_the_scale_and_repeatable_only_with_a_seed() -> None:
    """On the average of K equal weights: multiplier clip / sqrt(K) / sqrt(K) an element."""
    runs = [
        train_privately(
            private_grid(4, 1.0, seed), DPFedAvg(weighting="equal", fraction_evaluate=0.0), 1
        )
        for seed in (3, 3, None, None)
    ]
    signal = 1 / math.sqrt(SIZE)
    for noised in runs:
        assert (noised - signal).std() == pytest.approx(1.0 / 4, rel=0.07)
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[2], runs[3])


def test_a_site_that_is_told_no_k_sends_nothing() -> None:
    """FedAvg of Flower does not say K: the mod refuses, so no update leaves by accident."""
    from flwr.serverapp.strategy import FedAvg

    grid = private_grid(2, 1.0)
    start = record({"x": np.zeros(SIZE)})
    result = FedAvg(fraction_evaluate=0.0).start(grid, start, num_rounds=1, timeout=5)
    assert not result.arrays
