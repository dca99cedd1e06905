"""What a party hears from others through the server: sealed parts, and what became of nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from logging import INFO

import numpy as np
from flwr.supercore import log

from tasks.secure.secure_sums import MaskedVector
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.decide_messages import leaves_step
from tasks.vertical_xgboost.fixed_point import IntArray
from tasks.vertical_xgboost.level_messages import SealedDecision, metrics_step
from tasks.vertical_xgboost.message_parts import Sealed
from tasks.vertical_xgboost.party import Decision, KnownSplit, Party
from tasks.vertical_xgboost.peers import Peers
from tasks.vertical_xgboost.site_state import Secrets
from tasks.vertical_xgboost.tree import GrowingTree

WEIGHT = np.dtype("<f8")
"""How weights of leaves stand in a sealed part."""


def open_all(
    secrets: Secrets, peers: Peers, sealed: Sealed, *, step: str, sealed_at: str
) -> Sealed:
    """Open one part of each other party.

    Parameters
    ----------
    secrets : Secrets
    peers : Peers
    sealed : dict of sender to bytes
    step : str
        That asks, for the message.
    sealed_at : str
        Step under which they were sealed.

    Raises
    ------
    SiteFault
        ``"bad-request"`` if one is missing, or as `tasks.secure.sealed_relay`.
    """
    if sorted(sealed) != peers.others:
        raise SiteFault("bad-request", f"{step}: must carry one sealed part of each other party")
    return {name: secrets.open(peers, name, part, step=sealed_at) for name, part in sealed.items()}


def hear_decisions(
    party: Party, decisions: Sequence[SealedDecision], secrets: Secrets, peers: Peers
) -> MaskedVector | None:
    """Enter a level's decisions; metrics under masks if they finish a tree."""
    growing = party.tree
    tree, level, nodes = len(party.finished), growing.depth, party.level
    if len(decisions) != len(nodes):
        raise SiteFault("bad-request", f"{len(decisions)} decisions for {len(nodes)} open nodes")
    heard = []
    are_last = growing.are_last(nodes)
    for node, decision in enumerate(decisions):
        _check_decision(party, decision)
        weights: tuple[float, ...] = ()
        wanted = 1 if decision.is_leaf else 2 if are_last[node] else 0
        if bool(decision.weights) != bool(wanted):
            raise SiteFault("bad-request", "decisions: sealed weights where there must be none")
        if wanted:
            step = leaves_step(
                tree=tree, level=level, source=decision.source, node=node, place=decision.place
            )
            sender = peers.names[peers.split_clients[decision.source]]
            opened = secrets.open(peers, sender, decision.weights, step=step)
            weights = _read_weights(opened, wanted, sender)
        source = -1 if decision.is_leaf else decision.source
        heard.append(Decision(source, decision.candidate, weights))
    if not party.hear(heard):
        return None
    log(INFO, "tree %d is grown", tree + 1)
    return secrets.mask(
        peers,
        _metric_sums(party, growing, peers),
        step=metrics_step(tree),
        two=party.config.allow_two_parties,
    )


def _metric_sums(party: Party, tree: GrowingTree[KnownSplit], peers: Peers) -> IntArray:
    """Metrics of the tree that was just finished; a fault names who sealed absurd weights of it.

    A squared error's leaf is a mean of gradients, shrunk, so none exceeds their bound; one of
    counts has a bound of its own. One that exceeds it is looked for only when losses do. Noise
    takes an honest weight there too, so with noise nobody is named.
    """
    try:
        return party.metric_sums()
    except SiteFault as fault:
        if party.config.dp_epsilon:
            words = (
                f"{'; '.join(fault.reasons)}: noise of dp-epsilon = {party.config.dp_epsilon:g} in "
                "leaf weights may be too large; a larger dp-epsilon, fewer trees or a smaller "
                "dp-clip make it smaller"
            )
            raise SiteFault("outside-bound", words) from None
        bound = party.rule.max_delta_step or math.ldexp(1.0, party.scales.row_exponent)
        parents = {child: node for node, pair in tree.children.items() for child in pair}
        senders = set()
        for leaf, weight in party.finished[-1].weights.items():
            if abs(weight) > bound:  # sealed by the split client of the split above
                source = tree.splits[parents[leaf]].source if leaf in parents else 0
                senders.add(peers.names[peers.split_clients[source]])
        if not senders:
            raise
        words = f"weights that it sealed for leaves exceed {bound:g}, their bound"
        raise SiteFault("bad-request", *(f"{who}: {words}" for who in sorted(senders))) from None


def _check_decision(party: Party, decision: SealedDecision) -> None:
    if not 0 <= decision.source < len(party.layouts):
        raise SiteFault("bad-request", "decisions: of a source that is no party")
    if decision.is_leaf:
        fits = decision.candidate == decision.place == -1
    else:
        known = party.candidates_in(decision.source)
        fits = decision.candidate in known and 0 <= decision.place < len(known)
    if not fits:
        raise SiteFault("bad-request", "decisions: of a candidate that its source does not have")


def _read_weights(opened: bytes, wanted: int, sender: str) -> tuple[float, ...]:
    weights: tuple[float, ...] = ()
    if len(opened) == wanted * WEIGHT.itemsize:
        weights = tuple(np.frombuffer(opened, dtype=WEIGHT).tolist())
    if not weights or not np.isfinite(weights).all():
        raise SiteFault("bad-request", f"{sender}: the weights that it sealed for leaves are none")
    return weights
