"""What a vertical run can begin and go on with: parties, settings, and what subclasses choose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

import numpy as np

from strategies.exchange import Exchange
from strategies.membership import Refused
from strategies.vertical_alignment import check_id_types
from tasks.secure.roster import Roster
from tasks.secure.secure_sums import MaskedVector
from tasks.site.faults import SiteFault
from tasks.site.messages import TaskPart
from tasks.site.reply_fields import MalformedReply
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.gains import BestSplit
from tasks.vertical_xgboost.paillier.keys import PublicKey, check_distinct
from tasks.vertical_xgboost.party_facts import PaillierBundle, PartyFacts
from tasks.vertical_xgboost.rows import num_evaluation_rows


def read_facts(introduced: Mapping[str, TaskPart]) -> dict[str, PartyFacts]:
    """What parties told of their rows and keys, in the order of names.

    Raises
    ------
    Refused
        If some told it in another form.
    """
    facts, faults = {}, []
    for name in sorted(introduced):
        try:
            facts[name] = PartyFacts.from_facts(introduced[name].facts)
        except (KeyError, ValueError) as error:
            # Only a MalformedReply's text is known to hold nothing that the party sent.
            why = error if isinstance(error, MalformedReply) else type(error).__name__
            faults.append(f"{name}: introduces itself in another form than expected ({why})")
    if faults:
        raise Refused(faults)
    return facts


def check_num_trees(num_trees: int, config: VerticalXGBoostConfig) -> None:
    """Refuse a number of trees that is none, or more than the noise of leaves is for.

    Raises
    ------
    ValueError
        With what is allowed.
    """
    if num_trees < 1:
        raise ValueError(f"num_rounds = {num_trees}: must be 1 or more trees")
    if config.dp_epsilon and num_trees > config.num_trees:
        raise ValueError(
            f"num_rounds = {num_trees}: dp-epsilon = {config.dp_epsilon} is for "
            f"num-trees = {config.num_trees}, at most"
        )


def check_introduced(names: Iterable[str], exchange: Exchange) -> None:
    """Refuse an Exchange that does not know the parties.

    Raises
    ------
    ValueError
        With the names that it does not know.
    """
    known = {exchange.name_of(node) for node in exchange.get_node_ids()}
    if unknown := sorted(set(names) - known):
        raise ValueError(
            f"grid: has no node of {', '.join(unknown)}; must be the Exchange in which the "
            "parties introduced themselves (strategies.membership.meet_sites)"
        )


def check_split_clients(chosen: Mapping[str, str], names: tuple[str, ...]) -> tuple[int, ...]:
    """Place of each source's split client, from what ``choose_split_clients`` gave.

    Raises
    ------
    ValueError
        Unless it names another party for each.
    """
    if not isinstance(chosen, Mapping) or set(chosen) != set(names):
        raise ValueError(f"choose_split_clients: must name one for each of {', '.join(names)}")
    others = {name: set(names) - {name} for name in names}
    wrong = [
        name
        for name in names
        if not isinstance(chosen[name], str) or chosen[name] not in others[name]
    ]
    if wrong:
        raise ValueError(
            f"choose_split_clients: {', '.join(wrong)}: the split client must be another party of "
            f"{', '.join(names)}"
        )
    return tuple(names.index(chosen[name]) for name in names)


def check_nodes(chosen: Sequence[int], open_nodes: Sequence[int]) -> tuple[int, ...]:
    """Nodes of the next level, ascending, from what ``choose_nodes`` gave.

    Raises
    ------
    ValueError
        Unless they are some of the open ones.
    """
    given = list(chosen) if isinstance(chosen, Iterable) else []
    nodes = {int(node) for node in given if _is_whole(node)}
    if not nodes or not all(map(_is_whole, given)) or not nodes <= set(open_nodes):
        raise ValueError(
            f"choose_nodes: {given or chosen!r}: must be some of the open nodes {list(open_nodes)}"
        )
    return tuple(sorted(nodes))


def check_may_prune(may_prune: object) -> None:
    """Refuse a ``may_prune`` that is neither True nor False.

    Raises
    ------
    ValueError
        With what it is.
    """
    if not isinstance(may_prune, bool):
        raise ValueError(f"may_prune = {may_prune!r}: must be True or False")


def check_choice(
    chosen: tuple[int, int] | None,
    splits: Sequence[BestSplit | None],
    *,
    node: int,
    may_prune: bool,
) -> tuple[int, int] | None:
    """What ``choose_split`` gave, refused unless parties can carry it out.

    Raises
    ------
    ValueError
        With the node and what is allowed.
    """
    allowed = [
        (source, int(candidate))
        for source, split in enumerate(splits)
        if split is not None
        for candidate in split.records
    ]
    if chosen is None and (may_prune or not allowed):
        return None
    if chosen is None:
        raise ValueError(
            f"choose_split: no split of node {node}, whose weight as a leaf nobody was asked for; "
            f"allowed are {allowed}, or may_prune = True"
        )
    is_pair = isinstance(chosen, tuple) and all(map(_is_whole, chosen))
    if not is_pair or chosen not in allowed:
        raise ValueError(f"choose_split: {chosen!r} for node {node}; allowed are {allowed}")
    return int(chosen[0]), int(chosen[1])


def _is_whole(value: object) -> TypeGuard[int | np.integer]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_parties(
    config: VerticalXGBoostConfig, facts: Mapping[str, PartyFacts]
) -> tuple[int, int]:
    """Refuse parties whose rows or labels do not fit together.

    Returns
    -------
    (int, int)
        Rows, and how many of them evaluate; of the first party's where rows are aligned first.

    Raises
    ------
    Refused
        All faults at once.
    """
    faults: list[str] = []
    least = 2 if config.allow_two_parties else 3
    if len(facts) < least:
        faults.append(
            f"{len(facts)} parties: allowed are 3 and more (of two, each finds the other's sums by "
            "subtraction; vertical-xgboost.allow-two-parties = true permits it)"
        )
    if config.alignment == "same":
        faults += _check_same_rows(config, facts)
    else:
        faults += check_id_types(facts)
    if faults:
        raise Refused(faults)
    first = next(iter(facts.values()))
    return first.num_rows, first.num_evaluation


def _check_same_rows(config: VerticalXGBoostConfig, facts: Mapping[str, PartyFacts]) -> list[str]:
    faults = []
    by_rows: dict[int, list[str]] = {}
    by_digest: dict[bytes, list[str]] = {}
    for name, fact in sorted(facts.items()):
        by_rows.setdefault(fact.num_rows, []).append(name)
        by_digest.setdefault(fact.digest, []).append(name)
        # Known from the settings: a party that tells another number reads them otherwise.
        expected = num_evaluation_rows(fact.num_rows, fraction=config.test_fraction)
        if fact.num_evaluation != expected:
            faults.append(
                f"{name}: {fact.num_evaluation} rows for evaluation; of {fact.num_rows} they must "
                f"be {expected} (test-fraction)"
            )
    if len(by_rows) > 1:
        groups = "; ".join(f"{rows} at {', '.join(who)}" for rows, who in by_rows.items())
        faults.append(f"the parties have different numbers of rows: {groups}")
    elif len(by_digest) > 1:
        groups = " / ".join(", ".join(who) for who in by_digest.values())
        faults.append(
            f"the parties' row ids differ ({groups}): every party needs the same ids (and the run "
            "one seed and test-fraction)"
        )
    elif all(fact.num_evaluation >= fact.num_rows for fact in facts.values()):
        faults.append("no rows are left for training")
    return faults


def check_senders(masked: Mapping[str, MaskedVector]) -> None:
    """Refuse sums under masks that a party sends in another's name.

    Raises
    ------
    Refused
        With the names of those who do.
    """
    faults = [
        f"{name}: its sums under masks are in another party's name"
        for name, vector in masked.items()
        if vector.site != name
    ]
    if faults:
        raise Refused(faults)


def read_paillier_keys(
    config: VerticalXGBoostConfig, roster: Roster, facts: Mapping[str, PartyFacts]
) -> tuple[PublicKey | None, ...]:
    """Paillier key of each party in the order of names; None where nothing is encrypted.

    Raises
    ------
    Refused
        If a key is malformed, weak, or another party's too.
    """
    if config.encryption == "none":
        return tuple(None for _ in roster.names)
    keys: dict[str, PublicKey] = {}
    faults: list[str] = []
    for name in roster.names:
        try:
            bundle = PaillierBundle.from_bytes(facts[name].paillier)
            keys[name] = PublicKey.from_bytes(
                bundle.key, owner=name, allow_weak_key=config.allow_weak_key
            )
        except SiteFault as fault:
            faults += fault.reasons
        except ValueError:
            faults.append(f"{name}: what it sent is no Paillier key")
    try:
        check_distinct(keys)
    except SiteFault as fault:
        faults += fault.reasons
    if faults:
        raise Refused(faults)
    return tuple(keys[name] for name in roster.names)
