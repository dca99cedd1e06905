"""How long one fit in this process takes, on the setting of federated-survival's page.

SDGM1 with 200 rows, 5 features and censoring rate .4; DeepSurv, 3 clients, 5 rounds of 3 steps,
privatized updates; one thread, after imports. Beside it, in turn with it so that other load on the
machine hits both: as many optimizer steps of pycox's own training loop, without any federation.
Then one run with 100 clients, and the peer where another Python has it.

    python benchmarks/survival_fit_time.py [--repeats 15] [--peer-python PATH] [--json FILE]

The exit code is 1 if a fit takes more than .35 s of wall time: the median, less what other load on
the machine adds, which is seen in the reference.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torchtuples
from pycox.models import CoxPH
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torchtuples.practical import MLPVanilla

from fedapp.fingerprint import code_fingerprint
from fedapp.simulation import SimulationResult, simulate

LONGEST_FIT = 0.35
TIME, EVENT = "time", "event"
VERSIONS_OF = ("flwr", "torch", "numpy", "pycox")


@dataclass(frozen=True)
class Setting:
    """Size of data and training; everything else is the product's default.

    ``n_rows`` is that of all clients together, ``censoring_rate`` the rate of the exponential
    censoring times: at .4 about .3 of the rows are censored.
    """

    n_rows: int = 200
    n_features: int = 5
    censoring_rate: float = 0.4
    n_clients: int = 3
    rounds: int = 5
    local_steps: int = 3


@dataclass(frozen=True)
class Timing:
    """Seconds over repeats; CPU seconds are those of all threads of the process."""

    best_wall: float
    median_wall: float
    best_cpu: float
    median_cpu: float

    @classmethod
    def of(cls, samples: Sequence[tuple[float, float]]) -> Timing:
        """Best and median of (wall, CPU) pairs."""
        wall, cpu = zip(*samples, strict=True)
        return cls(min(wall), statistics.median(wall), min(cpu), statistics.median(cpu))


@dataclass(frozen=True)
class FitTimes:
    """Times of `fit` (product) and of `central_fit` (reference), measured in turn.

    The ratios are medians of product / reference over pairs; ``unloaded_wall`` see `unloaded`;
    ``first_wall`` is the first fit in the process, with what is imported on first use; ``censored``
    a share of the rows.
    """

    product: Timing
    reference: Timing
    wall_ratio: float
    cpu_ratio: float
    unloaded_wall: float
    first_wall: float
    exchanges: int
    censored: float

    @property
    def holds(self) -> bool:
        """Whether a fit is as fast as it has to be."""
        return self.unloaded_wall <= LONGEST_FIT


@dataclass(frozen=True)
class ManyClients:
    """One run with many clients: seconds, exchanges, bytes in both directions."""

    n_clients: int
    rows_each: int
    wall: float
    cpu: float
    exchanges: int
    bytes: int


@dataclass(frozen=True)
class Peer:
    """Fits of federated-survival, and its version."""

    version: str
    timing: Timing


def sdgm1(setting: Setting, *, seed: int) -> pd.DataFrame:
    """Draw rows of SDGM1: exponential event times with proportional hazards.

    Features are normal with correlation .6^|i - j|; T has mean exp(.1 x sum of the second half of
    the features), C the rate ``censoring_rate``.
    """
    rng = np.random.default_rng(seed)
    p, n = setting.n_features, setting.n_rows
    covariance = 0.6 ** np.abs(np.subtract.outer(np.arange(p), np.arange(p)))
    features = rng.multivariate_normal(np.zeros(p), covariance, size=n)
    event_time = rng.exponential(np.exp(0.1 * features[:, p // 2 :].sum(axis=1)))
    censoring_time = rng.exponential(1 / setting.censoring_rate, size=n)
    frame = pd.DataFrame(features, columns=[f"x{i}" for i in range(1, p + 1)])
    frame[TIME] = np.minimum(event_time, censoring_time)
    frame[EVENT] = (event_time <= censoring_time).astype(int)
    return frame


def fit(frame: pd.DataFrame, setting: Setting, *, seed: int) -> SimulationResult:
    """Train over clients that share the rows, and check that it was done as it should be."""
    order = np.random.default_rng(seed).permutation(len(frame))
    with tempfile.TemporaryDirectory() as run_dir:
        result = simulate(
            "survival",
            sites=[frame.iloc[rows] for rows in np.array_split(order, setting.n_clients)],
            config={
                "run-dir": run_dir,
                "survival.rounds": setting.rounds,
                "survival.local-steps": setting.local_steps,
            },
            seed=seed,
        )
    summary = result.summary
    if summary["status"] != "ok" or summary["n-sites"] != setting.n_clients:
        raise RuntimeError(f"the run did not end well: {summary}")
    if result.exchanges != setting.rounds + 4:
        raise RuntimeError(f"{result.exchanges} exchanges, not rounds + 4 = {setting.rounds + 4}")
    return result


def central_fit(frame: pd.DataFrame, setting: Setting, *, seed: int) -> None:
    """Make the same number of steps, on as many rows as a client has, by pycox alone."""
    torch.manual_seed(seed)
    rows = frame.head(setting.n_rows // setting.n_clients)
    network = MLPVanilla(
        setting.n_features, [32, 32], 1, batch_norm=False, dropout=0.3, output_bias=False
    )
    CoxPH(network, torchtuples.optim.Adam(0.003)).fit(
        rows.drop(columns=[TIME, EVENT]).to_numpy(dtype=np.float32),
        (rows[TIME].to_numpy(dtype=np.float32), rows[EVENT].to_numpy(dtype=np.float32)),
        batch_size=len(rows),  # an epoch is a step
        epochs=setting.n_clients * setting.rounds * setting.local_steps,
        verbose=False,
    )


def fit_times(setting: Setting, *, repeats: int) -> FitTimes:
    """Time fits, in turn with the reference, after one of each."""
    frame = sdgm1(setting, seed=0)
    with one_thread():
        first_wall, _ = timed(partial(fit, frame, setting, seed=0))
        timed(partial(central_fit, frame, setting, seed=0))
        product, reference = [], []
        for seed in range(1, repeats + 1):
            product.append(timed(partial(fit, frame, setting, seed=seed)))
            reference.append(timed(partial(central_fit, frame, setting, seed=seed)))
        exchanges = fit(frame, setting, seed=0).exchanges
    wall_ratio, cpu_ratio = (
        statistics.median(
            ours[clock] / its[clock] for ours, its in zip(product, reference, strict=True)
        )
        for clock in (0, 1)
    )
    return FitTimes(
        product=Timing.of(product),
        reference=Timing.of(reference),
        wall_ratio=wall_ratio,
        cpu_ratio=cpu_ratio,
        unloaded_wall=unloaded(product, reference),
        first_wall=first_wall,
        exchanges=exchanges,
        censored=float(1 - frame[EVENT].mean()),
    )


def unloaded(
    product: Sequence[tuple[float, float]], reference: Sequence[tuple[float, float]]
) -> float:
    """Return the product's median wall seconds, each shortened as its neighbour was lengthened.

    The reference never waits, so what its wall time exceeds its CPU time by is other load. Where
    the product waits, that stays in the result.
    """
    pairs = zip(product, reference, strict=True)
    return statistics.median(ours[0] * min(1.0, its[1] / its[0]) for ours, its in pairs)


def many_clients(setting: Setting, *, n_clients: int, rows_each: int) -> ManyClients:
    """Run once with many clients; enough rows each that all are evaluated too."""
    larger = replace(setting, n_clients=n_clients, n_rows=n_clients * rows_each)
    frame = sdgm1(larger, seed=0)
    results: list[SimulationResult] = []
    with one_thread():
        wall, cpu = timed(lambda: results.append(fit(frame, larger, seed=0)))
    (result,) = results
    sent = int(result.summary["bytes"])
    return ManyClients(n_clients, rows_each, wall, cpu, result.exchanges, sent)


PEER_PROGRAM = """
import json, sys, time
from importlib.metadata import version
from federated_survival import FederatedSurvival
import pandas as pd
import torch

torch.set_num_threads(1)
setting = json.loads(sys.argv[2])
frame = pd.read_csv(sys.argv[1])

def fit(seed):
    FederatedSurvival(
        model="DeepSurv",
        n_clients=setting["n_clients"],
        global_rounds=setting["rounds"],
        local_steps=setting["local_steps"],
        random_state=seed,
        use_differential_privacy=True,
        dp_mechanism="gaussian",
        dp_clip_norm=0.5,
        dp_noise_multiplier=0.05,
    ).fit(frame, duration_col="time", event_col="event")

fit(0)
samples = []
for seed in range(1, setting["repeats"] + 1):
    wall, cpu = time.perf_counter(), time.process_time()
    fit(seed)
    samples.append((time.perf_counter() - wall, time.process_time() - cpu))
print(json.dumps({"version": version("federated-survival"), "samples": samples}))
"""


def peer_times(python: Path, setting: Setting, *, repeats: int) -> Peer:
    """Time federated-survival on the same rows in another Python.

    Raises
    ------
    RuntimeError
        If that Python does not have it, or it fails.
    """
    one = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.csv"
        sdgm1(setting, seed=0).to_csv(rows, index=False)
        numbers = json.dumps({**asdict(setting), "repeats": repeats})
        ended = subprocess.run(
            [str(python), "-c", PEER_PROGRAM, str(rows), numbers],
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, **one},
            check=False,
        )
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"federated-survival did not run in {python.name}: {last}")
    answer = json.loads(ended.stdout.strip().splitlines()[-1])
    return Peer(answer["version"], Timing.of([(wall, cpu) for wall, cpu in answer["samples"]]))


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread in torch, BLAS and OpenMP; the former numbers after."""
    before = torch.get_num_threads()
    with threadpool_limits(limits=1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def report(setting: Setting, fits: FitTimes, peer: Peer | str | None) -> str:
    """Return the times as text."""
    steps = setting.n_clients * setting.rounds * setting.local_steps
    rows = [("fedapp, simulate", fits.product), (f"pycox, {steps} steps", fits.reference)]
    if isinstance(peer, Peer):
        rows.append((f"federated-survival {peer.version}", peer.timing))
    lines = [
        f"SDGM1, {setting.n_rows} rows ({fits.censored:.0%} censored), {setting.n_clients} "
        f"clients, {setting.rounds} rounds x {setting.local_steps} steps, one thread; seconds:",
        f"{'':26}  best wall  median wall  best CPU  median CPU",
    ]
    for name, t in rows:
        wall, cpu = (t.best_wall, t.median_wall), (t.best_cpu, t.median_cpu)
        lines.append(f"{name:26}  {wall[0]:9.3f}  {wall[1]:11.3f}  {cpu[0]:8.3f}  {cpu[1]:10.3f}")
    lines += [
        f"fedapp / pycox, median of pairs: wall {fits.wall_ratio:.2f}, CPU {fits.cpu_ratio:.2f}",
        f"first fit of the process: {fits.first_wall:.3f} s; exchanges: {fits.exchanges}",
        f"median wall without other load: {fits.unloaded_wall:.3f} s; <= {LONGEST_FIT} s: "
        f"{'holds' if fits.holds else 'does NOT hold'}",
    ]
    return "\n".join([*lines, peer] if isinstance(peer, str) else lines)


def document(
    setting: Setting, fits: FitTimes, many: ManyClients, peer: Peer | str | None
) -> dict[str, Any]:
    """Return everything for a JSON file; in place of a peer that did not run, why."""
    return {
        "benchmark": "survival_fit_time",
        "setting": asdict(setting),
        "versions": {
            "fedapp": code_fingerprint(),
            **{name: version(name) for name in VERSIONS_OF},
        },
        "fit": asdict(fits),
        "longest_fit": LONGEST_FIT,
        "holds": fits.holds,
        "many_clients": asdict(many),
        "peer": asdict(peer) if isinstance(peer, Peer) else peer,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=15, help="fits to time; default 15")
    parser.add_argument("--clients", type=int, default=100, help="of the large run; default 100")
    parser.add_argument("--peer-python", type=Path, help="Python that has federated-survival")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    chosen = parser.parse_args(arguments)
    if chosen.repeats < 1 or chosen.clients < 2:
        parser.error("--repeats must be 1 or more, --clients 2 or more")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    setting = Setting()
    fits = fit_times(setting, repeats=chosen.repeats)
    peer: Peer | str | None = None
    if chosen.peer_python is not None:
        try:
            peer = peer_times(chosen.peer_python, setting, repeats=chosen.repeats)
        except RuntimeError as error:
            peer = str(error)
    print(report(setting, fits, peer))
    many = many_clients(setting, n_clients=chosen.clients, rows_each=40)
    print(
        f"{many.n_clients} clients of {many.rows_each} rows: {many.wall:.1f} s "
        f"({many.cpu:.1f} s CPU), "
        f"{many.exchanges} exchanges, {many.bytes:,} bytes"
    )
    if chosen.json is not None:
        numbers = document(setting, fits, many, peer)
        chosen.json.write_text(json.dumps(numbers, indent=2) + "\n")
    return 0 if fits.holds else 1


if __name__ == "__main__":
    sys.exit(main())
