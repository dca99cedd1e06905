"""Run folders of the ROC-GLM task for tests of its report, made from real rows."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedapp.record_shape import LedgerRow
from fedapp.run_folder import RunFolder
from fedapp.site_data import load_frame
from tasks.roc_glm.calibration import calibration_sums
from tasks.roc_glm.classification import confusion_counts, rates
from tasks.roc_glm.counts import ClassCounts, count_in_cells, equal_cuts
from tasks.roc_glm.estimates import (
    auc_interval,
    auc_of_roc_glm,
    auc_test,
    delong_variance,
    roc_band,
)
from tasks.roc_glm.guarantee import guarantee
from tasks.roc_glm.probit import fit_roc_glm
from tasks.roc_glm.rows import RocRows, read_rows

STEPS = ("hello", "release", "counts", "moments")


@cache
def rows_of_sites(sites: int) -> list[RocRows]:
    """The bundled rows, dealt to sites."""
    rows = []
    for site in range(sites):
        node = {"partition-id": site, "num-partitions": sites}
        frame = load_frame(node, data="breast-cancer", seed=0)
        rows.append(read_rows(frame["label"], frame["score"], positive_label="1")[0])
    return rows


def pooled(rows: list[RocRows]) -> RocRows:
    return RocRows(
        np.sort(np.concatenate([one.negative for one in rows])),
        np.sort(np.concatenate([one.positive for one in rows])),
    )


@cache
def roc_document(sites: int, *, with_sites: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Content of ``roc.json``, and the estimates of the summary."""
    rows = rows_of_sites(sites)
    everybody = pooled(rows)
    counts = count_in_cells(everybody, equal_cuts(50))
    estimates = estimates_of(counts)
    fitted = fit_roc_glm(counts.threshold_counts(28), counts.num_positive)
    gamma = [float(fitted.gamma_1), float(fitted.gamma_2)]
    band = roc_band(
        *gamma,
        at=np.linspace(0.005, 0.995, 199),
        num_negative=counts.num_negative,
        num_positive=counts.num_positive,
    )
    estimates |= {"gamma-1": gamma[0], "gamma-2": gamma[1], "deviance": float(fitted.deviance)}
    estimates["auc-roc-glm"] = float(auc_of_roc_glm(*gamma))
    sums = calibration_sums(rows[0], privacy_level=5)
    for one in rows[1:]:
        sums = sums + calibration_sums(one, privacy_level=5)
    estimates |= {"brier": sums.brier, "observed-to-expected": sums.observed_to_expected}
    at = np.arange(1, 100) / 100
    benefit = rates(confusion_counts(everybody, at), at)
    table = confusion_counts(everybody, np.array([0.5]))
    point = rates(table, np.array([0.5]))[0]
    false, true = counts.roc_points()
    document: dict[str, Any] = {
        "roc": {
            "false-positive-rate": false,
            "true-positive-rate": true,
            "parametric": {
                "false-positive-rate": band.false_positive_rate,
                "true-positive-rate": band.true_positive_rate,
                "lower": band.lower,
                "upper": band.upper,
            },
        },
        "calibration": {
            "bins": [
                {
                    "lower": one.lower,
                    "upper": one.upper,
                    "mean-predicted": one.mean_score,
                    "observed": one.observed,
                    "n": one.rows,
                }
                for one in sums.curve()
            ],
            "suppressed": sums.suppressed,
        },
        "net-benefit": {
            "threshold": at,
            "model": [one.net_benefit for one in benefit],
            "treat-all": [one.net_benefit_treat_all for one in benefit],
        },
        "confusion": {
            "threshold": 0.5,
            "true-positive": int(table.true_positive[0]),
            "false-positive": int(table.false_positive[0]),
            "true-negative": int(table.true_negative[0]),
            "false-negative": int(table.false_negative[0]),
            "sensitivity": point.sensitivity,
            "specificity": point.specificity,
            "ppv": point.positive_predictive_value,
            "npv": point.negative_predictive_value,
        },
        "pooled-check": {
            "auc": {
                "federated": estimates["auc"],
                "pooled": estimates["auc"],
                "difference": 0.0,
            },
            "brier": {"federated": sums.brier, "pooled": sums.brier, "difference": -1.4e-17},
        },
    }
    if with_sites:
        document["sites"] = [{"site": f"site-{at}", **site_of(one)} for at, one in enumerate(rows)]
    return document, estimates


def estimates_of(counts: ClassCounts) -> dict[str, Any]:
    auc = float(counts.auc())
    of_negatives, of_positives = counts.placement_moments()
    variance = delong_variance(of_negatives=of_negatives, of_positives=of_positives)
    interval, test = auc_interval(auc, variance), auc_test(auc, variance)
    return {
        "auc": auc,
        "auc-variance": variance,
        "ci-lower": interval.lower,
        "ci-upper": interval.upper,
        "test-statistic": test.statistic,
        "p-value": test.p_value,
        "rejected": test.rejected,
        "n-positive": counts.num_positive,
        "n-negative": counts.num_negative,
    }


def site_of(rows: RocRows) -> dict[str, Any]:
    own = estimates_of(count_in_cells(rows, equal_cuts(50)))
    return {
        "auc": own["auc"],
        "lower": own["ci-lower"],
        "upper": own["ci-upper"],
        "n-positive": own["n-positive"],
        "n-negative": own["n-negative"],
    }


def make_run(
    base: Path,
    *,
    release: str = "secure-counts",
    sites: int = 5,
    document: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
    status: str = "ok",
    without: tuple[str, ...] = (),
) -> RunFolder:
    """Leave the files of a finished run.

    Parameters
    ----------
    document : dict, optional
        Replaces content of ``roc.json``, key by key.
    summary : dict, optional
        Added to the summary.
    without : tuple of str
        Keys left out of ``roc.json`` and of the summary.
    """
    folder = RunFolder.create(base, task="roc-glm")
    config: dict[str, Any] = {
        "task": "roc-glm",
        "roc-glm.release": release,
        "roc-glm.mode": "one-shot",
        "roc-glm.alpha": 0.05,
        "roc-glm.null-auc": 0.5,
        "roc-glm.threshold": 0.5,
        "roc-glm.privacy-level": 5,
    }
    defaults = {**config, "roc-glm.release": "secure-counts"}
    folder.write_config(config, seed=0, runtime="in-process", defaults=defaults, meanings={})
    names = [f"site-{site}" for site in range(sites)]
    folder.write_ledger(ledger_of(names))
    content, estimates = deepcopy(roc_document(sites, with_sites=release == "binned"))
    content |= document or {}
    final = {
        **estimates,
        "n-sites": sites,
        "sites": [{"site": name} for name in names],
        "privacy": guarantee(release, delta=1e-5, noise_ratios=[0.25]).sentence(),
        **(summary or {}),
    }
    folder.write_json("roc.json", {k: v for k, v in content.items() if k not in without})
    kept = {key: value for key, value in final.items() if key not in without}
    folder.finish(status, summary=kept)
    return folder


def ledger_of(names: list[str]) -> list[LedgerRow]:
    rows: list[LedgerRow] = []
    for exchange, step in enumerate(STEPS, start=1):
        for name in names:
            for sender, receiver, size, reveals in (
                ("server", name, 700 * exchange, "cut points"),
                (name, "server", 1900, "masked counts: sums over sites only"),
            ):
                rows.append(
                    {
                        "exchange": exchange,
                        "step": step,
                        "sender": sender,
                        "receiver": receiver,
                        "bytes": size,
                        "sealed": False,
                        "reveals": reveals,
                    }
                )
    return rows
