"""Fisher scoring that was interrupted and goes on: the same fit to the last bit."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from fedapp.checkpoint import read_checkpoint, write_checkpoint
from strategies.exchange import Exchange
from strategies.fisher_result import FisherResult
from strategies.fisher_scoring import FisherScoring
from strategies.membership import Refused
from strategies.snapshot import Snapshot, UnusableSnapshot
from tasks.glm.families import site_sums, starting_sums
from tasks.glm.iteration_state import restore_state, state_of
from tasks.glm.scoring import FisherIteration
from tests.glm_sites import FAMILIES, PRECISE, assert_equal_fits, draw, grid_with, pooled, thirds


def snapshots_of(grid: Any, **settings: Any) -> tuple[FisherResult, list[Snapshot]]:
    taken: list[Snapshot] = []
    return FisherScoring(on_snapshot=taken.append, **settings).start(grid), taken


def assert_same(ours: FisherResult, theirs: FisherResult) -> None:
    assert ours.coefficients.tobytes() == theirs.coefficients.tobytes()
    assert ours.covariance.tobytes() == theirs.covariance.tobytes()
    assert (ours.deviance, ours.fit.rows, ours.fit.rounds) == (
        theirs.deviance,
        theirs.fit.rows,
        theirs.fit.rounds,
    )
    assert repr(ours.history) == repr(theirs.history)
    assert ours.train_metrics_clientapp == theirs.train_metrics_clientapp
    assert ours.evaluate_metrics_serverapp == theirs.evaluate_metrics_serverapp
    assert (ours.sites, ours.lost_sites) == (theirs.sites, theirs.lost_sites)
    assert ours.feature_names == theirs.feature_names


@pytest.mark.parametrize("family", FAMILIES)
def test_from_any_iteration_the_fit_is_the_uninterrupted_one(family: str, tmp_path: Path) -> None:
    sites = thirds(*draw(family, 3))
    settings = {"family": family, **PRECISE}
    whole, taken = snapshots_of(grid_with(sites), **settings)
    assert [each.round for each in taken] == list(range(1, whole.iterations))
    assert_equal_fits(whole, pooled(family, *draw(family, 3)))
    for snapshot in taken:
        write_checkpoint(tmp_path, snapshot)
        exchange = Exchange.around(grid_with(sites))
        again = FisherScoring(**settings).start(exchange, resume_from=read_checkpoint(tmp_path))
        assert_same(again, whole)
        assert exchange.count == whole.iterations - snapshot.round


def test_halved_steps_and_a_start_that_was_given_are_remembered() -> None:
    x, y = draw("logit", 4)
    sites = thirds(x, y)
    start = ArrayRecord({"theta": Array(np.array([9.0, -9.0, 9.0]))})
    taken: list[Snapshot] = []
    strategy = FisherScoring(on_snapshot=taken.append, **PRECISE)
    whole = strategy.start(grid_with(sites), start)
    assert any(each.halved for each in whole.history), "the case is worth nothing otherwise"
    for snapshot in taken:
        again = FisherScoring(**PRECISE).start(grid_with(sites), start, resume_from=snapshot)
        assert_same(again, whole)


def test_what_the_server_evaluates_and_what_is_sent_along_go_on() -> None:
    sites = thirds(*draw("probit", 1))
    calls: list[int] = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        calls.append(number)
        return MetricRecord({"first": float(arrays["coefficients"].numpy()[0])})

    taken: list[Snapshot] = []
    named = {"train_config": ConfigRecord({"a": 1}), "evaluate_fn": evaluate}
    whole = FisherScoring(family="probit", on_snapshot=taken.append).start(
        grid_with(sites), **named
    )
    calls.clear()
    again = FisherScoring(family="probit").start(grid_with(sites), resume_from=taken[2], **named)
    assert_same(again, whole)
    assert calls == list(range(4, whole.iterations + 1))


def test_a_site_that_was_lost_before_takes_no_part_again() -> None:
    x, y = draw("logit", 2)
    sites = thirds(x, y)
    _, taken = snapshots_of(grid_with(dict(list(sites.items())[:2])), **PRECISE)
    again = FisherScoring(**PRECISE).start(grid_with(sites), resume_from=taken[2])
    alone = FisherScoring(**PRECISE).start(grid_with(dict(list(sites.items())[:2])))
    assert_same(again, alone)
    assert again.sites == ("site-0", "site-1")


def test_missing_sites_and_other_rows_are_refused_by_name() -> None:
    sites = thirds(*draw("logit", 2))
    _, taken = snapshots_of(grid_with(sites), **PRECISE)
    fewer = dict(list(sites.items())[:2])
    with pytest.raises(Refused, match="site-2: takes part in the run that is resumed"):
        FisherScoring(**PRECISE).start(grid_with(fewer), resume_from=taken[1])
    x, y = sites["site-1"]
    with pytest.raises(Refused, match="the sites have 299 rows, and had 300"):
        FisherScoring(**PRECISE).start(
            grid_with({**sites, "site-1": (x[1:], y[1:])}), resume_from=taken[1]
        )


def test_a_snapshot_of_another_strategy_or_family_is_refused() -> None:
    grid = grid_with(thirds(*draw("logit", 2)))
    _, taken = snapshots_of(grid, **PRECISE)
    with pytest.raises(UnusableSnapshot, match="of family logit, not probit"):
        FisherScoring(family="probit").start(grid, resume_from=taken[0])
    with pytest.raises(UnusableSnapshot, match="'survival', where one of 'fisher-scoring'"):
        FisherScoring().start(grid, resume_from=Snapshot("survival", 1))


def test_a_snapshot_that_lacks_something_is_named() -> None:
    grid = grid_with(thirds(*draw("logit", 2)))
    _, taken = snapshots_of(grid, **PRECISE)
    for name in taken[1].facts:
        snapshot = replace(taken[1], facts={k: v for k, v in taken[1].facts.items() if k != name})
        with pytest.raises(UnusableSnapshot):
            FisherScoring(**PRECISE).start(grid, resume_from=snapshot)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_state_has_everything_that_an_iteration_keeps(family: str) -> None:
    """A new attribute that is not in the state would be lost."""
    x, y = draw(family, 1, number=60)
    design = np.column_stack([np.ones(60), x.to_numpy()])
    ours = FisherIteration(family, **PRECISE)
    fixed = {"criterion", "tolerance", "rounding", "max_rounds", "has_dispersion", "_has_converged"}
    while not ours.finished:
        if ours.coefficients is None:
            ours.advance(starting_sums(family, design, y))
        else:
            ours.advance(site_sums(family, design, y, ours.coefficients))
        other = FisherIteration(family, **PRECISE)
        restore_state(other, *state_of(ours))
        for name, value in vars(ours).items():
            if name not in fixed:
                assert repr(vars(other)[name]) == repr(value), name
    assert math.isfinite(ours.fit().deviance)
