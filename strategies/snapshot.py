"""What a strategy needs to go on from the end of a step, as plain values and arrays.

A strategy gives one after each of its steps to whoever asked for it, and takes one in place of a
beginning. Where it is kept in between is not the strategy's matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


class UnusableSnapshot(ValueError):
    """A snapshot is not of this strategy, these settings or these sites; says what differs."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """State of a strategy at the end of a step.

    Attributes
    ----------
    kind : str
        Which strategy's, for example ``"survival"``.
    round : int
        Rounds (iterations, trees) that are over; 0 after set-up.
    facts : mapping of str to object
        What JSON can hold: mappings with text as keys, lists, text, numbers (an infinite one, or
        one that is not a number, included), booleans, None.
    arrays : mapping of str to ndarray
        Of numbers or booleans.

    Raises
    ------
    ValueError
        If `round` is negative, or an array holds objects.
    """

    kind: str
    round: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.round) is not int or self.round < 0:
            raise ValueError(f"round = {self.round!r}: must be a whole number >= 0")
        objects = [name for name, array in self.arrays.items() if array.dtype.kind not in "biuf"]
        if objects:
            raise ValueError(f"arrays {', '.join(objects)}: must hold numbers or booleans")

    def of_kind(self, kind: str) -> Snapshot:
        """Return this snapshot if it is of a strategy of this kind.

        Raises
        ------
        UnusableSnapshot
            If it is not.
        """
        if self.kind != kind:
            raise UnusableSnapshot(f"a snapshot of {self.kind!r}, where one of {kind!r} is needed")
        return self

    def part(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Return the arrays whose name begins with `prefix` and a slash, without these."""
        start = f"{prefix}/"
        return {
            name.removeprefix(start): array
            for name, array in self.arrays.items()
            if name.startswith(start)
        }


@contextmanager
def taken_apart() -> Iterator[None]:
    """Say that a snapshot is not usable where something is missing in it, or of another kind.

    Raises
    ------
    UnusableSnapshot
        In place of what taking it apart in the block raised.
    """
    try:
        yield
    except UnusableSnapshot:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UnusableSnapshot(
            f"it does not hold what one of this strategy does ({type(error).__name__}: {error})"
        ) from error


TakeSnapshot = Callable[[Snapshot], None]
"""What a strategy hands each of its snapshots to."""


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return the state of a generator, as facts of a snapshot."""
    state: dict[str, Any] = _plain(generator.bit_generator.state)
    return state


def restore_generator(generator: np.random.Generator, state: Mapping[str, Any]) -> None:
    """Set a generator to a state that `generator_state` returned.

    Raises
    ------
    UnusableSnapshot
        If it is that of another kind of generator, or none.
    """
    try:
        generator.bit_generator.state = _with_arrays(state)
    except (TypeError, ValueError, KeyError) as error:
        raise UnusableSnapshot(f"the state of the random generator ({error})") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    return value.item() if isinstance(value, np.generic) else value


def _with_arrays(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if value.keys() == {"array", "dtype"}:
        return np.array(value["array"], dtype=value["dtype"])
    return {key: _with_arrays(entry) for key, entry in value.items()}
