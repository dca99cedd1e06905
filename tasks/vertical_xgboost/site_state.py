"""What a party remembers of a run between two messages, as arrays and bytes of the node's state.

Keys are drawn at the introduction and never anew in a run. A step is answered once: `expect`
refuses any other. When the run ends, by ``finish``, ``stop`` or a fault, keys and rows are
forgotten and a mark stays, after which nothing is answered in this run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from flwr.app import ConfigRecord, Context
from gmpy2 import mpz
from numpy.typing import NDArray

from tasks.secure.identity import read_identity
from tasks.secure.keys import SiteKeys
from tasks.secure.sealed_relay import ReplayGuard, open_sealed, seal
from tasks.secure.secure_sums import MaskedVector, mask
from tasks.secure.split_reals import word_bound
from tasks.secure.sum_guard import SumGuard
from tasks.site.content_digest import settings_digest
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.candidates import IntpArray
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.message_parts import (
    array_record,
)
from tasks.vertical_xgboost.paillier.keys import (
    PrivateKey,
    generate_key,
)
from tasks.vertical_xgboost.party_facts import PaillierBundle
from tasks.vertical_xgboost.stopwatch import Stopwatch

if TYPE_CHECKING:
    from tasks.vertical_xgboost.peers import Peers

_KEYS = "vertical-keys"
_NEXT = "vertical-next"
_ARRAYS = "vertical-arrays"
_ORDER = "vertical-order"
_TOLD = "vertical-told"
_ENDED = "vertical-stopped"
_RESUMED = "vertical-resumed"
_KEEPING = "vertical-keeping"
_PREFIX = "vertical-"

STOPPED = "this party's part of the run has ended and its keys are forgotten: begin a new run"

LOST = "the node has lost its state of this run (was its SuperNode restarted?): begin a new run"


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

        Raises
        ------
        SiteFault
            ``"stopped"`` if this party's part of the run has ended.
        """
        _refuse_if_ended(context)
        if has_begun(context):
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
            ``"stopped"``, or ``"lost-state"`` if there are none.
        """
        _refuse_if_ended(context)
        record = context.state.config_records.get(_KEYS)
        if record is None:
            raise SiteFault("lost-state", LOST)
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

    def seal(
        self, peers: Peers, receiver: str, payload: bytes, *, step: str, pad_to: int = 1
    ) -> bytes:
        """Seal a payload for another party, as long as the next multiple of `pad_to` bytes."""
        with self.watch.measure("seal"):
            return seal(
                self.keys,
                peers.roster[receiver],
                run=self.run,
                step=step,
                payload=payload,
                pad_to=pad_to,
            )

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


# Arrays and order of steps --------------------------------------------------------------------


def store_arrays(context: Context, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Keep a party's arrays, in place of those before."""
    context.state[_ARRAYS] = array_record(arrays)


def known_arrays(context: Context) -> dict[str, NDArray[np.generic]]:
    """A party's arrays; `SiteFault` ``"lost-state"`` if there are none."""
    record = context.state.array_records.get(_ARRAYS)
    if record is None:
        raise SiteFault("lost-state", LOST)
    return {name: array.numpy().copy() for name, array in record.items()}


def store_exponents(context: Context, *, label: int, weight: int) -> None:
    """Keep the bounds of all labels and all weights that the server told."""
    context.state[_TOLD] = ConfigRecord({"label-exponent": label, "weight-exponent": weight})


def known_exponents(context: Context) -> tuple[int, int]:
    """The bounds of labels and weights that were kept; `SiteFault` ``"lost-state"`` if none are."""
    record = context.state.config_records.get(_TOLD)
    if record is None:
        raise SiteFault("lost-state", LOST)
    return cast(int, record["label-exponent"]), cast(int, record["weight-exponent"])


def remember_resumed(context: Context, model: str) -> None:
    """Keep which training is gone on with, from the first introduction.

    Raises
    ------
    SiteFault
        ``"bad-request"`` if the run's configuration resumes none, or another one was told before.
    """
    if not context.run_config.get("resume"):
        raise SiteFault("bad-request", "a training to go on with came, and resume is not set")
    known = context.state.config_records.get(_RESUMED)
    if known is not None and known["model"] != model:
        raise SiteFault("bad-request", "another training to go on with was told before")
    if known is None:
        context.state[_RESUMED] = ConfigRecord({"model": model, "trees": 0, "repeated": 0})


def known_resumed(context: Context) -> tuple[str, int, int]:
    """The training that is gone on with, after how many trees (0: not known), repeated weights."""
    record = context.state.config_records.get(_RESUMED)
    if record is None:
        return "", 0, 0
    numbers = cast(int, record["trees"]), cast(int, record["repeated"])
    return str(record["model"]), *numbers


def store_going_on(context: Context, *, trees: int, repeated: int) -> None:
    """Keep after how many trees a resumed training goes on."""
    model, _, _ = known_resumed(context)
    context.state[_RESUMED] = ConfigRecord({"model": model, "trees": trees, "repeated": repeated})


def store_keeping(context: Context, *, folder: str, rows: str) -> None:
    """Keep where the party writes its part in a simulation, and the digest of its rows."""
    context.state[_KEEPING] = ConfigRecord({"folder": folder, "rows": rows})


def known_keeping(context: Context) -> tuple[str, str]:
    """What `store_keeping` kept; `SiteFault` ``"lost-state"`` if it is not there."""
    record = context.state.config_records.get(_KEEPING)
    if record is None:
        raise SiteFault("lost-state", LOST)
    return str(record["folder"]), str(record["rows"])


def store_order(context: Context, order: IntpArray) -> None:
    """Keep the order of the party's own candidates for the next level."""
    context.state[_ORDER] = array_record({"order": order.astype(np.int32)})


def known_order(context: Context) -> IntpArray:
    """The order that was kept; `SiteFault` ``"lost-state"`` if there is none."""
    record = context.state.array_records.get(_ORDER)
    if record is None:
        raise SiteFault("lost-state", LOST)
    return record["order"].numpy().astype(np.intp)


def expect(context: Context, step: str) -> None:
    """Refuse a step that is not the next one, or is asked for under another configuration.

    Raises
    ------
    SiteFault
        ``"stopped"``, ``"lost-state"``, ``"out-of-order"`` or ``"bad-request"``.
    """
    _refuse_if_ended(context)
    record = context.state.config_records.get(_NEXT)
    if record is None:
        raise SiteFault("lost-state", LOST)
    allowed = cast(list[str], record["steps"])
    if step not in allowed:
        raise SiteFault("out-of-order", f"step {step}: expected {' or '.join(allowed)}")
    if record["settings"] != settings_digest(context.run_config):
        raise SiteFault("bad-request", "the run configuration is another than in the step before")


def expect_next(context: Context, *steps: str) -> None:
    """Say which steps may come next."""
    settings = settings_digest(context.run_config)
    context.state[_NEXT] = ConfigRecord({"steps": list(steps), "settings": settings})


def has_begun(context: Context) -> bool:
    """Whether the party has introduced itself in this run."""
    return _NEXT in context.state


def forget(context: Context) -> None:
    """Let go of keys, rows and trees of the run."""
    for key in [key for key in context.state if key.startswith(_PREFIX)]:
        del context.state[key]


def end(context: Context, *, wrote: Sequence[Path] = (), may_trim: bool = False) -> None:
    """Let go of keys, rows and trees of the run, and answer nothing more in it.

    Parameters
    ----------
    context : Context
    wrote : sequence of Path
        Where the party's part of the model is, should the run fail after all.
    may_trim : bool
        Whether the party may still be told that fewer trees are the model.
    """
    forget(context)
    paths = [str(path) for path in wrote]
    context.state[_ENDED] = ConfigRecord({"parts": paths, "may-trim": may_trim})


def written(context: Context) -> list[Path]:
    """Where the party's part of the model is, if its part of the run has ended with one."""
    record = context.state.config_records.get(_ENDED, ConfigRecord())
    return [Path(each) for each in cast(list[str], record.get("parts", []))]


def expect_trim(context: Context) -> list[Path]:
    """Refuse ``trim`` unless it may come; return where the part of the model is."""
    record = context.state.config_records.get(_ENDED)
    if record is None:
        raise SiteFault("out-of-order", "step trim: must come after finish")
    if not record.get("may-trim"):
        _refuse_if_ended(context)
    return written(context)


def _refuse_if_ended(context: Context) -> None:
    if _ENDED in context.state:
        raise SiteFault("stopped", STOPPED)


def _number(data: bytes) -> mpz:
    return mpz(int.from_bytes(data, "big"))


def _primes(p: bytes, q: bytes) -> tuple[mpz, mpz]:
    return _number(p), _number(q)
