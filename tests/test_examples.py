"""The examples run as they are and show what they say; each extension is small."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score

from fedapp.site_data import BUNDLED

EXAMPLES = Path(__file__).parent.parent / "examples"


def printed(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+\.\d*", text)]


def test_other_weights(capsys: pytest.CaptureFixture[str]) -> None:
    plain, rooted = numbers(printed("other_weights.py", capsys))
    assert plain == pytest.approx((100 * 1 + 10_000 * 2) / 10_100, abs=0.01)
    assert rooted == pytest.approx((10 * 1 + 100 * 2) / 110, abs=0.01)


def test_callback_each_round(capsys: pytest.CaptureFixture[str]) -> None:
    *rounds, last = printed("callback_each_round.py", capsys).splitlines()
    losses = [numbers(line)[0] for line in rounds]
    assert len(losses) == 10
    assert losses[-1] < losses[0] / 10
    assert numbers(last)[0] == min(losses)


def test_other_clipping(capsys: pytest.CaptureFixture[str]) -> None:
    one_norm, one_each = printed("other_clipping.py", capsys).splitlines()
    assert numbers(one_norm) == pytest.approx([1.0, 0.001], abs=0.02)
    assert numbers(one_each) == pytest.approx([2**-0.5, 0.1 * 2**0.5], abs=0.02)


def test_logistic_regression(capsys: pytest.CaptureFixture[str]) -> None:
    *iterations, head, _, _, radius, _, _ = printed("logistic_regression.py", capsys).splitlines()
    deviances = [numbers(line)[-1] for line in iterations]
    assert deviances == sorted(deviances, reverse=True)
    frame = load_breast_cancer(as_frame=True).frame
    covariates = sm.add_constant(frame[["mean radius", "mean texture", "mean smoothness"]])
    pooled = sm.GLM(frame["target"] == 0, covariates, family=sm.families.Binomial()).fit()
    assert numbers(head) == pytest.approx([pooled.deviance], abs=0.01)
    assert numbers(radius)[:2] == pytest.approx(
        [pooled.params["mean radius"], pooled.bse["mean radius"]], rel=1e-3
    )


def test_own_survival_model(capsys: pytest.CaptureFixture[str]) -> None:
    own, linear = numbers(printed("own_survival_model.py", capsys))
    assert own > 0.6  # the hazard is a parabola, which a line cannot follow
    assert linear < 0.56


def test_vertical_split_clients(capsys: pytest.CaptureFixture[str]) -> None:
    *clients, last = printed("vertical_split_clients.py", capsys).splitlines()
    assert clients == [f"site-{at}: decrypted by site-{(at + 1) % 3}" for at in range(3)]
    assert last.startswith("3 trees")
    assert numbers(last)[0] > 0.93


def test_vertical_leaf_budget(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed("vertical_leaf_budget.py", capsys).splitlines()
    # Three nodes are split one after the other, then the four leaves stay as they are.
    told = [f"tree {number}: 4 leaves, 8 exchanges" for number in (1, 2, 3)]
    assert [line.rsplit(",", 1)[0] for line in lines] == told
    losses = [numbers(line)[-1] for line in lines]
    assert losses == sorted(losses, reverse=True)


def test_roc_glm_validation(capsys: pytest.CaptureFixture[str]) -> None:
    *iterations, last = printed("roc_glm_validation.py", capsys).splitlines()
    deviances = [numbers(line)[-1] for line in iterations[1:]]
    assert deviances == sorted(deviances, reverse=True)
    pooled = BUNDLED["breast-cancer"].load()
    auc = roc_auc_score(pooled["label"], pooled["score"])
    assert numbers(last)[0] == pytest.approx(auc, abs=0.01)  # cells of the default cut points


def test_own_family(capsys: pytest.CaptureFixture[str]) -> None:
    run = runpy.run_path(str(EXAMPLES / "own_family.py"))
    rows, days = zip(*map(run["patients"], run["HOSPITALS"]), strict=True)
    family = sm.families.Gamma(link=sm.families.links.Log())
    pooled = sm.GLM(np.concatenate(days), sm.add_constant(pd.concat(rows)), family=family)
    theirs = pooled.fit(tol=1e-14, maxiter=100)
    names = [{"site-name": name} for name in run["HOSPITALS"]]
    strategy = run["WithGamma"](family="gamma", criterion="step", tolerance=1e-11)
    ours = strategy.start(run["InProcessGrid"](run["app"], names, {}))
    assert ours.coefficients == pytest.approx(theirs.params.to_numpy(), rel=1e-8)
    assert ours.fit.standard_errors == pytest.approx(theirs.bse.to_numpy(), rel=1e-8)
    assert ours.deviance == pytest.approx(theirs.deviance, rel=1e-8)
    assert ours.feature_names == ("(intercept)", "age", "emergency")
    head, _, _, age, _, dispersion = printed("own_family.py", capsys).splitlines()
    assert numbers(head) == pytest.approx([theirs.deviance], rel=1e-4)
    assert numbers(age)[:2] == pytest.approx([theirs.params["age"], theirs.bse["age"]], rel=1e-3)
    assert numbers(dispersion) == pytest.approx([theirs.scale], rel=1e-4)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("other_weights.py", "SquareRootWeights"),
        ("callback_each_round.py", "BestModel"),
        ("other_clipping.py", "clip_each_array"),
        ("logistic_regression.py", "fisher_scoring"),
        ("own_survival_model.py", "smooth_hazard"),
        ("vertical_split_clients.py", "NextByName"),
        ("vertical_leaf_budget.py", "LeafBudget"),
        ("own_family.py", "gamma_terms"),
    ],
)
def test_an_extension_takes_about_ten_lines(file: str, name: str) -> None:
    tree = ast.parse((EXAMPLES / file).read_text())
    (node,) = [n for n in tree.body if getattr(n, "name", None) == name]
    documentation = [n for n in ast.walk(node) if isinstance(n, ast.Expr) and _is_text(n.value)]
    hidden = sum(n.end_lineno - n.lineno + 1 for n in documentation if n.end_lineno)
    assert node.end_lineno is not None
    assert node.end_lineno - node.lineno + 1 - hidden <= 14


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
