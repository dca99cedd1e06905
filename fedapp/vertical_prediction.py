"""A run of the vertical task in which the parties of a model predict new rows."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from logging import INFO
from pathlib import Path
from typing import Any

import pandas as pd
from flwr.supercore import log

from fedapp.run_config import RunConfig
from fedapp.run_folder import RunFolder
from strategies.exchange import Exchange
from strategies.vertical_prediction import VerticalPrediction
from tasks.site.messages import TaskPart
from tasks.vertical_xgboost.prediction_files import predictions_path

PREDICTIONS = "predictions.parquet"


def predict(
    exchange: Exchange,
    config: RunConfig,
    folder: RunFolder,
    parties: Mapping[str, TaskPart],
    *,
    parts: Path | None,
) -> dict[str, Any]:
    """Predict new rows.

    Parameters
    ----------
    exchange : Exchange
    config : RunConfig
    folder : RunFolder
        Of this run; in a simulation gets ``predictions.parquet``: columns ``id``, ``margin``,
        ``prediction``, of all parties that got some; with classes ``margin-NAME`` and
        ``probability-NAME`` of each, and the name of the most probable one as ``prediction``.
    parties : mapping of str to TaskPart
        Introduced.
    parts : Path or None
        Simulation only: where parties write their predictions.

    Returns
    -------
    dict
        The run's summary.
    """
    vertical = config.vertical_xgboost
    strategy = VerticalPrediction(
        config=vertical, parties=parties, folder=str(parts) if parts else ""
    )
    result = strategy.start(grid=exchange, timeout=config.general.timeout)
    summary: dict[str, Any] = {
        "mode": vertical.mode,
        "model": result.run,
        "prediction": vertical.prediction,
        "askers": list(result.askers),
        "n-rows": result.num_rows,
        "n-sites": len(result.parties),
        "crypto-seconds": {name: round(spent, 4) for name, spent in result.seconds.items()},
        "roster-fingerprint": result.roster_fingerprint,
    }
    log(INFO, "predictions of %d rows are at %s", result.num_rows, ", ".join(result.askers))
    if parts is not None and (found := _gathered(parts, result.askers)) is not None:
        summary["n-predicted"] = len(found)
        buffer = io.BytesIO()
        found.to_parquet(buffer, index=False)
        folder.write_bytes(PREDICTIONS, buffer.getvalue())
    return summary


def _gathered(parts: Path, askers: Sequence[str]) -> pd.DataFrame | None:
    """Predictions of all askers in the order of ids; None where they are elsewhere."""
    paths = [predictions_path(parts, name) for name in askers]
    if not all(path.is_file() for path in paths):
        return None
    frames = [_read(path) for path in paths]
    filled = [frame for frame in frames if len(frame)] or frames[:1]  # some own no label
    return pd.concat(filled).sort_values("id", kind="stable").reset_index(drop=True)


def _read(path: Path) -> pd.DataFrame:
    columns = pd.read_csv(path, nrows=0).columns
    names = ["id"] if "margin" in columns else ["id", "prediction"]  # of several classes
    return pd.read_csv(
        path, dtype=dict.fromkeys(names, str), float_precision="round_trip", keep_default_na=False
    )
