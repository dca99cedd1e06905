"""What a split client answers of one source: gains, and weights of leaves sealed for each party."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tasks.vertical_xgboost.decide_messages import DecideRequest, SealedOffer, leaves_step
from tasks.vertical_xgboost.heard import WEIGHT
from tasks.vertical_xgboost.message_parts import Sealed
from tasks.vertical_xgboost.partial_dp import noisy_weights, sources_above
from tasks.vertical_xgboost.party import Party
from tasks.vertical_xgboost.peers import Peers
from tasks.vertical_xgboost.protected_sums import LevelShape, ProtectedSums
from tasks.vertical_xgboost.site import VerticalSite
from tasks.vertical_xgboost.site_state import Secrets
from tasks.vertical_xgboost.split_client import node_offers


def sealed_offers(
    party: Party,
    source: int,
    request: DecideRequest,
    sums: ProtectedSums,
    secrets: Secrets,
    peers: Peers,
    site: VerticalSite,
) -> list[SealedOffer]:
    """Decrypt the totals of a source and judge its candidates; seal weights of leaves.

    Parameters
    ----------
    party : Party
    source : int
        Place of a source that this party decrypts for.
    request : DecideRequest
    sums : ProtectedSums
    secrets : Secrets
    peers : Peers
    site : VerticalSite

    Returns
    -------
    list of SealedOffer
        One a node of the level. With partial differential privacy weights are noisy for the source
        of the split above them, and for nobody else.
    """
    name, are_last = peers.names[source], party.tree.are_last(party.level)
    shape = LevelShape(party.num_candidates(source), len(party.level))
    refused = request.refused.get(name)
    adder = name if party.config.aggregator == "source" else "the server"
    found = sums.read(
        request.totals[name], shape, key=secrets.paillier, sender=adder, refused=refused
    )
    judged = node_offers(
        found, party.rule, are_last=are_last, may_prune=request.may_prune, refused=refused
    )

    noisy = noisy_weights(
        party.config,
        seed=site.noise_seed,
        tree=site.trees_before + request.tree,
        level=request.level,
        source=source,
        num_nodes=len(party.level),
    )
    above = sources_above(party.tree.splits, party.tree.children)

    def seal(node: int, place: int, weights: Sequence[float]) -> Sealed:
        """Weights of leaves for each party, noisy for the source of the split above them."""
        step = leaves_step(
            tree=request.tree, level=request.level, source=source, node=node, place=place
        )
        payloads = dict.fromkeys(peers.names, np.array(weights, dtype=WEIGHT).tobytes())
        to_shield = source if place >= 0 else above.get(party.level[node])
        if noisy and to_shield is not None:
            told = noisy[node].of(weights)
            payloads[peers.names[to_shield]] = np.array(told, dtype=WEIGHT).tobytes()
        return {to: secrets.seal(peers, to, payloads[to], step=step) for to in peers.names}

    return [
        SealedOffer(
            offer.gain,
            offer.places,
            tuple(
                seal(node, place, pair)
                for place, pair in zip(offer.places.tolist(), offer.pairs, strict=False)
            ),
            None if offer.leaf is None else seal(node, -1, [offer.leaf]),
        )
        for node, offer in enumerate(judged)
    ]
