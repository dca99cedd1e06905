"""Input that is odd or wrong: the documented outcome, in one line, with nothing of a row in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from fedapp.run_config import ConfigError
from fedapp.simulation import SimulationResult, simulate

Value = bool | int | float | str
SECRET = 0.7351928374


def run(
    frames: Sequence[pd.DataFrame], directory: Path, config: Mapping[str, Value] | None = None
) -> SimulationResult:
    settings: dict[str, Value] = {
        "roc-glm.release": "exact",
        "roc-glm.allow-score-disclosure": True,
        "run-dir": str(directory),
        **(config or {}),
    }
    return simulate("roc-glm", sites=frames, config=settings)


def cohort(rows: int = 120, sites: int = 3, seed: int = 1) -> list[pd.DataFrame]:
    generator = np.random.default_rng(seed)
    score = generator.random(rows)
    label = (generator.random(rows) < 0.2 + 0.6 * score).astype(int)
    table = pd.DataFrame({"score": score, "label": label})
    return [table.iloc[at::sites].reset_index(drop=True) for at in range(sites)]


def auc_of(frames: Sequence[pd.DataFrame]) -> float:
    table = pd.concat(frames)
    return float(roc_auc_score(table["label"], table["score"]))


def refused(
    frames: Sequence[pd.DataFrame], directory: Path, config: Mapping[str, Value] | None = None
) -> str:
    """The one line of a refusal, which is free of rows."""
    result = run(frames, directory, config)
    assert result.summary["status"] == "refused"
    reason = str(result.summary["reason"])
    assert "\n" not in reason
    assert "Traceback" not in reason
    assert str(SECRET) not in reason
    assert str(SECRET) not in json.dumps(result.ledger)
    assert not {"auc", "n-positive"} & set(result.summary)
    return reason


# Labels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spell", "positive"),
    [
        (lambda label: np.where(label == 1, "yes", "no"), "yes"),
        (lambda label: label + 1, "2"),
        (lambda label: 2 * label - 1, "1"),
        (lambda label: label == 1, "1"),
        (lambda label: label == 1, "true"),
        (lambda label: label.astype(float), "1"),
        (lambda label: 1 - label, "0"),
    ],
    ids=["yes/no", "{1,2}", "{-1,1}", "bool", "bool-true", "float", "0-is-positive"],
)
def test_labels_of_every_kind(spell: Any, positive: str, tmp_path: Path) -> None:
    frames = cohort()
    spelled = [frame.assign(label=spell(frame["label"].to_numpy())) for frame in frames]
    result = run(spelled, tmp_path, {"roc-glm.positive-label": positive})
    assert result.summary["status"] == "ok"
    assert result.summary["auc"] == pytest.approx(auc_of(frames), abs=1e-12)


@pytest.mark.parametrize("release", ["exact", "secure-counts"])
def test_a_site_with_only_no_contributes(release: str, tmp_path: Path) -> None:
    frames = [frame.assign(label=np.where(frame["label"] == 1, "yes", "no")) for frame in cohort()]
    frames.append(pd.DataFrame({"label": ["no"] * 9, "score": np.linspace(0.1, 0.9, 9)}))
    config = {"roc-glm.release": release, "roc-glm.positive-label": "yes"}
    summary = run(frames, tmp_path, config).summary
    assert summary["status"] == "ok"
    assert summary["n-negative"] == sum(int((f["label"] == "no").sum()) for f in frames)


def test_labels_that_nobody_declared_are_refused_by_site_without_a_count(tmp_path: Path) -> None:
    frames = cohort()
    frames[1].loc[3:6, "label"] = 7
    reason = refused(frames, tmp_path)
    assert reason.startswith("site-1: several different labels beside positive-label = '1'")
    frames = [f.assign(label=f["label"].map({0: "no", 1: "yes"})) for f in cohort()]
    frames[2]["label"] = frames[2]["label"].replace("no", "nein")
    reason = refused(frames, tmp_path, {"roc-glm.positive-label": "yes"})
    assert "sites spell the negative label differently" in reason
    assert "declare negative-label" in reason
    reason = refused(cohort(), tmp_path, {"roc-glm.positive-label": "yes"})
    assert "several different labels beside positive-label = 'yes'" in reason
    frames[1].loc[frames[1].index[:3], "label"] = "no"  # fewer than the privacy level
    settings: dict[str, Value] = {
        "roc-glm.positive-label": "yes",
        "roc-glm.negative-label": "zzz",
    }
    reason = refused(frames, tmp_path, settings)
    assert "rows have a label that is neither" in reason
    assert not re.search(r"\d+ rows have a label", reason)


def test_a_federation_with_one_class_is_not_estimable(tmp_path: Path) -> None:
    frames = [frame.assign(label=0) for frame in cohort()]
    for release in ("exact", "binned", "secure-counts", "noisy-counts", "noisy-scores"):
        result = run(frames, tmp_path, {"roc-glm.release": release})
        summary = result.summary
        assert (summary["status"], summary["reason"]) == ("not-estimable", "one-class")
        assert "no positive row at any site" in summary["detail"]
        assert "auc" not in summary
        assert result.exchanges == 2


# Scores ------------------------------------------------------------------------------------------


def test_one_positive_in_all(tmp_path: Path) -> None:
    frames = [frame.assign(label=0) for frame in cohort()]
    frames[0].loc[0, ["label", "score"]] = [1, 0.8]
    reason = refused(frames, tmp_path)
    assert "positive class needs at least 5 rows, or none" in reason
    summary = run(frames, tmp_path, {"roc-glm.privacy-level": 1}).summary
    assert summary["auc"] == pytest.approx(auc_of(frames), abs=1e-12)
    assert summary["no-interval"].startswith("too-few-positives")
    assert (summary["status"], summary["reason"]) == ("not-estimable", "separated")
    assert not {"ci-lower", "auc-variance", "p-value", "gamma-1"} & set(summary)


@pytest.mark.parametrize("release", ["exact", "secure-counts"])
def test_constant_scores(release: str, tmp_path: Path) -> None:
    frames = [frame.assign(score=0.3) for frame in cohort()]
    summary = run(frames, tmp_path, {"roc-glm.release": release}).summary
    assert summary["auc"] == 0.5
    assert summary["auc-variance"] == 0.0
    assert summary["ci-degenerate"] is True
    assert summary["ci-lower"] == pytest.approx(0.5)
    assert summary["ci-upper"] == pytest.approx(0.5)
    assert summary["no-test"].startswith("zero-variance")
    assert (summary["status"], summary["reason"]) == ("not-estimable", "separated")


@pytest.mark.parametrize("release", ["exact", "binned", "secure-counts"])
@pytest.mark.parametrize("mode", ["one-shot", "fisher"])
def test_perfect_separation(release: str, mode: str, tmp_path: Path) -> None:
    frames = [f.assign(score=0.2 + 0.6 * f["label"]) for f in cohort()]
    config = {"roc-glm.release": release, "roc-glm.mode": mode}
    summary = run(frames, tmp_path, config).summary
    assert summary["auc"] == 1.0
    assert summary["no-interval"].startswith("auc-0-or-1")
    assert (summary["status"], summary["reason"]) == ("not-estimable", "separated")
    assert not {"ci-lower", "gamma-1", "deviance"} & set(summary)


def test_scores_that_differ_by_a_rounding_are_not_tied(tmp_path: Path) -> None:
    frames = [f.assign(score=0.1 + 1.1e-16 * f["label"]) for f in cohort()]
    assert all(f["score"].nunique() == 2 for f in frames)
    assert run(frames, tmp_path).summary["auc"] == 1.0


def test_logits_where_a_rank_is_enough_and_where_not(tmp_path: Path) -> None:
    frames = [f.assign(score=10 * (f["score"] - 0.5)) for f in cohort()]
    summary = run(frames, tmp_path).summary
    assert summary["auc"] == pytest.approx(auc_of(frames), abs=1e-12)
    assert not {"brier", "observed-to-expected", "calibration-slope"} & set(summary)
    assert "sensitivity" in summary
    plain = {"roc-glm.release": "noisy-scores", "roc-glm.debias": False}
    assert run(frames, tmp_path, plain).summary["status"] == "ok"
    for release in ("secure-counts", "binned", "noisy-counts", "noisy-histogram", "noisy-scores"):
        reason = refused(frames, tmp_path, {"roc-glm.release": release})
        assert f"release = '{release}' needs scores in [0, 1]" in reason
        assert "1 / (1 + exp(-score))" in reason
        assert "site-0, site-1, site-2" in reason


def test_more_pairs_than_fit_into_31_bits(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    rows = 120_000
    label = np.arange(rows) % 2
    score = np.round(np.clip(generator.normal(0.4 + 0.1 * label, 0.15), 0, 1), 2)
    table = pd.DataFrame({"label": label, "score": score})
    assert (rows / 2) ** 2 > 2**31
    frames = [table.iloc[at::3] for at in range(3)]
    summary = run(frames, tmp_path).summary
    assert summary["auc"] == pytest.approx(roc_auc_score(label, score), abs=1e-12)


@pytest.mark.parametrize("release", ["exact", "binned", "secure-counts", "noisy-histogram"])
def test_an_auc_below_one_half_stays_there(release: str, tmp_path: Path) -> None:
    frames = [f.assign(score=1 - f["score"]) for f in cohort(600)]
    config = {"roc-glm.release": release, "roc-glm.epsilon": 8.0}
    summary = run(frames, tmp_path, config).summary
    assert summary["auc"] == pytest.approx(auc_of(frames), abs=0.03)
    assert summary["auc"] < 0.5
    assert summary["auc-roc-glm"] < 0.5
    assert summary["rejected"] is False


def test_missing_scores_are_refused_or_dropped_and_counted(tmp_path: Path) -> None:
    frames = cohort()
    frames[1].loc[[2, 5], "score"] = [np.nan, np.inf]
    frames[1].loc[9, "score"] = SECRET
    reason = refused(frames, tmp_path)
    assert reason == (
        "site-1: 2 rows have a NaN or infinite score; missing = 'error' (allowed: 'drop')"
    )
    result = run(frames, tmp_path, {"roc-glm.missing": "drop"})
    kept = [f[np.isfinite(f["score"])] for f in frames]
    assert result.summary["auc"] == pytest.approx(auc_of(kept), abs=1e-12)
    assert result.summary["dropped"] == 2
    assert [site["dropped"] for site in result.summary["sites"]] == [0, 2, 0]


def test_scores_that_are_no_numbers_are_refused_without_them(tmp_path: Path) -> None:
    frames = cohort()
    frames[0] = frames[0].assign(score=[f"about {SECRET}"] * len(frames[0]))
    assert refused(frames, tmp_path) == "site-0: scores are not numbers"


def test_columns_are_named(tmp_path: Path) -> None:
    frames = [f.rename(columns={"score": "p", "label": "died"}) for f in cohort()]
    reason = refused(frames, tmp_path)
    assert 'no column "label" (roc-glm.label)' in reason
    assert 'no column "score" (roc-glm.score)' in reason
    named = {"roc-glm.score": "p", "roc-glm.label": "died"}
    assert run(frames, tmp_path, named).summary["status"] == "ok"


# Privacy level and number of sites ---------------------------------------------------------------


def with_small_site() -> list[pd.DataFrame]:
    """Three sites, and one with 40 negatives and 2 positives."""
    small = pd.DataFrame({"label": [0] * 40 + [1] * 2, "score": np.linspace(0, 1, 42)})
    return [*cohort(300), small]


@pytest.mark.parametrize(
    "release", ["exact", "binned", "secure-counts", "noisy-counts", "noisy-scores"]
)
def test_a_small_site_is_refused_or_left_out_by_name(release: str, tmp_path: Path) -> None:
    config: dict[str, Value] = {"roc-glm.release": release, "roc-glm.epsilon": 8.0}
    reason = refused(with_small_site(), tmp_path, config)
    assert reason == (
        "site-3: roc-glm.privacy-level = 5: the positive class needs at least 5 rows, or none"
    )
    result = run(with_small_site(), tmp_path, {**config, "roc-glm.on-small-site": "exclude"})
    summary = result.summary
    assert summary["status"] == "ok"
    assert summary["excluded"] == ["site-3"]
    assert summary["n-sites"] == 3
    assert summary["n-positive"] + summary["n-negative"] == 300
    assert any("site-3" in fault and "at least 5 rows" in fault for fault in summary["faults"])
    assert "site-3" not in {row["receiver"] for row in result.ledger if row["exchange"] > 1}


@pytest.mark.parametrize("release", ["secure-counts", "binned"])
def test_cells_are_merged_until_each_has_enough_rows(release: str, tmp_path: Path) -> None:
    config: dict[str, Value] = {"roc-glm.release": release, "roc-glm.privacy-level-of": "cell"}
    frames = cohort(900)
    summary = run(frames, tmp_path, config).summary
    assert summary["status"] == "ok"
    assert summary["auc"] == pytest.approx(auc_of(frames), abs=0.03)
    fine = run(frames, tmp_path, {"roc-glm.release": release}).summary
    assert summary["auc"] != fine["auc"]
    hopeless = cohort(30)
    reason = refused(hopeless, tmp_path, {**config, "roc-glm.privacy-level": 4})
    assert "no cut point leaves 4 rows" in reason or "needs at least 4 rows" in reason


def test_masked_sums_need_three_sites(tmp_path: Path) -> None:
    reason = refused(cohort(sites=2), tmp_path, {"roc-glm.release": "secure-counts"})
    assert reason.startswith("release = 'secure-counts' needs 3 sites or more")
    for other in ("'binned'", "'noisy-counts'", "'noisy-histogram'", "'noisy-scores'", "'exact'"):
        assert other in reason
    shared = {"roc-glm.release": "noisy-counts", "roc-glm.secure": True}
    assert "secure = false" in refused(cohort(sites=2), tmp_path, shared)
    assert run(cohort(sites=2), tmp_path, {"roc-glm.release": "binned"}).summary["auc"] > 0


def test_settings_that_contradict_each_other(tmp_path: Path) -> None:
    wrong: dict[str, Value] = {
        "roc-glm.release": "noisy-scores",
        "roc-glm.secure": True,
        "roc-glm.mechanism": "classic",
        "roc-glm.epsilon": 2.0,
    }
    with pytest.raises(ConfigError) as caught:
        run(cohort(), tmp_path, wrong)
    assert len(caught.value.faults) == 2
    assert all(fault.startswith("roc-glm.") for fault in caught.value.faults)
    with pytest.raises(ConfigError, match="allow-score-disclosure = true"):
        run(cohort(), tmp_path, {"roc-glm.allow-score-disclosure": False})
    reason = refused(
        cohort(), tmp_path, {"roc-glm.release": "binned", "roc-glm.cut-points": "quantile"}
    )
    assert "cut-points = 'quantile' needs roc-glm.model" in reason
