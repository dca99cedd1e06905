"""What one survival simulation costs as rows and clients grow, evaluation included.

SDGM1 with 5 features and censoring rate .4; DeepSurv, 5 rounds of 3 steps, privatized updates,
everything else the product's default, so every round is evaluated; one thread, after imports. CPU
seconds are user and system time of this process and its children. With `--peer-python`,
federated-survival then fits the same rows with the same clients, rounds and steps, by the same
clocks.

    python benchmarks/survival_speed.py [--sizes 200x3,1000x3,5000x5,20000x10] [--repeats 3]
        [--peer-python PATH] [--json FILE]

The exit code is 1 if 20,000 rows at 10 clients take more than 6 CPU seconds, or if the peer was
measured there and takes less than 17 times as long.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from survival_peer import SPEED, run_peer
from threadpoolctl import threadpool_limits

from fedapp.fingerprint import code_fingerprint
from fedapp.simulation import simulate
from fedapp.site_data.generated import generated_frame
from tasks.survival.generators import Design

BOUNDED = (20_000, 10)
MOST_CPU_SECONDS = 6.0
LEAST_RATIO = 17.0
ROUNDS, LOCAL_STEPS = 5, 3
VERSIONS_OF = ("flwr", "torch", "numpy")


@dataclass(frozen=True)
class Size:
    """Rows of all clients together, and clients."""

    n_rows: int
    n_clients: int

    @property
    def bounded(self) -> bool:
        """Whether this is the size that the limits speak of."""
        return (self.n_rows, self.n_clients) == BOUNDED


@dataclass(frozen=True)
class Cost:
    """Seconds of a run (of repeats: the least of each), and its C-index and exchanges."""

    size: Size
    cpu: float
    wall: float
    exchanges: int
    c_index: float


@dataclass(frozen=True)
class PeerCost:
    """Seconds of one fit of the peer."""

    size: Size
    cpu: float
    wall: float


def rows(size: Size) -> pd.DataFrame:
    """Draw the rows; the same for both sides."""
    design = Design(n_rows=size.n_rows, n_features=5, censoring_rate=0.4)
    return generated_frame("SDGM1", design, seed=0)


def clocks() -> tuple[float, float]:
    """Wall seconds, and CPU seconds of this process and its ended children."""
    used = os.times()
    return time.perf_counter(), used.user + used.system + used.children_user + used.children_system


def cost(size: Size, *, repeats: int) -> Cost:
    """Run the product's simulation, and check that it was done as it should be."""
    frame = rows(size)
    order = np.random.default_rng(0).permutation(len(frame))
    sites = [frame.iloc[part] for part in np.array_split(order, size.n_clients)]
    samples = []
    for seed in range(repeats):
        with tempfile.TemporaryDirectory() as run_dir:
            wall, cpu = clocks()
            result = simulate(
                "survival",
                sites=sites,
                config={
                    "run-dir": run_dir,
                    "survival.rounds": ROUNDS,
                    "survival.local-steps": LOCAL_STEPS,
                },
                seed=seed,
            )
            then = clocks()
        samples.append((then[0] - wall, then[1] - cpu))
        if result.summary["status"] != "ok" or result.summary["n-sites"] != size.n_clients:
            raise RuntimeError(f"the run did not end well: {result.summary}")
    walls, cpus = zip(*samples, strict=True)
    c_index = float(result.summary["c-index"])
    return Cost(size, min(cpus), min(walls), result.exchanges, c_index)


def peer_costs(python: Path, sizes: Sequence[Size]) -> tuple[str, list[PeerCost]]:
    """Let the peer fit the same rows; returns its version and costs.

    Raises
    ------
    RuntimeError
        If it does not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked = []
        for place, size in enumerate(sizes):
            path = Path(folder) / f"{place}.csv"
            rows(size).to_csv(path, index=False)
            asked.append({"rows": str(path), "n_clients": size.n_clients})
        answer = run_peer(
            python, SPEED, {"sizes": asked, "rounds": ROUNDS, "local_steps": LOCAL_STEPS}
        )
    timed = zip(sizes, answer["samples"], strict=True)
    return answer["version"], [PeerCost(size, cpu, wall) for size, (wall, cpu) in timed]


def holds(costs: Sequence[Cost], peer: Sequence[PeerCost]) -> bool:
    """Whether the bounded size costs no more than it may, where it was measured."""
    of_peer = {one.size: one.cpu for one in peer}
    return all(
        one.cpu <= MOST_CPU_SECONDS
        and (one.size not in of_peer or of_peer[one.size] >= LEAST_RATIO * one.cpu)
        for one in costs
        if one.size.bounded
    )


def table(costs: Sequence[Cost], peer: Sequence[PeerCost]) -> str:
    """Return the costs as text, one line a size."""
    of_peer = {one.size: one for one in peer}
    lines = [
        f"SDGM1, {ROUNDS} rounds x {LOCAL_STEPS} steps, evaluation included, one thread; seconds",
        f"{'rows':>7} {'clients':>7} {'CPU':>8} {'wall':>8} {'C-index':>8}"
        + (f" {'peer CPU':>9} {'peer wall':>9} {'CPU ratio':>9}" if peer else ""),
    ]
    for one in costs:
        line = (
            f"{one.size.n_rows:7,d} {one.size.n_clients:7d} {one.cpu:8.2f} {one.wall:8.2f} "
            f"{one.c_index:8.3f}"
        )
        if other := of_peer.get(one.size):
            line += f" {other.cpu:9.2f} {other.wall:9.2f} {other.cpu / one.cpu:9.1f}"
        lines.append(line)
    if any(one.size.bounded for one in costs):
        limit = f"{BOUNDED[0]:,} rows at {BOUNDED[1]} clients: <= {MOST_CPU_SECONDS:g} CPU seconds"
        if peer:
            limit += f", peer / product >= {LEAST_RATIO:g}"
        lines.append(f"{limit}: {'holds' if holds(costs, peer) else 'does NOT hold'}")
    return "\n".join(lines)


def sizes(text: str) -> list[Size]:
    """Read sizes: rows x clients, such as ``200x3,20000x10``."""
    found = []
    for part in text.split(","):
        n_rows, _, n_clients = part.partition("x")
        if not (n_rows.isdecimal() and n_clients.isdecimal() and int(n_clients)):
            raise argparse.ArgumentTypeError(f"{part!r}: must be rows x clients, such as 200x3")
        found.append(Size(int(n_rows), int(n_clients)))
    return found


def document(costs: Sequence[Cost], peer: Sequence[PeerCost], peer_version: str) -> dict[str, Any]:
    """Return everything for a JSON file; in place of a peer that did not run, why."""
    return {
        "benchmark": "survival_speed",
        "setting": {"rounds": ROUNDS, "local_steps": LOCAL_STEPS, "model": "DeepSurv"},
        "versions": {
            "fedapp": code_fingerprint(),
            **{name: version(name) for name in VERSIONS_OF},
        },
        "costs": [asdict(one) for one in costs],
        "peer": peer_version,
        "peer_costs": [asdict(one) for one in peer],
        "most_cpu_seconds": MOST_CPU_SECONDS,
        "least_ratio": LEAST_RATIO,
        "holds": holds(costs, peer),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    standard = "200x3,1000x3,5000x5,20000x10"
    parser.add_argument("--sizes", type=sizes, default=sizes(standard), help=f"default {standard}")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each size; default 3")
    parser.add_argument("--peer-python", type=Path, help="Python that has federated-survival")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    chosen = parser.parse_args(arguments)
    if chosen.repeats < 1:
        parser.error("--repeats must be 1 or more")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch_threads = torch.get_num_threads()
    with threadpool_limits(limits=1):
        torch.set_num_threads(1)
        cost(Size(200, 3), repeats=1)  # what is imported on first use
        costs = [cost(size, repeats=chosen.repeats) for size in chosen.sizes]
    torch.set_num_threads(torch_threads)
    peer: list[PeerCost] = []
    peer_version = "not asked for"
    if chosen.peer_python is not None:
        try:
            peer_version, peer = peer_costs(chosen.peer_python, chosen.sizes)
        except RuntimeError as error:
            peer_version = str(error)
        print(f"peer: federated-survival {peer_version}" if peer else peer_version)
    print(table(costs, peer))
    if chosen.json is not None:
        numbers = document(costs, peer, peer_version)
        chosen.json.write_text(json.dumps(numbers, indent=2) + "\n")
    return 0 if holds(costs, peer) else 1


if __name__ == "__main__":
    sys.exit(main())
