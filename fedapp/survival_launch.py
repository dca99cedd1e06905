"""How a survival run of a script is started: on simulated sites, or at a SuperLink."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedapp.fsa_names import KEYS
from fedapp.run_config import Value

if TYPE_CHECKING:
    from fedapp.simulation import SimulationResult
    from fedapp.survival_tables import SiteTables

Backend = Literal["in-process", "ray"]
"""What a simulation runs in: this process, or Flower's engine."""


def run_in_simulation(
    settings: Mapping[str, Value], tables: SiteTables | None, *, seed: int, backend: Backend
) -> SimulationResult:
    """Run on simulated sites: those of the tables, or of the data that the settings name."""
    from fedapp.simulation import simulate

    return simulate(
        "survival",
        sites=None if tables is None else tables.frames,
        config={key: value for key, value in settings.items() if key != KEYS["random_state"]},
        seed=seed,
        backend=backend,
        site_names=None if tables is None or backend != "in-process" else tables.names,
    )


def run_at_superlink(
    settings: Mapping[str, Value], *, seed: int, superlink: str
) -> SimulationResult:
    """Run at the SuperNodes of a SuperLink.

    Raises
    ------
    RuntimeError
        If the ServerApp wrote the run folder on another machine.
    """
    from fedapp.flower_run import run_with_flower
    from fedapp.simulation import read_result

    run_dir = Path(str(settings.get("run-dir", "runs"))).expanduser().resolve()
    values = {"report": False, **settings, "task": "survival", KEYS["random_state"]: seed}
    values["run-dir"] = str(run_dir)
    folder = run_with_flower(values, num_supernodes=None, superlink=superlink)
    if not folder.is_dir():
        raise RuntimeError(
            f"{folder}: no such folder here; the ServerApp of this SuperLink wrote it on its own "
            "machine, where `fedapp predict` and `fedapp report` read it"
        )
    return read_result(folder)
