"""Settings of a survival run by the names of federated-survival: `FSAConfig`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from fedapp import run_config
from fedapp.fsa_names import (
    KEYS,
    ONE_VALUE,
    WITHOUT_EFFECT,
    chosen_settings,
    is_same,
    option_keys,
)
from fedapp.run_config import ConfigError, Value
from tasks.privacy.mechanisms import EXPONENTIAL, additive_mechanism_faults
from tasks.survival.privacy_words import DEFAULTS, NOISE_DRIVERS, warn_of_ignored_settings

OFF = "none"
"""Mechanism that leaves updates as they are."""


def _default(name: str) -> Any:
    value = run_config.defaults()[KEYS[name]]
    if name == "hidden_layers":
        return tuple(int(units) for units in str(value).split(","))
    return value


@dataclass(frozen=True, init=False)
class FSAConfig:
    """Settings of a survival run, under names that federated-survival knows too.

    Every field stands for a key of the run configuration and has its default and its range. Any
    other key of the survival task or of all tasks is a keyword too, in snake_case (``time_bins``,
    ``privacy_level``, ``run_dir``). Second names of the other package are understood
    (``model_type``, ``num_clients``, ``global_epochs``, ``local_epochs``, ``num_nodes``,
    ``random_seed``, ``split_method`` ...).

    Parameters
    ----------
    **settings : Any
        Any of the attributes below, or of the other names.

    Attributes
    ----------
    model : str
        Name of the model.
    n_clients : int
        Sites that one table is dealt to; tables given apart are a site each.
    global_rounds : int
        Rounds of training.
    local_steps : int
        Optimizer steps of a site in a round.
    batch_size : int
        Rows of a step.
    learning_rate : float
        AdamW's learning rate.
    weight_decay : float
        AdamW's decoupled weight decay.
    hidden_layers : tuple of int
        Units of the hidden layers; empty for CoxPH only, which has none in any case.
    dropout : float
        Dropout rate, in [0, 1).
    partition : str
        How the rows of one table are dealt.
    test_size : float
        Share of each site's rows kept for evaluation, in [0, .9].
    random_state : int or None
        Seed of partitions, initial models and batches; None: another one each time. Noise does
        not come from it (unless a simulation sets ``seeded_noise``).
    use_differential_privacy : bool
        Whether sites clip and noise their updates. On by default, as in every run.
    dp_mechanism : {"gaussian", "laplace", "exponential", "none"}
        Distribution of the noise; ``"none"`` switches it off. ``"exponential"`` selects a
        candidate (:class:`~tasks.survival.differential_privacy.DifferentialPrivacy`) and is
        refused in training.
    dp_clip_norm : float
        Bound of the update's L2 norm, > 0.
    dp_noise_multiplier : float
        Drives Gaussian noise, >= 0.
    dp_sensitivity : float
        Factor on the noise scale, > 0.
    dp_epsilon : float
        Drives Laplace noise, > 0. A nominal number: no epsilon is accounted for.
    dp_delta : float
        In (0, 1); drives nothing.
    options : mapping of str to bool, int, float or str
        Other keys of the run configuration that were set, by their names as keywords.

    Raises
    ------
    TypeError
        For names that do not exist, with the nearest that does, and settings given twice.
    ValueError
        For every value that is not allowed: name, value and what is.

    Warns
    -----
    UserWarning
        For each setting that was changed from its default and has no effect.
    """

    model: str = _default("model")
    n_clients: int = _default("n_clients")
    global_rounds: int = _default("global_rounds")
    local_steps: int = _default("local_steps")
    batch_size: int = _default("batch_size")
    learning_rate: float = _default("learning_rate")
    weight_decay: float = _default("weight_decay")
    hidden_layers: tuple[int, ...] = _default("hidden_layers")
    dropout: float = _default("dropout")
    partition: str = _default("partition")
    test_size: float = _default("test_size")
    random_state: int | None = _default("random_state")
    use_differential_privacy: bool = True
    dp_mechanism: str = _default("dp_mechanism")
    dp_clip_norm: float = _default("dp_clip_norm")
    dp_noise_multiplier: float = _default("dp_noise_multiplier")
    dp_sensitivity: float = _default("dp_sensitivity")
    dp_epsilon: float = _default("dp_epsilon")
    dp_delta: float = _default("dp_delta")
    options: Mapping[str, Value] = field(default_factory=dict)

    def __init__(self, **settings: Any) -> None:
        given = {**settings.pop("options", {}), **settings}
        chosen, said_as = chosen_settings(given)
        faults = _taken_out_faults(chosen, said_as)
        idle = {name: chosen.pop(name) for name in WITHOUT_EFFECT if name in chosen}
        chosen = {name: chosen[name] for name in chosen if name not in ONE_VALUE}
        own = {one.name for one in fields(self)} - {"options"}
        for one in fields(self):
            if one.name != "options":
                object.__setattr__(self, one.name, chosen.get(one.name, one.default))
        options = {name: value for name, value in chosen.items() if name not in own}
        object.__setattr__(self, "options", options)
        faults += self._faults(said_as)
        if faults:
            raise ValueError("; ".join(faults))
        self._warn(idle, said_as)

    @property
    def privatizes(self) -> bool:
        """Whether updates are clipped and noised."""
        return self.use_differential_privacy and self.dp_mechanism != OFF

    @property
    def privacy_settings(self) -> dict[str, Any]:
        """The six settings of privatization by name; the mechanism is "none" if it is off."""
        settings = {name: getattr(self, name) for name in DEFAULTS}
        return settings if self.privatizes else {**settings, "dp_mechanism": OFF}

    def to_run_config(self) -> dict[str, Value]:
        """Return the run configuration: what `fedapp.simulation.simulate` takes.

        Keys of all fields and of `options`, without ``task``, and without ``seed`` if
        `random_state` is None.

        Raises
        ------
        ValueError
            If the mechanism is the exponential one, which trains nothing.
        """
        if self.privatizes and self.dp_mechanism == EXPONENTIAL:
            raise ValueError("; ".join(additive_mechanism_faults(EXPONENTIAL, "dp_mechanism")))
        return self._run_config()

    def _run_config(self) -> dict[str, Value]:
        fields_of_run = {name: getattr(self, name) for name in KEYS} | self.privacy_settings
        if self.random_state is None:
            del fields_of_run["random_state"]
        layers = fields_of_run.pop("hidden_layers")
        if layers:
            fields_of_run["hidden_layers"] = ",".join(map(str, layers))
        keys = {**KEYS, **option_keys()}
        values = {keys[name]: value for name, value in {**fields_of_run, **self.options}.items()}
        # The exponential mechanism is a valid setting, though none of a run.
        if values[KEYS["dp_mechanism"]] == EXPONENTIAL:
            values[KEYS["dp_mechanism"]] = OFF
        return values

    def _faults(self, said_as: Mapping[str, str]) -> Iterator[str]:
        def said(name: str) -> str:
            return said_as.get(name, name)

        if not isinstance(self.use_differential_privacy, bool):
            yield (
                f"{said('use_differential_privacy')} = {self.use_differential_privacy!r}: "
                "must be True or False"
            )
        allowed = [*NOISE_DRIVERS, OFF]
        known = self.dp_mechanism in allowed
        if not known:
            words = ", ".join(f'"{name}"' for name in allowed)
            yield f"dp_mechanism = {self.dp_mechanism!r}: must be one of {words}"
        if not self.hidden_layers and self.model != "CoxPH":
            yield f"{said('hidden_layers')} = (): must be given for every model but CoxPH"
        values = self._run_config()
        if not known:
            del values[KEYS["dp_mechanism"]]
        names = {key: said(name) for name, key in {**KEYS, **option_keys()}.items()}
        try:
            run_config.read({"task": "survival", **values})
        except ConfigError as error:
            for line in error.faults:
                key = line.partition(" = ")[0].partition(":")[0]
                yield names.get(key, key) + line.removeprefix(key)

    def _warn(self, idle: Mapping[str, object], said_as: Mapping[str, str]) -> None:
        level = _levels_to_caller()
        for name, value in idle.items():
            usual, why = WITHOUT_EFFECT[name]
            if not is_same(value, usual):
                text = f"{said_as[name]} = {value!r} has no effect: {why}"
                warnings.warn(text, UserWarning, stacklevel=level)
        if self.privatizes:
            warn_of_ignored_settings(self.privacy_settings, stacklevel=level)
            return
        switch = f"dp_mechanism = {OFF!r}"
        if not self.use_differential_privacy:
            switch = f"{said_as.get('use_differential_privacy', '')} = False"
        for name, default in DEFAULTS.items():
            value = getattr(self, name)
            if name != "dp_mechanism" and value != default:
                text = f"{name} = {value!r} has no effect: {switch} switches privatization off"
                warnings.warn(text, UserWarning, stacklevel=level)


def _taken_out_faults(chosen: dict[str, Any], said_as: Mapping[str, str]) -> list[str]:
    """Faults of what the run configuration does not have so, which are taken out of `chosen`."""
    faults = [
        f"{said_as[name]} = {chosen[name]!r}: must be {only!r}; {why}"
        for name, (only, why) in ONE_VALUE.items()
        if name in chosen and not is_same(chosen[name], only)
    ]
    layers = chosen.get("hidden_layers", ())
    if not isinstance(layers, tuple) or not all(type(units) is int for units in layers):
        shown = list(layers) if isinstance(layers, tuple) else layers
        words = "must be a list of whole numbers, as [32, 32]"
        faults.append(f"{said_as['hidden_layers']} = {shown!r}: {words}")
        del chosen["hidden_layers"]
    return faults


def _levels_to_caller() -> int:
    """Stack level of the first caller outside this package, for a warning raised by ours."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("fedapp."):
        level, frame = level + 1, frame.f_back
    return level
