"""What a site lets a run do, whatever the run's configuration and the server say.

:func:`within_site_limits` is a mod of the ClientApp: every message passes it before a handler sees
it, so that a server gains nothing by leaving out the introduction, and every message brings the
run's configuration anew. The site's keys win, and each refusal names the key of the node
configuration, and the run's where there is one.

Every message of a deployed run starts a process, so what takes time to import (pandas, scipy) is
imported where a key asks for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from logging import ERROR
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from flwr.app import ConfigRecord, Context, Error, Message
from flwr.clientapp.typing import ClientAppCallable
from flwr.supercore import log

from fedapp import run_config
from fedapp.fingerprint import code_fingerprint
from fedapp.node_config import ledger_folder_faults, node_faults
from tasks.site.client import SITE_FAULT_CODE
from tasks.site.faults import SITE_LIMIT, SiteFault
from tasks.site.messages import HELLO, HelloReply

if TYPE_CHECKING:
    from tasks.privacy.site_budget import SiteBudget

DEFAULT_MAX_DELTA = 1e-5
BAD_NODE_CONFIG = "bad-node-config"

_PINNED = "site-limits"
"""Record of a node's state with the digest of the run's configuration."""

_VERTICAL = "vertical-xgboost"
_TASK_OF = {
    "train": "survival",
    "evaluate": "survival",
    "query.survival_": "survival",
    "query.roc_glm_": "roc-glm",
    "query.vertical_": _VERTICAL,
}
"""Task of a message type, by how it begins."""


@dataclass(frozen=True)
class SiteLimits:
    """The limits of one site, as its node configuration states them.

    Attributes
    ----------
    allowed_tasks : tuple of str
        Tasks that may run; empty: all.
    min_privacy_level : int
        Fewest rows that must stand behind what leaves; 0: as the run says.
    max_epsilon : float or None
        Most that all runs together may spend; None: no maximum.
    max_delta : float
        Delta that goes with it.
    covers : {"everything", "noised"}
        What the epsilon of a run must be of: all that leaves the site, or what leaves under noise.
    state_dir : str
        Where the ledger is; not empty where there is a maximum.
    """

    allowed_tasks: tuple[str, ...] = ()
    min_privacy_level: int = 0
    max_epsilon: float | None = None
    max_delta: float = DEFAULT_MAX_DELTA
    covers: Literal["everything", "noised"] = "everything"
    state_dir: str = ""

    @property
    def any(self) -> bool:
        """Whether the site limits runs at all."""
        return bool(self.allowed_tasks or self.min_privacy_level or self.max_epsilon is not None)

    def budget(self, run_id: int, config: run_config.RunConfig) -> SiteBudget | None:
        """What a run may spend here; None where the site has no maximum."""
        if self.max_epsilon is None:
            return None
        from tasks.privacy.site_budget import SiteBudget

        return SiteBudget(
            folder=Path(self.state_dir).expanduser(),
            run=f"run-{run_id}",
            task=config.general.task,
            config=config_digest(config.flat()),
            max_epsilon=self.max_epsilon,
            max_delta=self.max_delta,
        )


def read_limits(node_config: Mapping[str, object]) -> SiteLimits:
    """Read the limits of a node configuration, and check all of its keys.

    Raises
    ------
    SiteFault
        ``bad-node-config`` with every fault: unknown keys, wrong types, values out of range.
    """
    wrong = node_faults(node_config)
    faults = [str(fault) for fault in wrong]
    # What is of another type was said; the others are looked at all the same.
    rest = {key: v for key, v in node_config.items() if key not in {fault.key for fault in wrong}}
    if "columns" in rest:
        from fedapp.site_data import parse_columns

        try:
            parse_columns(str(rest["columns"]))
        except SiteFault as fault:
            faults += fault.reasons
    if "columns" in rest and "data-path" not in node_config:
        faults.append('node config "columns": needs "data-path"; it speaks of the site\'s own file')
    tasks = _tasks(rest, faults)
    level = cast(int, rest.get("min-privacy-level", 0))
    if level < 0:
        faults.append(f'node config "min-privacy-level" = {level}: must be at least 0')
    epsilon, delta = rest.get("max-epsilon"), rest.get("max-delta", DEFAULT_MAX_DELTA)
    _check_budget(node_config, rest, faults)
    covers = rest.get("epsilon-covers", "everything")
    if covers not in ("everything", "noised"):
        faults.append(
            f'node config "epsilon-covers" = "{covers}": must be "everything" or "noised"'
        )
    if faults:
        raise SiteFault(BAD_NODE_CONFIG, *faults)
    return SiteLimits(
        allowed_tasks=tasks,
        min_privacy_level=level,
        max_epsilon=None if epsilon is None else float(cast(float, epsilon)),
        max_delta=float(cast(float, delta)),
        covers=cast(Literal["everything", "noised"], covers),
        state_dir=str(rest.get("state-dir", "")).strip(),
    )


def refuse_run(limits: SiteLimits, config: run_config.RunConfig) -> None:
    """Refuse a run that a site's limits do not let run.

    Raises
    ------
    SiteFault
        ``site-limit`` with every key that stands against it.
    """
    task = config.general.task
    faults = []
    if limits.allowed_tasks and task not in limits.allowed_tasks:
        allowed = ", ".join(limits.allowed_tasks)
        faults.append(f'task = "{task}": node config "allowed-tasks" = "{allowed}"')
    faults += _level_faults(limits.min_privacy_level, config)
    if limits.max_epsilon is not None:
        reasons = unstated_epsilon(config, covers=limits.covers)
        faults += [
            f'{reason}: node config "max-epsilon" = {limits.max_epsilon:g} takes runs only that '
            "can state their epsilon"
            for reason in reasons
        ]
    if faults:
        raise SiteFault(SITE_LIMIT, *faults)


def unstated_epsilon(
    config: run_config.RunConfig, *, covers: Literal["everything", "noised"]
) -> list[str]:
    """Say why a run has no epsilon that a site could add up; a line a reason, empty if it has one.

    Parameters
    ----------
    config : RunConfig
    covers : {"everything", "noised"}
        As in `SiteLimits`.
    """
    from tasks.roc_glm import spending as of_roc_glm
    from tasks.survival import spending as of_survival

    task, reasons = config.general.task, list[str]()
    if config.general.seeded_noise:
        reasons.append("seeded-noise = true: noise from a known seed protects nobody")
    beside = f'{{}} (allowed by node config "epsilon-covers" = "noised", now "{covers}")'
    if task == "survival":
        reasons += of_survival.unstated(config.survival)
        if covers == "everything":
            reasons.append(beside.format(f'task = "survival": {of_survival.EXACT_SUMS}'))
    elif task == "roc-glm":
        reasons += of_roc_glm.unstated(config.roc_glm)
        if covers == "everything" and config.roc_glm.release == "noisy-scores":
            reasons.append(beside.format(of_roc_glm.EXACT_SUMS))
    else:
        reasons.append(
            f'task = "{task}": at most its leaf weights have noise (vertical-xgboost.dp-epsilon), '
            "and rows at splits and sums go to others without"
        )
    return reasons


def within_site_limits(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Handle a message that the site's limits let through (a ClientApp mod)."""
    kind = message.metadata.message_type
    try:
        _refuse_other_task(kind, context)
        limits = read_limits(context.node_config)
        if limits.any:
            refuse_run(limits, _checked_run(context))
            _pin_configuration(context)
        if kind == HELLO and limits.max_epsilon is not None:
            from fedapp.site_ledger import tell_of_a_new_ledger

            tell_of_a_new_ledger(Path(limits.state_dir).expanduser().absolute())
    except SiteFault as fault:
        return _refusal(message, context, fault)
    except Exception as error:
        log(ERROR, "the site's limits could not be checked", exc_info=error)
        words = f"{type(error).__name__} while checking the site's limits; its log says more"
        return _refusal(message, context, SiteFault("internal", words))
    return call_next(message, context)


def site_budget(
    node_config: Mapping[str, object], run_id: int, config: run_config.RunConfig
) -> SiteBudget | None:
    """What a run may spend at a node; None where the node sets no maximum."""
    return read_limits(node_config).budget(run_id, config)


def config_digest(values: Mapping[str, object]) -> str:
    """SHA-256 of a flat configuration."""
    return hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()


def _refuse_other_task(kind: str, context: Context) -> None:
    """Refuse a message of another task than the run's: its settings would be defaults."""
    task = context.run_config.get("task", run_config.GeneralConfig().task)
    asked = next((of for begin, of in _TASK_OF.items() if kind.startswith(begin)), None)
    if kind != HELLO and asked is not None and asked != task:
        raise SiteFault("other-task", f'{kind}: no message of a run of task = "{task}"')


def _checked_run(context: Context) -> run_config.RunConfig:
    try:
        return run_config.read(context.run_config)
    except run_config.ConfigError as error:
        raise SiteFault("bad-configuration", *error.faults) from None


def _pin_configuration(context: Context) -> None:
    """Refuse another configuration of the run than its first message had."""
    digest = config_digest(context.run_config)
    known = context.state.config_records.get(_PINNED)
    if known is not None and known["run-config"] != digest:
        raise SiteFault(
            SITE_LIMIT, "another run configuration than the first message of this run had"
        )
    context.state[_PINNED] = ConfigRecord({"run-config": digest})


def _refusal(message: Message, context: Context, fault: SiteFault) -> Message:
    if message.metadata.message_type == HELLO:
        from fedapp.site_data import site_name

        try:
            name = site_name(context.node_config)
        except SiteFault:
            name = ""
        reply = HelloReply(name, code_fingerprint(), fault.code, list(fault.reasons))
        return Message(reply.to_record(), reply_to=message)
    return Message(Error(SITE_FAULT_CODE, f"{fault.code}: {fault}"), reply_to=message)


def _tasks(rest: Mapping[str, object], faults: list[str]) -> tuple[str, ...]:
    if "allowed-tasks" not in rest:
        return ()
    named = [part.strip() for part in str(rest["allowed-tasks"]).split(",") if part.strip()]
    known = ", ".join(run_config.TASK_CONFIGS)
    key = 'node config "allowed-tasks"'
    if not named:
        faults.append(f"{key}: names no task; must be some of {known}")
    faults += [
        f'{key}: "{name}" is no task; must be some of {known}'
        for name in named
        if name not in run_config.TASK_CONFIGS
    ]
    return tuple(named)


def _check_budget(
    node_config: Mapping[str, object], rest: Mapping[str, object], faults: list[str]
) -> None:
    ranges: dict[str, tuple[Callable[[float], bool], str]] = {
        "max-epsilon": (lambda value: 0 < value < float("inf"), "a finite number above 0"),
        "max-delta": (lambda value: 0 < value < 1, "between 0 and 1, both excluded"),
    }
    for key, (fits, allowed) in ranges.items():
        if key in rest and not fits(cast(float, rest[key])):
            faults.append(f'node config "{key}" = {rest[key]!r}: must be {allowed}')
    if "max-epsilon" in node_config:
        folder = str(rest.get("state-dir", "-")).strip()  # of another type: said before
        if "state-dir" not in node_config or not folder:
            faults.append(
                'node config "max-epsilon": needs "state-dir", where the site keeps its ledger'
            )
        faults += ledger_folder_faults(folder, str(rest.get("data-path", "")).strip())
        return
    faults += [
        f'node config "{key}": needs "max-epsilon"; alone it limits nothing'
        for key in ("max-delta", "epsilon-covers")
        if key in node_config
    ]


def _level_faults(least: int, config: run_config.RunConfig) -> list[str]:
    task, vertical = config.general.task, config.vertical_xgboost
    level, key = {
        "survival": (config.survival.privacy_level, "survival.privacy-level"),
        "roc-glm": (config.roc_glm.privacy_level, "roc-glm.privacy-level"),
        _VERTICAL: (vertical.min_instances, f"{_VERTICAL}.min-instances"),
    }[task]
    asks = f'node config "min-privacy-level" = {least}'
    grows = task != _VERTICAL or vertical.mode == "train"  # the others make no splits
    faults = [f"{key} = {level}: {asks}"] if grows and level < least else []
    if task == "roc-glm" and config.roc_glm.release == "exact" and least > 1:
        faults.append(f"roc-glm.release = 'exact': tells every score by itself, and {asks}")
    by_class = config.roc_glm.privacy_level_of == "class"
    if task == "roc-glm" and by_class and least > 1:
        faults += _repeated_sum_faults(config, asks)
    if task == "roc-glm" and config.roc_glm.release == "binned" and by_class and least > 1:
        # With many cells, every score once more.
        faults.append(
            "roc-glm.privacy-level-of = 'class' with release = 'binned': tells cells of single "
            f"rows, and {asks}; 'cell' is allowed"
        )
    return faults


def _repeated_sum_faults(config: run_config.RunConfig, asks: str) -> list[str]:
    """Refuse a masked sum that a server may have repeated without one site: less it, its cells."""
    roc_glm = config.roc_glm
    if roc_glm.release != "secure-counts" or roc_glm.drop_outs == "error":
        return []
    return [
        f"roc-glm.drop-outs = '{roc_glm.drop_outs}' with privacy-level-of = 'class': the server "
        f"may read a site's cells of single rows by subtraction, and {asks}; 'error' is allowed, "
        "and so is 'cell'"
    ]
