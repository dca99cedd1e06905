"""How a party answers the steps of a run: each once, and after a fault no more.

What a party refuses tells something: whether a number was too large, whether a sum could be. A
server that might ask again with another number would read secrets off the refusals, one bit a
question. So a fault ends the party's part of the run, as a model without it is none in any case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from flwr.app import Context, Message

from tasks.site.client import Handler, answering_faults
from tasks.site.faults import SiteFault
from tasks.site.reply_fields import MalformedReply

Request = TypeVar("Request")

_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, EOFError)


def answering_once(handler: Handler) -> Handler:
    """Wrap a handler of a step: whatever it raises ends this party's part of the run.

    The reply is that of :func:`tasks.site.client.answering_faults`. Keys, rows and trees of the run
    are forgotten, and every later step is refused with the code ``"stopped"``.
    """
    answer_faults = answering_faults(handler)

    @functools.wraps(handler)
    def answer(message: Message, context: Context) -> Message:
        """Answer, and end with a fault."""
        reply = answer_faults(message, context)
        if reply.has_error():
            # Here, since every ClientApp imports this module, whatever its task.
            from tasks.vertical_xgboost import site_state

            site_state.end(context)
        return reply

    return answer


def read_request(parse: Callable[[], Request]) -> Request:
    """Read a request of the server.

    Parameters
    ----------
    parse : callable
        ``from_record`` of the message's dataclass, with the content.

    Raises
    ------
    SiteFault
        ``"bad-request"`` if it is of another form.
    """
    try:
        return parse()
    except MalformedReply as fault:
        raise SiteFault(
            "bad-request", f"a request of another form than expected ({fault})"
        ) from None
    except _MALFORMED as fault:
        kind = type(fault).__name__
        raise SiteFault(
            "bad-request", f"a request of another form than expected ({kind})"
        ) from None
