"""A federation of the deployment runtime as real hosts have it, with rows and limits of its sites.

TLS with an authority of its own, registered SuperNodes, lasting keys that every site pins.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from fedapp.deploy.federation_folder import NODE_CONFIG, SITES, write_federation
from fedapp.deploy.plan import Plan
from fedapp.deploy.processes import free_ports
from fedapp.deploy.rehearsal import DATA_FILE, Federation, running_federation
from fedapp.run_config import Value
from fedapp.site_data.dealt_files import write_frame
from tests.runtimes import ROOT

NAME = "rehearsal"
"""Of the SuperLink, for ``--superlink``."""


@contextmanager
def deployed_sites(
    folder: Path,
    frames: Mapping[str, pd.DataFrame],
    *,
    limits: Mapping[str, Mapping[str, Value]] | None = None,
) -> Iterator[Federation]:
    """Run a federation while the block runs.

    Parameters
    ----------
    folder : Path
        New.
    frames : mapping of str to DataFrame
        Rows of each site, by its name.
    limits : mapping of str to mapping, optional
        What a site adds to its node configuration.
    """
    (port,) = free_ports(1)
    plan = Plan(sites=tuple(frames), host="127.0.0.1", port=port, name=NAME)
    write_federation(plan, folder, data_path=DATA_FILE)
    for name, frame in frames.items():
        write_frame(frame, folder / SITES / name / DATA_FILE)
    for name, added in (limits or {}).items():
        with (folder / SITES / name / NODE_CONFIG).open("a", encoding="utf-8") as file:
            file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in added.items())
    with running_federation(plan, folder) as federation:
        yield federation


def fedapp(federation: Federation, *words: str, app: Path = ROOT) -> subprocess.Popen[str]:
    """Start ``fedapp`` as the operator, with this checkout of the app."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedapp.cli", *words],
        cwd=federation.folder,
        env={**federation.environment, "PYTHONPATH": str(app)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
