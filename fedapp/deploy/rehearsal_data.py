"""Data of a rehearsal: dealt as a simulation would, and the settings that name their columns."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from fedapp import run_config
from fedapp.check import check_sites
from fedapp.run_config import RunConfig, Value
from fedapp.site_data import BUNDLED, Partition, Spread, decode
from fedapp.site_data.dealt_files import dealt_frames, write_frame

_SHORT: dict[str, Value] = {
    "survival.rounds": 2,
    "vertical-xgboost.num-trees": 1,
    "vertical-xgboost.max-depth": 2,
}


def rehearsal_values(values: Mapping[str, Value], *, num_sites: int) -> dict[str, Value]:
    """Settings of the run.

    A rehearsal is to be over soon, and every exchange takes seconds: where nothing else is
    given, 2 rounds or 1 tree of depth 2. All sites have to be there, and columns of bundled data
    are named, which nodes with files of their own cannot know.
    """
    task = str(values["task"])
    short = {key: value for key, value in _SHORT.items() if key.startswith(f"{task}.")}
    wanted = {"min-sites": max(num_sites, 2), **short, **values}
    bundled = BUNDLED.get(str(wanted.get(f"{task}.data") or _default(f"{task}.data")))
    if bundled is not None:
        names = {
            "survival": {"time": bundled.time, "event": bundled.event},
            "roc-glm": {"label": bundled.label, "score": bundled.score},
            "vertical-xgboost": {"id": bundled.id, "label": bundled.label},
        }[task]
        for key, column in names.items():
            if not wanted.get(f"{task}.{key}"):
                wanted[f"{task}.{key}"] = column
    return wanted


def rehearsal_frames(config: RunConfig, sites: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Rows of every site: those that the run would simulate with as many sites and this seed.

    Raises
    ------
    SiteFault
        If the data cannot be read or dealt.
    """
    general = config.general
    if general.task == "roc-glm":
        return dealt_frames(config.roc_glm.data, sites, seed=general.seed)
    if general.task == "vertical-xgboost":
        vertical = config.vertical_xgboost
        spread = Spread(
            id=vertical.id or "id", label=vertical.label or "label", weight=vertical.weight
        )
        return dealt_frames(vertical.data, sites, seed=general.seed, spread=spread)
    survival = config.survival
    frames = dealt_frames(
        survival.data,
        sites,
        seed=general.seed,
        partition=Partition(
            kind=survival.partition,
            alpha=survival.dirichlet_alpha,
            column=survival.partition_column,
            time=survival.time or "time",
            event=survival.event or "event",
            event_value=survival.event_value,
        ),
        design=survival.design,
    )
    if survival.data not in BUNDLED:
        return frames
    encoding, columns = BUNDLED[survival.data].encoding, survival.declared_categories
    return {site: decode(frame, encoding, columns=columns) for site, frame in frames.items()}


def refuse_bad_data(config: RunConfig, frames: Mapping[str, pd.DataFrame]) -> None:
    """Refuse rows that the sites would refuse: before anything is started for them.

    Parameters
    ----------
    config : RunConfig
    frames : mapping of str to DataFrame
        Rows by site.

    Raises
    ------
    ConfigError
        With every fault, by site.
    """
    with tempfile.TemporaryDirectory(prefix="fedapp-") as folder:
        nodes: dict[str, dict[str, Value]] = {}
        for place, (site, frame) in enumerate(frames.items()):
            path = Path(folder) / f"{place}.parquet"
            write_frame(frame, path)
            nodes[site] = {"site-name": site, "data-path": str(path), "model-dir": folder}
        findings = check_sites(config, nodes)
    faults = [f"{one.subject}: {one.words}" for one in findings if not one.ok]
    if faults and not _goes_on_without(config):
        raise run_config.ConfigError(faults)


def _goes_on_without(config: RunConfig) -> bool:
    """Whether a run may leave out a site that is too small: the run says, then."""
    keys = {"survival": config.survival.on_small_site, "roc-glm": config.roc_glm.on_small_site}
    return keys.get(config.general.task) == "exclude"


def _default(name: str) -> Value:
    return run_config.defaults()[name]
