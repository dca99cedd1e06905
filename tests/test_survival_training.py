"""Survival models and their local training, against lifelines, statsmodels, pycox and torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lifelines import CoxPHFitter
from numpy.typing import NDArray
from pycox.models import CoxPH
from pycox.models.loss import cox_ph_loss_sorted
from statsmodels.duration.hazard_regression import PHReg  # type: ignore[import-untyped]
from torch import Tensor, nn

from tasks.site.faults import SiteFault
from tasks.survival.models import (
    Batch,
    ProportionalHazards,
    SurvivalModel,
    arrays_of,
    build,
    load_arrays,
    model_names,
    refuse_batch_norm,
    register,
)
from tasks.survival.standardization import FeatureMoments
from tasks.survival.training import TrainingResult, train

Rows = tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_]]


def rows(n: int = 60, p: int = 3, *, seed: int = 0, times: int | None = None) -> Rows:
    """Proportional-hazards data; `times` distinct times only, if given."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, p)).astype(np.float32)
    effect = np.linspace(1, -0.5, p)
    survival = rng.exponential(np.exp(-features @ effect)) + 1e-6
    censoring = rng.exponential(2, size=n)
    event = survival <= censoring
    time = np.minimum(survival, censoring)
    if times is not None:
        cuts = np.quantile(time, np.linspace(0, 1, times + 1)[1:-1])
        time = np.searchsorted(cuts, time) + 1.0
    return features, time, event


def model(
    p: int = 3, *, hidden: tuple[int, ...] = (8, 8), dropout: float = 0.0, seed: int = 1
) -> SurvivalModel:
    return build("DeepSurv", n_features=p, hidden_layers=hidden, dropout=dropout, seed=seed)


def fit(survival_model: SurvivalModel, data: Rows, **changed: Any) -> TrainingResult:
    settings: dict[str, Any] = {
        "local_steps": 5,
        "learning_rate": 0.01,
        "weight_decay": 0.1,
        "batch_size": 256,
        "rng": np.random.default_rng(7),
    }
    return train(survival_model, *data, **{**settings, **changed})


def first_loss(survival_model: SurvivalModel, data: Rows) -> float:
    loss = fit(survival_model, data, local_steps=1).mean_loss
    assert loss is not None
    return loss


def sorted_batch(data: Rows, dtype: torch.dtype = torch.float64) -> Batch:
    features, time, event = data
    order = np.argsort(-time, kind="stable")
    return Batch(torch.as_tensor(features[order], dtype=dtype), time[order], event[order])


class Recorder(ProportionalHazards):
    """Keeps the batches that it was asked about."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network)
        self.batches: list[Batch] = []

    def informative(self, batch: Batch) -> bool:
        self.batches.append(batch)
        return super().informative(batch)


# The loss


def test_loss_is_that_of_pycox_without_ties() -> None:
    survival_model = model()
    features, time, event = data = rows(80)
    fitted = CoxPH(survival_model.network, torch.optim.SGD(survival_model.network.parameters(), 0))
    log = fitted.fit(
        features,
        (time.astype(np.float32), event.astype(np.float32)),
        batch_size=80,
        epochs=1,
        verbose=False,
    )
    expected = log.to_pandas()["train_loss"].iloc[0]
    result = fit(survival_model, data, local_steps=1)
    assert result.mean_loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("times", [None, 40, 5, 1])
def test_loss_is_breslows_partial_likelihood(times: int | None) -> None:
    features, time, event = data = rows(60, times=times)
    survival_model = model(hidden=())
    survival_model.network.double()
    batch = sorted_batch(data)
    coefficients = next(survival_model.network.parameters())
    loss = survival_model.loss(batch)
    (gradient,) = torch.autograd.grad(loss, coefficients)
    oracle = PHReg(time, features.astype(float), status=event.astype(int), ties="breslow")
    at = coefficients.detach().numpy().ravel()
    n_events = event.sum()
    # statsmodels leaves out a constant: nothing for Breslow's form
    assert loss.item() * n_events == pytest.approx(-oracle.loglike(at), rel=1e-10)
    np.testing.assert_allclose(gradient.numpy()[0] * n_events, -oracle.score(at), rtol=1e-8)


def test_tied_rows_may_come_in_any_order_unlike_in_pycox() -> None:
    features, time, event = rows(60, times=3)
    survival_model = model()
    losses, peers = [], []
    for order in (np.arange(60), np.argsort(features[:, 0]), np.argsort(-features[:, 0])):
        batch = sorted_batch((features[order], time[order], event[order]), torch.float32)
        losses.append(survival_model.loss(batch).item())
        log_hazard = survival_model.network(batch.features)
        peers.append(cox_ph_loss_sorted(log_hazard, torch.from_numpy(batch.event)).item())
    assert np.ptp(losses) < 1e-5
    assert np.ptp(peers) > 0.05


def test_loss_is_finite_for_extreme_log_hazards() -> None:
    class Amplifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(500.0))

        def forward(self, features: Tensor) -> Tensor:
            return features[:, :1] * self.factor

    extreme = ProportionalHazards(Amplifier())
    loss = extreme.loss(sorted_batch(rows(), torch.float32))
    (gradient,) = torch.autograd.grad(loss, list(extreme.network.parameters()))
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient)


# Training


def test_linear_network_reaches_the_coefficients_of_lifelines() -> None:
    features, time, event = data = rows(300)
    survival_model = model(hidden=())
    survival_model.network.double()
    for learning_rate in (0.05, 0.01, 0.001):
        fit(
            survival_model,
            data,
            local_steps=250,
            learning_rate=learning_rate,
            weight_decay=0,
            batch_size=300,
        )
    frame = pd.DataFrame(features.astype(float)).assign(time=time, event=event)
    expected = CoxPHFitter().fit(frame, "time", "event").params_.to_numpy()
    np.testing.assert_allclose(
        arrays_of(survival_model.network)["net.0.weight"][0], expected, atol=1e-4
    )


def test_steps_are_those_of_torch_adamw_and_pycox_loss() -> None:
    survival_model, reference = model(), model()
    survival_model.network.double()
    network = reference.network.double()
    data = rows(50)
    result = fit(survival_model, data, local_steps=20, learning_rate=0.02, weight_decay=0.5)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.02, weight_decay=0.5)
    batch = sorted_batch(data)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = cox_ph_loss_sorted(network(batch.features), torch.from_numpy(batch.event), eps=0)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    expected = arrays_of(network)
    for name, array in arrays_of(survival_model.network).items():
        np.testing.assert_allclose(array, expected[name], atol=1e-9)
    assert result.mean_loss == pytest.approx(np.mean(losses), rel=1e-9)
    assert (result.n_steps, result.n_idle_steps) == (20, 0)


class Proximal(ProportionalHazards):
    """FedProx: half the squared distance from what was received, times `MU`."""

    MU = 3.0

    def penalty(self, received: Mapping[str, torch.Tensor]) -> torch.Tensor:
        parameters = dict(self.network.named_parameters())
        assert parameters.keys() == received.keys()
        squares = [(parameters[name] - before).square().sum() for name, before in received.items()]
        return self.MU / 2 * torch.stack(squares).sum()


def test_a_penalty_is_part_of_what_is_minimized_and_not_of_the_loss_that_is_told() -> None:
    """FedProx by torch's AdamW and pycox's loss; without layers, no gradient is but rounding."""
    proximal, free = Proximal(model(hidden=()).network.double()), model(hidden=())
    network = model(hidden=()).network.double()
    free.network.double()
    start = arrays_of(network)
    data = rows(50)
    settings = {"local_steps": 20, "learning_rate": 0.02, "weight_decay": 0.0}
    result = fit(proximal, data, **settings)
    fit(free, data, **settings)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.02, weight_decay=0.0)
    batch, losses = sorted_batch(data), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = cox_ph_loss_sorted(network(batch.features), torch.from_numpy(batch.event), eps=0)
        losses.append(loss.item())
        distance = sum(
            ((value - torch.from_numpy(start[name])) ** 2).sum()
            for name, value in network.named_parameters()
        )
        (loss + 1.5 * distance).backward()
        optimizer.step()
    expected = arrays_of(network)
    for name, array in arrays_of(proximal.network).items():
        np.testing.assert_allclose(array, expected[name], atol=1e-9)
        moved = np.linalg.norm(arrays_of(free.network)[name] - start[name])
        assert np.linalg.norm(array - start[name]) < 0.9 * moved
    assert result.mean_loss == pytest.approx(np.mean(losses), rel=1e-9)


def test_a_penalty_that_is_no_number_is_divergence() -> None:
    proximal = Proximal(model().network)
    proximal.MU = float("nan")  # type: ignore[misc]
    with pytest.raises(SiteFault, match="diverged"):
        fit(proximal, rows(50))


@pytest.mark.parametrize("batch_size", [16, 256])
def test_same_inputs_and_generator_give_the_same_bits(batch_size: int) -> None:
    def trained(seed: int) -> dict[str, NDArray[Any]]:
        torch.manual_seed(np.random.default_rng().integers(2**31))
        survival_model = model(dropout=0.3)
        fit(survival_model, rows(), rng=np.random.default_rng(seed), batch_size=batch_size)
        return arrays_of(survival_model.network)

    first, again, other = trained(1), trained(1), trained(2)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not all(np.array_equal(first[name], other[name]) for name in first)


def test_torch_is_left_as_it_was() -> None:
    torch.manual_seed(3)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        survival_model = model(dropout=0.5)
        survival_model.network.eval()
        own = [p.data_ptr() for p in survival_model.network.parameters()]
        fit(survival_model, rows())
        survival_model.risk(rows()[0])
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.get_rng_state(), state)
        assert not survival_model.network.training
        assert own == [p.data_ptr() for p in survival_model.network.parameters()]
    finally:
        torch.set_num_threads(threads)


def test_batches_cover_each_epoch_and_none_has_one_row() -> None:
    recorder = Recorder(model().network)
    data = rows(33)
    fit(recorder, data, batch_size=16, local_steps=4)
    assert [len(batch.time) for batch in recorder.batches] == [16, 17, 16, 17]
    for batch in recorder.batches:
        assert (np.diff(batch.time) <= 0).all()
    epochs = [
        np.concatenate([batch.time for batch in recorder.batches[start : start + 2]])
        for start in (0, 2)
    ]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.sort(data[1]))
    assert not np.array_equal(epochs[0], epochs[1])


@pytest.mark.parametrize(("n_rows", "sizes"), [(2, [2]), (3, [3]), (4, [2, 2]), (1, [1])])
def test_small_sites_and_small_batches(n_rows: int, sizes: list[int]) -> None:
    recorder = Recorder(model().network)
    result = fit(recorder, rows(n_rows), batch_size=2, local_steps=len(sizes))
    assert [len(batch.time) for batch in recorder.batches] == sizes
    assert result.n_steps == len(sizes)


def test_site_without_events_changes_nothing() -> None:
    features, time, event = rows()
    survival_model = model(dropout=0.2)
    before = arrays_of(survival_model.network)
    result = fit(survival_model, (features, time, np.zeros_like(event)), weight_decay=1)
    assert result == TrainingResult(mean_loss=None, n_steps=5, n_idle_steps=5)
    for name, array in arrays_of(survival_model.network).items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("position", [0, 59], ids=["first to fail", "last to fail"])
def test_one_event(position: int) -> None:
    features, time, _ = rows()
    event = np.zeros(60, dtype=bool)
    event[np.argsort(time)[position]] = True
    survival_model = model()
    before = arrays_of(survival_model.network)
    result = fit(
        survival_model, (features, time, event), batch_size=10, local_steps=6, weight_decay=0
    )
    assert (result.n_steps, result.n_idle_steps) == (6, 5)
    assert result.mean_loss is not None
    assert np.isfinite(result.mean_loss)
    after = arrays_of(survival_model.network)
    moved = any(not np.array_equal(after[name], before[name]) for name in after)
    assert moved == (position == 0)  # alone in its risk set, the last one says nothing


@pytest.mark.parametrize("survives", [True, False])
def test_all_times_the_same(survives: bool) -> None:
    features, time, event = rows()
    if survives:
        event = np.ones_like(event)
    survival_model = model()
    data = features, np.full_like(time, 3.0), event
    result = fit(survival_model, data, local_steps=30)
    assert result.mean_loss is not None
    assert np.isfinite(survival_model.risk(features)).all()
    if survives:  # everybody at risk and failing at once: flat hazards are optimal
        assert result.mean_loss < first_loss(model(), data)
        assert result.mean_loss > np.log(60)


def test_features_of_a_million_after_standardization() -> None:
    features, time, event = rows(200)
    raw = 1e6 + 1e6 * features.astype(float)
    standardizer = FeatureMoments.merge([FeatureMoments.of(part) for part in np.split(raw, 4)])
    standardized = standardizer.standardizer().apply(raw)
    survival_model = model(dropout=0.1)
    result = fit(survival_model, (standardized, time, event), local_steps=50)
    assert result.mean_loss is not None
    assert result.mean_loss < first_loss(model(dropout=0.1), (standardized, time, event))
    assert np.isfinite(survival_model.risk(standardized)).all()


@pytest.mark.parametrize("case", ["features", "rate", "last step"])
def test_divergence_is_a_fault_and_leaves_the_network(case: str) -> None:
    features, time, event = rows()
    survival_model = model()
    before = arrays_of(survival_model.network)
    changed: dict[str, Any] = {
        "learning_rate": 1e20,
        "local_steps": 1 if case == "last step" else 9,
    }
    if case == "last step":
        changed["weight_decay"] = 1e30
    if case == "features":
        features = np.full_like(features, np.nan)
    with pytest.raises(
        SiteFault, match=r"diverged in step \d of \d.*lower the learning rate"
    ) as caught:
        fit(survival_model, (features, time, event), **changed)
    assert caught.value.code == "diverged"
    for name, array in arrays_of(survival_model.network).items():
        np.testing.assert_array_equal(array, before[name])


def test_lengths_that_differ_and_no_rows() -> None:
    features, time, event = rows()
    with pytest.raises(ValueError, match="60, 59, 60"):
        fit(model(), (features, time[1:], event))
    with pytest.raises(ValueError, match="at least one row"):
        fit(model(), (features[:0], time[:0], event[:0]))


# Models


def test_build_depends_on_the_seed_alone() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = arrays_of(model(seed=5).network)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    again, other = arrays_of(model(seed=5).network), arrays_of(model(seed=6).network)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["net.0.linear.weight"], other["net.0.linear.weight"])


def test_deep_surv_is_pycox_perceptron_without_output_bias() -> None:
    arrays = arrays_of(model(9, hidden=(32, 32)).network)
    assert {name: array.shape for name, array in arrays.items()} == {
        "net.0.linear.weight": (32, 9),
        "net.0.linear.bias": (32,),
        "net.1.linear.weight": (32, 32),
        "net.1.linear.bias": (32,),
        "net.2.weight": (1, 32),
    }
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}


def test_risk_is_the_prediction_of_pycox() -> None:
    survival_model = model(dropout=0.5)
    features = rows()[0]
    risk = survival_model.risk(features)
    assert risk.dtype == np.float64
    np.testing.assert_array_equal(risk, CoxPH(survival_model.network).predict(features)[:, 0])
    assert survival_model.network.training


def test_build_refuses_all_faults_at_once() -> None:
    with pytest.raises(ValueError, match="unknown") as caught:
        build("DeepSurf", n_features=0, hidden_layers=(4, 0), dropout=1.0, seed=0)
    text = str(caught.value)
    for part in ("did you mean 'DeepSurv'", "n_features is 0", "(4, 0)", "dropout is 1.0"):
        assert part in text
    assert "DeepSurv" in model_names()
    with pytest.raises(ValueError, match="registered already"):
        register("DeepSurv")(build)  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.SyncBatchNorm(4), nn.LazyBatchNorm1d()])
def test_batch_norm_is_refused_with_its_reason(layer: nn.Module) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Sequential(layer), nn.Linear(4, 1))
    with pytest.raises(ValueError, match=r"BatchNorm \(1\.0\).*few rows.*negative"):
        ProportionalHazards(network)
    refuse_batch_norm(nn.Sequential(nn.LayerNorm(4), nn.GroupNorm(2, 4)))


def test_arrays_are_copies_and_load_exactly() -> None:
    source, target = model(seed=1), model(seed=2)
    arrays = arrays_of(source.network)
    kept = {name: array.copy() for name, array in arrays.items()}
    load_arrays(target.network, arrays)
    fit(source, rows())
    fit(target, rows(), local_steps=0)
    for name, array in arrays_of(target.network).items():
        np.testing.assert_array_equal(array, kept[name])
        np.testing.assert_array_equal(arrays[name], kept[name])


def test_arrays_that_do_not_fit_are_all_named() -> None:
    survival_model = model()
    before = arrays_of(survival_model.network)
    arrays = {name: array + 1 for name, array in before.items()}
    del arrays["net.2.weight"]
    arrays["extra"] = np.zeros(1)
    arrays["net.0.linear.bias"] = np.zeros(9, dtype=np.float32)
    arrays["net.1.linear.bias"] = np.zeros(8)
    with pytest.raises(ValueError, match="do not fit") as caught:
        load_arrays(survival_model.network, arrays)
    for part in (
        "net.2.weight: missing",
        "extra: not in this model",
        "net.0.linear.bias: shape (9,), expected (8,)",
        "net.1.linear.bias: type float64, expected float32",
    ):
        assert part in str(caught.value)
    for name, array in arrays_of(survival_model.network).items():
        np.testing.assert_array_equal(array, before[name])


def test_training_imports_nothing_that_is_slow_to_import() -> None:
    script = (
        "import sys, numpy as np\n"
        "from tasks.survival.models import build\n"
        "from tasks.survival.training import train\n"
        "model = build('DeepSurv', n_features=2, hidden_layers=[4], dropout=.1, seed=0)\n"
        "train(model, np.eye(2, dtype=np.float32), np.array([1., 2.]), np.array([True, False]),"
        " local_steps=1, learning_rate=.1, weight_decay=0., batch_size=9,"
        " rng=np.random.default_rng())\n"
        "slow = {'pycox', 'sklearn', 'numba', 'lifelines', 'h5py', 'flwr', 'torch._dynamo'}\n"
        "print(sorted(slow & set(sys.modules)))\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.strip() == "[]"
