"""Seconds, exchanges, bytes and memory by the number of sites, and the slopes of them.

    python benchmarks/load.py --nodes 5,10,25,50,100              # in this process
    python benchmarks/load.py --runtime ray --nodes 100           # SuperNodes of the simulation
    python benchmarks/load.py --runtime deployed --nodes 8        # a process a message

`--task` is `roc-glm` (masked sums), `survival` (2 rounds of training) or `vertical-xgboost` (one
tree of depth 2, 5 columns a party, labels in turn, sums not encrypted). Each site has `--rows`
rows. In this process the processor time of sites and of the server is told apart; bytes are those
of a node in an exchange, both directions. Under the other runtimes memory is that of all processes
of the federation together, and of the largest ClientApp and ServerApp.

Exits with 1 if a run does not end well.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from deployed import (  # noqa: E402
    CLIENT_APP,
    SERVER_APP,
    PeakMemory,
    federation,
    simulated_run,
)

from fedapp import simulation  # noqa: E402
from fedapp.run_folder import RunFolder, RunRecord  # noqa: E402
from fedapp.site_data import write_site_files  # noqa: E402

CONFIGS: dict[str, dict[str, Any]] = {
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
    seconds : float
        Wall seconds of the exchanges.
    server_cpu, site_cpu : float or None
        Processor seconds of the server, and of all sites together; in this process only.
    bytes_by_step : dict of str to float
        Bytes of a node in an exchange of the step, both directions.
    peaks : dict of str to int
        Bytes of memory by what was measured.
    """

    task: str
    runtime: str
    nodes: int
    rows: int
    exchanges: int
    seconds: float
    server_cpu: float | None
    site_cpu: float | None
    bytes_by_step: dict[str, float]
    peaks: dict[str, int]


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


@contextmanager
def site_time() -> Iterator[list[tuple[float, float]]]:
    """When, in processor time, each message of an InProcessGrid began and ended to be handled."""
    spent: list[tuple[float, float]] = []
    handle = simulation.InProcessGrid._handle

    def timed(grid: simulation.InProcessGrid, message: Any) -> Any:
        began = time.process_time()
        try:
            return handle(grid, message)
        finally:
            spent.append((began, time.process_time()))

    simulation.InProcessGrid._handle = timed  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        simulation.InProcessGrid._handle = handle  # type: ignore[method-assign]


def run_in_process(task: str, *, nodes: int, rows: int) -> Load:
    """Run in this process."""
    frames = site_frames(task, nodes=nodes, rows=rows)
    with tempfile.TemporaryDirectory(prefix="fedapp-load-") as folder, site_time() as spent:
        config = {**CONFIGS[task], "run-dir": folder}
        record = RunFolder.open(simulation.simulate(task, sites=frames, config=config).run_folder)
        result = record.read()
    sites = sum(end - begin for begin, end in spent)
    # From the first message to the last: neither reading frames nor writing files is counted.
    total = spent[-1][1] - spent[0][0]
    return _load(task, "in-process", rows, result, total=total, sites=sites)


def run_with_ray(task: str, *, nodes: int, rows: int) -> Load:
    """Run by `flwr run` with so many simulated SuperNodes."""
    with tempfile.TemporaryDirectory(prefix="fedapp-load-") as folder:
        base = Path(folder)
        data = base / "sites"
        data.mkdir()
        write_site_files(site_frames(task, nodes=nodes, rows=rows), data)
        config = {**CONFIGS[task], "task": task, f"{task}.data": str(data)}
        with PeakMemory() as memory:
            run = simulated_run(base, config, nodes=nodes)
        return _load(task, "ray", rows, RunFolder.open(run).read(), memory=memory)


def run_deployed(task: str, *, nodes: int, rows: int) -> Load:
    """Run on a SuperLink and so many SuperNodes."""
    with tempfile.TemporaryDirectory(prefix="fedapp-load-") as folder:
        base, configs = Path(folder), []
        for number, frame in enumerate(site_frames(task, nodes=nodes, rows=rows)):
            path = base / f"site-{number}.csv"
            frame.to_csv(path, index=False)
            node = {"site-name": f"site-{number}", "data-path": str(path)}
            configs.append({**node, "model-dir": str(base / f"models-{number}")})
        with PeakMemory() as memory, federation(base, configs) as deployed:
            run = deployed.run_task({**CONFIGS[task], "task": task, "min-sites": nodes})
        return _load(task, "deployed", rows, RunFolder.open(run).read(), memory=memory)


RUNTIMES = {"in-process": run_in_process, "ray": run_with_ray, "deployed": run_deployed}


def _load(
    task: str,
    runtime: str,
    rows: int,
    record: RunRecord,
    *,
    total: float | None = None,
    sites: float | None = None,
    memory: PeakMemory | None = None,
) -> Load:
    if record.status["status"] != "ok":
        raise RuntimeError(f"the run did not end well: {record.status}")
    messages = [row for row in record.ledger if not row["sealed"]]
    longest: dict[int, float] = {}
    steps: dict[int, str] = {}
    for row in messages:
        number = row["exchange"]
        longest[number] = max(longest.get(number, 0.0), row.get("seconds", 0.0))
        steps[number] = row["step"]
    nodes = len({row["receiver"] for row in messages} - {"server"})
    by_step = {
        step: sum(row["bytes"] for row in messages if row["step"] == step)
        / (nodes * sum(other == step for other in steps.values()))
        for step in dict.fromkeys(steps.values())
    }
    peaks = {}
    if memory is not None:
        peaks = {kind: memory.largest(kind) for kind in (CLIENT_APP, SERVER_APP)}
        peaks["all processes"] = memory.total
    return Load(
        task=task,
        runtime=runtime,
        nodes=nodes,
        rows=rows,
        exchanges=len(steps),
        seconds=sum(longest.values()),
        server_cpu=None if total is None or sites is None else total - sites,
        site_cpu=sites,
        bytes_by_step=by_step,
        peaks=peaks,
    )


def slopes(loads: Sequence[Load]) -> dict[str, float]:
    """How costs grow from the least to the most nodes.

    Returns
    -------
    dict
        ``server-ms-per-node-exchange`` and ``site-ms-per-node-exchange``: processor milliseconds
        of one more node in an exchange. ``bytes-per-node.STEP``: bytes by which the messages of
        *each* node grow with one more node.
    """
    low, high = loads[0], loads[-1]
    more = high.nodes - low.nodes
    found: dict[str, float] = {}
    for name, of in (("server", "server_cpu"), ("site", "site_cpu")):
        before, after = getattr(low, of), getattr(high, of)
        if before is not None and after is not None and more:
            found[f"{name}-ms-per-node-exchange"] = 1e3 * (after - before) / more / high.exchanges
    for step, size in high.bytes_by_step.items():
        if more:
            found[f"bytes-per-node.{step}"] = (size - low.bytes_by_step[step]) / more
    return found


def report(load: Load) -> str:
    """The line of a run."""
    words = [
        f"{load.task}, {load.runtime}: {load.nodes} nodes x {load.rows} rows",
        f"{load.exchanges} exchanges, {load.seconds:.1f} s in them",
    ]
    if load.server_cpu is not None and load.site_cpu is not None:
        each = 1e3 * load.site_cpu / load.nodes / load.exchanges
        words.append(
            f"CPU: server {load.server_cpu:.2f} s, sites {load.site_cpu:.2f} s "
            f"({each:.1f} ms a site and exchange)"
        )
    sizes = ", ".join(f"{step} {size:,.0f}" for step, size in load.bytes_by_step.items())
    words.append(f"bytes a node and exchange: {sizes}")
    if load.peaks:
        sizes = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in load.peaks.items())
        words.append(f"peak memory: {sizes}")
    return "; ".join(words)


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and say whether all runs ended well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=sorted(CONFIGS), default="roc-glm")
    parser.add_argument("--runtime", choices=sorted(RUNTIMES), default="in-process")
    parser.add_argument("--nodes", default="5,10,25,50", help="numbers of nodes, ascending")
    parser.add_argument("--rows", type=int, default=60, help="of a site")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    loads = []
    run_in_process(chosen.task, nodes=3, rows=chosen.rows)  # imports are nobody's cost
    for nodes in map(int, chosen.nodes.split(",")):
        try:
            loads.append(RUNTIMES[chosen.runtime](chosen.task, nodes=nodes, rows=chosen.rows))
        except RuntimeError as error:
            print(f"{nodes} nodes: {error}")
            return 1
        print(report(loads[-1]), flush=True)
    found: Mapping[str, float] = slopes(loads)
    for name, value in found.items():
        print(f"{name}: {value:.3f}")
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if chosen.json:
        document = {"loads": [asdict(load) for load in loads], "slopes": found}
        chosen.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
