"""What a site proves itself by, and what of it the others get.

================  ===========================================================================
file              what it is
================  ===========================================================================
``supernode``     the key by which the SuperLink knows the SuperNode again: ECDSA on P-384 (any of
                  NIST's curves would do) in OpenSSH's format, the only format that Flower 1.42
                  reads (as ``ssh-keygen -t ecdsa -b 384`` writes it)
``identity.pem``  the lasting key of the site (`tasks.secure.identity`), by which the other
                  sites know it, whatever the server says
================  ===========================================================================

Their public halves are a `PublicKeys`, a small JSON file that goes to the operator.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedapp.deploy.private_files import write_private
from tasks.secure.identity import create_identity
from tasks.secure.keys import parse_fingerprint
from tasks.site.names import SITE_NAME_RULE, is_site_name

SUPERNODE_KEY = "supernode"
IDENTITY = "identity.pem"
SUFFIX = ".public.json"

_FIELDS = ("site", "supernode", "fingerprint")


@dataclass(frozen=True)
class PublicKeys:
    """What a site tells the operator and the other sites.

    Attributes
    ----------
    site : str
        Name of the site.
    supernode : str
        Public key of its SuperNode, one line in OpenSSH's format.
    fingerprint : str
        Fingerprint of its identity, which the others pin.
    """

    site: str
    supernode: str
    fingerprint: str

    def write(self, path: Path) -> None:
        """Write the JSON file; a file that is there is left, with a `FileExistsError`."""
        document = {field: getattr(self, field) for field in _FIELDS}
        with path.open("x", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> PublicKeys:
        """Read and check a file of `write`.

        Raises
        ------
        ValueError
            If it is not such a file, with what is wrong.
        """
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from None
        except ValueError:
            raise ValueError(f"{path}: not JSON") from None
        if not isinstance(document, dict) or any(
            not isinstance(document.get(field), str) for field in _FIELDS
        ):
            raise ValueError(f"{path}: must hold the texts {', '.join(_FIELDS)}")
        told = {field: document[field].strip() for field in _FIELDS}
        # A comment, as `ssh-keygen` writes it, is left out: it can hold anything.
        told["supernode"] = " ".join(told["supernode"].split(" ")[:2])
        keys = cls(**told)
        if fault := keys._fault():
            raise ValueError(f"{path}: {fault}")
        # One spelling, by which one key at two sites is known.
        return replace(keys, fingerprint=parse_fingerprint(keys.fingerprint))

    def _fault(self) -> str:
        if not is_site_name(self.site):
            return f"site {self.site[:65]!a} must be {SITE_NAME_RULE}"
        try:
            key = serialization.load_ssh_public_key(self.supernode.encode())
        except Exception:  # the parser raises several kinds
            key = None
        if not isinstance(key, ec.EllipticCurvePublicKey) or self.supernode != _one_line(key):
            return "supernode must be a public ECDSA key in OpenSSH's format, on one line"
        try:
            parse_fingerprint(self.fingerprint)
        except ValueError as error:
            return f"fingerprint: {error}"
        return ""


def make_site_keys(site: str, folder: Path) -> PublicKeys:
    """Make both keys of a site in a folder that only its owner may enter.

    Parameters
    ----------
    site : str
        Name of the site.
    folder : Path
        Gets ``supernode`` and ``identity.pem``, mode 0600; made if need be.

    Raises
    ------
    ValueError
        For a name that is none, or if there is a key already: it may be in use.
    """
    if not is_site_name(site):
        raise ValueError(f"site {site[:65]!a} must be {SITE_NAME_RULE}")
    for name in (SUPERNODE_KEY, IDENTITY):
        if (folder / name).exists():
            raise ValueError(f"{folder / name}: is there already; keys are not written over")
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    write_private(folder / SUPERNODE_KEY, private)
    return PublicKeys(
        site=site,
        supernode=_one_line(key.public_key()),
        fingerprint=create_identity(folder / IDENTITY),
    )


def _one_line(key: ec.EllipticCurvePublicKey) -> str:
    """Return a public key in OpenSSH's format, without a comment."""
    return key.public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    ).decode()
