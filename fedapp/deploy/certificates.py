"""The federation's own certificate authority, and the server certificate that it signs.

Sites and operator trust this authority alone (``--root-certificates``, ``root-certificates``), so
no public one can vouch for another server. Its key signs server certificates and nothing else:
sites do not authenticate by certificates, but by the key of their SuperNode (see `site_keys`).
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
SERVER_DAYS = 397
MOST_DAYS = 3650

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names of every server certificate: the ServerApp's process connects to the SuperLink at the
loopback address, by TLS too, and refuses a certificate without it."""

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
# Clocks of other machines may be behind by some minutes.
_BACKDATED = datetime.timedelta(hours=1)


@dataclass(frozen=True, repr=False)
class Issued:
    """A private key and its certificate, both PEM; the key PKCS #8 without a password."""

    key: bytes
    certificate: bytes


def host_fault(host: str) -> str:
    """Say what is wrong with a host; ``""`` if it is a name or an IP address without a port."""
    address = _address(host)
    if address is not None:
        if address.is_unspecified or address.is_multicast:
            return f"host {host!a} must be the address of one machine"
        # A zone (fe80::1%eth0) is a name of one machine's own, and may hold any mark.
        if "%" in host:
            return f"host {host!a} must be an address without a zone, '%'"
        return ""
    # A name of digits alone is a mistyped address: no top-level domain is a number.
    if _HOST.fullmatch(host) and not host.rsplit(".", 1)[-1].isdigit():
        return ""
    return f"host {host!a} must be a host name (letters, digits, '-', '.') or an IP address"


def make_authority(name: str, *, days: int = AUTHORITY_DAYS) -> Issued:
    """Make a certificate authority that may sign server certificates and no further authority.

    Parameters
    ----------
    name : str
        Common name, 1 to 64 characters.
    days : int
        Days of validity, 1 to 3650.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(name)
    public = key.public_key()
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    builder = (
        _builder(subject, issuer=subject, key=public, days=days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        # Python 3.13 verifies strictly and wants it of an authority, too.
        .add_extension(_issued_by(identifier), critical=False)
    )
    return _issued(key, builder.sign(key, hashes.SHA256()))


def make_server_certificate(
    authority: Issued, hosts: Sequence[str], *, days: int = SERVER_DAYS
) -> Issued:
    """Make a key and a certificate for a server.

    Parameters
    ----------
    authority : Issued
        Who signs.
    hosts : sequence of str
        Names and IP addresses under which clients reach the server, at least one; those of
        `LOOPBACK` are added.
    days : int
        Days of validity, 1 to 3650, and not beyond the authority's own.

    Raises
    ------
    ValueError
        For a host that is none, an authority that has ended or whose key is another's.
    """
    faults = [fault for host in hosts if (fault := host_fault(host))]
    if faults or not hosts:
        raise ValueError("; ".join(faults) or "no host to make a certificate for")
    signer, parent = _read_authority(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key()
    identifier = parent.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    names = list(dict.fromkeys([*hosts, *LOOPBACK]))
    builder = (
        _builder(_named(hosts[0][:64]), issuer=parent.subject, key=public, days=days, parent=parent)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(_issued_by(identifier), critical=False)
    )
    return _issued(key, builder.sign(signer, hashes.SHA256()))


def hosts_of(certificate: bytes) -> list[str]:
    """Return the names and addresses that a certificate is for."""
    found = x509.load_pem_x509_certificate(certificate).extensions
    names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def end_of(certificate: bytes) -> datetime.datetime:
    """Return when a certificate ends, in UTC."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def _read_authority(authority: Issued) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    try:
        signer = serialization.load_pem_private_key(authority.key, password=None)
        parent = x509.load_pem_x509_certificate(authority.certificate)
    except (ValueError, TypeError):
        raise ValueError("the authority's key or certificate is not PEM, or damaged") from None
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is not one that this tool made")
    if signer.public_key() != parent.public_key():
        raise ValueError("the authority's key is not that of its certificate")
    if parent.not_valid_after_utc <= datetime.datetime.now(datetime.UTC):
        raise ValueError(f"the authority has ended on {parent.not_valid_after_utc:%Y-%m-%d}")
    return signer, parent


def _builder(
    subject: x509.Name,
    *,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: int,
    parent: x509.Certificate | None = None,
) -> x509.CertificateBuilder:
    if not 1 <= days <= MOST_DAYS:
        raise ValueError(f"days = {days} must be a whole number from 1 to {MOST_DAYS}")
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    end = now + datetime.timedelta(days=days)
    if parent is not None:
        end = min(end, parent.not_valid_after_utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(end)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issued_by(identifier: x509.SubjectKeyIdentifier) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    address = _address(host)
    return x509.DNSName(host) if address is None else x509.IPAddress(address)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _issued(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> Issued:
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return Issued(key=pem, certificate=certificate.public_bytes(serialization.Encoding.PEM))
