"""One run of the vertical XGBoost task: parties introduced, trees grown, what is known written."""

from __future__ import annotations

from collections.abc import Mapping
from logging import INFO, WARNING
from typing import Any

from flwr.supercore import log
from flwr.supercore.constant import TaskType

from fedapp.checkpoint import remove_checkpoint
from fedapp.fingerprint import code_fingerprint
from fedapp.resumption import Resumption, snapshots_to
from fedapp.run_config import RunConfig
from fedapp.run_folder import RunFolder
from fedapp.vertical_central import compare, metric_values, read_joined
from fedapp.vertical_export import EXPORT_DISCLOSURES, export
from fedapp.vertical_importance import IMPORTANCE_DISCLOSURES, sum_importance
from fedapp.vertical_prediction import predict
from fedapp.vertical_privacy import privacy_lines, privacy_summary
from fedapp.vertical_skeleton import SKELETON, kept_model, skeleton
from strategies.all_parties import AllParties
from strategies.exchange import Disclosure, Exchange
from strategies.membership import HELLO_DISCLOSURE, Refused, meet_sites
from strategies.snapshot import UnusableSnapshot
from strategies.vertical_earlier import EarlierModel, one_or_all
from strategies.vertical_ending import telling_the_end
from strategies.vertical_prediction import PREDICTION_DISCLOSURES
from strategies.vertical_result import Cost, GrownTree, VerticalResult, vertical_disclosures
from strategies.vertical_snapshot import Interrupted
from strategies.vertical_xgboost import VerticalXGBoost
from tasks.site.messages import HELLO, Facts, FactValue, TaskPart
from tasks.vertical_xgboost.importance_messages import SplitColumns
from tasks.vertical_xgboost.party_facts import PartyFacts
from tasks.vertical_xgboost.prediction_messages import PartFacts
from tasks.vertical_xgboost.tree import text_of

PARTS = "parties"
"""Folder of the parties' parts of the model, in a simulated run."""

_DISCLOSURES_OF_USE = {
    "predict": PREDICTION_DISCLOSURES,
    "importance": IMPORTANCE_DISCLOSURES,
    "export": EXPORT_DISCLOSURES,
}


def disclosures(config: RunConfig) -> Mapping[str, Disclosure]:
    """Ledger words of a run's messages, by message type."""
    hello = HELLO_DISCLOSURE[HELLO]
    vertical = config.vertical_xgboost
    if vertical.mode != "train":
        told = f"{hello.reply}; {PartFacts.reveals}"
        if vertical.mode == "importance":
            told = f"{told}; {SplitColumns.reveals}"
        introduction = Disclosure(hello.step, hello.request, told)
        return {HELLO: introduction, **_DISCLOSURES_OF_USE[vertical.mode]}
    facts = PartyFacts.reveals
    if vertical.alignment != "same":
        facts = PartyFacts.reveals_unaligned
    asked = hello.request
    if config.general.resume:
        asked = f"{asked}; which training is resumed"
        facts = f"{facts}; {PartyFacts.reveals_resumed}"
    elif vertical.warm_start:
        facts = f"{facts}; {PartyFacts.reveals_warm_start}"
    introduction = Disclosure(hello.step, asked, f"{hello.reply}; {facts}")
    return {HELLO: introduction, **vertical_disclosures(vertical)}


def run(exchange: Exchange, config: RunConfig, folder: RunFolder) -> dict[str, Any]:
    """Train trees over the parties of an Exchange, or use a model that they have.

    Returns
    -------
    dict
        The run's summary.
    """
    vertical = config.vertical_xgboost
    _refuse_seeded_noise_outside_simulation(exchange, config)
    simulated = exchange.run.primary_task_type == TaskType.SIMULATION
    resumption, interrupted = _resumed(config)
    earlier = None
    if interrupted is None:
        earlier = _earlier(config, folder, simulated=simulated)
    parties = _meet(exchange, config, _told(resumption, interrupted, simulated=simulated))
    if vertical.mode == "export":
        return export(exchange, config, folder, parties)
    if vertical.mode == "importance":
        return sum_importance(exchange, config, folder, parties)
    if vertical.mode == "predict":
        parts = folder.path / PARTS if simulated else None
        return predict(exchange, config, folder, parties, parts=parts)
    strategy = VerticalXGBoost(
        config=vertical,
        parties=parties,
        after_tree=lambda grown: folder.append_metrics(_line(grown, config)),
        folder=str(folder.path / PARTS) if simulated else "",
        seed=config.general.seed,
        earlier=earlier,
        interrupted=interrupted,
        take_snapshot=snapshots_to(folder, resumption),
    )
    result = strategy.start(grid=exchange, timeout=config.general.timeout)
    folder.write_json(SKELETON, skeleton(result))
    remove_checkpoint(folder.path)
    summary = _summary(result, config)
    if simulated and (joined := read_joined(exchange, config, result.parties)) is not None:
        summary |= compare(joined, config, result, folder, parts=folder.path / PARTS)
    _tell(summary, result)
    return summary


def _resumed(config: RunConfig) -> tuple[Resumption | None, Interrupted | None]:
    """The run that is gone on with, and its training."""
    resumption = Resumption.of(config)
    if resumption is None:
        return None, None
    vertical = config.vertical_xgboost
    start = f"resume = {config.general.resume!r}: "
    if vertical.mode != "train":
        raise Refused([f"{start}mode = '{vertical.mode}': only a training can be resumed"])
    try:
        # Each tree has its line of metrics, with or without a checkpoint of it.
        finished = sum("tree" in line for line in resumption.record.rounds)
        return resumption, Interrupted.from_snapshot(
            resumption.snapshot, vertical, finished=finished
        )
    except UnusableSnapshot as error:
        raise Refused([f"{start}{error}"]) from None


def _told(
    resumption: Resumption | None, interrupted: Interrupted | None, *, simulated: bool
) -> dict[str, FactValue]:
    """What every party is told at its introduction: which training is gone on with."""
    if resumption is None or interrupted is None:
        return {}
    path = str(resumption.record.path)
    return {"resumed": path if simulated else interrupted.model.run}


def _earlier(config: RunConfig, folder: RunFolder, *, simulated: bool) -> EarlierModel | None:
    """The model that the training goes on from."""
    vertical = config.vertical_xgboost
    if not vertical.warm_start:
        return None
    try:
        return kept_model(
            vertical.warm_start,
            key="vertical-xgboost.warm-start",
            run_dir=folder.path.parent,
            simulated=simulated,
        )
    except ValueError as error:
        raise Refused([str(error)]) from None


def _refuse_seeded_noise_outside_simulation(exchange: Exchange, config: RunConfig) -> None:
    simulated = exchange.run.primary_task_type == TaskType.SIMULATION
    if config.general.seeded_noise and config.vertical_xgboost.dp_epsilon and not simulated:
        reason = "only in simulation; noise from a known seed protects nobody"
        raise Refused([f"seeded-noise = true: {reason}"])


def _meet(exchange: Exchange, config: RunConfig, task: Facts) -> dict[str, TaskPart]:
    with telling_the_end(AllParties(exchange)):  # they have drawn keys
        parties = meet_sites(
            exchange,
            fingerprint=code_fingerprint(),
            min_sites=config.general.min_sites,
            task=task,
        )
        # Other tasks do without a site that is late; here its columns and labels would be missing.
        if exchange.faults:
            raise Refused([*map(str, exchange.faults), "of a joined model no party may be missing"])
        return parties


def _line(grown: GrownTree, config: RunConfig) -> dict[str, Any]:
    """Line of ``metrics.jsonl`` of a tree."""
    return {
        "tree": grown.number,
        **metric_values(grown.train, grown.evaluation, config),
        **_cost(grown.cost),
    }


def _cost(cost: Cost) -> dict[str, Any]:
    return {
        "exchanges": cost.exchanges,
        "bytes": cost.bytes,
        "ciphertexts": cost.ciphertexts,
        "crypto-seconds": {name: round(spent, 4) for name, spent in cost.seconds.items()},
    }


def _summary(result: VerticalResult, config: RunConfig) -> dict[str, Any]:
    last, before = result.trees[result.trees_to_keep - 1], len(result.trees_before)
    summary: dict[str, Any] = {
        **metric_values(last.train, last.evaluation, config),
        "model": result.run,
        "trees": before + len(result.trees),
        "trees-kept": before + result.trees_to_keep,
        "base-score": one_or_all(result.base_scores),
        "n-rows": result.num_rows,
        "n-evaluation": result.num_evaluation,
        "n-sites": len(result.parties),
        "sites": [{"site": name, "columns": result.num_features[name]} for name in result.parties],
        "split-clients": dict(result.split_clients),
        "ciphertexts": result.ciphertexts,
        "crypto-seconds": {name: round(spent, 4) for name, spent in result.seconds.items()},
        "set-up": _cost(result.set_up),
        "ending": _cost(result.ending),
        "roster-fingerprint": result.roster_fingerprint,
        "encryption": config.vertical_xgboost.encryption,
        **privacy_summary(
            config.vertical_xgboost,
            seeded_noise=config.general.seeded_noise,
            releases=result.model.releases,
            trainings=1 + len(result.earlier.releases if result.earlier else ()),
        ),
    }
    if result.earlier is not None:
        summary["warm-start"] = result.earlier.run
        summary["trees-before"] = before
    if config.vertical_xgboost.alignment != "same":
        summary["alignment"] = config.vertical_xgboost.alignment
        summary["rows-before"] = dict(result.rows_before)
    return summary


def _tell(summary: Mapping[str, Any], result: VerticalResult) -> None:
    for grown in result.trees[: result.trees_to_keep]:
        log(INFO, "tree %d as the server knows it:\n%s", grown.number, text_of(grown.tree))
    if result.earlier is not None:
        words = "trees 1 to %d are those of the model of %s"
        log(INFO, words, len(result.trees_before), result.earlier.run)
    if "rows-before" in summary:
        before = ", ".join(f"{rows} at {name}" for name, rows in summary["rows-before"].items())
        log(INFO, "%d rows are common to all parties, of %s", summary["n-rows"], before)
    seconds = sum(summary["crypto-seconds"].values())
    log(
        INFO,
        "%d trees over %d parties, %d ciphertexts, %.1f s of cryptography",
        summary["trees-kept"],
        summary["n-sites"],
        summary["ciphertexts"],
        seconds,
    )
    if "central" in summary:
        same = {True: "the same trees", False: "OTHER TREES"}.get(
            summary["central"].get("same-trees"), "other trees, as noise makes them"
        )
        log(INFO, "central fit on the joined table (simulation only): %s", same)
        for name in ("test-accuracy", "test-rmse"):
            if (theirs := summary["central"].get(f"xgboost-{name}")) is not None:
                log(INFO, "%s: %.4f here, %.4f by XGBoost", name, summary[name], theirs)
    for line in privacy_lines(summary):
        log(WARNING if "NOT" in line else INFO, "%s", line)
    if summary["encryption"] == "none":
        log(WARNING, "encryption = none: the server has read every sum of gradients")
    if summary["n-sites"] == 2:
        log(WARNING, "two parties: each finds the other's sums by subtraction")
