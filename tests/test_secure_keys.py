"""Keys, bundles, fingerprints, identities and rosters."""

from __future__ import annotations

import base64
import hashlib
import re
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.secure import keys as keys_module
from tasks.secure.identity import create_identity, read_identity
from tasks.secure.keys import KeyFault, PublicBundle, SiteKeys, fingerprint, parse_fingerprint
from tasks.secure.roster import Roster
from tasks.secure.transcript import decode, encode
from tests.seeded_keys import seeded_keys

RUN = "run-7"
SITES = ("site-a", "site-b", "site-c")
KEYS = {site: seeded_keys(site=site, run=RUN, seed=1) for site in SITES}
BUNDLES = {site: keys.public for site, keys in KEYS.items()}
PINS = {site: bundle.fingerprint for site, bundle in BUNDLES.items()}

# The points of small order of Curve25519 (RFC 7748, section 6.1, asks to refuse their product).
SMALL_ORDER = (
    bytes(32),
    b"\x01" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
)


def resigned(keys: SiteKeys, *, site: str | None = None, sealing_key: bytes | None = None) -> bytes:
    """A bundle that says something else, with a signature that holds."""
    public = keys.public
    parts = (
        site or public.site,
        public.run,
        sealing_key if sealing_key is not None else public.sealing_key,
        public.signing_key,
    )
    signed = encode("fedapp/key-bundle/1", *parts)
    return encode("fedapp/key-bundle/1", *parts, keys.sign(signed))


# --- transcripts -------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20), max_size=5), st.lists(st.binary(max_size=20), max_size=5))
def test_transcripts_are_read_back_and_differ_where_fields_differ(
    one: list[bytes], other: list[bytes]
) -> None:
    assert decode(encode("use", *one), "use") == one
    assert (encode("use", *one) == encode("use", *other)) == (one == other)


@given(st.lists(st.binary(max_size=20), max_size=4), st.data())
def test_a_transcript_cut_inside_a_field_or_of_another_use_is_refused(
    fields: list[bytes], data: st.DataObject
) -> None:
    whole = encode("use", *fields)
    between = {len(encode("use", *fields[:count])) for count in range(len(fields) + 1)}
    end = data.draw(st.sampled_from(sorted(set(range(len(whole))) - between)))
    with pytest.raises(ValueError, match="not a"):
        decode(whole[:end], "use")
    with pytest.raises(ValueError, match="not a other"):
        decode(whole, "other")


# --- a site's keys -----------------------------------------------------------------------------


def test_keys_come_back_from_bytes() -> None:
    keys = SiteKeys.generate(site="Zürich 1", run=RUN)
    again = SiteKeys.from_bytes(keys.to_bytes())
    assert (again.site, again.run) == ("Zürich 1", RUN)
    assert again.to_bytes() == keys.to_bytes()
    assert again.public == keys.public


@pytest.mark.parametrize("cut", [0, 1, 40, -1])
def test_damaged_stored_keys_are_refused(cut: int) -> None:
    with pytest.raises(KeyFault) as caught:
        SiteKeys.from_bytes(KEYS["site-a"].to_bytes()[:cut])
    assert caught.value.code == "malformed-state"


def test_keys_are_fresh() -> None:
    drawn = [SiteKeys.generate(site="site-a", run=RUN) for _ in range(3)]
    private = {key for keys in drawn for key in (keys.sealing_private, keys.signing_private)}
    assert len(private) == 6


def test_private_keys_are_not_printed() -> None:
    keys = KEYS["site-a"]
    shown = repr(keys) + str(keys)
    assert "site-a" in shown
    for private in (keys.sealing_private, keys.signing_private):
        assert repr(private) not in shown
        assert private.hex() not in shown


@pytest.mark.parametrize("name", ["", " xyz", "xyz ", "x\ny", "x\x1b[31m", "x" * 201])
def test_a_name_that_cannot_be_printed_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(KeyFault) as caught:
        SiteKeys.generate(site=name, run=RUN)
    assert caught.value.code == "invalid-name"
    assert "x" not in str(caught.value)


# --- fingerprints ------------------------------------------------------------------------------


def test_a_fingerprint_is_160_bits_of_sha256_in_groups() -> None:
    key = BUNDLES["site-a"].signing_key
    framed = b"".join(len(f).to_bytes(8, "big") + f for f in (b"fedapp/identity/1", key))
    plain = base64.b32encode(hashlib.sha256(framed).digest()[:20]).decode()
    shown = fingerprint(key)
    assert re.fullmatch(r"([A-Z2-7]{4}-){7}[A-Z2-7]{4}", shown)
    assert shown.replace("-", "") == plain
    assert BUNDLES["site-a"].fingerprint == shown
    assert len(set(PINS.values())) == len(SITES)


def test_a_fingerprint_may_be_typed_in_any_way() -> None:
    shown = PINS["site-a"]
    for typed in (shown.lower(), shown.replace("-", " "), f" {shown.replace('-', '')}\n"):
        assert parse_fingerprint(typed) == shown
    for wrong in ("", shown[:-1], shown + "A", "1" + shown[1:], "é" + shown[1:]):
        with pytest.raises(ValueError, match=r".+"):
            parse_fingerprint(wrong)


# --- bundles -----------------------------------------------------------------------------------


def test_a_bundle_comes_back_from_bytes() -> None:
    for bundle in BUNDLES.values():
        assert PublicBundle.from_bytes(bundle.to_bytes()) == bundle


@settings(deadline=None, max_examples=300)
@given(st.integers(0, len(BUNDLES["site-a"].to_bytes()) - 1), st.integers(1, 255))
def test_a_bundle_with_any_altered_byte_is_refused(at: int, flip: int) -> None:
    data = bytearray(BUNDLES["site-a"].to_bytes())
    data[at] ^= flip
    with pytest.raises(KeyFault) as caught:
        PublicBundle.from_bytes(bytes(data))
    assert caught.value.code in {"invalid-key-bundle", "invalid-name"}


def test_a_bundle_cut_anywhere_is_refused() -> None:
    data = BUNDLES["site-a"].to_bytes()
    for end in range(len(data)):
        with pytest.raises(KeyFault):
            PublicBundle.from_bytes(data[:end])


@pytest.mark.parametrize("point", SMALL_ORDER, ids=lambda point: point[:4].hex())
@pytest.mark.parametrize("top_bit", [0, 128])
def test_a_weak_key_is_refused_though_well_signed(point: bytes, top_bit: int) -> None:
    weak = point[:31] + bytes([point[31] | top_bit])
    with pytest.raises(KeyFault, match=r"site-a.*weak") as caught:
        PublicBundle.from_bytes(resigned(KEYS["site-a"], sealing_key=weak))
    assert caught.value.code == "invalid-key-bundle"


def test_one_key_has_one_encoding() -> None:
    key = BUNDLES["site-a"].sealing_key
    same_point = key[:31] + bytes([key[31] | 128])
    with pytest.raises(KeyFault, match="malformed or weak"):
        PublicBundle.from_bytes(resigned(KEYS["site-a"], sealing_key=same_point))


# --- identities --------------------------------------------------------------------------------


def test_an_identity_keeps_the_fingerprint_and_not_the_sealing_key(tmp_path: Path) -> None:
    path = tmp_path / "identity.pem"
    shown = create_identity(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    runs = [
        SiteKeys.generate(site="site-a", run=run, identity=read_identity(path)).public
        for run in ("1", "2")
    ]
    assert [bundle.fingerprint for bundle in runs] == [shown, shown]
    assert runs[0].sealing_key != runs[1].sealing_key


def test_an_identity_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "identity.pem"
    create_identity(path)
    before = path.read_bytes()
    with pytest.raises(KeyFault) as caught:
        create_identity(path)
    assert caught.value.code == "identity-not-written"
    assert path.read_bytes() == before


def test_an_identity_of_another_kind_is_refused_without_quoting_it(tmp_path: Path) -> None:
    path = tmp_path / "identity.pem"
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    other = generate_private_key(SECP256R1()).private_bytes(*pem, serialization.NoEncryption())
    locked = Ed25519PrivateKey.generate().private_bytes(
        *pem, serialization.BestAvailableEncryption(b"word")
    )
    for content in (b"", b"secret words", other, locked):
        path.write_bytes(content)
        with pytest.raises(KeyFault, match=r"identity\.pem: must be") as caught:
            read_identity(path)
        assert caught.value.code == "invalid-identity"
        assert "secret" not in str(caught.value)
    with pytest.raises(KeyFault, match="No such file"):
        read_identity(tmp_path / "none.pem")
    with pytest.raises(KeyFault, match="32 bytes"):
        SiteKeys.generate(site="site-a", run=RUN, identity=b"short")


# --- rosters -----------------------------------------------------------------------------------


def test_a_roster_is_ordered_by_name_and_says_whom_it_trusts_how() -> None:
    roster = Roster.from_bundles(
        [BUNDLES["site-c"].to_bytes(), BUNDLES["site-a"], BUNDLES["site-b"]],
        run=RUN,
        own=KEYS["site-a"],
        pinned={"site-b": PINS["site-b"].lower(), "site-z": PINS["site-a"]},
    )
    assert roster.names == SITES
    assert roster.trust == {"site-a": "own", "site-b": "pinned", "site-c": "first-use"}
    assert roster.first_use == ("site-c",)
    assert roster["site-b"] == BUNDLES["site-b"]
    assert Roster.from_bundles(BUNDLES.values(), run=RUN).digest == roster.digest


def test_a_roster_comes_back_from_bytes_and_is_checked_again() -> None:
    roster = Roster.from_bundles(BUNDLES.values(), run=RUN, pinned=PINS)
    data = roster.to_bytes()
    assert Roster.from_bytes(data, run=RUN, pinned=PINS) == roster
    with pytest.raises(KeyFault) as caught:
        Roster.from_bytes(data, run=RUN, pinned={**PINS, "site-a": PINS["site-b"]})
    assert caught.value.code == "fingerprint-mismatch"
    with pytest.raises(KeyFault) as caught:
        Roster.from_bytes(data[:-1], run=RUN)
    assert caught.value.code == "malformed-roster"


def test_a_swapped_key_is_refused_if_pinned_and_named_first_use_if_not() -> None:
    server = SiteKeys.generate(site="site-b", run=RUN)
    shown = [BUNDLES["site-a"], server.public, BUNDLES["site-c"]]
    with pytest.raises(KeyFault) as caught:
        Roster.from_bundles(shown, run=RUN, own=KEYS["site-a"], pinned=PINS)
    assert caught.value.code == "fingerprint-mismatch"
    assert len(caught.value.reasons) == 1
    for part in ("site-b", server.public.fingerprint, PINS["site-b"]):
        assert part in caught.value.reasons[0]
    lied_to = Roster.from_bundles(shown, run=RUN, own=KEYS["site-a"])
    assert lied_to.first_use == ("site-b", "site-c")
    honest = Roster.from_bundles(BUNDLES.values(), run=RUN, own=KEYS["site-b"])
    assert lied_to.fingerprint != honest.fingerprint  # what operators can compare


def test_an_invented_site_is_refused_where_pins_are_required() -> None:
    invented = SiteKeys.generate(site="site-d", run=RUN).public
    shown = [*BUNDLES.values(), invented]
    pins = {"site-b": PINS["site-b"], "site-c": PINS["site-c"]}
    with pytest.raises(KeyFault, match=r"^site-d: no fingerprint") as caught:
        Roster.from_bundles(shown, run=RUN, own=KEYS["site-a"], pinned=pins, require_pinned=True)
    assert caught.value.code == "unpinned-site"
    Roster.from_bundles(
        BUNDLES.values(), run=RUN, own=KEYS["site-a"], pinned=pins, require_pinned=True
    )


def test_two_sites_with_one_key_are_refused() -> None:
    twin = PublicBundle.from_bytes(resigned(KEYS["site-a"], site="site-d"))
    with pytest.raises(KeyFault) as caught:
        Roster.from_bundles([*BUNDLES.values(), twin], run=RUN)
    assert caught.value.code == "equal-keys"
    assert caught.value.reasons == (
        "site-a, site-d: equal sealing keys",
        "site-a, site-d: equal signing keys",
    )
    echo = resigned(
        SiteKeys.generate(site="site-d", run=RUN), sealing_key=BUNDLES["site-b"].sealing_key
    )
    with pytest.raises(KeyFault) as caught:
        Roster.from_bundles([*BUNDLES.values(), echo], run=RUN)
    assert caught.value.reasons == ("site-b, site-d: equal sealing keys",)


def test_two_sites_with_one_name_are_refused() -> None:
    other = SiteKeys.generate(site="site-a", run=RUN).public
    with pytest.raises(KeyFault, match="site-a: 2 sites") as caught:
        Roster.from_bundles([*BUNDLES.values(), other], run=RUN)
    assert caught.value.code == "duplicate-site"


def test_a_site_sees_that_its_own_keys_were_replaced_or_left_out() -> None:
    server = SiteKeys.generate(site="site-a", run=RUN).public
    for shown in ([server, BUNDLES["site-b"]], [BUNDLES["site-b"], BUNDLES["site-c"]]):
        with pytest.raises(KeyFault, match="site-a: its own keys") as caught:
            Roster.from_bundles(shown, run=RUN, own=KEYS["site-a"])
        assert caught.value.code == "own-keys-replaced"


def test_all_faults_of_a_roster_come_at_once() -> None:
    broken = bytearray(BUNDLES["site-a"].to_bytes())
    broken[-1] ^= 1
    old = SiteKeys.generate(site="site-e", run="run-6").public
    with pytest.raises(KeyFault) as caught:
        Roster.from_bundles(
            [bytes(broken), b"nonsense", old, *BUNDLES.values()],
            run=RUN,
            pinned={"site-b": PINS["site-c"], "site-c": "abc"},
        )
    codes = " ".join(caught.value.reasons)
    assert caught.value.code == "invalid-key-bundle"
    assert len(caught.value.reasons) == 5
    for part in (
        "site-a: the signature",
        "not a key bundle",
        "site-e",
        "site-b",
        "site-c: its pin",
    ):
        assert part in codes


def test_a_site_that_is_not_in_the_roster_is_named() -> None:
    roster = Roster.from_bundles(BUNDLES.values(), run=RUN)
    with pytest.raises(KeyFault, match="'site-x' is not in") as caught:
        _ = roster["site-x"]
    assert caught.value.code == "unknown-site"


def test_checking_a_roster_signs_the_own_bundle_once_however_many_sites_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [seeded_keys(site=f"site-{i}", run="run-1", seed=1) for i in range(6)]
    bundles = [each.public for each in keys]
    signed: list[bytes] = []
    public = SiteKeys.public

    def counted(self: SiteKeys) -> PublicBundle:
        signed.append(b"")
        return public.fget(self)  # type: ignore[attr-defined,no-any-return]

    monkeypatch.setattr(SiteKeys, "public", property(counted))
    roster = Roster.from_bundles(bundles, run="run-1", own=keys[0])
    assert len(signed) == 1
    assert roster.trust["site-0"] == "own"
    # What masks ask for at every pair is computed once.
    assert roster.digest is roster.digest
    assert roster.names is roster.names


def test_reading_a_roster_makes_no_private_key_a_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """To make one takes as long as to agree on a key, and every site reads all others' keys."""
    sites = [seeded_keys(site=f"site-{i:02}", run=RUN, seed=8) for i in range(12)]
    data = Roster.from_bundles([keys.public for keys in sites], run=RUN).to_bytes()
    made = []

    class Counting(X25519PrivateKey):
        @classmethod
        def from_private_bytes(cls, data: bytes) -> X25519PrivateKey:
            made.append(data)
            return X25519PrivateKey.from_private_bytes(data)

    monkeypatch.setattr(keys_module, "X25519PrivateKey", Counting)
    keys_module._probe.cache_clear()
    assert len(Roster.from_bytes(data, run=RUN).names) == 12
    assert len(made) == 1


def test_the_digest_of_a_roster_depends_on_run_names_and_every_key() -> None:
    def digest(run: str = RUN, **changed: PublicBundle) -> bytes:
        bundles = {site.replace("-", "_"): bundle for site, bundle in BUNDLES.items()} | changed
        return Roster.from_bundles(bundles.values(), run=run).digest

    other_seal = SiteKeys.generate(
        site="site-a", run=RUN, identity=KEYS["site-a"].signing_private
    ).public
    other_run = [SiteKeys(s, "r", k.sealing_private, k.signing_private) for s, k in KEYS.items()]
    renamed = PublicBundle.from_bytes(resigned(KEYS["site-a"], site="site-0"))
    digests = {
        digest(),
        digest(site_a=other_seal),
        digest(site_a=renamed),
        Roster.from_bundles([keys.public for keys in other_run], run="r").digest,
    }
    assert len(digests) == 4
