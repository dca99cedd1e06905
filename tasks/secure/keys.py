"""A site's key pairs for one run, and the signed bundle of public keys that it hands out.

A site has two pairs: X25519 to receive sealed messages and to agree on masks, Ed25519 to sign.
The X25519 pair is fresh in every run, drawn from the operating system. The Ed25519 pair is fresh
too, unless the site has an **identity** (a key file of its own, see `tasks.secure.identity`):
then that one signs, and its fingerprint stays the same from run to run, so that other sites can
pin it in their configuration.

One X25519 pair serves sealed messages and masks: each derives its keys from the shared secret by
HKDF under labels of its own, so that neither says anything of the other.

What the server learns
    Public bundles: names, public keys, signatures. It relays them, so it could put its own in
    their place: see below.
What is trusted
    The operating system's generator, `cryptography`, and the place where a site keeps its state
    between two messages: `SiteKeys.to_bytes` has private keys in clear. Keys and the guards of
    `tasks.secure.sealed_relay` and `tasks.secure.secure_sums` belong together: whoever stores
    keys and loses a guard can be made to answer a step twice.
What is not covered
    A bundle is signed by the key that is in it, which proves that nobody altered it, not whose it
    is. Where no fingerprint is pinned, a server that lies about keys can read what is sealed and
    unmask what is masked; comparing fingerprints by another way (telephone) finds it out.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from functools import cache
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from tasks.secure.transcript import decode, encode
from tasks.site.faults import SiteFault

_KEYS = "fedapp/site-keys/1"
_BUNDLE = "fedapp/key-bundle/1"
_IDENTITY = "fedapp/identity/1"

_MAX_NAME = 200
_FIELD_PRIME = 2**255 - 19
_FINGERPRINT_CHARACTERS = 32  # of base32: 160 bits


class KeyFault(SiteFault):
    """Keys that are refused; `code` names the kind, the reasons name the sites."""


def check_name(kind: str, name: str) -> str:
    """Give back the name of a site, run or step, if it can be bound and printed.

    Parameters
    ----------
    kind : str
        What it names, for the message.
    name : str
        1 to 200 printable characters, no space at either end.

    Returns
    -------
    str
        The name.

    Raises
    ------
    KeyFault
        ``invalid-name`` otherwise. The name is not repeated: it may be anything.
    """
    if not (0 < len(name) <= _MAX_NAME and name.isprintable() and name == name.strip()):
        raise KeyFault(
            "invalid-name",
            f"{kind}: a name must be 1 to {_MAX_NAME} printable characters "
            "without a space at either end",
        )
    return name


def format_fingerprint(digest: bytes) -> str:
    """Write the first 160 bits of a digest as eight groups of four base32 characters.

    Parameters
    ----------
    digest : bytes
        At least 20 bytes.

    Returns
    -------
    str
        For example ``"MFRG-GZDF-MZTW-Q2LK-NNWG-23TP-OBYX-E43U"``.
    """
    text = base64.b32encode(digest[:20]).decode()
    return "-".join(text[i : i + 4] for i in range(0, _FINGERPRINT_CHARACTERS, 4))


def parse_fingerprint(text: str) -> str:
    """Bring a fingerprint typed by a person into the form of `format_fingerprint`.

    Parameters
    ----------
    text : str
        Case, spaces and hyphens do not count.

    Returns
    -------
    str
        The fingerprint in groups.

    Raises
    ------
    ValueError
        If it is not 32 characters of base32.
    """
    plain = "".join(text.split()).replace("-", "").upper()
    if len(plain) != _FINGERPRINT_CHARACTERS:
        raise ValueError("a fingerprint has 32 characters")
    return format_fingerprint(base64.b32decode(plain))


def fingerprint(signing_key: bytes) -> str:
    """Fingerprint of a public Ed25519 key, short enough to be read out.

    Parameters
    ----------
    signing_key : bytes
        The 32 bytes of the public key.

    Returns
    -------
    str
        160 bits of SHA-256, in eight groups of four characters.
    """
    return format_fingerprint(hashlib.sha256(encode(_IDENTITY, signing_key)).digest())


@dataclass(frozen=True)
class PublicBundle:
    """Public keys of a site for one run, signed by the site; a wrong one cannot be made.

    Parameters
    ----------
    site, run : str
        Whose keys, and for which run.
    sealing_key : bytes
        Public X25519 key, 32 bytes.
    signing_key : bytes
        Public Ed25519 key, 32 bytes.
    signature : bytes
        By the signing key, over all of the above.

    Raises
    ------
    KeyFault
        ``invalid-key-bundle`` if the signature does not hold, or a key is malformed or weak (a
        point of small order, with which every secret would be zero); ``invalid-name``.
    """

    site: str
    run: str
    sealing_key: bytes
    signing_key: bytes
    signature: bytes

    def __post_init__(self) -> None:
        check_name("site", self.site)
        check_name("run", self.run)
        if not _usable_x25519(self.sealing_key):
            raise KeyFault(
                "invalid-key-bundle", f"{self.site}: its X25519 key is malformed or weak"
            )
        try:
            self.verify(self.signature, _binding(self))
        except (InvalidSignature, ValueError):
            raise KeyFault(
                "invalid-key-bundle", f"{self.site}: the signature of its key bundle does not hold"
            ) from None

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the signing key, which vouches for the rest."""
        return fingerprint(self.signing_key)

    @property
    def sealing_public_key(self) -> X25519PublicKey:
        """The X25519 key as an object."""
        return X25519PublicKey.from_public_bytes(self.sealing_key)

    def verify(self, signature: bytes, data: bytes) -> None:
        """Check a signature of this site; `cryptography.exceptions.InvalidSignature` if not."""
        Ed25519PublicKey.from_public_bytes(self.signing_key).verify(signature, data)

    def to_bytes(self) -> bytes:
        """Serialise, for a message."""
        return encode(
            _BUNDLE, self.site, self.run, self.sealing_key, self.signing_key, self.signature
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote, and check it.

        Raises
        ------
        KeyFault
            ``invalid-key-bundle`` or ``invalid-name``.
        """
        try:
            site, run, sealing_key, signing_key, signature = decode(data, _BUNDLE)
            names = site.decode(), run.decode()
        except ValueError:
            raise KeyFault("invalid-key-bundle", "these bytes are not a key bundle") from None
        return cls(*names, sealing_key, signing_key, signature)


@dataclass(frozen=True, eq=False)
class SiteKeys:
    """Private keys of a site for one run; made by `generate`.

    Parameters
    ----------
    site, run : str
        Whose keys, and for which run.
    sealing_private, signing_private : bytes
        X25519 and Ed25519 private keys, 32 bytes each; never printed.
    """

    site: str
    run: str
    sealing_private: bytes = field(repr=False)
    signing_private: bytes = field(repr=False)

    @classmethod
    def generate(cls, *, site: str, run: str, identity: bytes | None = None) -> Self:
        """Draw the keys of a site for a run from the operating system's generator.

        Parameters
        ----------
        site, run : str
            Whose keys, and for which run.
        identity : bytes, optional
            The site's lasting Ed25519 private key (32 bytes), to sign with instead of a fresh one.

        Raises
        ------
        KeyFault
            ``invalid-name``, or ``invalid-identity`` if the identity has not 32 bytes.
        """
        check_name("site", site)
        check_name("run", run)
        if identity is not None and len(identity) != 32:
            raise KeyFault("invalid-identity", f"{site}: an identity has 32 bytes")
        sealing = X25519PrivateKey.generate().private_bytes_raw()
        signing = Ed25519PrivateKey.generate().private_bytes_raw()
        return cls(site, run, sealing, signing if identity is None else identity)

    @property
    def public(self) -> PublicBundle:
        """The bundle for others."""
        signing = Ed25519PrivateKey.from_private_bytes(self.signing_private)
        sealing_key = self.sealing_private_key.public_key().public_bytes_raw()
        signing_key = signing.public_key().public_bytes_raw()
        signature = signing.sign(_bound(self.site, self.run, sealing_key, signing_key))
        return PublicBundle(self.site, self.run, sealing_key, signing_key, signature)

    @property
    def sealing_private_key(self) -> X25519PrivateKey:
        """The X25519 key as an object."""
        return X25519PrivateKey.from_private_bytes(self.sealing_private)

    def sign(self, data: bytes) -> bytes:
        """Sign with Ed25519: 64 bytes."""
        return Ed25519PrivateKey.from_private_bytes(self.signing_private).sign(data)

    def to_bytes(self) -> bytes:
        """Serialise for the site's own state, **private keys in clear**."""
        return encode(_KEYS, self.site, self.run, self.sealing_private, self.signing_private)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote.

        Raises
        ------
        KeyFault
            ``malformed-state`` if it is something else.
        """
        try:
            site, run, sealing, signing = decode(data, _KEYS)
            if len(sealing) != 32 or len(signing) != 32:
                raise ValueError
            return cls(site.decode(), run.decode(), sealing, signing)
        except ValueError:
            raise KeyFault("malformed-state", "the stored keys cannot be read") from None


def _bound(site: str, run: str, sealing_key: bytes, signing_key: bytes) -> bytes:
    return encode(_BUNDLE, site, run, sealing_key, signing_key)


def _binding(bundle: PublicBundle) -> bytes:
    return _bound(bundle.site, bundle.run, bundle.sealing_key, bundle.signing_key)


@cache
def _probe() -> X25519PrivateKey:
    # Every X25519 scalar is a multiple of 8, so any of them finds a point of small order. Made
    # once: that takes as long as an exchange, and a site looks at the keys of all others.
    return X25519PrivateKey.from_private_bytes(bytes(31) + b"\x40")


def _usable_x25519(key: bytes) -> bool:
    # One encoding a key, or equal keys could pass for different ones.
    if len(key) != 32 or int.from_bytes(key, "little") >= _FIELD_PRIME:
        return False
    try:
        _probe().exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        return False
    return True
