"""What a site may say of a fault: a code and safe words, never a value of a row."""

from __future__ import annotations

SMALL_SITE = "small-site"
"""Code of the fault of a site that has fewer rows than the privacy level asks for."""

SITE_LIMIT = "site-limit"
"""Code of the fault of a run that a site's own limits do not let go on."""


class SiteFault(Exception):
    """A fault that a site may tell the server.

    Everything in it travels and is printed at the server, so it may hold names, counts and
    configuration values, and never a value of a row. Exceptions of libraries are not of this
    kind: pandas and others put values into their messages.

    Parameters
    ----------
    code : str
        Kebab-case name of the kind of fault, for example ``"unknown-column"``.
    *reasons : str
        One line a fault found; all of them at once.
    """

    def __init__(self, code: str, *reasons: str) -> None:
        self.code = code
        self.reasons = reasons or (code,)
        super().__init__("; ".join(self.reasons))
