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
    from tasks.vertical_xgboost.part_tree import PartTree


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
        Its part of the model that is used, in a training of the one that it goes on from.
    resumes : bool
        Whether the training of `part` is gone on with, instead of a new one that adds to it.
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
    resumes: bool = False
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

    @property
    def trees_gone_on_from(self) -> tuple[PartTree, ...]:
        """Trees of the model that the training goes on from (``warm-start``)."""
        if self.part is None:
            return ()
        return self.part.trees[: self.part.origin.trees_before if self.resumes else None]

    @property
    def trees_before(self) -> int:
        """Trees in front of those that this run grows."""
        return 0 if self.part is None else len(self.part.trees)

    @property
    def trees_resumed(self) -> int:
        """Trees of this training in front of those that this run grows."""
        return self.trees_before - len(self.trees_gone_on_from)
