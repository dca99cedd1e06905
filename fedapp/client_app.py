"""The ClientApp: one function a message type. A task is imported inside its handler, since every
message of a deployed run starts a process and torch alone takes seconds to import."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedapp.fingerprint import code_fingerprint
from fedapp.hosted_sites import each_hosted_site
from fedapp.prepared_sites import roc_glm_site, survival_site, vertical_site
from fedapp.site_limits import within_site_limits
from tasks.site.client import answering_faults, introduce
from tasks.site.messages import TaskPart
from tasks.vertical_xgboost.answering import answering_once

# The limits of a site are those of each hosted one, so they come second.
app = ClientApp(mods=[each_hosted_site, within_site_limits])


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
            return _introduce_vertical(message, context)
        return TaskPart()

    return introduce(
        message,
        context,
        fingerprint=code_fingerprint(),
        site_name=lambda: site_name(context.node_config),
        check_data=lambda: survival_site(context) if task == "survival" else None,
        task_part=task_part,
    )


@app.query("survival_statistics")
@answering_faults
def survival_statistics(message: Message, context: Context) -> Message:
    """Return moments of the features and counts by time."""
    from tasks.survival import answering

    return answering.statistics(message, survival_site(context), context)


@app.train()
@answering_faults
def survival_train(message: Message, context: Context) -> Message:
    """Evaluate the global model, train it on this site's rows, privatize the update."""
    from tasks.survival import answering

    return answering.train(message, survival_site(context), context)


@app.evaluate()
@answering_faults
def survival_evaluate(message: Message, context: Context) -> Message:
    """Evaluate the final model and sum what the baseline hazard is made of."""
    from tasks.survival import answering

    return answering.evaluate(message, survival_site(context), context)


@app.query("survival_curves")
@answering_faults
def survival_curves(message: Message, context: Context) -> Message:
    """Sum predicted and observed survival by risk group."""
    from tasks.survival import answering

    return answering.curves(message, survival_site(context), context)


@app.query("roc_glm_release")
@answering_faults
def roc_glm_release(message: Message, context: Context) -> Message:
    """Release the survivor functions of this site's scores as the configuration lets them leave."""
    from tasks.roc_glm import client

    return client.release(message, roc_glm_site(context), context)


@app.query("roc_glm_counts")
@answering_faults
def roc_glm_counts(message: Message, context: Context) -> Message:
    """Sum this site's positives under the pooled survivor function of the negatives."""
    from tasks.roc_glm import client

    return client.counts(message, roc_glm_site(context), context)


@app.query("roc_glm_fisher")
@answering_faults
def roc_glm_fisher(message: Message, context: Context) -> Message:
    """Sum score vector, information and deviance of the ROC-GLM over this site's positives."""
    from tasks.roc_glm import client

    return client.fisher(message, roc_glm_site(context), context)


@app.query("vertical_invite")
@answering_once
def vertical_invite(message: Message, context: Context) -> Message:
    """Blind this party's ids for a private set intersection, as its hub."""
    from tasks.vertical_xgboost import alignment_client

    return alignment_client.invite(message, vertical_site(context), context)


@app.query("vertical_align")
@answering_once
def vertical_align(message: Message, context: Context) -> Message:
    """Hash or blind this party's ids for the hub, sealed."""
    from tasks.vertical_xgboost import alignment_client

    return alignment_client.align(message, vertical_site(context), context)


@app.query("vertical_match")
@answering_once
def vertical_match(message: Message, context: Context) -> Message:
    """Find the rows that all parties have, as hub, and tell them sealed."""
    from tasks.vertical_xgboost import alignment_client

    return alignment_client.match(message, vertical_site(context), context)


@app.query("vertical_common")
@answering_once
def vertical_common(message: Message, context: Context) -> Message:
    """Keep the common rows; tell how large the labels of these are."""
    from tasks.vertical_xgboost import alignment_client

    return alignment_client.common(message, vertical_site(context), context)


@app.query("vertical_labels")
@answering_once
def vertical_labels(message: Message, context: Context) -> Message:
    """Tell the other parties, sealed, whose labels this one owns; sum its labels under masks."""
    from tasks.vertical_xgboost import client

    return client.labels(message, vertical_site(context), context)


@app.query("vertical_buckets")
@answering_once
def vertical_buckets(message: Message, context: Context) -> Message:
    """Tell each label owner, sealed, the buckets of its rows."""
    from tasks.vertical_xgboost import client

    return client.buckets(message, vertical_site(context), context)


@app.query("vertical_histograms")
@answering_once
def vertical_histograms(message: Message, context: Context) -> Message:
    """Sum gradients for every open node and candidate, encrypted for split clients."""
    from tasks.vertical_xgboost import level_client

    return level_client.histograms(message, vertical_site(context), context)


@app.query("vertical_aggregate")
@answering_once
def vertical_aggregate(message: Message, context: Context) -> Message:
    """Add up the owners' encrypted sums for this party's columns."""
    from tasks.vertical_xgboost import level_client

    return level_client.aggregate(message, vertical_site(context), context)


@app.query("vertical_decide")
@answering_once
def vertical_decide(message: Message, context: Context) -> Message:
    """Decrypt totals and offer the best gain of each source."""
    from tasks.vertical_xgboost import level_client

    return level_client.decide(message, vertical_site(context), context)


@app.query("vertical_finish")
@answering_once
def vertical_finish(message: Message, context: Context) -> Message:
    """Keep this party's part of the model."""
    from tasks.vertical_xgboost import client

    return client.finish(message, vertical_site(context), context)


@app.query("vertical_trim")
@answering_once
def vertical_trim(message: Message, context: Context) -> Message:
    """Keep fewer trees of this party's part of the model."""
    from tasks.vertical_xgboost import client

    return client.trim(message, vertical_site(context), context)


@app.query("vertical_predict")
@answering_once
def vertical_predict(message: Message, context: Context) -> Message:
    """Tell others, sealed, sides or rows at this party's splits of a model."""
    from tasks.vertical_xgboost import prediction_client

    return prediction_client.predict(message, vertical_site(context), context)


@app.query("vertical_predictions")
@answering_once
def vertical_predictions(message: Message, context: Context) -> Message:
    """Write down the predictions of this party's rows."""
    from tasks.vertical_xgboost import prediction_client

    return prediction_client.predictions(message, vertical_site(context), context)


@app.query("vertical_importance")
@answering_once
def vertical_importance(message: Message, context: Context) -> Message:
    """Sum, under masks, how much the trees use each feature."""
    from tasks.vertical_xgboost import importance_client

    return importance_client.importance(message, vertical_site(context), context)


@app.query("vertical_export")
@answering_once
def vertical_export(message: Message, context: Context) -> Message:
    """Tell this party's part of the model, if it consents."""
    from tasks.vertical_xgboost import export_client

    return export_client.export(message, vertical_site(context), context)


@app.query("vertical_stop")
@answering_once
def vertical_stop(message: Message, context: Context) -> Message:
    """Forget the keys of a run that ended without a model."""
    from tasks.vertical_xgboost import client

    return client.stop(message, context)


def _introduce_survival(context: Context) -> TaskPart:
    from tasks.survival import client

    return client.introduction(survival_site(context))


def _introduce_roc_glm(message: Message, context: Context) -> TaskPart:
    from tasks.roc_glm import client, site_state
    from tasks.roc_glm.request_checks import read_request
    from tasks.site.messages import HelloRequest

    model = read_request(message.content, HelloRequest.from_record).task.get("model")
    if model:
        site_state.remember_model(context, str(model))
    return client.introduction(roc_glm_site(context), context)


def _introduce_vertical(message: Message, context: Context) -> TaskPart:
    from tasks.site.messages import HelloRequest
    from tasks.site.requests import read_request
    from tasks.vertical_xgboost import client, site_state

    task = read_request(lambda: HelloRequest.from_record(message.content)).task
    if resumed := task.get("resumed"):
        site_state.remember_resumed(context, str(resumed))
    return client.introduction(vertical_site(context), context)
