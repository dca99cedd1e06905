"""RocGlm as a Flower strategy: arguments of start, hooks, and noise that sites share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fedapp import roc_glm_run
from fedapp.simulation import SimulationResult, simulate
from strategies.exchange import Exchange
from strategies.fisher_result import Iteration
from strategies.roc_glm import RocGlm
from strategies.roc_glm_pooling import pool_masked
from strategies.roc_glm_result import RocGlmResult
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.counts import count_in_cells
from tasks.roc_glm.messages import SiteFacts
from tasks.roc_glm.noisy_statistics import release_statistics
from tasks.roc_glm.releases import release_cumulative_counts
from tasks.roc_glm.rows import LabelCoding, RocRows
from tasks.roc_glm.site_statistics import noisy_vector, read_noisy_vector
from tasks.secure import split_reals
from tasks.site.messages import TaskPart
from tests.fakes import ScriptedGrid

NAMES = ("east", "north", "south", "west")


def frames(rows: int = 240) -> list[pd.DataFrame]:
    generator = np.random.default_rng(8)
    score = generator.random(rows)
    label = (generator.random(rows) < 0.1 + 0.8 * score).astype(int)
    table = pd.DataFrame({"score": score, "label": label})
    return [table[at :: len(NAMES)] for at in range(len(NAMES))]


def rows_of(frame: pd.DataFrame) -> RocRows:
    score, label = frame["score"].to_numpy(), frame["label"].to_numpy()
    return RocRows(np.sort(score[label == 0]), np.sort(score[label == 1]))


def strategy_of(parts: list[pd.DataFrame], **settings: Any) -> RocGlm:
    config = RocGlmConfig(**settings)
    sites = {}
    for name, part in zip(NAMES, parts, strict=True):
        rows = rows_of(part)
        coding = LabelCoding(positive="1", negative="0")
        facts = SiteFacts(coding, True, 0, len(rows.negative), len(rows.positive))
        sites[name] = TaskPart(facts=facts.to_facts())
    return RocGlm(config=config, sites=sites)


@pytest.fixture
def run_as(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., SimulationResult]:
    """Run the task with a subclass of the strategy."""

    def run(strategy: type[RocGlm], **config: Any) -> SimulationResult:
        monkeypatch.setattr(roc_glm_run, "RocGlm", strategy)
        keys = {f"roc-glm.{key.replace('_', '-')}": value for key, value in config.items()}
        settings = {"roc-glm.release": "binned", "run-dir": str(tmp_path), **keys}
        return simulate("roc-glm", sites=frames(), config=settings, site_names=NAMES)

    return run


# Arguments ----------------------------------------------------------------------------------------


def test_arguments_that_mean_nothing_are_refused_all_at_once() -> None:
    strategy, grid = strategy_of(frames(), release="binned"), ScriptedGrid({1: None})
    with pytest.raises(ValueError, match="initial_arrays: must be left out") as caught:
        strategy.start(
            grid,
            ArrayRecord({"gamma": Array(np.zeros(2))}),
            num_rounds=-5,
            train_config=ConfigRecord({"a": 1}),
            evaluate_config=ConfigRecord({"a": 1}),
            evaluate_fn=lambda number, arrays: None,
        )
    faults = str(caught.value).split("; ")
    assert [fault.split(":")[0].split(" =")[0] for fault in faults] == [
        *("initial_arrays", "train_config", "evaluate_config", "evaluate_fn", "num_rounds")
    ]
    with pytest.raises(ValueError, match="num_rounds: must be left out, only"):
        strategy.start(grid, num_rounds=5)
    with pytest.raises(ValueError, match="num_rounds = 1: must be a whole number >= 2"):
        strategy_of(frames(), release="binned", mode="fisher").start(grid, num_rounds=1)
    assert not grid.sent


def test_a_grid_that_knows_no_names_is_refused_not_the_sites() -> None:
    strategy = strategy_of(frames(), release="binned")
    for grid in (ScriptedGrid({1: None, 2: None}), ScriptedGrid({})):
        with pytest.raises(ValueError, match="grid: must be the Exchange with which"):
            strategy.start(grid, timeout=0.01)
        assert not grid.sent
    exchange = Exchange.around(ScriptedGrid({1: None, 2: None}))
    exchange.admit({1: "east", 2: "elsewhere"})
    with pytest.raises(ValueError, match="grid: must be the Exchange with which"):
        strategy.start(exchange, timeout=0.01)


def test_rounds_are_counted_and_told(run_as: Callable[..., SimulationResult]) -> None:
    told: list[Iteration] = []

    class Counting(RocGlm):
        rounds: int | None = None

        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments, after_iteration=told.append)

        def start(self, grid: Grid, *arguments: Any, **settings: Any) -> RocGlmResult:
            return super().start(grid, *arguments, num_rounds=self.rounds, **settings)

    summary = run_as(Counting, mode="fisher").summary
    assert summary["iterations"] == len(told) > 2
    assert [iteration.number for iteration in told] == list(range(1, len(told) + 1))
    assert told[-1].converged
    assert told[-1].evaluated == pytest.approx([summary["gamma-1"], summary["gamma-2"]])
    Counting.rounds = 2
    result = run_as(Counting, mode="fisher")
    assert (result.summary["status"], result.summary["reason"]) == (
        "not-estimable",
        "not-converged",
    )
    assert "max-rounds = 2" in result.summary["detail"]
    assert result.exchanges == 2 + 2


def test_the_last_round_does_not_wait_for_the_calibration(
    run_as: Callable[..., SimulationResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ROC-GLM that has converged is not given up for a calibration that has not."""
    enough = int(run_as(RocGlm, mode="fisher", tolerance=0.1).summary["iterations"])

    class Never(RocGlm):
        def start(self, grid: Grid, *arguments: Any, **settings: Any) -> RocGlmResult:
            kind = type(self.fisher)
            monkeypatch.setattr(kind, "_unfinished", property(lambda fisher: True))
            return super().start(grid, *arguments, **settings)

    summary = run_as(Never, mode="fisher", tolerance=0.1, max_rounds=enough + 1).summary
    assert summary["status"] == "ok"
    assert summary["iterations"] == enough + 1
    assert "gamma-1" in summary


def test_estimates_are_a_step_of_their_own(run_as: Callable[..., SimulationResult]) -> None:
    steps: list[str] = []

    class Watched(RocGlm):
        def __getattribute__(self, name: str) -> Any:
            if name in ("gather_release", "fit_by_rounds", "gather_counts", "estimate"):
                steps.append(name)
            return super().__getattribute__(name)

    run_as(Watched, release="noisy-scores", mode="fisher", epsilon=10.0)
    run_as(Watched, release="secure-counts")
    assert steps == [
        *("gather_release", "gather_counts", "fit_by_rounds", "estimate"),
        *("gather_release", "estimate"),
    ]


# Noise that is shared -----------------------------------------------------------------------------


def draws(strategy: RocGlm, parts: list[RocRows], number: int) -> Iterator[Any]:
    """Words summed over sites that each add their share of the noise."""
    plan, config, sites = strategy.plan, strategy.config, len(parts)
    assert plan.noise is not None
    share, generator = plan.noise.share(sites), np.random.default_rng(2)
    assert share.statistics is not None
    for _ in range(number):
        total = 0
        for rows in parts:
            counts = release_cumulative_counts(
                count_in_cells(rows, plan.cuts), share.scale, generator=generator
            )
            statistics = release_statistics(
                rows,
                np.array([config.threshold]),
                share.statistics,
                bins=config.calibration_bins,
                generator=generator,
            )
            reals = [counts.negative, counts.positive, noisy_vector(*statistics)]
            total = total + split_reals.split(np.concatenate(reals), num_sites=sites)
        yield total


def test_shared_noise_is_that_of_one_site() -> None:
    """The variance that is added is the spread over draws, not that of a noise of each site."""
    frames_ = frames(rows=2400)
    strategy = strategy_of(
        frames_, release="noisy-counts", secure=True, sensitivity=0.2, statistics_epsilon=1.0
    )
    plan = strategy.plan
    assert plan.noise is not None
    assert plan.noise.statistics is not None
    aucs, variances, squares, above = [], [], [], []
    for words in draws(strategy, [rows_of(frame) for frame in frames_], 300):
        pooled = pool_masked(plan, words, strategy.facts, NAMES)
        estimate = strategy.estimate(pooled).estimate
        assert estimate.variance is not None
        aucs.append(estimate.auc)
        variances.append(estimate.variance)
        reals = split_reals.join(words, num_sites=len(NAMES))
        negative, _ = read_noisy_vector(reals[2 * len(plan.cuts) :], plan.shape)
        squares.append(negative.squares)
        above.append(negative.above[0])
    table = pd.concat(frames_)
    spread = float(np.var(aucs))
    added = float(np.mean(variances)) - delong_of(table, plan.cuts)
    assert spread / added == pytest.approx(1.0, abs=0.3)  # 4 with a noise of each site
    noise = plan.noise.statistics
    assert np.std(squares) / noise.squares == pytest.approx(1.0, abs=0.15)  # 2 where not shared
    assert np.std(above) / noise.above == pytest.approx(1.0, abs=0.15)


def delong_of(table: pd.DataFrame, cuts: Any) -> float:
    """DeLong's variance of scores in cells, by all pairs."""
    cell = np.searchsorted(cuts, table["score"].to_numpy(), side="left")
    positive, negative = cell[table["label"] == 1], cell[table["label"] == 0]
    wins = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    of_positives, of_negatives = wins.mean(axis=1), wins.mean(axis=0)
    return float(
        of_positives.var(ddof=1) / len(positive) + of_negatives.var(ddof=1) / len(negative)
    )
