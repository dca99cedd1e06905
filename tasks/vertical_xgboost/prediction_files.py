"""Predictions as a party writes them down: a CSV file that its owner alone may read."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from tasks.vertical_xgboost.fixed_point import FloatArray
from tasks.vertical_xgboost.routing import response


def predictions_path(folder: Path, name: str) -> Path:
    """File of a party's predictions in a folder."""
    return folder / f"{name}.predictions.csv"


def predictions_text(ids: Sequence[str], margins: FloatArray, objective: str) -> str:
    """Rows of ids, margins and predictions that read back to the last bit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "margin", "prediction"])
    predicted = response(margins, objective)
    writer.writerows(zip(ids, *margins.tolist(), *predicted.tolist(), strict=True))
    return text.getvalue()
