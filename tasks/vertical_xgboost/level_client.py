"""A party's half of a tree level: sums for every source, totals of its own, offers for others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import Context, Message

from tasks.secure.secure_sums import MaskedVector
from tasks.site.faults import SiteFault
from tasks.site.requests import read_request
from tasks.vertical_xgboost import set_up, site_state
from tasks.vertical_xgboost.aggregate_messages import (
    FIRST_ORDER,
    AggregateReply,
    AggregateRequest,
    join_share,
    order_step,
    share_step,
    split_share,
)
from tasks.vertical_xgboost.buckets import BoolArray
from tasks.vertical_xgboost.candidates import IntpArray
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.decide_messages import (
    DecideReply,
    DecideRequest,
)
from tasks.vertical_xgboost.heard import hear_decisions, open_all
from tasks.vertical_xgboost.level_messages import (
    HistogramsReply,
    HistogramsRequest,
    StartOfTraining,
)
from tasks.vertical_xgboost.message_parts import check_refused
from tasks.vertical_xgboost.messages import BUCKETS_STEP
from tasks.vertical_xgboost.own_order import draw_order, read_order_of
from tasks.vertical_xgboost.part_files import keep_part
from tasks.vertical_xgboost.partial_dp import check_budget
from tasks.vertical_xgboost.party import OwnColumns, Party
from tasks.vertical_xgboost.party_arrays import (
    columns_from_arrays,
    party_from_arrays,
    party_to_arrays,
)
from tasks.vertical_xgboost.peers import Peers, known_peers
from tasks.vertical_xgboost.protected_sums import (
    LevelShape,
    places_of,
    protected_sums,
)
from tasks.vertical_xgboost.routing import margins_by_sides, own_sides
from tasks.vertical_xgboost.sampling import restricted_order
from tasks.vertical_xgboost.sealed_offers import sealed_offers
from tasks.vertical_xgboost.site import VerticalSite
from tasks.vertical_xgboost.site_state import Secrets
from tasks.vertical_xgboost.told_numbers import check_gradient_exponent


def histograms(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``histograms``: move own rows down, sum up the next level for every source."""
    request = read_request(lambda: HistogramsRequest.from_record(message.content))
    tree, level = request.tree, request.level
    site_state.expect(context, f"histograms-{tree}-{level}")
    secrets = Secrets.known(context)
    peers = known_peers(secrets)
    if (request.start is None) != ((tree, level) != (0, 0)):
        raise SiteFault("bad-request", "bucket maps must come with the first level, and only then")
    step, metrics = FIRST_ORDER, None
    if request.start is not None:
        party = _begin(request.start, secrets, peers, site, context)
    else:
        party = party_from_arrays(site_state.known_arrays(context), site.config)
        step = order_step(len(party.finished), party.tree.depth)
        metrics = hear_decisions(party, request.decisions, secrets, peers)
    if (len(party.finished), party.tree.depth) != (tree, level):
        raise SiteFault("out-of-order", f"tree {tree}, level {level}: not the next one here")
    check_budget(site.config, tree=site.trees_resumed + tree)
    try:
        party.begin_level(request.nodes)
    except ValueError as error:
        raise SiteFault("bad-request", str(error)) from None
    orders = _orders(request, party, secrets, peers, site, context, step=step)
    reply = _level_reply(party, request, orders, secrets, peers, site, metrics)
    if metrics is not None:  # a tree is finished, from which an interrupted run goes on
        folder, rows = site_state.known_keeping(context)
        keep_part(
            party,
            site,
            names=peers.names,
            num_trees=site.trees_before + len(party.finished),
            folder=folder,
            run=secrets.run,
            rows=rows,
            is_complete=False,
        )
    site_state.store_arrays(context, party_to_arrays(party))
    secrets.store()
    here = [f"aggregate-{tree}-{level}", f"decide-{tree}-{level}"]
    site_state.expect_next(context, *here, *_following(tree, level))
    return Message(reply.to_record(), reply_to=message)


def aggregate(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``aggregate``: as source, add up what the owners sealed, without reading it."""
    request = read_request(lambda: AggregateRequest.from_record(message.content))
    tree, level = request.tree, request.level
    site_state.expect(context, f"aggregate-{tree}-{level}")
    secrets = Secrets.known(context)
    peers = known_peers(secrets)
    party = party_from_arrays(site_state.known_arrays(context), site.config)
    split_client, shuffle = peers.split_clients[peers.place], site.config.shuffle
    shape = LevelShape(party.num_candidates(peers.place), len(party.level))
    order = np.arange(shape.candidates, dtype=np.intp)
    if shuffle:
        order = _of_tree(party, peers.place, site_state.known_order(context))
    shares, refused = _open_shares(request, shape, order, secrets, peers, site)
    sums = protected_sums(site.config, num_training=site.num_training, watch=secrets.watch)
    total = sums.total(
        shares,
        shape,
        names=peers.names,
        key=peers.paillier[split_client],
        single=split_client if shuffle else None,
        order=order,
        refused=refused,
        rerandomise=True,
    )
    following = None
    if shuffle:
        count = party.layouts[peers.place].num_candidates if site.config.max_depth else 0
        following = draw_order(secrets, peers, count, step=order_step(tree, level))
    reply = AggregateReply(
        total, refused, following, site.config.sums_protection, secrets.watch.seconds
    )
    if following is not None:
        site_state.store_order(context, following.order)
    secrets.store()
    site_state.expect_next(context, f"decide-{tree}-{level}", *_following(tree, level))
    return Message(reply.to_record(), reply_to=message)


def decide(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``decide``: decrypt totals, find the best candidates, seal weights of leaves."""
    protection = site.config.sums_protection
    request = read_request(
        lambda: DecideRequest.from_record(message.content, protection=protection)
    )
    tree, level = request.tree, request.level
    site_state.expect(context, f"decide-{tree}-{level}")
    secrets = Secrets.known(context)
    peers = known_peers(secrets)
    party = party_from_arrays(site_state.known_arrays(context), site.config)
    sums = protected_sums(site.config, num_training=site.num_training, watch=secrets.watch)
    sources = _sources_to_decrypt(party, request, peers)
    offers = {
        name: sealed_offers(party, source, request, sums, secrets, peers, site)
        for name, source in sources.items()
    }
    reply = DecideReply(offers, secrets.watch.seconds)
    secrets.store()
    site_state.expect_next(context, *_following(tree, level))
    return Message(reply.to_record(), reply_to=message)


# Parts ----------------------------------------------------------------------------------------


def _begin(
    start: StartOfTraining,
    secrets: Secrets,
    peers: Peers,
    site: VerticalSite,
    context: Context,
) -> Party:
    config, earlier = site.config, site.part
    arrays = site_state.known_arrays(context)
    opened = open_all(secrets, peers, start.sealed, step="histograms", sealed_at=BUCKETS_STEP)
    own = columns_from_arrays(arrays)
    if len(start.layouts) != len(peers.names) or start.layouts[peers.place] != own.layout:
        raise SiteFault("bad-request", "the layout of candidates is not the one that was told")
    labels = arrays["labels"].astype(np.float64)
    base_margins = arrays["base-margins"].astype(np.float64).tolist()
    check_gradient_exponent(
        start.gradient_exponent, labels, base_margins, config, trees=site.trees_gone_on_from
    )
    _check_ranks(start, own, peers, config)
    maps, sides = set_up.read_maps(
        opened, start.layouts, peers.names, num_rows=len(labels), earlier=earlier
    )
    margins = None
    if earlier is not None:
        sides[site.name] = own_sides(earlier, site.table.features[site.table.owns])
        margins = margins_by_sides(earlier, sides, len(labels))
    return set_up.new_party(
        arrays,
        config,
        place=peers.place,
        layouts=start.layouts,
        maps=maps,
        gradient_exponent=start.gradient_exponent,
        weight_exponent=site_state.known_exponents(context)[1],
        ranks=start.ranks,
        margins=margins,
    )


def _check_ranks(
    start: StartOfTraining, own: OwnColumns, peers: Peers, config: VerticalXGBoostConfig
) -> None:
    """Refuse ranks that are none: everybody draws columns by them."""
    wanted = len(start.layouts) if config.samples_columns else 0
    fits = len(start.ranks) == wanted
    for layout, ranks in zip(start.layouts, start.ranks, strict=False):
        fits = fits and sorted(ranks) == list(range(layout.num_features))
    if not fits or (wanted and list(start.ranks[peers.place]) != own.column.tolist()):
        raise SiteFault("bad-request", "the ranks of columns are not those that were told")


def _sources_to_decrypt(party: Party, request: DecideRequest, peers: Peers) -> dict[str, int]:
    """Places of the sources in a request, which must be those that the party decrypts for."""
    own = [at for at, client in enumerate(peers.split_clients) if client == peers.place]
    sources = {peers.names[at]: at for at in own}
    if set(request.totals) != set(sources):
        raise SiteFault("bad-request", "totals: must be of the sources that this one decrypts for")
    nodes = len(party.level)
    shapes = {name: (1 + party.num_candidates(at), nodes) for name, at in sources.items()}
    read_request(lambda: check_refused(request.refused, shapes, expected=party.config.has_refusals))
    return sources


def _following(tree: int, level: int) -> list[str]:
    """Steps that may come when a level is done."""
    return [f"histograms-{tree}-{level + 1}", f"histograms-{tree + 1}-0", "finish"]


def _orders(
    request: HistogramsRequest,
    party: Party,
    secrets: Secrets,
    peers: Peers,
    site: VerticalSite,
    context: Context,
    *,
    step: str,
) -> dict[str, IntpArray]:
    """Secret orders of this level: told, or sealed by sources when the last level was done."""
    by_source = site.config.aggregator == "source"
    own = peers.names[peers.place]
    others = {
        name
        for name, client in zip(peers.names, peers.split_clients, strict=True)
        if client != peers.place and site.config.shuffle and not (by_source and name == own)
    }
    told, absent = (
        (request.sealed_orders, request.orders)
        if by_source
        else (request.orders, request.sealed_orders)
    )
    if set(told) != others or absent:
        raise SiteFault("bad-request", "orders: not of the sources whose order is told here")
    if not by_source:
        return dict(request.orders)
    orders = {
        name: read_order_of(name, secrets.open(peers, name, sealed, step=step))
        for name, sealed in request.sealed_orders.items()
    }
    if site.config.shuffle:
        orders[own] = site_state.known_order(context)
    places = {name: at for at, name in enumerate(peers.names)}
    return {name: _of_tree(party, places[name], order) for name, order in orders.items()}


def _of_tree(party: Party, source: int, order: IntpArray) -> IntpArray:
    """A source's order of all its candidates, drawn before it knew of which tree: of this one's."""
    if not party.config.samples_columns:
        return order
    return restricted_order(order, party.candidates_in(source))


def _open_shares(
    request: AggregateRequest,
    shape: LevelShape,
    order: IntpArray,
    secrets: Secrets,
    peers: Peers,
    site: VerticalSite,
) -> tuple[dict[int, bytes], BoolArray | None]:
    """Shares by owner's place, and what some owner refuses, in the level's order."""
    if sorted(request.sealed) != sorted(peers.names):
        raise SiteFault("bad-request", "aggregate: must carry one share of each party")
    shares: dict[int, bytes] = {}
    refused: BoolArray | None = None
    for owner, name in enumerate(peers.names):
        step = share_step(request.tree, request.level)
        payload = secrets.open(peers, name, request.sealed[name], step=step)
        size = (1 + shape.candidates, shape.nodes)
        try:
            shares[owner], mask = split_share(payload, size)
            told = {} if mask is None else {name: mask}
            check_refused(told, {name: size}, expected=site.config.has_refusals)
        except ValueError:
            raise SiteFault("bad-request", f"{name}: a share of another form") from None
        if mask is None:
            continue
        if site.config.shuffle and owner == peers.split_clients[peers.place]:
            mask = mask[places_of(order)]
        refused = mask if refused is None else refused | mask
    return shares, refused


def _level_reply(
    party: Party,
    request: HistogramsRequest,
    orders: Mapping[str, IntpArray],
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
        # None: in its own numbering, which the one who decrypts packs in.
        order = _checked_order(party, source, name, orders.get(name))
        shares[name] = sums.share(
            own.of(source, order),
            rows=party.num_training,
            key=secrets.paillier if decrypts else peers.paillier[peers.split_clients[source]],
            single=decrypts and site.config.shuffle,
        )
        mask = own.refused(source, order) if site.config.has_refusals else None
        if site.config.aggregator == "source":
            step = share_step(request.tree, request.level)
            payload = join_share(shares[name], mask)
            shares[name] = secrets.seal(peers, name, payload, step=step)
        elif mask is not None:
            refused[name] = mask
    protection = site.config.shares_protection
    return HistogramsReply(shares, refused, protection, metrics, secrets.watch.seconds)


def _checked_order(
    party: Party, source: int, name: str, order: IntpArray | None
) -> IntpArray | None:
    """An order of a source's candidates; SiteFault with the source's name if it is none."""
    count = party.num_candidates(source)
    if order is not None and not np.array_equal(np.sort(order), np.arange(count)):
        raise SiteFault("bad-request", f"{name}: the order told of its candidates is none")
    return order
