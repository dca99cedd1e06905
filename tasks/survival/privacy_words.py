"""What the settings of privatization do, which of them do nothing, and what they are worth."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from tasks.privacy.mechanisms import EXPONENTIAL, GAUSSIAN, LAPLACE
from tasks.survival.config import SurvivalConfig

NOISE_DRIVERS = {
    GAUSSIAN: "dp_noise_multiplier",
    LAPLACE: "dp_epsilon",
    EXPONENTIAL: "dp_epsilon",
}
"""The setting that a mechanism's strength depends on."""

INACTIVE_PARAMETERS = {
    GAUSSIAN: ("dp_epsilon", "dp_delta"),
    LAPLACE: ("dp_noise_multiplier", "dp_delta"),
    EXPONENTIAL: ("dp_noise_multiplier", "dp_delta"),
}
"""The settings that a mechanism ignores."""

DEFAULTS: Mapping[str, Any] = {
    name: field.default
    for name, field in SurvivalConfig.model_fields.items()
    if name.startswith("dp_")
}
"""Defaults of the settings, those of the run configuration."""


def ignored_settings(settings: Mapping[str, Any]) -> list[str]:
    """Return the settings that were changed from their defaults and that the mechanism ignores.

    Parameters
    ----------
    settings : mapping
        ``dp_mechanism`` and any of the other settings by name.
    """
    inactive = INACTIVE_PARAMETERS.get(settings["dp_mechanism"], ())
    return [n for n in inactive if n in settings and settings[n] != DEFAULTS[n]]


def warn_of_ignored_settings(settings: Mapping[str, Any], *, stacklevel: int = 2) -> None:
    """Issue one ``UserWarning`` for each setting that was changed and has no effect."""
    mechanism = settings["dp_mechanism"]
    for name in ignored_settings(settings):
        warnings.warn(
            f"{name} = {settings[name]!r} has no effect with dp_mechanism {mechanism!r}; what "
            f"sets its noise is {NOISE_DRIVERS[mechanism]}",
            UserWarning,
            stacklevel=stacklevel + 1,
        )


def privacy_info(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is configured and what it is worth; nothing in it is achieved.

    Parameters
    ----------
    settings : mapping
        The six settings by name; ``dp_mechanism`` may be ``"none"``, too.

    Returns
    -------
    dict
        ``mechanism``, ``noise_driver`` (None if nothing drives noise), ``inactive_parameters``,
        every setting as ``configured_<name>``, ``formal_accounting_available`` (False), and
        ``guarantee``, a sentence.
    """
    mechanism = settings["dp_mechanism"]
    numbers = [name for name in DEFAULTS if name != "dp_mechanism"]
    configured = {name.replace("dp_", "configured_"): settings[name] for name in numbers}
    return {
        "mechanism": mechanism,
        "noise_driver": NOISE_DRIVERS.get(mechanism),
        "inactive_parameters": list(INACTIVE_PARAMETERS.get(mechanism, numbers)),
        **configured,
        "formal_accounting_available": False,
        "guarantee": no_guarantee(mechanism),
    }


def no_guarantee(mechanism: str) -> str:
    """Return one sentence: which guarantee a mechanism's training does not have, and why.

    Parameters
    ----------
    mechanism : {"gaussian", "laplace", "exponential", "none"}
        As in ``dp_mechanism``.
    """
    rest = "the influence of a single row is not bounded, the division by sqrt(K) is an argument "
    rest += "about variances, and nothing adds up the rounds"
    return {
        GAUSSIAN: "No formal (epsilon, delta) guarantee is claimed: clipping and Gaussian noise "
        f"act on a site's whole update, {rest}; dp_epsilon and dp_delta have no effect.",
        LAPLACE: "No formal guarantee is claimed and dp_epsilon is no epsilon here, it only sets "
        "the scale: clipping bounds the L2 norm, hence the L1 norm that Laplace noise is "
        "calibrated to only by sqrt(d) times dp_clip_norm for d parameters, the sum of Laplace "
        f"variables in the average is not a Laplace variable, {rest}.",
        EXPONENTIAL: "No formal guarantee is claimed for training, which this mechanism is "
        "refused in: it selects one of several candidates, and a single selection is "
        "dp_epsilon-private only if dp_sensitivity bounds what one change of the data does to "
        "any score.",
        "none": "No guarantee is claimed: updates leave the sites as they are.",
    }[mechanism]
