"""Runs over all parties that end without a result: every party is told, and forgets its keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strategies.all_parties import AllParties
from strategies.exchange import TooFewSites
from strategies.membership import Refused
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.end_messages import STOP, StopRequest

INTERRUPTED_SECONDS = 10.0
"""Longest wait for parties to hear that the run was interrupted; a deployed exchange takes 6."""


@contextmanager
def telling_the_end(parties: AllParties) -> Iterator[None]:
    """Tell all parties why the block has raised, whatever it was, and raise it again.

    Parameters
    ----------
    parties : AllParties
        Of an Exchange whose disclosures have the words of ``stop``.
    """
    try:
        yield
    except BaseException as end:
        # The reason of an unexpected error may hold anything: only its kind goes round.
        may_be_told = isinstance(end, Refused | TooFewSites | SiteFault)
        reason = str(end) if may_be_told else f"{type(end).__name__} at the server"
        # Whoever interrupts the run waits for nobody who is gone.
        patience = None if isinstance(end, Exception) else INTERRUPTED_SECONDS
        parties.tell(StopRequest(reason).to_record(), STOP, timeout=patience)
        raise
