"""A whole run of the ROC-GLM task: what sites give together is what their pooled rows give."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit, ndtri
from sklearn.metrics import brier_score_loss, confusion_matrix, roc_auc_score

from fedapp import run_config, simulation
from fedapp.check import check
from fedapp.prepared_sites import prepare_roc_glm_site
from fedapp.run_config import ConfigError
from fedapp.simulation import SimulationResult, simulate
from tasks.roc_glm import validation
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.counts import ClassCounts, DistinctCounts, count_in_cells, equal_cuts
from tasks.roc_glm.messages import RELEASE, ReleaseRequest
from tasks.roc_glm.validation import Validation, validate_counts
from tasks.site.faults import SiteFault
from tests.roc_glm_reference import CASES, federations, rows_of

Value = bool | int | float | str
COUNTED = ("exact", "binned", "secure-counts")
NAMED = [case["name"] for case in CASES]


def frames_of(
    scores: Sequence[float] | NDArray[Any], labels: Sequence[int] | NDArray[Any], site: Any
) -> list[pd.DataFrame]:
    table = pd.DataFrame({"score": scores, "label": labels})
    return [part.reset_index(drop=True) for _, part in table.groupby(np.asarray(site))]


def run(
    frames: Sequence[pd.DataFrame] | None,
    directory: Path,
    config: Mapping[str, Value] | None = None,
    **arguments: Any,
) -> SimulationResult:
    settings_ = {
        "roc-glm.privacy-level": 1,
        "roc-glm.allow-score-disclosure": True,
        "run-dir": str(directory),
        **(config or {}),
    }
    return simulate("roc-glm", sites=frames, config=settings_, **arguments)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def at_least_three(frames: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """Split the first site until there are three, as masked sums need."""
    while len(frames) < 3:
        largest = max(range(len(frames)), key=lambda at: len(frames[at]))
        whole = frames.pop(largest)
        frames += [whole.iloc[::2], whole.iloc[1::2]]
    return frames


def pooled_of(scores: NDArray[Any], labels: NDArray[Any], release: str) -> ClassCounts:
    rows = rows_of(scores, labels)
    if release == "exact":
        return DistinctCounts.of(rows).counts
    return count_in_cells(rows, equal_cuts(50))


def assert_equals(summary: Mapping[str, Any], pooled: Validation) -> None:
    estimate, fit = pooled.estimate, pooled.fit
    assert summary["auc"] == pytest.approx(estimate.auc, abs=1e-12)
    for key, expected in (
        ("auc-variance", estimate.variance),
        ("ci-lower", estimate.interval and estimate.interval.lower),
        ("ci-upper", estimate.interval and estimate.interval.upper),
    ):
        if expected is None:
            assert key not in summary
        else:
            assert summary[key] == pytest.approx(expected, abs=1e-12)
    if fit is None:
        assert summary["status"] == "not-estimable"
        assert pooled.no_fit is not None
        assert summary["reason"] == pooled.no_fit.reason
        assert not {"gamma-1", "gamma-2", "auc-roc-glm", "deviance"} & set(summary)
        return
    assert summary["status"] == "ok"
    for key, value in (
        ("gamma-1", fit.gamma_1),
        ("gamma-2", fit.gamma_2),
        ("auc-roc-glm", fit.auc),
        ("deviance", fit.deviance),
    ):
        assert summary[key] == pytest.approx(value, rel=1e-8, abs=1e-10)


# Federated = pooled ------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", ["mid", "strict", "weak"])
@pytest.mark.parametrize("case", CASES, ids=NAMED)
def test_reference_cases_from_scores(case: dict[str, Any], ties: str, directory: Path) -> None:
    frames = frames_of(case["scores"], case["labels"], case["site"])
    if len(frames) < 2:
        frames = at_least_three(frames)
    result = run(frames, directory, {"roc-glm.release": "exact", "roc-glm.ties": ties})
    summary, expected = result.summary, case["roc_glm"][f"{ties}-28"]
    assert result.exchanges == 2
    assert summary["auc"] == pytest.approx(case["auc"], abs=1e-12)
    assert summary["auc-variance"] == pytest.approx(case["delong_variance"], abs=1e-12)
    assert summary["brier"] == pytest.approx(case["brier"], abs=1e-12)
    if case["interval"] is None:
        assert "ci-lower" not in summary
        assert summary["no-interval"].startswith("auc-0-or-1")
    else:
        bounds = [summary["ci-lower"], summary["ci-upper"]]
        assert bounds == pytest.approx(case["interval"], abs=1e-12)
    if expected["status"] == "ok":
        found = [summary[k] for k in ("gamma-1", "gamma-2", "auc-roc-glm", "deviance")]
        reference = [expected[k] for k in ("gamma1", "gamma2", "auc", "deviance_bernoulli")]
        assert summary["status"] == "ok"
        assert found == pytest.approx(reference, rel=1e-8)
    else:
        assert summary["status"] == "not-estimable"
        assert summary["reason"] in ("separated", "quasi-separated")
        assert "gamma-1" not in summary


@pytest.mark.parametrize("release", ["binned", "secure-counts"])
@pytest.mark.parametrize("case", CASES, ids=NAMED)
def test_reference_cases_from_cells(case: dict[str, Any], release: str, directory: Path) -> None:
    scores, labels = np.array(case["scores"]), np.array(case["labels"])
    frames = at_least_three(frames_of(scores, labels, case["site"]))
    result = run(frames, directory, {"roc-glm.release": release})
    assert result.exchanges == 2
    pooled = validate_counts(pooled_of(scores, labels, release), config=RocGlmConfig())
    assert_equals(result.summary, pooled)
    assert result.summary["brier"] == pytest.approx(case["brier"], abs=1e-12)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=federations(), release=st.sampled_from(COUNTED))
def test_any_split_gives_what_the_pooled_rows_give(
    data: tuple[NDArray[Any], NDArray[Any], NDArray[Any]], release: str, directory: Path
) -> None:
    scores, labels, site = data
    frames = at_least_three(frames_of(scores, labels, site))
    frames = [frame for frame in frames if len(frame)]
    if len(frames) < 3:
        return
    summary = run(frames, directory, {"roc-glm.release": release}).summary
    pooled = validate_counts(pooled_of(scores, labels, release), config=RocGlmConfig())
    assert_equals(summary, pooled)
    assert summary["brier"] == pytest.approx(brier_score_loss(labels, scores), abs=1e-12)
    if release == "exact":
        assert summary["auc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def cohort(rows: int = 600, sites: int = 5, seed: int = 3) -> list[pd.DataFrame]:
    generator = np.random.default_rng(seed)
    scores = generator.beta(2, 2, rows)
    labels = (generator.random(rows) < scores).astype(np.int64)
    return frames_of(scores, labels, generator.integers(0, sites, rows))


@pytest.mark.parametrize("release", COUNTED)
def test_calibration_and_rates_are_those_of_the_pooled_rows(release: str, directory: Path) -> None:
    frames = cohort()
    result = run(frames, directory, {"roc-glm.release": release, "roc-glm.threshold": 0.4})
    table = pd.concat(frames)
    score, label = table["score"].to_numpy(), table["label"].to_numpy()
    document = json.loads((result.run_folder / "roc.json").read_text())
    place = np.ceil(score * 10).astype(int).clip(1, 10) - 1
    for at, part in enumerate(document["calibration"]["bins"]):
        assert part["n"] == (place == at).sum()
        assert part["mean-predicted"] == pytest.approx(score[place == at].mean(), abs=1e-12)
        assert part["observed"] == pytest.approx(label[place == at].mean(), abs=1e-12)
    tn, fp, fn, tp = confusion_matrix(label, score > 0.4).ravel()
    assert result.summary["sensitivity"] == pytest.approx(tp / (tp + fn), abs=1e-12)
    assert result.summary["specificity"] == pytest.approx(tn / (tn + fp), abs=1e-12)
    assert result.summary["ppv"] == pytest.approx(tp / (tp + fp), abs=1e-12)
    assert result.summary["npv"] == pytest.approx(tn / (tn + fn), abs=1e-12)
    ratio = label.sum() / score.sum()
    assert result.summary["observed-to-expected"] == pytest.approx(ratio, abs=1e-12)
    benefit = document["net-benefit"]
    at = benefit["threshold"].index(0.4)
    expected = (tp - fp * 0.4 / 0.6) / len(label)
    assert benefit["model"][at] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("release", "mode"), [("exact", "one-shot"), *((release, "fisher") for release in COUNTED)]
)
def test_calibration_slope_is_that_of_a_logistic_regression(
    release: str, mode: str, directory: Path
) -> None:
    sm = pytest.importorskip("statsmodels.api")
    frames = cohort()
    config: dict[str, Value] = {
        "roc-glm.release": release,
        "roc-glm.mode": mode,
        "roc-glm.tolerance": 1e-14,
    }
    summary = run(frames, directory, config).summary
    table = pd.concat(frames)
    predictor = np.log(table["score"] / (1 - table["score"]))
    design = sm.add_constant(predictor.to_numpy())
    fit = sm.GLM(table["label"].to_numpy(), design, family=sm.families.Binomial()).fit(tol=1e-14)
    assert summary["calibration-slope"] == pytest.approx(fit.params[1], rel=1e-8)
    assert summary["calibration-slope-error"] == pytest.approx(fit.bse[1], rel=1e-6)
    large = sm.GLM(
        table["label"].to_numpy(),
        design[:, :1],
        offset=predictor.to_numpy(),
        family=sm.families.Binomial(),
    ).fit(tol=1e-14)
    assert summary["calibration-intercept"] == pytest.approx(large.params[0], rel=1e-7)


def test_calibration_slope_in_one_exchange_is_close(directory: Path) -> None:
    exact = run(cohort(), directory, {"roc-glm.release": "exact"}).summary
    cells = run(cohort(), directory, {"roc-glm.release": "secure-counts"}).summary
    for key in ("calibration-slope", "calibration-intercept"):
        assert cells[key] == pytest.approx(exact[key], abs=0.02)


def test_calibration_slope_from_cells_is_close_for_a_rare_class(directory: Path) -> None:
    """Within two standard errors of statsmodels' on the rows, and marked as what it is."""
    sm = pytest.importorskip("statsmodels.api")
    generator = np.random.default_rng(5)
    for offset, cut_points in ((-4.2, "equal"), (-4.2, "model"), (-2.0, "model")):
        predictor = offset + generator.normal(size=6000)
        score = expit(predictor)
        label = (generator.random(6000) < expit(0.9 * predictor)).astype(int)
        model = directory / "rare.json"
        document = {
            "format": "fedapp-score-model",
            "kind": "logistic",
            "features": ["x"],
            "coefficients": [1.0],
            "intercept": 0.0,
            "cut-points": np.quantile(score, np.arange(1, 50) / 50).tolist(),
        }
        model.write_text(json.dumps(document))
        frames = [pd.DataFrame({"x": predictor[s::4], "label": label[s::4]}) for s in range(4)]
        config: dict[str, Value] = {
            "roc-glm.model": str(model),
            "roc-glm.cut-points": cut_points,
        }
        summary = run(frames, directory, config).summary
        assert summary["calibration-slope-from-cells"] is True
        binomial = sm.families.Binomial()
        both = sm.GLM(label, sm.add_constant(predictor), family=binomial).fit()
        large = sm.GLM(label, np.ones(6000), offset=predictor, family=binomial).fit()
        near = {"abs": 1.5 * both.bse[1]}
        assert summary["calibration-slope"] == pytest.approx(both.params[1], **near)
        assert summary["calibration-intercept"] == pytest.approx(large.params[0], abs=0.02)
        exact = run(frames, directory, {**config, "roc-glm.mode": "fisher"}).summary
        assert exact["calibration-slope"] == pytest.approx(both.params[1], abs=1e-4)
        assert "calibration-slope-from-cells" not in exact


def test_no_calibration_slope_from_few_cells(directory: Path) -> None:
    config: dict[str, Value] = {"roc-glm.cells": 6}
    summary = run(cohort(), directory, config).summary
    assert "calibration-slope" not in summary
    assert "mode = 'fisher' gives it exactly" in summary["no-calibration-slope"]
    exact = run(cohort(), directory, {**config, "roc-glm.mode": "fisher"}).summary
    assert "calibration-slope" in exact


def test_cut_points_of_the_model_are_the_cells(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=400)
    label = (generator.random(400) < expit(x)).astype(int)
    table = pd.DataFrame({"x": x, "label": label})
    cuts = [-1.25, -0.5, 0.0, 0.75, 1.5]
    document: dict[str, Any] = {
        "format": "fedapp-score-model",
        "kind": "linear",  # scores outside [0, 1] are welcome
        "features": ["x"],
        "coefficients": [1.0],
        "intercept": 0.0,
        "cut-points": cuts,
    }
    model = tmp_path / "model.json"
    model.write_text(json.dumps(document))
    asked: list[list[float]] = []

    class Listening(simulation.InProcessGrid):
        def _handle(self, message: Message) -> Message:
            if message.metadata.message_type == RELEASE:
                asked.append(ReleaseRequest.from_record(message.content).cuts.tolist())
            return super()._handle(message)

    monkeypatch.setattr(simulation, "InProcessGrid", Listening)
    config: dict[str, Value] = {"roc-glm.model": str(model), "roc-glm.cut-points": "model"}
    frames = [table.iloc[at::3] for at in range(3)]
    summary = run(frames, directory, config).summary
    assert asked == 3 * [cuts]
    binned = np.searchsorted(cuts, x, side="left")
    assert summary["auc"] == pytest.approx(roc_auc_score(label, binned), abs=1e-12)
    del document["cut-points"]
    model.write_text(json.dumps(document))
    refused = run(frames, directory, config).summary
    assert refused["status"] == "refused"
    assert "the score model has no cut-points" in refused["reason"]
    refused = run(cohort(), directory, {"roc-glm.cut-points": "model"}).summary
    assert "cut-points = 'model' needs roc-glm.model, a model file" in refused["reason"]


# Exchanges and modes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "one_shot"),
    [
        *((release, 2) for release in (*COUNTED, "noisy-counts", "noisy-histogram")),
        ("noisy-scores", 3),
    ],
)
def test_number_of_exchanges(release: str, one_shot: int, directory: Path) -> None:
    config: dict[str, Value] = {"roc-glm.release": release, "roc-glm.epsilon": 8.0}
    result = run(cohort(), directory, config)
    assert result.summary["status"] == "ok"
    assert result.exchanges == one_shot <= 4
    iterated = run(cohort(), directory, {**config, "roc-glm.mode": "fisher"})
    rounds = iterated.summary.get("iterations", 0)
    assert iterated.exchanges == one_shot + rounds <= 3 + rounds
    assert (rounds > 2) == (release not in ("noisy-counts", "noisy-histogram"))


def test_the_server_fits_no_roc_glm_for_each_site(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a site's own counts only the AUC is told, and a fit takes milliseconds."""
    fits: list[float] = []
    fit = validation.fit_roc_glm

    def counted(w1: NDArray[Any], num_positive: float) -> Any:
        fits.append(num_positive)
        return fit(w1, num_positive)

    monkeypatch.setattr(validation, "fit_roc_glm", counted)
    numbers = []
    for sites in (3, 9):
        result = run(cohort(540, sites), directory, {"roc-glm.release": "binned"})
        roc = json.loads((result.run_folder / "roc.json").read_text())
        assert sum("auc" in row for row in roc["sites"]) == sites
        numbers.append(len(fits))
        fits.clear()
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize("release", COUNTED)
def test_fisher_arrives_where_one_shot_does(release: str, directory: Path) -> None:
    config: dict[str, Value] = {"roc-glm.release": release}
    exact = run(cohort(), directory, config).summary
    fisher = {**config, "roc-glm.mode": "fisher"}
    loose = run(cohort(), directory, fisher).summary
    tight = run(cohort(), directory, {**fisher, "roc-glm.tolerance": 1e-15}).summary
    for key in ("gamma-1", "gamma-2", "auc-roc-glm"):
        assert loose[key] == pytest.approx(exact[key], abs=1e-4)
        assert tight[key] == pytest.approx(exact[key], abs=1e-7)
    assert tight["deviance"] == pytest.approx(exact["deviance"], rel=1e-10)


@pytest.mark.parametrize("release", COUNTED)
def test_fisher_knows_separation_without_an_exchange(release: str, directory: Path) -> None:
    frames = [pd.DataFrame({"label": [0, 0, 1, 1], "score": [0.1, 0.2, 0.8, 0.9]})] * 3
    result = run(frames, directory, {"roc-glm.release": release, "roc-glm.mode": "fisher"})
    assert result.exchanges == 2
    assert (result.summary["status"], result.summary["reason"]) == ("not-estimable", "separated")
    assert result.summary["auc"] == 1.0


# Releases with noise -----------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("release", ["noisy-scores", "noisy-counts", "noisy-histogram"])
def test_noise_that_is_next_to_nothing_changes_next_to_nothing(
    release: str, secure: bool, directory: Path
) -> None:
    if secure and release == "noisy-scores":
        return
    config: dict[str, Value] = {
        "roc-glm.release": release,
        "roc-glm.epsilon": 1000.0,
        "roc-glm.sensitivity": 0.01,
        "roc-glm.secure": secure,
        "roc-glm.cells": 50,
        "roc-glm.statistics-epsilon": 1000.0,
    }
    frames = cohort(3000)
    summary = run(frames, directory, config).summary
    pooled = run(frames, directory, {"roc-glm.release": "exact"}).summary
    assert summary["auc"] == pytest.approx(pooled["auc"], abs=0.003)
    assert summary["auc-roc-glm"] == pytest.approx(pooled["auc-roc-glm"], abs=0.005)
    assert summary["ci-lower"] == pytest.approx(pooled["ci-lower"], abs=0.005)
    assert summary["brier"] == pytest.approx(pooled["brier"], abs=0.002)
    assert summary["sensitivity"] == pytest.approx(pooled["sensitivity"], abs=0.005)
    assert (summary["n-positive"], summary["n-negative"]) == (
        pooled["n-positive"],
        pooled["n-negative"],
    )


def test_debiasing_takes_out_the_bias_of_noisy_scores(directory: Path) -> None:
    config: dict[str, Value] = {
        "roc-glm.release": "noisy-scores",
        "roc-glm.epsilon": 5.0,
        "roc-glm.sensitivity": 0.2,
        "seeded-noise": True,
    }
    frames = cohort(4000)
    exact = run(frames, directory, {"roc-glm.release": "exact"}).summary
    pooled = exact["auc"]
    debiased = run(frames, directory, config).summary
    assert debiased["auc-undebiased"] < pooled - 0.02
    assert debiased["auc-roc-glm-undebiased"] < pooled - 0.02
    assert abs(debiased["auc"] - pooled) < 0.015
    assert abs(debiased["auc-roc-glm"] - exact["auc-roc-glm"]) < 0.015
    plain = run(frames, directory, {**config, "roc-glm.debias": False}).summary
    assert plain["auc"] == pytest.approx(debiased["auc-undebiased"], abs=1e-12)
    assert "auc-undebiased" not in plain


def test_noise_is_new_in_every_run_unless_a_seed_is_asked_for(directory: Path) -> None:
    config: dict[str, Value] = {"roc-glm.release": "noisy-counts"}
    frames = cohort()
    drawn = {run(frames, directory, config).summary["auc"] for _ in range(3)}
    assert len(drawn) == 3
    seeded = {
        run(frames, directory, {**config, "seeded-noise": True}, seed=5).summary["auc"]
        for _ in range(2)
    }
    assert len(seeded) == 1


def test_noise_has_the_scale_that_the_budget_needs(directory: Path) -> None:
    base: dict[str, Value] = {"roc-glm.epsilon": 1.0, "roc-glm.delta": 1e-5}
    expected = {  # sensitivity, by hand: 19 cuts at j / 20 of which any window of .2 has 4
        "noisy-counts": 2.0,
        "noisy-histogram": math.sqrt(2.0),
        "noisy-scores": 0.2,
    }
    unit = 3.730631634816464  # analytic, epsilon 1, delta 1e-5, sensitivity 1
    for release, sensitivity in expected.items():
        config = {**base, "roc-glm.release": release, "roc-glm.sensitivity": 0.2}
        summary = run(cohort(), directory, config).summary
        assert summary["noise-scale"] == pytest.approx(unit * sensitivity, rel=1e-9)
        assert summary["epsilon"] == pytest.approx(1.0, rel=1e-9)
        assert summary["delta"] == 1e-5


@pytest.mark.parametrize("release", ["noisy-counts", "noisy-histogram"])
def test_statistics_spend_a_budget_of_their_own_or_are_absent(
    release: str, directory: Path
) -> None:
    config: dict[str, Value] = {"roc-glm.release": release}
    without = run(cohort(), directory, config).summary
    assert not {"brier", "sensitivity", "observed-to-expected"} & set(without)
    summary = run(cohort(), directory, {**config, "roc-glm.statistics-epsilon": 1.0}).summary
    assert {"brier", "sensitivity", "observed-to-expected"} <= set(summary)
    assert 1.0 < summary["epsilon"] < 2.0
    assert summary["delta"] == pytest.approx(2e-5)


# The statement, the folder and the bundled data --------------------------------------------------


def test_privacy_statement_names_all_that_it_must(directory: Path) -> None:
    summary = run(cohort(), directory, {"roc-glm.release": "noisy-scores"}).summary
    words = summary["privacy"]
    for part in (
        "Gaussian mechanism (analytic calibration)",
        "(epsilon, delta) = (1, 1e-05)",
        "one score differs by at most sensitivity = 1",
        "the exact sums w1 of positives",
        "exact moments of the positives",
        "class sizes and labels",
    ):
        assert part in words
    fisher = {"roc-glm.release": "noisy-scores", "roc-glm.mode": "fisher"}
    words = run(cohort(), directory, fisher).summary["privacy"]
    assert "score vector and information of every round" in words
    words = run(cohort(), directory, {"roc-glm.release": "secure-counts"}).summary["privacy"]
    assert "no differential privacy" in words
    assert "trusted on first use" in words


def test_run_folder_has_what_the_figures_need(directory: Path) -> None:
    result = run(cohort(), directory, {"roc-glm.release": "binned"})
    document = json.loads((result.run_folder / "roc.json").read_text())
    assert {"roc", "calibration", "confusion", "net-benefit", "sites", "pooled-check"} == set(
        document
    )
    band = document["roc"]["parametric"]
    for low, middle, high in zip(
        band["lower"], band["true-positive-rate"], band["upper"], strict=True
    ):
        assert 0 <= low <= middle <= high <= 1
    check_auc = document["pooled-check"]["auc"]
    assert check_auc["difference"] == abs(check_auc["federated"] - check_auc["pooled"])
    assert len(document["sites"]) == 5
    assert {row["step"] for row in result.ledger} == {"hello", "release"}
    assert all("not declared" not in str(row["reveals"]) for row in result.ledger)


def test_the_pooled_check_is_of_the_sites_that_took_part(directory: Path) -> None:
    frames = cohort()
    frames[1] = frames[1].iloc[:3]  # below the privacy level
    config: dict[str, Value] = {
        "roc-glm.privacy-level": 5,
        "roc-glm.on-small-site": "exclude",
        "roc-glm.release": "exact",
    }
    result = run(frames, directory, config)
    assert result.summary["excluded"] == ["site-1"]
    check = json.loads((result.run_folder / "roc.json").read_text())["pooled-check"]
    others = pd.concat([frame for at, frame in enumerate(frames) if at != 1])
    pooled = roc_auc_score(others["label"], others["score"])
    assert check["auc"]["pooled"] == pytest.approx(pooled, abs=1e-12)
    keys = ("auc", "deviance", "brier", "observed-to-expected", "sensitivity", "specificity")
    keys += ("calibration-slope", "calibration-intercept")
    for key in keys:
        assert check[key]["difference"] < 1e-9


def test_noise_that_nobody_can_compute_with_is_refused(directory: Path) -> None:
    config: dict[str, Value] = {"roc-glm.release": "noisy-scores", "roc-glm.sensitivity": 1e155}
    with pytest.raises(ConfigError, match=r"roc-glm\.sensitivity"):
        run(cohort(), directory, config)
    config |= {"roc-glm.sensitivity": 1e9, "roc-glm.epsilon": 1e-6}
    summary = run(cohort(), directory, config).summary
    assert summary["status"] == "refused"
    assert "noise of standard deviation" in summary["reason"]


def test_scores_beyond_what_noise_can_be_added_to_are_named(directory: Path) -> None:
    frames = cohort()
    frames[0] = frames[0].assign(score=frames[0]["score"] * 1e308)
    config: dict[str, Value] = {"roc-glm.release": "noisy-scores", "roc-glm.debias": False}
    summary = run(frames, directory, config).summary
    assert summary["status"] == "refused"
    assert "site-0: scores beyond 1e+100 in absolute value" in summary["reason"]


def test_statement_on_scores_without_a_range_and_on_two_calibrations(directory: Path) -> None:
    frames = [frame.assign(score=4 * frame["score"] - 2) for frame in cohort()]
    config: dict[str, Value] = {"roc-glm.release": "noisy-scores", "roc-glm.debias": False}
    words = run(frames, directory, config).summary["privacy"]
    assert "scores are not all in [0, 1]: sensitivity = 1.0 is an assumption" in words
    assert "not all in [0, 1]" not in run(cohort(), directory, config).summary["privacy"]
    config = {
        "roc-glm.release": "noisy-counts",
        "roc-glm.mechanism": "classic",
        "roc-glm.epsilon": 0.9,
        "roc-glm.statistics-epsilon": 1.0,
    }
    words = run(cohort(), directory, config).summary["privacy"]
    assert "classic, of the statistics analytic calibration" in words


def test_no_pooled_check_outside_simulation(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr.supercore.constant import TaskType

    from fedapp import simulation

    class Deployed(simulation.InProcessGrid):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.run.primary_task_type = TaskType.SERVER_APP

    monkeypatch.setattr(simulation, "InProcessGrid", Deployed)
    result = run(cohort(), directory, {"roc-glm.release": "binned"})
    assert "pooled-check" not in json.loads((result.run_folder / "roc.json").read_text())
    assert "pooled-auc-difference" not in result.summary
    refused = run(cohort(), directory, {"seeded-noise": True}).summary
    assert refused["status"] == "refused"
    assert "allow-seeded-noise" in refused["reason"]


def test_a_deployed_site_refuses_noise_from_a_seed_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    pd.concat(cohort()).to_csv(path, index=False)
    node: dict[str, Value] = {"site-name": "north", "data-path": str(path)}
    values: dict[str, Value] = {"task": "roc-glm", "seeded-noise": True}
    with pytest.raises(SiteFault, match="allow-seeded-noise = true"):
        prepare_roc_glm_site(node, run_config.read(values))
    values["roc-glm.allow-seeded-noise"] = True
    assert prepare_roc_glm_site(node, run_config.read(values)).name == "north"


def test_bundled_data_by_default(directory: Path) -> None:
    result = simulate("roc-glm", config={"run-dir": str(directory)})
    assert result.summary["status"] == "ok"
    assert result.summary["release"] == "secure-counts"
    assert result.summary["ci-lower"] < result.summary["auc"] < result.summary["ci-upper"]
    assert result.summary["pooled-auc-difference"] < 0.005
    quantile = {"run-dir": str(directory), "roc-glm.cut-points": "quantile"}
    assert simulate("roc-glm", config=quantile).summary["pooled-auc-difference"] < 0.005


def test_a_model_file_scores_the_rows_at_the_sites(directory: Path, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    age = generator.normal(60, 10, 300)
    score = expit(-6 + 0.1 * age)
    label = (generator.random(300) < score).astype(int)
    model = tmp_path / "model.json"
    model.write_text(
        json.dumps(
            {
                "format": "fedapp-score-model",
                "kind": "logistic",
                "features": ["age"],
                "coefficients": [0.1],
                "intercept": -6.0,
                "training-score-quantiles": np.quantile(score, np.arange(1, 50) / 50).tolist(),
            }
        )
    )
    table = pd.DataFrame({"age": age, "label": label})
    frames = [table.iloc[at::3] for at in range(3)]
    result = run(frames, directory, {"roc-glm.release": "exact", "roc-glm.model": str(model)})
    assert result.summary["auc"] == pytest.approx(roc_auc_score(label, score), abs=1e-12)
    cells = {"roc-glm.model": str(model), "roc-glm.cut-points": "quantile"}
    assert run(frames, directory, cells).summary["auc"] == pytest.approx(
        result.summary["auc"], abs=0.01
    )
    config = {"roc-glm.model": str(tmp_path / "none.json")}
    refused = run(frames, directory, config).summary
    assert refused["status"] == "refused"
    assert "none.json" in refused["reason"]


def test_estimated_sensitivity_is_used_and_flagged(directory: Path) -> None:
    generator = np.random.default_rng(0)
    frames = [
        pd.DataFrame(
            {
                "a": a,
                "label": (generator.random(80) < 0.5).astype(int),
                "score": 0.1 + 0.2 * a,
            }
        )
        for a in (generator.integers(0, 4, 80) for _ in range(3))
    ]
    config = {"roc-glm.release": "noisy-counts", "roc-glm.estimate-sensitivity": True}
    summary = run(frames, directory, config).summary
    assert summary["sensitivity-used"] == pytest.approx(0.2)
    assert "an estimate from the data" in summary["privacy"]
    assert "the sensitivity estimated at each site" in summary["privacy"]


def test_check_looks_at_the_rows_of_the_task(tmp_path: Path) -> None:
    lines = [str(finding) for finding in check({"task": "roc-glm"}, num_sites=2)]
    assert any("site-0: " in line and "positives" in line for line in lines)
    assert any("sums under masks need 3" in line for line in lines)
    lines = [
        str(finding)
        for finding in check({"task": "roc-glm", "roc-glm.model": str(tmp_path / "x.json")})
    ]
    assert any("FAULT" in line and "x.json" in line for line in lines)


def test_heterogeneity_where_counts_come_in_clear(directory: Path) -> None:
    summary = run(cohort(), directory, {"roc-glm.release": "binned"}).summary
    assert 0 <= summary["i-squared"] < 1
    assert 0 <= summary["heterogeneity-p"] <= 1
    assert "i-squared" not in run(cohort(), directory, {}).summary


def test_interval_and_test_by_hand(directory: Path) -> None:
    config = {"roc-glm.release": "exact", "roc-glm.null-auc": 0.6, "roc-glm.alpha": 0.1}
    summary = run(cohort(), directory, config).summary
    auc = summary["auc"]
    error = math.sqrt(summary["auc-variance"]) / (auc * (1 - auc))
    z = (math.log(auc / (1 - auc)) - math.log(0.6 / 0.4)) / error
    assert summary["test-statistic"] == pytest.approx(z, rel=1e-12)
    half = -ndtri(0.05) * error
    assert summary["ci-lower"] == pytest.approx(expit(math.log(auc / (1 - auc)) - half), rel=1e-12)
