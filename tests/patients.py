"""Tables of made-up patients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def patients(rows: int, *, seed: int = 0, features: int = 3) -> pd.DataFrame:
    """Return a table with proportional hazards.

    Columns ``time`` (exponential, censored by another exponential), ``event`` (1 or 0) and
    ``x0``, ``x1``, ... (standard normal; log hazard ratio 1 for the first, -.5 for the second).
    """
    rng = np.random.default_rng([31, seed])
    x = rng.normal(size=(rows, features))
    effects = np.array([1.0, -0.5, *[0.0] * features])[:features]
    survival = rng.exponential(10 / np.exp(x @ effects))
    censoring = rng.exponential(20.0, size=rows)
    table = {f"x{column}": x[:, column] for column in range(features)}
    return pd.DataFrame(
        {
            "time": np.minimum(survival, censoring) + 0.01,
            "event": (survival <= censoring).astype(int),
            **table,
        }
    )


def with_cell(frame: pd.DataFrame, column: str, value: Any, *, row: int = 3) -> pd.DataFrame:
    """Return a copy with another value in one cell."""
    changed = frame.copy()
    if isinstance(value, str):
        changed[column] = changed[column].astype(object)
    changed.loc[row, column] = value
    return changed
