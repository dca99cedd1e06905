"""What Flower's Strategy has and a protocol of its own steps does not need."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy


class WithoutEvaluation(Strategy):
    """A Strategy whose sites evaluate nothing: what there is to know comes with training."""

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address nobody."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return None."""
        return None


class WithoutRounds(WithoutEvaluation):
    """A Strategy whose ``start`` makes its own exchanges: no rounds of training and evaluation."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address nobody."""
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return nothing."""
        return None, None


def unused_arguments(strategy: Strategy, **arguments: object) -> list[str]:
    """Return a fault for each argument of ``start`` that was given and means nothing here."""
    name = type(strategy).__name__
    return [
        f"{argument}: must be left out, {name} has no use for it"
        for argument, value in arguments.items()
        if value
    ]
