"""Guessing labels of others: with what a party has and no more, and how good the guesses are."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score

from fedapp import cli
from fedapp.simulation import simulate
from fedapp.vertical_audit import audit, audit_run, document_of, view_of
from tasks.vertical_xgboost.attack import (
    ATTACKS,
    AttackerView,
    attack,
    guess_quality,
    reachable_leaves,
)
from tasks.vertical_xgboost.joined import join
from tasks.vertical_xgboost.model_part import ModelPart, exact_weights, part_path
from tasks.vertical_xgboost.part_tree import PartTree
from tasks.vertical_xgboost.partial_dp import LeafNoise
from tasks.vertical_xgboost.party import Party
from tasks.vertical_xgboost.rows import PartyTable
from tests.vertical_frames import config_of, cut, random_frame, tables_of
from tests.vertical_runs import run

PARTIES = 3
KEYS: dict[str, Any] = {"num_trees": 4, "max_depth": 2, "base_score": "0.5"}
SMALL: dict[str, bool | int | float | str] = {
    "vertical-xgboost.encryption": "none",
    "vertical-xgboost.num-trees": 2,
    "vertical-xgboost.max-depth": 2,
}


@dataclasses.dataclass
class Attacked:
    """A run, and what everybody had."""

    parts: dict[str, ModelPart]
    tables: dict[str, PartyTable]
    leaves: dict[int, list[np.ndarray]]
    margins: np.ndarray


def attacked(directory: Path, *, frame: pd.DataFrame | None = None, **keys: Any) -> Attacked:
    """A run of three parties of which the first has nearly all columns."""
    whole = random_frame(4, rows=400) if frame is None else frame
    frames = cut(whole, parties=PARTIES, labels="even")
    names = [name for name in whole.columns if name not in ("id", "label", "mirrored", "few")]
    frames[0] = frames[0][["id", "label"]].merge(whole[["id", *names]], on="id")
    for at, name in ((1, "few"), (2, "mirrored")):
        frames[at] = frames[at][["id", "label"]].merge(whole[["id", name]], on="id")
    leaves: dict[int, list[np.ndarray]] = {}
    really = Party._finish_tree

    def finish(party: Party) -> None:
        leaves.setdefault(party.place, []).append(party.nodes.copy())
        really(party)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Party, "_finish_tree", finish)
        result = run(directory, frames, **KEYS, **keys)
    found = tables_of(frames, config_of(**KEYS))
    tables = {f"site-{at}": table for at, table in enumerate(found.values())}
    folder = result.run_folder / "parties"
    assert result.predictions is not None
    return Attacked(
        {name: ModelPart.load(part_path(folder, name)) for name in tables},
        tables,
        leaves,
        result.predictions["margin"].to_numpy(),
    )


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Attacked:
    return attacked(tmp_path_factory.mktemp("exact"))


def test_figures_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    scores = np.round(random.normal(size=300), 1)  # with ties
    truth = (scores + random.normal(size=300) > 0.5).astype(float)
    scores[:40] = np.nan
    found = guess_quality(scores, truth)
    assert found is not None
    made = ~np.isnan(scores)
    guesses = scores[made] > 0
    assert found.rows == 260
    assert found.share == pytest.approx(260 / 300)
    assert found.accuracy == pytest.approx(accuracy_score(truth[made], guesses))
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(truth[made], guesses))
    assert found.auc == pytest.approx(roc_auc_score(truth[made], scores[made]))
    majority = max(truth[made].mean(), 1 - truth[made].mean())
    assert found.gain == pytest.approx(found.accuracy - majority)
    assert guess_quality(scores[:40], truth[:40]) is None
    assert guess_quality(scores, np.ones(300)) is None


def test_a_view_holds_no_label_of_others(exact: Attacked) -> None:
    view = view_of("site-1", exact.parts, exact.tables)
    assert np.array_equal(np.isnan(view.labels), ~view.owns)
    everybody = join(exact.tables).labels
    with pytest.raises(ValueError, match="must be those of owned rows"):
        dataclasses.replace(view, labels=everybody)
    with pytest.raises(ValueError, match="one a tree and owned row"):
        dataclasses.replace(view, own_leaves=np.zeros((4, 400), dtype=np.int32))


def test_leaves_of_own_rows_are_those_that_the_party_had_in_the_training(exact: Attacked) -> None:
    for place in range(PARTIES):
        view = view_of(f"site-{place}", exact.parts, exact.tables)
        assert np.array_equal(view.own_leaves, np.concatenate(exact.leaves[place]))


@pytest.mark.parametrize("party", ["site-0", "site-1", "site-2"])
def test_guesses_need_nothing_that_others_have(exact: Attacked, party: str) -> None:
    """Others' labels turned round, and their columns too but for rows that the attacker owns."""
    config = config_of(**KEYS)
    owns = exact.tables[party].owns
    tables, parts = {}, {}
    for name, table in exact.tables.items():
        part = exact.parts[name]
        if name != party:
            features = table.features.copy()
            features[~owns] = -features[~owns]
            labels = 1.0 - table.labels
            table = dataclasses.replace(table, features=features, labels=labels)
            trees = tuple(
                dataclasses.replace(tree, weights=dict.fromkeys(tree.weights, 9.0))
                for tree in part.trees
            )
            part = dataclasses.replace(part, trees=trees)
        tables[name], parts[name] = table, part
    before = attack(view_of(party, exact.parts, exact.tables), config)
    after = attack(view_of(party, parts, tables), config)
    assert set(before) == set(ATTACKS)
    for name, scores in before.items():
        assert np.array_equal(scores, after[name], equal_nan=True)


def test_a_row_is_in_a_reachable_leaf_and_alone_where_all_splits_are_own(exact: Attacked) -> None:
    some_open, some_known = 0, 0
    for place in range(PARTIES):
        view = view_of(f"site-{place}", exact.parts, exact.tables)
        for at, tree in enumerate(view.trees):
            reached = reachable_leaves(view, at)
            owned = np.flatnonzero(view.owns)
            assert reached[owned, view.own_leaves[at]].all()
            above = {
                child: node
                for node, two in exact.parts[f"site-{place}"].trees[at].children.items()
                for child in two
            }
            for row, leaf in zip(owned, view.own_leaves[at], strict=True):
                owners, node = set(), int(leaf)
                while node in above:
                    node = above[node]
                    owners.add(tree.splits[node].source)
                is_known = reached[row].sum() == 1
                if owners == {view.source}:
                    some_known += 1
                    assert is_known
                some_open += not is_known
    assert some_open
    assert some_known


def test_the_papers_attack_knows_margins_where_it_knows_all_leaves(tmp_path: Path) -> None:
    quiet = random_frame(4, rows=400).assign(few=1.0, mirrored=1.0)  # others never split
    exact = attacked(tmp_path, frame=quiet)
    view = view_of("site-0", exact.parts, exact.tables)
    scores = attack(view, config_of(**KEYS))["leaf-weights"]
    single = [reachable_leaves(view, at).sum(axis=1) == 1 for at in range(len(view.trees))]
    all_known = np.all(single, axis=0)
    assert all_known.all()
    assert np.allclose(scores, exact.margins, atol=1e-12)
    blind = attack(view_of("site-1", exact.parts, exact.tables), config_of(**KEYS))
    assert np.isnan(blind["leaf-weights"]).all()


def test_rows_of_which_no_leaf_is_known_are_left_out(exact: Attacked) -> None:
    left_out = 0
    for place in range(PARTIES):
        view = view_of(f"site-{place}", exact.parts, exact.tables)
        scores = attack(view, config_of(**KEYS))["leaf-weights"]
        single = [reachable_leaves(view, at).sum(axis=1) == 1 for at in range(len(view.trees))]
        assert np.array_equal(np.isnan(scores), ~np.any(single, axis=0))
        left_out += np.isnan(scores).sum()
    assert left_out


def test_guesses_tell_labels_and_noise_takes_that_away(exact: Attacked) -> None:
    """Of one draw of noise the AUC may be anything; of many it is on average one half."""
    view, truth = view_of("site-0", exact.parts, exact.tables), join(exact.tables).labels
    config = config_of(**KEYS, dp_epsilon=0.5, dp_clip=0.1)
    noise, generator = LeafNoise.of(config), np.random.default_rng(0)
    assert noise is not None

    def released(tree: PartTree) -> PartTree:
        own = [leaf for leaf, source in tree.sources.items() if source == "site-0"]
        own = [leaf for leaf in own if leaf in tree.weights]
        told = noise.release([tree.weights[leaf] for leaf in own], generator=generator)
        weights = {**tree.weights, **dict(zip(own, told.tolist(), strict=True))}
        return dataclasses.replace(tree, weights=weights)

    def auc(trees: tuple[PartTree, ...]) -> float:
        scores = attack(dataclasses.replace(view, trees=trees), config)["leaf-weights"]
        quality = guess_quality(scores[view.victims], truth[view.victims])
        assert quality is not None
        return quality.auc

    trees = exact.parts["site-0"].trees
    open_auc = audit(exact.parts, exact.tables, config)["leaf-weights"]["site-0"].auc
    assert auc(trees) == open_auc > 0.7
    noisy = np.array([auc(tuple(map(released, trees))) for _ in range(100)])
    assert abs(noisy.mean() - 0.5) < 0.1
    assert np.abs(noisy - 0.5).mean() < 0.75 * (open_auc - 0.5)


def test_an_attacker_in_a_noisy_run_has_noisy_weights_below_its_own_splits(tmp_path: Path) -> None:
    found = attacked(tmp_path, dp_epsilon=0.5, dp_clip=0.1)
    config, shielded = config_of(**KEYS), 0
    view = view_of("site-0", found.parts, found.tables)
    trees = []
    for at, tree in enumerate(found.parts["site-0"].trees):
        weights = exact_weights(found.parts, at)
        for leaf, weight in view.trees[at].weights.items():
            is_noisy = tree.sources.get(leaf) == "site-0"
            assert (weight != weights[leaf]) == is_noisy
            shielded += is_noisy
        trees.append(dataclasses.replace(tree, weights=weights))
    assert shielded
    with_exact = attack(dataclasses.replace(view, trees=tuple(trees)), config)
    assert not np.array_equal(
        attack(view, config)["leaf-weights"], with_exact["leaf-weights"], equal_nan=True
    )


def test_the_structure_alone_tells_something(exact: Attacked) -> None:
    found = audit(exact.parts, exact.tables, config_of(**KEYS))
    assert found["structure"]["site-0"].auc > 0.65
    view = view_of("site-0", exact.parts, exact.tables)
    blind = dataclasses.replace(
        view,
        trees=tuple(
            dataclasses.replace(tree, weights=dict.fromkeys(tree.weights, 0.0))
            for tree in exact.parts["site-0"].trees
        ),
    )
    config = config_of(**KEYS)
    assert np.array_equal(attack(view, config)["structure"], attack(blind, config)["structure"])


def test_a_party_without_labels_guesses_from_weights_only(tmp_path: Path) -> None:
    frames = cut(random_frame(3), parties=PARTIES, labels="one")
    result = run(tmp_path, frames, **KEYS)
    tables = {
        f"site-{at}": table for at, table in enumerate(tables_of(frames, config_of()).values())
    }
    folder = result.run_folder / "parties"
    parts = {name: ModelPart.load(part_path(folder, name)) for name in tables}
    view: AttackerView = view_of("site-0", parts, tables)
    assert not view.owns.any()
    scores = attack(view, config_of(**KEYS))
    assert np.isnan(scores["own-data"]).all()
    assert np.isfinite(scores["mean-leaf-weights"]).all()
    document = document_of(audit(parts, tables, config_of(**KEYS)), config_of(**KEYS))
    assert "own-data" not in document["attacks"]


def test_the_command_audits_a_run_on_bundled_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = simulate("vertical-xgboost", config=SMALL | {"run-dir": str(tmp_path)})
    out = tmp_path / "audit.json"
    assert cli.main(["audit", str(result.run_folder), "--json", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["attacks"]["mean-leaf-weights"]["mean"]["auc"] > 0.8
    assert len(document["attacks"]["mean-leaf-weights"]["parties"]) == 4
    text = capsys.readouterr().out
    assert "mean-leaf-weights" in text
    assert "over majority" in text


def test_what_cannot_be_audited_is_refused(tmp_path: Path) -> None:
    frames = cut(random_frame(3), parties=PARTIES, labels="even")
    with pytest.raises(ValueError, match="rows of this run are not at hand"):
        audit_run(run(tmp_path, frames, **KEYS).run_folder)
    trained = simulate("vertical-xgboost", config=SMALL | {"run-dir": str(tmp_path)})
    keys = {"vertical-xgboost.mode": "predict", "vertical-xgboost.model": str(trained.run_folder)}
    predicted = simulate("vertical-xgboost", config=SMALL | keys | {"run-dir": str(tmp_path)})
    assert predicted.summary["status"] == "ok"
    with pytest.raises(ValueError, match="mode = 'predict'; allowed is a training"):
        audit_run(predicted.run_folder)
    part = part_path(trained.run_folder / "parties", "site-1")
    part.write_text(part.read_text().replace('"eta": 0.3', '"eta": 0.4'))
    with pytest.raises(ValueError, match=r"site-1\.json: was altered"):
        audit_run(trained.run_folder)
    part.unlink()
    with pytest.raises(ValueError, match="no parts of the model of all parties"):
        audit_run(trained.run_folder)
    frames = cut(random_frame(3, objective="reg:squarederror"), parties=PARTIES, labels="even")
    config = config_of(objective="reg:squarederror")
    with pytest.raises(ValueError, match="guesses classes"):
        audit({}, tables_of(frames, config), config)
