"""Privatization of a site's update: difference from the global model, clipped, then noised.

The four steps of federated-survival 0.8 (its privacy page): delta = local -
global over all floating-point arrays; clip to a bound in one global L2 norm; add noise; return
global + noisy clipped delta. Whatever comes in, one of two things happens: what leaves is within
the bound before noise, or nothing leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.privacy.mechanisms import AdditiveNoise, Float64Array, NoiseSource, setting_faults
from tasks.site.faults import SiteFault

Array = NDArray[Any]
Clip = Callable[[Sequence[Float64Array], float], Sequence[Float64Array]]
"""Clipping: updates (one array a named array, float64) and the bound in; clipped updates out.

Any function will do that leaves shapes as they are; see :func:`privatize` for what is done with
one that does not keep the bound. Where a difference is too large for a double it gets halves of the
updates and half the bound.
"""

_MARGIN = 1e-12
"""Share of the bound kept free: sums of squares differ by rounding with the order of terms, and
the bound has to hold for whoever computes the norm."""

_MOST_NAMED = 8


@dataclass(frozen=True)
class PrivatizedUpdate:
    """What may leave the site, and what stays there to be looked at.

    Attributes
    ----------
    arrays : dict of str to numpy.ndarray
        Names, order, shapes and types of the global model's arrays.
    clipped_norm : float
        L2 norm of the clipped update to which noise was added. Stays at the site.
    noise_sigma : float
        Standard deviation of the noise of one element.
    num_elements : int
        Number d of elements that got noise.
    """

    arrays: dict[str, Array]
    clipped_norm: float
    noise_sigma: float
    num_elements: int

    @property
    def noise_to_signal(self) -> float:
        """sigma sqrt(d) / norm of the clipped update; infinite for a zero update."""
        if self.clipped_norm == 0:
            return math.inf
        return self.noise_sigma * math.sqrt(self.num_elements) / self.clipped_norm


def l2_norm(arrays: Iterable[Array]) -> float:
    """Return the L2 norm of all arrays together; finite arrays of any magnitude.

    Squares neither overflow nor vanish, since the largest element is divided out first. The
    result is infinite only if the norm itself exceeds what a double can hold.
    """
    largest, relative = _norm_parts([np.asarray(array, dtype=np.float64) for array in arrays])
    return largest * relative


def clip_by_global_norm(deltas: Sequence[Float64Array], bound: float) -> Sequence[Float64Array]:
    """Scale updates down to an L2 norm of at most `bound` over all of them together.

    Updates within the bound are returned as they are.

    Parameters
    ----------
    deltas : sequence of numpy.ndarray
        Finite, float64, any shapes, any magnitude.
    bound : float
        > 0.
    """
    largest, relative = _norm_parts(deltas)
    target = bound * (1 - _MARGIN)
    if largest == 0 or relative <= target / largest:
        return deltas
    return [delta / largest * (target / relative) for delta in deltas]


def privatize(
    global_arrays: Mapping[str, Array],
    local_arrays: Mapping[str, Array],
    *,
    clip_norm: float,
    noise: AdditiveNoise,
    source: NoiseSource,
    clip: Clip = clip_by_global_norm,
) -> PrivatizedUpdate:
    """Return global + clipped and noised (local - global).

    Parameters
    ----------
    global_arrays : mapping of str to numpy.ndarray
        The model as received: floating-point arrays of 16, 32 or 64 bits, and integer or boolean
        buffers, which are returned as they are.
    local_arrays : mapping of str to numpy.ndarray
        The model as trained: same names and shapes.
    clip_norm : float
        Bound of the update's L2 norm over all floating-point arrays, > 0.
    noise : AdditiveNoise
        Added to every element of the clipped update.
    source : NoiseSource
        Where noise is drawn from.
    clip : callable
        Another clipping. Its result is held to the bound all the same: what exceeds `clip_norm`
        in global L2 norm is scaled down to it.

    Returns
    -------
    PrivatizedUpdate
        With noise of scale 0 the norm of (returned - global), computed in double precision, never
        exceeds `clip_norm`, whatever was put in and whatever the arrays' types; an update that
        cannot be represented within the bound is returned as the global model.

    Raises
    ------
    tasks.site.faults.SiteFault
        ``mismatched-update``: other names or shapes; ``unsupported-update``: types with which
        this cannot work; ``batch-norm``: a running variance; ``non-finite-update``: NaN or
        infinity anywhere; ``invalid-clipping``: the clipping function returned something else.
        The reasons name the arrays.
    ValueError
        If `clip_norm` is out of range.

    Notes
    -----
    Clipping and noise are computed in double precision. The clipped model is then rounded to the
    array's type, toward the global value where rounding would pass the bound (a step of float32
    near 1e8 is 8); noise is added to that, and the sum is rounded and, where it would overflow,
    limited to the type's range, which as post-processing discloses nothing.
    """
    if faults := setting_faults({"clip_norm": clip_norm}):
        raise ValueError("; ".join(faults))
    check_model(global_arrays)
    check_update(global_arrays, local_arrays)
    names = [name for name, array in global_arrays.items() if is_floating(array)]
    wide = {name: np.asarray(global_arrays[name], dtype=np.float64) for name in names}
    local = [np.asarray(local_arrays[name], dtype=np.float64) for name in names]
    deltas = _clipped_differences(local, list(wide.values()), clip_norm, clip)
    clipped = {
        name: _round_toward_global(wide[name], delta, global_arrays[name].dtype)
        for name, delta in zip(names, deltas, strict=True)
    }
    largest, relative = _norm_parts([clipped[n].astype(np.float64) - wide[n] for n in names])
    if largest > 0 and not relative <= clip_norm / largest:
        clipped, largest = {name: global_arrays[name] for name in names}, 0.0
    arrays = {name: np.array(array) for name, array in global_arrays.items()}
    for name in names:
        arrays[name] = _add_noise(clipped[name], noise, source, global_arrays[name].dtype)
    size = sum(array.size for array in clipped.values())
    return PrivatizedUpdate(arrays, largest * relative, noise.standard_deviation, size)


def is_floating(array: Array) -> bool:
    """Whether an array is one of those that are clipped and noised."""
    return array.dtype.kind == "f"


def check_model(arrays: Mapping[str, Array]) -> None:
    """Refuse a global model whose update could not be privatized; before it is trained.

    Raises
    ------
    tasks.site.faults.SiteFault
        ``batch-norm``, ``unsupported-update`` or ``non-finite-update``; see :func:`privatize`.
    """
    variances = [name for name in arrays if name.split(".")[-1] == "running_var"]
    _refuse(
        "batch-norm",
        variances,
        "a running variance of BatchNorm: noise makes variances negative; use GroupNorm or "
        "LayerNorm",
    )
    _refuse_types(arrays)
    _refuse_non_finite(arrays, "the received model's array")


def check_update(global_arrays: Mapping[str, Array], local_arrays: Mapping[str, Array]) -> None:
    """Refuse a trained model that does not fit the global one, or is not finite.

    Raises
    ------
    tasks.site.faults.SiteFault
        ``mismatched-update``, ``unsupported-update`` or ``non-finite-update``; see
        :func:`privatize`.
    """
    missing = [name for name in global_arrays if name not in local_arrays]
    reasons = [f"array {name!r}: missing in the trained model" for name in missing]
    for name, array in local_arrays.items():
        if name not in global_arrays:
            reasons.append(f"array {name!r}: not in the received model")
            continue
        expected = global_arrays[name]
        if array.shape != expected.shape:
            reasons.append(f"array {name!r}: shape {array.shape}, received {expected.shape}")
        elif is_floating(array) != is_floating(expected) and array.dtype.kind in "fiub":
            reasons.append(f"array {name!r}: type {array.dtype}, received {expected.dtype}")
    if reasons:
        raise SiteFault("mismatched-update", *_shortened(reasons))
    _refuse_types(local_arrays)
    _refuse_non_finite(local_arrays, "array")


def _refuse_types(arrays: Mapping[str, Array]) -> None:
    reasons = [
        f"array {name!r}: type {array.dtype}; must be float16, float32 or float64 (or an integer "
        "or boolean buffer, which stays as received)"
        for name, array in arrays.items()
        if array.dtype.kind not in "fiub" or (is_floating(array) and array.dtype.itemsize > 8)
    ]
    if reasons:
        raise SiteFault("unsupported-update", *_shortened(reasons))


def _refuse_non_finite(arrays: Mapping[str, Array], what: str) -> None:
    names = [
        n for n, array in arrays.items() if is_floating(array) and not np.isfinite(array).all()
    ]
    if names:
        reasons = [f"{what} {name!r}: has NaN or infinite elements" for name in names]
        raise SiteFault("non-finite-update", *_shortened(reasons))


def _refuse(code: str, names: list[str], reason: str) -> None:
    if names:
        raise SiteFault(code, *_shortened([f"array {name!r}: {reason}" for name in names]))


def _shortened(reasons: list[str]) -> list[str]:
    more = len(reasons) - _MOST_NAMED
    return [*reasons[:_MOST_NAMED], f"and {more} more"] if more > 0 else reasons


def _norm_parts(arrays: Sequence[Float64Array]) -> tuple[float, float]:
    """Return the largest magnitude, and the L2 norm relative to it: their product is the norm.

    Apart, they are right where squares, or the product itself, would overflow or vanish.
    """
    largest = max((float(np.abs(array).max()) for array in arrays if array.size), default=0.0)
    if largest == 0 or math.isinf(largest):
        return largest, 1.0
    squares = math.fsum(float(np.sum(np.square(array / largest))) for array in arrays)
    return largest, math.sqrt(squares)


def _clipped_differences(
    local: Sequence[Float64Array], received: Sequence[Float64Array], bound: float, clip: Clip
) -> Sequence[Float64Array]:
    """Return clip(local - received), never longer than the bound.

    The difference of finite doubles may overflow. Then halves are clipped to half the bound.
    """
    factor = 1.0
    with np.errstate(over="ignore"):
        deltas = [x - y for x, y in zip(local, received, strict=True)]
    if not all(np.isfinite(delta).all() for delta in deltas):
        factor = 2.0
        deltas = [x / 2 - y / 2 for x, y in zip(local, received, strict=True)]
    shapes = [delta.shape for delta in deltas]
    clipped = [np.asarray(delta, dtype=np.float64) for delta in clip(deltas, bound / factor)]
    if [delta.shape for delta in clipped] != shapes:
        raise SiteFault("invalid-clipping", "the clipping function changed the shapes of updates")
    if not all(np.isfinite(delta).all() for delta in clipped):
        raise SiteFault("invalid-clipping", "the clipping function returned NaN or infinity")
    return [delta * factor for delta in clip_by_global_norm(clipped, bound / factor)]


def _round_toward_global(
    received: Float64Array, delta: Float64Array, dtype: np.dtype[Any]
) -> Array:
    """Return received + delta in a type, never farther from `received` than `delta` reaches."""
    native = dtype.newbyteorder("=")
    with np.errstate(over="ignore"):  # infinity overshoots, and what comes before it is finite
        rounded = (received + delta).astype(native)
    overshoots = np.abs(rounded.astype(np.float64) - received) > np.abs(delta)
    nearer = np.nextafter(rounded, received.astype(native))
    return np.asarray(np.where(overshoots, nearer, rounded).astype(dtype))


def _add_noise(
    clipped: Array, noise: AdditiveNoise, source: NoiseSource, dtype: np.dtype[Any]
) -> Array:
    if noise.scale == 0:
        return np.array(clipped)
    limits = np.finfo(dtype.newbyteorder("="))
    with np.errstate(over="ignore"):
        noisy = clipped.astype(np.float64) + noise.draw(source, clipped.shape)
        noisy = np.clip(noisy, float(limits.min), float(limits.max))
    return np.asarray(noisy.astype(dtype))
