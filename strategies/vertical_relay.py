"""What the server carries between parties without reading it, until the next request goes out."""

from __future__ import annotations

from collections.abc import Mapping

from strategies.membership import Refused
from tasks.vertical_xgboost.aggregate_messages import NextOrder
from tasks.vertical_xgboost.candidates import IntpArray
from tasks.vertical_xgboost.level_messages import StartOfTraining
from tasks.vertical_xgboost.message_parts import Sealed


def by_receiver(sealed: Mapping[str, Sealed]) -> dict[str, Sealed]:
    """Sort what senders sealed, by receiver and then by sender.

    Raises
    ------
    Refused
        With the names of those that did not seal one part for each other party.
    """
    _check_receivers(sealed, {name: set(sealed) - {name} for name in sealed})
    return {
        to: {sender: parts[to] for sender, parts in sealed.items() if to in parts} for to in sealed
    }


class Relay:
    """What goes with the next level's requests.

    Parameters
    ----------
    starts : mapping of receiver to StartOfTraining
        What the first level's request adds.
    split_clients : mapping of str to str
        Of each source, by name: the one that may not know its orders.
    """

    def __init__(
        self, starts: Mapping[str, StartOfTraining], *, split_clients: Mapping[str, str]
    ) -> None:
        self._starts = dict(starts)
        self._owners = {
            source: set(split_clients) - {source, client}
            for source, client in split_clients.items()
        }
        self._orders: dict[str, NextOrder] = {}

    def start_for(self, receiver: str) -> StartOfTraining | None:
        """What the first level's request adds, once; None at later levels."""
        return self._starts.pop(receiver, None)

    def keep_orders(self, told: Mapping[str, NextOrder | None]) -> None:
        """Keep the orders that sources drew for the next level, if they drew any.

        Raises
        ------
        Refused
            With the names of sources that did not seal theirs for each label owner but the split
            client.
        """
        self._orders = {name: each for name, each in told.items() if each is not None}
        _check_receivers({name: each.sealed for name, each in self._orders.items()}, self._owners)

    @property
    def orders(self) -> list[IntpArray] | None:
        """Orders that sources drew, by name; None where they draw none."""
        return [self._orders[name].order for name in sorted(self._orders)] or None

    def orders_for(self, receiver: str) -> Sealed:
        """Orders that sources sealed for a party, by source."""
        return {
            name: told.sealed[receiver]
            for name, told in self._orders.items()
            if receiver in told.sealed
        }


def _check_receivers(sealed: Mapping[str, Sealed], receivers: Mapping[str, set[str]]) -> None:
    faults = [
        f"{name}: must seal one part for each of {', '.join(sorted(receivers[name]))}"
        for name, parts in sealed.items()
        if set(parts) != receivers[name]
    ]
    if faults:
        raise Refused(faults)
