"""Proportional hazards: DeepSurv and CoxPH by the partial likelihood, CoxCC by case and control."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tasks.survival.baseline import BaselineHazard
from tasks.survival.models.base import Batch, Kind, SurvivalModel, needed, perceptron
from tasks.survival.models.case_control import case_control_loss, draw_controls, has_controls
from tasks.survival.models.registry import Design, register


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

    kind: ClassVar[Kind] = "proportional-hazards"

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
        return self.outputs(features).squeeze(1)

    def survival(
        self,
        features: NDArray[np.float32],
        times: NDArray[np.float64],
        baseline: BaselineHazard | None = None,
    ) -> NDArray[np.float64]:
        """Survival by the baseline hazard, ``exp(-H0(t) exp(risk))``, shape (n, m)."""
        return needed(baseline).survival(times, self.risk(features))


class CaseControl(ProportionalHazards):
    """Log hazard ratio by a network, trained with the case-control loss of CoxCC [1]_.

    The loss decomposes over events: each is compared with a few rows of its risk set instead of
    all. See `tasks.survival.models.case_control` for how these are drawn.

    Parameters
    ----------
    network : torch.nn.Module
        With one output.
    controls : int
        Controls of each event.

    References
    ----------
    .. [1] H. Kvamme, O. Borgan, I. Scheel, Time-to-event prediction with neural networks and Cox
       regression, JMLR 20:129 (2019), eq. 10.
    """

    def __init__(self, network: nn.Module, *, controls: int = 1) -> None:
        super().__init__(network)
        self.controls = controls

    def informative(self, batch: Batch) -> bool:
        """Whether an event of the batch has another row at risk, to be compared with."""
        return has_controls(batch)

    def loss(self, batch: Batch) -> Tensor:
        """Case-control loss, mean over the events that have a control."""
        cases, controls = draw_controls(batch, self.controls)
        log_hazard = self.network(batch.features).squeeze(1)
        return case_control_loss(log_hazard[cases], log_hazard[controls])


@register("DeepSurv")
def deep_surv(design: Design) -> ProportionalHazards:
    """DeepSurv: pycox's perceptron with one output, the log hazard ratio.

    The output has no bias: it cancels in the partial likelihood, and would only be one more
    number to carry noise.
    """
    return ProportionalHazards(_one_output(design))


@register("CoxPH")
def cox_ph(design: Design) -> ProportionalHazards:
    """Cox's linear model: one coefficient a feature, which all begin at 0."""
    network = perceptron(design.n_features, (), dropout=0.0, output_bias=False)
    with torch.no_grad():
        for coefficients in network.parameters():
            coefficients.zero_()
    return ProportionalHazards(network)


@register("CoxCC")
def cox_cc(design: Design) -> CaseControl:
    """CoxCC: DeepSurv's network, trained with the case-control loss."""
    return CaseControl(_one_output(design), controls=design.controls)


def _one_output(design: Design) -> nn.Module:
    return perceptron(
        design.n_features, design.hidden_layers, dropout=design.dropout, output_bias=False
    )
