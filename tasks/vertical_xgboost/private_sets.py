"""Private set intersection between the hub and one party: elliptic-curve Diffie-Hellman.

By `openmined-psi` (the extra ``psi``; protocol of Meadows 1986 with blinded points of P-256). The
hub blinds its ids with a key of its own (`invite`); the party blinds those again, and its own ids,
with its key (`answer`); the hub takes its blinding off and compares (`places_of_common`). No party
can test a guess against what it receives: it lacks the other's key.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from tasks.secure.transcript import decode, encode
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.candidates import IntpArray

_USE = "fedapp/private-sets-answer/1"


def library() -> Any:
    """The module of `openmined-psi`.

    Raises
    ------
    SiteFault
        ``"missing-package"`` with what to install.
    """
    try:
        return import_module("private_set_intersection.python")
    except ImportError:
        raise SiteFault(
            "missing-package",
            'alignment = "psi" needs the package openmined-psi: '
            "pip install '.[psi]' (or alignment = \"hashed\")",
        ) from None


def invite(ids: Sequence[str]) -> tuple[bytes, bytes]:
    """Blind the hub's ids.

    Parameters
    ----------
    ids : sequence of str

    Returns
    -------
    key, request : bytes
        The key stays with the hub; the request is for every other party.
    """
    client = library().client.CreateWithNewKey(True)
    request = client.CreateRequest(list(ids))
    return bytes(client.GetPrivateKeyBytes()), bytes(request.SerializeToString())


def answer(request: bytes, ids: Sequence[str], *, hub: str) -> bytes:
    """Blind the hub's ids again, and a party's own, under a key that is then forgotten.

    Raises
    ------
    SiteFault
        ``"bad-request"`` if the hub sent no such request.
    """
    psi = library()
    try:
        asked = psi.Request()
        asked.ParseFromString(request)
        server = psi.server.CreateWithNewKey(True)
        response = server.ProcessRequest(asked)
    except Exception:  # protobuf's own, or a RuntimeError of the library
        raise SiteFault("bad-request", f"{hub}: no request of a private intersection") from None
    # Kept whole and sorted: other structures err now and then, and their order is that of the ids.
    setup = server.CreateSetupMessage(
        1e-9, len(asked.encrypted_elements), list(ids), psi.DataStructure.RAW
    )
    return encode(_USE, setup.SerializeToString(), response.SerializeToString())


def places_of_common(key: bytes, data: bytes, ids: Sequence[str], *, sender: str) -> IntpArray:
    """Places of the hub's ids that a party has too.

    Parameters
    ----------
    key : bytes
        That `invite` drew.
    data : bytes
        What `answer` gave.
    ids : sequence of str
        Of the hub, in the order of the invitation.
    sender : str
        The party.

    Raises
    ------
    SiteFault
        ``"bad-request"`` with the party's name.
    """
    psi = library()
    fault = SiteFault("bad-request", f"{sender}: no answer of a private intersection")
    try:
        parts = decode(data, _USE)
        setup, response = psi.ServerSetup(), psi.Response()
        setup.ParseFromString(parts[0])
        response.ParseFromString(parts[1])
        client = psi.client.CreateFromKey(key, True)
        found = client.GetIntersection(setup, response)
    except Exception:
        raise fault from None
    if len(response.encrypted_elements) != len(ids) or len(set(found)) != len(found):
        raise fault
    return np.array(sorted(found), dtype=np.intp)
