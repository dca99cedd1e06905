"""What a party remembers of a run between two messages, as arrays and bytes of the node's state.

Keys are drawn at the introduction and never anew in a run. A step is answered once: `Progress`
says which one comes next. When the run ends, keys and rows are forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from flwr.app import ConfigRecord, Context
from gmpy2 import mpz
from numpy.typing import NDArray

from tasks.secure.identity import read_identity
from tasks.secure.keys import SiteKeys
from tasks.secure.roster import Roster
from tasks.secure.sealed_relay import ReplayGuard, open_sealed, seal
from tasks.secure.secure_sums import MaskedVector, mask
from tasks.secure.split_reals import word_bound
from tasks.secure.sum_guard import SumGuard
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.candidates import IntpArray
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.message_parts import (
    array_record,
)
from tasks.vertical_xgboost.paillier.keys import (
    PrivateKey,
    PublicKey,
    check_distinct,
    generate_key,
)
from tasks.vertical_xgboost.party_facts import PaillierBundle
from tasks.vertical_xgboost.stopwatch import Stopwatch

_KEYS = "vertical-keys"
_PEERS = "vertical-peers"
_NEXT = "vertical-next"
_ARRAYS = "vertical-arrays"
_ORDER = "vertical-order"
_PREFIX = "vertical-"

_LOST = "the node has lost its state of this run (was its SuperNode restarted?): begin a new run"


def run_name(run_id: int) -> str:
    """Name of a run, to which keys, masks and sealed messages are bound."""
    return f"run-{run_id}"


class Secrets:
    """Keys and guards of a party in a run; `store` keeps what was answered and opened.

    Parameters
    ----------
    context : Context
    keys : SiteKeys
    paillier : PrivateKey or None
        None where nothing is encrypted.
    """

    def __init__(self, context: Context, keys: SiteKeys, paillier: PrivateKey | None) -> None:
        self.context = context
        self.keys = keys
        self.paillier = paillier
        self.run = run_name(context.run_id)
        record = context.state.config_records.get(_KEYS, ConfigRecord())
        sums, opened = record.get("sums"), record.get("opened")
        self._sums = SumGuard.from_bytes(cast(bytes, sums)) if sums else SumGuard()
        self._opened = ReplayGuard.from_bytes(cast(bytes, opened)) if opened else ReplayGuard()
        self.watch = Stopwatch()
        self.seconds_of_drawing = float(cast(float, record.get("seconds", 0.0)))

    @classmethod
    def draw(cls, context: Context, name: str, config: VerticalXGBoostConfig) -> Secrets:
        """Keys of the party in this run; drawn and stored at the first call.

        ``identity-path`` of the node configuration is a lasting key to sign with.
        """
        if _KEYS in context.state:
            return cls.known(context)
        path = context.node_config.get("identity-path")
        identity = read_identity(Path(str(path)).expanduser()) if path else None
        keys = SiteKeys.generate(site=name, run=run_name(context.run_id), identity=identity)
        paillier, watch = None, Stopwatch()
        if config.encryption == "paillier":
            with watch.measure("generate-key"):
                paillier = generate_key(config.key_bits, allow_weak_key=config.allow_weak_key)
        drawn = cls(context, keys, paillier)
        drawn.seconds_of_drawing = watch.total
        drawn.store()
        return drawn

    @classmethod
    def known(cls, context: Context) -> Secrets:
        """Keys that were drawn.

        Raises
        ------
        SiteFault
            ``"lost-state"`` if there are none.
        """
        record = context.state.config_records.get(_KEYS)
        if record is None:
            raise SiteFault("lost-state", _LOST)
        keys = SiteKeys.from_bytes(cast(bytes, record["keys"]))
        stored = cast(bytes, record["paillier"])
        half = len(stored) // 2
        # Not checked anew at every message: primality tests would cost more than the sums.
        paillier = PrivateKey(*_primes(stored[:half], stored[half:])) if stored else None
        return cls(context, keys, paillier)

    def paillier_bundle(self) -> PaillierBundle:
        """The Paillier key for others, signed."""
        key = self.paillier.public.to_bytes() if self.paillier else b""
        signed = PaillierBundle.signed(self.run, self.keys.site, key)
        return PaillierBundle(key, self.keys.sign(signed))

    def store(self) -> None:
        """Keep keys and guards; to be called last."""
        self.context.state[_KEYS] = ConfigRecord(
            {
                "keys": self.keys.to_bytes(),
                "paillier": self.paillier.to_bytes() if self.paillier else b"",
                "sums": self._sums.to_bytes(),
                "opened": self._opened.to_bytes(),
                "seconds": self.seconds_of_drawing,
            }
        )

    def seal(self, peers: Peers, receiver: str, payload: bytes, *, step: str) -> bytes:
        """Seal a payload for another party."""
        with self.watch.measure("seal"):
            return seal(self.keys, peers.roster[receiver], run=self.run, step=step, payload=payload)

    def open(self, peers: Peers, sender: str, message: bytes, *, step: str) -> bytes:
        """Open what another party sealed, once."""
        with self.watch.measure("open"):
            return open_sealed(
                self.keys,
                peers.roster[sender],
                run=self.run,
                step=step,
                message=message,
                guard=self._opened,
            )

    def mask(
        self, peers: Peers, values: NDArray[np.int64], *, step: str, two: bool
    ) -> MaskedVector:
        """Answer a sum over all parties under masks."""
        with self.watch.measure("mask"):
            return mask(
                values,
                keys=self.keys,
                roster=peers.roster,
                step=step,
                bound=word_bound(len(peers.roster.names)),
                guard=self._sums,
                allow_two_sites=two,
            )


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


def accept_peers(
    secrets: Secrets,
    config: VerticalXGBoostConfig,
    *,
    roster: bytes,
    paillier: tuple[bytes, ...],
    split_clients: tuple[int, ...],
) -> Peers:
    """Check the keys that the server relays.

    ``pinned-sites`` and ``require-pinned`` of the node configuration are as in `tasks.secure`.

    Raises
    ------
    SiteFault
        What is wrong with them.
    """
    found = _read_roster(secrets, roster)
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
        raise SiteFault("lost-state", _LOST)
    roster = _read_roster(secrets, cast(bytes, record["roster"]))
    keys = cast(list[bytes], record["paillier"])
    return Peers(
        roster,
        roster.names.index(secrets.keys.site),
        tuple(cast(list[int], record["split-clients"])),
        tuple(PublicKey(_number(key)) if key else None for key in keys),
    )


# Arrays and order of steps --------------------------------------------------------------------


def store_arrays(context: Context, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Keep a party's arrays, in place of those before."""
    context.state[_ARRAYS] = array_record(arrays)


def known_arrays(context: Context) -> dict[str, NDArray[np.generic]]:
    """A party's arrays; `SiteFault` ``"lost-state"`` if there are none."""
    record = context.state.array_records.get(_ARRAYS)
    if record is None:
        raise SiteFault("lost-state", _LOST)
    return {name: array.numpy().copy() for name, array in record.items()}


def store_order(context: Context, order: IntpArray) -> None:
    """Keep the order of the party's own candidates for the next level."""
    context.state[_ORDER] = array_record({"order": order.astype(np.int32)})


def has_order(context: Context) -> bool:
    """Whether the party draws orders of its own candidates."""
    return _ORDER in context.state


def known_order(context: Context) -> IntpArray:
    """The order that was kept; `SiteFault` ``"lost-state"`` if there is none."""
    record = context.state.array_records.get(_ORDER)
    if record is None:
        raise SiteFault("lost-state", _LOST)
    return record["order"].numpy().astype(np.intp)


def expect(context: Context, step: str) -> None:
    """Refuse a step that is not the next one.

    Raises
    ------
    SiteFault
        ``"lost-state"``, or ``"out-of-order"``.
    """
    record = context.state.config_records.get(_NEXT)
    if record is None:
        raise SiteFault("lost-state", _LOST)
    allowed = cast(list[str], record["steps"])
    if step not in allowed:
        raise SiteFault("out-of-order", f"step {step}: expected {' or '.join(allowed)}")


def expect_next(context: Context, *steps: str) -> None:
    """Say which steps may come next."""
    context.state[_NEXT] = ConfigRecord({"steps": list(steps)})


def forget(context: Context) -> None:
    """Let go of keys, rows and trees of the run."""
    for key in [key for key in context.state if key.startswith(_PREFIX)]:
        del context.state[key]


def _read_roster(secrets: Secrets, relayed: bytes) -> Roster:
    node = secrets.context.node_config
    return Roster.from_bytes(
        relayed,
        run=secrets.run,
        own=secrets.keys,
        pinned=_pins(node),
        require_pinned=node.get("require-pinned") is True,
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


def _number(data: bytes) -> mpz:
    return mpz(int.from_bytes(data, "big"))


def _primes(p: bytes, q: bytes) -> tuple[mpz, mpz]:
    return _number(p), _number(q)


def _pins(node_config: Mapping[str, object]) -> dict[str, str]:
    text = str(node_config.get("pinned-sites", ""))
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not separator for _, separator, _ in pairs):
        raise SiteFault(
            "malformed-fingerprint", 'pinned-sites: must be "name=fingerprint, name=fingerprint"'
        )
    return {site.strip(): code.strip() for site, _, code in pairs}
