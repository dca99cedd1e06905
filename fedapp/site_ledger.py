"""``fedapp site-ledger``: what a site has spent of its privacy, by run, and what is left."""

from __future__ import annotations

from logging import WARNING
from pathlib import Path
from typing import Any

from fedapp.site_limits import DEFAULT_MAX_DELTA
from tasks.privacy.site_budget import LEDGER_NAME, last_limit, read_ledger, spent


def has_ledger(folder: Path) -> bool:
    """Whether a run has ever begun a ledger in a folder, or left a mark that there was one."""
    return any(path.suffix != ".lock" for path in folder.glob(f"{LEDGER_NAME}*"))


def tell_of_a_new_ledger(folder: Path) -> None:
    """Log where nothing counts as spent yet: a disk may not be there, or a folder have moved.

    Parameters
    ----------
    folder : Path
        ``state-dir`` of the site.
    """
    if not has_ledger(folder):
        from flwr.supercore import log

        log(WARNING, "no ledger in state-dir %s yet: nothing counts as spent", folder)


def ledger_document(
    folder: Path, *, max_epsilon: float | None = None, max_delta: float | None = None
) -> dict[str, Any]:
    """Return what the ledger in a folder says, as plain numbers and text.

    Parameters
    ----------
    folder : Path
        ``state-dir`` of the site; must be there.
    max_epsilon, max_delta : float, optional
        What is left is of these; by default of the maximum that the latest run began under.

    Returns
    -------
    dict
        ``runs`` (each with ``run``, ``task``, ``time``, ``reserved``, ``released``, ``epsilon`` by
        itself), ``epsilon``, ``delta``, ``composition`` of all, and, where there is a maximum,
        ``max-epsilon`` and ``left``.

    Raises
    ------
    ValueError
        If there is no such folder, or a number is out of range.
    SiteFault
        If the ledger is not as it was left.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    # Reading takes a file lock, which would leave its file in a folder without a ledger.
    begun = has_ledger(folder)
    known = last_limit(folder) if begun else None
    if known is not None:
        max_epsilon = known[0] if max_epsilon is None else max_epsilon
        max_delta = known[1] if max_delta is None else max_delta
    delta = DEFAULT_MAX_DELTA if max_delta is None else max_delta
    if not 0 < delta < 1:
        raise ValueError(f"--max-delta {delta:g}: must be between 0 and 1, both excluded")
    if max_epsilon is not None and not 0 < max_epsilon < float("inf"):
        raise ValueError(f"--max-epsilon {max_epsilon:g}: must be a finite number above 0")
    reservations = read_ledger(folder) if begun else []
    total = spent(reservations, delta=delta)
    document: dict[str, Any] = {
        "runs": [
            {
                "run": own.run,
                "task": own.task,
                "time": own.time,
                "reserved": own.releases,
                "released": len(own.steps),
                "epsilon": spent([own], delta=delta).epsilon,
            }
            for own in reservations
        ],
        "epsilon": total.epsilon,
        "delta": delta,
        "composition": total.composition,
    }
    if max_epsilon is not None:
        document |= {"max-epsilon": max_epsilon, "left": max(0.0, max_epsilon - total.epsilon)}
    return document


def table_of(document: dict[str, Any]) -> str:
    """Return the document of `ledger_document` as lines to read."""
    lines = [f"{'run':<24} {'task':<18} {'released':>9} {'epsilon':>9}  time"]
    lines += [
        f"{own['run']:<24} {own['task']:<18} {own['released']:>4} of {own['reserved']:<4}"
        f"{own['epsilon']:>7.4g}  {own['time']}"
        for own in document["runs"]
    ]
    lines.append(
        f"all runs: epsilon {document['epsilon']:.4g} at delta {document['delta']:g} "
        f"({document['composition']}; less than the sum of the lines is right)"
    )
    if "left" in document:
        lines.append(f"left: {document['left']:.4g} of max-epsilon {document['max-epsilon']:g}")
    return "\n".join(lines)
