"""Costs of runs of vertical XGBoost: what is recorded, the table, and what must hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedapp.simulation import SimulationResult

MAX_SECONDS = {"default": 25.0, "not shuffled": 10.0}
MAX_CIPHERTEXT_BYTES, MAX_BYTES, MAX_EXCHANGES, MAX_WALL = 8e6, 15e6, 35, 60.0


@dataclass(frozen=True)
class Cost:
    """What a run took; bytes are those of Flower messages, by step of the protocol."""

    name: str
    seconds: dict[str, float]
    ciphertexts: int
    ciphertext_bytes: int
    bytes: int
    bytes_by_step: dict[str, int]
    exchanges: int
    wall_seconds: float
    quality: float | None

    @property
    def crypto(self) -> float:
        """CPU seconds of all operations."""
        return sum(self.seconds.values())


def trees_of(result: SimulationResult) -> list[dict[str, Any]]:
    """The trees as the server knows them."""
    trees: list[dict[str, Any]] = json.loads((result.run_folder / "trees.json").read_text())[
        "trees"
    ]
    return trees


def print_costs(costs: Sequence[Cost]) -> None:
    """One line a run; then its operations and steps."""
    head = ("CPU s", "ciphertexts", "their MB", "all MB", "exchanges", "wall s", "quality")
    print(f"{'':26}" + "".join(f"{title:>13}" for title in head))
    for cost in costs:
        cells = (
            f"{cost.crypto:.2f}",
            f"{cost.ciphertexts}",
            f"{cost.ciphertext_bytes / 1e6:.2f}",
            f"{cost.bytes / 1e6:.2f}",
            f"{cost.exchanges}",
            f"{cost.wall_seconds:.1f}",
            "-" if cost.quality is None else f"{cost.quality:.4f}",
        )
        print(f"{cost.name[:26]:26}" + "".join(f"{cell:>13}" for cell in cells))
    for title, parts, unit in (
        ("CPU seconds", [cost.seconds for cost in costs], 1.0),
        ("megabytes", [cost.bytes_by_step for cost in costs], 1e6),
    ):
        print(f"\n{title}")
        for cost, values in zip(costs, parts, strict=True):
            if values:
                words = ", ".join(f"{key} {value / unit:.3g}" for key, value in values.items())
                print(f"  {cost.name[:26]:26}  {words}")


def check(
    costs: Sequence[Cost],
    results: Mapping[str, SimulationResult],
    reference: Mapping[str, float],
    *,
    largest_difference: float,
    limits: bool,
) -> list[str]:
    """What does not hold."""
    faults = []
    first = next(iter(results))
    for name, result in results.items():
        if trees_of(result) != trees_of(results[first]):
            faults.append(f"{name}: other trees than {first}")
    by_name = {cost.name: cost for cost in costs if cost.name in results}
    for name, cost in by_name.items():
        if cost.quality is None or cost.quality != reference["central fit"]:
            faults.append(
                f"{name}: {cost.quality} on test rows, central {reference['central fit']}"
            )
            continue
        difference = abs(cost.quality - reference["xgboost"])
        if difference > largest_difference:
            faults.append(f"{name}: {difference:.4g} from XGBoost on test rows")
    if {"default", "source adds"} <= set(by_name):
        more = by_name["source adds"].exchanges - by_name["default"].exchanges
        if more <= 0:  # a level takes three exchanges then, not two
            faults.append("source adds: no more exchanges than with the server as aggregator")
    if not limits:
        return faults
    for name, most in MAX_SECONDS.items():
        if name in by_name and by_name[name].crypto > most:
            faults.append(f"{name}: {by_name[name].crypto:.1f} s of cryptography, limit {most:g}")
    if "default" in by_name:
        cost = by_name["default"]
        for what, value, limit in (
            ("bytes of ciphertexts", cost.ciphertext_bytes, MAX_CIPHERTEXT_BYTES),
            ("bytes", cost.bytes, MAX_BYTES),
            ("exchanges", cost.exchanges, MAX_EXCHANGES),
            ("seconds", cost.wall_seconds, MAX_WALL),
        ):
            if value > limit:
                faults.append(f"default: {value:.0f} {what}, limit {limit:.0f}")
    return faults
