"""What `fedapp deploy init` hands to whom, read by the programs that will read it."""

from __future__ import annotations

import configparser
import json
import os
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.cli.supernode.register import try_load_public_key
from flwr.common.config import parse_config_args
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedapp.cli import main
from fedapp.deploy.federation_folder import write_federation
from fedapp.deploy.plan import Plan
from tasks.secure.identity import read_identity
from tasks.secure.keys import SiteKeys

SITES = ("north", "south side", "wëst")
PLAN = Plan(sites=SITES, host="hub.example.org", port=8443)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("init") / "federation"
    words = ["--sites", ", ".join(SITES), "--host", PLAN.host, "--port", "8443"]
    assert main(["deploy", "init", *words, "--out", str(made)]) == 0
    return made


def secrets_of(folder: Path) -> dict[Path, str]:
    """Private keys by path: the body of the PEM."""
    return {
        path: "".join(path.read_text().splitlines()[1:-1])
        for path in folder.rglob("*")
        if path.is_file() and "PRIVATE KEY-----" in path.read_text()
    }


def test_every_private_key_is_in_one_folder_and_for_its_owner_alone(folder: Path) -> None:
    found = secrets_of(folder)
    owners = sorted(str(path.relative_to(folder)) for path in found)
    keys = [f"sites/{site}/keys/{name}" for site in SITES for name in ("identity.pem", "supernode")]
    assert owners == sorted(["authority/ca.key", "server/server.key", *keys])
    assert len(set(found.values())) == len(found), "no key is used twice"
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for site in SITES:
        for private in (folder / "sites" / site, folder / "sites" / site / "keys"):
            assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_a_site_s_folder_names_no_path_of_this_machine(folder: Path) -> None:
    """It is carried elsewhere."""
    for path in (folder / "sites").rglob("*"):
        assert not path.is_file() or str(folder) not in path.read_text()


@pytest.mark.parametrize("site", SITES)
def test_flower_reads_a_site_s_files(site: str, folder: Path) -> None:
    own = folder / "sites" / site
    config = parse_config_args([str(own / "node-config.toml")])
    assert config["site-name"] == site
    assert config["data-path"] == "data/rows.csv"
    assert config["require-pinned"] is True
    key = load_ssh_private_key((own / "keys" / "supernode").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    public = try_load_public_key(folder / "operator" / "public-keys" / f"{site}.pub")
    assert public == public_key_to_bytes(key.public_key())


@pytest.mark.parametrize("site", SITES)
def test_the_pins_are_the_identities_of_all_others(site: str, folder: Path) -> None:
    config = tomllib.loads((folder / "sites" / site / "node-config.toml").read_text())
    expected = {}
    for other in SITES:
        if other != site:
            identity = read_identity(folder / "sites" / other / "keys" / "identity.pem")
            keys = SiteKeys.generate(site=other, run="1", identity=identity)
            expected[other] = keys.public.fingerprint
    assert dict(pin.split("=") for pin in config["pinned-sites"].split(", ")) == expected


def test_the_operator_s_connection_trusts_the_authority_alone(folder: Path) -> None:
    config = tomllib.loads((folder / "operator" / "config.toml").read_text())["superlink"]
    connection = config[config["default"]]
    assert connection["address"] == "hub.example.org:8443"
    assert "insecure" not in connection
    trusted = Path(connection["root-certificates"]).read_bytes()
    assert trusted == (folder / "authority" / "ca.crt").read_bytes()


def test_paths_do_not_lead_through_the_folder_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "app").mkdir()
    monkeypatch.chdir(tmp_path / "app")
    words = ["--sites", "a,b", "--host", PLAN.host, "--out", "../federation"]
    assert main(["deploy", "init", *words]) == 0
    made = tmp_path.resolve() / "federation"
    assert f"{made}: read README.md there first" in capsys.readouterr().out.splitlines()
    config = tomllib.loads((made / "operator" / "config.toml").read_text())["superlink"]
    assert config["federation"]["root-certificates"] == str(made / "operator" / "ca.crt")


def test_the_check_of_the_server_prints_the_status(folder: Path) -> None:
    guide = (folder / "server" / "README.md").read_text()
    command = r"curl --cacert ca.crt -w '%{http_code}\n' https://hub.example.org:8443/health"
    assert command in [line.strip() for line in guide.splitlines()]


def test_scripts_units_and_compose_files_are_sound(folder: Path) -> None:
    scripts = sorted(folder.rglob("*.sh"))
    assert len(scripts) == 2 + len(SITES)
    for script in scripts:
        subprocess.run(["/bin/sh", "-n", str(script)], check=True)
        assert os.access(script, os.X_OK)
    for unit in folder.rglob("*.service"):
        parsed = configparser.ConfigParser(interpolation=None, strict=True)
        parsed.optionxform = str  # type: ignore[assignment, method-assign]
        parsed.read(unit)
        start = parsed["Service"]["ExecStart"].split()
        assert start[0] == "/bin/sh"
        assert start[1] == f"{parsed['Service']['WorkingDirectory']}/start.sh"
    for compose in folder.rglob("compose.yaml"):
        (service,) = yaml.safe_load(compose.read_text())["services"].values()
        assert service["volumes"][0].partition(":")[2] == service["working_dir"]
        assert ("ports" in service) == (compose.parent.name == "server")


def test_the_server_takes_registered_supernodes_over_tls_only(folder: Path) -> None:
    script = (folder / "server" / "start.sh").read_text()
    assert "--enable-supernode-auth" in script
    assert "--insecure" not in script
    for site in SITES:
        assert "--insecure" not in (folder / "sites" / site / "start.sh").read_text()


@pytest.mark.parametrize(("host", "listen"), [("::1", "::"), ("10.0.0.1", "0.0.0.0")])
def test_the_server_listens_where_the_sites_call_it(host: str, listen: str, tmp_path: Path) -> None:
    write_federation(Plan(sites=("a", "b"), host=host), tmp_path / "made")
    fake = tmp_path / "flower-superlink"
    fake.write_text('#!/bin/sh\necho "$*"\n')
    fake.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(tmp_path / "made" / "server" / "start.sh")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"--host {listen} --port 8000" in done.stdout


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        ('{"success": true}', 0, "registered"),
        ('{"success": false, "error-message": "Public key already in use."}', 0, "already"),
        ('{"success": false, "error-message": "no"}', 1, "NOT registered"),
    ],
)
def test_the_operator_is_told_who_is_registered(
    said: str, code: int, words: str, folder: Path, tmp_path: Path
) -> None:
    fake = tmp_path / "flwr"
    said = json.dumps(json.loads(said), indent=2)  # as Flower prints it
    fake.write_text(f"#!/bin/sh\necho \"$PWD $FLWR_HOME $*\" >> '{tmp_path}/log'\necho '{said}'\n")
    fake.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(folder / "operator" / "register.sh")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert (done.stdout + done.stderr).count(words) == len(SITES)
    calls = (tmp_path / "log").read_text()
    assert calls.count(f"{folder / 'operator'} {folder / 'operator'}") == len(SITES)
    assert "register public-keys/south side.pub federation --name south side" in calls


def test_a_federation_is_never_written_over(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = secrets_of(folder)
    words = ["--sites", "a,b", "--host", "h", "--out", str(folder)]
    assert main(["deploy", "init", *words]) == 2
    assert "is not an empty folder; nothing was written" in capsys.readouterr().err
    assert secrets_of(folder) == before


def test_all_faults_of_a_plan_come_at_once() -> None:
    with pytest.raises(ValueError, match="port") as caught:
        Plan(sites=("a", "../b"), host="a b", port=0, name="A", task="x", days=0)
    for words in ("site '../b'", "host 'a b'", "port = 0", "name 'A'", "task 'x'", "days = 0"):
        assert words in str(caught.value)


@pytest.mark.parametrize("name", ["federation", "lab"])
def test_guides_call_the_federation_by_its_name(name: str, tmp_path: Path) -> None:
    write_federation(Plan(sites=("a", "b"), host="hub", name=name), tmp_path / "made")
    texts = {path: path.read_text() for path in (tmp_path / "made").rglob("*") if path.is_file()}
    assert not [path for path, text in texts.items() if "federation federation" in text]
    guide = texts[tmp_path / "made" / "operator" / "README.md"]
    title = "federation" if name == "federation" else "federation lab"
    assert guide.startswith(f"# The operator of the {title}\n")
    for folder in ("server", "operator", "sites/a"):
        assert "Needs Python 3.11 or newer" in texts[tmp_path / "made" / folder / "README.md"]


def test_nobody_else_may_change_what_was_written(tmp_path: Path) -> None:
    """A limit in a node's configuration, or the authority it trusts, is no matter of a umask."""
    before = os.umask(0)
    try:
        write_federation(Plan(sites=("a", "b"), host="hub"), tmp_path / "federation")
    finally:
        os.umask(before)
    for path in (tmp_path / "federation").rglob("*"):
        if path.is_file():
            assert not path.stat().st_mode & 0o022, path


def test_sites_make_their_keys_themselves(tmp_path: Path) -> None:
    """Only public halves reach the operator; the site's pin and key are the ones it made."""
    sent = tmp_path / "sent"
    sent.mkdir()
    for site in SITES:
        own = tmp_path / site
        assert main(["deploy", "site-keys", site, "--out", str(own)]) == 0
        (public,) = own.glob("*.public.json")
        public.rename(sent / public.name)
    assert len(secrets_of(sent)) == 0
    made = tmp_path / "federation"
    words = ["--sites", ",".join(SITES), "--host", "hub", "--public-keys", str(sent)]
    assert main(["deploy", "init", *words, "--out", str(made)]) == 0
    owners = {path.relative_to(made).parts[0] for path in secrets_of(made)}
    assert owners == {"authority", "server"}
    for site in SITES:
        key = load_ssh_private_key((tmp_path / site / "keys" / "supernode").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        public_key = try_load_public_key(made / "operator" / "public-keys" / f"{site}.pub")
        assert public_key == public_key_to_bytes(key.public_key())


def test_keys_of_a_site_are_never_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["deploy", "site-keys", "north", "--out", str(tmp_path)]
    assert main(words) == 0
    before = secrets_of(tmp_path)
    (tmp_path / "north.public.json").unlink()
    assert main(words) == 2
    assert "keys are not written over" in capsys.readouterr().err
    assert secrets_of(tmp_path) == before


def test_public_keys_that_are_not_the_sites_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = tmp_path / "sent"
    for site in ("a", "b"):
        main(["deploy", "site-keys", site, "--out", str(tmp_path / site)])
        sent.mkdir(exist_ok=True)
        (tmp_path / site / f"{site}.public.json").rename(sent / f"{site}.public.json")
    (tmp_path / "b.public.json").write_bytes((sent / "b.public.json").read_bytes())
    words = ["deploy", "init", "--host", "hub", "--public-keys", str(sent)]
    words += ["--out", str(tmp_path / "federation"), "--sites"]

    def refused(sites: str) -> str:
        capsys.readouterr()
        assert main([*words, sites]) == 2
        assert not (tmp_path / "federation").exists()
        return capsys.readouterr().err

    assert "no public keys of: c" in refused("a,b,c")
    assert "public keys of no site of the plan: b" in refused("a")
    document = json.loads((sent / "a.public.json").read_text())
    (sent / "b.public.json").write_text(json.dumps({**document, "site": "b"}))
    assert "a and b have one key" in refused("a,b")
    own = json.loads((tmp_path / "b.public.json").read_text())
    for spelled in (document["fingerprint"].lower(), document["fingerprint"].replace("-", "\n")):
        (sent / "b.public.json").write_text(json.dumps({**own, "fingerprint": spelled}))
        assert "a and b have one key" in refused("a,b")
    (sent / "b.public.json").write_text(json.dumps({**document, "supernode": "ssh-rsa x"}))
    assert "b.public.json: supernode must be a public ECDSA key" in refused("a,b")
    (sent / "b.public.json").write_text(json.dumps({**document, "fingerprint": "AB"}))
    assert "b.public.json: fingerprint" in refused("a,b")
    (sent / "b.public.json").write_text("{")
    assert "b.public.json: not JSON" in refused("a,b")


def test_only_the_key_of_what_a_site_sent_is_handed_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = tmp_path / "sent"
    sent.mkdir()
    for site in ("a", "b"):
        main(["deploy", "site-keys", site, "--out", str(tmp_path / site)])
        (tmp_path / site / f"{site}.public.json").rename(sent / f"{site}.public.json")
    document = json.loads((sent / "a.public.json").read_text())
    key = document["supernode"]
    words = ["deploy", "init", "--host", "hub", "--sites", "a,b", "--public-keys", str(sent)]
    for stray in (f"{key}\n{key}", f"{key}\tx", f"{key}\nregister x y"):
        (sent / "a.public.json").write_text(json.dumps({**document, "supernode": stray}))
        assert main([*words, "--out", str(tmp_path / "refused")]) == 2
        assert "on one line" in capsys.readouterr().err
    (sent / "a.public.json").write_text(json.dumps({**document, "supernode": f"{key} $(id) a"}))
    assert main([*words, "--out", str(tmp_path / "made")]) == 0
    handed = (tmp_path / "made" / "operator" / "public-keys" / "a.pub").read_text()
    assert handed == f"{key}\n"


def test_a_number_is_no_name_of_a_real_site(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["deploy", "init", "--sites", "3", "--host", "hub", "--out", str(tmp_path / "made")]
    assert main(words) == 2
    assert "--sites 3: must be the names of the sites" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_a_fault_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise OSError("disk full")

    monkeypatch.setattr("fedapp.deploy.guides.operator", fail)
    with pytest.raises(OSError, match="disk full"):
        write_federation(PLAN, tmp_path / "federation")
    assert not (tmp_path / "federation").exists()
