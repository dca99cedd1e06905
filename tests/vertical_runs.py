"""Runs of the vertical task in this process, their recording, and what they must equal."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message

from fedapp import simulation
from fedapp.run_folder import RunFolder
from fedapp.simulation import InProcessGrid, SimulationResult, simulate
from tasks.vertical_xgboost.central import CentralModel, fit_central
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.joined import JoinedTable, join
from tasks.vertical_xgboost.model_part import ModelPart
from tasks.vertical_xgboost.paillier import keys as paillier_keys
from tasks.vertical_xgboost.peers import Peers
from tasks.vertical_xgboost.rows import PartyTable, read_table
from tasks.vertical_xgboost.site_state import Secrets
from tests.paillier_keys import weak_key

Value = bool | int | float | str
TASK = "vertical-xgboost"
MARK_OF_THE_END = ["vertical-stopped"]
"""All that a node's state holds once its part of a run has ended."""


def run(
    directory: Path,
    frames: Sequence[pd.DataFrame],
    *,
    seed: int = 0,
    seeded_noise: bool = False,
    **keys: Value,
) -> SimulationResult:
    """A run over frames; keys are Python names of the task's settings. Plain unless asked."""
    settings = {"encryption": "none", "allow_two_parties": len(frames) == 2, **keys}
    if settings["encryption"] == "paillier":
        settings |= {"key_bits": 1024, "allow_weak_key": True}
    config: dict[str, Value] = {"run-dir": str(directory), "seeded-noise": seeded_noise}
    for name, value in settings.items():
        own = "lambda" if name == "reg_lambda" else name.replace("_", "-")
        config[f"{TASK}.{own}"] = value
    return simulate(TASK, sites=frames, config=config, seed=seed)


def draw_known_keys(patch: pytest.MonkeyPatch) -> None:
    """Let parties draw the test session's keys, one after the other: drawing takes long."""
    from tasks.vertical_xgboost import site_state

    numbers = iter(range(10_000))

    def draw(bits: int, *, allow_weak_key: bool) -> paillier_keys.PrivateKey:
        assert bits == 1024
        assert allow_weak_key
        return weak_key(next(numbers) % 10)

    patch.setattr(site_state, "generate_key", draw)


@dataclass(frozen=True)
class Central:
    """Tables as parties read them, and the reference learner on the joined one."""

    tables: dict[str, PartyTable]
    joined: JoinedTable
    model: CentralModel


def central_fit(frames: Sequence[pd.DataFrame], *, seed: int = 0, **keys: Any) -> Central:
    """The same settings on the joined table."""
    config = VerticalXGBoostConfig(**{"allow_weak_key": True, **keys})
    tables = {
        f"site-{at}": read_table(
            frame, id_column="id", label_column="label", config=config, seed=seed
        )
        for at, frame in enumerate(frames)
    }
    joined = join(tables)
    return Central(tables, joined, fit_central(joined, config, seed=seed))


def assert_same(result: SimulationResult, central: Central) -> None:
    """Shape, owners, thresholds, sides, leaves, metrics and predictions, to the last bit."""
    assert result.summary["status"] == "ok", result.summary.get("reason")
    parts = {
        name: ModelPart.load(result.run_folder / "parties" / f"{name}.json")
        for name in central.tables
    }
    starts = np.cumsum([0] + [len(table.feature_names) for table in central.tables.values()])
    first = dict(zip(central.tables, starts.tolist(), strict=False))
    folder = RunFolder.open(result.run_folder)
    document = folder.read_json("trees.json")
    assert document is not None
    kept = result.summary["trees-kept"]
    assert kept == len(central.model.trees)
    owners = [e["owner"] for t in document["trees"][:kept] for e in t["nodes"] if not e["leaf"]]
    for name, part in parts.items():  # no tree and no threshold that the model does not use
        assert len(part.trees) == kept
        assert len(part.lookup.records) == owners.count(name)
    for at, tree in enumerate(central.model.trees):
        nodes = {node["id"]: node for node in document["trees"][at]["nodes"]}
        splits = {node: entry for node, entry in nodes.items() if not entry["leaf"]}
        assert {n: (e["left"], e["right"]) for n, e in splits.items()} == dict(tree.children)
        for node, entry in splits.items():
            own = parts[entry["owner"]].lookup.records[entry["record"]]
            theirs = tree.records[node]
            assert first[entry["owner"]] + own.column == theirs.column
            assert own.threshold == theirs.threshold
            assert own.missing_left == theirs.missing_left
        for part in parts.values():
            assert part.trees[at].weights == dict(tree.weights)
    lines = folder.read().rounds
    assert len(lines) == len(central.model.metrics)
    for line, metrics in zip(lines, central.model.metrics, strict=True):
        assert line["train-loss"] == metrics.train.loss
        if metrics.evaluation is not None:
            assert line["test-loss"] == metrics.evaluation.loss
    assert result.predictions is not None
    ids = next(iter(central.tables.values())).ids
    assert tuple(result.predictions["id"]) == ids
    margins = result.predictions.drop(columns="id").to_numpy().T
    assert np.array_equal(margins, central.model.margins(central.joined.features))


@dataclass(frozen=True)
class Recorded:
    """A run with every request and reply, and the largest state of each node in bytes.

    `sealed` has step, sender, receiver and content of all that was sealed.
    """

    result: SimulationResult
    messages: list[tuple[Message, Message]]
    grid: InProcessGrid
    state_bytes: dict[int, int]
    sealed: list[tuple[str, str, str, bytes]]

    def of_type(self, message_type: str) -> Iterator[tuple[str, Message, Message]]:
        """Party, request and reply, of one message type."""
        for request, reply in self.messages:
            if request.metadata.message_type == message_type:
                yield f"site-{request.metadata.dst_node_id - 1}", request, reply

    def sealed_at(self, step: str) -> Iterator[tuple[str, str, bytes]]:
        """Sender, receiver and content of what was sealed at a step."""
        for at, sender, receiver, payload in self.sealed:
            if at == step:
                yield sender, receiver, payload


def record(directory: Path, frames: Sequence[pd.DataFrame], **keys: Value) -> Recorded:
    """Make a run and keep everything that travelled."""
    from strategies.exchange import content_bytes

    messages: list[tuple[Message, Message]] = []
    grids: list[InProcessGrid] = []
    sizes: dict[int, int] = {}

    class RecordingGrid(InProcessGrid):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            grids.append(self)

        def _handle(self, message: Message) -> Message:
            request = copy.deepcopy(message)
            reply = super()._handle(message)
            messages.append((request, copy.deepcopy(reply)))
            for node, context in self.contexts.items():
                sizes[node] = max(sizes.get(node, 0), content_bytes(context.state))
            return reply

    sealed: list[tuple[str, str, str, bytes]] = []
    really = Secrets.seal

    def seal(own: Secrets, peers: Peers, receiver: str, payload: bytes, **how: Any) -> bytes:
        sealed.append((how["step"], own.keys.site, receiver, payload))
        return really(own, peers, receiver, payload, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "InProcessGrid", RecordingGrid)
        patch.setattr(Secrets, "seal", seal)
        draw_known_keys(patch)
        result = run(directory, frames, **keys)
    return Recorded(result, messages, grids[0], sizes, sealed)


def bytes_of(message: Message) -> dict[str, bytes]:
    """Everything in a message as bytes, by record and key."""
    found: dict[str, bytes] = {}
    for name, config in message.content.config_records.items():
        for key, value in config.items():
            for at, each in enumerate(value if isinstance(value, list) else [value]):
                raw = each if isinstance(each, bytes) else repr(each).encode()
                found[f"{name}/{key}/{at}"] = raw
    for name, arrays in message.content.array_records.items():
        for key, array in arrays.items():
            found[f"{name}/{key}"] = array.numpy().tobytes()
    assert not message.content.metric_records
    return found


def numbers_of(message: Message) -> Mapping[str, np.ndarray]:
    """Arrays of a message, by record and key."""
    return {
        f"{name}/{key}": array.numpy()
        for name, arrays in message.content.array_records.items()
        for key, array in arrays.items()
    }
