"""Key numbers and words of the report on a use of a vertical model: prediction, importance, export.

Made from the summary: ``mode`` (``predict``, ``importance`` or ``export``), ``model`` (name of the
training), ``prediction`` (``direct`` or ``routed``), ``askers``, ``n-rows``; of an export ``trees``
and ``n-features``; of an importance ``n-features`` and ``importance.json`` beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapp.report.page import KeyNumber, Notice, Section, Table
from fedapp.report.vertical_xgboost_words import fingerprint_words
from fedapp.run_record import RunRecord

TITLE = "Use of a vertical XGBoost model"
CURVES = "trees.json"

_DIRECT = (
    "Owners of splits sealed for whoever asked on which side its rows are at all their splits, and "
    "it routed by itself. It learns these sides, also of splits that are not on a row's path, and "
    "no threshold. Others learn no prediction."
)
_ROUTED = (
    "Rows went, sealed, from the owner of a split to the owners of its children, level by level. "
    "Owners learn which rows arrive at their splits and at leaves below; whoever asked learns the "
    "sums over trees of its rows alone, which were added up under masks."
)
_SERVER = (
    "The server learns the shape of the model from who seals for whom, the number of rows and who "
    "asks; never a row, a side or a prediction."
)
_EXPORT = (
    "All parties have consented, and the server has read their parts in clear: names of columns, "
    "thresholds, weights of leaves, and of each leaf sums of Hessians over a party's own rows."
)

_IMPORTANCE = (
    "Each party told which of its own splits are on the same column, and its name where it "
    "consents (export-consent); else columns are numbered by first use. Gains are those by which "
    "the server let splits win; covers, sums of Hessians over the training rows of all parties, "
    "were added up by column under masks."
)


def is_use(run: RunRecord) -> bool:
    """Whether a run uses a model that is there, and trains none."""
    return str(run.setting("vertical-xgboost.mode", "train")) != "train"


def key_numbers(run: RunRecord) -> list[KeyNumber]:
    """Return how many rows were predicted, or features exported, and of which model."""
    model = KeyNumber("Model", str(run.summary.get("model", "–")), "of the training")
    if (mode := run.setting("vertical-xgboost.mode")) in ("export", "importance"):
        features = str(run.summary.get("n-features", "–"))
        words = "of all parties" if mode == "export" else "that some split uses"
        return [KeyNumber("Features", features, words), model]
    rows = str(run.summary.get("n-rows", "–"))
    return [KeyNumber("Rows", rows, "that all parties have"), model]


def notices(run: RunRecord) -> list[Notice]:
    """Return what a reader must not miss: that an export shows everything."""
    if run.setting("vertical-xgboost.mode") != "export" or run.status.get("status") != "ok":
        return []
    return [Notice("warning", "The whole model is in this folder, in clear: model.json.")]


def site_columns(run: RunRecord) -> dict[str, dict[str, str]]:
    """Return who got predictions: head to party to cell."""
    askers = run.summary.get("askers")
    if not isinstance(askers, list):
        return {}
    asker = run.setting("vertical-xgboost.asker")
    words = "of all rows" if asker else "of rows whose labels it owns"
    return {"got predictions": {str(name): words for name in askers}}


def sections(run: RunRecord, *, curves: Mapping[str, Any] | None, folder: Path) -> list[Section]:
    """Return who learnt what; there are no figures."""
    if run.setting("vertical-xgboost.mode") == "importance":
        return [
            Section("Importance of features", tables=_importance_table(run)),
            Section("Who learnt what", paragraphs=[_IMPORTANCE, *fingerprint_words(run)]),
        ]
    if run.setting("vertical-xgboost.mode") == "export":
        words = [_EXPORT]
    else:
        routed = run.setting("vertical-xgboost.prediction") == "routed"
        words = [_ROUTED if routed else _DIRECT, _SERVER]
    return [Section("Who learnt what", paragraphs=[*words, *fingerprint_words(run)])]


def _importance_table(run: RunRecord) -> list[Table]:
    found = run.summary.get("importance")
    if not isinstance(found, list) or not found:
        return []
    columns = {"feature": "text", "splits": "number", "mean gain": "number", "mean cover": "number"}
    rows = [
        [each["feature"], str(each["weight"]), f"{each['gain']:.4g}", f"{each['cover']:.4g}"]
        for each in found
    ]
    return [Table(columns, rows, caption="Features that some split uses, by total gain.")]
