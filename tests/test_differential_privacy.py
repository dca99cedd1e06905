"""The names of federated-survival's page do what it describes, and report what was done."""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant as rdp_accounting
from scipy import stats

from tasks.privacy.renyi import renyi_to_epsilon
from tasks.site.faults import SiteFault
from tasks.survival.config import SurvivalConfig
from tasks.survival.differential_privacy import DifferentialPrivacy
from tasks.survival.privacy_words import DEFAULTS, no_guarantee

D = 60_000
ALPHA = 1e-3


def quiet(**settings: Any) -> DifferentialPrivacy:
    """Build one without the warnings about ignored settings, with repeatable noise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return DifferentialPrivacy(rng=np.random.default_rng(42), **settings)


# Scales -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_clients", [1, 3, 4])
def test_gaussian_noise_has_the_documents_scale(num_clients: int) -> None:
    dp = quiet(dp_noise_multiplier=0.7, dp_sensitivity=1.3, dp_clip_norm=0.9)
    model = {"w": torch.zeros(D, dtype=torch.float64)}
    noisy = dp.privatize_model_update(model, model, num_clients=num_clients)["w"].numpy()
    sigma = 0.7 * 1.3 * 0.9 / math.sqrt(num_clients)
    assert stats.kstest(noisy, stats.norm(scale=sigma).cdf).pvalue > ALPHA
    low, high = stats.chi2(D).interval(1 - ALPHA)
    assert low < np.sum(noisy**2) / sigma**2 < high
    assert dp.last_noise_sigma == pytest.approx(sigma)


@pytest.mark.parametrize("num_clients", [1, 3, 4])
def test_laplace_noise_has_the_documents_scale(num_clients: int) -> None:
    dp = quiet(dp_mechanism="laplace", dp_epsilon=2.5, dp_sensitivity=1.3, dp_clip_norm=0.9)
    model = {"w": np.zeros(D)}
    noisy = dp.privatize_model_update(model, model, num_clients=num_clients)["w"]
    b = 1.3 * 0.9 / (math.sqrt(num_clients) * 2.5)
    assert stats.kstest(noisy, stats.laplace(scale=b).cdf).pvalue > ALPHA
    low, high = stats.chi2(2 * D).interval(1 - ALPHA)  # 2 |x| / b is chi-square with 2 degrees
    assert low < 2 * np.sum(np.abs(noisy)) / b < high
    assert dp.last_noise_sigma == pytest.approx(math.sqrt(2) * b)


@pytest.mark.parametrize(
    ("mechanism", "ignored"),
    [
        ("gaussian", {"dp_epsilon": 0.01, "dp_delta": 0.3}),
        ("laplace", {"dp_noise_multiplier": 99.0, "dp_delta": 0.3}),
    ],
)
def test_ignored_settings_do_not_touch_the_noise(mechanism: str, ignored: dict[str, Any]) -> None:
    model = {"w": np.zeros(50)}
    outs = [
        quiet(dp_mechanism=mechanism, **extra).privatize_model_update(model, model, num_clients=2)
        for extra in ({}, ignored)
    ]
    assert np.array_equal(outs[0]["w"], outs[1]["w"])


def test_noise_is_the_operating_systems_unless_a_generator_is_given() -> None:
    model = {"w": np.zeros(50)}
    outs = []
    for _ in range(2):
        np.random.seed(0)
        torch.manual_seed(0)
        outs.append(DifferentialPrivacy().privatize_model_update(model, model)["w"])
    assert not np.array_equal(*outs)


# What was done last -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sigma"),
    [
        ({"dp_noise_multiplier": 0.1}, 0.1 * 0.5 / 2),
        ({"dp_mechanism": "laplace", "dp_epsilon": 4.0}, math.sqrt(2) * 0.5 / (2 * 4)),
    ],
)
def test_last_values_are_right_under_every_mechanism(
    settings: dict[str, Any], sigma: float
) -> None:
    dp = quiet(dp_clip_norm=0.5, **settings)
    assert (dp.last_noise_sigma, dp.last_clipped_update_norm, dp.last_noise_to_signal) == (
        None,
        None,
        None,
    )
    global_ = {"a": torch.zeros(3, 4), "b": torch.zeros(5), "n": torch.tensor(3)}
    local = {"a": torch.ones(3, 4), "b": torch.ones(5), "n": torch.tensor(4)}
    dp.privatize_model_update(global_, local, num_clients=4)
    assert dp.last_noise_sigma == pytest.approx(sigma)
    assert dp.last_clipped_update_norm == pytest.approx(0.5, rel=1e-6)
    assert dp.last_noise_to_signal == pytest.approx(sigma * math.sqrt(17) / 0.5, rel=1e-6)
    dp.privatize_model_update(global_, global_, num_clients=4)
    assert dp.last_clipped_update_norm == 0
    assert dp.last_noise_to_signal == math.inf
    small = {**global_, "b": torch.full((5,), 0.01)}
    dp.privatize_model_update(global_, small, num_clients=4)
    assert dp.last_clipped_update_norm == pytest.approx(0.01 * math.sqrt(5), rel=1e-6)


def test_nothing_is_remembered_of_an_update_that_failed() -> None:
    dp = quiet()
    with pytest.raises(SiteFault):
        dp.privatize_model_update({"w": np.zeros(2)}, {"w": np.array([1.0, np.nan])})
    assert dp.last_noise_sigma is None


# Kinds of weights -------------------------------------------------------------------------------


def test_a_state_dict_comes_back_as_one() -> None:
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 1))
    global_ = OrderedDict((n, p.clone()) for n, p in net.state_dict().items())
    local = OrderedDict((n, p + 1) for n, p in global_.items())
    out = quiet(dp_clip_norm=1.0, dp_noise_multiplier=0.0).privatize_model_update(
        global_, local, num_clients=3
    )
    assert isinstance(out, OrderedDict)
    assert list(out) == list(global_)
    net.load_state_dict(out)
    moved = torch.cat([(out[n].double() - global_[n].double()).ravel() for n in out])
    assert float(moved.norm()) == pytest.approx(1.0, rel=1e-6)
    assert float(moved.norm()) <= 1.0
    assert all(out[n].dtype == global_[n].dtype for n in out)


def test_parameters_with_gradients_and_half_precision_and_buffers() -> None:
    global_ = {
        "p": torch.nn.Parameter(torch.zeros(2)),
        "h": torch.zeros(2, dtype=torch.float16),
        "t": torch.tensor(7),
        "m": torch.tensor([True, False]),
    }
    local = {
        "p": torch.nn.Parameter(torch.ones(2)),
        "h": torch.ones(2, dtype=torch.float16),
        "t": torch.tensor(8),
        "m": torch.tensor([False, False]),
    }
    out = quiet(dp_noise_multiplier=0.0, dp_clip_norm=1.0).privatize_model_update(global_, local)
    assert out["p"].tolist() == pytest.approx([0.5, 0.5])
    assert out["h"].dtype == torch.float16
    assert out["h"].tolist() == pytest.approx([0.5, 0.5], rel=1e-3)
    assert int(out["t"]) == 7
    assert out["m"].tolist() == [True, False]
    assert not out["p"].requires_grad


def test_numpy_comes_back_as_numpy() -> None:
    out = quiet().privatize_model_update({"w": np.zeros(2, np.float32)}, {"w": np.ones(2)})
    assert type(out["w"]) is np.ndarray
    assert out["w"].dtype == np.float32


@pytest.mark.parametrize(
    "value", [torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2).to_sparse(), [0.0, 0.0], None]
)
def test_what_is_no_usable_array_is_refused_by_name(value: Any) -> None:
    with pytest.raises(SiteFault, match="array 'odd'") as caught:
        quiet().privatize_model_update({"odd": value}, {"odd": value})
    assert caught.value.code == "unsupported-update"


def test_batch_norm_is_refused_with_the_reason() -> None:
    state = torch.nn.BatchNorm1d(3).state_dict()
    with pytest.raises(SiteFault, match=r"running_var.*negative; use GroupNorm or LayerNorm"):
        quiet().privatize_model_update(state, state)


# The other calls --------------------------------------------------------------------------------


def test_the_average_gets_no_noise() -> None:
    weights = {"w": torch.ones(3)}
    assert quiet().apply_dp_to_weights(weights, 3) is weights
    assert quiet(dp_mechanism="exponential").apply_dp_to_weights(weights) is weights


def test_noise_on_weights_exists_off_the_training_path() -> None:
    weights = {"w": torch.ones(D), "n": torch.tensor(2)}
    noisy = quiet(dp_noise_multiplier=0.4, dp_clip_norm=1.0).add_noise_to_weights(weights, 4)
    assert float((noisy["w"] - 1).std()) == pytest.approx(0.2, rel=0.03)
    assert int(noisy["n"]) == 2
    assert (weights["w"] == 1).all()


def test_the_exponential_mechanism_selects_and_does_not_train() -> None:
    dp = quiet(dp_mechanism="exponential", dp_epsilon=10.0, dp_sensitivity=1.0)
    scores = torch.tensor([0.50, 0.65, 0.90, 0.75, 0.80])
    m = 4000
    chosen = [dp.exponential_mechanism(torch.randn(5, 20), scores) for _ in range(m)]
    weights = np.exp(10.0 * scores.double().numpy() / 2)
    observed = np.bincount(chosen, minlength=5)
    assert stats.chisquare(observed, weights / weights.sum() * m).pvalue > ALPHA
    for call in (dp.privatize_model_update, lambda g, u: dp.add_noise_to_weights(g)):
        with pytest.raises(ValueError, match=r"selects one of several.*refused in training"):
            call({"w": np.zeros(1)}, {"w": np.ones(1)})
    with pytest.raises(ValueError, match=r"one score for each of the 2 candidates"):
        dp.exponential_mechanism(["a", "b"], [1.0])


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.01, 0.4])
@pytest.mark.parametrize("rdp", [0.0, 1e-6, 0.02, 0.5, 7.0, 300.0])
@pytest.mark.parametrize("order", [1.25, 2.0, 8.5, 64.0, 1024.0])
def test_renyi_conversion_is_that_of_dp_accounting(order: float, rdp: float, delta: float) -> None:
    expected, _ = rdp_accounting.compute_epsilon([order], [rdp], delta)
    assert renyi_to_epsilon(order, rdp, delta=delta) == pytest.approx(
        expected, rel=1e-12, abs=1e-12
    )
    if expected > 0:  # never above the classic bound (Mironov 2017, proposition 3)
        assert expected <= rdp + math.log(1 / delta) / (order - 1) + 1e-12


def test_the_best_order_gives_what_the_accountant_gives() -> None:
    orders = [1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0, 64.0]
    accountant = rdp_accounting.RdpAccountant(orders)
    accountant.compose(dp_event.GaussianDpEvent(2.0), 5)
    dp = quiet(dp_delta=1e-6)
    ours = min(dp.convert_renyi_to_epsilon(order, 5 * order / (2 * 2.0**2)) for order in orders)
    assert ours == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-9)


def test_renyi_conversion_refuses_what_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"order = 1: .* > 1; rdp = -1: .*; delta = 0: .*\(0, 1\)"):
        renyi_to_epsilon(1, -1, delta=0)


# Configuration ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, []),
        ({"dp_noise_multiplier": 0.2, "dp_clip_norm": 2.0, "dp_sensitivity": 2.0}, []),
        ({n: DEFAULTS[n] for n in ("dp_epsilon", "dp_delta")}, []),  # said, but not changed
        ({"dp_epsilon": 0.5}, ["dp_epsilon"]),
        ({"dp_epsilon": 0.5, "dp_delta": 1e-6}, ["dp_epsilon", "dp_delta"]),
        ({"dp_mechanism": "laplace", "dp_epsilon": 0.5}, []),
        ({"dp_mechanism": "laplace", "dp_noise_multiplier": 1.0}, ["dp_noise_multiplier"]),
        ({"dp_mechanism": "exponential", "dp_delta": 0.1}, ["dp_delta"]),
    ],
)
def test_settings_without_effect_are_warned_of_and_only_these(
    settings: dict[str, Any], named: list[str]
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DifferentialPrivacy(**settings)
    assert all(w.category is UserWarning and w.filename == __file__ for w in caught)
    assert [str(w.message).split(" ")[0] for w in caught] == named


@pytest.mark.parametrize(
    ("mechanism", "driver", "inactive"),
    [
        ("gaussian", "dp_noise_multiplier", ["dp_epsilon", "dp_delta"]),
        ("laplace", "dp_epsilon", ["dp_noise_multiplier", "dp_delta"]),
        ("exponential", "dp_epsilon", ["dp_noise_multiplier", "dp_delta"]),
    ],
)
def test_driver_and_inactive_settings_are_reported(
    mechanism: str, driver: str, inactive: list[str]
) -> None:
    dp = quiet(dp_mechanism=mechanism, dp_clip_norm=0.25)
    info = dp.get_privacy_info()
    assert (dp.noise_driver, dp.inactive_parameters) == (driver, inactive)
    assert (info["noise_driver"], info["inactive_parameters"]) == (driver, inactive)
    assert info["mechanism"] == mechanism
    assert info["configured_clip_norm"] == 0.25
    assert info["formal_accounting_available"] is False
    assert info["guarantee"] == dp.guarantee


def test_a_configuration_object_gives_the_settings_and_keywords_go_first() -> None:
    config = SurvivalConfig(dp_clip_norm=2.0, dp_noise_multiplier=0.3)
    info = DifferentialPrivacy(config, dp_noise_multiplier=0.4).get_privacy_info()
    assert (info["configured_clip_norm"], info["configured_noise_multiplier"]) == (2.0, 0.4)
    partial = DifferentialPrivacy(SimpleNamespace(dp_clip_norm=3.0)).get_privacy_info()
    assert partial["configured_clip_norm"] == 3.0
    assert partial["configured_epsilon"] == DEFAULTS["dp_epsilon"]


def test_all_bad_settings_are_named_with_value_and_range() -> None:
    with pytest.raises(ValueError, match="dp_mechanism") as caught:
        DifferentialPrivacy(
            dp_mechanism="cauchy",
            dp_clip_norm=0.0,
            dp_noise_multiplier=-0.1,
            dp_sensitivity=math.inf,
            dp_epsilon=math.nan,
            dp_delta=1.5,
        )
    assert str(caught.value).split("; ") == [
        'dp_mechanism = \'cauchy\': must be one of "gaussian", "laplace", "exponential"',
        "dp_clip_norm = 0.0: must be a finite number > 0",
        "dp_noise_multiplier = -0.1: must be a finite number >= 0",
        "dp_sensitivity = inf: must be a finite number > 0",
        "dp_epsilon = nan: must be a finite number > 0",
        "dp_delta = 1.5: must be a number in (0, 1)",
    ]
    with pytest.raises(ValueError, match="num_clients = 0"):
        quiet().privatize_model_update({"w": np.zeros(1)}, {"w": np.ones(1)}, num_clients=0)


def test_each_mechanism_says_in_one_sentence_that_nothing_is_guaranteed() -> None:
    said = {name: no_guarantee(name) for name in ("gaussian", "laplace", "exponential", "none")}
    for sentence in said.values():
        assert "uarantee is claimed" in sentence
        assert sentence.endswith(".")
        assert ". " not in sentence
    assert "dp_epsilon and dp_delta have no effect" in said["gaussian"]
    assert "dp_epsilon is no epsilon here" in said["laplace"]
    assert "sqrt(d) times dp_clip_norm" in said["laplace"]
    assert "not a Laplace variable" in said["laplace"]
    assert "sqrt(K)" not in said["exponential"]
    assert "refused" in said["exponential"]
