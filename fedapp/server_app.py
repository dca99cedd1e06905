"""The ServerApp: check the run configuration, run the task's strategy, leave a run folder."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib import import_module
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any, Protocol, cast

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

from fedapp import run_config
from fedapp.checkpoint import remove_checkpoint
from fedapp.flower_run import RUN_FOLDER_LINE, RUN_STATUS_LINE
from fedapp.hosted_sites import with_hosted_sites
from fedapp.prior_runs import totals
from fedapp.resumption import OWN_FRAMES, resume_faults
from fedapp.run_config import RunConfig, Value
from fedapp.run_folder import RunFolder
from fedapp.run_record import STATUS, RunFolderError, read_document
from fedapp.stopping import told_when_flower_leaves
from strategies.exchange import Disclosure, Exchange, TooFewSites
from strategies.membership import Refused
from strategies.patience import SilentRuntime
from tasks.site.faults import SiteFault
from tasks.site.foreign_text import printable
from tasks.site.not_estimable import NotEstimable

app = ServerApp()

TASKS = {
    "survival": "fedapp.survival_run",
    "roc-glm": "fedapp.roc_glm_run",
    "vertical-xgboost": "fedapp.vertical_run",
}
"""Module of a task, imported when it runs: torch alone takes seconds and 200 MB.

Its ``run`` runs the task over an Exchange, writes its files and returns the summary; one with a
``status`` of its own says that some number does not exist, and in ``reason`` why. Its
``disclosures`` are the ledger words of the task's messages under a configuration.
"""


class TaskModule(Protocol):
    """What the module of a task has."""

    def run(self, exchange: Exchange, config: RunConfig, folder: RunFolder) -> dict[str, Any]:
        """Run the task, write its files, return the summary."""

    def disclosures(self, config: RunConfig) -> Mapping[str, Disclosure]:
        """Return the ledger words of its messages."""


def task_module(task: str) -> TaskModule:
    """Import the module of a task."""
    return cast(TaskModule, import_module(TASKS[task]))


IN_PROCESS = "in-process"


_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)

UNPROTECTED = "sums over a single row may leave a site"
"""What a privacy level of 1 means."""


class RunEnded(RuntimeError):
    """The run has no result; Flower then shows it as failed."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the task that the run configuration names."""
    try:
        folder = run_task(grid, context.run_config, started=time.time())
    except RunFolderError as error:
        raise RunEnded(f"run-dir: {error}") from None
    status = read_document(folder / STATUS)
    said = ": ".join(filter(None, [str(status["status"]), str(status.get("reason", ""))]))
    log(INFO, "%s%s", RUN_STATUS_LINE, printable(said, longest=None))
    if status["status"] != "ok":
        log(INFO, "Flower marks the run as failed; what follows is its own trace")
        raise RunEnded(f"{status['status']}: {status.get('reason', '')}") from None


def run_task(
    grid: Grid,
    values: Mapping[str, Value],
    *,
    started: float,
    site_faults: Sequence[str] = (),
    own_frames: bool = False,
) -> Path:
    """Run a task to its end and return its run folder.

    Whatever happens is in the folder's ``status.json``: ``ok``, ``not-estimable``, ``refused``
    (configuration, sites or data do not allow the run) or ``failed``.

    Parameters
    ----------
    grid : Grid
        Of any runtime.
    values : mapping
        The run configuration, flat.
    started : float
        Unix time at which the run began.
    site_faults : sequence of str
        What is known to be wrong with the sites before they are asked; the run is then refused.
    own_frames : bool
        The sites have frames of the caller; ``config.json`` then says so in place of a data set.
    """
    faults, config = _checked(values)
    folder = RunFolder.create(Path(config.general.run_dir), task=config.general.task)
    # Printed before anything else can fail: whoever called finds the folder by this line.
    log(INFO, "%s%s", RUN_FOLDER_LINE, folder.path)
    if faults:
        return _end(folder, "refused", "; ".join(faults), {}, None, started)
    chosen, chosen_runtime = config.flat(), _runtime(grid)
    if own_frames:
        chosen[f"{config.general.task}.data"] = OWN_FRAMES
    with _early_stop_told(folder, started):
        folder.write_config(
            chosen,
            seed=config.general.seed,
            runtime=chosen_runtime,
            defaults=run_config.defaults(),
            meanings={key.name: key.meaning for key in run_config.all_keys()},
        )
        if chosen.get(f"{config.general.task}.privacy-level") == 1:
            log(WARNING, "%s.privacy-level = 1: %s", config.general.task, UNPROTECTED)
        if unfit := [*site_faults, *resume_faults(chosen)]:
            return _end(folder, "refused", "; ".join(unfit), {}, None, started)
        exchange = Exchange.around(
            with_hosted_sites(grid, config.general.num_sites),
            timeout=config.general.timeout,
            min_sites=config.general.min_sites,
            disclosures=task_module(config.general.task).disclosures(config),
        )
    # What was disclosed is written down at once: a run that is killed must not hide it.
    exchange.after_exchange = folder.append_ledger  # type: ignore[assignment]  # checked there
    ending = _Ending(folder, exchange, started)
    _run_to_its_end(ending, config, leaves_with_flower=chosen_runtime != IN_PROCESS)
    if config.general.report:
        from fedapp.report import write_report

        log(INFO, "report: %s", write_report(folder.path))
    log(INFO, "%s%s", RUN_FOLDER_LINE, folder.path)
    return folder.path


@contextmanager
def _early_stop_told(folder: RunFolder, started: float) -> Iterator[None]:
    """Write that a run was stopped while it was prepared: a task takes seconds to import."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        words = f"stopped ({type(error).__name__}) before the first exchange"
        _end(folder, "failed", words, {}, None, started)
        raise


def _run_to_its_end(ending: _Ending, config: RunConfig, *, leaves_with_flower: bool) -> None:
    """Run the task and write how it ended, whoever ends it."""
    exchange, status, reason = ending.exchange, "ok", ""
    summary: dict[str, Any] = {}
    with told_when_flower_leaves(ending.stopped) if leaves_with_flower else nullcontext():
        try:
            summary = task_module(config.general.task).run(exchange, config, ending.folder)
            status = summary.pop("status", "ok")
            if status != "ok":
                reason = ": ".join(str(summary[key]) for key in ("reason", "detail"))
        except BaseException as error:
            status, reason = _why(error, exchange)
            if isinstance(error, NotEstimable):
                summary = {"reason": error.reason, "detail": error.detail}
            if not isinstance(error, Exception):  # stopped by a person or the runtime
                ending.write(status, reason, summary)
                raise
        ending.write(status, reason, summary)


@dataclass
class _Ending:
    """Writes how a run ended, once: the first word counts.

    The lock is one that a signal's handler can take again in the thread which holds it. The run is
    marked as ended only when all is written, so that a handler completes what it interrupts.
    """

    folder: RunFolder
    exchange: Exchange
    started: float
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _is_written: bool = False

    def write(self, status: str, reason: str, summary: Mapping[str, Any]) -> None:
        """Write ledger, summary and status, unless that has been done."""
        with self._lock:
            if not self._is_written:
                _end(self.folder, status, reason, summary, self.exchange, self.started)
                self._is_written = True

    def stopped(self) -> None:
        """Write that the run was stopped from outside."""
        words = f"stopped from outside after {self.exchange.count} exchanges"
        self.write("failed", words, {})


def _why(error: BaseException, exchange: Exchange) -> tuple[str, str]:
    """Return status and reason of a run that ended so."""
    if isinstance(error, NotEstimable):
        return "not-estimable", str(error)
    if isinstance(error, Refused):
        return "refused", str(error)
    if isinstance(error, SiteFault):  # of masked sums and keys, in words that may be said
        return "failed", str(error)
    if isinstance(error, TooFewSites):
        begun = exchange.count > 1
        return "failed" if begun else "refused", str(error)
    if isinstance(error, SilentRuntime):
        return "failed", f"{error}, after {exchange.count} exchanges"
    if not isinstance(error, Exception):
        return "failed", f"stopped ({type(error).__name__}) after {exchange.count} exchanges"
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:  # a trace would not help
        return "failed", f"files of the run cannot be written ({error.strerror})"
    log(ERROR, "the run failed", exc_info=error)
    return "failed", f"{type(error).__name__}: {error}"


def _checked(values: Mapping[str, Value]) -> tuple[list[str], RunConfig]:
    """Return what is wrong with the configuration, and one to write the folder by."""
    try:
        return [], run_config.read(values)
    except run_config.ConfigError as error:
        try:
            kept = {"run-dir": values["run-dir"]} if "run-dir" in values else {}
            return error.faults, run_config.read(kept)
        except run_config.ConfigError:
            return error.faults, run_config.read({})


def _end(
    folder: RunFolder,
    status: str,
    reason: str,
    summary: Mapping[str, Any],
    exchange: Exchange | None,
    started: float,
) -> Path:
    """Write the end of a run; where that cannot be (the disk is full), at least say so.

    Raises
    ------
    RunFolderError
        If ledger or summary cannot be written: the run then has no result.
    """
    try:
        return _write_end(folder, status, reason, summary, exchange, started)
    except OSError as error:
        words = f"{folder.path} cannot be written to ({error.strerror or error})"
        log(ERROR, "%s; the run ended as %s: %s", words, status, reason or "with a result")
        with suppress(OSError):  # shorter than a summary, and in place of what is there: may fit
            folder.finish("failed", words)
        raise RunFolderError(words) from None


def _write_end(
    folder: RunFolder,
    status: str,
    reason: str,
    summary: Mapping[str, Any],
    exchange: Exchange | None,
    started: float,
) -> Path:
    common: dict[str, Any] = {"seconds": round(time.time() - started, 3)}
    if exchange is not None:
        folder.write_ledger(exchange.ledger)  # type: ignore[arg-type]  # checked when written
        common |= {
            "exchanges": exchange.count,
            "bytes": exchange.bytes_sent(),
            "faults": [str(fault) for fault in exchange.faults],
        }
        common |= totals(folder.path, exchanges=common["exchanges"], bytes_sent=common["bytes"])
        log(INFO, "%d exchanges, %d bytes", common["exchanges"], common["bytes"])
    if reason:
        common["reason"] = summary.get("reason", reason)
        log(ERROR, "%s: %s", status, reason)
    folder.finish(status, reason, {**summary, **common})
    if status == "ok":
        remove_checkpoint(folder.path)
    return folder.path


def _runtime(grid: Grid) -> str:
    from fedapp.simulation import InProcessGrid

    if isinstance(grid, InProcessGrid):
        return IN_PROCESS
    return str(grid.run.primary_task_type)
