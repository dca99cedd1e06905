"""Settings by the names of federated-survival: what they stand for, what is refused or ignored."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

import tasks.survival
from fedapp import run_config
from fedapp.fsa_names import ALIASES, KEYS, ONE_VALUE, WITHOUT_EFFECT
from fedapp.survival import DifferentialPrivacy, FederatedSurvival, FSAConfig, FSARunner
from tasks.survival.privacy_words import DEFAULTS

OTHER = {
    "dp_clip_norm": 0.7,
    "dp_noise_multiplier": 0.2,
    "dp_sensitivity": 1.5,
    "dp_epsilon": 0.5,
    "dp_delta": 1e-3,
}
"""A value apart from the default for each number."""


def quiet(**settings: Any) -> FSAConfig:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FSAConfig(**settings)


def warned(**settings: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        FSAConfig(**settings)
    assert all(one.category is UserWarning for one in caught)
    assert all(one.filename == __file__ for one in caught)  # where the settings are
    return [str(one.message) for one in caught]


# What names stand for ---------------------------------------------------------------------------


def test_defaults_are_those_of_the_run_configuration() -> None:
    config = FSAConfig()
    values, defaults = config.to_run_config(), run_config.defaults()
    assert values == {key: defaults[key] for key in values}
    assert set(values) == set(KEYS.values())
    assert (config.model, config.n_clients, config.use_differential_privacy) == (
        "DeepSurv",
        5,
        True,
    )
    assert config.privatizes


def test_every_field_reaches_the_run_configuration() -> None:
    settings = {
        "model": "DeepSurv",
        "n_clients": 3,
        "global_rounds": 4,
        "local_steps": 2,
        "batch_size": 16,
        "learning_rate": 0.01,
        "weight_decay": 0.5,
        "hidden_layers": (8, 4),
        "dropout": 0.1,
        "partition": "dirichlet",
        "test_size": 0.3,
        "random_state": 9,
        "dp_mechanism": "laplace",
        **OTHER,
    }
    values = quiet(**settings).to_run_config()
    for name, key in KEYS.items():
        expected = "8,4" if name == "hidden_layers" else settings[name]
        assert values[key] == expected, name
    run_config.read({"task": "survival", **values})


def test_fields_are_documented_and_every_dp_field_is_there() -> None:
    names = {one.name for one in dataclasses.fields(FSAConfig)}
    assert names == {*KEYS, "use_differential_privacy", "options"}
    assert {"dp_mechanism", *OTHER} <= names
    assert FSAConfig.__doc__ is not None
    assert all(f"\n    {name} : " in FSAConfig.__doc__ for name in names)


def test_other_keys_are_keywords_too() -> None:
    config = FSAConfig(time_bins=32, privacy_level=1, min_sites=3, run_dir=Path("elsewhere"))
    values = config.to_run_config()
    assert values["survival.time-bins"] == 32
    assert values["survival.privacy-level"] == 1
    assert (values["min-sites"], values["run-dir"]) == (3, "elsewhere")
    assert dict(config.options) == {
        "time_bins": 32,
        "privacy_level": 1,
        "min_sites": 3,
        "run_dir": "elsewhere",
    }
    assert dataclasses.replace(config, n_clients=4).to_run_config() == {**values, "num-sites": 4}


def test_second_names() -> None:
    config = FSAConfig(
        model_type="DeepSurv",
        num_clients=3,
        global_epochs=7,
        local_epochs=2,
        num_nodes=[16],
        random_seed=1,
        split_method="Dirichlet",
        split_alpha=0.4,
        n_samples=50,
        client_sample_ratio=1,
        federated_protocol="fedavg",
        optimizer="Adam",
    )
    assert (config.n_clients, config.global_rounds, config.local_steps) == (3, 7, 2)
    assert (config.hidden_layers, config.random_state) == ((16,), 1)
    assert (config.partition, config.options["dirichlet_alpha"]) == ("dirichlet", 0.4)
    assert FSAConfig(split_type="non-iid").partition == "censoring-non-iid"
    own = FSAConfig(num_sites=3, rounds=7, test_fraction=0.3, seed=1)
    assert (own.n_clients, own.global_rounds) == (3, 7)
    assert (own.test_size, own.random_state) == (0.3, 1)
    assert not set(ALIASES) & {one.name for one in dataclasses.fields(FSAConfig)}


def test_a_linear_model_has_no_layers() -> None:
    config = FSAConfig(model_type="CoxPH", num_nodes=(), num_durations=8)
    values = config.to_run_config()
    assert values["survival.model"] == "CoxPH"
    assert values["survival.num-durations"] == 8
    assert "survival.hidden-layers" not in values


def test_numpy_numbers() -> None:
    config = FSAConfig(
        n_clients=np.int64(3), learning_rate=np.float64(0.01), hidden_layers=[np.int64(8)]
    )
    assert config.to_run_config()["survival.hidden-layers"] == "8"
    assert type(config.n_clients) is int
    assert type(config.learning_rate) is float


def test_without_a_seed() -> None:
    assert "seed" not in FSAConfig(random_state=None).to_run_config()


# What is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [("dp_clip", "dp_clip_norm"), ("n_client", "n_clients"), ("global_round", "global_rounds")],
)
def test_unknown_names_are_refused_with_the_nearest(name: str, near: str) -> None:
    for make in (FSAConfig, FederatedSurvival):
        with pytest.raises(TypeError, match=rf"'{name}'; did you mean {near}\?"):
            make(**{name: 1})


def test_all_unknown_names_at_once() -> None:
    with pytest.raises(TypeError, match=r"'zzz'; `fedapp config survival`.*dp_epsilonn"):
        FSAConfig(zzz=1, dp_epsilonn=2)


def test_two_names_of_one_setting() -> None:
    with pytest.raises(TypeError, match="n_clients and num_clients are one setting"):
        FSAConfig(n_clients=3, num_clients=3)
    with pytest.raises(TypeError, match="model and model_type are one setting"):
        FederatedSurvival("DeepSurv", model_type="DeepSurv")


def test_all_bad_values_at_once_by_the_names_that_were_used() -> None:
    with pytest.raises(ValueError, match="global_epochs") as caught:
        FSAConfig(
            model="DeepSurf",
            global_epochs=0,
            dp_clip_norm=-1.0,
            dp_delta=2.0,
            learning_rate=float("nan"),
            time_bins=1,
            use_differential_privacy="yes",
            hidden_layers=[],
        )
    text = str(caught.value)
    for part in (
        "model = 'DeepSurf': must be",
        "global_epochs = 0: must be whole number >= 1",
        "dp_clip_norm = -1.0: must be number > 0",
        "dp_delta = 2.0: must be number > 0 and < 1",
        "learning_rate = nan: must be",
        "time_bins = 1: must be",
        "use_differential_privacy = 'yes': must be True or False",
        "hidden_layers = (): must be given",
    ):
        assert part in text, part
    assert "survival." not in text


@pytest.mark.parametrize("value", ["32", 32, None, ["a", 1], [2.5], [True]])
def test_hidden_layers_must_be_whole_numbers(value: object) -> None:
    with pytest.raises(ValueError, match="num_nodes") as caught:
        FSAConfig(num_nodes=value, optimizer="sgd", dropout=2.0)
    for part in (
        f"num_nodes = {value!r}: must be a list of whole numbers",
        "optimizer = 'sgd': must be 'adam'",
        "dropout = 2.0: must be",
    ):
        assert part in str(caught.value)


def test_unknown_mechanism() -> None:
    with pytest.raises(ValueError, match=r"dp_mechanism = 'gauss': must be one of \"gaussian\""):
        FSAConfig(dp_mechanism="gauss")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("protocol", "FedProx"),
        ("protocol_params", {"mu": 0.01}),
        ("client_fraction", 0.5),
        ("optimizer", "sgd"),
        ("early_stopping", True),
        ("activation", torch.nn.Tanh),
        ("batch_norm", True),
        ("full_batch", True),
    ],
)
def test_what_is_not_here_is_refused_with_the_reason(name: str, value: object) -> None:
    only, why = ONE_VALUE[name]
    with pytest.raises(ValueError, match=f"{name} = .*must be {only!r}; {why}"):
        FSAConfig(**{name: value})
    assert warned(**{name: only}) == []


def test_exponential_is_a_setting_and_no_training() -> None:
    config = FSAConfig(dp_mechanism="exponential")
    with pytest.raises(ValueError, match=r"selects one of several candidates.*refused in training"):
        config.to_run_config()
    with pytest.raises(ValueError, match="refused in training"):
        FederatedSurvival(config=config).fit([])
    info = FSARunner(config).get_privacy_info()
    assert (info["mechanism"], info["noise_driver"]) == ("exponential", "dp_epsilon")
    assert info["inactive_parameters"] == ["dp_noise_multiplier", "dp_delta"]
    assert DifferentialPrivacy(config).exponential_mechanism(["a", "b"], [0.0, 5000.0]) == 1


def test_arrays_in_place_of_numbers() -> None:
    two = np.array([0.1, 0.2])
    with pytest.raises(ValueError, match=r"optimizer = array.*; learning_rate = array"):
        FSAConfig(learning_rate=two, optimizer=two)
    assert warned(evaluation_quantiles=[0.05, 0.95]) == []
    assert len(warned(evaluation_quantiles=two)) == 1


# What is ignored, and said so -------------------------------------------------------------------

IGNORED = {
    "gaussian": {"dp_epsilon", "dp_delta"},
    "laplace": {"dp_noise_multiplier", "dp_delta"},
    "exponential": {"dp_noise_multiplier", "dp_delta"},
}
DRIVER = {"gaussian": "dp_noise_multiplier", "laplace": "dp_epsilon", "exponential": "dp_epsilon"}


@pytest.mark.parametrize("mechanism", IGNORED)
@pytest.mark.parametrize("name", OTHER)
def test_each_ignored_field_warns_and_no_other(mechanism: str, name: str) -> None:
    messages = warned(dp_mechanism=mechanism, **{name: OTHER[name]})
    assert len(messages) == (name in IGNORED[mechanism])
    for message in messages:
        assert message.startswith(f"{name} = {OTHER[name]!r} has no effect")
        assert DRIVER[mechanism] in message


@pytest.mark.parametrize("mechanism", [*IGNORED, "none"])
def test_defaults_are_silent(mechanism: str) -> None:
    assert warned(dp_mechanism=mechanism) == []
    assert warned(**{**DEFAULTS, "dp_mechanism": mechanism}) == []
    assert warned(dp_mechanism=mechanism, use_differential_privacy=False) == []


def test_one_warning_for_each_field() -> None:
    assert len(warned(dp_mechanism="gaussian", dp_epsilon=0.5, dp_delta=1e-3)) == 2


@pytest.mark.parametrize("name", OTHER)
def test_everything_is_ignored_if_privatization_is_off(name: str) -> None:
    (message,) = warned(use_differential_privacy=False, **{name: OTHER[name]})
    assert f"{name} = {OTHER[name]!r} has no effect: use_differential_privacy = False" in message
    (message,) = warned(dp_mechanism="none", **{name: OTHER[name]})
    assert "dp_mechanism = 'none' switches privatization off" in message


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_names_that_do_nothing_say_so(name: str) -> None:
    usual, why = WITHOUT_EFFECT[name]
    assert warned(**{name: usual}) == []
    (message,) = warned(**{name: "other"})
    assert message == f"{name} = 'other' has no effect: {why}"


PEER = {
    "data_type": "weibull",
    "sim_type": "1",
    "n_rounds": 100,
    "random_seed": 42,
    "model_params": {},
    "activation": torch.nn.ReLU,
    "early_stopping": False,
    "early_stopping_patience": 10,
    "client_sample_ratio": 1.0,
    "federated_protocol": "FedAvg",
    "proximal_mu": 0.01,
    "server_optimizer": "adam",
    "server_learning_rate": 0.01,
    "server_beta1": 0.9,
    "server_beta2": 0.99,
    "server_tau": 1e-3,
    "webdisco_max_iter": 50,
    "webdisco_tolerance": 1e-7,
    "webdisco_l2": 0.0,
    "webdisco_ridge": 1e-8,
    "webdisco_max_step_norm": 5.0,
    "k": 0.5,
    "latent_num": 10,
    "hidden_num": 30,
    "alpha": 1.0,
    "beta": 1.0,
    "augmentation_sampling": "sparse",
    "augmentation_sparse_gamma": 0.1,
    "cox_loss_normalization": "patient",
    "censor_rate": 0.4,
    "num_nodes": (32, 32),
    "split_alpha": 0.5,
    "split_method": "iid",
    "verbose": False,
    "show_progress": False,
    "dataset_name": None,
    "mode": "simulate",
    "evaluation_quantiles": (0.05, 0.95),
    "prediction_validation": "raise",
}
"""Fields of federated-survival 0.8 that are no fields here, at its defaults."""


def test_a_config_of_the_other_package_is_taken_at_its_defaults() -> None:
    assert warned(**PEER) == []
    assert FSAConfig(activation=torch.nn.ReLU()) == FSAConfig()
    assert FSAConfig(activation="relu") == FSAConfig()


def test_warnings_point_at_the_call_of_the_estimator() -> None:
    with pytest.warns(UserWarning, match="dp_epsilon = 0.5") as caught:
        FederatedSurvival(dp_epsilon=0.5)
    assert [one.filename for one in caught] == [__file__]


# What is reported before anything ran -----------------------------------------------------------


@pytest.mark.filterwarnings("ignore:dp_epsilon")
def test_the_documents_snippet() -> None:
    info = FederatedSurvival(dp_mechanism="gaussian", dp_epsilon=0.5).get_privacy_info()
    assert info["noise_driver"] == "dp_noise_multiplier"
    assert info["inactive_parameters"] == ["dp_epsilon", "dp_delta"]
    assert info["configured_epsilon"] == 0.5


@pytest.mark.parametrize("mechanism", IGNORED)
def test_privacy_info_claims_nothing(mechanism: str) -> None:
    config = FSAConfig(dp_mechanism=mechanism)
    for info in (
        FSARunner(config).get_privacy_info(),
        FederatedSurvival(config=config).get_privacy_info(),
    ):
        assert info["enabled"] is True
        assert info["noise_driver"] == DRIVER[mechanism]
        assert set(info["inactive_parameters"]) == IGNORED[mechanism]
        assert info["formal_accounting"] is False
        assert info["formal_accounting_available"] is False
        assert info["measured"] is None
        for name, value in DEFAULTS.items():
            if name != "dp_mechanism":
                assert info[name.replace("dp_", "configured_")] == value
        assert not {"epsilon", "delta", "total_epsilon", "per_round_epsilon"} & set(info)
        assert info["guarantee"].startswith("No formal")
        words = " ".join(value for value in info.values() if isinstance(value, str)).lower()
        assert not {"achieved", "ensures", "satisfies"} & set(words.split())


def test_privacy_info_of_a_run_without_privatization() -> None:
    info = FederatedSurvival(use_differential_privacy=False).get_privacy_info()
    assert (info["enabled"], info["mechanism"], info["noise_driver"]) == (False, "none", None)
    assert set(info["inactive_parameters"]) == set(OTHER)
    assert info["formal_accounting"] is False
    assert info["guarantee"].startswith("No guarantee")


def test_differential_privacy_takes_the_config() -> None:
    assert tasks.survival.DifferentialPrivacy is DifferentialPrivacy
    tool = DifferentialPrivacy(FSAConfig(dp_noise_multiplier=0.0, dp_clip_norm=0.1))
    noised = tool.privatize_model_update({"w": torch.zeros(4)}, {"w": torch.ones(4)}, num_clients=3)
    assert noised["w"].norm().item() == pytest.approx(0.1)
    assert (tool.last_noise_sigma, tool.last_noise_to_signal) == (0.0, 0.0)
    assert tool.last_clipped_update_norm == pytest.approx(0.1)


# Parameters as scikit-learn has them ------------------------------------------------------------


def test_clone_and_parameters() -> None:
    model = FederatedSurvival("DeepSurv", n_clients=3, hidden_layers=[4], privacy_level=1)
    copy = clone(model)
    assert copy is not model
    assert copy.get_params() == model.get_params()
    assert copy.get_params()["privacy_level"] == 1
    assert copy.set_params(local_steps=7) is copy
    assert (copy.config.local_steps, copy.config.n_clients) == (7, 3)
    assert model.config.local_steps != 7
    with pytest.raises(ValueError, match="local_steps = 0"):
        copy.set_params(local_steps=0)
    assert copy.config.local_steps == 7
    assert "n_clients=3" in repr(copy)


def test_settings_beside_a_config() -> None:
    with pytest.raises(TypeError, match="config: holds all settings; do not give n_clients, too"):
        FederatedSurvival(config=FSAConfig(), n_clients=3)
    with pytest.raises(TypeError, match="must be an FSAConfig, not a dict"):
        FSARunner({})  # type: ignore[arg-type]


def test_settings_do_not_change_under_ones_hands() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FSAConfig().n_clients = 3  # type: ignore[misc]


def test_the_import_is_cheap() -> None:
    code = (
        "import sys; import fedapp.survival as s; "
        "s.FederatedSurvival(n_clients=3).get_privacy_info(); "
        "assert not {'torch', 'flwr', 'pycox', 'lifelines', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
