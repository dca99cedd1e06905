"""The folder that a federation is set up from: what is whose, and who must not get it.

====================  ============================================  =========================
folder                holds                                         for
====================  ============================================  =========================
``authority/``        key of the certificate authority              a safe place, no host
``server/``           certificate and key of the SuperLink          the server
``operator/``         connection, public keys of the sites          who starts runs
``sites/<name>/``     keys and configuration of one SuperNode       that site, and nobody else
====================  ============================================  =========================
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from fedapp.deploy import guides, service_units, start_scripts
from fedapp.deploy.certificates import Issued, hosts_of, make_authority, make_server_certificate
from fedapp.deploy.plan import Plan
from fedapp.deploy.private_files import (
    check_new_folder,
    replace_private,
    write_private,
    write_text,
)
from fedapp.deploy.site_keys import IDENTITY, SUFFIX, PublicKeys, make_site_keys
from fedapp.run_config import toml_value

AUTHORITY, SERVER, OPERATOR, SITES = "authority", "server", "operator", "sites"
DATA_PATH = "data/rows.csv"
NODE_CONFIG = "node-config.toml"


def write_federation(
    plan: Plan,
    folder: Path,
    *,
    public_keys: Mapping[str, PublicKeys] | None = None,
    data_path: str = DATA_PATH,
) -> dict[str, PublicKeys]:
    """Write everything; on a fault nothing is left.

    Parameters
    ----------
    plan : Plan
    folder : Path
        New or empty.
    public_keys : mapping of str to PublicKeys, optional
        What the sites sent, by site, of keys that they made themselves. Without it the keys are
        made here, and whoever does that could pass for any site.
    data_path : str
        The sites' data files, relative to their folders.

    Returns
    -------
    dict of str to PublicKeys
        By site.

    Raises
    ------
    ValueError
        If the folder is not new, or `public_keys` are not those of the plan's sites.
    """
    check_new_folder(folder)
    if public_keys is not None:
        _check_public_keys(plan, public_keys)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        keys = dict(public_keys or {})
        for site in plan.sites:
            if public_keys is None:
                keys[site] = make_site_keys(site, folder / SITES / site / "keys")
        authority = make_authority(f"fedapp {plan.name} authority")
        _write_authority(folder / AUTHORITY, authority)
        _write_server(plan, folder / SERVER, authority)
        _write_operator(plan, folder / OPERATOR, keys, authority.certificate)
        for site in plan.sites:
            _write_site(plan, folder / SITES / site, site, keys, authority.certificate, data_path)
        write_text(folder / "README.md", guides.overview(plan, keys, made_here=not public_keys))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return keys


def read_public_keys(folder: Path) -> dict[str, PublicKeys]:
    """Read the ``*.public.json`` files that sites sent, by site.

    Raises
    ------
    ValueError
        With every file that is none, and for a folder without any.
    """
    found: dict[str, PublicKeys] = {}
    faults = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            keys = PublicKeys.read(path)
        except ValueError as error:
            faults.append(str(error))
            continue
        if keys.site in found:
            faults.append(f"{path}: a second file of site {keys.site}")
        found[keys.site] = keys
    if not found and not faults:
        faults.append(f"{folder}: no file *{SUFFIX}, which `fedapp deploy site-keys` writes")
    if faults:
        raise ValueError("; ".join(faults))
    return found


def renew_server_certificate(folder: Path, *, days: int, authority: Path | None = None) -> Path:
    """Replace the server's certificate and key by new ones for the same names.

    Sites and operator notice nothing: they trust the authority, which stays. The old pair stays
    beside the new one, as ``server.crt.old`` and ``server.key.old``.

    Parameters
    ----------
    folder : Path
        As `write_federation` left it, or one with ``server/`` in it.
    days : int
        Validity from today.
    authority : Path, optional
        Where ``ca.key`` and ``ca.crt`` are; default ``<folder>/authority``.

    Returns
    -------
    Path
        The new certificate.

    Raises
    ------
    ValueError, OSError
        If one of the files is missing, or not what it should be.
    """
    from_ = folder / AUTHORITY if authority is None else authority
    signer = Issued(
        key=(from_ / "ca.key").read_bytes(), certificate=(from_ / "ca.crt").read_bytes()
    )
    certificate, key = folder / SERVER / "server.crt", folder / SERVER / "server.key"
    if (folder / SERVER / "ca.crt").read_bytes() != signer.certificate:
        raise ValueError(f"{from_}: not the authority that the server's certificate is of")
    issued = make_server_certificate(signer, hosts_of(certificate.read_bytes()), days=days)
    for path, content in ((key, issued.key), (certificate, issued.certificate)):
        replace_private(path.with_name(f"{path.name}.old"), path.read_bytes())
        mode = stat.S_IMODE(path.stat().st_mode) if path is certificate else 0o600
        replace_private(path, content, mode=mode)
    return certificate


def _check_public_keys(plan: Plan, public_keys: Mapping[str, PublicKeys]) -> None:
    missing = [site for site in plan.sites if site not in public_keys]
    others = [site for site in public_keys if site not in plan.sites]
    told = list(public_keys.values())
    twins = [
        f"{a.site} and {b.site} have one key: each site makes its own"
        for at, a in enumerate(told)
        for b in told[at + 1 :]
        if a.supernode.split()[:2] == b.supernode.split()[:2] or a.fingerprint == b.fingerprint
    ]
    faults = [f"no public keys of: {', '.join(missing)}"] if missing else []
    faults += [f"public keys of no site of the plan: {', '.join(others)}"] if others else []
    if faults + twins:
        raise ValueError("; ".join(faults + twins))


def _write_authority(folder: Path, authority: Issued) -> None:
    write_private(folder / "ca.key", authority.key)
    write_text(folder / "ca.crt", authority.certificate.decode())
    write_text(folder / "README.md", guides.authority())


def _write_server(plan: Plan, folder: Path, authority: Issued) -> None:
    issued = make_server_certificate(authority, [plan.host, *plan.aliases], days=plan.days)
    write_private(folder / "server.key", issued.key)
    write_text(folder / "server.crt", issued.certificate.decode())
    write_text(folder / "ca.crt", authority.certificate.decode())
    write_text(folder / "start.sh", start_scripts.server_script(plan), executable=True)
    write_text(folder / "fedapp-superlink.service", service_units.server_unit(plan))
    write_text(folder / "compose.yaml", service_units.server_compose(plan))
    write_text(folder / "README.md", guides.server(plan))


def _write_operator(
    plan: Plan, folder: Path, keys: Mapping[str, PublicKeys], authority: bytes
) -> None:
    write_text(folder / "ca.crt", authority.decode())
    for site in plan.sites:
        write_text(folder / "public-keys" / f"{site}.pub", f"{keys[site].supernode}\n")
    root = toml_value(str((folder / "ca.crt").resolve()))
    write_text(
        folder / "config.toml",
        f"# The connection for Flower's configuration. Change the path if this folder moves.\n"
        f"[superlink]\ndefault = {toml_value(plan.name)}\n\n[superlink.{plan.name}]\n"
        f"address = {toml_value(plan.address)}\nroot-certificates = {root}\n",
    )
    write_text(folder / "register.sh", start_scripts.register_script(plan), executable=True)
    write_text(folder / "README.md", guides.operator(plan))


def _write_site(
    plan: Plan,
    folder: Path,
    site: str,
    keys: Mapping[str, PublicKeys],
    authority: bytes,
    data_path: str,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    write_text(folder / "ca.crt", authority.decode())
    write_text(folder / NODE_CONFIG, _node_config(plan, site, keys, data_path))
    write_text(folder / "start.sh", start_scripts.site_script(plan), executable=True)
    write_text(folder / "fedapp-supernode.service", service_units.site_unit(plan))
    write_text(folder / "compose.yaml", service_units.site_compose(plan))
    for own in ("data", "state", "models"):
        (folder / own).mkdir(mode=0o700, exist_ok=True)
    has_keys = (folder / "keys").is_dir()
    write_text(folder / "README.md", guides.site(plan, site, keys, has_keys=has_keys))


def _node_config(plan: Plan, site: str, keys: Mapping[str, PublicKeys], data_path: str) -> str:
    others = ", ".join(f"{name}={keys[name].fingerprint}" for name in plan.sites if name != site)
    lines = [
        "# Configuration of this site's SuperNode; it is read when the SuperNode starts. Paths may",
        "# be relative to this folder. No server can change what stands here. Limits of this site",
        "# for all runs go here, too: docs/site-control.md of the app.",
        f"site-name = {toml_value(site)}",
        "# The site's own rows, CSV or Parquet.",
        f"data-path = {toml_value(data_path)}",
        "# What has to outlive a restart: noise that was drawn, epsilon that was spent.",
        'state-dir = "state"',
    ]
    if plan.task in ("", "vertical-xgboost"):
        lines += ["# The site's part of each vertical model; never sent.", 'model-dir = "models"']
    lines += [
        "# The site's lasting key, and the fingerprints of the others': compare each by telephone",
        "# before the first run. A site with another key is refused, and so is one without a pin.",
        f'identity-path = "keys/{IDENTITY}"',
        f"pinned-sites = {toml_value(others)}",
        "require-pinned = true",
    ]
    return "\n".join(lines) + "\n"
