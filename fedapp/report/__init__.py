"""The report of a run: figures and one HTML page, made from the files of its run folder alone.

What every task has is in `head` and `general_sections`; what belongs to one task is in the module
of its name, entered in `REPORTS`. Here they are put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from fedapp.report import roc_glm, survival, vertical_prediction, vertical_xgboost
from fedapp.report.costs import cost_section
from fedapp.report.general_sections import configuration_section, disclosure_section, sites_section
from fedapp.report.head import facts_of, general_numbers, notices_of, status_words
from fedapp.report.ledger import sum_flows
from fedapp.report.page import KeyNumber, Notice, Page, Section, render
from fedapp.run_folder import RunFolder
from fedapp.run_record import CONFIG, LEDGER, METRICS, STATUS, RunFolderError, RunRecord
from fedapp.strict_json import replace_bytes

REPORT = "report.html"


class TaskReport(Protocol):
    """What the report module of a task offers; `fedapp.report.survival` is one."""

    TITLE: str
    CURVES: str

    def key_numbers(self, run: RunRecord) -> list[KeyNumber]:
        """Return key numbers: the result first, the state of privacy last."""

    def notices(self, run: RunRecord) -> list[Notice]:
        """Return lines that readers must not miss."""

    def site_columns(self, run: RunRecord) -> dict[str, dict[str, str]]:
        """Return further columns of the table of sites: head to site to cell."""

    def sections(
        self, run: RunRecord, *, curves: Mapping[str, Any] | None, folder: Path
    ) -> list[Section]:
        """Draw the task's figures into `folder`; return its sections."""


REPORTS: dict[str, TaskReport] = {
    "survival": survival,
    "roc-glm": roc_glm,
    "vertical-xgboost": vertical_xgboost,
}
"""The report module of each task; a task without one gets the general parts."""

_UNREADABLE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What code raises that meets other data than it was written for."""


def write_report(run_folder: Path) -> Path:
    """Make figures and ``report.html`` of a run, from nothing but the files it left.

    Parameters
    ----------
    run_folder : Path
        Folder of the run; figures of an earlier report are replaced.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    fedapp.run_record.RunFolderError
        The folder is not a run folder, or a file in it cannot be read.
    """
    folder = RunFolder.open(run_folder)
    run = folder.read()
    try:
        return _write(folder, run)
    except _UNREADABLE as error:
        # Every key cannot be checked beforehand: new tasks write new ones.
        culprit = _culprit(folder, run)
        words = f"holds what no run writes ({type(error).__name__}: {error})"
        raise RunFolderError(f"{folder.path}: {culprit} {words}") from error


def _report_of(run: RunRecord) -> TaskReport | None:
    if run.task == "vertical-xgboost" and vertical_prediction.is_use(run):
        return vertical_prediction
    return REPORTS.get(run.task)


def _culprit(folder: RunFolder, run: RunRecord) -> str:
    """Name the file that a report cannot be made of: the curves, if it can be without them."""
    task = _report_of(run)
    others = f"one of {CONFIG}, {STATUS}, {METRICS} and {LEDGER}"
    if task is None or not (folder.path / task.CURVES).is_file():
        return others
    try:
        task.sections(run, curves=None, folder=folder.figures)
    except _UNREADABLE:
        return others
    return task.CURVES


def _write(folder: RunFolder, run: RunRecord) -> Path:
    folder.figures.mkdir(exist_ok=True)
    task = _report_of(run)
    flows = sum_flows(run.ledger)
    numbers, costs = task.key_numbers(run) if task else [], cost_section(run.ledger)
    status, kind = status_words(run)
    page = Page(
        title=task.TITLE if task else f"Federated run: {run.task or 'unknown task'}",
        name=folder.path.name,
        facts=facts_of(run),
        status=status,
        status_kind=kind,
        notices=[*notices_of(run), *(task.notices(run) if task else [])],
        key_numbers=[*numbers[:1], *general_numbers(run, flows), *numbers[1:]],
        sections=[
            *(_task_sections(task, run, folder) if task else []),
            sites_section(run, task.site_columns(run) if task else {}),
            *([costs] if costs else []),
            disclosure_section(flows, folder.figures),
            configuration_section(run),
        ],
    )
    return replace_bytes(folder.path / REPORT, render(page).encode())


def _task_sections(task: TaskReport, run: RunRecord, folder: RunFolder) -> list[Section]:
    return task.sections(run, curves=folder.read_json(task.CURVES), folder=folder.figures)
