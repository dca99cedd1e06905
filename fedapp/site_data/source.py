"""Which rows a node works on, and what the node is called."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pandas as pd

from fedapp.site_data.bundled import BUNDLED, BundledData, encode
from fedapp.site_data.column_names import COLUMNS, parse_columns, visible
from fedapp.site_data.columns import checked_frame
from fedapp.site_data.files import SUFFIXES, found_site_files, read_file, site_file
from fedapp.site_data.generated import generated_frame
from fedapp.site_data.partitions import Partition, deal
from fedapp.site_data.vertical import Spread, party_table
from tasks.site.faults import SiteFault
from tasks.site.names import LONGEST_SITE_NAME, SITE_NAME_RULE, is_site_name, normalized_name
from tasks.survival.generators import GENERATORS, Design, design_faults

NodeConfig: TypeAlias = Mapping[str, object]

MEMORY_PREFIX = "memory:"
"""``data-path`` of a node whose rows are a frame of this process: prefix and key."""

_IID = Partition()

_frames: dict[str, pd.DataFrame] = {}


def site_name(node_config: NodeConfig) -> str:
    """Name of the site behind a node.

    ``site-name`` of the node configuration, or ``site-<partition-id>`` if there is none. White
    space around it is dropped and accents are composed (Unicode NFC), so that one name is one
    string everywhere.

    Returns
    -------
    str
        1 to 64 characters: letters and digits of any script, ``.``, ``_``, ``-`` and single
        spaces, the first a letter or digit. So it is safe in file names.

    Raises
    ------
    SiteFault
        ``bad-site-name``.
    """
    given = node_config.get("site-name")
    if given is None:
        if "partition-id" not in node_config:
            raise SiteFault(
                "bad-site-name",
                "this node has no site-name; start its SuperNode with "
                '--node-config \'site-name="..." data-path="..."\'',
            )
        return f"site-{_count(node_config, 'partition-id', least=0)}"
    if not isinstance(given, str):
        raise SiteFault("bad-site-name", f"site-name = {given!r} must be text in quotes")
    name = normalized_name(given)
    if not is_site_name(name):
        shown = given[: LONGEST_SITE_NAME + 1]
        raise SiteFault("bad-site-name", f"site-name = {shown!a} must be {SITE_NAME_RULE}")
    return name


def load_frame(
    node_config: NodeConfig,
    *,
    data: str,
    partition: Partition = _IID,
    design: Design | None = None,
    seed: int,
    spread: Spread | None = None,
    text: Sequence[str] = (),
) -> pd.DataFrame:
    """Rows of a node.

    ====================================  =====================================================
    node configuration                    rows
    ====================================  =====================================================
    ``data-path``: a file                 that file (see `read_file`)
    ``data-path``: ``memory:<key>``       the frame of `register_frame`
    ``partition-id``, ``num-partitions``  its part of `data`: a bundled data set (encoded), one
                                          file, or a folder of ``site-<partition-id>.parquet``
                                          or ``.csv``
    ====================================  =====================================================

    The first that applies. Of a file of its own a node shows the ``columns`` that its configuration
    names, under the run's names. The run configuration comes from the server, so a node with a
    ``site-name`` of its own, a deployed one, opens no path that `data` names.

    Parameters
    ----------
    node_config : mapping
        Configuration of the node.
    data : str
        Name of a bundled data set, or an absolute path (``~`` is allowed): Flower runs in a
        folder that is not the user's.
    partition : Partition
        How the rows of a bundled data set or of one file are dealt to the sites.
    design : Design, optional
        What a simulated data set is to be like; default 1,000 rows with 10 features.
    spread : Spread, optional
        Deal columns and labels of one file instead of its rows; its column of ids stays text, in a
        node's own CSV file too. A bundled data set with ids is
        dealt so in any case, then by default in random order with evenly spread labels.
    seed : int
        Seed of the dealing, at least 0. Given seed and number of sites, every process deals
        alike.
    text : sequence of str
        Columns of a CSV file that stay text as it stands (see `read_file`).

    Returns
    -------
    DataFrame
        The caller's own copy; at least one row, names of columns unique.

    Raises
    ------
    SiteFault
        A node without data, and everything that is wrong with them.
    """
    text = tuple(text) if spread is None else (*text, spread.id)
    if "data-path" in node_config:
        columns = parse_columns(str(node_config.get(COLUMNS, "")))
        own_text = [columns.get(name, name) for name in text]
        return visible(_own_rows(node_config["data-path"], own_text), columns)
    if "partition-id" not in node_config:
        raise SiteFault(
            "no-data",
            "this node has no data: give its SuperNode a file, "
            '--node-config \'site-name="..." data-path="/path/of/rows.csv"\', or a part of '
            f"the data set \"{data}\", --node-config 'partition-id=0 num-partitions=2'",
        )
    if "num-partitions" not in node_config:
        raise SiteFault("bad-partition", "the node has a partition-id, but no num-partitions")
    sites = _count(node_config, "num-partitions", least=1)
    site = _count(node_config, "partition-id", least=0)
    if site >= sites:
        raise SiteFault(
            "bad-partition", f"partition-id = {site} must be less than num-partitions = {sites}"
        )
    bundled = BUNDLED.get(data)
    if data in GENERATORS:
        frame = _simulated(data, design or Design(), seed)
    elif bundled is not None:
        frame = _bundled_frame(data)
        partition = replace(partition, column=partition.column or bundled.site_column)
    else:
        path = _run_path(data, node_config)
        if os.path.isdir(path):  # unlike Path.is_dir, raises nothing
            return _site_rows(path, site=site, sites=sites, text=text)
        frame = read_file(path, where=f'data "{path}"', text=text)
    spread = _spread(data, spread)
    if spread is not None:
        return party_table(frame, spread, site=site, sites=sites, seed=seed)
    rows = deal(frame, partition, sites=sites, seed=seed)[site]
    if len(rows) == 0:
        raise SiteFault(
            "no-rows",
            f'data "{data}": of {len(frame)} rows dealt to {sites} sites by partition '
            f'"{partition.kind}", this site has none',
        )
    # The column that says which site it is says nothing within a site, nor of another one.
    drop = {partition.column} if partition.kind == "natural" else set()
    drop |= {bundled.site_column} if bundled is not None else set()
    return frame.iloc[rows].reset_index(drop=True).drop(columns=sorted(drop & set(frame.columns)))


def bundled_set(node_config: NodeConfig, *, data: str) -> BundledData | None:
    """Bundled data set that `load_frame` takes a node's rows from; None if they are its own."""
    return None if "data-path" in node_config else BUNDLED.get(data)


def register_frame(frame: pd.DataFrame) -> str:
    """Keep a copy of a frame in this process, for a node with ``data-path = memory:<key>``.

    Returns
    -------
    str
        The key, for `MEMORY_PREFIX` and `forget_frame`.

    Raises
    ------
    TypeError, SiteFault
        As `checked_frame`.
    """
    key = uuid.uuid4().hex
    _frames[key] = checked_frame(frame, where="frame")
    return key


def forget_frame(key: str) -> None:
    """Drop a frame of `register_frame`; one that is not there is no fault."""
    _frames.pop(key, None)


def _own_rows(given: object, text: Sequence[str]) -> pd.DataFrame:
    if not isinstance(given, str) or not given.strip():
        raise SiteFault("no-file", f"data-path = {given!r} must be the path of a file, in quotes")
    given = given.strip()
    if given.startswith(MEMORY_PREFIX):
        frame = _frames.get(given.removeprefix(MEMORY_PREFIX))
        if frame is None:
            raise SiteFault(
                "no-file", f'data-path "{given}": no such frame is registered in this process'
            )
        return frame.copy()
    path = _expanded(given).absolute()
    return read_file(path, where=f'data-path "{path}"', text=text)


def _run_path(data: str, node_config: NodeConfig) -> Path:
    """Path that the run configuration names, if it may."""
    names = ", ".join(sorted(BUNDLED))
    path = _expanded(data)
    if not path.is_absolute():
        if path.name.lower().endswith(SUFFIXES) or re.search(r"[/\\]", data):
            raise SiteFault(
                "relative-path",
                f'data "{data}" must be an absolute path: Flower does not run in your folder',
            )
        raise SiteFault(
            "unknown-data",
            f'data "{data}" is no bundled data set ({names}) and no absolute path of a file',
        )
    if "site-name" in node_config:
        raise SiteFault(
            "foreign-path",
            f'data "{data}": a node with a site-name opens no file that a run names; '
            f"give it a data-path, or name a bundled data set ({names})",
        )
    return path


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no home folder is known
        return Path(path)


def _site_rows(folder: Path, *, site: int, sites: int, text: Sequence[str]) -> pd.DataFrame:
    where = f'data "{folder}"'
    found = found_site_files(folder, where=where)
    if len(found) != sites:
        raise SiteFault(
            "bad-partition",
            f"{where} holds {len(found)} files site-<number>.parquet or .csv for {sites} sites",
        )
    path = found.get(site, site_file(folder, site))
    return read_file(path, where=f'data "{path}"', text=text)


def _count(node_config: NodeConfig, key: str, *, least: int) -> int:
    value = node_config[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SiteFault(
            "bad-partition", f"{key} = {value!r} must be a whole number, at least {least}"
        )
    return value


def _spread(data: str, asked: Spread | None) -> Spread | None:
    """How columns are dealt; None where rows are. A bundled data set knows its own columns."""
    bundled = BUNDLED.get(data)
    if bundled is None:
        return asked
    if not bundled.id:
        return None
    return replace(asked or Spread(), id=bundled.id, label=bundled.label)


@cache
def _bundled_frame(name: str) -> pd.DataFrame:
    return encode(BUNDLED[name].load(), BUNDLED[name].encoding)


def _simulated(name: str, design: Design, seed: int) -> pd.DataFrame:
    faults = design_faults(name, design)
    if faults:
        raise SiteFault("bad-design", *faults)
    return generated_frame(name, design, seed=seed)
