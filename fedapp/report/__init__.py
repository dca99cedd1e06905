"""The report of a run: figures and one HTML page, made from the files of its run folder alone.

The parts that every task has (status, sites, disclosure ledger, configuration, versions) are put
together here; what belongs to one task is in the module of its name, entered in `REPORTS`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from fedapp.prior_runs import read_prior
from fedapp.report import figures, roc_glm, survival, vertical_prediction, vertical_xgboost
from fedapp.report.costs import cost_section
from fedapp.report.ledger import (
    Flow,
    format_bytes,
    format_ranges,
    site_traffic,
    sum_flows,
    volume_of,
)
from fedapp.report.page import Absent, Figure, KeyNumber, Notice, Page, Section, Table, render
from fedapp.run_folder import RunFolder
from fedapp.run_record import CONFIG, LEDGER, METRICS, STATUS, RunFolderError, RunRecord
from fedapp.strict_json import replace_bytes
from tasks.site.name_lists import lines_by_words, some_names

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

_STATUS_WORDS = {
    "running": ("not finished", "warning"),
    "ok": ("finished", "good"),
    "not-estimable": ("not estimable", "warning"),
    "refused": ("refused", "failure"),
    "failed": ("failed", "failure"),
}


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
    status, kind = _STATUS_WORDS.get(str(run.status.get("status")), ("unknown", "warning"))
    page = Page(
        title=task.TITLE if task else f"Federated run: {run.task or 'unknown task'}",
        name=folder.path.name,
        facts=_facts(run),
        status=status,
        status_kind=kind,
        notices=[*_notices(run), *(task.notices(run) if task else [])],
        key_numbers=[*numbers[:1], *_key_numbers(run, flows), *numbers[1:]],
        sections=[
            *(_task_sections(task, run, folder) if task else []),
            _sites(run, task.site_columns(run) if task else {}),
            *([costs] if costs else []),
            _disclosure(flows, folder.figures),
            _configuration(run),
        ],
    )
    return replace_bytes(folder.path / REPORT, render(page).encode())


def _task_sections(task: TaskReport, run: RunRecord, folder: RunFolder) -> list[Section]:
    return task.sections(run, curves=folder.read_json(task.CURVES), folder=folder.figures)


# Head of the page


def _facts(run: RunRecord) -> list[str]:
    started = _moment(run.status.get("started"))
    facts = [
        run.path.name,
        f"{started:%d %B %Y, %H:%M} UTC".lstrip("0") if started else "",
        str(run.config.get("runtime", "")),
        f"fedapp {run.config.get('versions', {}).get('fedapp', '')}",
    ]
    return [fact for fact in facts if fact]


def _notices(run: RunRecord) -> list[Notice]:
    status = run.status.get("status")
    reason = str(run.status.get("reason") or "")
    found = []
    if status == "running":
        abandoned = run.abandoned[:1].upper() + run.abandoned[1:]
        words = f"{abandoned}." if abandoned else "The run has not finished yet."
        found.append(Notice("failure" if abandoned else "warning", words))
    elif status != "ok":
        words, kind = _STATUS_WORDS.get(str(status), ("unknown status", "failure"))
        found.append(Notice(kind, f"{words.capitalize()}: {reason or 'no reason was recorded'}"))
    elif reason:
        found.append(Notice("note", reason))
    if words := _what_was_before(run):
        found.append(Notice("note", words))
    if run.setting(f"{run.task}.privacy-level") == 1:
        words = "privacy-level is 1: sums over a single row may have left a site."
        found.append(Notice("warning", words))
    faults = [_line(item) for item in _items(run, "faults")]
    found += [Notice("warning", f"Fault: {line}") for line in _grouped(faults)]
    if excluded := [_line(item) for item in _items(run, "excluded")]:
        found.append(Notice("warning", f"Excluded: {some_names(excluded)}"))
    return found


def _what_was_before(run: RunRecord) -> str:
    """Say from which run this one goes on; ``""`` if it began anew."""
    if not run.setting("resume"):
        return ""
    prior = read_prior(run.path)
    if prior is None:  # refused before it took over
        return ""
    volume = format_bytes(prior.bytes)
    exchanges = max((row["exchange"] for row in run.ledger), default=0)
    total = format_bytes(prior.bytes + sum(r["bytes"] for r in run.ledger if not r["sealed"]))
    return (
        f"This run goes on from {prior.folder} after round {prior.round}. Before it, "
        f"{prior.exchanges} exchanges of {volume} were made (earlier-ledger.jsonl), with it "
        f"{prior.exchanges + exchanges} of {total}. The ledger and the volumes below are of this "
        "run alone; its rounds are those of both."
    )


def _grouped(faults: Sequence[str]) -> list[str]:
    """Return one line for all sites with the same fault (``site: step: reason``)."""
    parts = [fault.partition(": ") for fault in faults]
    named = lines_by_words((site, words) for site, _, words in parts if words)
    return [*named, *dict.fromkeys(fault for fault, _, words in parts if not words)]


def _items(run: RunRecord, key: str) -> Sequence[Any]:
    items = run.summary.get(key, [])
    return items if isinstance(items, list) else [items]


def _line(item: object) -> str:
    """Write a fault as a line, whether it was recorded as text, a list or a mapping."""
    if isinstance(item, Mapping):
        return ", ".join(f"{key} {_line(value)}" for key, value in item.items())
    if isinstance(item, list):
        return "; ".join(_line(part) for part in item)
    return str(item)


def _key_numbers(run: RunRecord, flows: Sequence[Flow]) -> list[KeyNumber]:
    """Return sites, rounds, exchanges, volume and runtime."""
    traffic = site_traffic(run.ledger)
    exchanges = max((row["exchange"] for row in run.ledger), default=0)
    volume = run.summary.get("bytes", volume_of(flows))
    started, finished = _moment(run.status.get("started")), _moment(run.status.get("finished"))
    elapsed = (finished - started).total_seconds() if started and finished else None
    last = max((int(line.get("round", 0)) for line in run.rounds), default=0)
    rounds = run.summary.get("rounds", last)
    return [
        KeyNumber("Sites", str(run.summary.get("n-sites", len(traffic)))),
        *([KeyNumber("Rounds", str(rounds))] if rounds else []),
        KeyNumber("Exchanges", str(run.summary.get("exchanges", exchanges))),
        KeyNumber("Data volume", format_bytes(int(volume))),
        KeyNumber("Runtime", format_duration(elapsed) if elapsed is not None else "–"),
    ]


def format_duration(seconds: float) -> str:
    """Write a duration: ``"0.41 s"``, ``"12.3 s"``, ``"3 min 05 s"``, ``"2 h 10 min"``."""
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def _moment(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


# Sections that every task has


def _sites(run: RunRecord, added: Mapping[str, Mapping[str, str]]) -> Section:
    """Return the table of sites: what they told of themselves, what the task adds, traffic."""
    traffic = site_traffic(run.ledger)
    told = {str(entry.get("site", "")): entry for entry in _items(run, "sites")}
    names = list(dict.fromkeys([*told, *traffic]))
    if not names:
        return Section("Sites", paragraphs=["No site took part before the run ended."])
    keys = dict.fromkeys(key for entry in told.values() for key in entry if key != "site")
    rows = [
        [
            name,
            *(_cell(told.get(name, {}).get(key)) for key in keys),
            *(column.get(name, "") for column in added.values()),
            *(format_bytes(volume) for volume in traffic.get(name, (0, 0))),
        ]
        for name in names
    ]
    heads = [*(key.replace("-", " ") for key in keys), *added, "sent", "received"]
    columns = {"site": "short", **dict.fromkeys(heads, "number")}
    return Section("Sites", tables=[Table(columns, rows, caption="Sites that took part")])


def _cell(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\u202f")
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _disclosure(flows: Sequence[Flow], folder: Path) -> Section:
    title, name = "Disclosure ledger", "bytes-by-step"
    messages = [flow for flow in flows if not flow.sealed]
    if not messages:
        figures.discard(folder, name)
        return Section(title, figures=[Absent("The ledger is empty: nothing was exchanged.")])
    steps = len({flow.step for flow in messages})
    svg = figures.draw(
        folder, name, lambda axes: figures.bytes_by_step(axes, messages), height=0.9 + 0.36 * steps
    )
    total = format_bytes(volume_of(flows))
    figure = Figure(
        name=name,
        svg=svg,
        alt=f"Bytes by step and direction; {total} in all.",
        caption=f"Volume of all messages of a step; {total} in all.",
    )
    words = (
        "Every message of the run, summed by step and direction. Masked values can be read as "
        "sums over sites only, ciphertexts by whoever has the key, what is in clear by the "
        "receiver of the message."
    )
    if len(messages) < len(flows):
        words += (
            " Rows from site to site are what one site sealed for another: it travels within the "
            "messages, so its volume is counted with theirs, and the server sees its size only."
        )
    return Section(title, paragraphs=[words], figures=[figure], tables=[_flow_table(flows)])


def _flow_table(flows: Sequence[Flow]) -> Table:
    columns = {
        "step": "short",
        "direction": "short",
        "reveals to the receiver": "text",
        "protection": "text",
        "exchanges": "number",
        "messages": "number",
        "volume": "number",
    }
    rows = [
        [
            flow.step,
            flow.direction,
            "; ".join(flow.reveals),
            flow.protection_words,
            format_ranges(flow.exchanges),
            f"{_cell(flow.messages)} parts" if flow.sealed else _cell(flow.messages),
            format_bytes(flow.bytes),
        ]
        for flow in flows
    ]
    return Table(columns, rows, caption="Messages by step and direction")


def _configuration(run: RunRecord) -> Section:
    settings = run.config.get("config", {})
    defaults, meanings = run.config.get("defaults", {}), run.config.get("meanings", {})
    changed = [key in defaults and defaults[key] != value for key, value in settings.items()]
    rows = [
        [
            key,
            _setting(value),
            f"changed, default {_setting(defaults[key])}" if differs else "",
            str(meanings.get(key, "")),
        ]
        for (key, value), differs in zip(settings.items(), changed, strict=True)
    ]
    columns = {"key": "short", "value": "text", "": "short", "meaning": "text"}
    marked = frozenset(index for index, differs in enumerate(changed) if differs)
    caption = f"{sum(changed)} of {len(rows)} keys differ from their defaults"
    versions = dict(run.config.get("versions", {}))
    seed = run.config.get("seed")
    if "seed" in run.config:
        versions["seed"] = "none (operating system)" if seed is None else str(seed)
    about = [[name, str(version)] for name, version in versions.items()]
    return Section(
        "Configuration and versions",
        paragraphs=[] if rows else ["The run ended before its configuration was complete."],
        tables=[
            *([Table(columns, rows, caption=caption, marked=marked)] if rows else []),
            Table({"what": "short", "version": "short"}, about, caption="Versions and seed"),
        ],
    )


def _setting(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
