"""What may leave a site of its survivor functions, by name; light enough for the configuration."""

from __future__ import annotations

from typing import Literal

Release = Literal[
    "secure-counts", "binned", "exact", "noisy-scores", "noisy-counts", "noisy-histogram"
]
Mechanism = Literal["analytic", "classic"]
NOISY_RELEASES: tuple[Release, ...] = ("noisy-scores", "noisy-counts", "noisy-histogram")
