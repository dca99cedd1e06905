"""Counts, placement values, AUC and DeLong: exact, federated as pooled, against other software."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from sklearn.metrics import roc_auc_score, roc_curve

from tasks.roc_glm.counts import (
    ClassCounts,
    DistinctCounts,
    count_in_cells,
    equal_cuts,
    pool_distinct,
    quantile_cuts,
)
from tasks.roc_glm.estimates import auc_interval, auc_test, delong_variance
from tasks.roc_glm.moments import Moments, pool_moments
from tasks.roc_glm.survivor import (
    CellSurvivor,
    LinearSurvivor,
    ScoreSurvivor,
    level_numerators,
    threshold_counts,
    threshold_limits,
)
from tasks.site.not_estimable import NotEstimable
from tests.roc_glm_reference import CASES, federations, rows_of, sites_of


def long_delong(scores: Any, labels: Any) -> tuple[float, float]:
    """AUC and DeLong variance from all pairs, the textbook way."""
    positive, negative = scores[labels == 1], scores[labels == 0]
    wins = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    v10, v01 = wins.mean(axis=1), wins.mean(axis=0)
    return wins.mean(), v10.var(ddof=1) / len(v10) + v01.var(ddof=1) / len(v01)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_reference_auc_variance_and_interval(case: dict[str, Any]) -> None:
    sites = sites_of(case["scores"], case["labels"], case["site"])
    pooled = pool_distinct([DistinctCounts.of(site) for site in sites]).counts
    assert pooled.auc() == Fraction(case["auc_fraction"])
    assert float(pooled.auc()) == case["auc"]
    of_negatives, of_positives = pooled.placement_moments()
    variance = delong_variance(of_negatives=of_negatives, of_positives=of_positives)
    assert variance == pytest.approx(case["delong_variance"], rel=0, abs=1e-12)
    if case["interval"] is None:
        with pytest.raises(NotEstimable, match="auc-0-or-1"):
            auc_interval(float(pooled.auc()), variance)
    else:
        interval = auc_interval(float(pooled.auc()), variance)
        assert [interval.lower, interval.upper] == pytest.approx(case["interval"], rel=0, abs=1e-12)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
@pytest.mark.parametrize("ties", ["mid", "strict", "weak"])
@pytest.mark.parametrize("num_thresholds", [28, 9])
def test_reference_w1(case: dict[str, Any], ties: Any, num_thresholds: int) -> None:
    expected = case["roc_glm"][f"{ties}-{num_thresholds}"]["w1"]
    sites = sites_of(case["scores"], case["labels"], case["site"])
    pooled = pool_distinct([DistinctCounts.of(site) for site in sites])
    assert pooled.counts.threshold_counts(num_thresholds, ties).tolist() == expected
    # The same as sums over sites of what each counts by itself from the pooled S0.
    s0 = ScoreSurvivor(pooled.levels, pooled.counts.negative)
    w1 = sum(
        threshold_counts(
            s0.numerators(site.positive, ties), total=s0.total, num_thresholds=num_thresholds
        )
        for site in sites
    )
    assert w1.tolist() == expected


@settings(deadline=None, max_examples=150)
@given(federations())
def test_exact_release_is_pooled(federation: Any) -> None:
    scores, labels, site = federation
    sites = sites_of(scores, labels, site)
    pooled = pool_distinct([DistinctCounts.of(rows) for rows in sites])
    auc, variance = long_delong(scores, labels)
    assert float(pooled.counts.auc()) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert float(pooled.counts.auc()) == pytest.approx(auc, abs=1e-12)
    of_negatives, of_positives = pooled.counts.placement_moments()
    ours = delong_variance(of_negatives=of_negatives, of_positives=of_positives)
    assert ours == pytest.approx(variance, abs=1e-12)
    # What the sites compute themselves from the pooled survivor functions, joined by Chan's update.
    s0 = ScoreSurvivor(pooled.levels, pooled.counts.negative)
    s1 = ScoreSurvivor(pooled.levels, pooled.counts.positive)
    of_sites = [
        (
            Moments.of(s1.numerators(rows.negative) / (2 * s1.total)),
            Moments.of(s0.numerators(rows.positive) / (2 * s0.total)),
        )
        for rows in sites
    ]
    from_sites = delong_variance(
        of_negatives=pool_moments(m[0] for m in of_sites),
        of_positives=pool_moments(m[1] for m in of_sites),
    )
    assert from_sites == pytest.approx(variance, abs=1e-12)
    assert 1 - pool_moments(m[1] for m in of_sites).mean == pytest.approx(auc, abs=1e-12)


@settings(deadline=None, max_examples=150)
@given(federations())
def test_binned_release_is_pooled_after_binning(federation: Any) -> None:
    scores, labels, site = federation
    cuts = equal_cuts(7)
    sites = sites_of(scores, labels, site)
    pooled = count_in_cells(sites[0], cuts)
    for rows in sites[1:]:
        pooled = pooled + count_in_cells(rows, cuts)
    binned = np.searchsorted(cuts, scores, side="left").astype(float)
    auc, variance = long_delong(binned, labels)
    assert float(pooled.auc()) == pytest.approx(auc, abs=1e-12)
    of_negatives, of_positives = pooled.placement_moments()
    ours = delong_variance(of_negatives=of_negatives, of_positives=of_positives)
    assert ours == pytest.approx(variance, abs=1e-12)
    reference = DistinctCounts.of(rows_of(binned, labels)).counts
    assert np.array_equal(pooled.threshold_counts(28), reference.threshold_counts(28))
    s0 = CellSurvivor(cuts, pooled.negative)
    w1 = sum(
        threshold_counts(s0.numerators(rows.positive), total=s0.total, num_thresholds=28)
        for rows in sites
    )
    assert np.array_equal(w1, reference.threshold_counts(28))


@settings(deadline=None, max_examples=100)
@given(federations())
def test_threshold_comparison_is_exact(federation: Any) -> None:
    scores, labels, _ = federation
    counts = DistinctCounts.of(rows_of(scores, labels)).counts
    for ties in ("mid", "strict", "weak"):
        values = [
            Fraction(int(k), 2 * counts.num_negative)
            for k, number in zip(
                level_numerators(counts.negative, ties), counts.positive, strict=True
            )
            for _ in range(number)
        ]
        expected = [sum(value <= Fraction(j, 10) for value in values) for j in range(1, 10)]
        assert counts.threshold_counts(9, ties).tolist() == expected


def test_floating_point_would_miss_a_tie() -> None:
    assert not (1 - 7 / 10) <= 3 / 10
    assert threshold_limits(9, 10)[2] == 6  # 6 / 20 <= 3 / 10
    negative = np.arange(10) / 10
    w1 = threshold_counts(
        ScoreSurvivor.of(negative).numerators(np.array([0.65]), "strict"),
        total=10,
        num_thresholds=9,
    )
    assert w1.tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 1]


def test_only_mid_ties_are_unbiased_on_tied_scores() -> None:
    case = next(case for case in CASES if case["name"] == "ties_1decimal")
    auc = {ties: case["roc_glm"][f"{ties}-28"]["auc"] for ties in ("mid", "strict", "weak")}
    assert abs(auc["mid"] - case["auc"]) < 0.005
    assert auc["strict"] - case["auc"] > 0.03
    assert case["auc"] - auc["weak"] > 0.03


def test_near_ties_are_not_merged() -> None:
    low = 0.5
    high = np.nextafter(low, 1.0)
    assert high - low < 1.2e-16
    assert DistinctCounts.of(rows_of([low, high], [0, 1])).counts.auc() == 1


def test_auc_below_half_stays_there() -> None:
    counts = DistinctCounts.of(rows_of([0.1, 0.2, 0.8, 0.9], [1, 1, 0, 0])).counts
    assert counts.auc() == 0


def test_constant_scores() -> None:
    counts = DistinctCounts.of(rows_of([0.5] * 6, [0, 0, 0, 1, 1, 1])).counts
    assert counts.auc() == Fraction(1, 2)
    of_negatives, of_positives = counts.placement_moments()
    variance = delong_variance(of_negatives=of_negatives, of_positives=of_positives)
    assert variance == 0
    assert auc_interval(0.5, variance).degenerate
    with pytest.raises(NotEstimable, match="zero-variance"):
        auc_test(0.5, variance)


def test_pairs_beyond_32_and_64_bits() -> None:
    for number in (100_000, 3 * 10**9):  # n0 n1 > 2^31, and 2 n0 n1 > 2^63
        half = number // 2
        counts = ClassCounts(np.array([half, half, 0]), np.array([0, half, half]))
        assert counts.num_negative * counts.num_positive > 2**31
        assert counts.auc() == Fraction(7, 8)
        assert counts.threshold_counts(3).tolist() == [number, number, number]


def test_one_class_is_not_estimable() -> None:
    counts = count_in_cells(rows_of([0.1, 0.9], [1, 1]), equal_cuts(4))
    with pytest.raises(NotEstimable, match="one-class: no negative row"):
        counts.auc()
    with pytest.raises(NotEstimable, match="one-class"):
        counts.threshold_counts(28)


@pytest.mark.parametrize("positives", [0, 1])
def test_empty_class_at_a_site_adds_nothing(positives: int) -> None:
    labels = np.array([0, 0, 0] + [1] * positives)
    rows = rows_of(np.array([0.2, 0.4, 0.4, 0.3])[: len(labels)], labels)
    counts = DistinctCounts.of(rows).counts
    assert counts.num_positive == positives
    assert counts.num_negative == 3
    assert len(pool_distinct([DistinctCounts.of(rows_of([], []))]).levels) == 0


def test_roc_points_are_those_of_scikit_learn() -> None:
    case = CASES[1]
    counts = DistinctCounts.of(rows_of(case["scores"], case["labels"])).counts
    false, true = counts.roc_points()
    expected_false, expected_true, _ = roc_curve(
        case["labels"], case["scores"], drop_intermediate=False
    )
    assert false == pytest.approx(expected_false)
    assert true == pytest.approx(expected_true)
    assert np.trapezoid(true, false) == pytest.approx(float(counts.auc()), abs=1e-12)


def test_cells_are_open_below_and_closed_above() -> None:
    counts = count_in_cells(rows_of([0.0, 0.1, 0.2, 0.3, 1.0], [0] * 5), equal_cuts(10))
    assert counts.negative.tolist() == [2, 1, 1, 0, 0, 0, 0, 0, 0, 1]


def test_quantile_cuts() -> None:
    assert quantile_cuts(np.array([0.3, 0.1, 0.1])).tolist() == [0.1, 0.3]
    with pytest.raises(ValueError, match="1 of them not finite"):
        quantile_cuts(np.array([0.3, np.nan]))


def test_quantile_cuts_help_at_low_prevalence() -> None:
    generator = np.random.default_rng(3)
    negative = generator.beta(0.4, 40, 20_000)
    positive = generator.beta(1.2, 40, 600)
    rows = rows_of(np.concatenate([negative, positive]), np.repeat([0, 1], [20_000, 600]))
    exact = float(DistinctCounts.of(rows).counts.auc())
    training = generator.beta(0.4, 40, 5_000)
    by_quantile = quantile_cuts(np.quantile(training, np.arange(1, 50) / 50))
    error = abs(float(count_in_cells(rows, by_quantile).auc()) - exact)
    assert error < 0.001 < 0.01 < abs(float(count_in_cells(rows, equal_cuts(50)).auc()) - exact)


def test_linear_survivor() -> None:
    survivor = LinearSurvivor(np.array([0.5, 0.3, 0.2]))
    assert survivor.values(np.array([-1.0, 0.0, 1 / 6, 1 / 3, 2 / 3, 1.0, 2.0])) == pytest.approx(
        [1.0, 1.0, 0.75, 0.5, 0.2, 0.0, 0.0]
    )


@settings(deadline=None, max_examples=50)
@given(federations())
def test_moments_by_update(federation: Any) -> None:
    values, _, site = federation
    moments = pool_moments(Moments.of(values[site == k]) for k in np.unique(site))
    assert moments.count == len(values)
    assert moments.mean == pytest.approx(values.mean(), abs=1e-12)
    assert moments.variance == pytest.approx(values.var(ddof=1), abs=1e-12)
    with pytest.raises(ValueError, match="2 or more"):
        _ = Moments.of(values[:1]).variance
