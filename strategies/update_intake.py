"""What comes back from the nodes that were addressed: which replies and updates are usable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import WARNING
from typing import Any

from flwr.app import Message, RecordDict
from flwr.supercore import log
from numpy.typing import NDArray

from strategies.averaging import MALFORMED, Arrays, Update, stated_examples
from strategies.exchange import Exchange, Fault, TooFewSites
from strategies.faults import MISROUTED
from tasks.privacy.mechanisms import AdditiveNoise, is_number
from tasks.privacy.received_update import estimated_noise_to_signal
from tasks.site.faults import SiteFault


class NoUsableReplies(TooFewSites):
    """A round of training ended with fewer usable updates than it needs."""


class UpdateIntake:
    """Replies of one exchange, each usable or a fault of its site.

    Parameters
    ----------
    exchange : Exchange
        Names the sites and keeps their faults.
    addressed : sequence of int
        Nodes that were addressed, in the order in which replies are used.
    """

    def __init__(self, exchange: Exchange, addressed: Sequence[int]) -> None:
        self.exchange = exchange
        self.addressed = tuple(addressed)
        self._faults_before = len(exchange.faults)

    @property
    def faults(self) -> list[Fault]:
        """Faults since the nodes were chosen."""
        return list(self.exchange.faults[self._faults_before :])

    def good_replies(self, replies: Iterable[Message]) -> list[Message]:
        """Return one reply of each node that was addressed, in the order of addressing."""
        by_node: dict[int, Message] = {}
        addressed = frozenset(self.addressed)
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in addressed:
                self.set_aside(reply, MISROUTED, "was not addressed")
            elif node in by_node:
                self.set_aside(reply, "duplicate", "answered more than once")
            elif reply.has_error():
                self.set_aside(reply, "error", reply.error.reason or "no reason given")
            else:
                by_node[node] = reply
        return [by_node[node] for node in self.addressed if node in by_node]

    def usable_updates(
        self,
        replies: Iterable[Message],
        *,
        check: Callable[[Message], Arrays],
        weigh: Callable[[Message], float],
    ) -> list[Update]:
        """Return the updates that may enter the average.

        Parameters
        ----------
        replies : iterable of Message
            Of a round of training.
        check : callable
            Returns a reply's model, or raises why it may not enter.
        weigh : callable
            Returns a reply's weight.
        """
        updates = []
        for reply in self.good_replies(replies):
            try:
                arrays, weight = check(reply), weigh(reply)
                if not is_number(weight) or weight <= 0:
                    raise SiteFault(MALFORMED, f"weight {weight!r}: must be finite and > 0")
            except SiteFault as fault:
                self.set_aside(reply, fault.code, str(fault))
            except Exception as error:  # of a subclass's hook, on a reply it did not expect
                self.set_aside(reply, MALFORMED, f"{type(error).__name__} when it was checked")
            else:
                site = self.exchange.name_of(reply.metadata.src_node_id)
                updates.append(Update(site, reply, arrays, float(weight)))
        return updates

    def usable_metrics(self, replies: Iterable[Message], weighted_by_key: str) -> list[RecordDict]:
        """Return contents of the replies that state a usable number of examples under the key."""
        contents = []
        for reply in self.good_replies(replies):
            try:
                stated_examples(reply.content, weighted_by_key)
            except SiteFault as fault:
                self.set_aside(reply, fault.code, str(fault))
            else:
                contents.append(reply.content)
        return contents

    def is_short(self, server_round: int, usable: int) -> bool:
        """Return whether fewer updates are usable than nodes were addressed, and warn of it.

        Raises
        ------
        NoUsableReplies
            If there are fewer than the exchange's ``min_sites``, or none.
        """
        addressed = len(self.addressed)
        needed = max(1, min(self.exchange.min_sites, addressed))
        if usable < needed:
            raise NoUsableReplies(
                f"round {server_round}: {usable} of {addressed} updates usable, {needed} needed",
                self.faults,
            )
        if usable < addressed:
            log(
                WARNING,
                "round %d: %d of %d updates usable, and their noise was drawn for %d: on the sum "
                "it is %.3g times, on the average %.3g times what it would be with all",
                *(server_round, usable, addressed, addressed),
                math.sqrt(usable / addressed),
                math.sqrt(addressed / usable),
            )
        return usable < addressed

    def set_aside(self, reply: Message, code: str, reason: str) -> None:
        """Keep a reply as a fault of its site."""
        node, step = reply.metadata.src_node_id, reply.metadata.message_type
        self.exchange.report_fault(node, code, reason, step=step)


def noise_to_signal(
    server_round: int,
    sent: Mapping[str, NDArray[Any]],
    updates: Sequence[Update],
    noise: AdditiveNoise,
    *,
    clip_norm: float,
) -> dict[str, float]:
    """Return the estimated ratio of each site's update, and warn of those above 1."""
    ratios = {
        update.site: estimated_noise_to_signal(sent, update.arrays, noise, clip_norm=clip_norm)
        for update in updates
    }
    drowned = [f"{site} ({ratio:.3g})" for site, ratio in ratios.items() if ratio > 1]
    if drowned:
        words = ", ".join(drowned)
        log(WARNING, "round %d: more noise than signal from %s", server_round, words)
    return ratios
