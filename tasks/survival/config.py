"""Configuration of the survival task: every key with its type, range, default and meaning."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tasks.privacy.mechanisms import PrivatizationSettings
from tasks.survival.categories import DeclaredCategories, parse_categories
from tasks.survival.generators import Design
from tasks.survival.model_names import BUILT_IN, known_names


def _known_model(name: str) -> str:
    if name not in known_names():
        # Those of one's own are known once the package that imports them is (and torch with it).
        import tasks.survival.models  # noqa: F401

    if name not in known_names():
        raise ValueError("unknown model")
    return name


class SurvivalConfig(BaseModel):
    """Settings of one survival run (``survival.*`` in the run configuration)."""

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
            description="simulation: name of a bundled or simulated data set, or path of a CSV or "
            "Parquet file"
        ),
    ] = "gbsg2"
    partition: Annotated[
        Literal["iid", "random", "censoring-non-iid", "time-non-iid", "dirichlet", "natural"],
        Field(description="simulation: how rows are dealt to sites"),
    ] = "iid"
    dirichlet_alpha: Annotated[
        float,
        Field(
            gt=0,
            le=1e6,
            allow_inf_nan=False,
            description="partition dirichlet: small makes sites different, large alike",
        ),
    ] = 1.0
    partition_column: Annotated[
        str,
        Field(
            description='partition natural: column with the sites; "" means the bundled one. '
            "num-sites must be the number of its values"
        ),
    ] = ""
    n_rows: Annotated[
        int, Field(ge=1, le=10_000_000, description="simulated data: rows of all sites")
    ] = 1000
    n_features: Annotated[int, Field(ge=1, le=10_000, description="simulated data: features")] = 10
    rho: Annotated[
        float,
        Field(
            ge=-1,
            lt=1,
            allow_inf_nan=False,
            description="simulated data: correlation of neighbouring features; -1 means the "
            "generator's own",
        ),
    ] = -1.0
    censoring_rate: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="simulated data: rate of exponential censoring, no share; 0 means 0.4",
        ),
    ] = 0.0
    censoring_fraction: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="simulated data: share of censored rows; 0 means what the rate gives",
        ),
    ] = 0.0
    time: Annotated[
        str, Field(description='column of follow-up times; "" means "time", or the bundled one')
    ] = ""
    event: Annotated[
        str, Field(description='column of event indicators; "" means "event", or the bundled one')
    ] = ""
    event_value: Annotated[str, Field(description="value of the event column: event seen")] = "1"
    censored_value: Annotated[str, Field(description="value of the event column: censored")] = "0"
    features: Annotated[
        str,
        Field(description='feature columns, comma-separated; "" means every other column'),
    ] = ""

    categories: Annotated[
        str,
        Field(
            description="categories of columns: 'grade=I<II<III; arm=a,b' (< ordered, one input; "
            "comma: an input each); columns of text without: those that privacy-level rows have"
        ),
    ] = ""
    missing: Annotated[
        Literal["refuse", "median"],
        Field(
            description="features that are missing: refuse the table, or fill in the federated "
            "median (of text: an input of its own)"
        ),
    ] = "refuse"

    model: Annotated[
        str,
        AfterValidator(_known_model),
        Field(
            description="model to train",
            json_schema_extra={
                "allowed": " | ".join(f'"{name}"' for name in BUILT_IN) + " | a registered one"
            },
        ),
    ] = "DeepSurv"
    hidden_layers: Annotated[
        str,
        Field(
            pattern=r"^\d+(,\d+)*$",
            description="units of the hidden layers, comma-separated; CoxPH has none",
        ),
    ] = "32,32"
    dropout: Annotated[float, Field(ge=0, lt=1, description="dropout rate")] = 0.3
    num_durations: Annotated[
        int,
        Field(
            ge=1,
            le=1000,
            description="LogisticHazard, PC-Hazard, DeepHit: intervals of time, each an output",
        ),
    ] = 10
    cuts: Annotated[
        Literal["quantiles", "equidistant"],
        Field(
            description="borders of these intervals: survival falls by equal amounts between them, "
            "or they are equally wide"
        ),
    ] = "quantiles"
    deephit_alpha: Annotated[
        float,
        Field(ge=0, le=1, description="DeepHit: share of the likelihood, the rest is ranking"),
    ] = 0.2
    deephit_sigma: Annotated[
        float,
        Field(ge=0.02, le=100, description="DeepHit: scale of the differences in the ranking"),
    ] = 0.1
    controls: Annotated[
        int,
        Field(
            ge=1, le=100, description="CoxCC, CoxTime: rows at risk drawn to compare an event with"
        ),
    ] = 1

    rounds: Annotated[int, Field(ge=1, le=100_000, description="rounds of training")] = 30
    local_steps: Annotated[
        int, Field(ge=1, le=100_000, description="optimizer steps of a site in a round")
    ] = 10
    learning_rate: Annotated[
        float, Field(gt=0, le=10, allow_inf_nan=False, description="AdamW's learning rate")
    ] = 0.003
    weight_decay: Annotated[
        float, Field(ge=0, le=10, allow_inf_nan=False, description="AdamW's decoupled weight decay")
    ] = 1.0
    batch_size: Annotated[
        int, Field(ge=2, description="rows of a step; larger than the site's rows: all of them")
    ] = 256
    weighting: Annotated[
        Literal["examples", "equal"], Field(description="weight of a site in the average")
    ] = "examples"

    test_fraction: Annotated[
        float, Field(ge=0, le=0.9, description="share of each site's rows kept for evaluation")
    ] = 0.2
    evaluate_every: Annotated[
        int, Field(ge=1, description="evaluate the global model every so many rounds")
    ] = 1
    confidence_level: Annotated[
        float, Field(gt=0.5, lt=1, description="level of confidence intervals")
    ] = 0.95
    horizon: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="end of the time grid of the baseline hazard; 0: a round number that fewer "
            "than privacy-level times of any site exceed",
        ),
    ] = 0.0
    time_bins: Annotated[int, Field(ge=4, le=10_000, description="cells of the time grid")] = 128

    privacy_level: Annotated[
        int,
        Field(ge=1, description="rows that stand behind every sum that leaves a site in clear"),
    ] = 5
    on_small_site: Annotated[
        Literal["error", "exclude"],
        Field(description="a site with too few rows: end the run, or go on without it"),
    ] = "error"

    dp_mechanism: Annotated[
        Literal["gaussian", "laplace", "none"],
        Field(description='noise on the clipped update, added at the site; "none" switches it off'),
    ] = "gaussian"
    dp_clip_norm: Annotated[
        float, Field(gt=0, allow_inf_nan=False, description="bound of the update's L2 norm")
    ] = 0.5
    dp_noise_multiplier: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="drives gaussian noise")
    ] = 0.05
    dp_sensitivity: Annotated[
        float, Field(gt=0, allow_inf_nan=False, description="factor on the noise scale")
    ] = 1.0
    dp_epsilon: Annotated[
        float,
        Field(gt=0, allow_inf_nan=False, description="drives laplace noise; no epsilon achieved"),
    ] = 1.0
    dp_delta: Annotated[
        float, Field(gt=0, lt=1, description="drives nothing; kept for the Renyi conversion")
    ] = 1e-5

    @model_validator(mode="after")
    def _refuse_bad_categories(self) -> Self:
        try:
            declared = parse_categories(self.categories)
        except ValueError as error:
            lines = (f"categories: {line}" for line in str(error).split("; "))
            raise ValueError("; ".join(lines)) from None
        strangers = [
            name for name in declared if self.named_features and name not in self.named_features
        ]
        if strangers:
            raise ValueError(
                "; ".join(f"categories: {name!r} must be one of features" for name in strangers)
            )
        return self

    @property
    def named_features(self) -> list[str]:
        """Feature columns by name; empty: every other column."""
        return [part.strip() for part in self.features.split(",") if part.strip()]

    @property
    def declared_categories(self) -> dict[str, DeclaredCategories]:
        """Declared categories by column."""
        return parse_categories(self.categories)

    @property
    def hidden_units(self) -> tuple[int, ...]:
        """Units of the hidden layers, from the first to the last."""
        return tuple(int(units) for units in self.hidden_layers.split(","))

    @property
    def design(self) -> Design:
        """What a simulated data set is to be like."""
        return Design(
            n_rows=self.n_rows,
            n_features=self.n_features,
            rho=None if self.rho == -1 else self.rho,
            censoring_rate=self.censoring_rate or None,
            censoring_fraction=self.censoring_fraction or None,
        )

    @property
    def privatization(self) -> PrivatizationSettings | None:
        """How updates are privatized; None if they are not."""
        if self.dp_mechanism == "none":
            return None
        return PrivatizationSettings(
            mechanism=self.dp_mechanism,
            clip_norm=self.dp_clip_norm,
            noise_multiplier=self.dp_noise_multiplier,
            sensitivity=self.dp_sensitivity,
            epsilon=self.dp_epsilon,
        )
