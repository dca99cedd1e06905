"""Gradient-boosted trees over columns and labels spread over parties: the PIVODL protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from logging import INFO

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.supercore import log

from strategies.all_parties import ask_all, ask_each, tell_all
from strategies.exchange import Exchange, TooFewSites
from strategies.membership import Refused
from strategies.vertical_level import Level, Totals
from strategies.vertical_result import GrownTree, VerticalResult, vertical_disclosures
from strategies.vertical_set_up import VerticalSetUp
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.aggregate_messages import (
    AGGREGATE,
    AggregateReply,
    AggregateRequest,
)
from tasks.vertical_xgboost.decide_messages import DECIDE, DecideReply, DecideRequest, SealedOffer
from tasks.vertical_xgboost.gains import BestSplit, winner
from tasks.vertical_xgboost.level_messages import (
    HISTOGRAMS,
    HistogramsReply,
    HistogramsRequest,
    SealedDecision,
)
from tasks.vertical_xgboost.messages import (
    FINISH,
    STOP,
    FinishReply,
    FinishRequest,
    StopRequest,
    metrics_step,
)
from tasks.vertical_xgboost.protected_sums import protected_sums
from tasks.vertical_xgboost.tree import GrowingTree, OwnedSplit

Decisions = Sequence[Sequence[SealedDecision]]
"""For each party, what it is told of each open node: the same, but for sealed weights."""


class VerticalXGBoost(VerticalSetUp):
    """Trees that one XGBoost on the joined table would build, after parties were introduced.

    Every party is *source* of splits on its own columns, and *label owner* of some rows. For each
    source another party, its *split client*, has the key that decrypts the source's sums. The
    server adds ciphertexts, compares gains, and carries what parties seal for one another.

    Steps, each one exchange:

    1. ``labels`` (:meth:`gather_labels`): keys of all parties go round; each tells the others,
       sealed, whose labels it owns, and the server the sum of its labels under masks.
    2. ``buckets`` (:meth:`gather_buckets`): each source tells each label owner, sealed, the buckets
       of that owner's rows on renumbered features; the server gets counts and ranks.
    3. For each level of each tree ``histograms`` (:meth:`gather_histograms`): parties hear what
       became of the level above, and send sums of gradients and Hessians for every open node and
       every candidate of every source, encrypted for the source's split client.
    4. ``decide`` (:meth:`gather_offers`): split clients decrypt the totals and answer the best
       gain, the records that reach it, and sealed weights of leaves. The server takes the largest
       gain (:meth:`decide`).
    5. ``finish`` (:meth:`finish`): the last decisions; each party keeps its part of the model.

    With ``aggregator = "source"`` shares go sealed to the source, which adds them up in an exchange
    ``aggregate`` between the two (:meth:`add_up`): 4 + 3 T max(d, 1) exchanges.

    With the introduction (:func:`strategies.membership.meet_sites`) at most 4 + 2 T max(d, 1)
    exchanges for T trees of depth d. Losses and metrics of a tree are summed under masks and come
    with the next tree's first reply, so early stopping discards that exchange.

    **What is revealed.** To the server: gains, records that tie, refusals of ``min-instances``,
    bucket counts of unnamed features, ranks of columns, shape of the trees, mean label, losses;
    never a row, label, gradient, sum, name of a column or threshold (with ``encryption = "none"``
    it reads all sums). To a split client: sums over all parties per node and unnamed candidate.
    With three parties, one that knows the order of candidates and colludes with the split client
    exposes the third by subtraction; with two parties subtraction needs no collusion. Shuffling
    hides from the split client which candidate is which, but its own share of the labels may tell
    it much of that. To a label owner: the order of its own rows along unnamed features of others,
    and source, unnamed feature, bucket and side of every split. To a source: weights of leaves
    and through them something of others' labels, but no sums.

    **Parties that are lost** end the run: a model of all columns cannot go on without some. All
    others are then told why (``stop``) and forget their keys.

    Parameters
    ----------
    config : VerticalXGBoostConfig
    parties : mapping of str to TaskPart
        What each told at its introduction.
    after_tree : callable, optional
        Takes a :class:`~strategies.vertical_result.GrownTree`.
    folder : str
        Simulation only: where parties write their parts of the model.

    Raises
    ------
    strategies.membership.Refused
        If the parties' rows, labels or keys do not fit together.
    """

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> VerticalResult:
        """Train a model.

        Parameters
        ----------
        grid : Grid
            Any Grid; an Exchange whose nodes are the parties, by name.
        num_rounds : int, optional
            Trees to grow, at most; the configuration's ``num-trees`` if not given.
        timeout : float
            Seconds to wait for a reply.

        Raises
        ------
        strategies.membership.Refused
            If something is wrong with rows or settings; all parties are told.
        strategies.exchange.TooFewSites
            If a party is lost.
        """
        exchange = Exchange.around(
            grid, timeout=timeout, disclosures=vertical_disclosures(self.config)
        )
        try:
            return self._train(exchange, num_rounds or self.config.num_trees)
        except Exception as end:
            # The reason of an unexpected error may hold anything: only its kind goes round.
            known = isinstance(end, Refused | TooFewSites | SiteFault)
            reason = str(end) if known else f"{type(end).__name__} at the server"
            tell_all(exchange, StopRequest(reason).to_record(), STOP)
            raise

    def _train(self, exchange: Exchange, num_trees: int) -> VerticalResult:
        self.check_parties()
        base_score, base_margin = self.gather_labels(exchange)
        self.gather_buckets(exchange, base_margin)
        decisions: Decisions = [[] for _ in self.names]
        for number in range(num_trees):
            tree: GrowingTree[OwnedSplit] = GrowingTree(self.config.max_depth)
            while tree.open_nodes or (tree.max_depth == 0 and not tree.depth):
                level, replies = self.gather_histograms(exchange, number, tree, decisions)
                if tree.depth == 0 and number and self._tree_is_done(exchange, replies):
                    decisions = [[] for _ in self.names]
                    break
                totals = self.add_up(exchange, number, tree, level, replies)
                offers = self.gather_offers(exchange, number, tree, level, totals)
                decisions = self.decide(tree, level, offers)
            else:
                self.book.note(tree)
                continue
            break
        self.finish(exchange, decisions)
        return self._result(base_score, base_margin)

    def _result(self, base_score: float, base_margin: float) -> VerticalResult:
        book = self.book
        return VerticalResult(
            parties=self.names,
            split_clients={
                name: self.names[self.sources.split_clients[at]]
                for at, name in enumerate(self.names)
            },
            base_score=base_score,
            base_margin=base_margin,
            trees=tuple(book.grown),
            trees_to_keep=book.stopping.trees_to_keep,
            seconds=dict(book.watch.seconds),
            roster_fingerprint=self.roster.fingerprint,
            num_rows=book.num_training + book.num_evaluation,
            num_evaluation=book.num_evaluation,
            num_features={
                name: self.sources.layouts[at].num_features for at, name in enumerate(self.names)
            },
        )

    # What a subclass may change ---------------------------------------------------------------

    def choose_split(self, node: int, splits: Sequence[BestSplit | None]) -> tuple[int, int] | None:
        """Source and candidate that split a node: largest gain, ties in canonical order.

        Parameters
        ----------
        node : int
            Number of the node in its tree.
        splits : sequence of BestSplit or None
            Best of each source, with the numbers of all candidates that reach its gain.

        Returns
        -------
        (source, candidate) or None
            None only where no source has a candidate: else nobody knows the leaf's weight.
        """
        return winner(splits, self.sources.positions)

    def stop_after(self, grown: GrownTree) -> bool:
        """Whether to stop although early stopping does not; by default never."""
        return False

    def after_tree(self, grown: GrownTree) -> None:
        """Told of each tree once its metrics are known; by default logs it."""
        quality = self.objective.quality_name
        parts = [f"training loss {grown.train.loss:.5f}"]
        if grown.evaluation is not None:
            parts.append(f"test loss {grown.evaluation.loss:.5f}")
            parts.append(f"test {quality} {grown.evaluation.quality:.4f}")
        log(INFO, "tree %d: %s", grown.number, ", ".join(parts))
        if self._after_tree is not None:
            self._after_tree(grown)

    # The steps --------------------------------------------------------------------------------

    def gather_histograms(
        self, exchange: Exchange, number: int, tree: GrowingTree[OwnedSplit], decisions: Decisions
    ) -> tuple[Level, dict[str, HistogramsReply]]:
        """Step 3, ``histograms``: tell decisions of the level above, gather sums of this one."""
        level = Level(
            self.sources,
            nodes=len(tree.open_nodes) or 1,
            has_splits=self.config.max_depth > 0,
            shuffle=self.config.shuffle,
            orders=self.relay.orders,
        )
        by_source = self.config.aggregator == "source"
        contents = {}
        for at, name in enumerate(self.names):
            request = HistogramsRequest(
                number,
                tree.depth,
                tuple(decisions[at]),
                {} if by_source else level.orders_for(at),
                self.relay.start_for(name),
                self.relay.orders_for(name),
            )
            contents[name] = request.to_record()
        shapes = level.shapes_by_name
        replies = ask_all(
            exchange,
            contents,
            HISTOGRAMS,
            lambda content: HistogramsReply.from_record(
                content, shapes=shapes, protection=self.config.shares_protection
            ),
            step="histograms",
        )
        self.book.add_seconds(replies)
        return level, replies

    def add_up(
        self,
        exchange: Exchange,
        number: int,
        tree: GrowingTree[OwnedSplit],
        level: Level,
        replies: dict[str, HistogramsReply],
    ) -> Totals:
        """Add ciphertexts here, or have sources do it (``aggregate``, an exchange of its own)."""
        book = self.book
        sums = protected_sums(self.config, num_training=book.num_training, watch=book.watch)
        book.ciphertexts += level.ciphertexts(sums)
        if self.config.aggregator == "server":
            refused = level.refused(replies)
            return Totals(level.totals(replies, sums, refused), refused)
        contents = {
            name: AggregateRequest(
                number, tree.depth, {owner: reply.shares[name] for owner, reply in replies.items()}
            ).to_record()
            for name in self.names
        }
        shapes = level.shapes_by_name
        found = ask_each(
            exchange,
            contents,
            AGGREGATE,
            lambda name, content: AggregateReply.from_record(
                content,
                shape=shapes[name],
                has_order=level.shuffle,
                protection=self.config.sums_protection,
            ),
            step="aggregate",
        )
        self.book.add_seconds(found)
        self.relay.keep_orders([reply.following for reply in found.values()])
        masks = {at: reply.refused for at, reply in enumerate(found.values())}
        return Totals(
            {at: reply.total for at, reply in enumerate(found.values())},
            {at: mask for at, mask in masks.items() if mask is not None},
        )

    def gather_offers(
        self,
        exchange: Exchange,
        number: int,
        tree: GrowingTree[OwnedSplit],
        level: Level,
        totals: Totals,
    ) -> dict[int, Sequence[SealedOffer]]:
        """Step 4, ``decide``: totals go to split clients, gains and sealed leaves come back."""
        contents, candidates = {}, {}
        for at in sorted(set(self.sources.split_clients)):
            own = [s for s, client in enumerate(self.sources.split_clients) if client == at]
            candidates[self.names[at]] = {
                self.names[source]: level.shapes[source].candidates for source in own
            }
            contents[self.names[at]] = DecideRequest(
                number,
                tree.depth,
                {self.names[source]: totals.sums[source] for source in own},
                {self.names[s]: totals.refused[s] for s in own if s in totals.refused},
                self.config.sums_protection,
            ).to_record()
        answers = ask_each(
            exchange,
            contents,
            DECIDE,
            lambda name, content: DecideReply.from_record(
                content,
                candidates=candidates[name],
                nodes=level.shapes[0].nodes,
                parties=self.names,
                is_last=tree.is_last_level,
            ),
            step="decide",
        )
        self.book.add_seconds(answers)
        return {
            source: answers[self.names[client]].offers[self.names[source]]
            for source, client in enumerate(self.sources.split_clients)
        }

    def decide(
        self,
        tree: GrowingTree[OwnedSplit],
        level: Level,
        offers: Mapping[int, Sequence[SealedOffer]],
    ) -> Decisions:
        """Let a source win each open node, or make it a leaf; the tree grows by the level."""
        splits: list[OwnedSplit | None] = []
        told: list[list[SealedDecision]] = [[] for _ in self.names]
        for at, best in enumerate(level.best_splits(offers)):
            node = tree.open_nodes[at] if tree.open_nodes else 0
            chosen = self.choose_split(node, best)
            if chosen is None:
                source = self._source_above(tree, node)
                for receiver, said in zip(self.names, told, strict=True):
                    said.append(level.leaf(offers, source=source, node=at, receiver=receiver))
                splits.append(None)
                continue
            for receiver, said in zip(self.names, told, strict=True):
                said.append(level.split(chosen, offers, node=at, receiver=receiver))
            owner = self.names[chosen[0]]
            splits.append(self.book.enter(node, owner, offers[chosen[0]][at].gain))
        if tree.max_depth:
            tree.grow(splits)
        else:
            tree.depth = 1
        return told

    def finish(self, exchange: Exchange, decisions: Decisions) -> None:
        """Step 5, ``finish``: each party hears the last decisions and keeps its part."""
        keep = len(self.book.grown) + 1 if decisions[0] else self.book.stopping.trees_to_keep
        contents = {
            name: FinishRequest(tuple(decisions[at]), keep, self.folder).to_record()
            for at, name in enumerate(self.names)
        }
        replies = ask_all(exchange, contents, FINISH, FinishReply.from_record, step="finish")
        self.book.add_seconds(replies)
        if decisions[0]:
            self._tree_is_done(exchange, replies)

    # Parts of the steps -----------------------------------------------------------------------

    def _source_above(self, tree: GrowingTree[OwnedSplit], node: int) -> int:
        """Source of the parent's split; at the root the first party."""
        for parent, children in tree.children.items():
            if node in children:
                return self.names.index(tree.splits[parent].source)
        return 0

    def _tree_is_done(
        self, exchange: Exchange, replies: Mapping[str, HistogramsReply] | Mapping[str, FinishReply]
    ) -> bool:
        """Read a tree's metrics; True if it was the last one."""
        masked = {name: reply.metrics for name, reply in replies.items()}
        found = {name: metrics for name, metrics in masked.items() if metrics is not None}
        sums = self.read_sum(found, metrics_step(len(self.book.grown)))
        grown, no_progress = self.book.close(exchange, sums)
        self.after_tree(grown)
        return self.stop_after(grown) or no_progress

    def summary(self) -> None:
        """Log how the strategy is set up."""
        config = self.config
        log(INFO, "\t├──> Parties: %s", ", ".join(self.names))
        log(INFO, "\t├──> Trees: %d of depth %d", config.num_trees, config.max_depth)
        log(INFO, "\t└──> Encryption: %s", config.encryption)
