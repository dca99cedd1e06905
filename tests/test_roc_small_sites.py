"""Privacy level: what passes, what is refused, and that the number found is not told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tasks.roc_glm.counts import ClassCounts, count_in_cells, equal_cuts
from tasks.roc_glm.small_sites import (
    cell_shortfalls,
    class_shortfalls,
    common_cuts,
    keepable_cuts,
)
from tests.roc_glm_reference import federations, rows_of, sites_of


def test_forty_negatives_and_two_positives() -> None:
    rows = rows_of(np.linspace(0, 1, 42), np.arange(42) >= 40)
    found = class_shortfalls(rows, 5)
    assert found == ["privacy-level = 5: the positive class needs at least 5 rows, or none"]
    assert class_shortfalls(rows, 2) == []


@pytest.mark.parametrize(("negative", "positive", "faults"), [(0, 9, 0), (9, 0, 0), (4, 4, 2)])
def test_a_class_without_rows_passes(negative: int, positive: int, faults: int) -> None:
    labels = np.repeat([0, 1], [negative, positive])
    assert len(class_shortfalls(rows_of(np.zeros(len(labels)), labels), 5)) == faults


@settings(deadline=None, max_examples=150)
@given(federations())
def test_merged_cells_hold_the_level_at_every_site(federation: Any) -> None:
    scores, labels, site = federation
    cuts, level = equal_cuts(16), 3
    sites = [rows for rows in sites_of(scores, labels, site) if not class_shortfalls(rows, level)]
    if not sites:
        return
    kept = [keepable_cuts(count_in_cells(rows, cuts), level) for rows in sites]
    common = common_cuts(cuts, kept)
    for rows in sites:
        assert cell_shortfalls(count_in_cells(rows, common), level) == []


def test_cells_are_as_fine_as_the_rows_allow() -> None:
    counts = ClassCounts(np.full(16, 10), np.full(16, 10))
    assert keepable_cuts(counts, 5).all()
    assert keepable_cuts(counts, 10).all()
    assert keepable_cuts(counts, 11).tolist() == [j % 2 == 1 for j in range(15)]
    assert not keepable_cuts(counts, 1000).any()


def test_empty_cells_do_not_force_a_merge() -> None:
    counts = ClassCounts(np.array([0, 0, 0, 9]), np.array([9, 0, 0, 0]))
    assert keepable_cuts(counts, 5).all()


def test_a_fixed_cell_that_is_too_small_is_named_by_class() -> None:
    counts = ClassCounts(np.array([7, 2, 0]), np.array([6, 6, 6]))
    assert cell_shortfalls(counts, 5) == [
        "privacy-level-of = 'cell', privacy-level = 5: every cell of the negative class needs at "
        "least 5 rows, or none"
    ]
