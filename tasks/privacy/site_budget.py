"""What a site may spend over all runs, and the ledger on its disk of what it has spent.

A run reserves what it will release before the first of it leaves the site, and every release is
noted before it leaves, so that what was spent is never less than what is in the ledger, whatever
crashes. Nothing is given back: what a run has reserved and not used stays spent.

Composition over runs: Gaussian releases of the same rows are one Gaussian release, whose ratio of
sensitivity to noise is the root of the summed squares (see :mod:`tasks.privacy.gaussian`; exact, so
never above what Renyi accounting gives). Releases of other kinds add up their epsilons and deltas
(Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, theorem 3.16), and the
Gaussian ones then have the rest of delta.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasks.privacy import chained_log, gaussian
from tasks.privacy.mechanisms import is_number
from tasks.site.faults import SITE_LIMIT, SiteFault

LEDGER_NAME = "privacy-ledger"
"""Of the files in ``state-dir``: ``privacy-ledger.jsonl``, ``.head`` and ``.lock``."""

SITE_LEDGER = "site-ledger"
"""Code of the fault of a ledger that is not usable."""

_SLACK = 1 + 1e-9
"""For a ratio that was worked out twice."""

_LARGEST_RATIO = 1e100
"""Whose epsilon, about half its square, is far beyond any maximum, and still a double."""


@dataclass(frozen=True)
class Cost:
    """What one release costs.

    Attributes
    ----------
    ratio : float
        Gaussian noise: L2 sensitivity over standard deviation; 0 for other noise.
    epsilon, delta : float
        Other noise: its guarantee; 0 for Gaussian noise.

    Raises
    ------
    ValueError
        If it is neither.
    """

    ratio: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        numbers = all(is_number(value) and value >= 0 for value in asdict(self).values())
        if not numbers or self.delta >= 1 or (self.ratio > 0) == (self.epsilon + self.delta > 0):
            raise ValueError(
                f"cost of ratio {self.ratio!r}, epsilon {self.epsilon!r}, delta {self.delta!r}: "
                "must be a finite ratio > 0, or epsilon >= 0 and delta in [0, 1), not both 0"
            )

    def covers(self, other: Cost) -> bool:
        """Whether a release that costs `other` is paid with what was reserved for this one."""
        pairs = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return all(used <= reserved * _SLACK for reserved, used in pairs)


@dataclass(frozen=True)
class Reservation:
    """What a run has reserved.

    Attributes
    ----------
    run : str
        Name of the run.
    task : str
        What it runs.
    config : str
        Digest of its configuration.
    releases : int
        How many releases.
    cost : Cost
        Of each.
    time : str
        When, as ISO 8601 in UTC.
    steps : tuple of str
        Releases that were made.
    """

    run: str
    task: str
    config: str
    releases: int
    cost: Cost
    time: str = ""
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Spent:
    """Privacy spent over all runs; `composition` says how it was added up."""

    epsilon: float
    delta: float
    composition: str


def spent(reservations: Sequence[Reservation], *, delta: float) -> Spent:
    """Return what reservations amount to, at one delta for all of them.

    Parameters
    ----------
    reservations : sequence of Reservation
        Of the same rows.
    delta : float
        In (0, 1).

    Returns
    -------
    Spent
        `epsilon` is infinite where the deltas alone are more than `delta`.
    """
    ratios = [r.cost.ratio * math.sqrt(r.releases) for r in reservations if r.cost.ratio]
    others = [r for r in reservations if not r.cost.ratio]
    if not others:
        return Spent(_gaussian(ratios, delta), delta, "exact composition of Gaussian releases")
    epsilon = math.fsum(r.releases * r.cost.epsilon for r in others)
    used = math.fsum(r.releases * r.cost.delta for r in others)
    if used > delta or (ratios and used >= delta):
        return Spent(math.inf, delta, "basic composition")
    if not ratios:
        return Spent(epsilon, delta, "basic composition")
    epsilon += _gaussian(ratios, delta - used)
    words = "basic composition of other releases with the exact one of Gaussian releases"
    return Spent(epsilon, delta, words)


def _gaussian(ratios: Sequence[float], delta: float) -> float:
    """Epsilon of Gaussian releases; infinite where noise is so small that no double holds it."""
    mu = math.hypot(*ratios)
    if mu > _LARGEST_RATIO:
        return math.inf
    return gaussian.composed_epsilon(delta=delta, ratios=ratios) if ratios else 0.0


@dataclass(frozen=True)
class SiteBudget:
    """What one run may spend of a site's privacy.

    Attributes
    ----------
    folder : Path
        ``state-dir`` of the node config.
    run, task : str
        Name of the run, and what it runs.
    config : str
        Digest of the run's configuration.
    max_epsilon : float
        Most that all runs together may spend, above 0.
    max_delta : float
        Delta that it goes with, in (0, 1).
    """

    folder: Path
    run: str
    task: str
    config: str
    max_epsilon: float
    max_delta: float

    def check(self, cost: Cost | None, *, releases: int = 1) -> None:
        """Refuse a run that the ledger, or what is left, does not let begin; reserves nothing.

        Parameters
        ----------
        cost : Cost or None
            What a release costs at least; None: not known yet.
        releases : int
            How many there will be.

        Raises
        ------
        SiteFault
            ``site-ledger`` or ``site-limit``.
        """
        with _ledger(self.folder) as log:
            self._probe()
            found = _reservations(log)
            if self.run in found:
                self._own(found)
            elif cost is not None:
                self._refuse_beyond(found, self._reservation(cost, releases))

    def release(self, *, step: str, cost: Cost, releases: int) -> None:
        """Note a release, reserving for the whole run before the first; call before it leaves.

        Parameters
        ----------
        step : str
            Name of the release, once a run.
        cost : Cost
            Of this release, from the noise that it really has.
        releases : int
            How many the run will make, this one included, where it is the first.

        Raises
        ------
        SiteFault
            ``site-limit`` if the site may not release it, ``site-ledger`` if it cannot be noted:
            in both cases it must not leave.
        """
        with _ledger(self.folder) as log:
            found = _reservations(log)
            if self.run not in found:
                reservation = self._reservation(cost, releases)
                self._refuse_beyond(found, reservation)
                log.append(_reserve_entry(reservation, self))
                found[self.run] = reservation
            self._refuse_unreserved(self._own(found), step, cost)
            log.append({"kind": "release", "time": _now(), "run": self.run, "step": step})

    def _reservation(self, cost: Cost, releases: int) -> Reservation:
        if type(releases) is not int or releases < 1:
            raise ValueError(f"releases = {releases!r}: must be a whole number >= 1")
        return Reservation(self.run, self.task, self.config, releases, cost, _now())

    def _own(self, found: Mapping[str, Reservation]) -> Reservation:
        own = found[self.run]
        if (own.task, own.config) != (self.task, self.config):
            raise SiteFault(
                SITE_LIMIT,
                "another configuration than the one that this run has reserved its epsilon for "
                '(node config "max-epsilon")',
            )
        return own

    def _refuse_unreserved(self, own: Reservation, step: str, cost: Cost) -> None:
        limit = 'node config "max-epsilon"'
        if step in own.steps:
            raise SiteFault(SITE_LIMIT, f"{step}: released in this run before ({limit})")
        if len(own.steps) >= own.releases:
            raise SiteFault(
                SITE_LIMIT,
                f"{step}: this run has reserved {own.releases} releases and made them ({limit})",
            )
        if not own.cost.covers(cost):
            raise SiteFault(
                SITE_LIMIT,
                f"{step}: less noise than this run has reserved its epsilon for ({limit})",
            )

    def _refuse_beyond(self, found: Mapping[str, Reservation], new: Reservation) -> None:
        before = spent(list(found.values()), delta=self.max_delta)
        after = spent([*found.values(), new], delta=self.max_delta)
        if not after.epsilon <= self.max_epsilon:
            number = "1 release" if new.releases == 1 else f"{new.releases} releases"
            raise SiteFault(
                SITE_LIMIT,
                f'node config "max-epsilon" = {self.max_epsilon:g}, "max-delta" = '
                f"{self.max_delta:g}: over all runs the site has spent {before.epsilon:.4g}, and "
                f"with this run ({number}) it would be {after.epsilon:.4g} ({after.composition})",
            )

    def _probe(self) -> None:
        """Refuse a folder in which no file can be written: before anything is worked out."""
        path = self.folder / f"{LEDGER_NAME}.probe"
        try:
            path.write_bytes(b"\n" * 512)
            path.unlink()
        except OSError as error:
            words = error.strerror or type(error).__name__
            raise _unusable(f"{path}: cannot be written ({words})") from None


def read_ledger(folder: Path) -> list[Reservation]:
    """Return what the ledger in a folder holds, oldest first, with the releases that were made.

    Raises
    ------
    SiteFault
        ``site-ledger`` if it is not as it was left.
    """
    with _ledger(folder) as log:
        return list(_reservations(log).values())


def last_limit(folder: Path) -> tuple[float, float] | None:
    """Maximum and delta under which the latest reservation was made; None without any."""
    with _ledger(folder) as log:
        for entry in reversed(log.entries):
            if entry.get("kind") == "reserve":
                return float(entry["max-epsilon"]), float(entry["max-delta"])
    return None


@contextmanager
def _ledger(folder: Path) -> Iterator[chained_log.OpenLog]:
    try:
        with chained_log.opened(folder, LEDGER_NAME) as log:
            yield log
    except chained_log.LogFault as fault:
        raise _unusable(str(fault)) from None


def _unusable(words: str) -> SiteFault:
    return SiteFault(SITE_LEDGER, f'ledger in node config "state-dir": {words}')


def _reserve_entry(reservation: Reservation, budget: SiteBudget) -> dict[str, Any]:
    return {
        "kind": "reserve",
        "time": reservation.time,
        "run": reservation.run,
        "task": reservation.task,
        "config": reservation.config,
        "releases": reservation.releases,
        **asdict(reservation.cost),
        "max-epsilon": budget.max_epsilon,
        "max-delta": budget.max_delta,
    }


def _reservations(log: chained_log.OpenLog) -> dict[str, Reservation]:
    """By run, in the order in which they were made."""
    found: dict[str, Reservation] = {}
    # Gathered apart: a run may have 100,000 releases, and a tuple is made anew with each.
    steps: dict[str, list[str]] = {}
    for number, entry in enumerate(log.entries, start=1):
        try:
            run = str(entry["run"])
            if entry["kind"] == "release":
                steps[run].append(str(entry["step"]))
                continue
            if entry["kind"] != "reserve" or run in found:
                raise ValueError("not an entry of this ledger")
            releases = entry["releases"]
            if type(releases) is not int or releases < 1:
                raise ValueError("releases")
            cost = Cost(entry["ratio"], entry["epsilon"], entry["delta"])
            task, config, time = (str(entry[name]) for name in ("task", "config", "time"))
            found[run], steps[run] = Reservation(run, task, config, releases, cost, time), []
        except (LookupError, TypeError, ValueError):
            raise _unusable(f"entry {number} is none that this version knows") from None
    return {run: replace(own, steps=tuple(steps[run])) for run, own in found.items()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
