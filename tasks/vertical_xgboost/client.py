"""A party's half of the vertical XGBoost task: message in, sealed parts or encrypted sums out.

Handlers of set-up and end; those of a tree level are in `level_client`. What a handler needs of its
party is in :class:`~tasks.vertical_xgboost.site.VerticalSite`; it holds rows and never travels.
What it must remember between messages is in the node's state (`site_state`), which is changed
last, after nothing more can fail.
"""

from __future__ import annotations

from logging import WARNING

import numpy as np
from flwr.app import Context, Message
from flwr.supercore import log

from tasks.site.faults import SiteFault
from tasks.site.messages import TaskPart
from tasks.site.requests import read_request
from tasks.vertical_xgboost import (
    export_client,
    importance_client,
    prediction_client,
    set_up,
    site_state,
)
from tasks.vertical_xgboost.aggregate_messages import FIRST_ORDER
from tasks.vertical_xgboost.alignment import id_type
from tasks.vertical_xgboost.alignment_client import (
    FIRST_STEPS,
    hear_common,
    heard_site,
    store_common,
)
from tasks.vertical_xgboost.earlier_trees import cut_for, gradient_exponent, rows_digest
from tasks.vertical_xgboost.end_messages import FinishReply, FinishRequest, StopRequest, TrimRequest
from tasks.vertical_xgboost.heard import hear_decisions, open_all
from tasks.vertical_xgboost.messages import (
    BUCKETS_STEP,
    LABELS_STEP,
    BucketsReply,
    BucketsRequest,
    LabelsReply,
    LabelsRequest,
)
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.own_order import draw_order
from tasks.vertical_xgboost.part_files import (
    check_model_dir,
    keep_part,
    keep_resumed,
    trim_part,
    unfinish,
)
from tasks.vertical_xgboost.party_arrays import (
    columns_to_arrays,
    party_from_arrays,
    sampling_to_arrays,
    weights_to_arrays,
)
from tasks.vertical_xgboost.party_facts import PartyFacts
from tasks.vertical_xgboost.peers import accept_peers, known_peers, store_peers
from tasks.vertical_xgboost.private_sets import library
from tasks.vertical_xgboost.routing import own_sides
from tasks.vertical_xgboost.sampling import Sampling, check_drawn, training_places
from tasks.vertical_xgboost.site import VerticalSite
from tasks.vertical_xgboost.site_state import Secrets
from tasks.vertical_xgboost.told_numbers import (
    check_base_margins,
    check_label_exponent,
    check_weight_exponent,
    weight_exponent,
)


def introduction(site: VerticalSite, context: Context) -> TaskPart:
    """What the task adds to the introduction: keys and facts.

    Raises
    ------
    SiteFault
        If a deployed party has no place for its part of the model, or the run has ended here.
    """
    if site.config.mode == "export":
        return export_client.introduction(site, context)
    if site.config.mode == "importance":
        return importance_client.introduction(site, context)
    if site.config.mode == "predict":
        return prediction_client.introduction(site, context)
    if not site.simulated:
        check_model_dir(site.model_dir)
    secrets = Secrets.draw(context, site.name, site.config)
    table, config = site.table, site.config
    labels = table.labels[table.owns]
    exponent = objective_of(config).label_exponent(labels, label_bound=config.label_bound)
    is_aligned = config.alignment == "same"
    weight = weight_exponent(table.weights) if is_aligned else 0
    if config.alignment == "psi":
        library()
    facts = PartyFacts(
        num_rows=len(table.ids),
        num_evaluation=int(np.count_nonzero(table.is_evaluation)),
        # Of rows that are not common nothing is told: no digest, which guesses could be held to.
        digest=table.digest() if is_aligned else b"",
        label_exponent=exponent if is_aligned or config.label_bound else 0,
        paillier=secrets.paillier_bundle().to_bytes(),
        weight_exponent=weight if config.weight else None,
        id_type="" if is_aligned else id_type(table.ids),
        model=b"" if site.part is None or site.resumes else site.part.model_digest,
        trees=site.trees_before if site.resumes else 0,
    )
    if not site_state.has_begun(context):
        site_state.expect_next(context, *FIRST_STEPS[config.alignment])
    return TaskPart(secrets.keys.public.to_bytes(), facts.to_facts())


def labels(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``labels``: own rows' places sealed for each other, sums of labels under masks."""
    site_state.expect(context, "labels")
    request = read_request(lambda: LabelsRequest.from_record(message.content))
    secrets = Secrets.known(context)
    peers = accept_peers(
        secrets,
        site.config,
        roster=request.roster,
        paillier=request.paillier,
        split_clients=request.split_clients,
    )
    places = hear_common(request.common, site, secrets, peers, context)
    site = cut_for(heard_site(site, places), request.going_on)
    check_drawn(site.num_training, fraction=site.config.subsample)
    if site.config.alignment == "same" or site.config.sums_labels:
        own_labels = site.table.labels[site.table.owns]
        check_label_exponent(request.label_exponent, own_labels, site.config)
    check_weight_exponent(request.weight_exponent, site.table.weights)
    sums = set_up.label_sums(
        site.table,
        site.config,
        label_exponent=request.label_exponent,
        weight_exponent=request.weight_exponent,
    )
    masked = secrets.mask(peers, sums, step=LABELS_STEP, two=site.config.allow_two_parties)
    owned = np.packbits(site.table.owns).tobytes()
    if site.config.alignment != "same":
        owned = set_up.with_digest(owned, site.table)
    sealed = {name: secrets.seal(peers, name, owned, step=LABELS_STEP) for name in peers.others}
    secrets.watch.add({"generate-key": secrets.seconds_of_drawing})
    reply = LabelsReply(sealed, masked, secrets.watch.seconds)
    store_peers(context, peers)
    site_state.store_exponents(
        context, label=request.label_exponent, weight=request.weight_exponent
    )
    if request.going_on is not None:
        told = request.going_on
        site_state.store_going_on(context, trees=told.trees, repeated=told.repeated)
    secrets.store()
    store_common(context, places)
    site_state.expect_next(context, "buckets")
    return Message(reply.to_record(), reply_to=message)


def buckets(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``buckets``: to each label owner the buckets of its rows, to the server counts."""
    site_state.expect(context, "buckets")
    request = read_request(lambda: BucketsRequest.from_record(message.content))
    secrets = Secrets.known(context)
    peers = known_peers(secrets)
    opened = open_all(secrets, peers, request.sealed, step=BUCKETS_STEP, sealed_at=LABELS_STEP)
    if site.config.alignment != "same":
        opened = set_up.check_aligned(opened, site.table)
    owners = set_up.owned_rows(opened, len(site.table.ids)) | {site.name: site.table.owns}
    set_up.check_owners(owners)
    check_base_margins(
        request.base_margins,
        site.config,
        label_exponent=site_state.known_exponents(context)[0],
        num_training=site.num_training,
        earlier=None if site.part is None else site.part.base_margins,
    )
    folder, rows = request.folder if site.simulated else "", rows_digest(site.table)
    if site.resumes and site.part is not None and site.part.origin.rows != rows:
        raise SiteFault(
            "bad-resume", "the party's rows are not those of the training that is resumed"
        )
    own, bucket_map = set_up.renumbered_columns(site.table, site.config)
    sides = np.empty((0, len(site.table.ids)), dtype=np.bool_)
    if site.part is not None:
        sides = own_sides(site.part, site.table.features)
    # As long as if the receiver owned all labels: the size would tell the server how many it owns.
    size = len(set_up.map_as_bytes(bucket_map, sides))
    parts = {
        name: set_up.map_as_bytes(bucket_map[:, owners[name]], sides[:, owners[name]])
        for name in peers.others
    }
    sealed = {
        name: secrets.seal(peers, name, part, step=BUCKETS_STEP, pad_to=size)
        for name, part in parts.items()
    }
    mine, table = site.table.owns, site.table
    exponent = gradient_exponent(
        table.labels[mine],
        site.config,
        base_margins=request.base_margins,
        trees=site.trees_gone_on_from,
    )
    ranks = tuple(map(int, own.column.tolist()))
    following = None
    if site.config.aggregator == "source" and site.config.shuffle:
        count = own.layout.num_candidates if site.config.max_depth else 0
        following = draw_order(secrets, peers, count, step=FIRST_ORDER)
    reply = BucketsReply(sealed, own.layout, ranks, exponent, following, secrets.watch.seconds)
    arrays = {
        **columns_to_arrays(own),
        "labels": table.labels[mine],
        "is-training": ~table.is_evaluation[mine],
        "own-map": bucket_map[:, mine],
        "base-margins": np.array(request.base_margins),
        **weights_to_arrays(None if table.weights is None else table.weights[mine]),
        **sampling_to_arrays(
            Sampling(
                site.seed,
                site.num_training,
                training_places(table.is_evaluation)[mine],
                trees_before=site.trees_before,
            )
        ),
    }
    prediction_client.tell_unknown(table.unknown)
    if site.resumes:
        keep_resumed(site, folder=folder, run=secrets.run, rows=rows)
    site_state.store_keeping(context, folder=folder, rows=rows)
    site_state.store_arrays(context, arrays)
    if following is not None:
        site_state.store_order(context, following.order)
    secrets.store()
    site_state.expect_next(context, "histograms-0-0")
    return Message(reply.to_record(), reply_to=message)


def finish(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``finish``: hear the last decisions, keep the party's part of the model."""
    site_state.expect(context, "finish")
    request = read_request(lambda: FinishRequest.from_record(message.content))
    secrets = Secrets.known(context)
    peers = known_peers(secrets)
    party = party_from_arrays(site_state.known_arrays(context), site.config)
    metrics = None
    if request.decisions:
        metrics = hear_decisions(party, request.decisions, secrets, peers)
    if not 0 < request.trees_to_keep <= site.trees_before + len(party.finished):
        raise SiteFault("bad-request", f"{request.trees_to_keep} trees to keep: there are fewer")
    _, rows = site_state.known_keeping(context)
    wrote = keep_part(
        party,
        site,
        names=peers.names,
        num_trees=request.trees_to_keep,
        folder=request.folder if site.simulated else "",
        run=secrets.run,
        rows=rows,
        is_complete=True,
    )
    reply = FinishReply(metrics, secrets.watch.seconds)
    # Only now it comes out whether the last tree helps.
    may_trim = bool(request.decisions and site.config.early_stopping_rounds)
    site_state.end(context, wrote=wrote, may_trim=may_trim)
    return Message(reply.to_record(), reply_to=message)


def trim(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``trim``: keep fewer trees of the part of the model that ``finish`` wrote."""
    wrote = site_state.expect_trim(context)
    request = read_request(lambda: TrimRequest.from_record(message.content))
    trim_part(
        site.name,
        num_trees=request.trees_to_keep,
        folder=request.folder if site.simulated else "",
        model_dir=site.model_dir,
        run=site_state.run_name(context.run_id),
    )
    site_state.end(context, wrote=wrote)
    return Message(FinishReply().to_record(), reply_to=message)


def stop(message: Message, context: Context) -> Message:
    """Answer ``stop``: say in the own log why the run ended, and forget its keys and rows.

    A part of the model that was written already is then of a run without a result, and is marked as
    unfinished.
    """
    request = read_request(lambda: StopRequest.from_record(message.content))
    log(WARNING, "the run ends without a model: %s", request.reason)
    for path in site_state.written(context):
        unfinish(path)
    site_state.end(context)
    return Message(FinishReply().to_record(), reply_to=message)
