"""Brier score, calibration curve, slope and intercept, confusion, net benefit, noisy statistics."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from scipy.special import expit, logit
from sklearn.metrics import brier_score_loss, confusion_matrix

from tasks.glm.families import pool_sums
from tasks.glm.scoring import FisherIteration
from tasks.roc_glm.calibration import bin_edges, calibration_sums
from tasks.roc_glm.calibration_slope import (
    CalibrationFit,
    cell_scores,
    grouped_calibration,
    intercept_sums,
    interior_rows,
    slope_sums,
)
from tasks.roc_glm.classification import confusion_counts, rates
from tasks.roc_glm.counts import DistinctCounts, count_in_cells, equal_cuts, pool_distinct
from tasks.roc_glm.noisy_statistics import (
    calibration_of,
    confusion_of,
    release_statistics,
    statistics_noise,
)
from tasks.site.not_estimable import NotEstimable
from tests.roc_glm_reference import CASES, federations, rows_of, sites_of


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_reference_brier(case: dict[str, Any]) -> None:
    sites = sites_of(case["scores"], case["labels"], case["site"])
    pooled = reduce(add, [calibration_sums(site, privacy_level=5) for site in sites])
    assert pooled.brier == pytest.approx(case["brier"], rel=0, abs=1e-12)


def test_reference_calibration_with_suppressed_bins() -> None:
    case = next(case for case in CASES if "calibration_10bins_q5" in case)
    sites = sites_of(case["scores"], case["labels"], case["site"])
    pooled = reduce(add, [calibration_sums(site, privacy_level=5) for site in sites])
    reference = case["calibration_10bins_q5"]
    assert pooled.suppressed == sum(expected["n_suppressed"] for expected in reference)
    for ours, expected in zip(pooled.curve(), reference, strict=True):
        assert ours.rows == expected["n_shared"]
        if expected["mean_truth"] is None:
            assert ours.observed is None
            assert ours.mean_score is None
        else:
            assert ours.observed == pytest.approx(expected["mean_truth"], rel=0, abs=1e-12)
            assert ours.mean_score == pytest.approx(expected["mean_score"], rel=0, abs=1e-12)


@settings(deadline=None, max_examples=100)
@given(federations())
def test_federated_calibration_is_pooled(federation: Any) -> None:
    scores, labels, site = federation
    sites = sites_of(scores, labels, site)
    pooled = reduce(add, [calibration_sums(rows, privacy_level=1) for rows in sites])
    assert pooled.brier == pytest.approx(brier_score_loss(labels, scores), abs=1e-12)
    if scores.sum() > 0:
        assert pooled.observed_to_expected == pytest.approx(labels.sum() / scores.sum(), rel=1e-12)
    assert pooled.suppressed == 0
    edges = np.array([j / 10 for j in range(11)])
    for b, point in enumerate(pooled.curve()):
        inside = (scores > edges[b]) & (scores <= edges[b + 1])
        if b == 0:
            inside |= scores == 0
        assert point.rows == inside.sum()
        if inside.any():
            assert point.observed == pytest.approx(labels[inside].mean(), abs=1e-12)
            assert point.mean_score == pytest.approx(scores[inside].mean(), abs=1e-12)


def test_typed_scores_fall_into_the_bin_that_they_close() -> None:
    scores = np.array([float(f"0.{j}") for j in range(10)] + [1.0])
    sums = calibration_sums(rows_of(scores, np.zeros(11)), privacy_level=1)
    assert sums.bin_rows.tolist() == [2] + [1] * 9
    assert bin_edges()[3] < 3 * 0.1  # a running product would not do


def federated_slope(sites: list[Any]) -> CalibrationFit:
    fits = []
    for sums in (slope_sums, intercept_sums):
        iteration = FisherIteration("logit", criterion="step", tolerance=1e-11, max_rounds=50)
        while not iteration.finished:
            iteration.advance(pool_sums(sums(rows, iteration.coefficients) for rows in sites))
        fits.append(iteration.fit())
    return CalibrationFit.of(*fits)


def test_slope_and_intercept_are_those_of_statsmodels() -> None:
    generator = np.random.default_rng(5)
    scores = expit(generator.normal(-0.5, 1.2, 800))
    labels = (generator.random(800) < expit(0.4 + 0.6 * logit(scores))).astype(int)
    sites = sites_of(scores, labels, generator.integers(0, 4, 800))
    ours = federated_slope([interior_rows(rows)[0] for rows in sites])
    x = logit(scores)
    both = sm.GLM(labels, sm.add_constant(x), family=sm.families.Binomial()).fit(tol=1e-15)
    alone = sm.GLM(labels, np.ones((800, 1)), family=sm.families.Binomial(), offset=x).fit(
        tol=1e-15
    )
    assert [ours.intercept, ours.slope] == pytest.approx(both.params, rel=1e-8)
    assert [ours.intercept_error, ours.slope_error] == pytest.approx(both.bse, rel=1e-8)
    assert ours.intercept_in_the_large == pytest.approx(alone.params[0], rel=1e-8)
    assert ours.intercept_in_the_large_error == pytest.approx(alone.bse[0], rel=1e-8)
    # From counts at the distinct scores: the same; from 50 cells: close.
    distinct = pool_distinct([DistinctCounts.of(rows) for rows in sites])
    exact = grouped_calibration(distinct.counts, distinct.levels)
    assert exact.slope == pytest.approx(ours.slope, rel=1e-8)
    assert exact.intercept_in_the_large == pytest.approx(ours.intercept_in_the_large, rel=1e-8)
    cuts = equal_cuts(50)
    binned = reduce(add, [count_in_cells(rows, cuts) for rows in sites])
    sums = reduce(add, [calibration_sums(rows, privacy_level=1) for rows in sites])
    at = cell_scores(cuts, binned, edges=bin_edges(), sums=sums)
    assert (at @ (binned.negative + binned.positive)) == pytest.approx(sums.scores, rel=1e-12)
    close = grouped_calibration(binned, at)
    assert close.slope == pytest.approx(ours.slope, abs=0.02)
    assert close.intercept == pytest.approx(ours.intercept, abs=0.02)


def test_scores_of_0_and_1_have_no_logit_and_are_counted() -> None:
    kept, left_out = interior_rows(rows_of([0.0, 0.2, 1.0, 0.7], [0, 0, 1, 1]))
    assert left_out == 2
    assert kept.negative.tolist() == [0.2]
    assert kept.positive.tolist() == [0.7]


def test_slope_of_constant_or_separating_scores() -> None:
    constant = DistinctCounts.of(rows_of([0.4] * 6, [0, 1, 0, 1, 1, 0]))
    with pytest.raises(NotEstimable, match="constant-scores"):
        grouped_calibration(constant.counts, constant.levels)
    perfect = DistinctCounts.of(rows_of([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1]))
    with pytest.raises(NotEstimable, match="separated"):
        grouped_calibration(perfect.counts, perfect.levels)


@settings(deadline=None, max_examples=60)
@given(federations())
def test_confusion_is_that_of_scikit_learn(federation: Any) -> None:
    scores, labels, site = federation
    cut = np.array([0.25, 0.5])
    sites = sites_of(scores, labels, site)
    pooled = reduce(add, [confusion_counts(rows, cut) for rows in sites])
    for t, threshold in enumerate(cut):
        tn, fp, fn, tp = confusion_matrix(labels, scores > threshold, labels=[0, 1]).ravel()
        assert pooled.true_positive[t] == tp
        assert pooled.false_positive[t] == fp
        at = rates(pooled, cut)[t]
        assert at.sensitivity == pytest.approx(tp / (tp + fn))
        assert at.specificity == pytest.approx(tn / (tn + fp))
        assert at.accuracy == pytest.approx((tp + tn) / len(labels))
        assert at.positive_predictive_value == (pytest.approx(tp / (tp + fp)) if tp + fp else None)
        assert at.negative_predictive_value == (pytest.approx(tn / (tn + fn)) if tn + fn else None)
        odds = threshold / (1 - threshold)
        assert at.net_benefit == pytest.approx((tp - fp * odds) / len(labels))
        prevalence = labels.mean()
        assert at.net_benefit_treat_all == pytest.approx(prevalence - (1 - prevalence) * odds)


def test_no_net_benefit_at_a_threshold_that_is_no_probability() -> None:
    cut = np.array([1.0, 2.5, -1.0])
    counts = confusion_counts(rows_of([3.0, -2.0], [1, 0]), cut)
    assert [at.net_benefit for at in rates(counts, cut)] == [None, None, None]
    assert rates(counts, cut)[0].sensitivity == 1.0


def test_noisy_statistics_are_close_with_much_budget() -> None:
    generator = np.random.default_rng(1)
    scores = generator.random(5000)
    labels = (generator.random(5000) < scores).astype(int)
    rows, cut = rows_of(scores, labels), np.array([0.3, 0.5])
    noise = statistics_noise(epsilon=20.0, delta=1e-3, score_sensitivity=1.0, thresholds=cut)
    negative, positive = release_statistics(rows, cut, noise, generator=generator)
    sizes = {"num_negative": rows.num_negative, "num_positive": rows.num_positive}
    noisy = calibration_of(negative, positive, **sizes)
    exact = calibration_sums(rows, privacy_level=1)
    assert noisy.brier == pytest.approx(exact.brier, abs=0.003)
    assert noisy.brier != exact.brier
    assert noisy.observed_to_expected == pytest.approx(exact.observed_to_expected, abs=0.01)
    for ours, theirs in zip(noisy.curve(), exact.curve(), strict=True):
        assert ours.observed == pytest.approx(theirs.observed, abs=0.05)
    at = rates(confusion_of(negative, positive, **sizes), cut)[1]
    assert at.sensitivity == pytest.approx(
        rates(confusion_counts(rows, cut), cut)[1].sensitivity, abs=0.01
    )


@pytest.mark.parametrize("move", [0.1, 1.0])
def test_noise_of_statistics_covers_every_move_of_a_score(move: float) -> None:
    """Largest change of each block over moves of one score, against its share of the noise."""
    cut = np.array([0.25, 0.5, 0.75])
    noise = statistics_noise(epsilon=1.0, delta=1e-5, score_sensitivity=move, thresholds=cut)
    base = statistics_noise(epsilon=1.0, delta=1e-5, score_sensitivity=1.0, thresholds=cut).squares
    grid = np.linspace(0, 1, 101)
    worst = dict.fromkeys(("squares", "bin_rows", "bin_scores", "above"), 0.0)
    for a in grid:
        for b in grid[(grid >= a - 1e-12) & (grid <= a + move + 1e-12)]:
            one, other = (calibration_sums(rows_of([s], [0]), privacy_level=1) for s in (a, b))
            above = [np.array(s > cut, dtype=float) for s in (a, b)]
            for name, change in (
                ("squares", one.squares - other.squares),
                ("bin_rows", one.bin_rows - other.bin_rows),
                ("bin_scores", one.bin_scores - other.bin_scores),
                ("above", above[0] - above[1]),
            ):
                worst[name] = max(worst[name], float(np.linalg.norm(change)))
    for name, change in worst.items():
        assert change <= getattr(noise, name) / base * (1 + 1e-12), name
    assert worst["squares"] == pytest.approx(noise.squares / base)
