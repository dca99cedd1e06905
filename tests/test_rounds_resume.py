"""DPFedAvg in anybody's ServerApp, from a snapshot: rounds, sampling, lateness, own state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from strategies.averaging import Update
from strategies.dp_fedavg import DPFedAvg
from strategies.snapshot import Snapshot, UnusableSnapshot
from tests.test_dp_fedavg import FakeGrid, numpy, record, steady

INITIAL = {"w": np.zeros(3, np.float32), "b": np.zeros((), np.float64)}
ROUNDS = 5


def grid() -> FakeGrid:
    return FakeGrid({node: steady(0.1 * node, examples=node) for node in range(1, 7)})


def evaluated(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"round": server_round, "b": float(arrays["b"].numpy())})


class Momentum(DPFedAvg):
    """A strategy that remembers something between rounds: a server's momentum."""

    velocity = 0.0

    def combine(self, sent: Mapping[str, NDArray[Any]], updates: Sequence[Update]) -> ArrayRecord:
        mean = numpy(super().combine(sent, updates))
        self.velocity = 0.9 * self.velocity + float(mean["b"] - sent["b"])
        return record({**mean, "b": np.asarray(sent["b"] + self.velocity)})

    def snapshot(self, server_round: int) -> Snapshot:
        bare = super().snapshot(server_round)
        return replace(bare, facts={**bare.facts, "velocity": self.velocity})

    def restore(self, snapshot: Snapshot) -> None:
        super().restore(snapshot)
        self.velocity = snapshot.facts["velocity"]


def run(
    kind: type[DPFedAvg], network: FakeGrid, **start: Any
) -> tuple[Result, list[Snapshot], DPFedAvg]:
    taken: list[Snapshot] = []
    strategy = kind(
        fraction_train=0.5,
        rng=np.random.default_rng(7),
        on_snapshot=taken.append,
        clip_norm=9.0,
        noise_multiplier=0.1,
    )
    result = strategy.start(
        network, record(INITIAL), num_rounds=ROUNDS, evaluate_fn=evaluated, **start
    )
    return result, taken, strategy


@pytest.mark.parametrize("kind", [DPFedAvg, Momentum])
def test_from_any_round_the_rest_is_the_same(kind: type[DPFedAvg]) -> None:
    """The same nodes are sampled, and the result has the rounds before."""
    network = grid()
    whole, taken, strategy = run(kind, network)
    assert [each.round for each in taken] == list(range(ROUNDS + 1))
    sent = [[m.metadata.dst_node_id for m in messages] for messages in network.sent if messages]
    assert len(sent) == ROUNDS + 1
    for snapshot in taken:
        network = grid()
        again, _, other = run(kind, network, resume_from=snapshot)
        told = [[m.metadata.dst_node_id for m in messages] for messages in network.sent if messages]
        assert told == sent[snapshot.round :]
        for name, array in numpy(whole.arrays).items():
            assert numpy(again.arrays)[name].tobytes() == array.tobytes()
        assert again.train_metrics_clientapp == whole.train_metrics_clientapp
        assert again.evaluate_metrics_clientapp == whole.evaluate_metrics_clientapp
        assert again.evaluate_metrics_serverapp == whole.evaluate_metrics_serverapp
        assert set(again.evaluate_metrics_serverapp) == set(range(ROUNDS + 1))
        assert other.noise_to_signal == strategy.noise_to_signal
        numbers = {
            message.content.config_records["config"]["server-round"]
            for messages in network.sent
            for message in messages
        }
        assert numbers == set(range(min(snapshot.round + 1, ROUNDS), ROUNDS + 1))


def test_a_site_that_was_late_before_is_left_out_after_one_more_time() -> None:
    def silent(message: Message) -> None:
        return None

    network = FakeGrid({1: steady(0.1), 2: steady(0.2), 3: silent})
    taken: list[Snapshot] = []
    strategy = DPFedAvg(on_snapshot=taken.append)
    strategy.start(network, record(INITIAL), num_rounds=3, timeout=0.05)
    assert taken[1].facts["late-in-a-row"] == {"node-3": 1}
    assert strategy.shortfalls.keys() == {1, 2}
    network.sent.clear()
    again = DPFedAvg()
    again.start(network, record(INITIAL), num_rounds=3, timeout=0.05, resume_from=taken[1])
    assert [len(messages) for messages in network.sent if messages] == [3, 2, 2]
    assert again.shortfalls == strategy.shortfalls


def test_a_snapshot_that_does_not_fit_is_refused() -> None:
    _, taken, _ = run(DPFedAvg, grid())
    for initial in (
        {"w": INITIAL["w"]},
        {**INITIAL, "w": np.zeros(4, np.float32)},
        {**INITIAL, "w": np.zeros(3)},
    ):
        with pytest.raises(UnusableSnapshot, match="names, shapes or types"):
            DPFedAvg().start(grid(), record(initial), num_rounds=5, resume_from=taken[2])
    with pytest.raises(UnusableSnapshot, match="it is of round 4, the run has 3 rounds only"):
        DPFedAvg().start(grid(), record(INITIAL), num_rounds=3, resume_from=taken[4])
    with pytest.raises(UnusableSnapshot, match="'fisher-scoring', where one of 'dp-fedavg'"):
        DPFedAvg().start(grid(), record(INITIAL), resume_from=Snapshot("fisher-scoring", 1))


def test_a_snapshot_that_lacks_something_is_named() -> None:
    _, taken, _ = run(DPFedAvg, grid())
    needed = [name for name in taken[2].facts if not name.endswith("-metrics")]
    assert needed
    for name in needed:
        less = {key: value for key, value in taken[2].facts.items() if key != name}
        snapshot = replace(taken[2], facts=less)
        with pytest.raises(UnusableSnapshot, match=f"does not hold.*{name}"):
            DPFedAvg().start(grid(), record(INITIAL), num_rounds=5, resume_from=snapshot)
    snapshot = replace(taken[2], arrays={})
    with pytest.raises(UnusableSnapshot, match="names, shapes or types"):
        DPFedAvg().start(grid(), record(INITIAL), num_rounds=5, resume_from=snapshot)
