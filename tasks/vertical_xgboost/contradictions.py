"""Settings of a vertical run that contradict each other: each told with what is allowed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tasks.vertical_xgboost.classes import classes_faults

if TYPE_CHECKING:
    from tasks.vertical_xgboost.config import VerticalXGBoostConfig


def contradictions(config: VerticalXGBoostConfig) -> list[str]:
    """Return what does not go together, a line each; none if all does."""
    return [
        *_of_base_score(config),
        *_of_labels(config),
        *classes_faults(config.classes, wanted=config.objective == "multi:softprob"),
        *_of_protection(config),
        *_of_mode(config),
        *_of_training(config),
    ]


def _of_base_score(config: VerticalXGBoostConfig) -> list[str]:
    """The base score, of which each objective allows a range of its own."""
    faults = []
    base = config.given_base_score
    if config.objective == "binary:logistic":
        if base is not None and not 0.0 < base < 1.0:
            faults.append(
                f"base-score = {config.base_score} with objective = 'binary:logistic': allowed "
                "is a probability above 0 and below 1, or 'mean'"
            )
    elif config.objective == "count:poisson" and base is not None and not 0 < base <= 1e30:
        faults.append(
            f"base-score = {config.base_score} with objective = 'count:poisson': allowed is a "
            "rate above 0 and up to 1e30, or 'mean'"
        )
    elif base is not None and not (math.isfinite(base) and abs(base) <= 1e30):
        faults.append(f"base-score = {config.base_score}: allowed is -1e30 to 1e30, or 'mean'")
    if config.objective == "multi:softprob" and base:
        faults.append(
            f"base-score = {config.base_score} with objective = 'multi:softprob': allowed is "
            "'mean', or 0, which is the same chance for every class"
        )
    return faults


def _of_labels(config: VerticalXGBoostConfig) -> list[str]:
    """Names and bound of labels."""
    faults = []
    if config.objective == "binary:logistic" and (
        config.positive_label.strip() == config.negative_label.strip()
    ):
        faults.append(f"negative-label = '{config.negative_label}': is the positive label too")
    if config.label_bound and config.objective not in ("reg:squarederror", "count:poisson"):
        faults.append(
            f"label-bound = {config.label_bound}: allowed with objective = 'reg:squarederror' or "
            "'count:poisson'"
        )
    return faults


def _of_protection(config: VerticalXGBoostConfig) -> list[str]:
    """Keys, and who compares ids."""
    faults = []
    if config.key_bits < 2048 and not config.allow_weak_key:
        faults.append(
            f"key-bits = {config.key_bits}: allowed is 2048 and more "
            "(experiments: allow-weak-key = true)"
        )
    if config.alignment_hub and config.alignment == "same":
        faults.append(
            f"alignment-hub = '{config.alignment_hub}': allowed with alignment = 'hashed' or 'psi'"
        )
    return faults


def _of_mode(config: VerticalXGBoostConfig) -> list[str]:
    """What is done with which model, and by which rows."""
    faults = []
    if config.mode != "train" and not config.model:
        faults.append(
            f"model = '' with mode = '{config.mode}': allowed is the name of a training, or in "
            "a simulation its run folder"
        )
    if config.mode == "train" and config.model:
        faults.append(
            f"model = '{config.model}': allowed with another mode than 'train' (a training goes "
            "on from the model of warm-start)"
        )
    if config.mode != "train" and config.warm_start:
        faults.append(f"warm-start = '{config.warm_start}': allowed with mode = 'train'")
    if config.mode != "train" and config.alignment != "same":
        faults.append(
            f"alignment = '{config.alignment}' with mode = '{config.mode}': allowed is 'same'; the "
            "parties lay out rows of the same ids"
        )
    return faults


def _of_training(config: VerticalXGBoostConfig) -> list[str]:
    """Noise without splits, and stopping without rows to tell when."""
    faults = []
    if config.dp_epsilon and not config.max_depth:
        faults.append(
            f"dp-epsilon = {config.dp_epsilon} with max-depth = 0: noise is for the source "
            "of the split above a leaf, and there are no splits"
        )
    if config.early_stopping_rounds and not config.test_fraction:
        faults.append(
            f"early-stopping-rounds = {config.early_stopping_rounds} with test-fraction = 0: "
            "needs rows for evaluation"
        )
    return faults
