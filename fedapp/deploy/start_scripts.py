"""Shell scripts that start the server and the sites, and that register the sites.

They work from the folder in which they lie, wherever that is put, and end in ``exec``: the id of
the process that was started is that of the SuperLink or SuperNode.
"""

from __future__ import annotations

import shlex

from fedapp.deploy.plan import Plan

SUPERNODE_PORT = 9094
"""Where a SuperNode's own processes reach it, on the loopback address only."""

_HEAD = """\
#!/bin/sh
# {what}
set -eu
cd "$(dirname "$0")"
umask 077
# Flower's own files of this {role}, apart from those of any other on the machine.
FLWR_HOME="$PWD/flower"
export FLWR_HOME
# Flower sends usage statistics unless told not to.
FLWR_TELEMETRY_ENABLED="${{FLWR_TELEMETRY_ENABLED:-0}}"
export FLWR_TELEMETRY_ENABLED
"""


def server_script(plan: Plan) -> str:
    """Start the SuperLink, with TLS, for registered SuperNodes only."""
    listen = "::" if ":" in plan.host else "0.0.0.0"  # of the same kind as the address of it
    return (
        _HEAD.format(what="Start the SuperLink of the federation.", role="server")
        + f"""\
# The database keeps runs and registered sites over a restart; without it every site would have
# to be registered again. The packages of the app are those of this environment: by default Flower
# would make a new one for every run, for which the server has to reach a package index.
exec flower-superlink \\
    --host "${{SUPERLINK_LISTEN:-{listen}}}" --port "${{SUPERLINK_PORT:-{plan.port}}}" \\
    --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key \\
    --enable-supernode-auth \\
    --disable-runtime-dependency-installation \\
    --database superlink.sqlite
"""
    )


def site_script(plan: Plan) -> str:
    """Start the SuperNode of a site."""
    return (
        _HEAD.format(what="Start the SuperNode of this site.", role="site")
        + f"""\
# The SuperNode calls the server; nobody calls the site. Its own port is for its own processes
# on this machine, on the loopback address.
exec flower-supernode \\
    --superlink "${{SUPERLINK_ADDRESS:-{plan.address}}}" \\
    --root-certificates ca.crt \\
    --auth-supernode-private-key keys/supernode \\
    --node-config node-config.toml \\
    --port "${{SUPERNODE_PORT:-{SUPERNODE_PORT}}}"
"""
    )


def register_script(plan: Plan) -> str:
    """Tell the SuperLink the public keys of the sites."""
    lines = "".join(
        f"register {shlex.quote(f'public-keys/{site}.pub')} {shlex.quote(site)}\n"
        for site in plan.sites
    )
    return f"""\
#!/bin/sh
# Register the sites' public keys at the SuperLink: once, while it runs. No other SuperNode may
# connect. To take a site out again: flwr supernode list {plan.name}, then
# flwr supernode unregister NODE-ID {plan.name}
set -eu
cd "$(dirname "$0")"
# This folder is a home of Flower, with the connection "{plan.name}" in its config.toml.
FLWR_HOME="$PWD"
export FLWR_HOME
failed=0
register() {{
    # With --format json Flower ends with 0 even if the server says no, so its words are read.
    said=$(flwr supernode register "$1" {plan.name} --name "$2" --format json 2>&1) || true
    case "$said" in
        *'"success": true'*) echo "$2: registered" ;;
        *"already in use"*) echo "$2: was registered already" ;;
        *) echo "$2: NOT registered: $said" >&2; failed=1 ;;
    esac
}}
{lines}exit "$failed"
"""
