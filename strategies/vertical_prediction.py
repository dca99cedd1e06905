"""Prediction of new rows by the parties of a vertical model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from logging import INFO
from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore import log

from strategies.all_parties import AllParties
from strategies.exchange import Disclosure, Exchange
from strategies.membership import Refused
from strategies.vertical_ending import telling_the_end
from strategies.without_rounds import WithoutRounds
from tasks.secure.roster import Roster
from tasks.site.messages import TaskPart
from tasks.site.reply_fields import MalformedReply
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.end_messages import STOP, StopRequest
from tasks.vertical_xgboost.message_parts import Sealed
from tasks.vertical_xgboost.prediction_messages import (
    PREDICT,
    PREDICTIONS,
    SIDES,
    SUMS,
    AllSealed,
    PartFacts,
    PredictionsReply,
    PredictionsRequest,
    PredictReply,
    PredictRequest,
)
from tasks.vertical_xgboost.routing import num_steps

Key = TypeVar("Key", bound=Hashable)

PREDICTION_DISCLOSURES: Mapping[str, Disclosure] = {
    PREDICT: Disclosure(
        "predict", PredictRequest.reveals, PredictReply.reveals, PredictReply.reveals_sealed
    ),
    PREDICTIONS: Disclosure("predictions", PredictionsRequest.reveals, PredictionsReply.reveals),
    STOP: Disclosure("stop", StopRequest.reveals, "nothing"),
}
"""Ledger words of a prediction, by message type."""


@dataclass(kw_only=True)
class PredictionResult(Result):
    """What the server knows of a prediction; also Flower's Result, without arrays.

    Attributes
    ----------
    run : str
        Training that left the model.
    parties : tuple of str
        In the order of names.
    askers : tuple of str
        Who has got predictions: of their own rows, or of all rows the one that asked.
    num_rows : int
    seconds : mapping of str to float
        Processor time of cryptography by operation.
    roster_fingerprint : str
    """

    run: str
    parties: tuple[str, ...]
    askers: tuple[str, ...]
    num_rows: int
    seconds: Mapping[str, float]
    roster_fingerprint: str


class VerticalPrediction(WithoutRounds):
    """Predictions of rows that all parties of a model have, for those who may see them.

    Each party has its part of the model (`tasks.vertical_xgboost.model_part`) and new rows of the
    same ids. A party that asks gets the predictions of all rows; without one each party gets those
    of the rows whose labels it owns. Steps, each one exchange, after the introduction:

    1. ``predict``, once (``prediction = "direct"``): owners of splits seal for each asker the sides
       of its rows at their splits. With ``"routed"`` once a level: whoever owns a split sends the
       rows on it, sealed, to the owners of its children; at the last level each party seals its sum
       of leaves over trees, under masks, for each asker. Without an asker parties first tell one
       another whose rows are whose, in the same exchanges: two at least.
    2. ``predictions``: askers hear what was sealed for them, and write their predictions down.

    3 exchanges (4 without an asker) of the one kind and at most depth + 2 (at least those) of the
    other, whatever the numbers of rows and trees.

    **What is revealed.** To the server: shape and depth of the model, number of rows, who asks. To
    an asker, direct: at every split of the model on which side its rows are; routed: its sums
    alone. To the owner of a split, routed: which rows arrive there. To nobody else a prediction.

    Parameters
    ----------
    config : VerticalXGBoostConfig
    parties : mapping of str to TaskPart
        What each told at its introduction.
    folder : str
        Simulation only: where parties write their predictions.
    """

    def __init__(
        self, *, config: VerticalXGBoostConfig, parties: Mapping[str, TaskPart], folder: str = ""
    ) -> None:
        self.config = config
        self.introduced = dict(parties)
        self.folder = folder

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> PredictionResult:
        """Predict.

        Parameters
        ----------
        grid : Grid
            The Exchange in which the parties introduced themselves.
        initial_arrays, num_rounds, train_config, evaluate_config, evaluate_fn
            Not looked at.
        timeout : float
            Seconds to wait for a reply.

        Raises
        ------
        strategies.membership.Refused
            If parts or rows do not fit together; all parties are told.
        strategies.exchange.TooFewSites
            If a party is lost.
        """
        exchange = Exchange.around(grid, disclosures=PREDICTION_DISCLOSURES)
        parties = AllParties(exchange, timeout=timeout)
        with telling_the_end(parties):
            return self._predict(parties)

    def _predict(self, parties: AllParties) -> PredictionResult:
        facts = check_parts(self.introduced, self.config)
        names, any_fact = tuple(facts), next(iter(facts.values()))
        roster = Roster.from_bundles(
            [self.introduced[name].key_bundle for name in names],
            run=f"run-{parties.exchange.run.run_id}",
        )
        routed, asker = self.config.prediction == "routed", self.config.asker
        steps = num_steps(any_fact.levels, routed=routed, has_asker=bool(asker))
        seconds: dict[str, float] = {}
        sealed: Mapping[str, AllSealed] = {name: {} for name in names}
        for step in range(steps):
            replies = parties.ask(
                {
                    name: PredictRequest(step, roster.to_bytes(), sealed[name]).to_record()
                    for name in names
                },
                PREDICT,
                PredictReply.from_record,
                step="predict",
            )
            _add(seconds, replies)
            sealed = _by_receiver({name: reply.sealed for name, reply in replies.items()})
        askers = (asker,) if asker else names
        answers = parties.ask(
            {
                name: PredictionsRequest(
                    {kind: parts for kind, parts in sealed[name].items() if kind in (SIDES, SUMS)},
                    self.folder,
                ).to_record()
                for name in askers
            },
            PREDICTIONS,
            PredictionsReply.from_record,
            step="predictions",
        )
        _add(seconds, answers)
        return PredictionResult(
            run=any_fact.run,
            parties=names,
            askers=askers,
            num_rows=any_fact.num_rows,
            seconds=seconds,
            roster_fingerprint=roster.fingerprint,
        )

    def summary(self) -> None:
        """Log how the strategy is set up."""
        log(INFO, "\t├──> Parties: %s", ", ".join(sorted(self.introduced)))
        log(INFO, "\t└──> Prediction: %s", self.config.prediction)


def check_model_parts(
    introduced: Mapping[str, TaskPart], config: VerticalXGBoostConfig
) -> dict[str, PartFacts]:
    """As `check_parts`, where a model is looked at and nothing predicted."""
    return check_parts(introduced, config.model_copy(update={"asker": "", "prediction": "direct"}))


def check_parts(
    introduced: Mapping[str, TaskPart], config: VerticalXGBoostConfig
) -> dict[str, PartFacts]:
    """What parties told of their parts and rows, in the order of names.

    Raises
    ------
    Refused
        Unless they are all parties of one model, with the same rows.
    """
    facts, faults = {}, []
    for name in sorted(introduced):
        try:
            facts[name] = PartFacts.from_facts(introduced[name].facts)
        except MalformedReply as error:
            faults.append(f"{name}: introduces itself in another form than expected ({error})")
    faults += [] if faults else _misfits(facts)
    if config.asker and config.asker not in introduced:
        faults.append(
            f"vertical-xgboost.asker = '{config.asker}': must be one of {', '.join(introduced)}"
        )
    if config.prediction == "routed" and len(introduced) < 3 and not config.allow_two_parties:
        faults.append(
            "two parties: from sums the asker has the other's by subtraction; "
            "vertical-xgboost.allow-two-parties = true permits it"
        )
    if faults:
        raise Refused(faults)
    return facts


def _misfits(facts: Mapping[str, PartFacts]) -> list[str]:
    faults = []
    members = {party for fact in facts.values() for party in fact.parties}
    for name in sorted(members - set(facts)):
        faults.append(f"{name}: is a party of the model and does not take part")
    if len({fact.model for fact in facts.values()}) > 1:
        groups = _groups({name: (fact.run, fact.model) for name, fact in facts.items()})
        parts = " / ".join(f"{', '.join(who)} ({run})" for (run, _), who in groups.items())
        faults.append(f"the parts are of different models: {parts}")
    by_rows = _groups({name: fact.num_rows for name, fact in facts.items()})
    if len(by_rows) > 1:
        rows = "; ".join(f"{count} at {', '.join(who)}" for count, who in by_rows.items())
        faults.append(f"the parties have different numbers of rows: {rows}")
    elif len(by_digest := _groups({name: fact.digest for name, fact in facts.items()})) > 1:
        who = " / ".join(", ".join(each) for each in by_digest.values())
        faults.append(f"the parties' row ids differ ({who}): every party needs the same ids")
    return faults


def _groups(values: Mapping[str, Key]) -> dict[Key, list[str]]:
    found: dict[Key, list[str]] = {}
    for name, value in values.items():
        found.setdefault(value, []).append(name)
    return found


def _by_receiver(sealed: Mapping[str, AllSealed]) -> dict[str, dict[str, Sealed]]:
    """Sort what senders sealed, by receiver, record and sender; parties check what they get."""
    found: dict[str, dict[str, Sealed]] = {name: {} for name in sealed}
    faults = []
    for sender, records in sealed.items():
        for kind, parts in records.items():
            for to, part in parts.items():
                if to not in found or to == sender:
                    faults.append(f"{sender}: seals for none of the other parties")
                    continue
                found[to].setdefault(kind, {})[sender] = part
    if faults:
        raise Refused(faults)
    return found


def _add(
    seconds: dict[str, float], replies: Mapping[str, PredictReply] | Mapping[str, PredictionsReply]
) -> None:
    for reply in replies.values():
        for name, spent in reply.seconds.items():
            seconds[name] = seconds.get(name, 0.0) + spent
