"""From a site's table to its scores by class, and to the sensitivity of the model on its rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.rows import LabelCoding, RocRows, read_rows
from tasks.roc_glm.score_model import ScoreModel
from tasks.roc_glm.sensitivity import SensitivityEstimate, estimate_sensitivity
from tasks.roc_glm.survivor import FloatArray
from tasks.site.faults import SiteFault
from tasks.site.not_estimable import NotEstimable


def read_table(
    frame: pd.DataFrame, *, label: str, score: str, config: RocGlmConfig, model: ScoreModel | None
) -> tuple[RocRows, LabelCoding]:
    """Read labels and scores of a table, or predict the scores.

    Parameters
    ----------
    frame : DataFrame
    label, score : str
        Columns; `score` is not looked for where there is a model.
    config : RocGlmConfig
    model : ScoreModel or None

    Raises
    ------
    SiteFault
        ``"unknown-column"`` or what `read_rows` and the model say.
    """
    keys = {label: "roc-glm.label"} | ({} if model is not None else {score: "roc-glm.score"})
    if missing := [column for column in keys if column not in frame.columns]:
        raise SiteFault(
            "unknown-column", *(f'no column "{name}" ({keys[name]})' for name in missing)
        )
    is_real = model is not None or _is_real(frame[score])
    return read_rows(
        _labels(frame[label]),
        # What is no column of numbers is read one by one, and refused without its values.
        _scores(frame, score=score, config=config, model=model) if is_real else frame[score],
        positive_label=config.positive_label,
        negative_label=config.negative_label,
        missing=config.missing,
    )


def table_sensitivity(
    frame: pd.DataFrame, *, label: str, score: str, config: RocGlmConfig, model: ScoreModel | None
) -> SensitivityEstimate:
    """Estimate the L2 sensitivity of the scores on a table's rows; parameters as `read_table`.

    Features are those of the configuration, else the model's, else every other column.

    Raises
    ------
    SiteFault
        ``"unknown-column"``, ``"bad-rows"`` or ``"no-sensitivity"``.
    """
    names = config.feature_columns or (list(model.features) if model is not None else [])
    names = names or [str(name) for name in frame.columns if name not in (label, score)]
    missing = [name for name in names if name not in frame.columns]
    if missing or not names:
        raise SiteFault(
            "unknown-column",
            *(f'no column "{name}" (roc-glm.features)' for name in missing),
            *([] if names else ["roc-glm.estimate-sensitivity needs columns of features"]),
        )
    scores = _scores(frame, score=score, config=config, model=model)
    kept = np.isfinite(scores) & frame[names].notna().all(axis=1).to_numpy()
    columns = [frame.loc[kept, name].to_numpy() for name in names]
    try:
        return estimate_sensitivity(columns, scores[kept])
    except (NotEstimable, ValueError):
        raise SiteFault(
            "no-sensitivity",
            "roc-glm.estimate-sensitivity: no two neighbouring rows differ in score; give "
            "roc-glm.sensitivity",
        ) from None


def _scores(
    frame: pd.DataFrame, *, score: str, config: RocGlmConfig, model: ScoreModel | None
) -> FloatArray:
    if model is not None:
        return model.predict(frame, columns=config.feature_columns or None)
    if not _is_real(frame[score]):
        raise SiteFault("bad-rows", "scores are not numbers")
    return np.asarray(frame[score].to_numpy(dtype=np.float64, na_value=np.nan))


def _is_real(column: pd.Series) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column.dtype)) and column.dtype.kind != "c"


def _labels(column: pd.Series) -> Iterable[Any]:
    # Numbers as an array, which is spelled a thousand times faster.
    is_number = column.dtype.kind in "biuf"
    labels: Iterable[Any] = column.to_numpy() if is_number else column.tolist()
    return labels
