"""Losses, labels and predicted curves of the survival models, against pycox."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pycox.models import CoxCC as PeerCoxCC
from pycox.models import CoxTime as PeerCoxTime
from pycox.models import DeepHitSingle as PeerDeepHit
from pycox.models import LogisticHazard as PeerLogisticHazard
from pycox.models import PCHazard as PeerPCHazard
from pycox.models.data import pair_rank_mat
from pycox.models.loss import (
    DeepHitSingleLoss,
    cox_cc_loss,
    cox_cc_loss_single_ctrl,
    nll_logistic_hazard,
    nll_pc_hazard_loss,
)
from pycox.preprocessing.discretization import DiscretizeUnknownC, Duration2Idx, cuts_quantiles
from pycox.preprocessing.label_transforms import LabTransDiscreteTime, LabTransPCHazard
from pycox.utils import kaplan_meier
from torch import Tensor, nn

from tasks.survival.baseline import BaselineHazard
from tasks.survival.label_cuts import discrete_labels, label_cuts, piecewise_labels
from tasks.survival.model_names import BUILT_IN
from tasks.survival.models import (
    Batch,
    CaseControl,
    CoxTime,
    DeepHit,
    SurvivalModel,
    build,
    model_names,
)
from tasks.survival.models.case_control import case_control_loss, draw_controls
from tasks.survival.risk_sets import RiskSetSums
from tasks.survival.training import train

CUTS = np.array([0.0, 0.4, 0.9, 1.5, 2.5, 4.0])
DISCRETE = ("LogisticHazard", "PC-Hazard", "DeepHit")

Rows = tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_]]


def rows(n: int = 80, *, seed: int = 0, on_cuts: bool = False) -> Rows:
    """Rows of which some have their time beyond the last cut, and with `on_cuts` at one."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, 3)).astype(np.float32)
    time = rng.exponential(2 * np.exp(-features[:, 0])) + 1e-3
    if on_cuts:
        time = rng.choice(np.append(CUTS[1:], 6.0), n)
    return features, time, rng.random(n) < 0.6


def batch_of(data: Rows, *, seed: int = 3) -> Batch:
    features, time, event = data
    order = np.argsort(-time, kind="stable")
    inputs = torch.as_tensor(features[order], dtype=torch.float64)
    return Batch(inputs, time[order], event[order], np.random.default_rng(seed))


def model(name: str, *, hidden: tuple[int, ...] = (8,), **settings: Any) -> SurvivalModel:
    design = {"n_features": 3, "hidden_layers": hidden, "dropout": 0.0, "seed": 1, "cuts": CUTS}
    built = build(name, **{**design, "horizon": 4.0, **settings})
    built.network.double()
    return built


def peer_labels(data: Rows) -> tuple[Tensor, Tensor]:
    index, event = LabTransDiscreteTime(CUTS).transform(data[1], data[2])
    return torch.from_numpy(index), torch.from_numpy(event).double()


class WithEventAtZero(nn.Module):
    """The network as pycox wants it: one output more, for an event at time 0, which never comes."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.network(features)
        return torch.cat([torch.full_like(output[:, :1], -60.0), output], dim=1)


# Labels


@pytest.mark.parametrize("on_cuts", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_labels_are_those_of_pycox(on_cuts: bool, seed: int) -> None:
    _, time, event = rows(500, seed=seed, on_cuts=on_cuts)
    assert (time > CUTS[-1]).any()
    index, seen = discrete_labels(time, event, CUTS)
    peer_index, peer_seen = LabTransDiscreteTime(CUTS).transform(time, event)
    np.testing.assert_array_equal(index, peer_index - 1)
    np.testing.assert_array_equal(seen, peer_seen.astype(bool))
    index, seen, share = piecewise_labels(time, event, CUTS)
    transform = LabTransPCHazard(CUTS)  # which lacks two of its parts where cuts are given
    transform.duc = DiscretizeUnknownC(CUTS, right_censor=True, censor_side="right")
    transform.di = Duration2Idx(CUTS)
    peer_index, peer_seen, peer_share = transform.transform(time, event)
    np.testing.assert_array_equal(index, peer_index)
    np.testing.assert_array_equal(seen, peer_seen.astype(bool))
    within = time <= CUTS[-1]
    np.testing.assert_allclose(share[within], peer_share[within], atol=1e-6)
    np.testing.assert_array_equal(share[~within], 1)  # pycox: more than the whole interval
    assert (peer_share[~within] > 1).all()


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=2, max_size=120),
    st.integers(1, 15),
)
@settings(max_examples=150, deadline=None)
def test_quantile_cuts_are_those_of_pycox(pairs: list[tuple[int, bool]], number: int) -> None:
    """With times on the grid; several sites, a horizon behind the last time."""
    time = np.array([pair[0] for pair in pairs], dtype=float)
    event = np.array([pair[1] for pair in pairs])
    assume(event.any())
    grid = np.linspace(0, 50, 51)
    half = len(time) // 2
    sums = [
        RiskSetSums.of(time[part], event[part], np.zeros(len(time))[part], grid=grid)
        for part in (slice(0, half), slice(half, None))
    ]
    pooled = sums[0] + sums[1]
    cuts = label_cuts(grid, pooled.events, pooled.at_risk_count, number, "quantiles")
    # Where survival is exactly at a level, rounding decides in pycox whether it counts as reached.
    survival = kaplan_meier(time, event.astype(float)).to_numpy()
    levels = np.linspace(survival.min(), survival.max(), number + 1)[1:-1]
    assume(not levels.size or np.abs(levels[:, None] - survival).min() > 1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = cuts_quantiles(time, event.astype(float), number + 1)
    if len(expected) == 1:  # pycox: the one cut is 0, which leaves no interval
        expected = np.array([0.0, time.max()])
    np.testing.assert_array_equal(cuts, expected)


def test_cuts_end_with_the_last_row_or_at_the_horizon() -> None:
    grid = np.linspace(0, 10, 11)
    within = RiskSetSums.of([2.0, 3, 7], [True] * 3, np.zeros(3), grid=grid)
    beyond = RiskSetSums.of([2.0, 3, 70], [True] * 3, np.zeros(3), grid=grid)
    for scheme in ("equidistant", "quantiles"):
        cuts = label_cuts(grid, within.events, within.at_risk_count, 2, scheme)  # type: ignore[arg-type]
        assert (cuts[0], cuts[-1]) == (0, 7)
        cuts = label_cuts(grid, beyond.events, beyond.at_risk_count, 2, scheme)  # type: ignore[arg-type]
        assert (cuts[0], cuts[-1]) == (0, 10)
    np.testing.assert_allclose(
        label_cuts(grid, within.events, within.at_risk_count, 4, "equidistant"),
        [0, 1.75, 3.5, 5.25, 7],
    )


def test_impossible_cuts_are_refused() -> None:
    grid = np.linspace(0, 10, 11)
    with pytest.raises(ValueError, match="11 points needs 10"):
        label_cuts(grid, np.zeros(9), np.ones(11), 5, "quantiles")
    with pytest.raises(ValueError, match="0 rows and 0 intervals"):
        label_cuts(grid, np.zeros(10), np.zeros(11), 0, "quantiles")


# Losses


@pytest.mark.parametrize("on_cuts", [False, True])
def test_logistic_hazard_loss(on_cuts: bool) -> None:
    data = rows(on_cuts=on_cuts)
    own = model("LogisticHazard")
    expected = nll_logistic_hazard(
        WithEventAtZero(own.network)(torch.as_tensor(data[0]).double()), *peer_labels(data)
    )
    assert own.loss(batch_of(data)).item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("factor", [1, 40])
def test_pc_hazard_loss(factor: float) -> None:
    data = rows()
    own = model("PC-Hazard")
    with torch.no_grad():
        for parameter in own.network.parameters():
            parameter.mul_(factor)
    index, event, share = piecewise_labels(data[1], data[2], CUTS)
    output = own.network(torch.as_tensor(data[0]).double())
    expected = nll_pc_hazard_loss(output, *map(torch.from_numpy, (index, event, share)))
    assert own.loss(batch_of(data)).item() == pytest.approx(expected.item(), rel=1e-7)


@pytest.mark.parametrize("on_cuts", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("sigma", [0.1, 1.0])
def test_deephit_loss(alpha: float, sigma: float, on_cuts: bool) -> None:
    data = rows(on_cuts=on_cuts)
    own = model("DeepHit", deephit_alpha=alpha, deephit_sigma=sigma)
    index, event = peer_labels(data)
    rank = torch.from_numpy(pair_rank_mat(index.numpy(), event.numpy())).double()
    # pycox makes a matrix of ones of its own in the default type
    torch.set_default_dtype(torch.float64)
    try:
        output = WithEventAtZero(own.network)(torch.as_tensor(data[0]).double())
        expected = DeepHitSingleLoss(alpha, sigma)(output, index, event, rank)
    finally:
        torch.set_default_dtype(torch.float32)
    assert own.loss(batch_of(data)).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("controls", [1, 4])
def test_case_control_loss(controls: int) -> None:
    generator = torch.Generator().manual_seed(0)
    case = torch.randn(30, generator=generator, dtype=torch.float64)
    others = torch.randn(controls, 30, generator=generator, dtype=torch.float64)
    loss = case_control_loss(case, others).item()
    assert loss == pytest.approx(cox_cc_loss(case, tuple(others)).item(), rel=1e-12)
    if controls == 1:
        assert loss == pytest.approx(cox_cc_loss_single_ctrl(case, others[0]).item(), rel=1e-12)


def test_cox_cc_and_cox_time_compare_the_rows_that_were_drawn() -> None:
    data = rows()
    for name in ("CoxCC", "CoxTime"):
        own = model(name, controls=3)
        assert isinstance(own, CaseControl | CoxTime)
        batch = batch_of(data, seed=5)
        in_time = batch.time[batch.event] <= 4.0 if name == "CoxTime" else None
        cases, controls = draw_controls(batch_of(data, seed=5), 3, in_time)
        hazards = []
        for chosen in (cases, *controls):
            inputs = batch.features[chosen]
            if name == "CoxTime":
                time = (batch.time[cases.numpy()] / 4.0 - 0.5) * 12**0.5
                inputs = torch.column_stack([inputs, torch.from_numpy(time)])
            hazards.append(own.network(inputs))
        expected = cox_cc_loss(hazards[0], tuple(hazards[1:])).item()
        assert own.loss(batch).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("on_cuts", [False, True])
def test_controls_are_at_risk_and_drawn_evenly(on_cuts: bool) -> None:
    batch = batch_of(rows(12, seed=2, on_cuts=on_cuts))
    counts = np.zeros((12, 12))
    for _ in range(400):
        cases, controls = draw_controls(batch, 5)
        np.add.at(counts, (np.tile(cases.numpy(), 5), controls.numpy().ravel()), 1)
    for case in np.flatnonzero(batch.event):
        at_risk = batch.time >= batch.time[case]
        at_risk[case] = False
        assert (counts[case, ~at_risk] == 0).all()
        if at_risk.any():
            share = counts[case, at_risk] / 2000
            np.testing.assert_allclose(share, 1 / at_risk.sum(), atol=0.06)


def test_gradients_are_finite_for_extreme_outputs() -> None:
    data = rows()
    for name in BUILT_IN:
        for factor in (1e3, -1e3):
            own = model(name, hidden=())
            with torch.no_grad():
                for parameter in own.network.parameters():
                    parameter.add_(0.1).mul_(factor)
            batch = batch_of(data)
            loss = own.loss(batch)
            if name == "DeepHit":  # exp((F_j - F_i) / sigma) is at most exp(10)
                assert loss.item() < 1e6
            for gradient in torch.autograd.grad(loss, list(own.network.parameters())):
                assert torch.isfinite(gradient).all(), name


# Batches that say little


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("case", ["no event", "one row", "one event", "one time", "all beyond"])
def test_poor_batches_train_or_say_nothing(name: str, case: str) -> None:
    features, time, event = rows(30)
    if case == "no event":
        event[:] = False
    elif case == "one row":
        features, time, event = features[:1], time[:1], np.array([True])
    elif case == "one event":
        event[:] = False
        event[np.argmin(time)] = True
    elif case == "one time":
        time[:], event[:] = 1.0, True
    elif case == "all beyond":
        time = time + 10
    own = model(name)
    before = own.risk(features)
    result = train(
        own,
        features,
        time,
        event,
        local_steps=6,
        learning_rate=0.01,
        weight_decay=1.0,
        batch_size=16,
        rng=np.random.default_rng(0),
    )
    assert np.isfinite(own.risk(features)).all()
    learns = {
        "no event": name in DISCRETE,
        # the partial likelihood of one row is constant, and CoxPH and DeepSurv do not look
        "one row": name in (*DISCRETE, "DeepSurv", "CoxPH"),
        "one event": True,
        "one time": True,
        "all beyond": name != "CoxTime",
    }[case]
    assert (result.n_idle_steps < 6) == learns
    if not learns:
        np.testing.assert_array_equal(own.risk(features), before)


# Predictions


def peer_of(name: str, own: SurvivalModel) -> Any:
    network = own.network
    if name == "PC-Hazard":
        return PeerPCHazard(network, duration_index=CUTS)
    peer = {"LogisticHazard": PeerLogisticHazard, "DeepHit": PeerDeepHit}[name]
    return peer(WithEventAtZero(network), duration_index=CUTS)


@pytest.mark.parametrize("name", DISCRETE)
def test_curves_of_discrete_models_are_those_of_pycox(name: str) -> None:
    features = rows()[0]
    own = model(name)
    own.network.float()
    peer = peer_of(name, own)
    expected = peer.predict_surv_df(features)
    np.testing.assert_allclose(own.survival(features, CUTS), expected.to_numpy().T, atol=2e-6)
    if name == "PC-Hazard":
        peer.sub = 10
    else:
        peer = peer.interpolate(10, "const_pdf")
    expected = peer.predict_surv_df(features)
    times = expected.index.to_numpy(dtype=float)
    assert len(times) == 51
    np.testing.assert_allclose(own.survival(features, times), expected.to_numpy().T, atol=2e-6)


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_curves_start_at_one_and_stay_constant_behind_the_cuts(name: str) -> None:
    features = rows()[0]
    own = model(name)
    survival = own.survival(features, np.array([0.0, 1.0, 4.0, 5.0, 100.0]))
    np.testing.assert_array_equal(survival[:, 0], 1)
    assert (np.diff(survival, axis=1) <= 0).all()
    np.testing.assert_array_equal(survival[:, 3:], survival[:, [2, 2]])
    middle = own.survival(features, CUTS[[3]])[:, 0]
    np.testing.assert_allclose(own.risk(features), np.log(-np.log(middle)), rtol=1e-10)


class TimeBehind(nn.Module):
    """As pycox calls the network of CoxTime."""

    def __init__(self, own: CoxTime) -> None:
        super().__init__()
        self.own, self.network = own, own.network

    def forward(self, features: Tensor, time: Tensor) -> Tensor:
        standardized = (time / self.own.horizon - 0.5) * 12**0.5
        output: Tensor = self.network(torch.cat([features, standardized], dim=1))
        return output


def test_relative_hazards_of_cox_time_are_those_of_pycox() -> None:
    features = rows()[0]
    own = model("CoxTime")
    assert isinstance(own, CoxTime)
    own.network.float()
    peer = PeerCoxTime(TimeBehind(own))
    for time in (0.0, 1.0, 4.0):
        column = np.full((len(features), 1), time, dtype=np.float32)
        expected = peer.predict((features, column))[:, 0]
        found = own.log_hazard(features, np.array([0.5, time]))[:, 1]
        np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_array_equal(
        own.risk(features), own.log_hazard(features, np.array([CUTS[3]]))[:, 0]
    )


def test_survival_of_cox_time_is_the_integral_of_its_hazard() -> None:
    """Against a sum by hand, and pycox on a grid so fine that its steps do not count."""
    features = rows(20)[0]
    own = model("CoxTime")
    assert isinstance(own, CoxTime)
    own.network.float()
    grid = np.linspace(0, 4, 6)
    cumulative = np.array([0, 0.1, 0.1, 0.5, 0.7, 1.2])
    baseline = BaselineHazard(grid, cumulative)
    ratio = np.exp(own.log_hazard(features, grid))
    survival = own.survival(features, np.array([2.0, 0.4, 4.0]), baseline)
    expected = np.zeros((20, 3))
    for row in range(20):
        cells = [np.diff(cumulative)[j] * (ratio[row, j] + ratio[row, j + 1]) / 2 for j in range(5)]
        expected[row] = np.exp(-np.array([sum(cells[:2]) + cells[2] / 2, cells[0] / 2, sum(cells)]))
    np.testing.assert_allclose(survival, expected, rtol=1e-6)

    import pandas as pd

    fine = np.linspace(0, 4, 2001)
    steps = np.diff(np.interp(fine, grid, cumulative), prepend=0.0)
    peer = PeerCoxTime(TimeBehind(own))
    by_steps = peer.predict_surv_df(
        features, baseline_hazards_=pd.Series(steps, index=fine, name="baseline_hazards")
    ).to_numpy()[-1]
    smooth = own.survival(
        features, np.array([4.0]), BaselineHazard(fine, np.interp(fine, grid, cumulative))
    )[:, 0]
    np.testing.assert_allclose(smooth, by_steps, atol=1e-3)


@pytest.mark.parametrize("name", ["CoxPH", "CoxCC"])
def test_survival_of_proportional_hazards_is_that_of_pycox(name: str) -> None:
    """With the hazards of the times as steps of the grid, at its points."""
    import pandas as pd

    features = rows()[0]
    own = model(name)
    own.network.float()
    grid = np.linspace(0, 4, 9)
    hazards = np.array([0, 0.1, 0.05, 0.2, 0.0, 0.3, 0.1, 0.2, 0.4])
    peer = PeerCoxCC(own.network)
    series = pd.Series(hazards, index=grid, name="baseline_hazards")
    peer.baseline_hazards_ = None
    expected = peer.predict_surv_df(features, baseline_hazards_=series).to_numpy().T
    baseline = BaselineHazard(grid, np.cumsum(hazards))
    np.testing.assert_allclose(own.survival(features, grid, baseline), expected, atol=1e-6)


def test_models_with_a_baseline_ask_for_it() -> None:
    for name in ("DeepSurv", "CoxTime"):
        with pytest.raises(ValueError, match="none is given"):
            model(name).survival(rows()[0], np.array([1.0]))
    baseline = BaselineHazard(np.array([0.0, 4]), np.array([0.0, 1]))
    with pytest.raises(ValueError, match=r"1 of 2 times lie outside 0\.\.4"):
        model("CoxTime").survival(rows()[0], np.array([1.0, 5.0]), baseline)


# Building


def test_names_and_kinds() -> None:
    assert set(BUILT_IN) <= set(model_names())
    kinds = {name: model(name).kind for name in BUILT_IN}
    assert {name for name, kind in kinds.items() if kind == "discrete"} == set(DISCRETE)
    assert {name for name, kind in kinds.items() if kind == "time-dependent"} == {"CoxTime"}


def test_cox_ph_is_linear_whatever_the_layers() -> None:
    own = model("CoxPH", hidden=(32, 32), dropout=0.5)
    (weights,) = own.network.parameters()
    assert weights.shape == (1, 3)
    assert not weights.any()


def test_a_design_out_of_range_is_refused_with_all_faults() -> None:
    with pytest.raises(ValueError, match="cuts must") as caught:
        model("DeepHit", cuts=[0.0, 2, 1], deephit_alpha=2.0, deephit_sigma=0.0, controls=0)
    for part in ("deephit_alpha is 2.0", "deephit_sigma is 0.0", "controls is 0"):
        assert part in str(caught.value)
    with pytest.raises(ValueError, match="horizon is"):
        model("CoxTime", horizon=0.0)


def test_deephit_ranks_without_a_matrix_of_pairs() -> None:
    """20 000 rows in a batch: all pairs would be 3 GB."""
    own = model("DeepHit")
    assert isinstance(own, DeepHit)
    assert np.isfinite(own.loss(batch_of(rows(20_000))).item())
