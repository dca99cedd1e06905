"""Steps that a site answers for one request of a run, so that none is an oracle of its rows.

An answer is a sum over many rows; the answers to many requests of a server's choice give the rows
back, and noise that is drawn again and again averages out. So each step (of a round, where there
are rounds) is answered for one request. The same request again (a message that was sent twice) gets
the same answer, and another one is refused, also after a refusal, which tells something, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from flwr.app import ConfigRecord, Context, Message, RecordDict

from tasks.site.client import answering_faults
from tasks.site.content_digest import digest_of
from tasks.site.faults import SiteFault
from tasks.site.requests import read_request

_ASKED = "answered-once-"
_SAID = "answered-once-reply/"


def answered_once(
    message: Message,
    context: Context,
    make: Callable[[], Message],
    *,
    step: str,
    server_round: int = 1,
) -> Message:
    """Answer a step of a run for its first request, and that again as then.

    Parameters
    ----------
    message : Message
        The request.
    context : Context
        Of the node; its state keeps the last answer of the step.
    make : callable
        Works out the answer to a request that was not answered before.
    step : str
        Name of the step.
    server_round : int
        Of a step of several rounds: a later one than the last is answered, an earlier one is not.

    Raises
    ------
    SiteFault
        ``"second-request"``, or ``"bad-request"`` where an array cannot be read.
    """
    asked = read_request(lambda: digest_of(message.content))
    kept = context.state.config_records.get(_ASKED + step)
    said = f"{_SAID}{step}/"
    if kept is not None and server_round <= cast(int, kept["round"]):
        if kept["request"] != asked:
            raise SiteFault(
                "second-request",
                f"step {step} was answered in this run for another request: it is answered once"
                " (where it has rounds, once a round), and again only for the same request",
            )
        if kept["answered"]:
            return Message(_under(said, context.state), reply_to=message)
    reply = answering_faults(lambda message, context: make())(message, context)
    for key in _under(said, context.state):
        del context.state[said + key]
    if not reply.has_error():
        context.state.update({said + key: record for key, record in reply.content.items()})
    context.state[_ASKED + step] = ConfigRecord(
        {"round": server_round, "request": asked, "answered": not reply.has_error()}
    )
    return reply


def _under(prefix: str, records: RecordDict) -> RecordDict:
    return RecordDict(
        {key.removeprefix(prefix): rec for key, rec in records.items() if key.startswith(prefix)}
    )
