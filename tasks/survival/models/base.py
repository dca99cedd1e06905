"""What every survival model has: a network, a loss, a risk, and predicted survival."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchtuples.practical import MLPVanilla

from tasks.survival.baseline import BaselineHazard

Kind = Literal["proportional-hazards", "time-dependent", "discrete"]
"""What survival is predicted from: a baseline and one risk a row; a baseline and a risk for each
time; the network alone, on a grid of cuts."""


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
    rng : numpy.random.Generator
        What a loss draws from that samples rows; losses that do not leave it as it is.
    """

    features: Tensor
    time: NDArray[np.float64]
    event: NDArray[np.bool_]
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

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
    """A network, the loss it is trained with, and what it predicts.

    Parameters
    ----------
    network : torch.nn.Module
        All that is trained and travels. A network with BatchNorm is refused.

    Attributes
    ----------
    kind : str
        ``"proportional-hazards"``, ``"time-dependent"`` or ``"discrete"``: see `Kind`. It decides
        how the C-index is computed and whether a baseline hazard is summed.

    Raises
    ------
    ValueError
        If the network has a BatchNorm layer.
    """

    kind: ClassVar[Kind]

    def __init__(self, network: nn.Module) -> None:
        refuse_batch_norm(network)
        self.network = network

    @property
    def undecayed(self) -> frozenset[str]:
        """Names of the parameters that weight decay leaves alone; none unless a model says so."""
        return frozenset()

    def start_at(self, survival: NDArray[np.float64]) -> None:  # noqa: B027 - nothing to do is right
        """Let the untrained model begin where survival at its cuts is that of all rows together.

        Parameters
        ----------
        survival : ndarray, shape (k + 1,)
            Pooled Kaplan-Meier estimate at the cuts. A model that predicts no absolute survival by
            itself has no use for it.
        """

    def informative(self, batch: Batch) -> bool:
        """Whether the loss of this batch has a gradient at all."""
        return True

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """Mean loss of an informative batch, a scalar."""

    def penalty(self, received: Mapping[str, Tensor]) -> Tensor | None:
        """Return what local training adds to the loss of an informative batch; None: nothing.

        FedProx (Li et al. 2020) adds half of mu times the squared distance of the network's
        parameters from those that it came with. The loss that a site tells is without it.

        Parameters
        ----------
        received : mapping of str to Tensor
            Trained parameters by name, as they were before the first step.

        Returns
        -------
        Tensor or None
            A scalar.
        """
        return None

    @abstractmethod
    def risk(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Predicted risk of each row, shape (n,); larger means an earlier event."""

    @abstractmethod
    def survival(
        self,
        features: NDArray[np.float32],
        times: NDArray[np.float64],
        baseline: BaselineHazard | None = None,
    ) -> NDArray[np.float64]:
        """Probability of no event up to each time, for each row.

        Parameters
        ----------
        features : ndarray, shape (n, p)
            Standardized features.
        times : ndarray, shape (m,)
            From 0 to the end of the time grid, in any order.
        baseline : BaselineHazard or None
            Of this model, over all sites; discrete models need none and do not look at it.

        Returns
        -------
        ndarray, shape (n, m)
        """

    def outputs(self, features: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """What the network gives for each row in prediction (no dropout), shape (n, outputs)."""
        was_training = self.network.training
        self.network.eval()
        try:
            with single_thread(), torch.inference_mode():
                dtype = next(self.network.parameters()).dtype
                output = self.network(torch.as_tensor(features, dtype=dtype))
        finally:
            self.network.train(was_training)
        return np.asarray(output.numpy(), dtype=np.float64)


class TimeDependent(SurvivalModel):
    """A model whose relative hazard depends on time; survival is by a baseline hazard.

    Sites weight their risk sets by its `log_hazard` at each time of the grid.
    """

    kind: ClassVar[Kind] = "time-dependent"

    @abstractmethod
    def log_hazard(
        self, features: NDArray[np.float32], times: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Log relative hazard of each row at each time, shape (n, m)."""


def perceptron(
    n_inputs: int,
    hidden_layers: Sequence[int],
    n_outputs: int = 1,
    *,
    dropout: float,
    output_bias: bool,
) -> nn.Module:
    """Pycox's perceptron: ReLU and dropout after each hidden layer, no BatchNorm."""
    network: nn.Module = MLPVanilla(
        n_inputs,
        list(hidden_layers),
        out_features=n_outputs,
        batch_norm=False,
        dropout=dropout,
        output_bias=output_bias,
    )
    return network


def needed(baseline: BaselineHazard | None) -> BaselineHazard:
    """Return the baseline, or raise ValueError if there is none."""
    if baseline is None:
        raise ValueError("this model predicts survival by a baseline hazard; none is given")
    return baseline


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
