"""Noise of leaf weights: how much, to whom, how often, and what it all amounts to."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost
from dp_accounting import dp_event, privacy_accountant
from dp_accounting.pld import pld_privacy_accountant
from scipy import stats

from fedapp import run_config
from fedapp.simulation import SimulationResult
from fedapp.vertical_export import exported_model
from fedapp.vertical_party import prepare_vertical_site
from fedapp.vertical_privacy import privacy_lines, privacy_summary
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.heard import WEIGHT
from tasks.vertical_xgboost.model_part import ModelPart, exact_weights, part_path
from tasks.vertical_xgboost.origin import spent_epsilon
from tasks.vertical_xgboost.partial_dp import (
    LeafNoise,
    NoisyWeights,
    check_budget,
    most_releases,
    noisy_weights,
)
from tests.vertical_frames import config_of, cut, random_frame
from tests.vertical_runs import Recorded, record, run


def noise_of(**keys: Any) -> LeafNoise:
    found = LeafNoise.of(config_of(**{"dp_epsilon": 4.0, **keys}))
    assert found is not None
    return found


# How much -------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0.3, 7.0, -2.5])
def test_noise_is_normal_with_the_scale_that_was_derived_around_the_clipped_weight(
    weight: float,
) -> None:
    noise = noise_of(dp_clip=2.0, num_trees=3, max_depth=2)
    drawn = noise.release([weight] * 20_000, generator=np.random.default_rng(1))
    centre = min(max(weight, -2.0), 2.0)
    assert stats.kstest(drawn, stats.norm(centre, noise.sigma).cdf).pvalue > 1e-3
    assert stats.kstest(drawn, stats.norm(centre, 0.95 * noise.sigma).cdf).pvalue < 1e-3
    secure = noise.release([weight] * 20_000)
    assert stats.kstest(secure, stats.norm(centre, noise.sigma).cdf).pvalue > 1e-6


@pytest.mark.parametrize(
    ("epsilon", "delta", "trees", "depth"), [(2.0, 1e-5, 5, 3), (10, 1e-6, 1, 6)]
)
def test_the_total_is_what_an_independent_accountant_finds(
    epsilon: float, delta: float, trees: int, depth: int
) -> None:
    noise = noise_of(
        dp_epsilon=float(epsilon), dp_delta=delta, dp_clip=0.5, num_trees=trees, max_depth=depth
    )
    accountant = pld_privacy_accountant.PLDAccountant(
        privacy_accountant.NeighboringRelation.REPLACE_SPECIAL
    )
    releases = 1 + (trees - 1) * 2**depth
    multiplier = noise.sigma / (2 * 0.5)
    accountant.compose(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(multiplier), releases))
    assert accountant.get_epsilon(delta) == pytest.approx(epsilon, rel=2e-3)
    found = spent_epsilon([noise.spent(noise.releases)], delta=delta)
    assert found == pytest.approx(epsilon, rel=1e-9)


def test_the_papers_sensitivity_is_named_and_its_true_epsilon_told() -> None:
    keys: dict[str, Any] = {"dp_epsilon": 2.0, "num_trees": 5, "max_depth": 3}
    exact, paper = noise_of(**keys), noise_of(**keys, sensitivity="paper")
    assert paper.releases == 5
    assert exact.releases == most_releases(num_trees=5, max_depth=3, num_roots=1) == 33
    assert exact.sigma / paper.sigma == pytest.approx(2 * np.sqrt(33 / 5))
    told = privacy_summary(config_of(**keys, sensitivity="paper"), seeded_noise=False)
    assert told["dp-epsilon-paper"] == 2.0
    assert told["dp-epsilon"] > 4 * 2.0
    assert any("does NOT give it" in line for line in privacy_lines(told))
    told = privacy_summary(config_of(**keys), seeded_noise=True)
    assert told["dp-epsilon"] == pytest.approx(2.0)
    lines = privacy_lines(told)
    assert any("Neighbours: one row's label" in line for line in lines)
    assert any("not covered" in line and "above the last level" in line for line in lines)
    assert any("seeded-noise" in line for line in lines)
    assert privacy_summary(config_of(), seeded_noise=False) == {}


def test_one_label_moves_one_leaf_of_the_first_tree_and_any_of_later_ones() -> None:
    """What releases are counted by: one label changes, the splits stay."""
    random = np.random.default_rng(0)
    leaf_of = [random.integers(0, 4, size=60) for _ in range(3)]  # trees of 4 leaves
    labels = random.integers(0, 2, size=60).astype(float)

    def weights(labels: np.ndarray) -> list[np.ndarray]:
        margins, found = np.zeros(60), []
        for leaves in leaf_of:
            p = 1 / (1 + np.exp(-margins))
            tree = np.array(
                [
                    -(p - labels)[leaves == leaf].sum() / ((p * (1 - p))[leaves == leaf].sum() + 1)
                    for leaf in range(4)
                ]
            )
            margins = margins + 0.3 * tree[leaves]
            found.append(tree)
        return found

    other = labels.copy()
    other[7] = 1 - other[7]
    moved = [np.count_nonzero(a != b) for a, b in zip(weights(labels), weights(other), strict=True)]
    assert moved[0] == 1
    assert max(moved[1:]) == 4
    assert most_releases(num_trees=3, max_depth=2, num_roots=1) == 1 + 4 + 4


# One draw -------------------------------------------------------------------------------------


def test_one_draw_for_each_pair_of_leaves_whatever_the_sides() -> None:
    noisy = NoisyWeights(noise_of())
    first = noisy.of([0.25, -0.5])
    assert noisy.of([0.25, -0.5]) == first
    assert noisy.of([-0.5, 0.25]) == first[::-1]
    other = noisy.of([0.25, -0.75])
    assert other[0] != first[0]
    assert noisy.of([0.5]) == noisy.of([0.5])
    assert len(set(noisy.of([0.5, 0.5]))) == 2


def test_seeded_noise_repeats_and_differs_between_levels_and_sources() -> None:
    def first(**at: Any) -> tuple[float, ...]:
        where = {"seed": 3, "tree": 0, "level": 1, "source": 2, "num_nodes": 2}
        one, two = noisy_weights(config_of(dp_epsilon=1.0), **{**where, **at})
        return one.of([0.0]) + two.of([0.0])

    found = [
        first(),
        *(first(**{key: value}) for key, value in [("seed", 4), ("tree", 1)]),
        *(first(**{key: value}) for key, value in [("level", 0), ("source", 0), ("seed", None)]),
    ]
    assert first() == found[0]
    assert len({value for pair in found for value in pair}) == 2 * len(found)
    assert noisy_weights(config_of(), seed=None, tree=0, level=0, source=0, num_nodes=2) == []


# To whom --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def frames() -> list[pd.DataFrame]:
    return cut(random_frame(1, rows=240), parties=4, labels="even", interleaved=True)


@pytest.fixture(scope="module")
def recorded(frames: list[pd.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(
        tmp_path_factory.mktemp("noisy"),
        frames,
        encryption="paillier",
        num_trees=3,
        max_depth=2,
        min_child_weight=4.0,
        dp_epsilon=8.0,
        dp_clip=0.5,
        export_consent=True,
    )


def parts_of(result: SimulationResult) -> dict[str, ModelPart]:
    folder, names = result.run_folder / "parties", [f"site-{at}" for at in range(4)]
    return {name: ModelPart.load(part_path(folder, name)) for name in names}


def test_only_the_source_of_the_split_above_gets_noise(recorded: Recorded) -> None:
    parts, shielded = parts_of(recorded.result), 0
    for number in range(3):
        for leaf, weight in exact_weights(parts, number).items():
            for name, part in parts.items():
                tree = part.trees[number]
                if tree.sources.get(leaf) == name:
                    shielded += 1
                    assert tree.weights[leaf] != weight
                else:
                    assert tree.weights[leaf] == weight
    assert shielded > 6


def test_of_what_was_sealed_one_receiver_of_four_differs_by_noise(recorded: Recorded) -> None:
    """All that split clients sealed, kept or not: one noisy version a leaf, for its source."""
    by_step: dict[str, dict[str, tuple[float, ...]]] = {}
    for step, sender, receiver, payload in recorded.sealed:
        if step.startswith("leaves-"):
            weights = tuple(np.frombuffer(payload, dtype=WEIGHT).tolist())
            by_step.setdefault(f"{step} {sender}", {})[receiver] = weights
    versions: dict[tuple[Any, ...], set[tuple[float, ...]]] = {}
    for step, told in by_step.items():
        # A node that stays a leaf is at place -1.
        numbers = re.match(r"leaves-(\d+)-(\d+)-(\d+)-(\d+)-(-?\d+) ", step)
        assert numbers is not None
        tree, level, source, node, place = map(int, numbers.groups())
        assert sorted(told) == [f"site-{at}" for at in range(4)]
        if place < 0:
            assert len(set(told.values())) <= 2
            continue
        exact = {weights for name, weights in told.items() if name != f"site-{source}"}
        assert len(exact) == 1
        (pair,) = exact
        noisy = told[f"site-{source}"]
        assert noisy[0] != pair[0]
        assert noisy[1] != pair[1]
        order = np.argsort(pair)
        key = tree, level, source, node, tuple(sorted(pair))
        versions.setdefault(key, set()).add((noisy[order[0]], noisy[order[1]]))
    assert versions
    assert all(len(found) == 1 for found in versions.values())


def test_noise_of_a_whole_run_has_the_scale_that_the_summary_tells(tmp_path: Path) -> None:
    drawn, sigma = [], 0.0
    for seed in range(3):
        frames = cut(random_frame(seed, rows=240), parties=4, labels="even", interleaved=True)
        result = run(
            tmp_path / str(seed), frames, num_trees=6, max_depth=3, dp_epsilon=5.0, dp_clip=0.01
        )
        sigma = result.summary["dp-sigma"]
        parts = parts_of(result)
        for number, tree in enumerate(parts["site-0"].trees):
            exact = exact_weights(parts, number)
            for leaf, source in tree.sources.items():
                if leaf in exact:
                    clipped = min(max(exact[leaf], -0.01), 0.01)
                    drawn.append(parts[source].trees[number].weights[leaf] - clipped)
    assert len(drawn) > 70
    assert stats.kstest(drawn, stats.norm(0, sigma).cdf).pvalue > 1e-4
    assert len(set(drawn)) == len(drawn)


def test_ledger_and_summary_say_it(recorded: Recorded) -> None:
    summary = recorded.result.summary
    assert summary["dp-epsilon"] == pytest.approx(8.0)
    assert summary["dp-releases"] == 1 + 2 * 4
    assert "same-trees" not in summary["central"]
    assert 0 < summary["exact-leaves-test-accuracy"] <= 1
    sealed = [row for row in recorded.result.ledger if row["step"] == "decide" and row["sealed"]]
    assert sealed
    assert all("under Gaussian noise" in row["reveals"] for row in sealed)


def test_predictions_of_the_model_use_exact_leaves(recorded: Recorded) -> None:
    """Rows whose leaves all parties but one know exactly: margins are sums of those weights."""
    parts = parts_of(recorded.result)
    eta, base = 0.3, parts["site-0"].base_margins[0]
    exact = [list(exact_weights(parts, number).values()) for number in range(3)]
    possible = {round(base + eta * sum(weights), 9) for weights in itertools.product(*exact)}
    assert recorded.result.predictions is not None
    margins = recorded.result.predictions["margin"].to_numpy()
    assert {round(float(margin), 9) for margin in margins} <= possible


def test_leaves_below_own_splits_are_noisy_in_a_part_alone(
    frames: list[pd.DataFrame], recorded: Recorded, tmp_path: Path
) -> None:
    """The model that was trained with noise predicts with exact leaves, asked or exported."""
    keys: dict[str, Any] = {"mode": "predict", "model": str(recorded.result.run_folder)}
    assert recorded.result.predictions is not None
    theirs = recorded.result.predictions["margin"].to_numpy()
    for asker in ("", "site-0", "site-3"):
        found = run(tmp_path, frames, **keys, prediction="routed", asker=asker)
        assert found.predictions is not None, found.summary.get("reason")
        assert np.abs(found.predictions["margin"].to_numpy() - theirs).max() < 1e-9
        told = run(tmp_path, frames, **keys, asker=asker)
        assert told.summary["status"] == "refused"
        assert "allowed is 'routed'" in told.summary["reason"]
    booster = xgboost.Booster()
    booster.load_model(bytearray(json.dumps(exported_model(recorded.result.run_folder)[0]), "utf8"))
    columns = {
        f"site-{at}.{name}": frame.sort_values("id")[name].to_numpy(dtype=np.float32)
        for at, frame in enumerate(frames)
        for name in frame
        if name not in ("id", "label")
    }
    assert booster.feature_names is not None
    rows = pd.DataFrame(columns)[booster.feature_names]
    margins = booster.predict(xgboost.DMatrix(rows), output_margin=True)
    assert np.abs(margins - theirs).max() < 1e-6


# What is refused ------------------------------------------------------------------------------


def test_a_tree_beyond_the_budget_is_refused() -> None:
    config = config_of(dp_epsilon=1.0, num_trees=2)
    check_budget(config, tree=1)
    with pytest.raises(SiteFault, match=r"tree 3: dp-epsilon = 1\.0 is for num-trees = 2"):
        check_budget(config, tree=2)
    check_budget(config_of(num_trees=2), tree=2)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"dp_epsilon": 1.0, "max_depth": 0}, "there are no splits"),
        ({"dp_epsilon": -1.0}, "greater than or equal to 0"),
        ({"dp_epsilon": float("nan")}, "finite"),
        ({"dp_delta": 1.0}, "less than 1"),
        ({"dp_delta": 0.0}, "greater than 0"),
        ({"dp_clip": 0.0}, "greater than 0"),
        ({"sensitivity": "global"}, "'exact' or 'paper'"),
    ],
)
def test_settings_out_of_range_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config_of(**keys)


def test_seeded_noise_is_refused_at_a_deployed_party(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    random_frame(0, rows=20).to_csv(path, index=False)
    node: dict[str, run_config.Value] = {"data-path": str(path), "site-name": "a"}
    values: dict[str, run_config.Value] = {"task": "vertical-xgboost", "seeded-noise": True}
    prepare_vertical_site(node, run_config.read(values))  # there is no noise
    values["vertical-xgboost.dp-epsilon"] = 1.0
    with pytest.raises(SiteFault, match="only in simulation"):
        prepare_vertical_site(node, run_config.read(values))


def test_seeded_runs_repeat_and_others_do_not(tmp_path: Path) -> None:
    frames = cut(random_frame(2), parties=3, labels="even")

    def losses(**keys: Any) -> list[float]:
        from fedapp.simulation import simulate

        config = {
            "run-dir": str(tmp_path),
            "vertical-xgboost.encryption": "none",
            "vertical-xgboost.num-trees": 2,
            "vertical-xgboost.max-depth": 2,
            "vertical-xgboost.dp-epsilon": 2.0,
            **keys,
        }
        return [simulate("vertical-xgboost", sites=frames, config=config).summary["train-loss"]]

    assert losses(**{"seeded-noise": True}) == losses(**{"seeded-noise": True})
    assert losses() != losses()
