"""The set-up of a vertical training: keys, labels, base score, bucket maps."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from strategies.all_parties import AllParties
from strategies.membership import Refused
from strategies.vertical_alignment import Alignment, align
from strategies.vertical_book import TrainingBook
from strategies.vertical_checks import (
    check_parties,
    check_split_clients,
    read_facts,
    read_paillier_keys,
)
from strategies.vertical_earlier import EarlierModel, check_earlier
from strategies.vertical_level import Sources
from strategies.vertical_relay import Relay, by_receiver
from strategies.vertical_snapshot import Interrupted, go_on_from
from strategies.vertical_training import Training, read_sum
from tasks.secure.roster import Roster
from tasks.site.faults import SiteFault
from tasks.site.messages import TaskPart
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.fixed_point import FixedPointScale, common_exponent
from tasks.vertical_xgboost.level_messages import StartOfTraining
from tasks.vertical_xgboost.message_parts import Sealed
from tasks.vertical_xgboost.messages import (
    BUCKETS,
    LABELS,
    LABELS_STEP,
    BucketsReply,
    BucketsRequest,
    LabelsReply,
    LabelsRequest,
)
from tasks.vertical_xgboost.objectives import base_scores_of, label_scale, objective_of
from tasks.vertical_xgboost.party_facts import PartyFacts
from tasks.vertical_xgboost.rows import num_evaluation_rows

SplitClients = Callable[[tuple[str, ...]], Mapping[str, str]]


@dataclass(frozen=True)
class _Labels:
    """What the server makes of step ``labels``.

    Attributes
    ----------
    sealed : mapping of receiver to (mapping of sender to bytes)
        Whose labels are whose.
    are_complete : bool
        Whether the sums under masks count one owner a row.
    base_scores, base_margins : tuple of float
        Mean a number only where they do.
    weight_exponent : int
        Of the bound of all row weights; 0 where rows have none.
    """

    sealed: Mapping[str, Sealed]
    are_complete: bool
    base_scores: tuple[float, ...]
    base_margins: tuple[float, ...]
    weight_exponent: int = 0


def set_up(
    parties: AllParties,
    config: VerticalXGBoostConfig,
    introduced: Mapping[str, TaskPart],
    *,
    choose_split_clients: SplitClients,
    earlier: EarlierModel | None = None,
    interrupted: Interrupted | None = None,
    folder: str = "",
) -> Training:
    """Take the steps ``labels`` and ``buckets`` with parties that were introduced.

    Parameters
    ----------
    parties : AllParties
    config : VerticalXGBoostConfig
    introduced : mapping of str to TaskPart
        What each party told at its introduction.
    choose_split_clients : callable
        Takes the names, and gives each source's split client by name.
    earlier : EarlierModel, optional
        That the training goes on from.
    interrupted : Interrupted, optional
        The training that this one goes on with, `earlier` being what that one went on from.
    folder : str
        Simulation only: where parties write their parts of the model.

    Raises
    ------
    Refused
        If rows, labels or keys of the parties do not fit together.
    """
    facts = read_facts(introduced)
    names, objective = tuple(facts), objective_of(config)
    rows, evaluation = check_parties(config, facts)
    resumed = None
    if interrupted is None:
        check_earlier(earlier, facts)
        chosen = choose_split_clients(names)
    else:
        resumed = go_on_from(interrupted, config, facts)
        chosen = resumed.split_clients
    split_clients = check_split_clients(chosen, names)
    roster = Roster.from_bundles(
        [introduced[name].key_bundle for name in names],
        run=f"run-{parties.exchange.run.run_id}",
    )
    keys = read_paillier_keys(config, roster, facts)
    aligned = Alignment()
    if config.alignment != "same":
        aligned = align(parties, config, facts, roster.to_bytes())
        rows = aligned.num_rows
        evaluation = num_evaluation_rows(rows, fraction=config.test_fraction)
    book = TrainingBook(
        parties.exchange,
        config,
        names,
        rows=rows,
        num_evaluation=evaluation,
        earlier=earlier,
        resumed=resumed,
    )
    book.add_all_seconds(aligned.seconds)
    labels = _gather_labels(parties, config, facts, roster, split_clients, book, aligned)
    told = _gather_buckets(parties, config, labels, book, folder)
    if not labels.are_complete:  # and yet the parties found one owner for every row
        raise Refused(["the numbers of labels under masks are not those of the parties' labels"])
    exponent = objective.bound_exponent([reply.gradient_exponent for reply in told.values()])
    book.scales = objective.scales(
        exponent, bits=config.fixed_point_bits, weight_exponent=labels.weight_exponent
    )
    book.replay()
    sources = Sources(
        names,
        split_clients,
        layouts=tuple(reply.layout for reply in told.values()),
        positions=tuple(reply.layout.canonical_positions(reply.ranks) for reply in told.values()),
        keys=keys,
        ranks=tuple(reply.ranks for reply in told.values()),
    )
    return Training(
        parties=parties,
        config=config,
        roster=roster,
        sources=sources,
        relay=_relay(sources, told, config, exponent=exponent),
        book=book,
        base_scores=labels.base_scores,
        base_margins=labels.base_margins,
        cost=book.spent(),
        rows_before={name: fact.num_rows for name, fact in facts.items()},
    )


def _relay(
    sources: Sources,
    told: Mapping[str, BucketsReply],
    config: VerticalXGBoostConfig,
    *,
    exponent: int,
) -> Relay:
    """What parties hear with the first level: bucket maps, layouts, bound of the gradients."""
    names, ranks = sources.names, sources.ranks if config.samples_columns else ()
    maps = by_receiver({name: reply.sealed for name, reply in told.items()})
    clients = zip(names, sources.split_clients, strict=True)
    relay = Relay(
        {to: StartOfTraining(maps[to], sources.layouts, exponent, ranks) for to in names},
        split_clients={name: names[at] for name, at in clients},
    )
    relay.keep_orders({name: reply.following for name, reply in told.items()})
    return relay


def draw_split_clients(names: tuple[str, ...]) -> dict[str, str]:
    """Draw for each party, as a source, another one that decrypts its sums.

    From the operating system's generator: nobody must foresee whom to win over.

    Parameters
    ----------
    names : tuple of str
        2 or more.
    """
    return {name: secrets.choice([other for other in names if other != name]) for name in names}


def _gather_labels(
    parties: AllParties,
    config: VerticalXGBoostConfig,
    facts: Mapping[str, PartyFacts],
    roster: Roster,
    split_clients: tuple[int, ...],
    book: TrainingBook,
    aligned: Alignment,
) -> _Labels:
    """Step 1, ``labels``: who owns which labels, and the base score with its margin."""
    told = {name: fact.label_exponent for name, fact in facts.items()} | aligned.label_exponents
    weighed = {name: fact.weight_exponent or 0 for name, fact in facts.items()}
    heaviest = common_exponent((weighed | aligned.weight_exponents).values())
    scale = label_scale(list(told.values()), config)
    keys, paillier = roster.to_bytes(), tuple(fact.paillier for fact in facts.values())
    going_on = None if book.resumed is None else book.resumed.going_on(config)
    requests = {
        name: LabelsRequest(
            keys,
            paillier,
            split_clients,
            scale.exponent,
            heaviest,
            aligned.untold.get(name),
            going_on,
        ).to_record()
        for name in facts
    }
    replies = parties.ask(requests, LABELS, LabelsReply.from_record, step="labels")
    book.add_seconds(replies)
    sealed = by_receiver({name: reply.sealed for name, reply in replies.items()})
    masked = {name: reply.masked for name, reply in replies.items()}
    first = book.first_model
    *sums, training, owned = read_sum(roster, masked, LABELS_STEP)
    objective = objective_of(config)
    weights, sums = (sums[:2], sums[2:]) if config.weight else ([], sums)
    if len(sums) != objective.num_roots:
        raise Refused(["sums of labels under masks: of another form than expected"])
    if (owned, training) != (book.num_training + book.num_evaluation, book.num_training):
        # Which rows have no or two owners the parties see in what they seal for one another, and
        # refuse with the counts: they are asked before the run is ended here.
        return _Labels(sealed, False, *_provisional_base(config, first), heaviest)
    if weights:
        _take_weights(book, weights, FixedPointScale(config.fixed_point_bits, heaviest), config)
    if first is not None:
        return _Labels(sealed, True, first.base_scores, first.base_margins, heaviest)
    scale = label_scale(list(told.values()), config, weight_exponent=heaviest)
    try:
        base_scores = base_scores_of(sums, book.training_weight, scale, config)
        base_margins = objective.base_margins(base_scores)
    except SiteFault as fault:  # labels of one class
        raise Refused(list(fault.reasons)) from None
    return _Labels(sealed, True, base_scores, base_margins, heaviest)


def _provisional_base(
    config: VerticalXGBoostConfig, first: EarlierModel | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Base scores and margins of a run that ends with the next step, as parties accept them."""
    if first is not None:
        return first.base_scores, first.base_margins
    objective, given = objective_of(config), config.given_base_score
    scores = (0.5 if given is None else given,) * objective.num_roots
    return scores, (0.0,) * len(scores) if given is None else objective.base_margins(scores)


def _take_weights(
    book: TrainingBook,
    sums: Sequence[int],
    scale: FixedPointScale,
    config: VerticalXGBoostConfig,
) -> None:
    """Keep the weights of training and evaluation rows, of which metrics are means."""
    book.training_weight, book.evaluation_weight = map(float, scale.decode(sums).tolist())
    weightless = [
        f"all {what} rows have weight 0, or one that rounds to 0 beside the largest "
        f"(vertical-xgboost.weight = '{config.weight}')"
        for what, weight, rows in (
            ("training", book.training_weight, book.num_training),
            ("evaluation", book.evaluation_weight, book.num_evaluation),
        )
        if rows and not weight
    ]
    if weightless:
        raise Refused(weightless)


def _gather_buckets(
    parties: AllParties,
    config: VerticalXGBoostConfig,
    labels: _Labels,
    book: TrainingBook,
    folder: str,
) -> dict[str, BucketsReply]:
    """Step 2, ``buckets``: bucket maps go from sources to label owners, counts come here."""
    replies = parties.ask(
        {
            name: BucketsRequest(sealed, labels.base_margins, folder).to_record()
            for name, sealed in labels.sealed.items()
        },
        BUCKETS,
        lambda content: BucketsReply.from_record(
            content,
            has_order=config.aggregator == "source" and config.shuffle,
            has_splits=config.max_depth > 0,
        ),
        step="buckets",
    )
    book.add_seconds(replies)
    return replies
