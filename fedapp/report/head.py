"""The head of a report: how the run ended, its numbers, and what readers must not miss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from fedapp.prior_runs import read_prior
from fedapp.report.ledger import (
    Flow,
    format_bytes,
    site_traffic,
    volume_of,
)
from fedapp.report.page import KeyNumber, Notice
from fedapp.report.summary_items import items_of
from fedapp.run_record import RunRecord
from tasks.site.name_lists import lines_by_words, some_names

_STATUS_WORDS = {
    "running": ("not finished", "warning"),
    "ok": ("finished", "good"),
    "not-estimable": ("not estimable", "warning"),
    "refused": ("refused", "failure"),
    "failed": ("failed", "failure"),
}


def status_words(run: RunRecord) -> tuple[str, str]:
    """Return the status of a run in words, and the kind of notice that it is."""
    return _STATUS_WORDS.get(str(run.status.get("status")), ("unknown", "warning"))


def facts_of(run: RunRecord) -> list[str]:
    """Return name, beginning, runtime and code of a run."""
    started = _moment(run.status.get("started"))
    facts = [
        run.path.name,
        f"{started:%d %B %Y, %H:%M} UTC".lstrip("0") if started else "",
        str(run.config.get("runtime", "")),
        f"fedapp {run.config.get('versions', {}).get('fedapp', '')}",
    ]
    return [fact for fact in facts if fact]


def notices_of(run: RunRecord) -> list[Notice]:
    """Return how a run ended, from which it goes on, what went wrong and who was left out."""
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
    faults = [_line(item) for item in items_of(run, "faults")]
    found += [Notice("warning", f"Fault: {line}") for line in _grouped(faults)]
    if excluded := [_line(item) for item in items_of(run, "excluded")]:
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


def _line(item: object) -> str:
    """Write a fault as a line, whether it was recorded as text, a list or a mapping."""
    if isinstance(item, Mapping):
        return ", ".join(f"{key} {_line(value)}" for key, value in item.items())
    if isinstance(item, list):
        return "; ".join(_line(part) for part in item)
    return str(item)


def general_numbers(run: RunRecord, flows: Sequence[Flow]) -> list[KeyNumber]:
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
