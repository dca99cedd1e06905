"""What a federation on real hosts is, checked as a whole."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedapp.deploy.certificates import host_fault
from fedapp.run_config import TASK_CONFIGS
from fedapp.site_data.dealt_files import check_site_names
from tasks.site.faults import SiteFault

PORT = 8000
MOST_SITES = 10_000

# A key of Flower's configuration file, and a name of systemd units.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True)
class Plan:
    """A federation.

    Attributes
    ----------
    sites : tuple of str
        Names of the sites, all different.
    host : str
        Host name or IP address of the SuperLink, as sites and operator reach it.
    port : int
        Its one port, 1 to 65535: since Flower 1.42 sites and operator use the same.
    aliases : tuple of str
        Further names and addresses that the server's certificate is for.
    name : str
        Connection in Flower's configuration: small letters, digits and ``-``.
    task : str
        The task that the sites prepare for; ``""`` for any.
    days : int
        Days for which the server's certificate is valid.

    Raises
    ------
    ValueError
        With everything that is wrong.
    """

    sites: tuple[str, ...]
    host: str
    port: int = PORT
    aliases: tuple[str, ...] = ()
    name: str = "federation"
    task: str = ""
    days: int = 397

    def __post_init__(self) -> None:
        faults: list[str] = []
        try:
            check_site_names(self.sites)
        except SiteFault as error:
            faults += error.reasons
        if len(self.sites) > MOST_SITES:
            faults.append(f"{len(self.sites)} sites: at most {MOST_SITES}")
        faults += [fault for host in (self.host, *self.aliases) if (fault := host_fault(host))]
        if not 1 <= self.port <= 65535:
            faults.append(f"port = {self.port} must be from 1 to 65535")
        if not _NAME.fullmatch(self.name):
            faults.append(f"name {self.name!a} must be 1 to 40 of a-z, 0-9 and '-'")
        if self.task and self.task not in TASK_CONFIGS:
            faults.append(f"task {self.task!a} must be one of {', '.join(TASK_CONFIGS)}")
        if not 1 <= self.days <= 3650:
            faults.append(f"days = {self.days} must be from 1 to 3650")
        if faults:
            raise ValueError("; ".join(faults))

    @property
    def address(self) -> str:
        """Host and port, as Flower takes them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def title(self) -> str:
        """What guides call it, with the word before the name unless that is the name."""
        return "federation" if self.name == "federation" else f"federation {self.name}"
