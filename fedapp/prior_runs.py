"""What was done before a resumed run, by the runs that it goes on from: counts and ledgers.

Both are in the folder of the resumed run (`fedapp.resumption` writes them), so that it can be read
without those of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.record_shape import SERVER, LedgerRow
from fedapp.run_folder import RunFolder
from fedapp.run_record import RunFolderError, read_ledger_lines

PRIOR = "prior.json"
"""File of a resumed run: from where it goes on, and what was done before."""

EARLIER_LEDGER = "earlier-ledger.jsonl"
"""File of a resumed run: the ledgers of the runs before it, one after the other."""


@dataclass(frozen=True)
class Prior:
    """What was done before a resumed run, by all runs that it goes on from.

    Attributes
    ----------
    folder : str
        Run folder of the interrupted run.
    round : int
        The round (iteration, tree) that its checkpoint is of.
    runs : int
        How many runs: 1, or more if the interrupted one had been resumed itself.
    exchanges, bytes : int
        As their ledgers say; an exchange during which a run was killed is in no ledger.
    killed : int
        How many of these runs ended without a word, perhaps in the middle of an exchange.
    """

    folder: str
    round: int
    runs: int
    exchanges: int
    bytes: int
    killed: int

    def words(self) -> str:
        """Return a sentence for readers of the report."""
        before = "1 run" if self.runs == 1 else f"{self.runs} runs"
        return (
            f"This run goes on from {self.folder}, after round {self.round}. Before it, {before} "
            f"made {self.exchanges} exchanges of {self.bytes} bytes"
        )


def read_prior(folder: Path) -> Prior | None:
    """Return what was done before a resumed run; None of a run that began anew.

    Raises
    ------
    RunFolderError
        If its file is damaged.
    """
    document = RunFolder(folder).read_json(PRIOR)
    if document is None:
        return None
    try:
        prior = Prior(**document)
    except TypeError as error:
        raise RunFolderError(f"{folder / PRIOR}: {error}") from None
    counts = (prior.round, prior.runs, prior.exchanges, prior.bytes, prior.killed)
    if not all(type(count) is int and count >= 0 for count in counts):
        raise RunFolderError(f"{folder / PRIOR}: counts must be whole numbers >= 0")
    return prior


def earlier_ledger(folder: Path) -> list[LedgerRow]:
    """Return the ledger rows of the runs before a resumed one; none of a run that began anew.

    Raises
    ------
    RunFolderError
        If its file is damaged.
    """
    path = folder / EARLIER_LEDGER
    return read_ledger_lines(path) if path.is_file() else []


def totals(folder: Path, *, exchanges: int, bytes_sent: int) -> dict[str, Any]:
    """Return what the summary of a resumed run adds: the run before, and both together."""
    prior = read_prior(folder)
    if prior is None:
        return {}
    return {
        "resumed-from": prior.folder,
        "resumed-after-round": prior.round,
        "runs": prior.runs + 1,
        "exchanges-before": prior.exchanges,
        "bytes-before": prior.bytes,
        "exchanges-total": prior.exchanges + exchanges,
        "bytes-total": prior.bytes + bytes_sent,
    }


def requests_sent(folder: RunFolder, ledger: Sequence[Mapping[str, Any]], *, step: str) -> int:
    """Return how often a site was asked for a step, at most, by a run and those before it.

    A run that was killed may have asked once more than its ledger says.

    Parameters
    ----------
    folder : RunFolder
        Of the run.
    ledger : sequence of mapping
        Of this run alone.
    step : str
    """
    prior = read_prior(folder.path)
    rows = [*earlier_ledger(folder.path), *ledger]
    asked = Counter(row["receiver"] for row in rows if row["step"] == step)
    del asked[SERVER]
    return max(asked.values(), default=0) + (prior.killed if prior else 0)
