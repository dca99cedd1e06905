"""Privatization of updates as a mod, for any Flower ClientApp."""

from __future__ import annotations

from logging import ERROR, INFO
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.supercore import log
from numpy.typing import NDArray

from tasks.privacy.mechanisms import PrivatizationSettings, is_number, noise_source
from tasks.privacy.update import (
    Clip,
    PrivatizedUpdate,
    check_model,
    clip_by_global_norm,
    privatize,
)
from tasks.site.client import SITE_FAULT_CODE
from tasks.site.faults import SiteFault

NUM_CLIENTS = "num-clients"
"""Key, in a ConfigRecord of a training message, of the number of clients addressed in the round."""

SERVER_ROUND = "server-round"
"""Key, in a ConfigRecord of a training message, of the round; Flower's name for it."""


MOST_CLIENTS = 1000
"""Largest number of addressed clients that a site believes unless it is set up otherwise."""


class UpdatePrivatization:
    """Mod that clips and noises the model update in the reply to a training message.

    What leaves is ``global + clip(local - global) + noise``, where *global* is the one ArrayRecord
    of the message and *local* the one ArrayRecord of the reply. If that cannot be made, the reply
    is an error: the trained arrays never leave unprivatized. Other messages pass through.

    Parameters
    ----------
    clip_norm : float
        Bound of the update's L2 norm over all floating-point arrays, > 0.
    noise_multiplier : float, optional
        Drives Gaussian noise, >= 0; needed under ``"gaussian"``.
    mechanism : {"gaussian", "laplace"}
        Distribution of the noise.
    sensitivity : float
        Factor on the noise scale, > 0.
    epsilon : float, optional
        Drives Laplace noise, > 0; needed under ``"laplace"``. No epsilon of differential privacy.
    num_clients : int, optional
        The K in the noise's 1/sqrt(K), fixed here; what the server says is then ignored. Without
        it K is read from the message, where :class:`strategies.dp_fedavg.DPFedAvg` puts it, and a
        message without one is refused. ``num_clients=1`` is the safe choice: the most noise, and
        no trust in the server's word.
    max_num_clients : int
        Largest K that is believed. A server that claims more clients than there are gets updates
        with less noise.
    clip : callable
        Another clipping; see :func:`tasks.privacy.update.privatize`.
    rng : numpy.random.Generator, optional
        For simulations, one a site. Without it noise comes from the operating system's generator.

    Attributes
    ----------
    last_update : PrivatizedUpdate or None
        What was done last, with norm and noise-to-signal ratio. Stays at the site.

    Raises
    ------
    ValueError
        For everything out of range: name, value and what is allowed.

    Examples
    --------
    ::

        app = ClientApp(mods=[UpdatePrivatization(clip_norm=0.5, noise_multiplier=0.05)])

    Put it first in the list: mods behind it may still change the arrays before they are
    privatized, a mod in front of it changes what was privatized.

    Notes
    -----
    Only the ArrayRecord is privatized. Metrics and configuration in the reply leave as the
    ClientApp wrote them.
    """

    def __init__(
        self,
        *,
        clip_norm: float,
        noise_multiplier: float | None = None,
        mechanism: Literal["gaussian", "laplace"] = "gaussian",
        sensitivity: float = 1.0,
        epsilon: float | None = None,
        num_clients: int | None = None,
        max_num_clients: int = MOST_CLIENTS,
        clip: Clip = clip_by_global_norm,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.settings = PrivatizationSettings(
            clip_norm=clip_norm,
            mechanism=mechanism,
            noise_multiplier=noise_multiplier,
            sensitivity=sensitivity,
            epsilon=epsilon,
        )
        for name, value in (("num_clients", num_clients), ("max_num_clients", max_num_clients)):
            if value is not None and not _is_count(value):
                raise ValueError(f"{name} = {value!r}: must be a whole number >= 1")
        self.num_clients = num_clients
        self.max_num_clients = max_num_clients
        self.last_update: PrivatizedUpdate | None = None
        self._clip = clip
        self._source = noise_source(rng)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Handle a message: train as the ClientApp does, then privatize what it replies."""
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        try:
            num_clients = self._clients_addressed(message.content)
            _, received = _only_arrays(message.content, "the training message")
            check_model(received)
        except Exception as error:
            return _refusal(message, error)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        try:
            key, trained = _only_arrays(reply.content, "the ClientApp's reply")
            update = self._privatize(received, trained, num_clients)
            private = ArrayRecord({name: Array(array) for name, array in update.arrays.items()})
            reply.content[key] = private
        except Exception as error:
            return _refusal(message, error)
        self.last_update = update
        return reply

    def _privatize(
        self, received: dict[str, NDArray[Any]], trained: dict[str, NDArray[Any]], num_clients: int
    ) -> PrivatizedUpdate:
        update = privatize(
            received,
            trained,
            clip_norm=self.settings.clip_norm,
            noise=self.settings.noise(num_clients=num_clients),
            source=self._source,
            clip=self._clip,
        )
        log(
            INFO,
            "update privatized for %d clients: noise-to-signal %.3g",
            num_clients,
            update.noise_to_signal,
        )
        return update

    def _clients_addressed(self, content: RecordDict) -> int:
        if self.num_clients is not None:
            return self.num_clients
        said = [r[NUM_CLIENTS] for r in content.config_records.values() if NUM_CLIENTS in r]
        advice = "num_clients=1 in the mod is the safe choice: the most noise"
        if len(said) != 1:
            raise SiteFault(
                "number-of-clients",
                f"the training message has {len(said)} values of {NUM_CLIENTS}, and the noise "
                f"depends on it; {advice}",
            )
        if not _is_count(said[0]) or said[0] > self.max_num_clients:  # type: ignore[operator]
            raise SiteFault(
                "number-of-clients",
                f"{NUM_CLIENTS} = {said[0]!r}: must be a whole number from 1 to "
                f"{self.max_num_clients} (max_num_clients); {advice}",
            )
        return int(said[0])  # type: ignore[arg-type]


def _is_count(value: object) -> bool:
    return is_number(value) and isinstance(value, int) and value >= 1


def _only_arrays(content: RecordDict, what: str) -> tuple[str, dict[str, NDArray[Any]]]:
    """Return the key and the arrays of the one ArrayRecord."""
    records = content.array_records
    if len(records) != 1:
        raise SiteFault(
            "number-of-records", f"{what} has {len(records)} ArrayRecords; must be exactly one"
        )
    key, record = next(iter(records.items()))
    return key, {name: array.numpy() for name, array in record.items()}


def _refusal(message: Message, error: Exception) -> Message:
    """Return an error reply; what is not a SiteFault is told to the site's own log only."""
    if isinstance(error, SiteFault):
        reason = f"{error.code}: {error}"
    else:
        log(ERROR, "the update could not be privatized", exc_info=error)
        reason = f"internal: {type(error).__name__} while privatizing; the site's log says more"
    return Message(Error(code=SITE_FAULT_CODE, reason=reason), reply_to=message)
