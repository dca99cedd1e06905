"""How a part of a model came about: what other trainings gave, and what leaves have revealed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.privacy import gaussian


@dataclass(frozen=True)
class Releases:
    """Weights of leaves that sources have received under Gaussian noise.

    Parameters
    ----------
    ratio : float
        Distance that one row's label may move a weight, over the noise's standard deviation.
    count : int
        Weights that one row's label may move.
    """

    ratio: float
    count: int


def spent_epsilon(releases: Sequence[Releases], *, delta: float) -> float:
    """Epsilon of all releases together, at one delta.

    Exact: Gaussian releases of the same data are one whose squared ratio is the sum of theirs
    (`tasks.privacy.gaussian`).

    Parameters
    ----------
    releases : sequence of Releases
    delta : float
        In (0, 1).
    """
    ratios = [each.ratio * each.count**0.5 for each in releases]
    return gaussian.composed_epsilon(delta=delta, ratios=ratios)


@dataclass(frozen=True)
class Origin:
    """How a part of a model came about.

    Parameters
    ----------
    trees_before : int
        Trees of the model that the training went on from (``warm-start``).
    releases : tuple of Releases
        Of all trainings, this one's as planned.
    rows : str
        SHA-256 of the party's rows in the training, in hex: an interrupted training goes on with
        the same.
    is_complete : bool
        Whether the training has come to its end.
    """

    trees_before: int = 0
    releases: tuple[Releases, ...] = ()
    rows: str = ""
    is_complete: bool = True
