"""Rows and settings of one party, as its node reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.rows import PartyTable


@dataclass(frozen=True, eq=False)
class VerticalSite:
    """Rows and settings of one party.

    Attributes
    ----------
    name : str
    table : PartyTable
    config : VerticalXGBoostConfig
    simulated : bool
        The party's rows are a simulation's, on the server's machine.
    model_dir : str
        Where the party keeps its part of a model; ``""``: nowhere.
    seed : int
        Of the run: decides which rows evaluate.
    noise_seed : int or None
        Simulation only: seed of the noise of leaf weights; None: the operating system's generator.
    """

    name: str
    table: PartyTable
    config: VerticalXGBoostConfig
    simulated: bool = False
    model_dir: str = ""
    seed: int = 0
    noise_seed: int | None = None

    @property
    def num_training(self) -> int:
        """Training rows of all owners."""
        return int(np.count_nonzero(~self.table.is_evaluation))
