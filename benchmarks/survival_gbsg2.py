"""DeepSurv trained over 5 sites, against a Cox model fitted to the pooled rows of the same split.

For every seed GBSG2 is split 80/20, stratified by event. The training rows are dealt to 5 sites at
random; `fedapp.simulation.simulate` trains on them, 30 rounds of 10 steps, and the saved model
predicts the test rows. Harrell's C of all test rows together is computed here, by lifelines, for
both models: what the product says of itself plays no part. The differences are paired by seed.

    python benchmarks/survival_gbsg2.py [--private] [--seeds 0-11] [--json FILE]

The exit code is 1 if the mean difference is below -.005.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
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
from lifelines import CoxPHFitter
from lifelines.datasets import load_gbsg2
from lifelines.utils import concordance_index
from scipy import stats
from sklearn.model_selection import train_test_split

from fedapp.fingerprint import code_fingerprint
from fedapp.simulation import simulate
from tasks.survival.predictor import SurvivalPredictor

LOWEST_MEAN_DIFFERENCE = -0.005
TIME, EVENT = "time", "cens"
ORDER = {
    "horTh": ["no", "yes"],
    "menostat": ["Pre", "Post"],
    "tgrade": ["I", "II", "III"],
}
VERSIONS_OF = ("flwr", "torch", "numpy", "lifelines", "scikit-learn")


@dataclass(frozen=True)
class Setting:
    """How the model is trained; everything else is the product's default.

    Attributes
    ----------
    n_sites, rounds, local_steps : int
        Of the federated run.
    private : bool
        Whether updates are clipped and noised, with the default clip norm and multiplier.
    """

    n_sites: int = 5
    rounds: int = 30
    local_steps: int = 10
    private: bool = False

    def config(self, run_dir: Path) -> dict[str, bool | int | float | str]:
        """Return the run configuration; no test rows are kept at the sites."""
        privatization: dict[str, bool | int | float | str] = (
            # Noise from the seed has the same distribution, and the table can be made again.
            {"seeded-noise": True} if self.private else {"survival.dp-mechanism": "none"}
        )
        return {
            "run-dir": str(run_dir),
            "survival.time": TIME,
            "survival.event": EVENT,
            "survival.rounds": self.rounds,
            "survival.local-steps": self.local_steps,
            "survival.test-fraction": 0.0,
            **privatization,
        }


@dataclass(frozen=True)
class SeedResult:
    """Both models on the test rows of one split.

    Attributes
    ----------
    seed : int
        Of the split, of the dealing to sites and of the run.
    federated, central : float
        Harrell's C of the pooled test rows.
    largest_noise_to_signal : float or None
        Over rounds and sites, as the server estimates it; infinite if some update could not be
        told from noise; None without privatization.
    seconds : float
        Wall time of the federated run.
    """

    seed: int
    federated: float
    central: float
    largest_noise_to_signal: float | None
    seconds: float

    @property
    def difference(self) -> float:
        """Federated less central."""
        return self.federated - self.central


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95 % confidence interval (Student's t)."""

    mean: float
    lower: float
    upper: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Interval of at least two values that are independent but for the data set."""
        mean, error = float(np.mean(values)), float(stats.sem(values))
        half_width = float(stats.t.ppf(0.975, len(values) - 1)) * error
        return cls(mean, mean - half_width, mean + half_width)


def gbsg2() -> pd.DataFrame:
    """Return GBSG2 with its three text columns as numbers in their declared order."""
    frame = load_gbsg2()
    codes = {name: frame[name].map(order.index) for name, order in ORDER.items()}
    return frame.assign(**codes)


def deal(frame: pd.DataFrame, *, n_sites: int, seed: int) -> list[pd.DataFrame]:
    """Deal rows to sites at random, as evenly as their number allows."""
    order = np.random.default_rng(seed).permutation(len(frame))
    return [frame.iloc[rows] for rows in np.array_split(order, n_sites)]


def compare(frame: pd.DataFrame, seed: int, setting: Setting) -> SeedResult:
    """Train both models on one split and evaluate them on its test rows."""
    train, test = train_test_split(frame, test_size=0.2, stratify=frame[EVENT], random_state=seed)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as run_dir:
        result = simulate(
            "survival",
            sites=deal(train, n_sites=setting.n_sites, seed=seed),
            config=setting.config(Path(run_dir)),
            seed=seed,
        )
        seconds = time.perf_counter() - began
        summary = result.summary
        if summary["status"] != "ok":
            raise RuntimeError(f"seed {seed}: {summary['status']}: {summary.get('reason', '')}")
        risk = SurvivalPredictor.load(result.run_folder / "model.npz").risk(test)
    cox = CoxPHFitter().fit(train, duration_col=TIME, event_col=EVENT)
    ratio = summary.get("noise-to-signal-max")
    return SeedResult(
        seed=seed,
        federated=harrell(test, risk),
        central=harrell(test, cox.predict_log_partial_hazard(test).to_numpy()),
        largest_noise_to_signal=math.inf if "noise-to-signal-unbounded" in summary else ratio,
        seconds=seconds,
    )


def harrell(test: pd.DataFrame, risk: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Return lifelines' concordance of risks with the rows' outcomes."""
    return float(concordance_index(test[TIME], -risk, test[EVENT]))


def table(results: Sequence[SeedResult]) -> str:
    """Return the results as text, one line a seed, and what they come to."""
    lines = ["seed  federated  central  difference  noise/signal  seconds"]
    for one in results:
        ratio = one.largest_noise_to_signal
        lines.append(
            f"{one.seed:4d}  {one.federated:9.4f}  {one.central:7.4f}  {one.difference:+10.4f}  "
            f"{'-' if ratio is None else format(ratio, '.2f'):>12}  {one.seconds:7.1f}"
        )
    federated, central = (
        float(np.mean([getattr(one, name) for one in results])) for name in ("federated", "central")
    )
    of = Interval.of([one.difference for one in results])
    lines += [
        f"mean  {federated:9.4f}  {central:7.4f}  {of.mean:+10.4f}",
        f"mean difference {of.mean:+.4f} (95 % CI {of.lower:+.4f} to {of.upper:+.4f}, "
        f"{len(results)} seeds)",
    ]
    ratios = [r for one in results if (r := one.largest_noise_to_signal) is not None]
    if ratios:
        lines.append(f"largest noise-to-signal of any site in any round: {max(ratios):.2f}")
    verdict = "holds" if holds(results) else "does NOT hold"
    lines.append(f"mean difference >= {LOWEST_MEAN_DIFFERENCE}: {verdict}")
    return "\n".join(lines)


def holds(results: Sequence[SeedResult]) -> bool:
    """Whether the mean difference is at least what is asked for."""
    return float(np.mean([one.difference for one in results])) >= LOWEST_MEAN_DIFFERENCE


def document(results: Sequence[SeedResult], setting: Setting) -> dict[str, Any]:
    """Return everything for a JSON file; a ratio without bound is the text ``"unbounded"``."""
    rows = [{**asdict(one), "difference": one.difference} for one in results]
    for row in rows:
        if row["largest_noise_to_signal"] == math.inf:
            row["largest_noise_to_signal"] = "unbounded"
    return {
        "benchmark": "survival_gbsg2",
        "setting": asdict(setting),
        "versions": {
            "fedapp": code_fingerprint(),
            **{name: version(name) for name in VERSIONS_OF},
        },
        "seeds": rows,
        "mean_difference": asdict(Interval.of([one.difference for one in results])),
        "lowest_mean_difference": LOWEST_MEAN_DIFFERENCE,
        "holds": holds(results),
    }


def seeds(text: str) -> list[int]:
    """Read seeds: numbers and ranges with both ends, such as ``0-11`` or ``0,3,7-9``."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"{text!r}: must be like 0-11 or 0,3,7-9")
        found += range(int(first), int(last if dash else first) + 1)
    if len(set(found)) < 2 or len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r}: must be two or more seeds, each once")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seeds", type=seeds, default=seeds("0-11"), help="default 0-11")
    parser.add_argument("--private", action="store_true", help="clip and noise the updates")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    chosen = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    frame, setting = gbsg2(), Setting(private=chosen.private)
    results = []
    for seed in chosen.seeds:
        results.append(compare(frame, seed, setting))
        print(f"seed {seed} done in {results[-1].seconds:.1f} s", file=sys.stderr, flush=True)
    print(table(results))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(document(results, setting), indent=2) + "\n")
    return 0 if holds(results) else 1


if __name__ == "__main__":
    sys.exit(main())
