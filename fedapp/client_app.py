"""The ClientApp: one function a message type. A task is imported inside its handler, since every
message of a deployed run starts a process and torch alone takes seconds to import."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedapp import run_config
from fedapp.fingerprint import code_fingerprint
from fedapp.hosted_sites import each_hosted_site
from tasks.site.client import answering_faults, introduce
from tasks.site.faults import SiteFault
from tasks.site.messages import TaskPart
from tasks.vertical_xgboost.answering import answering_once

if TYPE_CHECKING:
    from tasks.roc_glm.client import RocGlmSite
    from tasks.survival.client import SurvivalSite
    from tasks.vertical_xgboost.site import VerticalSite

app = ClientApp(mods=[each_hosted_site])

Items = tuple[tuple[str, bool | int | float | str], ...]


@app.query("hello")
@answering_faults
def hello(message: Message, context: Context) -> Message:
    """Say who this site is, which code it runs, and whether its data fit the run."""
    from fedapp.site_data import site_name

    task = context.run_config.get("task")

    def task_part() -> TaskPart:
        """What the run's task adds."""
        if task == "survival":
            return _introduce_survival(context)
        if task == "roc-glm":
            return _introduce_roc_glm(message, context)
        if task == "vertical-xgboost":
            return _introduce_vertical(context)
        return TaskPart()

    return introduce(
        message,
        context,
        fingerprint=code_fingerprint(),
        site_name=lambda: site_name(context.node_config),
        check_data=lambda: _survival_site(context) if task == "survival" else None,
        task_part=task_part,
    )


@app.query("survival_statistics")
@answering_faults
def survival_statistics(message: Message, context: Context) -> Message:
    """Return moments of the features and counts by time."""
    from tasks.survival import client

    return client.statistics(message, _survival_site(context))


@app.train()
@answering_faults
def survival_train(message: Message, context: Context) -> Message:
    """Evaluate the global model, train it on this site's rows, privatize the update."""
    from tasks.survival import client

    return client.train(message, _survival_site(context))


@app.evaluate()
@answering_faults
def survival_evaluate(message: Message, context: Context) -> Message:
    """Evaluate the final model and sum what the baseline hazard is made of."""
    from tasks.survival import client

    return client.evaluate(message, _survival_site(context))


@app.query("survival_curves")
@answering_faults
def survival_curves(message: Message, context: Context) -> Message:
    """Sum predicted and observed survival by risk group."""
    from tasks.survival import client

    return client.curves(message, _survival_site(context))


@app.query("roc_glm_release")
@answering_faults
def roc_glm_release(message: Message, context: Context) -> Message:
    """Release the survivor functions of this site's scores as the configuration lets them leave."""
    from tasks.roc_glm import client

    return client.release(message, _roc_glm_site(context), context)


@app.query("roc_glm_counts")
@answering_faults
def roc_glm_counts(message: Message, context: Context) -> Message:
    """Sum this site's positives under the pooled survivor function of the negatives."""
    from tasks.roc_glm import client

    return client.counts(message, _roc_glm_site(context), context)


@app.query("roc_glm_fisher")
@answering_faults
def roc_glm_fisher(message: Message, context: Context) -> Message:
    """Sum score vector, information and deviance of the ROC-GLM over this site's positives."""
    from tasks.roc_glm import client

    return client.fisher(message, _roc_glm_site(context), context)


@app.query("vertical_invite")
@answering_once
def vertical_invite(message: Message, context: Context) -> Message:
    """Blind this party's ids for a private set intersection, as its hub."""
    from tasks.vertical_xgboost import alignment_client

    return alignment_client.invite(message, _vertical_site(context), context)


@app.query("vertical_align")
@answering_once
def vertical_align(message: Message, context: Context) -> Message:
    """Hash or blind this party's ids for the hub, sealed."""
    from tasks.vertical_xgboost import alignment_client

    return alignment_client.align(message, _vertical_site(context), context)


@app.query("vertical_match")
@answering_once
def vertical_match(message: Message, context: Context) -> Message:
    """Find the rows that all parties have, as hub, and tell them sealed."""
    from tasks.vertical_xgboost import alignment_client

    return alignment_client.match(message, _vertical_site(context), context)


@app.query("vertical_common")
@answering_once
def vertical_common(message: Message, context: Context) -> Message:
    """Keep the common rows; tell how large the labels of these are."""
    from tasks.vertical_xgboost import alignment_client

    return alignment_client.common(message, _vertical_site(context), context)


@app.query("vertical_labels")
@answering_once
def vertical_labels(message: Message, context: Context) -> Message:
    """Tell the other parties, sealed, whose labels this one owns; sum its labels under masks."""
    from tasks.vertical_xgboost import client

    return client.labels(message, _vertical_site(context), context)


@app.query("vertical_buckets")
@answering_once
def vertical_buckets(message: Message, context: Context) -> Message:
    """Tell each label owner, sealed, the buckets of its rows."""
    from tasks.vertical_xgboost import client

    return client.buckets(message, _vertical_site(context), context)


@app.query("vertical_histograms")
@answering_once
def vertical_histograms(message: Message, context: Context) -> Message:
    """Sum gradients for every open node and candidate, encrypted for split clients."""
    from tasks.vertical_xgboost import level_client

    return level_client.histograms(message, _vertical_site(context), context)


@app.query("vertical_aggregate")
@answering_once
def vertical_aggregate(message: Message, context: Context) -> Message:
    """Add up the owners' encrypted sums for this party's columns."""
    from tasks.vertical_xgboost import level_client

    return level_client.aggregate(message, _vertical_site(context), context)


@app.query("vertical_decide")
@answering_once
def vertical_decide(message: Message, context: Context) -> Message:
    """Decrypt totals and offer the best gain of each source."""
    from tasks.vertical_xgboost import level_client

    return level_client.decide(message, _vertical_site(context), context)


@app.query("vertical_finish")
@answering_once
def vertical_finish(message: Message, context: Context) -> Message:
    """Keep this party's part of the model."""
    from tasks.vertical_xgboost import client

    return client.finish(message, _vertical_site(context), context)


@app.query("vertical_trim")
@answering_once
def vertical_trim(message: Message, context: Context) -> Message:
    """Keep fewer trees of this party's part of the model."""
    from tasks.vertical_xgboost import client

    return client.trim(message, _vertical_site(context), context)


@app.query("vertical_predict")
@answering_once
def vertical_predict(message: Message, context: Context) -> Message:
    """Tell others, sealed, sides or rows at this party's splits of a model."""
    from tasks.vertical_xgboost import prediction_client

    return prediction_client.predict(message, _vertical_site(context), context)


@app.query("vertical_predictions")
@answering_once
def vertical_predictions(message: Message, context: Context) -> Message:
    """Write down the predictions of this party's rows."""
    from tasks.vertical_xgboost import prediction_client

    return prediction_client.predictions(message, _vertical_site(context), context)


@app.query("vertical_importance")
@answering_once
def vertical_importance(message: Message, context: Context) -> Message:
    """Sum, under masks, how much the trees use each feature."""
    from tasks.vertical_xgboost import importance_client

    return importance_client.importance(message, _vertical_site(context), context)


@app.query("vertical_export")
@answering_once
def vertical_export(message: Message, context: Context) -> Message:
    """Tell this party's part of the model, if it consents."""
    from tasks.vertical_xgboost import export_client

    return export_client.export(message, _vertical_site(context), context)


@app.query("vertical_stop")
@answering_once
def vertical_stop(message: Message, context: Context) -> Message:
    """Forget the keys of a run that ended without a model."""
    from tasks.vertical_xgboost import client

    return client.stop(message, context)


def _introduce_survival(context: Context) -> TaskPart:
    from tasks.survival import client

    return client.introduction(_survival_site(context))


def _survival_site(context: Context) -> SurvivalSite:
    return _read_survival_site(
        context.run_id,
        tuple(sorted(context.node_config.items())),
        tuple(sorted(context.run_config.items())),
    )


@lru_cache(maxsize=512)
def _read_survival_site(run_id: int, node_items: Items, run_items: Items) -> SurvivalSite:
    """Read a site's rows once a process and run; without the cache the result is the same."""
    try:
        config = run_config.read(dict(run_items))
    except run_config.ConfigError as error:
        raise SiteFault("bad-configuration", *error.faults) from None
    return prepare_survival_site(dict(node_items), config)


def _introduce_roc_glm(message: Message, context: Context) -> TaskPart:
    from tasks.roc_glm import client, site_state
    from tasks.roc_glm.request_checks import read_request
    from tasks.site.messages import HelloRequest

    model = read_request(message.content, HelloRequest.from_record).task.get("model")
    if model:
        site_state.remember_model(context, str(model))
    return client.introduction(_roc_glm_site(context), context)


def _roc_glm_site(context: Context) -> RocGlmSite:
    from tasks.roc_glm import site_state

    return _read_roc_glm_site(
        context.run_id,
        tuple(sorted(context.node_config.items())),
        tuple(sorted(context.run_config.items())),
        site_state.known_model(context),
    )


@lru_cache(maxsize=512)
def _read_roc_glm_site(run_id: int, node_items: Items, run_items: Items, model: str) -> RocGlmSite:
    """Read a site's rows once a process and run; without the cache the result is the same."""
    try:
        config = run_config.read(dict(run_items))
    except run_config.ConfigError as error:
        raise SiteFault("bad-configuration", *error.faults) from None
    return prepare_roc_glm_site(dict(node_items), config, model=model)


def _introduce_vertical(context: Context) -> TaskPart:
    from tasks.vertical_xgboost import client

    return client.introduction(_vertical_site(context), context)


def _vertical_site(context: Context) -> VerticalSite:
    from tasks.vertical_xgboost.alignment_client import aligned_site

    site = _read_vertical_site(
        context.run_id,
        tuple(sorted(context.node_config.items())),
        tuple(sorted(context.run_config.items())),
    )
    return aligned_site(site, context)


@lru_cache(maxsize=512)
def _read_vertical_site(run_id: int, node_items: Items, run_items: Items) -> VerticalSite:
    """Read a party's rows once a process and run; without the cache the result is the same."""
    try:
        config = run_config.read(dict(run_items))
    except run_config.ConfigError as error:
        raise SiteFault("bad-configuration", *error.faults) from None
    from fedapp.vertical_party import prepare_vertical_site

    return prepare_vertical_site(dict(node_items), config)


def forget_sites() -> None:
    """Let go of the rows that this process has read for simulated sites."""
    _read_survival_site.cache_clear()
    _read_roc_glm_site.cache_clear()
    _read_vertical_site.cache_clear()


def prepare_survival_site(
    node_config: Mapping[str, run_config.Value], config: run_config.RunConfig
) -> SurvivalSite:
    """Read and check the rows of a node for the survival task.

    Raises
    ------
    SiteFault
        With everything that is wrong with the node's configuration or rows.
    """
    from fedapp import site_data
    from tasks.survival.client import SurvivalSite

    survival = config.survival
    if config.general.seeded_noise and _is_deployed(node_config):
        raise SiteFault(
            "seeded-noise",
            "seeded-noise = true: only in simulation; noise from a known seed protects nobody",
        )
    bundled = site_data.bundled_set(node_config, data=survival.data)
    time = survival.time or (bundled.time if bundled else "time")
    event = survival.event or (bundled.event if bundled else "event")
    frame = site_data.load_frame(
        node_config,
        data=survival.data,
        partition=site_data.Partition(
            kind=survival.partition,
            alpha=survival.dirichlet_alpha,
            column=survival.partition_column,
            time=time,
            event=event,
            event_value=survival.event_value,
        ),
        design=survival.design,
        seed=config.general.seed,
    )
    if bundled:
        frame = site_data.decode(frame, bundled.encoding, columns=survival.declared_categories)
    return SurvivalSite.prepare(
        frame,
        name=site_data.site_name(node_config),
        data_set=bundled.name if bundled else "",
        time=time,
        event=event,
        config=survival,
        seed=config.general.seed,
        noise_seed=config.general.seed if config.general.seeded_noise else None,
    )


def _is_deployed(node_config: Mapping[str, run_config.Value]) -> bool:
    """Whether a node has rows of its own: neither a part of simulated data nor a frame."""
    from fedapp import site_data

    if "partition-id" in node_config and "data-path" not in node_config:
        return False
    return not str(node_config.get("data-path", "")).startswith(site_data.MEMORY_PREFIX)


def prepare_roc_glm_site(
    node_config: Mapping[str, run_config.Value], config: run_config.RunConfig, *, model: str = ""
) -> RocGlmSite:
    """Read and check the rows of a node for the ROC-GLM task.

    Parameters
    ----------
    node_config : mapping
        Of the node.
    config : RunConfig
    model : str
        Model file that the server sent; ``""``: the rows have scores.

    Raises
    ------
    SiteFault
        With everything that is wrong with the node's configuration or rows.
    """
    from fedapp import site_data
    from tasks.roc_glm.client import RocGlmSite
    from tasks.roc_glm.score_model import ScoreModel

    roc_glm = config.roc_glm
    is_deployed = _is_deployed(node_config)
    if config.general.seeded_noise and is_deployed and not roc_glm.allow_seeded_noise:
        raise SiteFault(
            "seeded-noise",
            "seeded-noise = true: on real site data only with roc-glm.allow-seeded-noise = true",
        )
    frame = site_data.load_frame(node_config, data=roc_glm.data, seed=config.general.seed)
    bundled = site_data.bundled_set(node_config, data=roc_glm.data)
    classifier = ScoreModel.from_json(model) if model else None
    quantiles_of = classifier
    if quantiles_of is None and bundled is not None and bundled.classifier is not None:
        quantiles_of = bundled.classifier()
    return RocGlmSite.prepare(
        frame,
        name=site_data.site_name(node_config),
        label=roc_glm.label or (bundled.label if bundled else "") or "label",
        score=roc_glm.score or (bundled.score if bundled else "") or "score",
        config=roc_glm,
        model=classifier,
        quantiles_of=quantiles_of,
        noise_seed=config.general.seed if config.general.seeded_noise else None,
    )
