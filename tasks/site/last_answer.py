"""The last answer of a step, kept to be said again: what is released once is drawn once."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from flwr.app import ConfigRecord, Context, Message, RecordDict

from tasks.site.content_digest import digest_of

_ASKED = "last-answer"
_SAID = "last-answer/"


def answered_again(message: Message, context: Context, make: Callable[[], Message]) -> Message:
    """Answer a message that came before as then, without working anything out anew.

    Parameters
    ----------
    message : Message
        The request.
    context : Context
        Of the node; its state keeps the last answer.
    make : callable
        Works out the answer to another request than the last.
    """
    asked = digest_of(message.content)
    kept = context.state.config_records.get(_ASKED)
    if kept is not None and cast(bytes, kept["request"]) == asked:
        said = {
            key.removeprefix(_SAID): record
            for key, record in context.state.items()
            if key.startswith(_SAID)
        }
        return Message(RecordDict(said), reply_to=message)
    reply = make()
    for key in [key for key in context.state if key.startswith(_SAID)]:
        del context.state[key]
    for key, record in reply.content.items():
        context.state[_SAID + key] = record
    context.state[_ASKED] = ConfigRecord({"request": asked})
    return reply
