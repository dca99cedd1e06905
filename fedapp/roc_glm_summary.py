"""A validation in the words of a run folder: the summary's flat numbers, and ``roc.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from fedapp.roc_glm_calibration import calibration_numbers
from fedapp.roc_glm_cautions import CAUTIONS
from strategies.roc_glm_result import RocGlmResult
from tasks.roc_glm.classification import ConfusionCounts, rates
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.counts import equal_cuts
from tasks.roc_glm.deconvolution import MOST_COUNT_NOISE, MOST_NOISE
from tasks.roc_glm.estimates import auc_interval, roc_band
from tasks.roc_glm.guarantee import (
    MOMENTS_OF_POSITIVES,
    ROC_GLM_SUMS,
    Guarantee,
    guarantee,
)
from tasks.roc_glm.heterogeneity import Heterogeneity, SiteAuc, heterogeneity
from tasks.roc_glm.validation import CellCounts, auc_of_counts
from tasks.site.not_estimable import NotEstimable

CURVE_POINTS = np.arange(1, 200) / 200
NET_BENEFIT_CELLS = 50


def summary_of(result: RocGlmResult, config: RocGlmConfig) -> dict[str, Any]:
    """Flat numbers of a validation, keys kebab-case; what does not exist is absent.

    Parameters
    ----------
    result : RocGlmResult
    config : RocGlmConfig
    """
    validation, estimate = result.validation, result.validation.estimate
    summary: dict[str, Any] = {
        "auc": estimate.auc,
        "auc-variance": estimate.variance,
        "auc-undebiased": validation.undebiased_auc,
        "n-positive": validation.num_positive,
        "n-negative": validation.num_negative,
    }
    if (interval := estimate.interval) is not None:
        summary |= {"ci-lower": interval.lower, "ci-upper": interval.upper}
        summary["ci-level"] = interval.level
        if interval.degenerate:
            summary["ci-degenerate"] = True
    if estimate.no_interval is not None:
        summary["no-interval"] = str(estimate.no_interval)
    flags = _noise_flags(result, config)
    if flags:  # a verdict would be read without the caution beside it
        summary["no-test"] = "; ".join(f"{flag}: {CAUTIONS[flag]}" for flag in flags)
    elif (test := estimate.test) is not None:
        summary |= {
            "null-auc": test.null_auc,
            "test-statistic": test.statistic,
            "p-value": test.p_value,
            "rejected": test.rejected,
        }
    elif estimate.no_test is not None:
        summary["no-test"] = str(estimate.no_test)
    summary |= flags
    summary |= _fit_numbers(result)
    summary |= _statistics_numbers(result, config)
    return {key: value for key, value in summary.items() if value is not None}


def curves_of(result: RocGlmResult, config: RocGlmConfig) -> dict[str, Any]:
    """What the figures are drawn from, ``roc.json``."""
    validation = result.validation
    roc: dict[str, Any] = {
        "false-positive-rate": validation.false_positive_rate.tolist(),
        "true-positive-rate": validation.true_positive_rate.tolist(),
    }
    if (fit := validation.fit) is not None:
        band = roc_band(
            fit.gamma_1,
            fit.gamma_2,
            at=CURVE_POINTS,
            num_negative=validation.num_negative,
            num_positive=validation.num_positive,
            alpha=config.alpha,
        )
        roc["parametric"] = {
            "false-positive-rate": band.false_positive_rate.tolist(),
            "true-positive-rate": band.true_positive_rate.tolist(),
            "lower": band.lower.tolist(),
            "upper": band.upper.tolist(),
        }
    document: dict[str, Any] = {"roc": roc}
    if result.statistics is not None:
        document["confusion"] = _confusion(result.statistics.confusion, result)
        if (calibration := result.statistics.calibration) is not None:
            bins = calibration.curve(result.plan.places.edges)
            document["calibration"] = {
                "bins": [
                    {
                        "lower": part.lower,
                        "upper": part.upper,
                        "mean-predicted": part.mean_score,
                        "observed": part.observed,
                        "n": part.rows,
                    }
                    for part in bins
                ],
                "suppressed": calibration.suppressed,
            }
            if result.pooled.noisy is not None:
                document["calibration"]["noisy"] = True
    if (cells := _cells(result)) is not None:
        document["net-benefit"] = _net_benefit(cells)
    if result.pooled.by_site:
        document["sites"] = site_rows(result, config)
    return document


def site_aucs(result: RocGlmResult, config: RocGlmConfig) -> list[SiteAuc]:
    """AUC of each site's own rows, where its counts came in clear and it has two of each class."""
    found = []
    for name, counts in result.pooled.by_site.items():
        if min(counts.num_negative, counts.num_positive) >= 2:
            estimate = auc_of_counts(counts, config=config)
            if estimate.variance is not None:
                found.append(SiteAuc(name, estimate.auc, estimate.variance))
    return found


def site_rows(result: RocGlmResult, config: RocGlmConfig) -> list[dict[str, Any]]:
    """The sites of ``roc.json``."""
    aucs = {site.site: site for site in site_aucs(result, config)}
    rows = []
    for name, counts in result.pooled.by_site.items():
        row: dict[str, Any] = {
            "site": name,
            "n-positive": counts.num_positive,
            "n-negative": counts.num_negative,
        }
        if name in aucs:
            row["auc"] = aucs[name].auc
            try:
                interval = auc_interval(aucs[name].auc, aucs[name].variance, alpha=config.alpha)
                row |= {"lower": interval.lower, "upper": interval.upper}
            except NotEstimable:
                pass
        rows.append(row)
    return rows


def spread(result: RocGlmResult, config: RocGlmConfig) -> Heterogeneity | None:
    """Whether the sites' AUCs differ by more than chance; None where that cannot be said."""
    try:
        return heterogeneity(site_aucs(result, config))
    except NotEstimable:
        return None


def privacy_of(result: RocGlmResult, config: RocGlmConfig) -> Guarantee:
    """The privacy statement of what was released."""
    noise = result.plan.noise
    exact = []
    if config.release == "noisy-scores":
        exact = [ROC_GLM_SUMS[config.mode], MOMENTS_OF_POSITIVES]
        if config.mode == "fisher":
            exact.insert(1, ROC_GLM_SUMS["one-shot"])
        exact.append("the exact confusion counts")
        if result.plan.is_probability:
            exact.append("the exact calibration sums")
    if config.estimate_sensitivity:
        exact.append("the sensitivity estimated at each site")
    exact.append("whether all scores lie in [0, 1], and the number of rows left out")
    delta = config.delta
    if noise is not None and noise.statistics is not None:
        delta += config.statistics_delta
    return guarantee(
        config.release,
        delta=min(delta, 1 - 1e-12),
        noise_ratios=noise.ratios if noise is not None else [],
        exact_sums=exact,
        mechanism=config.mechanism,
        score_sensitivity=result.plan.sensitivity,
        is_estimate=config.estimate_sensitivity,
        is_shared=config.secure,
        level_of="cell" if config.merges_cells else "class",
        is_probability=result.plan.is_probability,
        repeated=bool(result.roster is not None and result.lost_sites),
    )


def _noise_flags(result: RocGlmResult, config: RocGlmConfig) -> dict[str, bool]:
    noise, flags = result.plan.noise, {}
    if noise is None:
        return {}
    if config.release == "noisy-scores":
        too_large = noise.scale > MOST_NOISE and result.plan.is_probability
        if not config.debias:
            flags["biased"] = True
    else:
        noises = 1 if config.secure else len(result.sites)
        steps = len(result.plan.cuts) + 1 if config.release == "noisy-histogram" else 1
        smaller = min(result.validation.num_negative, result.validation.num_positive)
        too_large = noise.scale * math.sqrt(noises * steps) > MOST_COUNT_NOISE * smaller
    if too_large:
        flags["noise-too-large"] = True
    return flags


def _fit_numbers(result: RocGlmResult) -> dict[str, Any]:
    validation = result.validation
    numbers: dict[str, Any] = {}
    if (fit := validation.fit) is not None:
        numbers |= {
            "gamma-1": fit.gamma_1,
            "gamma-2": fit.gamma_2,
            "auc-roc-glm": fit.auc,
            "deviance": fit.deviance,
        }
    if (raw := validation.undebiased_fit) is not None:
        numbers |= {
            "gamma-1-undebiased": raw.gamma_1,
            "gamma-2-undebiased": raw.gamma_2,
            "auc-roc-glm-undebiased": raw.auc,
        }
    if (reason := validation.no_fit) is not None:
        numbers["no-roc-glm"] = str(reason)
    return numbers


def _statistics_numbers(result: RocGlmResult, config: RocGlmConfig) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    if (statistics := result.statistics) is not None:
        confusion = _confusion(statistics.confusion, result)
        for key in ("threshold", "sensitivity", "specificity", "ppv", "npv", "accuracy"):
            numbers[key] = confusion.get(key)
        if (calibration := statistics.calibration) is not None and calibration.rows:
            numbers["brier"] = calibration.brier
            numbers["observed-to-expected"] = calibration.observed_to_expected
            numbers["calibration-suppressed"] = calibration.suppressed
    return numbers | calibration_numbers(result)


def _confusion(counts: ConfusionCounts, result: RocGlmResult) -> Mapping[str, Any]:
    threshold = result.plan.places.threshold
    found = asdict(rates(counts, np.array([threshold]))[0])
    table = {
        "threshold": threshold,
        "true-positive": float(counts.true_positive[0]),
        "false-positive": float(counts.false_positive[0]),
        "true-negative": float(counts.true_negative[0]),
        "false-negative": float(counts.false_negative[0]),
        "sensitivity": found["sensitivity"],
        "specificity": found["specificity"],
        "ppv": found["positive_predictive_value"],
        "npv": found["negative_predictive_value"],
        "accuracy": found["accuracy"],
        "net-benefit": found["net_benefit"],
    }
    return {key: value for key, value in table.items() if value is not None}


def _cells(result: RocGlmResult) -> CellCounts | None:
    """Counts in cells of [0, 1], where scores are probabilities."""
    pooled, plan = result.pooled, result.plan
    if not plan.is_probability:
        return None
    if result.validation.cells is not None:
        return result.validation.cells
    if (counts := pooled.counts) is None:
        return None
    if not len(pooled.levels):
        return CellCounts(
            plan.cuts, counts.negative.astype(np.float64), counts.positive.astype(np.float64)
        )
    cuts = equal_cuts(NET_BENEFIT_CELLS)
    place = np.searchsorted(cuts, pooled.levels, side="left")
    by_class = [
        np.asarray(np.bincount(place, part, NET_BENEFIT_CELLS), dtype=np.float64)
        for part in (counts.negative, counts.positive)
    ]
    return CellCounts(cuts, by_class[0], by_class[1])


def _net_benefit(cells: CellCounts) -> dict[str, list[float | None]]:
    """Net benefit at the cut points, which the counts above them give."""
    above = [
        np.cumsum(part[::-1])[::-1][1:] if len(part) > 1 else np.empty(0)
        for part in (cells.positive, cells.negative)
    ]
    counts = ConfusionCounts(
        true_positive=above[0],
        false_negative=cells.positive.sum() - above[0],
        false_positive=above[1],
        true_negative=cells.negative.sum() - above[1],
    )
    found = rates(counts, cells.cuts)
    return {
        "threshold": [rate.threshold for rate in found],
        "model": [rate.net_benefit for rate in found],
        "treat-all": [rate.net_benefit_treat_all for rate in found],
    }
