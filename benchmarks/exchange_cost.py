"""Seconds of an exchange of ours against the bare Flower round trip, in one deployment.

A SuperLink and SuperNodes on this machine. In turn, so that other load hits all alike: a bare app
whose ServerApp calls `grid.send_and_receive` and whose ClientApp answers at once; the same with the
replies polled as ours are; and ROC-GLM, which imports nothing heavy, with its masked sums. Every
exchange counts, the first of a run (which brings the app to the nodes) included.

    python benchmarks/exchange_cost.py [--sites 3] [--repeats 2] [--json FILE]

Exits with 1 if an exchange of ours takes more than 1.3 times the bare `send_and_receive`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from deployed import CLIENT_APP, SERVER_APP, Federation, Watch, federation  # noqa: E402

from fedapp.run_folder import RunFolder  # noqa: E402

LARGEST_RATIO = 1.3
CONFIG = {
    "task": "roc-glm",
    "roc-glm.label": "label",
    "roc-glm.score": "score",
    "roc-glm.mode": "fisher",
    "roc-glm.tolerance": 0.9,  # two rounds: more exchanges a run to average over
}


@dataclass
class Measured:
    """Seconds of exchanges, by what was run, and what the nodes' processes took."""

    sites: int
    bare: list[float] = field(default_factory=list)
    bare_polled: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    bytes: int = 0
    client_app_bytes: int = 0
    server_app_bytes: int = 0
    load: tuple[float, ...] = ()

    @property
    def ratio(self) -> float:
        """Mean seconds of an exchange of ours over those of the bare round trip."""
        return statistics.mean(self.ours) / statistics.mean(self.bare)

    @property
    def polled_ratio(self) -> float:
        """The same with the bare round trip polled as ours."""
        return statistics.mean(self.ours) / statistics.mean(self.bare_polled)


def write_sites(folder: Path, *, sites: int, rows: int) -> list[dict[str, str]]:
    """Write labels and scores of every site; return the node configurations."""
    generator = np.random.default_rng(0)
    nodes = []
    for number in range(sites):
        labels = generator.integers(0, 2, rows)
        scores = 1 / (1 + np.exp(-generator.normal(labels - 0.5)))
        path = folder / f"site-{number}.csv"
        pd.DataFrame({"label": labels, "score": scores}).to_csv(path, index=False)
        nodes.append({"site-name": f"site-{number}", "data-path": str(path)})
    return nodes


def measure(base: Path, *, sites: int, rows: int, repeats: int) -> Measured:
    """Run all three in turn."""
    found = Measured(sites)
    nodes = write_sites(base, sites=sites, rows=rows)
    with federation(base, nodes) as deployed, Watch() as memory:
        for _ in range(repeats):
            ours = run_ours(deployed, found)
            found.bare += deployed.run_bare(exchanges=len(ours), own_polling=False)
            found.bare_polled += deployed.run_bare(exchanges=len(ours), own_polling=True)
    found.client_app_bytes = memory.largest(CLIENT_APP)
    found.server_app_bytes = memory.largest(SERVER_APP)
    found.load = os.getloadavg()
    return found


def run_ours(deployed: Federation, found: Measured) -> list[float]:
    """Seconds of every exchange of one run, also noted in `found`."""
    record = RunFolder.open(deployed.run_task({**CONFIG, "min-sites": deployed.num_sites})).read()
    if record.status["status"] != "ok":
        raise RuntimeError(f"the run did not end well: {record.status}")
    seconds: dict[int, float] = {}
    steps: dict[int, str] = {}
    for row in record.ledger:
        number = row["exchange"]
        seconds[number] = max(seconds.get(number, 0.0), row.get("seconds", 0.0))
        steps[number] = row["step"]
    found.ours += seconds.values()
    found.steps += [steps[number] for number in seconds]
    found.bytes = sum(row["bytes"] for row in record.ledger if not row["sealed"])
    return list(seconds.values())


def report(found: Measured) -> str:
    """The table that is printed."""
    lines = [f"{found.sites} sites; load of the machine {found.load[0]:.1f} (2 cores: 2 is full)"]
    for words, seconds in (
        ("bare send_and_receive", found.bare),
        ("bare, polled as ours", found.bare_polled),
        ("roc-glm", found.ours),
    ):
        each = ", ".join(f"{value:.1f}" for value in seconds)
        lines.append(f"{words:<24}{statistics.mean(seconds):6.2f} s an exchange ({each})")
    lines.append(f"steps: {', '.join(dict.fromkeys(found.steps))}; {found.bytes:,} bytes a run")
    lines.append(
        f"ratio {found.ratio:.2f} (at most {LARGEST_RATIO}), "
        f"to the bare one polled as ours {found.polled_ratio:.2f}"
    )
    peaks = (found.client_app_bytes / 1e6, found.server_app_bytes / 1e6)
    lines.append(f"peak memory: ClientApp {peaks[0]:.0f} MB, ServerApp {peaks[1]:.0f} MB")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and say whether the bound holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--rows", type=int, default=500, help="of a site")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fedapp-exchanges-") as folder:
        base = Path(folder)
        found = measure(base, sites=chosen.sites, rows=chosen.rows, repeats=chosen.repeats)
    print(report(found))
    if chosen.json:
        ratios = {"ratio": found.ratio, "polled-ratio": found.polled_ratio}
        chosen.json.write_text(json.dumps({**asdict(found), **ratios}, indent=2) + "\n")
    return 0 if found.ratio <= LARGEST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
