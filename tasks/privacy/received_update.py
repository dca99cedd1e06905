"""What a server sees of privatized updates: how much of one is noise, and how long it may be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.privacy.mechanisms import GAUSSIAN, AdditiveNoise
from tasks.privacy.update import is_floating, l2_norm

Arrays = Mapping[str, NDArray[Any]]

_GAUSSIAN_TAIL = 8.0
"""In standard deviations. The length of Gaussian noise exceeds sigma (sqrt(d) + t) with a
probability of at most exp(-t^2 / 2), for any d (Gaussian concentration): 1e-14."""

_LAPLACE_TAIL = 64.0
"""In scales b. One element exceeds it with probability exp(-64), and the length of many varies by
a standard deviation of about 1.6 b."""


def estimated_noise_to_signal(
    sent: Arrays, received: Arrays, noise: AdditiveNoise, *, clip_norm: float = math.inf
) -> float:
    """Estimate, from a privatized model alone, the noise-to-signal ratio of its update.

    The squared length of a noised update is on average the clipped update's plus d sigma^2, for d
    elements, whatever the mechanism. So sqrt(max(0, length^2 - d sigma^2)) estimates the clipped
    norm, up to about sigma (2 d)^(1/4) where that is small. Where it exceeds the bound of the
    clipped norm it is chance, and the bound is taken.

    Parameters
    ----------
    sent : mapping of str to numpy.ndarray
        The global model.
    received : mapping of str to numpy.ndarray
        A site's privatized model: same names, shapes and types.
    noise : AdditiveNoise
        What the site added.
    clip_norm : float
        Bound of the clipped norm, > 0.

    Returns
    -------
    float
        sigma sqrt(d) / estimated clipped norm, at least sigma sqrt(d) / clip_norm; infinite where
        no signal is seen.
    """
    length = update_length(sent, received)
    expected = noise.standard_deviation * math.sqrt(_num_elements(sent))
    if length <= expected:
        return math.inf
    estimate = expected / math.sqrt(length - expected) / math.sqrt(length + expected)
    return max(estimate, expected / clip_norm)


def longest_update(sent: Arrays, noise: AdditiveNoise, *, clip_norm: float) -> float:
    """Return the length that the update of a site that clips and adds this noise cannot exceed.

    Parameters
    ----------
    sent : mapping of str to numpy.ndarray
        The global model.
    noise : AdditiveNoise
        The most noise that a site adds.
    clip_norm : float
        Bound of the clipped norm, > 0.

    Returns
    -------
    float
        clip_norm + sigma (sqrt(d) + 8) under Gaussian noise, passed once in 1e14 updates; under
        Laplace noise the last term is 64 b. A rounding step of every element is added.
    """
    tail = _GAUSSIAN_TAIL if noise.mechanism == GAUSSIAN else _LAPLACE_TAIL
    added = noise.standard_deviation * math.sqrt(_num_elements(sent)) + noise.scale * tail
    floating = [array for array in sent.values() if is_floating(array)]
    steps = [float(np.finfo(array.dtype).eps) for array in floating]
    rounding = l2_norm(
        s * array.astype(np.float64) for s, array in zip(steps, floating, strict=True)
    )
    return (clip_norm + added) * (1 + max(steps, default=0.0)) + rounding


def update_length(sent: Arrays, received: Arrays) -> float:
    """Return the L2 norm of received - sent over all floating-point arrays; it may be infinite."""
    names = [name for name, array in sent.items() if is_floating(array)]
    wide = [(received[n].astype(np.float64), sent[n].astype(np.float64)) for n in names]
    with np.errstate(over="ignore"):
        return l2_norm(there - here for there, here in wide)


def _num_elements(sent: Arrays) -> int:
    return sum(array.size for array in sent.values() if is_floating(array))
