"""A vertical training at the end of a tree, to be gone on with: as a snapshot, and read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strategies.membership import Refused
from strategies.snapshot import Snapshot, UnusableSnapshot
from strategies.vertical_earlier import (
    EarlierModel,
    model_document,
    model_of_document,
    other_parties,
)
from strategies.vertical_result import Cost
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.early_stopping import EarlyStopping
from tasks.vertical_xgboost.going_on import GoingOn
from tasks.vertical_xgboost.partial_dp import planned_releases
from tasks.vertical_xgboost.party_facts import PartyFacts

KIND = "vertical-xgboost"


@dataclass(frozen=True)
class Interrupted:
    """A training that ended before its time, as the server had noted it after a tree.

    Parameters
    ----------
    model : EarlierModel
        All its trees so far, those of an earlier model first; its run is the interrupted one.
    earlier : EarlierModel or None
        That it had gone on from (``warm-start``).
    sums : tuple of (4,) int
        After each tree of its own: training loss and quality, evaluation likewise, summed.
    costs : tuple of Cost
        Of the same trees.
    split_clients : mapping of str to str
        Drawn once a training: the same go on.
    begun : int
        Trees of its own of which leaves may have been told, the last one perhaps not to its end.
    """

    model: EarlierModel
    earlier: EarlierModel | None
    sums: tuple[tuple[int, ...], ...]
    costs: tuple[Cost, ...]
    split_clients: Mapping[str, str]
    begun: int

    @property
    def num_before(self) -> int:
        """Trees of the earlier model."""
        return 0 if self.earlier is None else len(self.earlier.trees)

    def to_snapshot(self) -> Snapshot:
        """Return it as what JSON can hold."""
        facts: dict[str, Any] = {
            "model": model_document(self.model),
            "earlier": None if self.earlier is None else model_document(self.earlier),
            "sums": [list(each) for each in self.sums],
            "costs": [
                {
                    "exchanges": each.exchanges,
                    "bytes": each.bytes,
                    "ciphertexts": each.ciphertexts,
                    "seconds": dict(each.seconds),
                }
                for each in self.costs
            ],
            "split-clients": dict(self.split_clients),
        }
        return Snapshot(KIND, len(self.sums), facts)

    @classmethod
    def from_snapshot(
        cls, snapshot: Snapshot, config: VerticalXGBoostConfig, *, finished: int = 0
    ) -> Interrupted:
        """Read what `to_snapshot` gave.

        Parameters
        ----------
        snapshot : Snapshot
        config : VerticalXGBoostConfig
        finished : int
            Trees of its own that are known to have been finished, where these may be more than
            the snapshot has: one of a later tree could not be written.

        Raises
        ------
        UnusableSnapshot
            If it is something else.
        """
        facts = snapshot.of_kind(KIND).facts
        try:
            model = model_of_document(facts["model"])
            earlier = facts["earlier"]
            found = cls(
                model,
                None if earlier is None else model_of_document(earlier),
                tuple(_four(each) for each in facts["sums"]),
                tuple(
                    Cost(e["exchanges"], e["bytes"], e["ciphertexts"], dict(e["seconds"]))
                    for e in facts["costs"]
                ),
                {str(name): str(other) for name, other in facts["split-clients"].items()},
                min(max(snapshot.round, finished) + 1, config.num_trees),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UnusableSnapshot("not what a vertical training leaves") from None
        counts = {len(found.sums), len(found.costs), len(model.trees) - found.num_before}
        if counts != {snapshot.round} or not snapshot.round:
            raise UnusableSnapshot("a vertical training's numbers of trees contradict each other")
        return found

    def at(self, num_trees: int, config: VerticalXGBoostConfig) -> Interrupted:
        """Return it as it was after so many of its own trees.

        With partial differential privacy what is grown again spends again: leaves of these trees
        may have been told under noise, and are told under other noise now.
        """
        model = self.model.first(self.num_before + num_trees)
        roots = len(model.base_margins)
        again = (self.begun - num_trees) * roots << config.max_depth
        repeated = again if config.dp_epsilon else 0
        if model.releases and repeated:
            last = model.releases[-1]
            more = replace(last, count=last.count + repeated)
            model = replace(model, releases=(*model.releases[:-1], more))
        return replace(self, model=model, sums=self.sums[:num_trees], costs=self.costs[:num_trees])

    def going_on(self, config: VerticalXGBoostConfig) -> GoingOn:
        """What parties are told: where they go on."""
        planned = planned_releases(config) if config.dp_epsilon else 0
        releases = self.model.releases
        repeated = releases[-1].count - planned if releases else 0
        return GoingOn(len(self.model.trees), self.model.digest, repeated)


def go_on_from(
    interrupted: Interrupted, config: VerticalXGBoostConfig, facts: Mapping[str, PartyFacts]
) -> Interrupted:
    """The last tree after which everybody can go on, at least one being left to grow.

    Raises
    ------
    Refused
        If the parties are others, or have kept too little.
    """
    if tuple(facts) != interrupted.model.parties:
        raise Refused([other_parties(interrupted.model, facts)])
    before = interrupted.num_before
    least = min(fact.trees for fact in facts.values())
    if least <= before:
        few = [name for name, fact in facts.items() if fact.trees <= before]
        raise Refused(
            [f"{', '.join(few)}: has kept no finished tree of {interrupted.model.run}: begin anew"]
        )
    most = min(len(interrupted.sums), least - before, config.num_trees - 1)
    number = min(most, _trees_until_stop(interrupted.sums, config) - 1)
    if number < 1:
        raise Refused(
            [f"{interrupted.model.run}: nothing is left to grow after a finished tree: begin anew"]
        )
    return interrupted.at(number, config)


def _trees_until_stop(sums: Sequence[Sequence[int]], config: VerticalXGBoostConfig) -> int:
    """Trees after which early stopping ended the training; one more than there are if not."""
    stopping = EarlyStopping(config.early_stopping_rounds)
    for number, (_, _, test_loss, _) in enumerate(sums, start=1):
        if stopping.update(test_loss):
            return number
    return len(sums) + 1


def _four(values: Sequence[Any]) -> tuple[int, ...]:
    found = tuple(map(int, values))
    if len(found) != 4:
        raise ValueError("sums")
    return found
