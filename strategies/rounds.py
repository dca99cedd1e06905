"""Flower's loop of rounds, begun at any round, with a snapshot after each.

Flower's ``Strategy.start`` counts rounds from 1. It is not copied to have it count from another
number: a strategy that stands before the real one and adds that number is run in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from logging import INFO
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from strategies.snapshot import Snapshot, TakeSnapshot, UnusableSnapshot

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

_TRAINED, _EVALUATED = "train-metrics", "server-metrics"
_MODEL = "model"


class Rounds(Strategy):
    """The rounds of a strategy that are left, each followed by a snapshot.

    Where all rounds are over and only the evaluation of the last is left, nobody is asked to
    train.

    Parameters
    ----------
    strategy : Strategy
        What answers every hook, by the number of the round in the whole run.
    snapshot : callable
        Takes the number of a round that is over; returns the strategy's state without the model.
    num_rounds : int
        Of the whole run.
    take : callable, optional
        Gets the snapshots: one before the first round that is left, and one after each.
    resume_from : Snapshot, optional
        Of a run with so many rounds; default: all rounds are left.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        snapshot: Callable[[int], Snapshot],
        num_rounds: int,
        take: TakeSnapshot | None = None,
        resume_from: Snapshot | None = None,
    ) -> None:
        self._strategy = strategy
        self._snapshot = snapshot
        self._take = take
        self._num_rounds = num_rounds
        self._from = resume_from
        self._done = resume_from.round if resume_from else 0
        if self._done > num_rounds:
            raise UnusableSnapshot(
                f"it is of round {self._done}, the run has {num_rounds} rounds only"
            )
        # Flower's loop evaluates in the round in which it trains: the last one is always entered.
        self._shift = min(self._done, num_rounds - 1)
        facts = resume_from.facts if resume_from else {}
        self._trained: dict[int, MetricRecord] = read_metrics(facts.get(_TRAINED, {}))
        self._evaluated: dict[int, MetricRecord] = read_metrics(facts.get(_EVALUATED, {}))
        self._model = ArrayRecord()

    def run(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        *,
        timeout: float,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: EvaluateFn | None,
    ) -> Result:
        """Run what is left; return the result of the whole run.

        Raises
        ------
        UnusableSnapshot
            If the snapshot's model has other arrays than `initial_arrays`.
        """
        self._model = initial_arrays
        if self._from is not None:
            self._model = _model_of(self._from, initial_arrays)
            log(
                INFO,
                "%d of %d rounds are over: rounds count from %d in what follows",
                *(self._done, self._num_rounds, self._shift),
            )
        self._snap(self._done)
        result = self.start(
            grid,
            self._model,
            num_rounds=self._num_rounds - self._shift,
            timeout=timeout,
            train_config=train_config,
            evaluate_config=evaluate_config,
            evaluate_fn=None if evaluate_fn is None else self._evaluating(evaluate_fn),
        )
        result.arrays = self._model if self._done or len(result.arrays) else result.arrays
        result.train_metrics_clientapp = self._trained
        result.evaluate_metrics_clientapp = {
            number + self._shift: metrics
            for number, metrics in result.evaluate_metrics_clientapp.items()
        }
        result.evaluate_metrics_serverapp = self._evaluated
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy do it, unless this round is over."""
        number = server_round + self._shift
        if number <= self._done:
            return []
        return self._strategy.configure_train(number, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the strategy do it, and take a snapshot."""
        number = server_round + self._shift
        if number <= self._done:
            return None, None
        arrays, metrics = self._strategy.aggregate_train(number, replies)
        if arrays is not None:
            self._model = arrays
        if metrics is not None:
            self._trained[number] = metrics
        self._snap(number)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy do it."""
        return self._strategy.configure_evaluate(server_round + self._shift, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the strategy do it."""
        return self._strategy.aggregate_evaluate(server_round + self._shift, replies)

    def summary(self) -> None:
        """Log how the strategy is set up."""
        self._strategy.summary()

    def _evaluating(self, evaluate_fn: EvaluateFn) -> EvaluateFn:
        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            """Evaluate under the number of the round; the first call is of the model begun with."""
            number = server_round + self._shift if server_round else self._done
            metrics = evaluate_fn(number, arrays)
            if metrics is not None:
                self._evaluated[number] = metrics
            return metrics

        return evaluate

    def _snap(self, number: int) -> None:
        if self._take is None:
            return
        bare = self._snapshot(number)
        metrics = {
            name: {str(each): dict(record) for each, record in records.items()}
            for name, records in ((_TRAINED, self._trained), (_EVALUATED, self._evaluated))
        }
        model = {f"{_MODEL}/{name}": array.numpy() for name, array in self._model.items()}
        facts, arrays = {**bare.facts, **metrics}, {**bare.arrays, **model}
        self._take(Snapshot(bare.kind, number, facts, arrays))


def read_metrics(facts: Mapping[str, Any]) -> dict[int, MetricRecord]:
    """Return records of metrics by round, as facts of a snapshot have them."""
    return {int(number): MetricRecord(dict(record)) for number, record in facts.items()}


def _model_of(snapshot: Snapshot, initial: ArrayRecord) -> ArrayRecord:
    """Return the snapshot's model, in the order of the initial one."""
    found = snapshot.part(_MODEL)
    expected = {name: array.numpy() for name, array in initial.items()}
    shapes = [
        {name: (array.shape, array.dtype) for name, array in arrays.items()}
        for arrays in (found, expected)
    ]
    if shapes[0] != shapes[1]:
        raise UnusableSnapshot("its model has arrays of other names, shapes or types than this run")
    return ArrayRecord({name: Array(found[name]) for name in initial})
