"""Sites that are late again and again: every one of them costs a whole timeout a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from strategies.exchange import Exchange, Fault
from strategies.faults import LATE

LEFT_OUT = "left-out"
"""Code of the fault of a site that is not addressed any more."""

MOST_LATE = 2
"""Late replies in a row with which a site is left out."""


class Lateness:
    """Counts in how many rounds in a row each site was late.

    Parameters
    ----------
    in_a_row : mapping of str to int, optional
        Counts to go on from, as the property of this name told them.
    """

    def __init__(self, in_a_row: Mapping[str, int] | None = None) -> None:
        self._in_a_row: Counter[str] = Counter(in_a_row)

    @property
    def in_a_row(self) -> dict[str, int]:
        """How often each site that was late in the last round was so in a row, by name."""
        return dict(self._in_a_row)

    def note(self, *, answered: Iterable[str], late: Iterable[str]) -> list[str]:
        """Count a round; who was not addressed in it stays as it was.

        Parameters
        ----------
        answered, late : iterable of str
            Sites that replied in time, whatever the reply was worth, and that did not.

        Returns
        -------
        list of str
            Who was late in `MOST_LATE` rounds in a row or more, sorted.
        """
        for name in answered:
            del self._in_a_row[name]
        self._in_a_row.update(set(late))
        return sorted(name for name in late if self._in_a_row[name] >= MOST_LATE)

    def leave_out(
        self, exchange: Exchange, addressed: Iterable[int], *, faults: Iterable[Fault], fewest: int
    ) -> None:
        """Count a round, and address nobody any more who was late too often.

        Parameters
        ----------
        exchange : Exchange
            Its nodes become fewer; who is left out is in its faults.
        addressed : iterable of int
            Nodes that were addressed in the round.
        faults : iterable of Fault
            Of the round.
        fewest : int
            Number of nodes, beside the exchange's own ``min_sites``, that stays whoever is late.
        """
        by_name = {exchange.name_of(node): node for node in addressed}
        late = {fault.site for fault in faults if fault.code == LATE}
        too_often = self.note(answered=set(by_name) - late, late=late)
        if not too_often:
            return
        # Asked once: in a deployment it is a request, and all nodes are in the answer.
        left, least = set(exchange.get_node_ids()), max(fewest, exchange.min_sites)
        for name in too_often:
            if len(left) > least:
                reason = f"left out after {MOST_LATE} late replies in a row"
                exchange.report_fault(by_name[name], LEFT_OUT, reason, step="train")
                exchange.exclude([by_name[name]])
                left.discard(by_name[name])
