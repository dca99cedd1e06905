"""``fedapp audit``: in a simulated run, how well each party guesses labels of others.

The audit has everybody's rows, since a simulation has. Of these each attacker is given what it had
in the run (:class:`tasks.vertical_xgboost.attack.AttackerView`); the labels of others serve to
count its right guesses, afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logit

from fedapp import run_config
from fedapp.run_folder import RunFolder
from fedapp.run_record import RunRecord
from fedapp.vertical_party import prepare_vertical_site
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.alignment import aligned_tables
from tasks.vertical_xgboost.attack import (
    ATTACKS,
    AttackerView,
    GuessQuality,
    attack,
    guess_quality,
    mean_quality,
)
from tasks.vertical_xgboost.classes import class_names
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.fixed_point import FloatArray
from tasks.vertical_xgboost.joined import join
from tasks.vertical_xgboost.model_part import ModelPart, part_path
from tasks.vertical_xgboost.rows import PartyTable
from tasks.vertical_xgboost.softmax import probabilities
from tasks.vertical_xgboost.tree import NodeArray, move_down

Found = dict[str, dict[str, GuessQuality]]
"""By attack and party."""


def audit_run(path: Path) -> dict[str, Any]:
    """Audit a simulated run of the vertical task on data that can be read again.

    Parameters
    ----------
    path : Path
        The run folder.

    Returns
    -------
    dict
        As `document_of`.

    Raises
    ------
    ValueError
        If it is another run, or its rows are not at hand.
    """
    record = RunFolder.open(path).read()
    if record.task != "vertical-xgboost":
        raise ValueError(f"{path}: a run of {record.task}; allowed is one of vertical-xgboost")
    if record.status.get("status") != "ok":
        raise ValueError(f"{path}: the run has no model")
    config = run_config.read(record.config.get("config", {}))
    vertical = config.vertical_xgboost
    if vertical.mode != "train":
        raise ValueError(f"{path}: a run with mode = {vertical.mode!r}; allowed is a training")
    names = [str(site["site"]) for site in record.summary.get("sites", [])]
    try:
        parts = {name: ModelPart.load(part_path(path / "parties", name)) for name in names}
    except SiteFault as fault:
        said = str(fault)
        if fault.code == "no-model-part":
            said = "has no parts of the model of all parties; only a simulated run does"
        raise ValueError(f"{path}: {said}") from None
    return document_of(audit(parts, _tables(record, config, parts), vertical), vertical)


def audit(
    parts: Mapping[str, ModelPart], tables: Mapping[str, PartyTable], config: VerticalXGBoostConfig
) -> Found:
    """Let every party attack the labels of all others.

    Parameters
    ----------
    parts, tables : mapping of party to ModelPart and to PartyTable
        In the order of names.
    config : VerticalXGBoostConfig
        Of the run.

    Returns
    -------
    dict of str to (dict of str to GuessQuality)
        By attack and party; of several classes each against the rest, by ``party: class``.

    Raises
    ------
    ValueError
        For a regression, whose labels are no classes to guess.
    """
    if config.objective not in ("binary:logistic", "multi:softprob"):
        raise ValueError(
            f"objective = {config.objective}: the audit guesses classes; allowed are "
            "binary:logistic and multi:softprob"
        )
    truth = join(tables).labels
    classes = class_names(config.classes)
    found: Found = {name: {} for name in ATTACKS}
    for party in parts:
        victims = view_of(party, parts, tables).victims
        for name, scores in _scores(party, parts, tables, config).items():
            for number, each in enumerate(scores):
                is_own = (truth[victims] == number) if classes else truth[victims]
                quality = guess_quality(each[victims], is_own.astype(np.float64))
                if quality is not None:
                    found[name][f"{party}: {classes[number]}" if classes else party] = quality
    return found


def _scores(
    party: str,
    parts: Mapping[str, ModelPart],
    tables: Mapping[str, PartyTable],
    config: VerticalXGBoostConfig,
) -> dict[str, FloatArray]:
    """Scores of every attack of a party, (1, n), or of each class against the rest, (classes, n).

    Weights give margins of classes, of which log odds are made; the other attacks are on each class
    as one of two.
    """
    classes = class_names(config.classes)
    if not classes:
        scores = attack(view_of(party, parts, tables), config)
        return {name: each[np.newaxis] for name, each in scores.items()}
    of_two = config.model_copy(update={"objective": "binary:logistic", "classes": ""})
    found = []
    for number in range(len(classes)):
        own = {name: part.of_class(number) for name, part in parts.items()}
        relabelled = {name: _against_rest(table, number) for name, table in tables.items()}
        found.append(attack(view_of(party, own, relabelled), of_two))
    scores = {name: np.stack([each[name] for each in found]) for name in ATTACKS}
    for name in ("leaf-weights", "mean-leaf-weights"):
        share = np.clip(probabilities(scores[name]), 1e-15, 1.0 - 1e-15)
        scores[name] = logit(share)
    return scores


def _against_rest(table: PartyTable, number: int) -> PartyTable:
    labels = np.where(table.owns, (table.labels == number).astype(np.float64), np.nan)
    return replace(table, labels=labels)


def view_of(
    party: str, parts: Mapping[str, ModelPart], tables: Mapping[str, PartyTable]
) -> AttackerView:
    """What a party had in a run, out of what all had."""
    part, table = parts[party], tables[party]
    return AttackerView(
        source=party,
        trees=part.trees,
        lookup=part.lookup,
        base_margin=part.base_margins[0],
        eta=part.eta,
        features=table.features,
        is_training=~table.is_evaluation,
        owns=table.owns,
        labels=table.labels,
        own_leaves=_leaves_of_own_rows(party, parts, tables),
    )


def document_of(found: Found, config: VerticalXGBoostConfig) -> dict[str, Any]:
    """Figures by attack: mean over parties, and each party's; with the privacy that was asked for.

    An attack that no party could make is absent.
    """
    return {
        "dp-epsilon": config.dp_epsilon,
        "sensitivity": config.sensitivity,
        "attacks": {
            name: {
                "mean": mean_quality(list(by_party.values())),
                "parties": {party: mean_quality([one]) for party, one in by_party.items()},
            }
            for name, by_party in found.items()
            if by_party
        },
    }


def table_of(document: Mapping[str, Any]) -> str:
    """The audit as text: a line for each attack and party."""
    names = [name for one in document["attacks"].values() for name in one["parties"]]
    width = max(14, *map(len, names)) if names else 14
    head = f"{'attack':18} {'party':{width}} {'rows':>7} {'share':>6} {'accuracy':>9}"
    lines = [head + f" {'balanced':>9} {'AUC':>6} {'over majority':>14}"]
    for name, figures in document["attacks"].items():
        for party, one in {**figures["parties"], "mean": figures["mean"]}.items():
            lines.append(
                f"{name:18} {party:{width}} {one['rows']:7.0f} {one['share']:6.2f} "
                f"{one['accuracy']:9.4f} {one['balanced-accuracy']:9.4f} {one['auc']:6.3f} "
                f"{one['gain']:+14.4f}"
            )
    missing = [name for name in ATTACKS if name not in document["attacks"]]
    lines += [f"{name:18} no party could make it in this run" for name in missing]
    return "\n".join(lines)


def _leaves_of_own_rows(
    party: str, parts: Mapping[str, ModelPart], tables: Mapping[str, PartyTable]
) -> NodeArray:
    """Leaf of the party's own rows in each tree, which it had from the sources' bucket maps."""
    owns, own = tables[party].owns, parts[party]
    leaves = np.zeros((len(own.trees), np.count_nonzero(owns)), dtype=np.int32)
    for nodes, tree in zip(leaves, own.trees, strict=True):
        for node, children in tree.children.items():
            split = tree.splits[node]
            record = parts[split.source].lookup.records[split.record]
            side = record.goes_left(tables[split.source].features[owns])
            move_down(nodes, node, children, side)
    return leaves


def _tables(
    record: RunRecord, config: run_config.RunConfig, parts: Mapping[str, ModelPart]
) -> dict[str, PartyTable]:
    """Rows of each party, dealt anew as the simulation dealt them."""
    number = len(parts)
    absent = (
        f"{record.path}: the rows of this run are not at hand; allowed are runs on bundled data or "
        "on a file that is dealt to the parties (vertical-xgboost.data)"
    )
    tables = {}
    for at in range(number):
        try:
            node: dict[str, run_config.Value] = {"partition-id": at, "num-partitions": number}
            site = prepare_vertical_site(node, config)
        except SiteFault:
            raise ValueError(absent) from None
        tables[site.name] = site.table
    settings = config.vertical_xgboost
    if settings.alignment != "same":
        tables = aligned_tables(tables, fraction=settings.test_fraction, seed=config.general.seed)
    fits = sorted(tables) == sorted(parts) and all(
        tables[name].feature_names == part.feature_names for name, part in parts.items()
    )
    if not fits or len(next(iter(tables.values())).ids) != record.summary.get("n-rows"):
        raise ValueError(absent)
    return {name: tables[name] for name in parts}
