"""A party's half of the vertical XGBoost task: message in, sealed parts or encrypted sums out.

What a handler needs of its party is in :class:`VerticalSite`; it holds rows and never travels.
What it must remember between messages is in the node's state (`site_state`), which is changed
last, after nothing more can fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import TypeVar

import numpy as np
from flwr.app import Context, Message
from flwr.supercore import log

from tasks.secure.secure_sums import MaskedVector
from tasks.site.faults import SiteFault
from tasks.site.messages import TaskPart
from tasks.vertical_xgboost import set_up, site_state
from tasks.vertical_xgboost.candidates import IntpArray
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.decide_messages import (
    DecideReply,
    DecideRequest,
    SealedOffer,
    leaves_step,
)
from tasks.vertical_xgboost.level_messages import (
    HistogramsReply,
    HistogramsRequest,
    SealedDecision,
)
from tasks.vertical_xgboost.message_parts import (
    Sealed,
)
from tasks.vertical_xgboost.messages import (
    BUCKETS_STEP,
    LABELS_STEP,
    BucketsReply,
    BucketsRequest,
    FinishReply,
    FinishRequest,
    LabelsReply,
    LabelsRequest,
    StopRequest,
    metrics_step,
)
from tasks.vertical_xgboost.model_part import keep_part
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.party import Decision, Party
from tasks.vertical_xgboost.party_arrays import (
    columns_from_arrays,
    columns_to_arrays,
    party_from_arrays,
    party_to_arrays,
)
from tasks.vertical_xgboost.party_facts import PartyFacts
from tasks.vertical_xgboost.protected_sums import LevelShape, ProtectedSums, protected_sums
from tasks.vertical_xgboost.rows import PartyTable
from tasks.vertical_xgboost.site_state import Peers, Secrets
from tasks.vertical_xgboost.split_client import node_offers

_Numbers = TypeVar("_Numbers", bound=np.generic)
_WEIGHT = np.dtype("<f8")


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
    state_dir : str
        Where the party keeps its part of a model; ``""``: nowhere.
    """

    name: str
    table: PartyTable
    config: VerticalXGBoostConfig
    simulated: bool = False
    state_dir: str = ""

    @property
    def num_training(self) -> int:
        """Training rows of all owners."""
        return int(np.count_nonzero(~self.table.is_evaluation))


def introduction(site: VerticalSite, context: Context) -> TaskPart:
    """What the task adds to the introduction: keys and facts."""
    secrets = Secrets.draw(context, site.name, site.config)
    table, config = site.table, site.config
    labels = table.labels[table.owns]
    exponent = objective_of(config).label_exponent(labels, label_bound=config.label_bound)
    facts = PartyFacts(
        num_rows=len(table.ids),
        num_evaluation=int(np.count_nonzero(table.is_evaluation)),
        digest=table.digest(),
        label_exponent=exponent,
        negative_label=table.negative_label,
        paillier=secrets.paillier_bundle().to_bytes(),
    )
    site_state.expect_next(context, "labels")
    return TaskPart(secrets.keys.public.to_bytes(), facts.to_facts())


def labels(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``labels``: own rows' places sealed for each other, sums of labels under masks."""
    site_state.expect(context, "labels")
    request = LabelsRequest.from_record(message.content)
    secrets = Secrets.known(context)
    peers = site_state.accept_peers(
        secrets,
        site.config,
        roster=request.roster,
        paillier=request.paillier,
        split_clients=request.split_clients,
    )
    sums = set_up.label_sums(site.table, site.config, label_exponent=request.label_exponent)
    masked = _mask(secrets, peers, sums, site.config, step=LABELS_STEP)
    owned = np.packbits(site.table.owns).tobytes()
    sealed = {name: secrets.seal(peers, name, owned, step=LABELS_STEP) for name in peers.others}
    secrets.watch.add({"generate-key": secrets.seconds_of_drawing})
    reply = LabelsReply(sealed, masked, secrets.watch.seconds)
    site_state.store_peers(context, peers)
    secrets.store()
    site_state.expect_next(context, "buckets")
    return Message(reply.to_record(), reply_to=message)


def buckets(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``buckets``: to each label owner the buckets of its rows, to the server counts."""
    site_state.expect(context, "buckets")
    request = BucketsRequest.from_record(message.content)
    secrets = Secrets.known(context)
    peers = site_state.known_peers(secrets)
    opened = _open_all(secrets, peers, request.sealed, step=BUCKETS_STEP, sealed_at=LABELS_STEP)
    owners = set_up.owned_rows(opened, len(site.table.ids)) | {site.name: site.table.owns}
    set_up.check_owners(owners)
    own, bucket_map = set_up.renumbered_columns(site.table, site.config)
    sealed = {
        name: secrets.seal(peers, name, bucket_map[:, owners[name]].tobytes(), step=BUCKETS_STEP)
        for name in peers.others
    }
    mine, table = site.table.owns, site.table
    exponent = objective_of(site.config).gradient_exponent(
        table.labels[mine], base_margin=request.base_margin, label_bound=site.config.label_bound
    )
    ranks = tuple(map(int, own.column.tolist()))
    reply = BucketsReply(sealed, own.layout, ranks, exponent, secrets.watch.seconds)
    arrays = {
        **columns_to_arrays(own),
        "labels": table.labels[mine],
        "is-training": ~table.is_evaluation[mine],
        "own-map": bucket_map[:, mine],
        "base-margin": np.array([request.base_margin]),
    }
    site_state.store_arrays(context, arrays)
    secrets.store()
    site_state.expect_next(context, "histograms-0-0")
    return Message(reply.to_record(), reply_to=message)


def histograms(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``histograms``: move own rows down, sum up the next level for every source."""
    request = HistogramsRequest.from_record(message.content)
    tree, level = request.tree, request.level
    site_state.expect(context, f"histograms-{tree}-{level}")
    secrets = Secrets.known(context)
    peers = site_state.known_peers(secrets)
    if request.start is not None:
        party, metrics = _begin(request, secrets, peers, site.config, context), None
    else:
        party = party_from_arrays(site_state.known_arrays(context), site.config)
        metrics = _hear(party, request.decisions, secrets, peers)
    if (len(party.finished), party.tree.depth) != (tree, level):
        raise SiteFault("out-of-order", f"tree {tree}, level {level}: not the next one here")
    reply = _level_reply(party, request, secrets, peers, site, metrics)
    site_state.store_arrays(context, party_to_arrays(party))
    secrets.store()
    following = [f"histograms-{tree}-{level + 1}", f"histograms-{tree + 1}-0", "finish"]
    site_state.expect_next(context, f"decide-{tree}-{level}", *following)
    return Message(reply.to_record(), reply_to=message)


def decide(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``decide``: decrypt totals, find the best candidates, seal weights of leaves."""
    request = DecideRequest.from_record(message.content)
    tree, level = request.tree, request.level
    site_state.expect(context, f"decide-{tree}-{level}")
    secrets = Secrets.known(context)
    peers = site_state.known_peers(secrets)
    party = party_from_arrays(site_state.known_arrays(context), site.config)
    sums = protected_sums(site.config, num_training=site.num_training, watch=secrets.watch)
    offers = {}
    for name, total in request.totals.items():
        source = peers.names.index(name)
        if peers.split_clients[source] != peers.place:
            raise SiteFault("bad-request", f"{name}: its sums are decrypted elsewhere")
        offers[name] = _offers(party, source, total, request, sums, secrets, peers)
    reply = DecideReply(offers, secrets.watch.seconds)
    secrets.store()
    following = [f"histograms-{tree}-{level + 1}", f"histograms-{tree + 1}-0", "finish"]
    site_state.expect_next(context, *following)
    return Message(reply.to_record(), reply_to=message)


def finish(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``finish``: hear the last decisions, keep the party's part of the model."""
    site_state.expect(context, "finish")
    request = FinishRequest.from_record(message.content)
    secrets = Secrets.known(context)
    peers = site_state.known_peers(secrets)
    party = party_from_arrays(site_state.known_arrays(context), site.config)
    metrics = None
    if request.decisions:
        metrics = _hear(party, request.decisions, secrets, peers)
    if not 0 < request.trees_to_keep <= len(party.finished):
        raise SiteFault("bad-request", f"{request.trees_to_keep} trees to keep: there are fewer")
    keep_part(
        party,
        site.table,
        names=peers.names,
        num_trees=request.trees_to_keep,
        folder=request.folder if site.simulated else "",
        state_dir=site.state_dir,
        run=secrets.run,
    )
    reply = FinishReply(metrics, secrets.watch.seconds)
    site_state.forget(context)
    return Message(reply.to_record(), reply_to=message)


def stop(message: Message, context: Context) -> Message:
    """Answer ``stop``: say in the own log why the run ended, and forget its keys and rows."""
    request = StopRequest.from_record(message.content)
    log(WARNING, "the run ends without a model: %s", request.reason)
    site_state.forget(context)
    return Message(FinishReply().to_record(), reply_to=message)


# Parts ----------------------------------------------------------------------------------------


def _begin(
    request: HistogramsRequest,
    secrets: Secrets,
    peers: Peers,
    config: VerticalXGBoostConfig,
    context: Context,
) -> Party:
    start = request.start
    assert start is not None
    arrays = site_state.known_arrays(context)
    opened = _open_all(secrets, peers, start.sealed, step="histograms", sealed_at=BUCKETS_STEP)
    own = columns_from_arrays(arrays)
    if len(start.layouts) != len(peers.names) or start.layouts[peers.place] != own.layout:
        raise SiteFault("bad-request", "the layout of candidates is not the one that was told")
    maps = set_up.read_maps(opened, start.layouts, peers.names, num_rows=len(arrays["labels"]))
    return set_up.new_party(
        arrays,
        config,
        place=peers.place,
        layouts=start.layouts,
        maps=maps,
        gradient_exponent=start.gradient_exponent,
    )


def _hear(
    party: Party, decisions: Sequence[SealedDecision], secrets: Secrets, peers: Peers
) -> MaskedVector | None:
    """Enter a level's decisions; metrics under masks if they finish a tree."""
    tree, level, nodes = len(party.finished), party.tree.depth, party.open_nodes
    if len(decisions) != len(nodes):
        raise SiteFault("bad-request", f"{len(decisions)} decisions for {len(nodes)} open nodes")
    heard = []
    for node, decision in enumerate(decisions):
        weights: tuple[float, ...] = ()
        if decision.weights:
            step = leaves_step(
                tree=tree, level=level, source=decision.source, node=node, place=decision.place
            )
            sender = peers.names[peers.split_clients[decision.source]]
            opened = secrets.open(peers, sender, decision.weights, step=step)
            weights = tuple(np.frombuffer(opened, dtype=_WEIGHT).tolist())
        source = -1 if decision.is_leaf else decision.source
        wanted = 1 if decision.is_leaf else 2 if party.tree.is_last_level else 0
        if len(weights) != wanted or not np.isfinite(weights).all():
            raise SiteFault("bad-request", "weights of leaves that do not fit the decision")
        heard.append(Decision(source, decision.candidate, weights))
    if not party.hear(heard):
        return None
    log(INFO, "tree %d is grown", tree + 1)
    return _mask(secrets, peers, party.metric_sums(), party.config, step=metrics_step(tree))


def _level_reply(
    party: Party,
    request: HistogramsRequest,
    secrets: Secrets,
    peers: Peers,
    site: VerticalSite,
    metrics: MaskedVector | None,
) -> HistogramsReply:
    own = party.gradient_sums()
    sums = protected_sums(site.config, num_training=site.num_training, watch=secrets.watch)
    shares: dict[str, bytes] = {}
    refused = {}
    for source, name in enumerate(peers.names):
        decrypts = peers.split_clients[source] == peers.place
        order = _order_for(party, source, request.orders.get(name), decrypts=decrypts)
        shares[name] = sums.share(
            own.of(source, order),
            rows=party.num_training,
            key=secrets.paillier if decrypts else peers.paillier[peers.split_clients[source]],
            single=decrypts and site.config.shuffle,
        )
        if site.config.min_instances >= 2:
            refused[name] = own.refused(source, order)
    return HistogramsReply(shares, refused, metrics, secrets.watch.seconds)


def _order_for(
    party: Party, source: int, order: IntpArray | None, *, decrypts: bool
) -> IntpArray | None:
    """The order in which a source's candidates are packed; None: in its own numbering."""
    if decrypts or not party.config.shuffle:
        if order is not None:
            raise SiteFault("bad-request", "an order of candidates that must not be told here")
        return None
    count = party.candidates_of(source)
    if order is None or not np.array_equal(np.sort(order), np.arange(count)):
        raise SiteFault("bad-request", "an order of candidates that is none")
    return order


def _offers(
    party: Party,
    source: int,
    total: bytes,
    request: DecideRequest,
    sums: ProtectedSums,
    secrets: Secrets,
    peers: Peers,
) -> list[SealedOffer]:
    name, is_last = peers.names[source], party.tree.is_last_level
    shape = LevelShape(party.candidates_of(source), len(party.open_nodes))
    refused = request.refused.get(name)
    if refused is not None and refused.shape != (1 + shape.candidates, shape.nodes):
        raise SiteFault("bad-request", "refusals that do not fit the level")
    found = sums.read(total, shape, key=secrets.paillier, refused=refused)
    offers = []
    for node, offer in enumerate(node_offers(found, party.rule, is_last=is_last, refused=refused)):
        places = offer.places.tolist() or [-1]
        sealed = []
        for place, weights in zip(places, offer.weights, strict=False):
            step = leaves_step(
                tree=request.tree, level=request.level, source=source, node=node, place=place
            )
            # Here a source would get noisy weights; today everybody gets the exact ones.
            payload = np.array(weights, dtype=_WEIGHT).tobytes()
            sealed.append([secrets.seal(peers, to, payload, step=step) for to in peers.names])
        offers.append(SealedOffer.of(offer, sealed))
    return offers


def _open_all(
    secrets: Secrets, peers: Peers, sealed: Sealed, *, step: str, sealed_at: str
) -> Sealed:
    if sorted(sealed) != peers.others:
        raise SiteFault("bad-request", f"{step}: must carry one sealed part of each other party")
    return {name: secrets.open(peers, name, part, step=sealed_at) for name, part in sealed.items()}


def _mask(
    secrets: Secrets,
    peers: Peers,
    values: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    config: VerticalXGBoostConfig,
    *,
    step: str,
) -> MaskedVector:
    return secrets.mask(peers, values, step=step, two=config.allow_two_parties)
