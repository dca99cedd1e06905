"""The report of a ROC-GLM run, from real rows: numbers, figures, and what is said to be absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, confusion_matrix
from statsmodels.stats.proportion import proportion_confint

from fedapp.report import roc_glm_figures, write_report
from fedapp.report.roc_glm_tables import number
from fedapp.run_folder import RunFolder
from fedapp.site_data import BUNDLED
from tests.roc_glm_runs import make_run, rows_of_sites, site_of
from tests.test_report import Reader, assert_drawn, figure_names

ALL = {"roc", "auc-by-site", "calibration", "net-benefit", "bytes-by-step"}


def text_of(folder: RunFolder) -> str:
    return Reader(write_report(folder.path)).text.replace("\u202f", " ").replace("\u00a0", " ")


def words_of(folder: RunFolder) -> str:
    """Text of the page, for tests of words alone: no figure is drawn, which takes most time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedapp.report.figures.draw", lambda *_, **__: "<svg></svg>")
        return text_of(folder)


@pytest.fixture(scope="module")
def binned(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, str]:
    folder = make_run(tmp_path_factory.mktemp("runs"), release="binned")
    return folder, text_of(folder)


def drawn(plot: Any, *arguments: Any, **options: Any) -> Any:
    axes = Figure().subplots()
    plot(axes, *arguments, **options)
    return axes


# -- what is on the page --------------------------------------------------------------------------


def test_the_page_holds_the_estimates(binned: tuple[RunFolder, str]) -> None:
    folder, text = binned
    summary = folder.read().summary
    frame = BUNDLED["breast-cancer"].load()
    interval = f"{summary['ci-lower']:.3f} – {summary['ci-upper']:.3f}"
    assert f"AUC {summary['auc']:.3f} 95 % CI {interval}" in text
    assert f"Patients 400 {frame['label'].sum()} positive" in text
    assert "Sites 5 Exchanges 4" in text
    assert "Rounds" not in text
    assert "Release binned no noise, no ε" in text
    z = summary["test-statistic"]
    assert f"H0: AUC ≤ 0.5 against AUC > 0.5: z = {z:.2f}, p < 0.0001; H0 is rejected" in text
    brier = brier_score_loss(frame["label"], frame["score"])
    assert f"Brier score {brier:.3f}" in text
    for key in ("gamma-1", "gamma-2", "auc-roc-glm", "auc-variance"):
        assert f"{summary[key]:.6g}" in text
    assert summary["privacy"] in text


def test_the_confusion_table_is_scikit_learns(binned: tuple[RunFolder, str]) -> None:
    _, text = binned
    frame = BUNDLED["breast-cancer"].load()
    table = confusion_matrix(frame["label"], frame["score"] > 0.5)
    (tn, fp), (fn, tp) = table.tolist()
    assert "At the threshold 0.5" in text
    assert f"score above {tp} {fp} {tp + fp} score not above {fn} {tn} {fn + tn}" in text
    assert f"together {tp + fn} {fp + tn} 400" in text
    for name, value in (
        ("sensitivity", tp / (tp + fn)),
        ("specificity", tn / (tn + fp)),
        ("PPV", tp / (tp + fp)),
        ("NPV", tn / (tn + fn)),
    ):
        assert f"{name} {value:.3f}" in text


def test_every_figure_is_drawn(binned: tuple[RunFolder, str]) -> None:
    folder, _ = binned
    assert figure_names(folder) == ALL
    for name in ALL:
        assert_drawn(folder, name)
    reader = Reader(folder.path / "report.html")
    assert reader.tags.count("svg") == len(ALL)
    assert len(reader.ids) == len(set(reader.ids))


def test_pooled_check(binned: tuple[RunFolder, str]) -> None:
    folder, text = binned
    brier = folder.read().summary["brier"]
    assert f"brier {brier:.8g} {brier:.8g} -1.4e-17" in text


def test_a_deployed_run_has_no_pooled_check(tmp_path: Path) -> None:
    text = words_of(make_run(tmp_path, without=("pooled-check",)))
    assert "No comparison: only a simulation has all rows in one place" in text


def test_secure_counts_has_no_auc_by_site(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    (folder.figures / "auc-by-site.png").write_bytes(b"of an earlier report")
    text = text_of(folder)
    assert "No AUC by site: under secure-counts the server reads sums over all sites only." in text
    assert figure_names(folder) == ALL - {"auc-by-site"}


def test_privacy_statement_is_printed_as_it_stands(tmp_path: Path) -> None:
    words = "Privacy: Gaussian mechanism, (epsilon, delta) = (1, 1e-05). Not covered: <w1> & more."
    summary = {"privacy": words, "epsilon": 0.987, "delta": 1e-5}
    folder = make_run(tmp_path, release="noisy-counts", summary=summary)
    text = words_of(folder)
    assert words in text
    assert "Release noisy-counts privacy spent: ε = 0.987, δ = 1e-05" in text
    assert "the interval takes the noise into account" in text
    assert "the noise is not in it" in text
    assert "Wilson" not in text  # the counts of the bins carry noise


def test_no_privacy_statement_is_said_to_be_missing(tmp_path: Path) -> None:
    folder = make_run(tmp_path, release="noisy-scores", without=("privacy",))
    text = words_of(folder)
    assert "The run left no statement on its privacy." in text
    assert "privacy spent: not recorded" in text


@pytest.mark.parametrize(
    ("summary", "without", "words"),
    [
        ({"auc": 0.31, "p-value": 0.99}, (), "The AUC is below 0.5: higher scores go with the"),
        ({"p-value": 0.4321, "rejected": False}, (), "p = 0.4321; H0 is not rejected"),
        ({"ci-degenerate": True}, (), "The variance of the AUC is 0 (constant scores)"),
        ({"dropped": 7}, (), "Rows left out for a missing label or score: 7."),
        (
            {"no-interval": "a variance needs 2 positives"},
            ("ci-lower", "ci-upper"),
            "no confidence interval: a variance needs 2 positives",
        ),
        ({"i-squared": 0.42, "heterogeneity-p": 0.0321}, (), "I² = 42 %, Cochran's Q test p = 0.0"),
        ({"auc-undebiased": 0.87654}, (), "AUC with the noise in it 0.87654"),
        (
            {"calibration-slope": 0.912},
            ("brier", "observed-to-expected"),
            "Calibration slope 0.912. A well calibrated model",
        ),
    ],
)
def test_words_of_the_summary(
    tmp_path: Path, summary: dict[str, Any], without: tuple[str, ...], words: str
) -> None:
    assert words in words_of(make_run(tmp_path, summary=summary, without=without))


def test_suppressed_rows_are_counted(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    content = folder.read_json("roc.json")
    assert content is not None
    suppressed = content["calibration"]["suppressed"]
    assert suppressed > 0
    assert suppressed + sum(row["n"] for row in content["calibration"]["bins"]) == 400
    text = words_of(folder)
    assert f"Left out: {suppressed} rows in bins of which their site has fewer than 5." in text


def test_confusion_table_at_another_threshold(tmp_path: Path) -> None:
    table = {"threshold": 0.4, "accuracy": 0.8125}
    text = words_of(make_run(tmp_path, document={"confusion": table}))
    assert "At the threshold 0.4" in text
    assert "the cut point that every site can keep closest to roc-glm.threshold = 0.5" in text
    assert "accuracy 0.81" in text


# -- what is not there ----------------------------------------------------------------------------


def test_an_empty_document(tmp_path: Path) -> None:
    keys = ("roc", "calibration", "net-benefit", "confusion", "sites", "pooled-check")
    folder = make_run(tmp_path, release="exact", without=keys)
    text = text_of(folder)
    for title in ("ROC curve", "AUC by site", "calibration curve", "decision curve", "confusion"):
        assert f"No {title}" in text
    assert figure_names(folder) == {"bytes-by-step"}


def test_no_statistics_without_a_budget(tmp_path: Path) -> None:
    keys = ("calibration", "net-benefit", "confusion")
    text = words_of(make_run(tmp_path, release="noisy-counts", without=keys))
    assert "No decision curve: it needs scores that are probabilities, in [0, 1]." in text
    for title in ("calibration curve", "confusion table"):
        words = "under noisy-counts it has a budget of its own, statistics-epsilon, which is 0."
        assert f"No {title}: {words}" in text


def test_a_run_without_a_result(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, task="roc-glm")
    folder.write_config({"task": "roc-glm"}, seed=0, runtime="r", defaults={}, meanings={})
    folder.finish("not-estimable", reason="separated: no two thresholds", summary={})
    text = words_of(folder)
    assert "Not estimable: separated: no two thresholds" in text
    assert "AUC – no estimate" in text
    assert "No ROC curve: the run has no result." in text


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (
            {"roc": {"false-positive-rate": [0, 1], "true-positive-rate": [0]}},
            "in roc.json, 'false-positive-rate' and 'true-positive-rate' differ in length",
        ),
        (
            {
                "roc": {
                    "parametric": {
                        "false-positive-rate": [0.5],
                        "true-positive-rate": [0.7],
                        "lower": [0.6, 0.7],
                        "upper": [0.8],
                    }
                }
            },
            "in roc.json, 'false-positive-rate' and 'lower' differ in length",
        ),
        (
            {"net-benefit": {"threshold": [0.1], "model": [0.1, 0.2]}},
            "No decision curve: in roc.json, 'threshold' and 'model' differ in length",
        ),
        ({"calibration": {"bins": [{"lower": 0, "upper": 1}]}}, "No calibration curve"),
        ({"net-benefit": {"threshold": [], "model": []}}, "No decision curve"),
        ({"roc": {}}, "No ROC curve"),
    ],
)
def test_lists_that_do_not_fit(tmp_path: Path, document: dict[str, Any], words: str) -> None:
    assert words in words_of(make_run(tmp_path, document=document))


def test_one_curve_alone_is_drawn(tmp_path: Path) -> None:
    whole = make_run(tmp_path / "a").read_json("roc.json")
    assert whole is not None
    counts = {key: value for key, value in whole["roc"].items() if key != "parametric"}
    folder = make_run(tmp_path / "b", document={"roc": counts}, summary={"no-roc-glm": "separated"})
    assert "No fitted curve: separated." in text_of(folder)
    assert_drawn(folder, "roc")
    smooth = {"parametric": whole["roc"]["parametric"]}
    folder = make_run(tmp_path / "c", document={"roc": smooth})
    assert "From counts" not in text_of(folder)
    assert_drawn(folder, "roc")


def test_hostile_site_names_are_text(tmp_path: Path) -> None:
    hostile = ['<script>alert("x")</script>', "$\\frac{$", "a" * 64]
    own = site_of(rows_of_sites(5)[0])
    sites = [{"site": name, **own} for name in hostile]
    folder = make_run(tmp_path, release="binned", document={"sites": sites})
    reader = Reader(write_report(folder.path))
    assert "script" not in reader.tags
    assert_drawn(folder, "auc-by-site")


def test_hundred_sites_fit(tmp_path: Path) -> None:
    own = site_of(rows_of_sites(5)[0])
    sites = [{"site": f"site-{at}", **own} for at in range(100)]
    folder = make_run(tmp_path, release="binned", document={"sites": sites})
    text_of(folder)
    assert_drawn(folder, "auc-by-site")
    assert roc_glm_figures.sites_height(100) < 20


# -- what the figures show ------------------------------------------------------------------------


def test_roc_points_enclose_the_auc(binned: tuple[RunFolder, str]) -> None:
    folder, _ = binned
    content = folder.read_json("roc.json")
    assert content is not None
    axes = drawn(roc_glm_figures.draw_roc, content["roc"])
    lines = {line.get_label(): line.get_xydata() for line in axes.get_lines()}
    assert set(lines) == {"chance", "ROC-GLM", "from counts"}
    area = np.trapezoid(lines["from counts"][:, 1], lines["from counts"][:, 0])
    assert area == pytest.approx(folder.read().summary["auc"], abs=1e-12)
    band = axes.collections[0].get_paths()[0].vertices
    smooth = content["roc"]["parametric"]
    assert band[:, 1].min() == pytest.approx(min(smooth["lower"]))
    assert band[:, 1].max() == pytest.approx(max(smooth["upper"]))


def test_calibration_points_are_scikit_learns() -> None:
    frame = BUNDLED["breast-cancer"].load()
    observed, mean = calibration_curve(frame["label"], frame["score"], n_bins=10)
    size = np.histogram(frame["score"], bins=np.linspace(0, 1, 11))[0]
    bins = [
        {
            "lower": at / 10,
            "upper": (at + 1) / 10,
            "mean-predicted": mean[at],
            "observed": observed[at],
            "n": int(size[at]),
        }
        for at in range(10)
    ]
    axes = drawn(roc_glm_figures.draw_calibration, bins, level=0.9)
    points = axes.get_lines()[-1].get_xydata()
    np.testing.assert_allclose(points, np.column_stack([mean, observed]))
    lower, upper = proportion_confint(np.round(observed * size), size, alpha=0.1, method="wilson")
    segments = [collection.get_segments()[0] for collection in axes.collections]
    np.testing.assert_allclose([ends[0][1] for ends in segments], lower, atol=1e-9)
    np.testing.assert_allclose([ends[1][1] for ends in segments], upper, atol=1e-9)
    assert [text.get_text() for text in axes.texts] == [str(count) for count in size]
    assert not drawn(roc_glm_figures.draw_calibration, bins, level=None).collections


def test_net_benefit_with_gaps_and_at_one_threshold() -> None:
    curve = {"threshold": [0.1, 0.2, 0.3], "model": [0.3, None, 0.1], "treat-all": [0.2, 0, -9]}
    axes = drawn(roc_glm_figures.draw_net_benefit, curve, threshold=0.25)
    assert axes.get_ylim()[0] > -0.5  # what treating all costs does not set the scale
    single = {"threshold": [0.5], "model": [0.2], "treat-all": [None]}
    drawn(roc_glm_figures.draw_net_benefit, single, threshold=None)


def test_sites_without_interval_and_without_a_whole() -> None:
    sites = [{"site": "a", "auc": 0.3}, {"site": "b", "auc": 1.0}]
    axes = drawn(roc_glm_figures.draw_sites, sites, {"site": "all sites"})
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]


def test_counts_under_noise_keep_a_decimal() -> None:
    assert number(1234) == "1\u202f234"
    assert number(1234.0) == "1\u202f234"
    assert number(-0.26) == "-0.3"
