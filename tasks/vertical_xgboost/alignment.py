"""Rows that all parties have: ids as keyed hashes, compared by one party, the hub.

An id of few digits can be guessed, and a plain hash of it looked up. So ids leave a party only as
HMAC-SHA-256 under a key that it draws for the hub alone. The hub hashes its own ids under each
such key and compares; its answer is again hashes under a key of its own. Both travel sealed.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tasks.secure.transcript import decode, encode
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.buckets import BoolArray
from tasks.vertical_xgboost.candidates import IntpArray
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.rows import PartyTable

KEY_BYTES = 32
HASH_BYTES = 32
ID_TYPES = ("whole numbers", "digits with leading zeros", "text")

_USE = "fedapp/hashed-ids/1"
_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)
_DIGITS = re.compile(r"[0-9]+", re.ASCII)


def id_type(ids: Sequence[str]) -> str:
    """Which of `ID_TYPES` a party's ids are: ``"007"`` is not the whole number 7.

    Parameters
    ----------
    ids : sequence of str
        As `tasks.vertical_xgboost.rows.read_table` spells them.
    """
    if all(_WHOLE.fullmatch(text) for text in ids):
        return ID_TYPES[0]
    return ID_TYPES[1] if all(_DIGITS.fullmatch(text) for text in ids) else ID_TYPES[2]


def hub_of(config: VerticalXGBoostConfig, names: Sequence[str]) -> str:
    """The party that compares ids: ``alignment-hub``, or the first by name.

    Parameters
    ----------
    config : VerticalXGBoostConfig
    names : sequence of str
        Of all parties.

    Raises
    ------
    SiteFault
        ``"bad-configuration"`` if no party has the name.
    """
    if config.alignment_hub and config.alignment_hub not in names:
        raise SiteFault(
            "bad-configuration",
            f'alignment-hub = "{config.alignment_hub}": allowed are the parties '
            f"{', '.join(sorted(names))}",
        )
    return config.alignment_hub or min(names)


def tells_exponents_later(config: VerticalXGBoostConfig) -> bool:
    """Whether parties must know the common rows before they tell how large their labels are.

    Or their weights.
    """
    needs_labels = config.tells_label_sizes and config.sums_labels
    return config.alignment != "same" and (needs_labels or bool(config.weight))


@dataclass(frozen=True)
class HashedIds:
    """Ids under a key, as one party seals them for another.

    Parameters
    ----------
    key : bytes
        32 bytes.
    hashes : tuple of bytes
        HMAC-SHA-256 of each id, ascending: their order says nothing of that of the ids.
    """

    key: bytes
    hashes: tuple[bytes, ...]

    @classmethod
    def draw(cls, ids: Sequence[str]) -> HashedIds:
        """Hash ids under a key that is drawn from the operating system."""
        key = secrets.token_bytes(KEY_BYTES)
        return cls(key, tuple(sorted(_hash(key, text) for text in ids)))

    def places_in(self, ids: Sequence[str]) -> IntpArray:
        """Ascending places of the ids whose hashes are here."""
        known = set(self.hashes)
        found = [at for at, text in enumerate(ids) if _hash(self.key, text) in known]
        return np.array(found, dtype=np.intp)

    def to_bytes(self) -> bytes:
        """Return key and hashes, to be sealed."""
        return encode(_USE, self.key, b"".join(self.hashes))

    @classmethod
    def from_bytes(cls, data: bytes, *, sender: str) -> HashedIds:
        """Read what a party sealed.

        Raises
        ------
        SiteFault
            ``"bad-request"`` with the party's name: another form, a key of another length, or
            hashes that repeat.
        """
        try:
            key, joined = decode(data, _USE)
        except ValueError:
            raise SiteFault("bad-request", f"{sender}: no hashed ids") from None
        if len(key) != KEY_BYTES:
            raise SiteFault(
                "bad-request",
                f"{sender}: hashes ids under a key of {len(key)} bytes; must be {KEY_BYTES}",
            )
        if len(joined) % HASH_BYTES:
            raise SiteFault("bad-request", f"{sender}: hashed ids that are cut short")
        found = [joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES)]
        if any(one >= other for one, other in pairwise(found)):
            raise SiteFault(
                "bad-request", f"{sender}: hashed ids that repeat or are in no ascending order"
            )
        return cls(key, tuple(found))


def common_places(ids: Sequence[str], found: Sequence[IntpArray]) -> IntpArray:
    """Places of own ids that every other party has.

    Parameters
    ----------
    ids : sequence of str
        Of the hub.
    found : sequence of (k,) intp
        For each other party places of the ids that it has too.

    Returns
    -------
    (n,) intp
        Ascending.
    """
    is_common: BoolArray = np.ones(len(ids), dtype=np.bool_)
    for places in found:
        here = np.zeros(len(ids), dtype=np.bool_)
        here[places] = True
        is_common &= here
    return np.flatnonzero(is_common)


def common_rows(answer: HashedIds, ids: Sequence[str], *, hub: str, told: int) -> IntpArray:
    """Places of the common rows at a party, from the hub's answer.

    Parameters
    ----------
    answer : HashedIds
    ids : sequence of str
        Of the party, ascending.
    hub : str
    told : int
        Common rows as the hub told the server.

    Raises
    ------
    SiteFault
        ``"bad-request"`` if the answer has rows that are not here, or another number of them.
    """
    places = answer.places_in(ids)
    if strange := len(answer.hashes) - len(places):
        raise SiteFault("bad-request", f"{hub}: {strange} common rows are not this party's")
    if len(places) != told:
        raise SiteFault(
            "bad-request", f"{hub}: {len(places)} common rows; the server was told {told}"
        )
    return places


def aligned_tables(
    tables: Mapping[str, PartyTable], *, fraction: float, seed: int
) -> dict[str, PartyTable]:
    """Restrict tables that are in one place to the rows that all have: simulations only."""
    common = set.intersection(*(set(table.ids) for table in tables.values()))
    return {
        name: table.restricted(
            np.array([at for at, text in enumerate(table.ids) if text in common], dtype=np.intp),
            fraction=fraction,
            seed=seed,
        )
        for name, table in tables.items()
    }


def _hash(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
