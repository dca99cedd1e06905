"""Configuration of the vertical XGBoost task: every key with its type, range and meaning."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.secure.record_names import Protection
from tasks.vertical_xgboost.contradictions import contradictions

ObjectiveName = Literal["binary:logistic", "multi:softprob", "reg:squarederror", "count:poisson"]
TextCoding = Literal["refuse", "sorted", "one-hot"]


class VerticalXGBoostConfig(BaseModel):
    """Settings of one training run (``vertical-xgboost.*`` in the run configuration).

    Names are XGBoost's where it has them, and defaults but for ``max-bin`` and ``base-score``;
    XGBoost's ``lambda`` is no name that Python allows and reads as `reg_lambda` here.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
    )

    mode: Annotated[
        Literal["train", "predict", "importance", "export"],
        Field(
            description="grow a model, predict new rows by the parties of one, sum how much it "
            "uses each feature, or export it, to which they all have to consent"
        ),
    ] = "train"
    model: Annotated[
        str,
        Field(
            description='all modes but "train": the training, as "run-123" of its summary; in a '
            "simulation the folder of that run"
        ),
    ] = ""
    warm_start: Annotated[
        str,
        Field(
            description='mode "train": model that the new trees are added to, as "run-123" of its '
            'summary; in a simulation the folder of that run; "": none'
        ),
    ] = ""
    prediction: Annotated[
        Literal["direct", "routed"],
        Field(
            description="whoever asks hears the sides of its rows at all splits, or rows go from "
            "owner to owner and it hears sums over trees alone"
        ),
    ] = "direct"
    asker: Annotated[
        str,
        Field(
            description='party that gets the predictions of all rows; "" means each party those '
            "of the rows whose labels it owns"
        ),
    ] = ""
    export_consent: Annotated[
        bool,
        Field(
            description="simulation: all parties let the model be exported; a deployed party says "
            "so in its node configuration"
        ),
    ] = False
    data: Annotated[
        str,
        Field(
            description="simulation: name of a bundled data set, or path of a CSV or Parquet file"
        ),
    ] = "breast-cancer-columns"
    id: Annotated[
        str, Field(description='column of row ids; "" means "id", or the bundled one')
    ] = ""
    label: Annotated[
        str,
        Field(
            description='column of labels, empty where a party has none; "" means "label", or the '
            "bundled one"
        ),
    ] = ""
    categorical: Annotated[
        TextCoding,
        Field(
            description="columns of text: refused, numbers in the order of their sorted values, or "
            "a 0/1 feature a value; a party may declare its own in its node configuration"
        ),
    ] = "refuse"
    positive_label: Annotated[
        str, Field(min_length=1, description="binary:logistic: label of the positive class")
    ] = "1"
    negative_label: Annotated[
        str,
        Field(
            description='binary:logistic: label of the negative class; "" means "0" (or "1", '
            'where "0" is the positive one)'
        ),
    ] = ""
    classes: Annotated[
        str,
        Field(
            description="multi:softprob: labels of all classes, class 0 first, with commas between "
            "them; declared, since a set found in the rows would tell whose rows have which"
        ),
    ] = ""
    weight: Annotated[
        str,
        Field(
            description='column of row weights at the owners of labels, 0 or more; "": all weigh '
            "the same"
        ),
    ] = ""
    label_bound: Annotated[
        float,
        Field(
            ge=0,
            le=1e30,
            allow_inf_nan=False,
            description="reg:squarederror, count:poisson: largest absolute label; 0: every party "
            "tells the power of two above its largest one",
        ),
    ] = 0.0

    objective: Annotated[ObjectiveName, Field(description="loss to minimize")] = "binary:logistic"
    num_trees: Annotated[int, Field(ge=1, le=10_000, description="trees to grow, at most")] = 10
    max_depth: Annotated[
        int, Field(ge=0, le=12, description="levels of splits; 0 is a single leaf a tree")
    ] = 6
    max_bin: Annotated[int, Field(ge=2, le=255, description="quantile buckets of a feature")] = 32
    eta: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False, description="learning rate")] = 0.3
    reg_lambda: Annotated[
        float,
        Field(
            alias="lambda", ge=0, le=1e30, allow_inf_nan=False, description="L2 penalty of leaves"
        ),
    ] = 1.0
    gamma: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="least gain of a split")
    ] = 0.0
    min_child_weight: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="least sum of Hessians in a child")
    ] = 1.0
    min_instances: Annotated[
        int,
        Field(
            ge=0,
            description="a party refuses splits that leave it fewer own rows on a side (none is "
            "allowed); from 2 on trees differ from central ones",
        ),
    ] = 0
    subsample: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            allow_inf_nan=False,
            description="share of the training rows that each tree is grown on, drawn by seed, "
            "which all know: no privacy comes of it",
        ),
    ] = 1.0
    colsample_bytree: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            allow_inf_nan=False,
            description="share of the columns of all parties that each tree may split, drawn by "
            "seed; others have no candidates, and no ciphertexts",
        ),
    ] = 1.0
    base_score: Annotated[
        str,
        Field(
            pattern=r"^(mean|[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)$",
            description="prediction before the first tree (a probability for binary:logistic, a "
            "rate for count:poisson; multi:softprob: 0, all classes alike); "
            '"mean" of the training labels by a masked sum',
        ),
    ] = "mean"

    test_fraction: Annotated[
        float, Field(ge=0, le=0.9, description="share of the rows kept for evaluation")
    ] = 0.2
    early_stopping_rounds: Annotated[
        int,
        Field(ge=0, description="trees without a better evaluation loss before it stops; 0: never"),
    ] = 0

    dp_epsilon: Annotated[
        float,
        Field(
            ge=0,
            le=1000,
            allow_inf_nan=False,
            description="partial differential privacy: epsilon of all noisy leaf weights that a "
            "source receives in the training; 0: off",
        ),
    ] = 0.0
    dp_delta: Annotated[
        float,
        Field(gt=0, lt=1, allow_inf_nan=False, description="delta that goes with dp-epsilon"),
    ] = 1e-5
    dp_clip: Annotated[
        float,
        Field(
            gt=0,
            le=1e30,
            allow_inf_nan=False,
            description="C: a leaf weight is clipped to [-C, C] before noise (unit of margins)",
        ),
    ] = 1.0
    sensitivity: Annotated[
        Literal["exact", "paper"],
        Field(
            description="noise by the true sensitivity 2C and all leaves that one label may move; "
            '"paper": C, and one leaf a tree, as PIVODL has it (too little noise)'
        ),
    ] = "exact"

    encryption: Annotated[
        Literal["paillier", "none"],
        Field(description='encryption of sums; "none" is a baseline for experiments only'),
    ] = "paillier"
    key_bits: Annotated[
        int, Field(ge=256, le=8192, description="bits of a Paillier modulus; below 2048 is weak")
    ] = 2048
    allow_weak_key: Annotated[
        bool, Field(description="permit key-bits below 2048: experiments only")
    ] = False
    engine: Annotated[
        Literal["gmpy2", "phe"], Field(description="implementation of Paillier encryption")
    ] = "gmpy2"
    aggregator: Annotated[
        Literal["server", "source"],
        Field(description="who adds the ciphertexts: the server, or the owner of the columns"),
    ] = "server"
    shuffle: Annotated[
        bool,
        Field(description="hide which candidate is which from the party that decrypts"),
    ] = True
    fixed_point_bits: Annotated[
        int, Field(ge=20, le=40, description="bits behind the point of gradients and Hessians")
    ] = 32
    alignment: Annotated[
        Literal["same", "hashed", "psi"],
        Field(
            description="rows: all parties have the same ids; or those that all have, found by "
            "keyed hashes, or by private set intersection (extra psi)"
        ),
    ] = "same"
    alignment_hub: Annotated[
        str, Field(description='party that compares the ids; "" means the first by name')
    ] = ""
    allow_two_parties: Annotated[
        bool,
        Field(description="permit two parties, where each finds the other's sums by subtraction"),
    ] = False

    @property
    def known_negative_label(self) -> str:
        """The negative label, declared or not: the same at every party, whatever its rows hold."""
        return self.negative_label or ("1" if self.positive_label.strip() == "0" else "0")

    @property
    def given_base_score(self) -> float | None:
        """The base score as a number; None for the mean of the training labels."""
        return None if self.base_score == "mean" else float(self.base_score)

    @property
    def sums_labels(self) -> bool:
        """Whether the base score is made of the training labels."""
        return self.given_base_score is None and not self.warm_start

    @property
    def sums_protection(self) -> Protection:
        """How sums of gradients are protected where the server adds them up or hands them on."""
        return "clear" if self.encryption == "none" else "encrypted"

    @property
    def shares_protection(self) -> Protection:
        """How a party's shares are protected on their way to who adds them up."""
        return "sealed" if self.aggregator == "source" else self.sums_protection

    @property
    def tells_label_sizes(self) -> bool:
        """Whether owners tell how large their labels are, since nothing else bounds them."""
        return self.objective in ("reg:squarederror", "count:poisson") and not self.label_bound

    @property
    def samples_columns(self) -> bool:
        """Whether a tree has the candidates of some columns only."""
        return self.colsample_bytree < 1.0

    @property
    def has_refusals(self) -> bool:
        """Whether label owners may refuse candidates: a side of one own row refuses nothing."""
        return self.min_instances >= 2

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        faults = contradictions(self)
        if faults:
            raise ValueError("; ".join(faults))
        return self
