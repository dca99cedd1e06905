"""Real survival data as the benchmarks take it, and how its rows are split and dealt.

GBSG2 comes with lifelines. METABRIC and SUPPORT are read from a ZIP file or folder that holds
``metabric.csv`` and ``support.csv`` with the columns ``duration`` and ``event``.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
from lifelines.datasets import load_gbsg2
from sklearn.model_selection import train_test_split

TIME, EVENT = "time", "event"
ORDER = {
    "horTh": ["no", "yes"],
    "menostat": ["Pre", "Post"],
    "tgrade": ["I", "II", "III"],
}
FROM_FILES = ("metabric", "support")
DATA_SETS = ("gbsg2", *FROM_FILES)


def gbsg2() -> pd.DataFrame:
    """Return GBSG2 with its three text columns as numbers in their declared order."""
    frame = load_gbsg2().rename(columns={"cens": EVENT})
    codes = {name: frame[name].map(order.index) for name, order in ORDER.items()}
    return frame.assign(**codes)


def read(name: str, data: Path | None) -> pd.DataFrame:
    """Return a data set by name, with times in ``time`` and 0 or 1 in ``event``.

    A time of zero, of which METABRIC has one, becomes half the least positive one: the product
    refuses zeros, and no order changes, so no concordance does.

    Raises
    ------
    ValueError
        If the name is unknown, or its file is not there.
    """
    if name == "gbsg2":
        return gbsg2()
    if name not in FROM_FILES:
        raise ValueError(f"data set {name!r} is unknown; allowed: {', '.join(DATA_SETS)}")
    if data is None:
        raise ValueError(f"{name}: --data must name the ZIP file or folder with {name}.csv")
    try:
        if data.is_dir():
            frame = pd.read_csv(data / f"{name}.csv")
        else:
            with zipfile.ZipFile(data) as archive:
                frame = pd.read_csv(io.BytesIO(archive.read(f"{name}.csv")))
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"--data {data}: no {name}.csv could be read: {error}") from None
    frame = frame.rename(columns={"duration": TIME})
    least = frame.loc[frame[TIME] > 0, TIME].min()
    return frame.assign(**{TIME: frame[TIME].where(frame[TIME] > 0, least / 2)})


def split(frame: pd.DataFrame, *, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split rows 80/20 into training and test, stratified by event."""
    train, test = train_test_split(frame, test_size=0.2, stratify=frame[EVENT], random_state=seed)
    return train, test


def deal(frame: pd.DataFrame, *, n_sites: int, seed: int) -> list[pd.DataFrame]:
    """Deal rows to sites at random, as evenly as their number allows."""
    order = np.random.default_rng(seed).permutation(len(frame))
    return [frame.iloc[rows] for rows in np.array_split(order, n_sites)]
