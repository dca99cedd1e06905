"""What a training keeps of its trees: shape, gains, metrics, and what each of them cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from strategies.exchange import Exchange
from strategies.vertical_earlier import EarlierModel
from strategies.vertical_result import Cost, GrownTree
from strategies.vertical_snapshot import Interrupted
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.early_stopping import EarlyStopping
from tasks.vertical_xgboost.fixed_point import GradientScales
from tasks.vertical_xgboost.message_parts import Seconds
from tasks.vertical_xgboost.objective import Metrics
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.partial_dp import spent_releases
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
    earlier : EarlierModel, optional
        Its trees come first; numbers of trees and records count on.
    resumed : Interrupted, optional
        The training that is gone on with, as it was after its last tree that is kept.

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
        earlier: EarlierModel | None = None,
        resumed: Interrupted | None = None,
    ) -> None:
        self.earlier = earlier if resumed is None else resumed.earlier
        self.resumed = resumed
        self.num_before = 0 if self.earlier is None else len(self.earlier.trees)
        self.num_resumed = 0 if resumed is None else len(resumed.sums)
        self.sums: list[tuple[int, ...]] = []
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
        first = self.first_model
        self._records = {name: first.num_records(name) if first else 0 for name in names}
        self.releases = (
            resumed.model.releases
            if resumed
            else spent_releases(config, earlier.releases if earlier else ())
        )
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

    @property
    def first_model(self) -> EarlierModel | None:
        """All trees in front of those that are grown here."""
        return self.earlier if self.resumed is None else self.resumed.model

    @property
    def trees_in_front(self) -> int:
        """Trees of the model in front of those that are grown here."""
        return self.num_before + self.num_resumed

    @property
    def number_here(self) -> int:
        """Number of the tree whose metrics come next, from 0, among those that are grown here."""
        return len(self.grown) - self.num_resumed

    def replay(self) -> None:
        """Enter the trees of the training that is gone on with, as they were then."""
        if self.resumed is None:
            return
        trees = self.resumed.model.trees[self.num_before :]
        for each, sums, cost in zip(trees, self.resumed.sums, self.resumed.costs, strict=True):
            self._tree, self.gains, self._cost = each.tree, dict(each.gains), cost
            self.close(sums)

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
            number=self.num_before + len(self.grown) + 1,
            tree=self._tree,
            gains=self.gains,
            train=self._metrics(loss, quality, self.training_weight),
            evaluation=evaluation,
            cost=self._cost,
        )
        self.grown.append(grown)
        self.sums.append(tuple(sums))
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
