"""Survival models: a network and its loss, by name.

A model is built with `build` and trained with `tasks.survival.training.train`. Another one is
a subclass of `SurvivalModel`, or of one of its kinds, and a function under `register`::

    @register("MyModel")
    def my_model(design):
        return ProportionalHazards(MyNetwork(design.n_features))

``examples/own_survival_model.py`` is a whole one.
"""

from __future__ import annotations

from tasks.survival.models.base import (
    Batch,
    Kind,
    SurvivalModel,
    TimeDependent,
    arrays_of,
    load_arrays,
    perceptron,
    refuse_batch_norm,
    single_thread,
)
from tasks.survival.models.discrete import DeepHit, DiscreteTime, LogisticHazard, PCHazard
from tasks.survival.models.proportional import CaseControl, ProportionalHazards
from tasks.survival.models.registry import (
    Design,
    ModelBuilder,
    build,
    build_configured,
    model_names,
    register,
)
from tasks.survival.models.time_dependent import CoxTime

__all__ = [
    "Batch",
    "CaseControl",
    "CoxTime",
    "DeepHit",
    "Design",
    "DiscreteTime",
    "Kind",
    "LogisticHazard",
    "ModelBuilder",
    "PCHazard",
    "ProportionalHazards",
    "SurvivalModel",
    "TimeDependent",
    "arrays_of",
    "build",
    "build_configured",
    "load_arrays",
    "model_names",
    "perceptron",
    "refuse_batch_norm",
    "register",
    "single_thread",
]
