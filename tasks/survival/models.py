"""Survival models: a network and its loss, by name.

A model is built with `build` and trained with `tasks.survival.training.train`. Another one is
a subclass of `SurvivalModel` and a function under `register`::

    @register("MyModel")
    def my_model(*, n_features, hidden_layers, dropout):
        return MyModel(MLPVanilla(n_features, hidden_layers, 1, batch_norm=False))
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchtuples.practical import MLPVanilla


@contextmanager
def single_thread() -> Iterator[None]:
    """One torch thread inside, the former number after.

    Networks of this size run ten times slower when their small products are shared between
    threads, and the order of a sum, so its last bits, would depend on the machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of one optimizer step, ordered by time, the longest first.

    Attributes
    ----------
    features : Tensor, shape (b, p)
        Standardized features.
    time : ndarray, shape (b,)
        Follow-up times, descending.
    event : ndarray of bool, shape (b,)
        Whether the event was seen at that time; False is censored.
    """

    features: Tensor
    time: NDArray[np.float64]
    event: NDArray[np.bool_]

    @cached_property
    def event_rows(self) -> Tensor:
        """Positions of the rows with an event, shape (n_events,)."""
        return torch.from_numpy(np.flatnonzero(self.event))

    @cached_property
    def last_at_risk(self) -> Tensor:
        """Position of the last row in the risk set of each event, shape (n_events,).

        All rows of the same time belong to the risk set, those behind the event too.
        """
        descending = -self.time
        after = np.searchsorted(descending, descending[self.event], side="right")
        return torch.from_numpy(after - 1)


class SurvivalModel(ABC):
    """A network, the loss it is trained with, and the risk it predicts.

    Parameters
    ----------
    network : torch.nn.Module
        All that is trained and travels. A network with BatchNorm is refused.

    Raises
    ------
    ValueError
        If the network has a BatchNorm layer.
    """

    def __init__(self, network: nn.Module) -> None:
        refuse_batch_norm(network)
        self.network = network

    def informative(self, batch: Batch) -> bool:
        """Whether the loss of this batch has a gradient at all."""
        return True

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """Mean loss of an informative batch, a scalar."""

    @abstractmethod
    def risk(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Predicted risk of each row, shape (n,); larger means an earlier event."""


class ProportionalHazards(SurvivalModel):
    """Log hazard ratio by a network, trained with Cox's partial likelihood [1]_, [2]_.

    Tied times are handled by Breslow's approximation [3]_: the events of one time share one
    risk set. ``pycox.models.loss.cox_ph_loss_sorted`` is the same function where no two
    times are equal. Where some are, its risk sets follow the order of the rows in the file,
    and a file sorted by a feature biases that feature's effect. (Importing it also loads
    numba, scikit-learn and h5py: more time than a round of training, in every process.)

    References
    ----------
    .. [1] D. R. Cox, Partial likelihood, Biometrika 62 (1975), 269-276.
    .. [2] J. Katzman et al., DeepSurv, BMC Med Res Methodol 18:24 (2018), eq. 4.
    .. [3] N. Breslow, Covariance analysis of censored survival data, Biometrics 30 (1974).
    """

    def informative(self, batch: Batch) -> bool:
        """Whether the batch has an event; without one the partial likelihood is constant."""
        return bool(batch.event.any())

    def loss(self, batch: Batch) -> Tensor:
        """Negative log partial likelihood, divided by the number of events."""
        log_hazard = self.network(batch.features).squeeze(1)
        log_at_risk = log_hazard.logcumsumexp(0)
        return torch.sub(
            log_at_risk.index_select(0, batch.last_at_risk),
            log_hazard.index_select(0, batch.event_rows),
        ).mean()

    def risk(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Log hazard ratio of each row, shape (n,), up to a constant common to all rows."""
        was_training = self.network.training
        self.network.eval()
        try:
            with single_thread(), torch.inference_mode():
                dtype = next(self.network.parameters()).dtype
                output = self.network(torch.as_tensor(features, dtype=dtype))
        finally:
            self.network.train(was_training)
        return np.asarray(output.squeeze(1).numpy(), dtype=np.float64)


class ModelBuilder(Protocol):
    """What `register` takes: makes an untrained model from torch's global generator."""

    def __call__(
        self, *, n_features: int, hidden_layers: Sequence[int], dropout: float
    ) -> SurvivalModel:
        """Return the untrained model."""
        ...


_BUILDERS: dict[str, ModelBuilder] = {}


def register(name: str) -> Callable[[ModelBuilder], ModelBuilder]:
    """Make a model available to `build` under `name`; a name is taken once."""

    def add(builder: ModelBuilder) -> ModelBuilder:
        if name in _BUILDERS:
            raise ValueError(f"a model named {name!r} is registered already")
        _BUILDERS[name] = builder
        return builder

    return add


def model_names() -> tuple[str, ...]:
    """Names that `build` knows, in alphabetical order."""
    return tuple(sorted(_BUILDERS))


def build(
    name: str, *, n_features: int, hidden_layers: Sequence[int], dropout: float, seed: int
) -> SurvivalModel:
    """Build an untrained model.

    Parameters
    ----------
    name : str
        One of `model_names`.
    n_features : int
        Columns of the feature matrix, at least 1.
    hidden_layers : sequence of int
        Units of the hidden layers, each at least 1; empty makes the network linear.
    dropout : float
        Rate of the dropout after each hidden layer, in [0, 1).
    seed : int
        The initial weights depend on it alone; torch's global generator is neither read nor
        moved.

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
    if n_features < 1:
        faults.append(f"n_features is {n_features}; allowed: 1 or more")
    if any(units < 1 for units in hidden_layers):
        faults.append(f"hidden_layers is {tuple(hidden_layers)}; allowed: 1 unit or more each")
    if not 0 <= dropout < 1:
        faults.append(f"dropout is {dropout}; allowed: 0 or more, less than 1")
    if faults:
        raise ValueError("; ".join(faults))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _BUILDERS[name](
            n_features=n_features, hidden_layers=tuple(hidden_layers), dropout=dropout
        )


@register("DeepSurv")
def deep_surv(
    *, n_features: int, hidden_layers: Sequence[int], dropout: float
) -> ProportionalHazards:
    """DeepSurv: pycox's perceptron with one output, the log hazard ratio.

    The output has no bias: it cancels in the partial likelihood, and would only be one more
    number to carry noise.
    """
    network = MLPVanilla(
        n_features,
        list(hidden_layers),
        out_features=1,
        batch_norm=False,
        dropout=dropout,
        output_bias=False,
    )
    return ProportionalHazards(network)


def refuse_batch_norm(network: nn.Module) -> None:
    """Raise ValueError if a layer of the network normalizes over the rows of a batch."""
    found = [name for name, layer in network.named_modules() if isinstance(layer, _BatchNorm)]
    if found:
        raise ValueError(
            f"BatchNorm ({', '.join(found)}) is not allowed: its running mean and variance are "
            "statistics of few rows that would leave the site with the update, and noise on the "
            "update can make a variance negative; use LayerNorm or GroupNorm"
        )


def arrays_of(network: nn.Module) -> dict[str, NDArray[Any]]:
    """Copies of all parameters and buffers, by name, in the network's order."""
    return {name: value.detach().numpy().copy() for name, value in network.state_dict().items()}


def load_arrays(network: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays, as `arrays_of` gives them, into the network.

    Raises
    ------
    ValueError
        If names, shapes or types differ from the network's; it names all that do, and the
        network is unchanged.
    """
    own = network.state_dict()
    faults = [f"{name}: missing" for name in own if name not in arrays]
    faults += [f"{name}: not in this model" for name in arrays if name not in own]
    for name in (name for name in own if name in arrays):
        expected, given = own[name].numpy(), arrays[name]
        if expected.shape != given.shape:
            faults.append(f"{name}: shape {given.shape}, expected {expected.shape}")
        if expected.dtype != given.dtype:
            faults.append(f"{name}: type {given.dtype}, expected {expected.dtype}")
    if faults:
        raise ValueError("arrays do not fit the model: " + "; ".join(faults))
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(torch.tensor(arrays[name]))
