"""Rows and columns that a tree is grown on, drawn alike by everybody from the shared seed.

The seed is known to all, so draws hide nothing and amplify no privacy. They are Philox's (Salmon
et al. 2011), a counter-based generator whose numbers are the same everywhere, under a key that is
SHA-256 of what is drawn, seed and tree. Of n things the floor of the share times n are taken, at
least one: those with the smallest numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.buckets import BoolArray
from tasks.vertical_xgboost.candidates import CandidateLayout, IntpArray
from tasks.vertical_xgboost.config import VerticalXGBoostConfig

LEAST_DRAWN = 10
"""Rows of a tree: a split client reads the sum of the gradients of rows that it can name."""


def check_drawn(number: int, *, fraction: float) -> None:
    """Refuse trees of so few rows that sums of gradients tell single labels.

    Everybody knows which rows a tree has, and split clients the sum of their gradients at its
    root; of one row that is its label.

    Parameters
    ----------
    number : int
        Training rows of all parties.
    fraction : float
        ``subsample``.

    Raises
    ------
    SiteFault
        ``"too-few-drawn"``.
    """
    taken = int(drawn("rows", number, fraction=fraction, seed=0, tree=0).sum())
    if fraction < 1.0 and taken < LEAST_DRAWN:
        raise SiteFault(
            "too-few-drawn",
            f"subsample = {fraction:g} of {number} training rows: {taken} rows a tree, whose "
            f"labels sums would tell; allowed are {LEAST_DRAWN} and more, or subsample = 1",
        )


@lru_cache(maxsize=16)
def drawn(
    what: Literal["rows", "columns"], number: int, *, fraction: float, seed: int, tree: int
) -> BoolArray:
    """Which of so many things a tree is grown on; (number,) bool, not to be written to.

    Parameters
    ----------
    what : {"rows", "columns"}
        Training rows of all parties in the order of ids, or columns in canonical order: party by
        party, each in its own order.
    number : int
        How many there are.
    fraction : float
        Share that is taken, above 0 and at most 1.
    seed : int
        Of the run.
    tree : int
        From 0; trees that are grown together are one.
    """
    taken = np.ones(number, dtype=np.bool_)
    if fraction < 1.0 and number:
        text = f"vertical-xgboost, {what}, seed {seed}, tree {tree}\n"
        key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
        words = np.random.Philox(key=key).random_raw(number)
        first = np.argsort(words, kind="stable")
        taken[first[max(1, math.floor(fraction * number)) :]] = False
    taken.flags.writeable = False
    return taken


def features_of_sources(
    ranks: Sequence[Sequence[int] | NDArray[np.integer]],
    *,
    fraction: float,
    seed: int,
    tree: int,
) -> tuple[IntpArray, ...]:
    """Features that a tree may split, of each source in its renumbered order, ascending.

    Parameters
    ----------
    ranks : sequence of (num_features,) integer
        Of each source: place of each renumbered feature among the party's own columns.
    fraction : float
        ``colsample-bytree``.
    seed, tree : int
        As for `drawn`.
    """
    number = sum(map(len, ranks))
    taken = drawn("columns", number, fraction=fraction, seed=seed, tree=tree)
    found, first = [], 0
    for own in ranks:
        places = first + np.asarray(own, dtype=np.intp)
        found.append(np.flatnonzero(taken[places]).astype(np.intp))
        first += len(places)
    return tuple(found)


def candidates_of_features(layout: CandidateLayout, features: IntpArray) -> IntpArray:
    """Numbers of all candidates of some features, ascending."""
    pieces = [np.arange(layout.offsets[at], layout.offsets[at + 1]) for at in features.tolist()]
    return np.concatenate([*pieces, np.empty(0, dtype=np.intp)]).astype(np.intp)


def restricted_order(order: IntpArray, candidates: IntpArray) -> IntpArray:
    """An order of all candidates of a source as one of some, which are counted anew.

    Parameters
    ----------
    order : (all,) intp
        Candidate at each place.
    candidates : (some,) intp
        Ascending numbers.

    Returns
    -------
    (some,) intp
        A permutation of 0 to some - 1; as random as `order` was.
    """
    kept = order[np.isin(order, candidates)]
    return np.searchsorted(candidates, kept).astype(np.intp)


@dataclass(frozen=True, eq=False)
class Sampling:
    """What a party must know to draw as all others do.

    Parameters
    ----------
    seed : int
        Of the run.
    num_rows : int
        Training rows of all parties.
    places : (n,) int32
        Place of each own row among the training rows of all; -1 for an evaluation row.
    ranks : tuple of (num_features,) int32
        As for `features_of_sources`; empty where columns are not sampled.
    trees_before : int
        Trees of the model in front of those that are grown here: numbers count on from them.
    """

    seed: int
    num_rows: int
    places: NDArray[np.int32]
    ranks: tuple[NDArray[np.int32], ...] = ()
    trees_before: int = 0

    def rows(self, tree: int, config: VerticalXGBoostConfig) -> BoolArray:
        """Own training rows that a tree is grown on, (n,) bool."""
        tree += self.trees_before
        taken = drawn("rows", self.num_rows, fraction=config.subsample, seed=self.seed, tree=tree)
        found: BoolArray = np.append(taken, False)[self.places]  # -1 is the place appended
        return found

    def features(
        self, tree: int, layouts: Sequence[CandidateLayout], config: VerticalXGBoostConfig
    ) -> tuple[IntpArray, ...]:
        """Features of each source that a tree may split, ascending."""
        if not config.samples_columns:
            return tuple(np.arange(layout.num_features, dtype=np.intp) for layout in layouts)
        return features_of_sources(
            self.ranks,
            fraction=config.colsample_bytree,
            seed=self.seed,
            tree=self.trees_before + tree,
        )


def training_places(is_evaluation: BoolArray) -> NDArray[np.int32]:
    """Place of each row among the training rows, -1 for an evaluation row; (n,) int32."""
    return np.where(is_evaluation, -1, np.cumsum(~is_evaluation) - 1).astype(np.int32)
