"""The disclosure ledger, summed: who sent how much to whom in which step, and what it revealed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedapp.record_shape import SERVER, LedgerRow

_WORDS = {"sealed": "sealed parts", "encrypted": "ciphertexts", "masked": "masked sums"}


@dataclass(frozen=True)
class Flow:
    """All messages of one step in one direction, or all that they carry sealed.

    Attributes
    ----------
    step : str
        Name of the step.
    direction : str
        ``"server → sites"``, ``"sites → server"`` or ``"site → site"`` (through the server).
    exchanges : tuple of int
        Exchanges in which it happened, ascending.
    messages : int
        Number of messages; of sealed parts, if they are.
    bytes : int
        Their volume. That of sealed parts is within the messages that carry them.
    sealed : bool
        Sealed parts, which only the site that they are for could read.
    protections : tuple of str
        How records of the messages were protected; empty where the ledger does not say.
    reveals : tuple of str
        What the receivers learn, each sentence once.
    """

    step: str
    direction: str
    exchanges: tuple[int, ...]
    messages: int
    bytes: int
    sealed: bool
    protections: tuple[str, ...]
    reveals: tuple[str, ...]

    @property
    def protection_words(self) -> str:
        """How the content was protected, in words."""
        if self.sealed:
            return "sealed for the receiver"
        closed = [_WORDS[kind] for kind in _WORDS if kind in self.protections]
        if not closed:
            return "in clear" if "clear" in self.protections else "not sealed"
        return ", ".join([*closed, *(["the rest in clear"] if "clear" in self.protections else [])])


def sum_flows(rows: Sequence[LedgerRow]) -> list[Flow]:
    """Sum the ledger by step and direction, in the order in which each first happened.

    Sealed parts and messages are summed apart.
    """
    groups: dict[tuple[str, str, bool], list[LedgerRow]] = {}
    for row in sorted(rows, key=lambda row: row["exchange"]):
        groups.setdefault((row["step"], _direction(row), row["sealed"]), []).append(row)
    return [
        Flow(
            step=step,
            direction=direction,
            exchanges=tuple(sorted({row["exchange"] for row in group})),
            messages=sum(row.get("parts", 1) if sealed else 1 for row in group),
            bytes=sum(row["bytes"] for row in group),
            sealed=sealed,
            protections=tuple(
                sorted(
                    {
                        kind
                        for row in group
                        for kind in row.get("protection", "").split(" + ")
                        if kind
                    }
                )
            ),
            reveals=tuple(dict.fromkeys(row["reveals"] for row in group)),
        )
        for (step, direction, sealed), group in groups.items()
    ]


def volume_of(flows: Sequence[Flow]) -> int:
    """Return the bytes of all messages; sealed parts are within them."""
    return sum(flow.bytes for flow in flows if not flow.sealed)


def site_traffic(rows: Sequence[LedgerRow]) -> dict[str, tuple[int, int]]:
    """Return the bytes of messages that each site sent and received, by its name."""
    traffic: dict[str, tuple[int, int]] = {}
    for row in rows:
        if row["sealed"]:
            continue
        for site, sent in ((row["sender"], True), (row["receiver"], False)):
            if site != SERVER:
                out, back = traffic.get(site, (0, 0))
                size = row["bytes"]
                traffic[site] = (out + size, back) if sent else (out, back + size)
    return dict(sorted(traffic.items()))


def format_bytes(volume: int) -> str:
    """Write a volume in decimal units: ``"812 B"``, ``"3.2 MB"``."""
    if volume < 1000:
        return f"{volume} B"
    scaled = float(volume)
    unit = ""
    for larger in ("kB", "MB", "GB", "TB"):
        if unit and scaled < 999.5:
            break
        scaled, unit = scaled / 1000, larger
    return f"{scaled:.0f} {unit}" if scaled >= 99.95 else f"{scaled:.1f} {unit}"


def format_ranges(numbers: Sequence[int]) -> str:
    """Write ascending whole numbers as ranges: ``"1, 3–32"``."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(f"{low}–{high}" if high > low else str(low) for low, high in ranges)


def _direction(row: LedgerRow) -> str:
    if row["sender"] == SERVER:
        return "server → sites"
    return "sites → server" if row["receiver"] == SERVER else "site → site"
