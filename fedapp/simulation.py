"""Run a task in this process: no Ray, no server. For tests, notebooks and small studies.

The same ServerApp, strategies and ClientApp run as under ``flwr run``; only the Grid is another
one. With the same seed, and no privatization, the result is the same to the last bit.
"""

from __future__ import annotations

import copy
import itertools
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedapp import run_config
from fedapp.run_folder import RunFolder
from fedapp.stopping import terminated_by_exception
from tasks.site.faults import SiteFault
from tasks.site.name_lists import lines_by_words

CLIENT_APP_RAISED = 2
"""Flower's code of an exception in a ClientApp."""

VERTICAL_PARTIES = 4
"""Parties that share bundled data of the vertical task, unless told otherwise."""

NodeConfig = Mapping[str, bool | int | float | str]


class InProcessGrid(Grid):
    """A Grid whose nodes are Contexts in this process.

    Parameters
    ----------
    client_app : ClientApp
        What every node runs.
    node_configs : sequence of mapping
        One a node, as ``--node-config`` of a SuperNode.
    run_config : mapping
        The run configuration that nodes see.

    Notes
    -----
    A message is handled when it is sent, one node after the other. As in a deployment, messages
    are copied both ways, and a node's state is what the ClientApp has left, also where that raised
    or answered with an error.
    """

    def __init__(
        self,
        client_app: ClientApp,
        node_configs: Sequence[NodeConfig],
        run_config: Mapping[str, bool | int | float | str],
    ) -> None:
        self.client_app = client_app
        run_id = secrets.randbits(62)
        self._run = Run.create_empty(run_id)
        self._run.primary_task_type = TaskType.SIMULATION
        self.contexts = {
            node_id: Context(
                run_id=run_id,
                node_id=node_id,
                node_config=dict(node_config),
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for node_id, node_config in enumerate(node_configs, start=1)
        }
        self._replies: dict[str, Message] = {}
        self._ids = itertools.count(1)
        _become_server(run_id)

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message (Flower's older way)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let every addressed node handle its message."""
        message_ids = []
        for message in messages:
            message_id = f"message-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = message_id
            self._replies[message_id] = self._handle(copy.deepcopy(message))
            message_ids.append(message_id)
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages; each is given out once."""
        return [self._replies.pop(key) for key in list(message_ids) if key in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return all replies."""
        return self.pull_messages(self.push_messages(messages))

    def _handle(self, message: Message) -> Message:
        context = self.contexts.get(message.metadata.dst_node_id)
        if context is None:
            return Message(Error(CLIENT_APP_RAISED, "no such node"), reply_to=message)
        try:
            reply = copy.deepcopy(self.client_app(message, context))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(CLIENT_APP_RAISED, reason), reply_to=message)
        reply.metadata.__dict__["_message_id"] = f"reply-{next(self._ids)}"
        return reply


def _become_server(run_id: int) -> None:
    """Set what Flower wants to know of the process before it lets a message be built."""
    TaskIdentity.run_id = run_id
    TaskIdentity.task_id = 0
    TaskIdentity.node_id = 0


@dataclass(frozen=True)
class SimulationResult:
    """What a simulated run gave.

    Attributes
    ----------
    summary : dict
        Plain numbers and strings, keys kebab-case: the last line of ``metrics.jsonl``.
    ledger : list of dict
        Every message, and what it carries sealed: exchange, step, sender, receiver, bytes, sealed,
        reveals, protection, parts, seconds, site-seconds, as :mod:`strategies.ledger` explains.
    exchanges : int
        Server-to-nodes-and-back exchanges.
    run_folder : Path
        Absolute path of the run folder.
    predictions : DataFrame or None
        Vertical XGBoost: columns ``id`` and ``margin`` of all rows.
    """

    summary: dict[str, Any]
    ledger: list[dict[str, Any]]
    exchanges: int
    run_folder: Path
    predictions: pd.DataFrame | None = None


def simulate(
    task: str,
    *,
    sites: Sequence[pd.DataFrame] | None = None,
    config: Mapping[str, bool | int | float | str] | None = None,
    seed: int = 0,
    backend: Literal["in-process", "ray"] = "in-process",
    num_sites: int | None = None,
    site_names: Sequence[str] | None = None,
) -> SimulationResult:
    """Run a task over simulated sites and return its result.

    Parameters
    ----------
    task : str
        ``"survival"``, ``"roc-glm"`` or ``"vertical-xgboost"``.
    sites : sequence of DataFrame, optional
        One a site; None: the data of the configuration (the task's bundled data set by default)
        dealt to `num_sites` sites.
    config : mapping, optional
        Keys of the run configuration that differ from their defaults; ``fedapp config`` lists
        them. ``report`` is false here unless given, since figures take longer than small runs.
    seed : int
        Seed of partitions, initial models and batches.
    backend : {"in-process", "ray"}
        ``"ray"`` writes the frames to files and calls the real ``flwr run``.
    num_sites : int, optional
        How many sites share the data of the configuration; default its ``num-sites``, or 4
        parties for ``vertical-xgboost``.
        Of `sites` there are as many as are given.
    site_names : sequence of str, optional
        Names of `sites`; default ``site-0``, ``site-1``, ...

    Returns
    -------
    SimulationResult
        Also when the run was refused or its result does not exist: ``summary["status"]`` is
        ``"ok"``, ``"not-estimable"`` or ``"refused"``, the latter two with ``"reason"``.

    Raises
    ------
    fedapp.run_config.ConfigError
        If the configuration is not usable.
    TypeError
        If `sites` is no list of DataFrames or `config` no mapping.
    ValueError
        If arguments do not fit together.
    """
    _refuse_types(sites, config)
    _refuse_misfits(config or {}, sites, task=task, seed=seed, num_sites=num_sites)
    if sites is not None:
        num_sites = len(sites)
    elif num_sites is None and task == "vertical-xgboost" and "num-sites" not in (config or {}):
        num_sites = VERTICAL_PARTIES
    values = {"report": False, **(config or {}), "task": task, "seed": seed}
    if num_sites is not None:
        values["num-sites"] = num_sites
    values = {key: v.item() if isinstance(v, np.generic) else v for key, v in values.items()}
    general = run_config.read(values).general
    full = {**run_config.defaults(), **values}
    if backend == "ray":
        from fedapp import flower_run

        if site_names is not None:
            raise ValueError("site_names: only with backend 'in-process'; Ray's are site-0, ...")
        folder = flower_run.simulate_with_ray(full, sites=sites, num_sites=general.num_sites)
    elif backend == "in-process":
        folder = _run_in_process(full, general, sites, _names(site_names, sites))
    else:
        raise ValueError(f"backend = {backend!r}: must be 'in-process' or 'ray'")
    return read_result(folder)


def read_result(folder: Path) -> SimulationResult:
    """Read what a finished run left in its folder."""
    record = RunFolder.open(folder).read()
    predictions = folder / "predictions.parquet"
    return SimulationResult(
        summary=record.summary,
        ledger=[dict(row) for row in record.ledger],
        exchanges=max((row["exchange"] for row in record.ledger), default=0),
        run_folder=folder,
        predictions=pd.read_parquet(predictions) if predictions.is_file() else None,
    )


def _refuse_types(sites: object, config: object) -> None:
    allowed = "must be a list of DataFrames, one a site"
    faults = []
    if sites is not None:
        if not isinstance(sites, list | tuple):
            faults.append(f"sites: {allowed}, not a {type(sites).__name__}")
        elif others := {type(site).__name__ for site in sites if not _is_frame(site)}:
            faults.append(f"sites: {allowed}; it holds {', '.join(sorted(others))}")
    if config is not None and not isinstance(config, Mapping):
        allowed = "must be a mapping of keys to values, as {'survival.rounds': 20}"
        faults.append(f"config: {allowed}, not a {type(config).__name__}")
    if faults:
        raise TypeError("; ".join(faults))


def _is_frame(site: object) -> bool:
    return isinstance(site, pd.DataFrame)


def _refuse_misfits(
    config: Mapping[str, object],
    sites: Sequence[pd.DataFrame] | None,
    *,
    task: str,
    seed: int,
    num_sites: int | None,
) -> None:
    faults = [
        f"config[{key!r}] = {config[key]!r}: the argument {key} is {argument!r}; give one of them"
        for key, argument in (("task", task), ("seed", seed))
        if config.get(key, argument) != argument
    ]
    if sites is not None and f"{task}.data" in config:
        faults.append(f"config['{task}.data']: the argument sites is given; give one of them")
    if sites is not None and not len(sites):
        faults.append("sites: empty; give one DataFrame a site")
    elif sites is not None and num_sites not in (None, len(sites)):
        faults.append(f"num_sites = {num_sites!r}: sites has {len(sites)} DataFrames")
    if faults:
        raise ValueError("; ".join(faults))


def _names(given: Sequence[str] | None, sites: Sequence[pd.DataFrame] | None) -> list[str]:
    """Return one name a frame."""
    count = 0 if sites is None else len(sites)
    if given is None:
        return [f"site-{part}" for part in range(count)]
    if isinstance(given, str) or len(given) != count:
        raise ValueError(f"site_names = {given!r}: must be one name for each of {count} sites")
    return list(given)


def _run_in_process(
    values: Mapping[str, run_config.Value],
    general: run_config.GeneralConfig,
    sites: Sequence[pd.DataFrame] | None,
    names: Sequence[str],
) -> Path:
    from fedapp import client_app, prepared_sites, server_app, site_data

    nodes: list[NodeConfig] = []
    registered: list[str] = []
    said: list[tuple[str, str]] = []
    try:
        if sites is None:
            count = general.num_sites
            nodes += [{"partition-id": part, "num-partitions": count} for part in range(count)]
        for name, frame in zip(names, () if sites is None else sites, strict=True):
            try:
                registered.append(site_data.register_frame(frame))
            except SiteFault as fault:
                said += [(name, reason) for reason in fault.reasons]
            else:
                path = f"{site_data.MEMORY_PREFIX}{registered[-1]}"
                nodes.append({"site-name": name, "data-path": path})
        faults = lines_by_words(said)
        if not faults and len(nodes) < general.min_sites:  # nobody else will come
            least = f"must be at least min-sites = {general.min_sites}"
            faults.append(f"num-sites = {len(nodes)}: {least}")
        grid = InProcessGrid(client_app.app, nodes, values)
        with terminated_by_exception():
            return server_app.run_task(
                grid,
                values,
                started=time.time(),
                site_faults=faults,
                own_frames=sites is not None,
            )
    finally:
        for key in registered:
            site_data.forget_frame(key)
        prepared_sites.forget_sites()
