"""The bundled classifier of the ROC-GLM task: shipped figures, data and scores, dealt to sites."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from fedapp import bundled_classifier
from fedapp.site_data import BUNDLED, breast_cancer, bundled_set, load_frame
from tasks.roc_glm.counts import count_in_cells, equal_cuts, quantile_cuts
from tasks.roc_glm.rows import read_rows
from tasks.site.faults import SiteFault

ROOT = Path(__file__).parents[1]


def part(site: int, sites: int, seed: int = 0) -> pd.DataFrame:
    node = {"partition-id": site, "num-partitions": sites}
    return load_frame(node, data="breast-cancer", seed=seed)


def test_rows_are_scikit_learns_with_malignant_as_1() -> None:
    oracle = load_breast_cancer(as_frame=True)
    whole = breast_cancer.load_all()
    pd.testing.assert_frame_equal(
        whole.drop(columns="label"), oracle.data, check_exact=True, check_names=False
    )
    assert list(oracle.target_names) == ["malignant", "benign"]
    np.testing.assert_array_equal(whole["label"], 1 - oracle.target)


def test_rows_by_the_loader_where_the_file_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    by_file = breast_cancer.load_all()
    load_breast_cancer()
    monkeypatch.setattr(Path, "is_file", lambda _: False)
    pd.testing.assert_frame_equal(breast_cancer.load_all(), by_file, check_exact=True)


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breast_cancer, "find_spec", lambda _: None)
    with pytest.raises(SiteFault, match='"scikit-learn"') as caught:
        breast_cancer.load_all()
    assert caught.value.code == "missing-package"


def test_training_and_validation_rows_are_apart() -> None:
    training = breast_cancer.is_training()
    assert (len(training), training.sum()) == (569, 169)
    whole, validation = breast_cancer.load_all(), breast_cancer.load_validation()
    kept = whole[~training].reset_index(drop=True)
    pd.testing.assert_frame_equal(validation.drop(columns="score"), kept)
    # both classes in their usual share on either side: 212 of 569 are malignant
    assert 0.3 < whole[training]["label"].mean() < 0.45
    assert 0.3 < validation["label"].mean() < 0.45


def test_shipped_figures_are_those_of_a_new_fit() -> None:
    shipped, anew = breast_cancer.classifier(), bundled_classifier.fit()
    assert shipped.kind == "logistic"
    assert shipped.features == anew.features == bundled_classifier.FEATURES
    np.testing.assert_allclose(shipped.rule.coefficients, anew.rule.coefficients, rtol=1e-5)
    np.testing.assert_allclose(shipped.rule.intercept, anew.rule.intercept, rtol=1e-5)
    np.testing.assert_allclose(shipped.training_quantiles, anew.training_quantiles, atol=1e-6)
    module = ROOT / "fedapp" / "site_data" / "breast_cancer_model.py"
    assert module.read_text(encoding="utf-8") == bundled_classifier.module_text(shipped)


def test_shipped_figures_against_a_fit_by_hand() -> None:
    data = load_breast_cancer(as_frame=True)
    training = np.array([row * 97 % 569 < 169 for row in range(569)])
    features = data.data[["mean texture", "mean smoothness", "mean compactness", "mean symmetry"]]
    scaler = StandardScaler().fit(features[training])
    regression = LogisticRegression(tol=1e-10, max_iter=10_000)
    regression.fit(scaler.transform(features[training]), (data.target == 0)[training])
    expected = regression.predict_proba(scaler.transform(features[~training]))[:, 1]
    validation = BUNDLED["breast-cancer"].load()
    np.testing.assert_allclose(validation["score"], expected, atol=1e-6)
    assert 0.8 < roc_auc_score(validation["label"], validation["score"]) < 0.95


def test_parts_of_the_sites_make_up_the_whole() -> None:
    data = bundled_set({"partition-id": 0, "num-partitions": 5}, data="breast-cancer")
    assert data is not None
    assert (data.task, data.label, data.score, data.positive_label) == (
        "roc-glm",
        "label",
        "score",
        "1",
    )
    parts = [part(site, 5) for site in range(5)]
    assert [len(frame) for frame in parts] == [80] * 5
    assert list(parts[0].columns) == [*breast_cancer.FEATURES, "label", "score"]
    together = pd.concat(parts).sort_values(list(breast_cancer.FEATURES), ignore_index=True)
    whole = data.load().sort_values(list(breast_cancer.FEATURES), ignore_index=True)
    pd.testing.assert_frame_equal(together, whole)


@pytest.mark.parametrize("seed", range(20))
def test_five_sites_pass_the_privacy_level_and_their_curve_exists(seed: int) -> None:
    counts = None
    for site in range(5):
        frame = part(site, 5, seed)
        rows, coding = read_rows(frame["label"], frame["score"], positive_label="1")
        assert min(rows.num_negative, rows.num_positive) >= 5
        assert rows.in_unit_interval
        assert (coding.positive, coding.negative) == ("1", "0")
        cells = count_in_cells(rows, equal_cuts(50))
        counts = cells if counts is None else counts + cells
    assert counts is not None
    inside = counts.threshold_counts(28)
    assert np.count_nonzero((inside > 0) & (inside < counts.num_positive)) >= 10


def test_training_quantiles_make_cells_of_like_size() -> None:
    model = BUNDLED["breast-cancer"].classifier
    assert model is not None
    cuts = quantile_cuts(model().quantiles_at(10))
    assert len(cuts) == 9
    scores = breast_cancer.load_validation()["score"]
    shares = np.diff(np.searchsorted(np.sort(scores), cuts), prepend=0, append=400) / 400
    assert (shares > 0.03).all()
    assert (shares < 0.2).all()


def test_rows_come_fast_and_without_importing_scikit_learn() -> None:
    code = """
import pandas, sys, time
from fedapp.site_data import load_frame
start = time.perf_counter()
node = {"partition-id": 1, "num-partitions": 5}
frame = load_frame(node, data="breast-cancer", seed=0)
loaded = [name in sys.modules for name in ("sklearn", "xgboost", "flwr")]
print(time.perf_counter() - start, *loaded)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    seconds, *imported = done.stdout.split()
    assert imported == ["False"] * 3
    assert float(seconds) < 2  # 0.2 measured, scipy.special included
