"""The run configuration: one source, every fault at once."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedapp import project_files, run_config
from fedapp.fingerprint import VERSION
from fedapp.run_config import ConfigError

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def flat(table: dict[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def test_pyproject_has_the_defaults_of_the_code() -> None:
    table = flat(PROJECT["tool"]["flwr"]["app"]["config"])
    assert table == run_config.defaults()
    assert {key: type(value) for key, value in table.items()} == {
        key: type(value) for key, value in run_config.defaults().items()
    }


def test_generated_files_are_what_the_code_would_write() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert project_files.with_config_table(text) == text
    assert (ROOT / "flower.toml").read_text(encoding="utf-8") == project_files.flower_toml()


def test_flower_toml_is_a_run_configuration() -> None:
    table = flat(tomllib.loads((ROOT / "flower.toml").read_text(encoding="utf-8")))
    assert run_config.read(table) == run_config.read({})  # type: ignore[arg-type]


def test_uv_excludes_every_direct_dependency() -> None:
    """Flower would otherwise install them anew for every run, and look up those of the extras."""
    declared = list(PROJECT["project"]["dependencies"])
    for extra in PROJECT["project"]["optional-dependencies"].values():
        declared += extra
    named = [
        requirement.split("[")[0].split(">")[0].split("=")[0].split("<")[0].strip()
        for requirement in declared
    ]
    assert PROJECT["tool"]["uv"]["exclude-dependencies"] == named


def test_version_is_stated_once_more_and_equal() -> None:
    assert PROJECT["project"]["version"] == VERSION


def test_all_faults_at_once_with_name_value_and_range() -> None:
    values = {
        "seed": -1,
        "min-sites": 1,
        "survival.rounds": "30",
        "survival.learning-rate": float("nan"),
        "survival.dropout": True,
        "survival.model": "DeepSurf",
        "survival.hidden-layers": "32;32",
        "survival.dp-mechanism": "exponential",
    }
    with pytest.raises(ConfigError) as caught:
        run_config.read(values)
    faults = caught.value.faults
    assert len(faults) == len(values)
    for key, value in values.items():
        assert any(line.startswith(f"{key} = {value!r}: must be ") for line in faults), key


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("survival.round", "survival.rounds"),
        ("survival.learning_rate", "survival.learning-rate"),
        ("sede", "seed"),
        ("dp-clip-norm", "survival.dp-clip-norm"),
    ],
)
def test_unknown_key_names_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {meant}"):
        run_config.read({wrong: 1})


def test_a_key_like_no_other_points_to_the_list() -> None:
    with pytest.raises(ConfigError, match="fedapp config"):
        run_config.read({"zzzzqqqq": 1})


def test_whole_numbers_are_numbers_but_not_the_reverse() -> None:
    assert run_config.read({"survival.learning-rate": 1}).survival.learning_rate == 1.0
    with pytest.raises(ConfigError, match=r"survival.rounds = 3.0"):
        run_config.read({"survival.rounds": 3.0})


def test_equal_event_and_censoring_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="must differ"):
        run_config.read({"survival.event-value": "0"})


def test_every_key_has_a_meaning_and_says_what_is_allowed() -> None:
    for key in run_config.all_keys():
        assert key.meaning, key
        assert key.allowed, key


OTHERS = ("roc-glm.", "vertical-xgboost.")


def test_flat_gives_back_what_was_read() -> None:
    values = {"seed": 7, "survival.rounds": 3, "survival.dp-mechanism": "none"}
    read = run_config.read(values).flat()
    concerned = {k: v for k, v in run_config.defaults().items() if not k.startswith(OTHERS)}
    assert {**concerned, **values} == read
    read = run_config.read({"task": "roc-glm", "roc-glm.release": "binned"}).flat()
    assert read["roc-glm.release"] == "binned"
    assert not any(key.startswith("survival.") for key in read)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"survival.hidden-layers": "32,0"}, "1 to 4096 units"),
        ({"survival.hidden-layers": "4097"}, "1 to 4096 units"),
        ({"survival.hidden-layers": "9" * 5000}, "1 to 4096 units"),
        ({"survival.hidden-layers": ",".join(["8"] * 17)}, "1 to 16 layers"),
        ({"survival.hidden-layers": "a"}, "whole numbers separated by commas, as 32,32"),
        (
            {"survival.dp-clip-norm": 1e200, "survival.dp-sensitivity": 1e200},
            "dp-noise-multiplier x dp-sensitivity x dp-clip-norm, must be at most 1e+37",
        ),
        (
            {
                "survival.dp-clip-norm": 1e200,
                "survival.dp-sensitivity": 1e200,
                "survival.dp-noise-multiplier": 0.0,
            },
            "survival.dp-clip-norm = 1e+200",
        ),
        (
            {"survival.dp-mechanism": "laplace", "survival.dp-epsilon": 1e-300},
            "dp-epsilon = 1e-300",
        ),
        ({"survival.confidence-level": 1 - 1e-16}, "must be at most 0.999999"),
        ({"roc-glm.alpha": 1e-200}, "must be at least 1e-06"),
        ({"run-dir": "runs\0"}, "null character"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_config.read(values)
    (fault,) = caught.value.faults
    assert fault.startswith(next(iter(values)).partition("=")[0].split(".dp-")[0])
    assert words in fault


def test_limits_that_still_work() -> None:
    layers = ",".join(["4096"] * 16)
    values = {"survival.hidden-layers": layers, "survival.confidence-level": 0.999999}
    assert run_config.read(values).survival.hidden_units == (4096,) * 16
    off = {"survival.dp-clip-norm": 1e200, "survival.dp-sensitivity": 1e200}
    run_config.read({**off, "survival.dp-mechanism": "none"})


def test_a_key_may_have_a_name_that_python_reserves(monkeypatch: pytest.MonkeyPatch) -> None:
    class Boosting(BaseModel):
        model_config = ConfigDict(
            extra="forbid",
            strict=True,
            alias_generator=lambda name: name.replace("_", "-"),
            populate_by_name=True,
        )
        reg_lambda: float = Field(1.0, gt=0, alias="lambda", description="penalty")
        max_depth: int = Field(6, description="depth")

        @model_validator(mode="after")
        def _refuse(self) -> Boosting:
            if self.reg_lambda == 7:
                raise ValueError("lambda = 7.0: not seven; max-depth = 6: not six")
            return self

    monkeypatch.setitem(run_config.TASK_CONFIGS, "survival", Boosting)
    run_config.all_keys.cache_clear()
    try:
        names = [key.name for key in run_config.all_keys() if key.task == "survival"]
        assert names == ["survival.lambda", "survival.max-depth"]
        with pytest.raises(ConfigError, match=r"^run configuration: survival.lambda = -1"):
            run_config.read({"survival.lambda": -1.0})
        with pytest.raises(ConfigError) as caught:
            run_config.read({"survival.lambda": 7.0})
    finally:
        run_config.all_keys.cache_clear()
    assert caught.value.faults == [
        "survival.lambda = 7.0: not seven",
        "survival.max-depth = 6: not six",
    ]
