"""Predictions as a party writes them down: a CSV file that its owner alone may read."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tasks.vertical_xgboost.fixed_point import FloatArray
from tasks.vertical_xgboost.routing import response


def predictions_path(folder: Path, name: str) -> Path:
    """File of a party's predictions in a folder."""
    return folder / f"{name}.predictions.csv"


def margin_columns(classes: Sequence[str]) -> list[str]:
    """Names of the columns of margins: ``margin``, or ``margin-NAME`` of each class."""
    return [f"margin-{name}" for name in classes] or ["margin"]


def predictions_text(
    ids: Sequence[str], margins: FloatArray, objective: str, classes: Sequence[str]
) -> str:
    """Rows of ids, margins and predictions that read back to the last bit.

    Of several classes the probability of each is told, and as the prediction the name of the most
    probable one (the first of equal ones).

    Parameters
    ----------
    ids : sequence of n str
    margins : (roots, n) float64
    objective : str
    classes : sequence of str
        Names of the classes, where each has a margin; else none.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    found = response(margins, objective)
    columns = [*margins.tolist(), *found.tolist()]
    heads = ["id", *margin_columns(classes)]
    if classes:
        heads += [f"probability-{name}" for name in classes]
        columns.append([classes[at] for at in np.argmax(margins, axis=0)])
    writer.writerow([*heads, "prediction"])
    writer.writerows(zip(ids, *columns, strict=True))
    return text.getvalue()
