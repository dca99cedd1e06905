"""Figures, key numbers and words of the report on a survival run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapp.report import figures, survival_figures, survival_tables
from fedapp.report.page import Absent, Figure, KeyNumber, Notice, Section
from fedapp.run_record import RunRecord

TITLE = "Federated survival analysis"
CURVES = "curves.json"


def key_numbers(run: RunRecord) -> list[KeyNumber]:
    """Return the C-index of the run and the state of its privatization."""
    return [
        KeyNumber("C-index within sites", *_c_index_words(run)),
        KeyNumber("Privatization", *_privatization_words(run)),
    ]


def notices(run: RunRecord) -> list[Notice]:
    """Return what a reader must not miss: signs of failure, and noise that drowns the signal."""
    found = [Notice("failure", f"Diagnostic: {line}") for line in _lines(run, "diagnostics")]
    if run.summary and "c-index" not in run.summary and (reason := _why_no_c_index(run)):
        found.append(Notice("warning", f"There is no C-index: {reason}."))
    found += _noise_notices(run)
    return found


def _noise_notices(run: RunRecord) -> list[Notice]:
    """Say where noise drowns the signal."""
    found = []
    unbounded = run.summary.get("noise-to-signal-unbounded", 0)
    if unbounded and "noise-to-signal-median" not in run.summary:
        found.append(
            Notice(
                "failure",
                f"The noise drowned every update: in none of {unbounded} can the server see a "
                "signal (noise-to-signal has no bound). The model is made of noise.",
            )
        )
    elif unbounded:
        found.append(
            Notice(
                "warning",
                f"In {unbounded} updates the noise left no signal to be seen (noise-to-signal has "
                "no bound); they are not in the numbers below.",
            )
        )
    largest = run.summary.get("noise-to-signal-max")
    if largest is not None and largest > 1:
        found.append(
            Notice(
                "warning",
                f"The noise was up to {largest:.2f} times as large as the update it was added to "
                "(noise-to-signal above 1).",
            )
        )
    return found


def site_columns(run: RunRecord) -> dict[str, dict[str, str]]:
    """Return what the survival task adds to the table of sites: head to site to cell."""
    ratios: dict[str, list[float]] = {}
    for line in run.rounds:
        for site, ratio in line.get("noise-to-signal", {}).items():
            ratios.setdefault(site, []).append(ratio)
    if not ratios:
        return {}
    return {
        "noise to signal, median": {
            site: f"{statistics.median(values):.2f}" for site, values in ratios.items()
        }
    }


def sections(run: RunRecord, *, curves: Mapping[str, Any] | None, folder: Path) -> list[Section]:
    """Draw the figures of the task into `folder` and return the sections that hold them.

    Parameters
    ----------
    run : RunRecord
        The run.
    curves : mapping or None
        Content of ``curves.json``.
    folder : Path
        Folder of the figures.
    """
    return [
        Section(
            "Discrimination and survival curves",
            paragraphs=[*_c_index_meaning(run), *survival_tables.model_words(run.summary)],
            figures=[_convergence(run, folder), _survival_curves(run, curves, folder)],
        ),
        *_metrics(run),
        Section(
            "Privacy and noise",
            paragraphs=_privacy_words(run),
            figures=[_noise_to_signal(run, folder)],
        ),
    ]


def _metrics(run: RunRecord) -> list[Section]:
    words = survival_tables.metrics_words(run.summary)
    if not words:
        return []
    tables = survival_tables.metrics_table(run.summary, confidence=_confidence(run))
    return [Section("Metrics", paragraphs=words, tables=tables)]


# Words


def _confidence(run: RunRecord) -> str:
    return f"{100 * run.setting('survival.confidence-level', 0.95):g} % CI"


def _interval(line: Mapping[str, Any]) -> str:
    if "c-index-lower" in line and "c-index-upper" in line:
        return f"{line['c-index-lower']:.3f} – {line['c-index-upper']:.3f}"
    return ""


_REASONS = {
    "no-comparable-pairs": "no two evaluation rows of a site can be compared",
    "c-index-at-boundary": "the C-index is 0 or 1",
    "no-evaluation-rows": "no site has privacy-level evaluation rows",
    "follow-up-too-short": "the follow-up is too short for the metrics of a time-dependent model",
    "no-variance": "every row has the same share of concordant pairs",
}


def _reason(run: RunRecord) -> str:
    """Why the C-index or its interval does not exist, as the run says; empty if it does not."""
    code = str(run.summary.get("c-index-reason", ""))
    return _REASONS.get(code, code)


def _why_no_c_index(run: RunRecord) -> str:
    if run.setting("survival.test-fraction", 0.2) == 0:
        return "no rows were kept for evaluation (survival.test-fraction is 0)"
    return _reason(run)


def _c_index_words(run: RunRecord) -> tuple[str, str]:
    if "c-index" not in run.summary:
        reason = _why_no_c_index(run)
        return "–", f"no estimate: {reason}" if reason else "no estimate"
    interval = _interval(run.summary)
    reason = _reason(run)
    missing = "no confidence interval" + (f": {reason}" if reason else "")
    detail = f"{_confidence(run)} {interval}" if interval else missing
    return f"{run.summary['c-index']:.3f}", detail


def _privatization_words(run: RunRecord) -> tuple[str, str]:
    mechanism = run.setting("survival.dp-mechanism")
    if mechanism is None:
        return "–", "not recorded"
    if mechanism == "none":
        return "off", "no noise added"
    driver = str(run.summary.get("noise-driver", "")).replace("_", "-")
    value = run.setting(f"survival.{driver}")
    return str(mechanism), f"{driver} = {value}" if value is not None else driver


def _c_index_meaning(run: RunRecord) -> list[str]:
    words = (
        f"The C-index is {survival_tables.c_index_name(run.summary)} concordance within sites: the "
        f"share of comparable pairs of rows {survival_tables.c_index_words(run.summary)}. "
        "0.5 is chance, 1 is perfect. Both rows of a pair are of the same site; pairs "
        "across sites are not compared, so this is not the C-index of the pooled rows. It and its "
        "confidence interval (logit scale) come from sums of each site alone."
    )
    lines = [*run.rounds, run.summary]
    pairs = [line["comparable-pairs"] for line in lines if "comparable-pairs" in line]
    if pairs:
        words += f" Comparable pairs: {int(pairs[-1]):,}.".replace(",", "\u202f")
    if run.summary and "c-index" not in run.summary and (reason := _why_no_c_index(run)):
        words += f" In this run there is none: {reason}."
    return [words]


def _privacy_words(run: RunRecord) -> list[str]:
    words = [run.summary["privacy"]] if run.summary.get("privacy") else []
    known = [
        f"{name} {run.summary[f'noise-to-signal-{key}']:.2f}"
        for name, key in (("median", "median"), ("largest", "max"))
        if f"noise-to-signal-{key}" in run.summary
    ]
    if known:
        words.append(f"Noise to signal over all sites and rounds: {', '.join(known)}.")
    return words or ["The run left no statement on its privacy."]


def _lines(run: RunRecord, key: str) -> list[str]:
    return [str(line) for line in run.summary.get(key, [])]


# Convergence


def _convergence(run: RunRecord, folder: Path) -> Figure | Absent:
    name = "convergence"
    measured = [line for line in run.rounds if {"round", "c-index"} <= set(line)]
    at_the_end = run.summary.get("model-kind") == "time-dependent"
    if not measured or at_the_end:
        figures.discard(folder, name)
        why = "no round has a C-index"
        if at_the_end:
            why = "the C-index of this model needs the baseline hazard, which comes at the end"
        return Absent(f"No figure of convergence: {why}.")
    words = _c_index_words(run)
    initial = " Round 0 is the initial model." if measured[0]["round"] == 0 else ""
    svg = figures.draw(
        folder, name, lambda axes: survival_figures.draw_convergence(axes, run, measured)
    )
    return Figure(
        name=name,
        svg=svg,
        alt=f"C-index by round, {len(measured)} rounds; final value {words[0]}, {words[1]}.",
        caption=f"C-index within sites by round, with its {_confidence(run)} (band). "
        f"Dashed: chance.{initial}",
    )


# Survival curves


def _survival_curves(
    run: RunRecord, curves: Mapping[str, Any] | None, folder: Path
) -> Figure | Absent:
    name = "survival-curves"
    reason = _curves_fault(curves)
    if curves is None or reason:
        figures.discard(folder, name)
        return Absent(f"No survival curves: {reason}.")
    groups = curves["groups"]
    svg = figures.draw(
        folder, name, lambda axes: survival_figures.draw_curves(axes, curves["times"], groups)
    )
    return Figure(
        name=name,
        svg=svg,
        alt="Survival probability over time by risk group, predicted and Kaplan-Meier: "
        + ", ".join(str(group["name"]) for group in groups),
        caption=_curves_caption(run, silent_sites=curves.get("silent-sites", 0)),
    )


def _curves_caption(run: RunRecord, *, silent_sites: int) -> str:
    level = run.setting("survival.privacy-level")
    words = (
        "Survival by risk group: predicted by the model (smooth lines) and observed "
        "(Kaplan-Meier, steps). Where the two lie together, the model is well calibrated: on the "
        "rows that it was trained on, which both curves are made of. On new rows it may be less "
        "so. "
    )
    if level == 1:
        words += "The steps are those of the time grid"
    else:
        words += (
            f"The steps are made of cells of time in which at least {level or 'privacy-level'} "
            "rows of each group leave at every site; within a cell, rows leave and events come in "
            "the proportions of all groups together. The last cell reaches to the end of the grid, "
            "whether or not anybody was followed that far"
        )
    words += ". Rows censored in a cell count as half at risk in it (actuarial correction)."
    if silent_sites:
        of_all = f" of {run.summary['n-sites']}" if "n-sites" in run.summary else ""
        words += f" Left out, with too few rows in a risk group to tell of any: {silent_sites}"
        words += f"{of_all} sites."
    return words


def _curves_fault(curves: Mapping[str, Any] | None) -> str:
    """Say why the curves cannot be drawn; empty if they can."""
    if curves is None:
        return f"the run folder has no {CURVES}"
    if not curves.get("groups") and curves.get("silent-sites"):
        return "every site has too few rows in a risk group to tell of any"
    if not curves.get("times") or not curves.get("groups"):
        return f"{CURVES} has no times or no risk groups"
    for group in curves["groups"]:
        for key in ("predicted", "kaplan-meier"):
            if group.get(key) is not None and len(group[key]) != len(curves["times"]):
                return f"in {CURVES}, {key!r} of a group and the times differ in length"
    if not any(group.get("predicted") or group.get("kaplan-meier") for group in curves["groups"]):
        return f"{CURVES} holds no curve"
    return ""


# Noise to signal


def _noise_to_signal(run: RunRecord, folder: Path) -> Figure | Absent:
    name = "noise-to-signal"
    measured = [line for line in run.rounds if "round" in line and line.get("noise-to-signal")]
    if not measured:
        figures.discard(folder, name)
        off = run.setting("survival.dp-mechanism") == "none"
        why = "no noise was added" if off else "no round has an estimate"
        return Absent(f"No figure of noise to signal: {why}.")
    sites = sorted({site for line in measured for site in line["noise-to-signal"]})
    caption = (
        "Norm of the noise over norm of the clipped update, one line a site. It is the server's "
        "estimate from what it received: the sites do not send the norm of their updates, and "
        "nothing more is disclosed by estimating it."
    )
    if any(len(line["noise-to-signal"]) < len(sites) for line in measured):
        caption += (
            " Where a line has a gap, the site did not answer in that round, or the noise left "
            "nothing of its update to estimate; the median is over the estimates there are."
        )
    svg = figures.draw(
        folder, name, lambda axes: survival_figures.draw_noise(axes, measured, sites)
    )
    return Figure(
        name=name,
        svg=svg,
        alt=f"Noise to signal by round for {len(sites)} sites, with their median.",
        caption=caption,
    )
