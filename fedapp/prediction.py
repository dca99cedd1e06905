"""Predict survival of new rows by the model of a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fedapp.run_folder import RunFolder
from fedapp.run_record import RunFolderError
from fedapp.site_data import read_file
from tasks.site.faults import SiteFault
from tasks.survival.predictor import SurvivalPredictor


def predict_file(run: Path, data: Path, *, times: Sequence[float] = ()) -> pd.DataFrame:
    """Predict every row of a file.

    Parameters
    ----------
    run : Path
        A run folder, or its model file.
    data : Path
        CSV or Parquet file with the model's feature columns; others are ignored.
    times : sequence of float
        Times at which survival is wanted, within the model's time grid, each once; default its
        quartiles.

    Returns
    -------
    DataFrame
        ``risk`` (higher means an earlier event; see `SurvivalPredictor.risk`) and
        ``survival(t)`` for each t.

    Raises
    ------
    ValueError
        If there is no model, or the file does not fit it; everything that is wrong at once.
    """
    predictor = SurvivalPredictor.load(_model_file(run))
    try:
        frame = read_file(data.expanduser().absolute(), where=str(data))
    except SiteFault as fault:
        raise ValueError(str(fault)) from None
    grid = predictor.baseline.horizon
    chosen = list(dict.fromkeys(times)) or [grid / 4, grid / 2, 3 * grid / 4]
    survival = predictor.survival(frame, chosen)
    columns = {f"survival({_shown(time)})": survival[:, k] for k, time in enumerate(chosen)}
    return pd.DataFrame({"risk": np.asarray(predictor.risk(frame)), **columns})


def _shown(time: float) -> str:
    """Write a time as short as it can be told from others."""
    short = f"{time:g}"
    return short if float(short) == time else repr(float(time))


def _model_file(run: Path) -> Path:
    if run.is_file():
        return run
    try:
        folder = RunFolder.open(run)
    except RunFolderError as error:
        raise ValueError(error) from None
    model = folder.model_path()
    if not model.is_file():
        record = folder.read()
        task = str(record.config.get("task", ""))
        if task not in ("", "survival"):
            raise ValueError(f"{run}: a run of {task}; predict is for survival models")
        status = record.status.get("status", "")
        raise ValueError(f"{run}: this run left no model (its status is {status!r})")
    return model
