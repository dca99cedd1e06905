"""A site's half of the survival task: message in, sums or a privatized update out.

What a handler needs of its site is in :class:`SurvivalSite`; it holds rows and never travels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from flwr.app import Message

from tasks.privacy.site_budget import SiteBudget
from tasks.site.faults import SMALL_SITE, SiteFault
from tasks.site.messages import TaskPart
from tasks.site.requests import read_request
from tasks.survival.concordance import ConcordanceSums
from tasks.survival.config import SurvivalConfig
from tasks.survival.curves import GroupCurves
from tasks.survival.curves_messages import CurvesReply, CurvesRequest
from tasks.survival.data import SurvivalData, read_survival_data, split
from tasks.survival.evaluation_plan import EvaluationPlan
from tasks.survival.medians import MEDIAN_BINS, slot_counts
from tasks.survival.messages import (
    Arrays,
    EvaluateReply,
    EvaluationSums,
    TrainConfig,
    TrainReply,
    model_arrays,
)
from tasks.survival.models import (
    SurvivalModel,
    build_configured,
    load_arrays,
)
from tasks.survival.private_update import private_update
from tasks.survival.risk_sets import (
    FloatArray,
    RiskSetSums,
    coarsen,
    horizon_bound,
    time_grid,
)
from tasks.survival.set_up_messages import (
    StatisticsReply,
    StatisticsRequest,
    SurvivalFacts,
)
from tasks.survival.site_columns import SiteColumns
from tasks.survival.site_evaluation import (
    concordance_sums,
    has_identical_predictions,
    metric_sums,
    risk_set_sums,
)
from tasks.survival.spending import update_cost
from tasks.survival.standardization import FeatureMoments, Standardizer
from tasks.survival.survival_metrics import SurvivalMetricsSums
from tasks.survival.training import train as train_locally

# One stream of random numbers a use and site, so that none depends on how many others were drawn.
_SPLIT, _BATCHES, _NOISE = 1, 2, 3  # 4: site_columns


@dataclass(frozen=True, eq=False)
class SurvivalSite:
    """Rows and settings of one site.

    Attributes
    ----------
    name : str
        The site's name.
    data_set : str
        Name of the bundled data set that the rows are of; ``""``: the site's own.
    training, evaluation : SurvivalData
        Its rows; `evaluation` may be empty.
    config : SurvivalConfig
        Settings of the run.
    seed : int
        Of splits and batches.
    noise_seed : int or None
        Of protecting noise, in simulations that ask for it; None: the operating system's.
    budget : SiteBudget or None
        What the run may spend of the site's privacy; None: the site sets no maximum.
    """

    name: str
    data_set: str
    training: SurvivalData
    evaluation: SurvivalData
    config: SurvivalConfig
    seed: int
    noise_seed: int | None = None
    budget: SiteBudget | None = None

    @classmethod
    def prepare(
        cls,
        frame: pd.DataFrame,
        *,
        name: str,
        data_set: str,
        time: str,
        event: str,
        config: SurvivalConfig,
        seed: int,
        noise_seed: int | None = None,
        budget: SiteBudget | None = None,
    ) -> SurvivalSite:
        """Check a site's table and split it into training and evaluation rows.

        Raises
        ------
        SiteFault
            With everything that is wrong with the table, or ``small-site`` if fewer than
            privacy-level rows are left to train on.
        """
        named = config.named_features
        data = read_survival_data(
            frame,
            time=time,
            event=event,
            # In the order of names where none is given: columns of two sites may be ordered apart.
            features=named or sorted(set(map(str, frame.columns)) - {time, event}),
            event_value=config.event_value,
            censored_value=config.censored_value,
            categories=config.declared_categories,
            allow_missing=config.missing == "median",
        )
        rng = np.random.default_rng([_SPLIT, seed, *name.encode()])
        training, evaluation = split(data, test_fraction=config.test_fraction, rng=rng)
        if len(training) < config.privacy_level:
            raise SiteFault(
                SMALL_SITE,
                f"fewer than survival.privacy-level = {config.privacy_level} training rows",
            )
        return cls(name, data_set, training, evaluation, config, seed, noise_seed, budget)

    def rng(self, use: int, server_round: int) -> np.random.Generator:
        """Return the site's generator for one use in one round."""
        return np.random.default_rng([use, self.seed, server_round, *self.name.encode()])

    @property
    def columns(self) -> SiteColumns:
        """The site's feature columns, and what may be told of them."""
        return SiteColumns(self.name, self.training, self.evaluation, self.config, self.seed)

    def model(
        self, message: Message, standardizer: Standardizer, *, horizon: float, cuts: FloatArray
    ) -> tuple[SurvivalModel, Arrays]:
        """Build the model with the arrays of a message; return it, and the arrays.

        Its inputs are those that the standardizer makes of the site's columns; for `horizon` and
        `cuts` see `tasks.survival.models.Design`.
        """
        self.columns.refuse_others(standardizer.encoding)
        arrays = read_request(lambda: model_arrays(message.content))
        try:
            model = build_configured(
                self.config,
                n_features=standardizer.mean.size,
                horizon=horizon,
                cuts=cuts,
            )
            load_arrays(model.network, arrays)
        except ValueError as error:
            raise SiteFault("other-model", f"the server's {error}") from None
        return model, arrays

    def noise_rng(self, server_round: int) -> np.random.Generator | None:
        """Return the seeded generator of protecting noise, or None for the secure one."""
        if self.noise_seed is None:
            return None
        words = [_NOISE, self.noise_seed, server_round, *self.name.encode()]
        return np.random.default_rng(words)


def introduction(site: SurvivalSite) -> TaskPart:
    """Return what this task adds to the site's introduction.

    Raises
    ------
    SiteFault
        If what is left of the site's budget cannot be enough.
    """
    if site.budget is not None:
        # Of one client: the noise of more is less.
        site.budget.check(update_cost(site.config, num_clients=1), releases=site.config.rounds)
    bound = horizon_bound(site.training.time, privacy_level=site.config.privacy_level)
    facts = SurvivalFacts(bound, tuple(map(site.columns.facts, site.training.feature_names)))
    return TaskPart(facts=facts.to_facts())


def statistics(message: Message, site: SurvivalSite) -> Message:
    """Answer ``statistics``: moments and histograms of the features, and counts by time."""
    request = StatisticsRequest.from_record(message.content)
    training, level = site.training, site.config.privacy_level
    site.columns.refuse_others(request.encoding)
    grid = time_grid(request.grid_horizon, site.config.time_bins)
    exact = RiskSetSums.of(training.time, training.event, np.zeros(len(training)), grid=grid)
    kinds = {column.name: column.kind for column in request.encoding.columns}
    if any(kinds.get(name, "one-hot") == "one-hot" for name in request.median_ranges):
        raise SiteFault("other-columns", "the server asks for a median of what has none")
    histograms = [
        slot_counts(site.columns.told_values(name), low=low, high=high, privacy_level=level)
        for name, (low, high) in request.median_ranges.items()
    ]
    reply = StatisticsReply(
        # In the order of rows, in which sums are added up: the last bit depends on it.
        moments=FeatureMoments.of(np.ascontiguousarray(training.features[:, request.summed])),
        histograms=np.array(histograms).reshape(len(histograms), MEDIAN_BINS + 2),
        n_events=int(training.event.sum()),
        n_test=len(site.evaluation),
        counts=coarsen(exact, privacy_level=level),
        data_set=site.data_set,
    )
    return Message(reply.to_record(), reply_to=message)


def train(message: Message, site: SurvivalSite) -> Message:
    """Answer ``train``: evaluate the global model, train it, privatize the update."""
    request = TrainConfig.of_message(message.content)
    model, received = site.model(
        message, request.standardizer, horizon=request.grid_horizon, cuts=request.label_cuts
    )
    due = (request.server_round - 1) % site.config.evaluate_every == 0
    evaluation = _evaluate(model, site, request.standardizer, cuts=request.label_cuts, due=due)
    training = site.training
    result = train_locally(
        model,
        request.standardizer.apply(training.features),
        training.time,
        training.event,
        local_steps=site.config.local_steps,
        learning_rate=site.config.learning_rate,
        weight_decay=site.config.weight_decay,
        batch_size=site.config.batch_size,
        rng=site.rng(_BATCHES, request.server_round),
    )
    reply = TrainReply(
        arrays=private_update(site, received, model, request),
        num_examples=len(training),
        # Thirty exact losses of five rows would be thirty equations.
        loss=round(result.mean_loss or 0.0, 3),
        loss_steps=result.n_steps - result.n_idle_steps,
        evaluation=evaluation,
    )
    return Message(reply.to_record(), reply_to=message)


def evaluate(message: Message, site: SurvivalSite) -> Message:
    """Answer ``evaluate``: the final model's evaluation, and the sums of the baseline hazard."""
    request = TrainConfig.of_message(message.content)
    model, _ = site.model(
        message, request.standardizer, horizon=request.grid_horizon, cuts=request.label_cuts
    )
    training = site.training
    risk = _predictions(model, site, request.standardizer, training)
    grid = time_grid(request.grid_horizon, site.config.time_bins)
    inputs = request.standardizer.apply(training.features)
    exact = risk_set_sums(model, inputs, training, risk, grid=grid)
    reply = EvaluateReply(
        num_examples=len(training),
        evaluation=_evaluate(model, site, request.standardizer, cuts=request.label_cuts, due=True),
        risk_sets=coarsen(exact, privacy_level=site.config.privacy_level),
        risk_moments=FeatureMoments.of(risk[:, None]),
    )
    return Message(reply.to_record(), reply_to=message)


def curves(message: Message, site: SurvivalSite) -> Message:
    """Answer ``curves``: survival by risk group, and the metrics of the final model.

    Groups are of training rows, although they are what the model was fitted to: of a fifth of
    them, few sites have enough in every group.
    """
    request = CurvesRequest.from_record(message.content)
    baseline, training = request.baseline, site.training
    model, _ = site.model(
        message, request.standardizer, horizon=baseline.horizon, cuts=request.label_cuts
    )
    predicted = None  # by the baseline and the risk
    if model.kind != "proportional-hazards":
        inputs = request.standardizer.apply(training.features)
        predicted = model.survival(inputs, baseline.grid, baseline)
    grouped = GroupCurves.of(
        training.time,
        training.event,
        _predictions(model, site, request.standardizer, training),
        cuts=request.cuts,
        baseline=baseline,
        privacy_level=site.config.privacy_level,
        predicted=predicted,
    )
    metrics = None if request.plan is None else _metrics(model, site, request, request.plan)
    return Message(CurvesReply(grouped, metrics).to_record(), reply_to=message)


def _evaluate(
    model: SurvivalModel,
    site: SurvivalSite,
    standardizer: Standardizer,
    *,
    cuts: FloatArray,
    due: bool,
) -> EvaluationSums:
    rows = site.evaluation
    if not due or len(rows) < site.config.privacy_level:
        return EvaluationSums(ConcordanceSums(), rows=0, identical=False)
    risk = _predictions(model, site, standardizer, rows)
    inputs = standardizer.apply(rows.features)
    sums = concordance_sums(model, inputs, rows, risk, cuts=cuts)
    identical = has_identical_predictions(model, inputs, risk, cuts=cuts)
    return EvaluationSums(sums, rows=len(rows), identical=identical)


def _metrics(
    model: SurvivalModel, site: SurvivalSite, request: CurvesRequest, plan: EvaluationPlan
) -> SurvivalMetricsSums:
    """Sums of the metrics of the plan over the site's evaluation rows."""
    rows = site.evaluation
    if len(rows) < site.config.privacy_level:
        return SurvivalMetricsSums.zeros(plan)
    risk = _predictions(model, site, request.standardizer, rows)
    return metric_sums(
        model,
        request.standardizer.apply(rows.features),
        rows,
        risk,
        plan=plan,
        baseline=request.baseline,
        privacy_level=site.config.privacy_level,
    )


def _predictions(
    model: SurvivalModel, site: SurvivalSite, standardizer: Standardizer, rows: SurvivalData
) -> FloatArray:
    risk = model.risk(standardizer.apply(rows.features))
    if not np.isfinite(risk).all():
        raise SiteFault(
            "diverged",
            "the model has diverged, or its network gives no finite numbers for these features: "
            "its predictions are none; lower "
            f"survival.learning-rate = {site.config.learning_rate:g}, or the noise",
        )
    return risk
