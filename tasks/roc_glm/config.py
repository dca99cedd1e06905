"""Configuration of the ROC-GLM task: every key with its type, range, default and meaning."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.roc_glm.release_names import NOISY_RELEASES

_DEFAULT_CELLS = {"secure-counts": 50, "binned": 50, "noisy-counts": 20, "noisy-histogram": 10}


class RocGlmConfig(BaseModel):
    """Settings of one validation run (``roc-glm.*`` in the run configuration)."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
    )

    data: Annotated[
        str,
        Field(
            description="simulation: name of a bundled data set, or path of a CSV or Parquet file"
        ),
    ] = "breast-cancer"
    label: Annotated[
        str, Field(description='column of labels; "" means "label", or the bundled one')
    ] = ""
    score: Annotated[
        str,
        Field(description='column of scores; "" means "score", or the bundled model\'s prediction'),
    ] = ""
    positive_label: Annotated[
        str, Field(min_length=1, description="label of the positive class, at all sites")
    ] = "1"
    negative_label: Annotated[
        str, Field(description='label of the negative class; "" means the one other label found')
    ] = ""
    missing: Annotated[
        Literal["error", "drop"],
        Field(description="rows with a missing label or score: refuse, or leave out and count"),
    ] = "error"
    model: Annotated[
        str,
        Field(
            description="model file (JSON) that the server sends, to predict at the sites; "
            '"" means the sites have scores'
        ),
    ] = ""
    features: Annotated[
        str,
        Field(description='feature columns for the model, comma-separated; "" means as it names'),
    ] = ""

    release: Annotated[
        Literal[
            "secure-counts", "binned", "exact", "noisy-scores", "noisy-counts", "noisy-histogram"
        ],
        Field(description="what leaves a site of its survivor functions"),
    ] = "secure-counts"
    mode: Annotated[
        Literal["one-shot", "fisher"],
        Field(description="ROC-GLM from counts in one exchange, or by Fisher scoring over rounds"),
    ] = "one-shot"
    ties: Annotated[
        Literal["mid", "strict", "weak"],
        Field(
            description="a score equal to the cut counts half, not, or fully; in the ROC-GLM only"
        ),
    ] = "mid"
    num_thresholds: Annotated[
        int, Field(ge=2, le=10_000, description="thresholds j / (n + 1) of the ROC-GLM")
    ] = 28
    cells: Annotated[
        int,
        Field(
            ge=0,
            le=100_000,
            description="cells of the score; 0 means 50, 20 for noisy-counts, 10 for "
            "noisy-histogram",
        ),
    ] = 0
    cut_points: Annotated[
        Literal["equal", "quantile", "model"],
        Field(
            description="cells of equal width on [0, 1], at the model's training quantiles, or at "
            "the model's own cut points"
        ),
    ] = "equal"

    privacy_level: Annotated[
        int, Field(ge=1, description="q: values of a class behind every aggregate of a site")
    ] = 5
    privacy_level_of: Annotated[
        Literal["class", "cell"], Field(description="q holds for each class, or for each cell")
    ] = "class"
    on_small_site: Annotated[
        Literal["error", "exclude"],
        Field(description="a site below the privacy level: end the run, or go on without it"),
    ] = "error"
    allow_score_disclosure: Annotated[
        bool, Field(description="permit release = exact, which discloses scores")
    ] = False
    allow_seeded_noise: Annotated[
        bool, Field(description="permit a seed for the noise on real site data")
    ] = False
    drop_outs: Annotated[
        Literal["error", "semi-honest-server"],
        Field(
            description="a site drops out of a masked sum: end the run, or repeat the step without "
            "it (the server could subtract the two sums)"
        ),
    ] = "error"

    epsilon: Annotated[
        float,
        Field(gt=0, le=1000, allow_inf_nan=False, description="privacy budget of the release"),
    ] = 1.0
    delta: Annotated[float, Field(gt=0, lt=1, description="failure probability of the budget")] = (
        1e-5
    )
    sensitivity: Annotated[
        float,
        Field(
            ge=1e-9,
            le=1e9,
            allow_inf_nan=False,
            description="largest move of a score between neighbours; 1 is the range of scores",
        ),
    ] = 1.0
    estimate_sensitivity: Annotated[
        bool,
        Field(description="estimate the sensitivity from model and features instead (no bound)"),
    ] = False
    mechanism: Annotated[
        Literal["analytic", "classic"],
        Field(description="calibration of the noise; classic only below epsilon 1"),
    ] = "analytic"
    secure: Annotated[
        bool,
        Field(description="noisy-counts, noisy-histogram: share the noise between masked sites"),
    ] = False
    debias: Annotated[
        bool, Field(description="noisy-scores: deconvolve the noise out of the AUC")
    ] = True
    redraws: Annotated[
        int,
        Field(ge=50, le=10_000, description="noise drawn anew for the interval of noisy-scores"),
    ] = 100
    statistics_epsilon: Annotated[
        float,
        Field(
            ge=0,
            le=1000,
            allow_inf_nan=False,
            description="budget of Brier score, calibration and rates after noisy-counts and "
            "noisy-histogram; 0 leaves them out",
        ),
    ] = 0.0
    statistics_delta: Annotated[
        float, Field(gt=0, lt=1, description="failure probability of that budget")
    ] = 1e-5

    alpha: Annotated[
        float, Field(gt=0, lt=0.5, description="level of the test, 1 - level of the intervals")
    ] = 0.05
    null_auc: Annotated[
        float, Field(gt=0, lt=1, description="a0: the AUC to be exceeded under H0")
    ] = 0.5
    threshold: Annotated[
        float,
        Field(allow_inf_nan=False, description="score above which a patient is predicted positive"),
    ] = 0.5
    calibration_bins: Annotated[
        int, Field(ge=2, le=1000, description="bins of the calibration curve")
    ] = 10
    tolerance: Annotated[
        float,
        Field(gt=0, lt=1, description="fisher: relative change of the deviance at which it stops"),
    ] = 1e-8
    max_rounds: Annotated[int, Field(ge=2, le=1000, description="fisher: most rounds")] = 25

    @property
    def num_cells(self) -> int:
        """Cells of the score: the configured number, or the release's own."""
        return self.cells or _DEFAULT_CELLS.get(self.release, 50)

    @property
    def masks_sums(self) -> bool:
        """Whether what sites send is masked, so that only sums over sites can be read."""
        return self.release == "secure-counts" or self.secure

    @property
    def merges_cells(self) -> bool:
        """Whether cells are merged until each has q rows of a class, or none, at every site."""
        by_cell = self.privacy_level_of == "cell"
        return by_cell and self.release in ("secure-counts", "binned")

    @property
    def estimates_sensitivity(self) -> bool:
        """Whether sites estimate the sensitivity from their rows, and tell it."""
        return self.estimate_sensitivity and self.release in NOISY_RELEASES

    @property
    def iterates(self) -> bool:
        """Whether sites are asked for rounds of Fisher scoring; never after counts with noise."""
        return self.mode == "fisher" and self.release not in ("noisy-counts", "noisy-histogram")

    @property
    def feature_columns(self) -> list[str]:
        """Names of the feature columns; empty where the model names them."""
        return [part.strip() for part in self.features.split(",") if part.strip()]

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        faults = []
        if self.release == "exact" and not self.allow_score_disclosure:
            faults.append(
                "release = 'exact' discloses scores: allowed with allow-score-disclosure = true"
            )
        if self.mechanism == "classic" and self.epsilon >= 1 and self.release in NOISY_RELEASES:
            faults.append(
                f"mechanism = 'classic' with epsilon = {self.epsilon}: allowed is epsilon below 1"
            )
        if self.secure and self.release not in ("noisy-counts", "noisy-histogram"):
            faults.append(
                f"secure = true with release = '{self.release}': allowed with noisy-counts and "
                "noisy-histogram (secure-counts is secure by itself)"
            )
        if self.privacy_level_of == "cell" and self.release in NOISY_RELEASES:
            faults.append(
                f"privacy-level-of = 'cell' with release = '{self.release}': allowed without noise"
            )
        if self.cells == 1:
            faults.append("cells = 1: allowed is 0 (the default of the release) or 2 and more")
        if self.positive_label == self.negative_label:
            faults.append(f"negative-label = '{self.negative_label}': is the positive label too")
        if faults:
            raise ValueError("; ".join(faults))
        return self
