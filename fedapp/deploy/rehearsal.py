"""A federation as on real hosts, on this machine alone: to see that everything works.

What `fedapp deploy init` writes for real hosts is written for 127.0.0.1, and started by the same
scripts: a SuperLink with TLS that takes registered SuperNodes only, and a SuperNode a site. Each
process has a folder, an environment, a Flower home and, if it is a site, a data file of its own.
"""

from __future__ import annotations

import json
import math
import shutil
import ssl
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedapp import run_config
from fedapp.deploy.federation_folder import OPERATOR, SERVER, SITES, write_federation
from fedapp.deploy.plan import Plan
from fedapp.deploy.private_files import check_new_folder
from fedapp.deploy.processes import (
    ProcessFault,
    Service,
    check_port_free,
    free_ports,
    own_environment,
    service,
    wait_until,
)
from fedapp.deploy.rehearsal_data import refuse_bad_data, rehearsal_frames, rehearsal_values
from fedapp.flower_run import app_folder, run_with_flower
from fedapp.run_config import Value
from fedapp.site_data.dealt_files import write_frame

DATA_FILE = "data/rows.parquet"
LOGS, RUNS = "logs", "runs"
START_SECONDS = 180.0

_COMMAND_SECONDS = 60.0
_PROGRAMS = ("flower-superlink", "flower-supernode", "flower-superexec", "flwr")

Echo = Callable[[str], None]


@dataclass(frozen=True)
class Federation:
    """A SuperLink and SuperNodes that run on this machine.

    Attributes
    ----------
    plan : Plan
    folder : Path
        As `write_federation` made it.
    link : Service
        The SuperLink.
    nodes : dict of str to Service
        The SuperNode of each site.
    environment : dict of str to str
        In which Flower's commands are the operator's.
    """

    plan: Plan
    folder: Path
    link: Service
    nodes: dict[str, Service]
    environment: dict[str, str]

    def run(
        self, values: Mapping[str, Value], *, limit: float = math.inf, echo: Echo = print
    ) -> Path:
        """Run a task by the real ``flwr run`` over TLS and return the run folder.

        Raises
        ------
        FlowerRunError
            As `run_with_flower`.
        """
        return run_with_flower(
            {"run-dir": str((self.folder / RUNS).absolute()), **values},
            num_supernodes=None,
            superlink=self.plan.name,
            echo=echo,
            environment=self.environment,
            limit=limit,
        )

    def dead(self) -> list[str]:
        """Say which processes have ended by themselves, and their last words."""
        said = []
        for one in (self.link, *self.nodes.values()):
            try:
                one.check()
            except ProcessFault as fault:
                said.append(str(fault))
        return said


def rehearse(
    values: Mapping[str, Value],
    *,
    sites: Sequence[str],
    folder: Path,
    port: int = 0,
    limit: float = math.inf,
    echo: Echo = print,
) -> Path:
    """Set up a federation on this machine, run a task in it, and stop everything.

    Parameters
    ----------
    values : mapping
        Run configuration with ``task``; see `rehearsal_values` for what is added. ``<task>.data``
        is dealt to the sites.
    sites : sequence of str
        Names of the sites.
    folder : Path
        New or empty; gets everything, logs and run folder too, and is left as it is.
    port : int
        Of the SuperLink; 0: one that is free.
    limit : float
        Seconds that the run may take.
    echo : callable
        Gets what is said: steps, and the lines of ``flwr run``.

    Returns
    -------
    Path
        The run folder.

    Raises
    ------
    SiteFault, ConfigError, ValueError
        If data, settings or folder cannot be used; nothing was started.
    ProcessFault
        If a process did not start, or a port is taken.
    FlowerRunError
        If the run left no folder, or was not over in time.
    """
    check_new_folder(folder)
    check_programs()
    app_folder()
    port = port or free_ports(1)[0]
    check_port_free(port, what="the SuperLink")
    wanted = rehearsal_values(values, num_sites=len(sites))
    config = run_config.read(wanted)
    frames = rehearsal_frames(config, sites)
    refuse_bad_data(config, frames)
    plan = Plan(
        sites=tuple(sites),
        host="127.0.0.1",
        port=port,
        name="rehearsal",
        task=config.general.task,
        days=30,
    )
    write_federation(plan, folder, data_path=DATA_FILE)
    for site, frame in frames.items():
        write_frame(frame, folder / SITES / site / DATA_FILE)
    echo(f"federation of {len(sites)} sites at {plan.address}, in {folder.resolve()}")
    with running_federation(plan, folder, echo=echo) as federation:
        run = federation.run(_for_nodes(wanted), limit=limit, echo=echo)
        for words in federation.dead():
            echo(f"fedapp: {words}")
    echo(f"all processes have ended; their logs are in {folder.resolve() / LOGS}")
    return run


@contextmanager
def running_federation(plan: Plan, folder: Path, *, echo: Echo = print) -> Iterator[Federation]:
    """Start everything in a folder of `write_federation` while the block runs, then end it.

    SuperNodes end first, by their ids, also on Ctrl-C or an error.

    Raises
    ------
    ProcessFault
        If something does not start in time, with the last lines of its log.
    """
    # Paths are given to processes in other folders.
    folder = folder.absolute()
    operator = own_environment(folder / OPERATOR, FLWR_HOME=str(folder / OPERATOR))
    with ExitStack() as stack:
        link = stack.enter_context(
            _script(
                "SuperLink",
                folder / SERVER,
                folder / LOGS / "superlink.log",
                SUPERLINK_LISTEN="127.0.0.1",
            )
        )
        wait_until(
            lambda: is_healthy(plan, folder / SERVER / "ca.crt"),
            seconds=START_SECONDS,
            what="an answer of the SuperLink",
            services=[link],
        )
        echo("SuperLink is up (TLS, registered SuperNodes only)")
        _register(folder / OPERATOR, folder / LOGS / "register.log", operator, echo)
        nodes = _start_nodes(stack, plan, folder)
        wait_until(
            lambda: online_nodes(plan, operator) >= len(plan.sites),
            seconds=START_SECONDS,
            what=f"{len(plan.sites)} SuperNodes online",
            services=[link, *nodes.values()],
            step=1.0,
        )
        echo(f"{len(nodes)} SuperNodes are online")
        yield Federation(plan, folder, link, nodes, operator)


def is_healthy(plan: Plan, authority: Path) -> bool:
    """Whether the SuperLink answers, with a certificate of this authority for this host."""
    trusted = ssl.create_default_context(cafile=str(authority))
    try:
        with urllib.request.urlopen(
            f"https://{plan.address}/health", timeout=2, context=trusted
        ) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def online_nodes(plan: Plan, environment: Mapping[str, str]) -> int:
    """Return how many SuperNodes the SuperLink has online, as ``flwr supernode list`` says."""
    command = ["flwr", "supernode", "list", plan.name, "--format", "json"]
    said = _call(command, environment)
    try:
        nodes = json.loads(said).get("nodes", [])
    except (ValueError, AttributeError):
        return 0
    return sum(node.get("status") == "online" for node in nodes)


def check_programs() -> None:
    """Refuse an environment without Flower's commands.

    Raises
    ------
    ProcessFault
        Naming those that are missing.
    """
    search = own_environment(Path.cwd())["PATH"]
    missing = [name for name in _PROGRAMS if shutil.which(name, path=search) is None]
    if missing:
        raise ProcessFault(
            f"not installed: {', '.join(missing)}; in the environment of this command: "
            "pip install . (in the folder of the app)"
        )


def _script(
    name: str, folder: Path, log: Path, **variables: str
) -> AbstractContextManager[Service]:
    return service(
        name,
        ["/bin/sh", str(folder / "start.sh")],
        environment=own_environment(folder, **variables),
        cwd=folder,
        log=log,
    )


def _start_nodes(stack: ExitStack, plan: Plan, folder: Path) -> dict[str, Service]:
    nodes = {}
    for site, port in zip(plan.sites, free_ports(len(plan.sites)), strict=True):
        log = folder / LOGS / f"supernode-{site}.log"
        script = _script(
            f"SuperNode of {site}", folder / SITES / site, log, SUPERNODE_PORT=str(port)
        )
        nodes[site] = stack.enter_context(script)
    return nodes


def _register(folder: Path, log: Path, environment: Mapping[str, str], echo: Echo) -> None:
    # As a service, since the script's own processes are to end with it.
    with service(
        "register.sh",
        ["/bin/sh", str(folder / "register.sh")],
        environment=environment,
        cwd=folder,
        log=log,
    ) as script:
        wait_until(
            lambda: script.process.poll() is not None,
            seconds=START_SECONDS,
            what="registering sites",
        )
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        echo(line)
    if script.process.returncode != 0:
        raise ProcessFault("not every site could be registered (see above)")


def _call(command: Sequence[str], environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            list(command),
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout


def _for_nodes(values: Mapping[str, Value]) -> dict[str, Value]:
    """Settings without those that the folder of the rehearsal answers."""
    return {key: value for key, value in values.items() if key != "run-dir"}
