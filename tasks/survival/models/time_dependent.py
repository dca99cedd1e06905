"""CoxTime: a relative risk that depends on time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tasks.survival.baseline import BaselineHazard
from tasks.survival.label_cuts import between_points
from tasks.survival.models.base import Batch, TimeDependent, needed, perceptron
from tasks.survival.models.case_control import case_control_loss, draw_controls, has_controls
from tasks.survival.models.registry import Design, register
from tasks.survival.risk_sets import hazard_ratio

_MOST_INPUTS = 1 << 18  # rows times grid points that go through the network together


class CoxTime(TimeDependent):
    """Log relative hazard g(t, x) by a network, trained by case and control [1]_.

    Time is one more input. It is standardized by the horizon, which is public, and not by rows:
    to mean 0 and standard deviation 1 if times were uniform between 0 and the horizon. An event
    beyond the horizon is no case (the row is censored at the horizon).

    Parameters
    ----------
    network : torch.nn.Module
        With one output, on the features and then the standardized time.
    horizon : float
        End of the time grid.
    risk_time : float
        Time at which `risk` is taken.
    controls : int
        Controls of each event.

    References
    ----------
    .. [1] H. Kvamme, O. Borgan, I. Scheel, Time-to-event prediction with neural networks and Cox
       regression, JMLR 20:129 (2019), section 3.3.
    """

    def __init__(
        self, network: nn.Module, *, horizon: float, risk_time: float, controls: int = 1
    ) -> None:
        super().__init__(network)
        self.horizon = horizon
        self.risk_time = risk_time
        self.controls = controls

    def informative(self, batch: Batch) -> bool:
        """Whether an event before the horizon has another row at risk, to be compared with."""
        return has_controls(batch, self._before_horizon(batch))

    def loss(self, batch: Batch) -> Tensor:
        """Case-control loss at the times of the cases, mean over those that have a control."""
        cases, controls = draw_controls(batch, self.controls, self._before_horizon(batch))
        time = torch.as_tensor(
            self.standardized_time(batch.time[cases.numpy()]), dtype=batch.features.dtype
        )
        rows = torch.cat([cases, controls.reshape(-1)])
        inputs = torch.column_stack([batch.features[rows], time.repeat(1 + self.controls)])
        log_hazard = self.network(inputs).reshape(1 + self.controls, -1)
        return case_control_loss(log_hazard[0], log_hazard[1:])

    def standardized_time(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Times as the network takes them: ``(t / horizon - 1/2) sqrt(12)``."""
        return np.asarray((times / self.horizon - 0.5) * np.sqrt(12), dtype=np.float64)

    def log_hazard(
        self, features: NDArray[np.float32], times: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Log relative hazard g(t, x) of each row at each time, shape (n, m)."""
        n_rows, n_times = len(features), len(times)
        found = np.empty((n_rows, n_times))
        time = self.standardized_time(times)
        step = max(1, _MOST_INPUTS // max(1, n_times))
        for start in range(0, n_rows, step):
            rows = np.repeat(features[start : start + step], n_times, axis=0)
            column = np.tile(time, len(rows) // n_times).astype(_type_of(features))
            inputs = np.column_stack([rows, column])
            found[start : start + step] = self.outputs(inputs).reshape(-1, n_times)
        return found

    def risk(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Log relative hazard of each row at `risk_time`, shape (n,)."""
        return self.log_hazard(features, np.array([self.risk_time]))[:, 0]

    def survival(
        self,
        features: NDArray[np.float32],
        times: NDArray[np.float64],
        baseline: BaselineHazard | None = None,
    ) -> NDArray[np.float64]:
        """Survival by the baseline hazard and the risk at each time of its grid, shape (n, m).

        In a cell of the grid the hazard is the baseline's times the mean of ``exp(g)`` at the
        cell's two ends.
        """
        found = needed(baseline)
        found.refuse_outside(times)
        cells = max(1, int(np.searchsorted(found.grid, times.max(initial=0.0))))
        grid = found.grid[: cells + 1]
        survival = np.empty((len(features), len(times)))
        step = max(1, _MOST_INPUTS // grid.size)
        for start in range(0, len(features), step):
            rows = features[start : start + step]
            cumulative = self._cumulative_hazard(rows, grid, found)
            survival[start : start + step] = np.exp(-between_points(cumulative, grid, times))
        return survival

    def _cumulative_hazard(
        self, features: NDArray[np.float32], grid: NDArray[np.float64], baseline: BaselineHazard
    ) -> NDArray[np.float64]:
        log_hazard = self.log_hazard(features, grid)
        ratio = hazard_ratio(log_hazard, center=baseline.center)
        hazard = np.diff(baseline.cumulative[: grid.size]) * (ratio[:, :-1] + ratio[:, 1:]) / 2
        return np.pad(np.cumsum(hazard, axis=1), ((0, 0), (1, 0)))

    def _before_horizon(self, batch: Batch) -> NDArray[np.bool_]:
        """Which of the events of a batch are at the horizon or before it."""
        return np.asarray(batch.time[batch.event] <= self.horizon)


def _type_of(features: NDArray[Any]) -> Any:
    return np.asarray(features).dtype


@register("CoxTime")
def cox_time(design: Design) -> CoxTime:
    """CoxTime: pycox's perceptron on the features and time, without a bias of the output.

    The risk is taken at the middle cut, the time by which about half of all events have come that
    come at all.
    """
    network = perceptron(
        design.n_features + 1, design.hidden_layers, dropout=design.dropout, output_bias=False
    )
    return CoxTime(
        network,
        horizon=design.horizon,
        risk_time=float(design.cuts[design.cuts.size // 2]),
        controls=design.controls,
    )
