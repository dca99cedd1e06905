"""Set-up of a survival run: what the sites' rows are like together, and who may take part."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Message

from strategies.exchange import Exchange, TooFewSites
from strategies.lateness import LEFT_OUT
from strategies.membership import Refused
from tasks.site.foreign_text import LONGEST_WORD, printable
from tasks.site.not_estimable import NotEstimable
from tasks.survival.messages import StatisticsReply
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
    data_set : str
        Bundled data set of all sites; ``""`` where any has its own rows.
    sites : list of dict
        Name, training rows, events and evaluation rows of each.
    """

    feature_names: tuple[str, ...]
    moments: FeatureMoments
    horizon: float
    data_set: str
    sites: list[dict[str, Any]]

    def rows_of(self, site: str) -> tuple[int, int] | None:
        """Return training and evaluation rows that a site stated; None if it does not take part."""
        for entry in self.sites:
            if entry["site"] == site:
                return entry["training-rows"], entry["evaluation-rows"]
        return None


def pool_statistics(
    exchange: Exchange,
    replies: Iterable[Message],
    *,
    horizon: float | None,
    min_sites: int,
) -> PooledStatistics:
    """Pool the replies to ``statistics``; from now on only their senders take part.

    A site without a usable reply does not go on: nobody knows its columns, and its rows are not
    in the pooled moments. Nor does one whose follow-up times are not those of the others.

    Parameters
    ----------
    exchange : Exchange
        Whose nodes were asked.
    replies : iterable of Message
        As they came.
    horizon : float or None
        End of the time grid; None: the largest of the sites' round numbers.
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
    nodes = {exchange.name_of(node): node for node in exchange.get_node_ids()}
    named = dict(exchange.read(replies, StatisticsReply.from_record))
    reasons = dict.fromkeys(nodes.keys() - named, "left out: no usable reply to the set-up")
    reasons |= _of_other_times(named)
    for name in sorted(reasons):
        named.pop(name, None)
        exchange.report_fault(nodes[name], LEFT_OUT, reasons[name], step=_STEP)
        exchange.exclude([nodes[name]])
    if len(named) < max(1, min_sites):
        able = "1 site" if len(named) == 1 else f"{len(named)} sites"
        raise TooFewSites(f"{able} can go on, {min_sites} needed", exchange.faults[before:])
    _refuse_other_features(named)
    if sum(reply.n_events for reply in named.values()) == 0:
        raise NotEstimable("no-events", "no site has an event among its training rows")
    data_sets = {reply.data_set for reply in named.values()}
    return PooledStatistics(
        feature_names=next(iter(named.values())).feature_names,
        moments=FeatureMoments.merge(reply.moments for reply in named.values()),
        horizon=horizon or max(reply.horizon for reply in named.values()),
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


def _of_other_times(named: Mapping[str, StatisticsReply]) -> dict[str, str]:
    """Return why sites are left out whose horizon is far from the others', by name."""
    if not named:
        return {}
    # The lower of two: the larger horizon is the one that spoils the grid of all.
    usual = statistics.median_low(reply.horizon for reply in named.values())
    return {
        name: f"left out: its times reach up to {reply.horizon:g}, more than {MOST_APART:g} times "
        f"or less than 1/{MOST_APART:g} of the median of the sites, {usual:g}; another unit?"
        for name, reply in named.items()
        if not 1 / MOST_APART <= reply.horizon / usual <= MOST_APART
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
