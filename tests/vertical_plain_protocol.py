"""The protocol played by n parties with plain whole numbers, and data to play it with.

Each party is given only what the protocol gives it: a label owner the buckets of its own rows on
renumbered features, a split client sums in a secret order, the server winners and shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from tasks.vertical_xgboost.buckets import bucket_columns
from tasks.vertical_xgboost.candidates import Candidate, CandidateLayout, bucket_left
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.early_stopping import EarlyStopping
from tasks.vertical_xgboost.gains import BestSplit, SplitRule, best_splits, winner
from tasks.vertical_xgboost.histograms import (
    candidate_sums,
    node_slots,
    node_sums,
    refused_candidates,
)
from tasks.vertical_xgboost.joined import join
from tasks.vertical_xgboost.leaves import add_leaves, child_weights, leaf_weights
from tasks.vertical_xgboost.objectives import base_score_of, label_scale, objective_of
from tasks.vertical_xgboost.rows import PartyTable, read_table
from tasks.vertical_xgboost.tree import (
    GrowingTree,
    LookupTable,
    OwnedSplit,
    OwnedTree,
    Record,
    move_down,
)

Winner = tuple[int, Candidate, int]  # source, candidate in its numbering, record id


def config_of(**keys: Any) -> VerticalXGBoostConfig:
    """A configuration from Python names; XGBoost's defaults else."""
    return VerticalXGBoostConfig(**keys)


def random_frame(
    seed: int, *, rows: int = 300, objective: str = "binary:logistic", missing: float = 0.1
) -> pd.DataFrame:
    """Columns of all kinds: real, few-valued, missing values that matter, constant, equal."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 4))
    frame = pd.DataFrame(x, columns=list("abcd"))
    frame["few"] = random.integers(0, 4, size=rows)
    frame["constant"] = 3.0
    frame["equal"] = frame["a"]
    frame["mirrored"] = -frame["b"]
    signal = x[:, 0] * 1.5 - x[:, 1] ** 2 + frame["few"].to_numpy() * 0.7 + x[:, 2] * x[:, 3]
    for name in ("b", "c"):
        gone = random.random(rows) < missing
        signal = signal + 0.8 * gone
        frame.loc[gone, name] = np.nan
    noise = random.normal(size=rows)
    if objective == "binary:logistic":
        frame["label"] = (signal + noise > np.median(signal)).astype(int)
    else:
        frame["label"] = 20.0 * (signal + noise)
    frame.insert(0, "id", random.permutation(rows) + 1000)
    return frame


def cut(
    frame: pd.DataFrame, *, parties: int, labels: str, seed: int = 0, interleaved: bool = False
) -> list[pd.DataFrame]:
    """Cut columns and labels over parties; rows in an order of each party's own.

    Parameters
    ----------
    labels : {"even", "skewed", "one"}
    interleaved : bool
        Deal columns in turn instead of in blocks.
    """
    random = np.random.default_rng(seed)
    columns = [name for name in frame.columns if name not in ("id", "label")]
    place = np.arange(len(columns)) * parties // len(columns)
    if interleaved:
        place = np.arange(len(columns)) % parties
    if labels == "even":
        owner = random.integers(0, parties, size=len(frame))
    elif labels == "skewed":
        owner = np.where(
            random.random(len(frame)) < 0.9, 0, random.integers(0, parties, len(frame))
        )
    else:
        owner = np.full(len(frame), parties - 1)
    cuts = []
    for party in range(parties):
        own = [name for name, at in zip(columns, place, strict=True) if at == party]
        part = frame[["id", *own]].copy()
        if (owner == party).any():
            part["label"] = frame["label"].astype(float).where(owner == party)
        cuts.append(part.sample(frac=1, random_state=party + seed).reset_index(drop=True))
    return cuts


def tables_of(
    frames: Sequence[pd.DataFrame], config: VerticalXGBoostConfig, *, seed: int = 0
) -> dict[str, PartyTable]:
    """Read each party's frame."""
    return {
        f"party-{at}": read_table(
            frame, id_column="id", label_column="label", config=config, seed=seed
        )
        for at, frame in enumerate(frames)
    }


@dataclass
class Party:
    """One party: source of its columns, owner of its labels, split client of some source."""

    table: PartyTable
    config: VerticalXGBoostConfig
    random: np.random.Generator
    lookup: LookupTable = field(default_factory=LookupTable)

    def __post_init__(self) -> None:
        training = ~self.table.is_evaluation
        buckets, bucket_map = bucket_columns(
            self.table.features, training, max_bin=self.config.max_bin
        )
        # Renumbered and shuffled: column[f] is the party's own column behind anonymous feature f.
        self.column = self.random.permutation(len(buckets))
        self.buckets = [buckets[at] for at in self.column]
        self.bucket_map = bucket_map[self.column]
        self.layout = CandidateLayout.of(self.buckets)
        self.owned = np.flatnonzero(self.table.owns)
        self.labels = self.table.labels[self.owned]
        self.training = training[self.owned]
        self.objective = objective_of(self.config)

    def receive(self, parties: Sequence[Party]) -> None:
        """The bucket maps of all sources, for own rows only."""
        self.maps = [source.bucket_map[:, self.owned] for source in parties]
        self.layouts = [source.layout for source in parties]

    def start(self, base_margin: float, scales: Any) -> None:
        self.margins = np.full(len(self.owned), base_margin)
        self.scales = scales

    def begin_tree(self) -> None:
        self.tree: GrowingTree[Winner] = GrowingTree(self.config.max_depth)
        self.nodes = np.zeros(len(self.owned), dtype=np.int32)
        self.values = self.scales.encode(*self.objective.gradients(self.margins, self.labels))

    def hear(self, winners: list[Winner | None]) -> None:
        level = self.tree.open_nodes
        self.tree.grow(winners)
        for node in level:
            if node in self.tree.splits:
                source, candidate, _ = self.tree.splits[node]
                left = bucket_left(self.maps[source], self.layouts[source], candidate)
                move_down(self.nodes, node, self.tree.children[node], left)

    def sums(self, source: int, order: np.ndarray, nodes: list[int]) -> tuple[Any, Any, Any]:
        slots = node_slots(self.nodes, nodes, self.training)
        common = (self.maps[source], self.layouts[source])
        left = candidate_sums(*common, self.values, slots, num_nodes=len(nodes))
        refused = refused_candidates(
            *common, slots, num_nodes=len(nodes), min_instances=self.config.min_instances
        )
        total = node_sums(self.values, slots, num_nodes=len(nodes))
        return left[:, order], total, refused[:, order]

    def losses(self, training: bool) -> tuple[int, int, int]:
        rows = self.training == training
        scale = self.objective.loss_scale(self.scales)
        margins, labels = self.margins[rows], self.labels[rows]
        loss = int(scale.encode(self.objective.losses(margins, labels)).sum())
        return loss, self.objective.hits(margins, labels), int(rows.sum())


@dataclass(frozen=True)
class PlainModel:
    """What the protocol leaves, put together."""

    base_score: float
    base_margin: float
    trees: list[OwnedTree]
    weights: list[dict[int, float]]
    lookups: dict[str, LookupTable]
    metrics: list[tuple[Any, Any]]


def play(tables: dict[str, PartyTable], config: VerticalXGBoostConfig, *, seed: int) -> PlainModel:
    """Play a whole training with plain whole numbers."""
    random = np.random.default_rng(seed)
    names = list(tables)
    parties = [Party(table, config, random) for table in tables.values()]
    for party in parties:
        party.receive(parties)
    objective = objective_of(config)
    base_score, base_margin, scales = _start(parties, config)
    for party in parties:
        party.start(base_margin, scales)
    rule = SplitRule.of(config, scales)
    stopping = EarlyStopping(config.early_stopping_rounds)
    trees, weights, metrics = [], [], []
    for _ in range(config.num_trees):
        tree, leaves = _grow(parties, names, rule, random)
        trees.append(tree)
        weights.append(leaves)
        for party in parties:
            add_leaves(party.margins, party.nodes, leaves, eta=config.eta)
        scale = objective.loss_scale(scales)
        found = []
        for training in (True, False):
            loss, hits, rows = np.sum([party.losses(training) for party in parties], axis=0)
            found.append(
                objective.metrics(int(loss), int(hits), int(rows), scale) if rows else None
            )
        metrics.append((found[0], found[1]))
        if stopping.update(int(loss)):
            break
    kept = stopping.trees_to_keep
    lookups = {name: party.lookup for name, party in zip(names, parties, strict=True)}
    return PlainModel(base_score, base_margin, trees[:kept], weights[:kept], lookups, metrics)


def _start(parties: list[Party], config: VerticalXGBoostConfig) -> tuple[float, float, Any]:
    objective, bound = objective_of(config), config.label_bound
    told = [objective.label_exponent(p.labels, label_bound=bound) for p in parties]
    scale = label_scale(told, config)
    label_sum = sum(int(scale.encode(p.labels[p.training]).sum()) for p in parties)
    num_training = sum(int(p.training.sum()) for p in parties)
    base_score = base_score_of(label_sum, num_training, scale, config)
    base_margin = objective.base_margin(base_score)
    exponents = [
        objective.gradient_exponent(p.labels, base_margin=base_margin, label_bound=bound)
        for p in parties
    ]
    scales = objective.gradient_scales(exponents, bits=config.fixed_point_bits)
    return base_score, base_margin, scales


def _grow(
    parties: list[Party], names: list[str], rule: SplitRule, random: np.random.Generator
) -> tuple[OwnedTree, dict[int, float]]:
    for party in parties:
        party.begin_tree()
    server: GrowingTree[OwnedSplit] = GrowingTree(parties[0].config.max_depth)
    weights: dict[int, float] = {}
    while server.open_nodes or (server.num_nodes == 1 and not weights):
        nodes = server.open_nodes or [0]
        is_last = server.is_last_level
        # Split clients: what each source's one decrypts, in that source's order of this level.
        orders = [random.permutation(p.layout.num_candidates) for p in parties]
        best: list[list[BestSplit | None]] = []
        pairs, leaf = [], []
        for source, order in enumerate(orders):
            shares = [party.sums(source, order, nodes) for party in parties]
            left = sum(share[0] for share in shares)
            total = sum(share[1] for share in shares)
            refused = np.logical_or.reduce([share[2] for share in shares])
            best.append(best_splits(left, total, rule, refused=refused))
            pairs.append(child_weights(left, total[:, np.newaxis], rule))
            leaf.append(leaf_weights(total, rule))
        assert all(np.array_equal(leaf[0], other) for other in leaf)
        if not server.open_nodes:  # depth 0: only the full sum of the root
            weights[0] = float(leaf[0][0])
            break
        # Server: undo the orders, decide, and let the sources enter the winners.
        winners: list[Winner | None] = []
        for at, node in enumerate(nodes):
            unshuffled = [
                None if split is None else BestSplit(split.gain, order[split.records])
                for split, order in zip((b[at] for b in best), orders, strict=True)
            ]
            found = winner(unshuffled, [_positions(party) for party in parties])
            if found is None:
                weights[node] = float(leaf[0][at])
                winners.append(None)
                continue
            source, number = found
            owner = parties[source]
            candidate = owner.layout.candidate(number)
            record = Record.of(
                candidate,
                owner.buckets[candidate.feature],
                column=int(owner.column[candidate.feature]),
            )
            winners.append((source, candidate, owner.lookup.enter(record)))
            if is_last:
                place = int(np.flatnonzero(orders[source] == number)[0])
                first = server.num_nodes + 2 * sum(w is not None for w in winners[:-1])
                for child, weight in enumerate(pairs[source][at, place].tolist()):
                    weights[first + child] = weight
        server.grow([w and OwnedSplit(names[w[0]], w[2]) for w in winners])
        for party in parties:
            party.hear(winners)
    return OwnedTree(server.splits, server.children), weights


def _positions(party: Party) -> np.ndarray:
    return party.layout.canonical_positions([int(at) for at in party.column])


def joined(frames: Sequence[pd.DataFrame], config: VerticalXGBoostConfig) -> Any:
    """The joined table of frames."""
    return join(tables_of(frames, config))
