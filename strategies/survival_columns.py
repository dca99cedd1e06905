"""Columns of a survival run: what those of all sites become together, before a sum is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from strategies.membership import Refused
from tasks.site.foreign_text import LONGEST_WORD, printable
from tasks.site.name_lists import some_names
from tasks.survival.categories import MOST_CATEGORIES, DeclaredCategories
from tasks.survival.encoding import ColumnEncoding, FeatureEncoding
from tasks.survival.medians import median, median_range
from tasks.survival.set_up_messages import StatisticsReply, SurvivalFacts
from tasks.survival.standardization import FeatureMoments, Standardizer

_MOST_NAMED = 8

Named = Mapping[str, SurvivalFacts]


@dataclass(frozen=True, eq=False)
class CommonColumns:
    """How the columns of all sites become inputs, and what is still to be found.

    Attributes
    ----------
    encoding : FeatureEncoding
        Without medians.
    median_ranges : mapping of str to (float, float)
        Columns of numbers with missing values at any site, and the ends of their histograms.
    """

    encoding: FeatureEncoding
    median_ranges: Mapping[str, tuple[float, float]]


def common_columns(
    facts: Named, declared: Mapping[str, DeclaredCategories], *, allow_missing: bool
) -> CommonColumns:
    """Agree on columns, their kinds and categories, from what introductions told.

    Parameters
    ----------
    facts : mapping of str to SurvivalFacts
        By site; at least one.
    declared : mapping of str to DeclaredCategories
        By column.
    allow_missing : bool
        Whether features may be missing.

    Raises
    ------
    Refused
        If sites have different columns or kinds of columns, or a column has nothing to learn
        from at any of them. All faults at once.
    """
    _refuse_other_columns(facts)
    names = [column.name for column in next(iter(facts.values())).columns]
    columns, ranges, faults = [], {}, []
    for place, name in enumerate(names):
        try:
            column = _common_column(place, name, facts, declared.get(name))
        except Refused as refused:
            faults += refused.faults
            continue
        columns.append(column)
        if column.kind != "one-hot" and allow_missing and _any_missing(facts, place):
            moments = observed_moments(facts, name)
            if moments.count:
                ranges[name] = median_range(moments)
            else:
                faults.append(f"feature column {name!r}: no site has enough values of it")
    if faults:
        raise Refused(faults)
    try:
        return CommonColumns(FeatureEncoding(tuple(columns)), ranges)
    except ValueError as error:
        raise Refused([str(error)]) from None


def observed_moments(facts: Named, column: str) -> FeatureMoments:
    """Pooled moments of the observed values of a column; of no row where nobody told."""
    told = [
        entry.moments
        for site in facts.values()
        for entry in site.columns
        if entry.name == column and entry.moments is not None
    ]
    return FeatureMoments.merge([FeatureMoments(0, np.zeros(1), np.zeros(1)), *told])


def pooled_standardizer(
    common: CommonColumns, facts: Named, replies: Sequence[StatisticsReply]
) -> Standardizer:
    """Fill in the medians and standardize all columns of numbers.

    Inputs of categories stay 0 and 1: no sum of them is asked for, which would tell how many rows
    of a site have each. Columns with missing values are standardized by those observed.

    Raises
    ------
    Refused
        If no site can tell of a column with missing values any more.
    """
    complete = FeatureMoments.merge(reply.moments for reply in replies).standardizer()
    if common.encoding.is_plain and not common.median_ranges:
        return complete
    histograms = sum(reply.histograms for reply in replies)
    filled = dict(zip(common.median_ranges, np.asarray(histograms), strict=True))
    columns: list[ColumnEncoding] = []
    scales: list[Standardizer] = []
    place = 0
    for column in common.encoding.columns:
        inputs = len(column.input_names)
        if column.kind == "one-hot":
            scales.append(Standardizer(np.zeros(inputs), np.ones(inputs)))
        elif column.name in filled:
            moments = observed_moments(facts, column.name)
            if not moments.count:
                raise Refused([f"feature column {column.name!r}: no site has enough values of it"])
            column = _with_median(column, filled[column.name], common.median_ranges[column.name])
            scales.append(moments.standardizer())
        else:
            one = slice(place, place + 1)
            scales.append(Standardizer(complete.mean[one], complete.scale[one]))
            place += 1
        columns.append(column)
    return Standardizer(
        np.concatenate([scale.mean for scale in scales]),
        np.concatenate([scale.scale for scale in scales]),
        FeatureEncoding(tuple(columns)),
    )


def _with_median(
    column: ColumnEncoding, counts: NDArray[np.float64], ends: tuple[float, float]
) -> ColumnEncoding:
    low, high = ends
    value = median(counts, low=low, high=high)
    if column.kind == "ordinal":  # a number that a category has
        value = float(min(max(round(value), 1), len(column.categories)))
    return replace(column, fill=value)


def _any_missing(facts: Named, place: int) -> bool:
    return any(site.columns[place].has_missing for site in facts.values())


def _common_column(
    place: int, name: str, facts: Named, declared: DeclaredCategories | None
) -> ColumnEncoding:
    missing = _any_missing(facts, place)
    if declared is not None:
        if declared.ordered:
            return ColumnEncoding(name, "ordinal", declared.names)
        return ColumnEncoding(name, "one-hot", declared.names, indicator=missing)
    told: dict[str, list[str]] = {}
    for site, fact in facts.items():
        told.setdefault(fact.columns[place].content, []).append(site)
    told.pop("nothing", None)
    label = f"feature column {printable(name, longest=LONGEST_WORD)!r}"
    if not told:
        raise Refused([f"{label}: no site has a value of it"])
    if len(told) > 1:
        kinds = "; ".join(f"{content} at {some_names(who)}" for content, who in told.items())
        raise Refused([f"{label}: {kinds}; it must be one of them everywhere"])
    if "text" not in told:
        return ColumnEncoding(name)
    union = sorted({c for fact in facts.values() for c in fact.columns[place].categories})
    if not 0 < len(union) <= MOST_CATEGORIES:
        told_by = {site: len(set(f.columns[place].categories)) for site, f in facts.items()}
        most = sorted(told_by, key=lambda site: -told_by[site])[:_MOST_NAMED]
        many = (
            f"{len(union)} categories; at most {MOST_CATEGORIES} are allowed (most of them: "
            + ", ".join(f"{told_by[site]} at {site}" for site in most)
            + ")"
        )
        none = "text of which no value is held by survival.privacy-level rows of any site"
        raise Refused(
            [
                f"{label}: {many if union else none}; leave it out of survival.features, or "
                "declare its categories in survival.categories"
            ]
        )
    return ColumnEncoding(name, "one-hot", tuple(union), closed=False, indicator=missing)


def _refuse_other_columns(facts: Named) -> None:
    first_name, first = next((name, _names(fact)) for name, fact in facts.items())
    faults = []
    for name, fact in facts.items():
        if (own := _names(fact)) != first:
            missing, further = set(first) - set(own), set(own) - set(first)
            differ = f"missing: {_listed(missing)}; further: {_listed(further)}"
            faults.append(f"{name}: its feature columns are not those of {first_name} ({differ})")
    if faults:
        raise Refused(faults)


def _names(facts: SurvivalFacts) -> list[str]:
    return [column.name for column in facts.columns]


def _listed(names: set[str]) -> str:
    shown = [printable(name, longest=LONGEST_WORD) for name in sorted(names)[:_MOST_NAMED]]
    more = len(names) - len(shown)
    return ", ".join(shown + ([f"and {more} more"] if more else [])) or "none"
