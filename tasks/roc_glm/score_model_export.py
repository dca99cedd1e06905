"""Model files from fitted scikit-learn and XGBoost models, for whoever has trained one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tasks.roc_glm.score_model import LinearRule, ScoreModel, score_quantiles
from tasks.roc_glm.xgboost_rule import read_rule


def from_sklearn_logistic(
    model: Any,
    *,
    features: Sequence[str] | None = None,
    positive: Any = None,
    training_scores: ArrayLike | None = None,
    cut_points: ArrayLike = (),
    num_quantiles: int = 99,
) -> ScoreModel:
    """Coefficients of a logistic regression, in the units of its raw features.

    Parameters
    ----------
    model : LogisticRegression, or Pipeline of StandardScaler and LogisticRegression
        Fitted on two classes.
    features : sequence of str, optional
        Names of the columns; those of the data frame it was fitted on by default.
    positive : optional
        Which of its classes is the positive one; the second (``model.classes_[1]``) by default.
    training_scores : (n,) array-like, optional
        Scores of the training rows, whose quantiles travel with the model.
    cut_points : (m,) array-like
        Cut points to travel with it.
    num_quantiles : int
        How many quantiles.

    Raises
    ------
    TypeError
        Of another model.
    ValueError
        Not two classes, no names, or lists that a model file refuses (a `SiteFault`).
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    steps = [step for _, step in model.steps] if isinstance(model, Pipeline) else [model]
    kinds = [type(step) for step in steps]
    if kinds not in ([LogisticRegression], [StandardScaler, LogisticRegression]):
        raise TypeError(
            f"model = {' -> '.join(kind.__name__ for kind in kinds)}: must be LogisticRegression, "
            "or a Pipeline of StandardScaler and LogisticRegression"
        )
    regression = steps[-1]
    classes = list(regression.classes_)
    if len(classes) != 2:
        raise ValueError(f"model.classes_: {len(classes)} classes; must be 2")
    if positive is not None and positive not in classes:
        raise ValueError(f"positive = {positive!r}: must be one of {classes}")
    names = features if features is not None else getattr(steps[0], "feature_names_in_", None)
    if names is None or len(names) != regression.coef_.shape[1]:
        raise ValueError(f"features: must be the names of {regression.coef_.shape[1]} columns")
    coefficients = regression.coef_[0].astype(np.float64)
    intercept = float(np.ravel(regression.intercept_)[0])
    if len(steps) == 2:
        scaler = steps[0]
        if scaler.scale_ is not None:
            coefficients = coefficients / scaler.scale_
        if scaler.mean_ is not None and scaler.with_mean:
            intercept -= float(coefficients @ scaler.mean_)
    if positive is not None and positive == classes[0]:
        coefficients, intercept = -coefficients, -intercept
    rule = LinearRule(tuple(str(name) for name in names), coefficients, intercept, True)
    return _with_lists(rule, training_scores, cut_points, num_quantiles)


def from_xgboost(
    model: Any,
    *,
    training_scores: ArrayLike | None = None,
    cut_points: ArrayLike = (),
    num_quantiles: int = 99,
) -> ScoreModel:
    """Trees of an XGBoost classifier.

    Parameters
    ----------
    model : xgboost.Booster or xgboost.XGBClassifier
        Objective ``binary:logistic``, numeric features with names. After early stopping the trees
        up to the best round are taken.
    training_scores, cut_points, num_quantiles
        As for `from_sklearn_logistic`.

    Raises
    ------
    TypeError
        Of another model.
    SiteFault
        ``"bad-score-model"``: it has something that model files do not.
    """
    import xgboost

    booster = model.get_booster() if isinstance(model, xgboost.XGBClassifier) else model
    if not isinstance(booster, xgboost.Booster):
        raise TypeError(
            f"model: must be an xgboost Booster or XGBClassifier, not {type(model).__name__}"
        )
    rule, _ = read_rule(json.loads(bytes(booster.save_raw("json"))))
    return _with_lists(rule, training_scores, cut_points, num_quantiles)


def _with_lists(
    rule: Any, training_scores: ArrayLike | None, cut_points: ArrayLike, num_quantiles: int
) -> ScoreModel:
    quantiles = (
        np.empty(0)
        if training_scores is None
        else score_quantiles(np.asarray(training_scores, dtype=np.float64), number=num_quantiles)
    )
    model = ScoreModel(rule, np.asarray(cut_points, dtype=np.float64), quantiles)
    return ScoreModel.from_json(model.to_json())  # refuses what no reader would take
