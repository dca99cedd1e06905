"""What a subclass of the vertical strategy changes, and what it must not."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedapp import client_app, run_config, simulation, vertical_run
from fedapp.fingerprint import code_fingerprint
from fedapp.run_folder import RunFolder
from fedapp.simulation import InProcessGrid
from strategies import vertical_ending
from strategies.exchange import Exchange, TooFewSites
from strategies.membership import meet_sites
from strategies.vertical_result import GrownTree
from strategies.vertical_set_up import draw_split_clients
from strategies.vertical_xgboost import VerticalXGBoost
from tasks.vertical_xgboost.decide_messages import DECIDE
from tasks.vertical_xgboost.end_messages import FINISH, STOP, FinishRequest, StopRequest
from tasks.vertical_xgboost.gains import BestSplit
from tasks.vertical_xgboost.level_messages import HISTOGRAMS, HistogramsRequest
from tasks.vertical_xgboost.tree import GrowingTree, OwnedSplit
from tests.vertical_frames import cut, random_frame
from tests.vertical_runs import assert_same, central_fit, record, run

SMALL: dict[str, Any] = {"max_depth": 3, "num_trees": 2, "max_bin": 5, "min_child_weight": 0.1}


def frames_of(parties: int = 3) -> list[Any]:
    return cut(random_frame(8, rows=150), parties=parties, labels="even")


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let runs use another strategy."""

    def use(strategy: type[VerticalXGBoost]) -> None:
        monkeypatch.setattr(vertical_run, "VerticalXGBoost", strategy)

    return use


# Split clients ---------------------------------------------------------------------------------


def test_split_clients_are_drawn_among_the_others() -> None:
    names = ("a", "b", "c", "d")
    draws = [draw_split_clients(names) for _ in range(200)]
    for name in names:  # each of the three others, but for a chance of 3 (2/3)**200
        assert {draw[name] for draw in draws} == set(names) - {name}


def test_a_subclass_chooses_split_clients(tmp_path: Path, use: Any) -> None:
    chosen = {"site-0": "site-2", "site-1": "site-2", "site-2": "site-0"}

    class Chosen(VerticalXGBoost):
        def choose_split_clients(self, names: tuple[str, ...]) -> Mapping[str, str]:
            assert names == tuple(chosen)
            return chosen

    use(Chosen)
    recorded = record(tmp_path, frames_of(), **SMALL)
    assert_same(recorded.result, central_fit(frames_of(), **SMALL))
    assert recorded.result.summary["split-clients"] == chosen
    asked = {party: set(request.content) for party, request, _ in recorded.of_type(DECIDE)}
    assert set(asked) == {"site-0", "site-2"}


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (None, "must name one for each of site-0, site-1, site-2"),
        (["site-1", "site-2", "site-0"], "must name one for each of site-0, site-1, site-2"),
        ({"site-0": 1, "site-1": ["site-0"], "site-2": None}, "site-0, site-1, site-2: the split"),
        ({"site-0": "site-1"}, "must name one for each of site-0, site-1, site-2"),
        (dict.fromkeys(["site-0", "site-1", "site-2"], "site-1"), "site-1: the split client must"),
        (dict.fromkeys(["site-0", "site-1", "site-2"], "bank"), "must be another party"),
    ],
)
def test_split_clients_that_are_none(chosen: Any, words: str) -> None:
    class Chosen(VerticalXGBoost):
        def choose_split_clients(self, names: tuple[str, ...]) -> Mapping[str, str]:
            return chosen

    with pytest.raises(ValueError, match=f"choose_split_clients: .*{words}"):
        start(Chosen)


# Nodes and splits ------------------------------------------------------------------------------


class LastFirst(VerticalXGBoost):
    """The open node of the largest number alone: deepest first."""

    def choose_nodes(self, tree: GrowingTree[OwnedSplit]) -> Sequence[int]:
        return tree.open_nodes[-1:]


@pytest.mark.parametrize("keys", [{}, {"aggregator": "source"}, {"encryption": "paillier"}])
def test_the_order_of_nodes_does_not_matter(keys: dict[str, Any], tmp_path: Path, use: Any) -> None:
    use(LastFirst)
    settings = {**SMALL, **keys}
    result = record(tmp_path, frames_of(), **settings).result
    assert result.summary["status"] == "ok", result.summary["reason"]
    central = central_fit(frames_of(), **SMALL)
    assert result.predictions is not None
    margins = central.model.margins(central.joined.features)
    assert np.array_equal([result.predictions["margin"]], margins)
    document = RunFolder.open(result.run_folder).read_json("trees.json")
    assert document is not None
    asked = 0
    for tree, same in zip(document["trees"], central.model.trees, strict=True):
        nodes = {node["id"]: node for node in tree["nodes"]}
        assert sum(node["leaf"] for node in tree["nodes"]) == len(same.weights)
        assert nodes[2]["leaf"] or nodes[2]["left"] == 3  # the right child came first
        depth = {0: 0}
        for at in sorted(nodes):
            if not nodes[at]["leaf"]:
                depth |= dict.fromkeys((nodes[at]["left"], nodes[at]["right"]), depth[at] + 1)
        asked += sum(level < SMALL["max_depth"] for level in depth.values())
    each = 3 if "aggregator" in keys else 2
    assert result.exchanges == 4 + each * asked


def test_pruning_below_a_gain_is_gamma(tmp_path: Path, use: Any) -> None:
    """Leaves that a subclass makes have the weight that all rows give."""

    class Pruning(VerticalXGBoost):
        may_prune = True

        def choose_split(
            self, node: int, splits: Sequence[BestSplit | None]
        ) -> tuple[int, int] | None:
            best = max((split.gain for split in splits if split is not None), default=0.0)
            return super().choose_split(node, splits) if best >= 3.0 else None

    use(Pruning)
    result = run(tmp_path, frames_of(), **SMALL)
    central = central_fit(frames_of(), gamma=3.0, **SMALL)
    assert_same(result, central)
    unpruned = central_fit(frames_of(), **SMALL)
    assert central.model.trees[0].children != unpruned.model.trees[0].children
    assert any(len(tree.children) > 1 for tree in central.model.trees)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (None, r"choose_split: no split of node 0, .* allowed are \[\(\d, \d+\).*may_prune = True"),
        *(
            (wrong, rf"choose_split: {re.escape(repr(wrong))} for node 0; allowed are \[\(\d, \d+")
            for wrong in [(0, 10**6), (0,), [0, 1], 0, "01", (False, True)]
        ),
    ],
)
def test_a_choice_that_nobody_offers(choice: Any, words: str) -> None:
    class Choosing(VerticalXGBoost):
        def choose_split(
            self, node: int, splits: Sequence[BestSplit | None]
        ) -> tuple[int, int] | None:
            return choice

    with pytest.raises(ValueError, match=words):
        start(Choosing)


def test_a_choice_must_be_whole_numbers_not_only_equal_ones() -> None:
    class Choosing(VerticalXGBoost):
        kind: Any = float

        def choose_split(
            self, node: int, splits: Sequence[BestSplit | None]
        ) -> tuple[int, int] | None:
            chosen = super().choose_split(node, splits)
            return None if chosen is None else (self.kind(chosen[0]), self.kind(chosen[1]))

    with pytest.raises(ValueError, match=r"choose_split: \(\d\.0, \d+\.0\) for node 0; allowed"):
        start(Choosing)
    Choosing.kind = np.intp  # as numbers of candidates come
    assert len(start(Choosing).trees) == 3


@pytest.mark.parametrize("may_prune", [2, "yes", None, 0])
def test_may_prune_that_is_no_truth_value(may_prune: Any) -> None:
    class Pruning(VerticalXGBoost): ...

    Pruning.may_prune = may_prune
    with pytest.raises(ValueError, match=f"may_prune = {may_prune!r}: must be True or False"):
        start(Pruning)


@pytest.mark.parametrize(
    "nodes",
    [[], [1], [0, 7], None, 0, "0", [float("nan")], [0.7], [0.0], [False], ["0"], [0, None]],
)
def test_nodes_that_are_not_open(nodes: Any) -> None:
    class Choosing(VerticalXGBoost):
        def choose_nodes(self, tree: GrowingTree[OwnedSplit]) -> Sequence[int]:
            return nodes

    with pytest.raises(ValueError, match=r"choose_nodes: .* some of the open nodes \[0\]"):
        start(Choosing)


def test_one_split_client_weighs_a_leaf_for_all(tmp_path: Path) -> None:
    """That of the parent's source; two weights of one leaf would be two draws of its noise."""
    keys = {**SMALL, "max_depth": 5, "min_child_weight": 2.0}
    recorded = record(tmp_path, frames_of(4), **keys)
    seen = 0
    for number in range(4):
        trees: list[GrowingTree[int]] = []
        told = [
            HistogramsRequest.from_record(request.content).decisions
            for party, request, _ in recorded.of_type(HISTOGRAMS)
            if party == f"site-{number}"
        ]
        told += [
            FinishRequest.from_record(request.content).decisions
            for party, request, _ in recorded.of_type(FINISH)
            if party == f"site-{number}"
        ]
        for decisions in told[1:]:
            if not trees or not trees[-1].open_nodes:
                trees.append(GrowingTree(5, 1))
            tree = trees[-1]
            above = {c: tree.splits[n] for n, pair in tree.children.items() for c in pair}
            for node, decision in zip(tree.open_nodes, decisions, strict=True):
                if decision.is_leaf:
                    assert decision.source == above[node]
                    seen += decision.source > 0
            tree.grow([None if d.is_leaf else d.source for d in decisions])
    assert seen > 4


# Stopping and callbacks ------------------------------------------------------------------------


def test_a_subclass_says_when_to_stop_and_hears_of_every_tree(tmp_path: Path, use: Any) -> None:
    heard: list[int] = []

    class Two(VerticalXGBoost):
        def stop_after(self, grown: GrownTree) -> bool:
            return grown.number == 2

        def after_tree(self, grown: GrownTree) -> None:
            super().after_tree(grown)
            heard.append(grown.number)

    use(Two)
    result = run(tmp_path, frames_of(), **{**SMALL, "num_trees": 9})
    assert heard == [1, 2]
    assert_same(result, central_fit(frames_of(), **{**SMALL, "num_trees": 2}))


def test_a_subclass_may_go_on_where_early_stopping_would_end(tmp_path: Path, use: Any) -> None:
    class Endless(VerticalXGBoost):
        def stop_after(self, grown: GrownTree) -> bool:
            return False

    keys = {**SMALL, "num_trees": 12, "early_stopping_rounds": 1, "eta": 1.0}
    central = central_fit(frames_of(), **keys)
    assert len(central.model.metrics) < 12
    use(Endless)
    result = run(tmp_path, frames_of(), **keys)
    losses = [line["test-loss"] for line in RunFolder.open(result.run_folder).read().rounds]
    assert result.summary["trees"] == 12
    assert result.summary["trees-kept"] == 1 + int(np.argmin(losses))


# start -----------------------------------------------------------------------------------------


def start(
    strategy: type[VerticalXGBoost] = VerticalXGBoost,
    *,
    grid_class: type[InProcessGrid] = InProcessGrid,
    is_met: bool = True,
    **options: Any,
) -> Any:
    """Introduce three parties of the bundled data, and start a strategy."""
    settings = {
        **run_config.defaults(),
        "task": "vertical-xgboost",
        "vertical-xgboost.encryption": "none",
        "vertical-xgboost.num-trees": 3,
        "vertical-xgboost.max-depth": 1,
    }
    config = run_config.read(settings)
    nodes = [{"partition-id": part, "num-partitions": 3} for part in range(3)]
    grid = grid_class(client_app.app, nodes, settings)
    exchange = Exchange.around(grid, timeout=600.0)
    parties = meet_sites(exchange, fingerprint=code_fingerprint(), min_sites=3)
    made = strategy(config=config.vertical_xgboost, parties=parties)
    return made.start(grid=exchange if is_met else grid, **options)


def test_trees_are_at_most_num_rounds() -> None:
    assert len(start().trees) == 3
    assert len(start(num_rounds=2).trees) == 2
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"num_rounds = {wrong}: must be 1 or more trees"):
            start(num_rounds=wrong)


def test_a_grid_that_does_not_know_the_parties() -> None:
    with pytest.raises(ValueError, match="grid: has no node of site-0, site-1, site-2; must be"):
        start(is_met=False)


def test_a_reply_is_late_after_the_timeout() -> None:
    class DeafGrid(InProcessGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            return [
                reply
                for reply in super().pull_messages(message_ids)
                if reply.metadata.message_type != DECIDE
            ]

    with pytest.raises(TooFewSites, match="decide: no usable answer of site-") as ended:
        start(grid_class=DeafGrid, timeout=0.2)
    assert {fault.code for fault in ended.value.faults} == {"late"}


def test_parties_do_not_hear_the_text_of_an_unexpected_error() -> None:
    heard: list[str] = []

    class ListeningGrid(InProcessGrid):
        def _handle(self, message: Message) -> Message:
            if message.metadata.message_type == STOP:
                heard.append(StopRequest.from_record(copy.deepcopy(message).content).reason)
            return super()._handle(message)

    class Failing(VerticalXGBoost):
        def after_tree(self, grown: GrownTree) -> None:
            raise LookupError("the value 123.456")

    with pytest.raises(LookupError):
        start(Failing, grid_class=ListeningGrid)
    assert heard == ["LookupError at the server"] * 3


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_parties_hear_that_the_server_was_interrupted(interruption: type[BaseException]) -> None:
    heard: list[str] = []

    class ListeningGrid(InProcessGrid):
        def _handle(self, message: Message) -> Message:
            if message.metadata.message_type == STOP:
                heard.append(StopRequest.from_record(copy.deepcopy(message).content).reason)
            return super()._handle(message)

    class Interrupted(VerticalXGBoost):
        def after_tree(self, grown: GrownTree) -> None:
            raise interruption("the value 123.456")

    with pytest.raises(interruption):
        start(Interrupted, grid_class=ListeningGrid)
    assert heard == [f"{interruption.__name__} at the server"] * 3


def test_an_interrupted_server_does_not_wait_for_parties_that_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class DeafGrid(InProcessGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            replies = super().pull_messages(message_ids)
            return [reply for reply in replies if reply.metadata.message_type != STOP]

    class Interrupted(VerticalXGBoost):
        def after_tree(self, grown: GrownTree) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(vertical_ending, "INTERRUPTED_SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        start(Interrupted, grid_class=DeafGrid)
    assert time.monotonic() - began < 60.0  # and not the 600 s of the Exchange


def test_nodes_of_a_level_are_checked_at_the_party(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AlteringGrid(InProcessGrid):
        def _handle(self, message: Message) -> Message:
            if message.metadata.message_type == HISTOGRAMS:
                message.content.config_records["histograms"]["nodes"] = [0, 1]
            return super()._handle(message)

    monkeypatch.setattr(simulation, "InProcessGrid", AlteringGrid)
    result = run(tmp_path, frames_of(), **SMALL)
    assert "nodes of a level: must be open ones, ascending" in result.summary["reason"]
