"""Partial differential privacy (PIVODL paper, Algorithm 4): noise for the source of a split alone.

A source knows all rows of a leaf below its own split, as far as the splits above are its own too,
so the leaf's weight tells it about labels of others. The split client clips the weight to [-C, C]
(Eq. 9) and adds Gaussian noise before it seals it for that source. Everybody else gets the weight
as it is, neither clipped nor noised, and predictions of the finished model use that one.

In training a source predicts its own rows with the noisy weights: it has no others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tasks.privacy import gaussian
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.fixed_point import FloatArray
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.origin import Releases

NEIGHBOURS = (
    "one row's label is another one; rows, columns, base score and splits are the same, the exact "
    "leaves of other sources too"
)
"""What the guarantee compares."""

NOT_COVERED = (
    "weights of leaves below splits of others, which a source gets as they are; nodes that became "
    "leaves above the last level, whose sums split clients decrypt; leaves that a candidate of "
    "another makes too, for which the source decrypts; the splits and the base score "
    "themselves; losses; predictions and exports of the finished model, which have exact leaves; a "
    "source that allies with any other party"
)
"""What the guarantee does not speak of."""


@dataclass(frozen=True)
class LeafNoise:
    """How weights are released to the source of the split above.

    Parameters
    ----------
    epsilon, delta : float
        Of all weights that one source receives in a training, together.
    clip : float
        C: weights are clipped to [-C, C]; in the unit of margins, not yet times eta.
    sensitivity : float
        By how much one row may move a clipped weight: 2C, or C as the paper has it.
    releases : int
        Weights that one row may move, at most: see `most_releases`.
    """

    epsilon: float
    delta: float
    clip: float
    sensitivity: float
    releases: int

    @classmethod
    def of(cls, config: VerticalXGBoostConfig) -> LeafNoise | None:
        """What a configuration asks for; None where partial differential privacy is off."""
        if not config.dp_epsilon:
            return None
        as_paper, num_roots = config.sensitivity == "paper", objective_of(config).num_roots
        return cls(
            epsilon=config.dp_epsilon,
            delta=config.dp_delta,
            clip=config.dp_clip,
            sensitivity=config.dp_clip * (1.0 if as_paper else 2.0),
            releases=config.num_trees * num_roots if as_paper else planned_releases(config),
        )

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise of a weight, by the analytic Gaussian mechanism."""
        return gaussian.sigma(
            epsilon=self.epsilon,
            delta=self.delta,
            sensitivity=self.sensitivity,
            releases=self.releases,
        )

    def spent(self, count: int) -> Releases:
        """What so many weights tell that one row's label may move, whatever was calibrated for."""
        return Releases(2.0 * self.clip / self.sigma, count)

    def release(
        self, weights: Sequence[float], *, generator: np.random.Generator | None = None
    ) -> FloatArray:
        """Weights of leaves as the source of the split above gets them.

        Parameters
        ----------
        weights : (k,) float
        generator : numpy.random.Generator, optional
            For simulations; without it the noise is the operating system's.
        """
        clipped = np.clip(np.asarray(weights, dtype=np.float64), -self.clip, self.clip)
        return gaussian.add_noise(clipped, self.sigma, generator=generator)


def most_releases(*, num_trees: int, max_depth: int, num_roots: int, goes_on: bool = False) -> int:
    """Weights sent to one source that one row's label may move, at most.

    With one margin a row: in the first tree one leaf, that of the row. In later trees every leaf,
    since the first tree's exact weight has moved the margins, hence gradients, of all rows that
    were in the row's leaf.

    With a margin for each of k classes a round has k trees. In the first one margins, so all
    probabilities and Hessians, are what they were. Of the row's gradients p_c - 1{y = c} two are
    others: that of the class it had and that of the class it has. They are in one leaf each, of two
    trees. Both leaves move margins of their class, and the softmax hands that on: for rows of
    either leaf the probabilities of all classes are others, so in later rounds every leaf of all k
    trees may be. Each weight is clipped to [-C, C] and moves by 2C at most.

    Parameters
    ----------
    num_trees : int
        Rounds.
    max_depth : int
    num_roots : int
        Trees a round.
    goes_on : bool
        Trees of an earlier model come first: its rows may have been the same, and no tree is first.

    Returns
    -------
    int
        min(k, 2) + (rounds - 1) k 2^depth; where it goes on rounds k 2^depth.
    """
    if goes_on:
        return num_trees * num_roots * (1 << max_depth)
    return min(num_roots, 2) + (num_trees - 1) * num_roots * (1 << max_depth)


def planned_releases(config: VerticalXGBoostConfig) -> int:
    """`most_releases` of a training."""
    return most_releases(
        num_trees=config.num_trees,
        max_depth=config.max_depth,
        num_roots=objective_of(config).num_roots,
        goes_on=bool(config.warm_start),
    )


def spent_releases(
    config: VerticalXGBoostConfig, earlier: Sequence[Releases] = ()
) -> tuple[Releases, ...]:
    """Noisy weights that a source has received at the end of a training, of earlier ones too.

    Parameters
    ----------
    config : VerticalXGBoostConfig
    earlier : sequence of Releases
        Of the trainings that it goes on from.
    """
    noise = LeafNoise.of(config)
    own = () if noise is None else (noise.spent(planned_releases(config)),)
    return (*earlier, *own)


class NoisyWeights:
    """Noise of the weights that a split client offers for one node: one draw a pair of leaves.

    Candidates that tie cut a node into the same two leaves, perhaps with sides exchanged. Of each
    such pair there is one noisy version, so that nobody who sees more than one averages noise away.

    Parameters
    ----------
    noise : LeafNoise
    generator : numpy.random.Generator or None
    """

    def __init__(self, noise: LeafNoise, generator: np.random.Generator | None = None) -> None:
        self._noise = noise
        self._generator = generator
        self._drawn: dict[tuple[float, ...], dict[float, float]] = {}

    def of(self, weights: Sequence[float]) -> tuple[float, ...]:
        """Noisy version of a leaf's weight, or of the two of a split; the same when asked again."""
        key = tuple(sorted(weights))
        if len(set(key)) < len(key):  # equal weights of two leaves must not share their noise
            return tuple(self._noise.release(weights, generator=self._generator).tolist())
        if key not in self._drawn:
            noisy = self._noise.release(key, generator=self._generator).tolist()
            self._drawn[key] = dict(zip(key, noisy, strict=True))
        return tuple(self._drawn[key][weight] for weight in weights)


def noisy_weights(
    config: VerticalXGBoostConfig,
    *,
    seed: int | None,
    tree: int,
    level: int,
    source: int,
    num_nodes: int,
) -> list[NoisyWeights]:
    """Noise of a split client's offers on one source at one level.

    Parameters
    ----------
    config : VerticalXGBoostConfig
    seed : int or None
        Of a simulation's noise, which differs between levels and sources, and is the same whoever
        decrypts; None: the operating system's generator.
    tree, level, source : int
        The tree's number counts on from those of an earlier model.
    num_nodes : int

    Returns
    -------
    list of NoisyWeights
        One a node; empty where partial differential privacy is off.
    """
    noise, generator = LeafNoise.of(config), None
    if noise is None:
        return []
    if seed is not None:
        text = f"leaf noise\n{seed}\n{tree}\n{level}\n{source}"
        digest = hashlib.sha256(text.encode()).digest()
        generator = np.random.default_rng(int.from_bytes(digest, "big"))
    return [NoisyWeights(noise, generator) for _ in range(num_nodes)]


def check_budget(config: VerticalXGBoostConfig, *, tree: int) -> None:
    """Refuse a tree for which no noise was planned.

    Raises
    ------
    SiteFault
        ``"bad-request"``.
    """
    if config.dp_epsilon and tree >= config.num_trees:
        raise SiteFault(
            "bad-request",
            f"tree {tree + 1}: dp-epsilon = {config.dp_epsilon} is for num-trees = "
            f"{config.num_trees}",
        )


# Whose noise it is -----------------------------------------------------------------------------


class Sourced(Protocol):
    """A split whose source is known by place."""

    @property
    def source(self) -> int:
        """Place of the source."""


def sources_above(
    splits: Mapping[int, Sourced], children: Mapping[int, tuple[int, int]]
) -> dict[int, int]:
    """Source of the split above each node but roots.

    Parameters
    ----------
    splits : mapping of int to split
    children : mapping of int to (int, int)
        Of each split.

    Returns
    -------
    dict of int to int
        Node to place.
    """
    return {child: splits[node].source for node, pair in children.items() for child in pair}
