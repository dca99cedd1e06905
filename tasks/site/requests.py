"""Requests of a server, read strictly: what is of another form is refused in words of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from tasks.site.faults import SiteFault
from tasks.site.reply_fields import MalformedReply

BAD_REQUEST = "bad-request"

Request = TypeVar("Request")

_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, EOFError)


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
        raise SiteFault(BAD_REQUEST, f"a request of another form than expected ({fault})") from None
    except _MALFORMED as fault:
        kind = type(fault).__name__
        raise SiteFault(BAD_REQUEST, f"a request of another form than expected ({kind})") from None


def config_record(content: RecordDict, key: str) -> ConfigRecord:
    """Return a ConfigRecord of a message; MalformedReply names it if it is not there."""
    record = content.get(key)
    if not isinstance(record, ConfigRecord):
        raise MalformedReply(f"{key}: must be a ConfigRecord")
    return record


def array_record(content: RecordDict, key: str) -> ArrayRecord:
    """Return an ArrayRecord of a message; MalformedReply names it if it is not there."""
    record = content.get(key)
    if not isinstance(record, ArrayRecord):
        raise MalformedReply(f"{key}: must be an ArrayRecord")
    return record
