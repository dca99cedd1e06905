"""How a site answers the steps of a survival run: each for one request, on one grid of times.

The privacy level is one of a message. Sums of the same rows on two grids, or under many models of a
server's choice, give single rows by subtraction, and so do noised updates drawn anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from numpy.typing import NDArray

from tasks.site.answered_once import answered_once
from tasks.site.faults import SiteFault
from tasks.site.requests import read_request
from tasks.survival import client
from tasks.survival.client import SurvivalSite
from tasks.survival.curves_messages import CurvesRequest
from tasks.survival.messages import TrainConfig, model_arrays
from tasks.survival.set_up_messages import StatisticsRequest

_GRID = "survival-grid"
_ANOTHER_GRID = "another grid of times than the first of this run: sums on two grids are not given"


def statistics(message: Message, site: SurvivalSite, context: Context) -> Message:
    """Answer ``statistics``, once in a run."""
    request = read_request(lambda: StatisticsRequest.from_record(message.content))
    _fix_grid(context, request.grid_horizon)
    return answered_once(
        message, context, lambda: client.statistics(message, site), step="statistics"
    )


def train(message: Message, site: SurvivalSite, context: Context) -> Message:
    """Answer ``train``, once a round."""
    request = _train_config(message)
    _fix_grid(context, request.grid_horizon, request.label_cuts)
    return answered_once(
        message,
        context,
        lambda: client.train(message, site),
        step="train",
        server_round=request.server_round,
    )


def evaluate(message: Message, site: SurvivalSite, context: Context) -> Message:
    """Answer ``evaluate``, once in a run."""
    request = _train_config(message)
    _fix_grid(context, request.grid_horizon, request.label_cuts)
    return answered_once(message, context, lambda: client.evaluate(message, site), step="evaluate")


def curves(message: Message, site: SurvivalSite, context: Context) -> Message:
    """Answer ``curves``, once in a run."""
    request = read_request(lambda: CurvesRequest.from_record(message.content))
    read_request(lambda: model_arrays(message.content))
    _fix_grid(context, request.baseline.horizon, request.label_cuts)
    grid = request.baseline.grid
    if grid.size - 1 != site.config.time_bins:  # a second partition of the same rows
        raise SiteFault("second-request", _ANOTHER_GRID)
    if request.plan is not None and not np.array_equal(request.plan.grid, grid):
        raise SiteFault("bad-request", "plan: must be on the grid of the baseline hazard")
    return answered_once(message, context, lambda: client.curves(message, site), step="curves")


def _train_config(message: Message) -> TrainConfig:
    request = read_request(lambda: TrainConfig.of_message(message.content))
    read_request(lambda: model_arrays(message.content))
    return request


def _fix_grid(
    context: Context, horizon: float, label_cuts: NDArray[np.float64] | None = None
) -> None:
    """Keep the run's times, the end of its grid and the cuts of its models, and refuse others."""
    known = context.state.config_records.get(_GRID)
    kept: dict[str, Any] = {"horizon": float(horizon)} if known is None else dict(known)
    if label_cuts is not None:
        kept.setdefault("label-cuts", label_cuts.tolist())
    if kept["horizon"] != horizon or (
        label_cuts is not None and kept["label-cuts"] != label_cuts.tolist()
    ):
        raise SiteFault("second-request", _ANOTHER_GRID)
    context.state[_GRID] = ConfigRecord(kept)
