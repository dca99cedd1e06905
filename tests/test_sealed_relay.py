"""Sealed relay: only the named receiver opens, once, what the named sender sealed."""

from __future__ import annotations

import hashlib
import itertools

import pytest
from Crypto.Protocol import HPKE
from Crypto.Protocol.DH import import_x25519_private_key
from Crypto.Signature import eddsa
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tasks.secure import sealed_relay
from tasks.secure.keys import KeyFault, PublicBundle, SiteKeys
from tasks.secure.sealed_relay import OVERHEAD, RelayFault, ReplayGuard, open_sealed, seal
from tasks.secure.transcript import encode
from tests.seeded_keys import seeded_keys

RUN, STEP = "run-7", "labels"
A, B, C = (seeded_keys(site=f"site-{x}", run=RUN, seed=2) for x in "abc")
A2, B2 = (seeded_keys(site=f"site-{x}", run="run-8", seed=2) for x in "ab")
SECRET = b"a row that nobody else may see"
MESSAGE = seal(A, B.public, run=RUN, step=STEP, payload=SECRET, pad_to=64)


def opened(
    message: bytes,
    *,
    receiver: SiteKeys = B,
    sender: PublicBundle = A.public,
    run: str = RUN,
    step: str = STEP,
    guard: ReplayGuard | None = None,
) -> bytes:
    return open_sealed(
        receiver,
        sender,
        run=run,
        step=step,
        message=message,
        guard=ReplayGuard() if guard is None else guard,
    )


def refused(message: bytes, *codes: str, guard: ReplayGuard | None = None) -> RelayFault:
    """The fault of a message that does not open and leaves the guard as it was."""
    guard = ReplayGuard() if guard is None else guard
    before = guard.to_bytes()
    with pytest.raises(RelayFault) as caught:
        opened(message, guard=guard)
    fault = caught.value
    assert fault.code in codes
    assert all("site-a" in reason and STEP in reason for reason in fault.reasons)
    assert "row" not in str(fault)
    assert fault.__cause__ is None
    assert guard.to_bytes() == before
    return fault


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=300), st.integers(1, 200))
def test_what_is_sealed_opens_and_sizes_say_no_more_than_stated(payload: bytes, pad: int) -> None:
    message = seal(A, B.public, run=RUN, step=STEP, payload=payload, pad_to=pad)
    assert opened(message) == payload
    assert len(message) == OVERHEAD + -(-len(payload) // pad) * pad
    assert len(payload) < 4 or payload not in message


def test_padding_makes_sizes_equal() -> None:
    sizes = {
        len(seal(A, B.public, run=RUN, step=STEP, payload=bytes(n), pad_to=64))
        for n in range(1, 65)
    }
    assert sizes == {OVERHEAD + 64}
    with pytest.raises(RelayFault, match="pad_to = 0") as caught:
        seal(A, B.public, run=RUN, step=STEP, payload=b"", pad_to=0)
    assert caught.value.code == "invalid-padding"


def test_it_is_rfc_9180_and_rfc_8032_to_another_implementation() -> None:
    ends = [(k.public.site, k.public.sealing_key, k.public.signing_key) for k in (A, B)]
    binding = encode("fedapp/sealed-relay/1", RUN, STEP, *itertools.chain(*ends))
    signature, sealed = MESSAGE[1:65], MESSAGE[65:]
    receiver = HPKE.new(
        receiver_key=import_x25519_private_key(B.sealing_private),
        aead_id=HPKE.AEAD.CHACHA20_POLY1305,
        enc=sealed[:32],
        info=binding,
    )
    content = receiver.unseal(sealed[32:])
    assert content[8 : 8 + len(SECRET)] == SECRET
    assert int.from_bytes(content[:8], "big") == len(SECRET)
    assert content[8 + len(SECRET) :] == bytes(64 - len(SECRET))
    signed = encode("fedapp/sealed-relay-signature/1", binding, hashlib.sha256(sealed).digest())
    key = eddsa.import_public_key(A.public.signing_key)
    eddsa.new(key, "rfc8032").verify(signed, signature)  # raises if it does not hold


def test_the_same_payload_is_never_sealed_alike() -> None:
    again = seal(A, B.public, run=RUN, step=STEP, payload=SECRET, pad_to=64)
    assert again[65:97] != MESSAGE[65:97]
    shared = sum(x == y for x, y in zip(again[97:], MESSAGE[97:], strict=True))
    assert shared < 10  # about 88 / 256 by chance


# --- altered, truncated, extended --------------------------------------------------------------


def test_any_altered_byte_is_refused() -> None:
    for at in range(len(MESSAGE)):
        data = bytearray(MESSAGE)
        data[at] ^= 1 << at % 8
        refused(bytes(data), "sealed-message-version" if at == 0 else "sealed-message-refused")


@settings(deadline=None, max_examples=200)
@given(
    st.binary(max_size=200),
    st.dictionaries(st.integers(0, 320), st.integers(1, 255), min_size=1, max_size=5),
)
def test_any_altered_bytes_of_any_message_are_refused(
    payload: bytes, flips: dict[int, int]
) -> None:
    data = bytearray(seal(A, B.public, run=RUN, step=STEP, payload=payload, pad_to=200))
    before = bytes(data)
    for at, flip in flips.items():
        data[at % len(data)] ^= flip
    assume(data != before)
    refused(bytes(data), "sealed-message-version", "sealed-message-refused")


def test_a_message_cut_anywhere_is_refused() -> None:
    for end in range(len(MESSAGE)):
        code = "sealed-message-truncated" if end < OVERHEAD else "sealed-message-refused"
        refused(MESSAGE[:end], code)


@given(st.binary(min_size=1, max_size=40))
def test_a_longer_message_is_refused(extra: bytes) -> None:
    refused(MESSAGE + extra, "sealed-message-refused")


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_garbage_is_refused(data: bytes) -> None:
    refused(data, "sealed-message-truncated", "sealed-message-version", "sealed-message-refused")


# --- misrouted ---------------------------------------------------------------------------------


@settings(deadline=None, max_examples=120)
@given(
    st.sampled_from([A, B, C]),
    st.sampled_from([A, B, C]),
    st.sampled_from(["labels", "labels/2", "label", "Labels", "s"]),
)
def test_every_other_sender_receiver_or_step_is_refused(
    sender: SiteKeys, receiver: SiteKeys, step: str
) -> None:
    if (sender, receiver, step) == (A, B, STEP):
        assert opened(MESSAGE) == SECRET
        return
    with pytest.raises(RelayFault) as caught:
        opened(MESSAGE, sender=sender.public, receiver=receiver, step=step)
    assert caught.value.code == "sealed-message-refused"
    assert sender.site in str(caught.value)
    assert f"step {step}:" in str(caught.value)


def test_another_run_is_refused_with_keys_of_either_run() -> None:
    with pytest.raises(RelayFault) as caught:
        opened(MESSAGE, run="run-8")
    assert caught.value.code == "wrong-run"
    # The very same keys in another run: only the name of the run differs.
    same = [SiteKeys(k.site, "run-8", k.sealing_private, k.signing_private) for k in (A, B)]
    with pytest.raises(RelayFault) as caught:
        opened(MESSAGE, run="run-8", sender=same[0].public, receiver=same[1])
    assert caught.value.code == "sealed-message-refused"
    for sender, receiver in ((A2, B), (A, B2)):
        with pytest.raises(RelayFault, match=r"another run$") as caught:
            seal(sender, receiver.public, run=RUN, step=STEP, payload=b"")
        assert caught.value.code == "wrong-run"


def test_the_same_name_with_another_key_is_another_site() -> None:
    impostor = SiteKeys.generate(site="site-a", run=RUN)
    forged = seal(impostor, B.public, run=RUN, step=STEP, payload=SECRET)
    refused(forged, "sealed-message-refused")
    other_b = SiteKeys.generate(site="site-b", run=RUN)
    with pytest.raises(RelayFault):
        opened(MESSAGE, receiver=other_b)


def test_nobody_can_claim_what_another_site_sealed() -> None:
    """C puts its own signature on A's sealed bytes, properly bound to C: B cannot open it."""
    sealed = MESSAGE[65:]
    binding = sealed_relay._binding(C.public, B.public, run=RUN, step=STEP)
    claimed = MESSAGE[:1] + C.sign(sealed_relay._signed(binding, sealed)) + sealed
    with pytest.raises(RelayFault) as caught:
        opened(claimed, sender=C.public)
    assert caught.value.code == "sealed-message-refused"


def test_a_message_sent_back_is_refused() -> None:
    with pytest.raises(RelayFault):
        opened(MESSAGE, sender=B.public, receiver=A)


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\xff" * 8, b"\0" * 7 + b"\x05abc"])
def test_a_sender_that_frames_or_pads_wrongly_is_refused(content: bytes) -> None:
    padded_wrongly = (3).to_bytes(8, "big") + b"abc" + b"\0\1"
    binding = sealed_relay._binding(A.public, B.public, run=RUN, step=STEP)
    for framed in (content, padded_wrongly):
        sealed = sealed_relay._SUITE.encrypt(framed, B.public.sealing_public_key, info=binding)
        message = b"\1" + A.sign(sealed_relay._signed(binding, sealed)) + sealed
        refused(message, "sealed-message-refused", "sealed-message-truncated")


@pytest.mark.parametrize("step", ["", "two\nlines"])
def test_a_step_without_a_proper_name_is_refused(step: str) -> None:
    with pytest.raises(KeyFault, match="step") as caught:
        seal(A, B.public, run=RUN, step=step, payload=b"")
    assert caught.value.code == "invalid-name"


# --- replayed ----------------------------------------------------------------------------------


def test_a_step_is_opened_once_even_after_the_guard_was_stored() -> None:
    guard = ReplayGuard()
    assert opened(MESSAGE, guard=guard) == SECRET
    stored = ReplayGuard.from_bytes(guard.to_bytes())
    second = seal(A, B.public, run=RUN, step=STEP, payload=b"another answer to the same step")
    for message in (MESSAGE, second):
        refused(message, "sealed-message-replayed", guard=guard)
        refused(message, "sealed-message-replayed", guard=stored)


def test_other_steps_and_senders_are_open_still_and_the_guard_stays_small() -> None:
    guard = ReplayGuard()
    senders = (A, C)
    for count, (sender, step) in enumerate(itertools.product(senders, "xyz"), start=1):
        message = seal(sender, B.public, run=RUN, step=step, payload=step.encode())
        assert opened(message, sender=sender.public, step=step, guard=guard) == step.encode()
        assert len(guard.to_bytes()) == 1 + 16 * count
        guard = ReplayGuard.from_bytes(guard.to_bytes())


def test_a_refused_message_does_not_use_up_the_step() -> None:
    guard = ReplayGuard()
    refused(MESSAGE[:-1], "sealed-message-refused", guard=guard)
    assert opened(MESSAGE, guard=guard) == SECRET


@pytest.mark.parametrize("data", [b"", b"\2", b"\1abc", b"\1" + bytes(15)])
def test_a_damaged_guard_is_refused(data: bytes) -> None:
    with pytest.raises(RelayFault) as caught:
        ReplayGuard.from_bytes(data)
    assert caught.value.code == "malformed-state"
