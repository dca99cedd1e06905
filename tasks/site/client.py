"""How a site answers, whatever the task: faults leave as safe words, never as an exception."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import ERROR

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.supercore import log

from tasks.site.faults import SiteFault
from tasks.site.messages import HelloReply, TaskPart

Handler = Callable[[Message, Context], Message]

SITE_FAULT_CODE = 200
"""Flower error code of a reply that carries a :class:`~tasks.site.faults.SiteFault`."""


@contextmanager
def unchanged_on_failure(context: Context) -> Iterator[None]:
    """Leave a node's state as it was if the block raises.

    Flower keeps what a handler has changed also where the reply is an error. What a request that
    was refused has left behind would then be believed at the next one.

    Parameters
    ----------
    context : Context
        Records are put back, also where one was changed in place. Arrays are not copied: no
        handler writes into one that is stored.
    """
    before = {key: _copied(record) for key, record in context.state.items()}
    try:
        yield
    except BaseException:
        context.state = RecordDict(before)
        raise


def answering_faults(handler: Handler) -> Handler:
    """Wrap a handler: whatever it raises becomes an error reply without any value of a row.

    Flower sends the text of an exception on to the server, and pandas and others put values into
    that text. The traceback goes to the site's own log only. The node's state is then what it was
    before the message.
    """

    @functools.wraps(handler)
    def answer(message: Message, context: Context) -> Message:
        """Answer, whatever happens."""
        try:
            with unchanged_on_failure(context):
                return handler(message, context)
        except SiteFault as fault:
            reason = f"{fault.code}: {fault}"
        except Exception as error:
            log(ERROR, "%s failed", message.metadata.message_type, exc_info=error)
            reason = f"internal: {type(error).__name__} at the site; its log says more"
        return Message(Error(code=SITE_FAULT_CODE, reason=reason), reply_to=message)

    return answer


def introduce(
    message: Message,
    context: Context,
    *,
    fingerprint: str,
    site_name: Callable[[], str],
    check_data: Callable[[], object],
    task_part: Callable[[], TaskPart] = TaskPart,
) -> Message:
    """Answer the first message of a run.

    Parameters
    ----------
    message : Message
        The request.
    context : Context
        Of the node; its state stays as it is where something is wrong.
    fingerprint : str
        Of the code that runs here.
    site_name, check_data : callable
        Return the site's name; read and check its data for this run. Either may raise
        :class:`~tasks.site.faults.SiteFault`, which the reply then carries.
    task_part : callable
        Returns what the task adds, called once the data are checked; may raise as they may.
    """
    name, code, part = "", "", TaskPart()
    reasons: list[str] = []
    try:
        with unchanged_on_failure(context):
            name = site_name()
            check_data()
            part = task_part()
    except SiteFault as fault:
        code, reasons = fault.code, list(fault.reasons)
    except Exception as error:
        log(ERROR, "the site's data could not be read", exc_info=error)
        code = "internal"
        reasons = [f"{type(error).__name__} while reading the data; the site's log says more"]
    reply = HelloReply(name, fingerprint, code, reasons, part)
    return Message(reply.to_record(), reply_to=message)


_AnyRecord = ArrayRecord | MetricRecord | ConfigRecord


def _copied(record: _AnyRecord) -> _AnyRecord:
    """A record with the same values, of which none is copied but lists."""
    if isinstance(record, ArrayRecord):
        return ArrayRecord(dict(record))
    values = {key: list(v) if isinstance(v, list) else v for key, v in record.items()}
    return type(record)(values)  # type: ignore[arg-type]  # as they were in one of its kind
