"""Check configuration, environment and data of a run before anything starts."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from fedapp import run_config
from fedapp.run_config import RunConfig, Value
from fedapp.run_folder import base_fault
from strategies.membership import Refused
from strategies.roc_glm_release import LEAST_MASKED
from tasks.site.faults import SiteFault
from tasks.site.name_lists import some_names


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
    findings.append(_check_run_dir(config.general.run_dir))
    packages = check_environment()
    findings += packages
    if all(finding.ok for finding in packages):
        findings += _check_data(config, num_sites or config.general.num_sites)
    return findings


def _check_run_dir(run_dir: str) -> Finding:
    fault = base_fault(Path(run_dir))
    return Finding(not fault, "run-dir", f"{run_dir!r}: {fault}" if fault else run_dir)


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
    nodes: dict[str, Mapping[str, Value]] = {
        f"site-{part}": {"partition-id": part, "num-partitions": num_sites}
        for part in range(num_sites)
    }
    return check_sites(config, nodes)


def check_sites(config: RunConfig, nodes: Mapping[str, Mapping[str, Value]]) -> list[Finding]:
    """Read and check the rows of sites as they themselves will.

    Parameters
    ----------
    config : RunConfig
    nodes : mapping of str to mapping
        The node configuration of each site, by name.

    Returns
    -------
    list of Finding
        One for all sites of which the same is said, and one if they are too few.
    """
    num_sites = len(nodes)
    describe, least = _describe_survival_site, config.general.min_sites
    needed = f"min-sites is {least}"
    if config.general.task == "vertical-xgboost":
        describe = _describe_vertical_site
        if not config.vertical_xgboost.allow_two_parties and least < LEAST_MASKED:
            least = LEAST_MASKED
            needed = f"{LEAST_MASKED} are needed without vertical-xgboost.allow-two-parties"
    if config.general.task == "roc-glm":
        describe = _describe_roc_glm_site
        if config.roc_glm.masks_sums and least < LEAST_MASKED:
            least, needed = LEAST_MASKED, f"sums under masks need {LEAST_MASKED}"
    said: list[tuple[str, str, bool]] = []
    for name, node in nodes.items():
        try:
            said.append((name, describe(node, config), True))
        except SiteFault as fault:
            said += [(name, reason, False) for reason in fault.reasons]
        except Refused as refused:
            return [Finding(False, "configuration", reason) for reason in refused.faults]
    findings = _one_a_words(said)
    if num_sites < least:
        findings.append(Finding(False, "sites", f"{num_sites}, {needed}"))
    return findings


def _one_a_words(said: Sequence[tuple[str, str, bool]]) -> list[Finding]:
    """Return one finding for all sites of which the same is said."""
    names: dict[tuple[bool, str], list[str]] = {}
    for name, words, ok in said:
        names.setdefault((ok, words), []).append(name)
    return [Finding(ok, some_names(who), words) for (ok, words), who in names.items()]


def _describe_survival_site(node: Mapping[str, Value], config: RunConfig) -> str:
    from fedapp.prepared_sites import prepare_survival_site

    site = prepare_survival_site(node, config)
    return (
        f"{len(site.training)} training rows, {int(site.training.event.sum())} events, "
        f"{len(site.evaluation)} evaluation rows, {len(site.training.feature_names)} features: "
        f"{some_names(site.training.feature_names)}"
    )


def _describe_roc_glm_site(node: Mapping[str, Value], config: RunConfig) -> str:
    from fedapp.prepared_sites import prepare_roc_glm_site
    from fedapp.roc_glm_run import model_text

    rows = prepare_roc_glm_site(node, config, model=model_text(config.roc_glm.model)).rows
    inside = "" if rows.in_unit_interval else "not "
    return (
        f"{rows.num_positive} positives, {rows.num_negative} negatives, {rows.dropped} rows left "
        f"out, scores {inside}all in [0, 1]"
    )


def _describe_vertical_site(node: Mapping[str, Value], config: RunConfig) -> str:
    from fedapp.vertical_party import prepare_vertical_site

    table = prepare_vertical_site(node, config).table
    return (
        f"{len(table.ids)} rows, {int(table.is_evaluation.sum())} of them for evaluation, labels "
        f"of {int(table.owns.sum())}, {len(table.feature_names)} features: "
        f"{some_names(table.feature_names)}"
    )
