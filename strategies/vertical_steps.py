"""Exchanges of the server with all parties in the course of a training, one function each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strategies.vertical_level import Level, Offers, Totals
from strategies.vertical_training import Training
from tasks.vertical_xgboost.aggregate_messages import (
    AGGREGATE,
    AggregateReply,
    AggregateRequest,
)
from tasks.vertical_xgboost.decide_messages import DECIDE, DecideReply, DecideRequest
from tasks.vertical_xgboost.end_messages import (
    FINISH,
    TRIM,
    FinishReply,
    FinishRequest,
    TrimRequest,
)
from tasks.vertical_xgboost.level_messages import (
    HISTOGRAMS,
    HistogramsReply,
    HistogramsRequest,
    SealedDecision,
)
from tasks.vertical_xgboost.protected_sums import protected_sums

Decisions = Mapping[str, Sequence[SealedDecision]]
"""What each party is told of each node of a level: the same, but for sealed weights."""


def gather_histograms(
    training: Training, level: Level, decisions: Decisions
) -> dict[str, HistogramsReply]:
    """Step 3, ``histograms``: tell decisions of the level above, gather sums of this one."""
    config = training.config
    told_here = config.aggregator == "server"
    contents = {
        name: HistogramsRequest(
            level.tree,
            level.level,
            level.nodes,
            tuple(decisions[name]),
            level.orders_for(at) if told_here else {},
            training.relay.start_for(name),
            training.relay.orders_for(name),
        ).to_record()
        for at, name in enumerate(training.names)
    }
    shapes = level.shapes_by_name
    replies = training.parties.ask(
        contents,
        HISTOGRAMS,
        lambda content: HistogramsReply.from_record(
            content,
            shapes=shapes,
            protection=config.shares_protection,
            has_refusals=config.has_refusals and told_here,
        ),
        step="histograms",
    )
    training.book.add_seconds(replies)
    return replies


def add_up(training: Training, level: Level, replies: Mapping[str, HistogramsReply]) -> Totals:
    """Add ciphertexts here, or have sources do it (``aggregate``, an exchange of its own)."""
    config, book = training.config, training.book
    sums = protected_sums(config, num_training=book.num_training, watch=book.watch)
    book.ciphertexts += level.num_of_shares(sums)
    if config.aggregator == "server":
        refused = level.refused(replies)
        return Totals(level.totals(replies, sums, refused), refused)
    contents = {
        name: AggregateRequest(
            level.tree,
            level.level,
            {owner: reply.shares[name] for owner, reply in replies.items()},
        ).to_record()
        for name in training.names
    }
    shapes = level.shapes_by_name
    found = training.parties.ask_each(
        contents,
        AGGREGATE,
        lambda name, content: AggregateReply.from_record(
            content,
            shape=shapes[name],
            num_ordered=level.sources.num_ordered(name, config) if level.shuffle else None,
            has_refusals=config.has_refusals,
            protection=config.sums_protection,
        ),
        step="aggregate",
    )
    book.add_seconds(found)
    book.ciphertexts += level.num_of_totals(sums)
    training.relay.keep_orders({name: reply.following for name, reply in found.items()})
    masks = {at: reply.refused for at, reply in enumerate(found.values())}
    return Totals(
        {at: reply.total for at, reply in enumerate(found.values())},
        {at: mask for at, mask in masks.items() if mask is not None},
    )


def gather_offers(
    training: Training, level: Level, totals: Totals, *, may_prune: bool = False
) -> Offers:
    """Step 4, ``decide``: totals go to split clients, gains and sealed leaves come back.

    Parameters
    ----------
    training : Training
    level : Level
    totals : Totals
    may_prune : bool
        Ask for weights of all nodes, not only of those that no candidate splits.
    """
    clients = training.sources.split_clients
    contents, candidates = {}, {}
    for at in sorted(set(clients)):
        own = [source for source, client in enumerate(clients) if client == at]
        candidates[training.names[at]] = {
            training.names[source]: level.shapes[source].candidates for source in own
        }
        contents[training.names[at]] = DecideRequest(
            level.tree,
            level.level,
            {training.names[source]: totals.sums[source] for source in own},
            {training.names[s]: totals.refused[s] for s in own if s in totals.refused},
            training.config.sums_protection,
            may_prune,
        ).to_record()
    answers = training.parties.ask_each(
        contents,
        DECIDE,
        lambda name, content: DecideReply.from_record(
            content,
            candidates=candidates[name],
            parties=training.names,
            are_last=level.are_last,
            may_prune=may_prune,
            gamma=training.config.gamma,
        ),
        step="decide",
    )
    training.book.add_seconds(answers)
    return {
        source: answers[training.names[client]].offers[training.names[source]]
        for source, client in enumerate(clients)
    }


def gather_finish(
    training: Training, decisions: Decisions, *, trees_to_keep: int, folder: str
) -> dict[str, FinishReply]:
    """Step 5, ``finish``: tell the last decisions; each party keeps its part of the model."""
    contents = {
        name: FinishRequest(tuple(decisions[name]), trees_to_keep, folder).to_record()
        for name in training.names
    }
    replies = training.parties.ask(contents, FINISH, FinishReply.from_record, step="finish")
    training.book.add_seconds(replies)
    return replies


def gather_trimmed(training: Training, *, trees_to_keep: int, folder: str) -> None:
    """``trim``, an exchange that only early stopping makes: the last tree was no better."""
    request = TrimRequest(trees_to_keep, folder).to_record()
    replies = training.parties.ask(
        dict.fromkeys(training.names, request), TRIM, FinishReply.from_record, step="trim"
    )
    training.book.add_seconds(replies)
