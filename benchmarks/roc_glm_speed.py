"""Time and memory of a site of the ROC-GLM task, beside the long-form probit that it replaces.

A site with n1 = n0 = 1e6 scores and n_T = 100 thresholds: its counts, placement values, moments and
w1, and the fit at the server. The long form (n1 x n_T responses of 0 and 1, Fisher scoring on all
of them) runs at n_T = 10, since more does not fit in memory.

    python benchmarks/roc_glm_speed.py [--rows 1000000] [--json FILE]

Exits with 1 if a limit is missed: .5 s, 500 MB, 500 times faster than the long form.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from scipy.special import expit

from tasks.glm.families import site_sums, starting_sums
from tasks.glm.scoring import FisherIteration, GlmFit
from tasks.roc_glm.calibration import calibration_sums
from tasks.roc_glm.counts import count_in_cells, equal_cuts
from tasks.roc_glm.moments import Moments
from tasks.roc_glm.probit import RocGlmFit, fit_roc_glm, probit_design
from tasks.roc_glm.rows import RocRows, read_rows
from tasks.roc_glm.survivor import FloatArray, IntArray, ScoreSurvivor, threshold_counts

MAX_SECONDS = 0.5
MAX_MEGABYTES = 500.0
MIN_SPEEDUP = 500.0

T = TypeVar("T")


class PeakMemory:
    """Resident memory of this process above its start, sampled every 5 milliseconds."""

    def __enter__(self) -> PeakMemory:
        self._start = self._peak = self._resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def megabytes(self) -> float:
        return (self._peak - self._start) / 1e6

    @staticmethod
    def _resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self._peak = max(self._peak, self._resident())


def site_work(rows: RocRows, s0: ScoreSurvivor, s1: ScoreSurvivor, num_thresholds: int) -> IntArray:
    """What a site computes after its data are read: release, w1, moments, calibration."""
    count_in_cells(rows, equal_cuts(50))
    of_positives = s0.numerators(rows.positive)
    Moments.of(of_positives / (2.0 * s0.total))
    Moments.of(s1.numerators(rows.negative) / (2.0 * s1.total))
    calibration_sums(rows, privacy_level=5)
    return threshold_counts(of_positives, total=s0.total, num_thresholds=num_thresholds)


def counts_probit(numerators: IntArray, total: int, num_thresholds: int) -> RocGlmFit:
    """ROC-GLM of the positives' placement values by way of the counts."""
    w1 = threshold_counts(numerators, total=total, num_thresholds=num_thresholds)
    return fit_roc_glm(w1, len(numerators))


def long_probit(numerators: IntArray, total: int, num_thresholds: int) -> GlmFit:
    """The same from all n1 x n_T responses, stopped as R's glm does."""
    limits = np.arange(1, num_thresholds + 1) * 2 * total
    response = (numerators[:, None] * (num_thresholds + 1) <= limits).ravel().astype(np.float64)
    design = np.tile(probit_design(num_thresholds), (len(numerators), 1))
    iteration = FisherIteration("probit")
    while not iteration.finished:
        theta: FloatArray | None = iteration.coefficients
        iteration.advance(
            starting_sums("probit", design, response)
            if theta is None
            else site_sums("probit", design, response, theta)
        )
    return iteration.fit()


def timed(work: Callable[[], T]) -> tuple[float, float, T]:
    """Seconds, peak megabytes and result."""
    with PeakMemory() as memory:
        began = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - began
    return seconds, memory.megabytes, result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="positives, and negatives")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args(arguments)
    number = options.rows
    generator = np.random.default_rng(0)
    scores = expit(generator.normal(np.repeat([0.0, 1.0], number), 1.0))
    labels = np.repeat([0, 1], number)

    read_seconds, read_megabytes, (rows, _) = timed(
        lambda: read_rows(labels, scores, positive_label="1")
    )
    print(f"decode and sort {2 * number} rows: {read_seconds:.3f} s, {read_megabytes:.0f} MB")
    s0, s1 = ScoreSurvivor.of(rows.negative), ScoreSurvivor.of(rows.positive)
    runs = [timed(lambda: site_work(rows, s0, s1, 100)) for _ in range(3)]
    seconds, megabytes, w1 = min(run[0] for run in runs), max(run[1] for run in runs), runs[0][2]
    print(f"site work, n1 = {number}, n_T = 100: {seconds:.3f} s, {megabytes:.0f} MB")
    fit_seconds, _, _ = timed(lambda: fit_roc_glm(w1, number))
    print(f"fit at the server: {fit_seconds:.4f} s")

    numerators = s0.numerators(rows.positive)
    by_counts = [timed(lambda: counts_probit(numerators, s0.total, 10)) for _ in range(5)]
    fast, fitted = min(run[0] for run in by_counts), by_counts[0][2]
    slow, long_megabytes, long = timed(lambda: long_probit(numerators, s0.total, 10))
    agree = float(np.max(np.abs(long.coefficients - [fitted.gamma_1, fitted.gamma_2])))
    print(
        f"n_T = 10: long form {slow:.1f} s, {long_megabytes:.0f} MB; counts {fast:.4f} s; "
        f"{slow / fast:.0f} times faster; gamma differs by {agree:.1e}"
    )
    met = (
        read_seconds + seconds < MAX_SECONDS
        and read_megabytes + megabytes < MAX_MEGABYTES
        and slow / fast > MIN_SPEEDUP
    )
    if options.json is not None:
        numbers = {
            "rows": number,
            "decode-seconds": read_seconds,
            "site-seconds": seconds,
            "megabytes": read_megabytes + megabytes,
            "fit-seconds": fit_seconds,
            "counts-seconds": fast,
            "long-form-seconds": slow,
            "long-form-megabytes": long_megabytes,
            "gamma-difference": agree,
            "met": bool(met),
        }
        options.json.write_text(json.dumps(numbers, indent=1) + "\n")
    print(f"limits {MAX_SECONDS} s, {MAX_MEGABYTES:.0f} MB, {MIN_SPEEDUP:.0f} times: met: {met}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
