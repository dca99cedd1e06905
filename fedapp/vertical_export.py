"""The whole of a vertical model as one XGBoost file, with the consent of all its parties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from logging import INFO
from pathlib import Path
from typing import Any

from flwr.supercore import log

from fedapp.run_config import RunConfig
from fedapp.run_folder import RunFolder
from fedapp.vertical_skeleton import skeleton_of
from strategies.all_parties import AllParties
from strategies.exchange import Disclosure, Exchange
from strategies.vertical_ending import telling_the_end
from strategies.vertical_prediction import check_model_parts
from tasks.site.faults import SiteFault
from tasks.site.messages import TaskPart
from tasks.vertical_xgboost.end_messages import STOP, StopRequest
from tasks.vertical_xgboost.export_messages import EXPORT, ExportReply, ExportRequest
from tasks.vertical_xgboost.model_part import ModelPart, part_path
from tasks.vertical_xgboost.xgboost_document import importances, xgboost_document

MODEL = "model.json"
IMPORTANCE = "importance.json"

EXPORT_DISCLOSURES: Mapping[str, Disclosure] = {
    EXPORT: Disclosure("export", ExportRequest.reveals, ExportReply.reveals),
    STOP: Disclosure("stop", StopRequest.reveals, "nothing"),
}
"""Ledger words of an export, by message type."""


def export(
    exchange: Exchange, config: RunConfig, folder: RunFolder, parties: Mapping[str, TaskPart]
) -> dict[str, Any]:
    """Ask parties that have consented for their parts, and write the model of all.

    Parameters
    ----------
    exchange : Exchange
    config : RunConfig
    folder : RunFolder
        Gets ``model.json`` (XGBoost's) and ``importance.json``.
    parties : mapping of str to TaskPart
        Introduced, and so asked for their consent.

    Returns
    -------
    dict
        The run's summary.
    """
    asked = AllParties(exchange)
    with telling_the_end(asked):
        facts = check_model_parts(parties, config.vertical_xgboost)
        replies = asked.ask_each(
            dict.fromkeys(facts, ExportRequest().to_record()),
            EXPORT,
            lambda name, content: ExportReply.from_record(content).part(name),
            step="export",
        )
        document = xgboost_document(replies)
    folder.write_json(MODEL, document)
    folder.write_json(IMPORTANCE, _importance_document(replies))
    log(INFO, "the model: %s", folder.path / MODEL)
    any_part = next(iter(replies.values()))
    return {
        "mode": config.vertical_xgboost.mode,
        "model": any_part.run,
        "trees": len(any_part.trees) * any_part.num_roots,
        "n-sites": len(replies),
        "n-features": len(document["learner"]["feature_names"]),
    }


def exported_model(run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """XGBoost's document and importances of a run folder.

    Parameters
    ----------
    run : Path
        Of an export; or of a simulated training whose configuration has consent of all.

    Raises
    ------
    ValueError
        With what is missing, or the parties that do not consent.
    """
    record = RunFolder.open(run).read()
    mode = record.setting("vertical-xgboost.mode", "")
    if mode == "export":
        folder = RunFolder.open(run)
        model, importance = folder.read_json(MODEL), folder.read_json(IMPORTANCE)
        if model is None or importance is None:
            reason = record.status.get("reason") or f"{run} holds no {MODEL}"
            raise ValueError(str(reason))
        return model, importance
    skeleton = skeleton_of(run)
    names = [str(name) for name in skeleton["parties"]]
    if not (run / "parties").is_dir():
        raise ValueError(
            f"{run}: the parties have their parts elsewhere; ask them with "
            f"vertical-xgboost.mode=export vertical-xgboost.model={skeleton['run']}"
        )
    if record.setting("vertical-xgboost.export-consent") is not True:
        raise ValueError(
            f"{', '.join(names)}: vertical-xgboost.export-consent is not true in this run, so they "
            "do not let their parts of the model be seen"
        )
    try:
        parts = {name: ModelPart.load(part_path(run / "parties", name)) for name in names}
        document = xgboost_document(parts)
    except SiteFault as fault:
        raise ValueError(str(fault)) from None
    if {part.run for part in parts.values()} != {skeleton["run"]}:
        raise ValueError(f"{run}: the parts are not of the training of trees.json")
    return document, _importance_document(parts)


def _importance_document(parts: Mapping[str, ModelPart]) -> dict[str, Any]:
    return {name: asdict(each) for name, each in importances(parts).items()}
