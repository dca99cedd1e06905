"""The README of each folder of a federation: what is in it, what to do, in which order."""

from __future__ import annotations

from collections.abc import Mapping

from fedapp.deploy.plan import Plan
from fedapp.deploy.site_keys import PublicKeys


def overview(plan: Plan, keys: Mapping[str, PublicKeys], *, made_here: bool) -> str:
    """What the folders are, who gets which, and the fingerprints."""
    rows = "".join(f"| {site} | `{keys[site].fingerprint}` |\n" for site in plan.sites)
    made = (
        """
The private keys of the sites were made here. Whoever has this folder could pass for any site, to
the server and to the other sites. Where that must not be, let each site make its keys itself
(`fedapp deploy site-keys`), and give `fedapp deploy init --public-keys` what they send.
After the hand-over delete `sites/` here.
"""
        if made_here
        else """
The sites made their keys themselves; no private key of a site is or was in this folder.
"""
    )
    return f"""\
# The {plan.title}

| folder | for | secret |
|---|---|---|
| `authority/` | a safe place without network: it signs the server's certificates | `ca.key` |
| `server/` | the host `{plan.host}` | `server.key` |
| `operator/` | who starts runs; may be the same person as the server's | nothing |
| `sites/<name>/` | that site, and nobody else | `keys/` |
{made}
1. Hand over the folders by a way that others cannot read (an encrypted archive, a visit).
2. Server: `server/README.md`. It starts first.
3. Operator: `operator/README.md`: register the sites.
4. Sites: `sites/<name>/README.md`: compare fingerprints, give the data file, start.
5. Operator: start a run.

Each site compares these fingerprints with the other sites, by telephone or on paper; the server
must not be the one who tells them:

| site | fingerprint |
|---|---|
{rows}"""


def authority() -> str:
    """What the authority's key is for, and how to keep it."""
    return """\
# The certificate authority

`ca.key` signs certificates of the server. Whoever has it can pass for the server. It is needed
once a year, so keep it where no network is (an encrypted USB stick in a safe), and nowhere else;
it is no part of any host. `ca.crt` is public: server, operator and sites have copies.

The server's certificate is renewed with this folder at hand:

    fedapp deploy renew FOLDER --authority THIS_FOLDER

and the SuperLink started again. Sites and operator need not do anything. If `ca.key` is lost or
known to others, make a new federation folder: every site then needs the new `ca.crt`.
"""


def server(plan: Plan) -> str:
    """How to start the SuperLink."""
    return f"""\
# The server of the {plan.title}

Needs Python 3.11 or newer, and the app's packages (`pip install .` in the folder of the app).

    sh start.sh                     # or fedapp-superlink.service, or compose.yaml

It listens at port {plan.port} of all addresses; `SUPERLINK_LISTEN` names another one,
`SUPERLINK_PORT` another port. Sites and operator connect to `{plan.address}`; the server connects
to nobody. Where it is up, this prints 200 and nothing else, from another machine too:

    curl --cacert ca.crt -w '%{{http_code}}\\n' https://{plan.address}/health

- **Who reaches this port can start runs and register SuperNodes**: Flower 1.42 authenticates
  SuperNodes, and accounts only with an OpenID Connect service. Open the port to the addresses of
  sites and operator only, and let a reverse proxy or firewall keep the paths `/v1/control/` for
  the operator's address.
- `server.key` is read by the server alone (mode 0600). `server.crt` ends; see
  `openssl x509 -enddate -noout -in server.crt`, renew it before with `fedapp deploy renew`.
- `superlink.sqlite` keeps runs, and the sites that are registered. Keep it over restarts.
- Run folders are made in `runs/`, unless the run says `run-dir`: results, never rows of a site.
"""


def operator(plan: Plan) -> str:
    """How to register sites and to start runs."""
    return f"""\
# The operator of the {plan.title}

Needs Python 3.11 or newer, and the app's packages (`pip install .` in the folder of the app).

`config.toml` is the connection for Flower's commands; with `FLWR_HOME` set to this folder they
find it (or copy its section to `~/.flwr/config.toml`). Change `root-certificates` in it if this
folder has moved.

1. The server runs? Then, once: `sh register.sh`
2. `export FLWR_HOME="$PWD"`
3. `flwr supernode list {plan.name}` shows which SuperNodes are online.
4. In the folder of the app: `fedapp run TASK --superlink {plan.name} --set ...`, or
   `flwr run . {plan.name} --stream --run-config '...'`. The run folder is made at the server.

A site that leaves: `flwr supernode unregister NODE-ID {plan.name}`. A site with a new key sends
its public half: `flwr supernode register FILE.pub {plan.name} --name NAME`.
"""


def site(plan: Plan, name: str, keys: Mapping[str, PublicKeys], *, has_keys: bool) -> str:
    """What a site does, keeps and never gives away."""
    pins = "".join(
        f"| {other} | `{keys[other].fingerprint}` |\n" for other in plan.sites if other != name
    )
    key_step = (
        "1. `keys/` holds this site's private keys (mode 0600). They never leave this site."
        if has_keys
        else "1. Put the folder `keys/` that `fedapp deploy site-keys` made at this site here."
    )
    return f"""\
# The site {name} of the {plan.title}

Needs Python 3.11 or newer, and the app's packages (`pip install .` in the folder of the app).
This machine connects to `{plan.address}`, and nobody connects to it: no port is to be opened.

{key_step}
2. Compare fingerprints with the other sites by telephone or on paper. This site's is
   `{keys[name].fingerprint}`; the ones in `node-config.toml` are:

| site | fingerprint |
|---|---|
{pins}
3. Put the data file where `data-path` of `node-config.toml` says, or change the path. Only the
   user of the SuperNode needs to read it. (The systemd unit hides `/home`.)
4. Set the limits of this site in `node-config.toml`: no run can go beyond them.
5. `sh start.sh` (or fedapp-supernode.service, or compose.yaml). It ends at once with exit code
   305 of Flower and a reason if the server's certificate is not of `ca.crt`, or if the operator
   has not registered this site. A second one on one machine: `SUPERNODE_PORT=9095 sh start.sh`.

Keep: `keys/`, `node-config.toml`, `state/` (what must outlive a restart), `models/` (this site's
part of vertical models). The log says what each run asked for, and why something was refused.
"""
