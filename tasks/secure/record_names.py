"""How the content of a message's record is protected: the first word of the record's name says it.

``sealed...``
    Each value was sealed by one site for another (`tasks.secure.sealed_relay`): in a reply by
    receiver, in a request by sender, or as a list.
``encrypted...``
    Ciphertexts of which the receiver of the message has no key, or reads sums over sites only.
``masked...``
    Terms of a masked sum (`tasks.secure.secure_sums`): only the sum over sites can be read.
any other name
    In clear.

The disclosure ledger reads these names, so that what travels under them is never left out of it.
"""

from __future__ import annotations

from typing import Literal

Protection = Literal["sealed", "encrypted", "masked", "clear"]

PROTECTIONS: tuple[Protection, ...] = ("sealed", "encrypted", "masked", "clear")


def protection_of(name: str) -> Protection:
    """How the content of a record with this name is protected."""
    first = name.split("/", 1)[0].split("-", 1)[0]
    return next((kind for kind in PROTECTIONS[:-1] if kind == first), "clear")


def protected_name(protection: Protection, name: str) -> str:
    """Name of a record whose content is protected in this way.

    Parameters
    ----------
    protection : str
    name : str
        What it would be called in clear.
    """
    return name if protection == "clear" else f"{protection}-{name}"
