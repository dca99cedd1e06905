"""One run of the ROC-GLM task: sites introduced, strategy run, numbers and curves written."""

from __future__ import annotations

from collections.abc import Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.supercore import log
from flwr.supercore.constant import TaskType

from fedapp import roc_glm_summary
from fedapp.fingerprint import code_fingerprint
from fedapp.pooled_check import pooled_check
from fedapp.resumption import Resumption, snapshots_to
from fedapp.roc_glm_cautions import cautions
from fedapp.run_config import RunConfig
from fedapp.run_folder import RunFolder
from fedapp.site_data import BUNDLED
from strategies.exchange import Disclosure, Exchange
from strategies.membership import HELLO_DISCLOSURE, Refused, meet_sites
from strategies.roc_glm import RocGlm
from strategies.roc_glm_result import RocGlmResult, roc_glm_disclosures
from tasks.roc_glm.messages import SiteFacts
from tasks.roc_glm.release_names import NOISY_RELEASES
from tasks.roc_glm.score_model import ScoreModel
from tasks.secure import split_reals
from tasks.site.faults import SMALL_SITE, SiteFault
from tasks.site.messages import HELLO
from tasks.site.name_lists import some_names


def disclosures(config: RunConfig) -> Mapping[str, Disclosure]:
    """Ledger words of a run's messages, by message type."""
    hello = HELLO_DISCLOSURE[HELLO]
    sends_model = "; the model file" if config.roc_glm.model else ""
    facts = SiteFacts.reveals_under(config.roc_glm)
    introduction = Disclosure(hello.step, hello.request + sends_model, f"{hello.reply}; {facts}")
    return {HELLO: introduction, **roc_glm_disclosures(config.roc_glm)}


def run(exchange: Exchange, config: RunConfig, folder: RunFolder) -> dict[str, Any]:
    """Validate a classifier over the sites of an Exchange.

    Returns
    -------
    dict
        The run's summary; with ``status`` and ``reason`` if the ROC-GLM does not exist.
    """
    general, roc_glm = config.general, config.roc_glm
    _refuse_seeded_noise_outside_simulation(exchange, config)
    text = model_text(roc_glm.model)
    model = _server_model(config, text)
    parts = meet_sites(
        exchange,
        fingerprint=code_fingerprint(),
        min_sites=general.min_sites,
        exclude_codes=frozenset({SMALL_SITE} if roc_glm.on_small_site == "exclude" else ()),
        task={"model": text} if text else None,
    )
    earlier = Resumption.of(config)
    strategy = RocGlm(
        config=roc_glm,
        sites=parts,
        model=model,
        min_sites=general.min_sites,
        rng=np.random.default_rng(general.seed),
        on_snapshot=snapshots_to(folder, earlier),
    )
    result = strategy.start(
        grid=exchange,
        timeout=general.timeout,
        resume_from=earlier.snapshot if earlier else None,
    )
    curves = roc_glm_summary.curves_of(result, roc_glm)
    summary = {
        **roc_glm_summary.summary_of(result, roc_glm),
        **_about_sites(result, strategy, exchange, config),
        **_about_privacy(result, config),
    }
    check = pooled_check(exchange, config, result, summary, model=text)
    if check:
        curves["pooled-check"] = check
        summary["pooled-auc-difference"] = check["auc"]["difference"]
    folder.write_json("roc.json", curves)
    if (reason := result.validation.no_fit) is not None:
        summary |= {"status": "not-estimable", "reason": reason.reason, "detail": reason.detail}
    _tell(summary)
    if (moved := result.plan.places.threshold) != roc_glm.threshold:
        log(
            WARNING,
            "rates are at %g, the cut point closest to roc-glm.threshold = %g that every site "
            "can keep (privacy-level-of = 'cell')",
            moved,
            roc_glm.threshold,
        )
    return summary


def _refuse_seeded_noise_outside_simulation(exchange: Exchange, config: RunConfig) -> None:
    simulated = exchange.run.primary_task_type == TaskType.SIMULATION
    if config.general.seeded_noise and not simulated and not config.roc_glm.allow_seeded_noise:
        raise Refused(
            [
                "seeded-noise = true: on real site data only with roc-glm.allow-seeded-noise = "
                "true; noise from a known seed protects nobody"
            ]
        )


def model_text(path: str) -> str:
    """Content of the model file; ``""`` if there is none."""
    if not path:
        return ""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        words = getattr(error, "strerror", None) or "is no UTF-8 text"
        raise Refused([f"roc-glm.model = {path!r}: {words}"]) from None
    if not text.strip():
        raise Refused([f"roc-glm.model = {path!r}: the file is empty"])
    return text


def _server_model(config: RunConfig, text: str) -> ScoreModel | None:
    """The model whose training quantiles can be cut points."""
    if text:
        try:
            return ScoreModel.from_json(text)
        except SiteFault as fault:
            name = config.roc_glm.model
            raise Refused([f"roc-glm.model = {name!r}: {why}" for why in fault.reasons]) from None
    bundled = BUNDLED.get(config.roc_glm.data)
    return bundled.classifier() if bundled and bundled.classifier else None


def _about_sites(
    result: RocGlmResult, strategy: RocGlm, exchange: Exchange, config: RunConfig
) -> dict[str, Any]:
    facts = {name: strategy.facts[name] for name in result.sites}
    sites = []
    for name, fact in facts.items():
        row: dict[str, Any] = {"site": name, "dropped": fact.dropped}
        if fact.num_positive is not None:
            row |= {"n-positive": fact.num_positive, "n-negative": fact.num_negative}
        sites.append(row)
    about: dict[str, Any] = {
        "release": config.roc_glm.release,
        "mode": "fisher" if config.roc_glm.iterates else "one-shot",
        "n-sites": len(result.sites),
        "sites": sites,
        "excluded": sorted({f.site for f in exchange.faults if f.code == SMALL_SITE}),
        "lost": list(result.lost_sites),
        "dropped": sum(fact.dropped for fact in facts.values()),
    }
    if result.iterations:
        about["iterations"] = result.iterations
    if (spread := roc_glm_summary.spread(result, config.roc_glm)) is not None:
        about |= {
            "i-squared": spread.inconsistency,
            "heterogeneity-q": spread.statistic,
            "heterogeneity-p": spread.p_value,
            "heterogeneity-mean-auc": spread.mean_auc,
        }
    if result.roster is not None:
        about["masked-sums"] = split_reals.describe(len(result.sites))
        about["roster-fingerprint"] = result.roster.fingerprint
        if result.lost_sites:
            about["drop-outs"] = (
                "the step was repeated without the sites that were lost: the server is trusted "
                "not to subtract the two sums"
            )
    return about


def _about_privacy(result: RocGlmResult, config: RunConfig) -> dict[str, Any]:
    said = roc_glm_summary.privacy_of(result, config.roc_glm)
    words = said.sentence()
    noisy = config.roc_glm.release in NOISY_RELEASES
    if noisy and config.general.seeded_noise:
        words += " The noise came from a seed: whoever knows it can subtract it."
    if result.roster is not None:
        words += (
            " Keys of sites are trusted on first use where no site pins fingerprints "
            "(pinned-sites in its node configuration)."
        )
    if result.iterations:
        words += " Sums of Fisher scoring over several rounds do not hide the counts behind them."
    about: dict[str, Any] = {"privacy": words, "mechanism": said.mechanism}
    if said.epsilon is not None and result.plan.noise is not None:
        about |= {
            "epsilon": said.epsilon,
            "delta": said.delta,
            "neighbouring": said.neighbours,
            "not-covered": list(said.not_covered),
            "noise-scale": result.plan.noise.scale,
            "sensitivity-used": result.plan.sensitivity,
        }
    return about


def _tell(summary: Mapping[str, Any]) -> None:
    interval = summary.get("no-interval", "")
    if "ci-lower" in summary:
        interval = f"{summary['ci-lower']:.3f} to {summary['ci-upper']:.3f}"
    if summary.get("ci-degenerate"):
        interval += ", which says nothing: the variance is 0"
    log(INFO, "AUC %.4f (%s)", summary["auc"], interval)
    for words in cautions(summary):
        log(WARNING, "%s", words)
    if "auc-roc-glm" in summary:
        log(
            INFO,
            "ROC-GLM: gamma %.4f, %.4f; AUC %.4f",
            summary["gamma-1"],
            summary["gamma-2"],
            summary["auc-roc-glm"],
        )
    if "p-value" in summary:
        verdict = "rejected" if summary["rejected"] else "not rejected"
        verdict += "".join(f"; {words}" for words in cautions(summary))
        log(INFO, "H0 AUC <= %g: p = %.3g, %s", summary["null-auc"], summary["p-value"], verdict)
    _tell_rates(summary)
    if "brier" in summary:
        log(INFO, "Brier score %.4f", summary["brier"])
    if "calibration-slope" in summary:
        log(
            INFO,
            "calibration: slope %.3f, intercept %.3f, O/E %.3f%s",
            summary["calibration-slope"],
            summary["calibration-intercept"],
            summary["observed-to-expected"],
            " (from cells, close to exact)" if summary.get("calibration-slope-from-cells") else "",
        )
    if summary["excluded"] or summary["lost"]:
        log(WARNING, "without: %s", some_names(summary["excluded"] + summary["lost"]))
    if "pooled-auc-difference" in summary:
        difference = summary["pooled-auc-difference"]
        log(INFO, "AUC of the pooled rows (simulation only): differs by %.3g", difference)
    log(INFO, "%s", summary["privacy"])


def _tell_rates(summary: Mapping[str, Any]) -> None:
    keys = ("sensitivity", "specificity", "ppv", "npv", "accuracy")
    found = ", ".join(f"{key} {summary[key]:.3f}" for key in keys if key in summary)
    if found:
        log(INFO, "rates at %g: %s", summary["threshold"], found)
