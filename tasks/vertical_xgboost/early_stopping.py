"""When to stop for want of progress on the evaluation rows."""

from __future__ import annotations


class EarlyStopping:
    """XGBoost's rule: stop after so many trees without a strictly smaller evaluation loss.

    Parameters
    ----------
    rounds : int
        0 never stops, and every tree is kept.
    """

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self._num_trees = 0
        self._best_loss: int | None = None
        self._best_trees = 0

    @property
    def trees_to_keep(self) -> int:
        """Trees of the model: up to the best one."""
        return self._best_trees if self.rounds else self._num_trees

    def update(self, loss_sum: int) -> bool:
        """Hear of one more tree; True says to stop.

        Parameters
        ----------
        loss_sum : int
            Evaluation loss summed over all owners in whole numbers, so that the answer does not
            depend on how rows are spread.
        """
        self._num_trees += 1
        if self._best_loss is None or loss_sum < self._best_loss:
            self._best_loss, self._best_trees = loss_sum, self._num_trees
        return bool(self.rounds) and self._num_trees - self._best_trees >= self.rounds
