"""Models by name: what they are built from, and how another one is added."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from tasks.survival import model_names as names
from tasks.survival.config import SurvivalConfig
from tasks.survival.models.base import Kind, SurvivalModel, TimeDependent


def _unit_interval() -> NDArray[np.float64]:
    return np.array([0.0, 1.0])


@dataclass(frozen=True, eq=False)
class Design:
    """What a model is built from; a model takes of it what it needs.

    Attributes
    ----------
    n_features : int
        Columns of the feature matrix, at least 1.
    hidden_layers : tuple of int
        Units of the hidden layers, each at least 1; empty makes the network linear.
    dropout : float
        Rate of the dropout after each hidden layer, in [0, 1).
    horizon : float
        End of the time grid, in the unit of the times.
    cuts : ndarray, shape (k + 1,)
        Borders of the k intervals of discrete models, ascending from 0
        (`tasks.survival.label_cuts`).
    deephit_alpha : float
        Share of the likelihood in DeepHit's loss, the rest is the ranking; in [0, 1].
    deephit_sigma : float
        Scale of differences in DeepHit's ranking, positive.
    controls : int
        Controls drawn for each case by CoxCC and CoxTime, at least 1.
    """

    n_features: int
    hidden_layers: tuple[int, ...] = ()
    dropout: float = 0.0
    horizon: float = 1.0
    cuts: NDArray[np.float64] = field(default_factory=_unit_interval)
    deephit_alpha: float = 0.2
    deephit_sigma: float = 0.1
    controls: int = 1

    def faults(self) -> list[str]:
        """Return what is out of range, a line each."""
        faults = []
        if self.n_features < 1:
            faults.append(f"n_features is {self.n_features}; allowed: 1 or more")
        if any(units < 1 for units in self.hidden_layers):
            faults.append(f"hidden_layers is {self.hidden_layers}; allowed: 1 unit or more each")
        if not 0 <= self.dropout < 1:
            faults.append(f"dropout is {self.dropout}; allowed: 0 or more, less than 1")
        if not 0 < self.horizon < np.inf:
            faults.append(f"horizon is {self.horizon}; allowed: positive and finite")
        cuts = self.cuts
        if cuts.ndim != 1 or cuts.size < 2 or not _ascends_from_zero(cuts):
            faults.append("cuts must be finite and ascend from 0, at least two of them")
        if not 0 <= self.deephit_alpha <= 1:
            faults.append(f"deephit_alpha is {self.deephit_alpha}; allowed: 0 to 1")
        if not 0 < self.deephit_sigma < np.inf:
            faults.append(f"deephit_sigma is {self.deephit_sigma}; allowed: positive and finite")
        if self.controls < 1:
            faults.append(f"controls is {self.controls}; allowed: 1 or more")
        return faults


def _ascends_from_zero(cuts: NDArray[np.float64]) -> bool:
    return bool(np.isfinite(cuts).all() and cuts[0] == 0 and (np.diff(cuts) > 0).all())


class ModelBuilder(Protocol):
    """What `register` takes: makes an untrained model from torch's global generator."""

    def __call__(self, design: Design, /) -> SurvivalModel:
        """Return the untrained model."""
        ...


_BUILDERS: dict[str, ModelBuilder] = {}


def register(name: str) -> Callable[[ModelBuilder], ModelBuilder]:
    """Make a model available under `name`, to `build` and to ``survival.model``.

    A name is taken once. The module that registers must be imported by every process that runs
    the model: server, sites, and who predicts with its file.
    """

    def add(builder: ModelBuilder) -> ModelBuilder:
        if name in _BUILDERS:
            raise ValueError(f"a model named {name!r} is registered already")
        _BUILDERS[name] = builder
        names.add_name(name)
        return builder

    return add


def model_names() -> tuple[str, ...]:
    """Names that `build` knows, in alphabetical order."""
    return tuple(sorted(_BUILDERS))


def build(
    name: str,
    *,
    n_features: int,
    hidden_layers: Sequence[int],
    dropout: float,
    seed: int,
    horizon: float = Design.horizon,
    cuts: NDArray[np.float64] | None = None,
    deephit_alpha: float = Design.deephit_alpha,
    deephit_sigma: float = Design.deephit_sigma,
    controls: int = Design.controls,
) -> SurvivalModel:
    """Build an untrained model.

    Parameters
    ----------
    name : str
        One of `model_names`.
    n_features, hidden_layers, dropout, horizon, deephit_alpha, deephit_sigma, controls
        See `Design`.
    seed : int
        The initial weights depend on it alone; torch's global generator is neither read nor
        moved.
    cuts : ndarray, shape (k + 1,), or None
        See `Design`; None is one interval, which only models without cuts can do with.

    Raises
    ------
    ValueError
        If the name is unknown or an argument is out of range; all faults in one message.
    """
    faults = []
    if name not in _BUILDERS:
        near = difflib.get_close_matches(name, _BUILDERS, n=1, cutoff=0.4)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        faults.append(f"model {name!r} is unknown{hint}; allowed: {', '.join(model_names())}")
    design = Design(
        n_features=n_features,
        hidden_layers=tuple(hidden_layers),
        dropout=dropout,
        horizon=horizon,
        cuts=_unit_interval() if cuts is None else np.asarray(cuts, dtype=np.float64),
        deephit_alpha=deephit_alpha,
        deephit_sigma=deephit_sigma,
        controls=controls,
    )
    faults += design.faults()
    if faults:
        raise ValueError("; ".join(faults))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _built(name, design)


def _built(name: str, design: Design) -> SurvivalModel:
    """Return what a builder makes, or raise ValueError with what is wrong with it."""
    label = f"model {name!r}:"
    try:
        model: object = _BUILDERS[name](design)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"{label} its builder has failed ({said})") from error
    if not isinstance(model, SurvivalModel):
        raise ValueError(f"{label} its builder returns {type(model).__name__}, no SurvivalModel")
    kind = getattr(model, "kind", None)
    if kind not in get_args(Kind):
        raise ValueError(f"{label} its kind is {kind!r}; allowed: {', '.join(get_args(Kind))}")
    if kind == "time-dependent" and not isinstance(model, TimeDependent):
        raise ValueError(f"{label} of kind time-dependent, it must be a subclass of TimeDependent")
    if not list(model.network.parameters()):
        raise ValueError(f"{label} its network has nothing to train")
    rows = np.zeros((2, design.n_features), dtype=np.float32)
    try:
        shape = np.shape(model.risk(rows))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"{label} it gives no risk of two rows ({said})") from error
    if shape != (2,):
        raise ValueError(f"{label} the risk of two rows has shape {shape}; allowed: (2,)")
    return model


def build_configured(
    config: SurvivalConfig,
    *,
    n_features: int,
    horizon: float,
    cuts: NDArray[np.float64],
    seed: int = 0,
) -> SurvivalModel:
    """Build the untrained model of a run's configuration; arguments as of `build`."""
    return build(
        config.model,
        n_features=n_features,
        hidden_layers=config.hidden_units,
        dropout=config.dropout,
        seed=seed,
        horizon=horizon,
        cuts=cuts,
        deephit_alpha=config.deephit_alpha,
        deephit_sigma=config.deephit_sigma,
        controls=config.controls,
    )
