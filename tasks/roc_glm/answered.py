"""What a site has answered in a run, so that no message of the run is an oracle of its rows.

A clear answer under A1 is an aggregate; the answers to many requests of the server's choice give
the rows back. So each step is answered for one request of a run. The same request again (a message
that was sent twice) gets the same answer; another one is refused. Kept are digests only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

from tasks.site.content_digest import array_digest, digest_of
from tasks.site.faults import SiteFault

_ANSWERED = "roc-glm-answered-"
_SURVIVOR = "roc-glm-survivor"


def refuse_another(context: Context, step: str, request: bytes, *, server_round: int = 1) -> None:
    """Refuse a request that is not the one this step was answered for in this run.

    Parameters
    ----------
    context : Context
    step : str
        Name of the step.
    request : bytes
        Digest of the request.
    server_round : int
        Of a step of several rounds: a later one than the last is answered, an earlier one is not.

    Raises
    ------
    SiteFault
        ``"second-request"``.
    """
    said = context.state.config_records.get(_ANSWERED + step)
    if said is None or server_round > cast(int, said["round"]):
        return
    if server_round < cast(int, said["round"]) or said["request"] != request:
        raise SiteFault(
            "second-request",
            f"step {step} was answered in this run for another request: it is answered once, and "
            "again only for the same request",
        )


def was_answered(context: Context, step: str) -> bool:
    """Whether this step was answered in this run, at any round."""
    return _ANSWERED + step in context.state


def answer_once(
    context: Context,
    step: str,
    *,
    request: bytes,
    make: Callable[[], RecordDict],
    server_round: int = 1,
) -> RecordDict:
    """Answer a step, once in a run (and round); parameters as `refuse_another`.

    Parameters
    ----------
    make : callable
        Works out the answer; asked again, it must give the same one. It is stored last that the
        step is answered.

    Raises
    ------
    SiteFault
        ``"second-request"``; ``"second-answer"`` if the rows have changed in between.
    """
    refuse_another(context, step, request, server_round=server_round)
    said = context.state.config_records.get(_ANSWERED + step)
    reply = make()
    digest = digest_of(reply)
    if said is not None and said["round"] == server_round and said["reply"] != digest:
        raise SiteFault(
            "second-answer",
            f"step {step} was answered in this run, and the rows give another answer now: begin "
            "a new run",
        )
    context.state[_ANSWERED + step] = ConfigRecord(
        {"round": server_round, "request": request, "reply": digest}
    )
    return reply


def fix_survivor(context: Context, survivor: ArrayRecord) -> None:
    """Keep the survivor function of the run's rounds, and refuse another.

    Raises
    ------
    SiteFault
        ``"second-request"``.
    """
    digest = array_digest(survivor)
    known = context.state.config_records.get(_SURVIVOR)
    if known is not None and known["digest"] != digest:
        raise SiteFault(
            "second-request",
            "another survivor function than the first of this run: sums under two of them are "
            "not given",
        )
    context.state[_SURVIVOR] = ConfigRecord({"digest": digest})
