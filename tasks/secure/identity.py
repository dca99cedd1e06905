"""A site's lasting identity: an Ed25519 key in a file of its own, whose fingerprint others pin.

Keys for sealing and masks are new in every run, so a fingerprint written down before the run can
only be that of a key that lasts. The file is PKCS #8 PEM without a password, as
``openssl genpkey -algorithm ed25519`` writes it, readable by its owner only.
"""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tasks.secure.keys import KeyFault, fingerprint


def create_identity(path: Path) -> str:
    """Write a new identity; an existing file is left as it is.

    Parameters
    ----------
    path : Path
        File to write, mode 0600.

    Returns
    -------
    str
        Fingerprint, for the configuration of the other sites.

    Raises
    ------
    KeyFault
        ``identity-not-written`` if the file exists or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
    except OSError as error:
        raise KeyFault("identity-not-written", f"{path}: {error.strerror}") from None
    return fingerprint(key.public_key().public_bytes_raw())


def read_identity(path: Path) -> bytes:
    """Read an identity, to be given to `tasks.secure.keys.SiteKeys.generate`.

    Parameters
    ----------
    path : Path
        File that `create_identity` or OpenSSL wrote.

    Returns
    -------
    bytes
        The private key, 32 bytes.

    Raises
    ------
    KeyFault
        ``invalid-identity`` if the file cannot be read or holds something else.
    """
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise KeyFault("invalid-identity", f"{path}: {error.strerror}") from None
    except Exception:  # the parser raises several kinds, and quotes what it read
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFault(
            "invalid-identity", f"{path}: must be an Ed25519 private key, PEM without a password"
        )
    return key.private_bytes_raw()
