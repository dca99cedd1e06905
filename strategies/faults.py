"""Replies that do not count: which kinds there are, and what is said of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from tasks.site.name_lists import lines_by_words

LATE = "late"
"""Code of the fault of a reply that did not come in time, or that cannot come any more."""

MALFORMED = "malformed"
"""Code of the fault of a reply of another form than expected."""

NOT_SENT = "not-sent"
"""Code of the fault of a site to which the runtime took no message."""

MISROUTED = "misrouted"
"""Code of the fault of a reply that is not the addressed node's, or of another run."""

FORM_ERRORS = (
    *(ValueError, TypeError, LookupError, AttributeError, OverflowError),
    *(EOFError, StopIteration),  # an array without bytes, a reply without a record
)
"""What reading a reply raises that is of another form."""

_KIND = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_NOTHING_WILL_COME = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)
"""What the runtime answers for a node that is gone, which may be before the time limit."""


@dataclass(frozen=True)
class Fault:
    """Why a site's reply does not count."""

    site: str
    step: str
    code: str
    reason: str

    def __str__(self) -> str:
        return f"{self.site}: {self.step}: {self.reason}"


class TooFewSites(RuntimeError):
    """Fewer usable replies than the run needs.

    Parameters
    ----------
    message : str
        What was needed and what came.
    faults : list of Fault
        What happened at the others.
    """

    def __init__(self, message: str, faults: list[Fault]) -> None:
        self.faults = faults
        said = lines_by_words((fault.site, f"{fault.step}: {fault.reason}") for fault in faults)
        super().__init__("; ".join([message, *said]))


def what_is_wrong(request: Message, reply: Message) -> tuple[str, str] | None:
    """Return code and words for a reply that is an error or not the request's; None if it is."""
    if reply.has_error():
        return _code_and_words(reply.error)
    expected = request.metadata
    if reply.metadata.src_node_id != expected.dst_node_id or not reply.has_content():
        return MISROUTED, "the reply is not the addressed node's"
    if reply.metadata.run_id != expected.run_id:
        return MISROUTED, "the reply is of another run"
    return None


def _code_and_words(error: Error) -> tuple[str, str]:
    """Return kind and words of a reply that is an error: of the site, the runtime, a library."""
    reason = error.reason or f"error code {error.code}"
    if error.code in _NOTHING_WILL_COME:
        return LATE, reason.removeprefix("Error: ")
    code, _, words = reason.partition(": ")
    return (code, words) if words and _KIND.fullmatch(code) else ("error", reason)
