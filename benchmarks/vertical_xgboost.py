"""What vertical XGBoost costs, and that it learns what a central XGBoost learns.

Runs of the whole protocol in this process, side by side on the same rows: the default engine with
and without the secret order of candidates, the source as aggregator, `phe` with packing, and no
encryption; and one node as the PIVODL paper has it (`phe` without packing), times the nodes of
the run. For each: CPU seconds in every operation of cryptography over all parties and the server,
ciphertexts, bytes by step, exchanges, accuracy.

    python benchmarks/vertical_xgboost.py --data credit-default.zip --label class --drop ID
    python benchmarks/vertical_xgboost.py --data data.csv --growth --csv growth.csv --figure g.png
    python benchmarks/vertical_xgboost.py --data data.csv --quick

The file may be a zip of one CSV file. Exits with 1 if runs differ in their trees, if they differ
from the central fit, if accuracy is not within .001 (RMSE: .1) of XGBoost, or, with the settings
that the limits are stated for (credit data, 4 clients, depth 3, 5 trees, 32 buckets, 2048 bits:
``--limits``), if a limit is passed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

import pandas as pd  # noqa: E402
from vertical_costs import Cost, check, print_costs, trees_of  # noqa: E402
from vertical_growth import draw_growth, growth_table, sweeps, write_csv  # noqa: E402
from vertical_naive_phe import measure_node  # noqa: E402
from vertical_xgboost_central import (  # noqa: E402
    LARGEST_DIFFERENCE,
    quality,
    read_data,
)

from fedapp.simulation import SimulationResult, simulate  # noqa: E402
from fedapp.site_data import Spread, party_table  # noqa: E402
from fedapp.vertical_against_xgboost import xgboost_margins  # noqa: E402
from tasks.vertical_xgboost.central import CentralModel, fit_central  # noqa: E402
from tasks.vertical_xgboost.config import VerticalXGBoostConfig  # noqa: E402
from tasks.vertical_xgboost.joined import JoinedTable, join  # noqa: E402
from tasks.vertical_xgboost.rows import PartyTable, read_table  # noqa: E402

ID = "row-number"
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "not shuffled": {"shuffle": False},
    "source adds": {"aggregator": "source"},
    "phe, packed, not shuffled": {"engine": "phe", "shuffle": False},
    "no encryption": {"encryption": "none"},
}


@dataclass(frozen=True)
class Data:
    """Rows spread over parties, and the joined table."""

    frames: list[pd.DataFrame]
    names: list[str]
    tables: dict[str, PartyTable]
    joined: JoinedTable


def spread_rows(
    frame: pd.DataFrame, config: VerticalXGBoostConfig, *, clients: int, seed: int
) -> Data:
    """Deal columns and labels to so many parties."""
    spread = Spread(id=ID, label=config.label)
    frames = [
        party_table(frame, spread, site=at, sites=clients, seed=seed) for at in range(clients)
    ]
    names = [f"site-{at:02}" for at in range(clients)]  # in the order of names
    tables = {
        name: read_table(part, id_column=ID, label_column=config.label, config=config, seed=seed)
        for name, part in zip(names, frames, strict=True)
    }
    return Data(frames, names, tables, join(tables))


def run_protocol(
    name: str, data: Data, config: VerticalXGBoostConfig, *, seed: int, run_dir: str
) -> tuple[Cost, SimulationResult]:
    """Train once."""
    fields = VerticalXGBoostConfig.model_fields
    settings = {
        f"vertical-xgboost.{(fields[key].alias or key).replace('_', '-')}": value
        for key, value in config.model_dump(exclude_defaults=True).items()
    }
    start = time.perf_counter()
    result = simulate(
        "vertical-xgboost",
        sites=data.frames,
        site_names=data.names,
        config={**settings, "run-dir": run_dir},
        seed=seed,
    )
    wall = time.perf_counter() - start
    summary = result.summary
    if summary["status"] != "ok":
        raise SystemExit(f"{name}: {summary['status']}: {summary.get('reason', '')}")
    by_step: dict[str, int] = {}
    for row in result.ledger:
        if not row["sealed"]:  # else within a message
            by_step[row["step"]] = by_step.get(row["step"], 0) + row["bytes"]
    ciphertexts = int(summary["ciphertexts"])
    key = "test-accuracy" if config.objective == "binary:logistic" else "test-rmse"
    cost = Cost(
        name=name,
        seconds=crypto_seconds(result),
        ciphertexts=ciphertexts,
        ciphertext_bytes=ciphertexts * 2 * config.key_bits // 8,
        bytes=int(summary["bytes"]),
        bytes_by_step=by_step,
        exchanges=result.exchanges,
        wall_seconds=wall,
        quality=float(summary[key]),
    )
    return cost, result


def crypto_seconds(result: SimulationResult) -> dict[str, float]:
    """CPU seconds of a run by operation: of the summary, or summed over trees."""
    whole = result.summary.get("crypto-seconds")
    if isinstance(whole, Mapping):
        return {name: float(value) for name, value in whole.items()}
    seconds: dict[str, float] = {}
    for line in (result.run_folder / "metrics.jsonl").read_text().splitlines():
        content = json.loads(line)
        if "tree" in content:
            for name, value in content.get("crypto-seconds", {}).items():
                seconds[name] = seconds.get(name, 0.0) + value
    return seconds


def open_nodes(trees: Sequence[Mapping[str, Any]], *, max_depth: int) -> int:
    """Nodes that waited for a decision: those above the last level."""
    count = 0
    for tree in trees:
        nodes = {node["id"]: node for node in tree["nodes"]}
        level = [0]
        for _ in range(max_depth):
            count += len(level)
            level = [
                nodes[at][side]
                for at in level
                if not nodes[at]["leaf"]
                for side in ("left", "right")
            ]
    return count


def naive_cost(
    data: Data, central: CentralModel, config: VerticalXGBoostConfig, *, nodes: int, quick: bool
) -> Cost:
    """One node without packing, times the nodes of the run."""
    start = time.perf_counter()
    node = measure_node(
        data.tables,
        data.joined,
        config,
        base_margin=central.base_margins[0],
        most_candidates=2 if quick else None,
    )
    if node.largest_error > 1e-6:
        raise SystemExit(f"phe, naive: totals are off by {node.largest_error:.2g}")
    return Cost(
        name=f"phe, naive ({node.measured} of {node.candidates} candidates of a node measured)",
        seconds={name: spent * nodes for name, spent in node.seconds.items()},
        ciphertexts=node.ciphertexts * nodes,
        ciphertext_bytes=node.bytes * nodes,
        bytes=node.bytes * nodes,
        bytes_by_step={},
        exchanges=5 * nodes,  # the paper goes node by node, five messages each
        wall_seconds=time.perf_counter() - start,
        quality=None,
    )


def compare(
    frame: pd.DataFrame,
    config: VerticalXGBoostConfig,
    options: argparse.Namespace,
    run_dir: str,
) -> tuple[list[Cost], dict[str, float], list[str]]:
    """All variants on the same rows."""
    data = spread_rows(frame, config, clients=options.clients, seed=options.seed)
    central = fit_central(data.joined, config)
    last = central.metrics[-1].evaluation
    if last is None:
        raise SystemExit("no rows for evaluation")
    theirs = xgboost_margins(
        data.joined, config, base_scores=central.base_scores, num_trees=config.num_trees
    )
    reference = {
        "central fit": last.quality,  # from the same fixed-point sums, so that it can be equal
        "xgboost": quality(theirs, data.joined, config),
    }
    costs, results = [], {}
    for name in options.variants:
        chosen = config.model_copy(update=VARIANTS[name])
        cost, results[name] = run_protocol(name, data, chosen, seed=options.seed, run_dir=run_dir)
        costs.append(cost)
    nodes = open_nodes(trees_of(next(iter(results.values()))), max_depth=config.max_depth)
    if not options.no_naive:
        costs.append(naive_cost(data, central, config, nodes=nodes, quick=options.quick))
    faults = check(
        costs,
        results,
        reference,
        largest_difference=LARGEST_DIFFERENCE[config.objective],
        limits=options.limits,
    )
    return costs, reference, faults


def growth(
    frame: pd.DataFrame,
    config: VerticalXGBoostConfig,
    options: argparse.Namespace,
    run_dir: str,
) -> list[dict[str, Any]]:
    """Costs of the default variant as one setting varies."""
    rows = []
    for axis, value, clients, changes in sweeps(clients=options.clients, quick=options.quick):
        chosen = config.model_copy(update=changes)
        data = spread_rows(frame, chosen, clients=clients, seed=options.seed)
        name = f"{axis} {value}"
        cost, _ = run_protocol(name, data, chosen, seed=options.seed, run_dir=run_dir)
        rows.append({"axis": axis, "value": value, **asdict(cost), "crypto": cost.crypto})
        print(f"{name}: {cost.crypto:.2f} s, {cost.bytes / 1e6:.2f} MB", flush=True)
    return rows


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="CSV file, or a zip of one")
    parser.add_argument("--label", default="class", help="label column")
    parser.add_argument("--positive-label", default="1")
    parser.add_argument("--drop", nargs="*", default=[], help="columns that are no features")
    parser.add_argument("--objective", choices=list(LARGEST_DIFFERENCE), default="binary:logistic")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--trees", type=int, default=5)
    parser.add_argument("--buckets", type=int, default=32)
    parser.add_argument("--bits", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variants", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--no-naive", action="store_true", help="leave out phe without packing")
    parser.add_argument("--growth", action="store_true", help="vary clients, depth, trees, bits")
    parser.add_argument("--limits", action="store_true", help="fail where a limit is passed")
    parser.add_argument("--quick", action="store_true", help="1,000 rows, depth 2, 2 trees")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    parser.add_argument("--csv", type=Path, help="with --growth: write its table to this file")
    parser.add_argument("--figure", type=Path, help="with --growth: draw it to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it all; 0 if what must hold does."""
    options = parse(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    frame = read_data(options.data, drop=options.drop, label=options.label)
    if options.quick:
        frame, options.depth, options.trees = frame.head(1000), 2, 2
    config = VerticalXGBoostConfig(
        id=ID,
        label=options.label,
        objective=options.objective,
        positive_label=options.positive_label,
        max_depth=options.depth,
        num_trees=options.trees,
        max_bin=options.buckets,
        key_bits=options.bits,
        allow_weak_key=options.bits < 2048,
        allow_two_parties=True,
    )
    with tempfile.TemporaryDirectory() as run_dir:
        costs, reference, faults = compare(frame, config, options, run_dir)
        print_costs(costs)
        print("\non test rows: " + ", ".join(f"{key} {x:.4f}" for key, x in reference.items()))
        rows = growth(frame, config, options, run_dir) if options.growth else []
    if rows:
        print("\n" + growth_table(rows))
    if rows and options.csv:
        write_csv(options.csv, rows)
    if rows and options.figure:
        draw_growth(options.figure, rows)
    for fault in faults:
        print(f"does NOT hold: {fault}")
    if options.json:
        record = {
            "settings": config.model_dump(by_alias=True),
            "runs": [{**asdict(cost), "crypto": cost.crypto} for cost in costs],
            "test rows": reference,
            "growth": rows,
            "faults": faults,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
