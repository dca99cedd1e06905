"""The state of a Fisher scoring between two exchanges, as numbers and arrays, and back.

It reads and sets what `tasks.glm.scoring.FisherIteration` keeps to itself: a fit that goes on needs
the last accepted iterate and the number of halvings as much as the coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.glm.families import FisherSums, FloatArray
from tasks.glm.scoring import FisherIteration, Iterate

_NUMBERS = ("finished", "rounds", "halved", "_diverging", "_given", "_halvings", "_accepted")
_ARRAYS = ("coefficients", "_at", "_scale")

State = tuple[dict[str, Any], dict[str, FloatArray]]


def state_of(iteration: FisherIteration) -> State:
    """Return numbers and arrays from which `restore_state` makes the same iteration."""
    numbers = {name.lstrip("_"): getattr(iteration, name) for name in _NUMBERS}
    arrays = {name.lstrip("_"): getattr(iteration, name) for name in _ARRAYS}
    last = iteration._last
    if last is not None:
        sums = last.sums
        numbers["last"] = {
            "round": last.round,
            "deviance": float(sums.deviance),
            "rows": int(sums.rows),
            "pearson": float(sums.pearson),
        }
        arrays |= {
            "last-coefficients": last.coefficients,
            "last-step": last.step,
            "last-score": sums.score,
            "last-information": sums.information,
        }
    return numbers, {name: array for name, array in arrays.items() if array is not None}


def restore_state(
    iteration: FisherIteration, numbers: Mapping[str, Any], arrays: Mapping[str, FloatArray]
) -> None:
    """Set an iteration of the same family and rule to a state that `state_of` returned."""
    for name in _NUMBERS:
        setattr(iteration, name, numbers[name.lstrip("_")])
    for name in _ARRAYS:
        setattr(iteration, name, arrays.get(name.lstrip("_")))
    last = numbers.get("last")
    iteration._last = last and Iterate(
        round=last["round"],
        coefficients=arrays["last-coefficients"],
        sums=FisherSums(
            arrays["last-score"],
            arrays["last-information"],
            last["deviance"],
            last["rows"],
            last["pearson"],
        ),
        step=arrays["last-step"],
    )
