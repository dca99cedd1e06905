"""Checks of what Fisher scoring is given: settings, and coefficients to begin at."""

from __future__ import annotations

from typing import get_args

import numpy as np
from flwr.app import ArrayRecord

from tasks.glm.families import FloatArray
from tasks.glm.scoring import Criterion
from tasks.privacy.mechanisms import is_number


def refuse_settings(
    *,
    family: tuple[str, tuple[str, ...]],
    criterion: str,
    tolerance: float,
    rounding: float,
    min_sites: int,
) -> None:
    """Raise ValueError for settings out of range, all at once; `family` with those allowed."""
    criteria = get_args(Criterion)
    faults = [
        f"{name} = {value!r}: must be one of {', '.join(allowed)}"
        for name, value, allowed in (("family", *family), ("criterion", criterion, criteria))
        if value not in allowed
    ]
    if not (is_number(tolerance) and tolerance > 0):
        faults.append(f"tolerance = {tolerance!r}: must be a finite number > 0")
    if not (is_number(rounding) and rounding >= 0):
        faults.append(f"rounding = {rounding!r}: must be a finite number >= 0")
    if type(min_sites) is not int or min_sites < 1:
        faults.append(f"min_sites = {min_sites!r}: must be a whole number >= 1")
    if faults:
        raise ValueError("; ".join(faults))


def initial_coefficients(arrays: ArrayRecord | None) -> FloatArray | None:
    """Read where to begin; None: there is nothing. Raises ValueError if it is no vector."""
    if not arrays:
        return None
    values = [array.numpy() for array in arrays.values()]
    if len(values) != 1 or values[0].ndim != 1 or not np.isfinite(values[0]).all():
        raise ValueError("initial_arrays: must be one vector of finite numbers")
    return np.asarray(values[0], dtype=np.float64)
