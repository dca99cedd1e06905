"""The bundled data of the ROC-GLM task: breast tumours, and the scores of a bundled classifier.

Of the 569 rows, 169 trained the classifier (`fedapp.bundled_classifier` fits it anew) and are
left out; the other 400 are there to validate it.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tasks.site.faults import SiteFault

if TYPE_CHECKING:
    from tasks.roc_glm.score_model import ScoreModel

ROWS = 569
TRAINING_ROWS = 169

LABEL = "label"
SCORE = "score"

_MEASURES = (
    "radius",
    "texture",
    "perimeter",
    "area",
    "smoothness",
    "compactness",
    "concavity",
    "concave points",
    "symmetry",
    "fractal dimension",
)
FEATURES = (
    *(f"mean {name}" for name in _MEASURES),
    *(f"{name} error" for name in _MEASURES),
    *(f"worst {name}" for name in _MEASURES),
)


def load_validation() -> pd.DataFrame:
    """The rows that the classifier was not trained on.

    Returns
    -------
    DataFrame
        400 rows: 30 features, ``label`` (1 malignant, 0 benign; scikit-learn has it the other way
        round) and ``score``, the bundled classifier's probability of a malignant tumour.
    """
    frame = load_all()[~is_training()].reset_index(drop=True)
    return frame.assign(**{SCORE: classifier().predict(frame)})


def load_all() -> pd.DataFrame:
    """All 569 rows, features and ``label``, in the order of their source."""
    spec = find_spec("sklearn")
    if spec is None:
        raise SiteFault("missing-package", 'this data set needs the package "scikit-learn"')
    for folder in spec.submodule_search_locations or ():
        path = Path(folder) / "datasets" / "data" / "breast_cancer.csv"
        if path.is_file():  # importing the package takes seconds
            cells = np.loadtxt(path, delimiter=",", skiprows=1)
            break
    else:
        loader = importlib.import_module("sklearn.datasets").load_breast_cancer
        cells = np.column_stack(loader(return_X_y=True))
    frame = pd.DataFrame(cells[:, :-1], columns=list(FEATURES))
    frame[LABEL] = 1 - cells[:, -1].astype(np.int64)
    return frame


def is_training() -> NDArray[np.bool_]:
    """Which rows trained the classifier; (569,) bool, 169 of them true.

    569 is prime, so the products below are all different modulo it: a scattered choice of exactly
    169 rows that no version of a random generator can change.
    """
    return np.arange(ROWS) * 97 % ROWS < TRAINING_ROWS


@cache
def classifier() -> ScoreModel:
    """The bundled classifier, with the quantiles of its training scores."""
    from fedapp.site_data.breast_cancer_model import MODEL
    from tasks.roc_glm.score_model import ScoreModel

    return ScoreModel.from_json(MODEL)
