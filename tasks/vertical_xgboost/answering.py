"""How a party answers the steps of a run: each once, and after a fault no more.

What a party refuses tells something: whether a number was too large, whether a sum could be. A
server that might ask again with another number would read secrets off the refusals, one bit a
question. So a fault ends the party's part of the run, as a model without it is none in any case.
"""

from __future__ import annotations

import functools

from flwr.app import Context, Message

from tasks.site.client import Handler, answering_faults


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
