"""How much a vertical model uses each party's features; names only of parties that consent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from logging import INFO
from typing import Any

from flwr.supercore import log
from flwr.supercore.constant import TaskType

from fedapp.run_config import RunConfig
from fedapp.run_folder import RunFolder
from fedapp.vertical_skeleton import kept_model
from strategies.all_parties import AllParties
from strategies.exchange import Disclosure, Exchange
from strategies.membership import Refused
from strategies.vertical_earlier import EarlierModel
from strategies.vertical_ending import telling_the_end
from strategies.vertical_prediction import check_model_parts
from tasks.secure import split_reals
from tasks.secure.roster import Roster
from tasks.secure.secure_sums import unmask_sum
from tasks.site.messages import TaskPart
from tasks.site.reply_fields import MalformedReply
from tasks.vertical_xgboost.end_messages import STOP, StopRequest
from tasks.vertical_xgboost.feature_importance import Importance, importances
from tasks.vertical_xgboost.fixed_point import FloatArray
from tasks.vertical_xgboost.importance_messages import (
    IMPORTANCE,
    IMPORTANCE_STEP,
    ImportanceReply,
    ImportanceRequest,
    SplitColumns,
)

IMPORTANCE_FILE = "importance.json"

IMPORTANCE_DISCLOSURES: Mapping[str, Disclosure] = {
    IMPORTANCE: Disclosure("importance", ImportanceRequest.reveals, ImportanceReply.reveals),
    STOP: Disclosure("stop", StopRequest.reveals, "nothing"),
}
"""Ledger words of the sums, by message type."""


def sum_importance(
    exchange: Exchange, config: RunConfig, folder: RunFolder, parties: Mapping[str, TaskPart]
) -> dict[str, Any]:
    """Sum covers over all parties, in one exchange, and put the server's own gains beside them.

    Parameters
    ----------
    exchange : Exchange
    config : RunConfig
    folder : RunFolder
        Gets ``importance.json``: gain, cover and weight by feature.
    parties : mapping of str to TaskPart
        Introduced.

    Returns
    -------
    dict
        The run's summary.
    """
    vertical = config.vertical_xgboost
    asked = AllParties(exchange)
    with telling_the_end(asked):
        facts = check_model_parts(parties, vertical)
        if len(facts) < 3 and not vertical.allow_two_parties:
            raise Refused(
                [
                    "two parties: each finds the other's sums by subtraction; "
                    "vertical-xgboost.allow-two-parties = true permits it"
                ]
            )
        any_fact = next(iter(facts.values()))
        columns = _columns(parties)
        gains = _gains(_model(exchange, vertical.model, folder, run=any_fact.run))
        _check_records(columns, gains)
        covers = _covers(exchange, asked, parties, columns)
    names = {name: own.names for name, own in columns.items() if own.names is not None}
    groups = {name: own.groups for name, own in columns.items()}
    found = importances(groups, names, gains, covers)
    folder.write_json(IMPORTANCE_FILE, {name: asdict(each) for name, each in found.items()})
    log(INFO, "importance by gain:\n%s", _lines(found))
    return {
        "mode": vertical.mode,
        "model": any_fact.run,
        "n-sites": len(facts),
        "n-features": len(found),
        "parties-with-names": sorted(names),
        "importance": [{"feature": name, **asdict(each)} for name, each in _ranked(found)],
    }


def _columns(parties: Mapping[str, TaskPart]) -> dict[str, SplitColumns]:
    found, faults = {}, []
    for name in sorted(parties):
        try:
            found[name] = SplitColumns.from_facts(parties[name].facts)
        except MalformedReply as error:
            faults.append(f"{name}: introduces itself in another form than expected ({error})")
    if faults:
        raise Refused(faults)
    return found


def _model(exchange: Exchange, model: str, folder: RunFolder, *, run: str) -> EarlierModel:
    """What the server kept of the training of the parties' parts."""
    simulated = exchange.run.primary_task_type == TaskType.SIMULATION
    key, run_dir = "vertical-xgboost.model", folder.path.parent
    try:
        kept = kept_model(model, key=key, run_dir=run_dir, simulated=simulated)
    except ValueError as error:
        raise Refused([str(error)]) from None
    if kept.run != run:
        raise Refused([f"{key} = {model!r}: is {kept.run}; the parties' parts are of {run}"])
    return kept


def _gains(model: EarlierModel) -> dict[tuple[str, int], float]:
    return {
        (split.source, split.record): each.gains[node]
        for each in model.trees
        for node, split in each.tree.splits.items()
    }


def _check_records(
    columns: Mapping[str, SplitColumns], gains: Mapping[tuple[str, int], float]
) -> None:
    told = {(name, at) for name, own in columns.items() for at in range(len(own.groups))}
    if told != set(gains):
        wrong = sorted({name for name, _ in told ^ set(gains)})
        raise Refused([f"{', '.join(wrong)}: has other splits than trees.json of the training"])


def _covers(
    exchange: Exchange,
    asked: AllParties,
    parties: Mapping[str, TaskPart],
    columns: Mapping[str, SplitColumns],
) -> FloatArray:
    roster = Roster.from_bundles(
        [parties[name].key_bundle for name in columns], run=f"run-{exchange.run.run_id}"
    )
    groups = {name: own.groups for name, own in columns.items()}
    request = ImportanceRequest(roster.to_bytes(), groups).to_record()
    replies = asked.ask(
        dict.fromkeys(columns, request), IMPORTANCE, ImportanceReply.from_record, step="importance"
    )
    masked = [reply.masked for reply in replies.values()]
    sums = unmask_sum(masked, roster=roster, step=IMPORTANCE_STEP)
    return split_reals.join(sums, num_sites=len(columns))


def _lines(found: Mapping[str, Importance]) -> str:
    return "\n".join(
        f"{name}: {each.weight} splits, mean gain {each.gain:.4g}, mean cover {each.cover:.4g}"
        for name, each in _ranked(found)
    )


def _ranked(found: Mapping[str, Importance]) -> list[tuple[str, Importance]]:
    """Features by total gain, the largest first."""
    return sorted(found.items(), key=lambda pair: -pair[1].gain * pair[1].weight)
