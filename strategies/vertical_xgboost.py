"""Gradient-boosted trees over columns and labels spread over parties: the PIVODL protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from logging import INFO
from typing import ClassVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.supercore import log

from strategies.all_parties import AllParties
from strategies.exchange import Exchange
from strategies.snapshot import TakeSnapshot
from strategies.vertical_checks import (
    check_choice,
    check_introduced,
    check_may_prune,
    check_nodes,
    check_num_trees,
)
from strategies.vertical_earlier import EarlierModel
from strategies.vertical_ending import telling_the_end
from strategies.vertical_level import Level, Offers, source_above
from strategies.vertical_result import GrownTree, VerticalResult, vertical_disclosures
from strategies.vertical_set_up import draw_split_clients, set_up
from strategies.vertical_snapshot import Interrupted
from strategies.vertical_steps import (
    Decisions,
    add_up,
    gather_finish,
    gather_histograms,
    gather_offers,
    gather_trimmed,
)
from strategies.vertical_training import Training
from strategies.without_rounds import WithoutRounds
from tasks.site.messages import TaskPart
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.end_messages import FinishReply
from tasks.vertical_xgboost.gains import BestSplit, winner
from tasks.vertical_xgboost.level_messages import (
    HistogramsReply,
    SealedDecision,
    metrics_step,
)
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.tree import GrowingTree, OwnedSplit


class VerticalXGBoost(WithoutRounds):
    """Trees that one XGBoost on the joined table would build, after parties were introduced.

    Every party is *source* of splits on its own columns, and *label owner* of some rows. For each
    source another party, its *split client*, has the key that decrypts the source's sums. The
    server adds ciphertexts, compares gains, and carries what parties seal for one another.

    Steps, each one exchange; unless ``alignment = "same"``, 2 to 4 of
    :func:`~strategies.vertical_alignment.align` come first:

    1. ``labels`` (:func:`~strategies.vertical_set_up.set_up`): keys of all parties go round; each
       tells the others, sealed, whose labels it owns, and the server the sum of its labels under
       masks.
    2. ``buckets`` (there too): each source tells each label owner, sealed, the buckets of that
       owner's rows on renumbered features; the server gets counts and ranks.
    3. For each level of each tree ``histograms``
       (:func:`~strategies.vertical_steps.gather_histograms`): parties hear what became of the level
       above, and send sums of gradients and Hessians for every open node and every candidate of
       every source, encrypted for the source's split client.
    4. ``decide`` (:func:`~strategies.vertical_steps.gather_offers`): split clients decrypt the
       totals and answer the best gain, the candidates that reach it, and sealed weights of leaves.
       The server takes the largest gain (:meth:`decide`).
    5. ``finish`` (:meth:`finish`): the last decisions; each party keeps its part of the model.

    With ``aggregator = "source"`` shares go sealed to the source, which adds them up in an exchange
    ``aggregate`` between the two (:func:`~strategies.vertical_steps.add_up`): 4 + 3 T max(d, 1)
    exchanges.

    With the introduction (:func:`strategies.membership.meet_sites`) at most 4 + 2 T max(d, 1)
    exchanges for T trees of depth d. Losses and metrics of a tree are summed under masks and come
    with the next tree's first reply, so early stopping discards that exchange. Those of the last
    tree allowed come with ``finish``: where early stopping finds that one no better, the parties
    are told to keep fewer in an exchange more (``trim``).

    **What is revealed.** To the server: gains, candidates that tie, refusals of ``min-instances``,
    bucket counts of unnamed features and their ranks among their owner's columns, of each split
    owner, unnamed feature, number of the bucket and side of missing values, shape of the trees,
    mean label (of several classes rows of each, with ``weight`` sums of the weights of training and
    of evaluation rows), losses; never a row, label, gradient, sum, name of a column or threshold
    (with ``encryption = "none"`` it reads all sums). To a split client: sums over all parties per
    node and unnamed candidate; with ``subsample`` those at a root are of rows that it can name, and
    many of them tell labels (:mod:`tasks.vertical_xgboost.sampling`). With three parties, one that
    knows the order of candidates and colludes with the split client exposes the third by
    subtraction; with two parties subtraction needs no collusion. Shuffling hides from the split
    client which candidate is which, but its own share of the labels may tell it much of that. To a
    label owner: the order of its own rows along unnamed features of others, bucket counts of these,
    and source, unnamed feature, bucket and side of every split; with ``colsample-bytree`` ranks of
    columns; with ``warm-start`` or ``resume`` sides of its own rows at every earlier split. To a
    source: weights of leaves and through them something of others' labels, but no sums; with
    ``dp-epsilon`` those below its own splits under noise (the paper's partial differential privacy,
    :mod:`tasks.vertical_xgboost.partial_dp`).
    Of an alignment: which of its ids each other party has to the one that compares; which of its
    ids all have to each party; counts to the server.

    **Parties that are lost** end the run: a model of all columns cannot go on without some. All
    others are then told why (``stop``) and forget their keys, as they are if the server is
    interrupted.

    Parameters
    ----------
    config : VerticalXGBoostConfig
    parties : mapping of str to TaskPart
        What each told at its introduction.
    after_tree : callable, optional
        Takes a :class:`~strategies.vertical_result.GrownTree`.
    folder : str
        Simulation only: where parties write their parts of the model.
    seed : int
        Of the run, as parties have it: draws columns with ``colsample-bytree``.
    earlier : EarlierModel, optional
        What the server keeps of the model that the training goes on from (``warm-start``).
    interrupted : Interrupted, optional
        A training with one and the same configuration that is gone on with (``resume``).
    take_snapshot : callable, optional
        Takes a :class:`~strategies.snapshot.Snapshot` after each tree, from which
        :meth:`~strategies.vertical_snapshot.Interrupted.from_snapshot` makes `interrupted`; with
        `interrupted` also before the first, once the parties were found to fit it and have kept
        its trees.

    Raises
    ------
    strategies.membership.Refused
        If the parties' rows, labels or keys do not fit together.
    """

    def __init__(
        self,
        *,
        config: VerticalXGBoostConfig,
        parties: Mapping[str, TaskPart],
        after_tree: Callable[[GrownTree], None] | None = None,
        folder: str = "",
        seed: int = 0,
        earlier: EarlierModel | None = None,
        interrupted: Interrupted | None = None,
        take_snapshot: TakeSnapshot | None = None,
    ) -> None:
        self.config = config
        self.introduced = dict(parties)
        self.names = tuple(sorted(parties))
        self.folder = folder
        self.seed = seed
        self.earlier = earlier
        self.interrupted = interrupted
        self._take_snapshot = take_snapshot
        self._after_tree = after_tree
        self.training: Training  # of the run under way

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
            The Exchange in which the parties introduced themselves
            (:func:`strategies.membership.meet_sites`): it knows which node has which name.
        initial_arrays, train_config, evaluate_config, evaluate_fn
            Not looked at: there are no arrays, and parties have their settings from the run.
        num_rounds : int, optional
            Trees to grow, at most, 1 or more; the configuration's ``num-trees`` if not given.
        timeout : float
            Seconds to wait for a reply; the shorter of this and the Exchange's own holds.

        Raises
        ------
        strategies.membership.Refused
            If something is wrong with rows or settings; all parties are told.
        strategies.exchange.TooFewSites
            If a party is lost.
        ValueError
            If the Grid does not know the parties, there are no trees to grow, or a method of a
            subclass gives what it must not.
        """
        num_trees = self.config.num_trees if num_rounds is None else num_rounds
        check_num_trees(num_trees, self.config)
        check_may_prune(self.may_prune)
        exchange = Exchange.around(grid, disclosures=vertical_disclosures(self.config))
        check_introduced(self.names, exchange)
        parties = AllParties(exchange, timeout=timeout)
        with telling_the_end(parties):
            return self._train(parties, num_trees)

    def _train(self, parties: AllParties, num_trees: int) -> VerticalResult:
        self.training = set_up(
            parties,
            self.config,
            self.introduced,
            choose_split_clients=self.choose_split_clients,
            earlier=self.earlier,
            interrupted=self.interrupted,
            folder=self.folder,
        )
        self._begin_where_it_ended()
        nothing: Decisions = {name: [] for name in self.names}
        decisions: Decisions | None = nothing
        for number in range(num_trees - self.training.book.num_resumed):
            decisions = self.grow_tree(number, decisions or nothing)
            if decisions is None:
                break
        self.finish(decisions or nothing)
        return self.training.result()

    def _begin_where_it_ended(self) -> None:
        """Tell of the trees of the training that is gone on with, which from here on is this."""
        if self.training.book.resumed is None:
            return
        for grown in self.training.book.grown:
            self.after_tree(grown)
        if self._take_snapshot is not None:
            self._take_snapshot(self.training.snapshot())

    def grow_tree(self, number: int, decisions: Decisions) -> Decisions | None:
        """Steps 3 and 4 until no node of a tree is open.

        Parameters
        ----------
        number : int
            Of the tree, from 0, among those that are grown here.
        decisions : mapping of str to sequence of SealedDecision
            What parties have not heard yet: those of the last level of the tree before.

        Returns
        -------
        mapping of str to sequence of SealedDecision, or None
            Those of this tree's last level; None if the training ends with the tree before, which
            its metrics say.
        """
        num_roots = objective_of(self.config).num_roots
        tree: GrowingTree[OwnedSplit] = GrowingTree(self.config.max_depth, num_roots)
        while tree.open_nodes:
            level = self.next_level(number, tree)
            replies = gather_histograms(self.training, level, decisions)
            if number and not tree.depth and self._ends_training(replies):
                return None
            totals = add_up(self.training, level, replies)
            offers = gather_offers(self.training, level, totals, may_prune=self.may_prune)
            decisions = self.decide(tree, level, offers)
        self.training.book.note(tree)
        return decisions

    # What a subclass may change ---------------------------------------------------------------

    may_prune: ClassVar[bool] = False
    """Whether `choose_split` may make a leaf of a node that a candidate could split. Split clients
    then seal a weight for every node, which costs bytes."""

    def choose_split_clients(self, names: tuple[str, ...]) -> Mapping[str, str]:
        """Each source's split client, another party, by name; drawn once a training.

        Redrawn at every node, a source would meet a split client that colludes with it almost
        surely.

        Parameters
        ----------
        names : tuple of str
            Of all parties.
        """
        return draw_split_clients(names)

    def choose_nodes(self, tree: GrowingTree[OwnedSplit]) -> Sequence[int]:
        """Open nodes of a tree that the next two exchanges decide, by default all.

        Those left out stay open; the tree is done when none is. Fewer at a time cost exchanges.

        Parameters
        ----------
        tree : GrowingTree
            Splits by owner and record, children, and `open_nodes`.
        """
        return tree.open_nodes

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
            Of those in `splits`; None for a leaf, where no source has a candidate or `may_prune`.
        """
        return winner(splits, self.training.sources.positions)

    def stop_after(self, grown: GrownTree) -> bool:
        """Whether a tree is the last one; by default if early stopping says so."""
        return self.training.book.no_progress

    def after_tree(self, grown: GrownTree) -> None:
        """Told of each tree once its metrics are known; by default logs it."""
        log(INFO, "%s", grown.words(quality_name=objective_of(self.config).quality_name))
        if self._after_tree is not None:
            self._after_tree(grown)

    # The steps --------------------------------------------------------------------------------

    def next_level(self, number: int, tree: GrowingTree[OwnedSplit]) -> Level:
        """The nodes of a tree that the next two exchanges are on."""
        nodes = check_nodes(self.choose_nodes(tree), tree.open_nodes)
        return Level(
            self.training.sources,
            tree=number,
            level=tree.depth,
            nodes=nodes,
            are_last=tree.are_last(nodes),
            candidates=self.training.sources.candidates_in(
                self.training.book.trees_in_front + number, self.config, seed=self.seed
            ),
            shuffle=self.config.shuffle,
            orders=self.training.relay.orders,
        )

    def decide(self, tree: GrowingTree[OwnedSplit], level: Level, offers: Offers) -> Decisions:
        """Let a source win each open node, or make it a leaf; the tree grows by the level."""
        splits: list[OwnedSplit | None] = []
        told: dict[str, list[SealedDecision]] = {name: [] for name in self.names}
        for at, (node, best) in enumerate(zip(level.nodes, level.best_splits(offers), strict=True)):
            chosen = self.choose_split(node, best)
            chosen = check_choice(chosen, best, node=node, may_prune=self.may_prune)
            if chosen is None:
                source = source_above(tree, node, self.names)
                for name, said in told.items():
                    said.append(level.leaf(offers, source=source, node=at, receiver=name))
                splits.append(None)
                continue
            for name, said in told.items():
                said.append(level.split(chosen, offers, node=at, receiver=name))
            source = chosen[0]
            gain = offers[source][at].gain
            splits.append(self.training.book.enter(node, self.names[source], gain))
        tree.grow(splits, level.nodes)
        return told

    def finish(self, decisions: Decisions) -> None:
        """Step 5, ``finish``: each party hears the last decisions and keeps its part."""
        book = self.training.book
        is_open = any(decisions.values())  # the last tree's metrics come with the replies
        keep = len(book.grown) + 1 if is_open else book.stopping.trees_to_keep
        before, folder = book.num_before, self.folder
        replies = gather_finish(
            self.training, decisions, trees_to_keep=before + keep, folder=folder
        )
        if is_open:
            self._ends_training(replies)
        if (kept := book.stopping.trees_to_keep) < keep:
            gather_trimmed(self.training, trees_to_keep=before + kept, folder=folder)

    def _ends_training(self, replies: Mapping[str, HistogramsReply | FinishReply]) -> bool:
        """Read a tree's metrics; True if it was the last one."""
        book = self.training.book
        masked = {name: reply.metrics for name, reply in replies.items()}
        found = {name: metrics for name, metrics in masked.items() if metrics is not None}
        sums = self.training.read_sum(found, metrics_step(book.number_here))
        grown = book.close(sums)
        if self._take_snapshot is not None:
            self._take_snapshot(self.training.snapshot())
        self.after_tree(grown)
        return self.stop_after(grown)

    def summary(self) -> None:
        """Log how the strategy is set up."""
        num_trees, depth = self.config.num_trees, self.config.max_depth
        log(INFO, "\t├──> Parties: %s", ", ".join(self.names))
        log(INFO, "\t├──> Trees: %d of depth %d", num_trees, depth)
        log(INFO, "\t└──> Encryption: %s", self.config.encryption)
