"""The estimate of the L2 sensitivity from neighbouring rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.roc_glm.sensitivity import (
    SensitivityEstimate,
    estimate_sensitivity,
    histogram_cells,
    pool_sensitivity,
)
from tasks.site.not_estimable import NotEstimable


@settings(deadline=None, max_examples=80)
@given(st.integers(2, 60), st.integers(1, 4), st.integers(2, 30), st.integers(0, 2**32 - 1))
def test_estimate_is_that_of_all_pairs(rows: int, columns: int, breaks: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    features = [generator.random(rows) for _ in range(columns)]
    if columns > 2:
        features[0] = generator.choice(np.array(["a", "b", "c"]), rows)
    scores = generator.random(rows)
    integers = np.concatenate([histogram_cells(f, breaks) for f in features], axis=1)
    distance = np.abs(integers[:, None] - integers[None]).sum(axis=2)
    above = np.triu(np.ones((rows, rows), dtype=bool), 1) & (distance > 0)
    if not above.any():
        with pytest.raises(NotEstimable, match="constant-scores"):
            estimate_sensitivity(features, scores, breaks=breaks)
        return
    closest = distance[above].min()
    i, j = np.nonzero(above & (distance == closest))
    found = estimate_sensitivity(features, scores, breaks=breaks)
    assert found.distance == closest
    assert found.pairs == len(i)
    assert found.sensitivity == pytest.approx(np.abs(scores[i] - scores[j]).max())


def test_linear_model_on_a_grid() -> None:
    x = np.repeat(np.arange(10.0), 10), np.tile(np.arange(10.0), 10)
    found = estimate_sensitivity(x, 0.01 * x[0] + 0.03 * x[1], breaks=10)
    assert found == SensitivityEstimate(pytest.approx(0.03), 1, 180)


def test_more_rows_than_a_block_without_direct_neighbours() -> None:
    x = np.arange(1200.0)
    labels = np.array(["a", "b"])[np.arange(1200) % 2]  # a category changes two columns
    found = estimate_sensitivity([x * 2, labels], np.sqrt(x), breaks=2399)
    assert found.distance == 4  # the rows two further, of the same category
    assert found.sensitivity == pytest.approx(np.sqrt(2))


def test_constant_scores_give_no_estimate() -> None:
    with pytest.raises(NotEstimable, match="constant-scores"):
        estimate_sensitivity([np.arange(9.0)], np.full(9, 0.4), breaks=9)


def test_pooled_estimate_is_the_largest_of_all_sites() -> None:
    pooled = pool_sensitivity(
        [
            SensitivityEstimate(0.1, 1, 4),
            SensitivityEstimate(0.9, 2, 7),
            SensitivityEstimate(0.2, 1, 3),
        ]
    )
    assert pooled == SensitivityEstimate(0.9, 2, 7)
