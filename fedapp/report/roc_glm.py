"""Figures, key numbers and words of the report on a ROC-GLM run.

Made from the summary and from ``roc.json`` of the run folder. Every key of ``roc.json`` is
optional; what is absent is said to be, with the reason where the run tells one::

    {
      "roc": {
        "false-positive-rate": [...], "true-positive-rate": [...],  # points from counts
        "parametric": {"false-positive-rate": [...], "true-positive-rate": [...],
                       "lower": [...], "upper": [...]}              # pointwise band
      },
      "calibration": {
        "bins": [{"lower": 0.0, "upper": 0.1, "mean-predicted": 0.04, "observed": 0.02, "n": 120}],
        "suppressed": 0,                                            # rows left out
        "noisy": true                                               # absent without noise
      },
      "net-benefit": {"threshold": [...], "model": [...], "treat-all": [...]},
      "confusion": {
        "threshold": 0.5, "true-positive": 1, "false-positive": 1, "true-negative": 1,
        "false-negative": 1, "sensitivity": 0.5, "specificity": 0.5, "ppv": 0.5, "npv": 0.5,
        "accuracy": 0.5
      },
      "sites": [{"site": "north", "auc": 0.9, "lower": 0.8, "upper": 0.95,
                 "n-positive": 40, "n-negative": 60}],              # where A1 allows
      "pooled-check": {"auc": {"federated": 0.9, "pooled": 0.9, "difference": 0.0}}
    }

Points of the curve from counts go from (0, 0) to (1, 1). Numbers that do not exist are absent (a
mapping) or null (a list).

Keys of the summary that the page reads, all optional:

- ``auc``, ``auc-variance``, ``ci-lower``, ``ci-upper``, ``auc-undebiased``, ``auc-roc-glm``,
  ``auc-roc-glm-undebiased``, ``gamma-1``, ``gamma-2``, ``deviance``, ``n-positive``,
  ``n-negative``;
- ``test-statistic``, ``p-value``, ``rejected``; ``i-squared``, ``heterogeneity-p``;
- ``brier``, ``calibration-slope``, ``calibration-intercept``, ``observed-to-expected``;
- ``dropped`` (rows), ``ci-degenerate`` (the variance is 0), ``noise-too-large`` and ``biased``
  (noisy scores: what the AUC is worth);
- ``epsilon``, ``delta``, ``privacy`` (the statement, printed as it stands);
- why a part is not there: ``no-interval``, ``no-roc-glm``, ``no-calibration-slope``.

Of the configuration it reads ``roc-glm.release``, ``.mode``, ``.alpha``, ``.null-auc``,
``.threshold``, ``.privacy-level`` and ``.statistics-epsilon``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapp.report import figures, roc_glm_figures
from fedapp.report.page import Absent, Figure, KeyNumber, Notice, Section
from fedapp.report.roc_glm_tables import (
    confusion_table,
    estimates_table,
    number,
    pooled_table,
    rates_table,
)
from fedapp.report.roc_glm_words import (
    auc_words,
    calibration_words,
    confidence,
    discrimination_words,
    level,
    patients_words,
    privacy_words,
    spent_words,
    spread_words,
    test_words,
)
from fedapp.roc_glm_cautions import cautions
from fedapp.run_record import RunRecord
from tasks.roc_glm.release_names import NOISY_RELEASES

TITLE = "Federated validation of a classifier"
CURVES = "roc.json"


def key_numbers(run: RunRecord) -> list[KeyNumber]:
    """Return the AUC, who was in the data, how it was released, and the privacy spent."""
    summary = run.summary
    return [
        KeyNumber("AUC", *auc_words(run)),
        KeyNumber("Patients", *patients_words(summary)),
        KeyNumber("Release", str(run.setting("roc-glm.release", "–")), spent_words(run)),
    ]


def notices(run: RunRecord) -> list[Notice]:
    """Return what a reader must not miss about the estimate."""
    summary = run.summary
    found = []
    if "auc" in summary and summary["auc"] < 0.5:
        found.append(
            Notice(
                "warning",
                "The AUC is below 0.5: higher scores go with the negative class. It is reported as "
                "it is; check positive-label.",
            )
        )
    found += [Notice("warning", f"{words[0].upper()}{words[1:]}.") for words in cautions(summary)]
    if summary.get("ci-degenerate"):
        found.append(
            Notice(
                "warning",
                "The variance of the AUC is 0 (constant scores): its confidence interval is a "
                "point and says nothing.",
            )
        )
    if summary.get("dropped"):
        found.append(
            Notice("warning", f"Rows left out for a missing label or score: {summary['dropped']}.")
        )
    return found


def site_columns(run: RunRecord) -> dict[str, dict[str, str]]:
    """Return nothing: what a site says of itself is in the summary, its AUC in a figure."""
    return {}


def sections(run: RunRecord, *, curves: Mapping[str, Any] | None, folder: Path) -> list[Section]:
    """Draw the figures of the task into `folder` and return the sections that hold them.

    Parameters
    ----------
    run : RunRecord
        The run.
    curves : mapping or None
        Content of ``roc.json``.
    folder : Path
        Folder of the figures.
    """
    content = curves or {}
    return [
        Section(
            "Discrimination",
            paragraphs=[*discrimination_words(run), *test_words(run), *spread_words(run)],
            figures=[_roc(run, content, folder), _sites(run, content, folder)],
            tables=estimates_table(run.summary, level=level(run)),
        ),
        Section(
            "Calibration and use",
            figures=[_calibration(run, content, folder), _net_benefit(run, content, folder)],
            paragraphs=calibration_words(run),
        ),
        _threshold_section(run, content),
        _pooled_section(run, content),
        Section("Privacy", paragraphs=privacy_words(run)),
    ]


# Figures


def _roc(run: RunRecord, curves: Mapping[str, Any], folder: Path) -> Figure | Absent:
    name, roc = "roc", curves.get("roc")
    fault = _lengths_fault(roc, "false-positive-rate", "true-positive-rate")
    smooth = roc.get("parametric") if isinstance(roc, Mapping) else None
    if smooth:
        band = [key for key in ("lower", "upper") if smooth.get(key)]
        fault = (fault if roc and roc.get("false-positive-rate") else "") or _lengths_fault(
            smooth, "false-positive-rate", "true-positive-rate", *band
        )
    if not roc or fault:
        return _absent(folder, name, "ROC curve", fault or _why(run, curves, "roc"))
    caption = "ROC curve. "
    if roc.get("false-positive-rate"):
        caption += (
            "From counts: straight lines between the points are equal scores counted half, and the "
            "area under them is the AUC. "
        )
    if smooth:
        caption += (
            f"ROC-GLM: the fitted binormal curve with its pointwise {100 * level(run):g} % band. "
        )
        if run.setting("roc-glm.release") in NOISY_RELEASES:
            caption += "The band is that of the patients; the noise is not in it. "
    elif run.summary.get("no-roc-glm"):
        caption += f"No fitted curve: {run.summary['no-roc-glm']}. "
    svg = figures.draw(folder, name, lambda axes: roc_glm_figures.draw_roc(axes, roc), height=4.8)
    value, detail = auc_words(run)
    return Figure(name, svg, f"ROC curve; AUC {value}, {detail}.", caption + "Dashed: chance.")


def _sites(run: RunRecord, curves: Mapping[str, Any], folder: Path) -> Figure | Absent:
    name = "auc-by-site"
    sites = [row for row in curves.get("sites") or [] if "auc" in row and "site" in row]
    if not sites:
        why = {
            "secure-counts": "under secure-counts the server reads sums over all sites only",
        }.get(str(run.setting("roc-glm.release")), _why(run, curves, "sites"))
        return _absent(folder, name, "AUC by site", why)
    summary = run.summary
    overall = {"site": "all sites"} | {
        key: summary[source]
        for key, source in (("auc", "auc"), ("lower", "ci-lower"), ("upper", "ci-upper"))
        if source in summary
    }
    svg = figures.draw(
        folder,
        name,
        lambda axes: roc_glm_figures.draw_sites(axes, sites, overall),
        height=roc_glm_figures.sites_height(len(sites)),
    )
    values = ", ".join(f"{row['site']} {row['auc']:.3f}" for row in sites)
    return Figure(
        name,
        svg,
        f"AUC by site: {values}.",
        f"AUC of each site's own rows with its {confidence(run)}. All sites together also compare "
        "patients of different sites, so their AUC is no mean of these.",
    )


def _calibration(run: RunRecord, curves: Mapping[str, Any], folder: Path) -> Figure | Absent:
    name = "calibration"
    content = curves.get("calibration") or {}
    keys = {"lower", "upper", "mean-predicted", "observed", "n"}
    bins = [
        row
        for row in content.get("bins") or []
        if all(row.get(key) is not None for key in keys) and row["n"] > 0
    ]
    if not bins:
        return _absent(folder, name, "calibration curve", _why(run, curves, "calibration"))
    exact = run.setting("roc-glm.release") not in NOISY_RELEASES[1:]
    svg = figures.draw(
        folder,
        name,
        lambda axes: roc_glm_figures.draw_calibration(
            axes, bins, level=level(run) if exact else None
        ),
        height=4.8,
    )
    caption = "Calibration: share of positives against the mean score, by bin of the score; "
    caption += "below, the rows of each bin. Dashed: perfect calibration."
    if exact:
        caption += f" Upright lines: {confidence(run)} of the share (Wilson)."
    elif content.get("noisy"):
        caption += (
            " Rows and shares are under noise (points are held in their bins), which is why no "
            "intervals are drawn."
        )
    suppressed = content.get("suppressed")
    if suppressed:
        caption += (
            f" Left out: {number(suppressed)} rows in bins of which their site has fewer than "
            f"{run.setting('roc-glm.privacy-level', 'privacy-level')}."
        )
    return Figure(name, svg, f"Calibration curve in {len(bins)} bins.", caption)


def _net_benefit(run: RunRecord, curves: Mapping[str, Any], folder: Path) -> Figure | Absent:
    name, curve = "net-benefit", curves.get("net-benefit")
    fault = _lengths_fault(curve, "threshold", "model")
    if not fault and curve and curve.get("treat-all"):
        fault = _lengths_fault(curve, "threshold", "treat-all")
    if not curve or fault or not curve.get("threshold"):
        return _absent(folder, name, "decision curve", fault or _why(run, curves, name))
    svg = figures.draw(
        folder,
        name,
        lambda axes: roc_glm_figures.draw_net_benefit(
            axes, curve, threshold=run.setting("roc-glm.threshold")
        ),
        height=4.2,
    )
    return Figure(
        name,
        svg,
        "Net benefit of the model, of treating all and of treating none, by threshold.",
        "Decision curve: net benefit (true positives less false positives weighted by the odds of "
        "the threshold, per patient) of treating patients whose score is above the threshold.",
    )


# Tables


def _threshold_section(run: RunRecord, curves: Mapping[str, Any]) -> Section:
    content = curves.get("confusion")
    if not content:
        why = _why(run, curves, "confusion")
        return Section("At the threshold", figures=[Absent(f"No confusion table: {why}.")])
    threshold = content.get("threshold", run.setting("roc-glm.threshold"))
    words = "A score above the threshold predicts positive."
    configured = run.setting("roc-glm.threshold")
    if threshold is not None and configured not in (None, threshold):
        words += (
            f" It is the cut point that every site can keep closest to roc-glm.threshold = "
            f"{configured}."
        )
    return Section(
        f"At the threshold {threshold:g}" if threshold is not None else "At the threshold",
        paragraphs=[words],
        tables=[*confusion_table(content), *rates_table(content)],
    )


def _pooled_section(run: RunRecord, curves: Mapping[str, Any]) -> Section:
    title, content = "Federated against pooled", curves.get("pooled-check")
    if not content:
        return Section(
            title,
            figures=[
                Absent(
                    "No comparison: only a simulation has all rows in one place, and this run has "
                    "none recorded."
                )
            ],
        )
    words = (
        "A simulation has the rows of all sites in one place: the same quantities worked out from "
        "them directly. What is left of a difference is cells of the score, noise and rounding."
    )
    return Section(title, paragraphs=[words], tables=[pooled_table(content)])


def _why(run: RunRecord, curves: Mapping[str, Any], key: str) -> str:
    """Say why a part of ``roc.json`` is not there."""
    if "auc" not in run.summary:
        return "the run has no result"
    if not curves:
        return f"the run folder has no {CURVES}"
    release = run.setting("roc-glm.release")
    without_budget = release in NOISY_RELEASES[1:] and not run.setting(
        "roc-glm.statistics-epsilon", 0.0
    )
    if without_budget and key in ("calibration", "confusion"):
        return f"under {release} it has a budget of its own, statistics-epsilon, which is 0"
    if key in ("calibration", "net-benefit"):
        return "it needs scores that are probabilities, in [0, 1]"
    if key == "sites":
        return f"under {release} no site sends its own"
    return f"{CURVES} does not hold it"


def _absent(folder: Path, name: str, title: str, why: str) -> Absent:
    figures.discard(folder, name)
    return Absent(f"No {title}: {why}.")


def _lengths_fault(curve: Mapping[str, Sequence[Any]] | None, first: str, *others: str) -> str:
    """Say that lists of a curve do not fit together; empty if they do or there is no curve."""
    if curve is None:
        return ""
    for other in others:
        if len(curve.get(first) or []) != len(curve.get(other) or []):
            return f"in {CURVES}, {first!r} and {other!r} differ in length"
    return ""
