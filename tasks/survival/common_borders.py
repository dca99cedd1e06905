"""Cells of time that all risk groups of a site share, so that its tables cannot be subtracted.

The rows leaving in cells of time have left the site for all rows together (`coarsen`). A table of
the same rows by risk group and cell would tell of single rows beside it, if its cells were chosen
for each group alone.
"""

from __future__ import annotations

import numpy as np

from tasks.survival.risk_sets import FloatArray, IntArray


def common_borders(leaving: FloatArray, fine: IntArray, *, least: int) -> IntArray | None:
    """Borders of cells that all groups share, chosen among those of all rows together.

    From the start on, each border is the first one possible; what is left joins the last cell. In
    every cell

    1. at least `least` rows of every group leave, and
    2. take any set of groups, and the fine cells in which rows of other groups leave, too: none or
       at least `least` rows of the set leave in these.

    **What this ensures.** Add up, with any coefficients, the counts of rows in the fine cells of
    all rows together and in the cells of the groups. If every row of the site is counted 0 or 1
    times by the result, then it counts no row or at least `least` of them. So no difference of
    the two releases, or within one, is a count of a smaller set of rows, or the number of events
    in one. **What it does not:** a number of events has no least value; where a cell has a single
    event, one table says its fine cell and the other its group.

    **Why.** Within one cell the result counts a row of fine cell j and group g ``a_j - c_g`` times.
    (Whole numbers: wherever rows link them, their fractions are equal.) If that is 0 or 1 for
    every row, then the rows counted are, for one t after the other, those in the fine cells with
    ``a_j >= t`` that are not of the groups with ``c_g >= t``; these groups have no rows elsewhere.
    In fine cells without rows of these groups, all rows are counted; in the others, those that
    condition 2 is about. Without it, a fine cell whose rows are all of one group could be
    subtracted from that group's count, and a small sum of hazard ratios tells that they are.

    Parameters
    ----------
    leaving : ndarray, shape (groups, slots)
        Rows of each group leaving in each slot.
    fine : ndarray of int, shape (fine cells + 1,)
        `merged_borders` of all rows.
    least : int
        1 keeps all borders.

    Returns
    -------
    ndarray of int, shape (cells + 1,), or None
        The first of `fine`, some others and its last; None if not even one cell is possible.
    """
    if least <= 1:
        return fine
    rows = np.add.reduceat(leaving, fine[:-1], axis=1)
    of_groups, of_sets = _sums_from_the_start(rows), _sums_from_the_start(_shared(rows))

    def possible(start: int, end: int) -> bool:
        """Whether these fine cells together meet both conditions."""
        own = of_groups[:, end] - of_groups[:, start]
        shared = of_sets[:, end] - of_sets[:, start]
        return bool((own >= least).all() and ((shared == 0) | (shared >= least)).all())

    end = rows.shape[1]
    if not possible(0, end):
        return None
    chosen = [0]
    for border in range(1, end):
        if possible(chosen[-1], border) and possible(border, end):
            chosen.append(border)
    return np.append(fine[chosen], fine[-1])


def _shared(rows: FloatArray) -> FloatArray:
    """Rows of every set of groups in the fine cells that hold other rows, too.

    From shape (groups, fine cells) to (sets, fine cells); the sets but the empty and the full one.
    """
    groups, fine_cells = rows.shape
    members = (np.arange(1, 2**groups - 1)[:, None] >> np.arange(groups) & 1).astype(bool)
    shared = [
        np.where(rows[~inside].any(axis=0), rows[inside].sum(axis=0), 0.0) for inside in members
    ]
    return np.array(shared, dtype=np.float64).reshape(len(members), fine_cells)


def _sums_from_the_start(rows: FloatArray) -> FloatArray:
    """Sums over the fine cells before every border, shape (rows, fine cells + 1)."""
    return np.pad(np.cumsum(rows, axis=1), ((0, 0), (1, 0)))
