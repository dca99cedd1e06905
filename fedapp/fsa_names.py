"""Names of settings in federated-survival, and what each stands for here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedapp import run_config
from tasks.survival.privacy_words import DEFAULTS

KEYS: Mapping[str, str] = {
    "model": "survival.model",
    "n_clients": "num-sites",
    "global_rounds": "survival.rounds",
    "local_steps": "survival.local-steps",
    "batch_size": "survival.batch-size",
    "learning_rate": "survival.learning-rate",
    "weight_decay": "survival.weight-decay",
    "hidden_layers": "survival.hidden-layers",
    "dropout": "survival.dropout",
    "partition": "survival.partition",
    "test_size": "survival.test-fraction",
    "random_state": "seed",
    **{name: f"survival.{name.replace('_', '-')}" for name in DEFAULTS},
}
"""Key of the run configuration that a field stands for."""

ALIASES: Mapping[str, str] = {
    "model_type": "model",
    "num_clients": "n_clients",
    "global_epochs": "global_rounds",
    "local_epochs": "local_steps",
    "num_nodes": "hidden_layers",
    "split_method": "partition",
    "split_type": "partition",
    "split_alpha": "dirichlet_alpha",
    "random_seed": "random_state",
    "n_samples": "n_rows",
    "federated_protocol": "protocol",
    "client_sample_ratio": "client_fraction",
    "num_sites": "n_clients",
    "rounds": "global_rounds",
    "test_fraction": "test_size",
    "seed": "random_state",
}
"""Second names of settings: the other package's, and those of the run configuration."""

ONE_VALUE: Mapping[str, tuple[object, str]] = {
    "protocol": ("FedAvg", "no other protocol is here"),
    "protocol_params": (None, "FedAvg has none"),
    "client_fraction": (1.0, "every site takes part in every round"),
    "optimizer": ("adam", "sites train by AdamW"),
    "early_stopping": (False, "a run has the rounds that it is given"),
    "activation": ("ReLU", "the hidden layers of every model have it"),
    "batch_norm": (False, "running statistics would leave the site with the update"),
    "full_batch": (False, "a batch_size of at least the rows of a site is that"),
}
"""Settings of the other package that have one value here, and why."""

_OF_OTHER_PROTOCOLS: Mapping[str, object] = {
    "proximal_mu": 0.01,
    "server_optimizer": "adam",
    "server_learning_rate": 0.01,
    "server_beta1": 0.9,
    "server_beta2": 0.99,
    "server_tau": 1e-3,
    "webdisco_max_iter": 50,
    "webdisco_tolerance": 1e-7,
    "webdisco_l2": 0.0,
    "webdisco_ridge": 1e-8,
    "webdisco_max_step_norm": 5.0,
}

_OF_AUGMENTATION: Mapping[str, object] = {
    "k": 0.5,
    "latent_num": 10,
    "hidden_num": 30,
    "alpha": 1.0,
    "beta": 1.0,
    "augmentation_sampling": "sparse",
    "augmentation_sparse_gamma": 0.1,
}

WITHOUT_EFFECT: Mapping[str, tuple[object, str]] = {
    "mode": ("simulate", "data are given to fit or run"),
    "dataset_name": (None, "data are given to fit or run"),
    "censor_rate": (0.4, "data are given to fit or run"),
    "verbose": (False, "Flower's own log tells of the rounds"),
    "show_progress": (False, "Flower's own log tells of the rounds"),
    "prediction_validation": ("raise", "a model whose predictions are not finite ends the run"),
    "evaluation_quantiles": ((0.05, 0.95), "times of evaluation come from the sites' counts"),
    "data_type": ("weibull", "data are given to fit or run"),
    "sim_type": ("1", "data are given to fit or run"),
    "n_rounds": (100, "global_rounds is the number of rounds"),
    "model_params": ({}, "hidden_layers, dropout and num_durations are the settings of the model"),
    "early_stopping_patience": (10, "a run has the rounds that it is given"),
    "cox_loss_normalization": (
        "patient",
        "a mean over events; AdamW undoes the scale",
    ),
    **{name: (usual, "FedAvg has none") for name, usual in _OF_OTHER_PROTOCOLS.items()},
    **{name: (usual, "data are not augmented here") for name, usual in _OF_AUGMENTATION.items()},
}
"""Settings of the other package that are taken and do nothing: its default, and why."""

_OWN_PARTITIONS = {"non-iid": "censoring-non-iid"}


def option_keys() -> dict[str, str]:
    """Return every other key of the run configuration by its name as a keyword."""
    taken = {*KEYS.values(), "task"}
    return {
        key.field: key.name
        for key in run_config.all_keys()
        if key.task in ("", "survival") and key.name not in taken
    }


def chosen_settings(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return values by our names, and each name as it was given.

    Raises
    ------
    TypeError
        For names that do not exist, with the nearest that does, and settings given twice.
    """
    known = {*KEYS, "use_differential_privacy", *option_keys()}
    known |= {*ALIASES, *ONE_VALUE, *WITHOUT_EFFECT}
    faults = []
    chosen: dict[str, Any] = {}
    said_as: dict[str, str] = {}
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else "`fedapp config survival` lists settings"
            faults.append(f"unknown setting {name!r}; {hint}")
            continue
        own = ALIASES.get(name, name)
        if own in chosen:
            faults.append(f"{said_as[own]} and {name} are one setting; give one of them")
            continue
        chosen[own], said_as[own] = _plain(own, value), name
    if faults:
        raise TypeError("; ".join(faults))
    return chosen, said_as


def _plain(name: str, value: Any) -> Any:
    """Value as the run configuration has it: Python's own numbers, paths as text."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if name == "activation" and not isinstance(value, str):  # as a class of torch, or one made
        return getattr(value, "__name__", type(value).__name__)
    if name == "partition" and isinstance(value, str):
        own = _OWN_PARTITIONS.get(value.lower(), value.lower())
        return value if own == value else own  # the same object: sklearn.base.clone looks at that
    if name == "hidden_layers" and isinstance(value, Sequence) and not isinstance(value, str):
        if isinstance(value, tuple) and all(type(units) is int for units in value):
            return value
        return tuple(units.item() if isinstance(units, np.generic) else units for units in value)
    return value


def is_same(value: object, only: object) -> bool:
    """Return whether two settings are equal, letter case and kind of sequence aside."""
    if isinstance(value, str) and isinstance(only, str):
        return value.lower() == only.lower()
    return bool(np.array_equal(np.asarray(value), np.asarray(only)))  # a list like a tuple
