"""The run configuration: every key once, checked, with all faults at once.

The tasks' own models (``tasks/<task>/config.py``) and :class:`GeneralConfig` are the one source
of keys, types, ranges, defaults and meanings. From them come the check of a run, the table in
``pyproject.toml``, ``fedapp config`` and the configuration table of the report.
"""

from __future__ import annotations

import difflib
import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from fedapp.config_limits import combination_faults
from tasks.roc_glm.config import RocGlmConfig
from tasks.survival.config import SurvivalConfig
from tasks.vertical_xgboost.config import VerticalXGBoostConfig

Value = bool | int | float | str


class GeneralConfig(BaseModel):
    """Settings that every task has (keys without a prefix)."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
    )

    task: Annotated[
        Literal["survival", "roc-glm", "vertical-xgboost"], Field(description="what to run")
    ] = "survival"
    seed: Annotated[
        int, Field(ge=0, lt=2**63, description="seed of partitions, initial models and batches")
    ] = 0
    seeded_noise: Annotated[
        bool,
        Field(
            description="draw protecting noise from the seed too: simulation only, it can be "
            "subtracted by whoever knows the seed"
        ),
    ] = False
    num_sites: Annotated[
        int,
        Field(
            ge=1,
            le=10_000,
            description="simulation: sites to play when Flower's default of 2 SuperNodes is left "
            "as it is; any other number of SuperNodes is the number of sites",
        ),
    ] = 5
    min_sites: Annotated[
        int, Field(ge=2, le=10_000, description="fewest sites with which a run goes on")
    ] = 2
    timeout: Annotated[
        float,
        Field(gt=0, le=604_800, allow_inf_nan=False, description="seconds to wait for a reply"),
    ] = 600.0
    run_dir: Annotated[
        str, Field(min_length=1, description="folder in which run folders are made")
    ] = "runs"
    resume: Annotated[
        str,
        Field(
            description="folder of an interrupted run, on the server's machine, to go on from its "
            'last checkpoint with the same configuration; "" begins anew'
        ),
    ] = ""
    report: Annotated[bool, Field(description="make figures and report.html at the end")] = True


TASK_CONFIGS: dict[str, type[BaseModel]] = {
    "survival": SurvivalConfig,
    "roc-glm": RocGlmConfig,
    "vertical-xgboost": VerticalXGBoostConfig,
}
"""The configuration model of each task; its keys carry the task's name as prefix."""


class ConfigError(ValueError):
    """The run configuration is not usable.

    Parameters
    ----------
    faults : list of str
        One line a fault: key, value, what is allowed.
    """

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("run configuration: " + "; ".join(faults))


@dataclass(frozen=True)
class RunConfig:
    """A checked run configuration.

    Attributes
    ----------
    general : GeneralConfig
        What every task has.
    survival : SurvivalConfig
        Settings of the survival task.
    roc_glm : RocGlmConfig
        Settings of the ROC-GLM task.
    vertical_xgboost : VerticalXGBoostConfig
        Settings of the vertical XGBoost task.
    """

    general: GeneralConfig
    survival: SurvivalConfig
    roc_glm: RocGlmConfig
    vertical_xgboost: VerticalXGBoostConfig

    def flat(self) -> dict[str, Value]:
        """Return every key that concerns the chosen task, with its value."""
        chosen = self.general.task
        return {
            key.name: _plain(getattr(model, key.field))
            for prefix, model in self._models()
            if prefix in ("", chosen)
            for key in all_keys()
            if key.task == prefix
        }

    def _models(self) -> Iterator[tuple[str, BaseModel]]:
        yield "", self.general
        yield "survival", self.survival
        yield "roc-glm", self.roc_glm
        yield "vertical-xgboost", self.vertical_xgboost


@dataclass(frozen=True)
class Key:
    """One key of the run configuration, as users see it; `task` is ``""`` for general ones.

    ``alias`` is what its model calls it, and `name` less the task.
    """

    task: str
    name: str
    field: str
    alias: str
    type: str
    allowed: str
    default: Value
    meaning: str


@cache
def all_keys() -> tuple[Key, ...]:
    """Return every key in the order in which tables show them."""
    found = list(_keys_of(GeneralConfig, ""))
    for task, model in TASK_CONFIGS.items():
        found.extend(_keys_of(model, task))
    return tuple(found)


def defaults() -> dict[str, Value]:
    """Return the default of every key."""
    return {key.name: key.default for key in all_keys()}


def read(values: Mapping[str, object]) -> RunConfig:
    """Check a flat run configuration and return it as frozen models.

    Parameters
    ----------
    values : mapping of str to bool, int, float or str
        As Flower gives it; keys that are absent take their defaults.

    Returns
    -------
    RunConfig
        The checked configuration.

    Raises
    ------
    ConfigError
        With every fault: unknown keys (the nearest known one is named), wrong types, values out
        of range.
    """
    every = defaults()
    faults = [unknown_key(name) for name in values if name not in every]
    models: dict[str, BaseModel] = {}
    by_prefix: dict[str, type[BaseModel]] = {"": GeneralConfig, **TASK_CONFIGS}
    for prefix, model in by_prefix.items():
        known = {key.name: key for key in all_keys() if key.task == prefix}
        part = {known[name].alias: value for name, value in values.items() if name in known}
        try:
            models[prefix] = model.model_validate(part)
        except ValidationError as error:
            faults.extend(_fault_lines(error, prefix))
    if not faults:
        config = RunConfig(
            general=typing.cast(GeneralConfig, models[""]),
            survival=typing.cast(SurvivalConfig, models["survival"]),
            roc_glm=typing.cast(RocGlmConfig, models["roc-glm"]),
            vertical_xgboost=typing.cast(VerticalXGBoostConfig, models["vertical-xgboost"]),
        )
        faults.extend(combination_faults(config.general.run_dir, config.survival, config.roc_glm))
    if faults:
        raise ConfigError(faults)
    return config


def unknown_key(name: str) -> str:
    """Return the fault line of a key that does not exist, with the nearest that does."""
    near = difflib.get_close_matches(name, defaults(), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "`fedapp config` lists all keys"
    return f"{name}: unknown key; {hint}"


def pyproject_table() -> str:
    """Return the text of ``[tool.flwr.app.config]`` that belongs into ``pyproject.toml``."""
    lines = ["[tool.flwr.app.config]"]
    task = ""
    for key in all_keys():
        name = key.name.rpartition(".")[2]
        if key.task != task:
            task = key.task
            lines += ["", f"[tool.flwr.app.config.{task}]"]
        lines.append(f"{name} = {toml_value(key.default)}  # {key.meaning} ({key.allowed})")
    return "\n".join(lines) + "\n"


def toml_value(value: Value) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    # A JSON string is a TOML basic string; repr of a float keeps all digits.
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _keys_of(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for field, info in model.model_fields.items():
        alias = info.alias or field
        yield Key(
            task=prefix,
            name=f"{prefix}.{alias}" if prefix else alias,
            field=field,
            alias=alias,
            type=_type_name(info.annotation),
            allowed=_allowed(info),
            default=_plain(info.default),
            meaning=info.description or "",
        )


def _plain(value: object) -> Value:
    if isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a configuration value is a bool, int, float or str, not {type(value)}")


def _type_name(annotation: object) -> str:
    if typing.get_origin(annotation) is Literal:
        return type(typing.get_args(annotation)[0]).__name__
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " or ".join(_type_name(part) for part in typing.get_args(annotation))
    return getattr(annotation, "__name__", str(annotation))


_BOUNDS = {"Ge": ("ge", ">="), "Gt": ("gt", ">"), "Le": ("le", "<="), "Lt": ("lt", "<")}


_FORMS = {
    r"^\d+(,\d+)*$": "whole numbers separated by commas, as 32,32",
    r"^(mean|[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)$": (
        '"mean" or a finite number in quotes, as "0.3"'
    ),
}
"""Regular expressions of the configuration models, in words."""


def _allowed(info: FieldInfo) -> str:
    """Say what a key allows, in words that tables and fault lines share."""
    if isinstance(info.json_schema_extra, dict) and "allowed" in info.json_schema_extra:
        return str(info.json_schema_extra["allowed"])
    if typing.get_origin(info.annotation) is Literal:
        return " | ".join(json.dumps(choice) for choice in typing.get_args(info.annotation))
    bounds = []
    pattern = ""
    for rule in info.metadata:
        if type(rule).__name__ in _BOUNDS:
            attribute, sign = _BOUNDS[type(rule).__name__]
            bounds.append(f"{sign} {getattr(rule, attribute):,}".replace(",", " "))
        elif getattr(rule, "pattern", None):
            pattern = f": {_FORMS[rule.pattern]}"
    name = {"int": "whole number", "float": "number", "bool": "true or false", "str": "text"}
    kind = name.get(_type_name(info.annotation), _type_name(info.annotation))
    return f"{kind}{pattern}" + (f" {' and '.join(bounds)}" if bounds else "")


def _fault_lines(error: ValidationError, prefix: str) -> list[str]:
    allowed = {key.alias: key for key in all_keys() if key.task == prefix}
    lines: list[str] = []
    for fault in error.errors(include_url=False):
        key = allowed.get(str(fault["loc"][0])) if fault["loc"] else None
        if key is None:  # keys that contradict each other, each line of which names one
            words = fault["msg"].removeprefix("Value error, ")
            lines.extend(f"{prefix}.{line}" if prefix else line for line in words.split("; "))
            continue
        value: Any = fault["input"]
        lines.append(f"{key.name} = {value!r}: must be {key.allowed}")
    return lines
