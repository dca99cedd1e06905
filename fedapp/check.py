"""Check configuration, environment and data of a run before anything starts."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement

from fedapp import run_config
from fedapp.run_config import RunConfig, Value
from tasks.site.faults import SiteFault


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    ok: bool
    subject: str
    words: str

    def __str__(self) -> str:
        return f"{'ok   ' if self.ok else 'FAULT'} {self.subject}: {self.words}"


def check(values: Mapping[str, Value], *, num_sites: int | None = None) -> list[Finding]:
    """Look at everything a simulated run needs and say what is wrong.

    Parameters
    ----------
    values : mapping
        The run configuration, flat.
    num_sites : int, optional
        Simulated sites; default the configuration's ``num-sites``.
    """
    try:
        config = run_config.read(values)
    except run_config.ConfigError as error:
        return [Finding(False, "configuration", fault) for fault in error.faults]
    findings = [Finding(True, "configuration", f"task {config.general.task}")]
    packages = check_environment()
    findings += packages
    if all(finding.ok for finding in packages):
        findings += _check_data(config, num_sites or config.general.num_sites)
    return findings


def check_environment() -> list[Finding]:
    """Compare installed packages with what the app declares."""
    try:
        declared = importlib.metadata.requires("fedapp") or []
    except importlib.metadata.PackageNotFoundError:
        return [Finding(False, "environment", "fedapp is not installed: pip install .")]
    found = [Finding(True, "python", sys.version.split()[0])]
    for requirement in map(Requirement, declared):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            words = f"missing; pip install '{requirement}'"
            found.append(Finding(False, requirement.name, words))
            continue
        fits = requirement.specifier.contains(version, prereleases=True)
        words = version if fits else f"{version} is installed, {requirement.specifier} is needed"
        found.append(Finding(fits, requirement.name, words))
    return found


def _check_data(config: RunConfig, num_sites: int) -> list[Finding]:
    """Read and check every simulated site's rows as the sites themselves will."""
    from fedapp.client_app import prepare_survival_site

    findings = []
    for part in range(num_sites):
        node = {"partition-id": part, "num-partitions": num_sites}
        try:
            site = prepare_survival_site(node, config)
        except SiteFault as fault:
            findings += [Finding(False, f"site-{part}", reason) for reason in fault.reasons]
            continue
        words = (
            f"{len(site.training)} training rows, {int(site.training.event.sum())} events, "
            f"{len(site.evaluation)} evaluation rows, {len(site.training.feature_names)} features"
        )
        findings.append(Finding(True, site.name, words))
    if num_sites < config.general.min_sites:
        words = f"{num_sites}, min-sites is {config.general.min_sites}"
        findings.append(Finding(False, "sites", words))
    return findings
