"""What one site sends another through the server, sealed for the receiver and signed.

Sealed with HPKE (RFC 9180, base mode: X25519, HKDF-SHA256, ChaCha20-Poly1305) for the receiver's
X25519 key; the sealed bytes are signed with the sender's Ed25519 key. Both are bound to run, step,
sender and receiver by name and key. A message reads

    version (1 byte) | signature (64) | encapsulated key (32) | ciphertext (payload + 8 + 16)

and one sender sends one receiver at most one message a step, which the receiver's `ReplayGuard`
enforces.

What the server learns
    Who sends whom, at which step, and the size; `pad_to` rounds sizes up.
What is trusted
    The sites' keys: see `tasks.secure.keys` for keys that are trusted on first use, with which a
    server that lies about keys reads everything. The receiver, with what it was sent.
What is not covered
    Traffic (who talks to whom, when, how much); a message that the server does not deliver, which
    shows only as a step that does not end; messages of this run, if a receiver's X25519 key is
    stolen later (the key is gone with the run's state).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Self, TypeGuard

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from tasks.secure.keys import PublicBundle, SiteKeys, check_name
from tasks.secure.transcript import encode
from tasks.site.faults import SiteFault

_USE = "fedapp/sealed-relay/1"
_SIGNATURE_USE = "fedapp/sealed-relay-signature/1"
_VERSION = 1
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)

_SIGNATURE = 64
_LENGTH = 8
_HEAD = 1 + _SIGNATURE
OVERHEAD = _HEAD + 32 + 16 + _LENGTH
"""Bytes that a message is longer than its padded payload."""

_MARK = 16  # bytes kept of a message that was opened


class RelayFault(SiteFault):
    """A sealed message that is refused; names sender and step, and nothing of the content."""


class ReplayGuard:
    """What a receiver remembers of a run: which messages it has opened, 16 bytes each.

    Parameters
    ----------
    marks : iterable of bytes
        What an earlier guard of the run remembered.
    """

    def __init__(self, marks: Iterable[bytes] = ()) -> None:
        self._marks = set(marks)

    def has_opened(self, binding: bytes) -> bool:
        """Tell whether a message with this binding was opened."""
        return _mark(binding) in self._marks

    def remember(self, binding: bytes) -> None:
        """Note that a message with this binding was opened."""
        self._marks.add(_mark(binding))

    def to_bytes(self) -> bytes:
        """Serialise for the site's state."""
        return b"".join((bytes([_VERSION]), *sorted(self._marks)))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote.

        Raises
        ------
        RelayFault
            ``malformed-state`` if it is something else.
        """
        if data[:1] != bytes([_VERSION]) or len(data) % _MARK != 1:
            raise RelayFault("malformed-state", "the stored record of opened messages is damaged")
        return cls(data[at : at + _MARK] for at in range(1, len(data), _MARK))


def has_sealed_form(value: object) -> TypeGuard[bytes]:
    """Whether a value has version and least length of a sealed message; anybody can tell."""
    return isinstance(value, bytes) and len(value) >= OVERHEAD and value[0] == _VERSION


def seal(
    sender: SiteKeys,
    receiver: PublicBundle,
    *,
    run: str,
    step: str,
    payload: bytes,
    pad_to: int = 1,
) -> bytes:
    """Seal a payload for one site and sign it.

    Parameters
    ----------
    sender : SiteKeys
        Keys of the site that sends.
    receiver : PublicBundle
        Keys of the site that may read, from a checked roster.
    run, step : str
        What the message is for; a step name is used once between two sites.
    payload : bytes
        The content, may be empty.
    pad_to : int
        The payload is padded to the next multiple of so many bytes; 1 adds nothing.

    Returns
    -------
    bytes
        The message, `OVERHEAD` bytes longer than the padded payload.

    Raises
    ------
    RelayFault
        ``wrong-run`` if the keys of either side are for another run, ``invalid-padding``.
    KeyFault
        ``invalid-name`` if the step has no proper name.
    """
    if pad_to < 1:
        raise RelayFault("invalid-padding", f"pad_to = {pad_to}: must be 1 byte or more")
    binding = _binding(sender.public, receiver, run=run, step=step)
    padding = -len(payload) % pad_to
    content = b"".join((len(payload).to_bytes(_LENGTH, "big"), payload, bytes(padding)))
    sealed = _SUITE.encrypt(content, receiver.sealing_public_key, info=binding)
    return b"".join((bytes([_VERSION]), sender.sign(_signed(binding, sealed)), sealed))


def open_sealed(
    receiver: SiteKeys,
    sender: PublicBundle,
    *,
    run: str,
    step: str,
    message: bytes,
    guard: ReplayGuard,
) -> bytes:
    """Check and open a message; the guard remembers it once nothing more can fail.

    Parameters
    ----------
    receiver : SiteKeys
        Keys of the site that reads.
    sender : PublicBundle
        Keys of the site from which the message has to be, from a checked roster.
    run, step : str
        What the message has to be for.
    message : bytes
        What `seal` gave.
    guard : ReplayGuard
        Of the receiver in this run; changed in place, to be stored with its keys.

    Returns
    -------
    bytes
        The payload, without padding.

    Raises
    ------
    RelayFault
        ``sealed-message-truncated``, ``sealed-message-version``, ``sealed-message-refused``
        (altered, forged, or made for another run, step, sender or receiver),
        ``sealed-message-replayed``; ``wrong-run`` if the keys of either side are for another run.
    KeyFault
        ``invalid-name`` if the step has no proper name.
    """
    binding = _binding(sender, receiver.public, run=run, step=step)
    what = f"message of {sender.site} for step {step}"
    if len(message) < OVERHEAD:
        raise RelayFault("sealed-message-truncated", f"{what}: it is cut short")
    if message[0] != _VERSION:
        raise RelayFault(
            "sealed-message-version", f"{what}: it is not of version {_VERSION} of the sealed relay"
        )
    sealed = message[_HEAD:]
    refused = RelayFault(
        "sealed-message-refused",
        f"{what}: it was altered, or is not by {sender.site}'s key "
        f"for this run, this step and {receiver.site}",
    )
    try:
        sender.verify(message[1:_HEAD], _signed(binding, sealed))
        if guard.has_opened(binding):
            raise RelayFault("sealed-message-replayed", f"{what}: one was opened before")
        content = _SUITE.decrypt(sealed, receiver.sealing_private_key, info=binding)
    except (InvalidSignature, InvalidTag):
        raise refused from None
    end = _LENGTH + int.from_bytes(content[:_LENGTH], "big")
    if end > len(content) or any(content[end:]):
        raise refused
    guard.remember(binding)
    return content[_LENGTH:end]


def _binding(sender: PublicBundle, receiver: PublicBundle, *, run: str, step: str) -> bytes:
    check_name("step", step)
    for bundle in (sender, receiver):
        if bundle.run != run:
            raise RelayFault(
                "wrong-run", f"step {step}: the keys of {bundle.site} are for another run"
            )
    ends = [(b.site, b.sealing_key, b.signing_key) for b in (sender, receiver)]
    return encode(_USE, run, step, *(field for end in ends for field in end))


def _signed(binding: bytes, sealed: bytes) -> bytes:
    # The hash of the sealed bytes, as Ed25519 reads what it signs twice.
    return encode(_SIGNATURE_USE, binding, hashlib.sha256(sealed).digest())


def _mark(binding: bytes) -> bytes:
    return hashlib.sha256(binding).digest()[:_MARK]
