"""Rows and settings of one site of the ROC-GLM task; they never travel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tasks.privacy.site_budget import SiteBudget
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.counts import count_in_cells
from tasks.roc_glm.cut_points import StatisticsPlaces, planned_cuts
from tasks.roc_glm.messages import SiteFacts
from tasks.roc_glm.releases import needs_unit_interval, unit_interval_fault
from tasks.roc_glm.rows import LabelCoding, RocRows
from tasks.roc_glm.score_model import ScoreModel
from tasks.roc_glm.sensitivity import SensitivityEstimate
from tasks.roc_glm.site_statistics import SiteStatistics, site_statistics
from tasks.roc_glm.site_table import read_table, table_sensitivity
from tasks.roc_glm.small_sites import class_shortfalls, keepable_cuts
from tasks.roc_glm.survivor import FloatArray
from tasks.site.faults import SMALL_SITE, SiteFault

_LARGEST_SCORE = 1e100  # whose square is finite
_NOISE = 4  # apart from other uses of the run's seed


@dataclass(frozen=True, eq=False)
class RocGlmSite:
    """Rows and settings of one site.

    Attributes
    ----------
    name : str
        The site's name.
    rows : RocRows
        Its scores by class.
    coding : LabelCoding
        How it spells the classes.
    config : RocGlmConfig
        Settings of the run.
    cuts : (M - 1,) float64
        Cut points of the configuration; empty where the release has none.
    sensitivity : SensitivityEstimate or None
        Of its own rows, where it is to be estimated.
    noise_seed : int or None
        Of protecting noise, in simulations that ask for it; None: the operating system's.
    budget : SiteBudget or None
        What the run may spend of the site's privacy; None: the site sets no maximum.
    """

    name: str
    rows: RocRows
    coding: LabelCoding
    config: RocGlmConfig
    cuts: NDArray[np.float64]
    sensitivity: SensitivityEstimate | None = None
    noise_seed: int | None = None
    budget: SiteBudget | None = None

    @classmethod
    def prepare(
        cls,
        frame: pd.DataFrame,
        *,
        name: str,
        label: str,
        score: str,
        config: RocGlmConfig,
        model: ScoreModel | None = None,
        quantiles_of: ScoreModel | None = None,
        noise_seed: int | None = None,
        budget: SiteBudget | None = None,
    ) -> RocGlmSite:
        """Read a site's table, and check it against the privacy level.

        Parameters
        ----------
        frame : DataFrame
            The site's rows.
        name : str
            The site's name.
        label, score : str
            Columns; `score` is not looked for where there is a model.
        config : RocGlmConfig
        model : ScoreModel, optional
            Predicts the scores.
        quantiles_of : ScoreModel, optional
            Whose training quantiles or cut points are the cut points, where the configuration
            says so.
        noise_seed : int, optional
            Of protecting noise.
        budget : SiteBudget, optional
            What the run may spend.

        Raises
        ------
        SiteFault
            With everything that is wrong with the table, or ``small-site`` if A1 fails.
        """
        rows, coding = read_table(frame, label=label, score=score, config=config, model=model)
        by_equal_cuts = config.cut_points == "equal"
        unit = needs_unit_interval(config.release, equal_cuts=by_equal_cuts, debias=config.debias)
        if unit and not rows.in_unit_interval:
            raise SiteFault("scores-outside-unit-interval", unit_interval_fault(config.release))
        if config.release == "noisy-scores" and _largest(rows) > _LARGEST_SCORE:
            raise SiteFault(
                "bad-rows",
                f"scores beyond {_LARGEST_SCORE:g} in absolute value, which release = "
                "'noisy-scores' does not take",
            )
        if short := class_shortfalls(rows, config.privacy_level):
            raise SiteFault(SMALL_SITE, *(f"roc-glm.{rule}" for rule in short))
        cuts = planned_cuts(config, quantiles_of or model)
        estimate = None
        if config.estimates_sensitivity:
            estimate = table_sensitivity(
                frame, label=label, score=score, config=config, model=model
            )
        return cls(name, rows, coding, config, cuts, estimate, noise_seed, budget)

    @property
    def noise_rng(self) -> np.random.Generator | None:
        """Seeded generator of protecting noise, or None for the secure one."""
        if self.noise_seed is None:
            return None
        return np.random.default_rng([_NOISE, self.noise_seed, *self.name.encode()])

    def facts(self) -> SiteFacts:
        """What the site adds to its introduction."""
        sizes: tuple[int | None, int | None] = (self.rows.num_negative, self.rows.num_positive)
        if self.config.release == "secure-counts":
            sizes = None, None
        kept = tuple(map(bool, self._kept)) if self.config.merges_cells else ()
        return SiteFacts(
            coding=self.coding,
            in_unit_interval=self.rows.in_unit_interval,
            dropped=self.rows.dropped,
            num_negative=sizes[0],
            num_positive=sizes[1],
            kept_cuts=kept,
            sensitivity=self.sensitivity,
        )

    @property
    def allowed_cuts(self) -> set[float]:
        """Cut points that a request may name: of the configuration, and keepable here."""
        cuts = self.cuts[self._kept] if self.config.merges_cells else self.cuts
        return set(cuts.tolist())

    @property
    def _kept(self) -> NDArray[np.bool_]:
        return keepable_cuts(count_in_cells(self.rows, self.cuts), self.config.privacy_level)

    def statistics(self, cuts: FloatArray, *, is_probability: bool) -> SiteStatistics:
        """Confusion counts at the threshold, and calibration sums of probabilities.

        Parameters
        ----------
        cuts : (M - 1,) float64
            Cut points of the release.
        is_probability : bool
            Whether the scores of all sites lie in [0, 1].
        """
        is_probability = is_probability and self.rows.in_unit_interval
        places = StatisticsPlaces.of(self.config, cuts, is_probability=is_probability)
        return site_statistics(
            self.rows,
            np.array([places.threshold]),
            edges=places.edges,
            privacy_level=self.config.privacy_level,
        )


def _largest(rows: RocRows) -> float:
    ends = [scores[[0, -1]] for scores in (rows.negative, rows.positive) if len(scores)]
    return float(np.abs(np.concatenate(ends)).max()) if ends else 0.0
