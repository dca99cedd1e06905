"""What a training keeps of its trees: shape, gains, metrics, and what each of them cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from strategies.exchange import Exchange
from strategies.vertical_result import Cost, GrownTree
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.early_stopping import EarlyStopping
from tasks.vertical_xgboost.fixed_point import GradientScales
from tasks.vertical_xgboost.message_parts import Seconds
from tasks.vertical_xgboost.objective import Metrics
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.row_metrics import metrics_of_sums
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
    exchange : Exchange
        Tells what things cost.
    config : VerticalXGBoostConfig
    names : tuple of str
        Of all parties.
    rows, num_evaluation : int
        All rows, and those of them that evaluate.

    Attributes
    ----------
    grown : list of GrownTree
        Those whose metrics are known.
    gains : dict of int to float
        Of the growing tree's splits, by node.
    scales : GradientScales
        Units of the sums of losses, known once gradients are bounded.
    training_weight, evaluation_weight : float
        Of all rows; how many there are, where they have none.
    no_progress : bool
        Whether early stopping ends the training.
    """

    def __init__(
        self,
        exchange: Exchange,
        config: VerticalXGBoostConfig,
        names: tuple[str, ...],
        *,
        rows: int,
        num_evaluation: int,
    ) -> None:
        self.objective = objective_of(config)
        self.stopping = EarlyStopping(config.early_stopping_rounds)
        self.num_training = rows - num_evaluation
        self.num_evaluation = num_evaluation
        self.scales: GradientScales
        self.training_weight = float(self.num_training)
        self.evaluation_weight = float(self.num_evaluation)
        self.watch = Stopwatch()
        self.ciphertexts = 0
        self.grown: list[GrownTree] = []
        self.no_progress = False
        self._exchange = exchange
        self._records = dict.fromkeys(names, 0)
        self.gains: dict[int, float] = {}
        self._tree = OwnedTree({}, {})
        self._cost = self._before = Cost(0, 0, 0, {})

    def add_seconds(self, replies: Mapping[str, Timed]) -> None:
        """Add what parties measured."""
        self.add_all_seconds([reply.seconds for reply in replies.values()])

    def add_all_seconds(self, measured: Iterable[Seconds]) -> None:
        """Add processor times of replies."""
        for seconds in measured:
            self.watch.add(seconds)

    def enter(self, node: int, owner: str, gain: float) -> OwnedSplit:
        """Give a split of an owner its record id: owners count their splits alike."""
        self.gains[node] = gain
        record = self._records[owner]
        self._records[owner] += 1
        return OwnedSplit(owner, record)

    def note(self, tree: GrowingTree[OwnedSplit]) -> None:
        """Keep a tree whose last node is decided; its metrics come with the next reply."""
        self._tree = OwnedTree(dict(tree.splits), dict(tree.children), tree.num_roots)
        self._cost = self.spent()

    def close(self, sums: tuple[int, ...]) -> GrownTree:
        """Give the tree that was noted its metrics.

        Parameters
        ----------
        sums : (4,) int
            Loss and quality of training rows, then of evaluation rows, over all parties.
        """
        loss, quality, test_loss, test_quality = sums
        evaluation = None
        if self.num_evaluation:
            evaluation = self._metrics(test_loss, test_quality, self.evaluation_weight)
        grown = GrownTree(
            number=len(self.grown) + 1,
            tree=self._tree,
            gains=self.gains,
            train=self._metrics(loss, quality, self.training_weight),
            evaluation=evaluation,
            cost=self._cost,
        )
        self.grown.append(grown)
        self.gains = {}
        self.no_progress = self.stopping.update(test_loss)
        return grown

    def spent(self) -> Cost:
        """What was spent since the last call, or since the run began."""
        before, seconds = self._before, dict(self.watch.seconds)
        now = Cost(self._exchange.count, self._exchange.bytes_sent(), self.ciphertexts, seconds)
        self._before = now
        return Cost(
            now.exchanges - before.exchanges,
            now.bytes - before.bytes,
            now.ciphertexts - before.ciphertexts,
            {name: value - before.seconds.get(name, 0.0) for name, value in seconds.items()},
        )

    def _metrics(self, loss: int, quality: int, weight: float) -> Metrics:
        return metrics_of_sums(self.objective, self.scales, (loss, quality), weight)
