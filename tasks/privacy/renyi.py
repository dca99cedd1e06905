"""What Renyi differential privacy says in terms of (epsilon, delta)."""

from __future__ import annotations

import math

from tasks.privacy.mechanisms import is_number


def renyi_to_epsilon(order: float, rdp: float, *, delta: float) -> float:
    """Convert Renyi differential privacy (order, rdp) into the epsilon of (epsilon, delta).

    C. Canonne, G. Kamath, T. Steinke, *The discrete Gaussian for differential privacy*, NeurIPS
    2020, proposition 12: rdp + log(1 - 1/order) - log(delta order) / (order - 1).

    Parameters
    ----------
    order : float
        Renyi order alpha, > 1.
    rdp : float
        Renyi divergence of that order, >= 0, in nats; of Gaussian noise with multiplier z against
        the sensitivity it is order / (2 z^2), times the number of releases.
    delta : float
        In (0, 1).

    Raises
    ------
    ValueError
        For everything out of range.
    """
    faults = []
    if not is_number(order) or order <= 1:
        faults.append(f"order = {order!r}: must be a finite number > 1")
    if not is_number(rdp) or rdp < 0:
        faults.append(f"rdp = {rdp!r}: must be a finite number >= 0")
    if not is_number(delta) or not 0 < delta < 1:
        faults.append(f"delta = {delta!r}: must be a number in (0, 1)")
    if faults:
        raise ValueError("; ".join(faults))
    if delta**2 + math.expm1(-rdp) > 0:  # total variation <= sqrt(1 - exp(-divergence)) < delta
        return 0.0
    epsilon = rdp + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
    return max(0.0, epsilon)
