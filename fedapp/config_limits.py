"""Limits of the run configuration that no single key's range states.

What passes here can be computed: networks that fit into a message, noise that 32-bit numbers can
hold, confidence intervals whose normal quantile is finite.
"""

from __future__ import annotations

from tasks.roc_glm.config import RocGlmConfig
from tasks.survival.config import SurvivalConfig
from tasks.survival.generators import GENERATORS, design_faults

MOST_UNITS = 4096
MOST_LAYERS = 16
LARGEST_NOISE = 1e37
"""Noise is added to 32-bit numbers, the largest of which is 3e38."""
HIGHEST_CONFIDENCE = 0.999999


def combination_faults(run_dir: str, survival: SurvivalConfig, roc_glm: RocGlmConfig) -> list[str]:
    """Return what is wrong with keys that are each within their range, a line a fault."""
    faults = []
    if "\0" in run_dir:
        faults.append(f"run-dir = {run_dir!r}: must be a path, without a null character")
    if survival.event_value == survival.censored_value:
        faults.append(
            f"survival.event-value and survival.censored-value: both {survival.event_value!r}; "
            "they must differ"
        )
    faults += _layer_faults(survival.hidden_layers)
    faults += _design_faults(survival)
    faults += _noise_faults(survival)
    if survival.confidence_level > HIGHEST_CONFIDENCE:
        faults.append(
            f"survival.confidence-level = {survival.confidence_level!r}: must be at most "
            f"{HIGHEST_CONFIDENCE}"
        )
    if roc_glm.alpha < 1 - HIGHEST_CONFIDENCE:
        faults.append(
            f"roc-glm.alpha = {roc_glm.alpha!r}: must be at least {1 - HIGHEST_CONFIDENCE:g}"
        )
    return faults


def _layer_faults(layers: str) -> list[str]:
    allowed = f"must be 1 to {MOST_LAYERS} layers of 1 to {MOST_UNITS} units each"
    # The length first: Python refuses to read numbers of thousands of digits.
    sizes = [units.lstrip("0") for units in layers.split(",")]
    fits = all(0 < len(size) <= 4 and int(size) <= MOST_UNITS for size in sizes)
    if fits and len(sizes) <= MOST_LAYERS:
        return []
    shown = layers if len(layers) <= 80 else f"{layers[:80]}..."
    return [f"survival.hidden-layers = {shown!r}: {allowed}"]


def _design_faults(survival: SurvivalConfig) -> list[str]:
    if survival.data not in GENERATORS:
        return []
    if survival.censoring_rate and survival.censoring_fraction:
        return [
            f"survival.censoring-rate = {survival.censoring_rate!r}, censoring-fraction = "
            f"{survival.censoring_fraction!r}: one of them must be 0"
        ]
    faults = design_faults(survival.data, survival.design)  # each begins with an attribute's name
    named = (fault.split(" ", 1) for fault in faults)
    return [f"survival.{name.replace('_', '-')} {words}" for name, words in named]


def _noise_faults(survival: SurvivalConfig) -> list[str]:
    clip, sensitivity = survival.dp_clip_norm, survival.dp_sensitivity
    if survival.dp_mechanism == "none":
        return []
    # Not by survival.privatization, which cannot hold a scale that is not finite.
    if survival.dp_mechanism == "gaussian":
        scale = sensitivity * clip * survival.dp_noise_multiplier
        product = "dp-noise-multiplier x dp-sensitivity x dp-clip-norm"
        driver = f"dp-noise-multiplier = {survival.dp_noise_multiplier!r}"
    else:
        scale = sensitivity * clip / survival.dp_epsilon
        product = "dp-sensitivity x dp-clip-norm / dp-epsilon"
        driver = f"dp-epsilon = {survival.dp_epsilon!r}"
    if scale <= LARGEST_NOISE:  # false of what is not a number, too
        return []
    return [
        f"survival.dp-clip-norm = {clip!r}, dp-sensitivity = {sensitivity!r}, {driver}: "
        f"the scale of the noise, {product}, must be at most {LARGEST_NOISE:g}"
    ]
