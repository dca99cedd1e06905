"""What travels before training: what a site's introduction tells of its rows, and their sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from flwr.app import ConfigRecord, RecordDict

from tasks.site.messages import Facts
from tasks.site.reply_fields import MalformedReply, count, number, reals, text, texts
from tasks.survival.messages import ROUNDING, from_array_record, to_array_record
from tasks.survival.risk_sets import LONGEST_TIME, SHORTEST_TIME, RiskSetSums, is_round_number
from tasks.survival.standardization import FeatureMoments

STATISTICS = "query.survival_statistics"

_LONGEST_HORIZON = 10 * LONGEST_TIME


@dataclass(frozen=True)
class SurvivalFacts:
    """What a site's introduction tells of its rows: enough to choose what all sites have in common.

    Attributes
    ----------
    horizon_bound : float
        Round number that fewer than privacy-level of the training times exceed.
    """

    horizon_bound: float

    reveals: ClassVar[str] = (
        "a round number that fewer than privacy-level follow-up times of the training rows exceed"
    )

    def to_facts(self) -> Facts:
        """Return the facts for the introduction."""
        return {"horizon-bound": self.horizon_bound}

    @classmethod
    def from_facts(cls, facts: Facts) -> SurvivalFacts:
        """Read the facts; raises MalformedReply if no site would tell them."""
        bound = number(facts, "horizon-bound")
        if not SHORTEST_TIME <= bound <= _LONGEST_HORIZON or not is_round_number(bound):
            raise MalformedReply("horizon-bound: must be a round number, as of a site's times")
        return cls(bound)


@dataclass(frozen=True)
class StatisticsRequest:
    """Server to sites: describe your rows by sums.

    Attributes
    ----------
    grid_horizon : float
        End of the time grid.
    """

    grid_horizon: float

    reveals: ClassVar[str] = (
        "the end of the time grid, which is survival.horizon or the largest of the sites' round "
        "numbers"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        return RecordDict({"request": ConfigRecord({"grid-horizon": self.grid_horizon})})

    @classmethod
    def from_record(cls, content: RecordDict) -> StatisticsRequest:
        """Read the message's content."""
        return cls(cast(float, content.config_records["request"]["grid-horizon"]))


@dataclass(frozen=True)
class StatisticsReply:
    """A site's rows in sums.

    Attributes
    ----------
    feature_names : tuple of str
        Columns, in the order of the moments.
    moments : FeatureMoments
        Of the training rows.
    n_events : int
        Training rows with an event.
    n_test : int
        Rows kept for evaluation.
    counts : RiskSetSums
        Events and rows at risk by cell of the time grid, coarsened; every weight is a count.
    data_set : str
        Name of the bundled data set that the rows are of; ``""``: the site's own.
    """

    feature_names: tuple[str, ...]
    moments: FeatureMoments
    n_events: int
    n_test: int
    counts: RiskSetSums
    data_set: str

    reveals: ClassVar[str] = (
        "names of the feature columns; count, mean and sum of squares of each over the site's "
        "training rows; number of events and of evaluation rows; by cell of the time grid: events "
        "and training rows at risk, cells merged until privacy-level rows leave in each; name of "
        "the bundled data set, if they are of one"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        counts = {"events": self.counts.events, "at-risk-count": self.counts.at_risk_count}
        return RecordDict(
            {
                "statistics": ConfigRecord(
                    {
                        "feature-names": list(self.feature_names),
                        "count": self.moments.count,
                        "n-events": self.n_events,
                        "n-test": self.n_test,
                        "data-set": self.data_set,
                    }
                ),
                "moments": to_array_record({"mean": self.moments.mean, "m2": self.moments.m2}),
                "counts": to_array_record(counts),
            }
        )

    @classmethod
    def from_record(cls, content: RecordDict) -> StatisticsReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        record = content.config_records["statistics"]
        arrays = from_array_record(content.array_records["moments"])
        names = tuple(texts(record, "feature-names"))
        rows = count(record, "count", least=1)
        moments = FeatureMoments(rows, reals(arrays, "mean"), reals(arrays, "m2"))
        n_events, n_test = count(record, "n-events"), count(record, "n-test")
        if not len(set(names)) == len(names) == moments.mean.size > 0:
            raise MalformedReply("feature-names: must be different, and as many as moments")
        if n_events > rows:
            raise MalformedReply("n-events: must be at most count")
        counts = _read_counts(content, rows=rows, n_events=n_events)
        return cls(names, moments, n_events, n_test, counts, text(record, "data-set"))


def _read_counts(content: RecordDict, *, rows: int, n_events: int) -> RiskSetSums:
    """Read counts by time; refuse those that no such rows have, up to rounding."""
    arrays = from_array_record(content.array_records["counts"])
    events, at_risk = reals(arrays, "events"), reals(arrays, "at-risk-count")
    try:
        counts = RiskSetSums(at_risk, events, at_risk)
    except ValueError:
        allowed = "one event a cell and one count a border, finite and not negative"
        raise MalformedReply(f"events, at-risk-count: must be {allowed}") from None
    slack = rows * ROUNDING
    if events.size == 0 or abs(at_risk[0] - rows) > slack or events.sum() > n_events + slack:
        raise MalformedReply("events, at-risk-count: must be those of count rows and n-events")
    if (counts.events > counts.leaving_count + slack).any():
        raise MalformedReply("events: must be at most the rows that leave in their cell")
    return counts
