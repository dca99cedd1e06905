"""Survival models over sites: data, training, evaluation, baseline hazard, prediction."""

from __future__ import annotations

from tasks.survival.differential_privacy import DifferentialPrivacy

__all__ = ["DifferentialPrivacy"]
