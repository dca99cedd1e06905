"""Cases and their controls: the loss of CoxCC and CoxTime, and whom an event is compared with.

A case is a row with an event, a control another row at risk at that time. Controls are drawn from
the case's batch, with replacement. The batch is a random sample of the site's rows, so they are a
random sample of the site's risk set. The case itself is never its own control: it is in the
denominator anyway, and drawn again it would only say ``log 2``. A case that is alone in its risk
set has nobody to be compared with and is left out.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.survival.models.base import Batch


def case_control_loss(case: Tensor, controls: Tensor) -> Tensor:
    """``log(1 + sum over controls of exp(g_control - g_case))``, mean over cases.

    Kvamme, Borgan and Scheel (2019), eq. 10 and 11. The same as
    ``pycox.models.loss.cox_cc_loss`` with ``shrink=0``, which however has no gradient where a
    difference exceeds 80.

    Parameters
    ----------
    case : Tensor, shape (c,)
        Log hazard of the cases.
    controls : Tensor, shape (k, c)
        Log hazard of the controls of each.
    """
    differences = controls - case
    return torch.cat([torch.zeros_like(differences[:1]), differences]).logsumexp(0).mean()


def has_controls(batch: Batch, among: NDArray[np.bool_] | None = None) -> bool:
    """Whether any event (`among`: of all events, those that count) has another row at risk."""
    others = batch.last_at_risk > 0
    return bool(others.any() if among is None else others[torch.from_numpy(among)].any())


def draw_controls(
    batch: Batch, n_controls: int, among: NDArray[np.bool_] | None = None
) -> tuple[Tensor, Tensor]:
    """Draw controls for the events of a batch from its generator.

    Parameters
    ----------
    batch : Batch
    n_controls : int
        Of each case.
    among : ndarray of bool, shape (n_events,), or None
        The events that are cases; None: all.

    Returns
    -------
    cases : Tensor, shape (c,)
        Positions of the events that have a control.
    controls : Tensor, shape (n_controls, c)
        Positions of their controls.
    """
    case, others = batch.event_rows.numpy(), batch.last_at_risk.numpy()
    taken = others > 0 if among is None else (others > 0) & among
    case, others = case[taken], others[taken]
    drawn = (batch.rng.random((n_controls, case.size)) * others).astype(np.int64)
    drawn += drawn >= case  # the position of the case is skipped
    return torch.from_numpy(case), torch.from_numpy(drawn)
