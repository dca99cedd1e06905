"""Feature columns of a site: what they hold, and what of it may be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tasks.site.faults import SiteFault
from tasks.survival.categories import LONGEST_CATEGORY
from tasks.survival.config import SurvivalConfig
from tasks.survival.data import SurvivalData
from tasks.survival.encoding import ColumnEncoding, ColumnKind, FeatureEncoding
from tasks.survival.medians import FloatArray, kept_rows
from tasks.survival.standardization import FeatureMoments

_KEPT = 4  # a stream of random numbers of its own, beside those of the site's other uses

ColumnContent = Literal["numbers", "text", "declared", "nothing"]


@dataclass(frozen=True, eq=False)
class ColumnFacts:
    """What a site's introduction tells of one feature column.

    Attributes
    ----------
    name : str
    content : {"numbers", "text", "declared", "nothing"}
        What its values are: numbers, text without declared categories, declared categories; or
        all are missing.
    has_missing : bool
        Whether any row, of the training or the evaluation rows, lacks a value.
    categories : tuple of str
        Of a column of text: those that at least privacy-level training rows have, sorted.
    moments : FeatureMoments or None
        Of the observed values, of numbers and ordered categories where values may be missing; of
        no row where fewer than privacy-level can be told of.
    """

    name: str
    content: ColumnContent
    has_missing: bool = False
    categories: tuple[str, ...] = ()
    moments: FeatureMoments | None = None


@dataclass(frozen=True, eq=False)
class SiteColumns:
    """The feature columns of a site.

    Attributes
    ----------
    site : str
        Its name.
    training, evaluation : SurvivalData
        Its rows.
    config : SurvivalConfig
    seed : int
        Of the rows left out of the sums of columns with missing values.
    """

    site: str
    training: SurvivalData
    evaluation: SurvivalData
    config: SurvivalConfig
    seed: int

    def refuse_others(self, encoding: FeatureEncoding | None) -> None:
        """Refuse an encoding for other columns, or for columns of another kind, than the site's.

        Codes of categories taken for numbers, by a server that deviates, would leave in sums.

        Raises
        ------
        SiteFault
            ``other-columns``.
        """
        names = self.training.feature_names
        asked = encoding or FeatureEncoding(tuple(map(ColumnEncoding, names)))
        same = asked.column_names == names and all(
            column.kind == self._kind(column.name) or not self._has_values(column.name)
            for column in asked.columns
        )
        if not same:
            raise SiteFault(
                "other-columns", "the server takes the columns for others than they are"
            )

    def _kind(self, column: str) -> ColumnKind:
        declared = self.config.declared_categories.get(column)
        if declared is not None:
            return "ordinal" if declared.ordered else "one-hot"
        return "one-hot" if column in self.training.texts else "numeric"

    def _has_values(self, column: str) -> bool:
        place = self.training.feature_names.index(column)
        parts = (self.training, self.evaluation)
        return not all(np.isnan(rows.features[:, place]).all() for rows in parts)

    def told_values(self, column: str) -> FloatArray:
        """Observed numbers of a column over training rows that may be summed: see `kept_rows`."""
        place = self.training.feature_names.index(column)
        values = self.training.features[:, place]
        kept = kept_rows(
            values,
            privacy_level=self.config.privacy_level,
            rng=np.random.default_rng([_KEPT, self.seed, place, *self.site.encode()]),
        )
        return values[kept]

    def facts(self, column: str) -> ColumnFacts:
        """Return what the introduction tells of a feature column."""
        place = self.training.feature_names.index(column)
        declared = self.config.declared_categories.get(column)
        parts = [rows.features[:, place] for rows in (self.training, self.evaluation)]
        values = np.concatenate(parts)
        missing = np.isnan(values)
        content: ColumnContent = "numbers"
        if declared is not None:
            content = "declared"
        elif missing.all():
            content = "nothing"
        elif column in self.training.texts:
            content = "text"
        moments = None
        is_number = content in ("numbers", "nothing") or (declared and declared.ordered)
        if self.config.missing == "median" and is_number:
            moments = FeatureMoments.of(self.told_values(column)[:, None])
        categories = self._told_categories(column, parts[0]) if content == "text" else ()
        return ColumnFacts(column, content, bool(missing.any()), categories, moments)

    def _told_categories(self, column: str, codes: FloatArray) -> tuple[str, ...]:
        found, rows = np.unique(codes[~np.isnan(codes)], return_counts=True)
        names = self.training.texts[column]
        told = [names[c] for c in found[rows >= self.config.privacy_level].tolist()]
        # One that is too long to be a category counts as a rare one.
        return tuple(sorted(n for n in told if n.isprintable() and len(n) <= LONGEST_CATEGORY))
