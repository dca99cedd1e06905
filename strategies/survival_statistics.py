"""Set-up of a survival run: what the sites' rows are like together, and who may take part."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from flwr.app import Message, RecordDict

from strategies.exchange import Exchange, TooFewSites
from strategies.lateness import LEFT_OUT
from strategies.membership import Refused
from tasks.site.foreign_text import LONGEST_WORD, printable
from tasks.site.messages import TaskPart
from tasks.site.not_estimable import NotEstimable
from tasks.site.reply_fields import MalformedReply
from tasks.survival.risk_sets import RiskSetSums
from tasks.survival.set_up_messages import StatisticsReply, SurvivalFacts
from tasks.survival.standardization import FeatureMoments

MOST_APART = 1000.0
"""Factor between a site's horizon and the median site's at which it is left out. Follow-up in
another unit is 1 to 365 times as long where days, weeks, months or years are meant."""

_STEP = "statistics"
_MOST_NAMED = 8


@dataclass(frozen=True)
class PooledStatistics:
    """What the sites' rows are like, together.

    Attributes
    ----------
    feature_names : tuple of str
        In the order of the model's inputs.
    moments : FeatureMoments
        Of the training rows of all sites.
    horizon : float
        End of the time grid.
    counts : RiskSetSums
        Events and training rows at risk by cell of the grid ``time_grid(horizon, time_bins)``, as
        the sites coarsened them; every weight is a count.
    data_set : str
        Bundled data set of all sites; ``""`` where any has its own rows.
    sites : list of dict
        Name, training rows, events and evaluation rows of each.
    """

    feature_names: tuple[str, ...]
    moments: FeatureMoments
    horizon: float
    counts: RiskSetSums
    data_set: str
    sites: list[dict[str, Any]]

    def rows_of(self, site: str) -> tuple[int, int] | None:
        """Return training and evaluation rows that a site stated; None if it does not take part."""
        for entry in self.sites:
            if entry["site"] == site:
                return entry["training-rows"], entry["evaluation-rows"]
        return None


def common_horizon(
    exchange: Exchange, sites: Mapping[str, TaskPart], *, declared: float, min_sites: int
) -> float:
    """Return the end of the time grid of all sites, from what their introductions told.

    A site whose facts cannot be read does not go on, nor does one whose follow-up times are not
    those of the others.

    Parameters
    ----------
    exchange : Exchange
        Whose nodes take part.
    sites : mapping of str to TaskPart
        What each told, by name.
    declared : float
        ``survival.horizon``; 0: take the largest of the sites' round numbers.
    min_sites : int
        Fewest sites that may be left.

    Raises
    ------
    TooFewSites
        If fewer than `min_sites` are left.
    """
    before = len(exchange.faults)
    facts: dict[str, SurvivalFacts] = {}
    reasons: dict[str, str] = {}
    for node in exchange.get_node_ids():
        name = exchange.name_of(node)
        try:
            facts[name] = SurvivalFacts.from_facts(sites.get(name, TaskPart()).facts)
        except MalformedReply as error:
            reasons[name] = f"left out: no usable introduction ({error})"
    reasons |= _of_other_times({name: fact.horizon_bound for name, fact in facts.items()})
    _leave_out(exchange, reasons, step="hello")
    bounds = [fact.horizon_bound for name, fact in facts.items() if name not in reasons]
    _need(len(bounds), min_sites, exchange, before)
    return declared or max(bounds)


def pool_statistics(
    exchange: Exchange,
    replies: Iterable[Message],
    *,
    horizon: float,
    time_bins: int,
    min_sites: int,
) -> PooledStatistics:
    """Pool the replies to ``statistics``; from now on only their senders take part.

    A site without a usable reply does not go on: nobody knows its columns, and its rows are not
    in the pooled moments.

    Parameters
    ----------
    exchange : Exchange
        Whose nodes were asked.
    replies : iterable of Message
        As they came.
    horizon : float
        End of the time grid.
    time_bins : int
        Cells of the time grid.
    min_sites : int
        Fewest sites that may be left.

    Raises
    ------
    Refused
        If sites have different feature columns.
    TooFewSites
        If fewer than `min_sites` are left.
    NotEstimable
        If no site has an event.
    """
    before = len(exchange.faults)

    def parse(content: RecordDict) -> StatisticsReply:
        reply = StatisticsReply.from_record(content)
        if reply.counts.events.size != time_bins:
            raise MalformedReply("events: must be on the grid asked for")
        return reply

    asked = [exchange.name_of(node) for node in exchange.get_node_ids()]
    named = dict(exchange.read(replies, parse))
    silent = sorted(set(asked) - named.keys())
    reasons = dict.fromkeys(silent, "left out: no usable reply to the set-up")
    _leave_out(exchange, reasons, step=_STEP)
    _need(len(named), min_sites, exchange, before)
    _refuse_other_features(named)
    if sum(reply.n_events for reply in named.values()) == 0:
        raise NotEstimable("no-events", "no site has an event among its training rows")
    data_sets = {reply.data_set for reply in named.values()}
    return PooledStatistics(
        feature_names=next(iter(named.values())).feature_names,
        moments=FeatureMoments.merge(reply.moments for reply in named.values()),
        horizon=horizon,
        counts=reduce(add, (reply.counts for reply in named.values())),
        data_set=data_sets.pop() if len(data_sets) == 1 else "",
        sites=[
            {
                "site": name,
                "training-rows": reply.moments.count,
                "training-events": reply.n_events,
                "evaluation-rows": reply.n_test,
            }
            for name, reply in named.items()
        ],
    )


def _leave_out(exchange: Exchange, reasons: Mapping[str, str], *, step: str) -> None:
    """Report and exclude sites, by name."""
    nodes = {exchange.name_of(node): node for node in exchange.get_node_ids()}
    for name in sorted(reasons):
        exchange.report_fault(nodes[name], LEFT_OUT, reasons[name], step=step)
        exchange.exclude([nodes[name]])


def _need(left: int, min_sites: int, exchange: Exchange, before: int) -> None:
    if left < max(1, min_sites):
        able = "1 site" if left == 1 else f"{left} sites"
        raise TooFewSites(f"{able} can go on, {min_sites} needed", exchange.faults[before:])


def _of_other_times(bounds: Mapping[str, float]) -> dict[str, str]:
    """Return why sites are left out whose horizon is far from the others', by name."""
    if not bounds:
        return {}
    # The lower of two: the larger horizon is the one that spoils the grid of all.
    usual = statistics.median_low(bounds.values())
    return {
        name: f"left out: its times reach up to {bound:g}, more than {MOST_APART:g} times "
        f"or less than 1/{MOST_APART:g} of the median of the sites, {usual:g}; another unit?"
        for name, bound in bounds.items()
        if not 1 / MOST_APART <= bound / usual <= MOST_APART
    }


def _refuse_other_features(named: Mapping[str, StatisticsReply]) -> None:
    first_name, first = next(iter(named.items()))
    faults = []
    for name, reply in named.items():
        if reply.feature_names != first.feature_names:
            missing = set(first.feature_names) - set(reply.feature_names)
            further = set(reply.feature_names) - set(first.feature_names)
            differ = f"missing: {_listed(missing)}; further: {_listed(further)}"
            faults.append(f"{name}: its feature columns are not those of {first_name} ({differ})")
    if faults:
        raise Refused(faults)


def _listed(names: set[str]) -> str:
    shown = [printable(name, longest=LONGEST_WORD) for name in sorted(names)[:_MOST_NAMED]]
    more = len(names) - len(shown)
    return ", ".join(shown + ([f"and {more} more"] if more else [])) or "none"
