"""What is to be said beside every verdict about a noisy AUC: in log, summary and report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.roc_glm.deconvolution import MOST_COUNT_NOISE, MOST_NOISE

CAUTIONS = {
    "noise-too-large": f"the noise is beyond what noisy scores can bear (standard deviation above "
    f"{MOST_NOISE:g} of the range of scores) or noisy counts (above {MOST_COUNT_NOISE:g} of the "
    "smaller class): AUC, interval and test are not reliable",
    "biased": "the noise was left in the AUC (debias = false): it is biased towards 1/2, its "
    "interval is about the noisy scores, and a test says nothing of the AUC without noise",
}
"""Flags of a summary, and what they say."""


def cautions(summary: Mapping[str, Any]) -> list[str]:
    """What is to be said beside every verdict about the AUC, by the flags of a summary."""
    return [words for flag, words in CAUTIONS.items() if summary.get(flag)]
