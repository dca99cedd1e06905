"""A table dealt to sites as files, one a site: what each has in a federation of its own.

The rows, columns and labels of a site are those that a simulation with the same seed and number
of sites gives it, so a deployed run on the files can be compared with a simulated one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from fedapp.site_data.bundled import BUNDLED
from fedapp.site_data.files import read_file, write_parquet
from fedapp.site_data.partitions import Partition, natural_sites
from fedapp.site_data.source import load_frame
from fedapp.site_data.vertical import Spread
from tasks.site.faults import SiteFault
from tasks.site.names import SITE_NAME_RULE, is_site_name
from tasks.survival.generators import GENERATORS, Design

FORMATS = ("csv", "parquet")

_IID = Partition()
_LEADING_ZERO = r"\s*[+-]?0[0-9]"


def dealt_frames(
    data: str,
    sites: Sequence[str],
    *,
    seed: int,
    partition: Partition = _IID,
    spread: Spread | None = None,
    design: Design | None = None,
    text: Sequence[str] = (),
) -> dict[str, pd.DataFrame]:
    """Rows of every site.

    Parameters
    ----------
    data : str
        Name of a bundled data set, or path of a CSV or Parquet file.
    sites : sequence of str
        Names, at least one, all different.
    seed : int
        At least 0.
    partition : Partition
        How rows are dealt.
    spread : Spread, optional
        Deal columns and labels instead of rows.
    design : Design, optional
        What a simulated data set is to be like.
    text : sequence of str
        Columns of a CSV file that stay text as it stands: of ids, ``007`` is not ``7``.

    Returns
    -------
    dict of str to DataFrame
        In the order of `sites`; each has at least one row.

    Raises
    ------
    SiteFault
        Everything that is wrong with names, table or dealing.
    """
    check_site_names(sites)
    if data not in BUNDLED:
        data = str(Path(data).expanduser().absolute())
    frames = {
        name: load_frame(
            {"partition-id": place, "num-partitions": len(sites)},
            data=data,
            partition=partition,
            design=design,
            seed=seed,
            spread=spread,
            text=text,
        )
        for place, name in enumerate(sites)
    }
    if spread is not None:
        _refuse_twins(next(iter(frames.values())), spread.id)  # each party has all rows
    return frames


def _refuse_twins(frame: pd.DataFrame, column: str) -> None:
    """Refuse ids that two rows have: no party could say which row of another one is meant."""
    if column not in frame.columns:  # of a bundled data set, which has its own
        return
    rows = int(frame[column].duplicated(keep=False).sum())
    if rows:
        raise SiteFault(
            "bad-ids",
            f'column "{column}": {rows} of {len(frame)} rows have an id that another row has, too; '
            "every row needs its own",
        )


def columns_with_leading_zeros(data: str) -> list[str]:
    """Return columns of a CSV file that are read as numbers, and have digits after a leading 0.

    Parameters
    ----------
    data : str
        Name of a bundled data set, or path of a CSV or Parquet file; the others have no such.

    Raises
    ------
    SiteFault
        If the file cannot be read.
    """
    path = Path(data).expanduser().absolute()
    if data in BUNDLED or data in GENERATORS or path.name.lower().endswith(".parquet"):
        return []
    where = f'data "{path}"'
    frame = read_file(path, where=where)
    numbers = [name for name in frame.columns if frame[name].dtype.kind in "iuf"]
    words = read_file(path, where=where, text=numbers) if numbers else frame
    return [name for name in numbers if words[name].str.match(_LEADING_ZERO, na=False).any()]


def count_values(data: str, column: str) -> int:
    """Return how many sites a column makes that names the site of each row.

    Raises
    ------
    SiteFault
        If the table cannot be read, has no such column, or has it missing in a row.
    """
    whole = dealt_frames(data, ["all"], seed=0)["all"]
    return natural_sites(whole, column)


def check_site_names(sites: Sequence[str]) -> None:
    """Refuse names that are none, or that two sites share (in small letters: they name files).

    Raises
    ------
    SiteFault
        ``bad-site-name``, with every reason.
    """
    reasons = [
        f"site {name[:65]!a} must be {SITE_NAME_RULE}" for name in sites if not is_site_name(name)
    ]
    small = [name.casefold() for name in sites]
    twins = sorted({name for name in sites if small.count(name.casefold()) > 1})
    if twins:
        reasons.append(f"sites need different names: {', '.join(map(ascii, twins))}")
    if not sites:
        reasons.append("no site is named")
    if reasons:
        raise SiteFault("bad-site-name", *reasons)


def write_frames(
    frames: Mapping[str, pd.DataFrame], folder: Path, *, format: str, force: bool = False
) -> list[Path]:
    """Write one file a site, ``<folder>/<site>.<format>``, that only its owner reads.

    Parameters
    ----------
    frames : mapping of str to DataFrame
        Rows by site.
    folder : Path
        Made if need be.
    format : {"csv", "parquet"}
        CSV keeps numbers to the last bit, but not that a column of digits was text.
    force : bool
        Write over files that are there.

    Raises
    ------
    FileExistsError
        If a file is there and `force` is not given; then nothing has been written.
    """
    paths = [folder / f"{site}.{format}" for site in frames]
    there = [str(path) for path in paths if path.exists()]
    if there and not force:
        raise FileExistsError(
            f"{', '.join(there)}: there already; nothing was written (--force writes over it)"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, frame in zip(paths, frames.values(), strict=True):
        write_frame(frame, path)
    return paths


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write one site's rows as CSV or Parquet, whole or not at all, mode 0600."""
    part = path.with_name(f".{path.name}.part")
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    try:
        if path.suffix == ".parquet":
            write_parquet(frame, part)
        else:
            frame.to_csv(part, index=False)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
