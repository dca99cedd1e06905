"""Fingerprint of the code that runs, so that a node with other code is noticed."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

PACKAGES = ("fedapp", "strategies", "tasks")
VERSION = "0.1.0"


@cache
def code_fingerprint() -> str:
    """Return version and hash of the three packages as they lie beside this file.

    Only ``.py`` files count: they are what both a bundle and an installation carry unchanged.

    Returns
    -------
    str
        For example ``0.1.0+3f9a0c1d2e4b``.
    """
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0")
            # Line ends may differ between a checkout and a bundle without being other code.
            digest.update(path.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return f"{VERSION}+{digest.hexdigest()[:12]}"
