"""Local training of a survival model: some optimizer steps on the rows of one site."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tasks.site.faults import SiteFault
from tasks.survival.models import Batch, SurvivalModel, single_thread


@dataclass(frozen=True)
class TrainingResult:
    """What happened in `train`. The loss comes from the site's rows and carries no noise.

    Attributes
    ----------
    mean_loss : float or None
        Mean loss over all steps that had one, dropout on and without the model's `penalty`; None
        if there was none.
    n_steps : int
        Steps taken, those without an event included.
    n_idle_steps : int
        Steps whose batch said nothing to the loss, as one without an event to Cox's: they changed
        nothing.
    """

    mean_loss: float | None
    n_steps: int
    n_idle_steps: int


def train(
    model: SurvivalModel,
    features: NDArray[np.float32],
    time: NDArray[np.float64],
    event: NDArray[np.bool_],
    *,
    local_steps: int,
    learning_rate: float,
    weight_decay: float,
    batch_size: int,
    rng: np.random.Generator,
) -> TrainingResult:
    """Train the model's network in place by AdamW.

    Rows are reshuffled each epoch. A last batch of one row is joined to the one before it.
    The optimizer starts anew at each call: its moments do not outlive a round.

    Parameters
    ----------
    model : SurvivalModel
        Its network is trained, with dropout on, and left in the mode it came in.
    features : ndarray, shape (n, p)
        Standardized features, n at least 1.
    time : ndarray, shape (n,)
        Follow-up times.
    event : ndarray of bool, shape (n,)
        Whether the event was seen.
    local_steps : int
        Optimizer steps.
    learning_rate, weight_decay : float
        Of AdamW; the decay is decoupled: a step multiplies weights by
        1 - learning_rate * weight_decay, but those that the model names `undecayed`.
    batch_size : int
        Rows of a step; n or more uses all rows in every step.
    rng : numpy.random.Generator
        Source of the shuffles, of dropout and of what the loss draws. The same inputs and the
        same state of it give the same bits; torch's global generator is left as it was.

    Returns
    -------
    TrainingResult

    Raises
    ------
    SiteFault
        ``diverged``, if a loss or a weight is no finite number. The network is unchanged.
    ValueError
        If there is no row, or the arrays differ in length.
    """
    if not len(features) == len(time) == len(event) > 0:
        raise ValueError(
            f"need as many features as times and events, at least one row: "
            f"got {len(features)}, {len(time)}, {len(event)}"
        )
    losses: list[float] = []
    received = {
        name: parameter.detach().clone()
        for name, parameter in model.network.named_parameters()
        if parameter.requires_grad
    }
    with _isolated(rng), _training_mode(model.network), _one_vector(model.network) as vector:
        parameters = [p for p in model.network.parameters() if p.requires_grad]
        decay = weight_decay * _decayed(model)
        optimizer = _AdamW(vector, learning_rate=learning_rate, weight_decay=decay)
        batches = _batches(features, time, event, vector.dtype, batch_size, rng)
        for step, batch in zip(range(1, local_steps + 1), batches, strict=False):
            if not model.informative(batch):
                continue
            loss = model.loss(batch)
            losses.append(loss.item())
            penalty = model.penalty(received)
            if penalty is not None:
                loss = loss + penalty
            if not math.isfinite(losses[-1] if penalty is None else loss.item()):
                raise _diverged(step, local_steps, learning_rate)
            gradients = torch.autograd.grad(
                loss, parameters, allow_unused=True, materialize_grads=True
            )
            optimizer.step(torch.cat([g.reshape(-1) for g in gradients]))
        if not torch.isfinite(vector).all():
            raise _diverged(local_steps, local_steps, learning_rate)
    return TrainingResult(
        mean_loss=math.fsum(losses) / len(losses) if losses else None,
        n_steps=local_steps,
        n_idle_steps=local_steps - len(losses),
    )


class _AdamW:
    """AdamW (Loshchilov and Hutter 2019, algorithm 2) on one vector of all parameters.

    ``torch.optim`` does the same, but its first optimizer imports torch's compiler: 1.2
    seconds in each process that trains for a few hundredths of one.
    """

    BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8

    def __init__(
        self, vector: Tensor, *, learning_rate: float, weight_decay: float | Tensor
    ) -> None:
        self._vector = vector
        self._learning_rate = learning_rate
        self._shrinkage = 1 - learning_rate * weight_decay
        self._mean = torch.zeros_like(vector)
        self._square = torch.zeros_like(vector)
        self._steps = 0

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        self._steps += 1
        self._mean.lerp_(gradient, 1 - self.BETA_1)
        self._square.mul_(self.BETA_2).addcmul_(gradient, gradient, value=1 - self.BETA_2)
        root = self._square.sqrt().div_(math.sqrt(1 - self.BETA_2**self._steps))
        self._vector.mul_(self._shrinkage).addcdiv_(
            self._mean,
            root.add_(self.EPSILON),
            value=-self._learning_rate / (1 - self.BETA_1**self._steps),
        )


def _decayed(model: SurvivalModel) -> float | Tensor:
    """1 for every trained number that weight decay shrinks, 0 for the others."""
    spared = model.undecayed
    if not spared:
        return 1.0
    trained = [(name, p) for name, p in model.network.named_parameters() if p.requires_grad]
    return torch.cat([torch.full((p.numel(),), float(name not in spared)) for name, p in trained])


def _batches(
    features: NDArray[np.float32],
    time: NDArray[np.float64],
    event: NDArray[np.bool_],
    dtype: torch.dtype,
    batch_size: int,
    rng: np.random.Generator,
) -> Iterator[Batch]:
    """Endless batches, the longest time first in each: sorted once, not once a step."""
    order = np.argsort(-time, kind="stable")
    rows = Batch(torch.as_tensor(features[order], dtype=dtype), time[order], event[order], rng)
    n_rows = len(order)
    if batch_size >= n_rows:
        while True:
            yield rows
    bounds = [*range(0, n_rows, batch_size), n_rows]
    if bounds[-1] - bounds[-2] == 1 and len(bounds) > 2:
        del bounds[-2]
    while True:
        shuffled = rng.permutation(n_rows)
        for start, stop in pairwise(bounds):
            taken = np.sort(shuffled[start:stop])
            yield Batch(rows.features[taken], rows.time[taken], rows.event[taken], rng)


@contextmanager
def _isolated(rng: np.random.Generator) -> Iterator[None]:
    """One thread, and torch's global generator (dropout draws from it) seeded from `rng`."""
    with single_thread(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(2**63)))
        yield


@contextmanager
def _training_mode(network: nn.Module) -> Iterator[None]:
    was_training = network.training
    network.train()
    try:
        yield
    finally:
        network.train(was_training)


@contextmanager
def _one_vector(network: nn.Module) -> Iterator[Tensor]:
    """A copy of all trained parameters as one vector that the network computes with.

    On a normal exit it is written back to the network's own memory; after an exception the
    network is what it was.
    """
    parameters = [p for p in network.parameters() if p.requires_grad]
    own = [p.data for p in parameters]
    vector = torch.cat([data.reshape(-1) for data in own])
    pieces = torch.split(vector, [data.numel() for data in own])
    for parameter, piece, data in zip(parameters, pieces, own, strict=True):
        parameter.data = piece.view_as(data)
    try:
        yield vector
        for data, piece in zip(own, pieces, strict=True):
            data.copy_(piece.view_as(data))
    finally:
        for parameter, data in zip(parameters, own, strict=True):
            parameter.data = data


def _diverged(step: int, local_steps: int, learning_rate: float) -> SiteFault:
    return SiteFault(
        "diverged",
        f"training diverged in step {step} of {local_steps}: loss or weights are no finite "
        f"numbers; lower the learning rate ({learning_rate:g})",
    )
