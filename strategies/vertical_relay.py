"""What the server carries between parties without reading it, until the next request goes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tasks.vertical_xgboost.aggregate_messages import NextOrder
from tasks.vertical_xgboost.candidates import IntpArray
from tasks.vertical_xgboost.level_messages import StartOfTraining
from tasks.vertical_xgboost.message_parts import Sealed


class Relay:
    """Sealed parts on their way.

    Parameters
    ----------
    names : tuple of str
        Of all parties.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._sealed: dict[str, Sealed] = {}
        self._orders: list[NextOrder] = []
        self._start: StartOfTraining | None = None

    def take_in(self, sealed: Mapping[str, Sealed]) -> None:
        """Sort what senders sealed by receiver."""
        self._sealed = {
            to: {sender: parts[to] for sender, parts in sealed.items() if to in parts}
            for to in self.names
        }

    def hand_out(self, receiver: str) -> Sealed:
        """What was sealed for a party, by sender; once."""
        return self._sealed.pop(receiver)

    def begin_training(self, start: StartOfTraining) -> None:
        """Let the next level's requests carry bucket maps and layouts."""
        self._start = start

    def start_for(self, receiver: str) -> StartOfTraining | None:
        """What the first level's request adds; None at later levels."""
        if self._start is None or receiver not in self._sealed:
            return None
        start = self._start
        return StartOfTraining(self.hand_out(receiver), start.layouts, start.gradient_exponent)

    def keep_orders(self, told: Iterable[NextOrder | None]) -> None:
        """Keep the orders that sources drew for the next level, if they drew any."""
        self._orders = [each for each in told if each is not None]

    @property
    def orders(self) -> list[IntpArray] | None:
        """Orders that sources drew; None where they draw none."""
        return [told.order for told in self._orders] or None

    def orders_for(self, receiver: str) -> Sealed:
        """Orders that sources sealed for a party, by source."""
        return {
            name: told.sealed[receiver]
            for name, told in zip(self.names, self._orders, strict=False)
            if receiver in told.sealed
        }
