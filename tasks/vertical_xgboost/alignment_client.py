"""A party's half of the alignment: hashed or blinded ids out, places of common rows kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np
from flwr.app import ConfigRecord, Context, Message

from tasks.site.faults import SiteFault
from tasks.site.requests import read_request
from tasks.vertical_xgboost import private_sets, site_state
from tasks.vertical_xgboost.alignment import (
    HashedIds,
    common_places,
    common_rows,
    hub_of,
    tells_exponents_later,
)
from tasks.vertical_xgboost.alignment_messages import (
    ALIGN_STEP,
    INVITE_STEP,
    MATCH_STEP,
    AlignReply,
    AlignRequest,
    CommonReply,
    CommonRequest,
    CommonRows,
    MatchReply,
)
from tasks.vertical_xgboost.candidates import IntpArray
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.heard import open_all
from tasks.vertical_xgboost.message_parts import Sealed, array_record
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.peers import Peers, accept_roster, known_peers, store_peers
from tasks.vertical_xgboost.site import VerticalSite
from tasks.vertical_xgboost.site_state import Secrets
from tasks.vertical_xgboost.told_numbers import weight_exponent

_COMMON = "vertical-common-rows"
_BLINDING = "vertical-blinding"

FIRST_STEPS: Mapping[str, tuple[str, ...]] = {
    "same": ("labels",),
    "hashed": ("align", "match"),
    "psi": ("invite", "align"),
}
"""What a party may be asked after its introduction, by mode; who the hub is it learns then."""


def aligned_site(site: VerticalSite, context: Context) -> VerticalSite:
    """The party with its common rows only, once it knows them."""
    record = context.state.array_records.get(_COMMON)
    if record is None:
        return site
    places = record["places"].numpy().astype(np.intp)
    if len(places) and places[-1] >= len(site.table.ids):
        raise SiteFault("bad-ids", "the party's rows have changed during the run")
    return _restricted(site, places)


def invite(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``invite``: as hub, own ids blinded for each other party."""
    site_state.expect(context, "invite")
    request = read_request(lambda: AlignRequest.from_record(message.content))
    secrets = Secrets.known(context)
    peers = accept_roster(secrets, request.roster)
    _check_role(site, peers, step="invite", is_hub=True)
    with secrets.watch.measure("blind"):
        key, blinded = private_sets.invite(site.table.ids)
    sealed = {name: secrets.seal(peers, name, blinded, step=INVITE_STEP) for name in peers.others}
    reply = AlignReply(sealed, secrets.watch.seconds)
    context.state[_BLINDING] = ConfigRecord({"key": key})
    store_peers(context, peers)
    secrets.store()
    site_state.expect_next(context, "match")
    return Message(reply.to_record(), reply_to=message)


def align(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``align``: own ids for the hub, hashed under a fresh key or blinded."""
    site_state.expect(context, "align")
    request = read_request(lambda: AlignRequest.from_record(message.content))
    secrets = Secrets.known(context)
    peers = accept_roster(secrets, request.roster)
    hub = _check_role(site, peers, step="align", is_hub=False)
    ids = site.table.ids
    if site.config.alignment == "psi":
        if list(request.sealed) != [hub]:
            raise SiteFault("bad-request", "align: must carry the sealed part of the hub")
        asked = secrets.open(peers, hub, request.sealed[hub], step=INVITE_STEP)
        with secrets.watch.measure("blind"):
            payload = private_sets.answer(asked, ids, hub=hub)
    else:
        with secrets.watch.measure("hash"):
            payload = HashedIds.draw(ids).to_bytes()
    sealed = {hub: secrets.seal(peers, hub, payload, step=ALIGN_STEP)}
    reply = AlignReply(sealed, secrets.watch.seconds)
    store_peers(context, peers)
    secrets.store()
    site_state.expect_next(context, _after(site.config))
    return Message(reply.to_record(), reply_to=message)


def match(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``match``: as hub, find the rows that all have; tell each party which they are."""
    site_state.expect(context, "match")
    request = read_request(lambda: AlignRequest.from_record(message.content))
    secrets = Secrets.known(context)
    peers = accept_roster(secrets, request.roster)
    _check_role(site, peers, step="match", is_hub=True)
    opened = open_all(secrets, peers, request.sealed, step="match", sealed_at=ALIGN_STEP)
    places = _compare(opened, site, secrets, context)
    aligned = _restricted(site, places)
    with secrets.watch.measure("hash"):
        payload = HashedIds.draw(aligned.table.ids).to_bytes()
    sealed = {name: secrets.seal(peers, name, payload, step=MATCH_STEP) for name in peers.others}
    reply = MatchReply(sealed, len(places), secrets.watch.seconds)
    store_peers(context, peers)
    secrets.store()
    _store(context, places)
    site_state.expect_next(context, _after(site.config))
    return Message(reply.to_record(), reply_to=message)


def common(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``common``: keep the common rows, tell how large the labels of these are."""
    site_state.expect(context, "common")
    request = read_request(lambda: CommonRequest.from_record(message.content))
    secrets = Secrets.known(context)
    places = hear_common(request.common, site, secrets, known_peers(secrets), context)
    aligned = site if places is None else _restricted(site, places)
    table, config = aligned.table, site.config
    labels = table.labels[table.owns]
    exponent = objective_of(config).label_exponent(labels, label_bound=config.label_bound)
    weight = weight_exponent(table.weights)
    reply = CommonReply(exponent, weight, secrets.watch.seconds)
    secrets.store()
    store_common(context, places)
    site_state.expect_next(context, "labels")
    return Message(reply.to_record(), reply_to=message)


def hear_common(
    told: CommonRows | None,
    site: VerticalSite,
    secrets: Secrets,
    peers: Peers,
    context: Context,
) -> IntpArray | None:
    """Places of the common rows from the hub's answer, to be kept by `store_common`.

    Returns
    -------
    (k,) intp or None
        None where they are known already, or all rows are common by definition.

    Raises
    ------
    SiteFault
        ``"bad-request"`` if the answer is missing, comes twice, or does not fit.
    """
    is_known = _COMMON in context.state
    if site.config.alignment == "same" or is_known:
        if told is not None and told.sealed:
            raise SiteFault("bad-request", "common rows that must not be told here")
        if told is not None and told.num_rows != len(site.table.ids):
            raise SiteFault("bad-request", f"{told.num_rows} common rows: others were found here")
        return None
    if told is None:
        raise SiteFault("bad-request", "the common rows are missing")
    hub = hub_of(site.config, peers.names)
    payload = secrets.open(peers, hub, told.sealed, step=MATCH_STEP)
    with secrets.watch.measure("hash"):
        found = HashedIds.from_bytes(payload, sender=hub)
        places = common_rows(found, site.table.ids, hub=hub, told=told.num_rows)
    if not len(places):
        raise SiteFault("bad-request", f"{hub}: no common rows")
    return places


def heard_site(site: VerticalSite, places: IntpArray | None) -> VerticalSite:
    """The party with the rows that `hear_common` found."""
    return site if places is None else _restricted(site, places)


def store_common(context: Context, places: IntpArray | None) -> None:
    """Keep what `hear_common` found."""
    if places is not None:
        _store(context, places)


def _compare(opened: Sealed, site: VerticalSite, secrets: Secrets, context: Context) -> IntpArray:
    ids = site.table.ids
    found = []
    for name, data in opened.items():
        if site.config.alignment == "psi":
            record = context.state.config_records.get(_BLINDING)
            if record is None:
                raise SiteFault("lost-state", site_state.LOST)
            key = cast(bytes, record["key"])
            with secrets.watch.measure("blind"):
                found.append(private_sets.places_of_common(key, data, ids, sender=name))
            continue
        with secrets.watch.measure("hash"):
            found.append(HashedIds.from_bytes(data, sender=name).places_in(ids))
    return common_places(ids, found)


def _check_role(site: VerticalSite, peers: Peers, *, step: str, is_hub: bool) -> str:
    hub = hub_of(site.config, peers.names)
    if (site.name == hub) is not is_hub:
        raise SiteFault("bad-request", f"{step}: the hub of the alignment is {hub}")
    return hub


def _after(config: VerticalXGBoostConfig) -> str:
    return "common" if tells_exponents_later(config) else "labels"


def _restricted(site: VerticalSite, places: IntpArray) -> VerticalSite:
    fraction = site.config.test_fraction
    return replace(site, table=site.table.restricted(places, fraction=fraction, seed=site.seed))


def _store(context: Context, places: IntpArray) -> None:
    context.state[_COMMON] = array_record({"places": places.astype(np.int32)})
    context.state.pop(_BLINDING, None)
