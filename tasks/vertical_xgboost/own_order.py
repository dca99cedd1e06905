"""The secret order that a source draws for its own candidates where it adds up the shares."""

from __future__ import annotations

import numpy as np

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.aggregate_messages import NextOrder
from tasks.vertical_xgboost.candidates import IntpArray
from tasks.vertical_xgboost.peers import Peers
from tasks.vertical_xgboost.secret_order import secret_permutation
from tasks.vertical_xgboost.site_state import Secrets

ORDER = np.dtype("<i4")
"""How an order stands in a sealed part."""


def read_order_of(source: str, payload: bytes) -> IntpArray:
    """An order that a source sealed, its numbers unchecked.

    Parameters
    ----------
    source : str
    payload : bytes

    Raises
    ------
    SiteFault
        ``"bad-request"`` if it is not one of numbers.
    """
    if len(payload) % ORDER.itemsize:
        raise SiteFault("bad-request", f"{source}: the order told of its candidates is none")
    return np.frombuffer(payload, dtype=ORDER).astype(np.intp)


def draw_order(secrets: Secrets, peers: Peers, count: int, *, step: str) -> NextOrder:
    """Draw the order of the next level, sealed for all label owners but the split client.

    Parameters
    ----------
    secrets : Secrets
    peers : Peers
    count : int
        Candidates.
    step : str
        Name of the step under which it is sealed.
    """
    order = secret_permutation(count)
    split_client = peers.names[peers.split_clients[peers.place]]
    payload = order.astype(ORDER).tobytes()
    sealed = {
        name: secrets.seal(peers, name, payload, step=step)
        for name in peers.others
        if name != split_client
    }
    return NextOrder(order, sealed)
