"""Set-up of a survival run: what the sites' rows are like together, and who may take part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from flwr.app import Message

from strategies.exchange import Exchange, TooFewSites
from strategies.lateness import LEFT_OUT
from strategies.survival_columns import CommonColumns, common_columns, pooled_standardizer
from strategies.survival_strangers import of_other_features, of_other_times
from tasks.site.messages import TaskPart
from tasks.site.not_estimable import NotEstimable
from tasks.site.reply_fields import MalformedReply
from tasks.survival.censoring import median_follow_up
from tasks.survival.config import SurvivalConfig
from tasks.survival.medians import MEDIAN_BINS
from tasks.survival.messages import ROUNDING
from tasks.survival.risk_sets import FloatArray, RiskSetSums, time_grid
from tasks.survival.set_up_messages import StatisticsReply, StatisticsRequest, SurvivalFacts
from tasks.survival.standardization import FeatureMoments, Standardizer

_STEP = "statistics"


@dataclass(frozen=True)
class PooledStatistics:
    """What the sites' rows are like, together.

    Attributes
    ----------
    feature_names : tuple of str
        The feature columns of a table.
    standardizer : Standardizer
        From these columns to the model's inputs, by the moments of the training rows of all sites.
    horizon : float
        End of the time grid.
    counts : RiskSetSums
        Events and training rows at risk by cell of the grid ``time_grid(horizon, time_bins)``, as
        the sites coarsened them; every weight is a count.
    data_set : str
        Bundled data set of all sites; ``""`` where any has its own rows.
    sites : list of dict
        Name, training rows, events, evaluation rows, share of censored training rows and, where
        it exists, median follow-up of each; the latter from its coarsened counts by time.
    """

    feature_names: tuple[str, ...]
    standardizer: Standardizer
    horizon: float
    counts: RiskSetSums
    data_set: str
    sites: list[dict[str, Any]]

    @property
    def n_inputs(self) -> int:
        """Number of the model's inputs."""
        return self.standardizer.mean.size

    def rows_of(self, site: str) -> tuple[int, int] | None:
        """Return training and evaluation rows that a site stated; None if it does not take part."""
        for entry in self.sites:
            if entry["site"] == site:
                return entry["training-rows"], entry["evaluation-rows"]
        return None


def read_introductions(
    exchange: Exchange, sites: Mapping[str, TaskPart], *, min_sites: int
) -> dict[str, SurvivalFacts]:
    """Read what the sites' introductions told of their rows.

    A site whose facts cannot be read does not go on, nor does one whose follow-up times or
    observed values are not of the kind of the others' (:mod:`strategies.survival_strangers`).

    Parameters
    ----------
    exchange : Exchange
        Whose nodes take part.
    sites : mapping of str to TaskPart
        What each told, by name.
    min_sites : int
        Fewest sites that may be left.

    Returns
    -------
    dict of str to SurvivalFacts
        By name, in the order of names.

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
    reasons |= of_other_times({name: fact.horizon_bound for name, fact in facts.items()})
    reasons = _of_other_observed(facts) | reasons
    _leave_out(exchange, reasons, step="hello")
    usable = {name: fact for name, fact in facts.items() if name not in reasons}
    _need(len(usable), min_sites, exchange, before)
    return usable


def statistics_request(
    facts: Mapping[str, SurvivalFacts], config: SurvivalConfig
) -> StatisticsRequest:
    """Return what sites are asked in set-up, by what their introductions told.

    Raises
    ------
    Refused
        If sites have different feature columns.
    """
    common = common_columns(
        facts, config.declared_categories, allow_missing=config.missing == "median"
    )
    return StatisticsRequest(
        config.horizon or max(fact.horizon_bound for fact in facts.values()),
        common.encoding,
        common.median_ranges,
    )


def pool_statistics(
    exchange: Exchange,
    replies: Iterable[Message],
    *,
    facts: Mapping[str, SurvivalFacts],
    request: StatisticsRequest,
    time_bins: int,
    min_sites: int,
) -> PooledStatistics:
    """Pool the replies to ``statistics``; from now on only their senders take part.

    A site without a usable reply does not go on: its rows are not in the pooled moments. Nor does
    one whose moments are not of the kind of the others'.

    Parameters
    ----------
    exchange : Exchange
        Whose nodes were asked.
    replies : iterable of Message
        As they came.
    facts : mapping of str to SurvivalFacts
        What the introductions told, by name.
    request : StatisticsRequest
        What was asked.
    time_bins : int
        Cells of the time grid.
    min_sites : int
        Fewest sites that may be left.

    Raises
    ------
    Refused
        If nothing is known of a column any more.
    TooFewSites
        If fewer than `min_sites` are left.
    NotEstimable
        If no site has an event.
    """
    before = len(exchange.faults)

    def parse(message: Message) -> StatisticsReply:
        reply = StatisticsReply.from_record(message.content)
        told = facts[exchange.name_of(message.metadata.src_node_id)]
        _refuse_other_than_asked(reply, request, told, time_bins=time_bins)
        return reply

    asked = [exchange.name_of(node) for node in exchange.get_node_ids()]
    named = dict(exchange.read_messages(replies, parse))
    silent = sorted(set(asked) - named.keys())
    reasons = dict.fromkeys(silent, "left out: no usable reply to the set-up")
    summed = [request.encoding.column_names[place] for place in request.summed]
    reasons |= of_other_features({name: reply.moments for name, reply in named.items()}, summed)
    named = {name: reply for name, reply in named.items() if name not in reasons}
    _leave_out(exchange, reasons, step=_STEP)
    _need(len(named), min_sites, exchange, before)
    if sum(reply.n_events for reply in named.values()) == 0:
        raise NotEstimable("no-events", "no site has an event among its training rows")
    data_sets = {reply.data_set for reply in named.values()}
    common = CommonColumns(request.encoding, request.median_ranges)
    left = {name: fact for name, fact in facts.items() if name in named}
    return PooledStatistics(
        feature_names=request.encoding.column_names,
        standardizer=pooled_standardizer(common, left, list(named.values())),
        horizon=request.grid_horizon,
        counts=reduce(add, (reply.counts for reply in named.values())),
        data_set=data_sets.pop() if len(data_sets) == 1 else "",
        sites=[
            _entry(name, reply, time_grid(request.grid_horizon, time_bins))
            for name, reply in named.items()
        ],
    )


def _entry(name: str, reply: StatisticsReply, grid: FloatArray) -> dict[str, Any]:
    """Return a site's line in the table of sites: what it told, and what follows from that."""
    rows = reply.moments.count
    entry = {
        "site": name,
        "training-rows": rows,
        "training-events": reply.n_events,
        "evaluation-rows": reply.n_test,
        "censored-share": round(1 - reply.n_events / rows, 3),
    }
    follow_up = median_follow_up(reply.counts, grid)
    return entry if follow_up is None else {**entry, "median-follow-up": follow_up}


def _of_other_observed(facts: Mapping[str, SurvivalFacts]) -> dict[str, str]:
    """Return why sites are left out whose observed values are far from the others', by name."""
    by_column: dict[str, dict[str, FeatureMoments]] = {}
    for name, fact in facts.items():
        for column in fact.columns:
            if column.moments is not None:
                by_column.setdefault(column.name, {})[name] = column.moments
    reasons: dict[str, str] = {}
    for column_name, moments in by_column.items():
        reasons = of_other_features(moments, [column_name]) | reasons
    return reasons


def _refuse_other_than_asked(
    reply: StatisticsReply, request: StatisticsRequest, told: SurvivalFacts, *, time_bins: int
) -> None:
    """Refuse sums of other columns, grids or rows than were asked for or told of."""
    if reply.counts.events.size != time_bins:
        raise MalformedReply("events: must be on the grid asked for")
    if reply.moments.mean.size != len(request.summed):
        raise MalformedReply("mean, m2: must be of the columns asked for")
    if reply.histograms.shape != (len(request.median_ranges), MEDIAN_BINS + 2):
        raise MalformedReply("histograms: must be of the columns asked for")
    moments = {column.name: column.moments for column in told.columns}
    for name, counts in zip(request.median_ranges, reply.histograms, strict=True):
        rows = one.count if (one := moments[name]) else 0
        if rows > reply.moments.count or abs(counts.sum() - rows) > rows * ROUNDING:
            raise MalformedReply("histograms: must be of the rows told of first")


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
