"""One run of the survival task: sites introduced, strategy run, model and curves written."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from logging import INFO, WARNING
from typing import Any

from flwr.supercore import log
from flwr.supercore.constant import TaskType

from fedapp.fingerprint import code_fingerprint
from fedapp.prior_runs import requests_sent
from fedapp.resumption import Resumption, snapshots_to
from fedapp.run_config import RunConfig
from fedapp.run_folder import RunFolder
from fedapp.site_data import BUNDLED
from strategies.exchange import Disclosure, Exchange
from strategies.lateness import LEFT_OUT
from strategies.membership import HELLO_DISCLOSURE, Refused, meet_sites
from strategies.survival import SURVIVAL_DISCLOSURES, SurvivalFedAvg
from tasks.site.faults import SMALL_SITE
from tasks.site.messages import HELLO
from tasks.survival.messages import from_array_record
from tasks.survival.predictor import Architecture, SurvivalPredictor
from tasks.survival.privacy_words import NOISE_DRIVERS, no_guarantee
from tasks.survival.set_up_messages import SurvivalFacts

_HELLO = HELLO_DISCLOSURE[HELLO]


def disclosures(config: RunConfig) -> Mapping[str, Disclosure]:
    """Ledger words of a run's messages, by message type."""
    introduction = f"{_HELLO.reply}; {SurvivalFacts.reveals}"
    return {HELLO: Disclosure(_HELLO.step, _HELLO.request, introduction), **SURVIVAL_DISCLOSURES}


_LEFT_OUT = frozenset({SMALL_SITE, LEFT_OUT})

GROUP_NAMES = ("low risk", "medium risk", "high risk")


def run(exchange: Exchange, config: RunConfig, folder: RunFolder) -> dict[str, Any]:
    """Train and evaluate a survival model over the sites of an Exchange.

    Returns
    -------
    dict
        The run's summary.
    """
    general, survival = config.general, config.survival
    _refuse_seeded_noise_outside_simulation(exchange, config)
    parts = meet_sites(
        exchange,
        fingerprint=code_fingerprint(),
        min_sites=general.min_sites,
        exclude_codes=frozenset({SMALL_SITE} if survival.on_small_site == "exclude" else ()),
    )
    earlier = Resumption.of(config)
    records: list[dict[str, Any]] = []

    def write_round(record: dict[str, Any]) -> None:
        """Keep a round's record, and write it down at once."""
        records.append(record)
        folder.append_metrics(record)

    strategy = SurvivalFedAvg(
        config=survival,
        sites=parts,
        seed=general.seed,
        min_sites=general.min_sites,
        on_round=write_round,
        on_snapshot=snapshots_to(folder, earlier),
    )
    result = strategy.start(
        grid=exchange,
        timeout=general.timeout,
        resume_from=earlier.snapshot if earlier else None,
    )
    predictor = _predictor(strategy, from_array_record(result.arrays), config)
    predictor.save(folder.model_path())
    folder.write_json("curves.json", _curves(strategy))
    summary = _summary(strategy, exchange, records, config)
    if earlier is not None and survival.dp_mechanism != "none":
        asked = requests_sent(folder, exchange.ledger, step="train")
        summary |= _releases(asked, summary, rounds=survival.rounds)
    _tell(summary)
    return summary


def _refuse_seeded_noise_outside_simulation(exchange: Exchange, config: RunConfig) -> None:
    simulated = exchange.run.primary_task_type == TaskType.SIMULATION
    if config.general.seeded_noise and not simulated:
        reason = "only in simulation; noise from a known seed protects nobody"
        raise Refused([f"seeded-noise = true: {reason}"])


def _predictor(
    strategy: SurvivalFedAvg, arrays: Mapping[str, Any], config: RunConfig
) -> SurvivalPredictor:
    pooled, survival = strategy.statistics, config.survival
    assert pooled is not None, "the strategy has run"
    assert strategy.baseline is not None, "the strategy has run"
    encoding = BUNDLED[pooled.data_set].encoding if pooled.data_set in BUNDLED else {}
    named = set(pooled.feature_names) - survival.declared_categories.keys()
    return SurvivalPredictor(
        feature_names=pooled.feature_names,
        encoding={name: nums for name, nums in encoding.items() if name in named},
        standardizer=pooled.standardizer,
        architecture=Architecture.of(survival, strategy.label_cuts),
        arrays=dict(arrays),
        baseline=strategy.baseline,
        metadata={"config": config.flat(), "code": code_fingerprint()},
    )


def _curves(strategy: SurvivalFedAvg) -> dict[str, Any]:
    """What the figure of predicted and observed survival is drawn from."""
    assert strategy.baseline is not None, "the strategy has run"
    baseline, pooled = strategy.baseline, strategy.curves
    document: dict[str, Any] = {}
    if strategy.kind != "discrete":
        document["baseline"] = {"times": baseline.grid, "cumulative-hazard": baseline.cumulative}
    if pooled is None:
        return document
    groups = [
        {
            "name": name,
            "rows": group.rows,
            "predicted": group.mean_predicted,
            "kaplan-meier": group.kaplan_meier,
        }
        for name, group in zip(GROUP_NAMES, pooled.groups, strict=True)
        if group.rows
    ]
    document["silent-sites"] = pooled.silent_sites
    return {"times": baseline.grid, "groups": groups, **document} if groups else document


def _summary(
    strategy: SurvivalFedAvg, exchange: Exchange, records: list[dict[str, Any]], config: RunConfig
) -> dict[str, Any]:
    survival = config.survival
    ratios = [ratio for record in records for ratio in record.get("noise-to-signal", {}).values()]
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    sites = strategy.statistics.sites if strategy.statistics else []
    summary: dict[str, Any] = {
        **strategy.final,
        "rounds": survival.rounds,
        "model": survival.model,
        "model-kind": strategy.kind,
        "n-sites": len(sites),
        "sites": sites,
        "excluded": sorted({f.site for f in exchange.faults if f.code in _LEFT_OUT}),
        "diagnostics": list(strategy.diagnostics),
        "privacy": no_guarantee(survival.dp_mechanism),
    }
    if survival.dp_mechanism != "none":
        summary["noise-driver"] = NOISE_DRIVERS[survival.dp_mechanism].replace("_", "-")
    if finite:
        summary["noise-to-signal-median"] = statistics.median(finite)
        summary["noise-to-signal-max"] = max(finite)
    if len(finite) < len(ratios):  # updates of which the noise leaves no norm to be seen
        summary["noise-to-signal-unbounded"] = len(ratios) - len(finite)
    return summary


def _releases(asked: int, summary: Mapping[str, Any], *, rounds: int) -> dict[str, Any]:
    """What a resumed run says of updates that left a site in rounds which were run again."""
    repeated = max(0, asked - rounds)
    words = (
        f"The run was resumed: a site released at most {rounds + repeated} privatized updates, "
        f"{rounds} rounds + {repeated} repeated. An update of the interrupted round may have left "
        "before the interruption, so it counts as released."
    )
    return {
        "releases": rounds + repeated,
        "releases-repeated": repeated,
        "privacy": f"{summary['privacy']} {words}",
    }


def _tell(summary: Mapping[str, Any]) -> None:
    if "c-index-lower" in summary:
        log(
            INFO,
            "C-index within sites, on their evaluation rows: %.3f (%.3f to %.3f)",
            summary["c-index"],
            summary["c-index-lower"],
            summary["c-index-upper"],
        )
    for sign in summary["diagnostics"]:
        log(WARNING, "the model is of little use: %s", sign)
    unseen = summary.get("noise-to-signal-unbounded", 0)
    if "noise-to-signal-median" in summary:
        log(
            INFO,
            "noise to signal, as the server estimates it: median %.2f, largest %.2f%s",
            summary["noise-to-signal-median"],
            summary["noise-to-signal-max"],
            f", of the rest; unbounded for {unseen} updates" if unseen else "",
        )
    elif unseen:
        log(INFO, "noise to signal: unbounded for all %d updates", unseen)
    log(INFO, "%s", summary["privacy"])
