"""Seconds, exchanges, bytes and memory by the number of sites, and how they grow.

    python benchmarks/load.py --nodes 50,100,200,400              # in process
    python benchmarks/load.py --runtime ray --nodes 100           # SuperNodes of the simulation
    python benchmarks/load.py --runtime deployed --nodes 8        # a process a message

`--task` is `roc-glm` (masked sums), `survival` (2 rounds of training) or `vertical-xgboost` (one
tree of depth 2, 5 columns a party, labels in turn, sums not encrypted); `--set` changes these
settings. Each site has `--rows` rows. In process the sites live in a second process, so that
processor time and memory of the server are its own; taking messages there and back is counted
apart. Bytes are those of a node in an exchange, both directions. Under the other runtimes memory,
and processor seconds, are those of Flower's and Ray's processes by kind, and memory of all of them
at once.

Exits with 1 if a run does not end well.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from deployed import Watch, federation, simulated_run  # noqa: E402
from load_sites import Spent, sites_apart  # noqa: E402

from fedapp import simulation  # noqa: E402
from fedapp.run_folder import RunFolder  # noqa: E402
from fedapp.run_record import RunRecord  # noqa: E402
from fedapp.site_data import write_site_files  # noqa: E402

Config = dict[str, Any]

CONFIGS: dict[str, Config] = {
    "roc-glm": {"roc-glm.label": "label", "roc-glm.score": "score"},
    "survival": {"survival.rounds": 2, "survival.local-steps": 2},
    "vertical-xgboost": {
        "vertical-xgboost.num-trees": 1,
        "vertical-xgboost.max-depth": 2,
        "vertical-xgboost.encryption": "none",
    },
}


@dataclass(frozen=True)
class Load:
    """What a run over so many nodes took.

    Attributes
    ----------
    task, runtime : str
    nodes, rows, exchanges : int
        ``rows`` of a site.
    settings : dict
        Of the run configuration.
    wall, seconds : float
        Wall seconds of the run with its start and end, and of its exchanges.
    spent : Spent or None
        Processor seconds and memory of server and sites; in process only.
    bytes_by_step : dict of str to float
        Bytes of a node in an exchange of the step, both directions.
    bytes : int
        Of all messages.
    processes : dict of str to dict
        By kind of process: how many there were, the peak memory of the largest in bytes, and
        processor seconds of all; not in process.
    memory : int
        Peak memory in bytes of all processes together; not in process.
    """

    task: str
    runtime: str
    nodes: int
    rows: int
    settings: Config
    exchanges: int
    wall: float
    seconds: float
    bytes_by_step: dict[str, float]
    bytes: int
    spent: Spent | None = None
    processes: Mapping[str, Mapping[str, float]] | None = None
    memory: int = 0


def site_frames(task: str, *, nodes: int, rows: int) -> list[pd.DataFrame]:
    """Rows of every site."""
    if task != "vertical-xgboost":
        return [_site_rows(task, rows=rows, seed=seed) for seed in range(nodes)]
    generator = np.random.default_rng(0)
    columns = generator.normal(size=(nodes, 5, rows))
    labels = (columns.sum((0, 1)) + generator.normal(size=rows) > 0).astype(int)
    owner = np.arange(rows) % nodes
    return [
        pd.DataFrame(
            {
                "id": np.arange(rows),
                **{f"x{party}-{at}": column for at, column in enumerate(columns[party])},
                "label": pd.Series(labels, dtype="Int64").where(owner == party),
            }
        )
        for party in range(nodes)
    ]


def _site_rows(task: str, *, rows: int, seed: int) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    if task == "roc-glm":
        label = np.arange(rows) % 2
        score = 1 / (1 + np.exp(-generator.normal(label - 0.5)))
        return pd.DataFrame({"label": label, "score": score})
    x, y = generator.normal(size=(2, rows))
    times = generator.exponential(np.exp(-x)) + 0.01
    return pd.DataFrame({"time": times, "event": np.arange(rows) % 2, "x": x, "y": y})


def run_in_process(task: str, *, nodes: int, rows: int, settings: Config) -> Load:
    """Run without Flower's runtimes."""
    frames = site_frames(task, nodes=nodes, rows=rows)
    with tempfile.TemporaryDirectory(prefix="fedapp-load-") as folder:
        config, began = {**settings, "run-dir": folder}, time.monotonic()
        with sites_apart() as spent:
            run = simulation.simulate(task, sites=frames, config=config).run_folder
        wall, record = time.monotonic() - began, RunFolder.open(run).read()
    return _load(task, "in-process", rows, settings, record, wall=wall, spent=spent)


def run_with_ray(task: str, *, nodes: int, rows: int, settings: Config) -> Load:
    """Run by `flwr run` with so many simulated SuperNodes."""
    with tempfile.TemporaryDirectory(prefix="fedapp-load-") as folder:
        base = Path(folder)
        data = base / "sites"
        data.mkdir()
        write_site_files(site_frames(task, nodes=nodes, rows=rows), data)
        config, began = {**settings, "task": task, f"{task}.data": str(data)}, time.monotonic()
        with Watch() as watch:
            run = simulated_run(base, config, nodes=nodes)
        wall, record = time.monotonic() - began, RunFolder.open(run).read()
    return _load(task, "ray", rows, settings, record, wall=wall, watch=watch)


def run_deployed(task: str, *, nodes: int, rows: int, settings: Config) -> Load:
    """Run on a SuperLink and so many SuperNodes."""
    with tempfile.TemporaryDirectory(prefix="fedapp-load-") as folder:
        base, configs = Path(folder), []
        for number, frame in enumerate(site_frames(task, nodes=nodes, rows=rows)):
            path = base / f"site-{number}.csv"
            frame.to_csv(path, index=False)
            node = {"site-name": f"site-{number}", "data-path": str(path)}
            configs.append({**node, "model-dir": str(base / f"models-{number}")})
        began = time.monotonic()
        with Watch() as watch, federation(base, configs) as deployed:
            run = deployed.run_task({**settings, "task": task, "min-sites": nodes})
        wall, record = time.monotonic() - began, RunFolder.open(run).read()
    return _load(task, "deployed", rows, settings, record, wall=wall, watch=watch)


RUNTIMES = {"in-process": run_in_process, "ray": run_with_ray, "deployed": run_deployed}


def _load(
    task: str,
    runtime: str,
    rows: int,
    settings: Config,
    record: RunRecord,
    *,
    wall: float,
    spent: Spent | None = None,
    watch: Watch | None = None,
) -> Load:
    if record.status["status"] != "ok":
        raise RuntimeError(f"the run did not end well: {record.status}")
    messages = [row for row in record.ledger if not row["sealed"]]
    longest: dict[int, float] = {}
    steps: dict[int, str] = {}
    sizes: dict[str, int] = {}
    for row in messages:
        number, step = row["exchange"], row["step"]
        longest[number] = max(longest.get(number, 0.0), row.get("seconds", 0.0))
        steps[number] = step
        sizes[step] = sizes.get(step, 0) + row["bytes"]
    nodes = len({row["receiver"] for row in messages} - {"server"})
    times = list(steps.values())
    return Load(
        task=task,
        runtime=runtime,
        nodes=nodes,
        rows=rows,
        settings=settings,
        exchanges=len(steps),
        wall=wall,
        seconds=sum(longest.values()),
        bytes_by_step={step: size / nodes / times.count(step) for step, size in sizes.items()},
        bytes=sum(sizes.values()),
        spent=spent,
        processes=None if watch is None else watch.by_kind(),
        memory=0 if watch is None else watch.total,
    )


def slopes(low: Load, high: Load) -> dict[str, float]:
    """How costs grow from fewer to more nodes.

    Returns
    -------
    dict
        ``server-ms``, ``site-ms``: processor milliseconds of one more node in an exchange.
        ``server-memory-kB``: of one more node. ``bytes-per-node.STEP``: bytes by which the
        messages of *each* node grow with one more node. ``server-power``, ``site-power``,
        ``memory-power``, ``bytes-power``: the power of the number of nodes that the total grew
        with; 1 is linear, 2 its square.
    """
    more, factor = high.nodes - low.nodes, math.log(high.nodes / low.nodes)
    found: dict[str, float] = {}

    def compare(name: str, before: float, after: float) -> None:
        if min(before, after) > 0:
            found[f"{name}-power"] = math.log(after / before) / factor

    if low.spent is not None and high.spent is not None:
        exchanges = more * high.exchanges / 1e3
        found["server-ms"] = (high.spent.server_cpu - low.spent.server_cpu) / exchanges
        found["site-ms"] = (high.spent.site_cpu - low.spent.site_cpu) / exchanges
        found["server-memory-kB"] = (
            (high.spent.server_memory - low.spent.server_memory) / more / 1e3
        )
        compare("server", low.spent.server_cpu, high.spent.server_cpu)
        compare("site", low.spent.site_cpu, high.spent.site_cpu)
        compare("memory", low.spent.server_memory, high.spent.server_memory)
    compare("bytes", low.bytes, high.bytes)
    for step, size in high.bytes_by_step.items():
        found[f"bytes-per-node.{step}"] = (size - low.bytes_by_step[step]) / more
    return found


def report(load: Load) -> str:
    """The line of a run."""
    words = [
        f"{load.task}, {load.runtime}: {load.nodes} nodes x {load.rows} rows",
        f"{load.exchanges} exchanges, {load.seconds:.1f} s in them, {load.wall:.1f} s in all",
    ]
    if load.spent is not None:
        each = 1e3 * load.spent.site_cpu / load.nodes / load.exchanges
        words.append(
            f"CPU: server {load.spent.server_cpu:.2f} s, copying {load.spent.copying_cpu:.2f} s, "
            f"sites {load.spent.site_cpu:.2f} s ({each:.1f} ms a site and exchange)"
        )
        words.append(f"the server grew by {load.spent.server_memory / 1e6:.1f} MB")
    sizes = ", ".join(f"{step} {size:,.0f}" for step, size in load.bytes_by_step.items())
    words.append(f"bytes a node and exchange: {sizes}; {load.bytes / 1e6:,.2f} MB in all")
    for kind, costs in (load.processes or {}).items():
        words.append(
            f"\n    {costs['processes']} x {kind}: at most {costs['peak-bytes'] / 1e6:.0f} MB, "
            f"{costs['cpu-seconds']:.1f} s of CPU in all"
        )
    if load.memory:
        words.append(f"\n    memory of all processes at once: {load.memory / 1e6:.0f} MB")
    return "; ".join(words).replace("; \n", "\n")


def setting(text: str) -> tuple[str, Any]:
    """Key and value of KEY=VALUE, the value as in TOML; what is none is text."""
    key, _, value = text.partition("=")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and say whether all runs ended well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=sorted(CONFIGS), default="roc-glm")
    parser.add_argument("--runtime", choices=sorted(RUNTIMES), default="in-process")
    parser.add_argument("--nodes", default="5,10,25,50", help="numbers of nodes, ascending")
    parser.add_argument("--rows", type=int, default=60, help="of a site")
    parser.add_argument("--set", nargs="+", default=[], type=setting, metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    settings, loads = {**CONFIGS[chosen.task], **dict(chosen.set)}, []
    warm_up(chosen.task, settings)
    for nodes in map(int, chosen.nodes.split(",")):
        run = RUNTIMES[chosen.runtime]
        try:
            loads.append(run(chosen.task, nodes=nodes, rows=chosen.rows, settings=settings))
        except RuntimeError as error:
            print(f"{nodes} nodes: {error}")
            return 1
        print(report(loads[-1]), flush=True)
    found = {}
    for low, high in pairwise(loads):
        found[f"{low.nodes} to {high.nodes}"] = growth = slopes(low, high)
        said = ", ".join(f"{name} {value:.3g}" for name, value in growth.items())
        print(f"{low.nodes} to {high.nodes} nodes: {said}")
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if chosen.json:
        document = {"loads": [asdict(load) for load in loads], "slopes": found}
        chosen.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


def warm_up(task: str, settings: Config) -> None:
    """Import what server and sites need: that is nobody's cost, and goes to the forked process."""
    frames = site_frames(task, nodes=3, rows=300)
    with tempfile.TemporaryDirectory(prefix="fedapp-load-") as folder:
        simulation.simulate(task, sites=frames, config={**settings, "run-dir": folder})


if __name__ == "__main__":
    sys.exit(main())
