"""Rows and settings of one party, as its node reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.rows import PartyTable

if TYPE_CHECKING:
    from tasks.vertical_xgboost.model_part import ModelPart


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
    code : str
        Fingerprint of the code that runs.
    part : ModelPart or None
        Its part of the model that is used; None in a training.
    consents : bool
        Whether the party lets its part be exported.
    """

    name: str
    table: PartyTable
    config: VerticalXGBoostConfig
    simulated: bool = False
    model_dir: str = ""
    seed: int = 0
    noise_seed: int | None = None
    code: str = ""
    part: ModelPart | None = None
    consents: bool = False

    @property
    def num_training(self) -> int:
        """Training rows of all owners."""
        return int(np.count_nonzero(~self.table.is_evaluation))

    @property
    def known_part(self) -> ModelPart:
        """Its part of the model; SiteFault ``"no-model-part"`` in a training."""
        if self.part is None:
            raise SiteFault("no-model-part", "this party has read no part of a model")
        return self.part
