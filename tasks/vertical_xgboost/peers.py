"""All parties of a run as one of them knows them: keys, checked, and who decrypts for whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import cast

from flwr.app import ConfigRecord, Context
from flwr.supercore import log
from gmpy2 import mpz

from tasks.secure.roster import Roster
from tasks.site.faults import SiteFault
from tasks.site.foreign_text import printable
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.paillier.keys import PublicKey, check_distinct
from tasks.vertical_xgboost.party_facts import PaillierBundle
from tasks.vertical_xgboost.site_state import LOST, Secrets

_PEERS = "vertical-peers"


@dataclass(frozen=True)
class Peers:
    """All parties of a run, this one among them, in the order of names.

    Parameters
    ----------
    roster : Roster
    place : int
        Of this party.
    split_clients : tuple of int
        Place of each source's split client.
    paillier : tuple of PublicKey or None
        Key of each party.
    """

    roster: Roster
    place: int
    split_clients: tuple[int, ...]
    paillier: tuple[PublicKey | None, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names, sorted."""
        return self.roster.names

    @property
    def others(self) -> list[str]:
        """Names but this party's."""
        return [name for at, name in enumerate(self.names) if at != self.place]


def accept_roster(secrets: Secrets, roster: bytes) -> Peers:
    """Check the public keys that the server relays, where none of Paillier's are needed.

    ``pinned-sites`` and ``require-pinned`` of the node configuration are as in `tasks.secure`.

    Raises
    ------
    SiteFault
        What is wrong with them.
    """
    found = _read_roster(secrets, roster)
    _tell_operator(found)
    return Peers(found, found.names.index(secrets.keys.site), (), ())


def accept_peers(
    secrets: Secrets,
    config: VerticalXGBoostConfig,
    *,
    roster: bytes,
    paillier: tuple[bytes, ...],
    split_clients: tuple[int, ...],
) -> Peers:
    """Check the keys that the server relays.

    ``pinned-sites`` and ``require-pinned`` of the node configuration are as in `tasks.secure`. Who
    is taken at the server's word is told in the party's own log.

    Raises
    ------
    SiteFault
        What is wrong with them.
    """
    found = _read_roster(secrets, roster)
    _tell_operator(found)
    names = found.names
    if len(paillier) != len(names) or len(split_clients) != len(names):
        raise SiteFault("bad-request", "keys and split clients must be one a party")
    for at, other in enumerate(split_clients):
        if not 0 <= other < len(names) or other == at:
            raise SiteFault("bad-request", f"{names[at]}: its split client must be another party")
    keys: dict[str, PublicKey] = {}
    for name, data in zip(names, paillier, strict=True):
        bundle = _verified(found, secrets.run, name, data)
        if config.encryption == "paillier":
            keys[name] = PublicKey.from_bytes(
                bundle.key, owner=name, allow_weak_key=config.allow_weak_key
            )
            if keys[name].bits != config.key_bits:
                raise SiteFault(
                    "weak-key",
                    f"{name}: a Paillier key of {keys[name].bits} bits, asked for "
                    f"key-bits = {config.key_bits}",
                )
    check_distinct(keys)
    place = names.index(secrets.keys.site)
    return Peers(found, place, split_clients, tuple(keys.get(name) for name in names))


def store_peers(context: Context, peers: Peers) -> None:
    """Keep the parties for later steps."""
    keys = [key.to_bytes() if key else b"" for key in peers.paillier]
    context.state[_PEERS] = ConfigRecord(
        {
            "roster": peers.roster.to_bytes(),
            "split-clients": list(peers.split_clients),
            "paillier": keys,
        }
    )


def known_peers(secrets: Secrets) -> Peers:
    """The parties that were accepted."""
    record = secrets.context.state.config_records.get(_PEERS)
    if record is None:
        raise SiteFault("lost-state", LOST)
    roster = _read_roster(secrets, cast(bytes, record["roster"]))
    keys = cast(list[bytes], record["paillier"])
    return Peers(
        roster,
        roster.names.index(secrets.keys.site),
        tuple(cast(list[int], record["split-clients"])),
        tuple(PublicKey(mpz(int.from_bytes(key, "big"))) if key else None for key in keys),
    )


def _read_roster(secrets: Secrets, relayed: bytes) -> Roster:
    node = secrets.context.node_config
    known = secrets.context.state.config_records.get(_PEERS)
    if known is not None and known["roster"] != relayed:
        raise SiteFault("bad-request", "the keys of the parties are others than before")
    return Roster.from_bytes(
        relayed,
        run=secrets.run,
        own=secrets.keys,
        pinned=_pins(node),
        require_pinned=node.get("require-pinned") is True,
    )


def _tell_operator(roster: Roster) -> None:
    log(INFO, "%d parties, roster %s", len(roster.names), roster.fingerprint)
    unknown = [printable(name) for name in roster.first_use]
    if unknown:
        log(
            WARNING,
            "keys taken at the server's word, with no fingerprint in pinned-sites: %s "
            "(require-pinned = true refuses such parties)",
            ", ".join(unknown),
        )


def _verified(roster: Roster, run: str, name: str, data: bytes) -> PaillierBundle:
    try:
        bundle = PaillierBundle.from_bytes(data)
        roster[name].verify(bundle.signature, PaillierBundle.signed(run, name, bundle.key))
    except Exception:  # the signature's own exception, or bytes of another form
        raise SiteFault(
            "bad-key", f"{name}: its Paillier key does not carry its signature"
        ) from None
    return bundle


def _pins(node_config: Mapping[str, object]) -> dict[str, str]:
    text = str(node_config.get("pinned-sites", ""))
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not separator for _, separator, _ in pairs):
        raise SiteFault(
            "malformed-fingerprint", 'pinned-sites: must be "name=fingerprint, name=fingerprint"'
        )
    return {site.strip(): code.strip() for site, _, code in pairs}
