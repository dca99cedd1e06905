"""Words of the report on a ROC-GLM run: key numbers and paragraphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedapp.report.roc_glm_tables import number
from fedapp.roc_glm_cautions import cautions
from fedapp.run_record import RunRecord
from tasks.roc_glm.release_names import NOISY_RELEASES


def level(run: RunRecord) -> float:
    """Level of the intervals."""
    return 1.0 - float(run.setting("roc-glm.alpha", 0.05))


def confidence(run: RunRecord) -> str:
    """Name of the intervals."""
    return f"{100 * level(run):g} % CI"


def auc_words(run: RunRecord) -> tuple[str, str]:
    """AUC, and its interval or why there is none."""
    summary = run.summary
    if "auc" not in summary:
        return "–", "no estimate"
    if "ci-lower" in summary and "ci-upper" in summary:
        interval = f"{summary['ci-lower']:.3f} – {summary['ci-upper']:.3f}"
        return f"{summary['auc']:.3f}", f"{confidence(run)} {interval}"
    why = summary.get("no-interval")
    return f"{summary['auc']:.3f}", f"no confidence interval{f': {why}' if why else ''}"


def patients_words(summary: Mapping[str, Any]) -> tuple[str, str]:
    """How many patients, and of which class."""
    if "n-positive" not in summary or "n-negative" not in summary:
        return "–", "not recorded"
    positive, negative = summary["n-positive"], summary["n-negative"]
    return number(positive + negative), f"{number(positive)} positive, {number(negative)} negative"


def spent_words(run: RunRecord) -> str:
    """Privacy spent: epsilon, and delta."""
    summary = run.summary
    if "epsilon" in summary:
        delta = f", δ\u00a0=\u00a0{summary['delta']:.3g}" if "delta" in summary else ""
        beside = ""
        if run.setting("roc-glm.release") == "noisy-scores":
            beside = "; exact sums not covered"
        return f"privacy spent: ε\u00a0=\u00a0{summary['epsilon']:.3g}{delta}{beside}"
    if run.setting("roc-glm.release") in NOISY_RELEASES:
        return "privacy spent: not recorded"
    return "no noise, no ε"


def discrimination_words(run: RunRecord) -> list[str]:
    """What the AUC is."""
    words = (
        "The AUC is the share of pairs of a positive and a negative patient in which the positive "
        "one has the higher score (equal scores count half). Pairs across sites are compared too: "
        "it is the AUC of the pooled rows, and its interval (DeLong, logit scale) is theirs. It is "
        "never flipped to lie above 0.5."
    )
    release = run.setting("roc-glm.release")
    if release in ("secure-counts", "binned"):
        words += " Scores in one cell between two cut points count as equal."
    elif release in NOISY_RELEASES:
        words += " Both come from data under noise; the interval takes the noise into account."
    return [words]


def test_words(run: RunRecord) -> list[str]:
    """Sentence of the hypothesis test."""
    summary = run.summary
    if "p-value" not in summary:
        why = summary.get("no-test")
        return [f"No test of the AUC: {why}."] if why else []
    null, alpha = run.setting("roc-glm.null-auc", 0.5), run.setting("roc-glm.alpha", 0.05)
    p_value = summary["p-value"]
    p_words = "p\u00a0<\u00a00.0001" if p_value < 1e-4 else f"p\u00a0=\u00a0{p_value:.4f}"
    z_words = f"z = {summary['test-statistic']:.2f}, " if "test-statistic" in summary else ""
    verdict = "is rejected" if summary.get("rejected", p_value < alpha) else "is not rejected"
    caution = "".join(f" But {words}." for words in cautions(summary))
    return [
        f"Test of H0: AUC ≤ {null:g} against AUC > {null:g}: {z_words}{p_words}; H0 {verdict} at "
        f"level {alpha:g}.{caution}"
    ]


def spread_words(run: RunRecord) -> list[str]:
    """Whether the sites' AUCs differ."""
    summary = run.summary
    if "i-squared" not in summary:
        return []
    words = f"Spread of the AUC between sites: I² = {100 * summary['i-squared']:.0f} %"
    if "heterogeneity-p" in summary:
        words += f", Cochran's Q test p = {summary['heterogeneity-p']:.3f}"
    return [words + "."]


def calibration_words(run: RunRecord) -> list[str]:
    """Numbers of calibration."""
    summary = run.summary
    parts = [
        f"{name} {summary[key]:.3f}"
        for name, key in (
            ("Brier score", "brier"),
            ("calibration slope", "calibration-slope"),
            ("intercept", "calibration-intercept"),
            ("observed to expected", "observed-to-expected"),
        )
        if key in summary
    ]
    why = summary.get("no-calibration-slope")
    left_out = [f"{str(why)[0].upper()}{str(why)[1:]}."] if why else []
    if summary.get("calibration-slope-from-cells"):
        left_out.append(
            "Slope and intercept are from counts in cells, close to those of the scores; Fisher "
            "scoring (mode = 'fisher') gives them exactly."
        )
    if not parts:
        return left_out
    numbers = ", ".join(parts)
    return [
        f"{numbers[0].upper()}{numbers[1:]}. A well calibrated model has slope 1, intercept 0 and "
        "as many positives as its scores add up to.",
        *left_out,
    ]


def privacy_words(run: RunRecord) -> list[str]:
    """The run's statement on its privacy, as it stands."""
    statement = run.summary.get("privacy")
    return [str(statement)] if statement else ["The run left no statement on its privacy."]
