"""A survival model of one's own: a smooth network with layer normalization, under a name.

A model is a network and a loss. Here only the network is new, so that the model is a subclass of a
kind that is there, and a function that builds it is registered under a name. From then on
``survival.model`` may be that name in this process::

    python examples/own_survival_model.py

For ``flwr run`` and in a deployment, network and function go into a module of
``tasks/survival/models/`` that its ``__init__.py`` imports: ServerApp, ClientApps and whoever
predicts with the model file then know the name.
"""

from __future__ import annotations

import tempfile

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedapp.simulation import simulate
from tasks.survival.models import Design, ProportionalHazards, SurvivalModel, register


class SmoothHazard(nn.Module):
    """Log hazard ratio that is smooth in the features; LayerNorm, since BatchNorm is refused."""

    def __init__(self, n_features: int, units: int) -> None:
        super().__init__()
        self.inner = nn.Linear(n_features, units)
        self.norm = nn.LayerNorm(units)
        self.outer = nn.Linear(units, 1, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return one output a row."""
        output: Tensor = self.outer(torch.tanh(self.norm(self.inner(features))))
        return output


@register("SmoothHazard")
def smooth_hazard(design: Design) -> SurvivalModel:
    """Build the untrained model; its initial weights come from torch's generator, seeded before."""
    return ProportionalHazards(SmoothHazard(design.n_features, units=design.hidden_layers[0]))


def patients(rows: int, *, seed: int) -> pd.DataFrame:
    """Return made-up rows in which the hazard is least in the middle of x0."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    time, censoring = rng.exponential(np.exp(-(x[:, 0] ** 2))), rng.exponential(2.0, size=rows)
    return pd.DataFrame(
        {
            "time": np.minimum(time, censoring) + 1e-6,
            "event": (time <= censoring).astype(int),
            "x0": x[:, 0],
            "x1": x[:, 1],
        }
    )


def main() -> None:
    """Train the own model and Cox's linear one over three sites."""
    sites = [patients(400, seed=seed) for seed in range(3)]
    for name in ("SmoothHazard", "CoxPH"):
        with tempfile.TemporaryDirectory() as folder:
            result = simulate(
                "survival",
                sites=sites,
                config={
                    "survival.model": name,
                    "survival.learning-rate": 0.02,
                    "survival.dp-mechanism": "none",
                    "run-dir": folder,
                },
            )
        print(f"{name}: C-index {result.summary['c-index']:.3f}")


if __name__ == "__main__":
    main()
