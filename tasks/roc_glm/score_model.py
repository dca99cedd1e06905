"""Model files: what the server sends a site so that it can score its own rows. Never a pickle.

Two forms are read. Coefficients::

    {"format": "fedapp-score-model", "kind": "logistic", "features": ["age", "size"],
     "coefficients": [0.03, 0.4], "intercept": -2.1,
     "cut-points": [...], "training-score-quantiles": [...]}

with ``kind`` ``"logistic"`` (probabilities) or ``"linear"`` (the linear predictor itself); the
last two keys may be absent. And the JSON that XGBoost writes (``binary:logistic``, numeric
features), which carries the same two lists as attributes ``fedapp-cut-points`` and
``fedapp-training-score-quantiles``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from tasks.roc_glm.survivor import FloatArray
from tasks.roc_glm.xgboost_rule import XGBoostRule, read_rule
from tasks.site.faults import SiteFault

Kind = Literal["logistic", "linear", "xgboost"]

FORMAT = "fedapp-score-model"
MOST_BYTES = 32 * 2**20
MOST_CUTS = 100_000

_CUTS = "cut-points"
_QUANTILES = "training-score-quantiles"
_REQUIRED = ("format", "kind", "features", "coefficients", "intercept")
_KEYS = (*_REQUIRED, _CUTS, _QUANTILES)
_FAULT = "bad-score-model"


@dataclass(frozen=True, eq=False)
class LinearRule:
    """A linear predictor, mapped to probabilities or not.

    Attributes
    ----------
    features : tuple of str
        Names of the columns.
    coefficients : (p,) float64
        In the units of the columns.
    intercept : float
    is_logistic : bool
        Whether scores are 1 / (1 + exp(-predictor)).
    """

    features: tuple[str, ...]
    coefficients: FloatArray
    intercept: float
    is_logistic: bool

    def scores(self, values: FloatArray) -> FloatArray:
        """Scores of rows; (n, p) to (n,), NaN where a feature is NaN or infinite, and only there.

        A predictor that is beyond the largest double is that one: which rows have no score, and
        are counted without noise, is not for whoever wrote the coefficients to say.
        """
        finite: NDArray[np.bool_] = np.asarray(np.isfinite(values).all(axis=1))
        known = np.where(finite[:, None], values, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            predictor = self.intercept + known @ self.coefficients
        beyond = ~np.isfinite(predictor)
        predictor[beyond] = self._large(known[beyond])
        scores = expit(predictor) if self.is_logistic else predictor
        return np.asarray(np.where(finite, scores, np.nan), dtype=np.float64)

    def _large(self, values: FloatArray) -> FloatArray:
        """Predictors of rows whose terms overflow; finite. Powers of two round nothing."""
        of_rule = np.frexp(np.abs([*self.coefficients, self.intercept]).max())[1]
        of_row = np.frexp(np.abs(values).max(axis=1, initial=1.0))[1]
        small = np.ldexp(values, -of_row[:, None]) @ np.ldexp(self.coefficients, -of_rule)
        small += np.ldexp(self.intercept, -of_rule - of_row)
        largest = np.finfo(np.float64).max
        with np.errstate(over="ignore"):
            whole = np.ldexp(small, of_rule + of_row)
        return np.asarray(np.clip(whole, -largest, largest), dtype=np.float64)

    def document(self) -> dict[str, Any]:
        """The rule as a JSON object, without its lists of cut points and quantiles."""
        return {
            "format": FORMAT,
            "kind": "logistic" if self.is_logistic else "linear",
            "features": list(self.features),
            "coefficients": self.coefficients.tolist(),
            "intercept": self.intercept,
        }


@dataclass(frozen=True, eq=False)
class ScoreModel:
    """A classifier that a site can score its rows with.

    Attributes
    ----------
    rule : LinearRule or XGBoostRule
        From features to scores.
    cut_points : (m,) float64
        Cut points that the model was published with, ascending; empty if it has none.
    training_quantiles : (Q,) float64
        Quantiles of the scores of its training rows at levels j / (Q + 1), ascending; empty if it
        has none.
    """

    rule: LinearRule | XGBoostRule
    cut_points: FloatArray = field(default_factory=lambda: np.empty(0))
    training_quantiles: FloatArray = field(default_factory=lambda: np.empty(0))

    @classmethod
    def from_json(cls, text: str) -> ScoreModel:
        """Read a model file.

        Parameters
        ----------
        text : str
            Its content, at most 32 MiB.

        Raises
        ------
        SiteFault
            ``"bad-score-model"``: all faults at once.
        """
        document = _parsed(text)
        if "learner" in document:
            rule, attributes = read_rule(document)
            given = {
                key: _parsed_list(attributes[f"fedapp-{key}"])
                for key in (_CUTS, _QUANTILES)
                if f"fedapp-{key}" in attributes
            }
            lists, faults = _lists(given, in_unit_interval=True)
            if faults:
                raise SiteFault(_FAULT, *faults)
            return cls(rule, *lists)
        return cls(*_read_linear(document))

    def to_json(self) -> str:
        """The model file; `from_json` of it predicts the same."""
        document = self.rule.document()
        lists = {_CUTS: self.cut_points.tolist(), _QUANTILES: self.training_quantiles.tolist()}
        if isinstance(self.rule, LinearRule):
            document |= lists
        else:
            document["learner"]["attributes"] = {
                f"fedapp-{key}": json.dumps(values) for key, values in lists.items() if values
            }
        return json.dumps(document, ensure_ascii=False, allow_nan=False)

    @property
    def kind(self) -> Kind:
        """``"logistic"``, ``"linear"`` or ``"xgboost"``."""
        if isinstance(self.rule, XGBoostRule):
            return "xgboost"
        return "logistic" if self.rule.is_logistic else "linear"

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that it needs, in its order."""
        return self.rule.features

    def predict(self, frame: pd.DataFrame, *, columns: Sequence[str] | None = None) -> FloatArray:
        """Scores of the rows of a table.

        Parameters
        ----------
        frame : DataFrame
            Further columns are ignored.
        columns : sequence of str, optional
            The table's names of `features`, in the model's order; the same names by default.

        Returns
        -------
        (n,) float64
            NaN for a row that has no score: a feature is missing (XGBoost knows a way for these)
            or infinite.

        Raises
        ------
        SiteFault
            ``"unknown-column"`` or ``"bad-features"``; names and counts only.
        """
        names = list(self.features) if columns is None else list(columns)
        if len(names) != len(self.features):
            raise SiteFault(
                "bad-features",
                f"{len(names)} feature columns are given, the score model has "
                f"{len(self.features)}: {', '.join(self.features)}",
            )
        missing = [name for name in names if name not in frame.columns]
        if missing:
            raise SiteFault(
                "unknown-column",
                *(f'no column "{name}", a feature of the score model' for name in missing),
            )
        faults = [
            f'column "{name}": the score model needs numbers'
            for name in names
            if not pd.api.types.is_numeric_dtype(frame[name].dtype)
            or pd.api.types.is_complex_dtype(frame[name].dtype)
        ]
        if faults:
            raise SiteFault("bad-features", *faults)
        values = np.column_stack(
            [frame[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in names]
        )
        return self.rule.scores(values)

    def quantiles_at(self, cells: int) -> FloatArray:
        """Training quantiles at levels j / cells, read off the shipped ones in straight lines.

        Parameters
        ----------
        cells : int
            At least 2; more cells than quantiles were shipped for give cuts in between.

        Returns
        -------
        (cells - 1,) float64
            Ascending, perhaps with ties; `tasks.roc_glm.counts.quantile_cuts` takes them.

        Raises
        ------
        SiteFault
            ``"bad-score-model"`` if the model ships none.
        """
        shipped = len(self.training_quantiles)
        if not shipped:
            raise SiteFault(
                _FAULT, f"the score model has no {_QUANTILES}, which cut-points = 'quantile' needs"
            )
        levels = np.arange(1, shipped + 1) / (shipped + 1)
        return np.interp(np.arange(1, cells) / cells, levels, self.training_quantiles)


def score_quantiles(scores: FloatArray, *, number: int = 99) -> FloatArray:
    """Quantiles of training scores to ship with a model, at levels j / (number + 1).

    They are interpolated between neighbouring scores of training rows: with fewer than about ten
    rows a quantile they come close to being single patients' values.

    Parameters
    ----------
    scores : (n,) float64
        Finite, at least one.
    number : int
        At least 1.
    """
    return np.asarray(np.quantile(scores, np.arange(1, number + 1) / (number + 1)))


def _parsed(text: str) -> dict[str, Any]:
    if len(text) > MOST_BYTES or len(text.encode()) > MOST_BYTES:
        raise SiteFault(_FAULT, f"the score model has more than {MOST_BYTES} bytes")
    try:
        document = json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
    except RecursionError:
        raise SiteFault(_FAULT, "the score model is nested too deeply") from None
    except ValueError as error:
        raise SiteFault(_FAULT, f"the score model is not JSON ({error})") from None
    if not isinstance(document, dict):
        raise SiteFault(_FAULT, "the score model must be a JSON object")
    return document


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a key is there twice")
    return document


def _parsed_list(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _read_linear(document: Mapping[str, Any]) -> tuple[LinearRule, FloatArray, FloatArray]:
    faults = [f"no key '{key}'" for key in _REQUIRED if key not in document]
    faults += [f"unknown key '{key[:64]}'" for key in document if key not in _KEYS]
    if "format" in document and document["format"] != FORMAT:
        faults.append(f"format: must be '{FORMAT}' (or the JSON of XGBoost, with 'learner')")
    kind = document.get("kind", "linear")
    if kind not in ("logistic", "linear"):
        faults.append("kind: must be 'logistic' or 'linear'")
    features = document.get("features", [])
    is_text = isinstance(features, list) and all(isinstance(n, str) and n for n in features)
    if not is_text or ("features" in document and not features):
        faults.append("features: must be a list of at least one name")
        features = []
    elif len(set(features)) < len(features):
        faults.append("features: every name must be there once")
    coefficients = _numbers(document.get("coefficients", []))
    if coefficients is None:
        faults.append("coefficients: must be a list of finite numbers")
    elif {"features", "coefficients"} <= set(document) and len(coefficients) != len(features):
        faults.append(f"coefficients: {len(coefficients)} for {len(features)} features")
    intercept = _numbers([document.get("intercept", 0.0)])
    if intercept is None:
        faults.append("intercept: must be a finite number")
    (cuts, quantiles), more = _lists(document, in_unit_interval=kind == "logistic")
    faults += more
    if faults or coefficients is None or intercept is None:
        raise SiteFault(_FAULT, *faults)
    rule = LinearRule(tuple(features), coefficients, float(intercept[0]), kind == "logistic")
    return rule, cuts, quantiles


def _lists(
    document: Mapping[str, Any], *, in_unit_interval: bool
) -> tuple[tuple[FloatArray, FloatArray], list[str]]:
    """Cut points and training quantiles, and what is wrong with them."""
    faults, lists = [], []
    for key, strict in ((_CUTS, True), (_QUANTILES, False)):
        values = _numbers(document.get(key, []))
        if values is None or len(values) > MOST_CUTS:
            faults.append(f"{key}: must be a list of at most {MOST_CUTS} finite numbers")
            values = np.empty(0)
        steps = np.diff(values)
        if (steps < 0).any() or (strict and (steps == 0).any()):
            faults.append(f"{key}: must ascend" + (", each value once" if strict else ""))
        if in_unit_interval and len(values) and (values.min() < 0 or values.max() > 1):
            faults.append(f"{key}: must lie in [0, 1], as the scores do")
        lists.append(values)
    return (lists[0], lists[1]), faults


def _numbers(values: Any) -> FloatArray | None:
    """A list of finite numbers as an array; None if it is anything else."""
    if not isinstance(values, list):
        return None
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return None
    try:
        numbers = np.array([float(value) for value in values], dtype=np.float64)
    except OverflowError:
        return None
    return numbers if all(map(math.isfinite, numbers.tolist())) else None
