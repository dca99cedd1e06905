"""What the server does at one level of a tree: secret orders, totals, and who wins a node.

It has ciphertexts without the key, gains without sums, and numbers of candidates without features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.vertical_xgboost.buckets import BoolArray
from tasks.vertical_xgboost.candidates import CandidateLayout, IntpArray
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.decide_messages import SealedOffer
from tasks.vertical_xgboost.gains import BestSplit
from tasks.vertical_xgboost.level_messages import (
    HistogramsReply,
    SealedDecision,
)
from tasks.vertical_xgboost.paillier.keys import PublicKey
from tasks.vertical_xgboost.protected_sums import LevelShape, ProtectedSums
from tasks.vertical_xgboost.sampling import (
    candidates_of_features,
    features_of_sources,
    restricted_order,
)
from tasks.vertical_xgboost.secret_order import secret_permutation
from tasks.vertical_xgboost.tree import GrowingTree, OwnedSplit

Offers = Mapping[int, Sequence[SealedOffer]]
"""What split clients offer, by place of the source: one offer a node of the level."""


@dataclass(frozen=True)
class Sources:
    """What the server knows of all parties as sources, in the order of names.

    Attributes
    ----------
    names : tuple of str
    split_clients : tuple of int
        Place of each source's split client.
    layouts : tuple of CandidateLayout
    positions : tuple of (candidates,) intp
        Place of each candidate in the canonical order.
    keys : tuple of PublicKey or None
        Of each party.
    ranks : tuple of (tuple of int)
        Place of each feature in its source's order of columns.
    """

    names: tuple[str, ...]
    split_clients: tuple[int, ...]
    layouts: tuple[CandidateLayout, ...]
    positions: tuple[IntpArray, ...]
    keys: tuple[PublicKey | None, ...]
    ranks: tuple[tuple[int, ...], ...] = ()

    def num_ordered(self, name: str, config: VerticalXGBoostConfig) -> int:
        """Candidates of which a source draws an order for the next level, of whatever tree."""
        layout = self.layouts[self.names.index(name)]
        return layout.num_candidates if config.max_depth else 0

    def candidates_in(
        self, tree: int, config: VerticalXGBoostConfig, *, seed: int
    ) -> tuple[IntpArray, ...]:
        """Numbers of each source's candidates in a tree, ascending; none where it has no splits.

        Parameters
        ----------
        tree : int
            From 0.
        config : VerticalXGBoostConfig
        seed : int
            Of the run.
        """
        if not config.max_depth:
            return tuple(np.empty(0, dtype=np.intp) for _ in self.layouts)
        if not config.samples_columns:
            return tuple(np.arange(la.num_candidates, dtype=np.intp) for la in self.layouts)
        features = features_of_sources(
            self.ranks, fraction=config.colsample_bytree, seed=seed, tree=tree
        )
        pairs = zip(self.layouts, features, strict=True)
        return tuple(candidates_of_features(layout, own) for layout, own in pairs)


@dataclass(frozen=True, eq=False)
class Totals:
    """What split clients decrypt, by source.

    Attributes
    ----------
    sums : mapping of int to bytes
    refused : mapping of int to (1 + candidates, nodes) bool
        In the level's order; absent where nothing can be refused.
    """

    sums: Mapping[int, bytes]
    refused: Mapping[int, BoolArray]


class Level:
    """One level of a tree at the server.

    Parameters
    ----------
    sources : Sources
    tree, level : int
        From 0.
    nodes : sequence of int
        Numbers of the nodes that are decided together.
    are_last : sequence of bool
        Whether the children of each are leaves in any case.
    candidates : sequence of (candidates,) intp
        Numbers of each source's candidates in the tree, ascending.
    shuffle : bool
        Each source's candidates are in a secret order.
    orders : sequence of (all candidates,) intp, optional
        Those orders, of all candidates of each source; drawn afresh if not given.
    """

    def __init__(
        self,
        sources: Sources,
        *,
        tree: int,
        level: int,
        nodes: Sequence[int],
        are_last: Sequence[bool],
        candidates: Sequence[IntpArray],
        shuffle: bool,
        orders: Sequence[IntpArray] | None = None,
    ) -> None:
        self.sources = sources
        self.tree = tree
        self.level = level
        self.nodes = tuple(nodes)
        self.are_last = tuple(are_last)
        self.candidates = list(candidates)
        counts = list(map(len, self.candidates))
        self.shapes = [LevelShape(count, len(self.nodes)) for count in counts]
        self.shuffle = shuffle
        self.orders = [
            secret_permutation(count) if shuffle else np.arange(count, dtype=np.intp)
            for count in counts
        ]
        if orders:
            pairs = zip(orders, self.candidates, strict=True)
            self.orders = [restricted_order(order, numbers) for order, numbers in pairs]

    def numbers(self, source: int) -> IntpArray:
        """Number of the candidate of a source at each place of the level's order."""
        return self.candidates[source][self.orders[source]]

    @property
    def shapes_by_name(self) -> dict[str, tuple[int, int]]:
        """(1 + candidates, nodes) of each source."""
        shapes = zip(self.sources.names, self.shapes, strict=True)
        return {name: shape.sums[:2] for name, shape in shapes}

    def orders_for(self, receiver: int) -> dict[str, IntpArray]:
        """Orders that a party is told: not of sources that it decrypts for."""
        if not self.shuffle:
            return {}
        return {
            name: self.orders[source]
            for source, name in enumerate(self.sources.names)
            if self.sources.split_clients[source] != receiver
        }

    def refused(self, replies: Mapping[str, HistogramsReply]) -> dict[int, BoolArray]:
        """Candidates that some owner refuses, in the level's order, by source."""
        found: dict[int, BoolArray] = {}
        for source, name in enumerate(self.sources.names):
            for owner, reply in zip(self.sources.names, replies.values(), strict=True):
                mask = reply.refused.get(name)
                if mask is None:
                    continue
                if self._is_single(source, owner):
                    mask = np.concatenate([mask[:1], mask[1:][self.orders[source]]])
                found[source] = found[source] | mask if source in found else mask
        return found

    def totals(
        self,
        replies: Mapping[str, HistogramsReply],
        sums: ProtectedSums,
        refused: Mapping[int, BoolArray],
    ) -> dict[int, bytes]:
        """Add up the owners' sums for each source, without reading them."""
        sources = self.sources
        totals = {}
        for source, name in enumerate(sources.names):
            split_client = sources.split_clients[source]
            totals[source] = sums.total(
                {at: reply.shares[name] for at, reply in enumerate(replies.values())},
                self.shapes[source],
                names=sources.names,
                key=sources.keys[split_client],
                single=split_client if self.shuffle else None,
                order=self.orders[source],
                refused=refused.get(source),
            )
        return totals

    def num_of_shares(self, sums: ProtectedSums) -> int:
        """How many ciphertexts all owners send."""
        return sum(
            sums.count(shape, single=self._is_single(source, owner))
            for source, shape in enumerate(self.shapes)
            for owner in self.sources.names
        )

    def num_of_totals(self, sums: ProtectedSums) -> int:
        """How many ciphertexts all sources send where they add up."""
        return sum(sums.count(shape, single=False) for shape in self.shapes)

    def best_splits(self, offers: Offers) -> list[list[BestSplit | None]]:
        """Best split of each node by each source, with candidates under their own numbers."""
        found: list[list[BestSplit | None]] = [[] for _ in self.nodes]
        for source in range(len(self.sources.names)):
            order = self.numbers(source)
            for node, offer in enumerate(offers[source]):
                split = None
                if len(offer.places):
                    split = BestSplit(offer.gain, np.sort(order[offer.places]))
                found[node].append(split)
        return found

    def split(
        self,
        chosen: tuple[int, int],
        offers: Offers,
        *,
        node: int,
        receiver: str,
    ) -> SealedDecision:
        """What a party is told of a node that is split.

        Parameters
        ----------
        chosen : (int, int)
            Source and number of the candidate.
        offers : mapping of source to offers
        node : int
            Place of the node among the open ones.
        receiver : str
        """
        source, number = chosen
        offer = offers[source][node]
        place = int(np.flatnonzero(self.numbers(source) == number)[0])
        at = int(np.flatnonzero(offer.places == place)[0])
        weights = offer.sealed[at][receiver] if offer.sealed else b""
        return SealedDecision(source, number, place, weights)

    def leaf(self, offers: Offers, *, source: int, node: int, receiver: str) -> SealedDecision:
        """What a party is told of a node that becomes a leaf, by a source's split client."""
        leaf = offers[source][node].leaf
        assert leaf is not None, "no weight was asked for"
        return SealedDecision(source, -1, -1, leaf[receiver])

    def _is_single(self, source: int, owner: str) -> bool:
        sources = self.sources
        return self.shuffle and sources.names[sources.split_clients[source]] == owner


def source_above(tree: GrowingTree[OwnedSplit], node: int, names: Sequence[str]) -> int:
    """Source whose split client's weight of a leaf holds: that of the parent's split.

    At the root the first party. One rule for all leaves: of two weights with noise of their own,
    one would say more of the sums than either.
    """
    for parent, children in tree.children.items():
        if node in children:
            return names.index(tree.splits[parent].source)
    return 0
