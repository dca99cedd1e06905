"""Fisher scoring that goes on: its iterations in a snapshot, and the same sites and rows again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import MetricRecord
from numpy.typing import NDArray

from strategies.exchange import Exchange
from strategies.fisher_result import Iteration
from strategies.membership import Refused
from strategies.rounds import read_metrics
from strategies.snapshot import Snapshot, taken_apart
from tasks.glm.iteration_state import restore_state, state_of
from tasks.glm.scoring import FisherIteration

_FIT = "fit"


def pack_iterations(
    iterations: Sequence[FisherIteration],
) -> tuple[list[dict[str, Any]], dict[str, NDArray[Any]]]:
    """Return the state of iterations as facts and arrays of a snapshot."""
    facts: list[dict[str, Any]] = []
    arrays: dict[str, NDArray[Any]] = {}
    for place, iteration in enumerate(iterations):
        numbers, own = state_of(iteration)
        facts.append(numbers)
        arrays |= {f"{_FIT}-{place}/{name}": array for name, array in own.items()}
    return facts, arrays


def unpack_iterations(
    iterations: Sequence[FisherIteration], snapshot: Snapshot, facts: Sequence[Mapping[str, Any]]
) -> None:
    """Set iterations to the state that `pack_iterations` returned."""
    for place, (iteration, numbers) in enumerate(zip(iterations, facts, strict=True)):
        restore_state(iteration, numbers, snapshot.part(f"{_FIT}-{place}"))


def pack_history(
    history: Sequence[Iteration], *metrics: Mapping[int, MetricRecord]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the iterations made, and records of metrics by iteration, as facts and arrays."""
    lines = [
        {
            "number": each.number,
            "deviance": each.deviance,
            "rows": int(each.rows),
            "halved": bool(each.halved),
            "converged": bool(each.converged),
            "sites": list(each.sites),
        }
        for each in history
    ]
    arrays = {
        f"history/{each.number}": each.evaluated for each in history if each.evaluated is not None
    }
    records = [{str(n): dict(record) for n, record in each.items()} for each in metrics]
    return {"history": lines, "metrics": records}, arrays


def unpack_history(
    snapshot: Snapshot,
) -> tuple[list[Iteration], list[dict[int, MetricRecord]]]:
    """Return what `pack_history` put into a snapshot."""
    evaluated = snapshot.part("history")
    history = [
        Iteration(
            **{**line, "sites": tuple(line["sites"])},
            evaluated=evaluated.get(str(line["number"])),
        )
        for line in snapshot.facts["history"]
    ]
    return history, [read_metrics(each) for each in snapshot.facts["metrics"]]


def keep_members(exchange: Exchange, snapshot: Snapshot) -> None:
    """Address those who took part in a run that goes on, and nobody else.

    Raises
    ------
    Refused
        With the name of each that is missing.
    UnusableSnapshot
        If the snapshot does not say who they are.
    """
    with taken_apart():
        members = list(snapshot.facts["sites"])
    nodes = {exchange.name_of(node): node for node in exchange.get_node_ids()}
    missing = [name for name in members if name not in nodes]
    if missing:
        raise Refused(
            [f"{name}: takes part in the run that is resumed, and is not there" for name in missing]
        )
    exchange.exclude(node for name, node in nodes.items() if name not in members)
