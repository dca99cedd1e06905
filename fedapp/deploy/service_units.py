"""Units for systemd, and compose files, that run the same start scripts."""

from __future__ import annotations

from fedapp.deploy.plan import Plan

HOME = "/opt/fedapp"
"""Where the units expect the folder, and beside it the environment with the app's packages."""

_UNIT = """\
# Put this folder to {home}/{folder} (owner: the user fedapp), and this file to
# /etc/systemd/system; make the environment {home}/venv and run its `pip install .` in the
# folder of the app. Then:
#     systemctl daemon-reload && systemctl enable --now {unit}
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target

[Service]
User=fedapp
WorkingDirectory={home}/{folder}
Environment=PATH={home}/venv/bin:/usr/local/bin:/usr/bin:/bin HOME={home}/{folder}
ExecStart=/bin/sh {home}/{folder}/start.sh
Restart=on-failure
RestartSec=10
# Runs that are on get the time to say in their folder that they were stopped.
TimeoutStopSec=60
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectSystem=strict
ProtectHome=yes
ReadWritePaths={home}/{folder}
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes

[Install]
WantedBy=multi-user.target
"""

_COMPOSE = """\
# In this folder, with FEDAPP_SOURCE naming the folder of the app (the one with its pyproject.toml)
# and FEDAPP_UID the owner of this folder:
#     FEDAPP_SOURCE=/path/of/the/app FEDAPP_UID="$(id -u)" docker compose up --build -d
services:
  {service}:
    build:
      context: "${{FEDAPP_SOURCE:?must name the folder of the app}}"
      dockerfile_inline: |
        FROM python:3.11-slim
        COPY . /app
        RUN pip install --no-cache-dir /app
        ENV HOME=/tmp
    command: ["sh", "/{folder}/start.sh"]
    working_dir: /{folder}
    user: "${{FEDAPP_UID:?must be the owner of this folder, id -u}}"
    restart: on-failure
    init: true
    read_only: true
    tmpfs: ["/tmp"]
    cap_drop: ["ALL"]
    security_opt: ["no-new-privileges:true"]
    volumes: [".:/{folder}"]
{ports}"""


def server_unit(plan: Plan) -> str:
    """Return the systemd unit of the SuperLink."""
    return _UNIT.format(
        home=HOME,
        folder="server",
        unit="fedapp-superlink.service",
        description=f"SuperLink of the {plan.title}",
    )


def site_unit(plan: Plan) -> str:
    """Return the systemd unit of a SuperNode."""
    return _UNIT.format(
        home=HOME,
        folder="site",
        unit="fedapp-supernode.service",
        description=f"SuperNode of a site of the {plan.title}",
    )


def server_compose(plan: Plan) -> str:
    """Return the compose file of the SuperLink."""
    ports = f'    ports: ["{plan.port}:{plan.port}"]\n'
    return _COMPOSE.format(service="superlink", folder="server", ports=ports)


def site_compose(plan: Plan) -> str:
    """Return the compose file of a SuperNode; it publishes no port."""
    return _COMPOSE.format(service="supernode", folder="site", ports="")
