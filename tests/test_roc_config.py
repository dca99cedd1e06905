"""Configuration of the ROC-GLM task: defaults, ranges, contradictions, all faults at once."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tasks.roc_glm.config import RocGlmConfig


def refused(**settings: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        RocGlmConfig.model_validate({key.replace("_", "-"): v for key, v in settings.items()})
    return str(caught.value)


def test_defaults_are_those_of_the_protocol() -> None:
    config = RocGlmConfig()
    assert config.release == "secure-counts"
    assert (config.mode, config.ties, config.num_thresholds) == ("one-shot", "mid", 28)
    assert (config.privacy_level, config.privacy_level_of) == (5, "class")
    assert config.debias
    assert config.num_cells == 50
    assert RocGlmConfig(release="noisy-counts").num_cells == 20
    assert RocGlmConfig(release="noisy-counts", cells=7).num_cells == 7


def test_every_key_has_a_description_and_a_default() -> None:
    for name, field in RocGlmConfig.model_fields.items():
        assert field.description, name
        assert not field.is_required(), name


def test_keys_are_kebab_case() -> None:
    config = RocGlmConfig.model_validate({"num-thresholds": 9, "privacy-level": 1})
    assert (config.num_thresholds, config.privacy_level) == (9, 1)


def test_ranges_are_refused_all_at_once() -> None:
    message = refused(delta=0.0, epsilon=-1.0, alpha=0.5, num_thresholds=1, redraws=10)
    for key in ("delta", "epsilon", "alpha", "num-thresholds", "redraws"):
        assert key in message
    assert "5 validation errors" in message


@pytest.mark.parametrize("value", [1e-300, 9e-10, 0.0, -1.0, 1.1e9, float("inf"), float("nan")])
def test_sensitivities_whose_noise_cannot_be_reckoned_with(value: float) -> None:
    assert "sensitivity" in refused(release="noisy-scores", sensitivity=value)
    assert RocGlmConfig(sensitivity=1e-9).sensitivity == 1e-9


def test_contradictions_are_refused_all_at_once() -> None:
    message = refused(release="exact", secure=True, cells=1)
    assert "allowed with allow-score-disclosure = true" in message
    assert "secure = true with release = 'exact'" in message
    assert "cells = 1" in message


def test_classic_mechanism_from_epsilon_1_is_refused() -> None:
    message = refused(release="noisy-scores", mechanism="classic", epsilon=1.0)
    assert "mechanism = 'classic' with epsilon = 1.0: allowed is epsilon below 1" in message
    assert RocGlmConfig(release="noisy-scores", mechanism="classic", epsilon=0.9)
    assert RocGlmConfig(release="binned", mechanism="classic", epsilon=3.0)


def test_wrong_types_and_unknown_keys_are_refused() -> None:
    assert "valid boolean" in refused(debias="yes")
    assert "Extra inputs" in refused(realease="binned")
