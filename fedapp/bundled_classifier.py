"""Fit the classifier that comes with the ROC-GLM task anew.

``python -m fedapp.bundled_classifier`` writes ``fedapp/site_data/breast_cancer_model.py``. The
model is made to be validated, not to be used: it sees texture and shape of the cell nuclei but
not their size, since with size the two classes hardly overlap and a ROC curve has nothing to show.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedapp.site_data import breast_cancer
from tasks.roc_glm.score_model import ScoreModel
from tasks.roc_glm.score_model_export import from_sklearn_logistic

FEATURES = ("mean texture", "mean smoothness", "mean compactness", "mean symmetry")

_HEAD = '''"""The bundled classifier of the ROC-GLM task, a model file as text.

``python -m fedapp.bundled_classifier`` writes this module and says what it is fitted on.
"""

from __future__ import annotations

'''


def fit() -> ScoreModel:
    """Fit a logistic regression on standardized features of the training rows.

    Returns
    -------
    ScoreModel
        With 49 quantiles of the training scores.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    training = breast_cancer.load_all()[breast_cancer.is_training()]
    features, label = training[list(FEATURES)], training[breast_cancer.LABEL]
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-10, max_iter=10_000))
    pipeline.fit(features, label)
    return from_sklearn_logistic(
        pipeline,
        training_scores=pipeline.predict_proba(features)[:, 1],
        num_quantiles=49,
    )


def module_text(model: ScoreModel) -> str:
    """The module that holds the model, one number a line."""
    text = json.dumps(json.loads(model.to_json()), indent=2)
    return f'{_HEAD}MODEL = """\\\n{text}\n"""\n'


def main() -> None:
    """Write the module."""
    path = Path(breast_cancer.__file__).with_name("breast_cancer_model.py")
    path.write_text(module_text(fit()), encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
