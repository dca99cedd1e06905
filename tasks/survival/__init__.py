"""Survival models over sites: data, training, evaluation, baseline hazard, prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.survival.differential_privacy import DifferentialPrivacy

__all__ = ["DifferentialPrivacy"]


def __getattr__(name: str) -> object:
    """Import what is asked for only then: every message of a deployed run starts a process."""
    if name == "DifferentialPrivacy":
        from tasks.survival.differential_privacy import DifferentialPrivacy

        return DifferentialPrivacy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
