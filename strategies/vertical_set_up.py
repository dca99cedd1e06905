"""The set-up of a vertical training: keys, labels, base score, bucket maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from strategies.all_parties import ask_all
from strategies.exchange import Exchange
from strategies.membership import Refused
from strategies.vertical_book import TrainingBook
from strategies.vertical_checks import check_parties, read_paillier_keys
from strategies.vertical_level import Sources
from strategies.vertical_relay import Relay
from strategies.vertical_result import GrownTree
from strategies.without_rounds import WithoutRounds
from tasks.secure.roster import Roster
from tasks.secure.secure_sums import MaskedVector, unmask_sum
from tasks.site.faults import SiteFault
from tasks.site.messages import TaskPart
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.early_stopping import EarlyStopping
from tasks.vertical_xgboost.level_messages import (
    StartOfTraining,
)
from tasks.vertical_xgboost.messages import (
    BUCKETS,
    LABELS,
    LABELS_STEP,
    BucketsReply,
    BucketsRequest,
    LabelsReply,
    LabelsRequest,
)
from tasks.vertical_xgboost.objectives import base_score_of, label_scale, objective_of
from tasks.vertical_xgboost.party_facts import PartyFacts
from tasks.vertical_xgboost.secret_order import draw_split_clients


class VerticalSetUp(WithoutRounds):
    """Steps 1 and 2 of :class:`~strategies.vertical_xgboost.VerticalXGBoost`, parameters there."""

    def __init__(
        self,
        *,
        config: VerticalXGBoostConfig,
        parties: Mapping[str, TaskPart],
        after_tree: Callable[[GrownTree], None] | None = None,
        folder: str = "",
    ) -> None:
        self.config = config
        self.facts = {name: PartyFacts.from_facts(part.facts) for name, part in parties.items()}
        self.bundles = {name: part.key_bundle for name, part in parties.items()}
        self.names = tuple(sorted(parties))
        self.folder = folder
        self._after_tree = after_tree
        self.objective = objective_of(config)
        # Of the run under way:
        self.roster: Roster
        self.sources: Sources
        self.relay: Relay
        self.book: TrainingBook

    def check_parties(self) -> None:
        """Refuse parties whose rows or labels do not fit together."""
        rows, evaluation = check_parties(self.config, self.facts)
        self.relay = Relay(self.names)
        self.book = TrainingBook(
            self.names,
            self.objective,
            EarlyStopping(self.config.early_stopping_rounds),
            num_training=rows - evaluation,
            num_evaluation=evaluation,
        )

    def choose_split_clients(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Place of each source's split client, another party; drawn once a training.

        Redrawn at every node, a source would meet a split client that colludes with it almost
        surely.
        """
        return draw_split_clients(len(names))

    def gather_labels(self, exchange: Exchange) -> tuple[float, float]:
        """Step 1, ``labels``: who owns which labels, and the base score with its margin."""
        config, names = self.config, self.names
        self.roster = Roster.from_bundles(
            [self.bundles[name] for name in names], run=f"run-{exchange.run.run_id}"
        )
        keys = read_paillier_keys(config, self.roster, self.facts)
        split_clients = self.choose_split_clients(names)
        self.sources = Sources(names, split_clients, (), (), keys)
        scale = label_scale([fact.label_exponent for fact in self.facts.values()], config)
        request = LabelsRequest(
            self.roster.to_bytes(),
            tuple(self.facts[name].paillier for name in names),
            split_clients,
            scale.exponent,
        ).to_record()
        replies = ask_all(
            exchange,
            dict.fromkeys(names, request),
            LABELS,
            LabelsReply.from_record,
            step="labels",
        )
        self.relay.take_in({name: reply.sealed for name, reply in replies.items()})
        self.book.add_seconds(replies)
        total, training, owned = self.read_sum(
            {name: reply.masked for name, reply in replies.items()}, LABELS_STEP
        )
        book = self.book
        if (owned, training) != (book.num_training + book.num_evaluation, book.num_training):
            return 0.5, 0.0  # the parties see by themselves which rows have no or two owners
        base_score = base_score_of(total, training, scale, config)
        try:
            return base_score, self.objective.base_margin(base_score)
        except SiteFault as fault:  # labels of one class
            raise Refused(list(fault.reasons)) from None

    def gather_buckets(self, exchange: Exchange, base_margin: float) -> None:
        """Step 2, ``buckets``: bucket maps go from sources to label owners, counts come here."""
        replies = ask_all(
            exchange,
            {
                name: BucketsRequest(self.relay.hand_out(name), base_margin).to_record()
                for name in self.names
            },
            BUCKETS,
            lambda content: BucketsReply.from_record(
                content,
                has_order=self.config.aggregator == "source" and self.config.shuffle,
                has_splits=self.config.max_depth > 0,
            ),
            step="buckets",
        )
        self.relay.take_in({name: reply.sealed for name, reply in replies.items()})
        self.book.add_seconds(replies)
        told = [reply.gradient_exponent for reply in replies.values()]
        scales = self.objective.gradient_scales(told, bits=self.config.fixed_point_bits)
        self.book.loss_scale = self.objective.loss_scale(scales)
        layouts = tuple(reply.layout for reply in replies.values())
        positions = tuple(
            reply.layout.canonical_positions(reply.ranks) for reply in replies.values()
        )
        before = self.sources
        self.sources = Sources(before.names, before.split_clients, layouts, positions, before.keys)
        self.relay.keep_orders([reply.following for reply in replies.values()])
        self.relay.begin_training(StartOfTraining({}, layouts, scales.gradient.exponent))

    def read_sum(self, masked: Mapping[str, MaskedVector], step: str) -> tuple[int, ...]:
        """Sums over all parties from their answers under masks."""
        sums = unmask_sum(list(masked.values()), roster=self.roster, step=step)
        return tuple(int(value) for value in sums)
