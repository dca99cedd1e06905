"""Text from another machine, made fit for a log, a ledger or a report.

What a node says of itself may hold anything: escape sequences that take over a terminal, line
ends that forge lines of a log, characters that turn the direction of writing, or megabytes.
"""

from __future__ import annotations

import unicodedata

LONGEST_LINE = 1000
"""Characters that are kept of one line of a node's words."""

LONGEST_WORD = 100
"""Characters that are kept of a name, a code or a version."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CUT = "..."


def printable(text: str, *, longest: int | None = LONGEST_LINE) -> str:
    """Return text in one line: control characters replaced, and cut where it is too long.

    Parameters
    ----------
    text : str
        From anywhere.
    longest : int or None
        Most characters of the result; None: any number.

    Returns
    -------
    str
        Without characters of the Unicode categories C (control, format, surrogates, unassigned)
        and without line and paragraph separators.
    """
    if longest is not None and len(text) > longest:
        text = text[: longest - len(_CUT)] + _CUT
    if text.isascii() and text.isprintable():
        return text
    return "".join(_REPLACEMENT if _is_unsafe(mark) else mark for mark in text)


def _is_unsafe(mark: str) -> bool:
    category = unicodedata.category(mark)
    return category[0] == "C" or category in ("Zl", "Zp")
