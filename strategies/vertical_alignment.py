"""The alignment of a vertical run: which rows all parties have, found by one of them, the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import RecordDict

from strategies.all_parties import AllParties
from strategies.ledger import Disclosure
from strategies.membership import Refused
from tasks.site.faults import SiteFault
from tasks.site.reply_fields import MalformedReply
from tasks.vertical_xgboost.alignment import ID_TYPES, hub_of, tells_exponents_later
from tasks.vertical_xgboost.alignment_messages import (
    ALIGN,
    COMMON,
    INVITE,
    MATCH,
    AlignReply,
    AlignRequest,
    CommonReply,
    CommonRequest,
    CommonRows,
    MatchReply,
)
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.message_parts import Sealed, Seconds
from tasks.vertical_xgboost.party_facts import PartyFacts


def alignment_disclosures(config: VerticalXGBoostConfig) -> dict[str, Disclosure]:
    """Ledger words of the alignment's messages, by message type."""
    is_psi = config.alignment == "psi"
    asks = AlignRequest.reveals_invited if is_psi else AlignRequest.reveals
    sealed = AlignReply.reveals_sealed_psi if is_psi else AlignReply.reveals_sealed
    matching = AlignRequest.reveals_matching_psi if is_psi else AlignRequest.reveals_matching
    return {
        INVITE: Disclosure(
            "invite", AlignRequest.reveals, AlignReply.reveals, AlignReply.reveals_sealed_invite
        ),
        ALIGN: Disclosure("align", asks, AlignReply.reveals, sealed),
        MATCH: Disclosure("match", matching, MatchReply.reveals, MatchReply.reveals_sealed),
        COMMON: Disclosure("common", CommonRequest.reveals, CommonReply.reveals),
    }


@dataclass
class Alignment:
    """What the server knows of the common rows.

    Attributes
    ----------
    num_rows : int
        Rows that all parties have.
    untold : dict of str to CommonRows
        What goes to each party with ``labels``; empty where it was told before.
    label_exponents, weight_exponents : dict of str to int
        Of common rows, where parties told them after the alignment; else empty.
    seconds : list of dict
        Processor time of cryptography of each reply.
    """

    num_rows: int = 0
    untold: dict[str, CommonRows] = field(default_factory=dict)
    label_exponents: dict[str, int] = field(default_factory=dict)
    weight_exponents: dict[str, int] = field(default_factory=dict)
    seconds: list[Seconds] = field(default_factory=list)


def align(
    parties: AllParties,
    config: VerticalXGBoostConfig,
    facts: Mapping[str, PartyFacts],
    roster: bytes,
) -> Alignment:
    """Take the steps of the alignment: parts go sealed between the hub and each other party.

    ``align``: every party but the hub seals its ids for it, as hashes under a key that it draws.
    ``match``: the hub compares, tells each party, sealed, which of its rows are common, and the
    server their number. With private set intersection ``invite`` comes first, in which the hub
    blinds its ids. ``common`` comes last, only if a regression needs the size of the largest label.

    Parameters
    ----------
    parties : AllParties
    config : VerticalXGBoostConfig
        `alignment` other than ``"same"``.
    facts : mapping of str to PartyFacts
    roster : bytes
        Public keys of all parties.

    Raises
    ------
    Refused
        If no row is common, or a party answers with what cannot be.
    """
    names = list(facts)
    try:
        hub = hub_of(config, names)
    except SiteFault as fault:
        raise Refused(list(fault.reasons)) from None
    spokes = [name for name in names if name != hub]
    found = Alignment()
    invited: Mapping[str, Sealed] = {name: {} for name in spokes}
    if config.alignment == "psi":
        asks = {hub: AlignRequest(roster).to_record()}
        replies = _ask(parties, asks, INVITE, "invite", receivers=spokes)
        found.seconds += [reply.seconds for reply in replies.values()]
        invited = {name: {hub: replies[hub].sealed[name]} for name in spokes}
    asks = {name: AlignRequest(roster, invited[name]).to_record() for name in spokes}
    replies = _ask(parties, asks, ALIGN, "align", receivers=[hub])
    found.seconds += [reply.seconds for reply in replies.values()]
    sealed = {name: reply.sealed[hub] for name, reply in replies.items()}
    _match(parties, hub, spokes, AlignRequest(roster, sealed), facts, found)
    if tells_exponents_later(config):
        _tell_common(parties, found)
    return found


def check_id_types(facts: Mapping[str, PartyFacts]) -> list[str]:
    """What is wrong with the types of ids: all must be of one, by name of the parties."""
    by_type: dict[str, list[str]] = {}
    for name, fact in sorted(facts.items()):
        by_type.setdefault(fact.id_type if fact.id_type in ID_TYPES else "", []).append(name)
    if "" in by_type:
        return [f"{', '.join(by_type[''])}: must tell the type of its ids"]
    if len(by_type) == 1:
        return []
    groups = "; ".join(f"{kind} at {', '.join(who)}" for kind, who in by_type.items())
    return [
        f'the parties\' ids are of different types: {groups}. "007" is not 7: write them alike '
        "everywhere (a letter in front makes all of them text)"
    ]


def _ask(
    parties: AllParties,
    asks: Mapping[str, RecordDict],
    message_type: str,
    step: str,
    *,
    receivers: list[str],
) -> dict[str, AlignReply]:
    def read(content: RecordDict) -> AlignReply:
        reply = AlignReply.from_record(content)
        _check_receivers(reply.sealed, receivers)
        return reply

    return parties.ask(asks, message_type, read, step=step)


def _match(
    parties: AllParties,
    hub: str,
    spokes: list[str],
    request: AlignRequest,
    facts: Mapping[str, PartyFacts],
    found: Alignment,
) -> None:
    most = min(fact.num_rows for fact in facts.values())

    def read(content: RecordDict) -> MatchReply:
        reply = MatchReply.from_record(content)
        _check_receivers(reply.sealed, spokes)
        if not 0 <= reply.num_rows <= most:
            raise MalformedReply(f"num-rows: must be 0 to {most}, the rows of the smallest party")
        return reply

    reply = parties.ask({hub: request.to_record()}, MATCH, read, step="match")[hub]
    if not reply.num_rows:
        groups = ", ".join(f"{fact.num_rows} at {name}" for name, fact in facts.items())
        raise Refused([f"no-common-rows: no row id is common to all parties (rows: {groups})"])
    found.seconds.append(reply.seconds)
    found.num_rows = reply.num_rows
    told = {**reply.sealed, hub: b""}
    found.untold = {name: CommonRows(reply.num_rows, told[name]) for name in facts}


def _tell_common(parties: AllParties, found: Alignment) -> None:
    replies = parties.ask(
        {name: CommonRequest(told).to_record() for name, told in found.untold.items()},
        COMMON,
        CommonReply.from_record,
        step="common",
    )
    found.seconds += [reply.seconds for reply in replies.values()]
    found.label_exponents = {name: reply.label_exponent for name, reply in replies.items()}
    found.weight_exponents = {name: reply.weight_exponent for name, reply in replies.items()}
    found.untold = {}


def _check_receivers(sealed: Sealed, receivers: list[str]) -> None:
    if sorted(sealed) != sorted(receivers):
        raise MalformedReply("sealed: must be one part for each party that it is for")
