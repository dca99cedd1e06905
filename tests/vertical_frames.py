"""Frames for tests of the vertical task: columns of all kinds, and their cut over parties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.joined import join
from tasks.vertical_xgboost.rows import PartyTable, read_table


def config_of(**keys: Any) -> VerticalXGBoostConfig:
    """A configuration from Python names; XGBoost's defaults else."""
    return VerticalXGBoostConfig(**keys)


def random_frame(
    seed: int, *, rows: int = 300, objective: str = "binary:logistic", missing: float = 0.1
) -> pd.DataFrame:
    """Columns of all kinds: real, few-valued, missing values that matter, constant, equal."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 4))
    frame = pd.DataFrame(x, columns=list("abcd"))
    frame["few"] = random.integers(0, 4, size=rows)
    frame["constant"] = 3.0
    frame["equal"] = frame["a"]
    frame["mirrored"] = -frame["b"]
    signal = x[:, 0] * 1.5 - x[:, 1] ** 2 + frame["few"].to_numpy() * 0.7 + x[:, 2] * x[:, 3]
    for name in ("b", "c"):
        gone = random.random(rows) < missing
        signal = signal + 0.8 * gone
        frame.loc[gone, name] = np.nan
    noise = random.normal(size=rows)
    if objective == "multi:softprob":
        noisy = signal + noise
        frame["label"] = np.array(["low", "middle", "high"])[
            np.searchsorted(np.quantile(noisy, [0.5, 0.8]), noisy)
        ]
    elif objective == "binary:logistic":
        frame["label"] = (signal + noise > np.median(signal)).astype(int)
    else:
        frame["label"] = 20.0 * (signal + noise)
    frame.insert(0, "id", random.permutation(rows) + 1000)
    return frame


def cut(
    frame: pd.DataFrame, *, parties: int, labels: str, seed: int = 0, interleaved: bool = False
) -> list[pd.DataFrame]:
    """Cut columns and labels over parties; rows in an order of each party's own.

    Parameters
    ----------
    labels : {"even", "skewed", "one"}
    interleaved : bool
        Deal columns in turn instead of in blocks.
    """
    random = np.random.default_rng(seed)
    columns = [name for name in frame.columns if name not in ("id", "label")]
    place = np.arange(len(columns)) * parties // len(columns)
    if interleaved:
        place = np.arange(len(columns)) % parties
    if labels == "even":
        owner = random.integers(0, parties, size=len(frame))
    elif labels == "skewed":
        owner = np.where(
            random.random(len(frame)) < 0.9, 0, random.integers(0, parties, len(frame))
        )
    else:
        owner = np.full(len(frame), parties - 1)
    cuts = []
    for party in range(parties):
        own = [name for name, at in zip(columns, place, strict=True) if at == party]
        part = frame[["id", *own]].copy()
        if (owner == party).any():
            is_text = frame["label"].dtype == object
            labels_of_all = frame["label"] if is_text else frame["label"].astype(float)
            part["label"] = labels_of_all.where(owner == party)
        cuts.append(part.sample(frac=1, random_state=party + seed).reset_index(drop=True))
    return cuts


def tables_of(
    frames: Sequence[pd.DataFrame], config: VerticalXGBoostConfig, *, seed: int = 0
) -> dict[str, PartyTable]:
    """Read each party's frame."""
    return {
        f"party-{at}": read_table(
            frame, id_column="id", label_column="label", config=config, seed=seed
        )
        for at, frame in enumerate(frames)
    }


def joined(frames: Sequence[pd.DataFrame], config: VerticalXGBoostConfig) -> Any:
    """The joined table of frames."""
    return join(tables_of(frames, config))
