"""Seeds of a benchmark, and the interval of a mean over them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


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

    @property
    def half_width(self) -> float:
        """Half the length of the interval."""
        return (self.upper - self.lower) / 2


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
