"""The federation's certificates, judged by OpenSSL: who is trusted, for which host, how long."""

from __future__ import annotations

import datetime
import os
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from fedapp.cli import main
from fedapp.deploy.certificates import (
    Issued,
    end_of,
    host_fault,
    hosts_of,
    make_authority,
    make_server_certificate,
)
from fedapp.deploy.federation_folder import write_federation
from fedapp.deploy.plan import Plan

AUTHORITY = make_authority("test")
STRANGER = make_authority("test")


def handshake(tmp_path: Path, server: Issued, *, trusted: bytes, host: str) -> None:
    """Let OpenSSL shake hands in memory; it raises where the client refuses."""
    (tmp_path / "key").write_bytes(server.key)
    (tmp_path / "crt").write_bytes(server.certificate)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    asking = ssl.create_default_context(cadata=trusted.decode())
    asking.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(down, up, server_hostname=host)
    other = serving.wrap_bio(up, down, server_side=True)
    ready: set[ssl.SSLObject] = set()
    for _ in range(5):
        for side in (client, other):
            try:
                side.do_handshake()
                ready.add(side)
            except ssl.SSLWantReadError:
                pass
    assert ready == {client, other}


@pytest.mark.parametrize("host", ["hub.example.org", "10.1.2.3", "127.0.0.1", "localhost", "::1"])
def test_the_server_is_trusted_under_each_of_its_names(host: str, tmp_path: Path) -> None:
    server = make_server_certificate(AUTHORITY, ["hub.example.org", "10.1.2.3"])
    handshake(tmp_path, server, trusted=AUTHORITY.certificate, host=host)


@pytest.mark.parametrize(
    ("trusted", "host"),
    [(STRANGER, "hub.example.org"), (AUTHORITY, "example.org"), (AUTHORITY, "10.1.2.4")],
)
def test_another_authority_and_another_host_are_refused(
    trusted: Issued, host: str, tmp_path: Path
) -> None:
    server = make_server_certificate(AUTHORITY, ["hub.example.org", "10.1.2.3"])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, server, trusted=trusted.certificate, host=host)


def test_a_server_s_certificate_signs_no_other(tmp_path: Path) -> None:
    """Else whoever gets the server's key could make servers of other names."""
    server = make_server_certificate(AUTHORITY, ["hub.example.org"])
    parent = x509.load_pem_x509_certificate(server.certificate).extensions
    assert not parent.get_extension_for_class(x509.BasicConstraints).value.ca
    forged = make_server_certificate(server, ["other.example.org"])
    chain = Issued(key=forged.key, certificate=forged.certificate + server.certificate)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, chain, trusted=AUTHORITY.certificate, host="other.example.org")


def test_it_ends_when_asked_and_never_after_its_authority() -> None:
    now = datetime.datetime.now(datetime.UTC)
    server = make_server_certificate(AUTHORITY, ["a.org"], days=30)
    assert abs((end_of(server.certificate) - now).days - 30) <= 1
    short = make_authority("test", days=2)
    server = make_server_certificate(short, ["a.org"], days=30)
    assert end_of(server.certificate) == end_of(short.certificate)


@pytest.mark.parametrize("host", ["", "a b", "http://a.org", "a.org:80", "1.2.3.999", "-a.org"])
def test_a_host_that_is_none_is_named(host: str) -> None:
    assert "must be a host name" in host_fault(host)
    with pytest.raises(ValueError, match="must be a host name"):
        make_server_certificate(AUTHORITY, [host])


@pytest.mark.parametrize("host", ["fe80::1%eth0", "fe80::1%$(id)", "::", "0.0.0.0", "224.0.0.1"])
def test_an_address_that_is_not_of_one_machine_everywhere_is_named(host: str) -> None:
    assert "must be" in host_fault(host)


def test_an_authority_with_another_s_key_signs_nothing() -> None:
    with pytest.raises(ValueError, match="not that of its certificate"):
        make_server_certificate(Issued(STRANGER.key, AUTHORITY.certificate), ["a.org"])
    with pytest.raises(ValueError, match="not PEM"):
        make_server_certificate(Issued(b"x", AUTHORITY.certificate), ["a.org"])


def test_renewal_keeps_names_and_authority(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    write_federation(Plan(sites=("a", "b"), host="hub.example.org", aliases=("10.0.0.1",)), folder)
    server, trusted = folder / "server", (folder / "authority" / "ca.crt").read_bytes()
    before = (server / "server.crt").read_bytes(), (server / "server.key").read_bytes()
    (server / "server.key").chmod(0o640)  # by somebody; a new one is its owner's alone
    kept = tmp_path / "safe"
    (folder / "authority").rename(kept)
    assert main(["deploy", "renew", str(folder), "--days", "9"]) == 2
    assert (server / "server.crt").read_bytes() == before[0]
    assert main(["deploy", "renew", str(folder), "--days", "9", "--authority", str(kept)]) == 0
    key, certificate = (server / "server.key").read_bytes(), (server / "server.crt").read_bytes()
    assert (certificate, key) != before
    assert hosts_of(certificate) == hosts_of(before[0])
    assert stat.S_IMODE((server / "server.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((server / "server.crt").stat().st_mode) == 0o644
    assert (server / "server.crt.old").read_bytes() == before[0]
    assert (server / "server.key.old").read_bytes() == before[1]
    handshake(tmp_path, Issued(key, certificate), trusted=trusted, host="hub.example.org")


def test_the_key_that_was_renewed_is_never_readable_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever had read it could pass for the server until its certificate ends."""
    write_federation(Plan(sites=("a",), host="hub.example.org"), tmp_path / "federation")
    server, seen = tmp_path / "federation" / "server", set[int]()

    def look() -> None:
        seen.update(stat.S_IMODE(path.stat().st_mode) for path in server.glob("server.key*"))

    for name in ("replace", "chmod"):
        system = getattr(os, name)

        def watched(*arguments: Any, _system: Any = system, **named: Any) -> Any:
            look()
            return _system(*arguments, **named)

        monkeypatch.setattr(os, name, watched)
    assert main(["deploy", "renew", str(tmp_path / "federation")]) == 0
    look()
    assert seen == {0o600}


def test_renewal_by_another_authority_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sites would refuse the server, and know no reason."""
    for name in ("ours", "theirs"):
        write_federation(Plan(sites=("a",), host="hub.example.org"), tmp_path / name)
    before = (tmp_path / "ours" / "server" / "server.crt").read_bytes()
    words = ["--authority", str(tmp_path / "theirs" / "authority")]
    assert main(["deploy", "renew", str(tmp_path / "ours"), *words]) == 2
    assert "not the authority that the server's certificate is of" in capsys.readouterr().err
    assert (tmp_path / "ours" / "server" / "server.crt").read_bytes() == before
