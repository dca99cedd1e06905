"""What the exchanges of a run cost, by step: exchanges, messages, bytes and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedapp.record_shape import LedgerRow
from fedapp.report.ledger import format_bytes
from fedapp.report.page import Section, Table

_WORDS = (
    "Seconds run from the first request of an exchange to its end, with all replies or at the "
    "timeout, so they hold what sites compute, the network, and how Flower delivers messages. What "
    "the server computes between exchanges is not in them."
)
_SITE_WORDS = (
    " Site seconds are processor time of cryptography, added up over sites, as the sites tell it."
)


@dataclass(frozen=True)
class StepCost:
    """All exchanges of one step.

    Attributes
    ----------
    step : str
        Name of the step.
    exchanges : int
        Exchanges with it.
    messages : int
        Requests and replies; what they carry sealed is within them.
    bytes : int
        Their volume.
    seconds : float or None
        Wall time from the first request to the last reply or the timeout, summed over exchanges;
        None where the ledger tells none.
    site_seconds : float or None
        Processor time that replies tell, summed over sites; None where none does.
    """

    step: str
    exchanges: int
    messages: int
    bytes: int
    seconds: float | None
    site_seconds: float | None


def sum_steps(rows: Sequence[LedgerRow]) -> list[StepCost]:
    """Sum the messages of the ledger by step, in the order in which steps first happened."""
    groups: dict[str, list[LedgerRow]] = {}
    for row in sorted(rows, key=lambda row: row["exchange"]):
        if not row["sealed"]:
            groups.setdefault(row["step"], []).append(row)
    return [_cost(step, group) for step, group in groups.items()]


def cost_section(rows: Sequence[LedgerRow]) -> Section | None:
    """Return the section of the report; None where nothing was exchanged."""
    costs = sum_steps(rows)
    if not costs:
        return None
    columns = {"step": "short", **dict.fromkeys(("exchanges", "messages", "bytes"), "number")}
    is_timed = any(cost.seconds is not None for cost in costs)
    is_told = any(cost.site_seconds is not None for cost in costs)
    if is_timed:
        columns |= {"seconds": "number", "seconds an exchange": "number"}
    if is_told:
        columns |= {"site seconds": "number"}
    lines = [*costs, _all(costs, exchanges=len({row["exchange"] for row in rows}))]
    cells = [_cells(cost) for cost in lines]
    table = Table(
        columns,
        [[line[head] for head in columns] for line in cells],
        caption="Exchanges, bytes and seconds by step",
        marked=frozenset({len(cells) - 1}),
    )
    words = [_WORDS + (_SITE_WORDS if is_told else "")] if is_timed else []
    return Section("Cost by step", paragraphs=words, tables=[table])


def _cost(step: str, rows: Sequence[LedgerRow]) -> StepCost:
    longest: dict[int, float] = {}
    for row in rows:
        if "seconds" in row:
            longest[row["exchange"]] = max(row["seconds"], longest.get(row["exchange"], 0.0))
    told = [row["site-seconds"] for row in rows if "site-seconds" in row]
    return StepCost(
        step=step,
        exchanges=len({row["exchange"] for row in rows}),
        messages=len(rows),
        bytes=sum(row["bytes"] for row in rows),
        seconds=sum(longest.values()) if longest else None,
        site_seconds=sum(told) if told else None,
    )


def _all(costs: Sequence[StepCost], *, exchanges: int) -> StepCost:
    timed = [cost.seconds for cost in costs if cost.seconds is not None]
    told = [cost.site_seconds for cost in costs if cost.site_seconds is not None]
    return StepCost(
        step="all",
        exchanges=exchanges,
        messages=sum(cost.messages for cost in costs),
        bytes=sum(cost.bytes for cost in costs),
        seconds=sum(timed) if timed else None,
        site_seconds=sum(told) if told else None,
    )


def _cells(cost: StepCost) -> dict[str, str]:
    return {
        "step": cost.step,
        "exchanges": str(cost.exchanges),
        "messages": str(cost.messages),
        "bytes": format_bytes(cost.bytes),
        "seconds": _number(cost.seconds),
        "seconds an exchange": _number(
            None if cost.seconds is None else cost.seconds / cost.exchanges
        ),
        "site seconds": _number(cost.site_seconds),
    }


def _number(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return (
        f"{seconds:.3f}" if seconds < 1 else f"{seconds:.2f}" if seconds < 100 else f"{seconds:.0f}"
    )
