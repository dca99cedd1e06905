"""Whole runs of the vertical task: the trees that one XGBoost on the joined table would build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message

from fedapp import simulation
from fedapp.run_folder import RunFolder
from fedapp.simulation import InProcessGrid, simulate
from tasks.vertical_xgboost.end_messages import TRIM
from tasks.vertical_xgboost.model_part import ModelPart
from tasks.vertical_xgboost.protected_sums import PaillierSums
from tests.vertical_frames import cut, random_frame
from tests.vertical_runs import (
    MARK_OF_THE_END,
    assert_same,
    central_fit,
    draw_known_keys,
    record,
    run,
)

BOTH = ("binary:logistic", "reg:squarederror")


def check(directory: Path, frames: list[pd.DataFrame], **keys: Any) -> dict[str, Any]:
    """Run and compare; the summary."""
    result = run(directory, frames, **keys)
    assert_same(result, central_fit(frames, **keys))
    depth, trees = keys["max_depth"], result.summary["trees"]
    discarded = int(trees < keys["num_trees"])  # that of a tree which early stopping found needless
    trimmed = int(result.summary["trees-kept"] < trees == keys["num_trees"])
    assert result.exchanges <= 4 + 2 * trees * max(depth, 1) + discarded + trimmed
    assert result.exchanges <= 4 + 2 * keys["num_trees"] * max(depth, 1) + trimmed
    return result.summary


@pytest.mark.parametrize("objective", BOTH)
@pytest.mark.parametrize(
    ("parties", "labels"),
    [(n, labels) for n in (2, 3, 4, 10) for labels in ("even", "skewed", "one")],
)
def test_any_cut_gives_the_central_trees(
    parties: int, labels: str, objective: str, tmp_path: Path
) -> None:
    frame = random_frame(parties, rows=160, objective=objective)
    frames = cut(frame, parties=parties, labels=labels)
    summary = check(tmp_path, frames, objective=objective, max_depth=2, num_trees=2, max_bin=8)
    assert summary["n-sites"] == parties
    assert summary["central"]["same-trees"] is True


@pytest.mark.parametrize("objective", BOTH)
@pytest.mark.parametrize("depth", range(7))
def test_any_depth_gives_the_central_trees(depth: int, objective: str, tmp_path: Path) -> None:
    frame = random_frame(depth, rows=300, objective=objective)
    frames = cut(frame, parties=3, labels="even")
    keys = {"objective": objective, "max_depth": depth, "num_trees": 2, "min_child_weight": 0.5}
    check(tmp_path, frames, **keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"gamma": 1e9},
        {"gamma": 2.0, "reg_lambda": 0.0, "min_child_weight": 0.0},
        {"base_score": "0.3", "eta": 1.0},
        {"min_instances": 5},
        {"num_trees": 30, "early_stopping_rounds": 2, "eta": 1.0},
        {"num_trees": 4, "early_stopping_rounds": 3, "eta": 1.0},
        {"test_fraction": 0.0},
        {"fixed_point_bits": 40},
        {"shuffle": False},
    ],
    ids=str,
)
def test_settings_do_not_break_equality(keys: dict[str, Any], tmp_path: Path) -> None:
    frames = cut(random_frame(7, rows=250), parties=4, labels="even", interleaved=True)
    summary = check(tmp_path, frames, **{"max_depth": 3, "num_trees": 2, **keys})
    if "early_stopping_rounds" in keys:
        assert summary["trees-kept"] <= summary["trees"]
    if keys.get("early_stopping_rounds") == 3:
        # The last tree allowed was not the best, which came out with the last replies.
        assert summary["trees-kept"] < summary["trees"] == 4
    if keys.get("num_trees") == 30:
        assert summary["trees-kept"] == summary["trees"] - 2 < 28


@pytest.mark.parametrize(("factor", "label_bound"), [(2.0**26, 0.0), (2.0**-8, 0.0), (1.0, 500.0)])
def test_targets_of_any_size_and_a_declared_bound(
    factor: float, label_bound: float, tmp_path: Path
) -> None:
    frame = random_frame(2, objective=BOTH[1])
    frame["label"] *= factor
    keys = {"objective": BOTH[1], "label_bound": label_bound, "max_depth": 3, "num_trees": 3}
    check(tmp_path, cut(frame, parties=3, labels="even"), **keys)


@pytest.mark.parametrize("told", [0, 4, 9])
def test_parties_keep_fewer_trees_only(
    told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AlteringGrid(InProcessGrid):
        def _handle(self, message: Message) -> Message:
            if message.metadata.message_type == TRIM:
                message.content.config_records["trim"]["trees-to-keep"] = told
            return super()._handle(message)

    monkeypatch.setattr(simulation, "InProcessGrid", AlteringGrid)
    frames = cut(random_frame(7, rows=250), parties=4, labels="even", interleaved=True)
    keys = {"max_depth": 3, "num_trees": 4, "early_stopping_rounds": 3, "eta": 1.0}
    result = run(tmp_path, frames, **keys)
    assert f"{told} trees to keep of 4" in result.summary["reason"]
    parts = (result.run_folder / "parties").glob("*.json")
    assert [len(ModelPart.load(part).trees) for part in parts] == [4] * 4


def test_the_trees_are_logged_as_the_server_knows_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frames = cut(random_frame(1), parties=3, labels="even")
    result = run(tmp_path, frames, max_depth=1, num_trees=2)
    document = RunFolder.open(result.run_folder).read_json("trees.json")
    assert document is not None
    for number, tree in enumerate(document["trees"], start=1):
        root = tree["nodes"][0]
        said = f"tree {number} as the server knows it:\n0: {root['owner']}, record {root['record']}"
        assert f"{said}\n  1: leaf\n  2: leaf" in caplog.text


def test_ties_are_decided_as_one_party_would(tmp_path: Path) -> None:
    for seed in range(3):
        frame = random_frame(seed, rows=60, missing=0.3).round(0)
        frame["label"] = frame["label"].astype(int)
        frames = cut(frame, parties=5, labels="even", interleaved=bool(seed % 2))
        keys = {"max_depth": 4, "num_trees": 2, "min_child_weight": 0.1, "max_bin": 4}
        check(tmp_path, frames, **keys)


@pytest.mark.parametrize(
    ("parties", "keys"),
    [
        (2, {"objective": "binary:logistic"}),
        (3, {"objective": "reg:squarederror"}),
        (3, {"shuffle": False}),
        (4, {"min_instances": 4}),
        (3, {"engine": "phe", "max_bin": 3, "num_trees": 1}),
        (3, {"max_depth": 0}),
        (3, {"max_depth": 5, "num_trees": 1, "max_bin": 4}),  # more nodes than a plaintext holds
        (10, {"num_trees": 1, "max_bin": 3}),
        (10, {"objective": "reg:squarederror", "num_trees": 1, "max_bin": 3, "shuffle": False}),
    ],
    ids=str,
)
def test_encrypted_runs_give_the_central_trees(
    parties: int, keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_known_keys(monkeypatch)
    objective = keys.get("objective", "binary:logistic")
    frame = random_frame(parties, rows=150, objective=objective)
    frames = cut(frame, parties=parties, labels="even")
    settings = {"max_depth": 2, "num_trees": 2, "max_bin": 5, "min_child_weight": 0.1, **keys}
    summary = check(tmp_path, frames, encryption="paillier", **settings)
    assert summary["ciphertexts"] > 0
    spent = {"encrypt", "decrypt", "add", "seal", "open", "mask"}
    assert spent <= set(summary["crypto-seconds"])


def test_exchanges_of_full_trees_are_as_stated(tmp_path: Path) -> None:
    frames = cut(random_frame(1, rows=300), parties=3, labels="even")
    result = run(tmp_path, frames, max_depth=3, num_trees=4, min_child_weight=0.1)
    assert result.exchanges == 4 + 2 * 4 * 3
    steps = {row["exchange"]: row["step"] for row in result.ledger}
    assert list(steps.values()) == [
        "hello", "labels", "buckets", *["histograms", "decide"] * 12, "finish"
    ]  # fmt: skip


@pytest.mark.parametrize("aggregator", ["server", "source"])
def test_ciphertexts_are_those_that_parties_sent(aggregator: str, tmp_path: Path) -> None:
    frames = cut(random_frame(2, rows=150), parties=3, labels="even")
    keys = {"encryption": "paillier", "max_depth": 2, "num_trees": 2, "max_bin": 5}
    with pytest.MonkeyPatch.context() as patch:
        counted: list[int] = []

        def count(data: bytes) -> bytes:
            counted.append((len(data) - 16) // 256)  # a key id, and 2 x 1024 bits each
            return data

        share, total = PaillierSums.share, PaillierSums.total
        patch.setattr(PaillierSums, "share", lambda *a, **k: count(share(*a, **k)))
        if aggregator == "source":
            patch.setattr(PaillierSums, "total", lambda *a, **k: count(total(*a, **k)))
        recorded = record(tmp_path, frames, aggregator=aggregator, **keys)
    summary = recorded.result.summary
    lines = RunFolder.open(recorded.result.run_folder).read().rounds
    assert summary["ciphertexts"] == sum(line["ciphertexts"] for line in lines) == sum(counted)


def test_costs_of_a_tree_are_those_of_its_own_levels(tmp_path: Path) -> None:
    frames = cut(random_frame(1), parties=3, labels="even")
    result = run(tmp_path, frames, max_depth=2, num_trees=2)
    lines = RunFolder.open(result.run_folder).read().rounds
    size = [
        sum(
            row["bytes"]
            for row in result.ledger
            if row["exchange"] in exchanges and "server" in (row["sender"], row["receiver"])
        )
        for exchanges in ((1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12,))
    ]
    parts = [result.summary["set-up"], *lines, result.summary["ending"]]
    assert [part["bytes"] for part in parts] == size


@pytest.mark.parametrize("objective", BOTH)
def test_a_simulation_tells_what_xgboost_makes_of_it(objective: str, tmp_path: Path) -> None:
    frames = cut(random_frame(4, rows=400, objective=objective), parties=3, labels="even")
    keys = {"objective": objective, "max_depth": 3, "num_trees": 3}
    summary = run(tmp_path, frames, **keys).summary
    quality = "rmse" if objective == BOTH[1] else "accuracy"
    for name in ("train-loss", "test-loss", f"train-{quality}", f"test-{quality}"):
        assert summary["central"][f"xgboost-{name}"] == pytest.approx(summary[name], rel=1e-3)
    leaf = run(tmp_path, frames, **{**keys, "max_depth": 0}).summary
    assert not [name for name in leaf["central"] if name.startswith("xgboost")]


def test_lines_of_trees_add_up(tmp_path: Path) -> None:
    frames = cut(random_frame(1), parties=3, labels="even")
    result = run(tmp_path, frames, max_depth=2, num_trees=3)
    lines = RunFolder.open(result.run_folder).read().rounds
    assert [line["tree"] for line in lines] == [1, 2, 3]
    before, after = (result.summary[name] for name in ("set-up", "ending"))
    parts = [before, *lines, after]
    assert [part["exchanges"] for part in parts] == [3, 4, 4, 4, 1]
    assert sum(part["exchanges"] for part in parts) == result.exchanges
    assert sum(part["bytes"] for part in parts) == result.summary["bytes"]
    assert lines[-1]["train-loss"] == result.summary["train-loss"]
    spent = sum(sum(part["crypto-seconds"].values()) for part in parts)
    assert spent == pytest.approx(sum(result.summary["crypto-seconds"].values()), abs=0.01)
    losses = [line["train-loss"] for line in lines]
    assert losses == sorted(losses, reverse=True)


def test_bundled_data_are_dealt_to_four_parties(tmp_path: Path) -> None:
    keys = {"encryption": "none", "max-depth": 2, "num-trees": 2}
    config = {"run-dir": str(tmp_path), **{f"vertical-xgboost.{k}": v for k, v in keys.items()}}
    result = simulate("vertical-xgboost", config=config)
    assert result.summary["n-sites"] == 4
    assert result.summary["n-rows"] == 569
    assert result.summary["test-accuracy"] > 0.85
    assert result.summary["central"]["same-trees"] is True
    diabetes = {"vertical-xgboost.data": "diabetes", "vertical-xgboost.objective": BOTH[1]}
    result = simulate("vertical-xgboost", config={**config, **diabetes})
    assert result.summary["n-rows"] == 442
    assert result.summary["test-rmse"] < 77.0  # of the mean
    assert result.summary["central"]["same-trees"] is True


def test_state_of_a_party_is_compact_and_forgotten(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(24_000, 24)), columns=[f"x{i}" for i in range(24)])
    frame["label"] = (frame["x0"] + rng.normal(size=len(frame)) > 0).astype(int)
    frame.insert(0, "id", np.arange(len(frame)))
    frames = cut(frame, parties=4, labels="one")
    recorded = record(tmp_path, frames, max_depth=1, num_trees=2)
    assert recorded.result.summary["status"] == "ok"
    assert 0 < max(recorded.state_bytes.values()) < 2_000_000
    for context in recorded.grid.contexts.values():
        assert list(context.state) == MARK_OF_THE_END


@pytest.mark.parametrize(
    ("parties", "keys"),
    [
        (2, {}),
        (4, {"objective": "reg:squarederror", "max_depth": 3}),
        (3, {"max_depth": 0}),
        (3, {"shuffle": False}),
        (3, {"min_instances": 4}),
        (3, {"num_trees": 12, "early_stopping_rounds": 1, "eta": 1.0}),
        (3, {"encryption": "paillier", "num_trees": 1}),
        (3, {"encryption": "paillier", "num_trees": 1, "min_instances": 4, "shuffle": False}),
        (4, {"encryption": "paillier", "num_trees": 1, "min_instances": 3}),
        (10, {"num_trees": 1}),
    ],
    ids=str,
)
def test_sources_add_up_to_the_same_trees(
    parties: int, keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_known_keys(monkeypatch)
    objective = keys.get("objective", "binary:logistic")
    frames = cut(random_frame(6, rows=150, objective=objective), parties=parties, labels="even")
    settings = {"max_depth": 2, "num_trees": 2, "max_bin": 5, "min_child_weight": 0.1, **keys}
    result = run(tmp_path, frames, aggregator="source", **settings)
    assert_same(result, central_fit(frames, **settings))
    assert result.exchanges <= 4 + 3 * settings["num_trees"] * max(settings["max_depth"], 1)
    assert {row["step"] for row in result.ledger} >= {"histograms", "aggregate", "decide"}
