"""Reference cases of the ROC-GLM tests, and splits of pooled rows over sites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tasks.roc_glm.rows import RocRows

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "roc_glm_cases.json").read_text()
)["cases"]


def rows_of(scores: NDArray[Any], labels: NDArray[Any]) -> RocRows:
    scores, positive = np.asarray(scores, dtype=np.float64), np.asarray(labels) == 1
    return RocRows(negative=np.sort(scores[~positive]), positive=np.sort(scores[positive]))


def sites_of(scores: NDArray[Any], labels: NDArray[Any], site: NDArray[Any]) -> list[RocRows]:
    """One `RocRows` a site name; sites with one class, or none, included."""
    scores, labels, site = np.asarray(scores), np.asarray(labels), np.asarray(site)
    return [rows_of(scores[site == name], labels[site == name]) for name in np.unique(site)]


@st.composite
def federations(
    draw: st.DrawFn,
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Scores in [0, 1] with ties, labels of both classes (2 rows each), and a site for each row."""
    number = draw(st.integers(4, 60))
    seed = draw(st.integers(0, 2**32 - 1))
    levels = draw(st.sampled_from([2, 5, 11, 1000, 0]))
    generator = np.random.default_rng(seed)
    scores = generator.random(number)
    if levels:
        scores = np.round(scores * (levels - 1)) / (levels - 1)
    labels = (generator.random(number) < 0.3 + 0.4 * scores).astype(np.int64)
    labels[:2], labels[2:4] = 0, 1
    site = generator.integers(0, draw(st.integers(1, 5)), number)
    if draw(st.booleans()):  # sites by class: each has one class only
        site = 2 * site + labels
    return scores, labels, site
