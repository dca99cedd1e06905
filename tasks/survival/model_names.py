"""Names of survival models: those of this package, and those registered in this process.

Checking a configuration must not import torch, so the names are apart from what builds the
models (`tasks.survival.models`).
"""

from __future__ import annotations

BUILT_IN = ("DeepSurv", "CoxPH", "CoxCC", "CoxTime", "LogisticHazard", "PC-Hazard", "DeepHit")
"""Models of this package, in the order in which tables show them."""

_added: list[str] = []


def add_name(name: str) -> None:
    """Note that a model of one's own is registered."""
    if name not in BUILT_IN:
        _added.append(name)


def known_names() -> tuple[str, ...]:
    """Names that a configuration may have."""
    return (*BUILT_IN, *_added)
