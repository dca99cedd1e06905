"""The report of a vertical run: numbers, figures, words, and what is said to be absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedapp.report import vertical_xgboost_figures as drawings
from fedapp.report import write_report
from fedapp.report.vertical_xgboost_trees import MOST_NODES, first_tree, is_split
from fedapp.report.vertical_xgboost_words import trust_statements
from fedapp.run_folder import RunFolder
from fedapp.vertical_privacy import privacy_summary
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tests.test_report import Reader, assert_drawn, figure_names
from tests.vertical_report_runs import PARTIES, fitted, make_run, trees_document

PAPER = VerticalXGBoostConfig(dp_epsilon=2.0, sensitivity="paper")
ALL = {"loss-by-tree", "crypto-seconds", "first-tree", "bytes-by-step"}


def text_of(folder: RunFolder) -> str:
    return Reader(write_report(folder.path)).text.replace("\u202f", " ").replace("\u00a0", " ")


def words_of(folder: RunFolder) -> str:
    """Text of the page, for tests of words alone: no figure is drawn, which takes most time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedapp.report.figures.draw", lambda *_, **__: "<svg></svg>")
        return text_of(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, str]:
    folder = make_run(tmp_path_factory.mktemp("runs"))
    return folder, text_of(folder)


def test_the_page_holds_the_numbers(whole: tuple[RunFolder, str]) -> None:
    folder, text = whole
    summary = folder.read().summary
    accuracy, loss = summary["test-accuracy"], summary["test-loss"]
    assert f"Accuracy {accuracy:.3f} on evaluation rows; loss {loss:.4g}" in text
    assert "Trees 3 depth 3 at most" in text
    assert "Encryption Paillier 2048 3 600 ciphertexts, 11.2 s of CPU" in text
    assert "Sites 4 Exchanges 22" in text
    first = folder.read().rounds[0]
    row = f"1 {first['train-loss']:.6g} {first['test-loss']:.6g} {first['train-accuracy']:.6g}"
    assert row in text
    assert "6 400 kB 1 200 3.75 s" in text
    assert "All splits and leaves are the same, bit for bit." in text
    assert f"test accuracy {accuracy:.6g} {accuracy:.6g}" in text


def test_every_figure_is_drawn(whole: tuple[RunFolder, str]) -> None:
    folder, _ = whole
    assert figure_names(folder) == ALL
    for name in ALL:
        assert_drawn(folder, name)
    reader = Reader(folder.path / "report.html")
    assert reader.tags.count("svg") == len(ALL)
    assert len(reader.ids) == len(set(reader.ids))


def test_splits_by_owner(whole: tuple[RunFolder, str]) -> None:
    _, text = whole
    table, model = fitted("binary:logistic", 3)
    for name in PARTIES:
        splits = [
            split
            for tree in model.trees
            for split in tree.splits.values()
            if table.feature_names[split.feature].startswith(f"{name}.")
        ]
        assert f"{name} {len(splits)} " in text


def test_who_decrypts_for_whom_is_in_the_table_of_sites(whole: tuple[RunFolder, str]) -> None:
    _, text = whole
    assert "site columns sums decrypted by sent received north 7 south" in text
    assert "west 7 north" in text


def test_regression(tmp_path: Path) -> None:
    folder = make_run(tmp_path, objective="reg:squarederror")
    text, rmse = words_of(folder), folder.read().summary["test-rmse"]
    assert f"RMSE {rmse:.4g} on evaluation rows" in text
    assert f"test RMSE {rmse:.6g} {rmse:.6g}" in text


def test_early_stopping(tmp_path: Path) -> None:
    text = words_of(make_run(tmp_path, summary={"trees-kept": 2}))
    assert "Trees 2 of 3 grown: stopped early, depth 3 at most" in text
    assert "Upright line: the last tree that was kept." in text


def test_costs_of_set_up_and_end_stand_by_themselves(tmp_path: Path) -> None:
    text = words_of(make_run(tmp_path))
    assert "cryptography set-up – – – – 3 90.0 kB 0 1.5 s 1 0.4" in text
    assert "end – – – – 1 7.0 kB 0 0 s" in text


def test_the_fingerprint_of_all_keys(tmp_path: Path) -> None:
    text = words_of(make_run(tmp_path))
    assert "keys of all parties, as the server has them: ABCD-EFGH." in text
    text = words_of(make_run(tmp_path, without=("roster-fingerprint",)))
    assert "Fingerprint" not in text


def test_trust_follows_the_configuration(tmp_path: Path) -> None:
    text = words_of(make_run(tmp_path))
    for sentence in trust_statements(
        encryption="paillier", aggregator="server", shuffle=True, num_parties=4
    ):
        assert sentence in text
    config = {"vertical-xgboost.shuffle": False, "vertical-xgboost.aggregator": "source"}
    text = words_of(make_run(tmp_path, config=config, summary={"n-sites": 2}))
    assert "shuffle = false: the split client knows" in text
    assert "Ciphertexts go sealed to the owner of the columns" in text
    assert "Two parties: each finds the other's sums" in text
    assert "secret order" not in text


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("vertical-xgboost.subsample", 0.5, "is an equation about labels"),
        ("vertical-xgboost.colsample-bytree", 0.5, "learn the rank of each unnamed feature"),
        ("vertical-xgboost.warm-start", "run-1", "at every split of the trees"),
        ("resume", "runs/one", "at every split of the trees"),
    ],
)
def test_what_settings_tell_beside_that(tmp_path: Path, key: str, value: Any, words: str) -> None:
    assert words in words_of(make_run(tmp_path, config={key: value}))
    assert words not in words_of(make_run(tmp_path / "other"))


@pytest.mark.parametrize(
    ("config", "summary", "words"),
    [
        ({"vertical-xgboost.encryption": "none"}, {}, "No encryption: whoever adds the sums"),
        ({"vertical-xgboost.key-bits": 1024}, {}, "Keys of 1024 bits are too short"),
        ({}, {"central": {"same-trees": False}}, "The trees differ from those of the central fit"),
        (
            {},
            privacy_summary(PAPER, seeded_noise=True),
            "too small for the epsilon that was asked for (2); it gives",
        ),
        ({}, privacy_summary(PAPER, seeded_noise=True), "from a known seed protects nobody"),
    ],
)
def test_notices(
    tmp_path: Path, config: dict[str, Any], summary: dict[str, Any], words: str
) -> None:
    assert words in words_of(make_run(tmp_path, config=config, summary=summary))


def test_privacy_is_told_with_its_neighbours_and_what_it_leaves_out(tmp_path: Path) -> None:
    assert "No differential privacy: every party receives the exact" in words_of(make_run(tmp_path))
    exact = PAPER.model_copy(update={"sensitivity": "exact"})
    summary = privacy_summary(exact, seeded_noise=False)
    text = words_of(make_run(tmp_path, summary={**summary, "exact-leaves-test-accuracy": 0.8125}))
    assert "(2, 1e-05)-differentially private" in text
    assert "Neighbours: one row's label is another one" in text
    assert "Not covered: weights of leaves below splits of others" in text
    assert "0.8125 with exact leaves alone" in text
    assert "No differential privacy" not in text


@pytest.mark.parametrize(
    ("without", "config", "words"),
    [
        (("train-loss", "test-loss"), {}, "No figure of the loss: no tree has one recorded."),
        (("crypto-seconds",), {}, "time in cryptography: no tree has them recorded."),
        (
            ("crypto-seconds",),
            {"vertical-xgboost.encryption": "none"},
            "time in cryptography: nothing was encrypted.",
        ),
        (("trees.json",), {}, "No drawing of a tree: the run folder has no trees.json."),
        (("central",), {}, "No comparison: only a simulation has all columns and labels"),
    ],
)
def test_absent_parts_say_why(
    tmp_path: Path, without: tuple[str, ...], config: dict[str, Any], words: str
) -> None:
    assert words in words_of(make_run(tmp_path, without=without, config=config))


def test_figures_of_an_earlier_report_are_removed(tmp_path: Path) -> None:
    folder = make_run(tmp_path, without=("trees.json", "train-loss", "test-loss"))
    for name in ("first-tree", "loss-by-tree"):
        (folder.figures / f"{name}.png").write_bytes(b"of an earlier report")
    text_of(folder)
    assert figure_names(folder) == ALL - {"first-tree", "loss-by-tree"}


def test_a_run_without_a_result(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, task="vertical-xgboost")
    folder.write_config({"task": "vertical-xgboost"}, seed=0, runtime="r")
    folder.finish("refused", reason="site-1: 3 rows have a label at no party", summary={})
    text = words_of(folder)
    assert "Refused: site-1: 3 rows have a label at no party" in text
    assert "Accuracy – no result" in text


# -- trees ----------------------------------------------------------------------------------------


SPLIT = {"leaf": False, "owner": "a", "record": 0, "gain": 1.0}


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([], "no node 0"),
        ([{"id": 1, "leaf": True}], "no node 0"),
        ([{"id": 0, **SPLIT, "left": 1, "right": 2}, {"id": 1, "leaf": True}], "lacks a child"),
        ([{"id": 0, "leaf": True}, {"id": 1, "leaf": True}], "nodes without a parent"),
        (
            [{"id": 0, **SPLIT, "left": 1, "right": 1}, {"id": 1, "leaf": True}],
            "node 1 of the first tree has two parents",
        ),
        ([{"id": 0, **SPLIT, "left": 0, "right": 0}], "node 0 of the first tree has two parents"),
    ],
)
def test_what_is_no_tree_is_not_drawn(
    tmp_path: Path, nodes: list[dict[str, Any]], words: str
) -> None:
    document = {"trees": [{"nodes": nodes}]}
    tree, fault = first_tree(document)
    assert tree is None
    assert words in fault
    assert words in words_of(make_run(tmp_path, document=document))


def test_layout_keeps_branches_apart() -> None:
    tree, fault = first_tree(trees_document(*fitted("binary:logistic", 3)))
    assert fault == ""
    assert tree is not None
    central = fitted("binary:logistic", 3)[1].trees[0]
    assert (tree.splits, tree.leaves, tree.hidden) == (len(central.splits), len(central.weights), 0)
    rows = {place.node["id"]: place.row for place in tree.places}
    assert sorted(rows.values()) == list(range(len(rows)))
    levels = {place.node["id"]: place.level for place in tree.places}
    for node, (left, right) in central.children.items():
        assert rows[left] < rows[node] < rows[right]
        assert levels[left] == levels[right] == levels[node] + 1


def test_deep_trees_are_cut_and_counted() -> None:
    table, model = fitted("reg:squarederror", 6)
    tree, _ = first_tree(trees_document(table, model))
    assert tree is not None
    total = len(model.trees[0].splits) + len(model.trees[0].weights)
    assert len(tree.places) <= MOST_NODES < total
    assert tree.hidden == total - len(tree.places) == sum(place.below for place in tree.places)


def test_a_single_leaf_is_a_tree(tmp_path: Path) -> None:
    document = {"trees": [{"nodes": [{"id": 0, "leaf": True}]}]}
    assert "Squares are leaves" in text_of(make_run(tmp_path, document=document))


def test_nodes_are_labelled_with_owner_and_record() -> None:
    tree, _ = first_tree(trees_document(*fitted("binary:logistic", 3)))
    assert tree is not None
    axes = Figure().subplots()
    drawings.draw_tree(axes, tree)
    words = [text.get_text() for text in axes.texts]
    expected = [
        f"{place.node['owner']} · record {place.node['record']} · {place.node['gain']:.4g}"
        if is_split(place.node)
        else "leaf"
        for place in tree.places
    ]
    assert words == expected


def test_losses_are_drawn_as_recorded() -> None:
    lines = [{"tree": 1, "train-loss": 0.5, "test-loss": 0.6}, {"tree": 2, "train-loss": 0.4}]
    axes = Figure().subplots()
    drawings.draw_loss(axes, lines, kept=1)
    drawn = [line.get_ydata() for line in axes.get_lines() if line.get_label().startswith("_")]
    train, test = drawn[:2]
    np.testing.assert_array_equal(train, [0.5, 0.4])
    np.testing.assert_array_equal(test, [0.6, np.nan])


def test_hostile_names_are_text(tmp_path: Path) -> None:
    owner = '<script>alert("x")</script>$\\frac{$'
    nodes = [
        {"id": 0, **SPLIT, "owner": owner, "left": 1, "right": 2},
        {"id": 1, "leaf": True},
        {"id": 2, "leaf": True},
    ]
    folder = make_run(tmp_path, document={"trees": [{"nodes": nodes}]})
    reader = Reader(write_report(folder.path))
    assert "script" not in reader.tags
    assert owner in reader.text
