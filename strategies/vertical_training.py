"""What the server holds of a vertical training from its set-up on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strategies.all_parties import AllParties
from strategies.snapshot import Snapshot
from strategies.vertical_book import TrainingBook
from strategies.vertical_checks import check_senders
from strategies.vertical_earlier import EarlierModel, EarlierTree
from strategies.vertical_level import Sources
from strategies.vertical_relay import Relay
from strategies.vertical_result import Cost, VerticalResult
from strategies.vertical_snapshot import Interrupted
from tasks.secure.roster import Roster
from tasks.secure.secure_sums import MaskedVector, unmask_sum
from tasks.vertical_xgboost.config import VerticalXGBoostConfig


@dataclass(frozen=True, eq=False)
class Training:
    """What the server holds of a training from its set-up on.

    Attributes
    ----------
    parties : AllParties
    config : VerticalXGBoostConfig
    roster : Roster
        Keys of all parties.
    sources : Sources
    relay : Relay
    book : TrainingBook
    base_scores, base_margins : tuple of float
    cost : Cost
        Of introduction and set-up.
    rows_before : mapping of str to int
        Rows of each party at its introduction.
    """

    parties: AllParties
    config: VerticalXGBoostConfig
    roster: Roster
    sources: Sources
    relay: Relay
    book: TrainingBook
    base_scores: tuple[float, ...]
    base_margins: tuple[float, ...]
    cost: Cost
    rows_before: Mapping[str, int]

    @property
    def names(self) -> tuple[str, ...]:
        """Of all parties, sorted."""
        return self.sources.names

    def read_sum(self, masked: Mapping[str, MaskedVector], step: str) -> tuple[int, ...]:
        """Sums over all parties from their answers under masks."""
        return read_sum(self.roster, masked, step)

    @property
    def model(self) -> EarlierModel:
        """All trees so far, earlier ones first."""
        book = self.book
        grown = (EarlierTree(each.tree, each.gains) for each in book.grown)
        return EarlierModel(
            run=self.roster.run,
            parties=self.names,
            objective=self.config.objective,
            eta=self.config.eta,
            base_scores=self.base_scores,
            base_margins=self.base_margins,
            trees=(*(book.earlier.trees if book.earlier else ()), *grown),
            releases=book.releases,
        )

    @property
    def split_client_names(self) -> dict[str, str]:
        """Who decrypts the sums of whose columns."""
        clients = zip(self.names, self.sources.split_clients, strict=True)
        return {name: self.names[client] for name, client in clients}

    def snapshot(self) -> Snapshot:
        """What is needed to go on after the last tree whose metrics are known."""
        book = self.book
        return Interrupted(
            model=self.model,
            earlier=book.earlier,
            sums=tuple(book.sums),
            costs=tuple(each.cost for each in book.grown),
            split_clients=self.split_client_names,
            begun=len(book.grown),
        ).to_snapshot()

    def result(self) -> VerticalResult:
        """What the training gave, once it is at its end."""
        book, sources = self.book, self.sources
        layouts = zip(self.names, sources.layouts, strict=True)
        return VerticalResult(
            run=self.roster.run,
            parties=self.names,
            split_clients=self.split_client_names,
            base_scores=self.base_scores,
            base_margins=self.base_margins,
            trees=tuple(book.grown),
            trees_to_keep=book.stopping.trees_to_keep,
            set_up=self.cost,
            ending=book.spent(),
            roster_fingerprint=self.roster.fingerprint,
            num_rows=book.num_training + book.num_evaluation,
            num_evaluation=book.num_evaluation,
            num_features={name: layout.num_features for name, layout in layouts},
            rows_before=self.rows_before,
            model=self.model,
            earlier=book.earlier,
        )


def read_sum(roster: Roster, masked: Mapping[str, MaskedVector], step: str) -> tuple[int, ...]:
    """Sums over all parties from their answers under masks.

    Parameters
    ----------
    roster : Roster
    masked : mapping of str to MaskedVector
        By party.
    step : str
        Under whose name they were masked.
    """
    check_senders(masked)
    sums = unmask_sum(list(masked.values()), roster=roster, step=step)
    return tuple(int(value) for value in sums)
