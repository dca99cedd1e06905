"""Tables of simulated survival data: what :mod:`tasks.survival.generators` draws, with columns."""

from __future__ import annotations

from functools import lru_cache

import pandas as pd

from tasks.survival.generators import Design, generate

TIME, EVENT = "time", "event"


@lru_cache(maxsize=4)
def generated_frame(name: str, design: Design, *, seed: int) -> pd.DataFrame:
    """Rows of a generator: features ``x1``, ``x2``, ..., ``time`` and ``event`` (0 or 1).

    The frame is kept for the next site that asks for its part of it: do not change it.

    Raises
    ------
    ValueError
        If the generator cannot follow the design.
    """
    data = generate(name, design, seed=seed)
    # As many digits each, so that the order of names is the order of columns.
    digits = len(str(design.n_features))
    names = [f"x{number:0{digits}d}" for number in range(1, design.n_features + 1)]
    return pd.DataFrame(data.features, columns=names).assign(
        **{TIME: data.time, EVENT: data.event.astype("int64")}
    )
