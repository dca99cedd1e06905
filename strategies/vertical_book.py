"""What a training keeps of its trees: shape, gains, metrics, and what each of them cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from strategies.exchange import Exchange
from strategies.vertical_result import GrownTree
from tasks.vertical_xgboost.early_stopping import EarlyStopping
from tasks.vertical_xgboost.fixed_point import FixedPointScale
from tasks.vertical_xgboost.message_parts import Seconds
from tasks.vertical_xgboost.objectives import Metrics, Objective
from tasks.vertical_xgboost.stopwatch import Stopwatch
from tasks.vertical_xgboost.tree import GrowingTree, OwnedSplit, OwnedTree


class Timed(Protocol):
    """A reply that says what cryptography took."""

    @property
    def seconds(self) -> Seconds:
        """Processor time by operation."""


class TrainingBook:
    """Trees of a run as the server knows them.

    Parameters
    ----------
    names : tuple of str
        Of all parties.
    objective : Objective
    stopping : EarlyStopping
    num_training, num_evaluation : int
        Rows.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        objective: Objective,
        stopping: EarlyStopping,
        *,
        num_training: int,
        num_evaluation: int,
    ) -> None:
        self.objective = objective
        self.stopping = stopping
        self.num_training = num_training
        self.num_evaluation = num_evaluation
        self.loss_scale: FixedPointScale
        self.watch = Stopwatch()
        self.ciphertexts = 0
        self.grown: list[GrownTree] = []
        self._records = dict.fromkeys(names, 0)
        self._gains: dict[int, float] = {}
        self._tree = OwnedTree({}, {})
        self._before: tuple[int, int, int, Seconds] = (0, 0, 0, {})

    def add_seconds(self, replies: Mapping[str, Timed]) -> None:
        """Add what parties measured."""
        for reply in replies.values():
            self.watch.add(reply.seconds)

    def enter(self, node: int, owner: str, gain: float) -> OwnedSplit:
        """Give a split of an owner its record id: owners count their splits alike."""
        self._gains[node] = gain
        record = self._records[owner]
        self._records[owner] += 1
        return OwnedSplit(owner, record)

    def note(self, tree: GrowingTree[OwnedSplit]) -> None:
        """Keep a tree whose metrics come with the next reply."""
        self._tree = OwnedTree(dict(tree.splits), dict(tree.children))

    def close(self, exchange: Exchange, sums: tuple[int, ...]) -> tuple[GrownTree, bool]:
        """A tree with its metrics, and whether early stopping ends the training.

        Parameters
        ----------
        exchange : Exchange
            Tells what it cost.
        sums : (4,) int
            Training loss and hits, evaluation loss and hits, over all parties.
        """
        loss, hits, test_loss, test_hits = sums
        evaluation = None
        if self.num_evaluation:
            evaluation = self._metrics(test_loss, test_hits, self.num_evaluation)
        exchanges, size, ciphertexts, seconds = self._spent(exchange)
        grown = GrownTree(
            number=len(self.grown) + 1,
            tree=self._tree,
            gains=self._gains,
            train=self._metrics(loss, hits, self.num_training),
            evaluation=evaluation,
            exchanges=exchanges,
            bytes=size,
            ciphertexts=ciphertexts,
            seconds=seconds,
        )
        self.grown.append(grown)
        self._gains = {}
        return grown, self.stopping.update(test_loss)

    def _metrics(self, loss: int, hits: int, rows: int) -> Metrics:
        return self.objective.metrics(loss, hits, rows, self.loss_scale)

    def _spent(self, exchange: Exchange) -> tuple[int, int, int, Seconds]:
        now = exchange.count, exchange.bytes_sent(), self.ciphertexts, dict(self.watch.seconds)
        count, size, ciphertexts, seconds = self._before
        self._before = now
        spent = {name: value - seconds.get(name, 0.0) for name, value in now[3].items()}
        return now[0] - count, now[1] - size, now[2] - ciphertexts, spent
