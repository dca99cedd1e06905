"""Privacy level q (principle A1): what may leave a site as an aggregate, and what may not.

An aggregate may leave a site only if at least q values of its class at that site stand behind it;
no row of a class is no disclosure and passes. Nothing here reveals by how much a site fails.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tasks.roc_glm.counts import ClassCounts
from tasks.roc_glm.rows import RocRows
from tasks.roc_glm.survivor import FloatArray

BoolArray = NDArray[np.bool_]


def class_shortfalls(rows: RocRows, privacy_level: int) -> list[str]:
    """Rules of A1 that a site fails, before anything is sent.

    Parameters
    ----------
    rows : RocRows
    privacy_level : int
        q, at least 1.

    Returns
    -------
    list of str
        One line a class: rule and count needed, not the count found. Empty: the site passes.
    """
    return [
        f"privacy-level = {privacy_level}: the {name} class needs at least {privacy_level} rows, "
        "or none"
        for name, number in (("positive", rows.num_positive), ("negative", rows.num_negative))
        if 0 < number < privacy_level
    ]


def keepable_cuts(counts: ClassCounts, privacy_level: int) -> BoolArray:
    """Cut points that a site may keep under `privacy-level-of = "cell"`.

    The cells are split in halves from the top as long as every class has 0 or at least q rows in
    both halves. Sites split the same tree, so what all of them keep (`common_cuts`) is as fine as
    the coarsest site and not empty because their cells happen to end at different places; and
    joining cells of 0 or at least q rows gives such cells again.

    Parameters
    ----------
    counts : ClassCounts
        Of M cells at the public cut points.
    privacy_level : int
        q.

    Returns
    -------
    (M - 1,) bool
        Of these bits a site sends nothing but this vector.
    """
    cells = np.stack([counts.negative, counts.positive])
    below = np.concatenate([np.zeros((2, 1), dtype=np.int64), np.cumsum(cells, axis=1)], axis=1)
    kept = np.zeros(cells.shape[1] - 1, dtype=bool)

    def split(first: int, end: int) -> None:
        if end - first < 2:
            return
        middle = (first + end) // 2
        halves = np.stack([below[:, middle] - below[:, first], below[:, end] - below[:, middle]])
        if ((halves > 0) & (halves < privacy_level)).any():
            return
        kept[middle - 1] = True
        split(first, middle)
        split(middle, end)

    split(0, cells.shape[1])
    return kept


def common_cuts(cuts: FloatArray, kept: Sequence[BoolArray]) -> FloatArray:
    """Cut points that every site keeps; (M' - 1,) of the (M - 1,) given, perhaps none."""
    return cuts[np.logical_and.reduce(np.stack(list(kept)), axis=0)]


def cell_shortfalls(counts: ClassCounts, privacy_level: int) -> list[str]:
    """Rule of A1 that the cells of a site fail (after merging: with fixed cut points); see above.

    Parameters
    ----------
    counts : ClassCounts
    privacy_level : int
    """
    return [
        f"privacy-level-of = 'cell', privacy-level = {privacy_level}: every cell of the {name} "
        f"class needs at least {privacy_level} rows, or none"
        for name, cells in (("positive", counts.positive), ("negative", counts.negative))
        if ((cells > 0) & (cells < privacy_level)).any()
    ]
