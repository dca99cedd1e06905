"""What travels before training: what a site's introduction tells of its rows, and their sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast, get_args

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from tasks.site.messages import Facts, FactValue
from tasks.site.reply_fields import MalformedReply, count, number, numbers, reals, text, texts
from tasks.site.requests import config_record
from tasks.survival.categories import LONGEST_CATEGORY
from tasks.survival.encoding import FeatureEncoding
from tasks.survival.messages import ROUNDING, from_array_record, read_horizon, to_array_record
from tasks.survival.risk_sets import LONGEST_TIME, SHORTEST_TIME, RiskSetSums, is_round_number
from tasks.survival.site_columns import ColumnContent, ColumnFacts
from tasks.survival.standardization import FeatureMoments

STATISTICS = "query.survival_statistics"

_LONGEST_HORIZON = 10 * LONGEST_TIME
_LONGEST_JSON = 10**7  # Flower's own bound of a message is far above


@dataclass(frozen=True, eq=False)
class SurvivalFacts:
    """What a site's introduction tells of its rows: enough to choose what all sites have in common.

    Attributes
    ----------
    horizon_bound : float
        Round number that fewer than privacy-level of the training times exceed.
    columns : tuple of ColumnFacts
        The feature columns, in the order of the site's matrix.
    """

    horizon_bound: float
    columns: tuple[ColumnFacts, ...]

    reveals: ClassVar[str] = (
        "a round number that fewer than privacy-level follow-up times of the training rows exceed; "
        "names of the feature columns, whether each holds numbers or text, and whether a value is "
        "missing; of text, the categories that at least privacy-level training rows have; where "
        "values may be missing (survival.missing), count, mean and sum of squares of each column "
        "of numbers over training rows that have it, a few of these left out so that the number "
        "of those without is a multiple of privacy-level"
    )

    def to_facts(self) -> Facts:
        """Return the facts for the introduction."""
        pairs = [(column.name, name) for column in self.columns for name in column.categories]
        told = [(c.name, c.moments) for c in self.columns if c.moments is not None]
        facts: dict[str, FactValue] = {
            "horizon-bound": self.horizon_bound,
            "columns": [column.name for column in self.columns],
            "column-contents": [str(column.content) for column in self.columns],
            "columns-missing": [column.has_missing for column in self.columns],
        }
        if pairs:
            facts["category-columns"] = [column for column, _ in pairs]
            facts["category-names"] = [name for _, name in pairs]
        if told:
            facts["observed-columns"] = [name for name, _ in told]
            facts["observed-counts"] = [moments.count for _, moments in told]
            facts["observed-means"] = [float(moments.mean[0]) for _, moments in told]
            facts["observed-m2"] = [float(moments.m2[0]) for _, moments in told]
        return facts

    @classmethod
    def from_facts(cls, facts: Facts) -> SurvivalFacts:
        """Read the facts; raises MalformedReply if no site would tell them."""
        bound = number(facts, "horizon-bound")
        if not SHORTEST_TIME <= bound <= _LONGEST_HORIZON or not is_round_number(bound):
            raise MalformedReply("horizon-bound: must be a round number, as of a site's times")
        names = texts(facts, "columns")
        contents, missing = texts(facts, "column-contents"), facts.get("columns-missing")
        if not len(set(names)) == len(names) > 0:
            raise MalformedReply("columns: must be different names")
        if len(contents) != len(names) or not set(contents) <= set(get_args(ColumnContent)):
            raise MalformedReply("column-contents: must be a known word for each column")
        if not isinstance(missing, list) or [type(one) for one in missing] != [bool] * len(names):
            raise MalformedReply("columns-missing: must be true or false for each column")
        categories, moments = _read_categories(facts, names), _read_moments(facts, names)
        columns = tuple(
            ColumnFacts(
                name,
                cast(ColumnContent, content),
                bool(lacks),
                categories.get(name, ()),
                moments.get(name),
            )
            for name, content, lacks in zip(names, contents, missing, strict=True)
        )
        return cls(bound, columns)


def _read_categories(facts: Facts, names: list[str]) -> dict[str, tuple[str, ...]]:
    if "category-columns" not in facts and "category-names" not in facts:
        return {}
    columns = texts(facts, "category-columns")
    categories = texts(facts, "category-names", longest=LONGEST_CATEGORY)
    pairs = list(zip(columns, categories, strict=False))
    sound = len(columns) == len(categories) and set(columns) <= set(names)
    if not sound or len(set(pairs)) < len(pairs) or not all(c.isprintable() for c in categories):
        raise MalformedReply("category-names: must be different printable names of columns")
    found: dict[str, list[str]] = {}
    for column, category in pairs:
        found.setdefault(column, []).append(category)
    return {column: tuple(listed) for column, listed in found.items()}


def _read_moments(facts: Facts, names: list[str]) -> dict[str, FeatureMoments]:
    if "observed-columns" not in facts:
        return {}
    columns = texts(facts, "observed-columns")
    values = [facts.get(f"observed-{key}") for key in ("counts", "means", "m2")]
    found: dict[str, FeatureMoments] = {}
    try:
        counts, means, squares = (cast(list[float], value) for value in values)
        for name, rows, mean, m2 in zip(columns, counts, means, squares, strict=True):
            one = {"count": rows, "mean": mean, "m2": m2}
            found[name] = FeatureMoments(
                count(one, "count"),
                np.array([number(one, "mean")]),
                np.array([number(one, "m2")]),
            )
    except (TypeError, ValueError):
        raise MalformedReply("observed-means: must be moments of each column") from None
    if len(found) < len(columns) or not set(columns) <= set(names):
        raise MalformedReply("observed-columns: must be different columns")
    return found


@dataclass(frozen=True, eq=False)
class StatisticsRequest:
    """Server to sites: describe your rows by sums.

    Attributes
    ----------
    grid_horizon : float
        End of the time grid.
    encoding : FeatureEncoding
        How columns become inputs, without the medians that are to be found.
    median_ranges : mapping of str to (float, float)
        Columns with missing values, and the ends of their histograms.
    """

    grid_horizon: float
    encoding: FeatureEncoding
    median_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    reveals: ClassVar[str] = (
        "the end of the time grid, which is survival.horizon or the largest of the sites' round "
        "numbers; categories of text that at least privacy-level rows of some site have; pooled "
        "mean and standard deviation of columns with missing values"
    )

    @property
    def summed(self) -> list[int]:
        """Places of the columns that moments are told of: of numbers, and none is missing."""
        return [
            place
            for place, column in enumerate(self.encoding.columns)
            if column.kind != "one-hot" and column.name not in self.median_ranges
        ]

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        ranges = list(self.median_ranges.values())
        request = {
            "grid-horizon": self.grid_horizon,
            "encoding": self.encoding.to_json(),
            "median-columns": list(self.median_ranges),
            "median-low": [low for low, _ in ranges],
            "median-high": [high for _, high in ranges],
        }
        return RecordDict({"request": ConfigRecord(cast(Any, request))})

    @classmethod
    def from_record(cls, content: RecordDict) -> StatisticsRequest:
        """Read the message's content; raises MalformedReply if it is malformed."""
        record = config_record(content, "request")
        try:
            encoding = FeatureEncoding.from_json(text(record, "encoding", longest=_LONGEST_JSON))
        except MalformedReply:
            raise
        except (ValueError, TypeError, AttributeError):
            raise MalformedReply("encoding: must be an encoding of features") from None
        names = texts(record, "median-columns")
        lows, highs = numbers(record, "median-low"), numbers(record, "median-high")
        alike = len(names) == len(set(names)) == lows.size == highs.size
        if not alike or (lows > highs).any():
            raise MalformedReply("median-low, median-high: must be ends of a range for each column")
        ranges = zip(lows.tolist(), highs.tolist(), strict=True)
        return cls(read_horizon(record), encoding, dict(zip(names, ranges, strict=True)))


@dataclass(frozen=True, eq=False)
class StatisticsReply:
    """A site's rows in sums.

    Attributes
    ----------
    moments : FeatureMoments
        Of the training rows; columns of ``StatisticsRequest.summed``.
    histograms : ndarray, shape (columns, MEDIAN_BINS + 2)
        Of the columns with missing values, in the order asked for, merged.
    n_events : int
        Training rows with an event.
    n_test : int
        Rows kept for evaluation.
    counts : RiskSetSums
        Events and rows at risk by cell of the time grid, coarsened; every weight is a count.
    data_set : str
        Name of the bundled data set that the rows are of; ``""``: the site's own.
    """

    moments: FeatureMoments
    histograms: NDArray[np.float64]
    n_events: int
    n_test: int
    counts: RiskSetSums
    data_set: str

    reveals: ClassVar[str] = (
        "count, mean and sum of squares of each column of numbers without missing values over the "
        "site's training rows; of those with some, histograms over the same rows as in the "
        "introduction, cells merged until privacy-level values are in each; number of events and "
        "of evaluation rows; by cell of the time grid: events and training rows at risk, cells "
        "merged until privacy-level rows leave in each; name of the bundled data set, if they are "
        "of one"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        counts = {"events": self.counts.events, "at-risk-count": self.counts.at_risk_count}
        moments = {"mean": self.moments.mean, "m2": self.moments.m2}
        return RecordDict(
            {
                "statistics": ConfigRecord(
                    {
                        "count": self.moments.count,
                        "n-events": self.n_events,
                        "n-test": self.n_test,
                        "data-set": self.data_set,
                    }
                ),
                "moments": to_array_record({**moments, "histograms": self.histograms}),
                "counts": to_array_record(counts),
            }
        )

    @classmethod
    def from_record(cls, content: RecordDict) -> StatisticsReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        record = content.config_records["statistics"]
        arrays = from_array_record(content.array_records["moments"])
        rows = count(record, "count", least=1)
        moments = FeatureMoments(rows, reals(arrays, "mean"), reals(arrays, "m2"))
        histograms = reals(arrays, "histograms", ndim=2)
        if not (np.isfinite(histograms).all() and (histograms >= 0).all()):
            raise MalformedReply("histograms: must be finite and not negative")
        n_events, n_test = count(record, "n-events"), count(record, "n-test")
        if n_events > rows:
            raise MalformedReply("n-events: must be at most count")
        counts = _read_counts(content, rows=rows, n_events=n_events)
        return cls(moments, histograms, n_events, n_test, counts, text(record, "data-set"))


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
    # Rows beyond the horizon may share a group, and take a part of its rows but not of its events:
    # of m cells' events each has 1/m, of their rows at least 1/(m + 1).
    if (counts.events > 2 * counts.leaving_count + slack).any():
        raise MalformedReply("events: must not exceed the rows that leave")
    return counts
