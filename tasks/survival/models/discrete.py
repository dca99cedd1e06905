"""Models of survival on a grid of cuts: LogisticHazard, PC-Hazard and DeepHit.

The network has one output an interval; survival at the cuts is a function of them alone, no
baseline hazard is needed. At time 0 it is 1. (In pycox LogisticHazard and DeepHit have one output
more, for an event at time 0. No row has one, so it would only be more numbers to carry noise.)
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tasks.survival.baseline import BaselineHazard
from tasks.survival.label_cuts import between_points, discrete_labels, piecewise_labels
from tasks.survival.models.base import Batch, Kind, SurvivalModel, perceptron
from tasks.survival.models.registry import Design, register

_NEAREST = 1e-15  # survival is kept so far from 0 and 1 before its log is taken twice
_LEAST_LEFT = 0.01  # survival that a model begins with at its last cut, at least
_LEAST_STEP = 1e-6
_LINEAR_SOFTPLUS = -15.0  # below it log(softplus(x)) is x to the last digit of a float32


class DiscreteTime(SurvivalModel):
    """A model of survival at cuts of time.

    A subclass says what survival is at the cuts, and what the loss is. Rows beyond the last cut
    are censored there, and survival is constant from there on.

    Parameters
    ----------
    network : torch.nn.Module
        With one output an interval.
    cuts : ndarray, shape (k + 1,)
        Borders of the intervals, ascending from 0.
    """

    kind: ClassVar[Kind] = "discrete"

    def __init__(self, network: nn.Module, *, cuts: NDArray[np.float64]) -> None:
        super().__init__(network)
        self.cuts = cuts

    @property
    def undecayed(self) -> frozenset[str]:
        """The bias of the outputs: decay would pull all hazards to that of an output of 0."""
        return frozenset(name for name, _ in self._output_bias())

    def start_at(self, survival: NDArray[np.float64]) -> None:
        """Set the bias of the outputs such that they give this survival where they are else 0."""
        falling = np.clip(np.minimum.accumulate(survival), _LEAST_LEFT, 1.0)
        falling = falling - _LEAST_STEP * np.arange(falling.size)  # no interval without any event
        for _, bias in self._output_bias():
            with torch.no_grad():
                bias.copy_(torch.from_numpy(self.outputs_of(falling / falling[0])))

    @abstractmethod
    def outputs_of(self, survival: NDArray[np.float64]) -> NDArray[np.float64]:
        """Outputs that give a survival at the cuts which falls from 1, shape (k,)."""

    def _output_bias(self) -> list[tuple[str, nn.Parameter]]:
        """Bias of the last linear layer, if that gives the outputs."""
        layers = [(n, m) for n, m in self.network.named_modules() if isinstance(m, nn.Linear)]
        if not layers or layers[-1][1].out_features != self.cuts.size - 1:
            return []
        name, layer = layers[-1]
        return [] if layer.bias is None else [(f"{name}.bias", layer.bias)]

    def informative(self, batch: Batch) -> bool:
        """Whether any row has an event or outlasts the first interval."""
        return bool((discrete_labels(batch.time, batch.event, self.cuts)[0] >= 0).any())

    @abstractmethod
    def survival_at_cuts(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Survival at each cut, shape (n, k + 1), from 1."""

    def survival(
        self,
        features: NDArray[np.float32],
        times: NDArray[np.float64],
        baseline: BaselineHazard | None = None,
    ) -> NDArray[np.float64]:
        """Survival, linear between cuts (pycox: ``interpolate`` with ``const_pdf``)."""
        return between_points(self.survival_at_cuts(features), self.cuts, times)

    def risk(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Log cumulative hazard at the middle cut, ``log(-log S)``, shape (n,).

        Under proportional hazards it is the log hazard ratio, up to a constant.
        """
        middle = self.survival_at_cuts(features)[:, self.cuts.size // 2]
        return np.asarray(np.log(-np.log(np.clip(middle, _NEAREST, 1 - _NEAREST))))


class LogisticHazard(DiscreteTime):
    """Log odds of the hazard of each interval [1]_, also known as Nnet-survival.

    References
    ----------
    .. [1] M. F. Gensheimer, B. Narasimhan, A scalable discrete-time survival model for neural
       networks, PeerJ 7:e6257 (2019); H. Kvamme, O. Borgan, Continuous and discrete-time survival
       prediction with neural networks, Lifetime Data Anal 27 (2021), eq. 9.
    """

    def loss(self, batch: Batch) -> Tensor:
        """Negative log-likelihood, mean over rows (pycox ``nll_logistic_hazard``)."""
        interval, event = discrete_labels(batch.time, batch.event, self.cuts)
        log_odds = self.network(batch.features)
        # softplus(x) is -log(1 - hazard)
        passed = _sum_up_to(functional.softplus(log_odds), interval)
        own = _own_interval(log_odds, interval)
        return (passed - own * torch.from_numpy(event)).mean()

    def outputs_of(self, survival: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log odds of the hazard of each interval, shape (k,)."""
        return np.asarray(np.log(survival[:-1] / survival[1:] - 1))

    def survival_at_cuts(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Product of one less the hazards, shape (n, k + 1)."""
        return _from_hazards(self.outputs(features))


class PCHazard(DiscreteTime):
    """A hazard that is constant within each interval [1]_.

    References
    ----------
    .. [1] H. Kvamme, O. Borgan, Continuous and discrete-time survival prediction with neural
       networks, Lifetime Data Anal 27 (2021), section 3.3.
    """

    def informative(self, batch: Batch) -> bool:
        """Whether there is a row: each passes a part of an interval."""
        return True

    def loss(self, batch: Batch) -> Tensor:
        """Negative log-likelihood, mean over rows (pycox ``nll_pc_hazard_loss``)."""
        interval, event, share = piecewise_labels(batch.time, batch.event, self.cuts)
        output = self.network(batch.features)
        hazard = functional.softplus(output)  # of a whole interval
        log_hazard = torch.where(
            output < _LINEAR_SOFTPLUS,
            output,
            functional.softplus(output.clamp(min=_LINEAR_SOFTPLUS)).log(),
        )
        passed = _sum_up_to(hazard, interval - 1)
        part = _own_interval(hazard, interval) * torch.as_tensor(share, dtype=output.dtype)
        seen = _own_interval(log_hazard, interval) * torch.from_numpy(event)
        return (passed + part - seen).mean()

    def outputs_of(self, survival: NDArray[np.float64]) -> NDArray[np.float64]:
        """What softplus makes the hazard of each interval of, shape (k,)."""
        return np.asarray(np.log(survival[:-1] / survival[1:] - 1))

    def survival_at_cuts(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Exponential of the negative cumulative hazard, shape (n, k + 1)."""
        return _from_hazards(self.outputs(features))

    def survival(
        self,
        features: NDArray[np.float32],
        times: NDArray[np.float64],
        baseline: BaselineHazard | None = None,
    ) -> NDArray[np.float64]:
        """Survival, its logarithm linear between cuts, shape (n, m)."""
        cumulative = _cumulative_softplus(self.outputs(features))
        return np.asarray(np.exp(-between_points(cumulative, self.cuts, times)))


class DeepHit(DiscreteTime):
    """Probability of an event in each interval, by likelihood and ranking [1]_, for one cause.

    One more probability is that of no event up to the last cut. The loss is
    ``alpha * likelihood + (1 - alpha) * ranking``, as in pycox.

    Parameters
    ----------
    network, cuts
        See `DiscreteTime`.
    alpha : float
        Share of the likelihood, in [0, 1].
    sigma : float
        Scale of the differences in the ranking, positive.

    References
    ----------
    .. [1] C. Lee, W. Zame, J. Yoon, M. van der Schaar, DeepHit, AAAI 32 (2018).
    """

    def __init__(
        self, network: nn.Module, *, cuts: NDArray[np.float64], alpha: float, sigma: float
    ) -> None:
        super().__init__(network, cuts=cuts)
        self.alpha = alpha
        self.sigma = sigma

    def loss(self, batch: Batch) -> Tensor:
        """Likelihood and ranking (pycox ``loss_deephit_single``)."""
        interval, event = discrete_labels(batch.time, batch.event, self.cuts)
        scores = functional.pad(self.network(batch.features), (0, 1))
        likelihood = _pmf_likelihood(scores, interval, event)
        if self.alpha == 1:
            return likelihood
        incidence = scores.softmax(1).cumsum(1)[:, :-1]
        ranking = _ranking(incidence, interval, event, self.sigma)
        return self.alpha * likelihood + (1 - self.alpha) * ranking

    def outputs_of(self, survival: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log odds of each interval against no event at all, shape (k,)."""
        return np.asarray(np.log(-np.diff(survival) / survival[-1]))

    def survival_at_cuts(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Probabilities of the intervals after each cut and of no event, shape (n, k + 1)."""
        scores = np.pad(self.outputs(features), ((0, 0), (0, 1)))
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        left = np.cumsum(weights[:, ::-1], axis=1)[:, ::-1]
        return np.asarray(left / left[:, :1])


def _pmf_likelihood(
    scores: Tensor, interval: NDArray[np.int64], event: NDArray[np.bool_]
) -> Tensor:
    """Negative log-likelihood of scores of intervals, the last of which is no event."""
    total = scores.logsumexp(1)
    after = scores.flip(1).logcumsumexp(1).flip(1)  # of the interval and all behind it
    at_event = scores.gather(1, _column(np.maximum(interval, 0))).squeeze(1)
    at_censoring = after.gather(1, _column(interval + 1)).squeeze(1)
    return (total - torch.where(torch.from_numpy(event), at_event, at_censoring)).mean()


def _ranking(
    incidence: Tensor, interval: NDArray[np.int64], event: NDArray[np.bool_], sigma: float
) -> Tensor:
    """Mean over all pairs of rows of DeepHit's ranking loss, in O(n k).

    Row i with its event in interval d is compared with the rows j that have none up to the end of
    d: ``exp(-(F_i(d) - F_j(d)) / sigma)``. The terms of j depend on d alone, so they are summed
    once for each interval.
    """
    n_rows, n_intervals = incidence.shape
    outlasts = interval[:, None] > np.arange(n_intervals)
    outlasts |= (interval[:, None] == np.arange(n_intervals)) & ~event[:, None]
    compared_to = np.asarray(outlasts.any(axis=0))[np.maximum(interval, 0)]
    any_outlasts = torch.from_numpy(event & compared_to)
    if not any_outlasts.any():
        return incidence.sum() * 0.0
    scaled = incidence / sigma
    others = scaled.masked_fill(torch.from_numpy(~outlasts), _NOTHING).logsumexp(0)
    compared = torch.from_numpy(interval)[any_outlasts]
    own = scaled[any_outlasts].gather(1, compared[:, None]).squeeze(1)
    return (others[compared] - own).exp().sum() / n_rows**2


_NOTHING = -1e30  # the logarithm of nothing, without an infinity whose gradient is no number


def _own_interval(values: Tensor, interval: NDArray[np.int64]) -> Tensor:
    """Value of each row in its interval; of interval -1 that of the first."""
    return values.gather(1, _column(np.maximum(interval, 0))).squeeze(1)


def _sum_up_to(values: Tensor, interval: NDArray[np.int64]) -> Tensor:
    """Sum of each row's values up to its interval, that one included; of interval -1 it is 0."""
    sums = functional.pad(values.cumsum(1), (1, 0))
    return sums.gather(1, _column(interval + 1)).squeeze(1)


def _column(index: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(index)[:, None]


def _cumulative_softplus(outputs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of softplus over the intervals before each cut, shape (n, k + 1)."""
    return np.pad(np.cumsum(np.logaddexp(0.0, outputs), axis=1), ((0, 0), (1, 0)))


def _from_hazards(outputs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.exp(-_cumulative_softplus(outputs)))


def _network(design: Design) -> nn.Module:
    return perceptron(
        design.n_features,
        design.hidden_layers,
        design.cuts.size - 1,
        dropout=design.dropout,
        output_bias=True,
    )


@register("LogisticHazard")
def logistic_hazard(design: Design) -> LogisticHazard:
    """LogisticHazard: pycox's perceptron with an output for each interval."""
    return LogisticHazard(_network(design), cuts=design.cuts)


@register("PC-Hazard")
def pc_hazard(design: Design) -> PCHazard:
    """PC-Hazard: pycox's perceptron with an output for each interval."""
    return PCHazard(_network(design), cuts=design.cuts)


@register("DeepHit")
def deep_hit(design: Design) -> DeepHit:
    """DeepHit for one cause: pycox's perceptron with an output for each interval."""
    return DeepHit(
        _network(design),
        cuts=design.cuts,
        alpha=design.deephit_alpha,
        sigma=design.deephit_sigma,
    )
